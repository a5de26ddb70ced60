package model_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/pkg/actor"
	llm "conclave/pkg/model"
	"conclave/pkg/model/scriptserver"
	"conclave/pkg/model/wire"
	"conclave/subjects"
)

// evilMachine is the model actor of a machine that somebody else controls: it reports any model, and answers by its
// name.
type evilMachine struct {
	t       *testing.T
	foreign chan string // id of a call on another machine
}

func (e evilMachine) Name() string { return "model" }

func (e evilMachine) Routes() []actor.Route {
	return []actor.Route{
		actor.Serve(subjects.MachineReport, func(context.Context, actor.Msg[subjects.Empty],
			actor.Out,
		) (subjects.ModelReport, error) {
			r := subjects.ModelReport{Slots: 1 << 40, Batch: -1}
			for _, name := range []string{
				"another-call", "repeats", "skips", "notices", "counts", "endless", "fault",
				"bad name", "x:cloud", strings.Repeat("n", 300),
			} {
				r.Models = append(r.Models, subjects.MachineModel{
					Name: name, Window: -1, Size: -1, Tools: true,
					Family: strings.Repeat("f", 10_000),
				})
			}
			return r, nil
		}),
		actor.ServeStream(subjects.MachineRun, e.run, actor.Workers(8)),
		actor.Serve(subjects.MachineRunEnd, func(context.Context, actor.Msg[subjects.ModelRunEnd],
			actor.Out,
		) (subjects.Empty, error) {
			return subjects.Empty{}, nil
		}),
	}
}

func (e evilMachine) run(ctx context.Context, in actor.Msg[subjects.ModelRun], send func(subjects.ModelRunChunk) error,
	_ actor.Out,
) error {
	id := in.Body.Call
	chunk := func(n int, p subjects.ChatChunk) {
		if err := send(subjects.ModelRunChunk{Call: id, N: n, Chunk: &p}); err != nil && ctx.Err() == nil {
			e.t.Error(err)
		}
	}
	end := func(n int) { chunk(n, subjects.ChatChunk{Content: ".", Done: true, Model: "i am another"}) }
	if in.Body.Request == nil { // the hub reads on after a gap
		chunk(1, subjects.ChatChunk{Content: "b"})
		end(2)
		return nil
	}
	switch in.Body.Request.Model {
	case "another-call":
		id = <-e.foreign
		chunk(0, subjects.ChatChunk{Content: "injected"})
		end(1)
	case "repeats":
		for _, n := range []int{0, 0, 0, 1, 0, 1} {
			chunk(n, subjects.ChatChunk{Content: string(rune('a' + n))})
		}
		end(2)
	case "skips":
		chunk(0, subjects.ChatChunk{Content: "a"})
		chunk(5, subjects.ChatChunk{Content: "far"})
		end(6)
	case "notices":
		chunk(0, subjects.ChatChunk{
			Content: "a", Notice: "visit evil.example",
			Reading: &subjects.PromptReading{Tokens: 1, Millis: 1 << 40},
		})
		end(1)
	case "counts":
		chunk(0, subjects.ChatChunk{
			Done: true, Content: "a",
			Usage:  subjects.Usage{PromptTokens: -1, CompletionTokens: 1 << 60, Millis: 1 << 60},
			Reason: strings.Repeat("r", 100_000),
		})
	case "endless":
		for n := range 1000 {
			if ctx.Err() != nil {
				return nil
			}
			chunk(n, subjects.ChatChunk{Content: strings.Repeat("x", 200<<10)})
		}
	case "fault":
		return subjects.Faultf(subjects.CodeModelMalformed, "%s", strings.Repeat("\x1b[2Jfault ", 20_000))
	}
	return nil
}

// A machine that lies gets no further than its own calls: what it sends is bounded, numbered and of the call that was
// asked for.
func TestMachineIsNotTrusted(t *testing.T) {
	t.Parallel()
	honest := scriptserver.Script{
		"big": {
			{Always: true, Reply: scriptserver.Reply{
				Content: longAnswer(200),
				Quirks:  scriptserver.Quirks{TokenDelay: 5 * time.Millisecond},
			}},
		},
	}
	w := newMachines(t, steadyLink, map[string]scriptserver.Script{"gpu-box": honest, "evil": nil})
	evil := evilMachine{t, make(chan string, 1)}
	if err := w.actors["evil"].Stop(); err != nil {
		t.Fatal(err)
	}
	w.machines["evil"].Run(actor.Spec{Name: evil.Name(), Make: func(context.Context, *nats.Conn) (actor.Actor, error) {
		return evil, nil
	}}, actor.Config{})
	var list subjects.ModelList
	waitFor(t, "the models of evil", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		var err error
		if list, err = actor.Ask(ctx, w.out("generator", "", ""), subjects.ModelListService,
			subjects.Empty{}); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(jsonOf(t, list.Models), "repeats")
	})
	for _, m := range list.Models {
		if m.Machine == "evil" && (m.Name == "bad name" || m.Name == "x:cloud" || len(m.Name) > 200 ||
			len(m.Family) > 200 || m.Window < 0 || m.Size < 0) {
			t.Errorf("it is listed: %+v", m)
		}
	}
	ask := func(name string) (llm.Message, llm.Final, []string, error) {
		var notices []string
		c := wire.Client{Out: w.out("generator", "s1", "q1"), Timeout: soon}
		msg, final, err := llm.Collect(func(yield func(llm.Chunk, error) bool) {
			for chunk, err := range c.Chat(t.Context(), llm.Request{
				Model: name, Messages: newRequest("x").Messages,
				Stream: true,
			}) {
				if chunk.Notice != "" {
					notices = append(notices, chunk.Notice)
				}
				if chunk.Reading != nil {
					t.Errorf("%s: a reading of the machine was passed on", name)
				}
				if !yield(chunk, err) {
					return
				}
			}
		})
		return msg, final, notices, err
	}
	for name, want := range map[string]string{"repeats": "ab.", "skips": "ab.", "notices": "a.", "counts": "a"} {
		msg, final, notices, err := ask(name)
		if err != nil || msg.Content != want {
			t.Errorf("%s: %q, %v", name, msg.Content, err)
		}
		if final.Model != name || final.PromptTokens < 0 || final.OutputTokens > 1<<30 || len(final.Reason) > 100 ||
			strings.Contains(strings.Join(notices, ""), "evil.example") {
			t.Errorf("%s: %+v, %q", name, final, notices)
		}
	}
	if msg, _, _, err := ask("endless"); !errors.Is(err, llm.ErrMalformed) || len(msg.Content) > 17<<20 {
		t.Errorf("endless: %d bytes, %v", len(msg.Content), err)
	}
	if _, _, _, err := ask("fault"); err == nil || len(err.Error()) > 2000 || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("fault: %v", err)
	}
	// Chunks of a call on another machine: not accepted here, and they do not reach that call.
	replies := make(chan string, 1)
	tap := w.machines["gpu-box"]
	nc, err := tap.Dial("model")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := nc.Subscribe("agent.model.model.run", func(m *nats.Msg) {
		select {
		case replies <- m.Reply:
		default:
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	c := w.ask(t.Context(), "s2", "hi")
	waitFor(t, "the honest answer has begun", func() bool { return c.content() != "" })
	reply := <-replies
	forger, err := w.machines["evil"].Dial("model")
	if err != nil {
		t.Fatal(err)
	}
	defer forger.Close()
	forged := nats.NewMsg(reply)
	forged.Header.Set(subjects.HeaderType, subjects.TypeJSON)
	forged.Header.Set(subjects.HeaderPiece, "1")
	forged.Data = []byte(`{"call":"x","n":1,"chunk":{"content":"forged","done":true}}`)
	for range 10 {
		if err := forger.PublishMsg(forged); err != nil {
			t.Fatal(err)
		}
	}
	if err := forger.Flush(); err != nil {
		t.Fatal(err)
	}
	evil.foreign <- "some-call"
	if _, _, _, err := ask("another-call"); !errors.Is(err, llm.ErrMalformed) {
		t.Errorf("chunks of another call: %v", err)
	}
	c.finish(t)
	if c.err != nil || c.content() != longAnswer(200) {
		t.Errorf("the honest answer: %v, %q", c.err, c.content())
	}
}
