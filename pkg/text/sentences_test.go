package text_test

import (
	"strings"
	"testing"

	"conclave/pkg/text"
)

func TestSentences(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, in string
		want     []string
	}{
		{"two", "One is here. Two is there!", []string{"One is here.", "Two is there!"}},
		{"short forms", "Dr. Berg met J. Smith at 3.5 km, e.g. here. Then he left.", []string{"Dr. Berg met J. Smith " +
			"at 3.5 km, e.g. here.", "Then he left."}},
		{
			"hard line breaks", "This sentence goes\non here. And\nends.",
			[]string{"This sentence goes on here.", "And ends."},
		},
		{"a list", "Things:\n- one\n- two\n1. three", []string{"Things:", "- one", "- two", "1. three"}},
		{"paragraphs", "one\n\ntwo", []string{"one", "two"}},
		{"quotation", `He said "no." Then he left.`, []string{`He said "no."`, "Then he left."}},
		{"Japanese", "一。二！三", []string{"一。", "二！", "三"}},
		{"an address", "See example.org for more. Bye.", []string{"See example.org for more.", "Bye."}},
		{"nothing", " \n ", []string{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := text.SentenceTexts(tt.in, 100); strings.Join(got, "|") != strings.Join(tt.want, "|") {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}
