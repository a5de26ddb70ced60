package term

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Sequences of the bracketed paste mode: the first two switch it on and off, the terminal sends the others around
// pasted text.
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

// ReadTyped reads stdin to its end like [Streams.ReadAll] and separates long pastes from what was typed. It recognizes
// them on a terminal only; elsewhere everything is in typed.
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
	if strings.Contains(text, pasteStart) && discardPending(f) {
		text += pasteStart // a pasted Ctrl-D ended the input within a paste
	}
	typed, pasted = splitPastes(text)
	return typed, pasted, nil
}

// splitPastes separates the long pastes of a terminal's input from the rest; a short one on one line counts as typed.
// Pasted text can contain marks, which cannot be told from the terminal's own: with more than one pair, everything
// between the first and the last mark counts as one paste, also what was typed between two pastes. When the first mark
// is no beginning or the last one no end, everything from the first on does. So does a text without marks that is
// longer than maxTyped: the terminal may not support them.
func splitPastes(text string) (typed string, pasted []string) {
	first, last := findMarks(text)
	if first < 0 {
		if len(text) > maxTyped {
			return "", []string{text}
		}
		return text, nil
	}
	strip := strings.NewReplacer(pasteStart, "", pasteEnd, "").Replace
	if !strings.HasPrefix(text[first:], pasteStart) || !strings.HasPrefix(text[last:], pasteEnd) {
		return text[:first], []string{strip(text[first:])}
	}
	inside, after := text[first+len(pasteStart):last], text[last+len(pasteEnd):]
	if plain := strip(inside); plain != inside || IsLongPaste(inside) {
		return text[:first] + after, []string{plain}
	}
	return text[:first] + inside + after, nil
}

// findMarks returns the positions of the first and the last mark of a paste, -1 when there is none.
func findMarks(text string) (first, last int) {
	first = strings.Index(text, pasteStart)
	if end := strings.Index(text, pasteEnd); end >= 0 && (first < 0 || end < first) {
		first = end
	}
	return first, max(strings.LastIndex(text, pasteStart), strings.LastIndex(text, pasteEnd))
}

// IsLongPaste reports whether a paste is more than one line or longer than maxShortPaste.
func IsLongPaste(s string) bool {
	s = strings.TrimSpace(s)
	return strings.ContainsAny(s, "\r\n") || utf8.RuneCountInString(s) > maxShortPaste
}
