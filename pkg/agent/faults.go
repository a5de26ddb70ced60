package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Explanation pairs an error with a code for programs and advice for the user. Where Say is empty the backend's own
// text is used, because it names the address and the model.
type Explanation struct {
	Err    error
	Code   string
	Say    string
	Advice string
}

// modelErrors explains the errors of a model.
var modelErrors = []Explanation{
	{model.ErrAway, subjects.CodeModelUnreachable, "", "Restart conclave up, or start it with conclave actor model; " +
		"then ask again."},
	{model.ErrUnreachable, subjects.CodeModelUnreachable, "", "Start that server, then ask again; conclave doctor " +
		"shows which one is configured."},
	{model.ErrMissing, subjects.CodeModelMissing, "", "Fetch it with: conclave model pull <name>. Then ask again."},
	{model.ErrRemote, subjects.CodeModelRemote, "", "Nothing was sent. Allow the model by name in models.yaml, or " +
		"choose one that runs here."},
	{model.ErrUnauthorized, subjects.CodeModelKey, "", "Store its key with conclave secret set and name it in " +
		"models.yaml, or choose a model that runs here."},
	{model.ErrTooLong, subjects.CodeModelTooLong, "", "Ask a shorter question, begin a new session, or give the " +
		"model a larger window in models.yaml."},
	{model.ErrBusy, subjects.CodeBusy, "", "Wait a moment, then ask again."},
	{model.ErrCut, subjects.CodeModelCut, "", "Ask again; if it keeps happening, look into the model server's log."},
	{model.ErrRunner, subjects.CodeModelRunner, "", "Look into the model server's log, or choose a smaller model; " +
		"then ask again."},
	{model.ErrMalformed, subjects.CodeModelMalformed, "", "It was asked again and did no better. Put the question " +
		"differently, or choose another model."},
	{model.ErrNoTools, subjects.CodeModelNoTools, "", "Choose a model that takes tools, or ask for something that " +
		"needs none."},
	{model.ErrNoThinking, subjects.CodeModelNoThinking, "", "Choose another model, or switch thinking off."},
	{model.ErrNoVision, subjects.CodeModelNoVision, "", "Then ask again."},
	{model.ErrUnsupported, subjects.CodeUnsupported, "", "Choose another model in models.yaml."},
}

// Explain converts an error, not nil, to a fault for programs and a text for the user, which is never empty. own are
// the explanations of the caller's own errors. Known errors and faults of other components are quoted, shortened; an
// unknown error is not: it is CodeInternal, and its text is in the log only.
func Explain(err error, own ...Explanation) (*subjects.Fault, string) {
	var f *subjects.Fault
	if !errors.As(err, &f) || f == nil || f.Code == "" {
		f = nil
	}
	if timeout := (*loop.TimeoutError)(nil); errors.As(err, &timeout) {
		return newExplanation(subjects.CodeTimeout, timeout.Error(), "Raise it there, choose a smaller model in "+
			"models.yaml, or ask for less at once.")
	}
	for _, t := range slices.Concat(modelErrors, own) {
		if !errors.Is(err, t.Err) {
			continue
		}
		text := t.Say
		switch {
		case text != "":
		case f != nil && f.Text != "":
			text = f.Text
		default:
			text = err.Error()
		}
		return newExplanation(t.Code, text, t.Advice)
	}
	switch {
	case f != nil && f.Code == subjects.CodeNoAttachment:
		return newExplanation(f.Code, f.Text, "No model was asked.")
	case f != nil && f.Code == subjects.CodeTimeout:
		return newExplanation(f.Code, "the model did not answer in time", "Ask again; a smaller model answers sooner.")
	case f != nil:
		return newExplanation(f.Code, f.Text, "Ask again.")
	}
	return newExplanation(subjects.CodeInternal, "something went wrong while this question was answered",
		"Ask again, and look into the log.")
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
	if strings.HasSuffix(text, "?") {
		return text + " " + advice
	}
	return fmt.Sprintf("%s. %s", text, advice)
}
