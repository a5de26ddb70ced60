package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// TestUnreadableTurnsDeny: any other reply of the stream is an error and denies the call.
func TestUnreadableTurnsDeny(t *testing.T) {
	t.Parallel()
	message := func(data any) any { return map[string]any{"message": map[string]any{"seq": 1, "data": data}} }
	for name, answer := range map[string]func() (any, error){
		"nobody answers": func() (any, error) {
			return nil, subjects.Faultf(subjects.CodeUnavailable, "nobody")
		},
		"silence": func() (any, error) {
			return nil, subjects.Faultf(subjects.CodeTimeout, "silence")
		},
		"an error of the stream": func() (any, error) {
			return map[string]any{"error": map[string]any{"code": 503}}, nil
		},
		"nothing at all":                     func() (any, error) { return map[string]any{}, nil },
		"a message that is no JSON":          func() (any, error) { return message([]byte("fish")), nil },
		"trick: a list":                      func() (any, error) { return []int{1}, nil },
		"trick: a message that is a list":    func() (any, error) { return message([]byte("[]")), nil },
		"trick: a question that is a number": func() (any, error) { return message([]byte(`{"query_id":1}`)), nil },
	} {
		h := newSessionFixture(t)
		h.rec.Reply = func(subject string, body []byte) (any, error) {
			if subject == actor.StoredSubject(subjects.QuerySession.Stream) {
				return answer()
			}
			return h.answerAll(subject, body)
		}
		if res := h.runTool(t, "generator", "web_search", `{"query":"fish"}`); outcomeText(
			res) != subjects.CodeUnavailable || strings.Contains(h.recentEvents(), "ran") {
			t.Errorf("%s: %s", name, outcomeText(res))
		}
	}
}

// TestUnknownSessionNeedsApproval: a call without a query of the user needs approval, whatever it sends.
func TestUnknownSessionNeedsApproval(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t)
	h.addTurn("s1", "q1", "search for fish")
	for _, tt := range []struct{ name, session, query, tool, want string }{
		{"known query", "s1", "q1", "web_search", "ok"},
		{"unknown query", "s1", "q2", "web_search", "asks flow: unknown_session"},
		{"unknown session", "s2", "q1", "web_search", "asks flow: unknown_session"},
		{"no session", "", "q1", "web_search", "asks flow: unknown_session"},
		{"no query", "s1", "", "web_search", "asks flow: unknown_session"},
		{"tool without egress", "s2", "q1", "search_memory", "ok"},
		{"harmless tool", "s2", "q1", "get_datetime", "ok"},
	} {
		v, err := h.validateCall(t, "generator", tt.session, tt.query, tt.tool, `{"query":"fish"}`)
		if err != nil || verdictText(v) != tt.want {
			t.Errorf("%s: %s, %v, want %s", tt.name, verdictText(v), err, tt.want)
		}
	}
	// An unknown session gets no flow record.
	if keys, err := h.rec.Out().Store("flow").Keys(t.Context(), ""); err != nil || len(keys) != 0 {
		t.Errorf("%q, %v", keys, err)
	}
}

// TestQueryTextIsStored: a query text is read once and stays in the flow after the stream has dropped it.
func TestQueryTextIsStored(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t)
	h.addTurn("s1", "q1", "search for fish")
	reads := func() (n int) {
		for _, a := range h.rec.Requested() {
			if a.Subject == actor.StoredSubject(subjects.QuerySession.Stream) {
				n++
			}
		}
		return n
	}
	h.runTool(t, "generator", "web_search", `{"query":"fish"}`)
	first := reads()
	h.turns = nil
	if res := h.runTool(t, "generator", "web_search", `{"query":"fish"}`, "c2"); outcomeText(res) != "ok" ||
		reads() != first {
		t.Errorf("%s after %d and %d reads", outcomeText(res), first, reads())
	}
}

// TestFlowHasQuestionsWithoutToolCalls: messages for which no tool was called are in the flow as well, up to the query
// of the call, each once and in order.
func TestFlowHasQuestionsWithoutToolCalls(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t)
	h.addTurn("s1", "q1", "my doctor is at https://doc.example/")
	h.addTurn("s2", "other", "hello")
	h.addTurn("s1", "q2", "thanks")
	h.addTurn("s1", "q3", "search for fish")
	h.addTurn("s1", "q4", "queued later")
	h.runToolIn(t, "s1", "q3", "generator", "web_search", `{"query":"fish"}`)
	f := h.flowOf(t, "s1")
	for query, want := range map[string]bool{"q1": true, "q2": true, "q3": true, "q4": false, "other": false} {
		if f.HasQuestion(query) != want {
			t.Errorf("the flow has %s: %t", query, !want)
		}
	}
	// The session is tainted now; the user typed this URL in a message for which no tool was called before.
	if res := h.runToolIn(t, "s1", "q1", "generator", "web_fetch", `{"url":"https://doc.example/"}`); outcomeText(
		res) != "ok" {
		t.Errorf("%s", outcomeText(res))
	}
	h.runToolIn(t, "s1", "q4", "generator", "web_search", `{"query":"later"}`)
	if f := h.flowOf(t, "s1"); !f.HasQuestion("q4") || f.LastTurn() != 5 {
		t.Errorf("after q4 the last turn is %d", f.LastTurn())
	}
	// A query that the router did not store adds nothing.
	if v, err := h.validateCall(t, "generator", "s1", "made-up", "web_search", `{"query":"fish"}`); err != nil ||
		verdictText(v) != "asks flow: unknown_session" {
		t.Errorf("%s, %v", verdictText(v), err)
	}
}

// TestCorruptFlowRecordDenies: a corrupt flow record is not treated as an empty session.
func TestCorruptFlowRecordDenies(t *testing.T) {
	t.Parallel()
	for _, data := range []string{
		"", "null", "fish", "[]", `"{}"`, `{"sources":`, `{"sources":"none"}`, `{}{}`,
		`{"sources":[{"tool":"x"}],"sources":[]}`,
	} {
		h := newSessionFixture(t)
		h.addTurn("s1", "q1", "search for fish")
		if _, err := h.rec.Out().Store("flow").Put(t.Context(), "s1", []byte(data), 0); err != nil {
			t.Fatal(err)
		}
		if res := h.runTool(t, "generator", "web_search", `{"query":"fish"}`); outcomeText(
			res) != subjects.CodeUnavailable || strings.Contains(h.recentEvents(), "ran") {
			t.Errorf("%q: %s", data, outcomeText(res))
		}
		// The user's call runs, but its result is withheld: it cannot be recorded.
		if res := h.runTool(t, "operator", "web_search", `{"query":"fish"}`); outcomeText(
			res) != subjects.CodeUnrecorded {
			t.Errorf("%q: the user's call ended in %s", data, outcomeText(res))
		}
	}
}

// TestTaintSurvivesRestart: another broker, later or at the same time, sees the taint that the first one recorded.
func TestTaintSurvivesRestart(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t)
	h.addTurn("s1", "q1", "read https://fish.example/ for me")
	first := h.Broker
	if res := h.runTool(t, "generator", "web_fetch", `{"url":"https://fish.example/"}`); outcomeText(res) != "ok" {
		t.Fatal(outcomeText(res))
	}
	h.start(t, parseRules(t, sessionManifest))
	second := h.Broker
	for name, b := range map[string]*Broker{"the first": first, "the second": second} {
		h.Broker = b
		if got := h.dryRunResult(t, "generator", "web_search", `{"query":"launch codes"}`); got != "asks flow: query" {
			t.Errorf("%s: %s", name, got)
		}
	}
	// Each sees the results that the other recorded.
	for i := range 6 {
		h.Broker = []*Broker{first, second}[i%2]
		r := policy.Result{
			Tool: policy.Tool{
				Name: "web_search", Known: true, Act: policy.ActSearch,
				Args: policy.Args{"query": {Role: policy.RoleQuery}}, Effects: policy.Declare(policy.ReadsUntrusted),
			},
			Links: []string{fmt.Sprintf("https://x.example/%d", i)},
		}
		if err := h.recordFlow(t.Context(), h.rec.Out(), "s1", r); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 6 {
		h.Broker = []*Broker{second, first}[i%2]
		if got := h.dryRunResult(t, "generator", "web_fetch", fmt.Sprintf(`{"url":"https://x.example/%d"}`,
			i)); got != "ok" {
			t.Errorf("address %d: %s", i, got)
		}
	}
}

// TestConcurrentFlowWrites: concurrent results through two brokers are all recorded; when every write conflicts, the
// result is withheld.
func TestConcurrentFlowWrites(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t)
	h.addTurn("s1", "q1", "search for fish")
	brokers := []*Broker{h.Broker}
	h.start(t, parseRules(t, sessionManifest))
	brokers = append(brokers, h.Broker)
	tool := policy.Tool{
		Name: "web_search", Known: true, Act: policy.ActSearch,
		Args: policy.Args{"query": {Role: policy.RoleQuery}}, Effects: policy.Declare(policy.ReadsUntrusted),
	}
	var wg sync.WaitGroup
	for i := range maxWriteAttempts - 1 { // one of them is only a reader
		wg.Go(func() {
			r := policy.Result{Tool: tool, CallID: fmt.Sprintf("c%d", i)}
			if err := brokers[i%2].recordFlow(t.Context(), h.rec.Out(), "s1", r); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Go(func() {
		if f, err := brokers[0].loadFlow(t.Context(), h.rec.Out(), "generator", "s1", "q1", false); err != nil ||
			!f.HasQuestion("q1") {
			t.Errorf("%v", err)
		}
	})
	wg.Wait()
	f := h.flowOf(t, "s1")
	var got []string
	for _, s := range f.Sources() {
		got = append(got, s.CallID)
	}
	slices.Sort(got)
	if len(got) != maxWriteAttempts-1 || len(slices.Compact(got)) != maxWriteAttempts-1 || !f.HasQuestion("q1") {
		t.Errorf("%d are remembered: %q; the words %t", len(got), got, f.HasQuestion("q1"))
	}

	// Every write conflicts.
	h.wrap = func(out actor.Out) actor.Out { return conflictingOut{out} }
	if res := h.runTool(t, "operator", "web_search", `{"query":"fish"}`); outcomeText(res) != subjects.CodeUnrecorded ||
		res.Result != "" {
		t.Errorf("%+v", res)
	}
	if !slices.ContainsFunc(h.rec.Logged(), func(err error) bool { return errors.Is(err, errWriteConflict) }) {
		t.Errorf("noted %v", h.rec.Logged())
	}
	h.addTurn("s1", "q2", "search for bread")
	if res := h.runToolIn(t, "s1", "q2", "generator", "web_search", `{"query":"bread"}`); outcomeText(
		res) != subjects.CodeUnavailable {
		t.Errorf("%+v", res)
	}
}

// conflictingOut has a bucket flow in which every write conflicts.
type conflictingOut struct {
	actor.Out
}

func (r conflictingOut) Store(bucket string) actor.Store {
	s := r.Out.Store(bucket)
	if bucket == "flow" {
		return conflictingStore{s}
	}
	return s
}

type conflictingStore struct{ actor.Store }

func (conflictingStore) Put(context.Context, string, []byte, uint64) (uint64, error) {
	return 0, fmt.Errorf("%w: once more", actor.ErrChanged)
}
