package model_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"conclave/actors/model"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/audit"
	llm "conclave/pkg/model"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/ollama"
	"conclave/pkg/model/scripted"
	"conclave/pkg/model/scriptserver"
	"conclave/pkg/strict"
	"conclave/subjects"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
		s[n] = []scriptserver.Exchange{{Always: true, Reply: scriptserver.Reply{Content: "I am " + n + " .", Prompt: 11, Output: 3}}}
	}
	return s
}

func newHarness(t testing.TB, script scriptserver.Script, change func(*model.Config), opts ...scriptserver.Option) *harness {
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
	if w.hash, err = audit.LoadHasher(filepath.Join(w.t.TempDir(), "params.key")); err != nil {
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
		r.pieces = append(r.pieces, c)
		r.text += c.Content
		r.last = c
	}
	return r
}

func (w *harness) deliver(subject string, body, into any) error {
	w.t.Helper()
	text, err := w.rec.Deliver(w.t, w.m, actortest.Message{Subject: subject, Body: body, Query: "q1", Session: "s1", Deadline: now.Add(soon)})
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

func TestSelectModel(t *testing.T) {
	t.Parallel()
	w := newHarness(t, always("big", "judge", "coder", "tiny", "other"), nil)
	for _, tt := range []struct {
		name   string
		q      subjects.ChatRequest
		want   string
		notice string
	}{
		{"by role", subjects.ChatRequest{Role: "critic"}, "judge", ""},
		{"no role", subjects.ChatRequest{}, "big", ""},
		{"a role's own model wins over the hint", subjects.ChatRequest{Role: "critic", Hint: "simple"}, "judge", ""},
		{"a hint for a role without a model", subjects.ChatRequest{Role: "summaries", Hint: "simple"}, "tiny", ""},
		{"a role without a model and a hint", subjects.ChatRequest{Role: "summaries"}, "big", ""},
		{"a hint without a role", subjects.ChatRequest{Hint: "simple"}, "tiny", ""},
		{"a hint that is not configured", subjects.ChatRequest{Role: "critic", Hint: "reasoning"}, "judge", ""},
		{"a model by name beats both", subjects.ChatRequest{Role: "critic", Hint: "code", Model: "other"}, "other", ""},
		{"with the tag that goes without saying", subjects.ChatRequest{Model: "other:latest"}, "other:latest", ""},
		{"an unknown role", subjects.ChatRequest{Role: "jester"}, "big", "unknown role jester: the assistant's model is used"},
	} {
		r := w.ask(tt.q)
		if r.err != nil || w.onlyRequest().Model != tt.want || r.last.Model != tt.want || r.last.Notice != tt.notice || r.last.DemoModel {
			t.Errorf("%s: %v, asked %s, told %+v", tt.name, r.err, w.onlyRequest().Model, r.last)
		}
	}
}

func TestChatStreams(t *testing.T) {
	t.Parallel()
	w := newHarness(t, scriptserver.Script{"big": {{Reply: scriptserver.Reply{
		Thinking: "let me see", Content: "Paris it is .", Prompt: 20, Output: 7,
		Calls: []scriptserver.Call{{ID: "c1", Name: "web_search", JSON: `{"z":1,"a":2}`}},
	}}, {Reply: scriptserver.Reply{Content: "one two three"}}}}, nil)
	tools := json.RawMessage(`[{"name":"web_search","description":"d","parameters":{"type":"object"}}]`)
	r := w.ask(subjects.ChatRequest{Role: "assistant", Tools: tools, Stream: true})
	if r.err != nil {
		t.Fatal(r.err)
	}
	thinking, calls := "", ""
	for i, p := range r.pieces {
		thinking, calls = thinking+p.Thinking, calls+string(p.ToolCalls)
		if p.Done != (i == len(r.pieces)-1) {
			t.Errorf("piece %d of %d: done %v", i, len(r.pieces), p.Done)
		}
	}
	if r.text != "Paris it is ." || thinking != "let me see" || len(r.pieces) < 4 || calls != `[{"id":"c1","name":"web_search","arguments":{"z":1,"a":2}}]` {
		t.Errorf("%d pieces, %q, %q, %s", len(r.pieces), r.text, thinking, calls)
	}
	if u := r.last.Usage; u.PromptTokens != 20 || u.CompletionTokens != 7 || u.ModelCalls != 1 {
		t.Errorf("usage %+v", u)
	}
	if r = w.ask(subjects.ChatRequest{Stream: false}); r.err != nil || len(r.pieces) != 1 || r.text != "one two three" {
		t.Errorf("not streamed: %v, %+v", r.err, r.pieces)
	}
}

// A model has one set of options, whatever a request says.
func TestOptionsAreFixed(t *testing.T) {
	t.Parallel()
	half, no := strict.Decimal(0.5), false
	w := newHarness(t, always("big", "tiny", "narrow"), func(c *model.Config) {
		c.Models = map[string]model.Options{"tiny": {Window: 2048, Predict: 100, KeepAlive: "1h", Temperature: &half, Stream: &no}}
	}, scriptserver.WithModels(scriptserver.Model{Name: "narrow", Family: "f", Window: 8192}))
	ask := func(name, options string) scriptserver.Request {
		t.Helper()
		r := w.ask(subjects.ChatRequest{Model: name, Options: json.RawMessage(options), Stream: true})
		if r.err != nil {
			t.Fatal(r.err)
		}
		return w.onlyRequest()
	}
	got := ask("big", `{"window":99,"keep_alive":"1s","predict":1000000,"seed":7,"stop":["X"],"temperature":0.9}`)
	o := got.Options
	if o.Window != 32768 || o.KeepAlive != "-1" || o.Predict != 4096 || o.Seed == nil || *o.Seed != 7 || !slices.Equal(o.Stop, []string{"X"}) || *o.Temperature != 0.9 || !got.Stream {
		t.Errorf("big was asked with %+v", o)
	}
	if o = ask("big", `{"predict":10}`).Options; o.Predict != 10 || o.Temperature != nil {
		t.Errorf("less than the bound is the request's: %+v", o)
	}
	got = ask("tiny", `{}`)
	if o = got.Options; o.Window != 2048 || o.Predict != 100 || o.KeepAlive != "1h" || *o.Temperature != 0.5 || got.Stream {
		t.Errorf("tiny was asked with %+v, stream %v", o, got.Stream)
	}
	if o = ask("narrow", `{}`).Options; o.Window != 8192 || o.KeepAlive != "5m" {
		t.Errorf("narrow was asked with %+v", o)
	}
}

func TestThinkOption(t *testing.T) {
	t.Parallel()
	w := newHarness(t, always("thinker", "mute", "big"), nil, scriptserver.WithModels(scriptserver.Model{Name: "mute", Family: "f", Tools: true}))
	yes, no := true, false
	for _, tt := range []struct {
		model string
		asked *bool
		want  bool
	}{
		{"thinker", nil, true},
		{"thinker", &yes, true},
		{"thinker", &no, false},
		{"mute", nil, false},
		{"mute", &yes, false},
		{"mute", &no, false},
	} {
		if r := w.ask(subjects.ChatRequest{Model: tt.model, Think: tt.asked}); r.err != nil {
			t.Errorf("%+v: %v", tt, r.err)
		}
		if got := w.onlyRequest().Think; got == nil || *got != tt.want {
			t.Errorf("%s: think %v, want %v said", tt.model, got, tt.want)
		}
	}
}

func TestModelWithoutToolsIsRefused(t *testing.T) {
	t.Parallel()
	w := newHarness(t, always("mute"), nil, scriptserver.WithModels(scriptserver.Model{Name: "mute", Family: "f"}))
	r := w.ask(subjects.ChatRequest{Model: "mute", Tools: json.RawMessage(`[{"name":"x","description":"","parameters":{}}]`)})
	if r.code() != subjects.CodeModelNoTools || len(w.srv.Requests()) != 0 {
		t.Errorf("%v, %d requests", r.err, len(w.srv.Requests()))
	}
	if got := w.auditSummary(); got != "before denied model_no_tools" {
		t.Errorf("audit: %s", got)
	}
}

func TestMissingModel(t *testing.T) {
	t.Parallel()
	w := newHarness(t, always("big", "other"), nil)
	r := w.ask(subjects.ChatRequest{Role: "critic"})
	if r.err != nil || r.last.Model != "big" || r.last.Notice != "judge is not installed, so big is used; install it with: conclave model pull judge" {
		t.Errorf("%v, %+v", r.err, r.last)
	}
	if r = w.ask(subjects.ChatRequest{Model: "judge"}); r.code() != subjects.CodeModelMissing || !strings.Contains(r.err.Error(), "conclave model pull judge") {
		t.Errorf("who names a model gets that one or none: %v", r.err)
	}

	// The assistant's is not there either: any will do that can chat.
	w = newHarness(t, always("other"), nil)
	r = w.ask(subjects.ChatRequest{Role: "critic"})
	if r.err != nil || r.last.Model != "other:latest" || !strings.Contains(r.last.Notice, "conclave model pull judge") {
		t.Errorf("%v, %+v", r.err, r.last)
	}

	// There is nothing that could chat.
	w = newHarness(t, scriptserver.Script{}, nil)
	r = w.ask(subjects.ChatRequest{Role: "assistant"})
	if r.code() != subjects.CodeModelMissing || !strings.Contains(r.err.Error(), "conclave model pull big") {
		t.Errorf("%v", r.err)
	}
	if got := w.auditSummary(); got != "before denied model_missing" {
		t.Errorf("audit: %s", got)
	}
}

// The loaded model is taken before one that would have to be loaded.
func TestMissingPrefersLoaded(t *testing.T) {
	t.Parallel()
	w := newHarness(t, always("a", "b"), nil, scriptserver.WithModels(scriptserver.Model{Name: "b", Family: "f", Loaded: true}))
	if r := w.ask(subjects.ChatRequest{}); r.err != nil || r.last.Model != "b:latest" {
		t.Errorf("%v, %+v", r.err, r.last)
	}
}

func TestRemoteModelIsDenied(t *testing.T) {
	t.Parallel()
	const host = "ollama.com:443"
	script := func() scriptserver.Script {
		s := always("big", "gpt-oss:120b-cloud", "deep:cloud", "sly")
		s["relayed"] = []scriptserver.Exchange{{Always: true, Reply: scriptserver.Reply{Content: "from far away .", Quirks: scriptserver.Quirks{RemoteHost: host}}}}
		return s
	}
	sly := scriptserver.WithModels(scriptserver.Model{Name: "sly", Family: "f", RemoteHost: host})
	for _, tt := range []struct {
		name, model string
		allow       []string
		code        string
		trail       string
		requests    int
	}{
		{"a cloud tag", "deep:cloud", nil, subjects.CodeModelRemote, "before denied model_remote", 0},
		{"a tag that ends so", "gpt-oss:120b-cloud", nil, subjects.CodeModelRemote, "before denied model_remote", 0},
		{"in capitals", "gpt-oss:120b-CLOUD", nil, subjects.CodeModelRemote, "before denied model_remote", 0},
		{"with the tag that goes without saying", "x-cloud:latest", nil, subjects.CodeModelRemote, "before denied model_remote", 0},
		{"the server says so", "sly", nil, subjects.CodeModelRemote, "before denied model_remote", 0},
		{"another one is allowed", "sly", []string{"deep:cloud", "sl", "*"}, subjects.CodeModelRemote, "before denied model_remote", 0},
		{"it turns out in the reply", "relayed", nil, subjects.CodeModelRemote, "before allowed, after denied model_remote", 1},
		{"allowed by name", "sly", []string{"sly"}, "", "before allowed, after ok", 1},
		{"allowed, a cloud tag", "deep:cloud", []string{"deep:cloud"}, "", "before allowed, after ok", 1},
		{"allowed, seen in the reply", "relayed", []string{"relayed:latest"}, "", "before allowed, after ok", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			allow := slices.DeleteFunc(slices.Clone(tt.allow), func(s string) bool { return s == "*" })
			w := newHarness(t, script(), func(c *model.Config) { c.Remote = allow }, sly)
			r := w.ask(subjects.ChatRequest{Model: tt.model, Stream: false})
			if r.code() != tt.code || len(w.srv.Requests()) != tt.requests {
				t.Fatalf("%v, %d requests", r.err, len(w.srv.Requests()))
			}
			if tt.code != "" && (!strings.Contains(r.err.Error(), `allow_remote: ["`+tt.model+`"]`) || strings.Contains(r.text, "far away")) {
				t.Errorf("told %v, and %q", r.err, r.text)
			}
			if r := w.ask(subjects.ChatRequest{Model: tt.model, Stream: true}); r.code() != tt.code || r.last.Done != (tt.code == "") {
				t.Errorf("streamed: %v, %+v", r.err, r.last)
			}
			if tt.code == "" && tt.model == "relayed" && r.last.Remote != host {
				t.Errorf("where it went is not told: %+v", r.last)
			}
			if got := w.auditSummary(); got != tt.trail+", "+tt.trail {
				t.Errorf("audit: %s", got)
			}
		})
	}
}

// A server on another machine is not even asked what it has.
func TestRemoteServerIsDenied(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		allow []string
		code  string
	}{{"not allowed", nil, subjects.CodeModelRemote}, {"allowed by name", []string{"big"}, ""}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := &harness{t: t, srv: modeltest.New(t, always("big")), refuse: map[string]error{}}
			cfg := defaultConfig("http://gpu-box:11434")
			cfg.Remote = tt.allow
			touched := &countingBackend{Backend: newBackend(t, w.srv.URL)}
			w.build(cfg, map[string]llm.Backend{model.Ollama: touched})
			r := w.ask(subjects.ChatRequest{})
			if r.code() != tt.code || (touched.n.Load() == 0) != (tt.code != "") {
				t.Errorf("%v, asked %d times", r.err, touched.n.Load())
			}
			var list subjects.ModelList
			if err := w.deliver("agent.user.model.list", subjects.Empty{}, &list); err != nil {
				t.Fatal(err)
			}
			if tt.code != "" && (touched.n.Load() != 0 || !strings.Contains(list.Roles[0].Notice, "gpu-box")) {
				t.Errorf("asked %d times, roles %+v", touched.n.Load(), list.Roles)
			}
			err := w.deliver("agent.user.model.pull", subjects.PullRequest{Model: "other"}, nil)
			if actortest.Code(err) != subjects.CodeModelRemote {
				t.Errorf("pull there: %v", err)
			}
		})
	}
}

// countingBackend counts what is asked of a backend.
type countingBackend struct {
	llm.Backend
	n atomic.Int64
}

func (c *countingBackend) Show(ctx context.Context, name string) (llm.Info, error) {
	c.n.Add(1)
	return c.Backend.Show(ctx, name)
}

func (c *countingBackend) List(ctx context.Context) ([]llm.Info, error) {
	c.n.Add(1)
	return c.Backend.List(ctx)
}

// A hosted service counts as another machine whatever its address is.
func TestRemoteServiceIsDenied(t *testing.T) {
	t.Parallel()
	w := &harness{t: t, srv: modeltest.New(t, always("big", "claude-x")), refuse: map[string]error{}}
	cfg := defaultConfig(w.srv.URL)
	cfg.Anthropic = &model.Server{URL: w.srv.URL, Key: "anthropic"}
	cfg.Roles["critic"] = "anthropic/claude-x"
	b := newBackend(t, w.srv.URL)
	w.build(cfg, map[string]llm.Backend{model.Ollama: b, model.Anthropic: b})
	if r := w.ask(subjects.ChatRequest{Role: "critic"}); r.code() != subjects.CodeModelRemote || len(w.srv.Requests()) != 0 {
		t.Errorf("%v", r.err)
	}
	cfg.Remote = []string{"anthropic/claude-x"}
	w.build(cfg, map[string]llm.Backend{model.Ollama: b, model.Anthropic: b})
	if r := w.ask(subjects.ChatRequest{Role: "critic"}); r.err != nil || w.onlyRequest().Model != "claude-x" || r.last.Model != "anthropic/claude-x" {
		t.Errorf("%v, %+v", r.err, r.last)
	}
	if r := w.ask(subjects.ChatRequest{Model: "anthropic/claude-y"}); r.code() != subjects.CodeModelRemote {
		t.Errorf("another model of the same service: %v", r.err)
	}
}

func TestAudit(t *testing.T) {
	t.Parallel()
	w := newHarness(t, always("big"), nil)
	messages := json.RawMessage(`[{"role":"user","content":"a secret"}]`)
	if r := w.ask(subjects.ChatRequest{Messages: messages}); r.err != nil {
		t.Fatal(r.err)
	}
	if got := strings.Join(w.story, ", "); got != "before after 0 requests, after after 1 requests" {
		t.Errorf("the order of things: %s", got)
	}
	for _, r := range w.records {
		if r.AgentID != "generator" || r.Action != "model.chat" || r.Tool != "big" || r.Session != "s1" || r.Query != "q1" || r.ID != w.records[0].ID || r.ParamsHash != w.hash.Hash(messages) {
			t.Errorf("record %+v", r)
		}
	}
	if got := w.auditSummary(); got != "before allowed, after ok" {
		t.Errorf("audit: %s", got)
	}

	w.refuse[subjects.AuditBefore] = errors.New("no answer")
	before := len(w.srv.Requests())
	if r := w.ask(subjects.ChatRequest{}); r.code() != subjects.CodeNoAudit || len(w.srv.Requests()) != before || len(r.pieces) > 0 {
		t.Errorf("without an audit: %v, %d requests, %+v", r.err, len(w.srv.Requests())-before, r.pieces)
	}
	w.refuse[subjects.AuditBefore] = audit.ErrFull
	if r := w.ask(subjects.ChatRequest{}); r.code() != subjects.CodeNoAudit || !strings.Contains(r.err.Error(), "audit rotate") {
		t.Errorf("the audit is full: %v", r.err)
	}
	var e subjects.EmbedReply
	if err := w.deliver("agent.memory.model.embed", subjects.EmbedRequest{Texts: []string{"x"}}, &e); actortest.Code(err) != subjects.CodeNoAudit || len(w.srv.Requests()) != before {
		t.Errorf("vectors: %v", err)
	}
	if err := w.deliver("agent.user.model.pull", subjects.PullRequest{Model: "new"}, nil); actortest.Code(err) != subjects.CodeNoAudit {
		t.Errorf("pull: %v", err)
	}
	w.refuse = map[string]error{subjects.AuditAfter: errors.New("no answer")}
	if r := w.ask(subjects.ChatRequest{}); r.code() != subjects.CodeUnrecorded || r.text != "" || r.last.Done {
		t.Errorf("an outcome that is not on record: %v, %+v", r.err, r.pieces)
	}
	if err := w.m.Close(t.Context()); err != nil || !w.closed {
		t.Errorf("closing: %v", err)
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		quirks scriptserver.Quirks
		code   string
	}{
		{"broken off", scriptserver.Quirks{CutAfter: 1}, subjects.CodeModelCut},
		{"no end", scriptserver.Quirks{NoDone: true}, subjects.CodeModelCut},
		{"an error in the middle", scriptserver.Quirks{ErrorLine: "error parsing tool call"}, subjects.CodeModelMalformed},
		{"garbage", scriptserver.Quirks{Garbage: true}, subjects.CodeModelMalformed},
		{"too long for the model", scriptserver.Quirks{TooLong: true}, subjects.CodeModelTooLong},
		{"busy", scriptserver.Quirks{Busy: 1}, subjects.CodeBusy},
		{"the server's own trouble", scriptserver.Quirks{Status: 500, ErrorLine: "CUDA out of memory"}, subjects.CodeUnavailable},
		{"without end", scriptserver.Quirks{Bytes: 17 << 20, ChunkRunes: 1 << 20}, subjects.CodeModelMalformed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t, scriptserver.Script{"big": {{Reply: scriptserver.Reply{Content: "one two three ", Quirks: tt.quirks}}}}, nil)
			r := w.ask(subjects.ChatRequest{Stream: true})
			if r.code() != tt.code || r.last.Done {
				t.Errorf("%v, want %s", r.err, tt.code)
			}
			if got := w.auditSummary(); got != "before allowed, after failed "+tt.code {
				t.Errorf("audit: %s", got)
			}
		})
	}
}

// A reply that is too large for a message is said in several.
func TestLargeChunksAreSplit(t *testing.T) {
	t.Parallel()
	const size = 900_000
	w := newHarness(t, scriptserver.Script{"big": {{Reply: scriptserver.Reply{Content: "ä1", Quirks: scriptserver.Quirks{Bytes: size}}}}}, nil)
	r := w.ask(subjects.ChatRequest{Stream: false})
	if r.err != nil || len(r.text) < size || strings.ContainsRune(r.text, '\uFFFD') || strings.Trim(r.text, "ä1") != "" {
		t.Fatalf("%v, %d bytes", r.err, len(r.text))
	}
	for i, p := range r.pieces {
		if len(p.Content) > 256<<10 || p.Done != (i == len(r.pieces)-1) {
			t.Errorf("piece %d: %d bytes, done %v", i, len(p.Content), p.Done)
		}
	}
}

func TestInvalidRequests(t *testing.T) {
	t.Parallel()
	w := newHarness(t, always("big"), nil)
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	tool := raw(`[{"name":"x","description":"","parameters":{}}]`)
	for name, q := range map[string]subjects.ChatRequest{
		"no messages":             {Messages: raw(`[]`)},
		"messages that are none":  {Messages: raw(`{"role":"user"}`)},
		"something follows":       {Messages: raw(`[{"role":"user","content":"x"}]]`)},
		"an unknown field":        {Messages: raw(`[{"role":"user","content":"x","name":"y"}]`)},
		"a role that is none":     {Messages: raw(`[{"role":"wizard","content":"x"}]`)},
		"an unknown option":       {Options: raw(`{"num_gpu":99}`)},
		"a negative bound":        {Options: raw(`{"predict":-1}`)},
		"too hot":                 {Options: raw(`{"temperature":9}`)},
		"a thousand stops":        {Options: raw(`{"stop":["` + strings.Repeat(`a","`, 1000) + `"]}`)},
		"tools and a format":      {Tools: tool, Format: raw(`{"type":"object"}`)},
		"a tool without a schema": {Tools: raw(`[{"name":"x","description":""}]`)},
		"a format that breaks out": {Format: raw(
			`{},"options":{"num_ctx":1}`)},
		"a hint that is none":    {Hint: "quick"},
		"a role that escapes":    {Role: "a.b"},
		"a model with a space":   {Model: "a b"},
		"a model with a quote":   {Model: `a"`},
		"a model without end":    {Model: strings.Repeat("x", 201)},
		"a model with a newline": {Model: "x\ny"},
	} {
		r := w.ask(q)
		if r.code() != subjects.CodeMalformed || len(w.srv.Requests()) != 0 {
			t.Errorf("%s: %v, %d requests", name, r.err, len(w.srv.Requests()))
		}
		if got := w.auditSummary(); got != "before refused malformed" {
			t.Errorf("%s: audit: %s", name, got)
		}
	}
	// What is not even a request is on record too.
	if _, err := w.rec.Deliver(t, w.m, actortest.Message{Subject: "agent.generator.model.chat", Body: []byte(`{"x":1}`), Deadline: now.Add(soon)}); actortest.Code(err) != subjects.CodeMalformed {
		t.Errorf("%v", err)
	}
	if w.records[0].AgentID != "generator" || w.records[0].Action != "model.chat" {
		t.Errorf("%+v", w.records)
	}
	if got := w.auditSummary(); got != "before refused malformed" {
		t.Errorf("audit: %s", got)
	}
}

func TestPull(t *testing.T) {
	t.Parallel()
	w := newHarness(t, always("big"), nil)
	if r := w.ask(subjects.ChatRequest{Role: "critic"}); r.err != nil || r.last.Model != "big" {
		t.Fatalf("%v, %+v", r.err, r.last)
	}
	w.auditSummary()
	for _, from := range []string{"generator", "orchestrator", "memory", "broker", "model"} {
		err := w.deliver("agent."+from+".model.pull", subjects.PullRequest{Model: "judge"}, nil)
		if actortest.Code(err) != subjects.CodeDenied {
			t.Errorf("%s: %v", from, err)
		}
		if got := w.auditSummary(); got != "before denied denied" {
			t.Errorf("%s: audit: %s", from, got)
		}
	}
	if slices.ContainsFunc(w.srv.Models(), func(m scriptserver.Model) bool { return m.Name == "judge" }) {
		t.Fatal("an agent fetched a model")
	}
	for _, from := range subjects.UserAccounts {
		text, err := w.rec.Deliver(t, w.m, actortest.Message{Subject: "agent." + from + ".model.pull", Body: subjects.PullRequest{Model: "judge"}, Deadline: now.Add(soon)})
		lines := strings.Split(text, "\n")
		if err != nil || len(lines) < 5 || !strings.Contains(text, `"total":4194304`) || !strings.Contains(lines[len(lines)-1], "success") {
			t.Errorf("%s: %v, %s", from, err, text)
		}
		if got := w.auditSummary(); got != "before allowed, after ok" {
			t.Errorf("audit: %s", got)
		}
	}
	for name, tt := range map[string]struct{ model, code string }{
		"nothing of that name": {"no-such-model", subjects.CodeModelMissing},
		"no name":              {"", subjects.CodeMalformed},
		"a name that is none":  {"a b", subjects.CodeMalformed},
		"of the cloud":         {"deep:cloud", subjects.CodeModelRemote},
	} {
		if err := w.deliver("agent.user.model.pull", subjects.PullRequest{Model: tt.model}, nil); actortest.Code(err) != tt.code {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What a pull brings is used at once, and what was known before is asked anew.
func TestPullDropsCache(t *testing.T) {
	t.Parallel()
	s := always("big")
	s["judge"] = []scriptserver.Exchange{{Always: true, Reply: scriptserver.Reply{Content: "5"}}}
	w := newHarness(t, s, nil)
	if r := w.ask(subjects.ChatRequest{Model: "judge"}); r.err != nil {
		t.Fatal(r.err)
	}
	w.srv.SetModel(scriptserver.Model{Name: "judge", Family: "f"}) // it can no longer think
	if r := w.ask(subjects.ChatRequest{Model: "judge"}); r.err == nil {
		t.Fatalf("the cache did not hold: %+v", w.onlyRequest().Think)
	}
	if err := w.deliver("agent.user.model.pull", subjects.PullRequest{Model: "judge"}, nil); err != nil {
		t.Fatal(err)
	}
	if r := w.ask(subjects.ChatRequest{Model: "judge"}); r.err != nil || *w.onlyRequest().Think {
		t.Errorf("%v", r.err)
	}
	// A minute later it is asked again as well.
	w.srv.SetModel(scriptserver.Model{Name: "judge", Family: "f", Thinking: true})
	w.rec.Time = now.Add(61 * time.Second)
	text, err := w.rec.Deliver(t, w.m, actortest.Message{Subject: "agent.critic.model.chat", Body: subjects.ChatRequest{Model: "judge", Messages: json.RawMessage(`[{"role":"user","content":"x"}]`)}, Deadline: w.rec.Time.Add(soon)})
	if err != nil || !*w.onlyRequest().Think {
		t.Errorf("%s, %v", text, err)
	}
}

// switchableBackend is a server that comes and goes.
type switchableBackend struct {
	to atomic.Pointer[ollama.Backend]
}

func (s *switchableBackend) Chat(ctx context.Context, r llm.Request) iter.Seq2[llm.Chunk, error] {
	return s.to.Load().Chat(ctx, r)
}

func (s *switchableBackend) Embed(ctx context.Context, name string, texts []string) (llm.Vectors, error) {
	return s.to.Load().Embed(ctx, name, texts)
}

func (s *switchableBackend) List(ctx context.Context) ([]llm.Info, error) {
	return s.to.Load().List(ctx)
}

func (s *switchableBackend) Show(ctx context.Context, name string) (llm.Info, error) {
	return s.to.Load().Show(ctx, name)
}

func (s *switchableBackend) Pull(ctx context.Context, name string) iter.Seq2[llm.Progress, error] {
	return s.to.Load().Pull(ctx, name)
}

func TestDemoModel(t *testing.T) {
	t.Parallel()
	w := &harness{t: t, refuse: map[string]error{}}
	url := closedAddress(t)
	absent, there := newBackend(t, url), modeltest.New(t, always("big", "judge"))
	b := &switchableBackend{}
	b.to.Store(absent)
	w.build(defaultConfig(url), map[string]llm.Backend{model.Ollama: b})
	w.rec.Time = now

	r := w.ask(subjects.ChatRequest{Role: "critic", Stream: true})
	if r.err != nil || r.text == "" || len(r.pieces) < 2 || !r.last.DemoModel || r.last.Model != model.Scripted || !strings.Contains(r.last.Notice, "not a language model") || !strings.Contains(r.last.Notice, "ollama serve") {
		t.Fatalf("%v, %+v", r.err, r.last)
	}
	var e subjects.EmbedReply
	if err := w.deliver("agent.memory.model.embed", subjects.EmbedRequest{Texts: []string{"x", "y"}}, &e); err != nil || e.Model != model.Scripted || len(e.Vectors) != 2 {
		t.Errorf("%v, %+v", err, e)
	}
	var list subjects.ModelList
	if err := w.deliver("agent.user.model.list", subjects.Empty{}, &list); err != nil || len(list.Models) != 1 || list.Models[0].Name != model.Scripted {
		t.Errorf("%v, %+v", err, list)
	}
	for _, role := range list.Roles {
		if !role.DemoModel || role.Model != model.Scripted || role.Wanted == "" {
			t.Errorf("%+v", role)
		}
	}
	// What would leave the machine is refused, Ollama or not.
	if r := w.ask(subjects.ChatRequest{Model: "deep:cloud"}); r.code() != subjects.CodeModelRemote {
		t.Errorf("%v", r.err)
	}
	w.mu.Lock()
	if w.records[0].Tool != model.Scripted {
		t.Errorf("the record says %s", w.records[0].Tool)
	}
	w.mu.Unlock()

	// Ollama becomes reachable. It is probed again after a second; then the demo model no longer answers.
	b.to.Store(newBackend(t, there.URL))
	if r := w.ask(subjects.ChatRequest{}); !r.last.DemoModel {
		t.Error("it was looked for again at once")
	}
	late := func(after time.Duration) reply {
		t.Helper()
		w.rec.Time = now.Add(after)
		var r reply
		text, err := w.rec.Deliver(t, w.m, actortest.Message{Subject: "agent.critic.model.chat", Body: subjects.ChatRequest{Role: "critic", Messages: json.RawMessage(`[{"role":"user","content":"x"}]`)}, Deadline: w.rec.Time.Add(soon)})
		r.err = err
		if err == nil {
			err = json.Unmarshal([]byte(text), &r.last)
		}
		if err != nil && r.err == nil {
			t.Fatal(err)
		}
		return r
	}
	if r := late(2 * time.Second); r.err != nil || r.last.DemoModel || r.last.Model != "judge" || r.last.Notice != "" {
		t.Errorf("%v, %+v", r.err, r.last)
	}
	// Ollama goes. Whoever had a model is told, and not fobbed off.
	b.to.Store(absent)
	for _, after := range []time.Duration{3 * time.Second, 5 * time.Minute} {
		if r := late(after); r.code() != subjects.CodeModelUnreachable || !strings.Contains(r.err.Error(), "ollama serve") {
			t.Errorf("after %s: %v, %+v", after, r.err, r.last)
		}
	}
}

func TestDemoModelModes(t *testing.T) {
	t.Parallel()
	there := modeltest.New(t, always("big"))
	for _, tt := range []struct {
		mode, url string
		other     bool // another server is configured
		standIn   bool
		code      string
	}{
		{model.DemoNever, closedAddress(t), false, false, subjects.CodeModelUnreachable},
		{model.DemoAlways, closedAddress(t), false, true, ""},
		{model.DemoAlways, there.URL, false, true, ""},
		{model.DemoAuto, there.URL, false, false, ""},
		{model.DemoAuto, closedAddress(t), true, false, subjects.CodeModelUnreachable},
	} {
		w := &harness{t: t, refuse: map[string]error{}}
		cfg := defaultConfig(tt.url)
		cfg.DemoModel = tt.mode
		backends := map[string]llm.Backend{model.Ollama: newBackend(t, tt.url)}
		if tt.other {
			cfg.OpenAI = &model.Server{URL: there.URL}
			backends[model.OpenAI] = newBackend(t, there.URL)
		}
		w.build(cfg, backends)
		if r := w.ask(subjects.ChatRequest{}); r.code() != tt.code || r.last.DemoModel != tt.standIn {
			t.Errorf("%s, %s: %v, %+v", tt.mode, tt.url, r.err, r.last)
		}
	}
}

func TestEmbed(t *testing.T) {
	t.Parallel()
	w := newHarness(t, always("big"), nil)
	var e subjects.EmbedReply
	if err := w.deliver("agent.memory.model.embed", subjects.EmbedRequest{Texts: []string{"one", "two"}}, &e); err != nil || e.Model != "nomic-embed-text" || len(e.Vectors) != 2 || len(e.Vectors[0]) != 768 {
		t.Fatalf("%v, %s, %d", err, e.Model, len(e.Vectors))
	}
	if r := w.records[0]; r.Action != "model.embed" || r.Tool != "nomic-embed-text" || r.AgentID != "memory" || r.ParamsHash != w.hash.Hash([]byte(`["one","two"]`)) {
		t.Errorf("record %+v", r)
	}
	if got := w.auditSummary(); got != "before allowed, after ok" {
		t.Errorf("audit: %s", got)
	}
	for name, tt := range map[string]struct {
		q    subjects.EmbedRequest
		code string
	}{
		"no texts":                     {subjects.EmbedRequest{}, subjects.CodeMalformed},
		"too many":                     {subjects.EmbedRequest{Texts: make([]string, 129)}, subjects.CodeMalformed},
		"a name that is none":          {subjects.EmbedRequest{Model: "a b", Texts: []string{"x"}}, subjects.CodeMalformed},
		"another model does not do":    {subjects.EmbedRequest{Model: "mxbai", Texts: []string{"x"}}, subjects.CodeModelMissing},
		"one that cannot":              {subjects.EmbedRequest{Model: "big", Texts: []string{"x"}}, subjects.CodeUnsupported},
		"an unknown task":              {subjects.EmbedRequest{Task: "rank", Texts: []string{"x"}}, subjects.CodeMalformed},
		"one that leaves this machine": {subjects.EmbedRequest{Model: "embed-cloud", Texts: []string{"x"}}, subjects.CodeModelRemote},
	} {
		if err := w.deliver("agent.memory.model.embed", tt.q, nil); actortest.Code(err) != tt.code {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	w := newHarness(t, always("big", "coder", "deep:cloud"), func(c *model.Config) {
		c.Models = map[string]model.Options{"coder": {Window: 65536}}
	}, scriptserver.WithModels(scriptserver.Model{Name: "sly", Family: "f", RemoteHost: "ollama.com"}, scriptserver.Model{Name: "coder", Family: "f", Tools: true, Loaded: true, Size: 9, Window: 50_000}))
	var list subjects.ModelList
	if err := w.deliver("agent.generator.model.list", subjects.Empty{}, &list); err != nil {
		t.Fatal(err)
	}
	got := map[string]subjects.ModelInfo{}
	for _, m := range list.Models {
		got[m.Name] = m
	}
	if c := got["coder:latest"]; !c.Tools || c.Thinking || !c.Loaded || c.Size != 9 || c.Window != 50_000 || c.Backend != model.Ollama || c.Refused != "" {
		t.Errorf("coder %+v", c)
	}
	if !got["nomic-embed-text:latest"].Embedding || !got["big:latest"].Thinking {
		t.Errorf("%+v", list.Models)
	}
	for _, name := range []string{"sly:latest", "deep:cloud"} {
		if !strings.Contains(got[name].Refused, `allow_remote: ["`+name+`"]`) {
			t.Errorf("%s: %+v", name, got[name])
		}
	}
	want := []subjects.RoleModel{
		{Role: "assistant", Model: "big", Window: 32768, Stream: true, Tools: true, Thinking: true, Calls: subjects.CallNative},
		{Role: "coder", Model: "coder", Window: 50_000, Stream: true, Tools: true, Calls: subjects.CallNative},
		{
			Role: "critic", Model: "big", Wanted: "judge", Window: 32768, Stream: true, Tools: true, Thinking: true, Calls: subjects.CallNative,
			Notice: "judge is not installed, so big is used; install it with: conclave model pull judge",
		},
		{Role: "embeddings", Model: "nomic-embed-text", Window: 8192, Stream: true},
	}
	if !slices.Equal(list.Roles, want) {
		t.Errorf("roles\n%+v, want\n%+v", list.Roles, want)
	}
	// A server that is gone leaves the roles to say so.
	w.srv.Close()
	w.rec.Time = now.Add(5 * time.Minute)
	text, err := w.rec.Deliver(t, w.m, actortest.Message{Subject: "agent.user.model.list", Body: subjects.Empty{}, Deadline: w.rec.Time.Add(soon)})
	if err != nil || !strings.Contains(text, "ollama serve") {
		t.Errorf("%s, %v", text, err)
	}
}

// The user stops a query: what runs for it ends at the server, what waits for it ends at once.
func TestCancel(t *testing.T) {
	t.Parallel()
	hang := scriptserver.Reply{Content: "never", Quirks: scriptserver.Quirks{Hang: true}}
	w := newHarness(t, scriptserver.Script{"big": {{Always: true, Reply: hang}}}, nil)
	replies := make(chan reply, 3)
	for range 2 { // one slot: one runs and one waits
		go func() { replies <- w.askAs("generator", "q7", subjects.ChatRequest{}) }()
	}
	waitFor(t, "one runs", func() bool { return w.srv.Stats().Running == 1 })
	other := make(chan reply, 1)
	go func() { other <- w.askAs("critic", "q8", subjects.ChatRequest{}) }()
	waitFor(t, "all are on record", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.records) == 3
	})
	cancel := func(query string) {
		t.Helper()
		if _, err := w.rec.Deliver(t, w.m, actortest.Message{Subject: "query.cancel." + query, Body: subjects.Cancel{}}); err != nil {
			t.Fatal(err)
		}
	}
	cancel("nobody")
	cancel("q7")
	for range 2 {
		if r := <-replies; r.code() != subjects.CodeStopped {
			t.Errorf("%v", r.err)
		}
	}
	// The other query has the slot now.
	waitFor(t, "the next one runs", func() bool { c := w.srv.Stats(); return c.Cancelled == 1 && c.Running == 1 })
	cancel("q8")
	if r := <-other; r.code() != subjects.CodeStopped {
		t.Errorf("%v", r.err)
	}
	waitFor(t, "the server stopped", func() bool { return w.srv.Stats().Cancelled == 2 })
	var after []string
	for _, r := range w.records[3:] {
		after = append(after, r.Query+" "+r.Status+" "+r.Reason)
	}
	slices.Sort(after)
	if got := strings.Join(after, ", "); got != "q7 failed stopped, q7 unknown stopped, q8 unknown stopped" {
		t.Errorf("audit: %s", got)
	}
}

// Two large models never run at once. A small one and vectors need not wait for them.
func TestExclusive(t *testing.T) {
	t.Parallel()
	yes := true
	s := always("other", "tiny")
	s["big"] = []scriptserver.Exchange{{Always: true, Reply: scriptserver.Reply{Content: "never", Quirks: scriptserver.Quirks{Hang: true}}}}
	w := newHarness(t, s, func(c *model.Config) {
		c.Ollama.Slots = 4
		c.Models = map[string]model.Options{"tiny": {Small: &yes}}
	})
	held, other := make(chan reply, 1), make(chan reply, 1)
	go func() { held <- w.askAs("generator", "q1", subjects.ChatRequest{Model: "big"}) }()
	waitFor(t, "the large one runs", func() bool { return w.srv.Stats().Running == 1 })
	go func() { other <- w.askAs("critic", "q2", subjects.ChatRequest{Model: "other"}) }()
	waitFor(t, "the other is on record", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.records) == 2
	})
	if r := w.askAs("memory", "q3", subjects.ChatRequest{Model: "tiny"}); r.err != nil {
		t.Errorf("the small one: %v", r.err)
	}
	if err := w.deliver("agent.memory.model.embed", subjects.EmbedRequest{Texts: []string{"x"}}, nil); err != nil {
		t.Errorf("vectors: %v", err)
	}
	if c := w.srv.Stats(); c.Started != 2 || c.Running != 1 {
		t.Errorf("two large ones at once: %+v", c)
	}
	if _, err := w.rec.Deliver(t, w.m, actortest.Message{Subject: "query.cancel.q1", Body: subjects.Cancel{}}); err != nil {
		t.Fatal(err)
	}
	if r := <-held; r.code() != subjects.CodeStopped {
		t.Errorf("%v", r.err)
	}
	if r := <-other; r.err != nil || r.last.Model != "other" {
		t.Errorf("%v, %+v", r.err, r.last)
	}
}

func TestDeadlineWhileWaiting(t *testing.T) {
	t.Parallel()
	hang := scriptserver.Reply{Content: "never", Quirks: scriptserver.Quirks{Hang: true}}
	w := newHarness(t, scriptserver.Script{"big": {{Always: true, Reply: hang}}}, nil)
	held := make(chan reply, 1)
	go func() { held <- w.askAs("memory", "q1", subjects.ChatRequest{}) }()
	waitFor(t, "one runs", func() bool { return w.srv.Stats().Running == 1 })
	_, err := w.rec.Deliver(t, w.m, actortest.Message{
		Subject: "agent.generator.model.chat", Body: subjects.ChatRequest{Messages: json.RawMessage(`[{"role":"user","content":"x"}]`)}, Deadline: now.Add(100 * time.Millisecond),
	})
	if actortest.Code(err) != subjects.CodeTimeout {
		t.Errorf("%v", err)
	}
	if n := w.srv.Stats().Started; n != 1 {
		t.Errorf("%d requests reached the server", n)
	}
	if _, err := w.rec.Deliver(t, w.m, actortest.Message{Subject: "query.cancel.q1", Body: subjects.Cancel{}}); err != nil {
		t.Error(err)
	}
	<-held
}

func TestQueueFullIsBusy(t *testing.T) {
	t.Parallel()
	hang := scriptserver.Reply{Content: "never", Quirks: scriptserver.Quirks{Hang: true}}
	w := newHarness(t, scriptserver.Script{"big": {{Always: true, Reply: hang}}}, func(c *model.Config) { c.Ollama.Queue = 1 })
	held := make(chan reply, 2)
	for range 2 {
		go func() { held <- w.askAs("memory", "q1", subjects.ChatRequest{}) }()
	}
	waitFor(t, "one runs and one waits", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.srv.Stats().Running == 1 && len(w.records) == 2
	})
	// The record of the one that waits is stored before it lines up: ask until there is no room.
	waitFor(t, "no room", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := w.rec.Deliver(shortly{t, ctx}, w.m, actortest.Message{
			Subject: "agent.generator.model.chat", Body: subjects.ChatRequest{Messages: json.RawMessage(`[{"role":"user","content":"x"}]`)}, Deadline: now.Add(soon),
		})
		return actortest.Code(err) == subjects.CodeBusy
	})
	if _, err := w.rec.Deliver(t, w.m, actortest.Message{Subject: "query.cancel.q1", Body: subjects.Cancel{}}); err != nil {
		t.Error(err)
	}
	for range 2 {
		<-held
	}
}

// shortly is a test whose context is another.
type shortly struct {
	testing.TB
	ctx context.Context
}

func (s shortly) Context() context.Context { return s.ctx }

// The list has the roles in use alone, and says what a missing optional model would improve instead of asking for it.
func TestListModelsOfRolesInUse(t *testing.T) {
	t.Parallel()
	w := newHarness(t, always("big"), func(c *model.Config) {
		c.Roles["coder"] = "missing:14b"
		c.InUse = []string{"assistant", "critic", "embeddings", "summaries", "tools"}
		c.Optional = []string{"embeddings"}
		c.Roles["critic"], c.Roles["embeddings"] = "", "missing-embed"
	})
	var list subjects.ModelList
	if err := w.deliver("agent.user.model.list", subjects.Empty{}, &list); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range list.Roles {
		got = append(got, fmt.Sprintf("%s %s %s %t", r.Role, r.Model, r.Wanted, r.Improves != ""))
		if r.Improves == "" && r.Notice != "" {
			t.Errorf("%s: %s", r.Role, r.Notice)
		}
	}
	want := []string{"assistant big  false", "critic big  false", "embeddings missing-embed missing-embed true", "summaries big  false", "tools big  false"}
	if !slices.Equal(got, want) {
		t.Errorf("roles\n%q, want\n%q", got, want)
	}
}
