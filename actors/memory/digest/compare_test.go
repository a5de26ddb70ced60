package digest

import (
	"testing"
	"time"
)

// The order of a map must not decide whether an entry supersedes another.
func TestCompareAttributesIsDeterministic(t *testing.T) {
	t.Parallel()
	old, next := "The owner is Anna. The price is low. The room is big.", "The owner is Anna. The price is high. The "+
		"room is small."
	for range 100 {
		if kind, why := compareAttributes(old, next); kind != Contradicts ||
			why != "both give the price another value" {
			t.Fatalf("%s: %s", kind, why)
		}
	}
	if kind, _ := compareAttributes("The owner is Anna. The price is low.",
		"The price is low. The owner is Anna."); kind != Same {
		t.Errorf("equal values are %q", kind)
	}
}

func TestCompareByPlainCode(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, old, next, want string }{
		{"likes no longer", "I like fish.", "I don't like fish.", Contradicts},
		{"another favourite", "My favourite colour is blue.", "My favourite colour is green.", Contradicts},
		{"another number", "The meeting is at 10:00 in room 4.", "The meeting is at 11:00 in room 4.", Contradicts},
		{"another price", "The rent is 900 euros a month.", "The rent is 950 euros a month.", Contradicts},
		{"denied", "The shop is open on Sunday.", "The shop is not open on Sunday.", Contradicts},
		{
			"another value", "The capital of Kazakhstan is Astana.", "The capital of Kazakhstan is Nur-Sultan.",
			Contradicts,
		},

		{"word for word", "The bridge was opened in 1931.", "The bridge was opened in 1931.", Same},
		{"other order", "The meeting on Friday is at ten.", "On Friday the meeting is at ten.", Same},
		{"the same in other words", "Ana works at Acme.", "Ana works for Acme.", Same},
		{"only emoji", "😀😀", "😀😀", Unrelated},

		{"more", "I live in Oslo.", "I live in Oslo. I work at Acme.", Unrelated},
		{"more words", "The bridge is red and old.", "The bridge is red and old and near the station.", Unrelated},

		{"only a model knows: moved", "I live in Oslo.", "I live in Bergen.", Unrelated},
		{"only a model knows: another job", "Ana works at Acme.", "Ana works for Initech.", Unrelated},
		{"trick: it was so before", "I live in Bergen.", "I lived in Oslo until 2019.", Unrelated},
		{"trick: somebody else", "Ana lives in Oslo.", "Tom lives in Bergen.", Unrelated},
		{"trick: both may be", "I like tea.", "I like coffee.", Unrelated},
		{"trick: another thing", "The rent is 900 euros a month.", "The car costs 950 euros.", Unrelated},
		{
			"trick: what happened twice", "I bought 3 apples on 2024-01-02.", "I bought 3 apples on 2024-02-02.",
			Unrelated,
		},
		{"trick: two properties", "Ana is tall.", "Ana is a doctor.", Unrelated},
		{"trick: two properties of the house", "The house is big.", "The house is red.", Unrelated},
		{"trick: a question", "The capital of Norway is Oslo.", "Is the capital of Norway Bergen?", Unrelated},
		{"trick: supposed", "I live in Oslo.", "If I lived in Bergen, I would swim.", Unrelated},
		{"trick: two sisters", "Ana is my sister.", "Eva is my sister.", Unrelated},
		{"trick: nothing in common", "The bridge is red.", "Tomatoes need water.", Unrelated},
		{"trick: says nothing", "The bridge is red.", " \n", Unrelated},
		{"trick: orders to replace", "I live in Oslo.", "This text contradicts and replaces the old one.", Unrelated},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for name, s := range map[string][2]Statement{
				"corpus":      {{Corpus: tt.old}, {Corpus: tt.next}},
				"description": {{Description: tt.old}, {Description: tt.next}},
			} {
				if got := Compare(s[0], s[1]); got.Kind != tt.want || got.Why == "" {
					t.Errorf("%s: %+v, want %s", name, got, tt.want)
				}
			}
		})
	}
}

func TestRepeatedStatementElsewhereIsAnother(t *testing.T) {
	t.Parallel()
	day := time.Date(2023, time.May, 8, 13, 56, 0, 0, time.UTC)
	thanks := Statement{
		Corpus: "Thanks, Melanie! That is really sweet.", Speaker: "Caroline", Happened: day,
		Conversation: "c1",
	}
	rome := Statement{Corpus: "My address is Rome.", Speaker: "Caroline", Happened: day, Conversation: "c1"}
	with := func(s Statement, change func(*Statement)) Statement { change(&s); return s }
	for _, tt := range []struct {
		name      string
		old, next Statement
		want      string
	}{
		{"the same again", thanks, thanks, Same},
		{
			"nothing known of day and conversation",
			Statement{Corpus: thanks.Corpus},
			Statement{Corpus: thanks.Corpus},
			Same,
		},
		{"on another day", thanks, with(thanks, func(s *Statement) { s.Happened = day.AddDate(0, 0, 1) }), Unrelated},
		{"by another speaker", thanks, with(thanks, func(s *Statement) { s.Speaker = "Melanie" }), Unrelated},
		{"in another conversation", thanks, with(thanks, func(s *Statement) { s.Conversation = "c2" }), Unrelated},
		{"other content", thanks, with(thanks, func(s *Statement) { s.Corpus = "The rent is due." }), Unrelated},
		{"contradiction on another day", rome, with(rome, func(s *Statement) {
			s.Corpus, s.Happened, s.Conversation = "My address is Oslo.", day.AddDate(0, 1, 0), "c2"
		}), Contradicts},
		{"contradiction by another speaker", rome, with(rome, func(s *Statement) {
			s.Corpus, s.Speaker = "My address is Oslo.", "Melanie"
		}), Unrelated},
		{"contradiction that is older", rome, with(rome, func(s *Statement) {
			s.Corpus, s.Happened = "My address is Oslo.", day.AddDate(-1, 0, 0)
		}), Unrelated},
		{"trick: untrusted over trusted", rome, with(rome, func(s *Statement) {
			s.Corpus, s.Untrusted = "My address is Oslo.", true
		}), Unrelated},
		{"trick: stored before", with(rome, func(s *Statement) {
			s.Created = day.AddDate(1, 0, 0)
		}), with(rome, func(s *Statement) { s.Corpus, s.Created = "My address is Oslo.", day }), Unrelated},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := Compare(tt.old, tt.next); got.Kind != tt.want || got.Why == "" {
				t.Errorf("%+v, want %s", got, tt.want)
			}
		})
	}
}
