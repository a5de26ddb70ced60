package model_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"conclave/actors/model"
	"conclave/pkg/actor/actortest"
	llm "conclave/pkg/model"
	"conclave/pkg/model/scriptserver"
	"conclave/pkg/model/wire"
	"conclave/subjects"
)

// scriptedReply is the behaviour of a model for one request. It ends when say returns false or ctx ends.
type scriptedReply func(ctx context.Context, say func(llm.Chunk, error) bool)

// scriptedBackend is a backend whose models follow scripted replies in order; the last one is repeated.
type scriptedBackend struct {
	mu    sync.Mutex
	acts  map[string][]scriptedReply
	asked []string // models, in order
}

func (s *scriptedBackend) next(name string) scriptedReply {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, name)
	acts := s.acts[name]
	if len(acts) > 1 {
		s.acts[name] = acts[1:]
	}
	return acts[0]
}

func (s *scriptedBackend) calls() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.asked, " ")
}

func (s *scriptedBackend) Chat(ctx context.Context, r llm.Request) iter.Seq2[llm.Chunk, error] {
	return func(yield func(llm.Chunk, error) bool) { s.next(r.Model)(ctx, yield) }
}

func (s *scriptedBackend) Embed(ctx context.Context, name string, texts []string) (v llm.Vectors, err error) {
	s.next(name)(ctx, func(_ llm.Chunk, failed error) bool { err = failed; return true })
	for range texts {
		v.Values = append(v.Values, []float32{1})
	}
	return v, err
}

func (s *scriptedBackend) List(context.Context) ([]llm.Info, error) {
	return []llm.Info{{Name: "big"}}, nil
}

func (s *scriptedBackend) Show(_ context.Context, name string) (llm.Info, error) {
	return llm.Info{Name: name}, nil
}

func (s *scriptedBackend) Pull(context.Context, string) iter.Seq2[llm.Progress, error] {
	return func(func(llm.Progress, error) bool) {}
}

// says answers after a while.
func says(text string, after time.Duration) scriptedReply {
	return func(ctx context.Context, say func(llm.Chunk, error) bool) {
		select {
		case <-time.After(after):
			say(llm.Chunk{Content: text, Done: true}, nil)
		case <-ctx.Done():
			say(llm.Chunk{}, ctx.Err())
		}
	}
}

// stallsFor hangs until its context ends and so much longer.
func stallsFor(longer time.Duration) scriptedReply {
	return func(ctx context.Context, say func(llm.Chunk, error) bool) {
		<-ctx.Done()
		time.Sleep(longer)
		say(llm.Chunk{}, fmt.Errorf("%w: no more", llm.ErrCut))
	}
}

// first says something before it does something else.
func first(c llm.Chunk, then scriptedReply) scriptedReply {
	return func(ctx context.Context, say func(llm.Chunk, error) bool) {
		if say(c, nil) {
			then(ctx, say)
		}
	}
}

// late hangs until its context ends, and then goes on as if nothing had happened.
func late(chunks ...llm.Chunk) scriptedReply {
	return func(ctx context.Context, say func(llm.Chunk, error) bool) {
		<-ctx.Done()
		for _, c := range chunks {
			if !say(c, nil) {
				return
			}
		}
	}
}

// newScriptedHarness is a world in a bubble, with a backend that acts.
func newScriptedHarness(t *testing.T, acts map[string][]scriptedReply, change func(*model.Config)) (*harness,
	*scriptedBackend,
) {
	t.Helper()
	w, s := &harness{t: t, refuse: map[string]error{}}, &scriptedBackend{acts: acts}
	cfg := defaultConfig("http://127.0.0.1:1")
	if change != nil {
		change(&cfg)
	}
	w.build(cfg, map[string]llm.Backend{model.Ollama: s})
	return w, s
}

// auditOf is the audit log of one account, "before allowed, after ok". All its records must be of one call each.
func (w *harness) auditOf(account string) string {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	open := map[string]bool{}
	for _, r := range w.records {
		if r.AgentID != account {
			continue
		}
		if r.Phase == subjects.AuditAfter && !open[r.ID] {
			w.t.Errorf("an outcome without a beginning: %+v", r)
		}
		open[r.ID] = true
		out = append(out, strings.TrimSpace(r.Phase+" "+r.Status+" "+r.Reason))
	}
	return strings.Join(out, ", ")
}

// The critic is asked at once and the generator a second later, for a model that answers after two.
func TestForegroundPreemptsBackground(t *testing.T) {
	t.Parallel()
	done := llm.Chunk{Content: "late", Done: true}
	for _, tt := range []struct {
		name    string
		acts    []scriptedReply // of the critic's model
		code    string
		text    string
		says    string        // in the fault
		replied time.Duration // when the critic's reply came
		asked   string
		trail   string
	}{
		{
			name: "it lets go at once, and starts anew", acts: []scriptedReply{stallsFor(0), says("4", time.Second)},
			text: "4", replied: 4 * time.Second, asked: "judge big judge", trail: "before allowed, after ok",
		},
		{
			name: "it lets go after a while", acts: []scriptedReply{
				stallsFor(10 * time.Second),
				says("4", time.Second),
			},
			text: "4", replied: 12 * time.Second, asked: "judge big judge", trail: "before allowed, after ok",
		},
		{
			name: "it gives way in the middle of what was said",
			acts: []scriptedReply{first(llm.Chunk{Content: "The answer"}, stallsFor(0)), says("4", time.Second)},
			code: subjects.CodeBusy, text: "The answer", says: "preempted by a foreground request after a part of it " +
				"was sent; retry",
			replied: time.Second, asked: "judge big", trail: "before allowed, after unknown busy",
		},
		{
			name: "thoughts were said too", acts: []scriptedReply{
				first(llm.Chunk{Thinking: "hm"}, stallsFor(0)),
				says("4", time.Second),
			},
			code: subjects.CodeBusy, says: "preempted", replied: time.Second, asked: "judge big",
			trail: "before allowed, after unknown busy",
		},
		{
			name: "an empty piece is nothing said", acts: []scriptedReply{
				first(llm.Chunk{}, stallsFor(0)),
				says("4", time.Second),
			},
			text: "4", replied: 4 * time.Second, asked: "judge big judge", trail: "before allowed, after ok",
		},
		{
			name: "what comes after the cut is not said", acts: []scriptedReply{
				late(llm.Chunk{Content: "old"}, done),
				says("new", time.Second),
			},
			text: "new", replied: 4 * time.Second, asked: "judge big judge", trail: "before allowed, after ok",
		},
		{
			name: "what is complete is not thrown away", acts: []scriptedReply{late(done), says("new", time.Second)},
			text: "late", replied: time.Second, asked: "judge big", trail: "before allowed, after ok",
		},
		{
			name: "what left the machine is refused, not asked again",
			acts: []scriptedReply{
				late(llm.Chunk{Content: "far", Final: llm.Final{RemoteHost: "ollama.com"}}),
				says("new", time.Second),
			},
			code: subjects.CodeModelRemote, says: "allow_remote", replied: time.Second, asked: "judge big",
			trail: "before allowed, after denied model_remote",
		},
		{
			name: "its time is over in its next turn", acts: []scriptedReply{stallsFor(0), stallsFor(0)},
			code: subjects.CodeTimeout, replied: soon, asked: "judge big judge",
			trail: "before allowed, after unknown timeout",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, s := newScriptedHarness(t, map[string][]scriptedReply{
					"judge": tt.acts,
					"big":   {says("hello", 2*time.Second)},
				}, nil)
				begun := time.Now()
				grade := make(chan reply, 1)
				var took time.Duration
				go func() {
					r := w.askAs("critic", "q1", subjects.ChatRequest{Role: "critic"})
					took = time.Since(begun)
					grade <- r
				}()
				time.Sleep(time.Second)
				synctest.Wait()
				if running, waiting := w.m.QueueCounts(); running != 1 || waiting != 0 {
					t.Errorf("%d run and %d wait", running, waiting)
				}
				if r := w.ask(subjects.ChatRequest{}); r.err != nil || r.text != "hello" ||
					time.Since(begun) != 3*time.Second {
					t.Errorf("the generator: %v, %q, after %s", r.err, r.text, time.Since(begun))
				}
				r := <-grade
				if r.code() != tt.code || r.text != tt.text || took != tt.replied || r.last.Done != (tt.code == "") {
					t.Errorf("the critic: %v, %q, after %s", r.err, r.text, took)
				}
				if tt.says != "" && (r.err == nil || !strings.Contains(r.err.Error(), tt.says)) {
					t.Errorf("told %v", r.err)
				}
				if got := s.calls(); got != tt.asked {
					t.Errorf("asked: %s", got)
				}
				if got := w.auditOf("critic"); got != tt.trail {
					t.Errorf("audit of the critic: %s", got)
				}
				if got := w.auditOf("generator"); got != "before allowed, after ok" {
					t.Errorf("audit of the generator: %s", got)
				}
				if running, waiting := w.m.QueueCounts(); running != 0 || waiting != 0 {
					t.Errorf("at the end %d run and %d wait", running, waiting)
				}
			})
		})
	}
}

// The critic's call is preempted and waits again behind a long answer. It can be stopped there, and its time runs.
func TestPreemptedCallEndsWithItsDeadline(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, stop string
		after      time.Duration
		code       string
	}{
		{"stopped", "q1", 5 * time.Second, subjects.CodeStopped},
		{"another query is stopped", "q3", soon, subjects.CodeTimeout},
	} {
		synctest.Test(t, func(t *testing.T) {
			w, s := newScriptedHarness(t, map[string][]scriptedReply{
				"judge": {stallsFor(0)},
				"big":   {says("hello", soon*3/4)},
			}, nil)
			begun := time.Now()
			grade, answers := make(chan reply, 1), make(chan reply, 2)
			go func() { grade <- w.askAs("critic", "q1", subjects.ChatRequest{Role: "critic"}) }()
			time.Sleep(time.Second) // their time is over a second after the critic's
			for range 2 {
				go func() { answers <- w.askAs("generator", "q2", subjects.ChatRequest{}) }()
			}
			time.Sleep(4 * time.Second)
			if running, waiting := w.m.QueueCounts(); running != 1 || waiting != 2 {
				t.Errorf("%s: %d run and %d wait", tt.name, running, waiting)
			}
			if _,
				err := w.rec.Deliver(t, w.m, actortest.Message{
				Subject: "query.cancel." + tt.stop,
				Body:    subjects.Cancel{},
			}); err != nil {
				t.Fatal(err)
			}
			if r := <-grade; r.code() != tt.code || time.Since(begun) != tt.after {
				t.Errorf("%s: %v after %s", tt.name, r.err, time.Since(begun))
			}
			if got := w.auditOf("critic"); got != "before allowed, after unknown "+tt.code {
				t.Errorf("%s: audit: %s", tt.name, got)
			}
			if r := <-answers; r.err != nil {
				t.Errorf("%s: %v", tt.name, r.err)
			}
			<-answers
			if got := s.calls(); got != "judge big big" {
				t.Errorf("%s: asked %s", tt.name, got)
			}
		})
	}
}

// Who stands where is the account's matter, whatever a request says of itself.
func TestRequestCannotChoosePriority(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name        string
		holds, asks string
		holding     subjects.ChatRequest
		asking      subjects.ChatRequest
		givesWay    bool
	}{
		{
			"critic to generator", "critic", "generator",
			subjects.ChatRequest{Role: "critic"},
			subjects.ChatRequest{},
			true,
		},
		{
			"respondent B to generator", subjects.RespondentB, "generator",
			subjects.ChatRequest{},
			subjects.ChatRequest{},
			true,
		},
		{
			"critic to respondent B", "critic", subjects.RespondentB,
			subjects.ChatRequest{Role: "critic"},
			subjects.ChatRequest{},
			true,
		},
		{
			"critic to the broker, which chooses tools", "critic", "broker",
			subjects.ChatRequest{Role: "critic"},
			subjects.ChatRequest{Role: "coder"},
			true,
		},
		{
			"respondent B to critic", subjects.RespondentB, "critic",
			subjects.ChatRequest{},
			subjects.ChatRequest{Role: "critic"},
			false,
		},
		{"generator to memory", "generator", "memory", subjects.ChatRequest{}, subjects.ChatRequest{}, false},
		{
			"the critic in the assistant's role", "critic", "generator",
			subjects.ChatRequest{Role: "assistant"},
			subjects.ChatRequest{},
			true,
		},
		{
			"the critic asks for the assistant's model", "critic", "generator",
			subjects.ChatRequest{Model: "big"},
			subjects.ChatRequest{},
			true,
		},
		{
			"the generator in the critic's role", "generator", "memory",
			subjects.ChatRequest{Role: "critic"},
			subjects.ChatRequest{},
			false,
		},
		{
			"the critic pushes with another role", "generator", "critic",
			subjects.ChatRequest{Role: "critic"},
			subjects.ChatRequest{Role: "assistant"},
			false,
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			acts := []scriptedReply{says("done", 5*time.Second)}
			w, _ := newScriptedHarness(t, map[string][]scriptedReply{"judge": acts, "big": acts, "coder": acts}, nil)
			held := make(chan reply, 1)
			go func() { held <- w.askAs(tt.holds, "q1", tt.holding) }()
			synctest.Wait()
			begun := time.Now()
			r := w.askAs(tt.asks, "q2", tt.asking)
			if took := time.Since(begun); r.err != nil || (took == 5*time.Second) != tt.givesWay ||
				took > 10*time.Second {
				t.Errorf("%s: %v after %s", tt.name, r.err, took)
			}
			if r := <-held; r.err != nil || r.text != "done" || len(r.pieces) != 1 {
				t.Errorf("%s: %v, %+v", tt.name, r.err, r.pieces)
			}
		})
	}
}

// Vectors wait in the same way.
func TestEmbeddingsArePreempted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, s := newScriptedHarness(t,
			map[string][]scriptedReply{"nomic-embed-text": {stallsFor(time.Second), says("", time.Second)}}, nil)
		begun, took := time.Now(), time.Duration(0)
		failed := make(chan error, 1)
		var e subjects.EmbedReply
		go func() {
			err := w.deliver("agent.critic.model.embed", subjects.EmbedRequest{Texts: []string{"x", "y"}}, &e)
			took = time.Since(begun)
			failed <- err
		}()
		synctest.Wait()
		if err := w.deliver("agent.memory.model.embed", subjects.EmbedRequest{Texts: []string{"z"}}, nil); err != nil ||
			time.Since(begun) != time.Second {
			t.Errorf("%v after %s", err, time.Since(begun))
		}
		if err := <-failed; err != nil || len(e.Vectors) != 2 || took != 2*time.Second {
			t.Errorf("%v, %+v, after %s", err, e, took)
		}
		if got := w.auditOf("critic") + "; " + w.auditOf("memory"); got != "before allowed, after ok; before "+
			"allowed, after ok" || len(s.asked) != 3 {
			t.Errorf("audit: %s; asked %s", got, s.calls())
		}
	})
}

// A flood of grades is turned away in part. An answer is not, nor does it wait.
func TestBackgroundFloodIsRejected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, _ := newScriptedHarness(t, map[string][]scriptedReply{
			"judge": {stallsFor(time.Hour)},
			"big":   {says("hello", time.Second)},
		}, func(c *model.Config) { c.Ollama.Queue = 16 })
		grades := make(chan reply, 100)
		for range cap(grades) {
			go func() { grades <- w.askAs("critic", "q1", subjects.ChatRequest{Role: "critic"}) }()
		}
		synctest.Wait()
		if running, waiting := w.m.QueueCounts(); running != 1 || waiting != 4 || len(grades) != 95 {
			t.Errorf("%d run, %d wait, %d are turned away", running, waiting, len(grades))
		}
		for range len(grades) {
			if r := <-grades; r.code() != subjects.CodeBusy {
				t.Errorf("%v", r.err)
			}
		}
		begun := time.Now()
		if r := w.ask(subjects.ChatRequest{}); r.err != nil || time.Since(begun) != time.Second {
			t.Errorf("%v after %s", r.err, time.Since(begun))
		}
		if _,
			err := w.rec.Deliver(t, w.m, actortest.Message{
			Subject: "query.cancel.q1",
			Body:    subjects.Cancel{},
		}); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			if r := <-grades; r.code() != subjects.CodeStopped {
				t.Errorf("%v", r.err)
			}
		}
		if running, waiting := w.m.QueueCounts(); running != 0 || waiting != 0 {
			t.Errorf("at the end %d run and %d wait", running, waiting)
		}
	})
}

// Under the real grants, over real HTTP: the model hangs for one, the other is answered meanwhile, and the request that
// hung is really cut at the server. In the end the first one is answered, once.
func TestBusPreemption(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, behind, front string }{
		{"critic to generator", "critic", "generator"},
		{"respondent B to generator", subjects.RespondentB, "generator"},
		{"critic to respondent B", "critic", subjects.RespondentB},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			hang := scriptserver.Exchange{Reply: scriptserver.Reply{Quirks: scriptserver.Quirks{Hang: true}}}
			script := always("big")
			script["judge"] = []scriptserver.Exchange{hang, hang, {Reply: scriptserver.Reply{Content: "[RESULT] 4"}}}
			w := newBusHarness(t, script, nil)
			type graded struct {
				text   string
				pieces int
				err    error
			}
			grade := make(chan graded, 1)
			behind := wire.Client{Out: w.out(tt.behind, "s1", "q1"), Role: "critic", Timeout: soon}
			front := wire.Client{Out: w.out(tt.front, "s1", "q1"), Timeout: soon}
			go func() {
				var g graded
				for c, err := range behind.Chat(t.Context(), llm.Request{Messages: newRequest("grade").Messages}) {
					g.text, g.err = g.text+c.Content, err
					if c.Content != "" || c.Done { // not that which names the model
						g.pieces++
					}
				}
				grade <- g
			}()
			for i := range 2 {
				waitFor(t, "the model hangs", func() bool {
					c := w.srv.Stats()
					return c.Started == 1+2*i && c.Running == 1
				})
				if len(grade) != 0 {
					t.Fatal("the first one is answered already")
				}
				if msg, _, err := llm.Collect(front.Chat(t.Context(), newRequest("hi"))); err != nil ||
					msg.Content != "I am big ." {
					t.Fatalf("%v, %+v", err, msg)
				}
			}
			if g := <-grade; g.err != nil || g.text != "[RESULT] 4" || g.pieces != 1 {
				t.Errorf("%+v", g)
			}
			waitFor(t, "the server notices each end", func() bool { return w.srv.Stats().Running == 0 })
			if c := w.srv.Stats(); c.Cancelled != 2 || c.Finished != 3 {
				t.Errorf("%+v", c)
			}
			trails := map[string]string{}
			for _, r := range w.auditRecords() {
				trails[r.AgentID] += r.Phase + " " + r.Status + ", "
			}
			const pair = "before allowed, after ok, "
			if trails[tt.behind] != pair || trails[tt.front] != pair+pair {
				t.Errorf("audit %v", trails)
			}
		})
	}
}

// What a stalled critic costs an answer: medians of the same chat, over real HTTP, without and with a grade that hangs
// each time the question comes.
func TestStalledServerDoesNotKeepSlot(t *testing.T) {
	const rounds = 150
	script := always("big")
	script["judge"] = []scriptserver.Exchange{
		{Always: true, Reply: scriptserver.Reply{Quirks: scriptserver.Quirks{Hang: true}}},
	}
	w := newHarness(t, script, nil)
	measure := func(ready func(round int)) time.Duration {
		var all []time.Duration
		for i := range rounds {
			ready(i)
			begun := time.Now()
			if r := w.ask(subjects.ChatRequest{}); r.err != nil {
				t.Fatal(r.err)
			}
			all = append(all, time.Since(begun))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	paced := func(int) { // as long a pause as the other side needs, so that both begin from rest
		polls := 0
		waitFor(t, "a pause", func() bool { polls++; return polls > 2 })
	}
	measure(paced) // warm
	free := measure(paced)
	before := w.srv.Stats()
	grade := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, err := w.rec.Deliver(shortly{t, ctx}, w.m, actortest.Message{
			Subject: "agent.critic.model.chat", Body: subjects.ChatRequest{
				Role:     "critic",
				Messages: json.RawMessage(`[{"role":"user","content":"x"}]`),
			}, Deadline: now.Add(time.Hour),
		})
		grade <- err
	}()
	hangs := func(round int) {
		waitFor(t, "the grade hangs", func() bool {
			c := w.srv.Stats()
			return c.Started-before.Started == 1+2*round && c.Running == 1
		})
	}
	stalled := measure(hangs)
	hangs(rounds)
	if len(grade) != 0 {
		t.Error("the grade ended")
	}
	cancel()
	if err := <-grade; actortest.Code(err) != subjects.CodeModelCut {
		t.Errorf("%v", err)
	}
	waitFor(t, "the server is free", func() bool { return w.srv.Stats().Running == 0 })
	if c := w.srv.Stats(); c.Cancelled-before.Cancelled != rounds+1 {
		t.Errorf("%d of %d requests were cut at the server", c.Cancelled, rounds+1)
	}
	t.Logf("median of %d: %s without, %s with a stalled critic: %.2f times, %s more", rounds, free, stalled,
		float64(stalled)/float64(free), stalled-free)
	if stalled > time.Second { // a critic that hangs would make it wait for ever
		t.Errorf("an answer takes %s behind a stalled critic, %s without", stalled, free)
	}
}
