package digest

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestAttributionGivesSpeakerTimeAndBody(t *testing.T) {
	t.Parallel()
	at := time.Date(2023, time.May, 8, 13, 56, 0, 0, time.UTC)
	day := time.Date(2023, time.May, 8, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name, text, speaker, body string
		happened                  time.Time
	}{
		{
			"time and quotation", `(1:56 pm on 8 May, 2023) Caroline said, "Hey Mel! Good to see you!"`, "Caroline",
			"Hey Mel! Good to see you!", at,
		},
		{"quotation", `Caroline said, "I went out."`, "Caroline", "I went out.", time.Time{}},
		{
			"quotation inside", `Caroline said, "I loved "Becoming Nicole" by Amy."`, "Caroline",
			`I loved "Becoming Nicole" by Amy.`,
			time.Time{},
		},
		{"typographic marks", `Caroline said, “I went out.”`, "Caroline", "I went out.", time.Time{}},
		{"colon before the quotation", `Tom wrote: "I am late."`, "Tom", "I am late.", time.Time{}},
		{"full name", `Ana de Silva said, "I am late."`, "Ana de Silva", "I am late.", time.Time{}},
		{"title", `Dr. Silva said, "I am late."`, "Dr. Silva", "I am late.", time.Time{}},
		{
			"shared a photo", `Caroline said, "Look." and shared a photo of a dog.`, "Caroline",
			"Look.\n(and shared a photo of a dog)",
			time.Time{},
		},
		{"several lines", "Caroline said, \"One.\nTwo.\"", "Caroline", "One.\nTwo.", time.Time{}},
		{"label with time", `[2023-05-08 13:56] Caroline: Hello there.`, "Caroline", "Hello there.", at},
		{"label with seconds", `[2023-05-08 13:56:00] Caroline: Hello there.`, "Caroline", "Hello there.", at},
		{"label with date", `(8 May 2023) Caroline: Hello there.`, "Caroline", "Hello there.", day},
		{"American date", `(May 8th, 2023 at 1:56 PM) Caroline: Hello there.`, "Caroline", "Hello there.", at},
		{"RFC 3339", `[2023-05-08T15:56:00+02:00] Caroline: Hello there.`, "Caroline", "Hello there.", at},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			speaker, happened, body, ok := ParseAttribution(tt.text)
			if !ok || speaker != tt.speaker || body != tt.body || !happened.Equal(tt.happened) {
				t.Errorf("%q: %q, %s, %q, %t", tt.text, speaker, happened, body, ok)
			}
		})
	}
}

func TestOrdinaryTextHasNoSpeaker(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]string{
		"empty":                         "",
		"label without a time":          "Caroline: I love live music.",
		"prose":                         "I love live music.",
		"colon in prose":                "There are two options: I stay or I go.",
		"one word and colon in prose":   "Remember: I have to call you.",
		"note":                          "Note: I live in Oslo.",
		"recipe":                        "Recipe: you need two eggs.",
		"todo":                          "TODO: I must call Ana.",
		"capitals":                      "NASA: we choose to go.",
		"url":                           "https://example.org/a: I like it",
		"url in capitals":               "Https://example.org: my page",
		"time of day":                   "10:30 I go out.",
		"no blank behind the colon":     "Caroline:I am here",
		"common noun":                   "Shopping: I need milk.",
		"nobody speaks":                 "Oslo: capital of Norway.",
		"the user":                      `User said, "I live in Rome."`,
		"the user as a label":           "[2023-05-08 13:56] User: I live in Rome.",
		"me":                            "Me: I live in Rome.",
		"an assistant":                  "[2023-05-08] Assistant: I live in Rome.",
		"pronoun":                       `She said, "I live in Rome."`,
		"relative":                      `My sister said, "I live in Rome."`,
		"text behind the quotation":     `Caroline said, "I live in Rome." I do not believe it.`,
		"two quotations":                `Caroline said, "I live in Rome." Tom said, "I do not."`,
		"quotation that does not end":   `Caroline said, "I live in Rome.`,
		"empty quotation":               `Caroline said, ""`,
		"brackets without a time":       "(again) Caroline: I live in Rome.",
		"time that does not exist":      "[2023-02-30] Caroline: I live in Rome.",
		"day and month in doubt":        "[05/08/2023] Caroline: I live in Rome.",
		"transcript of several":         "Caroline: I live in Rome.\nTom: I live in Oslo.",
		"stamped transcript of several": "[2023-05-08] Caroline: Rome.\n[2023-05-08] Tom: Oslo.",
		"sentence as a name":            "Caroline and Tom went out: I stayed.",
		"reported":                      "Caroline said that I live in Rome.",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if speaker, at, body, ok := ParseAttribution(s); ok || speaker != "" || !at.IsZero() || body != s {
				t.Errorf("%q: %q, %s, %q", s, speaker, at, body)
			}
		})
	}
}

func FuzzAttribution(f *testing.F) {
	for _, seed := range []string{
		`(1:56 pm on 8 May, 2023) Caroline said, "Hey "you"" and shared a photo.`, "[2023-05-08 13:56] Caroline: x",
		"Caroline: I\nTom: I", "(", "(a)", "[]: ", "A: \xff I", `A said "`,
		"Tom said, “a” said Tom, “b”", "É: my", "田中: x", "[2023-05-08] 田中: x",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		speaker, at, body, ok := ParseAttribution(s)
		switch {
		case !ok && (speaker != "" || !at.IsZero() || body != s):
			t.Errorf("%q: rejected with %q, %s, %q", s, speaker, at, body)
		case ok && (speaker == "" || len(speaker) > maxSpeaker || strings.ContainsAny(speaker, "\n\r\"") ||
			isBlank(body) || len(body) > len(s)+2):
			t.Errorf("%q: %q, %q", s, speaker, body)
		case ok && (isUser(strings.ToLower(speaker)) || utf8.ValidString(s) && !utf8.ValidString(speaker+body)):
			t.Errorf("%q: %q, %q", s, speaker, body)
		}
	})
}

// A name for the user or a program is nobody else's, however it is written.
func TestReservedNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"the user": true, "The User.": true, "the_user": true, "User": true,
		"Assistant": true, "Ana": false, "Ursula": false, "": false,
	} {
		if got := IsReservedName(name); got != want {
			t.Errorf("%q: %t, want %t", name, got, want)
		}
	}
}
