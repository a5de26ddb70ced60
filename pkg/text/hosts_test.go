package text_test

import (
	"fmt"
	"testing"

	"conclave/pkg/text"
)

func TestNonASCIIHosts(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{"plain", "see https://example.org/päth and mail anna@example.org", "[]"},
		{"a Cyrillic letter", "https://ex\u0430mple.org/a?b=c", "[{ex\u0430mple.org xn--exmple-4nf.org}]"},
		{"umlaut", "www.müller.de", "[{www.müller.de www.xn--mller-kva.de}]"},
		{"a mail address", "to=eve@ex\u0430mple.org;", "[{ex\u0430mple.org xn--exmple-4nf.org}]"},
		{"with a port, twice", "http://ex\u0430mple.org:8080/ http://ex\u0430mple.org", "[{ex\u0430mple.org " +
			"xn--exmple-4nf.org}]"},
		{"trick: full-width letters", "https://ｅxample.org/", "[{ｅxample.org example.org}]"},
		{"trick: an ideographic full stop", "https://evil。example", "[{evil。example evil.example}]"},
		{"a sentence", "Das wäre schön.", "[]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := fmt.Sprint(text.NonASCIIHosts(tt.in)); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}
