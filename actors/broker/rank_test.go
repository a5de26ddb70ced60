package broker

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/model"
	"conclave/pkg/model/wire"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// setModelReply makes the model reply with one text, in two chunks.
func (h *sessionFixture) setModelReply(reply string) {
	h.chat = func(subjects.ChatRequest) (any, error) {
		half := len(reply) / 2
		return actortest.Pieces{
			subjects.ChatChunk{Content: reply[:half]},
			subjects.ChatChunk{Content: reply[half:], Done: true, Model: "small"},
		}, nil
	}
}

// modelRequest returns the last request to the model. No such request may make the model think.
func (h *sessionFixture) modelRequest(t testing.TB) (q subjects.ChatRequest, r model.Request) {
	t.Helper()
	for _, a := range h.rec.Requested() {
		if a.Subject != "model.chat" {
			continue
		}
		if err := json.Unmarshal([]byte(a.Body), &q); err != nil {
			t.Fatal(err)
		}
	}
	if q.Messages == nil {
		t.Fatal("no model was asked")
	}
	if q.Think == nil || *q.Think {
		t.Errorf("think is %v, want false", q.Think)
	}
	r, err := wire.DecodeRequest(q)
	if err != nil {
		t.Fatal(err)
	}
	return q, r
}

// withModelRanking enables ranking by a model.
func withModelRanking(h *sessionFixture) { h.cfg.ModelTimeout = 5 * time.Second }

func (h *sessionFixture) discoverTools(t testing.TB, who, task string, most int) (names []string, err error) {
	t.Helper()
	c := callerOf(who)
	subject := "agent." + c.Account + ".broker.discover"
	for _, p := range c.Path {
		subject += "." + p
	}
	var got subjects.DiscoverReply
	err = h.deliver(t, subject, "s1", "q1", subjects.DiscoverRequest{Task: task, Max: most}, &got)
	for _, s := range got.Tools {
		names = append(names, s.Name)
		if s.Key != "" || len(s.Parameters) == 0 {
			t.Errorf("shown %+v", s)
		}
	}
	return names, err
}

// TestRankByModel: the model's reply can only select offered tools.
func TestRankByModel(t *testing.T) {
	t.Parallel()
	const task = "save the memory of what the web search said"
	byWords := []string{"save_memory", "search_memory", "web_search"} // with one more, see below
	for _, tt := range []struct {
		name  string
		reply string // "" = chat decides
		chat  func(subjects.ChatRequest) (any, error)
		max   int
		want  []string // nil = chosen by words
		noted bool
	}{
		{
			name: "three of them", reply: `{"tools":["web_fetch","run_shell","get_datetime"]}`,
			want: []string{"get_datetime", "run_shell", "web_fetch"},
		},
		{
			name: "four of them", reply: `{"tools":["web_fetch","run_shell","get_datetime","save_memory"]}`,
			want: []string{"get_datetime", "run_shell", "save_memory", "web_fetch"},
		},
		{
			name: "only one: the next best by words is there too", reply: `{"tools":["run_shell"]}`,
			want: []string{"run_shell", "save_memory"},
		},
		{name: "none: two by words", reply: `{"tools":[]}`, want: []string{"save_memory", "search_memory"}},
		{
			name: "one is enough when one is asked for", reply: `{"tools":["run_shell"]}`, max: 1,
			want: []string{"run_shell"},
		},
		{name: "no model", chat: nil, noted: true},
		{name: "built-in demo model", chat: func(subjects.ChatRequest) (any, error) {
			return actortest.Pieces{subjects.ChatChunk{
				Content: `{"tools":["run_shell","web_fetch"]}`, Done: true,
				DemoModel: true,
			}}, nil
		}},
		{name: "model timeout", chat: func(subjects.ChatRequest) (any, error) {
			return nil, subjects.Faultf(subjects.CodeTimeout, "no answer in time")
		}, noted: true},
		{name: "model stream fails", chat: func(subjects.ChatRequest) (any, error) {
			return actortest.Pieces{subjects.ChatChunk{Content: `{"tools":["run_sh`}, errors.New("gone")}, nil
		}, noted: true},

		{
			name:  "trick: more than the limit",
			reply: `{"tools":["web_fetch","run_shell","get_datetime","save_memory","search_memory","web_search"]}`,
			want:  []string{"get_datetime", "run_shell", "save_memory", "web_fetch"},
		},
		{
			name: "trick: repeated name", reply: `{"tools":["run_shell","run_shell","run_shell","run_shell"]}`,
			want: []string{"run_shell", "save_memory"},
		},
		{
			name:  "trick: denied and unknown tools",
			reply: `{"tools":["compare_answers","fs_write","teleport","*","","run_shell"]}`, want: []string{
				"run_shell",
				"save_memory",
			},
		},
		{
			name: "trick: name in another case", reply: `{"tools":["RUN_SHELL","run_shell ","run_shell"]}`,
			want: []string{"run_shell", "save_memory"},
		},
		{name: "trick: garbage", reply: `you should use run_shell`, noted: true},
		{name: "trick: in a code fence", reply: "```json\n{\"tools\":[\"run_shell\"]}\n```", noted: true},
		{name: "trick: a list", reply: `["run_shell"]`, noted: true},
		{name: "trick: names as an object", reply: `{"tools":{"run_shell":true}}`, noted: true},
		{name: "trick: nothing", reply: ` `, noted: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newSessionFixture(t, withModelRanking)
			h.chat = tt.chat
			if tt.reply != "" {
				h.setModelReply(tt.reply)
			}
			got, err := h.discoverTools(t, "generator", task, tt.max)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case tt.want != nil && !slices.Equal(got, tt.want):
				t.Errorf("%q, want %q", got, tt.want)
			case tt.want == nil && (len(got) != defaultTools || slices.ContainsFunc(byWords, func(s string) bool {
				return !slices.Contains(got, s)
			})):
				t.Errorf("%q, want those of %q", got, byWords)
			}
			if (len(h.rec.Logged()) > 0) != tt.noted {
				t.Errorf("noted %v", h.rec.Logged())
			}
			if got := h.recentEvents(); got != "before shown" {
				t.Errorf("on record %s", got)
			}
		})
	}
}

// TestRankTimeoutFallsBackToWords: a silent model times out well before the caller, and tools are ranked by words.
func TestRankTimeoutFallsBackToWords(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t, func(h *sessionFixture) { h.cfg.ModelTimeout = 20 * time.Millisecond })
	h.wrap = func(out actor.Out) actor.Out { return silentModelOut{out} }
	got, err := h.discoverTools(t, "generator", "save the memory", 0)
	if err != nil || len(got) != defaultTools || !slices.Contains(got, "save_memory") {
		t.Errorf("%q, %v", got, err)
	}
	if n := h.rec.Logged(); len(n) != 1 || !strings.Contains(n[0].Error(), "ranking by words instead") {
		t.Errorf("noted %v", n)
	}
}

// silentModelOut has a model that sends nothing until ctx ends.
type silentModelOut struct{ actor.Out }

func (d silentModelOut) Stream(ctx context.Context, _ subjects.Spec, _ []byte) iter.Seq2[actor.Piece, error] {
	return func(yield func(actor.Piece, error) bool) {
		<-ctx.Done()
		yield(actor.Piece{}, subjects.Faultf(subjects.CodeTimeout, "no answer in time"))
	}
}

// TestRankPrompt: the model sees one short line per tool and the task, about a hundred tokens, and no more.
func TestRankPrompt(t *testing.T) {
	t.Parallel()
	// A token is about four bytes of English.
	const token = 4
	names := subjects.Tools[:10] // the limits below are for ten
	tools := func(sentence string) (out []subjects.ToolSchema) {
		for _, name := range names {
			out = append(out, subjects.ToolSchema{Name: name, Description: sentence + ". This is not in the prompt, " +
				"however long it is.", Parameters: json.RawMessage(`{"type":"object","properties":{"hidden":{}}}`)})
		}
		return out
	}
	for _, tt := range []struct {
		name, sentence, task string
		most                 int // tokens
	}{
		{"real descriptions", "Reads one page of it", "what is the weather in Oslo tomorrow", 130},
		{"trick: long descriptions and task", strings.Repeat("very ", 500), strings.Repeat("long ", 500), 300},
		{"trick: a description of many lines", "a\n\n\nTask: b\r\nChoose", "c\nd", 130},
	} {
		h := newSessionFixture(t, withModelRanking)
		h.setModelReply(`{"tools":["fs_read"]}`)
		list := tools(tt.sentence)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := h.rankByModel(ctx, h.rec.Out(), tt.task, list, nil, defaultTools); err != nil {
			t.Fatal(err)
		}
		q, r := h.modelRequest(t)
		if q.Role != subjects.RoleTools || q.Hint != "simple" || len(q.Tools) != 0 || len(r.Messages) != 1 ||
			r.Options.Predict == 0 {
			t.Errorf("%s: asked %+v", tt.name, q)
		}
		prompt := r.Messages[0].Content
		t.Logf("%s: %d bytes, about %d tokens", tt.name, len(prompt), len(prompt)/token)
		if n := len(prompt) / token; n > tt.most {
			t.Errorf("%s: about %d tokens, want at most %d: %s", tt.name, n, tt.most, prompt)
		}
		if strings.Contains(prompt, "hidden") || strings.Contains(prompt, "This is not") ||
			strings.Count(prompt, "\n") != len(list)+1 {
			t.Errorf("%s: %s", tt.name, prompt)
		}
		var form struct {
			Properties struct {
				Tools struct {
					MaxItems int
					Items    struct{ Enum []string }
				}
			}
		}
		if err := json.Unmarshal(q.Format, &form); err != nil ||
			!slices.Equal(form.Properties.Tools.Items.Enum, names) || form.Properties.Tools.MaxItems != defaultTools {
			t.Errorf("%s: form %s, %v", tt.name, q.Format, err)
		}
	}
}

// TestDiscoverReturnsPermittedTools: disabled tools are left out, granted ones included, and a spawned agent gets its
// own set.
func TestDiscoverReturnsPermittedTools(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t)
	h.addTurn("s1", "q1", "fish")
	child := h.mustSpawn(t, "generator", "s1", subjects.SpawnRequest{Type: "researcher"})
	narrow := h.mustSpawn(t, "generator", "s1", subjects.SpawnRequest{Type: "researcher", Tools: []string{"web_fetch"}})
	check := func(name, who string, want ...string) {
		t.Helper()
		got, err := h.discoverTools(t, who, "fish", maxTools)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v, want %q", name, got, err, want)
		}
	}
	check("a persona", "committee", "search_memory")
	check("a spawned agent", child, "search_memory", "web_fetch", "web_search")
	check("one that was narrowed", narrow, "web_fetch")
	h.setConfig(t, subjects.SessionConfig{
		Disable: []string{"web_search"},
		Grant:   []string{"persona:get_datetime", "researcher:get_datetime"},
	})
	check("disabled and granted, for a spawned agent", child, "get_datetime", "search_memory", "web_fetch")
	check("trick: a grant in a session that it does not answer", "committee", "search_memory")
	check("granted, and yet narrowed", narrow, "web_fetch")
	h.setConfig(t, subjects.SessionConfig{Override: "ALL"})
	check("ALL gives a spawned agent nothing", narrow, "web_fetch")

	if got, err := h.discoverTools(t, "generator", "fish", 1000); err != nil || len(got) > maxTools {
		t.Errorf("all at once: %q, %v", got, err)
	}
	if got, err := h.discoverTools(t, "generator", "fish", -1); err != nil || len(got) != defaultTools {
		t.Errorf("fewer than none: %q, %v", got, err)
	}
	h.auditLog()
	for _, tt := range []struct{ name, who, trail string }{
		{"trick: unregistered agent", "generator.researcher-0", "before denied manifest: no type"},
		{"trick: below another account", "orchestrator." + callerOf(child).Path[0], "before denied manifest: no type"},
		{"trick: an account without a type", "critic", "before denied manifest: no type"},
	} {
		if got, err := h.discoverTools(t, tt.who, "fish", 0); actortest.Code(err) != subjects.CodeDenied ||
			len(got) != 0 {
			t.Errorf("%s: %q, %v", tt.name, got, err)
		}
		if got := h.auditLog(); got != tt.trail {
			t.Errorf("%s: on record %s", tt.name, got)
		}
	}
	for _, bucket := range []string{bucketSpawns, "session_config"} {
		h.wrap = func(out actor.Out) actor.Out { return failingOut{out, bucket, ""} }
		if got, err := h.discoverTools(t, child, "fish", 0); actortest.Code(err) != subjects.CodeUnavailable ||
			len(got) != 0 {
			t.Errorf("without %s: %q, %v", bucket, got, err)
		}
		if got := h.auditLog(); got != "before denied unavailable" {
			t.Errorf("without %s: on record %s", bucket, got)
		}
	}
}

// TestDiscoverLeavesOutToolsWithoutAFolder: a tool with paths is not offered to a caller whose type has no folder for
// it.
func TestDiscoverLeavesOutToolsWithoutAFolder(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t, func(h *sessionFixture) {
		h.facts = func(all map[string]policy.Tool) {
			memory := all["search_memory"]
			memory.Paths = []string{"path"}
			all["search_memory"] = memory
		}
	})
	h.addTurn("s1", "q1", "fish")
	child := h.mustSpawn(t, "generator", "s1", subjects.SpawnRequest{Type: "researcher"})
	got, err := h.discoverTools(t, child, "fish", maxTools)
	if want := []string{"web_fetch", "web_search"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}

// TestDiscoverOffersToolWithAFolderThatIsThere: each call of a tool whose folders are missing would fail; the working
// folder of a question is made when it is used.
func TestDiscoverOffersToolWithAFolderThatIsThere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	workspace := filepath.Join(dir, "workspace")
	for folder, want := range map[string]bool{dir: true, filepath.Join(dir, "missing"): false, workspace: true} {
		h := newSessionFixture(t, func(h *sessionFixture) {
			h.cfg.Workspace = workspace
			h.facts = func(all map[string]policy.Tool) {
				memory := all["search_memory"]
				memory.Paths = []string{"path"}
				all["search_memory"] = memory
			}
		})
		h.start(t, parseRules(t, strings.Replace(sessionManifest, "types:\n  assistant:\n",
			"types:\n  assistant:\n    paths: {search_memory: ["+folder+"/]}\n", 1)))
		got, err := h.discoverTools(t, "generator", "fish", maxTools)
		if err != nil || slices.Contains(got, "search_memory") != want {
			t.Errorf("%s: %q, %v", folder, got, err)
		}
	}
}

// TestDiscoverOffersNamedTool: a task that names a tool gets it also when another one fits its words better.
func TestDiscoverOffersNamedTool(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t)
	h.addTurn("s1", "q1", "fish")
	for task, want := range map[string]string{
		`run_shell {"x":"search knowledge graph memory"}`: "run_shell",
		"save memory, search memory: (web_fetch)":         "web_fetch",
		"save memory: web_fetch2":                         "save_memory",
	} {
		if got, err := h.discoverTools(t, "generator", task, 1); err != nil || !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %q, %v, want %s", task, got, err, want)
		}
	}
	if got, err := h.discoverTools(t, "committee", "run_shell {}", 2); err != nil || slices.Contains(got, "run_shell") {
		t.Errorf("a tool that the caller may not use: %q, %v", got, err)
	}
}

// FuzzRank: whatever a model replies, only offered tools are chosen, none twice, and at least two.
func FuzzRank(f *testing.F) {
	for _, s := range []string{
		`{"tools":["fs_read"]}`, `{"tools":["fs_read","fs_read","x"]}`, `{"tools":null}`, `[]`,
		``, `{"tools":[1]}`, "\xff",
	} {
		f.Add(s)
	}
	h := newSessionFixture(f, withModelRanking)
	var offered []subjects.ToolSchema
	for _, name := range subjects.Tools {
		offered = append(offered, subjects.ToolSchema{Name: name, Description: name})
	}
	f.Fuzz(func(t *testing.T, reply string) {
		h.setModelReply(reply)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		got := h.chooseTools(ctx, (&actortest.Recorder{Reply: h.rec.Reply}).Out(), "read a file", offered, nil,
			defaultTools)
		var names []string
		for _, s := range got {
			names = append(names, s.Name)
		}
		if len(names) < minTools || len(names) > defaultTools ||
			len(slices.Compact(slices.Clone(names))) != len(names) || slices.ContainsFunc(names, func(n string) bool {
			return !slices.Contains(subjects.Tools, n)
		}) {
			t.Errorf("%q", names)
		}
	})
}

// TestRareTools: a rare tool is offered only when the task or the model names it.
func TestRareTools(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, task, reply string
		want              bool
	}{
		{"unrelated task, no model", "xyz", "", false},
		{"unrelated task, model names none", "xyz", `{"tools":[]}`, false},
		{"the model names it", "xyz", `{"tools":["run_shell"]}`, true},
		{"the task names it", "Which terminal is this?", "", true},
		{"trick: a word within a word", "a seashell", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newSessionFixture(t, withModelRanking, func(h *sessionFixture) {
				h.facts = func(all map[string]policy.Tool) {
					rare := all["run_shell"]
					rare.Rare = []string{"terminal", "shell"}
					all["run_shell"] = rare
				}
			})
			if tt.reply != "" {
				h.setModelReply(tt.reply)
			}
			got, err := h.discoverTools(t, "generator", tt.task, 4)
			if err != nil || len(got) < minTools || slices.Contains(got, "run_shell") != tt.want {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}
