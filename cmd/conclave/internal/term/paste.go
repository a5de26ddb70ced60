package term

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Sequences of the bracketed paste mode: the first two switch it on and off, the terminal sends the others around pasted text.
const (
	pasteModeOn  = "\x1b[?2004h"
	pasteModeOff = "\x1b[?2004l"
	pasteStart   = "\x1b[200~"
	pasteEnd     = "\x1b[201~"
)

const (
	maxShortPaste = 200  // characters of a paste that counts as typed: a word, a name, an address
	maxTyped      = 2000 // bytes without marks of the terminal; more was hardly typed
)

// ReadTyped reads stdin to its end like [Streams.ReadAll] and separates long pastes from what was typed. It recognizes them
// on a terminal only; elsewhere everything is in typed.
func (s *Streams) ReadTyped(ctx context.Context, limit int, prompt string) (typed string, pasted []string, err error) {
	f, ok := Keyboard(s.In)
	if !ok {
		typed, err = s.ReadAll(ctx, limit, prompt)
		return typed, nil, err
	}
	if IsTerminal(s.Err) {
		defer hideControlEcho(f)() // the marks of a paste would be echoed as ^[[200~
		fmt.Fprint(s.Err, pasteModeOn)
		defer fmt.Fprint(s.Err, pasteModeOff)
	}
	text, err := s.ReadAll(ctx, limit, prompt)
	if err != nil {
		return "", nil, err
	}
	typed, pasted = splitPastes(text)
	return typed, pasted, nil
}

// splitPastes separates the long pastes of a terminal's input from the rest; short ones on one line count as typed. When the
// marks do not match, as when pasted text contains one, everything from the first mark on counts as pasted. So does a text
// without marks that is longer than maxTyped: the terminal may not support them.
func splitPastes(text string) (typed string, pasted []string) {
	first := strings.Index(text, pasteStart)
	if end := strings.Index(text, pasteEnd); end >= 0 && (first < 0 || end < first) {
		first = end
	}
	if first < 0 {
		if len(text) > maxTyped {
			return "", []string{text}
		}
		return text, nil
	}
	var b strings.Builder
	for rest := text; ; {
		before, after, found := strings.Cut(rest, pasteStart)
		inside, next, ended := strings.Cut(after, pasteEnd)
		switch {
		case strings.Contains(before, pasteEnd), found && !ended, strings.Contains(inside, pasteStart):
			return text[:first], []string{strings.NewReplacer(pasteStart, "", pasteEnd, "").Replace(text[first:])}
		case !found:
			b.WriteString(before)
			return b.String(), pasted
		}
		b.WriteString(before)
		if isLongPaste(inside) {
			pasted = append(pasted, inside)
		} else {
			b.WriteString(inside)
		}
		rest = next
	}
}

// isLongPaste reports whether a paste is more than one line or longer than maxShortPaste.
func isLongPaste(s string) bool {
	s = strings.TrimSpace(s)
	return strings.ContainsAny(s, "\r\n") || utf8.RuneCountInString(s) > maxShortPaste
}
