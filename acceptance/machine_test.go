package acceptance

import (
	"bytes"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/actors/tools"
	"conclave/config"
	"conclave/pkg/audit"
	"conclave/pkg/auditlog"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/client"
	"conclave/pkg/machine"
	"conclave/subjects"
)

// hubActors are the actors of a hub whose only tools are those of machines.
var hubActors = []string{subjects.Registry, "secrets", "broker"}

// dialClient connects a role to a running hub.
func dialClient(t testing.TB, b *bus.Bus, role string) *client.Client {
	t.Helper()
	c, err := client.New(bustest.Dial(t, b, role))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// inviteMachine returns a token for a machine.
func inviteMachine(t testing.TB, b *bus.Bus, q subjects.MachineInvite) machine.Token {
	t.Helper()
	id, secret, err := machine.NewSecret()
	if err != nil {
		t.Fatal(err)
	}
	q.ID, q.Hash, q.Expires = id, secret.Hash(), time.Now().Add(time.Hour)
	got, err := dialClient(t, b, "user").InviteMachine(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	pin, err := bus.ParsePin(got.Pin)
	if err != nil {
		t.Fatal(err)
	}
	return machine.Token{Address: got.Listen, Pin: pin, ID: id, Secret: secret}
}

// joinMachine joins with a token, in a folder that may have joined before.
func joinMachine(t testing.TB, home bus.Home, token machine.Token) error {
	t.Helper()
	if err := home.CreateFolders(); err != nil {
		t.Fatal(err)
	}
	_, err := machine.Join(t.Context(), home, token, false, time.Now())
	return err
}

// startMachine runs a machine that joined, and returns when it is connected.
func startMachine(t testing.TB, c config.Config, home bus.Home) *config.Instance {
	t.Helper()
	r, _, err := c.StartMachine(t.Context(), home, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { down(t, r) })
	awaitTrue(t, "the machine is connected", r.IsLinked)
	return r
}

// writerFunc is called with each line of a log.
type writerFunc func(line []byte)

func (f writerFunc) Write(line []byte) (int, error) { f(line); return len(line), nil }

// expectNoLink runs a machine whose keys the hub does not know, and returns when the hub has rejected them several
// times.
func expectNoLink(t testing.TB, home bus.Home) {
	t.Helper()
	rejected := make(chan struct{}, 1000)
	log := debugLog(writerFunc(func(line []byte) {
		if bytes.Contains(line, []byte("Authorization Violation")) {
			rejected <- struct{}{}
		}
	}))
	r, _, err := settings(t).StartMachine(t.Context(), home, log)
	if err != nil {
		t.Fatal(err)
	}
	defer down(t, r)
	for range 4 { // of two accounts, so that each is rejected more than once
		select {
		case <-rejected:
		case <-time.After(testTimeout):
			t.Fatal("the hub did not reject the keys")
		}
		if r.IsLinked() {
			t.Fatal("a machine whose keys were replaced is connected")
		}
	}
}

func awaitTrue(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(testTimeout); !is(); <-time.After(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// callUntilOK calls the clock until it succeeds: after a restart the broker learns of the tool within a moment.
func callUntilOK(t testing.TB, b *bus.Bus) {
	t.Helper()
	p := dialOperator(t, b)
	var last subjects.ToolResult
	for end := time.Now().Add(testTimeout); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
		if last = p.callTool(t.Context(), "get_datetime", "", utc); last.Error == nil {
			return
		}
	}
	t.Fatalf("%v", last.Error)
}

// A machine joins with a token, and its tools serve calls of the hub through the broker, on the record, also one that
// is off on the hub. The token cannot be used again. Restarts of either side heal, replaced keys work and the old ones
// do not, a revoked machine is gone at once, and the witness on the machine has the head of the hub's log.
func TestMachineServesHub(t *testing.T) {
	t.Parallel()
	hubHome, home := newHome(t), newHome(t)
	address := bustest.ReservePort(t) // the hub restarts
	hub := up(t, settings(t, "system.machines.listen", address, "web_search.provider", "none"), hubHome, hubActors...)
	token := inviteMachine(t, hub.Bus,
		subjects.MachineInvite{Machine: "gpu-box", Actors: []string{"get_datetime", "web_search", "witness"}})
	if err := joinMachine(t, home, token); err != nil {
		t.Fatal(err)
	}
	search := settings(t, "web_search.provider", "mock")
	search.WebSearch.Mock = []tools.WebResult{{Title: "Found by gpu-box", URL: "https://a.example/"}}
	box := startMachine(t, search, home)
	callUntilOK(t, hub.Bus)
	operator := dialOperator(t, hub.Bus)
	awaitTrue(t, "the machine searches", func() bool {
		res := operator.callTool(t.Context(), "web_search", "", `{"query":"red pandas"}`)
		return res.Error == nil && strings.Contains(res.Result, "Found by gpu-box")
	})

	if err := joinMachine(t, newHome(t), token); !errors.Is(err, machine.ErrRefused) ||
		!strings.Contains(err.Error(), "used already") {
		t.Errorf("the token was used twice: %v", err)
	}
	if err := joinMachine(t, hubHome, token); err == nil || !strings.Contains(err.Error(), "data folder of a hub") {
		t.Errorf("the hub joined itself: %v", err)
	}
	// a link that a busy machine loses comes back
	user := dialClient(t, hub.Bus, "user")
	awaitTrue(t, "the hub lists the machine as connected", func() bool {
		all, err := user.Machines(t.Context())
		return err == nil && len(all) == 1 && all[0].Name == "gpu-box" && !all[0].Connected.IsZero() &&
			all[0].Address != ""
	})
	if _, err := user.InviteMachine(t.Context(),
		subjects.MachineInvite{
			Machine: "gpu-box", Actors: []string{"model"}, ID: token.ID, Hash: token.Secret.Hash(),
			Expires: time.Now().Add(time.Hour),
		}); err == nil {
		t.Error("a second machine of the same name was invited")
	}

	auditor := dialClient(t, hub.Bus, "auditor")
	var witness client.Witnessed
	awaitTrue(t, "the witness has the head of the log", func() bool {
		var err error
		witness, err = auditor.WitnessHeads(t.Context(), "gpu-box")
		return err == nil && witness.Problem(time.Now()) == "" && len(witness.Heads) == 1
	})
	anchors, err := audit.ReadHeads(hubHome.Heads())
	if err != nil {
		t.Fatal(err)
	}
	nc := bustest.Dial(t, hub.Bus, "auditor")
	src, err := bus.NewAuditReader(nc).ReadAll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if rep, err := auditlog.VerifySource(t.Context(), hubHome, src, anchors, witness.Heads); err != nil || !rep.OK {
		t.Errorf("%v %v", rep.First, err)
	}
	var actions []string
	for m, err := range src.Messages {
		if err != nil {
			t.Fatal(err)
		}
		batch, err := audit.DecodeBatch(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range batch {
			actions = append(actions, d.Record.Action+" "+d.Record.Tool+" "+d.Record.Phase)
		}
	}
	for _, want := range []string{
		"machine.invite gpu-box after", "principal.add gpu-box after",
		"tool.call get_datetime after",
	} {
		if !slices.Contains(actions, want) {
			t.Errorf("the audit log has no %q: %q", want, actions)
		}
	}

	down(t, box)
	box = startMachine(t, settings(t), home)
	callUntilOK(t, hub.Bus)
	down(t, hub)
	hub = up(t, settings(t, "system.machines.listen", address), hubHome, hubActors...)
	callUntilOK(t, hub.Bus)

	oldKeys := newHome(t)
	// os.CopyFS does not keep the mode of key files
	if out, err := exec.Command("cp", "-a", home.Data, oldKeys.Data).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	rotation := inviteMachine(t, hub.Bus, subjects.MachineInvite{Machine: "gpu-box", Rotate: true})
	down(t, box)
	if err := joinMachine(t, home, rotation); err != nil {
		t.Fatal(err)
	}
	startMachine(t, settings(t), home)
	callUntilOK(t, hub.Bus)
	expectNoLink(t, oldKeys)

	user = dialClient(t, hub.Bus, "user") // of the hub that was started again
	late := inviteMachine(t, hub.Bus, subjects.MachineInvite{Machine: "gpu-box", Rotate: true})
	if err := user.ChangePrincipal(t.Context(), subjects.PrincipalChange{
		Action:    subjects.PrincipalRevoke,
		Principal: subjects.Principal{Name: "gpu-box"},
	}); err != nil {
		t.Fatal(err)
	}
	if all, err := user.Machines(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("after revoke: %+v, %v", all, err)
	}
	if res := dialOperator(t, hub.Bus).callTool(t.Context(), "get_datetime", "", utc); res.Error == nil {
		t.Error("a revoked machine served a call")
	}
	if err := joinMachine(t, home, late); err == nil {
		t.Error("a revoked machine joined with a token of before")
	}
}

// TestChaosMachineCallLatency compares a brokered call to a tool of a machine with one to the same tool of a hub, in
// turn: it takes at most 1.5 times as long.
func TestChaosMachineCallLatency(t *testing.T) {
	if !full() {
		t.Skip("a measurement: set CONCLAVE_CHAOS=1")
	}
	home := newHome(t)
	remote := up(t, settings(t, "system.machines.listen", "127.0.0.1:0"), newHome(t), hubActors...)
	token := inviteMachine(t, remote.Bus,
		subjects.MachineInvite{Machine: "gpu-box", Actors: []string{"get_datetime"}})
	if err := joinMachine(t, home, token); err != nil {
		t.Fatal(err)
	}
	startMachine(t, settings(t), home)
	callUntilOK(t, remote.Bus)
	local := up(t, settings(t), newHome(t), append([]string{"get_datetime"}, hubActors...)...)
	callUntilOK(t, local.Bus)
	callers := []busCaller{dialOperator(t, local.Bus), dialOperator(t, remote.Bus)}
	times := make([][]time.Duration, len(callers))
	const warmUp = 200
	for n := range 4000 {
		for i, c := range callers {
			start := time.Now()
			if res := c.callTool(t.Context(), "get_datetime", "", utc); res.Error != nil {
				t.Fatal(res.Error)
			}
			if n >= warmUp {
				times[i] = append(times[i], time.Since(start))
			}
		}
	}
	at := func(i, p int) time.Duration { return times[i][(len(times[i])-1)*p/100].Round(time.Microsecond) }
	for i := range times {
		slices.Sort(times[i])
	}
	ratio := float64(at(1, 50)) / float64(at(0, 50))
	t.Logf("brokered call: local p50 %s, p99 %s; over a leaf node p50 %s, p99 %s; ratio of p50 %.2f", at(0, 50),
		at(0, 99), at(1, 50), at(1, 99), ratio)
	if ratio > 1.5 {
		t.Errorf("a call over a leaf node takes %.2f times as long as a local one", ratio)
	}
}
