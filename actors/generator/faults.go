package generator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/pkg/text"
	"conclave/subjects"
)

// explanations pairs errors with a code for programs and advice for the user. Where say is empty the backend's own text is
// used, because it names the address and the model.
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
	{model.ErrNoVision, subjects.CodeModelNoVision, "", "Then ask again."},
	{model.ErrUnsupported, subjects.CodeUnsupported, "", "Choose another model in models.yaml."},
	{errRetriesExhausted, subjects.CodeInternal, errRetriesExhausted.Error(), "What was found so far is kept. Ask again, and look into the log of the generator."},
	{errQueryTooLong, subjects.CodeTooLarge, errQueryTooLong.Error(), "Shorten it, then ask again."},
	{errRecordTooLarge, subjects.CodeTooLarge, errRecordTooLarge.Error(), "What was found so far is kept. Ask for less at once."},
	{context.DeadlineExceeded, subjects.CodeTimeout, "the time for this question is over (wall in generator.yaml, or the deadline of the client)", "Ask again with more time, or ask for less at once."},
}

// Errors of a turn that are not the model's.
var (
	errRetriesExhausted = errors.New("answering this question failed each time it was tried")
	errQueryTooLong     = errors.New("the question with its attachments is too long to be stored")
	errRecordTooLarge   = errors.New("the turn has grown too large to be written down")
)

// explain converts an error, not nil, to a fault for programs and a text for the user, which is never empty. Known
// errors and faults of other components are quoted, shortened; an unknown error is not: it is CodeInternal, and its
// text is in the log only.
func explain(err error) (*subjects.Fault, string) {
	var f *subjects.Fault
	if !errors.As(err, &f) || f == nil || f.Code == "" {
		f = nil
	}
	if timeout := (*loop.TimeoutError)(nil); errors.As(err, &timeout) {
		return newExplanation(subjects.CodeTimeout, timeout.Error(), "Raise it there, choose a smaller model in models.yaml, or ask for less at once.")
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
	case f != nil && f.Code == subjects.CodeNoAttachment:
		return newExplanation(f.Code, f.Text, "No model was asked.")
	case f != nil && f.Code == subjects.CodeTimeout:
		return newExplanation(f.Code, "the model did not answer in time", "Ask again; a smaller model answers sooner.")
	case f != nil:
		return newExplanation(f.Code, f.Text, "Ask again.")
	}
	return newExplanation(subjects.CodeInternal, "something went wrong while this question was answered", "Ask again, and look into the log of the generator.")
}

// maxTextBytes bounds a quoted text of another component, in bytes.
const maxTextBytes = 600

func newExplanation(code, what, advice string) (*subjects.Fault, string) {
	what = text.OneLine(what, maxTextBytes)
	return subjects.Faultf(code, "%s", what), joinAdvice(what, advice)
}

// joinAdvice joins what happened and what to do, as sentences. Advice is left out where the text already gives a
// command (" with: ").
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
