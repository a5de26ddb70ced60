package loop

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// clip is the first n characters of s, with "…" behind them when there are more.
func clip(s string, n int) string {
	if short := firstRunes(s, n); len(short) < len(s) {
		return short + "…"
	}
	return s
}

// firstRunes is the first n characters of s.
func firstRunes(s string, n int) string {
	for i := range s {
		if n--; n < 0 {
			return s[:i]
		}
	}
	return s
}

// lastRunes is the last n characters of s.
func lastRunes(s string, n int) string {
	i := len(s)
	for ; i > 0 && n > 0; n-- {
		_, size := utf8.DecodeLastRuneInString(s[:i])
		i -= size
	}
	return s[i:]
}

// clipMiddle returns s unchanged when it has at most most bytes. Otherwise it keeps the first two thirds and the last
// third of most bytes, at characters, and puts between them a line with the number of characters left out and callID,
// so that the result can be looked up. The line is not counted in most.
func clipMiddle(s string, most int, callID string) string {
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
	omitted := utf8.RuneCountInString(s[head:from])
	return fmt.Sprintf("%s\n[... %d characters left out; call %s]\n%s", s[:head], omitted, callID, s[from:])
}

// listTools lists the offered tools for the model.
func listTools(n toolNames) string {
	if len(n) == 0 {
		return "No tools are offered. Answer in words."
	}
	return "The tools are: " + strings.Join(n, ", ") + "."
}

// toValidUTF8 replaces invalid bytes. ok reports whether there were none.
func toValidUTF8(s string) (valid string, ok bool) {
	if utf8.ValidString(s) {
		return s, true
	}
	return strings.ToValidUTF8(s, string(utf8.RuneError)), false
}
