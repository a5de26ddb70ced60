package digest

import (
	"testing"
	"time"
)

func TestIsRepeated(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, old, next string
		want            bool
	}{
		{"word for word", "The bridge was opened in 1931.", "The bridge was opened in 1931.", true},
		{"case, blanks and marks", "The bridge, opened  in 1931", "the BRIDGE opened in 1931!", true},
		{"attributed", `Ana said, "The bridge is red."`, "The bridge is red.", true},
		{"other order", "The meeting on Friday is at ten.", "On Friday the meeting is at ten.", false},
		{
			"trick: denied", "I like fish, meat and everything else that is cooked.",
			"I like fish, meat and not everything else that is cooked.", false,
		},
		{"trick: another number", "The rent is 900 euros a month.", "The rent is 950 euros a month.", false},
		{"trick: more", "I live in Oslo.", "I live in Oslo. I work at Acme.", false},
		{"trick: only emoji", "😀😀", "😀😀", false},
		{"trick: says nothing", " ", " \n", false},
	} {
		if got := IsRepeated(Statement{Corpus: tt.old}, Statement{Corpus: tt.next}); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
}

func TestRepeatedStatementElsewhereIsAnother(t *testing.T) {
	t.Parallel()
	day := time.Date(2023, time.May, 8, 13, 56, 0, 0, time.UTC)
	thanks := Statement{
		Corpus: "Thanks, Melanie! That is really sweet.", Speaker: "Caroline", Happened: day,
		Conversation: "c1",
	}
	with := func(s Statement, change func(*Statement)) Statement { change(&s); return s }
	for _, tt := range []struct {
		name      string
		old, next Statement
		want      bool
	}{
		{"the same again", thanks, thanks, true},
		{
			"nothing known of day and conversation",
			Statement{Corpus: thanks.Corpus},
			Statement{Corpus: thanks.Corpus},
			true,
		},
		{"on another day", thanks, with(thanks, func(s *Statement) { s.Happened = day.AddDate(0, 0, 1) }), false},
		{"by another speaker", thanks, with(thanks, func(s *Statement) { s.Speaker = "Melanie" }), false},
		{"in another conversation", thanks, with(thanks, func(s *Statement) { s.Conversation = "c2" }), false},
		{"other content", thanks, with(thanks, func(s *Statement) { s.Corpus = "The rent is due." }), false},
		{"older", thanks, with(thanks, func(s *Statement) { s.Happened = day.Add(-time.Hour) }), false},
		{"trick: untrusted over trusted", thanks, with(thanks, func(s *Statement) { s.Untrusted = true }), false},
		{"trick: stored before", with(thanks, func(s *Statement) {
			s.Created = day.AddDate(1, 0, 0)
		}), with(thanks, func(s *Statement) { s.Created = day }), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := IsRepeated(tt.old, tt.next); got != tt.want {
				t.Errorf("%t", got)
			}
		})
	}
}
