package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"conclave/pkg/actor"
	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/pkg/respondent/respondenttest"
	"conclave/subjects"
)

// crash is what a test panics with.
type crash struct{ step string }

// crashAt delivers a task until the n-th durable step and crashes there, and reports the step; "" = the task ended
// before.
func (w *harness) crashAt(n int) (step string, err error) {
	var mu sync.Mutex
	seen := 0
	ctx, stop := context.WithCancelCause(w.t.Context())
	defer stop(nil)
	ctx = actor.WithSteps(ctx, func(name string) {
		mu.Lock()
		defer mu.Unlock()
		if seen++; seen >= n {
			if step == "" {
				step = name
			}
			stop(errors.New("the process was killed")) // as a killed process, it writes nothing more
			panic(crash{name})
		}
	})
	defer func() {
		if p := recover(); p != nil {
			if _, ok := p.(crash); !ok {
				panic(p)
			}
			err = fmt.Errorf("crashed at %v", p)
		}
	}()
	err = w.giveCtx(ctx, New(testConfig(), w, w), subjects.Query{SessionID: "s1", QueryID: "q1", Query: "Do it"}, 1)
	return step, err
}

// A crash at any durable step loses nothing and repeats nothing: the task resumes, finished subtasks are not redone,
// each tool call runs once, and one report is published.
func TestCrashAtEveryStep(t *testing.T) {
	t.Parallel()
	script := func(r request) any {
		switch {
		case r.kind == callPlan:
			return planJSON(strings.Replace(subtaskJSON("a"), `"T"`, `"First"`, 1),
				strings.Replace(subtaskJSON("b", "a"), `"T"`, `"Second"`, 1))
		case r.kind == callWork && r.messages[len(r.messages)-1].Role == model.User:
			return toolCall("c1", "lookup", `{}`)
		case r.kind == callReturn:
			return returnJSON("It is 42.", "Result of "+r.subtask()+".")
		}
		return nil
	}
	var steps []string
	for n := 1; ; n++ {
		w := newHarness(t)
		w.model = script
		step, err := w.crashAt(n)
		if step == "" {
			if err != nil {
				t.Fatal(err)
			}
			break
		}
		steps = append(steps, step)
		done := map[string]bool{}
		if data, _, err := w.Out().Store(bucket).Get(t.Context(), subjects.TaskKey("q1")); err == nil {
			task, err := subjects.DecodeTask(data)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range task.Subtasks {
				done[s.Title] = s.State == subjects.SubtaskDone
			}
		}
		asked := len(w.asked)
		if err := w.give(New(testConfig(), w, w), "s1", "q1", "Do it"); err != nil {
			t.Fatalf("after a crash at %s: %v", step, err)
		}
		for _, r := range w.asked[asked:] {
			if done[r.subtask()] {
				t.Errorf("after a crash at %s the finished subtask %s was redone", step, r.subtask())
			}
		}
		if res := w.onlyResponse(); res.Partial || len(res.ToolCalls) != 2 {
			t.Errorf("after a crash at %s: %+v", step, res)
		}
		if w.ran["lookup"] != 2 {
			t.Errorf("after a crash at %s the tool ran %d times, want 2", step, w.ran["lookup"])
		}
		if n := len(emitted[subjects.AgentReturn](w, "agent.return.q1")); n != 2 {
			t.Errorf("after a crash at %s there are %d returns, want 2", step, n)
		}
	}
	for _, want := range []string{
		"turn.start/after", "task.plan/before", "work.spawn/after", "work.step/before",
		"work.return/after", "subtask.end/before", "turn.answer/after", "session.add/after",
	} {
		if !slices.Contains(steps, want) {
			t.Errorf("no crash at %s; crashed at %v", want, steps)
		}
	}
}

// Whatever happens between two durable steps, one report is published, and the tool runs once.
func TestConformance(t *testing.T) {
	t.Parallel()
	newCase := func(t testing.TB, parallel int) *respondenttest.Case[*Orchestrator] {
		w := newHarness(t)
		w.model = func(r request) any {
			if r.kind == callPlan && parallel > 1 {
				return planJSON(subtaskJSON("a"), subtaskJSON("b"))
			}
			if r.kind == callWork && r.messages[len(r.messages)-1].Role == model.User {
				return toolCall("c1", "lookup", `{}`)
			}
			return nil
		}
		const head = `{"task_id":"q1","session_id":"s1","query":"Do it","began":"2026-01-02T03:04:05Z",` +
			`"updated":"2026-01-02T03:04:05Z","owner":"x","nonce":"n","usage":{}`
		return &respondenttest.Case[*Orchestrator]{
			Recorder: &w.Recorder, Unlimited: true, Bucket: bucket, Key: subjects.TaskKey(respondenttest.Query),
			History: sessionKey("s1"),
			Earlier: map[string]respondenttest.Earlier{
				"planning": {Record: head + `,"state":"planning","tokens":0}`},
				"running": {
					Record: head + `,"state":"running","tokens":9,"subtasks":[{"id":"a","title":"First",` +
						`"instructions":"Do a.","agent":"researcher","state":"waiting"}]}`,
				},
				"answered": {
					Record: head + `,"state":"done","publish":{"response":{"session_id":"s1","query_id":"q1",` +
						`"query":"Do it","answer":"Done.","tool_calls":[],"respondent_id":"orchestrator"},` +
						`"response_id":"r1","dialog_id":"d1","summary":"It is done."}}`,
					Answered: true,
				},
				"published": {Record: head + `,"state":"done","published":true}`, Published: true},
			},
			New: func() *Orchestrator { return New(testConfig(), w, w) },
			Deliver: func(ctx context.Context, o *Orchestrator, out actor.Out, attempt int) error {
				return w.deliver(ctx, o, subjects.Query{
					SessionID: "s1", QueryID: respondenttest.Query, Query: "Do it",
				}, attempt, out)
			},
			Check: func(t testing.TB, _ bool) {
				if res := w.onlyResponse(); res.Partial || res.Error != nil || len(res.ToolCalls) != parallel {
					t.Errorf("%+v", res)
				}
				n := len(emitted[subjects.AgentReturn](w, "agent.return.q1"))
				if n != parallel || w.ran["lookup"] != parallel {
					t.Errorf("%d returns, the tool ran %d times", n, w.ran["lookup"])
				}
				if task := w.stored("q1"); task.State != subjects.TaskDone {
					t.Errorf("%+v", task)
				}
			},
		}
	}
	respondenttest.Run(t, func(t testing.TB) *respondenttest.Case[*Orchestrator] { return newCase(t, 1) })
	t.Run("parallel", func(t *testing.T) {
		respondenttest.RunParallel(t, func(t testing.TB) *respondenttest.Case[*Orchestrator] { return newCase(t, 2) })
	})
}

// A report that an earlier version stored is published under its ids, without a model.
func TestRecordOfEarlierVersion(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	const record = `{"task_id":"q1","session_id":"s1","query":"Do it","state":"done","began":"2026-01-02T03:04:05Z",` +
		`"updated":"2026-01-02T03:04:05Z","owner":"x","nonce":"n","usage":{},"publish":{"response":{` +
		`"session_id":"s1","query_id":"q1","query":"Do it","answer":"Done.","tool_calls":[],` +
		`"respondent_id":"orchestrator"},` +
		`"response_id":"r1","dialog_id":"d1","summary":"It is done."}}`
	if _, err := w.Out().Store(bucket).Put(t.Context(), subjects.TaskKey("q1"), []byte(record), 0); err != nil {
		t.Fatal(err)
	}
	if err := w.give(New(testConfig(), w, w), "s1", "q1", "Do it"); err != nil {
		t.Fatal(err)
	}
	if res := w.onlyResponse(); res.Answer != "Done." || len(w.asked) > 0 {
		t.Errorf("%+v", res)
	}
	for _, m := range w.Published() {
		if m.ID != "" && m.ID != "r1" && m.ID != "d1" {
			t.Errorf("published %s under %s", m.Subject, m.ID)
		}
	}
	v, err := sessions.Load(t.Context(), w.Out(), sessionKey("s1"))
	if err != nil || len(v.Value.Tasks) != 1 || v.Value.Tasks[0].Summary != "It is done." {
		t.Errorf("%+v %v", v.Value, err)
	}
}

// A write of a task or of the work of an agent whose acknowledgement is lost is not taken for one of another process.
func TestLostAcknowledgement(t *testing.T) {
	t.Parallel()
	for at := 0; ; at++ {
		w := newHarness(t)
		out, lost := respondenttest.LoseAcknowledgement(w.Out(), at)
		if err := w.deliver(t.Context(), New(testConfig(), w, w), subjects.Query{
			SessionID: "s1", QueryID: "q1", Query: "Do it",
		}, 1, out); err != nil {
			t.Fatalf("write %d: %v", at, err)
		}
		if res := w.onlyResponse(); res.Partial || len(w.requests(callWork)) != 1 {
			t.Errorf("write %d: %d requests, %+v", at, len(w.requests(callWork)), res)
		}
		if lost() {
			continue
		}
		if at < 8 {
			t.Errorf("only %d writes", at)
		}
		return
	}
}

// A task that crashes each time without progress fails in the end.
func TestGivesUpWithoutProgress(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	for range maxStalled {
		ctx, stop := context.WithCancel(t.Context())
		w.model = func(request) any { stop(); return errors.New("killed") }
		if err := w.giveCtx(ctx, New(testConfig(), w, w), subjects.Query{
			SessionID: "s1", QueryID: "q1",
			Query: "Do it",
		}, 1); err == nil {
			t.Fatal("no error")
		}
	}
	w.model = nil
	if err := w.give(New(testConfig(), w, w), "s1", "q1", "Do it"); err != nil {
		t.Fatal(err)
	}
	if res := w.onlyResponse(); res.Error == nil || res.Error.Code != subjects.CodeInternal {
		t.Errorf("%+v", res)
	}
}

// Of two processes with the same task one goes on; the other stops without a report of its own.
func TestTakenOver(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	ctx := t.Context()
	second := make(chan error, 1)
	var taken atomic.Bool
	w.model = func(r request) any {
		if r.kind == callWork && !taken.Swap(true) { // another process gets the message while this one is stalled
			second <- w.give(New(testConfig(), w, w), "s1", "q1", "Do it")
		}
		return nil
	}
	if err := w.giveCtx(ctx, New(testConfig(), w, w), subjects.Query{SessionID: "s1", QueryID: "q1", Query: "Do it"},
		1); err != nil {
		t.Fatal(err)
	}
	if err := <-second; err != nil {
		t.Fatal(err)
	}
	w.onlyResponse()
}

// change sends a change of a task.
func (w *harness) change(o *Orchestrator, action string) (subjects.TaskChanged, error) {
	return o.onChange(w.t.Context(), actor.Msg[subjects.TaskChange]{
		From: "user",
		Body: subjects.TaskChange{TaskID: "q1", Action: action},
	}, w.Out())
}

// A paused task stops its agents and goes on from their checkpoints when it is resumed, in this process or after a
// restart.
func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %v", restart), func(t *testing.T) {
			t.Parallel()
			w := newHarness(t)
			o := New(testConfig(), w, w)
			paused := make(chan struct{})
			var once sync.Once
			w.model = func(r request) any {
				switch {
				case r.kind == callWork && r.messages[len(r.messages)-1].Role == model.User:
					return toolCall("c1", "lookup", `{}`)
				case r.kind == callWork:
					once.Do(func() {
						if got, err := w.change(o, subjects.ChangePause); err != nil ||
							got.State != subjects.TaskPaused {
							t.Errorf("%+v %v", got, err)
						}
						close(paused)
					})
				}
				return nil
			}
			ctx, kill := context.WithCancelCause(t.Context())
			ended := make(chan error, 1)
			go func() {
				ended <- w.giveCtx(ctx, o, subjects.Query{SessionID: "s1", QueryID: "q1", Query: "Do it"}, 1)
			}()
			<-paused
			for w.stored("q1").State != subjects.TaskPaused { // it is stored a moment later
				if !loop.Sleep(t.Context(), controlInterval/100) {
					t.Fatal("not paused")
				}
			}
			if len(emitted[subjects.Response](w, "response.generation")) > 0 {
				t.Fatal("a paused task reported")
			}
			if restart {
				kill(errors.New("the process was killed"))
				if err := <-ended; err == nil {
					t.Fatal("a paused task ended")
				}
				o = New(testConfig(), w, w)
				go func() { ended <- w.give(o, "s1", "q1", "Do it") }()
			}
			if _, err := w.change(o, subjects.ChangeResume); err != nil {
				t.Fatal(err)
			}
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			if res := w.onlyResponse(); res.Partial {
				t.Errorf("%+v", res)
			}
			if w.ran["lookup"] != 1 {
				t.Errorf("the tool ran %d times", w.ran["lookup"])
			}
			kill(nil)
		})
	}
}

// A canceled task ends with what is done so far. The change is audited.
func TestCancel(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	o := New(testConfig(), w, w)
	w.model = func(r request) any {
		switch {
		case r.kind == callPlan:
			return planJSON(subtaskJSON("a"), strings.Replace(subtaskJSON("b", "a"), `"T"`, `"Second"`, 1))
		case r.kind == callWork && r.subtask() == "Second":
			if _, err := w.change(o, subjects.ChangeCancel); err != nil {
				t.Error(err)
			}
		}
		return nil
	}
	if err := w.give(o, "s1", "q1", "Do it"); err != nil {
		t.Fatal(err)
	}
	res := w.onlyResponse()
	task := w.stored("q1")
	if !res.Partial || !strings.HasPrefix(res.Answer, "Stopped by you") || !strings.Contains(res.Answer, "It is 42.") ||
		task.State != subjects.TaskStopped || task.Subtasks[1].State != subjects.SubtaskSkipped {
		t.Errorf("%q, %+v", res.Answer, task)
	}
	if len(w.audit) != 2 || w.audit[0].Phase != subjects.AuditBefore || w.audit[0].Reason != subjects.ChangeCancel ||
		w.audit[1].Status != subjects.StatusOK || w.audit[0].AgentID != "user" {
		t.Errorf("%+v", w.audit)
	}
	for _, action := range []string{subjects.ChangePause, "destroy"} {
		if _, err := w.change(o, action); err == nil {
			t.Errorf("%s of an ended task was accepted", action)
		}
	}
	if _,
		err := o.onChange(t.Context(), actor.Msg[subjects.TaskChange]{
		From: "user",
		Body: subjects.TaskChange{TaskID: "unknown", Action: subjects.ChangePause},
	}, w.Out()); err == nil {
		t.Error("an unknown task was changed")
	}
}

// query.cancel stops a task, too, also one that has not begun.
func TestQueryCancel(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	o := New(testConfig(), w, w)
	if err := o.OnCancel(t.Context(), actor.Msg[subjects.Cancel]{Tokens: []string{"q1"}}, w.Out()); err != nil {
		t.Fatal(err)
	}
	if err := w.give(o, "s1", "q1", "Do it"); err != nil {
		t.Fatal(err)
	}
	if w.onlyResponse(); w.stored("q1").State != subjects.TaskStopped || len(w.asked) > 0 {
		t.Errorf("%+v", w.stored("q1"))
	}
}

// Earlier tasks of a session are in the next plan, and are summarized when they take too much of the window.
func TestCompaction(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	cfg := testConfig()
	cfg.CompactAt = 1 // of 32768 tokens
	o := New(cfg, w, w)
	w.model = func(r request) any {
		if r.kind == callReport {
			return strings.Repeat("word ", 100)
		}
		return nil
	}
	for i := range 5 {
		if err := w.give(o, "s1", fmt.Sprintf("q%d", i),
			fmt.Sprintf("Task %d %s", i, strings.Repeat("long ", 60))); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(w.requests(callCompact)); n == 0 {
		t.Fatal("no summary was made")
	}
	if last := w.requests(callPlan)[4]; !strings.Contains(last.text(), "Task 3") ||
		strings.Contains(last.text(), `task\":\"Task 0`) {
		t.Errorf("%s", last.text())
	}
	v, err := sessions.Load(t.Context(), w.Out(), sessionKey("s1"))
	if err != nil || v.Value.Compacted == 0 || len(v.Value.Summary) > maxSummary+3 ||
		v.Value.tokensWithout("q1") >= v.Value.tokensWithout("none") {
		t.Errorf("%+v %v", v.Value, err)
	}
	if !(sessionRecord{Tasks: make([]pastTask, 10), Tokens: map[string]int{"a": 60}}).needsCompaction(120, 90, 100) {
		t.Error("a session that uses its budget fast is not summarized earlier")
	}
	if (sessionRecord{Tasks: make([]pastTask, 10), Tokens: map[string]int{"a": 10}}).needsCompaction(120, 90, 100) {
		t.Error("a slow session is summarized too early")
	}
}
