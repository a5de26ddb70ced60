package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/client"
	"conclave/subjects"
)

func TestMain(m *testing.M) {
	bustest.AllowParallel(8)
	os.Exit(m.Run())
}

// fixture is a server under the real grants, with a client of the user and one publisher for each account.
type fixture struct {
	t   *testing.T
	bus *bustest.Bus
	c   *client.Client
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	b := bustest.Start(t)
	c, err := client.New(b.Connect("user"))
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{t, b, c}
}

func (f *fixture) as(role string) actor.Out {
	f.t.Helper()
	return f.bus.Out(role)
}

// run starts an actor until the end of the test.
func (f *fixture) run(a actor.Actor) {
	f.t.Helper()
	f.bus.RunActor(a, actor.Config{})
}

// routes is an actor made of its routes.
type routes struct {
	name string
	on   []actor.Route
}

func (r routes) Name() string          { return r.name }
func (r routes) Routes() []actor.Route { return r.on }

func emit[T any](t *testing.T, out actor.Out, topic subjects.Topic[T], body T) {
	t.Helper()
	if err := actor.Emit(t.Context(), out, topic, body); err != nil {
		t.Error(err)
	}
}

func with[T any](t *testing.T, topic subjects.Topic[T], token string) subjects.Topic[T] {
	t.Helper()
	topic, err := topic.With(token)
	if err != nil {
		t.Fatal(err)
	}
	return topic
}

// ask asks and fails the test when the question cannot be stored.
func (f *fixture) ask(ctx context.Context, q client.Question) *client.Query {
	f.t.Helper()
	query, err := f.c.Ask(ctx, q)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(query.Close)
	return query
}

func response(q *client.Query, answer string) subjects.Response {
	return subjects.Response{
		SessionID: q.Session, QueryID: q.ID, Query: "?", Answer: answer,
		ToolCalls: []subjects.ToolCall{},
	}
}

func TestAskReportsUpdatesInOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	generator, respondentB, broker, critic := f.as("generator"), f.as("respondent_b"), f.as("broker"), f.as("critic")
	q := f.ask(t.Context(), client.Question{Text: "?", Timeout: time.Minute, Graded: true})
	emitted := make(chan struct{})
	go func() {
		defer close(emitted)
		about := generator.WithIDs(q.Session, q.ID)
		emit(t, about, with(t, subjects.AgentStateEvent, "generator"),
			subjects.AgentState{SessionID: q.Session, QueryID: q.ID, To: "GENERATING"})
		f.bus.AwaitEvents() // between events of different authors, to keep their order
		emit(t, broker.WithIDs(q.Session, q.ID), with(t, subjects.ToolRequestEvent, "get_datetime"),
			subjects.ToolRequest{
				CallID: "c1", QueryID: q.ID, Tool: "get_datetime", Caller: "generator",
				Args: json.RawMessage(`{}`),
			})
		emit(t, broker.WithIDs(q.Session, q.ID), with(t, subjects.ToolResultEvent, "get_datetime"),
			subjects.ToolResult{CallID: "c1", QueryID: q.ID, Tool: "get_datetime", Result: "now"})
		f.bus.AwaitEvents()
		emit(t, respondentB.WithIDs(q.Session, q.ID), subjects.ResponseGeneration, response(q, "not for the user"))
		emit(t, about, with(t, subjects.ResponseDelta, q.ID), subjects.Delta{QueryID: q.ID, Text: "It is "})
		emit(t, about, with(t, subjects.ResponseDelta, q.ID), subjects.Delta{QueryID: q.ID, N: 1, Text: "now."})
		emit(t, about, subjects.ResponseGeneration, response(q, "It is now."))
		f.bus.AwaitEvents()
		emit(t, critic.WithIDs(q.Session, q.ID), subjects.CritiqueResult,
			subjects.Critique{QueryID: q.ID, RespondentID: "generator", Score: 4})
	}()
	var kinds []string
	var answer string
	deltas := ""
	for u := range q.Updates() {
		switch u := u.(type) {
		case client.Delta:
			deltas += u.Text
		case client.State:
			kinds = append(kinds, "state")
		case client.ToolCall:
			kinds = append(kinds, "call "+u.Tool)
		case client.ToolResult:
			kinds = append(kinds, "result "+u.Result)
		case client.Answer:
			answer = u.Answer
		case client.Failure:
			t.Fatal(u.Fault)
		}
	}
	if want := []string{"state", "call get_datetime", "result now"}; !slices.Equal(kinds, want) {
		t.Errorf("updates %v, want %v", kinds, want)
	}
	if deltas != "It is now." || answer != "It is now." {
		t.Errorf("deltas %q, answer %q", deltas, answer)
	}
	if g := q.Grade(t.Context(), 0); g != nil {
		t.Errorf("grade without waiting: %+v", g)
	}
	<-emitted // no critic answers the ping, so a grade that is not stored yet is not waited for
	if g := q.Grade(t.Context(), 10*time.Second); g == nil || g.Score != 4 {
		t.Errorf("grade %+v", g)
	}
}

// TestAskReportsCallsBeforeTheText: text of a model call that outruns the event log is reported behind the tool calls
// before that model call.
func TestAskReportsCallsBeforeTheText(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	generator, broker := f.as("generator"), f.as("broker")
	q := f.ask(t.Context(), client.Question{Text: "?", Timeout: time.Minute})
	about, calls := generator.WithIDs(q.Session, q.ID), broker.WithIDs(q.Session, q.ID)
	for n, text := range []string{"It is ", "now."} {
		emit(t, about, with(t, subjects.ResponseDelta, q.ID), subjects.Delta{
			QueryID: q.ID, Step: 2, N: n, Text: text,
		})
	}
	emit(t, calls, with(t, subjects.ToolRequestEvent, "get_datetime"), subjects.ToolRequest{
		CallID: "c1", QueryID: q.ID, Tool: "get_datetime", Caller: "generator", Args: json.RawMessage(`{}`),
	})
	f.bus.AwaitEvents()
	emit(t, about, with(t, subjects.AgentStateEvent, "generator"), subjects.AgentState{
		SessionID: q.Session, QueryID: q.ID, To: "GENERATING", Step: 2,
	})
	f.bus.AwaitEvents()
	emit(t, about, subjects.ResponseGeneration, response(q, "It is now."))
	var got []string
	for u := range q.Updates() {
		switch u := u.(type) {
		case client.Delta:
			got = append(got, u.Text)
		case client.ToolCall:
			got = append(got, "call")
		case client.Failure:
			t.Fatal(u.Fault)
		}
	}
	if want := []string{"call", "It is ", "now."}; !slices.Equal(got, want) {
		t.Errorf("updates %q, want %q", got, want)
	}
}

func TestAskReportsDeadLetterAsFailure(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	router := f.as("router")
	q := f.ask(t.Context(), client.Question{Text: "?", Session: "s1"})
	about := router.WithIDs(q.Session, q.ID)
	emit(t, about, with(t, subjects.DeadLetterEvent, "router"),
		subjects.DeadLetter{Actor: "router", Subject: "query.cancel.x", Code: "malformed", Reason: "something else"})
	emit(t, about, with(t, subjects.DeadLetterEvent, "router"),
		subjects.DeadLetter{
			Actor: "router", Subject: "query.received", Code: "internal",
			Reason: "five attempts failed",
		})
	_, err := q.Wait()
	var fault *subjects.Fault
	if !errors.As(err, &fault) || fault.Code != "internal" || !strings.Contains(fault.Text, "five attempts failed") {
		t.Errorf("error %v", err)
	}
}

func TestAskCancelledDeliversPartialAnswer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	generator := f.as("generator")
	cancels := make(chan *nats.Msg, 1)
	nc := f.bus.Connect("generator")
	if _, err := nc.ChanSubscribe("query.cancel.*", cancels); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	q := f.ask(ctx, client.Question{Text: "?"})
	about := generator.WithIDs(q.Session, q.ID)
	emit(t, about, with(t, subjects.ResponseDelta, q.ID), subjects.Delta{QueryID: q.ID, Text: "half"})
	if d, ok := (<-q.Updates()).(client.Delta); !ok || d.Text != "half" {
		t.Fatalf("first update %+v", d)
	}
	cancel()
	if m := <-cancels; m.Subject != "query.cancel."+q.ID {
		t.Errorf("cancelled %s", m.Subject)
	}
	r := response(q, "half")
	r.Partial = true
	emit(t, about, subjects.ResponseGeneration, r)
	if got, err := q.Wait(); err != nil || !got.Partial {
		t.Errorf("answer %+v, %v", got, err)
	}
}

func TestAskTimesOutWithoutGenerator(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	q := f.ask(t.Context(), client.Question{Text: "?", Timeout: 50 * time.Millisecond})
	_, err := q.Wait()
	var fault *subjects.Fault
	if !errors.As(err, &fault) || fault.Code != subjects.CodeTimeout {
		t.Errorf("error %v", err)
	}
}

func TestAskStopsWhenBrokerConfirmsAnotherOverride(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.run(
		routes{
			"broker",
			[]actor.Route{actor.Serve(subjects.SessionConfigService,
				func(_ context.Context, in actor.Msg[subjects.SessionConfig], _ actor.Out) (subjects.SessionConfig,
					error,
				) {
					in.Body.Disable = nil
					return in.Body, nil
				})},
		})
	_, err := f.c.Ask(t.Context(),
		client.Question{Text: "?", Override: &subjects.SessionConfig{Disable: []string{"web_fetch"}}})
	if !errors.Is(err, client.ErrOverride) {
		t.Errorf("error %v", err)
	}
}

// TestGradeIsNotAwaited: without Graded, without a critic and without time, Grade returns at once.
func TestGradeIsNotAwaited(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, tt := range []struct {
		name   string
		graded bool
		within time.Duration
	}{
		{"a question without Graded", false, time.Hour},
		{"no critic runs", true, time.Hour},
		{"no time", true, 0},
	} {
		q := f.ask(t.Context(), client.Question{Text: "?", Timeout: time.Minute, Graded: tt.graded})
		emit(t, f.as("generator").WithIDs(q.Session, q.ID), subjects.ResponseGeneration, response(q, "answer"))
		if _, err := q.Wait(); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if g := q.Grade(t.Context(), tt.within); g != nil { // an hour would exceed the test's timeout
			t.Errorf("%s: %+v", tt.name, g)
		}
	}
}

func TestWatchReplaysThenFollows(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	out := f.as("generator").WithIDs("s1", "q1")
	state := with(t, subjects.AgentStateEvent, "generator")
	emit(t, out, state, subjects.AgentState{SessionID: "s1", QueryID: "q1", To: "ONE"})
	emit(t, out, state, subjects.AgentState{SessionID: "s1", QueryID: "q1", To: "TWO"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w, err := f.c.Watch(ctx, "agent.>", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var got []string
	for e, err := range w.Events(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		var s subjects.AgentState
		if !e.Decode(&s) || e.From != "generator" || !e.About("s1", "q1") || e.Seq == 0 {
			t.Errorf("event %+v", e)
		}
		got = append(got, s.To)
		if len(got) == 2 {
			emit(t, out, state, subjects.AgentState{SessionID: "s1", QueryID: "q1", To: "THREE"})
		}
		if len(got) == 3 {
			break
		}
	}
	if want := []string{"ONE", "TWO", "THREE"}; !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
	var back []uint64
	for e, err := range f.c.EventsBack(ctx, subjects.AgentStateEvent.StoredBy("generator")) {
		if err != nil {
			t.Fatal(err)
		}
		back = append(back, e.Seq)
	}
	if !slices.IsSortedFunc(back, func(a, b uint64) int { return int(b) - int(a) }) || len(back) != 3 {
		t.Errorf("backward sequences %v", back)
	}
}

func TestSessions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	store := f.as("generator").Store(subjects.StateBucket(subjects.Generator))
	put := func(id, body string) {
		if _, err := store.Put(t.Context(), subjects.ConversationKey(id), []byte(body), 0); err != nil {
			t.Fatal(err)
		}
	}
	put("session-one-a",
		`{"session_id":"lies","turns":[{"query_id":"q1","query":"first?","answer":"a"},{"query_id":"q2",`+
			`"query":"second?","answer":"b"}],"updated":"2026-01-01T00:00:00Z"}`)
	put("session-one-b", `{"session_id":"session-one-b","turns":[],"updated":"2026-01-02T00:00:00Z"}`)
	put("damaged", `not JSON`)
	list, _, err := f.c.Sessions(t.Context(), 500, nil)
	if err != nil || len(list) != 3 || list[0].ID != "session-one-b" || list[1].Turns != 2 ||
		list[1].Question != "first?" || !errors.Is(list[2].Err, client.ErrUnreadable) {
		t.Errorf("list %+v, %v", list, err)
	}
	if c, err := f.c.Session(t.Context(), "session-one-a"); err != nil || c.SessionID != "session-one-a" {
		t.Errorf("session %+v, %v", c, err)
	}
	var ambiguous *client.AmbiguousError
	for id, check := range map[string]func(string, error) bool{
		"session-one-a": func(id string, err error) bool { return id == "session-one-a" && err == nil },
		"session-one":   func(_ string, err error) bool { return errors.As(err, &ambiguous) && ambiguous.Count == 2 },
		// too short for a prefix
		"sessi":      func(_ string, err error) bool { return errors.Is(err, client.ErrNotFound) },
		"unknown-id": func(_ string, err error) bool { return errors.Is(err, client.ErrNotFound) },
	} {
		if got, err := f.c.FindSession(t.Context(), id); !check(got, err) {
			t.Errorf("finding %s: %q, %v", id, got, err)
		}
	}
	if turn, id, err := f.c.LastTurn(t.Context(), "session-one-a"); err != nil || id != "session-one-a" ||
		turn.QueryID != "q2" {
		t.Errorf("last turn %+v of %s, %v", turn, id, err)
	}
	if _, _, err := f.c.LastTurn(t.Context(), "session-one-b"); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("last turn of an empty session: %v", err)
	}
}

// The grants of a question are those that the broker announced for it in this session, and no others.
func TestGrantsOfASession(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	announce := func(session, query, clause string) {
		topic, err := subjects.QueryGrantsEvent.With(query)
		if err != nil {
			t.Fatal(err)
		}
		g := subjects.Grants{
			SessionID: session, QueryID: query,
			Grants: []subjects.Grant{{Acts: []string{"create"}, Times: 1, Clause: clause}},
		}
		if err := actor.Emit(t.Context(), f.as("broker"), topic, g); err != nil {
			t.Fatal(err)
		}
	}
	announce("s1", "q1", "save a note")
	announce("s2", "q2", "write to Anna")
	conv := subjects.Conversation{SessionID: "s1", Turns: []subjects.Turn{
		{QueryID: "q1"},
		{QueryID: "q2"},
		{QueryID: "q3"},
		{QueryID: "*"},
		{QueryID: ">"},
		{},
	}}
	var got map[string][]subjects.Grant
	var err error
	// until the event is in the log
	for deadline := time.Now().Add(time.Minute); len(got) == 0 && time.Now().Before(deadline); {
		if got, err = f.c.QuestionGrants(t.Context(), conv); err != nil {
			t.Fatal(err)
		}
	}
	if len(got) != 1 || len(got["q1"]) != 1 || got["q1"][0].Clause != "save a note" {
		t.Errorf("grants %+v", got)
	}
}

func TestRateOutcome(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	reward := f.as("reward")
	rate := func(thumb int, words string) *client.Rating {
		r, err := f.c.Rate(t.Context(), "s1", subjects.Feedback{QueryID: "q1", Thumb: thumb, Words: words})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		return r
	}
	about := reward.WithIDs("s1", "q1")
	t.Run("counted", func(t *testing.T) {
		r := rate(1, "")
		// of earlier feedback
		emit(t, about, subjects.RewardEvent, subjects.Reward{
			QueryID: "q1", Source: subjects.RewardUser, Thumb: -1,
			Value: -1,
		})
		emit(t, about, subjects.RewardEvent, subjects.Reward{
			QueryID: "q1", Source: subjects.RewardUser, Thumb: 1,
			Value: 1,
		})
		if got, err := r.Wait(t.Context()); err != nil || got == nil || got.Value != 1 {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("rejected", func(t *testing.T) {
		r := rate(0, "good")
		f.bus.AwaitEvents()
		w, err := f.c.EventStatus(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		e, ok, err := f.c.Event(t.Context(), w.Last)
		if err != nil || !ok {
			t.Fatal(err)
		}
		emit(t, about, with(t, subjects.DeadLetterEvent, "reward"),
			subjects.DeadLetter{
				Actor: "reward", Subject: "from.user.user.feedback", Code: "unknown_answer",
				Reason: "no such answer", SHA256: digest(e.Body),
			})
		var rejected *client.RejectedError
		if got, err := r.Wait(t.Context()); got != nil || !errors.As(err, &rejected) ||
			rejected.Reason != "no such answer" {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("unknown", func(t *testing.T) {
		r := rate(1, "")
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if got, err := r.Wait(ctx); got != nil || err != nil {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

func TestApprovals(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pending := subjects.Approval{ApprovalRequest: subjects.ApprovalRequest{
		ID:   "abcdef0123456789abcdef0123456789",
		Tool: "send",
	}, State: subjects.ApprovalPending}
	f.run(routes{"broker", []actor.Route{
		actor.Serve(subjects.ApprovalListService, func(context.Context, actor.Msg[subjects.ApprovalQuery],
			actor.Out,
		) (subjects.ApprovalList, error) {
			return subjects.ApprovalList{Approvals: []subjects.Approval{pending}}, nil
		}),
		actor.Serve(subjects.ApprovalDecisionService, func(_ context.Context, in actor.Msg[subjects.ApprovalDecision],
			_ actor.Out,
		) (subjects.ApprovalReply, error) {
			return subjects.ApprovalReply{ID: pending.ID, Accepted: in.Body.Approve, State: subjects.ApprovalApproved},
				nil
		}),
		actor.Serve(subjects.ApprovalRevoke, func(context.Context, actor.Msg[subjects.Empty], actor.Out) (subjects.Done,
			error,
		) {
			return subjects.Done{}, nil
		}),
	}})
	for l, err := range f.c.WatchApprovals(t.Context()) {
		if err != nil || len(l.Approvals) != 1 {
			t.Errorf("watched %+v, %v", l, err)
		}
		break
	}
	id, err := f.c.FindApproval(t.Context(), "abcdef")
	if err != nil || id != pending.ID {
		t.Fatalf("found %q, %v", id, err)
	}
	if _, err := f.c.FindApproval(t.Context(), "fedcba"); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("unknown id: %v", err)
	}
	if r, err := f.c.DecideApproval(t.Context(), id, subjects.ApprovalDecision{Approve: true}); err != nil ||
		!r.Accepted {
		t.Errorf("decided %+v, %v", r, err)
	}
	if _, err := f.c.RevokeRule(t.Context(), id); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("revoked an unknown rule: %v", err)
	}
}

func TestMemoryPages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	all := []subjects.MemoryEntry{{ID: "m1"}, {ID: "m2"}, {ID: "m3"}}
	writes, tooLarge := 0, true
	f.run(routes{"memory", []actor.Route{
		actor.Serve(subjects.MemoryAdminService, func(_ context.Context, in actor.Msg[subjects.MemoryAdminRequest],
			_ actor.Out,
		) (r subjects.MemoryAdminReply, err error) {
			if tooLarge { // the first page does not fit: a smaller one is requested
				tooLarge = false
				return r, subjects.Faultf(subjects.CodeTooLarge, "too large")
			}
			from := slices.IndexFunc(all, func(e subjects.MemoryEntry) bool { return e.ID == in.Body.After }) + 1
			to := min(from+min(in.Body.Limit, 2), len(all))
			r.Entries = all[from:to]
			if to < len(all) {
				r.Next = all[to-1].ID
			}
			return r, nil
		}),
		actor.Serve(subjects.MemoryWriteService, func(_ context.Context, in actor.Msg[subjects.MemoryWriteRequest],
			_ actor.Out,
		) (w subjects.MemoryWriteReply, err error) {
			if writes++; writes == 1 {
				return w, subjects.Faultf(subjects.CodeBusy, "mailbox full")
			}
			for range in.Body.Entries {
				w.Results = append(w.Results, subjects.MemoryWriteResult{ID: "m4", Action: "stored"})
			}
			return w, nil
		}),
	}})
	if got, next, err := f.c.ListMemories(t.Context(), subjects.MemoryAdminRequest{}, 0); err != nil || next != "" ||
		len(got) != 3 {
		t.Errorf("all: %+v, %q, %v", got, next, err)
	}
	if got, next, err := f.c.ListMemories(t.Context(), subjects.MemoryAdminRequest{}, 2); err != nil || next != "m2" ||
		len(got) != 2 {
		t.Errorf("two: %+v, %q, %v", got, next, err)
	}
	var b strings.Builder
	if n, err := f.c.ExportMemories(t.Context(), &b); err != nil || n != 3 || strings.Count(b.String(), "\n") != 3 {
		t.Errorf("export: %d, %v\n%s", n, err, b.String())
	}
	if w, _, err := f.c.AddMemory(t.Context(), subjects.MemoryEntry{Corpus: " a fact "}, false); err != nil ||
		w.Action != "stored" || writes != 2 {
		t.Errorf("add: %+v after %d writes, %v", w, writes, err)
	}
}

func TestReadExportNamesBadLine(t *testing.T) {
	t.Parallel()
	good := `{"id":"m1","kind":"fact","name":"n","description":"","corpus":"c","provenance":{"source":"person",` +
		`"trust":"trusted"},"grades":{},"state":"active","created":"2026-01-01T00:00:00Z",` +
		`"updated":"2026-01-01T00:00:00Z"}`
	for name, c := range map[string]struct{ in, err string }{
		"blank lines":   {good + "\n\n" + good + "\n", ""},
		"unknown field": {good + "\n" + `{"id":"m1","evil":1}`, "line 2 is not a memory"},
		"no id":         {strings.Replace(good, `"m1"`, `""`, 1), "line 1 is not a memory: id"},
		"unknown kind":  {strings.Replace(good, `"fact"`, `"order"`, 1), "kind must be engram, fact, document"},
		"too long":      {`{"id":"` + strings.Repeat("a", client.MaxExportLine) + `"}`, "line 1 is longer"},
	} {
		t.Run(name, func(t *testing.T) {
			var got error
			for _, err := range client.ReadExport(strings.NewReader(c.in)) {
				got = err
			}
			if c.err == "" && got != nil || c.err != "" && (got == nil || !strings.Contains(got.Error(), c.err)) {
				t.Errorf("error %v, want %q", got, c.err)
			}
		})
	}
}

func TestRetryTextLeavesOutFeedbackOnUntrustedAnswers(t *testing.T) {
	t.Parallel()
	turn := subjects.Turn{
		Query:  "when?\n\n" + subjects.RetryInstruction + " more",
		Grades: &subjects.Grades{Critic: 2, Feedback: "vague", Reward: -1, Words: "wrong day"},
	}
	if got := client.RetryText(turn); strings.Contains(got, "vague") ||
		!strings.Contains(got, "I said of it: wrong day") || strings.Contains(got, "more") {
		t.Error(got)
	}
	turn.Labels = &subjects.Labels{Trust: subjects.Trusted}
	if got := client.RetryText(turn); !strings.HasSuffix(got, "A critic said of it: vague") {
		t.Error(got)
	}
	turn.Grades.Critic = 4
	if got := client.RetryText(turn); strings.Contains(got, "vague") {
		t.Error(got)
	}
}

func TestWrappedClientCannotSubscribe(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := client.Wrap(f.c.Out())
	if _, err := c.SessionIDs(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := c.Ask(t.Context(), client.Question{Text: "?"}); err == nil {
		t.Error("asked without a connection")
	}
	if _, err := c.Watch(t.Context(), ">", 0); err == nil {
		t.Error("watched without a connection")
	}
}

// TestEventsBackAcrossStrides reads a log that is longer than one stride, in both directions.
func TestEventsBackAcrossStrides(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	critic := f.as("critic") // of all events: only those of one author are stored in the order of their publication
	for i := range 4200 {
		if i%1000 == 0 {
			emit(t, critic, subjects.CritiqueResult, subjects.Critique{QueryID: strconv.Itoa(i)})
		}
		if err := actor.EmitAsync(t.Context(), critic, subjects.PairwiseResult, subjects.Pairwise{}); err != nil {
			t.Fatal(err)
		}
	}
	emit(t, critic, subjects.PairwiseResult, subjects.Pairwise{})
	f.bus.AwaitEvents()
	read := func(events iter.Seq2[client.Event, error], most int) string {
		var got []string
		for e, err := range events {
			if err != nil {
				t.Fatal(err)
			}
			if got = append(got, e.Query); len(got) == most {
				break
			}
		}
		return strings.Join(got, " ")
	}
	grades := subjects.CritiqueResult.StoredBy("critic")
	if got := read(f.c.EventsBack(t.Context(), grades), 100); got != "4000 3000 2000 1000 0" {
		t.Errorf("back: %s", got)
	}
	if got := read(f.c.EventsBack(t.Context(), grades), 2); got != "4000 3000" {
		t.Errorf("back, two: %s", got)
	}
	if got := read(f.c.EventsFrom(t.Context(), 1500, grades), 2); got != "2000 3000" {
		t.Errorf("from 1500: %s", got)
	}
}

// TestDecodeReadsFormerFieldNames: events of an earlier build are still in the event log.
func TestDecodeReadsFormerFieldNames(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]bool{
		`{"demo_model":true}`: true, `{"stand_in":true}`: true,
		`{"unknown":true}`: false,
	} {
		var r subjects.Response
		if e := (client.Event{Body: []byte(body)}); !e.Decode(&r) || r.DemoModel != want {
			t.Errorf("%s: %+v", body, r)
		}
	}
	for _, body := range []string{`"plain text"`, `{`, `null]`} {
		if e := (client.Event{Body: []byte(body)}); e.Decode(new(subjects.Response)) {
			t.Errorf("%s was decoded", body)
		}
	}
}

// TestErrorsNameNoSubject: what a user sees of a server that is down, and of an actor that is not running, names
// neither subjects nor inboxes.
func TestErrorsNameNoSubject(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	nc := f.bus.Connect("user")
	c, err := client.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Models(t.Context())
	if err == nil || !strings.Contains(err.Error(), "model is not running") {
		t.Errorf("without the model actor: %v", err)
	}
	nc.Close()
	_, models := c.Models(t.Context())
	_, ask := c.Ask(t.Context(), client.Question{Session: "s", Text: "hi"})
	for _, err := range []error{models, ask} {
		if err == nil || !strings.Contains(err.Error(), "the connection to the server is down") ||
			strings.Contains(err.Error(), "_INBOX") || strings.Contains(err.Error(), "response.") ||
			strings.Contains(err.Error(), "model.list") {
			t.Errorf("without a server: %v", err)
		}
	}
}
