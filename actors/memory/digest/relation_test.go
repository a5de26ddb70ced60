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
		{"lived until", byUser, "Ana Silva lived in New York until 2019.", []string{"Ana Silva|lives in|New " +
			"York|was||2019"}},
		{"used to live", byUser, "Ana used to live in Rome.", []string{"Ana|lives in|Rome|was||"}},
		{"no longer", byUser, "Ana no longer works at Acme.", []string{"Ana|works at|Acme|was||"}},
		{"formerly", byUser, "Tom formerly worked for Acme Corp.", []string{"Tom|works at|Acme Corp|was||"}},
		{"since", byUser, "I have lived in Oslo since March 2019.", []string{"the user|lives in|Oslo|is|March 2019|"}},
		{"from and to", byUser, "Ana lived in Oslo from 2010 to 2015.", []string{"Ana|lives in|Oslo|was|2010|2015"}},
		{
			"moved", byUser, "Ana moved from Oslo to Bergen in 2020.",
			[]string{"Ana|lives in|Oslo|was||2020", "Ana|lives in|Bergen|is|2020|"},
		},
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
		{"your brother in an answer", byAssistant, "Your brother works at Acme.", []string{"the user's brother|works " +
			"at|Acme|is||"}},
		{
			"the former name of the user in a note", byUser, "The person's sister is called Ana.",
			[]string{"Ana|is sister of|the user|is||"},
		},
		{"in passing, in a question", byUser, "Where does my sister Ana live?", []string{"Ana|is sister of|the " +
			"user|is||"}},
		{
			"two in one", byUser, "I live in Oslo and I work at Acme.",
			[]string{"the user|lives in|Oslo|is||", "the user|works at|Acme|is||"},
		},
		{"told before a question", byUser, "I live in Oslo, what is the weather?", []string{"the user|lives " +
			"in|Oslo|is||"}},
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

func TestFirstPersonBelongsToTheSpeaker(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text string
		by         speaker
		want       []string
	}{
		{
			"attributed", `(3:19 pm on 28 August, 2023) Melanie said, "You know I love live music."`, byUser,
			[]string{"Melanie|likes|live music|is||"},
		},
		{
			"attributed by a label", "[2023-08-28 15:19] Melanie: My husband and kids are here.", byUser,
			[]string{"Melanie|has|husband|is||", "Melanie|has|kids|is||"},
		},
		{
			"attributed in untrusted content", `Melanie said, "I live in Oslo."`, byUnknown,
			[]string{"Melanie|lives in|Oslo|is||"},
		},
		{"the caller names the speaker", "I live in Oslo.", "Melanie", []string{"Melanie|lives in|Oslo|is||"}},
		{
			"own words of a user stay the user's", "I love live music.", byUser,
			[]string{"the user|likes|live music|is||"},
		},
		{
			"my becomes their", "I love running my own studio.", "Jon",
			[]string{"Jon|likes|running their own studio|is||"},
		},
		{
			"a relative of the speaker", "That trip was for my daughter Sara's birthday.", "John",
			[]string{"Sara|is daughter of|John|is||"},
		},
		{
			"a quotation inside a note", `I hate rock. Melanie said, "I love live music." I live in Oslo.`, byUser,
			[]string{"the user|dislikes|rock|is||", "the user|lives in|Oslo|is||", "Melanie|likes|live music|is||"},
		},
		{
			"speaker behind the quotation", `"I love live music," said Melanie.`, byUser,
			[]string{"Melanie|likes|live music|is||"},
		},
		{"own words quoted", `I said, "I love live music."`, byUser, []string{"the user|likes|live music|is||"}},
		{
			"a transcript", "Ana: I live in Oslo.\nTom: I live in Rome, and you?", byUser,
			[]string{"Ana|lives in|Oslo|is||", "Tom|lives in|Rome|is||"},
		},
		{
			"a title is no quotation", `I loved reading "Charlotte's Web" as a kid.`, byUser,
			[]string{`the user|likes|reading "Charlotte's Web"|was||`},
		},

		{"trick: a quotation of nobody", `Somebody wrote "I live in Oslo" on the wall.`, byUser, nil},
		{"trick: a quotation of a pronoun", `She said, "I live in Oslo."`, byUser, nil},
		{"trick: a quotation that does not end", `Then she said "I live in Oslo. I like tea.`, byUser, nil},
		{"trick: an assistant's line", "Assistant: I live in Oslo.", byUser, nil},
		{
			"trick: a line behind a speaker's", "Ana: I live in Oslo.\nI like tea.\nTom: I work at Acme.", byUser,
			[]string{"Ana|lives in|Oslo|is||", "Tom|works at|Acme|is||"},
		},
		{"trick: reported", "Ana says I live in Oslo.", byUser, nil},
		{"trick: a text names the user as its speaker", `User said, "I live in Oslo."`, byUnknown, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := briefs(plainRelations(material{{"", tt.text, tt.by}})); !slices.Equal(got, tt.want) {
				t.Errorf("%q\ngot  %q\nwant %q", tt.text, got, tt.want)
			}
		})
	}
}

// TestUncertainTextGivesNoRelation holds one text for each kind of error that was found in conversations.
func TestUncertainTextGivesNoRelation(t *testing.T) {
	t.Parallel()
	for _, said := range []string{
		"Sounds like a great start for Scout.", "Looks like a blast!", "Feels like a dream come true.",
		"I feel like a winner.", "We're like a family.", "I'm like a kid.",
		"Dancing is like second nature to me.", "Unconditional love is so important.",
		"Family's love really grounds us.",
		"Doing something I love is awesome.", "I would like to paint.", "I'd love live music.",
		"I love it when it rains.", "I love how it looks.", "I like to think so.",
		"Thanks Melanie - love the blue vase in the pic!", "I love the blue vase.", "I love all the yellow leaves.",
		"I love the self-acceptance and love theme.",
		"I love seeing you dance.", "I love your hat.", "You love live music.", "I loved doing something similar.",
		"I enjoy making sure veterans are supported.",
		"I'm passionate about creating a safe, inviting place for people.", "I'm passionate about it.",
		"I like to just take a look at the sunset.",
		"Do I like tea?", "If I lived in Oslo, my wife would sing.", "I wish my kids played.", "I tried to like jazz.",
		"I can't say I like tea.", "I might join a gym.",
		"Yeah right, I love rain.", "I love rain. Just kidding!", "I love Mondays /s", "As if I like rain.",
		"I worked with the artist to make it happen.", "They've opened my eyes to a new world.",
		"It is bad for our kids.", "Even made a tattoo.", "Recently joined a gym.",
		"I took my bike to a park.", "I went to a few weeks ago.", "I run every day.", "I never joined a gym.",
		"I play around.",
	} {
		t.Run(said, func(t *testing.T) {
			t.Parallel()
			for _, by := range []speaker{"Caroline", byUser, byUnknown} {
				if got := briefs(plainRelations(material{{"", said, by}})); got != nil {
					t.Errorf("by %q: %q", by, got)
				}
			}
		})
	}
}

// TestModelCannotGiveTheUserTheWordsOfOthers: a relation of the user needs words of the user's own.
func TestModelCannotGiveTheUserTheWordsOfOthers(t *testing.T) {
	t.Parallel()
	reply := `{"name":"music","description":"Melanie loves live music.","intent":"tell preference","sentiment":"positive","entities":[{"name":"Melanie","kind":"person"}],"relations":[
		{"subject":"the user","predicate":"likes","object":"live music","kind":"thing","tense":"is","from":"","until":""},
		{"subject":"Melanie","predicate":"likes","object":"live music","kind":"thing","tense":"is","from":"","until":""}]}`
	for name, tt := range map[string]struct {
		speaker, text string
		want          []string
	}{
		"attributed":          {"", `Melanie said, "I love live music."`, []string{"Melanie|likes|live music|is||"}},
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

func TestEventsAndOccupationsAreRelations(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]string{
		"I went to a LGBTQ support group yesterday and it was good.": "Caroline|went to|LGBTQ support group|was||",
		"I just joined a new activist group last Tues.":              "Caroline|joined|new activist group|was||",
		"I'm a big fan of pottery - it is calming.":                  "Caroline|likes|pottery|is||",
		"I'm passionate about dancing and it is fun.":                "Caroline|likes|dancing|is||",
		"I started playing acoustic guitar about five years ago.":    "Caroline|plays|acoustic guitar|is||",
		"Yeah, I play clarinet!":                                     "Caroline|plays|clarinet|is||",
		"I'm an assistant manager- it's great.":                      "Caroline|is a|assistant manager|is||",
		"I grew up in Lisbon.":                                       "Caroline|grew up in|Lisbon|was||",
		"Blue is my favourite colour.":                               "Caroline|has favourite colour|Blue|is||",
	} {
		t.Run(said, func(t *testing.T) {
			t.Parallel()
			if got := briefs(plainRelations(material{{"", said, "Caroline"}})); !slices.Equal(got, []string{want}) {
				t.Errorf("got %q, want %q", got, want)
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
	for p, want := range map[string]bool{
		"lives in": true, "works at": true, "is sister of": false, "likes": false,
		"has favourite colour": true, "": false,
	} {
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
