package model_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"conclave/actors/model"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/audit"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/datatest"
	llm "conclave/pkg/model"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/ollama"
	"conclave/pkg/model/scripted"
	"conclave/pkg/model/scriptserver"
	"conclave/subjects"
)

func TestMain(m *testing.M) {
	bustest.AllowParallel(4)
	goleak.VerifyTestMain(m)
}

// soon is the timeout of a test for an expected event.
const soon = time.Minute

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// harness is one model actor with a real HTTP model server that follows a script, an audit log and the demo model.
type harness struct {
	t    testing.TB
	rec  actortest.Recorder
	srv  *scriptserver.Server
	hash *audit.Hasher
	m    *model.Model

	mu      sync.Mutex
	records []subjects.AuditRecord
	story   []string         // records and requests to the server, in order
	refuse  map[string]error // phase -> why the audit does not take it
	closed  bool
}

// defaultConfig is a configuration like the shipped one, with small names.
func defaultConfig(url string) model.Config {
	yes := true
	return model.Config{
		Roles: map[string]string{
			"assistant": "big", "critic": "judge", "coder": "coder", "embeddings": "nomic-embed-text",
		},
		Hints:     map[string]string{"simple": "tiny", "code": "coder"},
		Keep:      []string{"assistant", "embeddings"},
		Defaults:  model.Options{Window: 32768, Predict: 4096, KeepAlive: "5m", Stream: &yes},
		DemoModel: model.DemoAuto, AuditTimeout: 5 * time.Second,
		Ollama: model.Server{URL: url, Slots: 1, Queue: 512, Exclusive: true, Batch: 4},
	}
}

// always answers everything with the model's own name for it.
func always(names ...string) scriptserver.Script {
	s := scriptserver.Script{}
	for _, n := range names {
		s[n] = []scriptserver.Exchange{{Always: true, Reply: scriptserver.Reply{
			Content: "I am " + n + " .", Prompt: 11,
			Output: 3,
		}}}
	}
	return s
}

func newHarness(t testing.TB, script scriptserver.Script, change func(*model.Config),
	opts ...scriptserver.Option,
) *harness {
	t.Helper()
	w := &harness{t: t, srv: modeltest.New(t, script, opts...), refuse: map[string]error{}}
	cfg := defaultConfig(w.srv.URL)
	if change != nil {
		change(&cfg)
	}
	w.build(cfg, map[string]llm.Backend{model.Ollama: newBackend(t, w.srv.URL)})
	return w
}

func (w *harness) build(cfg model.Config, backends map[string]llm.Backend) {
	w.t.Helper()
	if err := cfg.Validate(); err != nil {
		w.t.Fatal(err)
	}
	var err error
	if w.hash, err = audit.LoadHasher(filepath.Join(datatest.Dir(w.t), "params.key")); err != nil {
		w.t.Fatal(err)
	}
	w.m = model.New(cfg, backends, scripted.Backend{}, w, w.hash)
	w.t.Cleanup(func() { _ = w.m.Close(context.Background()) })
}

func newBackend(t testing.TB, url string) *ollama.Backend {
	t.Helper()
	b, err := ollama.New(ollama.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// closedAddress is an address where nothing listens.
func closedAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

// Append implements [model.Audit].
func (w *harness) Append(ctx context.Context, rec subjects.AuditRecord) error {
	if _, ok := ctx.Deadline(); !ok {
		return errors.New("a record without a limit on how long it may take")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.refuse[rec.Phase]; err != nil {
		return err
	}
	w.records = append(w.records, rec)
	asked := 0
	if w.srv != nil {
		asked = len(w.srv.Requests())
	}
	w.story = append(w.story, fmt.Sprintf("%s after %d requests", rec.Phase, asked))
	return nil
}

// Close implements [model.Audit].
func (w *harness) Close(context.Context) error { w.closed = true; return nil }

// auditSummary is "before allowed", "after ok" ... of the records so far, which are then forgotten.
func (w *harness) auditSummary() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, r := range w.records {
		out = append(out, strings.TrimSpace(r.Phase+" "+r.Status+" "+r.Reason))
	}
	w.records = nil
	return strings.Join(out, ", ")
}

// reply is the result of a chat.
type reply struct {
	asked  []string // hosts that were named before they were asked, "" = this machine
	pieces []subjects.ChatChunk
	text   string
	last   subjects.ChatChunk
	err    error
}

func (r reply) code() string { return actortest.Code(r.err) }

func (w *harness) ask(q subjects.ChatRequest) reply { return w.askAs("generator", "q1", q) }

func (w *harness) askAs(from, query string, q subjects.ChatRequest) (r reply) {
	w.t.Helper()
	if q.Messages == nil {
		q.Messages = json.RawMessage(`[{"role":"user","content":"hi"}]`)
	}
	var text string
	text, r.err = w.rec.Deliver(w.t, w.m, actortest.Message{
		Subject: "agent." + from + ".model.chat", Body: q, Query: query, Session: "s1", Deadline: now.Add(soon),
	})
	for line := range strings.SplitSeq(text, "\n") {
		if line == "" {
			continue
		}
		var c subjects.ChatChunk
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			w.t.Fatalf("piece %s: %v", line, err)
		}
		if c.Model != "" && !c.Done {
			r.asked = append(r.asked, c.Remote)
			continue
		}
		r.pieces = append(r.pieces, c)
		r.text += c.Content
		r.last = c
	}
	return r
}

func (w *harness) deliver(subject string, body, into any) error {
	w.t.Helper()
	text, err := w.rec.Deliver(w.t, w.m, actortest.Message{
		Subject: subject, Body: body, Query: "q1", Session: "s1",
		Deadline: now.Add(soon),
	})
	if err == nil && into != nil {
		if err := json.Unmarshal([]byte(text), into); err != nil {
			w.t.Fatalf("%s: %v", text, err)
		}
	}
	return err
}

// onlyRequest is the last request that the server saw.
func (w *harness) onlyRequest() scriptserver.Request {
	w.t.Helper()
	all := w.srv.Requests()
	if len(all) == 0 {
		w.t.Fatal("the server was not asked")
	}
	return all[len(all)-1]
}

// waitFor polls a condition.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(soon); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s", what, soon)
		}
	}
}
