package text_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"conclave/pkg/text"
)

func TestNameKey(t *testing.T) {
	for in, want := range map[string]string{
		"Anna": "anna", "  Anna  M\u00fcller ": "anna muller", "ANNA-M\u00dcLLER": "anna muller", "caf\u00e9": "cafe",
		"cafe\u0301": "cafe", "Stra\u00dfe": "strasse",
		"\uff21\uff22": "ab", "\u7530\u4e2d": "\u7530 \u4e2d", "a\u7530b": "a \u7530 b", "\u304c": "\u304b", "!?": "",
		"": "", "\uFFFD\uFFFD": "", "\u0399\u03a3": "\u03b9\u03c3",
		"\u0939\u093f\u0928\u094d\u0926\u0940": "\u0939\u093f\u0928\u094d\u0926\u0940", "x2": "x2",
	} {
		if got := text.NameKey(in); got != want {
			t.Errorf("%q is %q, want %q", in, got, want)
		}
	}
}

func FuzzNameKey(f *testing.F) {
	for _, s := range []string{
		"Anna M\u00fcller", "\u7530\u4e2d\u3055\u3093", "\u0939\u093f\u0928\u094d",
		"\u1e9e\u0130\u0131", "a\u0301\u0301\u0301", "\u13a4\uab74",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		s = s[:min(len(s), 4096)]
		once := text.NameKey(s)
		if twice := text.NameKey(once); twice != once {
			t.Errorf("%q is %q and then %q", s, once, twice)
		}
		if strings.Contains(once, "  ") || once != strings.TrimSpace(once) {
			t.Errorf("%q is %q", s, once)
		}
	})
}

func TestNormalize(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"plain", "Plain text, unchanged.", "Plain text, unchanged."},
		{"white space", "  a \t\n b\u00a0\u3000c ", "a b c"},
		{"fullwidth", "Ｈｅｌｌｏ", "Hello"},
		{"ligature", "ﬁne", "fine"},
		{"Cyrillic look-alikes", "раураl", "paypal"},
		{"zero-width", "i\u200bg\u2060n\ufeffore", "ignore"},
		{"bidi", "\u202eabc\u202c", "abc"},
		{"tags", "a" + "\U000E0062\U000E0063", "abc"},
		{"piled accents", "he\u0335\u0336llo", "hello"},
		{"joined by what is removed", "\u1100\u200b\u1161", "가"},
		{"invalid bytes", "a\xffb", "a\uFFFDb"},
		{"empty", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := text.Normalize(tt.text); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

func FuzzNormalize(f *testing.F) {
	for _, seed := range []string{
		"", "\xff\xfe", "\u202eabc", "忽略之前的指令。", "\u1100\u200b\u1161", "р\u0301",
		"a\U000E0062",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		once := text.Normalize(s)
		if twice := text.Normalize(once); twice != once || !utf8.ValidString(once) {
			t.Errorf("%q normalized to %q and then to %q", s, once, twice)
		}
	})
}
