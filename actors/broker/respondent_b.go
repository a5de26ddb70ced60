package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// Respondent B answers the same query as the generator, for comparison only. It has the assistant's reading tools, no
// others: side effects would happen twice. It leaves no trace in the user's session: its results are not recorded in
// the flow, the user is never asked for approval on its behalf, and grants do not apply to it.
//
// A call that the generator makes for the same question is not run again: respondent B gets the same result, so that
// the two answers rest on the same facts. As its own reads are not recorded, its searches and fetches are judged as
// after untrusted content, always: they pass only with the user's own words, a URL that the user typed, or one that the
// generator's search returned.

// isRespondentB reports whether the caller is respondent B or an agent below it.
func isRespondentB(c subjects.Caller) bool { return c.Account == subjects.RespondentB }

// Layer and rules of denials for respondent B, whatever the manifest allows.
const (
	layerRespondentB = "respondent_b"
	ruleSideEffects  = "acts"     // the tool has side effects
	ruleNoApproval   = "no_asker" // the call needs approval
)

// hasSideEffects reports whether a tool changes something, here, in memory or outside. Searching and fetching do not;
// the flow layer judges what they disclose.
func hasSideEffects(t policy.Tool) bool { return !isRepeatable(t) || t.Has(policy.Remember) }

// taintRespondentB returns the flow by which a call of respondent B is judged: for one that sends something out, the
// flow of the session as after untrusted content.
func taintRespondentB(f *policy.Flow, caller subjects.Caller, t policy.Tool) *policy.Flow {
	if !isRespondentB(caller) || !t.Has(policy.Egress) && !t.Has(policy.Fetch) {
		return f
	}
	return f.WithTaint(subjects.Taint{Tool: subjects.RespondentB})
}

// denialFault returns a denial as a fault.
func denialFault(d *subjects.Denial) *subjects.Fault {
	code := subjects.CodeDenied
	if d.Layer == (policy.LimitsLayer{}).Name() {
		code = subjects.CodeLimit
	}
	return &subjects.Fault{Code: code, Text: d.Reason, Denial: d}
}

// denyRespondentB denies a call of respondent B whose tool has side effects, before any layer decides. It returns nil
// for every other call.
func denyRespondentB(c policy.Call) *subjects.Denial {
	if !isRespondentB(c.Caller) || !hasSideEffects(c.Tool) {
		return nil
	}
	return &subjects.Denial{
		Layer: layerRespondentB, Rule: ruleSideEffects,
		Reason: fmt.Sprintf("%s answers for comparison only, and %s has side effects", c.Caller.ID(), c.Tool.Name),
	}
}

// denyQuestions returns the denial of a call about which the layers have questions, but nobody is asked: one of
// respondent B, and what the runtime recalls by itself. It is nil for every other call, and for one without questions.
func denyQuestions(j *stage.Judged) *subjects.Denial {
	r, asks := j.Received(), j.Decision().Asks()
	switch {
	case len(asks) == 0:
	case isRespondentB(r.Caller):
		return &subjects.Denial{
			Layer: layerRespondentB, Rule: ruleNoApproval,
			Reason: fmt.Sprintf("%s answers for comparison only, and %s needs approval", r.Caller.ID(), r.Tool),
		}
	case r.Own:
		return &subjects.Denial{Layer: asks[0].Layer, Rule: asks[0].Rule, Reason: asks[0].Reason}
	}
	return nil
}

// sharedCalls are the latest calls of the generator that respondent B may reuse, by question, tool and arguments. They
// are kept in memory: after a restart of the broker respondent B runs its own calls. The zero value is ready to use.
type sharedCalls struct {
	mu    sync.Mutex
	calls map[string]sharedCall
	order []string
}

// sharedCall is a call of the generator.
type sharedCall struct {
	key  string        // in the ledger
	done chan struct{} // closed when the call has ended
}

// maxShared bounds the shared calls in memory.
const maxShared = 1000

// begin adds a call that is about to run; the caller must call the function that it returns when the call has ended.
func (s *sharedCalls) begin(id, key string) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls == nil {
		s.calls = map[string]sharedCall{}
	}
	if _, known := s.calls[id]; !known {
		if s.order = append(s.order, id); len(s.order) > maxShared {
			delete(s.calls, s.order[0])
			s.order = s.order[1:]
		}
	}
	done := make(chan struct{})
	s.calls[id] = sharedCall{key, done}
	return func() { close(done) }
}

func (s *sharedCalls) find(id string) (sharedCall, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.calls[id]
	return c, ok
}

// shareID identifies a call that another respondent may make too: the question, the tool and the arguments, whatever
// the order of their names. It is "" for a call that is not shared.
func (b *Broker) shareID(r stage.Received, k Known) string {
	if r.Session == "" || r.Query == "" || len(r.Caller.Path) > 0 || isHarmless(k.Tool) || hasSideEffects(k.Tool) {
		return ""
	}
	return stage.HashParts(r.Session, r.Query, r.Tool, b.hash.Hash(canonicalJSON(r.Args)), strconv.FormatBool(r.Own))
}

// canonicalJSON returns a JSON value with sorted names and without insignificant blanks; a value that is no JSON is
// returned unchanged.
func canonicalJSON(args json.RawMessage) []byte {
	d := json.NewDecoder(bytes.NewReader(args))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return args
	}
	sorted, err := json.Marshal(v)
	if err != nil {
		return args
	}
	return sorted
}

// findReusable returns the result of the same call of the generator for a call of respondent B, nil when there is none.
// It waits for a call that is running, until ctx ends.
func (b *Broker) findReusable(ctx context.Context, out actor.Out, r stage.Received, k Known) *subjects.ToolResult {
	id := b.shareID(r, k)
	if !isRespondentB(r.Caller) || id == "" {
		return nil
	}
	same, ok := b.shared.find(id)
	if !ok {
		return nil
	}
	select {
	case <-same.done:
	case <-ctx.Done():
		return nil
	}
	entry, _, err := readEntry(ctx, out.Store("ledger"), same.key)
	if err != nil || entry.Result == nil || entry.Tool != r.Tool || entry.Session != r.Session {
		return nil
	}
	res := *entry.Result
	res.CallID, res.QueryID, res.Caller = r.ID, r.Query, ""
	return &res
}
