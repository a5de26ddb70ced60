package digest

import (
	"time"

	"conclave/pkg/text"
)

// Statement is the claim of one memory entry.
type Statement struct {
	Corpus                string
	Created               time.Time // zero = not known
	Untrusted             bool      // it holds untrusted content
	Speaker, Conversation string    // who said it and where; "" = not known
	Happened              time.Time // when it was said; zero = not known
}

// IsRepeated reports whether next says again what old says: the same words in the same order, by the same speaker. The
// same words on another day, in UTC, or in another conversation are another statement. Next may supersede old, see
// [CheckOrder].
func IsRepeated(old, next Statement) bool {
	days := !old.Happened.IsZero() && !next.Happened.IsZero() &&
		old.Happened.UTC().Format(time.DateOnly) != next.Happened.UTC().Format(time.DateOnly)
	places := old.Conversation != "" && next.Conversation != "" && old.Conversation != next.Conversation
	said := old.words()
	return said != "" && said == next.words() && !days && !places && CheckOrder(old, next) == ""
}

// words returns the folded words of a statement. Who said it, and when, are compared as fields.
func (s Statement) words() string {
	_, _, body, _ := ParseAttribution(cleanText(s.Corpus))
	return text.NameKey(body)
}

// CheckOrder returns why next must not supersede old, whatever both say, "" when it may: next is untrusted and old is
// not, next is older, or another speaker said it.
func CheckOrder(old, next Statement) (why string) {
	switch {
	case next.Untrusted && !old.Untrusted:
		return "an untrusted entry cannot supersede a trusted one"
	case !old.Created.IsZero() && !next.Created.IsZero() && next.Created.Before(old.Created),
		!old.Happened.IsZero() && !next.Happened.IsZero() && next.Happened.Before(old.Happened):
		return "it is older than what it would replace"
	case text.Fold(old.Speaker) != text.Fold(next.Speaker):
		return "another speaker said it"
	}
	return ""
}
