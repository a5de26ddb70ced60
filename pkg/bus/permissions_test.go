package bus_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"conclave/pkg/bus"
	"conclave/subjects"
)

// row holds publications that must be denied, and as control the same by a role that may. The control follows on the
// same route, so when it has arrived, every effect of the denied ones has arrived too.
type row struct {
	name      string
	setup     []publication // brings about what the row needs; everything it does is allowed
	denied    []publication
	control   publication
	receivers []string // who hears the good act, "role pattern": the control
	// accepted: the server refuses nothing, because the speaker uses a right of its own in a crooked way. Then the bad
	// act has its plain effect and no other. A row that is not silent is refused by the server, every act of it.
	accepted      bool
	anyOutcome    bool     // refused, cut off or passed on as text: whichever, it must not get further
	notStored     bool     // with silent: the place refuses to store the bad act
	alsoReceivers []string // with silent: who else hears of it, because the speaker has that right too
	rollup        string   // the bucket that the good act may empty
}

// TestPermissionMatrix walks every role through what it may do and what it must not. Only the bus denies here:
// the clients of all roles are naive.
func TestPermissionMatrix(t *testing.T) {
	t.Parallel()
	groups := map[string][]row{
		"agents": agentRows(), "replies": replyRows(), "tokens": tokenRows(), "pullers": pullRows(),
		"tools": toolRows(),
		"user":  userRows(), "services": serviceRows(), "audit": auditRows(), "broker": brokerRows(),
	}
	n, bad, good := 0, map[string]bool{}, map[string]bool{}
	names := map[string]bool{}
	for group, rows := range groups {
		for _, r := range rows {
			if names[group+r.name] {
				t.Errorf("two rows are called %s/%s", group, r.name)
			}
			names[group+r.name] = true
			if len(r.denied) == 0 || r.control.role == "" || len(r.receivers) == 0 {
				t.Errorf("%s/%s has no refusal or no control", group, r.name)
			}
			for _, a := range r.denied {
				bad[a.role] = true
			}
			good[r.control.role] = true
			n++
		}
		t.Run(group, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			for _, r := range rows {
				t.Run(r.name, func(t *testing.T) {
					on := *h
					on.t = t // failures belong to the row
					on.runRow(r)
					h.lastInbox, h.lastStates = on.lastInbox, on.lastStates
				})
			}
			h.checkFinalState()
		})
	}
	lasting, _ := subjects.Table().Roles()
	for _, r := range lasting {
		if !bad[r] {
			t.Errorf("no row in which %s is denied", r)
		}
		if !good[r] {
			t.Errorf("no row in which %s is the control", r)
		}
	}
	t.Logf("%d rows", n)
}

// runRow runs one row.
func (h *harness) runRow(r row) {
	h.t.Helper()
	for _, a := range r.setup {
		a.reply = inbox
		if v := h.publish(a); len(v) > 0 {
			h.t.Fatalf("preparing, %s said %s: %v", a.role, a.subject, v)
		}
		h.awaitReceived(fmt.Sprintf("%s _INBOX.%s.%d", a.role, a.role, h.lastInbox))
	}
	h.runUntilIdle()
	before := h.lastStates
	if before == nil || len(r.setup) > 0 {
		before = h.streamStates()
	}
	h.forgetReceived()
	var kept []string
	may := slices.Clone(r.alsoReceivers)
	for i, a := range r.denied {
		account := h.table.AccountOf(a.role)
		if r.anyOutcome {
			p := h.dial(a.role) // the server may cut it off
			p.pub(a.subject, a.reply, a.header, a.body)
			_ = p.flush()
			may = append(may, "broker agent."+a.role+".tool.request.>")
		} else {
			v := h.publishOn(h.publisher(a.role), a)
			switch {
			case r.accepted && len(v) > 0:
				h.t.Errorf("%s saying %s: %v", a.role, a.subject, v)
			case r.accepted:
				may = append(may, expectedReceivers(h, account, a.subject)...)
				if !r.notStored {
					kept = append(kept, storedBy(h, account, a.subject)...)
				}
			case len(v) != 1 || !strings.Contains(v[0], "Permissions Violation"):
				h.t.Errorf("%s saying %s was not denied: %v", a.role, a.subject, v)
			}
		}
		if last := i+1 == len(r.denied); !last && (r.denied[i+1].role == a.role || !r.accepted && !r.anyOutcome) {
			continue
		}
		h.runUntilIdle()
		if !r.accepted && !r.anyOutcome && len(h.received) > 0 {
			h.t.Errorf("denied, and still received: %v", h.received)
		}
		late := slices.Clone(may) // what those before it said to their own account may come only now
		for _, b := range r.denied[:i] {
			late = append(late, b.role+" >")
		}
		if f := h.unexpectedReceivers(a.role, h.received, late...); len(f) > 0 {
			h.t.Errorf("%s saying %s reached %v", a.role, a.subject, f)
		}
		h.forgetReceived()
	}
	if v := h.publish(r.control); len(v) > 0 {
		h.t.Fatalf("the control: %s may not say %s: %v", r.control.role, r.control.subject, v)
	}
	h.awaitReceived(r.receivers...)
	account := h.table.AccountOf(r.control.role)
	kept = append(kept, storedBy(h, account, r.control.subject)...)
	// What is heard now is the control, or came late of the bad acts.
	expected := slices.Concat(may, r.receivers, expectedReceivers(h, account, r.control.subject),
		[]string{r.control.role + " _INBOX." + r.control.role + ".>", r.control.role + " " + r.control.subject})
	for _, a := range r.denied {
		expected = append(expected, a.role+" >") // its own account is its own business
	}
	if f := h.unexpectedReceivers("", h.received, expected...); len(f) > 0 {
		h.t.Errorf("after the control was heard: %v", f)
	}
	got := h.addedMessages(before, r.rollup)
	slices.Sort(kept)
	if !slices.Equal(got, kept) {
		h.t.Errorf("stored: %q, want %q", got, kept)
	}
}

// storedBy lists what the streams store when an account publishes subject: "EVENTS from.x.y", "AUDIT audit.x.y" or
// "KV_x".
func storedBy(h *harness, account, subject string) (out []string) {
	for _, e := range h.table.Edges {
		if e.Kind != subjects.ServiceImport || !slices.Contains(e.Callers, account) {
			continue
		}
		remote, local := e.Resolve(account)
		tokens, ok := subjects.Match(local, subject)
		if !ok {
			continue
		}
		remote = fillWildcards(remote, tokens)
		for _, s := range h.table.Streams {
			if s.Account != e.Owner || !slices.ContainsFunc(s.Subjects, func(p string) bool {
				_, ok := subjects.Match(p, remote)
				return ok
			}) {
				continue
			}
			switch {
			case isEventIntake(s.Name), s.Name == "EVENTS":
				out = append(out, "EVENTS "+remote)
			case s.Name == subjects.Audit:
				out = append(out, s.Name+" "+remote)
			default:
				out = append(out, s.Name)
			}
		}
	}
	return out
}

// publishedBy is a list of one act.
func publishedBy(as, subject string) []publication {
	return []publication{{role: as, subject: subject, reply: "_INBOX." + as + ".x1", body: "{}"}}
}

// publishedByEach is the same subject published by each role.
func publishedByEach(roles []string, subject string) (out []publication) {
	for _, r := range roles {
		out = append(out, publishedBy(r, subject)...)
	}
	return out
}

// replying is one act with each of several reply subjects.
func replying(as, subject, payload string, replies ...string) (out []publication) {
	for _, r := range replies {
		out = append(out, publication{role: as, subject: subject, reply: r, body: payload})
	}
	return out
}

// request is a control that expects an answer.
func request(as, subject string) publication {
	return publication{role: as, subject: subject, reply: inbox, body: "{}"}
}

// replyTo is the reply arriving at the requester.
func replyTo(role string) string { return role + " _INBOX." + role + ".>" }

// rolesExcept is every lasting role but some.
func rolesExcept(roles ...string) []string {
	lasting, _ := subjects.Table().Roles()
	return slices.DeleteFunc(lasting, func(r string) bool { return slices.Contains(roles, r) })
}

func agentRows() []row {
	datetime := []string{"tool_get_datetime tool.request.get_datetime"}
	return []row{
		{
			name:   "asks for a tool in another agent's name",
			denied: publishedBy("generator", "agent.committee.tool.request.get_datetime"), control: request("committee",
				"tool.request.get_datetime"), receivers: append(datetime,
				"broker agent.committee.tool.request.get_datetime", replyTo("committee")),
		},
		{
			name:   "writes its own name itself",
			denied: publishedBy("generator", "agent.generator.tool.request.get_datetime"), control: request("generator",
				"tool.request.get_datetime"), receivers: append(datetime,
				"broker agent.generator.tool.request.get_datetime", replyTo("generator")),
		},
		{
			name: "asks in the name of the user's operator",
			denied: publishedByEach([]string{
				"generator", "respondent_b", "committee", "orchestrator", "user",
				"gateway",
			}, "agent.operator.tool.request.get_datetime"), control: request("operator",
				"tool.request.get_datetime"), receivers: append(datetime,
				"broker agent.operator.tool.request.get_datetime", replyTo("operator")),
		},
		{
			name: "calls a tool past the broker", denied: publishedByEach(rolesExcept("broker"),
				"tool.call.tools.get_datetime"), control: request("broker", "tool.call.tools.get_datetime"),
			receivers: append(datetime, replyTo("broker")),
		},
		{
			name: "calls memory's tool past the broker", denied: publishedByEach(rolesExcept("broker"),
				"tool.call.memory.search_memory"), control: request("broker", "tool.call.memory.search_memory"),
			receivers: []string{"memory tool.request.search_memory", replyTo("broker")},
		},
		{
			name: "calls critic's and reward's tools past the broker",
			denied: append(publishedBy("orchestrator", "tool.call.critic.compare_answers"),
				publishedBy("critic", "tool.call.reward.give_feedback")...), control: request("broker",
				"tool.call.critic.compare_answers"), receivers: []string{
				"critic tool.request.compare_answers",
				replyTo("broker"),
			},
		},
		{
			name: "a path of five spawned agents", denied: publishedBy("generator", "tool.request.fs_read.a.b.c.d.e"),
			control: request("generator", "tool.request.fs_read.a.b.c.d"),
			receivers: []string{
				"broker agent.generator.tool.request.fs_read.a.b.c.d",
				"tool_fs_read tool.request.fs_read", replyTo("generator"),
			},
		},
		{
			name:   "validates in another agent's name",
			denied: publishedBy("respondent_b", "agent.generator.broker.validate"), control: request("respondent_b",
				"broker.validate"), receivers: []string{
				"broker agent.respondent_b.broker.validate",
				replyTo("respondent_b"),
			},
		},
		{
			name: "a broker subject that is no service", denied: publishedBy("generator", "broker.shutdown"),
			control:   request("generator", "broker.discover"),
			receivers: []string{"broker agent.generator.broker.discover", replyTo("generator")},
		},
		{
			name: "spawns in another agent's name", denied: publishedBy("orchestrator", "agent.committee.agent.spawn"),
			control:   request("orchestrator", "agent.spawn"),
			receivers: []string{"broker agent.orchestrator.agent.spawn", replyTo("orchestrator")},
		},
		{
			name:   "an event in another agent's name",
			denied: publishedBy("generator", "from.committee.response.generation"), control: request("committee",
				"response.generation"), receivers: []string{
				"user response.generation", "gateway response.generation",
				replyTo("committee"),
			},
		},
		{
			name:   "an event with its own name already written",
			denied: publishedBy("generator", "from.generator.response.generation"), control: request("generator",
				"response.generation"), receivers: []string{"user response.generation", replyTo("generator")},
		},
		{
			name:    "the live copy of an event that was never stored",
			denied:  publishedByEach(rolesExcept("user", "gateway"), "live.response.generation"),
			control: request("orchestrator", "response.generation"), receivers: []string{
				"user response.generation",
				replyTo("orchestrator"),
			},
		},
		{
			name: "state of another agent", denied: publishedBy("generator", "agent.state.committee"),
			control: request("committee", "agent.state.committee"), receivers: []string{
				"user agent.state.committee",
				replyTo("committee"),
			},
		},
		{
			name: "deliberation by one who is no committee", denied: publishedByEach(rolesExcept("committee"),
				"committee.deliberation.q1"), control: request("committee", "committee.deliberation.q1"),
			receivers: []string{"gateway committee.deliberation.q1", replyTo("committee")},
		},
		{
			name: "progress and returns by one who is no orchestrator",
			denied: append(publishedByEach(rolesExcept("orchestrator"), "task.progress.t1"),
				publishedBy("generator", "agent.return.t1")...), control: request("orchestrator", "task.progress.t1"),
			receivers: []string{"user task.progress.t1", replyTo("orchestrator")},
		},
		{
			name: "respondent B on the user's live tokens",
			denied: append(publishedBy("respondent_b", "response.delta.q1"),
				publishedBy("respondent_b", "response.thinking.q1")...), control: publication{
				role:    "generator",
				subject: "response.delta.q1",
			}, receivers: []string{
				"user response.delta.q1",
				"gateway response.delta.q1",
			},
		},
		{
			name:      "live tokens from one who does not answer",
			denied:    publishedByEach(rolesExcept("generator", "committee", "orchestrator"), "response.delta.q1"),
			control:   publication{role: "committee", subject: "response.delta.q1"},
			receivers: []string{"user response.delta.q1"},
		},
		{
			name: "answers by one who does not answer",
			denied: publishedByEach(rolesExcept("generator", "respondent_b", "committee", "orchestrator"),
				"response.generation"), control: request("respondent_b", "response.generation"),
			receivers: []string{"gateway response.generation", replyTo("respondent_b")},
		},
		{
			name: "inference in another agent's name", denied: publishedBy("generator", "agent.committee.model.chat"),
			control: request("committee", "model.chat"), receivers: []string{
				"model agent.committee.model.chat",
				replyTo("committee"),
			},
		},
		{
			name: "inference by one who has none",
			denied: publishedByEach([]string{
				"operator", "user", "auditor", "router", "secrets", "reward",
				"tool_web_search", "generator_in",
			}, "model.chat"), control: request("generator", "model.chat"),
			receivers: []string{"model agent.generator.model.chat", replyTo("generator")},
		},
		{
			name: "keys of a neighbour", denied: publishedByEach(rolesExcept("committee"),
				"core.API.$KV.state_committee.k"), control: request("committee", "core.API.$KV.state_committee.k"),
			receivers: []string{replyTo("committee")},
		},
		{
			name: "a roll-up on a neighbour's keys",
			setup: []publication{
				{role: "committee", subject: "core.API.$KV.state_committee.a"},
				{role: "generator", subject: "core.API.$KV.state_generator.a"},
				{role: "generator", subject: "core.API.$KV.state_generator.b"},
			},
			denied: []publication{{
				role: "generator", subject: "core.API.$KV.state_committee.a",
				header: "Nats-Rollup: all",
			}, {
				role: "generator", subject: "$KV.state_committee.a",
				header: "Nats-Rollup: all",
			}},
			control: publication{
				role: "generator", subject: "core.API.$KV.state_generator.a", reply: inbox,
				header: "Nats-Rollup: all",
			}, receivers: []string{replyTo("generator")}, rollup: "KV_state_generator",
		},
		{
			name: "reads a neighbour's keys",
			denied: append(publishedBy("generator", "core.API.DIRECT.GET.KV_state_committee"),
				publishedBy("generator", "core.API.DIRECT.GET.KV_state_committee.$KV.state_committee.a")...),
			control: publication{
				role: "committee", subject: "core.API.DIRECT.GET.KV_state_committee", reply: inbox,
				body: `{"seq":1}`,
			}, receivers: []string{replyTo("committee")},
		},
		{
			name:   "the gateway writes an agent's history",
			denied: publishedBy("gateway", "core.API.$KV.state_generator.a"), control: request("gateway",
				"core.API.DIRECT.GET.KV_state_generator.$KV.state_generator.a"),
			receivers: []string{replyTo("gateway")},
		},
		{
			name: "the user writes an agent's history", denied: publishedBy("user", "core.API.$KV.state_generator.a"),
			control:   request("user", "core.API.DIRECT.GET.KV_state_generator.$KV.state_generator.a"),
			receivers: []string{replyTo("user")},
		},
		{
			name:      "one agent reads another's history",
			denied:    publishedBy("committee", "core.API.DIRECT.GET.KV_state_generator.$KV.state_generator.a"),
			control:   request("generator", "core.API.DIRECT.GET.KV_state_generator.$KV.state_generator.a"),
			receivers: []string{replyTo("generator")},
		},
		{
			name: "fetches a model by one who is not a user",
			denied: publishedByEach([]string{
				"generator", "committee", "memory", "critic", "broker", "operator",
				"tool_web_fetch",
			}, "model.pull"), control: request("user", "model.pull"),
			receivers: []string{"model agent.user.model.pull", replyTo("user")},
		},
		{
			name: "forges the spawn registry, the ledger, the overrides, the schemas",
			denied: slices.Concat(publishedBy("orchestrator", "core.API.$KV.spawns.x"),
				publishedBy("generator", "core.API.$KV.ledger.x"), publishedBy("gateway",
					"core.API.$KV.session_config.x"), publishedBy("tool_run_shell", "core.API.$KV.schemas.x")),
			control: request("broker", "core.API.$KV.spawns.x"), receivers: []string{replyTo("broker")},
		},
		{
			name: "lists sessions that are the gateway's", denied: publishedBy("generator", "core.API.$KV.sessions.x"),
			control: request("gateway", "core.API.$KV.sessions.x"), receivers: []string{replyTo("gateway")},
		},
	}
}

func replyRows() []row {
	// Where a crooked reply subject would do harm, in the name of whoever answers.
	evil := []string{
		"tool.call.tools.run_shell", "agent.committee.tool.request.run_shell", "from.committee.response.generation",
		"from.critic.critique.result", "ctl.user.approval.decision.a1", "ctl.user.session.config",
		"ctl.user.config.set",
		"audit.broker.x", "$JS.API.STREAM.DELETE.AUDIT", "$JS.API.STREAM.PURGE.EVENTS", "$KV.state_committee.k",
		"_INBOX.committee.x", "_INBOX.user.x", "live.response.generation",
	}
	shell := "tool_run_shell tool.request.run_shell"
	return []row{
		{
			name: "through the broker to a tool", accepted: true,
			denied:        replying("generator", "tool.request.get_datetime", "{}", "tool.call.tools.run_shell"),
			alsoReceivers: []string{"tool_get_datetime tool.request.get_datetime"}, control: request("generator",
				"tool.request.run_shell"), receivers: []string{shell, replyTo("generator")},
		},
		{
			name: "through the broker and a tool to everything", accepted: true,
			denied:        replying("generator", "tool.request.get_datetime", "{}", evil...),
			alsoReceivers: []string{"tool_get_datetime tool.request.get_datetime"}, control: request("generator",
				"tool.request.get_datetime"), receivers: []string{
				"tool_get_datetime tool.request.get_datetime",
				replyTo("generator"),
			},
		},
		{
			name: "through the broker to an own right: it comes back as the caller", accepted: true,
			denied: replying("generator", "tool.request.get_datetime", "{}", "tool.request.run_shell"),
			alsoReceivers: []string{
				"tool_get_datetime tool.request.get_datetime",
				"broker agent.generator.tool.request.run_shell", shell,
			}, control: request("generator",
				"tool.request.run_shell"), receivers: []string{shell, replyTo("generator")},
		},
		{
			name: "through the broker and memory to everything", accepted: true,
			denied: replying("committee", "tool.request.search_memory", "{}",
				slices.DeleteFunc(slices.Clone(evil), func(s string) bool {
					return strings.Contains(s, "committee")
				})...), alsoReceivers: []string{"memory tool.request.search_memory"}, control: request("committee",
				"tool.request.search_memory"), receivers: []string{
				"memory tool.request.search_memory",
				replyTo("committee"),
			},
		},
		{
			name: "through discovery of the broker to everything", accepted: true,
			denied: replying("generator", "broker.discover", "{}", evil...), control: request("generator",
				"broker.discover"), receivers: []string{replyTo("generator")},
		},
		{name: "through a spawn to everything", accepted: true, denied: replying("orchestrator", "agent.spawn", "{}",
			evil...), control: request("orchestrator", "agent.spawn"), receivers: []string{replyTo("orchestrator")}},
		{
			name: "through the model to everything", accepted: true, denied: replying("generator", "model.chat", "{}",
				evil...), control: request("generator", "model.chat"),
			receivers: []string{"model agent.generator.model.chat", replyTo("generator")},
		},
		{name: "through the model, from memory", accepted: true, denied: replying("memory", "model.embed", "{}",
			evil...), control: request("memory", "model.embed"), receivers: []string{
			"model agent.memory.model.embed",
			replyTo("memory"),
		}},
		{name: "through the model, from the critic", accepted: true, denied: replying("critic", "model.chat", "{}",
			evil...), control: request("critic", "model.chat"), receivers: []string{
			"model agent.critic.model.chat",
			replyTo("critic"),
		}},
		{name: "through the secrets to everything", accepted: true, denied: replying("broker", "secret.get", "{}",
			slices.DeleteFunc(slices.Clone(evil), func(s string) bool {
				return strings.HasPrefix(s, "tool.call.") || strings.HasPrefix(s, "agent.")
			})...), control: request("broker", "secret.get"), receivers: []string{
			"secrets secret.get",
			replyTo("broker"),
		}},
		{
			name: "through memory's own services to everything", accepted: true,
			denied: replying("user", "memory.query", "{}", slices.DeleteFunc(slices.Clone(evil), func(s string) bool {
				return strings.HasPrefix(s, "_INBOX.user")
			})...), control: request("user", "memory.query"), receivers: []string{
				"memory ctl.user.memory.query",
				replyTo("user"),
			},
		},
		{
			name: "through query.ask of the gateway to everything", accepted: true,
			denied: replying("user", "query.ask", "{}", append(slices.Clone(evil), "audit.gateway.x",
				"from.gateway.user.feedback", "ctl.gateway.config.set")...), control: request("user", "query.ask"),
			receivers: []string{"gateway client.user.query.ask", replyTo("user")},
		},
		{
			name: "through the rejection by the router to everything", accepted: true,
			denied: replying("user", "config.set.broker", "{}", append(slices.Clone(evil), "query.session.s1",
				"from.router.dead.router", "dead.router", "ctl.user.unserved.config.set.broker")...),
			control:   request("user", "config.set.broker"),
			receivers: []string{"router ctl.user.unserved.config.set.broker", replyTo("user")},
		},
		{
			name: "through the ack of an event to everything", accepted: true,
			denied: replying("critic", "critique.result", "{}", evil...), control: request("critic", "critique.result"),
			receivers: []string{"user critique.result", replyTo("critic")},
		},
		{
			name: "through the ack of a question to everything", accepted: true,
			denied: replying("gateway", "query.received", "{}", evil...), control: request("gateway", "query.received"),
			receivers: []string{"user query.received", replyTo("gateway")},
		},
		{
			name: "through the ack of a key to everything", accepted: true,
			denied:  replying("generator", "core.API.$KV.state_generator.k", "{}", evil...),
			control: request("generator", "core.API.$KV.state_generator.k"), receivers: []string{replyTo("generator")},
		},
		{
			name: "through a direct get to everything", accepted: true,
			setup:  []publication{{role: "generator", subject: "core.API.$KV.state_generator.k"}},
			denied: replying("generator", "core.API.DIRECT.GET.KV_state_generator.$KV.state_generator.k", "", evil...),
			control: publication{
				role:    "generator",
				subject: "core.API.DIRECT.GET.KV_state_generator.$KV.state_generator.k", reply: inbox,
			},
			receivers: []string{"generator >"},
		},
		{
			name: "through a direct get by sequence to everything", accepted: true,
			setup:  []publication{{role: "gateway", subject: "core.API.$KV.sessions.k"}},
			denied: replying("gateway", "core.API.DIRECT.GET.KV_sessions", `{"seq":1}`, evil...),
			control: publication{
				role: "gateway", subject: "core.API.DIRECT.GET.KV_sessions", reply: inbox,
				body: `{"seq":1}`,
			}, receivers: []string{"gateway >"},
		},
		{
			name: "through a read of EVENTS to everything", accepted: true,
			setup: []publication{{role: "generator", subject: "response.generation"}},
			denied: replying("user", "core.API.STREAM.MSG.GET.EVENTS", `{"seq":1}`,
				append(slices.Clone(evil), "audit.user.x", "$JS.API.STREAM.DELETE.EVENTS",
					"core.API.STREAM.DELETE.EVENTS")...),
			control: publication{
				role: "user", subject: "core.API.STREAM.MSG.GET.EVENTS", reply: inbox,
				body: `{"seq":1}`,
			}, receivers: []string{replyTo("user")},
		},
		{
			name: "through a read of TURNS to everything", accepted: true,
			setup: []publication{{role: "router", subject: "query.session.s1"}},
			denied: replying("router", "core.API.STREAM.MSG.GET.TURNS", `{"seq":1}`,
				append(slices.Clone(evil), "query.received", "$JS.API.STREAM.DELETE.TURNS",
					"core.API.STREAM.DELETE.TURNS")...),
			control: publication{
				role: "router", subject: "core.API.STREAM.MSG.GET.TURNS", reply: inbox,
				body: `{"seq":1}`,
			}, receivers: []string{replyTo("router")},
		},
		{
			name: "through a read of AUDIT to everything", accepted: true,
			denied: replying("auditor", "auditlog.API.STREAM.MSG.GET.AUDIT", `{"seq":1}`,
				append(slices.Clone(evil), "audit.auditor.x", "audit.AUDIT.genesis", "auditlog.API.STREAM.DELETE.AUDIT",
					"$JS.API.STREAM.PURGE.AUDIT", "$JS.API.STREAM.UPDATE.AUDIT")...),
			control: publication{
				role: "auditor", subject: "auditlog.API.STREAM.MSG.GET.AUDIT", reply: inbox,
				body: `{"seq":1}`,
			}, receivers: []string{replyTo("auditor")},
		},
		{
			name: "through the ack of an audit record to everything", accepted: true,
			denied: replying("memory", "audit.x", "{}", evil...), control: request("memory", "audit.x"),
			receivers: []string{replyTo("memory")},
		},
		{
			name: "through a ping of the server to the purge of an account", accepted: true,
			denied: replying("sys", "$SYS.REQ.SERVER.PING", "", "$JS.API.ACCOUNT.PURGE.AUDIT",
				"$JS.API.ACCOUNT.PURGE.CORE", "$JS.API.STREAM.DELETE.AUDIT", "audit.broker.x",
				"$SYS.REQ.SERVER.PING.KICK", "$SYS.REQ.SERVER.PING.RELOAD"), control: request("sys",
				"$SYS.REQ.SERVER.PING"), receivers: []string{replyTo("sys")},
		},
		{
			name: "through discovery to a tool", accepted: true, denied: replying("user", "$SRV.PING.run_shell", "",
				"tool.request.run_shell", "tool.call.tools.run_shell", "_INBOX.tool_run_shell.x",
				"tool.schema.run_shell"),
			control: request("user", "$SRV.PING.run_shell"), receivers: []string{
				"tool_run_shell $SRV.PING.run_shell",
				replyTo("user"),
			},
		},
		{
			name: "through discovery by the gateway to a decision", accepted: true,
			denied: replying("gateway", "disco.broker.PING.broker", "", "ctl.user.approval.decision.a1",
				"ctl.gateway.config.set", "tool.call.tools.run_shell"), control: request("gateway",
				"disco.broker.PING.broker"), receivers: []string{"broker $SRV.PING.broker", replyTo("gateway")},
		},
		{
			name: "through a live token to a question", accepted: true, denied: replying("generator",
				"response.delta.q1",
				"{}", "query.received", "approval.decision.a1", "config.set.broker"),
			control:   publication{role: "generator", subject: "response.delta.q1"},
			receivers: []string{"user response.delta.q1"},
		},
		{
			name: "through an announcement to a call", accepted: true,
			denied: replying("tool_get_datetime", "tool.schema.get_datetime", "{}", "tool.call.tools.run_shell",
				"tool.request.run_shell", "secret.get", "event.tool.result.x"),
			control:   publication{role: "tool_get_datetime", subject: "tool.schema.get_datetime"},
			receivers: []string{"broker tool.schema.tools.get_datetime"},
		},
	}
}

// tokenRows are tricks with the token that names the tool, and with what comes around it. Whatever the server lets
// through is text for the broker, and no tool hears of it.
func tokenRows() []row {
	good, sees := request("generator", "tool.request.get_datetime"),
		[]string{
			"broker agent.generator.tool.request.get_datetime", "tool_get_datetime tool.request.get_datetime",
			replyTo("generator"),
		}
	odd := func(name, token string) row {
		return row{
			name: name, anyOutcome: true,
			denied: []publication{{
				role: "generator", subject: "tool.request." + token, reply: "_INBOX.generator.x",
				body: "{}",
			}}, control: good, receivers: sees,
		}
	}
	forged := func(name, head string) row {
		return row{
			name: name, accepted: true,
			denied: []publication{{
				role: "generator", subject: "tool.request.get_datetime", reply: "_INBOX.generator.x",
				header: head, body: "{}",
			}}, alsoReceivers: []string{"tool_get_datetime tool.request.get_datetime"},
			control: good, receivers: sees,
		}
	}
	return []row{
		odd("star", "*"), odd("greater than", ">"), odd("star as the account", "*.run_shell"), odd("empty", ""),
		odd("only dots", ".."),
		odd("first capture", "$1"), odd("mapping function", "{{wildcard(1)}}"), odd("mapping function with an account",
			"{{accountname}}"), odd("split function", "{{split(1,_)}}"),
		odd("double dot", "get_datetime..run_shell"), odd("trailing dot", "get_datetime."), odd("leading dot",
			".get_datetime"),
		odd("two words", "run shell now please"), odd("tab", "run\tshell\tnow"), odd("NUL", "run_shell\x00"),
		odd("vertical tab", "run\vshell"),
		odd("lookalike letters", "run_\u0455hell"), odd("wide space", "run\u2003shell"), odd("not UTF-8",
			"run\xffshell"), odd("upper case", "RUN_SHELL"),
		odd("300 characters", strings.Repeat("a", 300)), odd("longer than a control line", strings.Repeat("a", 5000)),
		odd("many stars", "*.*.*.*"),
		{
			name: "a second command inside the subject",
			denied: []publication{{role: "generator", subject: "x 0\r\n\r\nPUB tool.call.tools.run_shell " +
				"2\r\n{}\r\nPUB x"}}, anyOutcome: true, control: good, receivers: sees,
		},
		{
			name: "another agent's name inside a path", accepted: true,
			denied:        publishedBy("generator", "tool.request.get_datetime.agent.committee"),
			alsoReceivers: []string{"tool_get_datetime tool.request.get_datetime"}, control: good, receivers: sees,
		},
		forged("header of the server's own request info", `Nats-Request-Info: {"acc":"committee","user":"committee"}`),
		forged("header of the server's client info", `Nats-Client-Info: {"acc":"user"}`),
		forged("headers that claim an identity", "Agent: committee\r\nX-Agent-Id: user\r\nNats-Account: "+
			"broker\r\nFrom: broker"),
		forged("header that claims a subject", "Nats-Subject: agent.committee.tool.request.run_shell\r\nNats-Stream: "+
			"EVENTS"),
		{
			name: "header that claims an author of an event", accepted: true,
			denied: []publication{{role: "generator", subject: "response.generation", header: "Nats-Subject: " +
				"from.critic.critique.result\r\nNats-Stream: AUDIT", body: "{}"}},
			control: request("generator", "response.generation"), receivers: []string{
				"user response.generation",
				replyTo("generator"),
			},
		},
		{
			name: "header that asks the API for another account", accepted: true,
			denied: []publication{{
				role: "user", subject: "core.API.STREAM.INFO.EVENTS", reply: "_INBOX.user.x",
				header: `Nats-Request-Info: {"acc":"AUDIT"}`, body: "{}",
			}},
			control: request("user", "core.API.STREAM.INFO.EVENTS"), receivers: []string{replyTo("user")},
		},
		{
			name: "roll-up of the events", accepted: true, notStored: true,
			denied: []publication{
				{role: "generator", subject: "response.generation", header: "Nats-Rollup: all"},
				{role: "generator", subject: "response.generation", header: "Nats-Rollup: sub"},
			},
			control: request("generator", "response.generation"), receivers: []string{
				"user response.generation",
				replyTo("generator"),
			},
		},
		{
			name: "an event that ends by itself", accepted: true, notStored: true,
			denied:  []publication{{role: "critic", subject: "critique.result", header: "Nats-TTL: 1s"}},
			control: request("critic", "critique.result"), receivers: []string{replyTo("critic")},
		},
	}
}

func pullRows() []row {
	var out []row
	// A puller holds nothing but its consumer: it cannot say what its actor says.
	says := map[string]string{
		"memory": "memory.stored", "critic": "critique.result", "reward": "reward.event", "router": "query.session.s1",
		"committee": "committee.deliberation.q1", "orchestrator": "task.progress.t1",
		"generator": "response.generation", "respondent_b": "response.generation",
	}
	for _, who := range []string{
		"memory", "critic", "reward", "router", "committee", "orchestrator", "generator",
		"respondent_b",
	} {
		out = append(out, row{
			name:   who + "_in says what " + who + " may say",
			denied: publishedBy(who+"_in", says[who]), control: request(who, says[who]),
			receivers: []string{replyTo(who)},
		})
	}
	next := `{"batch":1,"no_wait":true}`
	for _, p := range subjects.Table().Consumers {
		if strings.Contains(p.Name, "-") && !strings.HasSuffix(p.Name, "-0") { // one partition stands for all
			continue
		}
		api := "core.API.CONSUMER.INFO." + p.Stream + "." + p.Name
		out = append(out, row{
			name:    "only " + p.Actor + "_in pulls " + p.Name + " of " + p.Stream,
			denied:  publishedByEach(rolesExcept(p.Actor+"_in"), "core.API.CONSUMER.MSG.NEXT."+p.Stream+"."+p.Name),
			control: request(p.Actor+"_in", api), receivers: []string{replyTo(p.Actor + "_in")},
		})
	}
	evil := []string{
		"from.critic.critique.result", "from.generator.response.generation", "from.memory.memory.stored",
		"response.generation", "critique.result", "tool.request.run_shell", "audit.broker.x",
		"$JS.API.STREAM.DELETE.AUDIT", "$JS.API.STREAM.PURGE.EVENTS", "ctl.user.approval.decision.a1",
	}
	var events, turns []publication
	for range 2*len(evil) + 4 {
		events = append(events, publication{role: "generator", subject: "response.generation"})
	}
	for i := range 32 {
		turns = append(turns, publication{role: "router", subject: fmt.Sprintf("query.session.s%d", i)})
	}
	return append(out,
		row{
			name: "memory_in says another author's event again", accepted: true, setup: events,
			denied: replying("memory_in", "core.API.CONSUMER.MSG.NEXT.EVENTS.memory", next, evil...),
			control: publication{
				role: "memory_in", subject: "core.API.CONSUMER.MSG.NEXT.EVENTS.memory", reply: inbox,
				body: next,
			}, receivers: []string{"memory_in from.generator.response.generation"},
		},
		row{
			name: "critic_in says another author's event again", accepted: true,
			denied: replying("critic_in", "core.API.CONSUMER.MSG.NEXT.EVENTS.critic", next, evil...),
			control: publication{
				role: "critic_in", subject: "core.API.CONSUMER.MSG.NEXT.EVENTS.critic", reply: inbox,
				body: next,
			}, receivers: []string{"critic_in from.*.response.generation"},
		},
		row{
			name: "generator_in says another's turn again", accepted: true, setup: turns,
			denied: replying("generator_in", "core.API.CONSUMER.MSG.NEXT.TURNS.generator-0", next,
				append(slices.Clone(evil), "query.session.s1", "turn.0.s1")...),
			control: publication{
				role: "respondent_b_in", subject: "core.API.CONSUMER.MSG.NEXT.TURNS.respondent_b-0",
				reply: inbox, body: next,
			}, receivers: []string{"respondent_b_in turn.0.*"},
		},
		row{
			name: "an ack for a neighbour's consumer",
			denied: append(publishedBy("memory_in", "$JS.ACK.EVENTS.critic.1.1.1.1.0"),
				publishedBy("generator_in", "$JS.ACK.TURNS.respondent_b-0.1.1.1.1.0")...), control: request("memory_in",
				"core.API.CONSUMER.INFO.EVENTS.memory"), receivers: []string{replyTo("memory_in")},
		},
		row{
			name: "a consumer with a deliver subject of one's own",
			denied: append(publishedByEach(rolesExcept(), "core.API.CONSUMER.CREATE.EVENTS.x"),
				publishedByEach(rolesExcept(), "$JS.API.CONSUMER.CREATE.EVENTS.x")...), control: request("critic_in",
				"core.API.CONSUMER.INFO.EVENTS.critic"), receivers: []string{replyTo("critic_in")},
		},
	)
}

func toolRows() []row {
	var out []row
	for i, tool := range subjects.Tools {
		other := subjects.Tools[(i+1)%len(subjects.Tools)]
		role, neighbour := subjects.ToolRole(tool), subjects.ToolRole(other)
		out = append(out,
			row{name: tool + " calls its neighbour", denied: append(publishedBy(role, "tool.request."+other),
				publishedBy(role, "tool.call.tools."+other)...), control: request("broker", "tool.call.tools."+
				other), receivers: []string{neighbour + " tool.request." + other, replyTo("broker")}},
			row{name: tool + " announces its neighbour", denied: append(publishedBy(role, "tool.schema."+other),
				publishedBy(role, "tool.output."+other+".c1")...), control: publication{
				role:    neighbour,
				subject: "tool.schema." + other,
			}, receivers: []string{"broker tool.schema.tools." + other}},
			row{name: tool + " has a dead letter's ack call its neighbour", denied: replying(role, "dead.tools", "{}",
				"tool.request."+other, "_INBOX."+neighbour+".x", "tool.schema."+other), control: request("broker",
				"tool.call.tools."+other), receivers: []string{neighbour + " tool.request." + other}},
		)
	}
	tool := "tool_web_search"
	return append(out,
		row{
			name: "a tool asks for a secret", denied: publishedByEach([]string{tool, "tool_run_shell"}, "secret.get"),
			control: request("broker", "secret.get"), receivers: []string{"secrets secret.get", replyTo("broker")},
		},
		row{
			name: "a tool asks the broker as an agent",
			denied: append(publishedBy(tool, "agent.generator.tool.request.run_shell"),
				publishedBy(tool, "broker.validate")...), control: request("generator", "broker.validate"),
			receivers: []string{"broker agent.generator.broker.validate", replyTo("generator")},
		},
		row{
			name: "a tool speaks to an agent", denied: slices.Concat(publishedBy(tool, "_INBOX.generator.x"),
				publishedBy(tool, "agent.generator.tool.output.c1"), publishedBy(tool, "ctl.user.config.set")),
			control:   publication{role: "broker", subject: "agent.generator.tool.output.c1"},
			receivers: []string{"generator tool.output.c1"},
		},
		row{
			name: "a tool speaks to its neighbour's inbox", denied: append(publishedBy(tool, "_INBOX.tool_run_shell.x"),
				publishedBy(tool, "_INBOX.tool_web_search.x")...), control: request("broker",
				"tool.call.tools.run_shell"),
			receivers: []string{"tool_run_shell tool.request.run_shell", replyTo("broker")},
		},
		row{
			name: "a tool writes the broker's copy of its result",
			denied: slices.Concat(publishedBy(tool, "event.tool.result.web_search"),
				publishedBy(tool, "tool.result.web_search"), publishedBy(tool, "from.broker.tool.result.web_search")),
			control:   request("broker", "event.tool.result.web_search"),
			receivers: []string{"user tool.result.web_search", "gateway tool.result.web_search", replyTo("broker")},
		},
		row{
			name: "a tool's live output straight to the user", denied: publishedBy(tool, "tool.output.c1"),
			control:   publication{role: "broker", subject: "tool.output.c1"},
			receivers: []string{"user tool.output.c1"},
		},
		row{
			name:   "a tool writes the dead letter of another actor",
			denied: publishedByEach([]string{tool, "generator", "memory"}, "dead.broker"), control: request("broker",
				"dead.broker"), receivers: []string{"user dead.broker", replyTo("broker")},
		},
		row{
			name: "a tool answers a request of nobody", accepted: true,
			denied:  slices.Concat(publishedBy(tool, "_R_.x"), publishedBy(tool, "_R_.abcdef.xyz")),
			control: request("broker", "tool.call.tools.web_search"), receivers: []string{"tool_web_search " +
				"tool.request.web_search", replyTo("broker")},
		},
		row{
			name: "a tool is listed as another service", denied: append(publishedBy(tool, "$SRV.PING"),
				publishedBy(tool, "$SRV.PING.broker")...), control: request("user", "$SRV.PING"),
			receivers: []string{"gateway $SRV.PING", replyTo("user")},
		},
		row{
			name: "memory announces a tool of the machine",
			denied: append(publishedBy("memory", "tool.schema.run_shell"),
				publishedBy("critic", "tool.schema.search_memory")...), control: publication{
				role:    "memory",
				subject: "tool.schema.search_memory",
			}, receivers: []string{"broker tool.schema.memory.search_memory"},
		},
	)
}

// userRows are what only the user may say: decisions, overrides, settings, questions, feedback.
func userRows() []row {
	var out []row
	people := []string{"user", "gateway"}
	for i, r := range rolesExcept(people...) {
		p, q := people[i%2], people[(i+1)%2]
		out = append(out, row{
			name: r + " decides in the user's place",
			denied: slices.Concat(publishedBy(r, "approval.decision.a1"), publishedBy(r, "session.config"),
				publishedBy(r, "config.set.broker"), publishedBy(r, "ctl."+p+".approval.decision.a1"), publishedBy(r,
					"ctl."+p+".session.config"), publishedBy(r, "ctl."+p+".config.set"),
				publishedBy(r, "event.approval.decision.a1")[:btoi(r != "broker")], publishedBy(r,
					"from.broker.approval.decision.a1"), publishedBy(r, "from."+q+".user.feedback")),
			control: request(p, "approval.decision.a1"), receivers: []string{"broker ctl." + p +
				".approval.decision.a1", replyTo(p)},
		})
	}
	for _, r := range []string{"memory", "orchestrator", "model", "secrets"} {
		out = append(out, row{
			name: r + " decides by the ack of a record", accepted: true, denied: replying(r, "audit.x", "{}",
				"approval.decision.a1", "ctl.user.approval.decision.a1", "session.config", "ctl.gateway.session.config",
				"config.set.broker", "ctl.user.config.set"),
			control: request(r, "audit.x"), receivers: []string{replyTo(r)},
		})
	}
	for i, p := range people {
		other := people[1-i]
		out = append(out, row{
			name: p + " changes a conversation, and nobody else does",
			denied: slices.Concat(publishedByEach(rolesExcept(people...), "session.change"),
				publishedByEach(rolesExcept(people...), "ctl."+p+".session.change"),
				publishedBy(other, "ctl."+p+".session.change"), publishedBy(p, "ctl."+p+".session.change")),
			control: request(p, "session.change"), receivers: []string{
				"generator ctl." + p + ".session.change",
				replyTo(p),
			},
		}, row{
			name: p + " changes a setting, and no agent or tool does",
			denied: slices.Concat(publishedByEach(rolesExcept(people...), "settings.change"),
				publishedByEach(rolesExcept(people...), "settings.list"), publishedByEach(rolesExcept(people...),
					"ctl."+p+".settings.change"),
				publishedBy(other, "ctl."+p+".settings.change"), publishedBy(p, "ctl."+p+".settings.change")),
			control: request(p, "settings.change"), receivers: []string{
				"registry ctl." + p + ".settings.change",
				replyTo(p),
			},
		})
	}
	return append(out,
		row{
			name: "a record by one who acts on a model's words",
			denied: publishedByEach([]string{
				"critic", "reward", "generator", "respondent_b", "committee", "operator",
				"router",
			}, "audit.x"), control: request("memory", "audit.x"), receivers: []string{replyTo("memory")},
		},
		row{
			name: "the gateway decides as the user", denied: publishedBy("gateway", "ctl.user.approval.decision.a1"),
			control:   request("gateway", "approval.decision.a1"),
			receivers: []string{"broker ctl.gateway.approval.decision.a1", replyTo("gateway")},
		},
		row{
			name: "the user decides as the gateway", denied: publishedBy("user", "ctl.gateway.session.config"),
			control: request("user", "session.config"), receivers: []string{
				"broker ctl.user.session.config",
				replyTo("user"),
			},
		},
		row{
			name: "another account than user sends settings that no actor serves yet",
			denied: slices.Concat(publishedByEach(rolesExcept("user"), "config.set.broker"),
				publishedByEach(rolesExcept("user"), "config.set.secrets")), control: request("user",
				"config.set.broker"), receivers: []string{
				"router ctl.user.unserved.config.set.broker",
				replyTo("user"),
			},
		},
		row{
			name: "a message that no actor serves under another account's name",
			denied: slices.Concat(publishedBy("user", "ctl.gateway.unserved.config.set.broker"),
				publishedBy("user", "ctl.user.unserved.config.set.broker"), publishedBy("gateway",
					"ctl.gateway.unserved.config.set.broker")), control: request("user", "config.set.broker"),
			receivers: []string{"router ctl.user.unserved.config.set.broker", replyTo("user")},
		},
		row{
			name: "a question by one who is not a user",
			denied: slices.Concat(publishedByEach(rolesExcept(people...), "query.received"),
				publishedByEach(rolesExcept(people...), "query.committee"), publishedByEach(rolesExcept(people...),
					"query.task")), control: request("user", "query.received"),
			receivers: []string{"gateway query.received", replyTo("user")},
		},
		row{
			name: "a turn of the committee or the orchestrator past the router",
			denied: slices.Concat(publishedByEach(rolesExcept("router"), "turn.committee.s1"),
				publishedByEach(rolesExcept("router"), "turn.orchestrator.s1")), control: request("router",
				"turn.committee.s1"), receivers: []string{replyTo("router")},
		},
		row{
			name: "a turn past the router", denied: publishedByEach(rolesExcept("router"), "query.session.s1"),
			control: request("router", "query.session.s1"), receivers: []string{replyTo("router")},
		},
		row{
			name: "feedback by one who is not a user", denied: publishedByEach(rolesExcept(people...), "user.feedback"),
			control: request("gateway", "user.feedback"), receivers: []string{
				"user user.feedback",
				replyTo("gateway"),
			},
		},
		row{
			name: "a cancel by one who is not a user", denied: publishedByEach(rolesExcept(people...),
				"query.cancel.q1"), control: request("user", "query.cancel.q1"),
			receivers: []string{"generator query.cancel.q1", "model query.cancel.q1", replyTo("user")},
		},
		row{
			name: "query.ask by one who is no user", denied: publishedByEach(rolesExcept("user"), "query.ask"),
			control: request("user", "query.ask"), receivers: []string{
				"gateway client.user.query.ask",
				replyTo("user"),
			},
		},
		row{
			name: "memory by one who is not a user",
			denied: slices.Concat(publishedByEach(rolesExcept(people...), "memory.write"),
				publishedByEach(rolesExcept(people...), "memory.admin"), publishedBy("generator",
					"ctl.user.memory.query")), control: request("gateway", "memory.write"),
			receivers: []string{"memory ctl.gateway.memory.write", replyTo("gateway")},
		},
		row{
			name: "the user calls a tool as no agent", denied: publishedByEach(people, "tool.request.get_datetime"),
			control: request("operator", "tool.request.get_datetime"), receivers: []string{"tool_get_datetime " +
				"tool.request.get_datetime", replyTo("operator")},
		},
		row{name: "the user answers as an agent", denied: append(publishedByEach(people, "response.generation"),
			publishedByEach(people, "from.generator.response.generation")...), control: request("generator",
			"response.generation"), receivers: []string{"user response.generation", replyTo("generator")}},
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
		{
			name: "a grade by one who is no critic",
			denied: append(publishedByEach(rolesExcept("critic"), "critique.result"),
				publishedByEach(rolesExcept("critic"), "from.critic.critique.result")...), control: request("critic",
				"critique.result"), receivers: []string{"user critique.result", replyTo("critic")},
		},
		{
			name: "a verdict by one who is no critic", denied: publishedByEach(rolesExcept("critic"),
				"pairwise.result"),
			control: request("critic", "pairwise.result"), receivers: []string{
				"gateway pairwise.result",
				replyTo("critic"),
			},
		},
		{
			name: "the critic answers", denied: append(publishedBy("critic", "response.generation"),
				publishedBy("critic", "answer.dialog")...), control: request("generator", "answer.dialog"),
			receivers: []string{"user answer.dialog", replyTo("generator")},
		},
		{
			name: "respondent B joins the dialog", denied: publishedBy("respondent_b", "answer.dialog"),
			control: request("generator", "answer.dialog"), receivers: []string{
				"user answer.dialog",
				replyTo("generator"),
			},
		},
		{
			name: "respondent B writes what the user was told",
			denied: append(publishedBy("respondent_b", "core.API.$KV.state_generator.conv.s1"),
				publishedBy("respondent_b", "core.API.DIRECT.GET.KV_state_generator.$KV.state_generator.turn.s1")...),
			control:   request("respondent_b", "core.API.DIRECT.GET.KV_state_generator.$KV.state_generator.conv.s1"),
			receivers: []string{replyTo("respondent_b")},
		},
		{
			name: "the critic's and reward's own books",
			denied: slices.Concat(publishedBy("generator", "core.API.$KV.judged.x"),
				publishedBy("reward", "core.API.$KV.judged.x"), publishedBy("critic", "core.API.$KV.rewarded.x"),
				publishedBy("user", "core.API.$KV.rewarded.x")), control: request("critic", "core.API.$KV.judged.x"),
			receivers: []string{replyTo("critic")},
		},
		{
			name: "a head of the audit log by one who is not the auditor",
			denied: slices.Concat(publishedByEach(rolesExcept("auditor"), "auditlog.head"),
				publishedByEach(rolesExcept(), "from.auditor.auditlog.head")), control: request("auditor",
				"auditlog.head"), receivers: []string{"user auditlog.head", replyTo("auditor")},
		},
		{
			name: "a reward by one who gives none", denied: publishedByEach(rolesExcept("reward"), "reward.event"),
			control: request("reward", "reward.event"), receivers: []string{
				"generator reward.event",
				"user reward.event", replyTo("reward"),
			},
		},
		{
			name: "a memory by one who keeps none",
			denied: slices.Concat(publishedByEach(rolesExcept("memory"), "memory.stored"),
				publishedBy("generator", "memory.annotated"), publishedBy("critic", "memory.recalled")),
			control: request("memory", "memory.stored"), receivers: []string{"user memory.stored", replyTo("memory")},
		},
		{
			name: "the broker's copies by one who is not the broker",
			denied: slices.Concat(publishedByEach(rolesExcept("broker"), "event.tool.request.run_shell"),
				publishedByEach(rolesExcept("broker"), "event.tool.result.run_shell"), publishedBy("memory",
					"from.broker.tool.request.run_shell")), control: request("broker", "event.tool.request.run_shell"),
			receivers: []string{"user tool.request.run_shell", replyTo("broker")},
		},
		{
			name: "a request for approval by one who is not the broker", denied: publishedByEach(rolesExcept("broker"),
				"event.approval.request.a1"), control: request("broker", "event.approval.request.a1"),
			receivers: []string{"user approval.request.a1", "gateway approval.request.a1", replyTo("broker")},
		},
		{
			name: "the broker answers, grades and asks",
			denied: slices.Concat(publishedBy("broker", "response.generation"),
				publishedBy("broker", "critique.result"), publishedBy("broker", "query.received"), publishedBy("broker",
					"agent.generator.tool.request.run_shell")), control: request("broker",
				"event.tool.result.run_shell"), receivers: []string{"user tool.result.run_shell", replyTo("broker")},
		},
		{
			name: "a secret for one who is not the broker", denied: publishedByEach(rolesExcept("broker"),
				"secret.get"),
			control: request("broker", "secret.get"), receivers: []string{"secrets secret.get", replyTo("broker")},
		},
		{
			name: "a key that one who is not the secrets actor asks for",
			denied: slices.Concat(publishedByEach(rolesExcept("secrets"), "receiver.tool_web_search.seal.key.XABC"),
				publishedByEach(rolesExcept(), "seal.key.XABC"),
				publishedBy("secrets", "receiver.tool_run_shell.seal.key.XABC"),
				publishedBy("secrets", "receiver.broker.seal.key.XABC")),
			control: request("secrets", "receiver.tool_web_search.seal.key.XABC"), receivers: []string{
				"tool_web_search seal.key.XABC",
				replyTo("secrets"),
			},
		},
		{name: "the secrets speak first", denied: slices.Concat(publishedBy("secrets", "tool.call.tools.run_shell"),
			publishedBy("secrets", "model.chat"), publishedBy("secrets", "event.tool.result.x"), publishedBy("secrets",
				"secret.get")), control: request("secrets", "dead.secrets"), receivers: []string{
			"user dead.secrets",
			replyTo("secrets"),
		}},
		{
			name: "the model speaks first", denied: slices.Concat(publishedBy("model", "tool.request.run_shell"),
				publishedBy("model", "response.generation"), publishedBy("model", "response.delta.q1"),
				publishedBy("model",
					"agent.generator.model.chat")), control: request("model", "dead.model"),
			receivers: []string{"user dead.model", replyTo("model")},
		},
		{
			name: "the scheduler asks, or defines what is asked",
			denied: slices.Concat(publishedBy("scheduler", "query.received"), publishedBy("scheduler", "query.task"),
				publishedBy("scheduler", "query.session.s1"), publishedBy("scheduler", "schedule.definition.x"),
				publishedBy("scheduler", "approval.decision.a1"), publishedBy("scheduler",
					"tool.request.get_datetime")), control: request("scheduler", "schedule.due.x"),
			receivers: []string{replyTo("scheduler")},
		},
		{
			name: "a schedule by one who is not the user", denied: publishedByEach(rolesExcept("user"),
				"schedule.change"),
			control: request("user", "schedule.change"), receivers: []string{
				"broker ctl.user.schedule.change",
				replyTo("user"),
			},
		},
		{
			name:   "the definition of a schedule by one who does not record it",
			denied: publishedByEach(rolesExcept("broker"), "schedule.definition.x"), control: request("broker",
				"schedule.definition.x"), receivers: []string{replyTo("broker")},
		},
		{
			name: "an occurrence by one who is not the scheduler", denied: publishedByEach(rolesExcept("scheduler"),
				"schedule.due.x"), control: request("scheduler", "schedule.due.x"),
			receivers: []string{replyTo("scheduler")},
		},
		{
			name: "the router speaks as the user", denied: slices.Concat(publishedBy("router", "query.received"),
				publishedBy("router", "response.generation"), publishedBy("router", "approval.decision.a1")),
			control: request("router", "query.session.s2"), receivers: []string{replyTo("router")},
		},
		{name: "discovery by one who may not look", denied: slices.Concat(publishedBy("generator", "$SRV.PING"),
			publishedBy("memory", "disco.tools.PING"), publishedBy("auditor", "$SRV.INFO")), control: request("gateway",
			"disco.tool_run_shell.PING.run_shell"), receivers: []string{
			"tool_run_shell $SRV.PING.run_shell",
			replyTo("gateway"),
		}},
		{
			name: "a dead letter in another's name",
			denied: append(publishedByEach(rolesExcept("gateway"), "dead.gateway"),
				publishedBy("reward", "from.critic.dead.critic")...), control: request("gateway", "dead.gateway"),
			receivers: []string{"user dead.gateway", replyTo("gateway")},
		},
		{
			name: "deletes, purges and changes of the streams", denied: streamAdministration(rolesExcept()...),
			control: request("gateway", "core.API.STREAM.INFO.EVENTS"), receivers: []string{replyTo("gateway")},
		},
		{
			name: "reads of questions, events and turns",
			denied: slices.Concat(publishedByEach(rolesExcept("user", "gateway", "broker"),
				"core.API.STREAM.MSG.GET.EVENTS"),
				publishedByEach(rolesExcept("broker"), "core.API.STREAM.MSG.GET.QUERIES"),
				publishedByEach(rolesExcept(), "core.API.DIRECT.GET.EVENTS")), control: publication{
				role:    "user",
				subject: "core.API.STREAM.MSG.GET.EVENTS", reply: inbox, body: `{"seq":1}`,
			},
			receivers: []string{replyTo("user")},
		},
		{
			name: "a read of turns by one who is neither the router nor the broker",
			denied: slices.Concat(publishedByEach(rolesExcept("router", "broker"), "core.API.STREAM.MSG.GET.TURNS"),
				publishedByEach(rolesExcept(), "core.API.DIRECT.GET.TURNS"), publishedByEach(rolesExcept(),
					"$JS.API.STREAM.MSG.GET.TURNS"), publishedBy("router", "core.API.STREAM.INFO.TURNS")),
			control: publication{
				role: "router", subject: "core.API.STREAM.MSG.GET.TURNS", reply: inbox,
				body: `{"seq":1}`,
			}, receivers: []string{replyTo("router")},
		},
		{
			name:    "an attached image by one who is not the user, and does not delete sessions",
			denied:  publishedByEach(rolesExcept("user", "gateway", "generator"), "attachment.s1.abc.0"),
			control: request("gateway", "attachment.s1.abc.0"), receivers: []string{replyTo("gateway")},
		},
		{
			name: "a read of attached images by one who sends none to a model",
			denied: slices.Concat(publishedByEach(rolesExcept("generator", "respondent_b", "model"),
				"core.API.STREAM.MSG.GET.ATTACHMENTS"), publishedByEach(rolesExcept("generator", "user"),
				"core.API.STREAM.INFO.ATTACHMENTS"), publishedByEach(rolesExcept(), "core.API.DIRECT.GET.ATTACHMENTS"),
				publishedByEach(rolesExcept(), "core.API.STREAM.PURGE.ATTACHMENTS")),
			control: publication{
				role: "model", subject: "core.API.STREAM.MSG.GET.ATTACHMENTS", reply: inbox,
				body: `{"seq":1}`,
			}, receivers: []string{replyTo("model")},
		},
		{
			name: "the monitor does more than look",
			denied: slices.Concat(publishedBy("sys", "$SYS.REQ.SERVER.PING.LDM"),
				publishedBy("sys", "$SYS.REQ.SERVER.PING.SUBSZ"), publishedBy("sys", "$SYS.REQ.CLAIMS.UPDATE"),
				publishedBy("sys", "$SYS.REQ.ACCOUNT.CORE.SUBSZ"), publishedBy("sys", "$SYS.REQ.SERVER.PING.ACCOUNTZ"),
				publishedBy("sys", "$SYS.ACCOUNT.CORE.CONNECT")), control: request("sys",
				"$SYS.REQ.SERVER.PING.STATSZ"),
			receivers: []string{replyTo("sys")},
		},
		{
			name: "the system account by one who is not the monitor",
			denied: append(publishedByEach(rolesExcept("sys"), "$SYS.REQ.SERVER.PING"),
				publishedByEach(rolesExcept("sys"), "$SYS.REQ.SERVER.PING.JSZ")...), control: request("sys",
				"$SYS.REQ.SERVER.PING.JSZ"), receivers: []string{replyTo("sys")},
		},
	}
}

// streamAdministration is the administration of EVENTS by several roles, under both names of the API.
func streamAdministration(roles ...string) (out []publication) {
	for _, r := range roles {
		for _, prefix := range []string{"$JS.API", "core.API"} {
			for _, verb := range []string{"DELETE", "PURGE", "UPDATE", "CREATE", "SNAPSHOT", "MSG.DELETE"} {
				out = append(out, publication{
					role: r, subject: prefix + ".STREAM." + verb + ".EVENTS",
					reply: "_INBOX." + r + ".x1", body: `{"name":"EVENTS","seq":1}`,
				})
			}
		}
	}
	return out
}

func auditRows() []row {
	good, sees := publication{role: "auditor", subject: "auditlog.API.STREAM.INFO.AUDIT", reply: inbox},
		[]string{replyTo("auditor")}
	var out []row
	for _, r := range rolesExcept() {
		var bad []publication
		for _, prefix := range []string{"$JS.API", "core.API", "auditlog.API"} {
			for _, verb := range []string{
				"INFO", "PURGE", "UPDATE", "DELETE", "MSG.GET", "MSG.DELETE", "CREATE",
				"SNAPSHOT", "RESTORE",
			} {
				if r == "auditor" && prefix == "auditlog.API" && (verb == "INFO" || verb == "MSG.GET") {
					continue // its job
				}
				bad = append(bad, publication{
					role: r, subject: prefix + ".STREAM." + verb + ".AUDIT",
					reply: "_INBOX." + r + ".x1", body: `{"name":"AUDIT","max_msgs":1,"seq":1}`,
				})
			}
			bad = append(bad, publishedBy(r, prefix+".ACCOUNT.PURGE.AUDIT")...)
			bad = append(bad, publishedBy(r, prefix+".CONSUMER.CREATE.AUDIT.x")...)
			bad = append(bad, publishedBy(r, prefix+".DIRECT.GET.AUDIT")...)
		}
		out = append(out, row{
			name: r + " reads, changes or empties the audit log", denied: bad, control: good,
			receivers: sees,
		})
	}
	writers := subjects.AuditWriters
	for i, w := range writers {
		other := writers[(i+1)%len(writers)]
		out = append(out, row{
			name: w + " appends in the name of " + other,
			denied: slices.Concat(publishedBy(w, "audit."+other+".x"), publishedBy(w, "audit."+w+".x"),
				publishedBy(w, "audit.AUDIT.genesis")), control: request(w, "audit.x"),
			receivers: []string{replyTo(w)},
		})
	}
	return append(out,
		row{
			name: "appends by one who is no writer", denied: append(publishedByEach(rolesExcept(writers...), "audit.x"),
				publishedByEach(rolesExcept(writers...), "audit.broker.x")...), control: request("broker", "audit.x"),
			receivers: []string{replyTo("broker")},
		},
		row{
			name: "a record that rolls up the audit log", accepted: true, notStored: true,
			denied: []publication{
				{role: "broker", subject: "audit.x", header: "Nats-Rollup: all"},
				{role: "memory", subject: "audit.x", header: "Nats-Rollup: sub"},
				{role: "memory", subject: "audit.x", header: "Nats-TTL: 1s"},
			}, control: request("broker", "audit.x"),
			receivers: []string{replyTo("broker")},
		},
	)
}

// TestToolRepliesOnceToItsRequest shows that a tool replies only to its own request, and once.
func TestToolRepliesOnceToItsRequest(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.passive["tool_web_search"] = true
	h.passive["broker"] = true
	h.publish(request("broker", "tool.call.tools.web_search"))
	h.awaitReceived("tool_web_search tool.request.web_search")
	reply := h.received[slices.IndexFunc(h.received, func(m received) bool {
		return m.role == "tool_web_search"
	})].reply
	if !strings.HasPrefix(reply, "_R_.") {
		t.Fatalf("the reply subject is %q: the server did not make it", reply)
	}
	h.forgetReceived()
	// in their accounts it leads nowhere
	for _, other := range []string{"tool_get_datetime", "tool_run_shell", "memory", "generator"} {
		p := h.clients[other]
		p.pub(reply, "", "", "forged by "+other)
		h.flush(p)
	}
	tool := h.clients["tool_web_search"]
	tool.pub(reply, "", "", "true")
	tool.pub(reply, "", "", "again")
	h.flush(tool)
	h.runUntilIdle()
	h.awaitReceived(replyTo("broker"))
	if len(h.received) != 1 || h.received[0].body != "true" {
		t.Errorf("the broker heard %v %+v, want the tool's one answer", h.received, h.received)
	}
}

// TestNoBrokerNoTool shows that a tool is reached only through a running broker: without one, no publication of any
// role reaches a tool.
func TestNoBrokerNoTool(t *testing.T) {
	t.Parallel()
	h := newHarness(t, "broker")
	toTool := func() (out []string) {
		for _, m := range h.received {
			if strings.Contains(m.subject, "tool.request.") &&
				(strings.HasPrefix(m.role, "tool_") || subjects.Zones[m.role] != nil) {
				out = append(out, m.String())
			}
		}
		return out
	}
	var calls []string
	for _, zone := range []string{"tools", "memory", "critic", "reward"} {
		for _, tool := range subjects.Zones[zone] {
			calls = append(calls, "tool.request."+tool, "tool.call."+zone+"."+tool, "tool.request."+tool+".child-1",
				"event.tool.request."+tool, "agent.generator.tool.request."+tool)
		}
	}
	tries := 0
	for _, role := range rolesExcept("broker") {
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
				p.pub(concreteSubject(s), c, "", requestBody(s))
				tries++
			}
		}
		h.flush(p)
	}
	h.runUntilIdle()
	h.received = append(h.received, received{}) // keep what was heard while the control runs
	h.publish(request("generator", "response.generation"))
	h.awaitReceived("user response.generation", replyTo("generator"))
	if got := toTool(); len(got) > 0 {
		t.Errorf("with no broker alive, heard by tools: %v", got)
	}
	t.Logf("%d attempts", tries)

	// The control: the broker comes, and the very same request reaches the tool.
	p := h.dial("broker")
	p.sub("agent.*.tool.request.>")
	p.sub("_INBOX.>")
	h.flush(p)
	h.clients["broker"], h.roles = p, append(h.roles, "broker")
	h.forgetReceived()
	h.publish(request("generator", "tool.request.get_datetime"))
	h.awaitReceived("broker agent.generator.tool.request.get_datetime", "tool_get_datetime tool.request.get_datetime",
		replyTo("generator"))
}

// TestConnectRequiresProvenKey shows that a connection needs a key of this installation and a signature by it.
func TestConnectRequiresProvenKey(t *testing.T) {
	t.Parallel()
	b, other := startBus(t), startBus(t)
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
		"another's public key": mismatchedKey{seed(b.Keys, "generator"), seed(b.Keys, "user")},
		"no signature":         unsigned{seed(b.Keys, "user")},
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

// TestConfWithForeignTokenIsRejected: a configuration in which one account claims another's place in a subject is no
// configuration. Without that, one wrong line in nats.conf would be one forged identity.
func TestConfWithForeignTokenIsRejected(t *testing.T) {
	t.Parallel()
	l := subjects.Table()
	certificate, err := bus.EnsureCertificate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var vars strings.Builder
	for _, v := range l.EnvVars() {
		value := "127.0.0.1:-1"
		switch {
		case v == "CONCLAVE_STORE":
			value = t.TempDir()
		case v == "CONCLAVE_SYNC":
			value = "10s"
		case v == "CONCLAVE_TLS_CERT":
			value = certificate.Cert
		case v == "CONCLAVE_TLS_KEY":
			value = certificate.Key
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
		{
			`account: broker, subject: "agent.committee.tool.request.>"`,
			`account: broker, subject: "agent.generator.tool.request.>"`,
		},
		{
			`account: broker, subject: "agent.committee.tool.output.*"`,
			`account: broker, subject: "agent.generator.tool.output.*"`,
		},
		{
			`account: broker, subject: "ctl.gateway.approval.decision.*"`,
			`account: broker, subject: "ctl.user.approval.decision.*"`,
		},
		{`account: CORE, subject: "from.memory.memory.stored"`, `account: CORE, subject: "from.critic.memory.stored"`},
		{`account: AUDIT, subject: "append.memory.*"`, `account: AUDIT, subject: "append.broker.*"`},
		{`account: AUDIT, subject: "append.memory.*"`, `account: AUDIT, subject: "append.*.*"`},
		{`account: model, subject: "agent.critic.model.>"`, `account: model, subject: "agent.generator.model.>"`},
		{`account: secrets, subject: "secret.get" }`, `account: secrets, subject: "secret.get" } }` + "\n" +
			`{ service: { account: secrets, subject: "ctl.user.config.set" }, to: "config.x"`},
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
	foreign := strings.Replace(l.Conf(), `{ service: { account: AUDIT, subject: "append.memory.*" }`,
		`{ service: { account: secrets, subject: "secret.get" } }`+"\n"+
			`{ service: { account: AUDIT, subject: "append.memory.*" }`, 1)
	if foreign == l.Conf() || load(foreign) == nil {
		t.Error("loads with memory reaching the secrets")
	}
}

// mismatchedKey shows one key and signs with another.
type mismatchedKey struct {
	nkeys.KeyPair
	shown nkeys.KeyPair
}

func (b mismatchedKey) PublicKey() (string, error) { return b.shown.PublicKey() }

// unsigned signs nothing.
type unsigned struct{ nkeys.KeyPair }

func (unsigned) Sign([]byte) ([]byte, error) { return make([]byte, 64), nil }
