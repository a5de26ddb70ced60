package ask_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"conclave/pkg/ask"
	"conclave/pkg/bus/bustest"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // they wait for servers more than they compute
	goleak.VerifyTestMain(m)
}

const patience = 15 * time.Second

// answering has the broker hand each request to f.
func answering(t *testing.T, b *bustest.Bus, f func(m *nats.Msg)) *nats.Conn {
	t.Helper()
	broker := b.As("broker")
	if _, err := broker.Subscribe("agent.*.tool.request.>", f); err != nil {
		t.Fatal(err)
	}
	if err := broker.Flush(); err != nil {
		t.Fatal(err)
	}
	return broker
}

func question(s string) *nats.Msg { return &nats.Msg{Subject: "tool.request.x", Data: []byte(s)} }

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// A reply that comes when nobody waits for it any more is not given to the next question.
func TestLateReply(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	asked := make(chan *nats.Msg, 4)
	broker := answering(t, b, func(m *nats.Msg) { asked <- m })
	nc := b.As("operator")
	a := ask.New(nc)

	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		late := <-asked
		cancel() // the asker leaves, and only then comes the answer
		asked <- late
	}()
	if _, err := a.Ask(ctx, question("first")); !errors.Is(err, context.Canceled) {
		t.Fatalf("the first: %v", err)
	}
	late := <-asked
	done := make(chan struct{})
	go func() {
		defer close(done)
		second := <-asked
		// On one connection what is sent first arrives first: the late one is there before the right one.
		for _, r := range []*nats.Msg{late, second} {
			if err := r.Respond([]byte("to " + string(r.Data))); err != nil {
				t.Error(err)
			}
		}
		if err := broker.Flush(); err != nil {
			t.Error(err)
		}
	}()
	r, err := a.Ask(within(t, patience), question("second"))
	if err != nil || string(r.Data) != "to second" {
		t.Errorf("the second got %v, %v", r, err)
	}
	<-done
	if n := nc.NumSubscriptions(); n != 1 {
		t.Errorf("%d inboxes", n)
	}
}

// Somebody who was asleep answers all at once what nobody waits for any more. The one who still waits gets his answer,
// though it comes last.
func TestManyLateReplies(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	const n = 100
	asleep := make(chan *nats.Msg, n+1)
	answering(t, b, func(m *nats.Msg) { asleep <- m })
	nc := b.As("operator")
	a := ask.New(nc)
	var late []*nats.Msg
	for range n {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			late = append(late, <-asleep)
			cancel()
		}()
		if _, err := a.Ask(ctx, question("x")); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	go func() {
		last := <-asleep
		for _, m := range append(late, last) {
			_ = m.Respond([]byte("to " + string(m.Data)))
		}
	}()
	if r, err := a.Ask(within(t, patience), question("the last")); err != nil || string(r.Data) != "to the last" {
		t.Errorf("got %v, %v", r, err)
	}
	// The others did not even come this far: they would have filled an inbox.
	if in, n := nc.Stats().InMsgs, nc.NumSubscriptions(); in != 1 || n != 1 {
		t.Errorf("%d replies came, %d inboxes", in, n)
	}
}

// Replies beyond the first are nobody's answer, though the next question uses the same inbox.
func TestMoreThanOneReply(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	memory := b.As("memory") // its replies may be many
	var before *nats.Msg
	if _, err := memory.Subscribe("ctl.*.memory.query", func(m *nats.Msg) {
		if before != nil { // on one connection what is sent first arrives first
			if err := before.Respond([]byte("one more to " + string(before.Data))); err != nil {
				t.Error(err)
			}
		}
		before = m
		if err := m.Respond([]byte("to " + string(m.Data))); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := memory.Flush(); err != nil {
		t.Fatal(err)
	}
	nc := b.As("user")
	a := ask.New(nc)
	const n = 20
	for i := range n {
		r, err := a.Ask(within(t, patience), &nats.Msg{Subject: "memory.query", Data: fmt.Append(nil, i)})
		if err != nil || string(r.Data) != fmt.Sprint("to ", i) {
			t.Fatalf("question %d got %v, %v", i, r, err)
		}
	}
	if in, subs := nc.Stats().InMsgs, nc.NumSubscriptions(); in != 2*n-1 || subs != 1 {
		t.Errorf("%d replies came over %d inboxes: the race did not take place", in, subs)
	}
}

func TestConcurrentAskers(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	var wg sync.WaitGroup
	defer wg.Wait()
	answering(t, b, func(m *nats.Msg) { // in any order
		wg.Go(func() { _ = m.Respond([]byte("to " + string(m.Data))) })
	})
	a := ask.New(b.As("operator"))
	var askers sync.WaitGroup
	for i := range 32 {
		askers.Go(func() {
			for j := range 50 {
				q := fmt.Sprintf("%d.%d", i, j)
				r, err := a.Ask(within(t, patience), question(q))
				if err != nil || string(r.Data) != "to "+q {
					t.Errorf("%s got %v, %v", q, r, err)
					return
				}
			}
		})
	}
	askers.Wait()
}

func TestEnds(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	nc := b.As("operator")
	a := ask.New(nc)
	start := time.Now()
	if _, err := a.Ask(within(t, patience), question("anyone?")); !errors.Is(err, nats.ErrNoResponders) || time.Since(start) > 2*time.Second {
		t.Errorf("nobody there: %v after %s", err, time.Since(start))
	}
	asked := make(chan struct{}, 8)
	answering(t, b, func(m *nats.Msg) {
		asked <- struct{}{}
		if string(m.Data) == "empty" {
			_ = m.RespondMsg(&nats.Msg{Header: nats.Header{"X": {"y"}}})
		}
	})
	if r, err := a.Ask(within(t, patience), question("empty")); err != nil || len(r.Data) != 0 {
		t.Errorf("an empty reply: %v, %v", r, err)
	}
	<-asked
	if _, err := a.Ask(within(t, 20*time.Millisecond), question("silence")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no answer: %v", err)
	}
	<-asked
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	if _, err := a.Ask(ctx, question("never mind")); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	if _, err := a.Ask(ctx, question("too late")); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled before: %v", err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Ask(within(t, patience), &nats.Msg{Subject: "tool.request.x", Data: make([]byte, 1<<20+1)}); !errors.Is(err, nats.ErrMaxPayload) {
		t.Errorf("too large: %v", err)
	}
	if len(asked) > 0 {
		t.Error("a question was sent that nobody could wait for")
	}
	if _, err := a.Ask(within(t, patience), &nats.Msg{}); err == nil {
		t.Error("no subject: asked")
	}
	// Nothing of all that left more than the one inbox.
	if n := nc.NumSubscriptions(); n > 1 {
		t.Errorf("%d inboxes", n)
	}
}

// Whoever waits when the connection closes is told, all of them, and so is whoever asks after.
func TestClosedWhileWaiting(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(nc *nats.Conn) error{
		"close": func(nc *nats.Conn) error { nc.Close(); return nil },
		"drain": func(nc *nats.Conn) error { return nc.Drain() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := bustest.Start(t)
			asked := make(chan struct{}, 16)
			answering(t, b, func(*nats.Msg) { asked <- struct{}{} })
			nc := b.As("operator")
			a := ask.New(nc)
			const askers = 8
			told := make(chan error, askers)
			for range askers {
				go func() {
					_, err := a.Ask(context.Background(), question("hello?"))
					told <- err
				}()
			}
			for range askers {
				<-asked
			}
			if err := end(nc); err != nil {
				t.Fatal(err)
			}
			for range askers {
				select {
				case err := <-told:
					if !errors.Is(err, ask.ErrClosed) {
						t.Errorf("told %v", err)
					}
				case <-time.After(patience):
					t.Fatal("somebody waits for ever")
				}
			}
			if _, err := a.Ask(context.Background(), question("still there?")); !errors.Is(err, nats.ErrConnectionClosed) {
				t.Errorf("after that: %v", err)
			}
		})
	}
}

// A server that restarts in between loses the questions in flight, and no others.
func TestReconnect(t *testing.T) {
	t.Parallel()
	for _, tcp := range []bool{false, true} {
		t.Run(fmt.Sprintf("tcp=%v", tcp), func(t *testing.T) {
			t.Parallel()
			b := bustest.Start(t)
			b.TCP = tcp
			answering(t, b, func(m *nats.Msg) { _ = m.Respond([]byte("to " + string(m.Data))) })
			nc := b.As("operator")
			a := ask.New(nc)
			if _, err := a.Ask(within(t, patience), question("before")); err != nil {
				t.Fatal(err)
			}
			if err := b.Srv.Restart(); err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(patience); ; {
				r, err := a.Ask(within(t, time.Second), question("after"))
				if err == nil {
					if string(r.Data) != "to after" {
						t.Errorf("got %s", r.Data)
					}
					break
				}
				if time.Now().After(end) {
					t.Fatal(err)
				}
			}
			if n := nc.NumSubscriptions(); n > 1 {
				t.Errorf("%d inboxes", n)
			}
		})
	}
}

// Many questions at once need many inboxes; afterwards only a bounded number stays.
func TestInboxesAreBounded(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	const askers, keep = 700, 256
	waiting := make(chan *nats.Msg, askers)
	answering(t, b, func(m *nats.Msg) { waiting <- m })
	nc := b.As("operator")
	a := ask.New(nc)
	for round := range 2 {
		var wg sync.WaitGroup
		for range askers {
			wg.Go(func() {
				if _, err := a.Ask(within(t, patience), question("x")); err != nil {
					t.Error(err)
				}
			})
		}
		var all []*nats.Msg
		for range askers { // all of them wait at once
			all = append(all, <-waiting)
		}
		if n := nc.NumSubscriptions(); n != askers {
			t.Errorf("%d inboxes for %d who wait", n, askers)
		}
		for _, m := range all {
			if err := m.Respond([]byte("y")); err != nil {
				t.Fatal(err)
			}
		}
		wg.Wait()
		if n := nc.NumSubscriptions(); n != keep {
			t.Errorf("round %d: %d inboxes stay, want %d", round, n, keep)
		}
	}
}

// A tool shares its account with others and may listen below its own prefix only: any other inbox would be a permission
// violation, and fail the test.
func TestPrefixOfATool(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	nc := b.As("tool_get_datetime")
	a := ask.New(nc)
	if _, err := a.Ask(within(t, patience), &nats.Msg{Subject: "tool.output.get_datetime.c1"}); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("asking: %v", err)
	}
	m := &nats.Msg{Subject: "tool.output.get_datetime.c1"}
	_, _ = a.Ask(within(t, patience), m)
	if !strings.HasPrefix(m.Reply, "_INBOX.tool_get_datetime.") {
		t.Errorf("its inbox is %s", m.Reply)
	}
}
