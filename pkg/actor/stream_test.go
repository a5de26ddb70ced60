package actor_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

type chatMsg = actor.Msg[subjects.ChatRequest]

// askChat returns the pieces of a streamed reply up to its end or error.
func askChat(ctx context.Context, out actor.Out, model string) (got []string, err error) {
	for piece, err := range actor.AskStream(ctx, out, subjects.ModelChat,
		subjects.ChatRequest{Role: "assistant", Model: model}) {
		if err != nil {
			return got, err
		}
		got = append(got, piece.Content)
	}
	return got, nil
}

func withTimeout(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	t.Cleanup(cancel)
	return ctx
}

func TestStreamedReplies(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	startActor(t, b, "model", actor.Config{},
		actor.ServeStream(subjects.ModelChat, func(_ context.Context, in chatMsg, say func(subjects.ChatChunk) error,
			_ actor.Out,
		) error {
			switch in.Body.Model {
			case "silent":
				return nil
			case "refuses":
				return subjects.Faultf(subjects.CodeModelMissing, "no such model")
			case "panics":
				panic("a secret")
			}
			for i := range 3 {
				if err := say(subjects.ChatChunk{Content: fmt.Sprintf("%s %d", in.From, i)}); err != nil {
					return err
				}
			}
			switch in.Body.Model {
			case "breaks":
				return errors.New("a detail of ours")
			case "too large":
				return say(subjects.ChatChunk{Content: strings.Repeat("x", 2<<20)})
			}
			return nil
		}))
	three := []string{"generator 0", "generator 1", "generator 2"}
	out := newOut(t, b.Connect("generator"))
	for _, tt := range []struct {
		model string
		want  []string
		code  string
	}{
		{model: "speaks", want: three},
		{model: "silent"},
		{model: "refuses", code: subjects.CodeModelMissing},
		{model: "panics", code: subjects.CodeInternal},
		{model: "breaks", want: three, code: subjects.CodeInternal},
		{model: "too large", want: three, code: subjects.CodeTooLarge},
	} {
		t.Run(tt.model, func(t *testing.T) {
			got, err := askChat(withTimeout(t), out, tt.model)
			var f *subjects.Fault
			errors.As(err, &f)
			if !slices.Equal(got, tt.want) || (f != nil) != (tt.code != "") || f != nil && f.Code != tt.code {
				t.Errorf("%q, %v", got, err)
			}
			if err != nil && (strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "detail")) {
				t.Errorf("the caller reads %v", err)
			}
		})
	}
	t.Run("denied caller", func(t *testing.T) {
		b.ExpectViolations(2) // the request and the stop message
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		nc := b.Connect("router")
		if got, err := askChat(ctx, newOut(t, nc), "speaks"); err == nil || got != nil {
			t.Errorf("%q, %v", got, err)
		}
		if err := nc.Flush(); err != nil {
			t.Error(err)
		}
	})
	t.Run("without a deadline", func(t *testing.T) {
		if _, err := askChat(context.Background(), out, "speaks"); err == nil ||
			!strings.Contains(err.Error(), subjects.CodeNoDeadline) {
			t.Error(err)
		}
	})
}

func TestStreamWithoutResponder(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	_, err := askChat(withTimeout(t), newOut(t, b.Connect("generator")), "")
	var f *subjects.Fault
	if !errors.As(err, &f) || f.Code != subjects.CodeUnavailable || actor.IsReplyFault(err) {
		t.Error(err)
	}
}

// TestProbeOfSilentStream: a request that is being handled or waits is not given up, however long it is silent, though
// another instance does not hold it; one whose instance was killed is lost.
func TestProbeOfSilentStream(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	begun, release := make(chan *nats.Conn, 4), make(chan struct{})
	start := func() *actor.Supervised {
		return supervise(t, b, actor.Spec{Name: "model", Role: "model", Make: func(_ context.Context, nc *nats.Conn) (
			actor.Actor, error,
		) {
			return &testActor{name: "model", routes: []actor.Route{actor.ServeStream(subjects.ModelChat,
				func(ctx context.Context, in chatMsg, say func(subjects.ChatChunk) error, _ actor.Out) error {
					begun <- nc
					if in.Body.Model == "killed" {
						<-ctx.Done()
						return ctx.Err()
					}
					<-release
					return say(subjects.ChatChunk{Content: in.Body.Model, Done: true})
				}, actor.Workers(1))}}, nil
		}}, actor.Config{})
	}
	start()
	out := newOut(t, b.Connect("generator"))
	type reply struct {
		text []string
		err  error
	}
	replies := make(chan reply, 2)
	ask := func(name string) {
		ctx := withTimeout(t)
		go func() {
			text, err := askChat(ctx, out, name)
			replies <- reply{text, err}
		}()
	}
	ask("first")
	<-begun
	ask("second") // waits for the worker
	idle := start()
	select {
	case r := <-replies:
		t.Fatalf("a silent request was given up: %+v", r)
	case <-time.After(8 * time.Second):
	}
	close(release)
	for range 2 {
		if r := <-replies; r.err != nil || len(r.text) != 1 {
			t.Errorf("%+v", r)
		}
	}
	if err := idle.Stop(); err != nil {
		t.Fatal(err)
	}
	<-begun

	ask("killed")
	(<-begun).Close()
	var f *subjects.Fault
	if r := <-replies; !errors.As(r.err, &f) || f.Code != subjects.CodeUnavailable || actor.IsReplyFault(r.err) {
		t.Errorf("after the instance was killed: %+v", r)
	}
}

// A caller that stops reading cancels its own handler and no other.
func TestStoppedStreamCancelsItsHandler(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	ended := make(chan string, 4)
	endless := actor.ServeStream(subjects.ModelChat,
		func(ctx context.Context, in chatMsg, say func(subjects.ChatChunk) error, _ actor.Out) error {
			if err := say(subjects.ChatChunk{Content: "begun"}); err != nil {
				return err
			}
			<-ctx.Done()
			ended <- in.Body.Model
			return ctx.Err()
		})
	startActor(t, b, "model", actor.Config{}, endless)
	wantEnd := func(name string) {
		t.Helper()
		select {
		case got := <-ended:
			if got != name {
				t.Errorf("%s ended, not %s", got, name)
			}
		case <-time.After(timeout):
			t.Errorf("%s goes on", name)
		}
	}
	gen, com := newOut(t, b.Connect("generator")), newOut(t, b.Connect("committee"))
	for range actor.AskStream(withTimeout(t), gen, subjects.ModelChat, subjects.ChatRequest{Model: "break"}) {
		break
	}
	wantEnd("break")

	ctx, cancel := context.WithCancel(withTimeout(t))
	defer cancel()
	for _, err := range actor.AskStream(ctx, gen, subjects.ModelChat, subjects.ChatRequest{Model: "cancel"}) {
		cancel()
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	wantEnd("cancel")

	// Another account's stop, though it knows the id: the server writes its own name into it.
	nc := b.Connect("committee")
	mine := b.Connect("generator")
	sub, err := mine.SubscribeSync(mine.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	m := rawMessage("model.chat", packMsgpack(t, subjects.ChatRequest{Model: "guarded"}), subjects.HeaderType,
		subjects.TypeMsgpack, subjects.HeaderDeadline, nearDeadline(), subjects.HeaderStream, "known-id")
	m.Reply = sub.Subject
	if err := mine.PublishMsg(m); err != nil {
		t.Fatal(err)
	}
	if _, err := sub.NextMsgWithContext(withTimeout(t)); err != nil {
		t.Fatal(err)
	}
	if err := nc.Publish("model.stop.known-id", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil { // or it could come after all that follows
		t.Fatal(err)
	}
	for range actor.AskStream(withTimeout(t), com, subjects.ModelChat, subjects.ChatRequest{Model: "later"}) {
		break // by then the forged stop was heard
	}
	wantEnd("later")
	if len(ended) > 0 {
		t.Errorf("%s was ended by another account", <-ended)
	}
	if err := mine.Publish("model.stop.known-id", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	wantEnd("guarded")
}

// A stop message that arrives while its request is queued takes effect.
func TestStreamStoppedWhileQueued(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	began, let := make(chan string, 4), make(chan struct{})
	startActor(t, b, "model", actor.Config{},
		actor.ServeStream(subjects.ModelChat, func(ctx context.Context, in chatMsg, _ func(subjects.ChatChunk) error,
			_ actor.Out,
		) error {
			began <- in.Body.Model
			if in.Body.Model == "first" {
				<-let
				return nil
			}
			<-ctx.Done()
			began <- "ended " + in.Body.Model
			return ctx.Err()
		}, actor.Workers(1)))
	nc := b.Connect("generator")
	ask := func(name string) {
		m := rawMessage("model.chat", packMsgpack(t, subjects.ChatRequest{Model: name}), subjects.HeaderType,
			subjects.TypeMsgpack, subjects.HeaderDeadline, nearDeadline(), subjects.HeaderStream, name)
		m.Reply = nc.NewInbox()
		if err := nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	ask("first")
	if got := <-began; got != "first" {
		t.Fatal(got)
	}
	ask("second")
	if err := nc.Publish("model.stop.second", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	// Flushed by the server; the model's reader still has to hand it on. The stop of an unknown id goes the same way.
	close(let)
	for _, want := range []string{"second", "ended second"} {
		select {
		case got := <-began:
			if got != want {
				t.Fatalf("%s, want %s", got, want)
			}
		case <-time.After(timeout):
			t.Fatalf("no %s", want)
		}
	}
}

// An event published twice under one id is stored once; EmitOnce fails for a subject without a stream.
func TestEmitOnce(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	watch := b.Connect("user")
	sub, err := watch.SubscribeSync("answer.dialog")
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Flush(); err != nil {
		t.Fatal(err)
	}
	out := newOut(t, b.Connect("generator"))
	for _, id := range []string{"id-1", "id-1", "id-2"} {
		if err := actor.EmitOnce(withTimeout(t), out, subjects.AnswerDialog, id,
			subjects.Dialog{QueryID: id}); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"id-1", "id-2"} {
		m, err := sub.NextMsgWithContext(withTimeout(t))
		if err != nil || !strings.Contains(string(m.Data), want) {
			t.Errorf("%v, %v", m, err)
		}
	}
	if n, _, _ := sub.Pending(); n != 0 {
		t.Errorf("%d more", n)
	}
	delta, err := subjects.ResponseDelta.With("q1")
	if err != nil {
		t.Fatal(err)
	}
	if err := actor.EmitOnce(withTimeout(t), out, delta, "id-3", subjects.Delta{}); err == nil {
		t.Error("EmitOnce accepted a subject without a stream")
	}
	if err := actor.EmitOnce(withTimeout(t), out, subjects.AnswerDialog, "", subjects.Dialog{}); err == nil {
		t.Error("EmitOnce accepted an empty id")
	}
}

// A plain-text request gets a plain-text reply, ended by an empty message without headers.
func TestStreamInPlainText(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	startActor(t, b, "gateway", actor.Config{},
		actor.ServeStream(subjects.QueryAsk, func(_ context.Context, in actor.Msg[subjects.Query],
			say func(subjects.Delta) error, _ actor.Out,
		) error {
			if err := say(subjects.Delta{Text: "you said: "}); err != nil {
				return err
			}
			return say(subjects.Delta{Text: in.Body.Query})
		}))
	nc := b.Connect("user")
	for _, tt := range []struct {
		name, body string
		want       []string
	}{
		{"text", "hi", []string{"you said: ", "hi"}},
		{"JSON", `{"query":"hi"}`, []string{`"text":"you said: "`, `"text":"hi"`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inbox := nc.NewInbox()
			sub, err := nc.SubscribeSync(inbox)
			if err != nil {
				t.Fatal(err)
			}
			if err := nc.PublishMsg(&nats.Msg{Subject: "query.ask", Reply: inbox, Data: []byte(tt.body)}); err != nil {
				t.Fatal(err)
			}
			for _, want := range tt.want {
				m, err := sub.NextMsgWithContext(withTimeout(t))
				if err != nil || !strings.Contains(string(m.Data), want) {
					t.Fatalf("%v, %v, want %s", m, err, want)
				}
				if text := tt.name == "text"; text != (string(m.Data) == want) {
					t.Errorf("%q", m.Data)
				}
			}
			if m, err := sub.NextMsgWithContext(withTimeout(t)); err != nil || len(m.Data) != 0 || len(m.Header) != 0 {
				t.Errorf("the end is %v, %v", m, err)
			}
		})
	}
}

func TestStoreKeys(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	store := newOut(t, b.Connect("generator")).Store("state_generator")
	for _, k := range []string{"conv.a", "conv.b", "turn.a"} {
		if _, err := store.Put(withTimeout(t), k, []byte("{}"), 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, as := range []string{"generator", "user", "gateway"} {
		got, err := newOut(t, b.Connect(as)).Store("state_generator").Keys(withTimeout(t), "conv")
		slices.Sort(got)
		if err != nil || !slices.Equal(got, []string{"conv.a", "conv.b"}) {
			t.Errorf("%s: %q, %v", as, got, err)
		}
		if _, _, err := newOut(t, b.Connect(as)).Store("state_generator").Get(withTimeout(t), "conv.a"); err != nil {
			t.Errorf("%s: %v", as, err)
		}
	}
}

// A reply with a missing piece is an error.
func TestLostPieceIsAnError(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	model := b.Connect("model")
	_, err := model.Subscribe("agent.*.model.chat", func(m *nats.Msg) {
		for _, n := range []string{"0", "2"} {
			_ = model.PublishMsg(&nats.Msg{
				Subject: m.Reply, Data: []byte(`{"content":"` + n + `"}`),
				Header: nats.Header{subjects.HeaderType: {subjects.TypeJSON}, subjects.HeaderPiece: {n}},
			})
		}
		_ = model.PublishMsg(&nats.Msg{Subject: m.Reply})
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := model.Flush(); err != nil {
		t.Fatal(err)
	}
	got, err := askChat(withTimeout(t), newOut(t, b.Connect("generator")), "")
	var f *subjects.Fault
	if !slices.Equal(got, []string{"0"}) || !errors.As(err, &f) || f.Code != subjects.CodeUnavailable {
		t.Errorf("%q, %v", got, err)
	}
}
