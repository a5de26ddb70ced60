package secrets_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/actors/secrets"
	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/audit"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/keyring"
	"conclave/pkg/seal"
	"conclave/subjects"
)

// timeout bounds the wait for an expected event.
const timeout = time.Minute

// countingRing counts how often a keyring is read.
type countingRing struct {
	keyring.Ring
	reads atomic.Int32
}

func (c *countingRing) Get(ctx context.Context, name string) (keyring.Secret, error) {
	c.reads.Add(1)
	return c.Ring.Get(ctx, name)
}

// startSecrets runs the actor as the system does: under the real grants, with encrypted files and a real audit.
func startSecrets(t *testing.T, b *bustest.Bus) (*countingRing, *actor.Supervised) {
	t.Helper()
	cfg := secrets.Config{
		Backend: keyring.File, Timeout: 10 * time.Second, AuditTimeout: 5 * time.Second,
		ToolKeys: []string{"brave_api_key", "other"},
	}
	ring := &countingRing{Ring: keyring.OpenLazily(cfg.Ring(b.Dir))}
	if err := ring.Set(t.Context(), "brave_api_key", seal.NewSecret([]byte(canary))); err != nil {
		t.Fatal(err)
	}
	return ring, b.Run(b.AuditedSpec("secrets", func(_ context.Context, a *audit.Writer, h *audit.Hasher) (actor.Actor,
		error,
	) {
		return secrets.New(cfg, ring, a, h), nil
	}), actor.Config{})
}

// startReceiver answers for a key with the key of an account, until stop is called.
func startReceiver(t *testing.T, b *bustest.Bus, role string, k *seal.Key) (stop func()) {
	t.Helper()
	endpoint, err := subjects.SealKeyEndpoint(k.Public())
	if err != nil {
		t.Fatal(err)
	}
	nc := b.Connect(role)
	if _, err := nc.Subscribe(endpoint.Received, func(m *nats.Msg) { _ = m.Respond([]byte("{}")) }); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return nc.Close
}

// TestBrokerCannotOpenCredentials: with the broker's key a credential is requested, and opened with no key that the
// broker can have.
func TestBrokerCannotOpenCredentials(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	ring, actorRun := startSecrets(t, b)
	out := b.Out("broker")
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	get := func(receiver string, k *seal.Key) (subjects.SecretValue, error) {
		return actor.Ask(ctx, out, subjects.SecretGetService,
			subjects.SecretGet{Name: "brave_api_key", Receiver: receiver, For: k.Public()})
	}
	mine, tools := newKey(t), newKey(t)
	// the server lets the broker subscribe under no account but its own
	nc := b.Connect("broker")
	b.ExpectViolations(2)
	confirm := func(m *nats.Msg) { _ = m.Respond([]byte("{}")) }
	for _, prefix := range []string{"", "receiver.tool_web_search."} {
		if _, err := nc.Subscribe(prefix+"seal.key."+mine.Public(), confirm); err != nil {
			t.Fatal(err)
		}
	}
	stop := startReceiver(t, b, "tool_web_search", tools)
	startReceiver(t, b, "model", mine)
	for _, receiver := range []string{"tool_web_search", "model", "mcp", "broker", "secrets", "", "tool_run_shell"} {
		if v, err := get(receiver, mine); actortest.Code(err) != subjects.CodeDenied || len(v.Sealed) > 0 {
			t.Errorf("for %q: %v", receiver, err)
		}
	}
	if n := ring.reads.Load(); n != 0 {
		t.Errorf("%d reads of the keyring", n)
	}
	for range 2 { // the second time after a restart of the actor
		v, err := get("tool_web_search", tools)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := seal.Open(mine, v); !errors.Is(err, seal.ErrSealed) {
			t.Errorf("the broker opens it: %v", err)
		}
		if got, err := seal.Open(tools, v); err != nil || string(got.Reveal()) != canary {
			t.Errorf("the tool cannot open it: %v", err)
		}
		if err := actorRun.Stop(); err != nil {
			t.Fatal(err)
		}
		_, actorRun = startSecrets(t, b)
	}
	stop()
	if _, err := get("tool_web_search", tools); actortest.Code(err) != subjects.CodeDenied {
		t.Errorf("the tool has ended: %v", err)
	}
}

// readAudit verifies the audit log and returns the actor's records, and the raw log.
func readAudit(t *testing.T, b *bustest.Bus) (phases []string, raw string) {
	t.Helper()
	rep, recs, stored := b.AuditRecords()
	if rep.Pending != 0 || rep.Unfinished != 0 {
		t.Fatalf("records without an outcome: %+v", rep)
	}
	for _, r := range recs {
		phases = append(phases, strings.TrimSpace(r.AgentID+" "+r.Tool+" "+r.Phase+" "+r.Status+" "+r.Reason))
	}
	return phases, string(stored)
}

func TestGetCredentialOnTheBus(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	ring, _ := startSecrets(t, b)
	user := b.Connect("user")
	seen := make(chan *nats.Msg, 256)
	if _, err := user.ChanSubscribe(">", seen); err != nil {
		t.Fatal(err)
	}
	if err := bustest.ConfirmSubscriptions(t.Context(), user); err != nil {
		t.Fatal(err)
	}
	out := b.Out("broker")
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	k := newKey(t)
	startReceiver(t, b, webSearch, k)
	get := subjects.SecretGet{Name: "brave_api_key", Receiver: webSearch, For: k.Public()}
	v, err := actor.Ask(ctx, out, subjects.SecretGetService, get)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := seal.Open(k, v); err != nil || string(got.Reveal()) != canary {
		t.Errorf("opened %q, %v", got.Reveal(), err)
	}
	if _, err := seal.Open(newKey(t), v); !errors.Is(err, seal.ErrSealed) {
		t.Errorf("another key opens it: %v", err)
	}
	if strings.Contains(string(v.Sealed), canary) {
		t.Error("it went over the bus in the open")
	}
	get.Name = "other"
	_, err = actor.Ask(ctx, out, subjects.SecretGetService, get)
	if actortest.Code(err) != subjects.CodeNoSecret || !strings.Contains(err.Error(), "conclave secret set other") {
		t.Errorf("told %v", err)
	}
	if n := ring.reads.Load(); n != 2 {
		t.Errorf("%d reads", n)
	}
	phases, raw := readAudit(t, b)
	want := []string{
		"broker brave_api_key before allowed", "broker brave_api_key after ok",
		"broker other before allowed", "broker other after failed no_secret",
	}
	if !slices.Equal(phases, want) {
		t.Errorf("audit %q, want %q", phases, want)
	}
	if strings.Contains(raw, canary) {
		t.Error("the audit tells it")
	}
	// Who watches everything sees nothing of it.
	if err := user.Flush(); err != nil {
		t.Fatal(err)
	}
	for len(seen) > 0 {
		if m := <-seen; strings.Contains(m.Subject, "secret") || strings.Contains(string(m.Data), canary) {
			t.Errorf("the user's watch hears %s", m.Subject)
		}
	}
}

// The server denies secret.get to every role but the broker's.
func TestOnlyTheBrokerGetsCredentials(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	ring, _ := startSecrets(t, b)
	roles, _ := subjects.Table().Roles()
	body := []byte(`{"name":"brave_api_key","receiver":"tool_web_search","for":"` + newKey(t).Public() + `"}`)
	asked := 0
	for _, role := range roles {
		if role == "broker" {
			continue
		}
		nc := b.Connect(role)
		for _, subject := range []string{"secret.get", "agent.broker.secret.get", "ctl.broker.secret.get"} {
			b.ForgeRequest(nc, subject, "broker", body)
			asked++
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if asked < 60 {
		t.Errorf("only %d tries: the table of roles is not what it was", asked)
	}
	// What the server let through would stand before this one.
	out := b.Out("broker")
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	k := newKey(t)
	startReceiver(t, b, webSearch, k)
	if _, err := actor.Ask(ctx, out, subjects.SecretGetService,
		subjects.SecretGet{Name: "brave_api_key", Receiver: webSearch, For: k.Public()}); err != nil {
		t.Fatal(err)
	}
	if n := ring.reads.Load(); n != 1 {
		t.Errorf("%d reads, and the broker asked once", n)
	}
	phases, _ := readAudit(t, b)
	if len(phases) != 2 {
		t.Errorf("audit %q", phases)
	}
}
