package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/pkg/firewall"
	"conclave/pkg/text"
	"conclave/subjects"
)

// A running call of a run-time principal can ask the user something: its tool returns a form in place of a result, the
// broker shows it as an approval request, and sends the answer to that tool as the next order of the same call. The
// tool cannot choose the call, the session or another recipient: the form is the reply to the broker's own request.
// Everything but an answer of the user is declined.

// Layer and rules of forms.
const (
	layerForm    = "tool"
	ruleForm     = "question"
	ruleSecret   = "asks_for_secret"
	ruleAbsent   = "no_user" // nobody is present: a schedule, respondent B, or a call that belongs to no question
	ruleTooMany  = "too_many_questions"
	ruleBadForm  = "malformed"
	ruleNoRecord = "not_recorded"
)

const (
	// maxForms bounds the forms of one call.
	maxForms = 3
	// cancelTimeout bounds the order that cancels a call, for which nobody waits.
	cancelTimeout = time.Second
)

// secretWords match texts that ask for a credential. MCP forbids it in a form, so a form that matches is declined
// unseen.
var secretWords = regexp.MustCompile(
	`(?i)pass[ _-]?(?:word|phrase|code|wd)|passwort|kennwort|mot de passe|contraseña|\bpwd\b|\bpin\b|secret|` +
		`credential|api[ _-]?key|private[ _-]?key|access[ _-]?key|\btoken|\bjwt\b|seed[ _-]?phrase|recovery (?:code|` +
		`phrase)|mnemonic|\bcv[vc]\d?\b|card[ _-]?number|\botp\b|one[ _-]?time|\b2fa\b|\bmfa\b|verification code|` +
		`\bssn\b|social security`)

// asksForSecret reports whether a form asks for a credential, by any of its texts. Look-alike letters and invisible
// characters do not hide it.
func asksForSecret(f subjects.UserForm) bool {
	all := []string{f.Message}
	for _, field := range f.Fields {
		all = append(all, splitName(field.Name), field.Title, field.Description)
	}
	return secretWords.MatchString(text.Normalize(strings.Join(all, "\n")))
}

// splitName separates the words of a name such as accessKey and access_key.
func splitName(name string) string {
	return name + " " + nameParts.ReplaceAllString(name, "$1 $2") + " " + strings.NewReplacer("_", " ", "-", " ", ".",
		" ").Replace(name)
}

var nameParts = regexp.MustCompile(`([a-z0-9])([A-Z])`)

// answerForms sends the answers of the user to the forms of a call until it has a result. ctx is that of the caller,
// limit the time of the tool without the user's.
func (b *Broker) answerForms(ctx context.Context, out actor.Out, run stage.Running, zone string, limit time.Duration,
	got subjects.ToolResult, err error,
) (subjects.ToolResult, error) {
	j := run.Judged()
	for n := 0; err == nil && got.Form != nil; n++ {
		answer, why := b.askUser(ctx, out, j, zone, *got.Form, n)
		answer.ID = got.Form.ID
		if answer.Action == subjects.FormDecline {
			b.showDeclined(ctx, out, j.Received(), zone, why)
		}
		got, err = b.sendAnswer(ctx, out, run, zone, limit, answer, why)
		if answer.Action == subjects.FormCancel {
			return subjects.ToolResult{}, subjects.Faultf(subjects.CodeStopped, "the call of %s was cancelled while "+
				"it waited for the user", j.Received().Tool)
		}
	}
	return got, err
}

// showDeclined tells the user in the live output of the call that a question was declined.
func (b *Broker) showDeclined(ctx context.Context, out actor.Out, r stage.Received, zone, why string) {
	shown, o := b.live.add(liveKey{zone, r.Tool, r.ID}, fmt.Sprintf("%s asked you a question, which was declined "+
		"(%s)\n", zone, why))
	b.forwardOutput(ctx, out, o, shown)
}

// cleanForm returns a form for a screen: from the principal of the zone, without secrets and control characters.
func cleanForm(zone string, f subjects.UserForm) subjects.UserForm {
	clean := subjects.UserForm{From: zone, Message: cleanOutput(f.Message)}
	for _, field := range f.Fields {
		field.Title, field.Description = cleanOutput(field.Title), cleanOutput(field.Description)
		clean.Fields = append(clean.Fields, field)
	}
	return clean
}

// hidesInChoices reports whether a choice would look different on a screen. A choice cannot be cleaned: it is the value
// of the answer.
func hidesInChoices(f subjects.UserForm) bool {
	for _, field := range f.Fields {
		for _, c := range field.Choices {
			if strings.ContainsAny(c, "\n\t") || cleanOutput(c) != c {
				return true
			}
		}
	}
	return false
}

// askUser asks the user a form of the principal of the zone and waits for the answer. It declines, with the rule as the
// reason, a form that may not be asked, that is denied or expires; it cancels when the caller or the user no longer
// waits for the call. n is the number of the form in its call.
func (b *Broker) askUser(ctx context.Context, out actor.Out, j *stage.Judged, zone string, form subjects.UserForm,
	n int,
) (_ subjects.FormAnswer, why string) {
	r, asked := j.Received(), j.Facts()
	decline := func(why string) (subjects.FormAnswer, string) {
		return subjects.FormAnswer{Action: subjects.FormDecline}, why
	}
	_, isScheduled := subjects.ScheduleOf(r.Session)
	switch {
	case form.Check() != nil || hidesInChoices(form):
		return decline(ruleBadForm)
	case asksForSecret(form): // before it is cleaned, which would separate the letters of a word
		return decline(ruleSecret)
	case n >= maxForms:
		return decline(ruleTooMany)
	case isRespondentB(r.Caller) || isScheduled || !asked.FromUser && asked.Flow == nil:
		return decline(ruleAbsent)
	}
	id := out.NewID()
	by := requesterOf(j)
	woken, leave, ok := b.waiting.join(id, by)
	if !ok {
		return decline(subjects.CodeBusy)
	}
	defer leave()
	q := b.newFormRequest(out, j, id, cleanForm(zone, form))
	if data, err := json.Marshal(q); err != nil || !b.requests.admit(by, len(data), out.Now()) {
		return decline(subjects.CodeLimit)
	}
	err := q.Put(ctx, out.Store(stage.ApprovalBucket))
	if err == nil {
		err = publishRequest(ctx, out, q)
	}
	if err != nil {
		out.LogError(fmt.Errorf("asking the user a question of %s: %w", r.Tool, err))
		return decline(subjects.CodeUnavailable)
	}
	_, fault := b.awaitDecision(ctx, out, id, r.Tool, woken)
	switch {
	case fault == nil:
		values, err := takeValues(ctx, out, id)
		if err != nil {
			out.LogError(fmt.Errorf("reading the answer to a question of %s: %w", r.Tool, err))
			return decline(subjects.CodeUnavailable)
		}
		return subjects.FormAnswer{Action: subjects.FormAccept, Values: values}, ""
	case ctx.Err() != nil:
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
		defer cancel()
		if err := b.withdrawApproval(ctx, out, id); err != nil {
			out.LogError(fmt.Errorf("withdrawing a question of %s: %w", r.Tool, err))
		}
		return subjects.FormAnswer{Action: subjects.FormCancel}, ruleWithdrawn
	case fault.Code == subjects.CodeStopped:
		return subjects.FormAnswer{Action: subjects.FormCancel}, ruleWithdrawn
	case fault.Denial != nil:
		return decline(fault.Denial.Rule)
	}
	return decline(fault.Code)
}

// newFormRequest returns the pending request of a form. Its id is new each time: an answer is for one form of one call.
func (b *Broker) newFormRequest(out actor.Out, j *stage.Judged, id string, form subjects.UserForm) stage.Approval {
	q := b.newPending(out, j, id)
	q.Layer, q.Rule, q.Form = layerForm, ruleForm, &form
	q.Reason = form.From +
		" asks you a question. The text is untrusted content of that server, and only that server gets your answer"
	q.Hosts = findLookAlikes(q.Args, nil)
	return q
}

// takeValues returns the values of an answered form and removes them from the bucket.
func takeValues(ctx context.Context, out actor.Out, id string) (json.RawMessage, error) {
	store := out.Store(stage.ApprovalBucket)
	for range maxWriteAttempts {
		q, err := stage.ReadApproval(ctx, store, id)
		if err != nil {
			return nil, err
		}
		values := q.Values
		q.Values = nil
		if err = q.Put(ctx, store); !errors.Is(err, actor.ErrChanged) {
			return values, err
		}
	}
	return nil, errWriteConflict
}

// sendAnswer sends an answer to the tool and returns its next reply. An answer with values of the user is sent behind
// the audit gate; without an acknowledged record it is declined. why is the reason of an answer without values.
func (b *Broker) sendAnswer(ctx context.Context, out actor.Out, run stage.Running, zone string, limit time.Duration,
	answer subjects.FormAnswer, why string,
) (subjects.ToolResult, error) {
	send := func(ctx context.Context, answer subjects.FormAnswer) (subjects.ToolResult, error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return run.Answer(ctx, out, zone, answer)
	}
	rec := run.Judged().Received().Record
	rec.ID, rec.Action, rec.ParamsHash = out.NewID(), subjects.ActionToolAnswer, b.hash.Hash(answer.Values)
	if answer.Action == subjects.FormAccept {
		sent := false
		got, err := actor.Audited(ctx, out, b.gate, rec,
			func(ctx context.Context, p *actor.Permit) (subjects.ToolResult, error) {
				sent = true
				got, err := send(ctx, answer)
				if actor.IsReplyFault(err) {
					// the tool chooses the code of its fault, which could repeat the values
					p.Report(subjects.StatusFailed, subjects.CodeTool)
				}
				return got, err
			})
		if sent {
			if errors.Is(err, actor.ErrUnrecorded) {
				out.LogError(fmt.Errorf("recording that an answer was sent to %s: %w", rec.Tool, err))
				err = nil
			}
			return got, err
		}
		out.LogError(fmt.Errorf("the answer to a question of %s is declined: %w", rec.Tool, err))
		answer, why, rec.ID = subjects.FormAnswer{ID: answer.ID, Action: subjects.FormDecline}, ruleNoRecord,
			out.NewID()
	}
	if answer.Action == subjects.FormCancel { // the caller's deadline may have ended
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
		defer cancel()
	}
	if err := b.gate.Record(ctx, out, rec, subjects.StatusDenied, stage.RuleName(layerForm, why)); err != nil {
		out.LogError(fmt.Errorf("recording that a question of %s was declined: %w", rec.Tool, err))
	}
	return send(ctx, answer)
}

// checkFormDecision rejects a decision that does not fit its request: values without a form, values that do not fit it,
// and values that look like a credential.
func checkFormDecision(q stage.Approval, d subjects.ApprovalDecision) *subjects.Fault {
	switch {
	case q.Form == nil && len(d.Values) > 0, !d.Approve && len(d.Values) > 0:
		return subjects.Faultf(subjects.CodeMalformed, "values are for the approval of a request with a form")
	case q.Form == nil || !d.Approve:
		return nil
	case d.Remember != "":
		return subjects.Faultf(subjects.CodeMalformed, "an answer to a form cannot be remembered")
	}
	if err := q.Form.CheckValues(d.Values); err != nil {
		return subjects.Faultf(subjects.CodeMalformed, "%s", text.OneLine(err.Error(), 200))
	}
	if _, n := firewall.Redact(string(d.Values)); n > 0 {
		return subjects.Faultf(subjects.CodeMalformed, "a value looks like a credential, which must not be given to "+
			"a server this way; see conclave secret set")
	}
	return nil
}
