package term

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"conclave/pkg/text"
)

// Plain replaces every character that could control a terminal or hide text. It is for text from others.
func Plain(s string) string { return sanitize(s, "") }

// PlainText is [Plain] for several lines: line breaks and tabs stay.
func PlainText(s string) string { return sanitize(s, "\n\t") }

// sanitize replaces every rune that [text.ReplaceHidden] replaces and that is not in keep by U+FFFD. The number of
// runes stays the same.
func sanitize(s, keep string) string {
	return text.ReplaceHidden(s, func(r rune) rune {
		if strings.ContainsRune(keep, r) {
			return r
		}
		return '\uFFFD'
	})
}

// PlainStream is [PlainText] for a text that comes in pieces: a joiner at the end of a piece waits for the next one.
type PlainStream struct {
	tail []rune // the last two runes of what was returned, on which a joiner depends
	held string // at most one joiner
}

// Next returns the sanitized text of a piece, with what was held back.
func (p *PlainStream) Next(piece string) string {
	piece, p.held = p.held+piece, ""
	if r, size := utf8.DecodeLastRuneInString(piece); text.IsShaping(r) {
		piece, p.held = piece[:len(piece)-size], piece[len(piece)-size:]
	}
	all := []rune(PlainText(string(p.tail) + piece)) // as many runes as before
	added := all[len(p.tail):]
	p.tail = all[max(0, len(all)-2):]
	return string(added)
}

// Reset ends the text: what was held back is dropped.
func (p *PlainStream) Reset() { *p = PlainStream{} }

// OneLine joins the lines of an error with semicolons and sanitizes them as [Plain] does. Empty lines are dropped.
func OneLine(s string) string {
	var parts []string
	for p := range strings.Lines(s) {
		if p = strings.TrimSpace(p); p != "" {
			parts = append(parts, Plain(p))
		}
	}
	return strings.Join(parts, "; ")
}

// Visible is [text.Visible]. Unlike [Plain] it keeps two hidden characters apart.
func Visible(s string) string { return text.Visible(s) }

// VisibleJSON is [text.VisibleJSON].
func VisibleJSON(raw []byte, indent string) string { return text.VisibleJSON(raw, indent) }

// Clip puts text on one line of at most n columns, the last three "..." when it was cut. With n of 3 or less nothing is
// cut. It does not sanitize.
func Clip(s string, n int) string {
	s = strings.Join(strings.Fields(s), " ")
	if n > 3 && Width(s) > n {
		return cutWidth(s, n-3) + "..."
	}
	return s
}

// Fit cuts text to a terminal and returns its lines: at most rows-1 of them, each at most columns wide. A line that
// wraps, or a table that scrolls, cannot be drawn over. columns of 0 or less, and rows of 2 or less, mean no limit.
func Fit(text string, columns, rows int) []string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if rows > 2 && len(lines) > rows-1 {
		lines = lines[:rows-1]
	}
	for i, l := range lines {
		if columns > 0 {
			lines[i] = cutWidth(l, columns)
		}
	}
	return lines
}

// ShortID is the beginning of a long id.
func ShortID(id string) string { return id[:min(8, len(id))] }

// Count is a number with its noun: "1 file", "3 files". plural is given where it is not thing with an s.
func Count(n int, thing string, plural ...string) string {
	switch {
	case n == 1:
		return "1 " + thing
	case len(plural) > 0:
		return fmt.Sprintf("%d %s", n, plural[0])
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// Bytes is a number of bytes with a unit of 1024, B to TB, and three digits.
func Bytes(n int64) string {
	v, unit := float64(n), "B"
	for _, u := range []string{"KB", "MB", "GB", "TB"} {
		if v < 1024 {
			break
		}
		v, unit = v/1024, u
	}
	if v >= 1000 { // %.3g would use an exponent
		return fmt.Sprintf("%.0f %s", v, unit)
	}
	return fmt.Sprintf("%.3g %s", v, unit)
}

// Age is a time span in one unit: s, m, h, and d from 48 hours on. Less than a second, also a negative span, is "a
// moment".
func Age(d time.Duration) string {
	switch {
	case d < time.Second:
		return "a moment"
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// Took is a duration in milliseconds, or in seconds from one second on.
func Took(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	if d < time.Second {
		return fmt.Sprintf("%d ms", ms)
	}
	return d.Round(100 * time.Millisecond).String()
}

// Stamp is a local time to the minute, "-" for none.
func Stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04")
}

// ShellQuote makes one word of s for a POSIX shell. It adds quotes only where s has other characters than letters,
// digits and _./:@%+,- or is empty.
func ShellQuote(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:@%+,-") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// Indent prints text of several lines, sanitized, each behind a prefix.
func Indent(w io.Writer, prefix, text string) {
	for l := range strings.Lines(strings.TrimRight(PlainText(text), "\n")) {
		fmt.Fprintln(w, strings.TrimRight(prefix+l, " \n"))
	}
}

// Speeds writes how fast a model reads and writes, in tokens per second: "read 28, write 11"; 0 = not measured, "-" for
// both.
func Speeds(read, write float64) string {
	var out []string
	for _, s := range []struct {
		verb string
		n    float64
	}{{"read", read}, {"write", write}} {
		switch {
		case s.n >= 10:
			out = append(out, fmt.Sprintf("%s %.0f", s.verb, s.n))
		case s.n > 0:
			out = append(out, fmt.Sprintf("%s %.1f", s.verb, s.n))
		}
	}
	return cmp.Or(strings.Join(out, ", "), "-")
}
