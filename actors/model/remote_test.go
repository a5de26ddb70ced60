package model_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"conclave/actors/model"
	"conclave/pkg/actor/actortest"
	llm "conclave/pkg/model"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/scriptserver"
	"conclave/subjects"
)

func TestRemoteModelIsDenied(t *testing.T) {
	t.Parallel()
	const host = "ollama.com:443"
	script := func() scriptserver.Script {
		s := always("big", "gpt-oss:120b-cloud", "deep:cloud", "sly")
		s["relayed"] = []scriptserver.Exchange{{Always: true, Reply: scriptserver.Reply{
			Content: "from far away .",
			Quirks:  scriptserver.Quirks{RemoteHost: host},
		}}}
		return s
	}
	sly := scriptserver.WithModels(scriptserver.Model{Name: "sly", Family: "f", RemoteHost: host})
	for _, tt := range []struct {
		name, model string
		allow       []string
		code        string
		trail       string
		asked       []string // hosts that the caller is told, before the outcome
	}{
		{"a cloud tag", "deep:cloud", nil, subjects.CodeModelRemote, "before denied model_remote", nil},
		{"a tag that ends so", "gpt-oss:120b-cloud", nil, subjects.CodeModelRemote, "before denied model_remote", nil},
		{"in capitals", "gpt-oss:120b-CLOUD", nil, subjects.CodeModelRemote, "before denied model_remote", nil},
		{
			"with the tag that goes without saying", "x-cloud:latest", nil, subjects.CodeModelRemote,
			"before denied model_remote", nil,
		},
		{"the server says so", "sly", nil, subjects.CodeModelRemote, "before denied model_remote", nil},
		{
			"another one is allowed", "sly",
			[]string{"deep:cloud", "sl", "*"},
			subjects.CodeModelRemote,
			"before denied model_remote", nil,
		},
		{"it turns out in the reply", "relayed", nil, subjects.CodeModelRemote, "before allowed, after denied " +
			"model_remote", []string{"", host}},
		{"allowed by name", "sly", []string{"sly"}, "", "before allowed, after ok", []string{host}},
		{"allowed, a cloud tag", "deep:cloud", []string{"deep:cloud"}, "", "before allowed, after ok", []string{""}},
		{
			"allowed, seen in the reply", "relayed",
			[]string{"relayed:latest"},
			"", "before allowed, after ok",
			[]string{"", host},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			allow := slices.DeleteFunc(slices.Clone(tt.allow), func(s string) bool { return s == "*" })
			w := newHarness(t, script(), func(c *model.Config) { c.Remote = allow }, sly)
			r := w.ask(subjects.ChatRequest{Model: tt.model, Stream: false})
			if r.code() != tt.code || len(w.srv.Requests()) != min(len(tt.asked), 1) {
				t.Fatalf("%v, %d requests", r.err, len(w.srv.Requests()))
			}
			if tt.code != "" && (!strings.Contains(r.err.Error(), `allow_remote: ["`+tt.model+`"]`) ||
				strings.Contains(r.text, "far away")) {
				t.Errorf("told %v, and %q", r.err, r.text)
			}
			if r := w.ask(subjects.ChatRequest{Model: tt.model, Stream: true}); r.code() != tt.code ||
				r.last.Done != (tt.code == "") || !slices.Equal(r.asked, tt.asked) {
				t.Errorf("streamed: %v, %+v, asked %q", r.err, r.last, r.asked)
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
	if r := w.ask(subjects.ChatRequest{Role: "critic"}); r.code() != subjects.CodeModelRemote ||
		len(w.srv.Requests()) != 0 {
		t.Errorf("%v", r.err)
	}
	cfg.Remote = []string{"anthropic/claude-x"}
	w.build(cfg, map[string]llm.Backend{model.Ollama: b, model.Anthropic: b})
	if r := w.ask(subjects.ChatRequest{Role: "critic"}); r.err != nil || w.onlyRequest().Model != "claude-x" ||
		r.last.Model != "anthropic/claude-x" {
		t.Errorf("%v, %+v", r.err, r.last)
	}
	if r := w.ask(subjects.ChatRequest{Model: "anthropic/claude-y"}); r.code() != subjects.CodeModelRemote {
		t.Errorf("another model of the same service: %v", r.err)
	}
}
