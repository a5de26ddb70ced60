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

func TestPlainRelations(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		by   speaker
		text string
		want []string
	}{
		{"lives", byUser, "Ana lives in Oslo.", []string{"Ana|lives in|Oslo|is||"}},
		{"lived until", byUser, "Ana Silva lived in New York until 2019.", []string{"Ana Silva|lives in|New York|was||2019"}},
		{"used to live", byUser, "Ana used to live in Rome.", []string{"Ana|lives in|Rome|was||"}},
		{"no longer", byUser, "Ana no longer works at Acme.", []string{"Ana|works at|Acme|was||"}},
		{"formerly", byUser, "Tom formerly worked for Acme Corp.", []string{"Tom|works at|Acme Corp|was||"}},
		{"since", byUser, "I have lived in Oslo since March 2019.", []string{"the user|lives in|Oslo|is|March 2019|"}},
		{"from and to", byUser, "Ana lived in Oslo from 2010 to 2015.", []string{"Ana|lives in|Oslo|was|2010|2015"}},
		{"moved", byUser, "Ana moved from Oslo to Bergen in 2020.", []string{"Ana|lives in|Oslo|was||2020", "Ana|lives in|Bergen|is|2020|"}},
		{"moved to", byUser, "I moved to bergen", []string{"the user|lives in|bergen|is||"}},
		{"works as", byUser, "I work as a nurse.", []string{"the user|works as|nurse|is||"}},
		{"sister of a name", byUser, "Ana is Tom's sister.", []string{"Ana|is sister of|Tom|is||"}},
		{"my sister", byUser, "Ana is my sister.", []string{"Ana|is sister of|the user|is||"}},
		{"my sister, turned", byUser, "My sister is called Ana.", []string{"Ana|is sister of|the user|is||"}},
		{"my sister's name", byUser, "my sister's name is Ana", []string{"Ana|is sister of|the user|is||"}},
		{"my sister lives", byUser, "My sister lives in Rome.", []string{"the user's sister|lives in|Rome|is||"}},
		{"my name", byUser, "my name is Kim", []string{"the user|is called|Kim|is||"}},
		{"call me", byUser, "Call me Kim.", []string{"the user|is called|Kim|is||"}},
		{"likes", byUser, "I love hiking in the mountains.", []string{"the user|likes|hiking in the mountains|is||"}},
		{"prefers", byUser, "I prefer tea to coffee", []string{"the user|prefers|tea|is||"}},
		{"dislikes", byUser, "I don't like fish.", []string{"the user|dislikes|fish|is||"}},
		{"liked once", byUser, "I used to like jazz.", []string{"the user|likes|jazz|was||"}},
		{"favourite", byUser, "My favorite colour is blue.", []string{"the user|has favourite colour|blue|is||"}},
		{"married", byUser, "Tom is married to Ana.", []string{"Tom|is married to|Ana|is||"}},
		{"born in", byUser, "Ana was born in Porto in 1990.", []string{"Ana|was born in|Porto|was|1990|"}},
		{"born on", byUser, "I was born on 3 May 1990.", []string{"the user|was born on|3 May 1990|was||"}},
		{"from", byUser, "I'm from Lisbon.", []string{"the user|is from|Lisbon|is||"}},
		{"capital", byUnknown, "The capital of Norway is Oslo.", []string{"Oslo|is capital of|Norway|is||"}},
		{"capital, turned", byUnknown, "Oslo is the capital of Norway.", []string{"Oslo|is capital of|Norway|is||"}},
		{"you in an answer", byAssistant, "You live in Bergen now.", []string{"the user|lives in|Bergen|is||"}},
		{"your brother in an answer", byAssistant, "Your brother works at Acme.", []string{"the user's brother|works at|Acme|is||"}},
		{"the former name of the user in a note", byUser, "The person's sister is called Ana.", []string{"Ana|is sister of|the user|is||"}},
		{"in passing, in a question", byUser, "Where does my sister Ana live?", []string{"Ana|is sister of|the user|is||"}},
		{"two in one", byUser, "I live in Oslo and I work at Acme.", []string{"the user|lives in|Oslo|is||", "the user|works at|Acme|is||"}},
		{"told before a question", byUser, "I live in Oslo, what is the weather?", []string{"the user|lives in|Oslo|is||"}},
		{"retold", byUnknown, "The page says that Ana Silva lives in Oslo.", []string{"Ana Silva|lives in|Oslo|is||"}},

		{"trick: asked", byUser, "Do I live in Oslo?", nil},
		{"trick: asked of somebody", byUser, "Does Ana live in Oslo?", nil},
		{"trick: asked where", byUser, "Where does Ana live in Norway?", nil},
		{"trick: supposed", byUser, "If I lived in Oslo, I would like it.", nil},
		{"trick: supposed before the comma", byUser, "If she moves, Ana lives in Oslo.", nil},
		{"trick: wished", byUser, "I want to live in Oslo.", nil},
		{"trick: possible", byUser, "Ana might work at Acme.", nil},
		{"trick: denied", byUser, "Ana does not live in Oslo.", nil},
		{"trick: never", byUser, "I never worked at Acme.", nil},
		{"trick: not a sister", byUser, "Ana is not my sister.", nil},
		{"trick: I in an answer is the assistant", byAssistant, "I live in Oslo. I like tea.", nil},
		{"trick: you in a question is the assistant", byUser, "You live in Oslo.", nil},
		{"trick: I of a stranger", byUnknown, "I live in Oslo. My name is Eve.", nil},
		{"trick: you of a stranger", byUnknown, "You work at Acme. Your sister is Eve.", nil},
		{"trick: a stranger about the user", byUnknown, "The user lives in Oslo. The person works at Acme.", nil},
		{"trick: nobody", byUser, "She lives in Oslo.", nil},
		{"trick: likes that", byUser, "I like that. I like how it looks.", nil},
		{"trick: would like", byUser, "I would like coffee.", nil},
		{"trick: itself", byUser, "Ana is Ana's sister.", nil},
		{"trick: no object", byUser, "I live in", nil},
		{"trick: long object", byUser, "My name is " + strings.Repeat("Kim", 60), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := briefs(plainRelations(material{{"", tt.text, tt.by}})); !slices.Equal(got, tt.want) {
				t.Errorf("%q\ngot  %q\nwant %q", tt.text, got, tt.want)
			}
		})
	}
}

func TestPredicate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ in, want string }{
		{"lives in", "lives in"},
		{"lived in", "lives in"},
		{"used to live in", "lives in"},
		{"is living in", "lives in"},
		{"works_for", "works at"},
		{"was employed by", "works at"},
		{"Loves", "likes"},
		{"sister of", "is sister of"},
		{"is the", "is the"},
		{"has favorite colour", "has favourite colour"},
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
	for p, want := range map[string]bool{"lives in": true, "works at": true, "is sister of": false, "likes": false, "has favourite colour": true, "": false} {
		if isSingle(p) != want {
			t.Errorf("single(%q) is %t", p, !want)
		}
	}
}

func TestPlainEntities(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text string
		want       []Entity
	}{
		{"inside a sentence", "We met Ana Silva near Oslo.", []Entity{{"Ana Silva", KindThing}, {"Oslo", KindPlace}}},
		{"begins a sentence and comes again", "Oslo is cold. We like Oslo.", []Entity{{"Oslo", KindThing}}},
		{"two words begin a sentence", "New York is large.", []Entity{{"New York", KindThing}}},
		{"with of", "She studied at the University of Oslo.", []Entity{{"University of Oslo", KindOrganization}}},
		{"who acts", "Yesterday Tom said no.", []Entity{{"Tom", KindPerson}}},
		{"capital letters", "NASA built it.", []Entity{{"NASA", KindOrganization}}},
		{"quoted", `He read "the old man and the sea" twice.`, []Entity{{"the old man and the sea", KindThing}}},
		{"quoted in Japanese", "彼は「雪国」を読んだ。", []Entity{{"雪国", KindThing}}},
		{"possessive", "We saw Ana's house.", []Entity{{"Ana", KindThing}}},
		{"title", "We asked Dr. Berg about it.", []Entity{{"Berg", KindPerson}}},

		{"trick: sentence starts", "The house is red. However it is old. People like it.", nil},
		{"trick: days and months", "We meet on Monday in March.", nil},
		{"trick: I", "Then I said that I go.", nil},
		{"trick: a long quotation", `He said "` + strings.Repeat("word ", 40) + `".`, nil},
		{"trick: nothing in quotes", `"" "." "!!!"`, nil},
		{"trick: empty", "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := plainEntities(material{{"", tt.text, byUser}}, nil); !slices.Equal(got, tt.want) {
				t.Errorf("%q\ngot  %+v\nwant %+v", tt.text, got, tt.want)
			}
		})
	}
	many := plainEntities(material{{"", "x " + strings.Repeat("Aa Bb, Cc Dd. ", 9) + manyNames(40), byUser}}, nil)
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
