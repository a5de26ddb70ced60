package undo

import (
	"slices"
	"strings"
	"testing"
)

// TestMergeText: what others added or changed stays, and what cannot be decided is refused.
func TestMergeText(t *testing.T) {
	t.Parallel()
	event := func(id string) string { return "BEGIN:VEVENT\nUID:" + id + "\nEND:VEVENT\n" }
	calendar := func(events ...string) string {
		return "BEGIN:VCALENDAR\n" + strings.Join(events, "") + "END:VCALENDAR\n"
	}
	for name, tt := range map[string]struct{ base, ours, theirs, want string }{
		"a later section stays": {"a\n\n## 1\n\nx\n", "a\n", "a\n\n## 1\n\nx\n\n## 2\n\ny\n", "a\n\n## 2\n\ny\n"},
		"a line above changed":  {"a\nb\nc\nnew\n", "a\nb\nc\n", "A\nb\nc\nnew\n", "A\nb\nc\n"},
		"a later event stays": {
			calendar(event("1")), calendar(), calendar(event("1"), event("2")), calendar(event("2")),
		},
		"the first of three events": {
			calendar(event("1")), calendar(), calendar(event("0"), event("1"), event("2")),
			calendar(event("0"), event("2")),
		},
		"a replaced line, another below":          {"a\nB\nc\n", "a\nb\nc\n", "a\nB\nc\nd\n", "a\nb\nc\nd\n"},
		"refused: the line was edited":            {"a\nnew\n", "a\n", "a\nnew and more\n", ""},
		"refused: a line inside":                  {"a\n1\n2\n", "a\n", "a\n1\nmine\n2\n", ""},
		"refused: no line end":                    {"a\nnew", "a\n", "a\nnew more\n", ""},
		"refused: binary":                         {"a\x00", "a", "a\x00b", ""},
		"refused: one of two equal lines is gone": {"x\nx\n", "x\n", "y\nx\n", ""},
		"refused: equal lines added":              {"x\nx\n", "x\n", "x\nx\nx\n", ""},
	} {
		got, ok := mergeText([]byte(tt.base), []byte(tt.ours), []byte(tt.theirs))
		if string(got) != tt.want || ok != (tt.want != "") {
			t.Errorf("%s: %q, %v, want %q", name, got, ok, tt.want)
		}
	}
}

// FuzzMergeText: no line of others is lost, and no line that the change added stays.
func FuzzMergeText(f *testing.F) {
	f.Add("a\nb\n", "x\n", "a\nb\nc\n", uint(1))
	f.Add("a\na\na\n", "a\n", "a\nb\na\n", uint(2))
	f.Fuzz(func(t *testing.T, before, added, foreign string, at uint) {
		count := func(text, line string) (n int) {
			for _, l := range splitLines([]byte(text)) {
				if l == line {
					n++
				}
			}
			return n
		}
		lines := splitLines([]byte(before))
		i := int(at % uint(len(lines)+1))
		after := strings.Join(lines[:i], "") + added + strings.Join(lines[i:], "")
		merged, ok := mergeText([]byte(after), []byte(before), []byte(foreign))
		if !ok {
			return
		}
		all := slices.Concat(splitLines([]byte(after)), lines, splitLines([]byte(foreign)))
		for _, l := range all {
			want := count(foreign, l) - count(after, l) + count(before, l)
			if got := count(string(merged), l); got != want {
				t.Errorf("%q: %d times, want %d in the merge %q of %q, %q and %q", l, got, want, merged, after, before,
					foreign)
			}
		}
	})
}
