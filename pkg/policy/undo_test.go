package policy

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/subjects"
)

// undoChain judges as the shipped manifest does about a file tool.
var undoChain = Chain{FlowLayer{}, riskLayer{High: []string{"fs_write"}, Always: []string{"always"}}}

// writeFileCall is a call of fs_write in a session that read an untrusted page, whose state before is kept.
func writeFileCall(path string) Call {
	args, _ := json.Marshal(map[string]string{"path": path, "content": "from the page"})
	return Call{
		Caller: subjects.Caller{Account: "generator"}, Query: "q1", Args: args,
		Tool: Tool{
			Name: "fs_write", Known: true, Keeps: true, Act: ActChange, Effects: Declare(Mutate),
			Paths: []string{"path"}, Args: Args{"path": {Role: RoleID}, "content": {Role: RoleContent}},
		},
		Flow: newFlow("What does the page say?", untrustedResult("write this")),
		Kept: &Kept{ChangeRef: subjects.ChangeRef{ID: "c1", Files: []string{path}}, MayPass: true},
	}
}

// inOwn makes a call one that writes a program or another file at a path, with a working folder of its question.
func inOwn(folder, path string) func(c *Call) {
	return func(c *Call) {
		*c = writeFileCall(path)
		c.Kept.Own, c.Kept.Runs = folder, true
	}
}

// TestUndoableRunsWithoutQuestion: a call whose state before is kept is not asked about, also after untrusted content;
// each fact that is missing makes it ask.
func TestUndoableRunsWithoutQuestion(t *testing.T) {
	t.Parallel()
	const path = "/home/me/notes/kitchen.txt"
	for name, tt := range map[string]struct {
		change func(c *Call)
		rules  string // of the questions, "" = it runs
	}{
		"kept":                        {func(*Call) {}, ""},
		"kept, nothing untrusted":     {func(c *Call) { c.Flow = newFlow("What does the page say?") }, ""},
		"kept, relaxed":               {func(c *Call) { c.Override.Level = subjects.OverrideRelax }, ""},
		"trick: nothing is kept":      {func(c *Call) { c.Kept = nil }, "act high_risk"},
		"trick: no file is kept":      {func(c *Call) { c.Kept.Files = nil }, "act high_risk"},
		"the setting asks":            {func(c *Call) { c.Kept.MayPass = false }, "act high_risk"},
		"trick: only the tool claims": {func(c *Call) { c.Tool.Keeps = false }, "act high_risk"},
		"trick: it also sends": {
			func(c *Call) { c.Tool.Effects = Declare(Mutate, Egress) }, "act high_risk",
		},
		"trick: it also executes": {
			func(c *Call) { c.Tool.Effects = Declare(Mutate, Exec) }, "grave high_risk",
		},
		"trick: it also destroys": {
			func(c *Call) { c.Tool.Effects = Declare(Mutate, Destroy) }, "grave high_risk",
		},
		"trick: undeclared effects":      {func(c *Call) { c.Tool.Effects = Effects{} }, "grave high_risk"},
		"trick: an unknown session":      {func(c *Call) { c.Flow = nil }, "unknown_session high_risk"},
		"trick: an unknown question":     {func(c *Call) { c.Query = "q9" }, "act high_risk"},
		"trick: a program is changed":    {func(c *Call) { c.Kept.Runs = true }, "obeyed act high_risk"},
		"trick: the tool asks each time": {func(c *Call) { c.Tool.Name = "always" }, "always"},
		"trick: the keeper keeps another file": {
			func(c *Call) { c.Kept.Files = []string{"/home/me/.bashrc"} }, "obeyed act high_risk",
		},
		"trick: the question of a client": {func(c *Call) {
			c.Flow = (&Flow{}).WithClientTurn(1, "q1", subjects.Generator, "phone", "read it", false, time.Unix(1, 0))
		}, "act high_risk"},
		"a build file in its working folder":      {inOwn("/tmp/w/q1-5f1b", "/tmp/w/q1-5f1b/Makefile"), ""},
		"a program in its working folder":         {inOwn("/tmp/w/q1-5f1b", "/tmp/w/q1-5f1b/a/.x/run.sh"), ""},
		"trick: the folder of another question":   {inOwn("/tmp/w/q1-5f1b", "/tmp/w/q2-5f1b/Makefile"), "obeyed"},
		"trick: a folder with the same beginning": {inOwn("/tmp/w/q1-5f1b", "/tmp/w/q1-5f1bx/Makefile"), "obeyed"},
		"trick: up from its working folder":       {inOwn("/tmp/w/q1-5f1b", "/tmp/w/q1-5f1b/../Makefile"), "obeyed"},
		"trick: a working folder among programs":  {inOwn("/home/me/bin/q1-5f1b", "/home/me/bin/q1-5f1b/a"), "obeyed"},
		"trick: a build file, no working folder":  {inOwn("", "/tmp/w/q1-5f1b/Makefile"), "obeyed"},
		"trick: its working folder, nothing kept": {func(c *Call) {
			*c = writeFileCall("/w/Makefile")
			c.Kept = nil
		}, "obeyed"},
		"trick: another path than the one kept": {func(c *Call) {
			inOwn("/w/q1", "/w/q1/a")(c)
			c.Args = []byte(`{"path":"/w/Makefile"}`)
		}, "obeyed"},
		"trick: a program beside its working file": {func(c *Call) {
			inOwn("/w/q1", "/w/q1/a")(c)
			c.Kept.Files = append(c.Kept.Files, "/w/run")
		}, "obeyed"},
	} {
		c := writeFileCall(path)
		tt.change(&c)
		checkAsks(t, name, undoChain.Decide(t.Context(), c), tt.rules)
	}
}

// checkAsks fails when a decision is a denial, or does not ask by these rules; "" = it asks nothing.
func checkAsks(t *testing.T, name string, d Decision, rules string) {
	t.Helper()
	got := map[string]bool{}
	if d.Denial() != nil {
		t.Errorf("%s: denied: %v", name, d.Denial())
	}
	for _, q := range d.Asks() {
		got[q.Rule] = true
	}
	for _, rule := range strings.Fields(rules) {
		if !got[rule] {
			t.Errorf("%s: does not ask %s: %v", name, rule, got)
		}
	}
	if rules == "" && len(got) > 0 {
		t.Errorf("%s: asks %v", name, got)
	}
}

// programCall is a call of a program of the build in a session that read an untrusted page: its working folder is kept,
// and is the only one that it can write to.
func programCall() Call {
	const work = "/tmp/agent-sandbox/q1-5f1b"
	return Call{
		Caller: subjects.Caller{Account: "generator"}, Query: "q1", Args: json.RawMessage(`{"command":"make deploy"}`),
		Tool: Tool{
			Name: "run_shell", Known: true, Keeps: true, Sandboxed: true, Act: ActExecute,
			Effects: Declare(Exec, Mutate, ReadsPrivate, ReadsUntrusted), Args: Args{"command": {Role: RoleContent}},
		},
		Flow: newFlow("What does the page say?", untrustedResult("run make deploy")),
		Kept: &Kept{
			ChangeRef: subjects.ChangeRef{ID: "c1", Files: []string{work}, Runs: true}, MayPass: true, Work: work,
		},
	}
}

// TestSandboxedProgramRunsWithoutQuestion: a program of the build whose working folder is kept, and is the only folder
// that it can write to, is not asked about; each fact that is missing makes it ask as before.
func TestSandboxedProgramRunsWithoutQuestion(t *testing.T) {
	t.Parallel()
	chain := Chain{FlowLayer{}, riskLayer{High: []string{"run_shell"}, Always: []string{"package_install"}}}
	const asks = "grave high_risk"
	type row struct {
		change func(c *Call)
		rules  string // of the questions, "" = it runs
	}
	in := func(work string) row {
		return row{func(c *Call) { c.Kept.Work, c.Kept.Files = work, []string{work} }, asks}
	}
	with := func(e ...Effect) func(c *Call) {
		return func(c *Call) {
			c.Tool.Effects = Declare(append(e, Exec, Mutate, ReadsPrivate, ReadsUntrusted)...)
		}
	}
	for name, tt := range map[string]row{
		"kept":                        {func(*Call) {}, ""},
		"kept, nothing untrusted":     {func(c *Call) { c.Flow = newFlow("What does the page say?") }, ""},
		"kept, relaxed":               {func(c *Call) { c.Override.Level = subjects.OverrideRelax }, ""},
		"kept, texts of others":       {func(c *Call) { c.Foreign = true }, ""},
		"kept, of a spawned agent":    {func(c *Call) { c.Caller.Path = []string{"coder-1"} }, ""},
		"the setting asks":            {func(c *Call) { c.Kept.MayPass = false }, asks},
		"the setting asks, relaxed":   {func(c *Call) { c.Kept.MayPass = false; c.Override.Level = "RELAX" }, "grave"},
		"trick: nothing is kept":      {func(c *Call) { c.Kept = nil }, asks},
		"trick: no file is kept":      {func(c *Call) { c.Kept.Files = nil }, asks},
		"trick: no sandbox":           {func(c *Call) { c.Tool.Sandboxed = false }, asks},
		"trick: only a sandbox":       {func(c *Call) { c.Tool.Keeps = false }, asks},
		"trick: no working folder":    {func(c *Call) { c.Kept.Work = "" }, asks},
		"trick: nameless folders":     {func(c *Call) { c.Kept.Work, c.Kept.Files = "", []string{""} }, asks},
		"trick: another folder kept":  {func(c *Call) { c.Kept.Files = []string{"/tmp/agent-sandbox/q2-5f1b"} }, asks},
		"trick: a file of it kept":    {func(c *Call) { c.Kept.Files = []string{c.Kept.Work + "/a"} }, asks},
		"trick: a second folder kept": {func(c *Call) { c.Kept.Files = append(c.Kept.Files, "/home/me/p") }, asks},
		"trick: a shared workspace":   in("/home/me/Dropbox/w/q1-5f1b"),
		"trick: a folder of programs": in("/home/me/bin/q1-5f1b"),
		"trick: a folder of settings": in("/home/me/.config/q1-5f1b"),
		"trick: a folder of systems":  in("/etc/managed/q1-5f1b"),
		"trick: it names paths too":   {func(c *Call) { c.Tool.Paths = []string{"command"} }, asks},
		"trick: it also sends":        {with(Egress), asks},
		"trick: it also fetches":      {with(Fetch), asks},
		"trick: it also destroys":     {with(Destroy), asks},
		"trick: it also spends":       {with(Spend), asks},
		"trick: it gives access":      {with(Authenticate), asks},
		"trick: it moves something":   {with(Physical), asks},
		"trick: it remembers":         {with(Remember), asks},
		"trick: undeclared effects":   {func(c *Call) { c.Tool.Effects = Effects{} }, asks},
		"trick: no facts of the user": {func(c *Call) { c.Tool.AskEach = true }, "no_facts"},
		"trick: an unknown session":   {func(c *Call) { c.Flow = nil }, "unknown_session high_risk"},
		"trick: an unknown question":  {func(c *Call) { c.Query = "q9" }, asks},
		"trick: no question":          {func(c *Call) { c.Query = "" }, asks},
		"trick: it asks each time":    {func(c *Call) { c.Tool.Name = "package_install" }, "always"},
		"trick: each time, relaxed": {
			func(c *Call) { c.Tool.Name, c.Override.Level = "package_install", subjects.OverrideRelax }, "always",
		},
		"trick: unreadable arguments": {func(c *Call) { c.Args = json.RawMessage(`["ls"]`) }, asks},
		"trick: the question of a client": {func(c *Call) {
			c.Flow = (&Flow{}).WithClientTurn(1, "q1", subjects.Generator, "phone", "run it", false, time.Unix(1, 0))
		}, asks},
	} {
		c := programCall()
		tt.change(&c)
		checkAsks(t, name, chain.Decide(t.Context(), c), tt.rules)
	}
}

// TestObeyedFilesAsk: a change of a file that gains power later asks after untrusted content, kept or not, in a relaxed
// session too, and also when the user's question names the file; such an approval is never remembered.
func TestObeyedFilesAsk(t *testing.T) {
	t.Parallel()
	for _, path := range []string{
		"/home/me/.bashrc", "/home/me/.profile", "/home/me/.config/fish/config.fish", "/home/me/.ssh/authorized_keys",
		"/home/me/p/.git/hooks/pre-commit", "/home/me/p/.git/config", "/home/me/p/.GIT/config", "/home/me/.gitconfig",
		"/home/me/p/.github/workflows/x.yml", "/home/me/p/.gitlab-ci.yml", "/home/me/p/Jenkinsfile",
		"/home/me/p/Makefile", "/home/me/p/MAKEFILE", "/home/me/p/package.json", "/home/me/p/Dockerfile",
		"/home/me/p/rules.mk", "/home/me/p/conftest.py", "/home/me/p/x.pth", "/home/me/p/.envrc",
		"/home/me/.vimrc", "/home/me/.emacs.d/init.el", "/home/me/p/.vscode/tasks.json", "/home/me/p/x.code-workspace",
		"/home/me/.config/autostart/x.desktop", "/home/me/x.desktop", "/home/me/.config/systemd/user/x.service",
		"/home/me/Library/LaunchAgents/x.plist", "/etc/cron.d/x", "/var/spool/cron/crontabs/me", "/etc/managed/x",
		"/home/me/bin/x", "/home/me/.local/bin/x", "/usr/local/x", "/opt/x", "/home/me/p/AGENTS.md",
		"/home/me/p/claude.md", "/home/me/skills/x/SKILL.md", "/home/me/.mcp.json", "/home/me/.npmrc",
		"/home/me/.aws/credentials", "/home/me/.netrc", "/home/me/Public/x.txt", "/home/me/public_html/index.html",
		"/home/me/dotfiles/bashrc", "/home/me/d/dot-zshrc", "/home/me/d/dot_config/x", "/home/me/p/vite.config.ts",
		"/home/me/p/go.mod", "/home/me/p/compose.override.yaml", "/home/me/OneDrive - Me/x.txt",
		"/home/me/Dropbox (Personal)/x", "/private/etc/managed/x", "/home/me/p/hook\u017f/x",
		"/home/me/p/\u017fetup.py", "/home/me/Dropbox/x.txt",
		"/home/me/p/venv/lib/python3/site-packages/x.py", "/home/me/p/../.bashrc",
	} {
		for _, level := range []string{subjects.OverrideNone, subjects.OverrideRelax} {
			for _, kept := range []bool{true, false} {
				c := writeFileCall(path)
				c.Override.Level = level
				c.Flow = newFlow(`Write "from the page" to `+path, untrustedResult("x"))
				if !kept {
					c.Kept = nil
				}
				asked := false
				for _, q := range undoChain.Decide(t.Context(), c).Asks() {
					asked = asked || q.Rule == ruleObeyed && len(q.Sinks) == 0
				}
				if !asked {
					t.Errorf("%s is not asked about, level %s, kept %v", path, level, kept)
				}
			}
		}
		c := writeFileCall(path)
		c.Flow = newFlow("write it")
		if !c.Flow.IsTainted() && c.IsUndoable() {
			t.Errorf("%s runs without a question in a session without untrusted content", path)
		}
		for _, q := range undoChain.Decide(t.Context(), c).Asks() {
			if q.Rule == ruleHighRisk && !strings.Contains(q.Reason, "which something runs, trusts or shares later") {
				t.Errorf("%s: %s", path, q.Reason)
			}
		}
	}
	for _, path := range []string{
		"/home/me/notes/kitchen.md", "/home/me/calendar.ics", "/home/me/projects/go/main.go", "/tmp/x/report.txt",
		"/home/me/projects/binary/x.txt", "/home/me/a.b/c.txt",
	} {
		c := writeFileCall(path)
		if d := undoChain.Decide(t.Context(), c); !d.Allowed() {
			t.Errorf("%s asks: %+v", path, d.Asks())
		}
	}
}

// TestReversibleSetting: what can be undone passes unless the manifest says ask; another value is rejected.
func TestReversibleSetting(t *testing.T) {
	t.Parallel()
	const types = "types: {assistant: {tools: [fs_write]}}\naccounts: {generator: assistant}\n"
	for setting, want := range map[string]bool{"": false, "reversible: pass": false, "reversible: ask": true} {
		m, err := ParseManifest([]byte(types+setting), "manifest.yaml")
		if err != nil || m.AskReversible != want {
			t.Errorf("%q: %v, %v", setting, m.AskReversible, err)
		}
	}
	for _, setting := range []string{"reversible: Pass", "reversible: never", "reversible: ''"} {
		if _, err := ParseManifest([]byte(types+setting), "manifest.yaml"); err == nil {
			t.Errorf("%q is accepted", setting)
		}
	}
}

// TestManifestCannotClaimUndo: neither the manifest nor a declaration can say that a tool keeps the state before, or
// that it runs programs in the sandbox.
func TestManifestCannotClaimUndo(t *testing.T) {
	t.Parallel()
	for _, claim := range []string{
		"keeps: true", "Keeps: true", "records: true", "Records: true",
		"undo: true", "reversible: true", "sandboxed: true", "Sandboxed: true",
	} {
		_, err := ParseManifest([]byte("types: {assistant: {tools: [x]}}\naccounts: {generator: assistant}\n"+
			"tools: {x: {effects: [mutate], "+claim+"}}\n"), "manifest.yaml")
		if err == nil {
			t.Errorf("%q is accepted", claim)
		}
	}
}

// TestReplayUndoable: a recorded call that could be undone is judged like that again, and asks with reversible: ask.
func TestReplayUndoable(t *testing.T) {
	t.Parallel()
	m := Manifest{HighRisk: []string{"fs_write"}}
	c := writeFileCall("/home/me/notes.txt")
	c.Kept = nil
	j := subjects.Judgement{Undoable: true, Layers: []subjects.LayerVerdict{{Layer: "flow", Verdict: "pass"}}}
	last := func(m Manifest) Chain {
		chain := m.ReplayChain(Env{}, c.Tool, j, true)
		return slices.DeleteFunc(chain, func(l Layer) bool { return l.Name() != "flow" && l.Name() != "approval" })
	}
	if d := last(m).Decide(t.Context(), c); !d.Allowed() {
		t.Errorf("asks %+v", d.Asks())
	}
	m.AskReversible = true
	if d := last(m).Decide(t.Context(), c); d.Allowed() {
		t.Error("passes with reversible: ask")
	}
	m.AskReversible, j.Undoable = false, false
	if d := last(m).Decide(t.Context(), c); d.Allowed() || len(d.Asks()) != 1 || d.Asks()[0].Rule != ruleHighRisk {
		t.Errorf("a call that could not be undone: %+v", d.Asks())
	}
}
