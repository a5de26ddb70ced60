package acceptance

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"conclave/config"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// protected are parts of the names of settings that can only be changed in their files: what agents, tools and models
// may reach, who may reach this machine, and where credentials are.
var protected = []string{
	"manifest.", "secrets.", "tools.", "personas.", ".listen", "allow_remote", ".url", ".key", ".hosts", ".socket",
	"token_file", ".page", "system_prompt", ".ports", ".cert",
	"audit", "system.sync", "system.actor.", "system.broker.", "machines.", "this_machine", "web_search.provider",
	"web_fetch.enabled", "generator.repeats",
}

// plainTexts are the texts that can be changed and reach no other machine: choices and patterns, and the model of
// respondent B, which is checked as the models of the roles are.
var plainTexts = []string{
	"generator.respondent_b.model", "generator.recall_first", "system.log_level", "web_search.language",
	"web_search.safe", "models.defaults.keep_alive", "models.defaults.calls", "models.demo_model",
}

// TestSettings reads and changes the settings of a running system: the file keeps its comments, the actor has the new
// value without a restart, the audit log has the change, and what would weaken the protection cannot be changed.
func TestSettings(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	file := filepath.Join(home.Config, "generator.yaml")
	const before = "# mine\nsteps: 4   # few\n\ngrades:\n  retry: false # never\n"
	writeUserFile(t, file, before)
	c, err := config.Load(home.Config)
	if err == nil {
		err = c.Apply(map[string]string{"system.listen": "127.0.0.1:0", "critic.retry_at": "3"})
	}
	if err != nil {
		t.Fatal(err)
	}
	c.Models.Ollama.URL = "http://127.0.0.1:1" // nothing answers there, so the demo model does
	r := up(t, c, home, subjects.Registry, "tools", "broker", "model", "critic", "router", "generator")
	user := dialUser(t, r.Bus)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	find := func(name string) subjects.Setting {
		t.Helper()
		l, err := user.Settings(ctx)
		if err != nil || l.Error != "" {
			t.Fatal(l.Error, err)
		}
		i := slices.IndexFunc(l.Settings, func(s subjects.Setting) bool { return s.Name == name })
		if i < 0 {
			t.Fatalf("there is no setting %s", name)
		}
		return l.Settings[i]
	}
	l, err := user.Settings(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range l.Settings {
		guarded := slices.ContainsFunc(protected, func(p string) bool { return strings.Contains(s.Name, p) })
		if s.Editable && guarded || s.Editable == (s.Locked != "") || s.Live && !s.Editable && s.Origin != config.Flag {
			t.Errorf("%+v", s)
		}
		if s.Editable && s.Description == "" {
			t.Errorf("%s has no description", s.Name)
		}
	}
	if got := find("generator.steps"); got.Value != "4" || got.Default != "5" || got.Origin != file+":2" ||
		got.Type != "number" || !got.Live || got.Actor != "generator" ||
		!strings.Contains(got.Description, "model calls") {
		t.Errorf("%+v", got)
	}
	// each text that can be changed is the name of a model, a choice, or a duration of a model server
	for _, s := range l.Settings {
		if s.Editable && s.Type == "text" && !strings.HasPrefix(s.Name, "models.roles.") &&
			!slices.Contains(plainTexts, s.Name) {
			t.Errorf("%s: can its value send something to another machine? If not, list it in plainTexts", s.Name)
		}
	}
	if got := find("critic.retry_at"); got.Origin != config.Flag || got.Editable {
		t.Errorf("%+v", got)
	}

	// A change applies at once: the demo model answers until it is switched off.
	demo := func() bool {
		t.Helper()
		l, err := user.Models(ctx)
		if err != nil || len(l.Roles) == 0 {
			t.Fatal(l, err)
		}
		return slices.ContainsFunc(l.Roles, func(r subjects.RoleModel) bool {
			return r.Role == subjects.RoleAssistant && r.DemoModel
		})
	}
	if !demo() {
		t.Error("the demo model does not answer")
	}
	done, err := user.ChangeSetting(ctx, "models.demo_model", "never")
	if err != nil || !slices.Equal(done.Restarted, []string{"model"}) || done.Setting.Value != "never" ||
		!strings.HasSuffix(done.Setting.Origin, "models.yaml:1") {
		t.Fatalf("%+v %v", done, err)
	}
	if demo() {
		t.Error("the demo model answers after it was switched off")
	}
	for _, change := range [][2]string{
		{"generator.steps", "7"},
		{"generator.max_tools", "0"},
		{"generator.grades.retry", "true"},
		{"models.roles.critic", "judge:7b"},
		{"generator.respondent_b.enabled", "true"},
	} {
		if _, err := user.ChangeSetting(ctx, change[0], change[1]); err != nil {
			t.Errorf("%v: %v", change, err)
		}
	}
	want := "# mine\nsteps: 7   # few\n\ngrades:\n  retry: true # never\nmax_tools: 0\nrespondent_b:\n  enabled: true\n"
	if got, err := os.ReadFile(file); string(got) != want || err != nil {
		t.Errorf("the file is %q, %v", got, err)
	}
	if got := find("generator.respondent_b.enabled"); got.Value != "false" || got.Pending != "true" || got.Live {
		t.Errorf("a change that needs a restart: %+v", got)
	}
	if got := find("models.roles.critic"); got.Value != "judge:7b" || got.Origin == config.Shipped {
		t.Errorf("%+v", got)
	}

	for name, q := range map[string]struct{ setting, value, code, text string }{
		"the address of the API": {"system.gateway.listen", "0.0.0.0:80", subjects.CodeDenied, "system.yaml"},
		"the broker's rules":     {"manifest.high_risk", "", subjects.CodeDenied, "manifest.yaml"},
		"remote models":          {"models.allow_remote", "gpt", subjects.CodeDenied, "models.yaml"},
		"the model server":       {"models.ollama.url", "http://evil.example", subjects.CodeDenied, "models.yaml"},
		"the sandbox":            {"tools.sandbox.memory", "100GB", subjects.CodeDenied, "tools.yaml"},
		"a credential":           {"web_search.brave.key", "x", subjects.CodeDenied, "web_search.yaml"},
		"a prompt file":          {"generator.system_prompt", "/etc/passwd", subjects.CodeDenied, "generator.yaml"},
		"a flag":                 {"critic.retry_at", "4", subjects.CodeDenied, "flag"},
		"an unknown one":         {"generator.nothing", "1", subjects.CodeMalformed, "unknown setting"},
		"a path":                 {"../generator.steps", "1", subjects.CodeMalformed, "unknown setting"},
		"out of range":           {"generator.steps", "-1", subjects.CodeMalformed, "steps"},
		"no number":              {"generator.steps", "many", subjects.CodeMalformed, "whole number"},
		"a second line": {
			"generator.steps", "7\nsystem_prompt: /etc/passwd", subjects.CodeMalformed,
			"one line",
		},
		"a second field": {
			"generator.respondent_b.temperature", "1, enabled: true", subjects.CodeMalformed,
			"",
		},
		"an anchor":                 {"generator.steps", "&a 7", subjects.CodeMalformed, "anchors"},
		"a value of another choice": {"generator.recall_first", "perhaps", subjects.CodeMalformed, "recall_first"},
		"another registry": {
			"models.roles.tools", "evil.example/ns/model:latest", subjects.CodeDenied,
			"models.yaml",
		},
		"another namespace": {"models.roles.assistant", "publisher/model", subjects.CodeDenied, "models.yaml"},
		"another machine": {
			"generator.respondent_b.model", "gpu-box/llama3", subjects.CodeDenied,
			"generator.yaml",
		},
		"an address": {
			"models.roles.embeddings", "http://evil.example/x", subjects.CodeDenied,
			"models.yaml",
		},
		"too long": {
			"models.roles.critic", strings.Repeat("x", 5000), subjects.CodeMalformed,
			"longer",
		},
	} {
		_, err := user.ChangeSetting(ctx, q.setting, q.value)
		var f *subjects.Fault
		if !errors.As(err, &f) || f.Code != q.code || !strings.Contains(f.Text, q.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got, err := os.ReadFile(file); string(got) != want || err != nil {
		t.Errorf("after refusals the file is %q, %v", got, err)
	}
	var made, refused int
	for _, st := range bustest.ReadAuditLog(t, r.Bus) {
		for _, rec := range decoded(t, st) {
			switch {
			case rec.Action != subjects.ActionSettingChange:
			case rec.Status == subjects.StatusRefused:
				refused++
			case rec.Phase == subjects.AuditAfter && rec.Status == subjects.StatusOK && rec.AgentID == "user":
				made++
			}
		}
	}
	if made != 6 || refused == 0 {
		t.Errorf("the audit log has %d changes and %d refusals", made, refused)
	}
}

func writeUserFile(t *testing.T, file, text string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(file), 0o700)
	if err == nil {
		err = os.WriteFile(file, []byte(text), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
