package text

import "testing"

func TestStripTerminalCodes(t *testing.T) {
	for name, s := range map[string]string{
		"nothing":           "ab",
		"color":             "a\x1b[31mb",
		"cursor":            "a\x1b[2;3Hb",
		"private mode":      "a\x1b[?25lb",
		"C1 color":          "a\u009b31mb",
		"C1 with a space":   "a\u009b2 qb",
		"title":             "a\x1b]0;title\x07b",
		"link":              "a\x1b]8;;https://example.org\x1b\\b",
		"C1 title":          "a\u009d0;title\u009cb",
		"title ended by C1": "a\x1b]0;title\u009cb",
	} {
		if got := StripTerminalCodes(s); got != "ab" {
			t.Errorf("%s: %q", name, got)
		}
	}
}
