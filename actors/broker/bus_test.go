package broker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"conclave/actors/broker"
	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/policy"
	"conclave/subjects"
)

func TestMain(m *testing.M) {
	bustest.AllowParallel(8)
	os.Exit(m.Run())
}

// testTimeout bounds each wait of a test.
const testTimeout = time.Minute

// busFixture is a server under the real grants, and the actors that a test starts on it.
type busFixture struct {
	*bustest.Bus
	t     *testing.T
	known broker.Known

	eventBytes int64 // of [broker.Config]
}

func newBusFixture(t *testing.T) *busFixture {
	return &busFixture{Bus: bustest.Start(t), t: t, known: clockFacts()}
}

// fakeTool is a clock with the clock's key, run as an actor of its own.
type fakeTool struct {
	schema subjects.ToolSchema
	runs   atomic.Int64
	run    func(ctx context.Context) (string, error) // nil = noon
	claims string                                    // Egress in its results
}

func (s *fakeTool) Name() string { return s.schema.Name }

func (s *fakeTool) Routes() []actor.Route {
	at, err := subjects.ToolEndpoint(s.schema.Name)
	if err != nil {
		return nil
	}
	return []actor.Route{actor.Serve(at, func(ctx context.Context, in actor.Msg[subjects.ToolOrder],
		_ actor.Out,
	) (subjects.ToolResult, error) {
		s.runs.Add(1)
		text := "noon"
		if s.run != nil {
			var err error
			if text, err = s.run(ctx); err != nil {
				return subjects.ToolResult{}, err
			}
		}
		return subjects.ToolResult{CallID: in.Body.CallID, Tool: s.schema.Name, Result: text, Egress: s.claims}, nil
	})}
}

func (s *fakeTool) Start(ctx context.Context, out actor.Out) error {
	topic, err := subjects.ToolSchemaEvent.With(s.schema.Name)
	if err != nil {
		return err
	}
	return actor.Emit(ctx, out, topic, s.schema)
}

func (s *fakeTool) Describe() map[string]string {
	d, _ := json.Marshal(s.schema)
	return map[string]string{"definition": string(d)}
}

// stop ends an actor and fails the test when it does not drain.
func (w *busFixture) stop(s *actor.Supervised) {
	w.t.Helper()
	if err := s.Stop(); err != nil {
		w.t.Error(err)
	}
}

func (w *busFixture) startTool(s *fakeTool) *actor.Supervised {
	w.t.Helper()
	return w.Run(actor.Spec{
		Name: s.Name(), Role: subjects.ToolRole(s.Name()),
		Make: func(context.Context, *nats.Conn) (actor.Actor, error) { return s, nil },
	}, actor.Config{})
}

// startBroker runs a broker as the system does, with a real audit log.
func (w *busFixture) startBroker() *actor.Supervised {
	w.t.Helper()
	return w.Run(w.AuditedSpec("broker", func(_ context.Context, a *audit.Writer, h *audit.Hasher) (actor.Actor,
		error,
	) {
		return broker.New(broker.Config{CallTimeout: testTimeout, AuditTimeout: testTimeout},
			rules(parseTestManifest(w.t), testChain(w.t)), a, h, []broker.Known{w.known}), nil
	}), actor.Config{})
}

// toolClient calls tools as one role.
type toolClient struct {
	t   *testing.T
	out actor.Out
}

func (w *busFixture) client(role string) toolClient {
	w.t.Helper()
	return toolClient{w.t, w.Out(role)}
}

// call calls the clock. A fault in place of a result is returned as the result's error.
func (a toolClient) call(id string) subjects.ToolResult {
	a.t.Helper()
	s, err := subjects.ToolRequestService.With("get_datetime")
	if err != nil {
		a.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(a.t.Context(), testTimeout)
	defer cancel()
	res, err := actor.Ask(ctx, a.out, s, subjects.ToolRequest{CallID: id, Args: json.RawMessage(`{"timezone":"UTC"}`)})
	var fault *subjects.Fault
	if errors.As(err, &fault) {
		return subjects.ToolResult{CallID: id, Error: fault}
	}
	if err != nil {
		a.t.Fatal(err)
	}
	return res
}

// callUntil calls the clock until the error code is code, "" for a result.
func (a toolClient) callUntil(id, code string) subjects.ToolResult {
	a.t.Helper()
	deadline := time.Now().Add(testTimeout)
	for {
		res := a.call(id)
		if res.Error == nil && code == "" || res.Error != nil && res.Error.Code == code {
			return res
		}
		if time.Now().After(deadline) {
			a.t.Fatalf("still %+v", res)
		}
	}
}

// verified verifies the audit log and returns the brokers' records.
func (w *busFixture) verified() (audit.Report, []subjects.AuditRecord) {
	w.t.Helper()
	rep, recs, _ := w.AuditRecords()
	return rep, recs
}

// phases returns the records as "before allowed", "after ok" ...
func phases(recs []subjects.AuditRecord) (out []string) {
	for _, r := range recs {
		s := r.Phase + " " + r.Status
		if r.Reason != "" {
			s += " " + r.Reason
		}
		out = append(out, s)
	}
	return out
}

func wantPhases(t *testing.T, recs []subjects.AuditRecord, want ...string) {
	t.Helper()
	if got := phases(recs); !slices.Equal(got, want) {
		t.Errorf("audit\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestBusToolFirst(t *testing.T) {
	t.Parallel()
	w := newBusFixture(t)
	tool := &fakeTool{schema: clock}
	w.startTool(tool)
	w.startBroker()
	// Discovery ended before the broker was ready: the first call finds the tool.
	if res := w.client("operator").call("c1"); res.Error != nil || res.Result != "noon" || res.CallID != "c1" {
		t.Fatalf("got %+v", res)
	}
	rep, recs := w.verified()
	wantPhases(t, recs, "before allowed", "after ok")
	if rep.Pending != 0 || rep.Unfinished != 0 || tool.runs.Load() != 1 {
		t.Errorf("%+v, %d runs", rep, tool.runs.Load())
	}
}

func TestBusBrokerFirst(t *testing.T) {
	t.Parallel()
	w := newBusFixture(t)
	w.startBroker()
	op := w.client("operator")
	if res := op.call("c0"); res.Error == nil || res.Error.Code != subjects.CodeUnknownTool {
		t.Fatalf("without the tool: %+v", res)
	}
	w.startTool(&fakeTool{schema: clock})
	if res := op.callUntil("c1", ""); res.Result != "noon" {
		t.Errorf("got %+v", res)
	}
	w.verified()
}

func TestBusBrokerRestart(t *testing.T) {
	t.Parallel()
	w := newBusFixture(t)
	w.startTool(&fakeTool{schema: clock})
	first := w.startBroker()
	op := w.client("operator")
	if res := op.call("c1"); res.Error != nil {
		t.Fatal(res.Error)
	}
	w.stop(first)
	w.startBroker()
	if res := op.call("c2"); res.Error != nil {
		t.Fatalf("after a restart: %v", res.Error)
	}
	rep, recs := w.verified()
	wantPhases(t, recs, "before allowed", "after ok", "before allowed", "after ok")
	if rep.Chains != 3 { // the genesis and one for each run
		t.Errorf("%d chains", rep.Chains)
	}
}

func TestBusToolStopped(t *testing.T) {
	t.Parallel()
	w := newBusFixture(t)
	tool := &fakeTool{schema: clock}
	running := w.startTool(tool)
	w.startBroker()
	op := w.client("operator")
	if res := op.call("c1"); res.Error != nil {
		t.Fatal(res.Error)
	}
	w.stop(running)
	// a wait would end in a timeout
	if res := op.call("c2"); res.Error == nil || res.Error.Code != subjects.CodeUnavailable {
		t.Fatalf("got %+v", res)
	}
	_, recs := w.verified()
	wantPhases(t, recs, "before allowed", "after ok", "before allowed", "after failed unavailable")

	w.startTool(tool)
	if res := op.callUntil("c3", ""); res.Result != "noon" {
		t.Errorf("after the tool restarted: %+v", res)
	}
}

// TestBusToolKilled: a tool killed during a call leaves an unknown outcome on record.
func TestBusToolKilled(t *testing.T) {
	t.Parallel()
	w := newBusFixture(t)
	w.known.Timeout = 500 * time.Millisecond
	w.startBroker()
	op := w.client("operator")

	nc := w.Connect(subjects.ToolRole("get_datetime"))
	began := make(chan struct{})
	if _, err := nc.Subscribe("tool.request.get_datetime", func(*nats.Msg) {
		nc.Close() // no drain, no reply: like a kill
		close(began)
	}); err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(clock)
	if err != nil {
		t.Fatal(err)
	}
	if err := bustest.ConfirmSubscriptions(t.Context(), nc); err != nil {
		t.Fatal(err)
	}
	if err := nc.PublishMsg(&nats.Msg{
		Subject: "tool.schema.get_datetime", Data: body,
		Header: nats.Header{subjects.HeaderType: {subjects.TypeJSON}},
	}); err != nil {
		t.Fatal(err)
	}
	res := op.callUntil("c1", subjects.CodeTimeout)
	if res.Result != "" {
		t.Errorf("got %+v", res)
	}
	<-began
	rep, recs := w.verified()
	// before it was announced
	recs = slices.DeleteFunc(recs, func(r subjects.AuditRecord) bool { return r.Status == subjects.StatusDenied })
	wantPhases(t, recs, "before allowed", "after unknown timeout")
	if rep.Pending != 0 || rep.Unfinished != 0 {
		t.Errorf("%+v", rep)
	}
}

func TestBusTwoBrokers(t *testing.T) {
	t.Parallel()
	w := newBusFixture(t)
	tool := &fakeTool{schema: clock}
	w.startTool(tool)
	w.startBroker()
	const callers, least = 8, 10
	half, both := make(chan struct{}, callers), make(chan struct{})
	var calls atomic.Int64
	var wg sync.WaitGroup
	for c := range callers {
		a := w.client("operator")
		wg.Go(func() {
			for i, left := 0, 4*least; left > 0; i++ { // of each caller so many calls run beside both brokers
				if i == least {
					half <- struct{}{}
				}
				select {
				case <-both:
					left--
				default:
				}
				if res := a.call(fmt.Sprintf("c%d-%d", c, i)); res.Error != nil {
					t.Errorf("call %d of %d: %v", i, c, res.Error)
					return
				}
				calls.Add(1)
			}
		})
	}
	<-half // the second broker starts under load
	w.startBroker()
	close(both)
	wg.Wait()
	if n := tool.runs.Load(); n != calls.Load() {
		t.Errorf("%d runs, want %d", n, calls.Load())
	}
	rep, recs := w.verified()
	if rep.Chains != 3 || rep.Pending != 0 || rep.Unfinished != 0 || len(recs) != 2*int(calls.Load()) {
		t.Errorf("%+v, %d records", rep, len(recs))
	}
	share := map[string]int{}
	for _, r := range recs {
		share[r.Chain]++
	}
	if len(share) != 2 {
		t.Errorf("the work was not shared: %v", share)
	}
	for chain, n := range share {
		t.Logf("chain %s: %d records in one of %d messages", chain, n, rep.Messages)
	}
}

// TestBusNoBroker: without a broker calls fail as unavailable, and the tool is not reachable in any other way.
func TestBusNoBroker(t *testing.T) {
	t.Parallel()
	w := newBusFixture(t)
	tool := &fakeTool{schema: clock}
	w.startTool(tool)
	running := w.startBroker()
	op := w.client("operator")
	if res := op.call("c1"); res.Error != nil {
		t.Fatal(res.Error)
	}
	w.stop(running)
	// a wait would end in a timeout
	if res := op.call("c2"); res.Error == nil || res.Error.Code != subjects.CodeUnavailable {
		t.Errorf("got %+v", res)
	}
	var stats micro.Stats
	m, err := w.Connect("user").Request("$SRV.STATS.get_datetime", nil, testTimeout)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(m.Data, &stats); err != nil {
		t.Fatal(err)
	}
	if n := stats.Endpoints[0].NumRequests; n != 1 || tool.runs.Load() != 1 {
		t.Errorf("the tool was reached %d times, %d runs", n, tool.runs.Load())
	}
	_, recs := w.verified()
	wantPhases(t, recs, "before allowed", "after ok")
}

// TestBusForgedIdentity: identity is a fact of routing; payload, headers and forged subjects change nothing.
func TestBusForgedIdentity(t *testing.T) {
	t.Parallel()
	w := newBusFixture(t)
	w.startTool(&fakeTool{schema: clock})
	w.startBroker()
	nc := w.Connect("generator")
	m := nats.NewMsg("tool.request.get_datetime")
	m.Data = []byte(`{"call_id":"c1","tool":"run_shell","caller":"operator","args":{"timezone":"UTC"}}`)
	for k, v := range map[string]string{
		subjects.HeaderType: subjects.TypeJSON, subjects.HeaderDeadline: futureDeadline(), subjects.HeaderQuery: "q1",
		"Conclave-Caller": "operator", "Conclave-From": "operator", "Conclave-Account": "operator",
		"Nats-Request-Info": `{"acc":"operator","user":"operator"}`,
		"Nats-Subject":      "agent.operator.tool.request.get_datetime",
	} {
		m.Header.Set(k, v)
	}
	reply, err := nc.RequestMsg(m, testTimeout)
	if err != nil || reply.Header.Get(subjects.HeaderErrCode) != "" {
		t.Fatalf("%v, %v", reply, err)
	}
	// The subject that only the server writes cannot be published.
	w.ExpectViolations(2)
	for _, subject := range []string{
		"agent.operator.tool.request.get_datetime",
		"agent.generator.tool.request.get_datetime",
	} {
		if err := nc.Publish(subject, m.Data); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	_, recs := w.verified()
	wantPhases(t, recs, "before allowed", "after ok")
	h, err := audit.LoadHasher(w.HashKey())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range recs {
		if r.AgentID != "generator" || r.AgentType != "assistant" || r.Tool != "get_datetime" || r.Query != "q1" ||
			!slices.Equal(r.Lineage, []string{"generator"}) || r.ParamsHash != h.Hash([]byte(`{"timezone":"UTC"}`)) {
			t.Errorf("record %+v", r)
		}
	}
}

func futureDeadline() string { return strconv.FormatInt(time.Now().Add(testTimeout).UnixMilli(), 10) }

// TestBusEvents: user clients receive the copies under the plain subjects, in JSON and in order.
func TestBusEvents(t *testing.T) {
	t.Parallel()
	w := newBusFixture(t)
	w.startTool(&fakeTool{schema: clock})
	w.startBroker()
	user := w.Connect("user")
	seen := make(chan *nats.Msg, 16)
	if _, err := user.ChanSubscribe("tool.>", seen); err != nil {
		t.Fatal(err)
	}
	if err := bustest.ConfirmSubscriptions(t.Context(), user); err != nil {
		t.Fatal(err)
	}
	if res := w.client("operator").call("c1"); res.Error != nil {
		t.Fatal(res.Error)
	}
	for _, want := range []string{"tool.request.get_datetime", "tool.result.get_datetime"} {
		select {
		case m := <-seen:
			var body struct {
				CallID string `json:"call_id"`
				Caller string `json:"caller"`
				Result string `json:"result"`
			}
			if err := json.Unmarshal(m.Data, &body); err != nil || m.Subject != want || body.CallID != "c1" {
				t.Errorf("got %s %s, %v, want %s", m.Subject, m.Data, err, want)
			}
			if strings.Contains(want, "request") && body.Caller != "operator" || strings.Contains(want, "result") &&
				body.Result != "noon" {
				t.Errorf("got %s", m.Data)
			}
		case <-time.After(testTimeout):
			t.Fatalf("no %s", want)
		}
	}
}

// TestBusEgress: the copy of a result says whether the call sent data off this machine, by the facts of the tool. What
// the tool itself says does not count.
func TestBusEgress(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		effects policy.Effects
		fail    bool
		want    string
	}{
		{"no network", policy.Declare(), false, subjects.EgressNone},
		{"sends", policy.Declare(policy.Egress), false, subjects.EgressSent},
		{"failed to send", policy.Declare(policy.Egress), true, subjects.EgressUnknown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newBusFixture(t)
			w.known.Effects, w.known.Args = tt.effects, policy.Args{"timezone": {Role: policy.RoleQuery}}
			tool := &fakeTool{schema: clock, claims: subjects.EgressNone}
			if tt.fail {
				tool.run = func(context.Context) (string, error) { return "", errors.New("failed") }
			} else if tt.want == subjects.EgressNone {
				tool.claims = subjects.EgressSent
			}
			w.startTool(tool)
			w.startBroker()
			user := w.Connect("user")
			seen := make(chan *nats.Msg, 16)
			if _, err := user.ChanSubscribe("tool.result.*", seen); err != nil {
				t.Fatal(err)
			}
			if err := bustest.ConfirmSubscriptions(t.Context(), user); err != nil {
				t.Fatal(err)
			}
			w.client("operator").call("c1")
			select {
			case m := <-seen:
				var body subjects.ToolResult
				if err := json.Unmarshal(m.Data, &body); err != nil || body.Egress != tt.want ||
					(body.Error != nil) != tt.fail {
					t.Errorf("got %s, %v, want %s", m.Data, err, tt.want)
				}
			case <-time.After(testTimeout):
				t.Fatal("no result")
			}
		})
	}
}

// TestBusMalformedRequests: a malformed request is rejected with a code, becomes a dead letter and is recorded.
func TestBusMalformedRequests(t *testing.T) {
	t.Parallel()
	w := newBusFixture(t)
	tool := &fakeTool{schema: clock}
	w.startTool(tool)
	w.startBroker()
	user, nc := w.Connect("user"), w.Connect("operator")
	letters := make(chan *nats.Msg, 64)
	if _, err := user.ChanSubscribe("dead.broker", letters); err != nil {
		t.Fatal(err)
	}
	if err := bustest.ConfirmSubscriptions(t.Context(), user); err != nil {
		t.Fatal(err)
	}
	const good = `{"call_id":"c","args":{"timezone":"UTC"}}`
	past := strconv.FormatInt(time.Now().Add(-time.Minute).UnixMilli(), 10)
	rows := []struct {
		name, subject, body string
		header              map[string]string // over JSON and a deadline soon
		code                string
		letter              bool
	}{
		{"malformed JSON", "", `{"call_id":`, nil, subjects.CodeMalformed, true},
		{
			"malformed msgpack", "", "\xc1\xc1",
			map[string]string{subjects.HeaderType: subjects.TypeMsgpack},
			subjects.CodeMalformed, true,
		},
		{"oversized", "", `{"args":{"a":"` + strings.Repeat("x", 300<<10) + `"}}`, nil, subjects.CodeTooLarge, true},
		{"wrong codec", "", "UTC", map[string]string{subjects.HeaderType: "text/plain"}, subjects.CodeCodec, true},
		{"unknown field", "", `{"call_id":"c","args":{},"sudo":true}`, nil, subjects.CodeMalformed, true},
		{"no deadline", "", good, map[string]string{subjects.HeaderDeadline: ""}, subjects.CodeNoDeadline, true},
		{"expired deadline", "", good, map[string]string{subjects.HeaderDeadline: past}, subjects.CodeExpired, true},
		{"empty", "", "", nil, subjects.CodeMalformed, true},
		{"trick: doubled field", "", `{"call_id":"a","call_id":"b","args":{}}`, nil, subjects.CodeMalformed, true},
		{
			"trick: a deadline that is a word", "", good,
			map[string]string{subjects.HeaderDeadline: "never"},
			subjects.CodeMalformed, true,
		},
		{
			"trick: a deadline before time began", "", good,
			map[string]string{subjects.HeaderDeadline: "-1"},
			subjects.CodeMalformed, true,
		},
		{
			"trick: a session that is a wildcard", "", good,
			map[string]string{subjects.HeaderSession: ">"},
			subjects.CodeMalformed, true,
		},
		{
			"trick: JSON that says it is msgpack", "", good,
			map[string]string{subjects.HeaderType: subjects.TypeMsgpack},
			subjects.CodeMalformed, true,
		},
		{
			"trick: msgpack with more behind it", "", "\x80\x80",
			map[string]string{subjects.HeaderType: subjects.TypeMsgpack},
			subjects.CodeMalformed, true,
		},
		{
			"trick: a tool whose name is a template", "tool.request.{{get_datetime}}", good, nil, subjects.CodeSubject,
			false,
		},
		{"trick: a tool whose name is a variable", "tool.request.$1", good, nil, subjects.CodeSubject, false},
		{
			"trick: a tool with a name of 300 characters", "tool.request." + strings.Repeat("x", 300), good, nil,
			subjects.CodeSubject, false,
		},
	}
	for _, tt := range rows {
		subject := tt.subject
		if subject == "" {
			subject = "tool.request.get_datetime"
		}
		m := nats.NewMsg(subject)
		m.Data = []byte(tt.body)
		m.Header.Set(subjects.HeaderType, subjects.TypeJSON)
		m.Header.Set(subjects.HeaderDeadline, futureDeadline())
		for k, v := range tt.header {
			m.Header.Del(k)
			if v != "" {
				m.Header.Set(k, v)
			}
		}
		reply, err := nc.RequestMsg(m, testTimeout)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		var fault subjects.Fault
		if err := json.Unmarshal(reply.Data, &fault); err != nil || fault.Code != tt.code || fault.Text == "" ||
			reply.Header.Get(subjects.HeaderErrCode) != tt.code {
			t.Errorf("%s: told %s %s, want %s", tt.name, reply.Header, reply.Data, tt.code)
		}
		if !tt.letter {
			continue
		}
		select {
		case l := <-letters:
			var letter subjects.DeadLetter
			if err := json.Unmarshal(l.Data, &letter); err != nil || letter.Code != tt.code ||
				letter.Actor != "broker" || letter.Size != len(tt.body) ||
				letter.Subject != "agent.operator.tool.request.get_datetime" {
				t.Errorf("%s: dead letter %s, %v", tt.name, l.Data, err)
			}
			if len(tt.body) > 20 && strings.Contains(string(l.Data), tt.body[10:20]) {
				t.Errorf("%s: the dead letter repeats what was sent: %s", tt.name, l.Data)
			}
		case <-time.After(testTimeout):
			t.Fatalf("%s: no dead letter", tt.name)
		}
	}
	// The reply precedes the record: wait for the last one.
	deadline := time.Now().Add(testTimeout)
	var recs []subjects.AuditRecord
	for len(recs) < len(rows) && time.Now().Before(deadline) {
		_, recs = w.verified()
	}
	want, got := map[string]int{}, map[string]int{}
	for _, tt := range rows {
		want["before refused "+tt.code]++
	}
	for i, p := range phases(recs) {
		got[p]++
		if recs[i].AgentID != "operator" || recs[i].Action != "tool.call" {
			t.Errorf("record %+v", recs[i])
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("audit %v, want %v", got, want)
	}
	rep, _ := w.verified()
	if rep.Pending != 0 || rep.Unfinished != 0 {
		t.Errorf("refusals are left open: %+v", rep)
	}
	if tool.runs.Load() != 0 {
		t.Errorf("the tool ran %d times", tool.runs.Load())
	}
	if res := w.client("operator").call("c1"); res.Error != nil {
		t.Errorf("after all that a good call ends in %v", res.Error)
	}
}
