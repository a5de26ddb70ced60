package bus_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// runTimePrincipals returns a tool and a client without keys.
func runTimePrincipals() []subjects.Principal {
	return []subjects.Principal{
		{Name: "weather", Kind: subjects.ToolPrincipal, Tools: []string{"forecast", "tides"}},
		{Name: "my-phone", Kind: subjects.ClientPrincipal},
	}
}

// addPrincipals makes the keys of principals, applies them as the whole list and returns them with their public keys.
func addPrincipals(t testing.TB, b *bus.Bus, ps ...subjects.Principal) []subjects.Principal {
	t.Helper()
	for i, p := range ps {
		ps[i].Keys = map[string]string{}
		for _, a := range p.Accounts() {
			if _, err := b.Keys.Ensure([]string{a}); err != nil {
				t.Fatal(err)
			}
			key, err := b.Keys.Public(a)
			if err != nil {
				t.Fatal(err)
			}
			ps[i].Keys[a] = key
		}
	}
	if err := b.Server.Apply(t.Context(), ps); err != nil {
		t.Fatal(err)
	}
	return ps
}

// connectClosing connects a role without reconnects, and returns a channel that is closed with the connection.
func connectClosing(t *testing.T, b *bus.Bus, role string) (*nats.Conn, <-chan struct{}) {
	t.Helper()
	closed := make(chan struct{})
	nc := bustest.Dial(t, b, role, nats.NoReconnect(), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	return nc, closed
}

// serveEcho answers requests on a subject with the role's name.
func serveEcho(t *testing.T, nc *nats.Conn, subject, reply string) {
	t.Helper()
	if _, err := nc.Subscribe(subject, func(m *nats.Msg) { _ = m.Respond([]byte(reply)) }); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
}

// TestPrincipalsAtRunTime adds, rotates and revokes principals under a running server.
func TestPrincipalsAtRunTime(t *testing.T) {
	t.Parallel()
	b := startBus(t)
	broker, err := b.Dial("broker", nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
		t.Errorf("the broker was disconnected: %v", err)
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { broker.SetDisconnectErrHandler(nil); broker.Close() })
	if _, err := b.Keys.Ensure([]string{"weather"}); err != nil {
		t.Fatal(err)
	}
	if nc, err := b.Dial("weather"); !errors.Is(err, bus.ErrKeyRejected) {
		nc.Close()
		t.Fatalf("a key before it is added: %v", err)
	}

	addPrincipals(t, b, runTimePrincipals()...)
	weather, weatherClosed := connectClosing(t, b, "weather")
	serveEcho(t, weather, "tool.request.forecast", "sun")
	call := func(subject string) (string, error) {
		m, err := broker.Request(subject, []byte("{}"), testTimeout)
		if err != nil {
			return "", err
		}
		return string(m.Data), nil
	}
	if got, err := call("tool.call.weather.forecast"); got != "sun" {
		t.Errorf("the broker's call of an added tool: %q, %v", got, err)
	}
	gateway := bustest.Dial(t, b, "gateway")
	serveEcho(t, gateway, "client.*.query.ask", "an answer")
	phone, phoneClosed := connectClosing(t, b, "my-phone")
	if m, err := phone.Request("query.ask", []byte("hi"), testTimeout); err != nil || string(m.Data) != "an answer" {
		t.Errorf("a question of an added client: %v", err)
	}

	// Rotate: the old key is closed and rejected, the new one works.
	if err := os.Remove(b.Keys.Path("weather")); err != nil {
		t.Fatal(err)
	}
	ps := addPrincipals(t, b, runTimePrincipals()...)
	await(t, weatherClosed, "the connection of a rotated key")
	weather, weatherClosed = connectClosing(t, b, "weather")
	serveEcho(t, weather, "tool.request.forecast", "rain")
	if got, err := call("tool.call.weather.forecast"); got != "rain" {
		t.Errorf("after a rotation: %q, %v", got, err)
	}
	select {
	case <-phoneClosed:
		t.Error("the rotation of one closed another")
	default:
	}

	// A list that breaks a rule changes nothing.
	bad := append(slices.Clone(ps), subjects.Principal{
		Name: "broker", Kind: subjects.ClientPrincipal,
		Keys: map[string]string{"broker": ps[0].Keys["weather"]},
	})
	if err := b.Server.Apply(t.Context(), bad); !errors.Is(err, subjects.ErrPrincipal) {
		t.Errorf("a list that breaks a rule: %v", err)
	}
	user, err := b.Keys.Public("user")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Server.Apply(t.Context(),
		[]subjects.Principal{{
			Name: "x", Kind: subjects.ClientPrincipal,
			Keys: map[string]string{"x": user},
		}}); !errors.Is(err, subjects.ErrPrincipal) {
		t.Errorf("the key of the user as a principal's: %v", err)
	}
	if got, err := call("tool.call.weather.forecast"); got != "rain" {
		t.Errorf("after a rejected list: %q, %v", got, err)
	}

	// Revoke: the live connection is closed, the key is rejected, and the call has no responder.
	if err := b.Server.Apply(t.Context(), ps[1:]); err != nil {
		t.Fatal(err)
	}
	await(t, weatherClosed, "the connection of a revoked principal")
	if nc, err := b.Dial("weather"); !errors.Is(err, bus.ErrKeyRejected) {
		nc.Close()
		t.Errorf("a revoked key: %v", err)
	}
	if m, err := phone.Request("query.ask", []byte("hi"), testTimeout); err != nil || string(m.Data) != "an answer" {
		t.Errorf("the other one after a revocation: %v", err)
	}

	// The list outlives a restart of the server.
	broker.SetDisconnectErrHandler(nil)
	if err := b.Server.Restart(); err != nil {
		t.Fatal(err)
	}
	again, err := b.Dial("my-phone")
	if err != nil {
		t.Fatalf("after a restart: %v", err)
	}
	again.Close()
}

// await waits for a channel to be closed.
func await(t *testing.T, ch <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(testTimeout):
		t.Fatalf("%s did not end", what)
	}
}

// TestCallsSurviveReload shows that neither requests in flight nor new ones are lost while principals are added.
func TestCallsSurviveReload(t *testing.T) {
	t.Parallel()
	b := startBus(t)
	dial := func(role string) *nats.Conn {
		return bustest.Dial(t, b, role)
	}
	clock, held := dial("tool_get_datetime"), make(chan *nats.Msg, 200)
	serveEcho(t, clock, "tool.request.get_datetime", "noon")
	search := dial("tool_web_search")
	if _, err := search.Subscribe("tool.request.web_search", func(m *nats.Msg) { held <- m }); err != nil {
		t.Fatal(err)
	}
	if err := search.Flush(); err != nil {
		t.Fatal(err)
	}
	out, err := actor.NewOut(dial("broker"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	var calls sync.WaitGroup
	request := func(subject, want string) {
		got, _, err := out.Request(ctx, subjects.Spec{Name: subject}, []byte("{}"))
		if err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", subject, got, err)
		}
	}
	const inFlight = 50
	for range inFlight {
		calls.Go(func() { request("tool.call.tools.web_search", "found") })
	}
	var waiting []*nats.Msg
	for range inFlight {
		waiting = append(waiting, <-held)
	}
	stop, flowing := make(chan struct{}), make(chan struct{}, 4)
	for range 4 {
		calls.Go(func() {
			for {
				request("tool.call.tools.get_datetime", "noon")
				select {
				case flowing <- struct{}{}:
				case <-stop:
					return
				}
			}
		})
	}
	var all []subjects.Principal
	made := 0
	for i := range 5 {
		for range 40 { // calls before, during and after each reload
			<-flowing
			made++
		}
		p := addPrincipals(t, b,
			append(all, subjects.Principal{
				Name: fmt.Sprintf("tool-%d", i), Kind: subjects.ToolPrincipal,
				Tools: []string{fmt.Sprintf("x%d", i)},
			})...)
		all = p
	}
	for _, m := range waiting {
		if err := m.Respond([]byte("found")); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	calls.Wait()
	t.Logf("%d calls over 5 additions, %d in flight", made, inFlight)
}

// TestReloadImportsRunningAccounts checks that no import of a running account refers to an account that the server does
// not run yet, at any step of a reload: a subscription meanwhile would make the server panic.
func TestReloadImportsRunningAccounts(t *testing.T) {
	t.Parallel()
	b := startBus(t)
	var imports, steps int
	b.Server.BeforeReload(func(ns *server.Server, opts *server.Options) {
		steps++
		for _, a := range opts.Accounts {
			streams := reflect.ValueOf(a).Elem().FieldByName("imports").FieldByName("streams")
			_, err := ns.LookupAccount(a.Name)
			if err != nil {
				continue // a new account has no clients
			}
			for i := range streams.Len() {
				owner := streams.Index(i).Elem().FieldByName("acc")
				name := owner.Elem().FieldByName("Name").String()
				if running, err := ns.LookupAccount(name); err != nil ||
					owner.UnsafePointer() != unsafe.Pointer(running) {
					t.Errorf("step %d: %s imports from %s, which does not run", steps, a.Name, name)
				}
				imports++
			}
		}
	})
	ps := addPrincipals(t, b, runTimePrincipals()...)
	if err := b.Server.Apply(t.Context(), ps[1:]); err != nil {
		t.Fatal(err)
	}
	if steps != 4 || imports < 4*100 {
		t.Errorf("%d steps, %d imports", steps, imports)
	}
}

// TestUnlimitedKeyOfPrincipal gives the keys of run-time principals every permission inside their accounts, as if the
// server checked none. They still reach only what their edges name: the account is the boundary.
func TestUnlimitedKeyOfPrincipal(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	ps := runTimePrincipals()
	for i, p := range ps {
		key, err := h.b.Keys.Public(p.Name)
		if err != nil {
			t.Fatal(err)
		}
		ps[i].Keys = map[string]string{p.Name: key}
	}
	h.b.Server.EditConf(func(conf string) string {
		for _, p := range ps {
			before, after, ok := strings.Cut(conf, `{ nkey: "`+p.Keys[p.Name]+`"`)
			_, rest, end := strings.Cut(after, "} }\n")
			if !ok || !end {
				t.Errorf("no user of %s in nats.conf", p.Name)
			}
			conf = before + `{ nkey: "` + p.Keys[p.Name] + `", permissions: { publish: ">", subscribe: ">" } }` + "\n" +
				rest
		}
		return conf
	})
	if err := h.b.Server.Apply(t.Context(), ps); err != nil {
		t.Fatal(err)
	}
	all := append(allSubjects(h.table), "tool.schema.run_shell", "tool.output.run_shell.c1", "$SRV.PING.broker",
		"tool.schema.>", "live.response.generation")
	expected := map[string][]string{
		"weather": {
			"broker tool.schema.weather.forecast", "broker tool.schema.weather.tides",
			"broker tool.output.weather.forecast.*", "broker tool.output.weather.tides.*",
		},
		"my-phone": {
			"gateway client.my-phone.query.ask", "gateway client.my-phone.agents.prompt.*.*",
			"gateway client.my-phone.agents.status.*.*", "gateway client.my-phone.agents.srv.*",
			"gateway client.my-phone.agents.srv.*.*",
		},
	}
	const passingBy = `{"mark":"passing by"}` // the body of what the others say
	tries := 0
	for _, p := range ps {
		spy := h.dial(p.Name)
		spy.sub(">")
		h.flush(spy)
		if e := spy.takeErrors(); len(e) > 0 {
			t.Fatalf("%s is not unlimited: %v", p.Name, e)
		}
		h.forgetReceived()
		// Nothing of the others passes by. This is before the attack, because the spy is in the attacker's account: it
		// hears what the attacker says, and what JetStream says of it at any later time.
		passBy := func() {
			t.Helper()
			for _, a := range []publication{
				request("generator", "response.generation"), request("user", "query.received"),
				request("broker", "tool.call.tools.get_datetime"),
			} {
				a.body = passingBy
				h.publish(a)
			}
			h.awaitReceived("user response.generation", replyTo("generator"), replyTo("user"), replyTo("broker"))
			h.flush(spy)
		}
		passBy()
		if got := spy.takeMessages(); len(got) > 0 {
			t.Errorf("%s with an unlimited key hears %v", p.Name, got)
		}
		h.forgetReceived()
		before := h.streamStates()
		attacker := h.dial(p.Name)
		for _, s := range all {
			for _, reply := range []string{
				"_INBOX." + p.Name + ".x1", "tool.request.run_shell",
				"ctl.user.approval.decision.x1", "$JS.API.STREAM.DELETE.AUDIT",
			} {
				attacker.pub(s, reply, "", requestBody(s))
				tries++
			}
		}
		h.flush(attacker)
		h.runUntilIdle()
		// The stream passes events on after it acknowledged them: they may come only now.
		heard := slices.DeleteFunc(slices.Clone(h.received), func(m received) bool { return m.body == passingBy })
		if f := h.unexpectedReceivers(p.Name, heard, expected[p.Name]...); len(f) > 0 {
			t.Errorf("%s with an unlimited key reached %v", p.Name, f)
		}
		for _, e := range expected[p.Name] { // the control
			h.awaitReceived(e)
		}
		if got := h.addedMessages(before); len(got) > 0 {
			t.Errorf("%s with an unlimited key stored %v", p.Name, got)
		}
		h.forgetReceived()
		passBy()
		for _, m := range spy.takeMessages() {
			if strings.Contains(m.body, passingBy) {
				t.Errorf("after its attack %s hears %v", p.Name, m)
			}
		}
	}
	t.Logf("%d attempts", tries)
}

// TestPrincipalFile shows that the list is kept whole, and that a file that is not readable as one is an error and
// never an empty list.
func TestPrincipalFile(t *testing.T) {
	t.Parallel()
	home := bus.Home{Data: t.TempDir()}
	if got, err := home.ReadPrincipals(); len(got) > 0 || err != nil {
		t.Errorf("without a file: %v, %v", got, err)
	}
	ps := []subjects.Principal{{
		Name: "weather", Kind: subjects.ToolPrincipal, Tools: []string{"forecast"},
		Keys: map[string]string{"weather": "U" + strings.Repeat("A", 55)}, Added: time.Now().UTC(),
	}}
	if err := home.WritePrincipals(ps); err != nil {
		t.Fatal(err)
	}
	got, err := home.ReadPrincipals()
	if err != nil || len(got) != 1 || got[0].Name != "weather" || !got[0].Added.Equal(ps[0].Added) ||
		got[0].Keys["weather"] != ps[0].Keys["weather"] {
		t.Errorf("read back %v, %v", got, err)
	}
	if info, err := os.Stat(home.Principals()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the file: %v, %v", info, err)
	}
	if err := home.WritePrincipals([]subjects.Principal{{Name: "*"}}); !errors.Is(err, subjects.ErrPrincipal) {
		t.Errorf("wrote a bad list: %v", err)
	}
	if err := home.WritePrincipals(nil); err != nil {
		t.Fatal(err)
	}
	if got, err := home.ReadPrincipals(); got == nil || len(got) > 0 || err != nil {
		t.Errorf("an empty list is read as %v, %v", got, err)
	}
	if err := home.WritePrincipals(ps); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(home.Principals())
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"cut off":          string(whole[:len(whole)/2]),
		"empty":            "",
		"no version":       "{}",
		"a newer version":  strings.Replace(string(whole), `"version": 1`, `"version": 2`, 1),
		"an unknown field": strings.Replace(string(whole), `"kind"`, `"admin": true, "kind"`, 1),
		"two lists":        string(whole) + string(whole),
		"an account":       strings.ReplaceAll(string(whole), "weather", "broker"),
		"a damaged key":    strings.Replace(string(whole), "UAAA", "U!!!", 1),
	} {
		if err := os.WriteFile(home.Principals(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := home.ReadPrincipals()
		if !errors.Is(err, bus.ErrPrincipalFile) || len(got) > 0 || !strings.Contains(fmt.Sprint(err), "backup") {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(home.Data, ".principals*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
