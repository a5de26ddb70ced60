package text

import (
	"strings"
	"testing"
)

// Joiners stay where a text is spelled with them, and are replaced where they only hide something.
func TestReplaceHiddenKeepsSpelling(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ in, want string }{
		"a family":                        {"👨\u200d👩\u200d👧\u200d👦", "👨\u200d👩\u200d👧\u200d👦"},
		"a profession with a skin tone":   {"👩🏽\u200d⚕\ufe0f", "👩🏽\u200d⚕\ufe0f"},
		"a heart on fire":                 {"❤\ufe0f\u200d🔥", "❤\ufe0f\u200d🔥"},
		"a keycap":                        {"1\ufe0f\u20e3", "1\ufe0f\u20e3"},
		"Persian with a non-joiner":       {"می\u200cخواهم", "می\u200cخواهم"},
		"Persian abbreviation":            {"ه\u200d.ش", "ه\u200d.ش"},
		"Hindi with a joiner":             {"क्\u200dष", "क्\u200dष"},
		"trick: between Latin letters":    {"pay\u200dpal", "pay_pal"},
		"trick: a non-joiner in Latin":    {"ad\u200cmin", "ad_min"},
		"trick: two in a row":             {"می\u200c\u200cخ", "می__خ"},
		"trick: after an emoji, at end":   {"👨\u200d", "👨_"},
		"trick: emoji and a letter":       {"👨\u200da", "👨_a"},
		"trick: at the beginning":         {"\u200d👩", "_👩"},
		"trick: style behind a letter":    {"a\ufe0f", "a_"},
		"trick: style behind a digit":     {"1\ufe0f2", "1_2"},
		"trick: a style twice":            {"❤\ufe0f\ufe0f", "❤\ufe0f_"},
		"trick: direction override":       {"ا\u202eب", "ا_ب"},
		"trick: Unicode tags":             {"🏴\U000e0067\U000e007f", "🏴__"},
		"trick: zero-width space":         {"م\u200bخ", "م_خ"},
		"trick: escape":                   {"م\x1b[2J", "م_[2J"},
		"trick: invalid bytes around one": {"\xff\u200d\xff", "\ufffd_\ufffd"},
	} {
		if got := ReplaceHidden(tt.in, func(rune) rune { return '_' }); got != tt.want {
			t.Errorf("%s: %+q, want %+q", name, got, tt.want)
		}
	}
	if got := ReplaceHidden("a\u200bb\n", func(rune) rune { return -1 }); got != "ab" {
		t.Errorf("dropped: %q", got)
	}
	if got := OneLine("👨\u200d👩 می\u200cخواهم\u200b.", 100); got != "👨\u200d👩 می\u200cخواهم ." {
		t.Errorf("on one line: %+q", got)
	}
	if strings.ContainsFunc("\u200d\u200c\ufe0f", IsVisible) {
		t.Error("names may hold joiners")
	}
}
