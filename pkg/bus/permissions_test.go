package bus_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"conclave/subjects"
)

// row is one thing that must not work, and beside it the same thing done by the one who may. The bad acts come first;
// the good one follows on the same route, so when it has arrived, whatever the bad ones set off has arrived too.
type row struct {
	name string
	pre  []act // brings about what the row needs; everything it does is allowed
	bad  []act
	good act
	sees []string // who hears the good act, "role pattern": the control
	// silent: the server refuses nothing, because the speaker uses a right of its own in a crooked way. Then the bad act has its
	// plain effect and no other. A row that is not silent is refused by the server, every act of it.
	silent bool
	either bool     // refused, cut off or passed on as text: whichever, it must not get further
	drops  bool     // with silent: the place refuses to store the bad act
	may    []string // with silent: who else hears of it, because the speaker has that right too
	rolls  string   // the bucket that the good act may empty
}

// TestPermissionMatrix walks every role through what it may do and what it must not. Nothing but the bus refuses here:
// behind every key stands someone naive.
func TestPermissionMatrix(t *testing.T) {
	t.Parallel()
	groups := map[string][]row{
		"agents": agentRows(), "replies": replyRows(), "tokens": tokenRows(), "pullers": pullRows(), "tools": toolRows(),
		"person": personRows(), "services": serviceRows(), "audit": auditRows(), "broker": brokerRows(),
	}
	n, bad, good := 0, map[string]bool{}, map[string]bool{}
	names := map[string]bool{}
	for group, rows := range groups {
		for _, r := range rows {
			if names[group+r.name] {
				t.Errorf("two rows are called %s/%s", group, r.name)
			}
			names[group+r.name] = true
			if len(r.bad) == 0 || r.good.as == "" || len(r.sees) == 0 {
				t.Errorf("%s/%s has no refusal or no control", group, r.name)
			}
			for _, a := range r.bad {
				bad[a.as] = true
			}
			good[r.good.as] = true
			n++
		}
		t.Run(group, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			for _, r := range rows {
				t.Run(r.name, func(t *testing.T) {
					on := *h
					on.t = t // failures belong to the row
					on.run(r)
					h.n, h.now = on.n, on.now
				})
			}
			h.rest()
		})
	}
	lasting, _ := subjects.Table().Roles()
	for _, r := range lasting {
		if !bad[r] {
			t.Errorf("no row in which %s is refused", r)
		}
		if !good[r] {
			t.Errorf("no row in which %s is the control", r)
		}
	}
	t.Logf("%d rows", n)
}

// run plays one row.
func (h *house) run(r row) {
	h.t.Helper()
	for _, a := range r.pre {
		a.reply = inbox
		if v := h.say(a); len(v) > 0 {
			h.t.Fatalf("preparing, %s said %s: %v", a.as, a.subject, v)
		}
		h.await(fmt.Sprintf("%s _INBOX.%s.%d", a.as, a.as, h.n))
	}
	h.settle()
	before := h.now
	if before == nil || len(r.pre) > 0 {
		before = h.states()
	}
	h.log = nil
	var kept []string
	may := slices.Clone(r.may)
	for i, a := range r.bad {
		account := h.table.AccountOf(a.as)
		if r.either {
			p := h.dial(a.as) // the server may cut it off
			p.pub(a.subject, a.reply, a.head, a.body)
			_ = p.flush()
			may = append(may, "broker agent."+a.as+".tool.request.>")
		} else {
			v := h.sayOn(h.as(a.as), a)
			switch {
			case r.silent && len(v) > 0:
				h.t.Errorf("%s saying %s: %v", a.as, a.subject, v)
			case r.silent:
				may = append(may, directly(h, account, a.subject)...)
				if !r.drops {
					kept = append(kept, keeps(h, account, a.subject)...)
				}
			case len(v) != 1 || !strings.Contains(v[0], "Permissions Violation"):
				h.t.Errorf("%s saying %s was not refused: %v", a.as, a.subject, v)
			}
		}
		if last := i+1 == len(r.bad); !last && (r.bad[i+1].as == a.as || !r.silent && !r.either) {
			continue
		}
		h.settle()
		if !r.silent && !r.either && len(h.log) > 0 {
			h.t.Errorf("refused, and still heard: %v", h.log)
		}
		late := slices.Clone(may) // what those before it said to their own account may come only now
		for _, b := range r.bad[:i] {
			late = append(late, b.as+" >")
		}
		if f := h.foreign(a.as, h.log, late...); len(f) > 0 {
			h.t.Errorf("%s saying %s reached %v", a.as, a.subject, f)
		}
		h.log = nil
	}
	if v := h.say(r.good); len(v) > 0 {
		h.t.Fatalf("the control: %s may not say %s: %v", r.good.as, r.good.subject, v)
	}
	h.await(r.sees...)
	account := h.table.AccountOf(r.good.as)
	kept = append(kept, keeps(h, account, r.good.subject)...)
	// What is heard now is the control, or came late of the bad acts.
	expected := slices.Concat(may, r.sees, directly(h, account, r.good.subject), []string{r.good.as + " _INBOX." + r.good.as + ".>", r.good.as + " " + r.good.subject})
	for _, a := range r.bad {
		expected = append(expected, a.as+" >") // its own account is its own business
	}
	if f := h.foreign("", h.log, expected...); len(f) > 0 {
		h.t.Errorf("after the control was heard: %v", f)
	}
	got := h.grown(before, r.rolls)
	slices.Sort(kept)
	if !slices.Equal(got, kept) {
		h.t.Errorf("stored: %q, want %q", got, kept)
	}
}

// keeps lists what the streams keep when an account says subject: "EVENTS from.x.y", "AUDIT audit.x.y" or "KV_x".
func keeps(h *house, account, subject string) (out []string) {
	for _, e := range h.table.Edges {
		if e.Kind != subjects.ServiceImport || !slices.Contains(e.Callers, account) {
			continue
		}
		remote, local := e.Resolve(account)
		tokens, ok := subjects.Match(local, subject)
		if !ok {
			continue
		}
		remote = filled(remote, tokens)
		for _, s := range h.table.Streams {
			if s.Account != e.Owner || !slices.ContainsFunc(s.Subjects, func(p string) bool { _, ok := subjects.Match(p, remote); return ok }) {
				continue
			}
			if s.Name == "EVENTS" || s.Name == subjects.Audit {
				out = append(out, s.Name+" "+remote)
			} else {
				out = append(out, s.Name)
			}
		}
	}
	return out
}

// one is a list of one act.
func one(as, subject string) []act {
	return []act{{as: as, subject: subject, reply: "_INBOX." + as + ".x1", body: "{}"}}
}

// all is the same subject said by many.
func all(roles []string, subject string) (out []act) {
	for _, r := range roles {
		out = append(out, one(r, subject)...)
	}
	return out
}

// replying is one act with each of several reply subjects.
func replying(as, subject, payload string, replies ...string) (out []act) {
	for _, r := range replies {
		out = append(out, act{as: as, subject: subject, reply: r, body: payload})
	}
	return out
}

// ask is a control that expects an answer.
func ask(as, subject string) act { return act{as: as, subject: subject, reply: inbox, body: "{}"} }

// back is the answer arriving at the one who asked.
func back(role string) string { return role + " _INBOX." + role + ".>" }

// without is every lasting role but some.
func without(roles ...string) []string {
	lasting, _ := subjects.Table().Roles()
	return slices.DeleteFunc(lasting, func(r string) bool { return slices.Contains(roles, r) })
}

func agentRows() []row {
	datetime := []string{"tool_get_datetime tool.request.get_datetime"}
	return []row{
		{name: "asks for a tool in another agent's name", bad: one("generator", "agent.committee.tool.request.get_datetime"), good: ask("committee", "tool.request.get_datetime"), sees: append(datetime, "broker agent.committee.tool.request.get_datetime", back("committee"))},
		{name: "writes its own name itself", bad: one("generator", "agent.generator.tool.request.get_datetime"), good: ask("generator", "tool.request.get_datetime"), sees: append(datetime, "broker agent.generator.tool.request.get_datetime", back("generator"))},
		{name: "asks in the name of the user's operator", bad: all([]string{"generator", "respondent_b", "committee", "orchestrator", "user", "gateway"}, "agent.operator.tool.request.get_datetime"), good: ask("operator", "tool.request.get_datetime"), sees: append(datetime, "broker agent.operator.tool.request.get_datetime", back("operator"))},
		{name: "calls a tool past the broker", bad: all(without("broker"), "tool.call.tools.get_datetime"), good: ask("broker", "tool.call.tools.get_datetime"), sees: append(datetime, back("broker"))},
		{name: "calls memory's tool past the broker", bad: all(without("broker"), "tool.call.memory.search_memory"), good: ask("broker", "tool.call.memory.search_memory"), sees: []string{"memory tool.request.search_memory", back("broker")}},
		{name: "calls critic's and reward's tools past the broker", bad: append(one("orchestrator", "tool.call.critic.compare_answers"), one("critic", "tool.call.reward.give_feedback")...), good: ask("broker", "tool.call.critic.compare_answers"), sees: []string{"critic tool.request.compare_answers", back("broker")}},
		{name: "a path of five spawned agents", bad: one("generator", "tool.request.fs_read.a.b.c.d.e"), good: ask("generator", "tool.request.fs_read.a.b.c.d"), sees: []string{"broker agent.generator.tool.request.fs_read.a.b.c.d", "tool_fs_read tool.request.fs_read", back("generator")}},
		{name: "validates in another agent's name", bad: one("respondent_b", "agent.generator.broker.validate"), good: ask("respondent_b", "broker.validate"), sees: []string{"broker agent.respondent_b.broker.validate", back("respondent_b")}},
		{name: "a broker subject that is no service", bad: one("generator", "broker.shutdown"), good: ask("generator", "broker.discover"), sees: []string{"broker agent.generator.broker.discover", back("generator")}},
		{name: "spawns in another agent's name", bad: one("orchestrator", "agent.committee.agent.spawn"), good: ask("orchestrator", "agent.spawn"), sees: []string{"broker agent.orchestrator.agent.spawn", back("orchestrator")}},
		{name: "an event in another agent's name", bad: one("generator", "from.committee.response.generation"), good: ask("committee", "response.generation"), sees: []string{"user response.generation", "gateway response.generation", back("committee")}},
		{name: "an event with its own name already written", bad: one("generator", "from.generator.response.generation"), good: ask("generator", "response.generation"), sees: []string{"user response.generation", back("generator")}},
		{name: "the live copy of an event that was never stored", bad: all(without("user", "gateway"), "live.response.generation"), good: ask("orchestrator", "response.generation"), sees: []string{"user response.generation", back("orchestrator")}},
		{name: "state of another agent", bad: one("generator", "agent.state.committee"), good: ask("committee", "agent.state.committee"), sees: []string{"user agent.state.committee", back("committee")}},
		{name: "deliberation by one who is no committee", bad: all(without("committee"), "committee.deliberation.q1"), good: ask("committee", "committee.deliberation.q1"), sees: []string{"gateway committee.deliberation.q1", back("committee")}},
		{name: "progress and returns by one who is no orchestrator", bad: append(all(without("orchestrator"), "task.progress.t1"), one("generator", "agent.return.t1")...), good: ask("orchestrator", "task.progress.t1"), sees: []string{"user task.progress.t1", back("orchestrator")}},
		{name: "respondent B on the user's live tokens", bad: append(one("respondent_b", "response.delta.q1"), one("respondent_b", "response.thinking.q1")...), good: act{as: "generator", subject: "response.delta.q1"}, sees: []string{"user response.delta.q1", "gateway response.delta.q1"}},
		{name: "live tokens from one who does not answer", bad: all(without("generator", "committee", "orchestrator"), "response.delta.q1"), good: act{as: "committee", subject: "response.delta.q1"}, sees: []string{"user response.delta.q1"}},
		{name: "answers by one who does not answer", bad: all(without("generator", "respondent_b", "committee", "orchestrator"), "response.generation"), good: ask("respondent_b", "response.generation"), sees: []string{"gateway response.generation", back("respondent_b")}},
		{name: "inference in another agent's name", bad: one("generator", "agent.committee.model.chat"), good: ask("committee", "model.chat"), sees: []string{"model agent.committee.model.chat", back("committee")}},
		{name: "inference by one who has none", bad: all([]string{"operator", "user", "gateway", "auditor", "router", "secrets", "reward", "tool_web_search", "generator_in"}, "model.chat"), good: ask("generator", "model.chat"), sees: []string{"model agent.generator.model.chat", back("generator")}},
		{name: "keys of a neighbour", bad: all(without("committee"), "core.API.$KV.state_committee.k"), good: ask("committee", "core.API.$KV.state_committee.k"), sees: []string{back("committee")}},
		{
			name: "a roll-up on a neighbour's keys", pre: []act{{as: "committee", subject: "core.API.$KV.state_committee.a"}, {as: "generator", subject: "core.API.$KV.state_generator.a"}, {as: "generator", subject: "core.API.$KV.state_generator.b"}},
			bad:  []act{{as: "generator", subject: "core.API.$KV.state_committee.a", head: "Nats-Rollup: all"}, {as: "generator", subject: "$KV.state_committee.a", head: "Nats-Rollup: all"}},
			good: act{as: "generator", subject: "core.API.$KV.state_generator.a", reply: inbox, head: "Nats-Rollup: all"}, sees: []string{back("generator")}, rolls: "KV_state_generator",
		},
		{name: "reads a neighbour's keys", bad: append(one("generator", "core.API.DIRECT.GET.KV_state_committee"), one("generator", "core.API.DIRECT.GET.KV_state_committee.$KV.state_committee.a")...), good: act{as: "committee", subject: "core.API.DIRECT.GET.KV_state_committee", reply: inbox, body: `{"seq":1}`}, sees: []string{back("committee")}},
		{name: "the gateway writes an agent's history", bad: one("gateway", "core.API.$KV.state_generator.a"), good: ask("gateway", "core.API.DIRECT.GET.KV_state_generator.$KV.state_generator.a"), sees: []string{back("gateway")}},
		{name: "the user writes an agent's history", bad: one("user", "core.API.$KV.state_generator.a"), good: ask("user", "core.API.DIRECT.GET.KV_state_generator.$KV.state_generator.a"), sees: []string{back("user")}},
		{name: "one agent reads another's history", bad: one("committee", "core.API.DIRECT.GET.KV_state_generator.$KV.state_generator.a"), good: ask("generator", "core.API.DIRECT.GET.KV_state_generator.$KV.state_generator.a"), sees: []string{back("generator")}},
		{name: "fetches a model by one who is no person", bad: all([]string{"generator", "committee", "memory", "critic", "broker", "operator", "tool_web_fetch"}, "model.pull"), good: ask("user", "model.pull"), sees: []string{"model agent.user.model.pull", back("user")}},
		{name: "forges the spawn registry, the ledger, the overrides, the schemas", bad: slices.Concat(one("orchestrator", "core.API.$KV.spawns.x"), one("generator", "core.API.$KV.ledger.x"), one("gateway", "core.API.$KV.session_config.x"), one("tool_run_shell", "core.API.$KV.schemas.x")), good: ask("broker", "core.API.$KV.spawns.x"), sees: []string{back("broker")}},
		{name: "lists sessions that are the gateway's", bad: one("generator", "core.API.$KV.sessions.x"), good: ask("gateway", "core.API.$KV.sessions.x"), sees: []string{back("gateway")}},
	}
}

func replyRows() []row {
	// Where a crooked reply subject would do harm, in the name of whoever answers.
	evil := []string{
		"tool.call.tools.run_shell", "agent.committee.tool.request.run_shell", "from.committee.response.generation", "from.critic.critique.result", "ctl.user.approval.decision.a1", "ctl.user.session.config", "ctl.user.config.set",
		"audit.broker.x", "$JS.API.STREAM.DELETE.AUDIT", "$JS.API.STREAM.PURGE.EVENTS", "$KV.state_committee.k", "_INBOX.committee.x", "_INBOX.user.x", "live.response.generation",
	}
	shell := "tool_run_shell tool.request.run_shell"
	return []row{
		{name: "through the broker to a tool", silent: true, bad: replying("generator", "tool.request.get_datetime", "{}", "tool.call.tools.run_shell"), may: []string{"tool_get_datetime tool.request.get_datetime"}, good: ask("generator", "tool.request.run_shell"), sees: []string{shell, back("generator")}},
		{name: "through the broker and a tool to everything", silent: true, bad: replying("generator", "tool.request.get_datetime", "{}", evil...), may: []string{"tool_get_datetime tool.request.get_datetime"}, good: ask("generator", "tool.request.get_datetime"), sees: []string{"tool_get_datetime tool.request.get_datetime", back("generator")}},
		{name: "through the broker to an own right: it comes back as the caller", silent: true, bad: replying("generator", "tool.request.get_datetime", "{}", "tool.request.run_shell"), may: []string{"tool_get_datetime tool.request.get_datetime", "broker agent.generator.tool.request.run_shell", shell}, good: ask("generator", "tool.request.run_shell"), sees: []string{shell, back("generator")}},
		{name: "through the broker and memory to everything", silent: true, bad: replying("committee", "tool.request.search_memory", "{}", slices.DeleteFunc(slices.Clone(evil), func(s string) bool { return strings.Contains(s, "committee") })...), may: []string{"memory tool.request.search_memory"}, good: ask("committee", "tool.request.search_memory"), sees: []string{"memory tool.request.search_memory", back("committee")}},
		{name: "through discovery of the broker to everything", silent: true, bad: replying("generator", "broker.discover", "{}", evil...), good: ask("generator", "broker.discover"), sees: []string{back("generator")}},
		{name: "through a spawn to everything", silent: true, bad: replying("orchestrator", "agent.spawn", "{}", evil...), good: ask("orchestrator", "agent.spawn"), sees: []string{back("orchestrator")}},
		{name: "through the model to everything", silent: true, bad: replying("generator", "model.chat", "{}", evil...), good: ask("generator", "model.chat"), sees: []string{"model agent.generator.model.chat", back("generator")}},
		{name: "through the model, from memory", silent: true, bad: replying("memory", "model.embed", "{}", evil...), good: ask("memory", "model.embed"), sees: []string{"model agent.memory.model.embed", back("memory")}},
		{name: "through the model, from the critic", silent: true, bad: replying("critic", "model.chat", "{}", evil...), good: ask("critic", "model.chat"), sees: []string{"model agent.critic.model.chat", back("critic")}},
		{name: "through the secrets to everything", silent: true, bad: replying("broker", "secret.get", "{}", slices.DeleteFunc(slices.Clone(evil), func(s string) bool { return strings.HasPrefix(s, "tool.call.") || strings.HasPrefix(s, "agent.") })...), good: ask("broker", "secret.get"), sees: []string{"secrets secret.get", back("broker")}},
		{name: "through memory's own services to everything", silent: true, bad: replying("user", "memory.query", "{}", slices.DeleteFunc(slices.Clone(evil), func(s string) bool { return strings.HasPrefix(s, "_INBOX.user") })...), good: ask("user", "memory.query"), sees: []string{"memory ctl.user.memory.query", back("user")}},
		{name: "through query.ask of the gateway to everything", silent: true, bad: replying("user", "query.ask", "{}", append(slices.Clone(evil), "audit.gateway.x", "from.gateway.user.feedback", "ctl.gateway.config.set")...), good: ask("user", "query.ask"), sees: []string{"gateway query.ask", back("user")}},
		{name: "through the ack of an event to everything", silent: true, bad: replying("critic", "critique.result", "{}", evil...), good: ask("critic", "critique.result"), sees: []string{"user critique.result", back("critic")}},
		{name: "through the ack of a question to everything", silent: true, bad: replying("gateway", "query.received", "{}", evil...), good: ask("gateway", "query.received"), sees: []string{"user query.received", back("gateway")}},
		{name: "through the ack of a key to everything", silent: true, bad: replying("generator", "core.API.$KV.state_generator.k", "{}", evil...), good: ask("generator", "core.API.$KV.state_generator.k"), sees: []string{back("generator")}},
		{
			name: "through a direct get to everything", silent: true, pre: []act{{as: "generator", subject: "core.API.$KV.state_generator.k"}},
			bad:  replying("generator", "core.API.DIRECT.GET.KV_state_generator.$KV.state_generator.k", "", evil...),
			good: act{as: "generator", subject: "core.API.DIRECT.GET.KV_state_generator.$KV.state_generator.k", reply: inbox}, sees: []string{"generator >"},
		},
		{
			name: "through a direct get by sequence to everything", silent: true, pre: []act{{as: "gateway", subject: "core.API.$KV.sessions.k"}},
			bad:  replying("gateway", "core.API.DIRECT.GET.KV_sessions", `{"seq":1}`, evil...),
			good: act{as: "gateway", subject: "core.API.DIRECT.GET.KV_sessions", reply: inbox, body: `{"seq":1}`}, sees: []string{"gateway >"},
		},
		{
			name: "through a read of EVENTS to everything", silent: true, pre: []act{{as: "generator", subject: "response.generation"}},
			bad:  replying("user", "core.API.STREAM.MSG.GET.EVENTS", `{"seq":1}`, append(slices.Clone(evil), "audit.user.x", "$JS.API.STREAM.DELETE.EVENTS", "core.API.STREAM.DELETE.EVENTS")...),
			good: act{as: "user", subject: "core.API.STREAM.MSG.GET.EVENTS", reply: inbox, body: `{"seq":1}`}, sees: []string{back("user")},
		},
		{
			name: "through a read of TURNS to everything", silent: true, pre: []act{{as: "router", subject: "query.session.s1"}},
			bad:  replying("router", "core.API.STREAM.MSG.GET.TURNS", `{"seq":1}`, append(slices.Clone(evil), "query.received", "$JS.API.STREAM.DELETE.TURNS", "core.API.STREAM.DELETE.TURNS")...),
			good: act{as: "router", subject: "core.API.STREAM.MSG.GET.TURNS", reply: inbox, body: `{"seq":1}`}, sees: []string{back("router")},
		},
		{
			name: "through a read of AUDIT to everything", silent: true,
			bad:  replying("auditor", "auditlog.API.STREAM.MSG.GET.AUDIT", `{"seq":1}`, append(slices.Clone(evil), "audit.auditor.x", "audit.AUDIT.genesis", "auditlog.API.STREAM.DELETE.AUDIT", "$JS.API.STREAM.PURGE.AUDIT", "$JS.API.STREAM.UPDATE.AUDIT")...),
			good: act{as: "auditor", subject: "auditlog.API.STREAM.MSG.GET.AUDIT", reply: inbox, body: `{"seq":1}`}, sees: []string{back("auditor")},
		},
		{name: "through the ack of an audit record to everything", silent: true, bad: replying("memory", "audit.x", "{}", evil...), good: ask("memory", "audit.x"), sees: []string{back("memory")}},
		{name: "through a ping of the server to the purge of an account", silent: true, bad: replying("sys", "$SYS.REQ.SERVER.PING", "", "$JS.API.ACCOUNT.PURGE.AUDIT", "$JS.API.ACCOUNT.PURGE.CORE", "$JS.API.STREAM.DELETE.AUDIT", "audit.broker.x", "$SYS.REQ.SERVER.PING.KICK", "$SYS.REQ.SERVER.PING.RELOAD"), good: ask("sys", "$SYS.REQ.SERVER.PING"), sees: []string{back("sys")}},
		{name: "through discovery to a tool", silent: true, bad: replying("user", "$SRV.PING", "", "tool.request.run_shell", "tool.call.tools.run_shell", "_INBOX.tool_run_shell.x", "tool.schema.run_shell"), good: ask("user", "$SRV.PING"), sees: []string{"tool_run_shell $SRV.PING", back("user")}},
		{name: "through discovery by the gateway to a decision", silent: true, bad: replying("gateway", "disco.broker.PING", "", "ctl.user.approval.decision.a1", "ctl.gateway.config.set", "tool.call.tools.run_shell"), good: ask("gateway", "disco.broker.PING"), sees: []string{"broker $SRV.PING", back("gateway")}},
		{name: "through a live token to a question", silent: true, bad: replying("generator", "response.delta.q1", "{}", "query.received", "approval.decision.a1", "config.set.broker"), good: act{as: "generator", subject: "response.delta.q1"}, sees: []string{"user response.delta.q1"}},
		{name: "through an announcement to a call", silent: true, bad: replying("tool_get_datetime", "tool.schema.get_datetime", "{}", "tool.call.tools.run_shell", "tool.request.run_shell", "secret.get", "event.tool.result.x"), good: act{as: "tool_get_datetime", subject: "tool.schema.get_datetime"}, sees: []string{"broker tool.schema.tools.get_datetime"}},
	}
}

// tokenRows are tricks with the token that names the tool, and with what comes around it. Whatever the server lets
// through is text for the broker, and no tool hears of it.
func tokenRows() []row {
	good, sees := ask("generator", "tool.request.get_datetime"), []string{"broker agent.generator.tool.request.get_datetime", "tool_get_datetime tool.request.get_datetime", back("generator")}
	odd := func(name, token string) row {
		return row{name: name, either: true, bad: []act{{as: "generator", subject: "tool.request." + token, reply: "_INBOX.generator.x", body: "{}"}}, good: good, sees: sees}
	}
	forged := func(name, head string) row {
		return row{name: name, silent: true, bad: []act{{as: "generator", subject: "tool.request.get_datetime", reply: "_INBOX.generator.x", head: head, body: "{}"}}, may: []string{"tool_get_datetime tool.request.get_datetime"}, good: good, sees: sees}
	}
	return []row{
		odd("star", "*"), odd("greater than", ">"), odd("star as the account", "*.run_shell"), odd("empty", ""), odd("only dots", ".."),
		odd("first capture", "$1"), odd("mapping function", "{{wildcard(1)}}"), odd("mapping function with an account", "{{accountname}}"), odd("split function", "{{split(1,_)}}"),
		odd("double dot", "get_datetime..run_shell"), odd("trailing dot", "get_datetime."), odd("leading dot", ".get_datetime"),
		odd("two words", "run shell now please"), odd("tab", "run\tshell\tnow"), odd("NUL", "run_shell\x00"), odd("vertical tab", "run\vshell"),
		odd("lookalike letters", "run_\u0455hell"), odd("wide space", "run\u2003shell"), odd("not UTF-8", "run\xffshell"), odd("upper case", "RUN_SHELL"),
		odd("300 characters", strings.Repeat("a", 300)), odd("longer than a control line", strings.Repeat("a", 5000)), odd("many stars", "*.*.*.*"),
		{name: "a second command inside the subject", bad: []act{{as: "generator", subject: "x 0\r\n\r\nPUB tool.call.tools.run_shell 2\r\n{}\r\nPUB x"}}, either: true, good: good, sees: sees},
		{name: "another agent's name inside a path", silent: true, bad: one("generator", "tool.request.get_datetime.agent.committee"), may: []string{"tool_get_datetime tool.request.get_datetime"}, good: good, sees: sees},
		forged("header of the server's own request info", `Nats-Request-Info: {"acc":"committee","user":"committee"}`),
		forged("header of the server's client info", `Nats-Client-Info: {"acc":"user"}`),
		forged("headers that claim an identity", "Agent: committee\r\nX-Agent-Id: user\r\nNats-Account: broker\r\nFrom: broker"),
		forged("header that claims a subject", "Nats-Subject: agent.committee.tool.request.run_shell\r\nNats-Stream: EVENTS"),
		{
			name: "header that claims an author of an event", silent: true, bad: []act{{as: "generator", subject: "response.generation", head: "Nats-Subject: from.critic.critique.result\r\nNats-Stream: AUDIT", body: "{}"}},
			good: ask("generator", "response.generation"), sees: []string{"user response.generation", back("generator")},
		},
		{
			name: "header that asks the API for another account", silent: true, bad: []act{{as: "user", subject: "core.API.STREAM.INFO.EVENTS", reply: "_INBOX.user.x", head: `Nats-Request-Info: {"acc":"AUDIT"}`, body: "{}"}},
			good: ask("user", "core.API.STREAM.INFO.EVENTS"), sees: []string{back("user")},
		},
		{
			name: "roll-up of the events", silent: true, drops: true, bad: []act{{as: "generator", subject: "response.generation", head: "Nats-Rollup: all"}, {as: "generator", subject: "response.generation", head: "Nats-Rollup: sub"}},
			good: ask("generator", "response.generation"), sees: []string{"user response.generation", back("generator")},
		},
		{
			name: "an event that ends by itself", silent: true, drops: true, bad: []act{{as: "critic", subject: "critique.result", head: "Nats-TTL: 1s"}},
			good: ask("critic", "critique.result"), sees: []string{back("critic")},
		},
	}
}

func pullRows() []row {
	var out []row
	// A puller holds nothing but its consumer: it cannot say what its actor says.
	says := map[string]string{
		"memory": "memory.stored", "critic": "critique.result", "reward": "reward.event", "router": "query.session.s1",
		"committee": "committee.deliberation.q1", "orchestrator": "task.progress.t1", "generator": "response.generation", "respondent_b": "response.generation",
	}
	for _, who := range []string{"memory", "critic", "reward", "router", "committee", "orchestrator", "generator", "respondent_b"} {
		out = append(out, row{name: who + "_in says what " + who + " may say", bad: one(who+"_in", says[who]), good: ask(who, says[who]), sees: []string{back(who)}})
	}
	next := `{"batch":1,"no_wait":true}`
	for _, p := range subjects.Table().Consumers {
		if p.Stream == "TURNS" && !strings.HasSuffix(p.Name, "-0") {
			continue
		}
		api := "core.API.CONSUMER.INFO." + p.Stream + "." + p.Name
		out = append(out, row{name: "only " + p.Actor + "_in pulls " + p.Name + " of " + p.Stream, bad: all(without(p.Actor+"_in"), "core.API.CONSUMER.MSG.NEXT."+p.Stream+"."+p.Name), good: ask(p.Actor+"_in", api), sees: []string{back(p.Actor + "_in")}})
	}
	evil := []string{"from.critic.critique.result", "from.generator.response.generation", "from.memory.memory.stored", "response.generation", "critique.result", "tool.request.run_shell", "audit.broker.x", "$JS.API.STREAM.DELETE.AUDIT", "$JS.API.STREAM.PURGE.EVENTS", "ctl.user.approval.decision.a1"}
	var events, turns []act
	for range 2*len(evil) + 4 {
		events = append(events, act{as: "generator", subject: "response.generation"})
	}
	for i := range 32 {
		turns = append(turns, act{as: "router", subject: fmt.Sprintf("query.session.s%d", i)})
	}
	return append(out,
		row{name: "memory_in says another author's event again", silent: true, pre: events, bad: replying("memory_in", "core.API.CONSUMER.MSG.NEXT.EVENTS.memory", next, evil...), good: act{as: "memory_in", subject: "core.API.CONSUMER.MSG.NEXT.EVENTS.memory", reply: inbox, body: next}, sees: []string{"memory_in from.generator.response.generation"}},
		row{name: "critic_in says another author's event again", silent: true, bad: replying("critic_in", "core.API.CONSUMER.MSG.NEXT.EVENTS.critic", next, evil...), good: act{as: "critic_in", subject: "core.API.CONSUMER.MSG.NEXT.EVENTS.critic", reply: inbox, body: next}, sees: []string{"critic_in from.*.response.generation"}},
		row{name: "generator_in says another's turn again", silent: true, pre: turns, bad: replying("generator_in", "core.API.CONSUMER.MSG.NEXT.TURNS.generator-0", next, append(slices.Clone(evil), "query.session.s1", "turn.0.s1")...), good: act{as: "respondent_b_in", subject: "core.API.CONSUMER.MSG.NEXT.TURNS.respondent_b-0", reply: inbox, body: next}, sees: []string{"respondent_b_in turn.0.*"}},
		row{name: "an ack for a neighbour's consumer", bad: append(one("memory_in", "$JS.ACK.EVENTS.critic.1.1.1.1.0"), one("generator_in", "$JS.ACK.TURNS.respondent_b-0.1.1.1.1.0")...), good: ask("memory_in", "core.API.CONSUMER.INFO.EVENTS.memory"), sees: []string{back("memory_in")}},
		row{name: "a consumer with a deliver subject of one's own", bad: append(all(without(), "core.API.CONSUMER.CREATE.EVENTS.x"), all(without(), "$JS.API.CONSUMER.CREATE.EVENTS.x")...), good: ask("critic_in", "core.API.CONSUMER.INFO.EVENTS.critic"), sees: []string{back("critic_in")}},
	)
}

func toolRows() []row {
	var out []row
	for i, tool := range subjects.Tools {
		other := subjects.Tools[(i+1)%len(subjects.Tools)]
		role, neighbour := subjects.ToolRole(tool), subjects.ToolRole(other)
		out = append(out,
			row{name: tool + " calls its neighbour", bad: append(one(role, "tool.request."+other), one(role, "tool.call.tools."+other)...), good: ask("broker", "tool.call.tools."+other), sees: []string{neighbour + " tool.request." + other, back("broker")}},
			row{name: tool + " announces its neighbour", bad: append(one(role, "tool.schema."+other), one(role, "tool.output."+other+".c1")...), good: act{as: neighbour, subject: "tool.schema." + other}, sees: []string{"broker tool.schema.tools." + other}},
			// Whatever answers a tool answers where the tool says, and its neighbours live in the same account.
			row{name: tool + " has a dead letter's ack call its neighbour", bad: replying(role, "dead.tools", "{}", "tool.request."+other, "_INBOX."+neighbour+".x", "tool.schema."+other), good: ask("broker", "tool.call.tools."+other), sees: []string{neighbour + " tool.request." + other}},
		)
	}
	tool := "tool_web_search"
	return append(out,
		row{name: "a tool asks for a secret", bad: all([]string{tool, "tool_run_shell"}, "secret.get"), good: ask("broker", "secret.get"), sees: []string{"secrets secret.get", back("broker")}},
		row{name: "a tool asks the broker as an agent", bad: append(one(tool, "agent.generator.tool.request.run_shell"), one(tool, "broker.validate")...), good: ask("generator", "broker.validate"), sees: []string{"broker agent.generator.broker.validate", back("generator")}},
		row{name: "a tool speaks to an agent", bad: slices.Concat(one(tool, "_INBOX.generator.x"), one(tool, "agent.generator.tool.output.c1"), one(tool, "ctl.user.config.set")), good: act{as: "broker", subject: "agent.generator.tool.output.c1"}, sees: []string{"generator tool.output.c1"}},
		row{name: "a tool speaks to its neighbour's inbox", bad: append(one(tool, "_INBOX.tool_run_shell.x"), one(tool, "_INBOX.tool_web_search.x")...), good: ask("broker", "tool.call.tools.run_shell"), sees: []string{"tool_run_shell tool.request.run_shell", back("broker")}},
		row{name: "a tool writes the broker's copy of its result", bad: slices.Concat(one(tool, "event.tool.result.web_search"), one(tool, "tool.result.web_search"), one(tool, "from.broker.tool.result.web_search")), good: ask("broker", "event.tool.result.web_search"), sees: []string{"user tool.result.web_search", "gateway tool.result.web_search", back("broker")}},
		row{name: "a tool's live output straight to the user", bad: one(tool, "tool.output.c1"), good: act{as: "broker", subject: "tool.output.c1"}, sees: []string{"user tool.output.c1"}},
		row{name: "a tool writes the dead letter of another actor", bad: all([]string{tool, "generator", "memory"}, "dead.broker"), good: ask("broker", "dead.broker"), sees: []string{"user dead.broker", back("broker")}},
		row{name: "a tool answers a request of nobody", bad: slices.Concat(one(tool, "_R_.x"), one(tool, "_R_.abcdef.xyz")), good: ask("broker", "tool.call.tools.web_search"), sees: []string{"tool_web_search tool.request.web_search", back("broker")}},
		row{name: "a tool is listed as another service", bad: one(tool, "$SRV.PING"), good: ask("user", "$SRV.PING"), sees: []string{"tool_web_search $SRV.PING", back("user")}},
		row{name: "memory announces a tool of the machine", bad: append(one("memory", "tool.schema.run_shell"), one("critic", "tool.schema.search_memory")...), good: act{as: "memory", subject: "tool.schema.search_memory"}, sees: []string{"broker tool.schema.memory.search_memory"}},
	)
}

// personRows are what only the user may say: decisions, overrides, settings, questions, feedback.
func personRows() []row {
	var out []row
	people := []string{"user", "gateway"}
	for i, r := range without(people...) {
		p, q := people[i%2], people[(i+1)%2]
		out = append(out, row{
			name: r + " decides in the user's place",
			bad: slices.Concat(one(r, "approval.decision.a1"), one(r, "session.config"), one(r, "config.set.broker"), one(r, "ctl."+p+".approval.decision.a1"), one(r, "ctl."+p+".session.config"), one(r, "ctl."+p+".config.set"),
				one(r, "event.approval.decision.a1")[:btoi(r != "broker")], one(r, "from.broker.approval.decision.a1"), one(r, "from."+q+".user.feedback")),
			good: ask(p, "approval.decision.a1"), sees: []string{"broker ctl." + p + ".approval.decision.a1", back(p)},
		})
	}
	for _, r := range []string{"memory", "orchestrator", "model", "secrets"} {
		out = append(out, row{
			name: r + " decides by the ack of a record", silent: true, bad: replying(r, "audit.x", "{}", "approval.decision.a1", "ctl.user.approval.decision.a1", "session.config", "ctl.gateway.session.config", "config.set.broker", "ctl.user.config.set"),
			good: ask(r, "audit.x"), sees: []string{back(r)},
		})
	}
	return append(out,
		row{name: "a record by one who acts on a model's words", bad: all([]string{"critic", "reward", "generator", "respondent_b", "committee", "operator", "router"}, "audit.x"), good: ask("memory", "audit.x"), sees: []string{back("memory")}},
		row{name: "the gateway decides as the user", bad: one("gateway", "ctl.user.approval.decision.a1"), good: ask("gateway", "approval.decision.a1"), sees: []string{"broker ctl.gateway.approval.decision.a1", back("gateway")}},
		row{name: "the user decides as the gateway", bad: one("user", "ctl.gateway.session.config"), good: ask("user", "session.config"), sees: []string{"broker ctl.user.session.config", back("user")}},
		row{name: "the gateway sets itself", bad: append(one("gateway", "config.set.gateway"), one("gateway", "ctl.user.config.set")...), good: ask("user", "config.set.gateway"), sees: []string{"gateway ctl.user.config.set", back("user")}},
		row{name: "settings of one meant for another", bad: one("orchestrator", "config.set.secrets"), good: ask("gateway", "config.set.secrets"), sees: []string{"secrets ctl.gateway.config.set", back("gateway")}},
		row{name: "a question by one who is no person", bad: slices.Concat(all(without(people...), "query.received"), all(without(people...), "query.committee"), all(without(people...), "query.task")), good: ask("user", "query.received"), sees: []string{"gateway query.received", back("user")}},
		row{name: "a turn past the router", bad: all(without("router"), "query.session.s1"), good: ask("router", "query.session.s1"), sees: []string{back("router")}},
		row{name: "feedback by one who is no person", bad: all(without(people...), "user.feedback"), good: ask("gateway", "user.feedback"), sees: []string{"user user.feedback", back("gateway")}},
		row{name: "a cancel by one who is no person", bad: all(without(people...), "query.cancel.q1"), good: ask("user", "query.cancel.q1"), sees: []string{"generator query.cancel.q1", "model query.cancel.q1", back("user")}},
		row{name: "query.ask by one who is no user", bad: all(without("user"), "query.ask"), good: ask("user", "query.ask"), sees: []string{"gateway query.ask", back("user")}},
		row{name: "memory by one who is no person", bad: slices.Concat(all(without(people...), "memory.write"), all(without(people...), "memory.admin"), one("generator", "ctl.user.memory.query")), good: ask("gateway", "memory.write"), sees: []string{"memory ctl.gateway.memory.write", back("gateway")}},
		row{name: "the user calls a tool as no agent", bad: all(people, "tool.request.get_datetime"), good: ask("operator", "tool.request.get_datetime"), sees: []string{"tool_get_datetime tool.request.get_datetime", back("operator")}},
		row{name: "the user answers as an agent", bad: append(all(people, "response.generation"), all(people, "from.generator.response.generation")...), good: ask("generator", "response.generation"), sees: []string{"user response.generation", back("generator")}},
	)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func serviceRows() []row {
	return []row{
		{name: "a grade by one who is no critic", bad: append(all(without("critic"), "critique.result"), all(without("critic"), "from.critic.critique.result")...), good: ask("critic", "critique.result"), sees: []string{"user critique.result", back("critic")}},
		{name: "a verdict by one who is no critic", bad: all(without("critic"), "pairwise.result"), good: ask("critic", "pairwise.result"), sees: []string{"gateway pairwise.result", back("critic")}},
		{name: "the critic answers", bad: append(one("critic", "response.generation"), one("critic", "answer.dialog")...), good: ask("generator", "answer.dialog"), sees: []string{"user answer.dialog", back("generator")}},
		{name: "respondent B joins the dialog", bad: one("respondent_b", "answer.dialog"), good: ask("generator", "answer.dialog"), sees: []string{"user answer.dialog", back("generator")}},
		{name: "respondent B writes what the user was told", bad: append(one("respondent_b", "core.API.$KV.state_generator.conv.s1"), one("respondent_b", "core.API.DIRECT.GET.KV_state_generator.$KV.state_generator.turn.s1")...), good: ask("respondent_b", "core.API.DIRECT.GET.KV_state_generator.$KV.state_generator.conv.s1"), sees: []string{back("respondent_b")}},
		{name: "the critic's and reward's own books", bad: slices.Concat(one("generator", "core.API.$KV.judged.x"), one("reward", "core.API.$KV.judged.x"), one("critic", "core.API.$KV.rewarded.x"), one("user", "core.API.$KV.rewarded.x")), good: ask("critic", "core.API.$KV.judged.x"), sees: []string{back("critic")}},
		{name: "a reward by one who gives none", bad: all(without("reward"), "reward.event"), good: ask("reward", "reward.event"), sees: []string{"generator reward.event", "user reward.event", back("reward")}},
		{name: "a memory by one who keeps none", bad: slices.Concat(all(without("memory"), "memory.stored"), one("generator", "memory.annotated"), one("critic", "memory.recalled")), good: ask("memory", "memory.stored"), sees: []string{"user memory.stored", back("memory")}},
		{name: "the broker's copies by one who is not the broker", bad: slices.Concat(all(without("broker"), "event.tool.request.run_shell"), all(without("broker"), "event.tool.result.run_shell"), one("memory", "from.broker.tool.request.run_shell")), good: ask("broker", "event.tool.request.run_shell"), sees: []string{"user tool.request.run_shell", back("broker")}},
		{name: "a request for approval by one who is not the broker", bad: all(without("broker"), "event.approval.request.a1"), good: ask("broker", "event.approval.request.a1"), sees: []string{"user approval.request.a1", "gateway approval.request.a1", back("broker")}},
		{name: "the broker answers, grades and asks", bad: slices.Concat(one("broker", "response.generation"), one("broker", "critique.result"), one("broker", "query.received"), one("broker", "agent.generator.tool.request.run_shell")), good: ask("broker", "event.tool.result.run_shell"), sees: []string{"user tool.result.run_shell", back("broker")}},
		{name: "a secret for one who is not the broker", bad: all(without("broker"), "secret.get"), good: ask("broker", "secret.get"), sees: []string{"secrets secret.get", back("broker")}},
		{name: "the secrets speak first", bad: slices.Concat(one("secrets", "tool.call.tools.run_shell"), one("secrets", "model.chat"), one("secrets", "event.tool.result.x"), one("secrets", "secret.get")), good: ask("secrets", "dead.secrets"), sees: []string{"user dead.secrets", back("secrets")}},
		{name: "the model speaks first", bad: slices.Concat(one("model", "tool.request.run_shell"), one("model", "response.generation"), one("model", "response.delta.q1"), one("model", "agent.generator.model.chat")), good: ask("model", "dead.model"), sees: []string{"user dead.model", back("model")}},
		{name: "the router speaks as the user", bad: slices.Concat(one("router", "query.received"), one("router", "response.generation"), one("router", "approval.decision.a1")), good: ask("router", "query.session.s2"), sees: []string{back("router")}},
		{name: "discovery by one who may not look", bad: slices.Concat(one("generator", "$SRV.PING"), one("memory", "disco.tools.PING"), one("auditor", "$SRV.INFO")), good: ask("gateway", "disco.tools.PING"), sees: []string{"tool_run_shell $SRV.PING", back("gateway")}},
		{name: "a dead letter in another's name", bad: append(all(without("gateway"), "dead.gateway"), one("reward", "from.critic.dead.critic")...), good: ask("gateway", "dead.gateway"), sees: []string{"user dead.gateway", back("gateway")}},
		{name: "deletes, purges and changes of the streams", bad: core(without()...), good: ask("gateway", "core.API.STREAM.INFO.EVENTS"), sees: []string{back("gateway")}},
		{name: "reads of questions, events and turns", bad: slices.Concat(all(without("user", "gateway"), "core.API.STREAM.MSG.GET.EVENTS"), all(without(), "core.API.STREAM.MSG.GET.QUERIES"), all(without(), "core.API.DIRECT.GET.EVENTS")), good: act{as: "user", subject: "core.API.STREAM.MSG.GET.EVENTS", reply: inbox, body: `{"seq":1}`}, sees: []string{back("user")}},
		{name: "a read of turns by one who is neither the router nor the broker", bad: slices.Concat(all(without("router", "broker"), "core.API.STREAM.MSG.GET.TURNS"), all(without(), "core.API.DIRECT.GET.TURNS"), all(without(), "$JS.API.STREAM.MSG.GET.TURNS"), one("router", "core.API.STREAM.INFO.TURNS")), good: act{as: "router", subject: "core.API.STREAM.MSG.GET.TURNS", reply: inbox, body: `{"seq":1}`}, sees: []string{back("router")}},
		{name: "the monitor does more than look", bad: slices.Concat(one("sys", "$SYS.REQ.SERVER.PING.KICK"), one("sys", "$SYS.REQ.SERVER.PING.SUBSZ"), one("sys", "$SYS.REQ.CLAIMS.UPDATE"), one("sys", "$SYS.REQ.ACCOUNT.CORE.SUBSZ"), one("sys", "$SYS.REQ.SERVER.PING.ACCOUNTZ"), one("sys", "$SYS.ACCOUNT.CORE.CONNECT")), good: ask("sys", "$SYS.REQ.SERVER.PING.STATSZ"), sees: []string{back("sys")}},
		{name: "the system account by one who is not the monitor", bad: append(all(without("sys"), "$SYS.REQ.SERVER.PING"), all(without("sys"), "$SYS.REQ.SERVER.PING.JSZ")...), good: ask("sys", "$SYS.REQ.SERVER.PING.JSZ"), sees: []string{back("sys")}},
	}
}

// core is the administration of EVENTS by several roles, under both names of the API.
func core(roles ...string) (out []act) {
	for _, r := range roles {
		for _, prefix := range []string{"$JS.API", "core.API"} {
			for _, verb := range []string{"DELETE", "PURGE", "UPDATE", "CREATE", "SNAPSHOT", "MSG.DELETE"} {
				out = append(out, act{as: r, subject: prefix + ".STREAM." + verb + ".EVENTS", reply: "_INBOX." + r + ".x1", body: `{"name":"EVENTS","seq":1}`})
			}
		}
	}
	return out
}

func auditRows() []row {
	good, sees := act{as: "auditor", subject: "auditlog.API.STREAM.INFO.AUDIT", reply: inbox}, []string{back("auditor")}
	var out []row
	for _, r := range without() {
		var bad []act
		for _, prefix := range []string{"$JS.API", "core.API", "auditlog.API"} {
			for _, verb := range []string{"INFO", "PURGE", "UPDATE", "DELETE", "MSG.GET", "MSG.DELETE", "CREATE", "SNAPSHOT", "RESTORE"} {
				if r == "auditor" && prefix == "auditlog.API" && (verb == "INFO" || verb == "MSG.GET") {
					continue // its job
				}
				bad = append(bad, act{as: r, subject: prefix + ".STREAM." + verb + ".AUDIT", reply: "_INBOX." + r + ".x1", body: `{"name":"AUDIT","max_msgs":1,"seq":1}`})
			}
			bad = append(bad, one(r, prefix+".ACCOUNT.PURGE.AUDIT")...)
			bad = append(bad, one(r, prefix+".CONSUMER.CREATE.AUDIT.x")...)
			bad = append(bad, one(r, prefix+".DIRECT.GET.AUDIT")...)
		}
		out = append(out, row{name: r + " reads, changes or empties the audit log", bad: bad, good: good, sees: sees})
	}
	writers := subjects.AuditWriters
	for i, w := range writers {
		other := writers[(i+1)%len(writers)]
		out = append(out, row{name: w + " appends in the name of " + other, bad: slices.Concat(one(w, "audit."+other+".x"), one(w, "audit."+w+".x"), one(w, "audit.AUDIT.genesis")), good: ask(w, "audit.x"), sees: []string{back(w)}})
	}
	return append(out,
		row{name: "appends by one who is no writer", bad: append(all(without(writers...), "audit.x"), all(without(writers...), "audit.broker.x")...), good: ask("broker", "audit.x"), sees: []string{back("broker")}},
		row{name: "a record that rolls up the audit log", silent: true, drops: true, bad: []act{{as: "broker", subject: "audit.x", head: "Nats-Rollup: all"}, {as: "memory", subject: "audit.x", head: "Nats-Rollup: sub"}, {as: "memory", subject: "audit.x", head: "Nats-TTL: 1s"}}, good: ask("broker", "audit.x"), sees: []string{back("broker")}},
	)
}

// TestToolAnswers shows that a tool answers only what it was asked, and once.
func TestToolAnswers(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.mute["tool_web_search"] = true
	h.mute["broker"] = true
	h.say(ask("broker", "tool.call.tools.web_search"))
	h.await("tool_web_search tool.request.web_search")
	reply := h.log[slices.IndexFunc(h.log, func(m heard) bool { return m.role == "tool_web_search" })].reply
	if !strings.HasPrefix(reply, "_R_.") {
		t.Fatalf("the reply subject is %q: the server did not make it", reply)
	}
	h.log = nil
	for _, other := range []string{"tool_get_datetime", "tool_run_shell", "memory", "generator"} {
		p := h.peers[other]
		p.pub(reply, "", "", "forged by "+other)
		h.flush(p)
		if v := p.complaints(); len(v) == 0 && !slices.Contains([]string{"memory", "generator"}, other) { // these may say _R_.>, in accounts where it leads nowhere
			t.Errorf("%s may answer for web_search", other)
		}
	}
	tool := h.peers["tool_web_search"]
	tool.pub(reply, "", "", "true")
	tool.pub(reply, "", "", "again")
	h.flush(tool)
	if v := tool.complaints(); len(v) != 1 {
		t.Errorf("a second answer: %v, want one refusal", v)
	}
	h.await(back("broker"))
	if len(h.log) != 1 || h.log[0].body != "true" {
		t.Errorf("the broker heard %v %+v, want the tool's one answer", h.log, h.log)
	}
}

// TestNoBrokerNoTool shows that the way to a tool leads through a living broker: without one, nothing that anyone says
// reaches a tool.
func TestNoBrokerNoTool(t *testing.T) {
	t.Parallel()
	h := newHouse(t, "broker")
	toTool := func() (out []string) {
		for _, m := range h.log {
			if strings.Contains(m.subject, "tool.request.") && (strings.HasPrefix(m.role, "tool_") || subjects.Zones[m.role] != nil) {
				out = append(out, m.String())
			}
		}
		return out
	}
	var calls []string
	for _, zone := range []string{"tools", "memory", "critic", "reward"} {
		for _, tool := range subjects.Zones[zone] {
			calls = append(calls, "tool.request."+tool, "tool.call."+zone+"."+tool, "tool.request."+tool+".child-1", "event.tool.request."+tool, "agent.generator.tool.request."+tool)
		}
	}
	tries := 0
	for _, role := range without("broker") {
		p := h.dial(role)
		for _, c := range calls {
			p.pub(c, "_INBOX."+role+".x", "", "{}")
			tries++
		}
		for _, s := range h.pubs[role] { // and everything it may say, with a tool as the one to answer to
			if strings.HasPrefix(s, "_R_.") {
				continue
			}
			for _, c := range calls[:4] {
				p.pub(said(s), c, "", body(s))
				tries++
			}
		}
		h.flush(p)
	}
	h.settle()
	h.log = append(h.log, heard{}) // keep what was heard while the control runs
	h.say(ask("generator", "response.generation"))
	h.await("user response.generation", back("generator"))
	if got := toTool(); len(got) > 0 {
		t.Errorf("with no broker alive, heard by tools: %v", got)
	}
	t.Logf("%d attempts", tries)

	// The control: the broker comes, and the very same request reaches the tool.
	p := h.dial("broker")
	p.sub("agent.*.tool.request.>")
	p.sub("_INBOX.>")
	h.flush(p)
	h.peers["broker"], h.roles = p, append(h.roles, "broker")
	h.log = nil
	h.say(ask("generator", "tool.request.get_datetime"))
	h.await("broker agent.generator.tool.request.get_datetime", "tool_get_datetime tool.request.get_datetime", back("generator"))
}

// TestWhoMayConnect shows that a connection is a key of this installation, proven, or nothing.
func TestWhoMayConnect(t *testing.T) {
	t.Parallel()
	b, other := start(t), start(t)
	seed := func(k interface {
		Seed(string) (nkeys.KeyPair, error)
	}, role string,
	) nkeys.KeyPair {
		t.Helper()
		kp, err := k.Seed(role)
		if err != nil {
			t.Fatal(err)
		}
		return kp
	}
	fresh, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	refused := map[string]nkeys.KeyPair{
		"no key": nil, "unknown key": fresh, "key of another installation": seed(other.Keys, "user"),
		"another's public key": borrowed{seed(b.Keys, "generator"), seed(b.Keys, "user")}, "no signature": unsigned{seed(b.Keys, "user")},
	}
	for name, kp := range refused {
		p, err := dialRaw(b.URL, name, kp, nil)
		if err == nil {
			p.close()
			t.Errorf("%s: connected", name)
			continue
		}
		if !strings.Contains(err.Error(), "Authorization Violation") {
			t.Errorf("%s: %v, want an authorization violation", name, err)
		}
	}
	lasting, _ := subjects.Table().Roles()
	for _, role := range lasting { // the control
		p, err := dialRaw(b.URL, role, seed(b.Keys, role), nil)
		if err != nil {
			t.Errorf("%s: %v", role, err)
			continue
		}
		p.close()
	}
}

// TestForeignTokenDoesNotLoad: a configuration in which one account claims another's place in a subject is no
// configuration. Without that, one wrong line in nats.conf would be one forged identity.
func TestForeignTokenDoesNotLoad(t *testing.T) {
	t.Parallel()
	l := subjects.Table()
	var vars strings.Builder
	for _, v := range l.EnvVars() {
		value := "127.0.0.1:-1"
		switch {
		case v == "CONCLAVE_STORE":
			value = t.TempDir()
		case v == "CONCLAVE_SYNC":
			value = "10s"
		case strings.HasPrefix(v, "NK_"):
			kp, err := nkeys.CreateUser()
			if err != nil {
				t.Fatal(err)
			}
			if value, err = kp.PublicKey(); err != nil {
				t.Fatal(err)
			}
		}
		fmt.Fprintf(&vars, "%s: %q\n", v, value)
	}
	load := func(conf string) error {
		opts := &server.Options{NoLog: true, NoSigs: true}
		if err := opts.ProcessConfigString(vars.String() + conf); err != nil {
			return err
		}
		ns, err := server.NewServer(opts)
		if err == nil {
			ns.Shutdown()
		}
		return err
	}
	if err := load(l.Conf()); err != nil { // the control
		t.Fatal(err)
	}
	for _, tt := range [][2]string{
		{`account: broker, subject: "agent.committee.tool.request.>"`, `account: broker, subject: "agent.generator.tool.request.>"`},
		{`account: broker, subject: "agent.committee.tool.output.*"`, `account: broker, subject: "agent.generator.tool.output.*"`},
		{`account: broker, subject: "ctl.gateway.approval.decision.*"`, `account: broker, subject: "ctl.user.approval.decision.*"`},
		{`account: CORE, subject: "from.memory.memory.stored"`, `account: CORE, subject: "from.critic.memory.stored"`},
		{`account: AUDIT, subject: "audit.memory.*"`, `account: AUDIT, subject: "audit.broker.*"`},
		{`account: AUDIT, subject: "audit.memory.*"`, `account: AUDIT, subject: "audit.*.*"`},
		{`account: model, subject: "agent.critic.model.>"`, `account: model, subject: "agent.generator.model.>"`},
		{`account: secrets, subject: "secret.get" }`, `account: secrets, subject: "secret.get" } }` + "\n" + `{ service: { account: secrets, subject: "ctl.user.config.set" }, to: "config.x"`},
	} {
		conf := strings.Replace(l.Conf(), tt[0], tt[1], 1)
		if conf == l.Conf() {
			t.Fatalf("nats.conf does not hold %s", tt[0])
		}
		if load(conf) == nil {
			t.Errorf("loads with %s", tt[1])
		}
	}
	// What is not attested names who may import it.
	stranger := strings.Replace(l.Conf(), `{ service: { account: AUDIT, subject: "audit.memory.*" }`, `{ service: { account: secrets, subject: "secret.get" } }`+"\n"+`{ service: { account: AUDIT, subject: "audit.memory.*" }`, 1)
	if stranger == l.Conf() || load(stranger) == nil {
		t.Error("loads with memory reaching the secrets")
	}
}

// borrowed shows one key and signs with another.
type borrowed struct {
	nkeys.KeyPair
	shown nkeys.KeyPair
}

func (b borrowed) PublicKey() (string, error) { return b.shown.PublicKey() }

// unsigned signs nothing.
type unsigned struct{ nkeys.KeyPair }

func (unsigned) Sign([]byte) ([]byte, error) { return make([]byte, 64), nil }
