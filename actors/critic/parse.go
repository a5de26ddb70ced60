package critic

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"

	"conclave/pkg/text"
)

// What a judge may end its reply with.
const (
	scores  = "12345"
	letters = "AB"
)

// maxFeedback bounds what is kept of a judge's words; memory keeps as much. maxReply bounds what is read at all.
const (
	maxFeedback = 4 << 10
	maxReply    = 64 << 10
)

// errUnreadable means that a reply has not the form that was asked for.
var errUnreadable = errors.New("the judge did not keep to the form")

var (
	thinking = regexp.MustCompile(`(?is)<(think|thinking|reasoning)>.*?</(?:think|thinking|reasoning)>`)
	openTag  = regexp.MustCompile(`(?i)<(?:think|thinking|reasoning)>`)
	closeTag = regexp.MustCompile(`(?i)</(?:think|thinking|reasoning)>`)
	ending   = regexp.MustCompile(`(?i)\[RESULT\]`)
	label    = regexp.MustCompile(`(?i)^[#*_\s]*feedback[*_\s]*:[*_\s]*`)
)

// parse reads a judge's reply: words, then the one mark of the end, then one of allowed and nothing else. It guesses
// nothing: half a grade, two grades and a grade out of range are none.
func parse(reply, allowed string) (words string, verdict byte, err error) {
	if len(reply) > maxReply {
		return "", 0, fmt.Errorf("%w: it goes on for %d bytes", errUnreadable, len(reply))
	}
	said := strings.TrimSpace(thoughtless(strings.ToValidUTF8(reply, "\uFFFD")))
	ends := ending.FindAllStringIndex(said, -1)
	switch {
	case said == "":
		return "", 0, fmt.Errorf("%w: it said nothing", errUnreadable)
	case len(ends) == 0:
		return "", 0, fmt.Errorf("%w: there is no [RESULT]", errUnreadable)
	case len(ends) > 1:
		return "", 0, fmt.Errorf("%w: there are %d times [RESULT]", errUnreadable, len(ends))
	}
	end := strings.TrimSuffix(strings.TrimSpace(said[ends[0][1]:]), ".")
	if len(end) == 3 && end[0] == '(' && end[2] == ')' {
		end = end[1:2]
	}
	if len(end) != 1 || !strings.Contains(allowed, end) {
		return "", 0, fmt.Errorf("%w: after [RESULT] stands %q and not one of %s alone", errUnreadable, line(end, 40), allowed)
	}
	words = strings.TrimSpace(said[:ends[0][0]])
	words = strings.TrimSpace(strings.TrimPrefix(words, label.FindString(words)))
	if strings.IndexFunc(words, unicode.IsLetter) < 0 {
		return "", 0, fmt.Errorf("%w: there are no words before [RESULT]", errUnreadable)
	}
	return text.Clip(scrub(words), maxFeedback), end[0], nil // in this order: half a credential would not be known for what it is
}

// thoughtless is a reply without what its model thought aloud. What was begun and never ended is all thought; so is
// everything before an end that has no beginning.
func thoughtless(reply string) string {
	reply = thinking.ReplaceAllString(reply, "")
	if all := closeTag.FindAllStringIndex(reply, -1); len(all) > 0 {
		reply = reply[all[len(all)-1][1]:]
	}
	if i := openTag.FindStringIndex(reply); i != nil {
		reply = reply[:i[0]]
	}
	return reply
}
