package model_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"conclave/actors/model"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/audit"
	"conclave/pkg/model/scriptserver"
	"conclave/pkg/strict"
	"conclave/subjects"
)

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
		{"an unknown role", subjects.ChatRequest{Role: "jester"}, "big", "unknown role jester: the assistant's model " +
			"is used"},
	} {
		r := w.ask(tt.q)
		if r.err != nil || w.onlyRequest().Model != tt.want || r.last.Model != tt.want || r.last.Notice != tt.notice ||
			r.last.DemoModel {
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
	if r.text != "Paris it is ." || thinking != "let me see" || len(r.pieces) < 4 ||
		calls != `[{"id":"c1","name":"web_search","arguments":{"z":1,"a":2}}]` {
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
		c.Models = map[string]model.Options{"tiny": {
			Window: 2048, Predict: 100, KeepAlive: "1h", Temperature: &half,
			Stream: &no,
		}}
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
	if o.Window != 32768 || o.KeepAlive != "-1" || o.Predict != 4096 || o.Seed == nil || *o.Seed != 7 ||
		!slices.Equal(o.Stop, []string{"X"}) || *o.Temperature != 0.9 || !got.Stream {
		t.Errorf("big was asked with %+v", o)
	}
	if o = ask("big", `{"predict":10}`).Options; o.Predict != 10 || o.Temperature != nil {
		t.Errorf("less than the bound is the request's: %+v", o)
	}
	got = ask("tiny", `{}`)
	if o = got.Options; o.Window != 2048 || o.Predict != 100 || o.KeepAlive != "1h" || *o.Temperature != 0.5 ||
		got.Stream {
		t.Errorf("tiny was asked with %+v, stream %v", o, got.Stream)
	}
	if o = ask("narrow", `{}`).Options; o.Window != 8192 || o.KeepAlive != "5m" {
		t.Errorf("narrow was asked with %+v", o)
	}
}

func TestThinkOption(t *testing.T) {
	t.Parallel()
	w := newHarness(t, always("thinker", "mute", "big"), nil,
		scriptserver.WithModels(scriptserver.Model{Name: "mute", Family: "f", Tools: true}))
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
	r := w.ask(subjects.ChatRequest{
		Model: "mute",
		Tools: json.RawMessage(`[{"name":"x","description":"","parameters":{}}]`),
	})
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
	if r.err != nil || r.last.Model != "big" ||
		r.last.Notice != "judge is not installed, so big is used; install it with: conclave model pull judge" {
		t.Errorf("%v, %+v", r.err, r.last)
	}
	if r = w.ask(subjects.ChatRequest{Model: "judge"}); r.code() != subjects.CodeModelMissing ||
		!strings.Contains(r.err.Error(), "conclave model pull judge") {
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
	w := newHarness(t, always("a", "b"), nil,
		scriptserver.WithModels(scriptserver.Model{Name: "b", Family: "f", Loaded: true}))
	if r := w.ask(subjects.ChatRequest{}); r.err != nil || r.last.Model != "b:latest" {
		t.Errorf("%v, %+v", r.err, r.last)
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
		if r.AgentID != "generator" || r.Action != "model.chat" || r.Tool != "big" || r.Session != "s1" ||
			r.Query != "q1" || r.ID != w.records[0].ID || r.ParamsHash != w.hash.Hash(messages) {
			t.Errorf("record %+v", r)
		}
	}
	if got := w.auditSummary(); got != "before allowed, after ok" {
		t.Errorf("audit: %s", got)
	}

	w.refuse[subjects.AuditBefore] = errors.New("no answer")
	before := len(w.srv.Requests())
	if r := w.ask(subjects.ChatRequest{}); r.code() != subjects.CodeNoAudit || len(w.srv.Requests()) != before ||
		len(r.pieces) > 0 {
		t.Errorf("without an audit: %v, %d requests, %+v", r.err, len(w.srv.Requests())-before, r.pieces)
	}
	w.refuse[subjects.AuditBefore] = audit.ErrFull
	if r := w.ask(subjects.ChatRequest{}); r.code() != subjects.CodeNoAudit ||
		!strings.Contains(r.err.Error(), "audit rotate") {
		t.Errorf("the audit is full: %v", r.err)
	}
	var e subjects.EmbedReply
	if err := w.deliver("agent.memory.model.embed", subjects.EmbedRequest{Texts: []string{"x"}},
		&e); actortest.Code(err) != subjects.CodeNoAudit || len(w.srv.Requests()) != before {
		t.Errorf("vectors: %v", err)
	}
	if err := w.deliver("agent.user.model.pull", subjects.PullRequest{Model: "new"},
		nil); actortest.Code(err) != subjects.CodeNoAudit {
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
		{
			"an error in the middle",
			scriptserver.Quirks{ErrorLine: "error parsing tool call"},
			subjects.CodeModelMalformed,
		},
		{"garbage", scriptserver.Quirks{Garbage: true}, subjects.CodeModelMalformed},
		{"too long for the model", scriptserver.Quirks{TooLong: true}, subjects.CodeModelTooLong},
		{"busy", scriptserver.Quirks{Busy: 1}, subjects.CodeBusy},
		{
			"the server's own trouble",
			scriptserver.Quirks{Status: 500, ErrorLine: "CUDA out of memory"},
			subjects.CodeUnavailable,
		},
		{"without end", scriptserver.Quirks{Bytes: 17 << 20, ChunkRunes: 1 << 20}, subjects.CodeModelMalformed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t,
				scriptserver.Script{"big": {{Reply: scriptserver.Reply{Content: "one two three ", Quirks: tt.quirks}}}},
				nil)
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
	w := newHarness(t,
		scriptserver.Script{
			"big": {{Reply: scriptserver.Reply{Content: "ä1", Quirks: scriptserver.Quirks{Bytes: size}}}},
		}, nil)
	r := w.ask(subjects.ChatRequest{Stream: false})
	if r.err != nil || len(r.text) < size || strings.ContainsRune(r.text, '\uFFFD') ||
		strings.Trim(r.text, "ä1") != "" {
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
	if _, err := w.rec.Deliver(t, w.m, actortest.Message{
		Subject: "agent.generator.model.chat", Body: []byte(`{"x":1}`),
		Deadline: now.Add(soon),
	}); actortest.Code(err) != subjects.CodeMalformed {
		t.Errorf("%v", err)
	}
	if w.records[0].AgentID != "generator" || w.records[0].Action != "model.chat" {
		t.Errorf("%+v", w.records)
	}
	if got := w.auditSummary(); got != "before refused malformed" {
		t.Errorf("audit: %s", got)
	}
}

func TestEmbed(t *testing.T) {
	t.Parallel()
	w := newHarness(t, always("big"), nil)
	var e subjects.EmbedReply
	if err := w.deliver("agent.memory.model.embed", subjects.EmbedRequest{Texts: []string{"one", "two"}},
		&e); err != nil || e.Model != "nomic-embed-text" || len(e.Vectors) != 2 || len(e.Vectors[0]) != 768 {
		t.Fatalf("%v, %s, %d", err, e.Model, len(e.Vectors))
	}
	if r := w.records[0]; r.Action != "model.embed" || r.Tool != "nomic-embed-text" || r.AgentID != "memory" ||
		r.ParamsHash != w.hash.Hash([]byte(`["one","two"]`)) {
		t.Errorf("record %+v", r)
	}
	if got := w.auditSummary(); got != "before allowed, after ok" {
		t.Errorf("audit: %s", got)
	}
	for name, tt := range map[string]struct {
		q    subjects.EmbedRequest
		code string
	}{
		"no texts": {subjects.EmbedRequest{}, subjects.CodeMalformed},
		"too many": {subjects.EmbedRequest{Texts: make([]string, 129)}, subjects.CodeMalformed},
		"a name that is none": {
			subjects.EmbedRequest{Model: "a b", Texts: []string{"x"}},
			subjects.CodeMalformed,
		},
		"another model does not do": {
			subjects.EmbedRequest{Model: "mxbai", Texts: []string{"x"}},
			subjects.CodeModelMissing,
		},
		"one that cannot": {
			subjects.EmbedRequest{Model: "big", Texts: []string{"x"}},
			subjects.CodeUnsupported,
		},
		"an unknown task": {
			subjects.EmbedRequest{Task: "rank", Texts: []string{"x"}},
			subjects.CodeMalformed,
		},
		"one that leaves this machine": {
			subjects.EmbedRequest{Model: "embed-cloud", Texts: []string{"x"}},
			subjects.CodeModelRemote,
		},
	} {
		if err := w.deliver("agent.memory.model.embed", tt.q, nil); actortest.Code(err) != tt.code {
			t.Errorf("%s: %v", name, err)
		}
	}
}
