package model_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/actors/model"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/model/scriptserver"
	"conclave/subjects"
)

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
		text, err := w.rec.Deliver(t, w.m, actortest.Message{
			Subject: "agent." + from + ".model.pull",
			Body:    subjects.PullRequest{Model: "judge"}, Deadline: now.Add(soon),
		})
		lines := strings.Split(text, "\n")
		if err != nil || len(lines) < 5 || !strings.Contains(text, `"total":4194304`) ||
			!strings.Contains(lines[len(lines)-1], "success") {
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
		if err := w.deliver("agent.user.model.pull", subjects.PullRequest{Model: tt.model},
			nil); actortest.Code(err) != tt.code {
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
	text, err := w.rec.Deliver(t, w.m, actortest.Message{
		Subject:  "agent.critic.model.chat",
		Body:     subjects.ChatRequest{Model: "judge", Messages: json.RawMessage(`[{"role":"user","content":"x"}]`)},
		Deadline: w.rec.Time.Add(soon),
	})
	if err != nil || !*w.onlyRequest().Think {
		t.Errorf("%s, %v", text, err)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	w := newHarness(t, always("big", "coder", "deep:cloud"), func(c *model.Config) {
		c.Models = map[string]model.Options{"coder": {Window: 65536}}
	}, scriptserver.WithModels(scriptserver.Model{Name: "sly", Family: "f", RemoteHost: "ollama.com"},
		scriptserver.Model{Name: "coder", Family: "f", Tools: true, Loaded: true, Size: 9, Window: 50_000}))
	var list subjects.ModelList
	if err := w.deliver("agent.generator.model.list", subjects.Empty{}, &list); err != nil {
		t.Fatal(err)
	}
	got := map[string]subjects.ModelInfo{}
	for _, m := range list.Models {
		got[m.Name] = m
	}
	if c := got["coder:latest"]; !c.Tools || c.Thinking || !c.Loaded || c.Size != 9 || c.Window != 50_000 ||
		c.Backend != model.Ollama || c.Refused != "" {
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
		{
			Role: "assistant", Model: "big", Window: 32768, Stream: true, Tools: true, Thinking: true,
			Calls: subjects.CallNative,
		},
		{Role: "coder", Model: "coder", Window: 50_000, Stream: true, Tools: true, Calls: subjects.CallNative},
		{
			Role: "critic", Model: "big", Wanted: "judge", Window: 32768, Stream: true, Tools: true, Thinking: true,
			Calls:  subjects.CallNative,
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
	text, err := w.rec.Deliver(t, w.m, actortest.Message{
		Subject: "agent.user.model.list", Body: subjects.Empty{},
		Deadline: w.rec.Time.Add(soon),
	})
	if err != nil || !strings.Contains(text, "ollama serve") {
		t.Errorf("%s, %v", text, err)
	}
}

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
	want := []string{
		"assistant big  false", "critic big  false", "embeddings missing-embed missing-embed true",
		"summaries big  false", "tools big  false",
	}
	if !slices.Equal(got, want) {
		t.Errorf("roles\n%q, want\n%q", got, want)
	}
}
