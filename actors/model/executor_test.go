package model_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"conclave/actors/model"
	"conclave/pkg/actor/actortest"
	llm "conclave/pkg/model"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/scriptserver"
	"conclave/subjects"
)

func jsonOf(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// executorHarness is the model actor of a machine without a bus.
type executorHarness struct {
	t   *testing.T
	rec actortest.Recorder
	srv *scriptserver.Server
	x   *model.Executor
}

func newExecutor(t *testing.T, times model.LinkTimes, script scriptserver.Script,
	opts ...scriptserver.Option,
) *executorHarness {
	t.Helper()
	w := &executorHarness{t: t, srv: modeltest.New(t, script, opts...)}
	var err error
	if w.x, err = model.NewExecutor("gpu-box", model.Server{URL: w.srv.URL, Slots: 2},
		newBackend(t, w.srv.URL)); err != nil {
		t.Fatal(err)
	}
	w.x.SetTimes(times)
	t.Cleanup(func() { _ = w.x.Close(context.Background()) })
	return w
}

// run sends a request for a call and returns the text of the chunks, and the number of the last.
func (w *executorHarness) run(from string, q subjects.ModelRun) (content string, last int, err error) {
	w.t.Helper()
	text, err := w.rec.Deliver(w.t, w.x, actortest.Message{
		Subject: "agent." + from + ".model.run", Body: q,
		Deadline: now.Add(soon),
	})
	last = -1
	for line := range strings.SplitSeq(text, "\n") {
		var c subjects.ModelRunChunk
		if line == "" {
			continue
		}
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			w.t.Fatalf("%s: %v", line, err)
		}
		if c.Chunk != nil {
			content += c.Chunk.Content
			last = c.N
		}
	}
	return content, last, err
}

func (w *executorHarness) end(call string) {
	w.t.Helper()
	if _,
		err := w.rec.Deliver(w.t, w.x, actortest.Message{
		Subject: "agent.model.model.end",
		Body:    subjects.ModelRunEnd{Call: call}, Deadline: now.Add(soon),
	}); err != nil {
		w.t.Fatal(err)
	}
}

func chatRequest(name string) *subjects.ChatRequest {
	return &subjects.ChatRequest{
		Model: name, Stream: true,
		Messages: json.RawMessage(`[{"role":"user","content":"hi"}]`),
	}
}

// A call that is repeated after a reconnect runs once: the same request gets the same output, from any chunk on, and
// none after the hub has ended the call.
func TestExecutorRunsRepeatedCallOnce(t *testing.T) {
	t.Parallel()
	w := newExecutor(t, model.LinkTimes{}, slowly("big", longAnswer(20), time.Millisecond))
	q := subjects.ModelRun{Call: "c1", Request: chatRequest("big"), Millis: 60_000}
	first, last, err := w.run("model", q)
	if err != nil || first != longAnswer(20) {
		t.Fatalf("%q, %v", first, err)
	}
	if again, _, err := w.run("model", q); err != nil || again != first {
		t.Errorf("again: %q, %v", again, err)
	}
	if rest, n, err := w.run("model", subjects.ModelRun{Call: "c1", Next: 5}); err != nil ||
		!strings.HasSuffix(first, rest) || len(rest) >= len(first) || n != last {
		t.Errorf("from chunk 5: %q up to %d, %v", rest, n, err)
	}
	w.end("c1")
	for name, q := range map[string]subjects.ModelRun{"repeated": q, "read on": {Call: "c1", Next: 5}} {
		if text, _, err := w.run("model", q); actortest.Code(err) != subjects.CodeStopped || text != "" {
			t.Errorf("%s after its end: %q, %v", name, text, err)
		}
	}
	// A call whose end arrives first, because the request was held up, does not start.
	w.end("c2")
	if _, _,
		err := w.run("model", subjects.ModelRun{
		Call: "c2", Request: chatRequest("big"),
		Millis: 60_000,
	}); actortest.Code(err) != subjects.CodeStopped {
		t.Errorf("a late request: %v", err)
	}
	if _, _, err := w.run("model", subjects.ModelRun{Call: "c3", Next: 5}); actortest.Code(
		err) != subjects.CodeModelCut {
		t.Errorf("a call that is not known: %v", err)
	}
	if n := len(w.srv.Requests()); n != 1 {
		t.Errorf("the model was asked %d times", n)
	}
}

// A call whose hub is gone ends by itself.
func TestExecutorStopsOrphan(t *testing.T) {
	t.Parallel()
	hang := scriptserver.Script{"big": {{Reply: scriptserver.Reply{Quirks: scriptserver.Quirks{Hang: true}}}}}
	w := newExecutor(t, model.LinkTimes{
		KeepAlive: time.Millisecond, Lease: 10 * time.Millisecond,
		Orphan: 50 * time.Millisecond,
	}, hang)
	if _, _,
		err := w.run("model", subjects.ModelRun{Call: "c1", Request: chatRequest("big"), Millis: 600_000}); err != nil {
		t.Fatal(err) // the lease ends the request, not the call
	}
	waitFor(t, "the model was stopped", func() bool { s := w.srv.Stats(); return s.Started == 1 && s.Running == 0 })
}

// The models of a machine are for the hub's model actor, and run on that machine only.
func TestExecutorRejects(t *testing.T) {
	t.Parallel()
	w := newExecutor(t, model.LinkTimes{}, always("big", "deep:cloud"),
		scriptserver.WithModels(scriptserver.Model{Name: "sly", Family: "f", RemoteHost: "ollama.com"}))
	run := func(change func(*subjects.ModelRun)) subjects.ModelRun {
		q := subjects.ModelRun{Call: "c1", Request: chatRequest("big"), Millis: 60_000}
		change(&q)
		return q
	}
	for name, tt := range map[string]struct {
		from string
		q    subjects.ModelRun
		code string
	}{
		"another account":      {"generator", run(func(*subjects.ModelRun) {}), subjects.CodeDenied},
		"no id":                {"model", run(func(q *subjects.ModelRun) { q.Call = "" }), subjects.CodeMalformed},
		"an id with dots":      {"model", run(func(q *subjects.ModelRun) { q.Call = "a.b" }), subjects.CodeMalformed},
		"before the beginning": {"model", run(func(q *subjects.ModelRun) { q.Next = -1 }), subjects.CodeMalformed},
		"no time":              {"model", run(func(q *subjects.ModelRun) { q.Millis = 0 }), subjects.CodeMalformed},
		"no messages": {"model", run(func(q *subjects.ModelRun) {
			q.Request.Messages = nil
		}), subjects.CodeMalformed},
		"a cloud model": {
			"model", run(func(q *subjects.ModelRun) { q.Request.Model = "deep:cloud" }),
			subjects.CodeModelRemote,
		},
		"a forwarded model": {"model", run(func(q *subjects.ModelRun) {
			q.Request.Model = "sly"
		}), subjects.CodeModelRemote},
		"a missing model": {"model", run(func(q *subjects.ModelRun) {
			q.Request.Model = "none"
		}), subjects.CodeModelMissing},
	} {
		if text, _, err := w.run(tt.from, tt.q); actortest.Code(err) != tt.code || text != "" {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	for _, route := range []string{"report", "end", "embed", "pull"} {
		body := map[string]any{
			"report": subjects.Empty{}, "end": subjects.ModelRunEnd{Call: "c1"},
			"embed": subjects.EmbedRequest{Model: "nomic-embed-text", Texts: []string{"x"}},
			"pull":  subjects.PullRequest{Model: "big"},
		}[route]
		if _, err := w.rec.Deliver(t, w.x, actortest.Message{
			Subject: "agent.generator.model." + route, Body: body,
			Deadline: now.Add(soon),
		}); actortest.Code(err) != subjects.CodeDenied {
			t.Errorf("%s of another account: %v", route, err)
		}
	}
	if len(w.srv.Requests()) != 0 {
		t.Errorf("the model was asked %d times", len(w.srv.Requests()))
	}
	report, err := w.rec.Deliver(t, w.x, actortest.Message{
		Subject: "agent.model.model.report", Body: subjects.Empty{},
		Deadline: now.Add(soon),
	})
	if err != nil || strings.Contains(report, "cloud") || strings.Contains(report, "sly") ||
		!strings.Contains(report, "big") {
		t.Errorf("report %s, %v", report, err)
	}
	if _, err := model.NewExecutor("gpu-box", model.Server{URL: "http://10.0.0.1:11434"}, nil); !errors.Is(err,
		llm.ErrRemote) {
		t.Errorf("an Ollama on a third machine: %v", err)
	}
}
