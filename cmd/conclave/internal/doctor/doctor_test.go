package doctor

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/actors/model"
	"conclave/cmd/conclave/internal/cli"
	"conclave/config"
	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/client"
	"conclave/subjects"
)

// TestCheckEvents warns of an account that has used more than half of its quota of events.
func TestCheckEvents(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t, func(c *bus.ServerConfig) { c.EventMax = 8 << 20 })
	c, err := client.New(b.Connect("user"))
	if err != nil {
		t.Fatal(err)
	}
	check := func() Check {
		x := &examination{}
		x.checkEvents(t.Context(), c)
		return x.checks[0]
	}
	if got := check(); got.Level != LevelOK || got.Name != "streams" {
		t.Errorf("at first %+v", got)
	}
	critic := b.Out("critic")
	for range 4 { // of 4 MB
		if err := actor.Emit(t.Context(), critic, subjects.CritiqueResult,
			subjects.Critique{Feedback: strings.Repeat("x", 700<<10)}); err != nil {
			t.Fatal(err)
		}
	}
	if got := check(); got.Level != LevelWarn || !strings.Contains(got.Text, "EVENTS_critic 6") {
		t.Errorf("then %+v", got)
	}
}

// TestCheckOllamaCloud reports the cloud setting of a local Ollama where it is known.
func TestCheckOllamaCloud(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, answer, level, text, fix string
	}{
		{"off", `{"cloud":{"disabled":true,"source":"env"}}`, LevelOK, "is off", ""},
		{"on", `{"cloud":{"disabled":false,"source":"none"}}`, LevelWarn, "is on", "OLLAMA_NO_CLOUD=1"},
		{"older", "", LevelOK, "unknown", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if tt.answer == "" {
					http.NotFound(w, r)
					return
				}
				_, _ = io.WriteString(w, tt.answer)
			}))
			defer srv.Close()
			var x examination
			x.checkOllamaCloud(t.Context(), model.Server{URL: srv.URL})
			if len(x.checks) != 1 {
				t.Fatalf("got %+v", x.checks)
			}
			if c := x.checks[0]; c.Level != tt.level || !strings.Contains(c.Text, tt.text) ||
				!strings.Contains(c.Text, "allow_remote") || !strings.Contains(c.Fix, tt.fix) {
				t.Errorf("got %+v", c)
			}
		})
	}
	var x examination
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for _, url := range []string{gone.URL, "http://ollama.example:11434"} {
		if x.checkOllamaCloud(t.Context(), model.Server{URL: url}); len(x.checks) != 0 {
			t.Errorf("%s: %+v", url, x.checks)
		}
	}
}

// TestCheckCritic checks the model of the critic and of respondent B.
func TestCheckCritic(t *testing.T) {
	t.Parallel()
	role := func(r subjects.RoleModel) []subjects.RoleModel {
		r.Role = subjects.RoleCritic
		return []subjects.RoleModel{{Role: subjects.RoleAssistant, Model: "big:1b"}, r}
	}
	for _, tt := range []struct {
		name, critic, generator     string
		roles                       []subjects.RoleModel
		level, text, fix            string
		respondentB, respondentBFix string
	}{
		{
			"its own model", "", "", role(subjects.RoleModel{Model: "judge:1b"}), LevelOK,
			"judge:1b grades every answer",
			"", "", "",
		},
		{
			"the assistant's model", "", "", role(subjects.RoleModel{Model: "big:1b"}), LevelOK,
			"big:1b grades every answer, its own too; optional: with a model that was made to grade (conclave model " +
				"pull prometheus:7b)", "", "", "",
		},
		{
			"the assistant's stands in", "", "",
			role(subjects.RoleModel{Model: "big:1b", Wanted: "judge:1b", Notice: "judge:1b is not there, so big:1b " +
				"answers; fetch it with: conclave model pull judge:1b"}), LevelWarn,
			"judge:1b is not available, so big:1b grades", "conclave model pull judge:1b", "", "",
		},
		{"optional", "", "", role(subjects.RoleModel{
			Model: "big:1b", Wanted: "judge:1b", Improves: "grades are better",
			Notice: "n",
		}), LevelOK, "big:1b grades every answer; optional, not installed: judge:1b for critic; with " +
			"it, grades are better", "conclave model pull judge:1b", "", ""},
		{
			"without a notice", "", "", role(subjects.RoleModel{Model: "big:1b", Wanted: "judge:1b"}), LevelWarn,
			"judge:1b is not available, so big:1b grades", "conclave model pull judge:1b", "", "",
		},
		{
			"one that cannot be fetched", "", "",
			role(subjects.RoleModel{Model: "big:1b", Wanted: "far/judge", Notice: "far/judge is not there, so big:1b " +
				"answers; check its name in models.yaml"}), LevelWarn, "big:1b grades",
			"far/judge is not there, so big:1b answers; check its name in models.yaml", "", "",
		},
		{
			"a script", "", "", role(subjects.RoleModel{Model: "script", Wanted: "judge:1b", DemoModel: true}),
			LevelWarn,
			"answers stay ungraded", "run ollama serve, then conclave model pull judge:1b", "", "",
		},
		{"no such role", "", "", nil, LevelWarn, "no model has the role critic", "models.yaml", "", ""},
		{
			"off", "enabled: false", "", role(subjects.RoleModel{Model: "big:1b", Wanted: "judge:1b"}), LevelOK,
			"switched off in critic.yaml", "", "", "",
		},
		{
			"a second respondent", "", "respondent_b: {enabled: true}", role(subjects.RoleModel{Model: "judge:1b"}),
			LevelOK, "judge:1b", "", "with the assistant's model", "",
		},
		{
			"started by a flag", "", "", role(subjects.RoleModel{Model: "judge:1b"}), LevelOK, "judge:1b", "",
			"enabled by a flag", "",
		},
		{
			"with a model of its own", "", "respondent_b: {enabled: true, model: other}",
			role(subjects.RoleModel{Model: "judge:1b"}), LevelOK, "judge:1b", "", "with other", "",
		},
		{
			"with a model that is not there", "", "respondent_b: {enabled: true, model: 'gone:1b'}",
			role(subjects.RoleModel{Model: "judge:1b"}), LevelOK, "judge:1b", "", "gone:1b is not available",
			"conclave model pull gone:1b",
		},
		{
			"with a model that is refused", "", "respondent_b: {enabled: true, model: 'cloud:1b'}",
			role(subjects.RoleModel{Model: "judge:1b"}), LevelOK, "judge:1b", "", "cloud:1b is not available",
			"conclave model pull cloud:1b",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := cli.New(nil, io.Discard, io.Discard)
			a.Home.Config = t.TempDir()
			for name, body := range map[string]string{"critic.yaml": tt.critic, "generator.yaml": tt.generator} {
				if body != "" {
					if err := os.WriteFile(a.Home.Config+"/"+name, []byte(body+"\n"), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			cfg, err := config.Load(a.Home.Config)
			if err != nil {
				t.Fatal(err)
			}
			x := examination{App: a, cfg: cfg}
			x.checkCritic(subjects.ModelList{Models: []subjects.ModelInfo{
				{Name: "big:1b"},
				{Name: "judge:1b"},
				{Name: "other:latest"},
				{Name: "cloud:1b", Refused: "far away"},
			}, Roles: tt.roles},
				tt.name == "started by a flag")
			if c := x.checks[0]; c.Name != "critic" || c.Level != tt.level || !strings.Contains(c.Text, tt.text) ||
				tt.fix == "" && c.Fix != "" || !strings.Contains(c.Fix, tt.fix) {
				t.Errorf("the critic: %+v", c)
			}
			if tt.respondentB == "" {
				if len(x.checks) != 1 {
					t.Errorf("more: %+v", x.checks)
				}
				return
			}
			if c := x.checks[1]; c.Name != "respondent_b" || !strings.Contains(c.Text, tt.respondentB) ||
				c.Fix != tt.respondentBFix || (c.Level == LevelOK) != (c.Fix == "") {
				t.Errorf("the second respondent: %+v", c)
			}
		})
	}
}

// TestCheckRoles asks for the models of roles in use, and for an optional one only by a hint.
func TestCheckRoles(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		roles []subjects.RoleModel
		want  []Check
	}{
		{"one model for all", []subjects.RoleModel{
			{Role: "assistant", Model: "big"},
			{Role: "summaries", Model: "big"},
		}, []Check{
			{Name: "models", Level: LevelOK, Text: "1 model available, and every role in use has one"},
		}},
		{"an optional one is missing", []subjects.RoleModel{
			{Role: "assistant", Model: "big"},
			{Role: "embeddings", Model: "e", Wanted: "e", Improves: "memory is better", Notice: "n"},
		}, []Check{
			{
				Name: "models", Level: LevelOK,
				Text: "optional, not installed: e for embeddings; with it, memory is better",
				Fix:  "conclave model pull e",
			},
			{Name: "models", Level: LevelOK, Text: "1 model available, and every role in use has one"},
		}},
		{"one that the user chose is missing", []subjects.RoleModel{
			{Role: "assistant", Model: "big"},
			{Role: "tools", Model: "big", Wanted: "t", Notice: "install t"},
		}, []Check{
			{Name: "models", Level: LevelWarn, Text: "for tools", Fix: "install t"},
		}},
		{"the demo model in one role", []subjects.RoleModel{
			{Role: "assistant", Model: "big"},
			{Role: "tools", Model: "demo", DemoModel: true},
		}, []Check{
			{
				Name: "models", Level: LevelWarn,
				Text: "Ollama does not answer at http://127.0.0.1:11434: the built-in demo model is used",
				Fix: "run ollama serve (https://ollama.com/download), then conclave model pull gemma4:12b; one at " +
					"another address: conclave setup --ollama-url <url>",
			},
		}},
		{"no roles", nil, []Check{
			{Name: "models", Level: LevelFail, Text: "the model actor lists no role", Fix: seeLog},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg, err := config.Load("")
			if err != nil {
				t.Fatal(err)
			}
			x := examination{cfg: cfg}
			x.checkRoles(subjects.ModelList{Models: []subjects.ModelInfo{{Name: "big"}}, Roles: tt.roles})
			if !slices.Equal(x.checks, tt.want) {
				t.Errorf("got  %+v\nwant %+v", x.checks, tt.want)
			}
		})
	}
}

// TestSecondModelIsPriced says whether the models in use stay loaded together, by their sizes and the free memory.
func TestSecondModelIsPriced(t *testing.T) {
	t.Parallel()
	models := []subjects.ModelInfo{
		{Name: "big:latest", Backend: "ollama", Size: 8 << 30, Loaded: true},
		{Name: "judge", Backend: "ollama", Size: 4 << 30},
		{Name: "idle", Backend: "ollama", Size: 1 << 40},
	}
	for name, tt := range map[string]struct {
		critic string
		free   int64
		level  string
		text   string
	}{
		"one model":        {"big", 1, "", ""},
		"both fit":         {"judge", 6 << 30, LevelOK, "both fit into the free memory"},
		"a swap":           {"judge", 2 << 30, LevelWarn, "each change between them loads a model again"},
		"memory not known": {"judge", 0, LevelOK, "OLLAMA_MAX_LOADED_MODELS"},
	} {
		x := examination{App: cli.New(nil, io.Discard, io.Discard)}
		x.checkSecondModel(subjects.ModelList{
			Models: models,
			Roles:  []subjects.RoleModel{{Role: "assistant", Model: "big"}, {Role: "critic", Model: tt.critic}},
		},
			tt.free)
		switch {
		case tt.text == "" && len(x.checks) > 0:
			t.Errorf("%s: %+v", name, x.checks)
		case tt.text != "" && (len(x.checks) != 1 || string(x.checks[0].Level) != tt.level ||
			!strings.Contains(x.checks[0].Text, tt.text)):
			t.Errorf("%s: %+v", name, x.checks)
		}
	}
}

// TestToolCallsAreReported shows how the assistant's model calls tools, and the result of its self-test.
func TestToolCallsAreReported(t *testing.T) {
	t.Parallel()
	day := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for want, m := range map[string]subjects.ModelInfo{
		"big: native, 4 of 4 replies of its self-test were right, on 2026-01-02": {
			Calls: subjects.CallNative, CallTest: &subjects.CallTest{Passed: 4, Total: 4, Tested: day},
		},
		"big: under a JSON schema, because 1 of 4 replies of its self-test were right, on 2026-01-02": {
			Calls: subjects.CallConstrained, CallTest: &subjects.CallTest{Passed: 1, Total: 4, Tested: day},
		},
		"big: under a JSON schema, by its size or models.yaml": {
			Calls: subjects.CallConstrained,
		},
		"big: native; models on other machines are not tested": {
			Calls: subjects.CallNative, Remote: "ollama.com",
		},
	} {
		x := &examination{}
		m.Name = "big"
		x.checkCalls(subjects.ModelList{
			Models: []subjects.ModelInfo{m, {Name: "other", Calls: subjects.CallNative}},
			Roles:  []subjects.RoleModel{{Role: "assistant", Model: "big"}, {Role: "critic", Model: "other"}},
		})
		if len(x.checks) != 1 || x.checks[0].Text != want {
			t.Errorf("%+v, want %s", x.checks, want)
		}
	}
}

// TestSpeedIsReported shows the measured speed of models in use.
func TestSpeedIsReported(t *testing.T) {
	t.Parallel()
	x := examination{App: cli.New(nil, io.Discard, io.Discard)}
	x.checkSpeed(subjects.ModelList{
		Models: []subjects.ModelInfo{
			{Name: "big:latest", PromptSpeed: 28.4, OutputSpeed: 9.6},
			{Name: "idle", PromptSpeed: 1},
		},
		Roles: []subjects.RoleModel{{Role: "assistant", Model: "big"}, {Role: "critic", Model: "big"}},
	})
	if len(x.checks) != 1 || x.checks[0].Text != "measured on this machine: big:latest: read 28, write 9.6 tokens/s" {
		t.Errorf("%+v", x.checks)
	}
}

// TestMissingVectorsNameTheirCause repeats the reason that memory has seen.
func TestMissingVectorsNameTheirCause(t *testing.T) {
	t.Parallel()
	x := examination{App: cli.New(nil, io.Discard, io.Discard)}
	x.checkVectors(subjects.MemoryStatus{Unembedded: 2})
	x.checkVectors(subjects.MemoryStatus{Unembedded: 1, Problem: "m-1 is rejected: unsupported value: NaN"})
	if len(x.checks) != 2 || !strings.Contains(x.checks[0].Fix, "wait") ||
		!strings.Contains(x.checks[1].Text, "1 entry without an embedding") ||
		!strings.Contains(x.checks[1].Text, "NaN") {
		t.Errorf("%+v", x.checks)
	}
}
