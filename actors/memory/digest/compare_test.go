package digest

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// The order of a map must not decide whether an entry supersedes another.
func TestCompareAttributesIsDeterministic(t *testing.T) {
	t.Parallel()
	old, next := "The owner is Anna. The price is low. The room is big.", "The owner is Anna. The price is high. The room is small."
	for range 100 {
		if kind, why := compareAttributes(old, next); kind != Contradicts || why != "both give the price another value" {
			t.Fatalf("%s: %s", kind, why)
		}
	}
	if kind, _ := compareAttributes("The owner is Anna. The price is low.", "The price is low. The owner is Anna."); kind != Same {
		t.Errorf("equal values are %q", kind)
	}
}

func TestCompareByPlainCode(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, old, next, want string }{
		{"moved", "I live in Oslo.", "I live in Bergen.", Contradicts},
		{"moved away", "I live in Oslo.", "I no longer live in Oslo.", Contradicts},
		{"moved, with a date", "Ana lives in Oslo.", "Ana moved from Oslo to Bergen in 2020.", Contradicts},
		{"another job", "Ana works at Acme.", "Ana works for Initech.", Contradicts},
		{"likes no longer", "I like fish.", "I don't like fish.", Contradicts},
		{"used to like", "I like jazz.", "I used to like jazz.", Contradicts},
		{"another favourite", "My favourite colour is blue.", "My favourite colour is green.", Contradicts},
		{"another number", "The meeting is at 10:00 in room 4.", "The meeting is at 11:00 in room 4.", Contradicts},
		{"another price", "The rent is 900 euros a month.", "The rent is 950 euros a month.", Contradicts},
		{"denied", "The shop is open on Sunday.", "The shop is not open on Sunday.", Contradicts},
		{"another value", "The capital of Kazakhstan is Astana.", "The capital of Kazakhstan is Nur-Sultan.", Contradicts},
		{"another birthday", "Ana was born on 3 May 1990.", "Ana was born on 4 May 1990.", Contradicts},

		{"word for word", "The bridge was opened in 1931.", "The bridge was opened in 1931.", Same},
		{"other order", "The meeting on Friday is at ten.", "On Friday the meeting is at ten.", Same},
		{"the same relation", "I live in Oslo.", "I now live in Oslo.", Same},
		{"the same relation in other words", "Ana works at Acme.", "Ana works for Acme.", Same},
		{"only emoji", "😀😀", "😀😀", Unrelated},

		{"more", "I live in Oslo.", "I live in Oslo. I work at Acme.", Adds},
		{"more words", "The bridge is red and old.", "The bridge is red and old and near the station.", Adds},

		{"trick: it was so before", "I live in Bergen.", "I lived in Oslo until 2019.", Unrelated},
		{"trick: somebody else", "Ana lives in Oslo.", "Tom lives in Bergen.", Unrelated},
		{"trick: both may be", "I like tea.", "I like coffee.", Unrelated},
		{"trick: another thing", "The rent is 900 euros a month.", "The car costs 950 euros.", Unrelated},
		{"trick: what happened twice", "I bought 3 apples on 2024-01-02.", "I bought 3 apples on 2024-02-02.", Unrelated},
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
				"description": {{Name: "a name", Description: tt.old}, {Name: "other words", Description: tt.next}},
			} {
				got, err := New(Options{}).Compare(t.Context(), s[0], s[1])
				if err != nil || got.Kind != tt.want || got.By != ByPlain || got.Why == "" {
					t.Errorf("%s: %+v, %v, want %s", name, got, err, tt.want)
				}
			}
		})
	}
}

func TestCompareByModel(t *testing.T) {
	t.Parallel()
	day := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	oslo := Statement{Corpus: "The person lives in Oslo.", Created: day}
	bergen := Statement{Corpus: "The person has a flat in Bergen.", Created: day.Add(time.Hour)}
	said := func(kind, why string) string {
		data, err := json.Marshal(map[string]string{"relationship": kind, "why": why})
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	untrusted := func(s Statement) Statement { s.Untrusted = true; return s }
	for _, tt := range []struct {
		name      string
		old, next Statement
		reply     string
		kind, by  string
		why       string
	}{
		{"contradicts", oslo, bergen, said(Contradicts, "another town"), Contradicts, ByModel, "another town"},
		{"same", oslo, Statement{Corpus: "Oslo is where the person lives."}, said(Same, "the same town"), Same, ByModel, "the same town"},
		{"adds", oslo, bergen, said(Adds, "a second home"), Adds, ByModel, "a second home"},
		{"unrelated", oslo, bergen, said(Unrelated, "different things"), Unrelated, ByModel, "different things"},
		{"both untrusted", untrusted(oslo), untrusted(bergen), said(Contradicts, "another town"), Contradicts, ByModel, "another town"},
		{"trusted over untrusted", untrusted(oslo), bergen, said(Contradicts, "another town"), Contradicts, ByModel, "another town"},

		{"trick: untrusted over trusted", oslo, untrusted(bergen), said(Contradicts, "believe me"), Unrelated, ByPlain, "an untrusted text takes no trusted one's place"},
		{"trick: untrusted the same as trusted", oslo, untrusted(oslo), said(Same, "believe me"), Unrelated, ByPlain, "an untrusted text takes no trusted one's place"},
		{"trick: older than the old one", bergen, oslo, said(Contradicts, "another town"), Unrelated, ByPlain, "it is older than what it would replace"},
		{"trick: nothing in common", oslo, Statement{Corpus: "Tomatoes need water."}, said(Contradicts, "x"), Unrelated, ByPlain, "the two have no word in common"},
		{"trick: the same with another number", Statement{Corpus: "The rent is 900 euros."}, Statement{Corpus: "The rent is 950 euros."}, said(Same, "x"), Unrelated, ByPlain, "the two differ in a number or in a denial, so they are not the same"},
		{"trick: the same and denied", oslo, Statement{Corpus: "The person does not live in Oslo."}, said(Same, "x"), Unrelated, ByPlain, "the two differ in a number or in a denial, so they are not the same"},
		{"trick: a relationship of its own", oslo, bergen, said("supersedes", "x"), Unrelated, ByPlain, "it is not sure that both speak of the same"},
		{"trick: other letters", oslo, bergen, said("CONTRADICTS", "x"), Unrelated, ByPlain, "it is not sure that both speak of the same"},
		{"trick: prose", oslo, bergen, "They contradict each other.", Unrelated, ByPlain, "it is not sure that both speak of the same"},
		{"trick: an order as reason", untrusted(oslo), untrusted(bergen), said(Contradicts, order), Contradicts, ByModel, "the model gave no reason that could be kept"},
		{"trick: a long reason of many lines", oslo, bergen, said(Contradicts, "a\nb\x00"+strings.Repeat(" c", 500)), Contradicts, ByModel, ""},
		{"trick: no reason", oslo, bergen, said(Contradicts, " \u200b"), Contradicts, ByModel, "the model gave no reason that could be kept"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := New(Options{Ask: says(tt.reply)}).Compare(t.Context(), tt.old, tt.next)
			if err != nil || got.Kind != tt.kind || got.By != tt.by {
				t.Fatalf("%+v, %v", got, err)
			}
			if tt.why != "" && got.Why != tt.why || len(got.Why) > 200 || strings.ContainsAny(got.Why, "\n\x00") {
				t.Errorf("why %q, want %q", got.Why, tt.why)
			}
		})
	}
}

// TestCompareAnswers: in a kept question "I" is the user, in a kept answer "you" is. Of strangers neither is known.
func TestCompareAnswers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, old, next string
		untrusted       bool
		want            string
	}{
		{"told, then asked", "Question: I live in Oslo.\nAnswer: Noted.", "Question: Where do I live?\nAnswer: You live in Bergen.", false, Contradicts},
		{"told and noted", "I live in Oslo.", "Question: I live in Bergen now.\nAnswer: Noted.", false, Contradicts},
		{"the same answer", "Question: Where do I live?\nAnswer: You live in Oslo.", "Question: In which town do I live?\nAnswer: You live in Oslo.", false, Same},
		{"what strangers say of others", "Question: Who is Ana?\nAnswer: Ana lives in Oslo.", "Question: Who is Ana?\nAnswer: Ana lives in Bergen.", true, Contradicts},
		{"trick: the assistant speaks of itself", "Question: I live in Oslo.\nAnswer: Noted.", "Question: Where are you?\nAnswer: I live in Bergen.", false, Unrelated},
		{"trick: strangers who say I and you", "Question: I live in Oslo.\nAnswer: x", "Question: x\nAnswer: You live in Bergen. I live in Rome.", true, Unrelated},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := New(Options{}).Compare(t.Context(), Statement{Corpus: tt.old, Untrusted: tt.untrusted}, Statement{Corpus: tt.next, Untrusted: tt.untrusted})
			if err != nil || got.Kind != tt.want {
				t.Errorf("%+v, %v, want %s", got, err, tt.want)
			}
		})
	}
}

// TestComparePrompt: a model is not even asked whether strangers may replace what is trusted.
func TestComparePrompt(t *testing.T) {
	t.Parallel()
	calls := 0
	d := New(Options{Ask: func(_ context.Context, system, user string, schema json.RawMessage) (string, error) {
		calls++
		if system != comparePrompt || string(schema) != string(compareSchema) || !strings.Contains(user, "[TEXT old ") || !strings.Contains(user, "[TEXT new ") || len(user) > 8<<10 {
			t.Errorf("%s\n%.500s", system, user)
		}
		return "{}", nil
	}})
	big := Statement{Name: strings.Repeat("n ", 9000), Description: strings.Repeat("d ", 9000), Corpus: strings.Repeat("c ", 90000)}
	if _, err := d.Compare(t.Context(), big, big); err != nil || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
	if _, err := d.Compare(t.Context(), big, Statement{Corpus: "x y", Untrusted: true}); err != nil || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
}
