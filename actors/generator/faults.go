package generator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"conclave/pkg/model"
	"conclave/pkg/text"
	"conclave/subjects"
)

// explanations pairs what can go wrong with a code for programs and with words that a user can act on. A backend's own
// words name the address and the model: they are used where say is empty.
var explanations = []struct {
	err    error
	code   string
	say    string
	advice string
}{
	{model.ErrUnreachable, subjects.CodeModelUnreachable, "", "Start it with: ollama serve. Then ask again."},
	{model.ErrMissing, subjects.CodeModelMissing, "", "Fetch it with: conclave model pull <name>. Then ask again."},
	{model.ErrRemote, subjects.CodeModelRemote, "", "Nothing was sent. Allow the model by name in models.yaml, or choose one that runs here."},
	{model.ErrUnauthorized, subjects.CodeModelKey, "", "This version has no keyring, so such a server can only be used without a key. Choose a model that runs here."},
	{model.ErrTooLong, subjects.CodeModelTooLong, "", "Ask a shorter question, begin a new session, or give the model a larger window in models.yaml."},
	{model.ErrBusy, subjects.CodeBusy, "", "Wait a moment, then ask again."},
	{model.ErrCut, subjects.CodeModelCut, "", "Ask again; if it keeps happening, look into the model server's log."},
	{model.ErrMalformed, subjects.CodeModelMalformed, "", "It was asked again and did no better. Put the question differently, or choose another model."},
	{model.ErrNoTools, subjects.CodeModelNoTools, "", "Choose a model that takes tools, or ask for something that needs none."},
	{model.ErrNoThinking, subjects.CodeModelNoThinking, "", "Switch thinking off in generator.yaml, or choose another model."},
	{model.ErrUnsupported, subjects.CodeUnsupported, "", "Choose another model in models.yaml."},
	{errRetriesExhausted, subjects.CodeInternal, errRetriesExhausted.Error(), "What was found so far is kept. Ask again, and look into the log of the generator."},
	{errQueryTooLong, subjects.CodeTooLarge, errQueryTooLong.Error(), "Shorten it, then ask again."},
	{errRecordTooLarge, subjects.CodeTooLarge, errRecordTooLarge.Error(), "What was found so far is kept. Ask for less at once."},
	{context.DeadlineExceeded, subjects.CodeTimeout, "the time for this question is over", "Ask again with more time, or ask for less at once."},
}

// What can go wrong that is not the model's doing.
var (
	errRetriesExhausted = errors.New("answering this question failed each time it was tried")
	errQueryTooLong     = errors.New("the question is too long to be kept")
	errRecordTooLarge   = errors.New("the turn has grown too large to be written down")
)

// explain makes of an error the fault for programs and the words for the user. It never returns empty words, and
// nothing of our insides: errors that are not known are in the log.
func explain(err error) (*subjects.Fault, string) {
	var f *subjects.Fault
	if !errors.As(err, &f) || f == nil || f.Code == "" {
		f = nil
	}
	for _, t := range explanations {
		if !errors.Is(err, t.err) {
			continue
		}
		text := t.say
		switch {
		case text != "":
		case f != nil && f.Text != "":
			text = f.Text
		default:
			text = err.Error()
		}
		return newExplanation(t.code, text, t.advice)
	}
	switch {
	case f != nil && f.Code == subjects.CodeTimeout:
		return newExplanation(f.Code, "the model did not answer in time", "Ask again; a smaller model answers sooner.")
	case f != nil:
		return newExplanation(f.Code, f.Text, "Ask again.")
	}
	return newExplanation(subjects.CodeInternal, "something went wrong while this question was answered", "Ask again, and look into the log of the generator.")
}

// maxTextBytes is how much of a text that came from elsewhere is told, in bytes.
const maxTextBytes = 600

func newExplanation(code, what, advice string) (*subjects.Fault, string) {
	what = text.OneLine(what, maxTextBytes)
	return subjects.Faultf(code, "%s", what), joinAdvice(what, advice)
}

// joinAdvice joins what happened and what to do. Where a backend already says what to do, that is enough.
func joinAdvice(text, advice string) string {
	text = strings.TrimRight(text, ". ")
	if r, n := utf8.DecodeRuneInString(text); n > 0 {
		text = string(unicode.ToUpper(r)) + text[n:]
	}
	if strings.Contains(text, " with: ") {
		return text + "."
	}
	return fmt.Sprintf("%s. %s", text, advice)
}
