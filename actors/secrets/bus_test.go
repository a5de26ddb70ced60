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
func startSecrets(t *testing.T, b *bustest.Bus) *countingRing {
	t.Helper()
	cfg := secrets.Config{Backend: keyring.File, Timeout: 10 * time.Second, AuditTimeout: 5 * time.Second}
	ring := &countingRing{Ring: keyring.OpenLazily(cfg.Ring(b.Dir))}
	if err := ring.Set(t.Context(), "brave_api_key", seal.NewSecret([]byte(canary))); err != nil {
		t.Fatal(err)
	}
	b.Run(b.AuditedSpec("secrets", func(_ context.Context, a *audit.Writer, h *audit.Hasher) (actor.Actor, error) {
		return secrets.New(cfg, ring, a, h), nil
	}), actor.Config{})
	return ring
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
	ring := startSecrets(t, b)
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
	v, err := actor.Ask(ctx, out, subjects.SecretGetService, subjects.SecretGet{Name: "brave_api_key", For: k.Public()})
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
	_, err = actor.Ask(ctx, out, subjects.SecretGetService, subjects.SecretGet{Name: "other", For: k.Public()})
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
	ring := startSecrets(t, b)
	roles, _ := subjects.Table().Roles()
	body := []byte(`{"name":"brave_api_key","for":"` + newKey(t).Public() + `"}`)
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
	if _, err := actor.Ask(ctx, out, subjects.SecretGetService,
		subjects.SecretGet{Name: "brave_api_key", For: newKey(t).Public()}); err != nil {
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
