package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"conclave/pkg/actor"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// A server may ask the user a question while one of its calls runs (elicitation). The form is the reply to the broker's
// order; the broker decides whether the user is asked, and brings the answer with the next order of the same call, see
// [subjects.ModeAnswer].

const (
	// answerTimeout is how long a call waits for the next order after a form. The broker declines an unanswered form
	// earlier.
	answerTimeout = time.Hour
	// maxElicitations bounds the questions of one call that are considered.
	maxElicitations = 10
	// maxFormSchema bounds the schema of a form, in bytes.
	maxFormSchema = 32 << 10
)

// runningCall is a call at the server. It may outlive the order that began it, while the user is asked.
type runningCall struct {
	tool    string
	ctx     context.Context
	cancel  context.CancelFunc
	forms   chan subjects.UserForm   // for the order that waits
	answers chan subjects.FormAnswer // for the question that waits
	done    chan callOutcome         // holds the outcome when the server has answered

	showRefusal func(what string) // in the live output of the call

	asking sync.Mutex // one question at a time
	asked  int
}

// callOutcome is what the server answered.
type callOutcome struct {
	result subjects.ToolResult
	err    error
}

// callKey is the key of the running call in the context of its request.
type callKey struct{}

// startCall runs a call at the server, apart from the order that began it. end is called when it is over.
func (m *Mount) startCall(ctx context.Context, s *Session, d Definition, in actor.Msg[subjects.ToolOrder],
	out actor.Out, end func(),
) *runningCall {
	rc := &runningCall{
		tool: d.Schema.Name, forms: make(chan subjects.UserForm),
		answers: make(chan subjects.FormAnswer, 1), done: make(chan callOutcome, 1),
	}
	rc.ctx, rc.cancel = context.WithCancel(context.WithValue(context.WithoutCancel(ctx), callKey{}, rc))
	rc.showRefusal = m.newRefusalOutput(rc.ctx, rc.tool, in.Body.CallID, out)
	m.mu.Lock()
	m.running[rc] = true
	m.mu.Unlock()
	m.background.Go(func() {
		r, err := s.call(rc.ctx, d.Tool, in.Body.Args)
		o := callOutcome{err: err}
		if err == nil {
			o.result.Result = resultText(r, s.redact)
		}
		rc.done <- o
		m.mu.Lock()
		delete(m.running, rc)
		m.mu.Unlock()
		rc.cancel()
		end()
	})
	return rc
}

// awaitCall returns the outcome of a call, or its next form: then the call waits for an order with the answer.
func (m *Mount) awaitCall(ctx context.Context, s *Session, rc *runningCall) (subjects.ToolResult, error) {
	select {
	case o := <-rc.done:
		if o.err != nil {
			return subjects.ToolResult{}, m.callFault(ctx, s, o.err)
		}
		return o.result, nil
	case form := <-rc.forms:
		form.ID = actor.NewID()
		m.mu.Lock()
		defer m.mu.Unlock()
		m.waiting[form.ID] = waitingCall{rc, s, time.AfterFunc(answerTimeout, func() {
			m.takeWaiting(form.ID)
			rc.cancel()
		})}
		return subjects.ToolResult{Form: &form}, nil
	case <-ctx.Done():
		rc.cancel()
		m.background.Go(func() { m.checkAlive(s) })
		return subjects.ToolResult{}, m.callFault(ctx, s, ctx.Err())
	}
}

// waitingCall is a call whose form was returned.
type waitingCall struct {
	call    *runningCall
	session *Session
	expiry  *time.Timer
}

// answer gives a waiting call the answer to its form, and returns its outcome or its next form. [subjects.FormCancel]
// ends it.
func (m *Mount) answer(ctx context.Context, name string, in actor.Msg[subjects.ToolOrder]) (subjects.ToolResult,
	error,
) {
	var w waitingCall
	if in.Body.Answer != nil {
		w = m.takeWaiting(in.Body.Answer.ID)
	}
	if w.call == nil || w.call.tool != name {
		return subjects.ToolResult{}, subjects.Faultf(subjects.CodeUnavailable, "the call no longer waits for an "+
			"answer; the MCP server %s may have been started again", m.options.Name)
	}
	w.expiry.Stop()
	if in.Body.Answer.Action == subjects.FormCancel {
		w.call.cancel()
		return subjects.ToolResult{}, subjects.Faultf(subjects.CodeStopped, "the call was cancelled")
	}
	w.call.answers <- *in.Body.Answer
	return m.awaitCall(ctx, w.session, w.call)
}

// takeWaiting removes and returns the call that waits for the answer to a form, the zero value when there is none.
func (m *Mount) takeWaiting(form string) waitingCall {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.waiting[form]
	delete(m.waiting, form)
	return w
}

// elicit has the user asked the question of a server, and returns the answer for the server. It declines a question
// that belongs to no call or to one of several that run, one with a form that is not flat or too large, and one that
// wants a URL opened.
func (m *Mount) elicit(ctx context.Context, p *sdk.ElicitParams) *sdk.ElicitResult {
	decline := func(why string) *sdk.ElicitResult {
		m.reportRefusal("it asked you a question, which was declined: " + why)
		return &sdk.ElicitResult{Action: subjects.FormDecline}
	}
	rc, _ := ctx.Value(callKey{}).(*runningCall) // newer protocols ask in the result of a call
	if rc == nil {
		if rc = m.soleCall(); rc == nil {
			return decline("it does not belong to one running call")
		}
	}
	form, err := newForm(p)
	if err != nil {
		return decline(err.Error())
	}
	rc.asking.Lock()
	defer rc.asking.Unlock()
	if rc.asked++; rc.asked > maxElicitations {
		return decline("it is one of too many")
	}
	cancelled := &sdk.ElicitResult{Action: subjects.FormCancel}
	select {
	case rc.forms <- form:
	case <-rc.ctx.Done():
		return cancelled
	}
	select {
	case a := <-rc.answers:
		if a.Action != subjects.FormAccept {
			return &sdk.ElicitResult{Action: subjects.FormDecline}
		}
		content := map[string]any{}
		if err := json.Unmarshal(a.Values, &content); len(a.Values) > 0 && err != nil {
			return decline("the answer cannot be read")
		}
		return &sdk.ElicitResult{Action: subjects.FormAccept, Content: content}
	case <-rc.ctx.Done():
		return cancelled
	}
}

// soleCall returns the call that runs when there is exactly one: a request of an older protocol does not say to which
// it belongs.
func (m *Mount) soleCall() *runningCall {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.running) != 1 {
		return nil
	}
	for rc := range m.running {
		return rc
	}
	return nil
}

// formSchema is the part of JSON Schema that a form may use. Defaults and formats are dropped: they are hints.
type formSchema struct {
	Type       string                  `json:"type"`
	Properties map[string]formProperty `json:"properties"`
	Required   []string                `json:"required"`
}

type formProperty struct {
	Type        string   `json:"type"`
	Title       string   `json:"title"`
	Description string   `json:"description"`
	Enum        []string `json:"enum"`
	OneOf       []struct {
		Const string `json:"const"`
	} `json:"oneOf"`
	Minimum   *float64 `json:"minimum"`
	Maximum   *float64 `json:"maximum"`
	MinLength *float64 `json:"minLength"`
	MaxLength *float64 `json:"maxLength"`
}

// newForm returns the form of a question. The broker checks it again.
func newForm(p *sdk.ElicitParams) (form subjects.UserForm, err error) {
	if p == nil || p.URL != "" || p.Mode != "" && p.Mode != "form" {
		return form, errors.New("only forms are shown, and no page is opened for a server")
	}
	raw, err := json.Marshal(p.RequestedSchema)
	if err != nil || len(raw) > maxFormSchema {
		return form, errors.New("its form is too large")
	}
	var schema formSchema
	if err := json.Unmarshal(raw, &schema); err != nil || schema.Type != "" && schema.Type != "object" ||
		len(schema.Properties) > subjects.MaxFormFields {
		return form, errors.New("its form is not a flat list of a few fields")
	}
	form.Message = cleanText(p.Message)
	required := map[string]bool{}
	for _, name := range schema.Required {
		required[name] = true
	}
	for _, name := range strict.SortedKeys(schema.Properties) {
		property := schema.Properties[name]
		f := subjects.FormField{
			Name: name, Title: cleanText(property.Title), Description: cleanText(property.Description),
			Type:    property.Type,
			Choices: property.Enum, Required: required[name], Min: property.Minimum, Max: property.Maximum,
		}
		for _, c := range property.OneOf {
			f.Choices = append(f.Choices, c.Const)
		}
		if f.Type == "string" {
			f.Min, f.Max = property.MinLength, property.MaxLength
		}
		form.Fields = append(form.Fields, f)
	}
	return form, form.Check()
}
