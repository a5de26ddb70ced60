package config_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"conclave/actors/gateway"
	"conclave/actors/memory/recall"
	"conclave/config"
	"conclave/subjects"
)

// folder is a config folder with these files, name to text.
func folder(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func load(t *testing.T, files map[string]string) (config.Config, string) {
	t.Helper()
	dir := folder(t, files)
	c, err := config.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return c, dir
}

func TestShipped(t *testing.T) {
	c, err := config.Load("")
	if err != nil {
		t.Fatal(err)
	}
	want := config.System{
		Listen: "127.0.0.1:4222", Sync: "always", AuditMax: 1 << 30, EventMax: 1 << 30,
		AuditHead: config.AuditHead{Keyring: true}, Backup: config.Backups{Every: 24 * time.Hour, Keep: 7},
		LogLevel: "info", LogMax: 10 << 20,
		Machines: config.Machines{Listen: "0.0.0.0:7422"},
		Actor:    config.Actor{AuditTimeout: 5 * time.Second, Drain: 10 * time.Second},
		Broker:   config.Broker{ShowResult: 15 << 10, ModelTimeout: 10 * time.Second, QuestionRate: 5},
		Gateway: gateway.Config{
			Listen: "127.0.0.1:8765", Page: true, Hosts: []string{}, QueryTimeout: 10 * time.Minute,
			GradeWait: 2 * time.Second, MaxWaiting: 64, MaxStreams: 32,
			ClientInterval: 5 * time.Second, Heartbeat: 15 * time.Second, WriteTimeout: 10 * time.Second,
			HeaderTimeout: 5 * time.Second,
		},
	}
	if c.Memory.Weights != recall.DefaultWeights() {
		t.Errorf("shipped weights of recall %+v, and the defaults are %+v", c.Memory.Weights, recall.DefaultWeights())
	}
	if !reflect.DeepEqual(c.System, want) {
		t.Errorf("shipped\n%+v\nwant\n%+v", c.System, want)
	}
	for _, s := range c.Explain() {
		if s.Origin != config.Shipped {
			t.Errorf("%s comes from %s", s.Key, s.Origin)
		}
	}
	if got := c.Manifest.UnservedTools(); got != nil {
		t.Errorf("the shipped manifest names tools nobody serves: %v", got)
	}
	if again, err := config.Load(filepath.Join(t.TempDir(), "not there")); err != nil ||
		!reflect.DeepEqual(again.System, want) {
		t.Errorf("a folder that is not there: %+v, %v", again.System, err)
	}
}

// TestShippedManifest holds the powers that are given to each type, by name: a change of policy is a change here.
func TestShippedManifest(t *testing.T) {
	c, err := config.Load("")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, tools := range subjects.Zones {
		all = append(all, tools...)
	}
	fs := []string{"fs_list", "fs_read", "fs_search", "fs_write"}
	memory := []string{"search_memory", "save_memory", "search_knowledge_graph"}
	personal := []string{"calendar_read", "calendar_add", "notes_read", "notes_add"}
	for typ, want := range map[string]struct{ tools, delegable, spawn []string }{
		"orchestrator": {
			tools: []string{"search_memory", "save_memory"},
			delegable: slices.Concat([]string{
				"web_search", "web_fetch", "academic_search", "run_code", "run_shell",
				"package_install", "get_datetime", "get_location",
			}, fs, personal),
			spawn: []string{"assistant", "researcher", "coder", "sysadmin"},
		},
		"assistant": {tools: slices.Concat([]string{
			"web_search", "web_fetch", "academic_search", "get_datetime",
			"get_location", "compare_answers", "give_feedback",
		}, memory, personal), spawn: []string{"researcher"}},
		"researcher": {tools: append([]string{"web_search", "web_fetch", "academic_search", "fs_read"}, memory...)},
		"coder": {
			tools: slices.Concat(fs, []string{"run_code", "web_search"}, memory),
			spawn: []string{"researcher"},
		},
		"sysadmin": {
			tools:     append([]string{"run_shell", "package_install", "search_memory"}, fs...),
			delegable: []string{"run_code"}, spawn: []string{"coder"},
		},
		"persona": {tools: []string{"search_memory", "search_knowledge_graph"}},
		"respondent_b": {tools: []string{
			"web_search", "web_fetch", "academic_search", "search_memory",
			"search_knowledge_graph", "get_datetime", "get_location",
		}},
		"operator": {tools: all},
	} {
		got, ok := c.Manifest.Types[typ]
		if !ok {
			t.Errorf("no type %s", typ)
			continue
		}
		for _, l := range []struct {
			what      string
			got, want []string
		}{
			{"tools", got.Tools, want.tools},
			{"delegable", got.Delegable, want.delegable},
			{"can_spawn", got.CanSpawn, want.spawn},
		} {
			if slices.Sort(l.want); !slices.Equal(l.got, l.want) {
				t.Errorf("%s of %s: %v, want %v", l.what, typ, l.got, l.want)
			}
		}
		if got.Unbound {
			t.Errorf("%s does not inherit constraints", typ)
		}
	}
	if len(c.Manifest.Types) != 8 {
		t.Errorf("%d types, want 8", len(c.Manifest.Types))
	}
	accounts := map[string]string{
		"generator": "assistant", "respondent_b": "respondent_b", "committee": "persona",
		"orchestrator": "orchestrator", "operator": "operator",
	}
	if !reflect.DeepEqual(c.Manifest.Accounts, accounts) || len(accounts) != len(subjects.Agents) {
		t.Errorf("accounts %v, want %v, one for each of %v", c.Manifest.Accounts, accounts, subjects.Agents)
	}
	sysadmin := c.Manifest.Types["sysadmin"].Paths
	if slices.Contains(sysadmin["fs_write"], "/etc/") || !slices.Contains(sysadmin["fs_write"], "/etc/managed/") {
		t.Errorf("sysadmin writes %v", sysadmin["fs_write"])
	}
}

func TestFileOverridesFieldByField(t *testing.T) {
	c, dir := load(t, map[string]string{
		"system.yaml":    "# mine\nlisten: 127.0.0.1:0\nbackup:\n  every: 2h\n",
		"generator.yaml": "hedge: {reask: false}\n",
	})
	if c.System.Listen != "127.0.0.1:0" || c.System.Backup.Every != 2*time.Hour || c.Generator.Hedge.Reask {
		t.Errorf("not overridden: %+v", c.System)
	}
	if c.System.Backup.Keep != 7 || c.Generator.Hedge.Search != "web_search" {
		t.Errorf("fields that were not named have changed: %+v", c.System.Backup)
	}
	file := filepath.Join(dir, "system.yaml")
	for path, want := range map[string]string{
		"system.listen": file + ":2", "system.backup.every": file + ":4",
		"generator.hedge.reask": filepath.Join(dir, "generator.yaml") + ":1",
		"system.sync":           config.Shipped, "system.backup.keep": config.Shipped,
		"manifest.types.coder.tools": config.Shipped,
	} {
		if got := c.Origin(path); got != want {
			t.Errorf("%s comes from %s, want %s", path, got, want)
		}
	}
}

func TestFileOverridesManifestAsAWhole(t *testing.T) {
	c, dir := load(t, map[string]string{"manifest.yaml": "types:\n  persona:\n    tools: [get_datetime]\naccounts:\n " +
		" committee: persona\n"})
	if len(c.Manifest.Types) != 1 || c.Manifest.HasTool("assistant", "get_datetime") ||
		!c.Manifest.HasTool("persona", "get_datetime") {
		t.Errorf("manifest %+v", c.Manifest)
	}
	if got, want := c.Origin("manifest.types.persona.tools"), filepath.Join(dir, "manifest.yaml")+":3"; got != want {
		t.Errorf("comes from %s, want %s", got, want)
	}
}

func TestEmptyFilesChangeNothing(t *testing.T) {
	c, _ := load(t, map[string]string{
		"system.yaml": "# listen: 0.0.0.0:1\n", "notes.txt": "x", ".hidden.yaml": "x",
		"system.yaml.bak": "x",
	})
	if want, _ := config.Load(""); !reflect.DeepEqual(c.System, want.System) {
		t.Errorf("got %+v", c.System)
	}
}

func TestLoadRefuses(t *testing.T) {
	for _, tt := range []struct{ name, file, text, want string }{
		{"unknown field", "system.yaml", "listen: 127.0.0.1:1\nlissten: x\n", "system.yaml:2: lissten: unknown " +
			"field; known here: listen, allow_remote"},
		{"unknown field below", "system.yaml", "actor:\n  drain: 1s\n  drains: 1s\n", "system.yaml:3: actor.drains: " +
			"unknown field"},
		{"field twice", "system.yaml", "sync: 1s\nsync: always\n", "system.yaml:2: sync: written twice, first on " +
			"line 1"},
		{"not a size", "system.yaml", "\n\naudit_max: 12parsecs\n", "system.yaml:3: audit_max: 12parsecs is not a " +
			"size; write 512MB or 1GB"},
		{"size without unit", "system.yaml", "event_max: 1000000\n", "system.yaml:1: event_max: 1000000 is not a size"},
		{"size too small", "system.yaml", "audit_max: 10KB\n", "system.yaml:1: audit_max: 10KB is not between 1MB " +
			"and 512GB"},
		{"size too large", "system.yaml", "audit_max: 1TB\n", "audit_max: 1TB is not between"},
		{
			"not a duration", "system.yaml", "actor:\n  audit_timeout: 60\n",
			"system.yaml:2: actor.audit_timeout: 60 is not a duration; write 60s or 10m",
		},
		{"no time at all", "system.yaml", "actor: {audit_timeout: 0s}\n", "system.yaml:1: actor.audit_timeout: 0s is " +
			"not between 1ms and 24h"},
		{
			"sync of nothing", "system.yaml", "sync: 0s\n",
			`system.yaml:1: sync: "0s" is neither "always" nor a duration`,
		},
		{"sync sometimes", "system.yaml", "sync: sometimes\n", "system.yaml:1: sync:"},
		{
			"log level", "system.yaml", "log_level: loud\n",
			`system.yaml:1: log_level: invalid level "loud"; use debug, info, warn or error`,
		},
		{"no backup", "system.yaml", "backup: {keep: 0}\n", "system.yaml:1: backup.keep: 0 is not between 1 and 1000"},
		{"half a backup", "system.yaml", "backup: {keep: 1.5}\n", "backup.keep: 1.5 is not a whole number"},
		{"no value", "system.yaml", "listen:\n", "system.yaml:1: listen: has no value"},
		{"not YAML", "system.yaml", "listen: [\n", "system.yaml:"},
		{"the manifest is wrong", "manifest.yaml", "types:\n  a:\n    tools: ['*']\n", "manifest.yaml:3: " +
			"types.a.tools[0]:"},
		{"an empty manifest", "manifest.yaml", "# later\n", "manifest.yaml: types: no agent types"},

		{"trick: all interfaces", "system.yaml", "sync: always\nlisten: 0.0.0.0:4222\n", "system.yaml:2: listen: " +
			"\"0.0.0.0:4222\" can be reached from other machines; write 127.0.0.1:4222, or set allow_remote: true"},
		{
			"trick: all interfaces by leaving the host out", "system.yaml", "listen: ':4222'\n",
			"can be reached from other machines",
		},
		{"trick: all interfaces of IPv6", "system.yaml", "listen: '[::]:4222'\n", "can be reached from other machines"},
		{
			"trick: a name that begins like loopback", "system.yaml", "listen: 127.0.0.1.example.org:4222\n",
			"can be reached from other machines",
		},
		{
			"trick: a short form of loopback", "system.yaml", "listen: 127.1:4222\n",
			"can be reached from other machines",
		},
		{"trick: localhost with a long s", "system.yaml", "listen: localhoſt:4222\n", "can be reached from other " +
			"machines"},
		{"trick: no port", "system.yaml", "listen: 127.0.0.1\n", "is not an address"},
		{"trick: port by name", "system.yaml", "listen: 127.0.0.1:http\n", "is not a port"},
		{"trick: port with a sign", "system.yaml", "listen: 127.0.0.1:+80\n", "is not a port"},
		{"trick: port too large", "system.yaml", "listen: 127.0.0.1:65536\n", "is not a port"},
		{
			"trick: allow_remote in quotes", "system.yaml", "allow_remote: 'true'\nlisten: 0.0.0.0:1\n",
			"system.yaml:1: allow_remote: true is neither",
		},
		{"gateway", "system.yaml", "gateway:\n  heartbeat: 11m\n", "system.yaml:2: gateway.heartbeat: 11m is not " +
			"between 1ms and 10m"},
		{
			"the second host", "system.yaml", "gateway:\n  hosts:\n    - a.example\n    - http://a\n",
			"system.yaml:4: gateway.hosts[1]:",
		},
		{"agent", "generator.yaml", "turns: 1\nwall: 25h\n", "generator.yaml:2: wall: 25h is not between 10ms and 24h"},
		{"search", "web_search.yaml", "provider: mock\nmock:\n  - {title: a, url: b}\n", "web_search.yaml:3: " +
			"mock[0].url:"},
		{
			"a model that cannot be", "models.yaml", "roles:\n  critic: a b\n",
			`models.yaml:2: roles.critic: "a b" is not the name of a model`,
		},
		{
			"a service without its key", "models.yaml", "demo_model: auto\nanthropic: {slots: 2}\n",
			"models.yaml:2: anthropic.key: is missing",
		},
		{"nobody for a shipped role", "models.yaml", "# mine\nroles: {embeddings: ''}\n", "models.yaml:2: keep[1]: " +
			"there is no role embeddings"},

		{"trick: negative time", "system.yaml", "actor: {audit_timeout: -1s}\n", "-1s is not a duration"},
		{"trick: a size that wraps around", "system.yaml", "audit_max: 9007199254740993TB\n", "is not a size"},
		{"trick: negative size", "system.yaml", "audit_max: -1GB\n", "-1GB is not a size"},
		{"trick: misspelled file", "sytem.yaml", "listen: 127.0.0.1:1\n", "sytem.yaml: unknown configuration file; " +
			"known: critic.yaml, generator.yaml, manifest.yaml, mcp.yaml, memory.yaml, models.yaml, " +
			"orchestrator.yaml, personas.yaml, secrets.yaml, system.yaml, tools.yaml, web_fetch.yaml, web_search.yaml"},
		{"trick: the other ending", "manifest.yml", "types: {}\n", "manifest.yml: unknown configuration file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := folder(t, map[string]string{tt.file: tt.text})
			c, err := config.Load(dir)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %v, want %q", err, tt.want)
			}
			if !strings.HasPrefix(err.Error(), filepath.Join(dir, tt.file)) {
				t.Errorf("the error does not begin with the file: %v", err)
			}
			if !reflect.DeepEqual(c, config.Config{}) {
				t.Errorf("an error, and yet a configuration: %+v", c)
			}
		})
	}
}

func TestLoadRefusesOddFolders(t *testing.T) {
	dir := folder(t, map[string]string{"file": ""})
	if _, err := config.Load(filepath.Join(dir, "file")); err == nil ||
		!strings.Contains(err.Error(), "is not a folder") {
		t.Errorf("a file for a folder: %v", err)
	}
}

// TestLoadRejectsOddFiles: a configuration file that cannot be read as one is an error, never a missing file, and never
// blocks.
func TestLoadRejectsOddFiles(t *testing.T) {
	for _, name := range []string{"system.yaml", "manifest.yaml"} {
		for what, create := range map[string]func(path string) error{
			"a folder":                         func(path string) error { return os.Mkdir(path, 0o700) },
			"a FIFO":                           func(path string) error { return syscall.Mkfifo(path, 0o600) },
			"a device":                         func(path string) error { return os.Symlink("/dev/zero", path) },
			"a symbolic link without a target": func(path string) error { return os.Symlink(path+".gone", path) },
			"a symbolic link to itself":        func(path string) error { return os.Symlink(path, path) },
		} {
			t.Run(name+" "+what, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), name)
				if err := create(path); err != nil {
					t.Fatal(err)
				}
				result := make(chan error, 1)
				go func() {
					_, err := config.Load(filepath.Dir(path))
					result <- err
				}()
				select {
				case err := <-result:
					if err == nil || !strings.Contains(err.Error(), name) {
						t.Errorf("%v", err)
					}
				case <-time.After(time.Minute):
					t.Fatal("reading it blocks")
				}
			})
		}
	}
	t.Run("a symbolic link to a file", func(t *testing.T) {
		dir := folder(t, map[string]string{"real": mine})
		if err := os.Symlink("real", filepath.Join(dir, "manifest.yaml")); err != nil {
			t.Fatal(err)
		}
		if c, err := config.Load(dir); err != nil || len(c.Manifest.Types) != 1 {
			t.Errorf("%v, %v", c.Manifest.Types, err)
		}
	})
}

func TestListen(t *testing.T) {
	for _, listen := range []string{"127.0.0.1:0", "127.0.0.2:65535", "'[::1]:4222'", "localhost:4222"} {
		load(t, map[string]string{"system.yaml": "listen: " + listen + "\n"})
	}
	c, _ := load(t, map[string]string{"system.yaml": "listen: 0.0.0.0:4222\nallow_remote: true\n"})
	if c.System.Listen != "0.0.0.0:4222" {
		t.Errorf("listen %s", c.System.Listen)
	}
}

func TestApply(t *testing.T) {
	c, dir := load(t, map[string]string{"system.yaml": "sync: always\n"})
	// The two only make sense together, whatever their order.
	if err := c.Apply(map[string]string{
		"system.listen": "0.0.0.0:4222", "system.allow_remote": "true",
		"system.backup.keep": "9", "system.audit_max": "2GB",
	}); err != nil {
		t.Fatal(err)
	}
	if c.System.Listen != "0.0.0.0:4222" || c.System.Backup.Keep != 9 || c.System.AuditMax != 2<<30 {
		t.Errorf("got %+v", c.System)
	}
	for path, want := range map[string]string{
		"system.listen": config.Flag, "system.backup.keep": config.Flag,
		"system.sync": filepath.Join(dir, "system.yaml") + ":1", "system.event_max": config.Shipped,
	} {
		if got := c.Origin(path); got != want {
			t.Errorf("%s comes from %s, want %s", path, got, want)
		}
	}
	before := c
	for _, tt := range []struct{ path, value, want string }{
		{"system.listen", "nowhere", "flag: listen: \"nowhere\" is not an address"},
		{"system.audit_max", "much", "flag: audit_max: much is not a size"},
		{"system.backup.keep", "many", "flag: backup.keep: many is not a whole number"},
		{"system.backup", "x", "backup: must hold fields"},
		{"system.nope", "x", "flag: nope: unknown field"},
		{"manifest.types", "x", "flag: manifest.types: cannot be set by a flag"},
		{"models.roles.assistant", "a b", `flag: roles.assistant: "a b" is not the name of a model`},
		{"models.roles.assistant", "google/x", "flag: roles.assistant: google/x is a model of google, which is not " +
			"configured"},
		{"models.demo_model", "never", "flag: models.demo_model: cannot be set by a flag"},
		{"system.allow_remote", "false", "flag: listen: \"0.0.0.0:4222\" can be reached"},
	} {
		if err := c.Apply(map[string]string{tt.path: tt.value}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s=%s: %v, want %q", tt.path, tt.value, err, tt.want)
		}
	}
	if !reflect.DeepEqual(c, before) {
		t.Error("a refused flag left something behind")
	}
}

func TestExplain(t *testing.T) {
	c, dir := load(t, map[string]string{"system.yaml": "actor:\n  audit_timeout: 90s\n"})
	var keys []string
	got := map[string]config.Setting{}
	for _, s := range c.Explain() {
		keys, got[s.Key] = append(keys, s.Key), s
	}
	if want := []string{"system.listen", "system.allow_remote", "system.sync", "system.audit_max"}; !slices.Equal(
		keys[:4], want) {
		t.Errorf("begins with %v, want %v", keys[:4], want)
	}
	for _, want := range []config.Setting{
		{Key: "system.audit_max", Value: "1GB", Origin: config.Shipped},
		{Key: "system.actor.audit_timeout", Value: "1m30s", Origin: filepath.Join(dir, "system.yaml") + ":2"},
		{Key: "system.backup.every", Value: "24h", Origin: config.Shipped},
		{Key: "system.gateway.query_timeout", Value: "10m", Origin: config.Shipped},
		{Key: "system.gateway.grade_wait", Value: "2s", Origin: config.Shipped},
		{Key: "generator.system_prompt", Value: "", Origin: config.Shipped},
		{Key: "generator.call_timeout", Value: "2m", Origin: config.Shipped},
		{Key: "generator.result", Value: "16KB", Origin: config.Shipped},
		{Key: "generator.hedge.search", Value: "web_search", Origin: config.Shipped},
		{Key: "models.roles.assistant", Value: "gemma4:12b", Origin: config.Shipped},
		{Key: "manifest.accounts.generator", Value: "assistant", Origin: config.Shipped},
		{Key: "manifest.types.persona.tools", Value: "search_knowledge_graph, search_memory", Origin: config.Shipped},
		{Key: "manifest.types.coder.paths.fs_write", Value: "~/projects/, /tmp/agent-sandbox/", Origin: config.Shipped},
		{
			Key: "manifest.high_risk", Value: "calendar_add, fs_write, notes_add, run_code, run_shell",
			Origin: config.Shipped,
		},
		{Key: "manifest.egress.fetch.allow", Value: "*", Origin: config.Shipped},
		{Key: "manifest.limits.window", Value: "10m", Origin: config.Shipped},
		{Key: "manifest.limits.budgets.coder.seconds", Value: "1200", Origin: config.Shipped},
		{Key: "manifest.limits.budgets.coder.bytes", Value: "8MB", Origin: config.Shipped},
		{Key: "manifest.approvals.expires", Value: "5m", Origin: config.Shipped},
		{Key: "manifest.reversible", Value: "pass", Origin: config.Shipped},
		{Key: "manifest.monitor_only", Value: "", Origin: config.Shipped},
	} {
		if got[want.Key] != want {
			t.Errorf("got %+v, want %+v", got[want.Key], want)
		}
	}
}

// The user's own manifest: what it says comes from its lines, and what it leaves out is as shipped and said to be.
func TestExplainManifest(t *testing.T) {
	c, dir := load(t, map[string]string{"manifest.yaml": `high_risk: []
types:
  assistant: {tools: [get_datetime]}
accounts: {generator: assistant}
egress:
  fetch: {allow: [example.org, "*.example.net:8443"]}
limits:
  calls: 7
  budgets:
    assistant: {calls: 5}
monitor_only: [limits.repeated, flow.fetch]
`})
	file := filepath.Join(dir, "manifest.yaml")
	got := map[string]config.Setting{}
	for _, s := range c.Explain() {
		got[s.Key] = s
	}
	for _, want := range []config.Setting{
		{Key: "manifest.types.assistant.tools", Value: "get_datetime", Origin: file + ":3"},
		{Key: "manifest.high_risk", Value: "", Origin: file + ":1"},
		{Key: "manifest.always_ask", Value: "package_install", Origin: config.Shipped},
		{Key: "manifest.egress.fetch.allow", Value: "example.org, *.example.net:8443", Origin: file + ":6"},
		{
			Key: "manifest.egress.fetch.deny", Value: "localhost, *.localhost, *.local, *.internal, *.lan, *.home.arpa",
			Origin: config.Shipped,
		},
		{Key: "manifest.limits.same", Value: "3", Origin: config.Shipped},
		{Key: "manifest.limits.calls", Value: "7", Origin: file + ":8"},
		{Key: "manifest.limits.budgets.assistant.calls", Value: "5", Origin: file + ":10"},
		{Key: "manifest.approvals.expires", Value: "5m", Origin: config.Shipped},
		{Key: "manifest.monitor_only", Value: "flow.fetch, limits.repeated", Origin: file + ":11"},
	} {
		if got[want.Key] != want {
			t.Errorf("got %+v, want %+v", got[want.Key], want)
		}
	}
	if s, ok := got["manifest.limits.budgets.assistant.seconds"]; ok {
		t.Errorf("a budget that nobody gave: %+v", s)
	}
}

func TestLevel(t *testing.T) {
	for name, want := range map[string]slog.Level{
		"debug": slog.LevelDebug, "warn": slog.LevelWarn,
		"error": slog.LevelError, "": slog.LevelInfo,
	} {
		if got := (config.System{LogLevel: name}).Level(); got != want {
			t.Errorf("%q is %s", name, got)
		}
	}
	if err := (config.System{}).Validate(); err == nil {
		t.Error("the zero system is valid")
	}
}

// FuzzLoadSystem: whatever stands in system.yaml either fails with its name or is a valid system that keeps to itself.
func FuzzLoadSystem(f *testing.F) {
	f.Add("listen: 127.0.0.1:4222\nbackup: {every: 1h, keep: 1}\n")
	f.Add("listen: 0.0.0.0:1\nallow_remote: true\n")
	f.Add("audit_max: 12parsecs\nsync: always\n")
	f.Add("listen: !!binary AAAA\nlog_level: &a info\nsync: *a\n")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text string) {
		file := filepath.Join(dir, "system.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := config.Load(dir)
		if err != nil {
			if !strings.HasPrefix(err.Error(), file) && !strings.HasPrefix(err.Error(), config.Shipped) {
				t.Fatalf("an error without its file: %v", err)
			}
			return
		}
		if err := c.Validate(); err != nil {
			t.Fatalf("loaded and not valid: %v", err)
		}
		s := c.System
		if !s.AllowRemote && !strings.HasPrefix(s.Listen, "127.") && !strings.HasPrefix(s.Listen, "localhost:") &&
			!strings.HasPrefix(s.Listen, "[") {
			t.Fatalf("listens on %s", s.Listen)
		}
		if s.AuditMax <= 0 || s.EventMax <= 0 || s.Backup.Keep <= 0 || s.Actor.AuditTimeout <= 0 {
			t.Fatalf("without bounds: %+v", s)
		}
		for _, e := range c.Explain() {
			if e.Origin == "" || (e.Origin != config.Shipped && !strings.HasPrefix(e.Origin, file)) {
				t.Fatalf("%s comes from %q", e.Key, e.Origin)
			}
		}
	})
}
