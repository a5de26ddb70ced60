package text_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"conclave/pkg/text"
)

func TestClip(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in   string
		most int
		want string
	}{
		{"", 0, ""},
		{"fish", 4, "fish"},
		{"fishes", 4, "fish..."},
		{"fish", 0, "..."},
		{"fish", -1, "..."},
		{"café au lait", 4, "caf..."},
		{"café au lait", 5, "café..."},
		{"日本語", 4, "日..."},
		{"日本語", 9, "日本語"},
		{"😀😀", 7, "😀..."},
		{"😀😀", 3, "..."},
		// no text at all: it is not searched for ever
		{strings.Repeat("\x80", 50), 40, strings.Repeat("\x80", 36) + "..."},
	} {
		if got := text.Clip(tt.in, tt.most); got != tt.want {
			t.Errorf("%q at %d: %q, want %q", tt.in, tt.most, got, tt.want)
		}
	}
	odd := strings.Repeat("aé日😀", 5)
	for most := range len(odd) {
		if got := text.Clip(odd, most); !utf8.ValidString(got) || len(got) > most+3 {
			t.Errorf("at %d: %q", most, got)
		}
	}
}

func TestOneLine(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ in, want string }{
		{"  plain words ", "plain words"},
		{"one\r\ntwo\n\n\tthree", "one two three"},
		{"red\x1b[31m\x00\x7f text", "red [31m text"},
		{"line\u2028br. \u202eturned\u202c", "line br. turned"},
		{"half \xff a", "half ? a"},
		{"0123456789 0123456789", "0123456789 01234..."},
		{"012345678901234é", "012345678901234..."},
		{"\n\n", ""},
	} {
		if got := text.OneLine(tt.in, 16); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.in, got, tt.want)
		}
	}
}

func TestSeen(t *testing.T) {
	t.Parallel()
	for _, r := range "a é日😀.-" {
		if !text.IsVisible(r) {
			t.Errorf("%U is not seen", r)
		}
	}
	for _, r := range []rune{'\n', 0, 0x200b, 0x202e, 0xfe0f, 0xe0100, 0x3164, 0x115f, 0x2800, 0xe0041, 0xfeff} {
		if text.IsVisible(r) {
			t.Errorf("%U is seen", r)
		}
	}
}
