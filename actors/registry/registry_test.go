package registry_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/actors/registry"
	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

const testTimeout = time.Minute

// fixture is a registry under the real permissions.
type fixture struct {
	*bustest.Bus
	home   bus.Home
	server *flakyServer
	user   actor.Out
}

// flakyServer is the embedded server, which a test may let fail.
type flakyServer struct {
	registry.Server
	mu   sync.Mutex
	fail error
	ok   int // lists that were applied
}

func (f *flakyServer) Apply(ctx context.Context, ps []subjects.Principal) error {
	f.mu.Lock()
	err := f.fail
	f.mu.Unlock()
	if err != nil {
		return err
	}
	err = f.Server.Apply(ctx, ps)
	if err == nil {
		f.mu.Lock()
		f.ok++
		f.mu.Unlock()
	}
	return err
}

func (f *flakyServer) applied() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ok
}

func (f *flakyServer) setError(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = err
}

// start runs a registry that has stored these principals before.
func start(t *testing.T, stored ...subjects.Principal) *fixture {
	t.Helper()
	f := &fixture{Bus: bustest.Start(t)}
	f.home, f.server = bus.Home{Data: f.Dir}, &flakyServer{Server: f.Server}
	if err := f.home.WritePrincipals(stored); err != nil {
		t.Fatal(err)
	}
	f.Run(f.AuditedSpec(subjects.Registry, func(_ context.Context, w *audit.Writer, h *audit.Hasher) (actor.Actor,
		error,
	) {
		return registry.New(registry.Config{AuditTimeout: testTimeout}, f.server, f.home, w, h)
	}), actor.Config{})
	f.user = f.Out("user")
	return f
}

func (f *fixture) change(t *testing.T, action string, p subjects.Principal) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	_, err := actor.Ask(ctx, f.user, subjects.PrincipalChangeService,
		subjects.PrincipalChange{Action: action, Principal: p})
	return err
}

func (f *fixture) names(t *testing.T) (names []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	l, err := actor.Ask(ctx, f.user, subjects.PrincipalListService, subjects.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range l.Principals {
		names = append(names, p.Name)
	}
	return names
}

// newKey puts a new key for a name into the key folder and returns its public half.
func (f *fixture) newKey(t *testing.T, name string) map[string]string {
	t.Helper()
	k, err := f.Keys.Stage(name)
	if err == nil {
		_, err = k.Commit()
	}
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{name: k.Public}
}

// nextNotice returns the next notice of a change; that of the start of the registry, which may come late, is none.
func nextNotice(t *testing.T, notices <-chan subjects.PrincipalNotice) subjects.PrincipalNotice {
	t.Helper()
	timeout := time.After(testTimeout)
	for {
		select {
		case n := <-notices:
			if n != (subjects.PrincipalNotice{}) {
				return n
			}
		case <-timeout:
			t.Fatal("no change was announced")
		}
	}
}

// TestRegistry adds, rotates and revokes a principal, with a failing server in between. Every change is in the audit
// log, the stored list is the one in force, and a live connection ends with its key.
func TestRegistry(t *testing.T) {
	t.Parallel()
	f := start(t)
	notices := make(chan subjects.PrincipalNotice, 16)
	watch := f.Connect("broker")
	bustest.Subscribe(t, watch, "principal.changed", notices)
	if err := bustest.ConfirmSubscriptions(t.Context(), watch); err != nil {
		t.Fatal(err)
	}
	weather := subjects.Principal{
		Name: "weather", Kind: subjects.ToolPrincipal, Tools: []string{"forecast"},
		Keys: f.newKey(t, "weather"),
	}
	f.server.setError(errors.New("disk on fire"))
	if err := f.change(t, subjects.PrincipalAdd, weather); err == nil ||
		!strings.Contains(err.Error(), "disk on fire") {
		t.Errorf("an addition that the server does not apply: %v", err)
	}
	f.server.setError(nil)
	if got := f.names(t); len(got) > 0 {
		t.Errorf("after a failed addition the list is %v", got)
	}
	if err := f.change(t, subjects.PrincipalAdd, weather); err != nil {
		t.Fatal(err)
	}
	if n := nextNotice(t, notices); n != (subjects.PrincipalNotice{Name: "weather", Action: "add"}) {
		t.Errorf("notice %+v", n)
	}
	connect := func() (closed chan struct{}) {
		closed = make(chan struct{})
		f.Connect("weather", nats.NoReconnect(), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
		return closed
	}
	closed := connect()
	for name, c := range map[string]subjects.PrincipalChange{
		"again": {Action: "add", Principal: weather},
		"an account": {Action: "add", Principal: subjects.Principal{
			Name: "broker",
			Kind: subjects.ClientPrincipal, Keys: weather.Keys,
		}},
		"a machine": {Action: "add", Principal: subjects.Principal{
			Name: "box", Kind: subjects.MachinePrincipal,
			Actors: []string{"model"},
		}},
		"an unknown action": {Action: "promote", Principal: weather},
		"the same key":      {Action: "rotate", Principal: weather},
		"nobody":            {Action: "revoke", Principal: subjects.Principal{Name: "nobody"}},
		"a path":            {Action: "revoke", Principal: subjects.Principal{Name: "../user"}},
	} {
		var fault *subjects.Fault
		if err := f.change(t, c.Action, c.Principal); !errors.As(err, &fault) || fault.Code != subjects.CodeMalformed {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := f.names(t); !slices.Equal(got, []string{"weather"}) {
		t.Errorf("after rejected changes the list is %v", got)
	}
	rotated := weather
	rotated.Keys = f.newKey(t, "weather")
	if err := f.change(t, subjects.PrincipalRotate,
		subjects.Principal{Name: "weather", Keys: rotated.Keys}); err != nil {
		t.Fatal(err)
	}
	await(t, closed)
	closed = connect()
	stored, err := f.home.ReadPrincipals()
	if err != nil || len(stored) != 1 || stored[0].Keys["weather"] != rotated.Keys["weather"] ||
		!slices.Equal(stored[0].Tools, weather.Tools) || stored[0].Added.IsZero() {
		t.Errorf("stored: %+v, %v", stored, err)
	}
	// Only the user may change principals; the others may read the list.
	f.ExpectViolations(2)
	for _, role := range []string{"gateway", "broker"} {
		nc := f.Connect(role)
		if err := nc.Publish("principal.change", []byte("{}")); err != nil {
			t.Fatal(err)
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.change(t, subjects.PrincipalRevoke, subjects.Principal{Name: "weather"}); err != nil {
		t.Fatal(err)
	}
	await(t, closed)
	if got := f.names(t); len(got) > 0 {
		t.Errorf("after the revocation the list is %v", got)
	}
	_, recs, _ := f.AuditRecords()
	var got []string
	for _, r := range recs {
		got = append(got, r.Phase+" "+r.Action+" "+r.Tool+" "+r.Status)
		if want := map[string]string{subjects.ActionPrincipalApply: "registry actor"}[r.Action]; r.AgentID+" "+
			r.AgentType != cmp.Or(want, "user user") {
			t.Errorf("record of %s by %s %s", r.Action, r.AgentID, r.AgentType)
		}
	}
	for _, want := range []string{
		"before principal.apply  allowed", "after principal.apply  ok", "before principal.add weather allowed",
		"after principal.add weather failed", "after principal.add weather ok",
		"after principal.rotate weather ok", "after principal.revoke weather ok",
		"before principal.revoke nobody refused",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("no record %q in %q", want, got)
		}
	}
}

// TestKeyOfMachine shows that the keys of a machine are not rotated like those of a principal: only its own enrolment
// knows the new ones. It can be revoked, also when the server does not apply that: the list keeps the revocation.
func TestKeyOfMachine(t *testing.T) {
	t.Parallel()
	key, err := bus.Keys{Dir: t.TempDir()}.Stage("model_box")
	if err != nil {
		t.Fatal(err)
	}
	box := subjects.Principal{
		Name: "box", Kind: subjects.MachinePrincipal, Actors: []string{"model"},
		Keys: map[string]string{"model_box": key.Public},
	}
	f := start(t, box)
	notices := make(chan subjects.PrincipalNotice, 16)
	watch := f.Connect("broker")
	bustest.Subscribe(t, watch, "principal.changed", notices)
	if err := bustest.ConfirmSubscriptions(t.Context(), watch); err != nil {
		t.Fatal(err)
	}
	stolen := map[string]string{"model_box": f.newKey(t, "box")["box"]}
	var fault *subjects.Fault
	if err := f.change(t, subjects.PrincipalRotate, subjects.Principal{Name: "box", Keys: stolen}); !errors.As(err,
		&fault) || fault.Code != subjects.CodeMalformed || !strings.Contains(fault.Text, "conclave machines rotate") {
		t.Errorf("a rotation of a machine: %v", err)
	}
	if stored, err := f.home.ReadPrincipals(); err != nil || len(stored) != 1 ||
		stored[0].Keys["model_box"] != box.Keys["model_box"] {
		t.Errorf("stored: %+v, %v", stored, err)
	}
	f.server.setError(errors.New("disk on fire"))
	if err := f.change(t, subjects.PrincipalRevoke, subjects.Principal{Name: "box"}); err == nil ||
		!strings.Contains(err.Error(), "revoked in the list") {
		t.Errorf("a revocation that the server does not apply: %v", err)
	}
	if stored, err := f.home.ReadPrincipals(); err != nil || len(stored) > 0 || len(f.names(t)) > 0 {
		t.Errorf("stored: %+v, %v", stored, err)
	}
	// The others learn of it, although the server did not apply it.
	if n := nextNotice(t, notices); n != (subjects.PrincipalNotice{Name: "box", Action: "revoke"}) {
		t.Errorf("notice %+v", n)
	}
	// It can be repeated until the server applies it, and then no more.
	f.server.setError(nil)
	if err := f.change(t, subjects.PrincipalRevoke, subjects.Principal{Name: "box"}); err != nil {
		t.Errorf("the revocation again: %v", err)
	}
	if n := f.server.applied(); n != 2 { // at the start, and now
		t.Errorf("the server applied %d lists", n)
	}
	if err := f.change(t, subjects.PrincipalRevoke, subjects.Principal{Name: "box"}); !errors.As(err, &fault) ||
		fault.Code != subjects.CodeMalformed {
		t.Errorf("the revocation once more: %v", err)
	}
}

// TestDamagedList shows that the registry does not start on a list that it cannot read.
func TestDamagedList(t *testing.T) {
	t.Parallel()
	if _, err := registry.New(registry.Config{}, nil, brokenStore{}, nil, nil); err == nil {
		t.Error("started")
	}
}

type brokenStore struct{ registry.Store }

func (brokenStore) ReadPrincipals() ([]subjects.Principal, error) { return nil, bus.ErrPrincipalFile }

func await(t *testing.T, ch <-chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(testTimeout):
		t.Fatal("the connection stayed open")
	}
}
