package bus_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/subjects"
)

// concreteSubject returns a subject that matches pattern.
func concreteSubject(pattern string) string {
	parts := strings.Split(pattern, ".")
	for i, p := range parts {
		if p == "*" || p == ">" {
			parts[i] = "x1"
		}
	}
	switch {
	case parts[0] == "$SRV" && parts[1] == "x1":
		parts[1] = "PING"
	case len(parts) == 3 && parts[0] == "disco":
		parts[2] = "PING." + strings.TrimPrefix(parts[1], "tool_")
	case len(parts) == 4 && parts[0] == "disco":
		parts[2] = "PING"
	}
	return strings.Join(parts, ".")
}

// requestBody is a request body to which the JetStream API replies at once.
func requestBody(subject string) string {
	switch {
	case strings.Contains(subject, "CONSUMER.MSG.NEXT"):
		return `{"batch":1,"no_wait":true}`
	case strings.Contains(subject, "MSG.GET"):
		return `{"seq":1}`
	case strings.Contains(subject, "DIRECT.GET.") && strings.Count(subject, ".") == 4:
		return `{"seq":1}`
	case strings.Contains(subject, ".API."):
		return ""
	}
	return "{}"
}

// resolveEdge returns the subject that an account publishes on an edge, and the one that the owner receives.
func resolveEdge(e subjects.Edge, who string) (local, remote string) {
	rp, lp := e.Resolve(who)
	local = concreteSubject(lp)
	if e.Permission != nil {
		local = concreteSubject(e.Permission[0])
	}
	tokens, _ := subjects.Match(lp, local)
	return local, fillWildcards(rp, tokens)
}

// fillWildcards replaces the wildcards by tokens.
func fillWildcards(pattern string, tokens []string) string {
	parts := strings.Split(pattern, ".")
	for i, p := range parts {
		switch {
		case p == "*" && len(tokens) > 0:
			parts[i], tokens = tokens[0], tokens[1:]
		case p == ">":
			parts[i] = strings.Join(tokens, ".")
		}
	}
	return strings.Join(parts, ".")
}

// allSubjects lists every subject with a meaning: each edge at both ends, the administration of every stream under
// every prefix, and the inbox of every role.
func allSubjects(l subjects.Layout) (out []string) {
	for _, e := range l.Edges {
		for _, who := range e.Callers {
			local, remote := resolveEdge(e, who)
			out = append(out, local, remote)
		}
	}
	for _, prefix := range []string{"$JS.API", "core.API", "auditlog.API", "$JS.hub.API"} {
		for _, s := range l.Streams {
			for _, verb := range []string{
				"CREATE", "UPDATE", "DELETE", "PURGE", "INFO", "SNAPSHOT", "RESTORE",
				"MSG.GET", "MSG.DELETE",
			} {
				out = append(out, prefix+".STREAM."+verb+"."+s.Name)
			}
			out = append(out, prefix+".CONSUMER.CREATE."+s.Name+".x1", prefix+".CONSUMER.DURABLE.CREATE."+s.Name+".x1",
				prefix+".CONSUMER.NAMES."+s.Name, prefix+".DIRECT.GET."+s.Name)
		}
		for _, p := range l.Consumers {
			out = append(out, prefix+".CONSUMER.DELETE."+p.Stream+"."+p.Name, prefix+".CONSUMER.PAUSE."+p.Stream+"."+
				p.Name)
		}
		out = append(out, prefix+".ACCOUNT.PURGE.AUDIT", prefix+".ACCOUNT.PURGE.CORE", prefix+".META.LEADER.STEPDOWN")
	}
	for _, s := range l.Streams {
		for _, subject := range s.Subjects {
			out = append(out, concreteSubject(subject), "core.API."+concreteSubject(subject))
		}
	}
	out = append(out, "$SYS.REQ.SERVER.PING.KICK", "$SYS.REQ.SERVER.x1.KICK", "$SYS.REQ.SERVER.x1.RELOAD",
		"$SYS.REQ.SERVER.x1.LDM", "$SYS.REQ.ACCOUNT.AUDIT.CONNZ", "$SYS.REQ.CLAIMS.UPDATE",
		"$SYS.REQ.ACCOUNT.PING.CONNZ")
	for _, a := range l.Accounts {
		for _, u := range a.Users {
			out = append(out, "_INBOX."+u.Role+".x1")
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// TestSweepEveryEdgeWorks walks every role through every edge it has. Each must work: the owner receives the subject
// with the account of the caller, or JetStream replies. The other sweeps show that all other subjects are denied.
func TestSweepEveryEdgeWorks(t *testing.T) {
	if os.Getenv("CONCLAVE_SHORT") != "" {
		t.Skip("CONCLAVE_SHORT is set")
	}
	t.Parallel()
	h := newHarness(t)
	edges := 0
	for _, a := range h.table.Accounts {
		for _, e := range h.table.Edges {
			if !slices.Contains(e.Callers, a.Name) || len(a.Users) == 0 {
				continue
			}
			role := a.Users[0].Role
			h.forgetReceived()
			switch {
			case strings.HasPrefix(e.Remote, "$JS.ACK."), strings.HasPrefix(e.Remote, "$JS.EVENT."):
				continue // an ack of nothing has no effect to see; an advisory needs a message that kept failing
			case e.Kind == subjects.StreamImport && e.Owner == subjects.Core:
				continue // seen below, with the event that makes it
			case e.Kind == subjects.StreamImport:
				remote, local := e.Resolve(a.Name)
				owner, subject := findPublisher(h, e.Owner, remote)
				if owner == "" {
					t.Errorf("%s watches %s of %s, which nobody there may say", a.Name, remote, e.Owner)
					continue
				}
				if v := h.publish(publication{role: owner, subject: subject}); len(v) > 0 {
					t.Errorf("%s may not say %s: %v", owner, subject, v)
				}
				h.awaitReceived(role + " " + local)
			default:
				local, remote := resolveEdge(e, a.Name)
				if v := h.publish(publication{role: role, subject: local, reply: inbox, body: requestBody(local)}); len(
					v) > 0 {
					t.Errorf("%s may not say %s: %v", role, local, v)
					continue
				}
				want := []string{role + " _INBOX.>"}
				if strings.Contains(remote, "CONSUMER.MSG.NEXT") {
					want[0] = role + " >" // a pulled message comes under the subject it was stored with
				}
				if e.Owner != subjects.Core && e.Owner != subjects.Audit {
					i := slices.IndexFunc(h.table.Accounts, func(x subjects.Account) bool { return x.Name == e.Owner })
					owner := h.table.Accounts[i].Users[0].Role
					want = append(want, owner+" "+remote)
				}
				want = append(want, liveReceivers(h.table, remote)...)
				h.awaitReceived(want...)
			}
			edges++
		}
	}
	t.Logf("%d edges work", edges)
}

// findPublisher finds a role of an account that may publish a subject that matches pattern.
func findPublisher(h *harness, account, pattern string) (role, subject string) {
	for _, a := range h.table.Accounts {
		if a.Name != account {
			continue
		}
		for _, u := range a.Users {
			for _, p := range u.Pub {
				if !subjects.Overlap(p, pattern) {
					continue
				}
				// Take the more specific token of the two at each place.
				x, y := strings.Split(p, "."), strings.Split(pattern, ".")
				for i := range min(len(x), len(y)) {
					if x[i] == "*" || x[i] == ">" {
						x[i] = y[i]
					}
				}
				return u.Role, concreteSubject(strings.Join(x, "."))
			}
		}
	}
	return "", ""
}

// liveReceivers lists who receives the live copy of a stored subject: "role subject".
func liveReceivers(l subjects.Layout, stored string) (out []string) {
	live := ""
	if t, ok := subjects.Match("from.*.>", stored); ok {
		live = "live." + strings.Join(t[1:], ".")
	} else if strings.HasPrefix(stored, "query.") && strings.Count(stored, ".") == 1 {
		live = "live." + stored
	}
	if live == "" || strings.HasPrefix(stored, "client.") {
		return nil
	}
	for _, e := range l.Edges {
		if e.Kind != subjects.StreamImport || e.Owner != subjects.Core {
			continue
		}
		if _, ok := subjects.Match(e.Remote, live); ok {
			for _, w := range e.Callers {
				out = append(out, w+" "+strings.TrimPrefix(live, "live."))
			}
		}
	}
	return out
}

// TestSweepForbiddenPublishIsDenied publishes as every role on every subject that the table does not allow it. The
// server denies each, no role receives a message, no stream changes.
func TestSweepForbiddenPublishIsDenied(t *testing.T) {
	if os.Getenv("CONCLAVE_SHORT") != "" {
		t.Skip("CONCLAVE_SHORT is set")
	}
	t.Parallel()
	h := newHarness(t)
	all := allSubjects(h.table)
	tries := 0
	for _, role := range h.roles {
		t.Run(role, func(t *testing.T) {
			before := h.streamStates()
			h.forgetReceived()
			p := h.dial(role)
			want := 0
			for _, s := range all {
				if h.mayPublish(role, s) {
					continue
				}
				want++
				p.pub(s, "_INBOX."+role+".x1", "", requestBody(s))
			}
			h.flush(p)
			h.runUntilIdle()
			if got := len(p.takeErrors()); got != want {
				t.Errorf("%d of %d forbidden subjects refused", got, want)
			}
			if len(h.received) > 0 {
				t.Errorf("heard: %v", h.received)
			}
			if got := h.addedMessages(before); len(got) > 0 {
				t.Errorf("stored: %v", got)
			}
			tries += want
		})
	}
	t.Logf("%d attempts", tries)
	h.checkFinalState()
}

// TestSweepForbiddenSubscribeIsDenied subscribes as every role to every subject that the table does not allow it. The
// server denies each, and when all roles then publish what they may, no denied subscription receives a message.
func TestSweepForbiddenSubscribeIsDenied(t *testing.T) {
	if os.Getenv("CONCLAVE_SHORT") != "" {
		t.Skip("CONCLAVE_SHORT is set")
	}
	t.Parallel()
	h := newHarness(t)
	all := allSubjects(h.table)
	spies := map[string]*rawClient{}
	for _, a := range h.table.Accounts {
		for _, u := range a.Users {
			if u.Boot || slices.Contains(u.Sub, ">") {
				continue // the user may listen to all that is imported, and nothing else is there to hear
			}
			_, may := allowedSubjects(h.table, a, u)
			p := h.dial(u.Role)
			want := 0
			for _, s := range append([]string{
				">", "*.>", "_R_.>", "_INBOX.*.>", "$SYS.>", "$JS.>", "tool.>", "from.>",
				"live.>", "audit.>", "ctl.>", "agent.>",
			}, all...) {
				if slices.ContainsFunc(may, func(m string) bool { return covers(m, s) }) {
					continue
				}
				want++
				p.sub(s)
			}
			h.flush(p)
			if got := len(p.takeErrors()); got != want {
				t.Errorf("%s: %d of %d forbidden subscriptions refused", u.Role, got, want)
			}
			spies[u.Role] = p
		}
	}
	// Now all roles publish what they may.
	for _, role := range h.roles {
		p := h.dial(role)
		for _, s := range h.pubs[role] {
			if !strings.HasPrefix(s, "_R_.") {
				p.pub(concreteSubject(s), "_INBOX."+role+".x1", "", requestBody(s))
			}
		}
		h.flush(p)
	}
	h.forgetReceived()
	h.publish(publication{role: "generator", subject: "response.generation"})
	h.awaitReceived("user response.generation", "gateway response.generation")
	for role, p := range spies {
		h.flush(p)
		if got := p.takeMessages(); len(got) > 0 {
			t.Errorf("%s heard by a refused subscription: %v", role, got)
		}
	}
}

// covers reports whether every subject of pattern b is one of pattern a.
func covers(a, b string) bool {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i, p := range x {
		switch {
		case p == ">":
			return len(y) > i
		case i >= len(y) || y[i] == ">":
			return false
		case p != "*" && p != y[i]:
			return false
		}
	}
	return len(x) == len(y)
}

// TestSweepForeignReplyStaysInAccount publishes as every role everything it may, with every foreign reply subject. The
// server checks no reply subject, so the responder publishes there: the reply must stay in the account of the
// requester, where that subject leads nowhere.
func TestSweepForeignReplyStaysInAccount(t *testing.T) {
	if os.Getenv("CONCLAVE_SHORT") != "" {
		t.Skip("CONCLAVE_SHORT is set")
	}
	t.Parallel()
	h := newHarness(t)
	targets := []string{
		"tool.request.run_shell", "tool.call.tools.run_shell", "tool.schema.run_shell", "tool.output.run_shell.x1",
		"agent.generator.tool.request.run_shell", "agent.committee.broker.discover", "ctl.user.approval.decision.x1",
		"ctl.user.session.config", "ctl.user.config.set",
		"approval.decision.x1", "session.config", "config.set.broker", "secret.get",
		"from.critic.critique.result", "from.broker.tool.result.x1", "from.user.user.feedback", "critique.result",
		"response.generation", "query.received", "query.session.x1",
		"live.response.generation", "live.reward.event", "response.delta.x1",
		"audit.broker.x1", "audit.AUDIT.genesis", "$JS.API.STREAM.DELETE.AUDIT", "$JS.API.STREAM.PURGE.EVENTS",
		"$JS.API.ACCOUNT.PURGE.AUDIT", "auditlog.API.STREAM.DELETE.AUDIT",
		"$KV.spawns.x1", "core.API.$KV.spawns.x1", "$JS.ACK.EVENTS.memory.x1", "_R_.x1", "_INBOX.user.x1",
		"_INBOX.broker.x1", "_INBOX.tool_run_shell.x1",
	}
	tries := 0
	var late []string // receivers of the role before: a stored event is republished after its acknowledgement
	for _, role := range h.roles {
		t.Run(role, func(t *testing.T) {
			account := h.table.AccountOf(role)
			p := h.dial(role)
			h.forgetReceived()
			before := h.streamStates()
			var direct, controls []string
			if role == "broker" {
				// An answer inside the broker's account on the subject that it listens to: the naive broker believes
				// itself, and calls the tool as it may anyway.
				direct = append(direct, "tool_run_shell tool.request.run_shell")
			}
			for _, s := range h.pubs[role] {
				if strings.HasPrefix(s, "_R_.") || strings.HasPrefix(s, "$JS.ACK.") {
					continue
				}
				subject := concreteSubject(s)
				direct = append(direct, expectedReceivers(h, account, subject)...)
				for _, reply := range targets {
					if !leavesAccount(h, account, reply) { // else it is an own right, whichever way it is used
						p.pub(subject, reply, "", requestBody(subject))
						tries++
					}
				}
				// The control: the same with a proper reply, after all of them.
				if v := h.publishOn(p, publication{
					role: role, subject: subject, reply: inbox,
					body: requestBody(subject),
				}); len(slices.DeleteFunc(v, isReservedReply)) > 0 {
					t.Fatalf("refused %s: %v", subject, v)
				}
				// a full consumer does not answer
				if (role == "sys" && !strings.Contains(subject, "x1") || leavesAccount(h, account, subject)) &&
					!strings.Contains(subject, "CONSUMER.MSG.NEXT") {
					controls = append(controls, fmt.Sprintf("%s _INBOX.%s.%d", role, role, h.lastInbox))
				}
			}
			h.awaitReceived(controls...)
			if strings.HasSuffix(role, "_in") {
				h.listenFor(150 * time.Millisecond) // what it pulled is not ordered behind anything
			}
			if f := h.unexpectedReceivers(role, h.received, append(late, direct...)...); len(f) > 0 {
				t.Errorf("reached by a foreign reply subject: %v", f)
			}
			late = direct
			for _, added := range h.addedMessages(before) {
				if name, kept, ok := strings.Cut(added, " "); ok && !strings.HasPrefix(kept, "from."+account+".") &&
					!strings.HasPrefix(kept, "audit."+account+".") {
					t.Errorf("%s holds %s", name, kept)
				}
			}
		})
	}
	t.Logf("%d attempts", tries)
	h.checkFinalState()
}

// isReservedReply reports whether the server rejected a reply subject that it reserves.
func isReservedReply(complaint string) bool {
	return strings.Contains(complaint, `Reply of "_R_.`) || strings.Contains(complaint, `Reply of "$JS.ACK.`)
}

// leavesAccount reports whether a message on subject inside an account would leave it by one of its own imports.
func leavesAccount(h *harness, account, subject string) bool {
	return slices.ContainsFunc(h.table.Edges, func(e subjects.Edge) bool {
		if e.Kind != subjects.ServiceImport || !slices.Contains(e.Callers, account) {
			return false
		}
		_, local := e.Resolve(account)
		_, ok := subjects.Match(local, subject)
		return ok
	})
}

// expectedReceivers lists who receives what, "role subject", when an account publishes subject: the owner, the
// importers of a live copy, and the importers from the account itself.
func expectedReceivers(h *harness, account, subject string) (out []string) {
	for _, e := range h.table.Edges {
		if e.Kind == subjects.ServiceImport && slices.Contains(e.Callers, account) {
			remote, local := e.Resolve(account)
			tokens, ok := subjects.Match(local, subject)
			if !ok {
				continue
			}
			remote = fillWildcards(remote, tokens)
			for _, r := range h.roles {
				if h.table.AccountOf(r) == e.Owner {
					out = append(out, r+" "+remote)
				}
			}
			out = append(out, liveReceivers(h.table, remote)...)
		}
		if e.Kind == subjects.StreamImport && e.Owner == account {
			for _, w := range e.Callers {
				remote, local := e.Resolve(w)
				if _, ok := subjects.Match(remote, subject); ok {
					out = append(out, w+" "+local)
				}
			}
		}
	}
	return out
}

// checkFinalState waits for effects that are not ordered behind a message, such as those of JetStream API workers, and
// checks that no stream holds a subject that its author may not publish.
func (h *harness) checkFinalState() {
	h.t.Helper()
	h.runUntilIdle()
	before := h.streamStates()
	h.forgetReceived()
	h.listenFor(250 * time.Millisecond)
	if len(h.received) > 0 {
		h.t.Errorf("came late: %v", h.received)
	}
	if got := h.addedMessages(before); len(got) > 0 {
		h.t.Errorf("stored late: %v", got)
	}
	for _, name := range []string{"EVENTS", subjects.Audit} {
		st := h.streamStates()[name]
		if st.First > 1 || st.Msgs != st.Last {
			h.t.Errorf("%s: %d messages from %d to %d", name, st.Msgs, st.First, st.Last)
		}
		for subject := range st.Subjects {
			if err := checkStoredSubject(h.table, name, subject); err != nil {
				h.t.Error(err)
			}
		}
	}
}

// listenFor handles messages for d: for those that no other message must follow.
func (h *harness) listenFor(d time.Duration) {
	h.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		h.waitArrival(time.Until(end))
		h.runUntilIdle()
	}
}

// checkStoredSubject rejects a stored subject for which its author has no edge.
func checkStoredSubject(l subjects.Layout, stream, subject string) error {
	if stream == subjects.Audit && subject == "audit.AUDIT.genesis" {
		return nil
	}
	for _, e := range l.Edges {
		if e.Kind != subjects.ServiceImport || (e.Owner != subjects.Core && e.Owner != subjects.Audit) {
			continue
		}
		for _, w := range e.Callers {
			remote, _ := e.Resolve(w)
			if _, ok := subjects.Match(remote, subject); ok && strings.Contains(remote, "."+w+".") {
				return nil
			}
		}
	}
	return fmt.Errorf("%s holds %s, which nobody may write", stream, subject)
}
