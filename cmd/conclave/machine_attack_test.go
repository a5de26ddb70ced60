package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/pkg/audit"
	"conclave/pkg/bus"
	"conclave/pkg/client"
	"conclave/pkg/machine"
)

// searchQuestion is a question that the model answers with the tool web_search, which only the machine runs.
const searchQuestion = "search the web for red pandas"

// callTool asks a question for which the hub calls the tool of the machine. The call is in the hub's audit log.
func (h *linkHarness) callTool() {
	h.t.Helper()
	for end := time.Now().Add(time.Minute); ; { // until the machine has announced the tool
		query, err := h.user.Ask(h.t.Context(), client.Question{Session: "search", Text: "Please " + searchQuestion +
			"."})
		if err != nil {
			h.t.Fatal(err)
		}
		q := &linkQuestion{Query: query, h: h}
		q.until("the answer ends", func() bool { return q.end != nil })
		query.Close()
		if q.end.Error == nil && len(q.end.ToolCalls) == 1 && strings.Contains(q.end.Answer, "Found by gpu-box") {
			break
		}
		if time.Now().After(end) {
			h.t.Fatalf("the machine's tool did not serve the question: %+v", q.end)
		}
	}
	if all := h.auditActions(); !slices.Contains(all, "generator tool.call web_search ok") {
		h.t.Errorf("the call is not in the audit log: %q", all)
	}
}

// auditActions lists the records of the hub's audit log.
func (h *linkHarness) auditActions() (all []string) {
	h.t.Helper()
	src, err := bus.NewAuditReader(h.hub.dial(h.url, "auditor")).ReadAll(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	for m, err := range src.Messages {
		if err != nil {
			h.t.Fatal(err)
		}
		batch, err := audit.DecodeBatch(m.Data)
		if err != nil {
			h.t.Fatal(err)
		}
		for _, d := range batch {
			all = append(all, fmt.Sprintf("%s %s %s %s", d.Record.AgentID, d.Record.Action, d.Record.Tool,
				d.Record.Status))
		}
	}
	return all
}

// attackHub replaces the machine's program by a nats-server with the machine's keys and a user without limits in each
// of its accounts. From there it calls tools of the hub, reads the audit log and secrets and speaks as other actors:
// nothing of that is received, answered or recorded. The same requests by those who may send them are answered.
func (h *linkHarness) attackHub() {
	h.t.Helper()
	h.joined.kill()
	home := bus.Home{Data: h.box.data}
	state, err := machine.ReadState(home)
	if err != nil {
		h.t.Fatal(err)
	}
	leaf, err := state.LeafConfig(home)
	if err != nil {
		h.t.Fatal(err)
	}
	accounts := leaf.Machine.Accounts()
	url := h.startAttacker(leaf, accounts)
	var mu sync.Mutex
	heard := map[string]bool{}
	attacker := map[string]*nats.Conn{}
	for _, a := range accounts {
		nc, err := nats.Connect(url, nats.UserInfo(a, "x"), nats.NoEcho(), nats.SetCustomDialer(h.box.host))
		if err != nil {
			h.t.Fatal(err)
		}
		h.t.Cleanup(nc.Close)
		if _, err := nc.Subscribe(">", func(m *nats.Msg) {
			if m.Header.Get("Status") == "503" { // no responders
				return
			}
			mu.Lock()
			defer mu.Unlock()
			heard[a+" "+m.Subject] = true
			_ = m.Respond([]byte("attacker"))
		}); err != nil {
			h.t.Fatal(err)
		}
		if err := nc.Flush(); err != nil {
			h.t.Fatal(err)
		}
		attacker[a] = nc
	}
	// settle waits until the hub has reached the attacker in each account, by its rights: what was sent before has
	// arrived.
	settle := func() {
		h.t.Helper()
		for role, subject := range map[string]string{
			"broker": "tool.call.tools_gpu-box.web_search",
			"model":  "machine.gpu-box.model.list",
		} {
			nc := h.hub.dial(h.url, role)
			for end := time.Now().Add(time.Minute); ; {
				m, err := nc.Request(subject, nil, time.Second)
				if err == nil && string(m.Data) == "attacker" {
					break
				}
				if time.Now().After(end) {
					h.t.Fatalf("the hub does not reach the attacker as %s: %v", role, err)
				}
			}
		}
	}
	settle()
	events := map[string]bool{} // that the hub's user and auditor see
	user := h.hub.dial(h.url, "user")
	for _, subject := range []string{"response.>", "critique.>", "tool.result.>", "approval.>"} {
		if _, err := user.Subscribe(subject, func(m *nats.Msg) {
			mu.Lock()
			defer mu.Unlock()
			events[m.Subject] = true
		}); err != nil {
			h.t.Fatal(err)
		}
	}
	if err := user.Flush(); err != nil {
		h.t.Fatal(err)
	}
	before := h.auditActions()
	mu.Lock()
	clear(heard)
	mu.Unlock()
	attempts := []string{
		"tool.request.get_datetime", "agent.generator.tool.request.get_datetime",
		"agent.operator.tool.request.get_datetime", "tool.call.tools.get_datetime", "ctl.user.approval.decision.x1",
		"secret.get", "agent.broker.secret.get", "$JS.API.STREAM.INFO.AUDIT", "$JS.API.STREAM.MSG.GET.AUDIT",
		"$JS.API.DIRECT.GET.AUDIT.audit.broker", "auditlog.API.STREAM.INFO.AUDIT",
		"$JS.API.STREAM.PURGE.AUDIT", "audit.broker", "audit.broker.x1", "from.broker.tool.result.web_search",
		"from.critic.critique.result", "from.generator.response.generation",
		"response.generation", "query.received", "agent.user.query.received", "principal.change",
		"ctl.user.principal.change", "agent.generator.model.chat", "model.chat", "machine.other.model.run",
	}
	for _, a := range accounts {
		for _, subject := range attempts {
			if err := attacker[a].PublishRequest(subject, "_INBOX.attack."+subject,
				[]byte(`{"timezone":"UTC"}`)); err != nil {
				h.t.Fatal(err)
			}
		}
		if err := attacker[a].Flush(); err != nil {
			h.t.Fatal(err)
		}
	}
	settle()
	if err := user.Flush(); err != nil {
		h.t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for s := range heard {
		if s != "tools_gpu-box tool.request.web_search" && !strings.HasPrefix(s, "model_gpu-box agent.model.model.") {
			h.t.Errorf("the attacker received %s", s)
		}
	}
	if len(events) > 0 {
		h.t.Errorf("the hub's user received %v", events)
	}
	for _, r := range h.auditActions() { // calls of models by the hub itself may end meanwhile
		if i := slices.Index(before, r); i >= 0 {
			before = slices.Delete(before, i, i+1)
		} else if !strings.Contains(r, " model.") {
			h.t.Errorf("the audit log has a new record: %s", r)
		}
	}
	operator := h.hub.dial(h.url, "operator")
	if m, err := operator.Request("tool.request.get_datetime", []byte(`{}`), time.Minute); err != nil ||
		len(m.Data) == 0 {
		h.t.Errorf("the operator's own request: %v", err)
	}
}

// startAttacker starts a nats-server on the machine's host that connects to the hub with the machine's keys, and
// returns its URL there.
func (h *linkHarness) startAttacker(leaf bus.LeafConfig, accounts []string) string {
	h.t.Helper()
	var users, remotes strings.Builder
	for _, a := range accounts {
		kp, err := leaf.Seeds.Seed(a)
		if err != nil {
			h.t.Fatal(err)
		}
		seed, err := kp.Seed()
		if err != nil {
			h.t.Fatal(err)
		}
		fmt.Fprintf(&users, "  %q: { users: [ { user: %q, password: x } ] }\n", a, a)
		fmt.Fprintf(&remotes, "  { url: \"tls://%s\", account: %q, nkey: %s, tls: { insecure: true, handshake_first: "+
			"true } }\n", leaf.Address, a, seed)
	}
	conf := filepath.Join(h.t.TempDir(), "attacker.conf")
	if err := os.WriteFile(conf, []byte("server_name: gpu-box\nlisten: \"127.0.0.1:-1\"\naccounts {\n"+users.String()+
		"}\nleafnodes { remotes: [\n"+remotes.String()+"] }\n"), 0o600); err != nil {
		h.t.Fatal(err)
	}
	server := h.box.beginProgram("nats-server", "-c", conf)
	line := h.box.must(server.stderr, `Listening for client connections on `)
	_, address, _ := strings.Cut(strings.TrimSpace(line), "connections on ")
	h.box.must(server.stderr, `Server is ready`)
	return "nats://" + address
}
