package broker

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/policy"
	"conclave/subjects"
)

const yardManifest = `
types:
  assistant:
    tools: [fs_read, web_search]
    can_spawn: [researcher]
    paths:
      fs_read: [~/open/]
  researcher:
    tools: [web_search]
accounts:
  generator: assistant
`

// startFileBroker runs a broker on a real server under the real grants, with a file tool and a search that count their
// runs. home has the folders open and keys; every type is denied keys.
func startFileBroker(t *testing.T) (w *bustest.Bus, home string, runs *atomic.Int64) {
	t.Helper()
	w, home, runs = bustest.Start(t), t.TempDir(), &atomic.Int64{}
	for _, dir := range []string{"open", "keys"} {
		if err := os.MkdirAll(filepath.Join(home, dir), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(home, dir, "a.txt"), []byte("fish"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(home, "keys"), filepath.Join(home, "open", "link")); err != nil {
		t.Fatal(err)
	}
	schema := func(name, arg string) subjects.ToolSchema {
		return subjects.ToolSchema{
			Name: name, Version: "1", Description: name,
			Parameters: json.RawMessage(`{"type":"object","properties":{"` + arg +
				`":{"type":"string","maxLength":200}},"required":["` + arg + `"],"additionalProperties":false}`),
		}
	}
	schemas := []subjects.ToolSchema{schema("fs_read", "path"), schema("web_search", "query")}
	known := []Known{
		{Tool: policy.Tool{
			Name: "fs_read", Zone: "tools", Known: true, Effects: policy.Declare(policy.ReadsPrivate),
			Paths: []string{"path"},
		}, Pin: Pin(schemas[0])},
		{Tool: policy.Tool{
			Name: "web_search", Zone: "tools", Known: true,
			Effects: policy.Declare(policy.Egress, policy.ReadsUntrusted), Act: policy.ActSearch,
			Args: policy.Args{"query": {Role: policy.RoleQuery}},
		}, Pin: Pin(schemas[1])},
	}
	m, err := policy.ParseManifest([]byte(yardManifest), "manifest.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rules := policy.Rules{
		Manifest: m,
		Chain:    m.Chain(policy.Env{Home: home, Closed: []string{filepath.Join(home, "keys")}}),
	}
	w.Run(w.AuditedSpec("broker", func(_ context.Context, a *audit.Writer, h *audit.Hasher) (actor.Actor, error) {
		return New(Config{CallTimeout: time.Minute, AuditTimeout: time.Minute}, policy.NewActiveRules(rules), a, h,
			known), nil
	}), actor.Config{})
	for _, schema := range schemas {
		nc := w.Connect(subjects.ToolRole(schema.Name))
		if _, err := nc.Subscribe("tool.request."+schema.Name, func(m *nats.Msg) {
			runs.Add(1)
			answer := nats.NewMsg(m.Reply)
			answer.Header.Set(subjects.HeaderType, subjects.TypeJSON)
			answer.Data = []byte(`{"call_id":"c","tool":"x","result":"[1]"}`)
			if err := nc.PublishMsg(answer); err != nil {
				t.Error(err)
			}
		}); err != nil {
			t.Fatal(err)
		}
		if err := bustest.ConfirmSubscriptions(t.Context(), nc); err != nil {
			t.Fatal(err)
		}
		topic, err := subjects.ToolSchemaEvent.With(schema.Name)
		if err != nil {
			t.Fatal(err)
		}
		out, err := actor.NewOut(nc)
		if err != nil {
			t.Fatal(err)
		}
		if err := actor.Emit(t.Context(), out, topic, schema); err != nil {
			t.Fatal(err)
		}
	}
	return w, home, runs
}

// validateOn returns the outcome of a dry run on the bus.
func validateOn(t *testing.T, out actor.Out, tool, args string) string {
	t.Helper()
	v, err := requestOn(t, out, subjects.BrokerValidate, subjects.ToolRequest{Tool: tool, Args: json.RawMessage(args)})
	if err != nil {
		return faultText(err)
	}
	return verdictText(v)
}

// TestMalformedArgumentsOnBus: hostile arguments, names and ids through the real server under the real grants run
// nothing, and a valid call still runs.
func TestMalformedArgumentsOnBus(t *testing.T) {
	t.Parallel()
	w, home, runs := startFileBroker(t)
	router, user := outAs(t, w, subjects.Router), outAs(t, w, "user")
	asked, err := subjects.QuerySession.With("s1")
	if err != nil {
		t.Fatal(err)
	}
	if err := actor.Emit(t.Context(), router, asked, subjects.Query{
		SessionID: "s1", QueryID: "q1",
		Query: "search for fish",
	}); err != nil {
		t.Fatal(err)
	}
	gen := outAs(t, w, "generator").WithIDs("s1", "q1")
	good := `{"path":"` + filepath.Join(home, "open", "a.txt") + `"}`
	// announced in its own time
	for deadline := time.Now().Add(20 * time.Second); validateOn(t, gen, "web_search", `{"query":"fish"}`) != "ok" ||
		validateOn(t, gen, "fs_read", good) != "ok"; {
		if time.Now().After(deadline) {
			t.Fatalf("%s, %s", validateOn(t, gen, "web_search", `{"query":"fish"}`),
				validateOn(t, gen, "fs_read", good))
		}
	}
	call := func(out actor.Out, tool, args string) string {
		t.Helper()
		s, err := subjects.ToolRequestService.With(tool)
		if err != nil {
			t.Fatal(err)
		}
		res, err := requestOn(t, out, s, subjects.ToolRequest{Args: json.RawMessage(args)})
		if err != nil {
			return faultText(err)
		}
		return outcomeText(res)
	}
	path := func(p string) string {
		data, err := json.Marshal(map[string]string{"path": strings.ReplaceAll(p, "~", home)})
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	many := "{" + strings.Repeat(`"a":{`, 5000) + strings.Repeat("}", 5000) + "}"
	wide := `{"query":"fish","limit":1}`
	for _, level := range []string{subjects.OverrideNone, subjects.OverrideAll} {
		if _, err := requestOn(t, user, subjects.SessionConfigService,
			subjects.SessionConfig{SessionID: "s1", Override: level}); err != nil {
			t.Fatal(err)
		}
		for name, args := range map[string]string{
			"trick: up and out":               path("~/open/../keys/a.txt"),
			"trick: through a link":           path("~/open/link/a.txt"),
			"trick: straight":                 path("~/keys/a.txt"),
			"trick: up to the root":           path("~/open/../../../../../../../../etc/passwd"),
			"trick: an address":               path("file://~/keys/a.txt"),
			"trick: a NUL":                    path("~/open/a.txt\x00.png"),
			"trick: a neighbour of that name": path("~/opened/a.txt"),
			"trick: relative":                 path("../keys/a.txt"),
			"no path":                         `{}`,
			"trick: a list of paths":          `{"path":["/etc/passwd"]}`,
			"trick: two paths":                `{"path":"/tmp/a","Path":"/etc/passwd"}`,
			"trick: the same key twice":       `{"path":"` + home + `/open/a.txt","path":"/etc/passwd"}`,
			"trick: no end of brackets":       many,
			"trick: a number without end":     `{"path":1e` + strings.Repeat("9", 10000) + `}`,
		} {
			before := runs.Load()
			got := call(gen, "fs_read", args)
			// ALL opens folders, never Conclave's own
			free := level == subjects.OverrideAll && (got == "ok" && !strings.Contains(args, "keys") &&
				!strings.Contains(args, "link"))
			if got == "ok" && !free || !free && runs.Load() != before {
				t.Errorf("%s under %s: %s, %d runs", name, level, got, runs.Load()-before)
			}
		}
	}
	if _, err := requestOn(t, user, subjects.SessionConfigService,
		subjects.SessionConfig{SessionID: "s1", Override: subjects.OverrideNone}); err != nil {
		t.Fatal(err)
	}
	before := runs.Load()
	for _, tt := range []struct{ name, got, want string }{
		{"undeclared argument", call(gen, "web_search", wide), "arguments: mismatch"},
		{"trick: larger than the message limit", call(gen, "web_search", `{"query":"`+strings.Repeat("x", 300<<10)+
			`"}`), subjects.CodeTooLarge},
		{
			"trick: unknown query", validateOn(t, gen.WithIDs("s1", "q9"), "web_search", `{"query":"fish"}`),
			"asks flow: unknown_session",
		},
		{
			"trick: unknown session", validateOn(t, gen.WithIDs("s9", "q1"), "web_search", `{"query":"fish"}`),
			"asks flow: unknown_session",
		},
		{
			"trick: spawn of its own type", spawnOn(t, gen, subjects.SpawnRequest{Type: "assistant"}),
			"lineage: self_spawn",
		},
		{
			"trick: spawn with more tools",
			spawnOn(t, gen, subjects.SpawnRequest{Type: "researcher", Tools: []string{"fs_read"}}),
			"lineage: narrowing",
		},
		{"trick: spawn without a type", spawnOn(t, gen, subjects.SpawnRequest{Type: "*"}), "lineage: unknown_type"},
		{
			"trick: credential that is not configured", useSecretOn(t, outAs(t, w, "model"), "openai"),
			subjects.CodeDenied,
		},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, tt.got, tt.want)
		}
	}
	decision, err := subjects.ApprovalDecisionService.With("0123456789abcdef0123456789abcdef")
	if err != nil {
		t.Fatal(err)
	}
	if r,
		err := requestOn(t, user, decision,
		subjects.ApprovalDecision{Approve: true, Remember: subjects.RememberAlways}); err != nil || r.Accepted ||
		r.State != subjects.ApprovalUnknown {
		t.Errorf("an answer that nobody asked for: %+v, %v", r, err)
	}
	if list, err := requestOn(t, user, subjects.ApprovalListService, subjects.ApprovalQuery{All: true}); err != nil ||
		len(list.Rules) != 0 {
		t.Errorf("it left a rule: %+v, %v", list, err)
	}
	if v, err := requestOn(t, user, subjects.PolicyExplain,
		subjects.ExplainRequest{As: ">", Tool: "fs_read"}); err == nil {
		t.Errorf("explained %+v", v)
	}
	if n := runs.Load() - before; n != 0 {
		t.Errorf("%d runs", n)
	}
	if got := call(gen, "fs_read", good); got != "ok" || runs.Load() != before+1 {
		t.Errorf("after all that a good call ends in %s", got)
	}
}

func spawnOn(t *testing.T, out actor.Out, req subjects.SpawnRequest) string {
	t.Helper()
	_, err := requestOn(t, out, subjects.AgentSpawn, req)
	return faultText(err)
}

func useSecretOn(t *testing.T, out actor.Out, name string) string {
	t.Helper()
	_, err := requestOn(t, out, subjects.SecretUseService, subjects.SecretUse{Name: name, For: newKey(t).Public()})
	return faultText(err)
}
