package subjects

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Limits of the context of an entry.
const (
	maxConversation = 128 // bytes
	MaxSpeaker      = 100 // bytes
	MaxPosition     = 1_000_000_000
)

// CheckContext rejects a conversation or speaker that is too long, not UTF-8, surrounded by spaces or has a character
// that is not printable (control characters, line breaks, invisible ones), a position outside 0 to [MaxPosition], and a
// time outside the years 1 to 9999. Empty fields pass. The error says what is valid.
func (e MemoryEntry) CheckContext() error {
	if err := checkLine("conversation", e.Conversation, maxConversation); err != nil {
		return err
	}
	if err := checkLine("speaker", e.Speaker, MaxSpeaker); err != nil {
		return err
	}
	if e.Position < 0 || e.Position > MaxPosition {
		return fmt.Errorf("position is %d; it is a number from 1 to %d, or 0 when it is unknown", e.Position,
			MaxPosition)
	}
	if y := e.Happened.UTC().Year(); y < 1 || y > 9999 {
		return fmt.Errorf("happened is in the year %d; it is a time in the years 1 to 9999", y)
	}
	return nil
}

// MaxAhead is how far in the future an entry may have happened: clocks differ, and so do zones. An entry of a later
// time would never be superseded.
const MaxAhead = 24 * time.Hour

// CheckHappened rejects a time of the entry that is more than [MaxAhead] after now. The error says what is valid.
func (e MemoryEntry) CheckHappened(now time.Time) error {
	if e.Happened.After(now.Add(MaxAhead)) {
		return fmt.Errorf("happened is %s, which is in the future; it is a time until %s",
			e.Happened.UTC().Format(time.DateOnly), now.Add(MaxAhead).UTC().Format(time.DateOnly))
	}
	return nil
}

// ParseHappened parses the time of an entry: RFC 3339, or a date, which is its first moment in UTC. "" is the zero
// time: unknown. The error says what is valid.
func ParseHappened(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, s); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("happened is %q; it is a time such as 2023-05-08T13:56:00Z, or a date such as "+
		"2023-05-08", clipForError(s))
}

// checkLine rejects s unless it is one line of at most most bytes of printable characters without spaces around it.
func checkLine(what, s string, most int) error {
	switch {
	case len(s) > most:
		return fmt.Errorf("%s has %d bytes; it is one line of at most %d", what, len(s), most)
	case !utf8.ValidString(s), strings.ContainsFunc(s, func(r rune) bool {
		return !unicode.IsPrint(r)
	}), strings.TrimSpace(s) != s:
		return fmt.Errorf("%s is %q; it is one line of printable characters without spaces around it", what,
			clipForError(s))
	}
	return nil
}

// SearchText returns the text by which the entry is found: the corpus, after a header of what is known of its speaker
// and time. It is what the corpus vector is made of, and the words of the index. See [SearchText].
func (e MemoryEntry) SearchText() string { return SearchText(e.Speaker, e.Happened, e.Corpus) }

// SearchText returns corpus with its context in front, "(8 May 2023) Caroline said: ...", the day in UTC. An unknown
// part is left out, and so is one that the beginning of corpus states already.
func SearchText(speaker string, happened time.Time, corpus string) string {
	start := corpus[:min(len(corpus), MaxSpeaker+100)]
	header := ""
	if !happened.IsZero() && !strings.Contains(start, happened.UTC().Format("2006")) {
		header = happened.UTC().Format("(2 January 2006) ")
	}
	if speaker != "" && !strings.Contains(start, speaker+" said") && !strings.Contains(start, speaker+":") {
		header += speaker + " said: "
	}
	return header + corpus
}
