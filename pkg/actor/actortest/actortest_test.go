package actortest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/subjects"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// critic requests, publishes, stores and logs: everything an actor can do.
type critic struct {
	rejected []actor.Rejection
	deadline time.Time
}

func (c *critic) Name() string { return "critic" }

func (c *critic) Routes() []actor.Route {
	return []actor.Route{
		actor.On(subjects.ResponseGeneration, c.onResponse,
			actor.OnReject(func(_ context.Context, rej actor.Rejection, _ actor.Out) {
				c.rejected = append(c.rejected, rej)
			})),
		actor.Serve(subjects.ToolRequestService, c.onAsk),
	}
}

func (c *critic) onResponse(ctx context.Context, in actor.Msg[subjects.Response], out actor.Out) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	vectors, err := actor.Ask(ctx, out, subjects.ModelEmbed, subjects.EmbedRequest{Texts: []string{in.Body.Answer}})
	if err != nil {
		return err
	}
	if _, err := out.Store("ledger").Put(ctx, out.NewID(), []byte(in.From), 0); err != nil {
		return err
	}
	out.LogError(errors.New("half a grade"))
	if err := actor.EmitAsync(ctx, out, subjects.PairwiseResult, subjects.Pairwise{QueryID: in.Query}); err != nil {
		return err
	}
	return actor.Emit(ctx, out.WithIDs("s2", "q2"), subjects.CritiqueResult,
		subjects.Critique{QueryID: in.Body.QueryID, Score: len(vectors.Vectors)})
}

func (c *critic) onAsk(ctx context.Context, in actor.Msg[subjects.ToolRequest], out actor.Out) (subjects.ToolResult,
	error,
) {
	c.deadline, _ = ctx.Deadline()
	return subjects.ToolResult{CallID: in.Body.CallID, Tool: in.From, Result: string(in.Body.Args)}, nil
}

func TestRecorder(t *testing.T) {
	t.Parallel()
	rec := &actortest.Recorder{Reply: func(subject string, body []byte) (any, error) {
		if subject != "model.embed" || string(body) != `{"texts":["42"]}` {
			return nil, fmt.Errorf("asked %s %s", subject, body)
		}
		return subjects.EmbedReply{Vectors: [][]float32{{1}, {2}}}, nil
	}}
	c := &critic{}
	if _, err := rec.Deliver(t, c, actortest.Message{
		Subject: "from.generator.response.generation", Query: "q1", Session: "s1",
		Body: subjects.Response{QueryID: "q1", Answer: "42"},
	}); err != nil {
		t.Fatal(err)
	}
	want := []actortest.Recorded{
		{Subject: "pairwise.result", Body: `{"query_id":"q1","winner":"","reason":""}`, Query: "q1", Session: "s1"},
		{
			Subject: "critique.result",
			Body: `{"session_id":"","query_id":"q1","respondent_id":"","score":2,"feedback":"","rubric":"",` +
				`"model":""}`,
			Query: "q2", Session: "s2", Waited: true,
		},
	}
	if got := rec.Published(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("published\n%+v, want\n%+v", got, want)
	}
	if got := rec.Requested(); len(got) != 1 || got[0].Subject != "model.embed" || got[0].Query != "q1" {
		t.Errorf("asked %+v", got)
	}
	if got := rec.Logged(); len(got) != 1 || got[0].Error() != "half a grade" {
		t.Errorf("noted %v", got)
	}
	if v, _, err := rec.Out().Store("ledger").Get(t.Context(), "id-1"); err != nil || string(v) != "generator" {
		t.Errorf("kept %q, %v", v, err)
	}
}

// A test that passes here must not fail on the bus: the same envelope, the same strictness, the same codes.
func TestRecorderIsAsStrictAsTheBus(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) // the recorder's own
	const subject = "agent.operator.tool.request.x"
	good := []byte(`{"call_id":"c","args":{}}`)
	for _, tt := range []struct {
		name string
		m    actortest.Message
		code string
	}{
		{"good", actortest.Message{Body: good, Deadline: now.Add(time.Minute)}, ""},
		{"good, as a value", actortest.Message{
			Body:     subjects.ToolRequest{CallID: "c", Args: json.RawMessage(`{}`)},
			Deadline: now.Add(time.Minute),
		}, ""},
		{"no deadline", actortest.Message{Body: good}, subjects.CodeNoDeadline},
		{"expired", actortest.Message{Body: good, Deadline: now}, subjects.CodeExpired},
		{
			"an unknown field",
			actortest.Message{Body: []byte(`{"x":1}`), Deadline: now.Add(time.Minute)},
			subjects.CodeMalformed,
		},
		{
			"a field in another case",
			actortest.Message{Body: []byte(`{"CALL_ID":"c"}`), Deadline: now.Add(time.Minute)},
			subjects.CodeMalformed,
		},
		{"a key twice", actortest.Message{
			Body:     []byte(`{"call_id":"c","call_id":"d"}`),
			Deadline: now.Add(time.Minute),
		}, subjects.CodeMalformed},
		{
			"another payload",
			actortest.Message{Body: subjects.Critique{}, Deadline: now.Add(time.Minute)},
			subjects.CodeMalformed,
		},
		{"msgpack that is none", actortest.Message{
			Body: good, Type: subjects.TypeMsgpack,
			Deadline: now.Add(time.Minute),
		}, subjects.CodeMalformed},
		{
			"plain text",
			actortest.Message{Body: []byte("hi"), Type: subjects.TypeText, Deadline: now.Add(time.Minute)},
			subjects.CodeCodec,
		},
		{"too large", actortest.Message{
			Body:     make([]byte, subjects.ToolRequestService.MaxPayload+1),
			Deadline: now.Add(time.Minute),
		}, subjects.CodeTooLarge},
		{
			"a query id that is none",
			actortest.Message{Body: good, Query: "*", Deadline: now.Add(time.Minute)},
			subjects.CodeMalformed,
		},
		{
			"a session id that is none",
			actortest.Message{Body: good, Session: "a b", Deadline: now.Add(time.Minute)},
			subjects.CodeMalformed,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.m.Subject = subject
			c := &critic{}
			start := time.Now()
			reply, err := (&actortest.Recorder{}).Deliver(t, c, tt.m)
			if actortest.Code(err) != tt.code || (err == nil) != (tt.code == "") {
				t.Fatalf("%v, want %q", err, tt.code)
			}
			if tt.code == "" && reply != `{"call_id":"c","result":"{}","tool":"operator"}` &&
				reply != `{"call_id":"c","tool":"operator","result":"{}"}` {
				t.Errorf("reply %s", reply)
			}
			// The clock stands still, the deadline does not: a minute from now is a minute.
			if left := c.deadline.Sub(start); tt.code == "" && (left <= 0 || left > time.Minute+time.Second) {
				t.Errorf("the handler had %s", left)
			}
		})
	}
	c := &critic{}
	if _, err := (&actortest.Recorder{}).Deliver(t, c, actortest.Message{
		Subject: "from.x.response.generation",
		Body:    []byte(`{"a":1}`), Query: "q1",
	}); actortest.Code(err) != subjects.CodeMalformed ||
		len(c.rejected) != 1 || c.rejected[0].Query != "q1" || c.rejected[0].Fault.Code != subjects.CodeMalformed {
		t.Errorf("%v, hook %+v", err, c.rejected)
	}
	if _, err := (&actortest.Recorder{}).Deliver(t, c, actortest.Message{Subject: "nobody.hears.this"}); err == nil {
		t.Error("a subject that no route hears was delivered")
	}
}

// Publications and requests obey the same rules as on the bus.
func TestRecorderChecksPublications(t *testing.T) {
	t.Parallel()
	refused := errors.New("the link is down")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tool, err := subjects.ToolRequestService.With("x")
	if err != nil {
		t.Fatal(err)
	}
	rec := &actortest.Recorder{FailPublish: func(subject string) error {
		if subject == "answer.dialog" {
			return refused
		}
		return nil
	}}
	out := rec.Out()
	if err := actor.Emit(ctx, out, subjects.AnswerDialog, subjects.Dialog{}); !errors.Is(err, refused) {
		t.Errorf("refused: %v", err)
	}
	if err := actor.Emit(ctx, out, subjects.AgentStateEvent, subjects.AgentState{}); !errors.Is(err,
		actor.ErrIncomplete) {
		t.Errorf("with wildcards: %v", err)
	}
	if err := actor.Emit(ctx, out, subjects.ResponseGeneration,
		subjects.Response{Answer: strings.Repeat("x", subjects.MaxBody)}); actortest.Code(
		err) != subjects.CodeTooLarge {
		t.Errorf("too large: %v", err)
	}
	if _, err := actor.Ask(ctx, out, tool, subjects.ToolRequest{}); actortest.Code(err) != subjects.CodeUnavailable {
		t.Errorf("no responder: %v", err)
	}
	if _, err := actor.Ask(t.Context(), out, tool, subjects.ToolRequest{}); actortest.Code(
		err) != subjects.CodeNoDeadline {
		t.Errorf("without a deadline: %v", err)
	}
	rec.Reply = func(string, []byte) (any, error) { return map[string]any{"surprise": 1}, nil }
	if _, err := actor.Ask(ctx, out, tool, subjects.ToolRequest{}); actortest.Code(err) != subjects.CodeMalformed {
		t.Errorf("an odd answer: %v", err)
	}
	rec.Reply = func(string, []byte) (any, error) { cancel(); return subjects.ToolResult{}, nil }
	if _, err := actor.Ask(ctx, out, tool, subjects.ToolRequest{}); actortest.Code(err) != subjects.CodeTimeout {
		t.Errorf("too late: %v", err)
	}
	if len(rec.Published()) != 0 {
		t.Errorf("recorded a publication that failed: %+v", rec.Published())
	}
}

func TestCode(t *testing.T) {
	t.Parallel()
	var none *subjects.Fault
	for _, tt := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{errors.New("x"), ""},
		{none, ""},
		{subjects.Faultf("busy", "x"), "busy"},
		{fmt.Errorf("a: %w", subjects.Faultf("busy", "x")), "busy"},
	} {
		if got := actortest.Code(tt.err); got != tt.want {
			t.Errorf("%v: %q", tt.err, got)
		}
	}
}
