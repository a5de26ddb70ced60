package loop

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// clip is the beginning of s, at most n characters, with a sign that there was more.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	short := firstRunes(s, n)
	if len(short) == len(s) {
		return s
	}
	return short + "…"
}

// clipMiddle keeps the beginning and the end of s, about most bytes in all, and says how much is left out and which call
// it came from, so that it can be looked up.
func clipMiddle(s string, most int, id string) string {
	if len(s) <= most {
		return s
	}
	head, tail := most*2/3, most-most*2/3
	for head > 0 && !utf8.RuneStart(s[head]) {
		head--
	}
	from := len(s) - tail
	for from < len(s) && !utf8.RuneStart(s[from]) {
		from++
	}
	left := utf8.RuneCountInString(s[head:from])
	return fmt.Sprintf("%s\n[... %d characters left out; call %s]\n%s", s[:head], left, id, s[from:])
}

// listTools lists the tools for the model.
func listTools(n toolNames) string {
	if len(n) == 0 {
		return "No tools are offered. Answer in words."
	}
	return "The tools are: " + strings.Join(n, ", ") + "."
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// toValidUTF8 makes s valid UTF-8.
func toValidUTF8(s string) (string, bool) {
	if utf8.ValidString(s) {
		return s, true
	}
	return strings.ToValidUTF8(s, string(utf8.RuneError)), false
}
