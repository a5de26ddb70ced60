package model_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/actors/model"
	"conclave/pkg/actor"
	llm "conclave/pkg/model"
	"conclave/pkg/model/scriptserver"
	"conclave/pkg/model/wire"
	"conclave/subjects"
)

// lyingMachine is the model actor of a machine that reports the model big and answers calls with run.
type lyingMachine struct {
	calls atomic.Int32  // that were started
	ended chan struct{} // nil, or gets one value for each call that the hub ends
	run   func(ctx context.Context, send func(subjects.ModelRunChunk) error) error
}

func (l *lyingMachine) Name() string { return "model" }

func (l *lyingMachine) Routes() []actor.Route {
	return []actor.Route{
		actor.Serve(subjects.MachineReport, func(context.Context, actor.Msg[subjects.Empty],
			actor.Out,
		) (subjects.ModelReport, error) {
			return subjects.ModelReport{
				Slots: 1, Batch: 1,
				Models: []subjects.MachineModel{{Name: "big:latest", Window: 32768}},
			}, nil
		}),
		actor.ServeStream(subjects.MachineRun, func(ctx context.Context, in actor.Msg[subjects.ModelRun],
			send func(subjects.ModelRunChunk) error, _ actor.Out,
		) error {
			if in.Body.Request != nil {
				l.calls.Add(1)
			}
			return l.run(ctx, func(c subjects.ModelRunChunk) error {
				c.Call = in.Body.Call
				return send(c)
			})
		}, actor.Workers(8)),
		actor.Serve(subjects.MachineRunEnd, func(context.Context, actor.Msg[subjects.ModelRunEnd],
			actor.Out,
		) (subjects.Empty, error) {
			select {
			case l.ended <- struct{}{}:
			default:
			}
			return subjects.Empty{}, nil
		}),
	}
}

// startLyingMachine starts a machine a-liar whose model actor lies, beside the servers of the scripts. Calls that no
// speed and no session decide would go to it before they go to another machine.
func startLyingMachine(t *testing.T, times model.LinkTimes, scripts map[string]scriptserver.Script,
	l *lyingMachine,
) *machinesHarness {
	t.Helper()
	scripts["a-liar"] = nil
	w := newMachines(t, times, scripts)
	if err := w.actors["a-liar"].Stop(); err != nil {
		t.Fatal(err)
	}
	w.machines["a-liar"].Run(actor.Spec{Name: l.Name(), Make: func(context.Context, *nats.Conn) (actor.Actor, error) {
		return l, nil
	}}, actor.Config{})
	waitFor(t, "the model of a-liar", func() bool { return w.findModel("a-liar") != nil })
	return w
}

// findModel is the entry of big on a machine in the list of models; nil = it is not listed.
func (w *machinesHarness) findModel(machine string) *subjects.ModelInfo {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), soon)
	defer cancel()
	list, err := actor.Ask(ctx, w.out("generator", "", ""), subjects.ModelListService, subjects.Empty{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, m := range list.Models {
		if m.Machine == machine && m.Name == "big:latest" {
			return &m
		}
	}
	return nil
}

// askModel asks for a model by its name.
func (w *machinesHarness) askModel(ctx context.Context, name string) (llm.Message, llm.Final, error) {
	c := wire.Client{Out: w.out("generator", "s1", "q1"), Timeout: soon}
	return llm.Collect(
		c.Chat(ctx, llm.Request{
			Model: name, Messages: newRequest(strings.Repeat("a prompt ", 20)).Messages,
			Stream: true,
		}))
}

// A machine that claims many tokens in no time is as fast as the hub sees its bytes arrive, also when it waits and then
// sends all at once, and it draws no calls.
func TestMachineCannotClaimSpeed(t *testing.T) {
	t.Parallel()
	const pause, content = 500 * time.Millisecond, "0123456789"
	liar := &lyingMachine{}
	liar.run = func(_ context.Context, send func(subjects.ModelRunChunk) error) error {
		slowOutput := liar.calls.Load() == 1
		if !slowOutput {
			<-time.After(pause)
		}
		if err := send(subjects.ModelRunChunk{N: 0, Chunk: &subjects.ChatChunk{Content: content}}); err != nil {
			return err
		}
		if slowOutput {
			<-time.After(pause)
		}
		last := subjects.ChatChunk{Done: true, Usage: subjects.Usage{PromptTokens: 1 << 20, CompletionTokens: 100_000}}
		return send(subjects.ModelRunChunk{N: 1, Chunk: &last, PromptMicros: 1000, OutputMicros: 100_000})
	}
	honest := slowly("big", longAnswer(50), time.Millisecond)
	honest["big"][0].Reply.Output = 5000
	w := startLyingMachine(t, steadyLink, map[string]scriptserver.Script{"": honest}, liar)
	ask := func(session string) {
		t.Helper()
		c := w.ask(t.Context(), session, "hi")
		c.finish(t)
		if c.err != nil || c.content() != longAnswer(50) {
			t.Fatalf("%v, %q", c.err, c.content())
		}
	}
	ask("first") // so that the hub's own model is measured
	for _, kind := range []string{"slow output", "all at once after a pause"} {
		msg, final, err := w.askModel(t.Context(), "a-liar/big")
		if err != nil || msg.Content != content || final.OutputTokens > len(content) {
			t.Fatalf("%s: %v, %q, %+v", kind, err, msg.Content, final)
		}
		if m := w.findModel("a-liar"); m.OutputSpeed <= 0 || m.OutputSpeed > float64(len(content)*8)/pause.Seconds() {
			t.Errorf("%s: %d bytes in %s are measured as %.0f tokens per second", kind, len(content), pause,
				m.OutputSpeed)
		}
	}
	for i := range 3 {
		ask(fmt.Sprint("s", i))
	}
	if n := liar.calls.Load(); n != 2 {
		t.Errorf("%d calls went to the machine that claims to be fast", n-2)
	}
}

// A machine that only sends signs of life, or chunks without content, loses the call to another one, and is the last
// choice of the next calls; so is one whose replies are empty. The user is told.
func TestMachineThatStallsIsAvoided(t *testing.T) {
	t.Parallel()
	times := steadyLink
	times.Stall, times.Avoid = 300*time.Millisecond, time.Hour
	for name, next := range map[string]func(n int) subjects.ModelRunChunk{
		"signs of life": func(int) subjects.ModelRunChunk { return subjects.ModelRunChunk{} },
		"chunks without content": func(n int) subjects.ModelRunChunk {
			return subjects.ModelRunChunk{N: n, Chunk: &subjects.ChatChunk{}}
		},
		"an empty reply": func(n int) subjects.ModelRunChunk {
			return subjects.ModelRunChunk{N: n, Chunk: &subjects.ChatChunk{Done: true}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			liar := &lyingMachine{ended: make(chan struct{}, 1)}
			liar.run = func(ctx context.Context, send func(subjects.ModelRunChunk) error) error {
				for n := 0; ; n++ {
					c := next(n)
					if err := send(c); err != nil || c.Chunk != nil && c.Chunk.Done {
						return err
					}
					select {
					case <-time.After(20 * time.Millisecond):
					case <-liar.ended:
						return nil
					case <-ctx.Done():
						return nil
					}
				}
			}
			w := startLyingMachine(t, times, map[string]scriptserver.Script{"b-box": always("big")}, liar)
			c := w.ask(t.Context(), "s1", "hi")
			if name != "an empty reply" {
				c.awaitNotice(t, "a-liar sent no part of the answer for 300ms")
				c.awaitNotice(t, "big on b-box answers instead")
			}
			c.finish(t)
			if c.err != nil || name != "an empty reply" && c.content() != "I am big ." {
				t.Fatalf("%v, %q, %q", c.err, c.content(), c.notices)
			}
			for i := range 3 { // also in the session that it answered last
				c := w.ask(t.Context(), fmt.Sprint("s", i), "hi")
				c.finish(t)
				if c.err != nil || c.content() != "I am big ." || len(c.notices) > 0 {
					t.Errorf("call %d: %v, %q, %q", i, c.err, c.content(), c.notices)
				}
			}
			if n := liar.calls.Load(); n != 1 {
				t.Errorf("the machine was asked %d times", n)
			}
		})
	}
}
