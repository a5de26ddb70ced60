package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf16"

	"conclave/pkg/text"
	"conclave/subjects"
)

// visible shows text on one line with nothing hidden in it: what a terminal would not print, or would obey, is written
// as JSON writes it. Other than [plain] it tells two hidden characters apart.
func visible(s string) string { return escaped(s, false) }

// escaped writes every rune that is not printed as \uXXXX. Line breaks stay when they are layout.
func escaped(s string, lines bool) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case text.IsVisible(r), r == '\n' && lines:
			b.WriteRune(r)
		case r > 0xFFFF:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, hi, lo)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// visibleJSON is a JSON value for reading: laid out, complete, and nothing hidden in it. It still is the same value.
func visibleJSON(raw []byte, indent string) string {
	var b bytes.Buffer
	if json.Indent(&b, raw, indent, "  ") != nil {
		return visible(string(raw)) // nobody should have let it through; it is shown all the same
	}
	// Within strings JSON has no raw line breaks: those that are there are the layout's.
	return escaped(b.String(), true)
}

// ago is a span of time for people.
func ago(d time.Duration) string {
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

// showQuestion prints all that there is to know before one answers. Nothing of the arguments is left out: what is not
// shown was not approved.
func (a *app) showQuestion(w io.Writer, q subjects.Approval, now time.Time) {
	when := "expires in " + ago(q.Expires.Sub(now))
	switch {
	case q.State != subjects.ApprovalPending && q.By != "":
		when = q.State + " by " + visible(q.By)
	case q.State != subjects.ApprovalPending:
		when = q.State
	case !now.Before(q.Expires):
		when = "expired"
	}
	fmt.Fprintf(w, "%s  %s wants %s\n", a.paint(w, yellow, visible(q.ID)), visible(q.Caller), a.paint(w, bold, visible(q.Tool)))
	line := func(name, text string) { fmt.Fprintf(w, "  %-10s %s\n", name, text) }
	line("asked", fmt.Sprintf("%s ago, %s", ago(now.Sub(q.Asked)), when))
	if q.Type != "" {
		line("type", visible(q.Type))
	}
	if q.SessionID != "" {
		line("session", visible(q.SessionID))
	}
	line("arguments", visibleJSON(q.Args, "             "))
	line("rule", visible(q.Layer+": "+q.Rule))
	line("why", visible(q.Reason))
	for _, s := range q.Sinks {
		line("goes to", visible(s))
	}
	if len(q.Sinks) == 0 {
		line("remember", "it is asked each time")
	}
	for _, t := range q.Taint {
		text := visible(t.Tool)
		if t.From != "" {
			text += " " + visible(t.From)
		}
		text += ", " + ago(now.Sub(t.Time)) + " ago"
		if len(t.Flags) > 0 {
			text += ", with signs of injection: " + visible(strings.Join(t.Flags, ", "))
		}
		line("strangers", text)
	}
}
