package model_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/actors/model"
	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/pkg/bus/bustest"
	llm "conclave/pkg/model"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/scripted"
	"conclave/pkg/model/scriptserver"
	"conclave/pkg/model/wire"
	"conclave/subjects"
)

var (
	// quickLink has shorter times, so that a test of a cut takes a second or two.
	quickLink = model.LinkTimes{
		KeepAlive: 100 * time.Millisecond, Silence: time.Second, Retry: 20 * time.Millisecond,
		Move:    1500 * time.Millisecond,
		Refresh: 100 * time.Millisecond, Lease: 2 * time.Second,
	}
	// steadyLink has times that a slow test machine does not reach.
	steadyLink = model.LinkTimes{Silence: soon, Move: soon, Lost: 2 * soon, Refresh: 100 * time.Millisecond}
)

// machinesHarness is a hub with a model actor, and machines with a model server each.
type machinesHarness struct {
	busHarness
	machines map[string]*bustest.Machine
	servers  map[string]*scriptserver.Server
	actors   map[string]*actor.Supervised
	outs     map[string]actor.Out
	registry registry
}

// out is one connection for each role, with the ids of a session and a query.
func (w *machinesHarness) out(role, session, query string) actor.Out {
	w.t.Helper()
	if w.outs[role] == nil {
		w.outs[role] = w.Out(role)
	}
	return w.outs[role].WithIDs(session, query)
}

// newMachines starts a hub whose own model server follows script "", and a machine for every other key. A hub without a
// script has no reachable model server.
func newMachines(t *testing.T, times model.LinkTimes, scripts map[string]scriptserver.Script) *machinesHarness {
	t.Helper()
	names := slices.Sorted(maps.Keys(scripts))
	names = slices.DeleteFunc(names, func(name string) bool { return name == "" })
	w := startMachines(t, times, scripts, names)
	w.awaitMachines(names...)
	return w
}

// startMachines is newMachines with the machines that the registry lists at first.
func startMachines(t *testing.T, times model.LinkTimes, scripts map[string]scriptserver.Script,
	known []string,
) *machinesHarness {
	t.Helper()
	var names []string
	for name := range scripts {
		if name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	hub, machines := bustest.StartMachines(t, []string{"model"}, names...)
	w := &machinesHarness{
		busHarness: busHarness{Bus: hub, t: t}, machines: machines,
		servers: map[string]*scriptserver.Server{}, actors: map[string]*actor.Supervised{},
		outs: map[string]actor.Out{},
	}
	for _, name := range names {
		w.servers[name] = modeltest.New(t, scripts[name])
		w.runExecutor(name, times)
	}
	url := closedAddress(t)
	if s, ok := scripts[""]; ok {
		w.srv = modeltest.New(t, s)
		w.servers[""], url = w.srv, w.srv.URL
	}
	cfg := defaultConfig(url)
	cfg.Link, cfg.DemoModel = times, model.DemoNever
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	w.registry.setMachines(known...)
	w.RunActor(&w.registry, actor.Config{})
	b := newBackend(t, url)
	w.Run(w.AuditedSpec("model", func(_ context.Context, a *audit.Writer, h *audit.Hasher) (actor.Actor, error) {
		w.m = model.New(cfg, map[string]llm.Backend{model.Ollama: b}, scripted.Backend{}, a, h)
		return w.m, nil
	}), actor.Config{})
	return w
}

// runExecutor runs the model actor of a machine on its model server.
func (w *machinesHarness) runExecutor(name string, times model.LinkTimes) {
	w.t.Helper()
	url := w.servers[name].URL
	w.actors[name] = w.machines[name].Run(actor.Spec{
		Name: "model",
		Make: func(context.Context, *nats.Conn) (actor.Actor, error) {
			x, err := model.NewExecutor(name, model.Server{URL: url, Slots: 1}, newBackend(w.t, url))
			if err == nil {
				x.SetTimes(times)
			}
			return x, err
		},
	}, actor.Config{})
}

// awaitMachines waits until the hub has a report of each of these machines, and none of the others.
func (w *machinesHarness) awaitMachines(names ...string) {
	w.t.Helper()
	out := w.out("generator", "", "")
	waitFor(w.t, fmt.Sprint("connected: ", names), func() bool {
		ctx, cancel := context.WithTimeout(w.t.Context(), soon)
		defer cancel()
		list, err := actor.Ask(ctx, out, subjects.ModelListService, subjects.Empty{})
		if err != nil {
			w.t.Fatal(err)
		}
		var connected []string
		for _, m := range list.Machines {
			if m.Connected {
				connected = append(connected, m.Name)
			}
		}
		return slices.Equal(connected, names)
	})
}

// chat is a call in progress as its caller sees it.
type chat struct {
	mu      sync.Mutex
	text    strings.Builder
	notices []string
	last    subjects.ChatChunk
	err     error
	done    chan struct{}
}

// ask asks a model in the background.
func (w *machinesHarness) ask(ctx context.Context, session, text string) *chat {
	c := &chat{done: make(chan struct{})}
	client := wire.Client{
		Out: w.out("generator", session, "q-"+session), Timeout: soon,
		OnDone: func(p subjects.ChatChunk) { c.last = p },
	}
	go func() {
		defer close(c.done)
		for chunk, err := range client.Chat(ctx, newRequest(text)) {
			c.mu.Lock()
			c.text.WriteString(chunk.Content)
			c.err = err
			if chunk.Notice != "" {
				c.notices = append(c.notices, chunk.Notice)
			}
			c.mu.Unlock()
		}
	}()
	return c
}

func (c *chat) content() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}

// awaitNotice waits for a notice to the user with these words.
func (c *chat) awaitNotice(t *testing.T, words string) {
	t.Helper()
	waitFor(t, words, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return slices.ContainsFunc(c.notices, func(n string) bool { return strings.Contains(n, words) })
	})
}

// finish waits for the end of the call.
func (c *chat) finish(t *testing.T) {
	t.Helper()
	select {
	case <-c.done:
	case <-time.After(soon):
		t.Fatal("the call does not end")
	}
}

// longAnswer is a text of numbered words, so that a lost, doubled or moved one shows.
func longAnswer(n int) string {
	words := make([]string, n)
	for i := range words {
		words[i] = fmt.Sprint("word", i)
	}
	return strings.Join(words, " ")
}

// slowly answers everything with a text, a word at a time.
func slowly(name, content string, delay time.Duration) scriptserver.Script {
	return scriptserver.Script{
		name: {
			{Always: true, Reply: scriptserver.Reply{Content: content, Quirks: scriptserver.Quirks{TokenDelay: delay}}},
		},
	}
}

// A machine whose link was interrupted during a call can be used at once when the call goes on, without waiting for its
// next report.
func TestMachineIsUsedAfterInterruption(t *testing.T) {
	t.Parallel()
	times := quickLink
	times.Refresh = time.Hour
	w := newMachines(t, times,
		map[string]scriptserver.Script{"gpu-box": slowly("big", longAnswer(60), 20*time.Millisecond)})
	link := w.machines["gpu-box"].Link
	c := w.ask(t.Context(), "s1", "hi")
	waitFor(t, "the answer has begun", func() bool { return strings.Contains(c.content(), "word3") })
	link.Cut()
	c.awaitNotice(t, "is interrupted")
	link.Heal()
	c.finish(t)
	connected := func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		list, err := actor.Ask(ctx, w.out("generator", "", ""), subjects.ModelListService, subjects.Empty{})
		return err == nil && len(list.Machines) == 1 && list.Machines[0].Connected
	}
	if c.err != nil || !connected() {
		t.Errorf("after the call, which ended with %v, the machine is connected: %v", c.err, connected())
	}
}

// The answer of a model that only a machine has streams to the caller; the audit log names the machine.
func TestMachineAnswersStream(t *testing.T) {
	t.Parallel()
	w := newMachines(t, steadyLink, map[string]scriptserver.Script{
		"":        always("judge"),
		"gpu-box": slowly("big", longAnswer(20), time.Millisecond),
	})
	c := wire.Client{Out: w.out("generator", "s1", "q1"), Role: "assistant", Timeout: soon}
	pieces := 0
	msg, final, err := llm.Collect(func(yield func(llm.Chunk, error) bool) {
		for chunk, err := range c.Chat(t.Context(), newRequest("hi")) {
			pieces++
			if !yield(chunk, err) {
				return
			}
		}
	})
	if err != nil || msg.Content != longAnswer(20) || final.Model != "big" || final.OutputTokens == 0 || pieces < 10 {
		t.Fatalf("%v, %d pieces, %+v, %+v", err, pieces, msg, final)
	}
	recs := w.auditRecords()
	if len(recs) != 2 || recs[0].Tool != "gpu-box/big" || recs[1].Status != subjects.StatusOK {
		t.Errorf("audit %+v", recs)
	}
	if n := w.srv.Stats().Started; n != 0 {
		t.Errorf("the hub's own server was asked %d times", n)
	}
}

// A link that is cut or freezes in mid-answer: the user is told, and after healing the answer completes byte for byte.
// The model runs once.
func TestMachineLinkCutMidAnswer(t *testing.T) {
	t.Parallel()
	answer := longAnswer(60)
	w := newMachines(t, quickLink,
		map[string]scriptserver.Script{"gpu-box": slowly("big", answer, 20*time.Millisecond)})
	link := w.machines["gpu-box"].Link
	for i, interrupt := range []struct {
		name string
		run  func()
	}{{"cut", link.Cut}, {"frozen", link.Freeze}} {
		c := w.ask(t.Context(), fmt.Sprint("s", i), "hi")
		waitFor(t, "the answer has begun", func() bool { return strings.Contains(c.content(), "word3") })
		interrupt.run()
		c.awaitNotice(t, "the connection to gpu-box is interrupted")
		link.Heal()
		c.awaitNotice(t, "the connection to gpu-box is back")
		c.finish(t)
		if c.err != nil || c.content() != answer {
			t.Errorf("%s: %v, got %q", interrupt.name, c.err, c.content())
		}
		if n := len(w.servers["gpu-box"].Requests()); n != i+1 {
			t.Errorf("%s: the model was asked %d times in %d calls", interrupt.name, n, i+1)
		}
		w.awaitMachines("gpu-box")
	}
	for _, r := range w.auditRecords() {
		if r.Phase == subjects.AuditAfter && r.Status != subjects.StatusOK {
			t.Errorf("audit %+v", r)
		}
	}
}

// A machine that is lost before the first word: another one that has the model answers, then the assistant's model on
// the hub, and the user is told each time. Without any other model the call fails and says why.
func TestMachineLostBeforeFirstToken(t *testing.T) {
	t.Parallel()
	hang := scriptserver.Script{
		"big": {{Always: true, Reply: scriptserver.Reply{Quirks: scriptserver.Quirks{Hang: true}}}},
	}
	w := newMachines(t, quickLink, map[string]scriptserver.Script{"a-box": hang, "b-box": always("big")})
	c := w.ask(t.Context(), "s1", "hi")
	waitFor(t, "a-box was asked", func() bool { return w.servers["a-box"].Stats().Running == 1 })
	w.machines["a-box"].Link.Cut()
	c.awaitNotice(t, "the connection to a-box was lost")
	c.finish(t)
	if c.err != nil || c.content() != "I am big ." ||
		!strings.Contains(c.notices[len(c.notices)-1], "big on b-box answers instead") {
		t.Fatalf("%v, %q, %q", c.err, c.content(), c.notices)
	}
	// What ran on the lost machine is stopped as soon as it is back.
	w.machines["a-box"].Link.Heal()
	waitFor(t, "the call on a-box was stopped", func() bool { return w.servers["a-box"].Stats().Running == 0 })
	recs := w.auditRecords()
	var got []string
	for _, r := range recs {
		got = append(got, r.Tool+" "+r.Status)
	}
	if want := []string{"a-box/big allowed", "a-box/big unknown", "b-box/big allowed", "b-box/big ok"}; !slices.Equal(
		got, want) {
		t.Errorf("audit %q, want %q", got, want)
	}
}

// A role falls back to another model when the machine of its model is not connected, and the user is told why.
func TestMachineNotConnectedFallsBack(t *testing.T) {
	t.Parallel()
	times := quickLink
	times.Lost = 3 * time.Second
	w := newMachines(t, times, map[string]scriptserver.Script{"": always("judge"), "gpu-box": always("big")})
	w.machines["gpu-box"].Link.Cut()
	w.awaitMachines()
	c := w.ask(t.Context(), "s1", "hi")
	c.finish(t)
	if c.err != nil || c.last.Model != "judge" && c.last.Model != "judge:latest" ||
		!strings.Contains(c.last.Notice, "big is on gpu-box, which is not connected") {
		t.Errorf("%v, %+v", c.err, c.last)
	}
	// A request for that model alone waits for the machine, and then fails and says what to do.
	_, _, err := llm.Collect(wire.Client{Out: w.out("generator", "s1", "q2"), Timeout: soon}.Chat(t.Context(),
		llm.Request{Model: "big", Messages: newRequest("x").Messages}))
	if err == nil || !strings.Contains(err.Error(), "conclave machines") {
		t.Errorf("%v", err)
	}
}

// A machine that is lost in mid-answer and does not come back: the answer ends with an error that says so, nothing is
// repeated on another machine.
func TestMachineLostMidAnswer(t *testing.T) {
	t.Parallel()
	script := slowly("big", longAnswer(1000), 20*time.Millisecond)
	times := quickLink
	times.Lost = 3 * time.Second
	w := newMachines(t, times, map[string]scriptserver.Script{"gpu-box": script, "zcpu-box": always("big")})
	c := w.ask(t.Context(), "s1", "hi")
	waitFor(t, "the answer has begun", func() bool { return strings.Contains(c.content(), "word3") })
	w.machines["gpu-box"].Link.Cut()
	c.awaitNotice(t, "the connection to gpu-box is interrupted")
	c.finish(t)
	if c.err == nil || !strings.Contains(c.err.Error(), "the answer ends here") ||
		!strings.HasPrefix(longAnswer(1000), c.content()) {
		t.Errorf("%v, %q", c.err, c.content())
	}
	if n := len(w.servers["zcpu-box"].Requests()); n != 0 {
		t.Errorf("the other machine was asked %d times", n)
	}
}

// Calls for a model that several servers have are shared out, also those that come at the same time; and the list says
// where each model is and how many requests are there.
func TestMachinesShareModel(t *testing.T) {
	t.Parallel()
	scripts := map[string]scriptserver.Script{}
	for _, name := range []string{"", "cpu-box", "gpu-box"} {
		scripts[name] = scriptserver.Script{
			"big": {{Always: true, Reply: scriptserver.Reply{Quirks: scriptserver.Quirks{Hang: true}}}},
		}
	}
	w := newMachines(t, steadyLink, scripts)
	ctx, stop := context.WithCancel(t.Context())
	var calls []*chat
	for i := range 6 {
		calls = append(calls, w.ask(ctx, fmt.Sprint("s", i), "hi"))
	}
	list := func() subjects.ModelList {
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		l, err := actor.Ask(ctx, w.out("user", "", ""), subjects.ModelListService, subjects.Empty{})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	waitFor(t, "every server has its share", func() bool {
		queues := map[string]int{}
		for _, m := range list().Models {
			if m.Name == "big:latest" {
				queues[m.Machine] = m.Queue
			}
		}
		return len(queues) == 3 && queues[""] == 2 && queues["cpu-box"] == 2 && queues["gpu-box"] == 2
	})
	for name, s := range w.servers {
		waitFor(t, "one runs on "+name, func() bool { return s.Stats().Running == 1 })
	}
	stop()
	for _, c := range calls {
		c.finish(t)
	}
	// Stopping a call reaches the machine.
	for name, s := range w.servers {
		waitFor(t, "nothing runs on "+name, func() bool { return s.Stats().Running == 0 })
	}
	waitFor(t, "no queue is left", func() bool {
		return !slices.ContainsFunc(list().Machines, func(m subjects.ModelMachine) bool { return m.Queue > 0 })
	})
}

// The user's stop reaches the machine.
func TestMachineCallIsStopped(t *testing.T) {
	t.Parallel()
	w := newMachines(t, steadyLink,
		map[string]scriptserver.Script{"gpu-box": slowly("big", longAnswer(5000), 20*time.Millisecond)})
	c := w.ask(t.Context(), "s1", "hi")
	waitFor(t, "the answer has begun", func() bool { return c.content() != "" })
	topic, err := subjects.QueryCancel.With("q-s1")
	if err != nil {
		t.Fatal(err)
	}
	if err := actor.Emit(t.Context(), w.out("user", "s1", "q-s1"), topic, subjects.Cancel{}); err != nil {
		t.Fatal(err)
	}
	c.finish(t)
	waitFor(t, "the model was stopped", func() bool {
		s := w.servers["gpu-box"].Stats()
		return s.Running == 0 && s.Cancelled == 1
	})
}

// registry is the registry of principals with a list that the test changes.
type registry struct {
	list atomic.Pointer[subjects.PrincipalList]
}

// setMachines makes machines with models the whole list.
func (r *registry) setMachines(names ...string) {
	list := &subjects.PrincipalList{Principals: []subjects.Principal{}}
	for _, name := range names {
		list.Principals = append(list.Principals, subjects.Principal{
			Name: name, Kind: subjects.MachinePrincipal,
			Actors: []string{"model"},
		})
	}
	r.list.Store(list)
}

func (r *registry) Name() string { return subjects.Registry }

func (r *registry) Routes() []actor.Route {
	return []actor.Route{actor.Serve(subjects.PrincipalListService, func(context.Context, actor.Msg[subjects.Empty],
		actor.Out,
	) (subjects.PrincipalList, error) {
		return *r.list.Load(), nil
	})}
}

// Machines come and go with the list of the registry, while the system runs. One without models is not asked.
func TestMachinesFollowRegistry(t *testing.T) {
	t.Parallel()
	w := startMachines(t, steadyLink, map[string]scriptserver.Script{"": always("judge"), "gpu-box": always("big")},
		nil)
	w.registry.list.Store(&subjects.PrincipalList{Principals: []subjects.Principal{
		{Name: "gpu-box", Kind: subjects.MachinePrincipal, Actors: []string{"model"}},
		{Name: "witness-box", Kind: subjects.MachinePrincipal, Actors: []string{"witness"}},
	}})
	change := func(want ...string) {
		t.Helper()
		if err := actor.Emit(t.Context(), w.out(subjects.Registry, "", ""), subjects.PrincipalChanged,
			subjects.PrincipalNotice{Name: "gpu-box"}); err != nil {
			t.Fatal(err)
		}
		waitFor(t, fmt.Sprint("machines ", want), func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), soon)
			defer cancel()
			list, err := actor.Ask(ctx, w.out("generator", "", ""), subjects.ModelListService, subjects.Empty{})
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, m := range list.Machines {
				names = append(names, m.Name)
			}
			return slices.Equal(names, want)
		})
	}
	change("gpu-box")
	w.awaitMachines("gpu-box")
	w.registry.setMachines()
	change()
}

// With the times of the product, 50 cuts of a link in mid-answer: how long until the user is told, and from healing
// until the answer goes on. Every answer is complete.
func TestChaosMachineLinkRecovers(t *testing.T) {
	if os.Getenv("CONCLAVE_CHAOS") == "" {
		t.Skip("set CONCLAVE_CHAOS=1 to cut the link of a machine 50 times")
	}
	t.Parallel()
	const cuts = 50
	answer := longAnswer(600)
	w := newMachines(t, model.LinkTimes{},
		map[string]scriptserver.Script{"gpu-box": slowly("big", answer, 20*time.Millisecond)})
	link := w.machines["gpu-box"].Link
	random := rand.New(rand.NewPCG(17, 0))
	var told, recovered []time.Duration
	for i := range cuts {
		c := w.ask(t.Context(), fmt.Sprint("s", i), "hi")
		waitFor(t, "the answer has begun", func() bool { return strings.Contains(c.content(), "word3") })
		begun := time.Now()
		if i%2 == 0 {
			link.Cut()
		} else {
			link.Freeze()
		}
		c.awaitNotice(t, "is interrupted")
		told = append(told, time.Since(begun))
		time.Sleep(time.Duration(random.IntN(8000)) * time.Millisecond)
		before := len(c.content())
		begun = time.Now()
		link.Heal()
		waitFor(t, "the answer goes on", func() bool { return len(c.content()) > before })
		recovered = append(recovered, time.Since(begun))
		c.finish(t)
		if c.err != nil || c.content() != answer {
			t.Fatalf("cut %d: %v, %d of %d bytes", i, c.err, len(c.content()), len(answer))
		}
	}
	if n := len(w.servers["gpu-box"].Requests()); n != cuts {
		t.Errorf("the model was asked %d times in %d calls", n, cuts)
	}
	slices.Sort(told)
	slices.Sort(recovered)
	at := func(all []time.Duration, p int) time.Duration { return all[(len(all)-1)*p/100].Round(time.Millisecond) }
	t.Logf("%d cuts: user told p50 %s, p99 %s, most %s; answer goes on after healing p50 %s, p99 %s, most %s", cuts,
		at(told, 50), at(told, 99), at(told, 100), at(recovered, 50), at(recovered, 99), at(recovered, 100))
}
