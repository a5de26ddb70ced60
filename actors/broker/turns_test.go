package broker

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// TestServedQuery: a query is served when the router stored it for the session and the account answers messages.
func TestServedQuery(t *testing.T) {
	t.Parallel()
	turn := func(session, query string) subjects.Query {
		return subjects.Query{SessionID: session, QueryID: query, Query: "fish"}
	}
	many := make([]subjects.Query, maxTurns+2)
	for i := range many {
		many[i] = turn("s1", fmt.Sprintf("q%d", i))
	}
	last := []subjects.Query{turn("s1", "q1")}
	for _, tt := range []struct {
		name                    string
		turns                   []subjects.Query
		account, session, query string
		want                    bool
	}{
		{"the last", last, "generator", "s1", "q1", true},
		{
			"later queries queued",
			[]subjects.Query{turn("s1", "q0"), turn("s1", "q1"), turn("s1", "q2")},
			"generator",
			"s1", "q1", true,
		},
		{"interleaved with another session", []subjects.Query{
			turn("s2", "q9"), turn("s1", "q1"), turn("s2", "q8"),
			turn("s1", "q2"),
		}, "generator", "s1", "q1", true},
		{"last within maxTurns", many, "generator", "s1", fmt.Sprintf("q%d", maxTurns-1), true},
		{"beyond maxTurns", many, "generator", "s1", fmt.Sprintf("q%d", maxTurns), false},
		{"missing", []subjects.Query{turn("s1", "q0")}, "generator", "s1", "q1", false},
		{"an empty stream", nil, "generator", "s1", "q1", false},

		{"trick: by the committee", last, "committee", "s1", "q1", false},
		{"trick: by the orchestrator", last, "orchestrator", "s1", "q1", false},
		{"trick: by the operator", last, "operator", "s1", "q1", false},
		{"trick: by an account that does not exist", last, "", "s1", "q1", false},
		{
			"trick: query of another session",
			[]subjects.Query{turn("s2", "q1"), turn("s1", "q2")},
			"generator", "s1",
			"q1", false,
		},
		{
			"trick: query of another session, own session empty",
			[]subjects.Query{turn("s2", "q1")},
			"generator", "s1",
			"q1", false,
		},
		{"trick: no session", []subjects.Query{turn("", "q1")}, "generator", "", "q1", false},
		{"trick: no query", []subjects.Query{turn("s1", "")}, "generator", "s1", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newSessionFixture(t)
			h.turns = tt.turns
			if got, err := isServedQuery(t.Context(), h.rec.Out(), tt.account, tt.session, tt.query); err != nil ||
				got != tt.want {
				t.Errorf("%t, %v", got, err)
			}
		})
	}
}

// TestSessionIsNotBorrowed: an account that names a session and query it does not answer, or that nobody asked, gets
// neither the session's overrides and rules nor its flow, and leaves nothing in it. Disabled tools stay disabled.
func TestSessionIsNotBorrowed(t *testing.T) {
	t.Parallel()
	const shell, fetch = `{"command":"ls"}`, `{"url":"https://fish.example/"}`
	newSession := func(t *testing.T, set subjects.SessionConfig) *sessionFixture {
		h := newSessionFixture(t)
		h.addTurn("s1", "q1", "read https://fish.example/ for me")
		h.setConfig(t, set)
		return h
	}
	for _, tt := range []struct {
		name, who, session, query, tool, args string
		set                                   subjects.SessionConfig
		want                                  string
	}{
		{
			"the query that was asked", "generator", "s1", "q1", "run_shell", shell,
			subjects.SessionConfig{Override: "ALL"},
			"ok",
		},
		{
			"RELAX for the query that was asked", "generator", "s1", "q1", "run_shell", shell,
			subjects.SessionConfig{Override: "RELAX"},
			"ok",
		},
		{
			"a URL that the user typed", "generator", "s1", "q1", "web_fetch", fetch,
			subjects.SessionConfig{Override: "NONE"},
			"ok",
		},
		{
			"once, the query that was asked", "generator", "s1", "q1", "run_shell", shell,
			subjects.SessionConfig{Override: "ALL", Once: true, QueryID: "q1"},
			"ok",
		},

		{
			"trick: ALL by the committee", "committee", "s1", "q1", "run_shell", shell,
			subjects.SessionConfig{Override: "ALL"},
			"manifest: not_in_set",
		},
		{
			"trick: ALL by the orchestrator", "orchestrator", "s1", "q1", "run_shell", shell,
			subjects.SessionConfig{Override: "ALL"},
			"manifest: not_in_set",
		},
		{
			"trick: a grant by the committee", "committee", "s1", "q1", "get_datetime", "{}",
			subjects.SessionConfig{Override: "NONE", Grant: []string{"persona:get_datetime"}},
			"manifest: not_in_set",
		},
		{
			"trick: ALL for a query never asked", "generator", "s1", "q2", "run_shell", shell,
			subjects.SessionConfig{Override: "ALL"},
			"asks flow: unknown_session approval: high_risk",
		},
		{
			"trick: ALL without a query", "generator", "s1", "", "run_shell", shell,
			subjects.SessionConfig{Override: "ALL"},
			"asks flow: unknown_session approval: high_risk",
		},
		{
			"trick: once for a query never asked", "generator", "s1", "q2", "run_shell", shell,
			subjects.SessionConfig{Override: "ALL", Once: true, QueryID: "q2"},
			"asks flow: unknown_session approval: high_risk",
		},
		{
			"trick: the user's URL by the orchestrator", "orchestrator", "s1", "q1", "web_fetch", fetch,
			subjects.SessionConfig{Override: "NONE"},
			"asks flow: unknown_session",
		},
		{
			"trick: a disabled tool by the orchestrator", "orchestrator", "s1", "q1", "web_fetch", fetch,
			subjects.SessionConfig{Override: "ALL", Disable: []string{"web_fetch"}},
			"override: disabled",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newSession(t, tt.set)
			v, err := h.validateCall(t, tt.who, tt.session, tt.query, tt.tool, tt.args)
			if err != nil || verdictText(v) != tt.want {
				t.Errorf("%s, %v, want %s", verdictText(v), err, tt.want)
			}
		})
	}
	t.Run("trick: results of another account enter the flow", func(t *testing.T) {
		t.Parallel()
		h := newSession(t, subjects.SessionConfig{Override: "NONE"})
		if res := h.runTool(t, "committee", "search_memory", `{"query":"fish"}`); outcomeText(res) != "ok" {
			t.Fatal(outcomeText(res))
		}
		if keys, err := h.rec.Out().Store("flow").Keys(t.Context(), ""); err != nil || strings.Join(keys, " ") != "" {
			t.Errorf("flows of %q, %v", keys, err)
		}
	})
}

// TestSessionIsNotBorrowedOnBus: under the real grants, with the real router's stream, a grant holds for the
// generator's answer to the query that was asked, and for no other account or query.
func TestSessionIsNotBorrowedOnBus(t *testing.T) {
	w := startSpawnBroker(t)
	askOnBus(t, w, subjects.Query{SessionID: "s1", QueryID: "q1", Query: "?"})
	set := subjects.SessionConfig{
		SessionID: "s1", Override: "NONE",
		Grant: []string{"assistant:fs_read", "orchestrator:web_search"},
	}
	if _, err := requestOn(t, outAs(t, w, "user"), subjects.SessionConfigService, set); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, role, query, typ, want string }{
		{"the query that was asked", "generator", "q1", "researcher", "fs_read web_search"},
		{"trick: a query that was never asked", "generator", "q2", "researcher", "web_search"},
		{"trick: another account", "orchestrator", "q1", "coder", "fs_read run_code"},
	} {
		reply, err := requestOn(t, outAs(t, w, tt.role).WithIDs("s1", tt.query), subjects.AgentSpawn,
			subjects.SpawnRequest{Type: tt.typ})
		if got := strings.Join(reply.Tools, " "); err != nil || got != tt.want {
			t.Errorf("%s: %s, %v, want %s", tt.name, got, err, tt.want)
		}
	}
	// What loosens the policy ends with the answer of the account, among answers to other queries.
	for _, tt := range []struct{ role, answered, want string }{
		{"committee", "q1", "fs_read web_search"},
		{"generator", "q5", "fs_read web_search"},
		{"generator", "q1", "web_search"},
		{"generator", "q6", "web_search"},
	} {
		if err := actor.Emit(t.Context(), outAs(t, w, tt.role).WithIDs("s1", tt.answered), subjects.ResponseGeneration,
			subjects.Response{SessionID: "s1", QueryID: tt.answered, Answer: "yes"}); err != nil {
			t.Fatal(err)
		}
		w.AwaitEvents()
		reply, err := requestOn(t, outAs(t, w, "generator").WithIDs("s1", "q1"), subjects.AgentSpawn,
			subjects.SpawnRequest{Type: "researcher"})
		if got := strings.Join(reply.Tools, " "); err != nil || got != tt.want {
			t.Errorf("after the answer of %s to %s: %s, %v, want %s", tt.role, tt.answered, got, err, tt.want)
		}
	}
	giveUp := func(by, subject string) func(t *testing.T, query string) {
		return func(t *testing.T, query string) {
			topic, err := subjects.DeadLetterEvent.With(by)
			if err != nil {
				t.Fatal(err)
			}
			dead := subjects.DeadLetter{Actor: by, Subject: subject, Code: subjects.CodeTimeout}
			if err := actor.Emit(t.Context(), outAs(t, w, by).WithIDs("s1", query), topic, dead); err != nil {
				t.Fatal(err)
			}
		}
	}
	for query, finish := range map[string]func(t *testing.T, query string){
		"q7": giveUp("generator", "turn.assistant.s1"),
		"q9": giveUp(subjects.Router, subjects.QueryReceived.Name),
		"q8": func(t *testing.T, query string) {
			topic, err := subjects.QueryCancel.With(query)
			if err != nil {
				t.Fatal(err)
			}
			err = actor.Emit(t.Context(), outAs(t, w, "user").WithIDs("s1", query), topic, subjects.Cancel{})
			if err != nil {
				t.Fatal(err)
			}
		},
	} {
		askOnBus(t, w, subjects.Query{SessionID: "s1", QueryID: query, Query: "?"})
		for _, want := range []string{"fs_read web_search", "web_search"} {
			reply, err := requestOn(t, outAs(t, w, "generator").WithIDs("s1", query), subjects.AgentSpawn,
				subjects.SpawnRequest{Type: "researcher"})
			if got := strings.Join(reply.Tools, " "); err != nil || got != want {
				t.Errorf("%s, which ended without an answer: %s, %v, want %s", query, got, err, want)
			}
			finish(t, query)
			w.AwaitEvents()
		}
	}
	out := outAs(t, w, "broker")
	for asked, want := range map[time.Time]bool{time.Now(): true, time.Now().Add(time.Hour): false, {}: true} {
		if got, err := isFinished(t.Context(), out, "generator", "q1", asked); err != nil || got != want {
			t.Errorf("asked at %s: %t, %v", asked, got, err)
		}
	}
}
