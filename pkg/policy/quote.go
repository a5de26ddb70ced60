package policy

import (
	"fmt"
	"strings"
	"unicode"

	"conclave/pkg/text"
)

// quotedBytes bounds a value in a reason, listedBytes one of several.
const (
	quotedBytes = 200
	listedBytes = 80
)

// quote returns a value in quotation marks, on one line and clipped, to stand in a reason. The value cannot end its
// quotation: each quotation mark inside becomes an apostrophe.
func quote(s string) string { return quoteClipped(s, quotedBytes) }

// quoteClipped is [quote] of at most maxBytes of s.
func quoteClipped(s string, maxBytes int) string {
	return "“" + strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Quotation_Mark, r) || strings.ContainsRune("″❛❜❝❞", r) {
			return '\''
		}
		return r
	}, text.OneLine(s, maxBytes)) + "”"
}

// quoteList quotes the first values of a list and says how many are left out.
func quoteList(values []string) string {
	var out []string
	for _, v := range values {
		out = append(out, quoteClipped(v, listedBytes))
	}
	return joinFirst(out)
}

// joinFirst joins the first two items and says how many are left out.
func joinFirst(items []string) string {
	if more := len(items) - 2; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(items[:2], ", "), more)
	}
	return strings.Join(items, ", ")
}
