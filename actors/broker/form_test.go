package broker

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// TestFormsWithoutUser: a form is shown only when a question of the user led to the call, and never when it asks for a
// credential; a form that is shown and no longer waited for is cancelled.
func TestFormsWithoutUser(t *testing.T) {
	t.Parallel()
	ordinary := subjects.UserForm{
		From: "mcp-s", Message: "Which seat?",
		Fields: []subjects.FormField{{Name: "seat", Type: "string"}},
	}
	field := func(f subjects.FormField) subjects.UserForm {
		return subjects.UserForm{Message: "One more value, please.", Fields: []subjects.FormField{f}}
	}
	answers := testCall{flow: &policy.Flow{}, Received: stage.Received{
		Caller: callerOf("generator"), Session: "s1", Tool: "t", ID: "c1",
	}}
	scheduled, b, user, other := answers, answers, answers, answers
	scheduled.Session = "schedule_s1_1"
	b.Caller = callerOf(subjects.RespondentB)
	user.Caller, user.flow = callerOf(userAccount), nil
	other.flow = nil
	for name, tt := range map[string]struct {
		call testCall
		form subjects.UserForm
		n    int
		want string // "" = the user is asked
	}{
		"a question of the user":  {answers, ordinary, 0, ""},
		"a call of the user":      {user, ordinary, 0, ""},
		"no question of the user": {other, ordinary, 0, ruleAbsent},
		"a schedule":              {scheduled, ordinary, 0, ruleAbsent},
		"respondent B":            {b, ordinary, 0, ruleAbsent},
		"the fourth":              {answers, ordinary, 3, ruleTooMany},
		"no text":                 {answers, subjects.UserForm{}, 0, ruleBadForm},
		"trick: a password":       {answers, subjects.UserForm{Message: "Your password?"}, 0, ruleSecret},
		"trick: look-alike letters": {
			answers,
			subjects.UserForm{Message: "Your p\u0430ssw\u043erd?"},
			0,
			ruleSecret,
		},
		"trick: invisible characters": {
			answers,
			subjects.UserForm{Message: "Your pass\u200bword?"},
			0,
			ruleSecret,
		},
		"trick: in the name of a field": {
			answers, field(subjects.FormField{Name: "apiKey", Type: "string"}), 0,
			ruleSecret,
		},
		"trick: in the title": {
			answers,
			field(subjects.FormField{Name: "a", Title: "PIN", Type: "integer"}), 0, ruleSecret,
		},
		"trick: in the description": {
			answers,
			field(subjects.FormField{Name: "a", Description: "the one-time code", Type: "string"}), 0, ruleSecret,
		},
		"trick: a list as a field": {
			answers, field(subjects.FormField{Name: "a", Type: "array"}), 0,
			ruleBadForm,
		},
		"trick: a choice in other colors": {
			answers,
			field(subjects.FormField{Name: "a", Type: "string", Choices: []string{"\x1b[31mno"}}), 0, ruleBadForm,
		},
		"trick: a choice of two lines": {
			answers,
			field(subjects.FormField{Name: "a", Type: "string", Choices: []string{"no\nrule: allowed"}}), 0,
			ruleBadForm,
		},
		"trick: a choice written backward": {
			answers,
			field(subjects.FormField{Name: "a", Type: "string", Choices: []string{"\u202eon"}}), 0, ruleBadForm,
		},
		"trick: a field with a line break": {
			answers, field(subjects.FormField{Name: "a\nb", Type: "string"}), 0,
			ruleBadForm,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newSessionFixture(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() { // an approval that is requested is withdrawn
				select {
				case <-h.approvals:
					cancel()
				case <-ctx.Done():
				}
			}()
			answer, why := h.askUser(ctx, h.rec.Out(), tt.call.judged(), "mcp-s", tt.form, tt.n)
			if tt.want == "" && (answer.Action != subjects.FormCancel || why != ruleWithdrawn) {
				t.Errorf("%+v, %s", answer, why)
			}
			if tt.want != "" && (answer.Action != subjects.FormDecline || why != tt.want) {
				t.Errorf("%+v, %s, want %s", answer, why, tt.want)
			}
		})
	}
}

// TestRecordOfAnswerHasNoValues: a tool that repeats the answer of the user as the code of its error does not get it
// into the audit log.
func TestRecordOfAnswerHasNoValues(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t)
	h.tools["forecast"] = func(o subjects.ToolOrder) (any, error) {
		return nil, actor.ReplyFault(subjects.Faultf(string(o.Answer.Values), "no"))
	}
	tool := policy.Tool{Name: "forecast", Known: true}
	j := stage.Judge(t.Context(), policy.Rules{Chain: policy.Chain{askLayer{}}}, stage.Received{
		ID: "c1", Tool: "forecast", Caller: callerOf(userAccount), Record: subjects.AuditRecord{
			AgentID: userAccount, Action: subjects.ActionToolCall, Tool: "forecast",
		},
	}, policy.Call{Tool: tool, FromUser: true}, nil)
	p, ok, err := j.Allow(nil)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	answer := subjects.FormAnswer{ID: "f1", Action: subjects.FormAccept, Values: json.RawMessage(`{"seat":"14C"}`)}
	if _, err := p.Run(t.Context(), h.rec.Out(), h.gate, func(ctx context.Context,
		run stage.Running,
	) subjects.ToolResult {
		if _, err := h.sendAnswer(ctx, h.rec.Out(), run, "weather", time.Minute, answer, ""); !actor.IsReplyFault(err) {
			t.Errorf("%v", err)
		}
		if got := h.recentEvents(); strings.Contains(got, "14C") ||
			!strings.HasSuffix(got, "after failed "+subjects.CodeTool) {
			t.Errorf("records: %s", got)
		}
		return subjects.ToolResult{}
	}); err != nil {
		t.Error(err)
	}
}
