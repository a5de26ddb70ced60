package critic

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"conclave/pkg/text"
)

// Allowed results of a judge.
const (
	scores  = "12345"
	letters = "AB"
)

// maxFeedback bounds the stored feedback, also in memory; maxReply bounds the reply that is parsed.
const (
	maxFeedback = 4 << 10
	maxReply    = 64 << 10
)

// errUnreadable means that a reply has not the required form.
var errUnreadable = errors.New("the judge did not keep to the form")

var (
	thinkingBlock = text.Pattern(`(?is)<(think|thinking|reasoning)>.*?</(?:think|thinking|reasoning)>`)
	openTag       = text.Pattern(`(?i)<(?:think|thinking|reasoning)>`)
	closeTag      = text.Pattern(`(?i)</(?:think|thinking|reasoning)>`)
	resultMark    = text.Pattern(`(?i)\[RESULT\]`)
	feedbackLabel = text.Pattern(`(?i)^[#*_\s]*feedback[*_\s]*:[*_\s]*`)
)

// replySchema is the JSON schema of a judge's reply with one character of allowed.
func replySchema(allowed string) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"type":"object","properties":{`+
		`"feedback":{"type":"string","minLength":1,"maxLength":600},"result":{"type":"string","enum":["%s"]}},`+
		`"required":["feedback","result"],"additionalProperties":false}`,
		strings.Join(strings.Split(allowed, ""), `","`)))
}

// readObject returns a reply by [replySchema] in the form that parseReply reads, and any other one unchanged.
func readObject(said string) string {
	var v struct{ Feedback, Result string }
	if strings.HasPrefix(said, "{") && json.Unmarshal([]byte(said), &v) == nil {
		return v.Feedback + " [RESULT] " + v.Result
	}
	return said
}

// parseReply parses a judge's reply: feedback, one [RESULT] mark, and one character of allowed, or an object by
// [replySchema]. It rejects everything else with [errUnreadable]: more than maxReply bytes, no or several marks, no
// words before the mark, fractions, and results out of range. The feedback is redacted and cut to maxFeedback.
func parseReply(reply, allowed string) (words string, verdict byte, err error) {
	if len(reply) > maxReply {
		return "", 0, fmt.Errorf("%w: it goes on for %d bytes", errUnreadable, len(reply))
	}
	said := readObject(strings.TrimSpace(stripThinking(strings.ToValidUTF8(reply, "\uFFFD"))))
	ends := resultMark().FindAllStringIndex(said, -1)
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
		return "", 0, fmt.Errorf("%w: after [RESULT] stands %q and not one of %s alone", errUnreadable,
			oneLine(end, 40), allowed)
	}
	words = strings.TrimSpace(said[:ends[0][0]])
	words = strings.TrimSpace(strings.TrimPrefix(words, feedbackLabel().FindString(words)))
	if strings.IndexFunc(words, unicode.IsLetter) < 0 {
		return "", 0, fmt.Errorf("%w: there are no words before [RESULT]", errUnreadable)
	}
	return text.Clip(redact(words), maxFeedback), end[0], nil // in this order: a cut credential would not be recognized
}

// stripThinking removes the thinking of a model from its reply: an unclosed block up to the end, and everything before
// a closing tag without an opening one.
func stripThinking(reply string) string {
	reply = thinkingBlock().ReplaceAllString(reply, "")
	if all := closeTag().FindAllStringIndex(reply, -1); len(all) > 0 {
		reply = reply[all[len(all)-1][1]:]
	}
	if i := openTag().FindStringIndex(reply); i != nil {
		reply = reply[:i[0]]
	}
	return reply
}
