package bus_test

import (
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"conclave/pkg/bus"
	"conclave/subjects"
)

// machineHarness is a harness with a machine that joined, whose server is not ours: every account has a key without
// limits.
type machineHarness struct {
	*harness
	machine subjects.Principal
	others  []subjects.Principal // of the harness
	seeds   bus.Keys
	pin     bus.Pin
	leaf    *server.Server
	clients map[string]*nats.Conn // by account

	mu    sync.Mutex
	heard map[string][]string // by account: subjects that reached the machine
}

func newMachineHarness(t *testing.T) *machineHarness {
	t.Helper()
	h := &machineHarness{harness: newHarness(t), clients: map[string]*nats.Conn{}, heard: map[string][]string{}}
	h.machine, h.seeds = newMachinePrincipal(t, "gpu-box", subjects.MachineActors()...)
	h.pin = hubPin(t, h.b)
	h.others = addPrincipals(t, h.b, runTimePrincipals()...)
	h.apply(h.machine)
	layout, err := subjects.Table().With(append(slices.Clone(h.others), h.machine))
	if err != nil {
		t.Fatal(err)
	}
	h.table = layout
	h.startUnlimited()
	return h
}

// newMachinePrincipal returns a machine with keys for its accounts.
func newMachinePrincipal(t *testing.T, name string, actors ...string) (subjects.Principal, bus.Keys) {
	t.Helper()
	p := subjects.Principal{Name: name, Kind: subjects.MachinePrincipal, Actors: actors, Keys: map[string]string{}}
	seeds := bus.Keys{Dir: filepath.Join(t.TempDir(), "seeds")}
	if _, err := seeds.Ensure(p.Accounts()); err != nil {
		t.Fatal(err)
	}
	for _, a := range p.Accounts() {
		var err error
		if p.Keys[a], err = seeds.Public(a); err != nil {
			t.Fatal(err)
		}
	}
	return p, seeds
}

// hubPin returns the pin of a hub by connecting to it.
func hubPin(t *testing.T, b *bus.Bus) bus.Pin {
	t.Helper()
	c, err := bus.EnsureCertificate(filepath.Join(filepath.Dir(b.Keys.Dir), "tls"))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := c.Load()
	if err != nil {
		t.Fatal(err)
	}
	pin, err := bus.PinOf(pair)
	if err != nil {
		t.Fatal(err)
	}
	return pin
}

func (h *machineHarness) apply(principals ...subjects.Principal) {
	h.t.Helper()
	if err := h.b.Server.Apply(h.parent.Context(), append(slices.Clone(h.others), principals...)); err != nil {
		h.t.Fatal(err)
	}
}

// startUnlimited starts the server of the machine: the accounts of the machine, each with a user that may publish and
// subscribe to everything, and the machine's keys on the links.
func (h *machineHarness) startUnlimited() {
	h.t.Helper()
	var conf strings.Builder
	conf.WriteString("server_name: gpu-box\nlisten: \"127.0.0.1:-1\"\naccounts {\n")
	for _, a := range h.machine.Accounts() {
		fmt.Fprintf(&conf, "  %q: { users: [ { user: %q, password: x } ] }\n", a, a)
	}
	conf.WriteString("}\n")
	opts := &server.Options{NoLog: true, NoSigs: true}
	if err := opts.ProcessConfigString(conf.String()); err != nil {
		h.t.Fatal(err)
	}
	opts.NoLog, opts.NoSigs = true, true
	for _, a := range h.machine.Accounts() {
		kp, err := h.seeds.Seed(a)
		if err != nil {
			h.t.Fatal(err)
		}
		seed, err := kp.Seed()
		if err != nil {
			h.t.Fatal(err)
		}
		opts.LeafNode.Remotes = append(opts.LeafNode.Remotes, &server.RemoteLeafOpts{
			LocalAccount: a, URLs: []*url.URL{{Scheme: "tls", Host: h.b.Server.LeafAddress()}}, Nkey: string(seed),
			TLS: true, TLSHandshakeFirst: true, TLSConfig: h.pin.ClientTLS(),
		})
	}
	ns, err := server.NewServer(opts)
	if err != nil {
		h.t.Fatal(err)
	}
	ns.Start()
	h.leaf = ns
	h.parent.Cleanup(ns.Shutdown)
	for end := time.Now().Add(testTimeout); ns.NumLeafNodes() != len(h.machine.Accounts()); {
		if time.Now().After(end) {
			h.t.Fatalf("%d of %d links", ns.NumLeafNodes(), len(h.machine.Accounts()))
		}
		<-time.After(5 * time.Millisecond)
	}
	for _, a := range h.machine.Accounts() {
		nc, err := nats.Connect(ns.ClientURL(), nats.UserInfo(a, "x"), nats.NoEcho())
		if err != nil {
			h.t.Fatal(err)
		}
		h.parent.Cleanup(nc.Close)
		if _, err := nc.Subscribe(">", func(m *nats.Msg) {
			h.mu.Lock()
			h.heard[a] = append(h.heard[a], m.Subject)
			h.mu.Unlock()
			if strings.HasPrefix(m.Subject, "agent.") || strings.HasPrefix(m.Subject, "tool.request.") &&
				strings.HasPrefix(a, "tools_") || strings.HasPrefix(m.Subject, "witness.") {
				_ = m.Respond([]byte("answer of " + a))
			}
		}); err != nil {
			h.t.Fatal(err)
		}
		if err := nc.Flush(); err != nil {
			h.t.Fatal(err)
		}
		h.clients[a] = nc
	}
	for a := range h.clients { // the subscriptions have reached the hub
		h.settle(a)
	}
}

// user returns the hub's user of an account of the machine.
func (h *machineHarness) user(account string) (subjects.Account, subjects.User) {
	for _, a := range h.table.Accounts {
		if a.Name == account {
			return a, a.Users[slices.IndexFunc(a.Users, func(u subjects.User) bool {
				return u.Key == h.machine.Keys[account]
			})]
		}
	}
	h.t.Fatalf("no account %s", account)
	return subjects.Account{}, subjects.User{}
}

// settle returns when everything that the account published before has reached the hub and was handled there.
func (h *machineHarness) settle(account string) {
	h.t.Helper()
	nc := h.clients[account]
	if err := nc.Flush(); err != nil {
		h.t.Fatal(err)
	}
	for range 2 { // a reply crosses the link after what it replies to
		for end := time.Now().Add(testTimeout); ; {
			err := h.roundTrip(account)
			if err == nil {
				break
			}
			if time.Now().After(end) {
				h.t.Fatalf("%s does not reach the hub: %v", account, err)
			}
			<-time.After(10 * time.Millisecond)
		}
		h.runUntilIdle()
	}
}

// roundTrip sends a message through the link of an account and back, by a right that the account has.
func (h *machineHarness) roundTrip(account string) error {
	hub := map[string][2]string{
		"tools_gpu-box":   {"broker", "tool.call.tools_gpu-box.get_datetime"},
		"model_gpu-box":   {"model", "machine.gpu-box.model.list"},
		"witness_gpu-box": {"auditor", "witness.gpu-box.head"},
	}[account]
	if hub[0] != "" {
		nc, err := h.b.Dial(hub[0], nats.CustomInboxPrefix(checkInbox))
		if err != nil {
			return err
		}
		defer nc.Close()
		_, err = nc.Request(hub[1], nil, time.Second)
		return err
	}
	for _, e := range h.table.Edges {
		_, local := e.Resolve(account)
		if slices.Contains(e.Callers, account) && strings.HasPrefix(e.Remote, "$JS.API.") &&
			strings.Contains(e.Remote, ".INFO.") {
			m, err := h.clients[account].Request(local, nil, time.Second)
			if err == nil && strings.Contains(string(m.Data), "not enabled") {
				err = fmt.Errorf("%s", m.Data)
			}
			return err
		}
	}
	return fmt.Errorf("no subject with a reply")
}

// TestUnlimitedKeysOfMachine gives an attacker the accounts of a machine with unlimited keys. It publishes on every
// subject of the system that the machine may not publish on, as a request, and on every one that it may with foreign
// reply subjects: no role of the hub receives anything beyond the machine's own edges, no stream changes. And while all
// roles of the hub publish what they may, the machine receives only what its actors need: no calls of other tools, no
// audit, no secrets. A machine whose keys were replaced, and a revoked one, is disconnected before Apply returns.
func TestUnlimitedKeysOfMachine(t *testing.T) {
	t.Parallel()
	h := newMachineHarness(t)
	all := allSubjects(h.table)
	foreign := []string{
		"tool.request.run_shell", "tool.call.tools.run_shell", "tool.call.tools_gpu-box.get_datetime",
		"agent.generator.tool.request.run_shell", "ctl.user.approval.decision.x1", "ctl.user.session.config",
		"approval.decision.x1", "secret.get", "from.critic.critique.result", "from.broker.tool.result.x1",
		"live.response.generation", "audit.broker.x1", "audit.AUDIT.genesis",
		"$JS.API.STREAM.DELETE.AUDIT", "$JS.API.ACCOUNT.PURGE.AUDIT", "auditlog.API.STREAM.DELETE.AUDIT",
		"core.API.$KV.spawns.x1", "_INBOX.user.x1", "_INBOX.broker.x1", "principal.change", "ctl.user.principal.change",
	}
	tries := 0
	for _, account := range h.machine.Accounts() {
		a, u := h.user(account)
		pubs, _ := allowedSubjects(h.table, a, u)
		nc := h.clients[account]
		h.forgetReceived()
		before := h.streamStates()
		for _, s := range all {
			if slices.ContainsFunc(pubs, func(p string) bool { _, ok := subjects.Match(p, s); return ok }) {
				continue
			}
			if err := nc.PublishRequest(s, "_INBOX.x1", []byte(requestBody(s))); err != nil {
				t.Fatalf("%s: %v", s, err)
			}
			tries++
		}
		h.settle(account)
		if bad := h.unexpectedReceivers(u.Role, h.received); len(bad) > 0 {
			t.Errorf("%s reached %v", account, bad)
		}
		if got := h.addedMessages(before); len(got) > 0 {
			t.Errorf("%s stored %v", account, got)
		}

		h.forgetReceived()
		before = h.streamStates()
		var direct []string
		for _, p := range pubs {
			if strings.HasPrefix(p, "_R_.") || strings.HasPrefix(p, "$JS.ACK.") || strings.HasPrefix(p, "_INBOX.") {
				continue
			}
			subject := concreteSubject(p)
			direct = append(direct, expectedReceivers(h.harness, account, subject)...)
			for _, reply := range foreign {
				if leavesAccount(h.harness, account, reply) {
					continue
				}
				if err := nc.PublishRequest(subject, reply, []byte(requestBody(subject))); err != nil {
					t.Fatalf("%s: %v", subject, err)
				}
				tries++
			}
		}
		h.settle(account)
		if bad := h.unexpectedReceivers(u.Role, h.received, direct...); len(bad) > 0 {
			t.Errorf("%s reached %v by a foreign reply subject", account, bad)
		}
		for _, added := range h.addedMessages(before) {
			if name, kept, ok := strings.Cut(added, " "); ok && !strings.HasPrefix(kept, "from."+account+".") {
				t.Errorf("%s: %s holds %s", account, name, kept)
			}
		}
	}
	t.Logf("%d attempts", tries)

	h.mu.Lock()
	clear(h.heard)
	h.mu.Unlock()
	for _, role := range h.roles {
		p := h.publisher(role)
		for _, s := range h.pubs[role] {
			if !strings.HasPrefix(s, "_R_.") {
				p.pub(concreteSubject(s), "_INBOX."+role+".x1", "", requestBody(s))
			}
		}
		h.flush(p)
		p.takeErrors()
	}
	h.runUntilIdle()
	for _, account := range h.machine.Accounts() {
		h.settle(account)
		a, u := h.user(account)
		_, subs := allowedSubjects(h.table, a, u)
		h.mu.Lock()
		for _, s := range h.heard[account] {
			// its own right, requested above
			pulled := strings.HasSuffix(account, "_in") &&
				(strings.HasPrefix(s, "turn.") || strings.HasPrefix(s, "from."))
			if !pulled && !slices.ContainsFunc(subs, func(p string) bool { return covers(p, s) }) {
				t.Errorf("%s heard %s", account, s)
			}
		}
		h.mu.Unlock()
	}

	other, _ := newMachinePrincipal(t, "gpu-box", subjects.MachineActors()...)
	for _, c := range []struct {
		name string
		now  []subjects.Principal
	}{{"keys replaced", []subjects.Principal{other}}, {"revoked", nil}} {
		h.apply(h.machine)
		for end := time.Now().Add(testTimeout); h.leaf.NumLeafNodes() != len(h.machine.Accounts()); <-time.After(
			5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d links", h.leaf.NumLeafNodes())
			}
		}
		h.apply(c.now...)
		if links, err := h.b.Server.LeafLinks(); err != nil || len(links) > 0 {
			t.Errorf("%s: still connected: %v %v", c.name, links, err)
		}
		if err := h.roundTrip("tools_gpu-box"); err == nil {
			t.Errorf("%s: the machine still serves", c.name)
		}
	}
}

// TestRevocationAfterFailedReload lets the second of the two reloads of a change fail. The next change that succeeds
// still closes the connections of every key that is not in its list: of the machine that was revoked, and of the new
// key of a rotation that was taken back.
func TestRevocationAfterFailedReload(t *testing.T) {
	t.Parallel()
	b := startBus(t)
	connected := func() int {
		links, err := b.Server.LeafLinks()
		if err != nil {
			t.Fatal(err)
		}
		return len(links)
	}
	connect := func(p subjects.Principal, seeds bus.Keys) *bus.Server {
		t.Helper()
		roles, err := bus.LeafRoles(p)
		if err != nil {
			t.Fatal(err)
		}
		keys := bus.Keys{Dir: filepath.Join(t.TempDir(), "keys")}
		if _, err := keys.Ensure(roles); err != nil {
			t.Fatal(err)
		}
		s, err := bus.StartLeaf(bus.LeafConfig{
			Machine: p, Address: b.Server.LeafAddress(), Pin: hubPin(t, b),
			Seeds: seeds, Store: filepath.Join(t.TempDir(), "jetstream"),
		}, keys, nil)
		if err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(testTimeout); connected() == 0; <-time.After(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the machine does not connect")
			}
		}
		return s
	}
	// failSecond makes the second reload of the next change fail.
	failSecond := func(list ...subjects.Principal) {
		t.Helper()
		reloads := 0
		b.Server.EditConf(func(conf string) string {
			if reloads++; reloads == 2 {
				return conf + "\nunknown_setting: 1\n"
			}
			return conf
		})
		if err := b.Server.Apply(t.Context(), list); err == nil || reloads != 2 {
			t.Fatalf("the second of %d reloads failed, and Apply returned %v", reloads, err)
		}
		b.Server.EditConf(nil)
	}
	apply := func(list ...subjects.Principal) {
		t.Helper()
		if err := b.Server.Apply(t.Context(), list); err != nil {
			t.Fatal(err)
		}
	}
	box, seeds := newMachinePrincipal(t, "gpu-box", "get_datetime")
	apply(box)
	leaf := connect(box, seeds)
	failSecond()
	apply()
	if n := connected(); n > 0 {
		t.Errorf("%d connections of a revoked machine", n)
	}
	leaf.Stop(t.Context())

	apply(box)
	rotated, newSeeds := newMachinePrincipal(t, "gpu-box", "get_datetime")
	failSecond(rotated)
	leaf = connect(rotated, newSeeds) // the first reload succeeded
	defer leaf.Stop(t.Context())
	apply(box)
	if n := connected(); n > 0 {
		t.Errorf("%d connections with a key that is not in the list", n)
	}
}
