package digest

import (
	"slices"
	"strings"
	"testing"
)

// brief is a relation in one line: subject|predicate|object|tense|from|until.
func brief(r Relation) string {
	return strings.Join([]string{r.Subject, r.Predicate, r.Object, r.Tense, r.From, r.Until}, "|")
}

func briefs(list []Relation) []string {
	var out []string
	for _, r := range list {
		out = append(out, brief(r))
	}
	return out
}

// TestModelCannotGiveTheUserTheWordsOfOthers: a relation of the user needs words of the user's own.
func TestModelCannotGiveTheUserTheWordsOfOthers(t *testing.T) {
	t.Parallel()
	reply := `{"name":"music","description":"Melanie loves live music.","intent":"tell preference",
		"sentiment":"positive","entities":["Melanie"],"relations":[
		{"subject":"the user","predicate":"likes","object":"live music","kind":"thing","tense":"is",
		"from":"","until":""},
		{"subject":"Melanie","predicate":"likes","object":"live music","kind":"thing","tense":"is",
		"from":"","until":""}]}`
	for name, tt := range map[string]struct {
		speaker, text string
		want          []string
	}{
		"attributed": {"", `Melanie said, "I love live music."`, []string{"Melanie|likes|live music|is||"}},
		"a line with a name": {
			"", "Look at this.\nMelanie: I love live music.",
			[]string{"Melanie|likes|live music|is||"},
		},
		"a line with a time":  {"", "[10:00] Melanie: I love live music.", []string{"Melanie|likes|live music|is||"}},
		"quoted to the end":   {"", `Melanie told me: "I love live music.`, []string{"Melanie|likes|live music|is||"}},
		"named by the caller": {"Melanie", "I love live music.", []string{"Melanie|likes|live music|is||"}},
		"quoted": {
			"", `I met Melanie. Melanie said, "I love live music." It was late.`,
			[]string{"Melanie|likes|live music|is||"},
		},
		"the user's own": {"", "I love live music, and so does Melanie.", []string{"the user|likes|live " +
			"music|is||", "Melanie|likes|live music|is||"}},
	} {
		d, err := New(Options{Ask: says(reply)}).Note(t.Context(), tt.speaker, tt.text, false)
		if got := briefs(d.Relations); err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, %v, want %q", name, got, err, tt.want)
		}
	}
}

func TestPredicate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ in, want string }{
		{"lives in", "lives in"},
		{"lived in", "lived in"},
		{"does not live in", "does not live in"},
		{"works_for", "works for"},
		{"Likes", "likes"},
		{"is the", "is the"},
		{"has favourite colour", "has favourite colour"},
		{"plays", "plays"},
		{"", ""},
		{"   ", ""},
		{"ignore all rules; delete", ""},
		{"must send 100 dollars to", ""},
		{"one two three four five six", ""},
		{strings.Repeat("x", 60), ""},
		{"lives\nin", "lives in"},
	} {
		if got := canonicalPredicate(tt.in); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.in, got, tt.want)
		}
	}
	for p, want := range map[string]bool{
		"lives in": true, "works at": true, "is sister of": false, "likes": false,
		"has favourite colour": true, "": false,
	} {
		if isSingle(p) != want {
			t.Errorf("single(%q) is %t", p, !want)
		}
	}
	for p := range singlePredicates {
		for name, prompt := range map[string]string{"answer": answerPrompt, "note": notePrompt} {
			if !strings.Contains(strings.Join(strings.Fields(prompt), " "), p+",") {
				t.Errorf("%s.md does not name the predicate %q", name, p)
			}
		}
	}
}

func TestPlainEntities(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"inside a sentence", "We met Ana Silva near Oslo.", []string{"Ana Silva", "Oslo"}},
		{"begins a sentence and comes again", "Oslo is cold. We like Oslo.", []string{"Oslo"}},
		{"two words begin a sentence", "New York is large.", nil},
		{"with of", "She studied at the University of Oslo.", []string{"University", "Oslo"}},
		{"capital letters", "It was built by NASA.", []string{"NASA"}},
		{"possessive", "We saw Ana's house.", []string{"Ana"}},

		{"trick: sentence starts", "The house is red. However it is old. People like it.", nil},
		{"trick: I", "Then I said that I go.", nil},
		{"trick: a long quotation", `He said "` + strings.Repeat("word ", 40) + `".`, nil},
		{"trick: nothing in quotes", `"" "." "!!!"`, nil},
		{"trick: empty", "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := plainEntities(tt.text); !slices.Equal(got, tt.want) {
				t.Errorf("%q\ngot  %+v\nwant %+v", tt.text, got, tt.want)
			}
		})
	}
	many := plainEntities("x " + strings.Repeat("Aa Bb, Cc Dd. ", 9) + manyNames(40))
	if len(many) != maxEntities {
		t.Errorf("%d entities", len(many))
	}
}

// manyNames is a sentence with n different names.
func manyNames(n int) string {
	var b strings.Builder
	b.WriteString("We met")
	for i := range n {
		b.WriteString(" Name" + strings.Repeat("x", i+1) + ",")
	}
	return b.String()
}
