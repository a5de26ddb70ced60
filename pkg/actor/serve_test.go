package actor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// A request is decoded in both codecs; the reply uses the same one.
func TestServeCodecs(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	startActor(t, b, "broker", actor.Config{}, actor.Serve(subjects.ToolRequestService, echoArgs))
	nc := b.Connect("operator")
	req := subjects.ToolRequest{CallID: "c1", Args: json.RawMessage(`{"a":1}`)}
	asJSON, asMsgpack := []byte(`{"call_id":"c1","args":{"a":1}}`), packMsgpack(t, req)
	for _, tt := range []struct {
		name, contentType string
		body              []byte
		want              string
	}{
		{"msgpack", subjects.TypeMsgpack, asMsgpack, subjects.TypeMsgpack},
		{"msgpack by its older name", "application/x-msgpack", asMsgpack, subjects.TypeMsgpack},
		{"JSON", subjects.TypeJSON, asJSON, subjects.TypeJSON},
		{"JSON with parameters and capitals", "Application/JSON; charset=utf-8", asJSON, subjects.TypeJSON},
		{"no content type, JSON", "", asJSON, subjects.TypeJSON},
		{"no content type, JSON after blanks", "", append([]byte(" \r\n\t"), asJSON...), subjects.TypeJSON},
		{"no content type, msgpack", "", asMsgpack, subjects.TypeMsgpack},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := sendRaw(t, nc, rawMessage("tool.request.x", tt.body, subjects.HeaderType, tt.contentType,
				subjects.HeaderDeadline, nearDeadline()))
			if got := r.Header.Get(subjects.HeaderType); got != tt.want {
				t.Fatalf("answered as %q, want %q: %s %q", got, tt.want, r.Header, r.Data)
			}
			var res subjects.ToolResult
			if tt.want == subjects.TypeMsgpack {
				unpackMsgpack(t, r.Data, &res)
			} else if err := json.Unmarshal(r.Data, &res); err != nil {
				t.Fatal(err)
			}
			if res.CallID != "c1" || res.Tool != "x" || res.Result != `{"a":1}` {
				t.Errorf("answer %+v", res)
			}
		})
	}
}

// The caller is the account that the server wrote, whatever headers and payload claim.
func TestServeReadsCallerFromSubject(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	got := make(chan toolMsg, 1)
	startActor(t, b, "broker", actor.Config{},
		actor.Serve(subjects.ToolRequestService,
			func(ctx context.Context, in toolMsg, out actor.Out) (subjects.ToolResult, error) {
				got <- in
				return echoArgs(ctx, in, out)
			}))
	forged := []byte(`{"call_id":"c1","caller":"broker","args":{}}`)
	for _, tt := range []struct {
		name, role, subject, from string
		tokens                    []string
		headers                   []string
	}{
		{"an agent", "generator", "tool.request.x", "generator", []string{"generator", "x"}, nil},
		{"another agent", "operator", "tool.request.x", "operator", []string{"operator", "x"}, nil},
		{
			"a spawned agent's path is a token, not the speaker", "operator", "tool.request.x.coder-2.generator",
			"operator",
			[]string{"operator", "x", "coder-2", "generator"},
			nil,
		},
		{
			"trick: headers that name somebody else", "operator", "tool.request.x", "operator",
			[]string{"operator", "x"},
			[]string{
				"From", "generator", "Conclave-From", "generator", "Nats-Subject", "agent.generator.tool.request.x",
				"Nats-Request-Info", `{"acc":"generator"}`,
			},
		},
		{
			"trick: a tool named like a speaker", "operator", "tool.request.generator", "operator",
			[]string{"operator", "generator"},
			nil,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sendRaw(t, b.Connect(tt.role),
				rawMessage(tt.subject, forged, append(tt.headers, subjects.HeaderDeadline, nearDeadline())...))
			in := receive(t, "the request", got)
			if in.From != tt.from || !slices.Equal(in.Tokens, tt.tokens) {
				t.Errorf("from %q, tokens %q", in.From, in.Tokens)
			}
			if in.Body.Caller != "broker" {
				t.Errorf("the payload was changed: %+v", in.Body)
			}
		})
	}
}

const goodTrace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// The ids, the deadline and the trace propagate to all publications and requests of a handler, also with a context of
// its own.
func TestHeadersPropagate(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	tool, err := subjects.ToolEndpoint("get_datetime")
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan actor.Msg[subjects.ToolOrder], 1)
	supervise(t, b, actor.Spec{
		Name: "get_datetime", Role: subjects.ToolRole("get_datetime"),
		Make: func(context.Context, *nats.Conn) (actor.Actor, error) {
			return &testActor{
				name: "get_datetime",
				routes: []actor.Route{actor.Serve(tool, func(_ context.Context, in actor.Msg[subjects.ToolOrder],
					_ actor.Out,
				) (subjects.ToolResult, error) {
					asked <- in
					return subjects.ToolResult{CallID: in.Body.CallID, Tool: "get_datetime"}, nil
				})},
			}, nil
		},
	}, actor.Config{})
	startActor(t, b, "broker", actor.Config{},
		actor.Serve(subjects.ToolRequestService,
			func(_ context.Context, in toolMsg, out actor.Out) (subjects.ToolResult, error) {
				// A forgetful handler: none of these contexts knows the message.
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
				defer cancel()
				event, err1 := subjects.ToolRequestEvent.With("x")
				done, err2 := subjects.ToolResultEvent.With("x")
				service, err3 := subjects.ToolCallService.With("tools", "get_datetime")
				err4 := actor.Emit(ctx, out, event, in.Body)
				err5 := actor.EmitAsync(ctx, out, done, subjects.ToolResult{CallID: in.Body.CallID})
				res, err6 := actor.Ask(ctx, out, service, subjects.ToolOrder{
					CallID: in.Body.CallID,
					Args:   in.Body.Args,
				})
				return res, errors.Join(err1, err2, err3, err4, err5, err6)
			}))
	user, nc := b.Connect("user"), b.Connect("generator")
	emitted, posted := subscribe(t, user, "tool.request.x"), subscribe(t, user, "tool.result.x")
	deadline := time.Now().Add(time.Minute).Truncate(time.Millisecond)
	ms := strconv.FormatInt(deadline.UnixMilli(), 10)

	for _, tt := range []struct{ name, trace string }{
		{"a trace", goodTrace},
		{"none", ""},
		{"trick: too short", goodTrace[:54]},
		{"trick: too long", goodTrace + "0"},
		{"trick: capitals", strings.ToUpper(goodTrace)},
		{"trick: another version", "01" + goodTrace[2:]},
		{"trick: dashes elsewhere", strings.ReplaceAll(goodTrace, "-", "0")},
		{"trick: all zeros", "00-00000000000000000000000000000000-b7ad6b7169203331-01"},
		{"trick: a parent of zeros", "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01"},
		{"trick: a script", `00-<script>alert(1)</script>0000-b7ad6b7169203331-01`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := sendRaw(t, nc, rawMessage("tool.request.x", []byte(`{"call_id":"c1","args":{}}`),
				subjects.HeaderQuery, "q-1", subjects.HeaderSession, "s-1", subjects.HeaderDeadline, ms,
				subjects.HeaderTrace, tt.trace))
			if code := r.Header.Get(subjects.HeaderErrCode); code != "" {
				t.Fatalf("%s %s", r.Header, r.Data)
			}
			trace := r.Header.Get(subjects.HeaderTrace)
			if tt.trace == goodTrace && trace != goodTrace {
				t.Errorf("the trace became %q", trace)
			}
			if tt.trace != goodTrace && (len(trace) != 55 || trace == tt.trace || strings.ContainsAny(trace, "<>")) {
				t.Errorf("trace %q was not replaced by a good one: %q", tt.trace, trace)
			}
			for what, m := range map[string]*nats.Msg{
				"reply": r, "emitted": nextMessage(t, emitted),
				"posted": nextMessage(t, posted),
			} {
				for header, want := range map[string]string{
					subjects.HeaderQuery: "q-1", subjects.HeaderSession: "s-1", subjects.HeaderDeadline: ms,
					subjects.HeaderTrace: trace,
				} {
					if got := m.Header.Get(header); got != want {
						t.Errorf("%s: %s is %q, want %q", what, header, got, want)
					}
				}
			}
			in := receive(t, "the call", asked)
			if in.Query != "q-1" || in.Session != "s-1" || !in.Deadline.Equal(deadline) {
				t.Errorf("the tool was asked with query %q, session %q, deadline %s", in.Query, in.Session, in.Deadline)
			}
		})
	}
}

// A handler's own deadline applies to its requests when it is earlier, not when it is later.
func TestAskUsesEarlierDeadline(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	limit := make(chan time.Duration, 1)
	startActor(t, b, "broker", actor.Config{},
		actor.Serve(subjects.ToolRequestService,
			func(_ context.Context, in toolMsg, out actor.Out) (subjects.ToolResult, error) {
				ctx, cancel := context.WithTimeout(context.Background(), <-limit)
				defer cancel()
				service, err := subjects.ToolCallService.With("tools", "get_datetime")
				if err != nil {
					return subjects.ToolResult{}, err
				}
				return actor.Ask(ctx, out, service, subjects.ToolOrder{CallID: in.Body.CallID, Args: in.Body.Args})
			}))
	tool, got := b.Connect("tool_get_datetime"), make(chan time.Time, 1)
	if _, err := tool.Subscribe("tool.request.get_datetime", func(m *nats.Msg) {
		ms, _ := strconv.ParseInt(m.Header.Get(subjects.HeaderDeadline), 10, 64)
		got <- time.UnixMilli(ms)
		_ = m.Respond([]byte(`{"call_id":"c1","tool":"x"}`))
	}); err != nil {
		t.Fatal(err)
	}
	if err := tool.Flush(); err != nil {
		t.Fatal(err)
	}
	out := newOut(t, b.Connect("operator"))
	start := time.Now()
	for _, d := range []time.Duration{2 * time.Second, time.Hour} {
		limit <- d
		if _, err := askTool(t, out, "c1"); err != nil {
			t.Fatal(err)
		}
		want := start.Add(min(d, timeout))
		if at := receive(t, "the call", got); at.Sub(want).Abs() > 10*time.Second {
			t.Errorf("with %s of its own the handler asked until %s, want %s", d, at, want)
		}
	}
}

// The error of a handler, and the fault that its caller gets.
func TestHandlerFailures(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	denial := &subjects.Fault{
		Code: subjects.CodeDenied, Text: "not today",
		Denial: &subjects.Denial{Layer: "paths", Rule: "r1", Reason: "outside", Allowed: []string{"/tmp"}},
	}
	var none *subjects.Fault
	book := &logRecorder{}
	startActor(t, b, "broker", actor.Config{Log: book.logger()},
		actor.Serve(subjects.ToolRequestService,
			func(ctx context.Context, in toolMsg, out actor.Out) (subjects.ToolResult, error) {
				switch in.Body.CallID {
				case "panic":
					panic("the secret is hunter2")
				case "index":
					return subjects.ToolResult{Tool: in.Tokens[len(in.Tokens)]}, nil
				case "error":
					return subjects.ToolResult{}, errors.New("open /home/me/hunter2: permission denied")
				case "fault":
					return subjects.ToolResult{}, denial
				case "wrapped":
					return subjects.ToolResult{}, fmt.Errorf("judging hunter2: %w", denial)
				case "no-fault":
					return subjects.ToolResult{}, none
				case "no-code":
					return subjects.ToolResult{}, &subjects.Fault{Text: "hunter2"}
				case "large":
					return subjects.ToolResult{Result: strings.Repeat("x", 2<<20)}, nil
				}
				return echoArgs(ctx, in, out)
			}))
	user := b.Connect("user")
	out := newOut(t, b.Connect("operator"))
	want := 0
	for _, tt := range []struct {
		id, code string
		log      []string // words of its one line
		errors   int
	}{
		{"panic", subjects.CodeInternal, []string{
			"panic in handler", "hunter2", "serve_test.go", `"actor":"broker"`,
			`"query":"q-panic"`,
		}, 1},
		{"index", subjects.CodeInternal, []string{"panic in handler", "index out of range", "stack"}, 1},
		{
			"error", subjects.CodeInternal,
			[]string{"handler failed", "hunter2", `"subject":"agent.operator.tool.request.x"`, `"query":"q-error"`},
			1,
		},
		{"fault", subjects.CodeDenied, []string{"refused", "not today"}, 1},
		{"wrapped", subjects.CodeDenied, []string{"refused", "not today"}, 1},
		{"no-fault", subjects.CodeInternal, []string{"handler failed", "empty fault"}, 1},
		{"no-code", subjects.CodeInternal, []string{"handler failed", "empty fault"}, 1},
		{"large", subjects.CodeTooLarge, nil, 0},
	} {
		t.Run(tt.id, func(t *testing.T) {
			before := len(book.linesWith())
			_, err := askTool(t, out.WithIDs("s", "q-"+tt.id), tt.id)
			if faultCode(err) != tt.code {
				t.Fatalf("told %v, want %s", err, tt.code)
			}
			if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "index") {
				t.Errorf("told too much: %v", err)
			}
			var f *subjects.Fault
			if tt.code == subjects.CodeDenied && (!errors.As(err, &f) || !reflect.DeepEqual(f, denial)) {
				t.Errorf("the fault was changed: %+v", f)
			}
			if tt.log != nil && (len(book.linesWith(tt.log...)) == 0 || len(book.linesWith()) != before+1) {
				t.Errorf("%d lines, want one with %q: %s", len(book.linesWith())-before, tt.log, book)
			}
			// The next one is handled, and the figures know.
			if _, err := askTool(t, out, "good"); err != nil {
				t.Errorf("after that: %v", err)
			}
			want += tt.errors
			if s, _ := readStats(t, user, "broker"); s.Endpoints[0].NumErrors != want {
				t.Errorf("%d errors counted, want %d", s.Endpoints[0].NumErrors, want)
			}
		})
	}
}

// TestRepeatedRefusal: a refusal that repeats the last one, such as that of a background request that is retried, is
// one INFO line.
func TestRepeatedRefusal(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	book := &logRecorder{}
	startActor(t, b, "broker", actor.Config{Log: book.logger()},
		actor.Serve(subjects.ToolRequestService, func(_ context.Context, in toolMsg, _ actor.Out) (subjects.ToolResult,
			error,
		) {
			return subjects.ToolResult{}, subjects.Faultf(subjects.CodeDenied, "not %s", in.Body.CallID)
		}))
	out := newOut(t, b.Connect("operator"))
	for _, id := range []string{"a", "a", "a", "b", "a"} {
		if _, err := askTool(t, out, id); faultCode(err) != subjects.CodeDenied {
			t.Fatal(err)
		}
	}
	if n := len(book.linesWith(`"level":"INFO"`, "refused")); n != 3 {
		t.Errorf("%d lines, want 3: %s", n, book)
	}
}

// A panic in a reject hook does not end the system.
func TestRejectHookPanics(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	book := &logRecorder{}
	startActor(t, b, "broker", actor.Config{Log: book.logger()}, actor.Serve(subjects.ToolRequestService, echoArgs,
		actor.OnReject(func(context.Context, actor.Rejection, actor.Out) { panic("oh") })))
	nc := b.Connect("operator")
	for range 2 {
		r := sendRaw(t, nc, rawMessage("tool.request.x", []byte(`{`), subjects.HeaderDeadline, nearDeadline()))
		if r.Header.Get(subjects.HeaderErrCode) != subjects.CodeMalformed {
			t.Errorf("told %s", r.Header)
		}
	}
	waitUntil(t, "two lines", func() bool { return len(book.linesWith("panic in reject hook", "oh")) == 2 })
}

// TestAfterReply: what a handler leaves until after its reply does not delay it, and a draining actor waits for it.
func TestAfterReply(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	replied := make(chan struct{})
	var done atomic.Bool
	s := startActor(t, b, "broker", actor.Config{},
		actor.Serve(subjects.ToolRequestService,
			func(ctx context.Context, in toolMsg, out actor.Out) (subjects.ToolResult, error) {
				actor.AfterReply(out, func() {
					<-replied
					done.Store(true)
				})
				return echoArgs(ctx, in, out)
			}))
	if _, err := askTool(t, newOut(t, b.Connect("operator")), "c"); err != nil {
		t.Error(err)
	}
	close(replied)
	if err := s.Stop(); err != nil || !done.Load() {
		t.Errorf("stopped with %v before what follows the reply: %v", err, !done.Load())
	}
}

func TestWorkersBoundConcurrency(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	const workers, asks = 3, 20
	entered, gate := make(chan struct{}, asks), make(chan struct{})
	var now, most atomic.Int64
	startActor(t, b, "broker", actor.Config{},
		actor.Serve(subjects.ToolRequestService,
			func(ctx context.Context, in toolMsg, out actor.Out) (subjects.ToolResult, error) {
				n := now.Add(1)
				defer now.Add(-1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				entered <- struct{}{}
				<-gate
				return echoArgs(ctx, in, out)
			}, actor.Workers(workers)))
	user, out := b.Connect("user"), newOut(t, b.Connect("operator"))
	var wg sync.WaitGroup
	for range asks {
		wg.Go(func() {
			if _, err := askTool(t, out, "c"); err != nil {
				t.Error(err)
			}
		})
	}
	for range workers {
		receive(t, "a handler", entered)
	}
	waitUntil(t, "all others wait", func() bool {
		_, f := readStats(t, user, "broker")
		return f[0].Mailbox == asks-workers && f[0].InFlight == workers
	})
	if len(entered) > 0 {
		t.Error("more handlers run than workers")
	}
	close(gate)
	wg.Wait()
	if most.Load() != workers {
		t.Errorf("%d handlers at once, want %d", most.Load(), workers)
	}
}

func TestOneWorkerKeepsOrder(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	const n = 1000
	var got []string
	done := make(chan struct{})
	startActor(t, b, "broker", actor.Config{Mailbox: 4 * n},
		actor.Serve(subjects.ToolRequestService, func(_ context.Context, in toolMsg, _ actor.Out) (subjects.ToolResult,
			error,
		) {
			if got = append(got, in.Body.CallID); len(got) == n {
				close(done)
			}
			return subjects.ToolResult{}, nil
		}, actor.Workers(1)))
	nc := b.Connect("operator")
	for i := range n {
		if err := nc.PublishMsg(rawMessage("tool.request.x", fmt.Appendf(nil, `{"call_id":"%d","args":{}}`, i),
			subjects.HeaderDeadline, nearDeadline())); err != nil {
			t.Fatal(err)
		}
	}
	receive(t, "the last", done)
	for i, id := range got {
		if id != strconv.Itoa(i) {
			t.Fatalf("at %d came %s", i, id)
		}
	}
}

// One account's flood fills its share of the mailbox, and its other requests get busy at once, while all workers are
// occupied. Each request gets exactly one reply, the queue is bounded, and another account is still served.
func TestFullMailboxRepliesBusy(t *testing.T) {
	// Not parallel: it measures the heap.
	b := bustest.Start(t)
	const asks, mailbox, size = 3000, 8, 16 << 10
	const share = mailbox / 2 // with one worker: waiting and at work
	gate, entered := make(chan struct{}), make(chan struct{}, asks)
	startActor(t, b, "broker", actor.Config{Mailbox: mailbox},
		actor.Serve(subjects.ToolRequestService,
			func(ctx context.Context, in toolMsg, out actor.Out) (subjects.ToolResult, error) {
				entered <- struct{}{}
				<-gate
				return subjects.ToolResult{CallID: in.Body.CallID}, nil
			}, actor.Workers(1)))
	user, nc := b.Connect("user"), b.Connect("operator")
	answers := subscribe(t, nc, "_INBOX.busy.*")
	body := fmt.Appendf(nil, `{"call_id":"c","args":{"pad":%q}}`, strings.Repeat("x", size))
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range asks {
		m := rawMessage("tool.request.x", body, subjects.HeaderDeadline, nearDeadline())
		m.Reply = "_INBOX.busy." + strconv.Itoa(i)
		if err := nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
		if i == 0 { // the worker has it, and keeps it
			receive(t, "the handler", entered)
		}
	}
	told := map[string]string{}
	hear := func() {
		m := nextMessage(t, answers)
		if _, twice := told[m.Subject]; twice {
			t.Fatalf("%s was answered twice", m.Subject)
		}
		told[m.Subject] = m.Header.Get(subjects.HeaderErrCode)
	}
	for range asks - share {
		hear()
	}
	other := b.Connect("generator")
	heard := subscribe(t, other, "_INBOX.other.*")
	m := rawMessage("tool.request.x", body, subjects.HeaderDeadline, nearDeadline())
	m.Reply = "_INBOX.other.1"
	if err := other.PublishMsg(m); err != nil {
		t.Fatal(err)
	}
	if err := other.Flush(); err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > asks*size/2 {
		t.Errorf("%d MB are held while %d of %d bytes wait", grown>>20, mailbox, size)
	}
	if _, f := readStats(t, user, "broker"); f[0].Mailbox > share || f[0].Rejected != asks-share {
		t.Errorf("figures %+v", f[0])
	}
	close(gate)
	for range share {
		hear()
	}
	if code := nextMessage(t, heard).Header.Get(subjects.HeaderErrCode); code != "" {
		t.Errorf("another account was kept out: %s", code)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	expectNone(t, answers, nc)
	count := map[string]int{}
	for _, c := range told {
		count[c]++
	}
	if len(told) != asks || count[subjects.CodeBusy] != asks-share || count[""] != share {
		t.Errorf("%d answers, by code %v", len(told), count)
	}
	for _, tr := range b.ConnErrors() {
		t.Errorf("trouble: %v", tr.Err)
	}
}
