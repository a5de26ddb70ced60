package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/subjects"
)

const sessionManifest = `
types:
  assistant:
    tools: [get_datetime, web_search, web_fetch, search_memory, save_memory, run_shell, search_knowledge_graph,
    package_install]
    can_spawn: [researcher]
  researcher:
    tools: [web_search, web_fetch, search_memory]
  orchestrator:
    tools: [web_search, web_fetch]
    can_spawn: [researcher]
  persona:
    tools: [search_memory]
  operator:
    tools: [get_datetime, web_search, web_fetch, search_memory, save_memory, run_shell, search_knowledge_graph]
    can_spawn: [researcher]
accounts:
  generator: assistant
  orchestrator: orchestrator
  committee: persona
  operator: operator
high_risk: [run_shell]
always_ask: [package_install]
`

// sessionTools are the facts of the fixture's tools.
func sessionTools() map[string]policy.Tool {
	return map[string]policy.Tool{
		"get_datetime": {Effects: policy.Declare(), Ephemeral: true},
		"web_search": {
			Effects: policy.Declare(policy.Egress, policy.ReadsUntrusted), Act: policy.ActSearch,
			Args: policy.Args{"query": {Role: policy.RoleQuery}},
		},
		"web_fetch": {
			Effects: policy.Declare(policy.Fetch, policy.ReadsUntrusted), Act: policy.ActFetch,
			Args: policy.Args{"url": {Role: policy.RoleURL}, "x": {Role: policy.RoleSetting}},
		},
		"search_memory": {Effects: policy.Declare(policy.ReadsPrivate)},
		"save_memory": {
			Effects: policy.Declare(policy.Mutate), Act: policy.ActCreate,
			Args: policy.Args{"content": {Role: policy.RoleContent}},
		},
		"run_shell":              {Effects: policy.Declare(policy.Exec)},
		"package_install":        {Effects: policy.Declare()}, // harmless, and always needs approval
		"search_knowledge_graph": {Effects: policy.Declare(policy.ReadsPrivate), Secrets: []string{"graph_key"}},
	}
}

// sessionFixture is a broker whose tools, model and keyring are functions of the test. events is the sequence of audit
// records and tool runs.
type sessionFixture struct {
	*spawnFixture
	cfg       Config
	wrap      func(actor.Out) actor.Out // wraps the broker's Out
	tools     map[string]func(subjects.ToolOrder) (any, error)
	chat      func(subjects.ChatRequest) (any, error)
	secret    func(subjects.SecretGet) (any, error)
	key       string                       // public key that the tools announce
	facts     func(map[string]policy.Tool) // changes the tools' facts
	approvals chan string
	events    []string // under mu

	auditErr func(subjects.AuditRecord) error // error of Append
	deadline time.Duration                    // of requests; 0 = a minute
}

func newSessionFixture(t testing.TB, set ...func(*sessionFixture)) *sessionFixture {
	t.Helper()
	h := &sessionFixture{
		spawnFixture: newSpawnFixture(t), tools: map[string]func(subjects.ToolOrder) (any, error){},
		approvals: make(chan string, 64),
	}
	h.cfg = Config{CallTimeout: time.Minute, AuditTimeout: time.Minute, ApprovalWait: time.Minute}
	for _, s := range set {
		s(h)
	}
	h.start(t, parseRules(t, sessionManifest))
	h.rec.Reply = h.answerAll
	h.rec.FailPublish = func(subject string) error {
		if id, ok := strings.CutPrefix(subject, "event.approval.request."); ok {
			h.approvals <- id
		}
		return nil
	}
	return h
}

// start replaces the broker by one that has only the stored state.
func (h *sessionFixture) start(t testing.TB, rules policy.Rules) {
	t.Helper()
	var known []Known
	var schemas []subjects.ToolSchema
	all := sessionTools()
	if h.facts != nil {
		h.facts(all)
	}
	for name, facts := range all {
		s := subjects.ToolSchema{
			Name: name, Version: "1", Description: name + " does what it is called. And more.",
			Parameters: json.RawMessage(`{"type":"object"}`),
		}
		facts.Name, facts.Zone, facts.Known = name, subjects.ZoneOf(name), true
		known = append(known, Known{Tool: facts, Pin: Pin(s)})
		s.Key = h.key
		schemas = append(schemas, s)
	}
	h.Broker = New(h.cfg, policy.NewActiveRules(rules), h, h.hash, known)
	if err := h.AddTools(schemas...); err != nil {
		t.Fatal(err)
	}
}

// answerAll serves every request of the broker.
func (h *sessionFixture) answerAll(subject string, body []byte) (any, error) {
	nobody := subjects.Faultf(subjects.CodeUnavailable, "nobody answers %s", subject)
	switch {
	case strings.HasPrefix(subject, "tool.call."):
		var order subjects.ToolOrder
		if err := json.Unmarshal(body, &order); err != nil {
			return nil, err
		}
		name := subject[strings.LastIndexByte(subject, '.')+1:]
		h.logEvent("ran " + name)
		if run := h.tools[name]; run != nil {
			return run(order)
		}
		return subjects.ToolResult{Result: "ok"}, nil
	case subject == "secret.get":
		var q subjects.SecretGet
		if err := json.Unmarshal(body, &q); err != nil || h.secret == nil {
			return nil, errors.Join(err, nobody)
		}
		return h.secret(q)
	case subject == "model.chat":
		var q subjects.ChatRequest
		if err := json.Unmarshal(body, &q); err != nil || h.chat == nil {
			return nil, errors.Join(err, nobody)
		}
		return h.chat(q)
	}
	return h.answerTurns(subject, body)
}

func (h *sessionFixture) logEvent(s string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, s)
}

// recentEvents returns the events since its last call.
func (h *sessionFixture) recentEvents() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := strings.Join(h.events, "; ")
	h.events = nil
	return s
}

// Append implements [Audit].
func (h *sessionFixture) Append(ctx context.Context, rec subjects.AuditRecord) error {
	if h.auditErr != nil {
		if err := h.auditErr(rec); err != nil {
			return err
		}
	}
	err := h.spawnFixture.Append(ctx, rec)
	if err == nil {
		h.logEvent(strings.TrimSpace(rec.Phase + " " + rec.Status + " " + rec.Reason))
	}
	return err
}

// addTurn adds a query of the user as the router stores it.
func (h *sessionFixture) addTurn(session, query, words string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.turns = append(h.turns, subjects.Query{SessionID: session, QueryID: query, Query: words})
}

func (h *sessionFixture) out(session, query string) actor.Out {
	out := h.rec.Out().WithIDs(session, query)
	if h.wrap != nil {
		out = h.wrap(out)
	}
	return out
}

// deliver sends the broker a message and decodes its reply into reply; nil for an event, which has none.
func (h *sessionFixture) deliver(t testing.TB, subject, session, query string, body, reply any) error {
	t.Helper()
	head := map[string]string{
		subjects.HeaderQuery: query, subjects.HeaderSession: session, subjects.HeaderDeadline: strconv.FormatInt(
			h.rec.Time.Add(cmp.Or(h.deadline, time.Minute)).UnixMilli(), 10),
	}
	for _, route := range h.Routes() {
		if _, ok := subjects.Match(route.Spec().Subscription(), subject); !ok {
			continue
		}
		raw, err := actor.Deliver(t.Context(), route, subject, head, body, h.out(session, query))
		if err == nil && reply != nil {
			err = json.Unmarshal([]byte(raw), reply)
		}
		return err
	}
	return fmt.Errorf("nobody hears %s", subject)
}

// runTool calls a tool. who is the account with the path below it; each call has a new call_id unless one is given.
func (h *sessionFixture) runTool(t testing.TB, who, tool, args string, id ...string) subjects.ToolResult {
	t.Helper()
	return h.runToolIn(t, "s1", "q1", who, tool, args, id...)
}

func (h *sessionFixture) runToolIn(t testing.TB, session, query, who, tool, args string,
	id ...string,
) subjects.ToolResult {
	t.Helper()
	c := callerOf(who)
	if len(id) == 0 {
		id = []string{strings.ReplaceAll(h.rec.Out().NewID(), "id", "call")}
	}
	subject := strings.Join(append([]string{"agent", c.Account, "tool.request", tool}, c.Path...), ".")
	var res subjects.ToolResult
	if err := h.deliver(t, subject, session, query, subjects.ToolRequest{CallID: id[0], Args: json.RawMessage(args)},
		&res); err != nil {
		t.Error(err)
	}
	return res
}

// flowOf returns the stored flow of a session.
func (h *sessionFixture) flowOf(t testing.TB, session string) *policy.Flow {
	t.Helper()
	f, _, err := new(Broker).readFlow(t.Context(), h.rec.Out(), session)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// taintSession records untrusted content in the session.
func (h *sessionFixture) taintSession(t testing.TB, session string) {
	t.Helper()
	r := policy.Result{Tool: policy.Tool{
		Name: "web_fetch", Known: true,
		Effects: policy.Declare(policy.ReadsUntrusted),
	}, CallID: "c0", Source: "https://evil.example/"}
	if err := h.recordFlow(t.Context(), h.rec.Out(), session, r); err != nil {
		t.Fatal(err)
	}
}

// outcomeText returns ok, a code, or layer and rule of a denial.
func outcomeText(res subjects.ToolResult) string {
	if res.Error == nil {
		return "ok"
	}
	return faultText(res.Error)
}

// failingOut has buckets that fail to read or to write.
type failingOut struct {
	actor.Out
	get, put string // bucket
}

var errDisk = errors.New("disk failure")

func (c failingOut) Store(bucket string) actor.Store {
	return failingStore{c.Out.Store(bucket), c.get == bucket, c.put == bucket}
}

type failingStore struct {
	actor.Store
	get, put bool
}

func (s failingStore) Get(ctx context.Context, key string) ([]byte, uint64, error) {
	if s.get {
		return nil, 0, errDisk
	}
	return s.Store.Get(ctx, key)
}

func (s failingStore) Put(ctx context.Context, key string, value []byte, rev uint64) (uint64, error) {
	if s.put {
		return 0, errDisk
	}
	return s.Store.Put(ctx, key, value, rev)
}

// TestStoreFailureDenies: whichever store fails, the call is denied, nothing runs, and the denial is recorded.
func TestStoreFailureDenies(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		get, put string
		who      string
		tool     string
		ran      bool
	}{
		{name: "no failure", who: "generator", tool: "web_search", ran: true},
		{name: "spawn registry", get: bucketSpawns, who: "child", tool: "web_search"},
		{name: "session config", get: "session_config", who: "generator", tool: "web_search"},
		{name: "session config, harmless tool", get: "session_config", who: "generator", tool: "get_datetime"},
		{name: "flow", get: "flow", who: "generator", tool: "web_search"},
		{name: "flow cannot be written", put: "flow", who: "generator", tool: "web_search"},
		{name: "the ledger", put: "ledger", who: "generator", tool: "web_search"},
		// a new call: the first entry wins
		{name: "ledger cannot be read", get: "ledger", who: "generator", tool: "web_search", ran: true},
		{
			name: "spawn registry, caller is an account", get: bucketSpawns, who: "generator", tool: "web_search",
			ran: true,
		},
		{name: "flow, harmless tool", get: "flow", who: "operator", tool: "get_datetime", ran: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newSessionFixture(t)
			h.addTurn("s1", "q1", "search for fish")
			who := tt.who
			if who == "child" {
				who = h.mustSpawn(t, "generator", "s1", subjects.SpawnRequest{Type: "researcher"})
			}
			h.wrap = func(out actor.Out) actor.Out { return failingOut{out, tt.get, tt.put} }
			h.recentEvents()
			res := h.runTool(t, who, tt.tool, `{"query":"fish"}`)
			story := h.recentEvents()
			if ran := strings.Contains(story, "ran "); ran != tt.ran {
				t.Errorf("ran %t: %s", ran, story)
			}
			if !tt.ran && (outcomeText(res) != subjects.CodeUnavailable || story != "before denied unavailable") {
				t.Errorf("%s, on record %s", outcomeText(res), story)
			}
			if !tt.ran && !slices.ContainsFunc(h.rec.Logged(), func(err error) bool {
				return errors.Is(err, errDisk)
			}) {
				t.Errorf("the log does not say why: %v", h.rec.Logged())
			}
		})
	}
	t.Run("turns", func(t *testing.T) {
		t.Parallel()
		h := newSessionFixture(t)
		answer := h.rec.Reply
		h.rec.Reply = func(subject string, body []byte) (any, error) {
			if subject == actor.StoredSubject(subjects.QuerySession.Stream) {
				return nil, errDisk
			}
			return answer(subject, body)
		}
		if res := h.runTool(t, "generator", "web_search", `{"query":"fish"}`); outcomeText(
			res) != subjects.CodeUnavailable || h.recentEvents() != "before denied unavailable" {
			t.Errorf("%+v", res)
		}
	})
}

// TestGatherFacts: a caller's type comes from subject and registry only.
func TestGatherFacts(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t)
	h.addTurn("s1", "q1", "search for fish")
	child := h.mustSpawn(t, "generator", "s1", subjects.SpawnRequest{Type: "researcher"})
	below := h.mustSpawn(t, "operator", "s1", subjects.SpawnRequest{Type: "researcher"})
	search, _ := h.table.get("web_search")
	clock, _ := h.table.get("get_datetime")
	for _, tt := range []struct {
		name, who, session string
		known              Known
		typ                string
		person, flow       bool
		mode               string
	}{
		{"an agent", "generator", "s1", search, "assistant", false, true, ""},
		{"an agent without a session", "generator", "", search, "assistant", false, false, ""},
		{"a harmless tool needs no flow", "generator", "s1", clock, "assistant", false, false, ""},
		{
			"a spawned agent is what it was spawned as", child, "s1", search, "researcher", false, true,
			subjects.ModeStructured,
		},
		{
			"the orchestrator never sees a page", "orchestrator", "s1", search, "orchestrator", false, false,
			subjects.ModeStructured,
		},
		{"the orchestrator and the clock", "orchestrator", "s1", clock, "orchestrator", false, false, ""},
		{"the user", userAccount, "s1", search, "operator", true, false, ""},

		{
			"trick: an agent below the user is not the user", below, "s1", search, "researcher", false, false,
			subjects.ModeStructured,
		},
		{
			"trick: an unregistered agent below the user is not the user", "operator.x", "s1", search, "", false, false,
			subjects.ModeStructured,
		},
		{"trick: an agent of another session", child, "s2", search, "", false, false, subjects.ModeStructured},
		{"trick: an account that ends like the user's", "not_operator", "s1", search, "", false, false, ""},
		{"trick: account in another case", "Operator", "s1", search, "", false, false, ""},
	} {
		r := stage.Received{
			Caller: callerOf(tt.who), Tool: tt.known.Name, Session: tt.session, Query: "q1",
			Args: json.RawMessage(`{}`),
		}
		seen, fault := h.gatherFacts(t.Context(), h.rec.Out(), r, tt.known, false)
		if fault != nil {
			t.Errorf("%s: %v", tt.name, fault)
			continue
		}
		got := seen.call
		if got.Type != tt.typ || got.FromUser != tt.person || (got.Flow != nil) != tt.flow || toolMode(got) != tt.mode {
			t.Errorf("%s: type %q, person %t, flow %v, mode %q", tt.name, got.Type, got.FromUser, got.Flow != nil,
				toolMode(got))
		}
	}
}

// TestBudgetsMatchAgents: each agent of a lineage is held to its own budget.
func TestBudgetsMatchAgents(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t, withModelRanking)
	h.setModelReply(findingReply(nil))
	h.addTurn("s1", "q1", "search for fish and for chips")
	poor := h.mustSpawn(t, "generator", "s1",
		subjects.SpawnRequest{Type: "researcher", Budget: &subjects.Budget{Calls: 1}})
	rich := h.mustSpawn(t, "generator", "s1", subjects.SpawnRequest{Type: "researcher"})
	var got []string
	for _, step := range [][2]string{
		{poor, "fish"},
		{poor, "chips"},
		{rich, "fish"},
		{rich, "chips"},
		{"generator", "fish"},
	} {
		res := h.runTool(t, step[0], "web_search", `{"query":"`+step[1]+`"}`)
		got = append(got, outcomeText(res))
	}
	if want := []string{"ok", "limits: budget", "ok", "ok", "ok"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestPageAccess: the hosts come from the manifest, unless its egress rules are monitor-only; page access follows the
// caller's tools.
func TestPageAccess(t *testing.T) {
	t.Parallel()
	m, err := policy.ParseManifest([]byte("types:\n  assistant:\n    tools: [web_search, web_fetch]\n  persona:\n    "+
		"tools: [web_search]\naccounts:\n  generator: assistant\n  committee: persona\negress:\n  fetch:\n    allow: "+
		"[a.example]\n"), "m")
	if err != nil {
		t.Fatal(err)
	}
	page := Known{Tool: policy.Tool{
		Name: "web_fetch", Zone: "tools", Known: true,
		Effects: policy.Declare(policy.Fetch, policy.ReadsUntrusted),
	}}
	tb := newTable([]Known{page}, func(string) (policy.Tool, bool) { return policy.Tool{}, false })
	tb.live["web_fetch"] = map[string]Known{page.Zone: page}
	search := policy.Tool{
		Name: "web_search", Known: true,
		Effects: policy.Declare(policy.Egress, policy.ReadsUntrusted),
	}
	for _, tt := range []struct {
		name      string
		account   string
		over      policy.Override
		monitored map[string][]string
		allow     []string
		pages     bool
	}{
		{"as the manifest says", "generator", policy.Override{}, nil, []string{"a.example"}, true},
		{"caller without page access", "committee", policy.Override{}, nil, []string{"a.example"}, false},
		{"disabled", "generator", policy.Override{Disable: []string{"web_fetch"}}, nil, []string{"a.example"}, false},
		{"ALL", "generator", policy.Override{Level: subjects.OverrideAll}, nil, []string{"*"}, true},
		{
			"monitor-only", "generator",
			policy.Override{},
			map[string][]string{"egress": {policy.RuleHost}},
			[]string{"a.example"},
			true,
		},
	} {
		m.Monitored = tt.monitored
		c := policy.Call{Caller: subjects.Caller{Account: tt.account}, Tool: search, Override: tt.over}
		hosts, pages := tb.pageAccess(c, m)
		if pages != tt.pages || !slices.Equal(hosts.Allow, tt.allow) || tt.over.Level == "" &&
			!slices.Equal(hosts.Monitored, tt.monitored["egress"]) {
			t.Errorf("%s: %+v, %t", tt.name, hosts, pages)
		}
	}
}

// TestRepetitionIsCountedPerQuestion: the third identical call in a row for one question is denied when the results
// were equal, and no other call is.
func TestRepetitionIsCountedPerQuestion(t *testing.T) {
	t.Parallel()
	const clock, ok, denied = `{"timezone":"UTC"}`, "ok", "limits: repeated"
	run := func(h *sessionFixture, query, tool, args, want string) {
		t.Helper()
		if res := h.runToolIn(t, "s1", query, "generator", tool, args); outcomeText(res) != want {
			t.Errorf("%s for %s: %s, want %s", tool, query, outcomeText(res), want)
		}
	}
	newSession := func() *sessionFixture {
		h := newSessionFixture(t)
		for i := range 5 {
			h.addTurn("s1", fmt.Sprintf("q%d", i), "what time is it? search for fish")
		}
		return h
	}
	h := newSession()
	for i := range 5 { // the same call for five questions
		run(h, fmt.Sprintf("q%d", i), "get_datetime", clock, ok)
	}
	for _, want := range []string{ok, denied, denied} { // a second one for q0, and the third
		run(h, "q0", "get_datetime", clock, want)
	}
	run(h, "q0", "get_datetime", `{"timezone":"CET"}`, ok)
	run(h, "q0", "get_datetime", clock, ok) // no longer in a row
	run(h, "q1", "get_datetime", clock, ok)

	h = newSession()
	n := 0
	h.tools["get_datetime"] = func(subjects.ToolOrder) (any, error) {
		n++
		return subjects.ToolResult{Result: fmt.Sprintf("%d o'clock", n)}, nil
	}
	for range 5 { // each result is new
		run(h, "q0", "get_datetime", clock, ok)
	}

	h = newSession()
	h.setConfig(t, subjects.SessionConfig{Override: "NONE", Disable: []string{"web_search"}})
	for range 4 {
		run(h, "q0", "web_search", `{"query":"fish"}`, "override: disabled")
	}
	h.setConfig(t, subjects.SessionConfig{Override: "NONE"})
	for _, want := range []string{ok, ok, denied} { // refused attempts did not count
		run(h, "q0", "web_search", `{"query":"fish"}`, want)
	}

	h = newSession()
	h.setConfig(t, subjects.SessionConfig{Override: "ALL"})
	for range 5 {
		run(h, "q0", "web_search", `{"query":"fish"}`, ok)
	}
}

// TestFullOverrideLiftsAllowListEverywhere: under ALL, the hosts that a tool gets permit what the egress layer permits:
// every host, port and IP address that is not denied.
func TestFullOverrideLiftsAllowListEverywhere(t *testing.T) {
	t.Parallel()
	m := parseRules(t, "types:\n  assistant:\n    tools: [web_fetch]\naccounts:\n  generator: assistant\negress:\n  "+
		"fetch:\n    allow: [a.example]\n    deny: [evil.example]\n")
	page := Known{Tool: policy.Tool{
		Name: "web_fetch", Zone: "tools", Known: true,
		Effects: policy.Declare(policy.Fetch, policy.ReadsUntrusted), Args: policy.Args{"url": {Role: policy.RoleURL}},
	}}
	tb := newTable([]Known{page}, func(string) (policy.Tool, bool) { return policy.Tool{}, false })
	tb.live["web_fetch"] = map[string]Known{page.Zone: page}
	for _, level := range []string{subjects.OverrideNone, subjects.OverrideAll} {
		for _, url := range []string{
			"https://a.example/", "https://b.example/", "https://b.example:8443/",
			"http://93.184.216.34/", "https://evil.example/", "ftp://a.example/",
		} {
			c := policy.Call{
				Caller: subjects.Caller{Account: "generator"}, Tool: page.Tool,
				Args: json.RawMessage(`{"url":"` + url + `"}`), Override: policy.Override{Level: level},
			}
			hosts, _ := tb.pageAccess(c, m.Manifest)
			err := policy.HostRules{Allow: hosts.Allow, Deny: hosts.Deny}.CheckURL(url, hosts.Monitored...)
			layer := policy.Chain{policy.EgressLayer{Fetch: m.Manifest.Egress.Fetch}}.Decide(t.Context(), c)
			if (err == nil) != layer.Allowed() {
				t.Errorf("%s %s: the layer allows it: %t; the tool: %v", level, url, layer.Allowed(), err)
			}
		}
	}
}
