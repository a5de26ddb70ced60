package bustest

import (
	"context"
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go"

	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/pkg/bus"
	"conclave/subjects"
)

// Run supervises an actor under its real permissions until the test ends. The test fails when the actor does not start,
// and when its stop at the end of the test returns an error.
func (b *Bus) Run(spec actor.Spec, cfg actor.Config) *actor.Supervised {
	b.t.Helper()
	return supervise(b.t, b.Bus, spec, cfg)
}

func supervise(t testing.TB, b *bus.Bus, spec actor.Spec, cfg actor.Config) *actor.Supervised {
	t.Helper()
	s, err := actor.Supervise(t.Context(), spec, b.Dial, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// RunActor is [Bus.Run] for an actor that exists already; a restart uses the same value again.
func (b *Bus) RunActor(a actor.Actor, cfg actor.Config) *actor.Supervised {
	b.t.Helper()
	return b.Run(actor.Spec{Name: a.Name(), Make: func(context.Context, *nats.Conn) (actor.Actor, error) {
		return a, nil
	}}, cfg)
}

// Out connects a role and returns its Out, without ids.
func (b *Bus) Out(role string) actor.Out {
	b.t.Helper()
	out, err := actor.NewOut(b.Connect(role))
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

// AuditedSpec describes an actor that writes to the audit log of this bus. build is called for each start, with a new
// writer of the account and the hasher that all actors of this bus share.
func (b *Bus) AuditedSpec(account string, build func(context.Context, *audit.Writer, *audit.Hasher) (actor.Actor,
	error),
) actor.Spec {
	return actor.Spec{Name: account, Make: func(ctx context.Context, nc *nats.Conn) (actor.Actor, error) {
		h, err := audit.LoadHasher(b.HashKey())
		if err != nil {
			return nil, err
		}
		w, err := audit.Open(ctx, audit.Options{Account: account, Dir: b.Heads(), Log: bus.NewAuditLog(nc)})
		if err != nil {
			return nil, err
		}
		return build(ctx, w, h)
	}}
}

// HashKey returns the path of the key of parameter hashes.
func (b *Bus) HashKey() string { return filepath.Join(b.Dir, "params.key") }

// AuditRecords verifies the audit log, which must be intact, and returns the report and the records of all accounts
// without those that open a chain. raw is every stored message, joined.
func (b *Bus) AuditRecords() (rep audit.Report, recs []subjects.AuditRecord, raw []byte) {
	b.t.Helper()
	heads, err := audit.ReadHeads(b.Heads())
	if err != nil {
		b.t.Fatal(err)
	}
	src, closeLog := openAuditLog(b.t, b.Bus)
	defer closeLog()
	if rep, err = audit.Verify(b.t.Context(), src, heads,
		audit.VerifyOptions{Actions: subjects.AuditActions}); err != nil || !rep.OK {
		b.t.Fatalf("the audit log does not verify: %v, %v", rep.First, err)
	}
	for _, m := range readAll(b.t, src) {
		raw = append(raw, m.Data...)
		batch, err := audit.DecodeBatch(m.Data)
		if err != nil {
			b.t.Fatal(err)
		}
		for _, d := range batch {
			if d.Record.Phase != subjects.AuditOpen {
				recs = append(recs, d.Record)
			}
		}
	}
	return rep, recs, raw
}

// ReadAuditLog returns every message of the audit log.
func ReadAuditLog(t testing.TB, b *bus.Bus) []audit.Stored {
	t.Helper()
	src, closeLog := openAuditLog(t, b)
	defer closeLog()
	return readAll(t, src)
}

// openAuditLog returns the messages that the audit log has now, to be read until closeLog is called.
func openAuditLog(t testing.TB, b *bus.Bus) (src audit.Source, closeLog func()) {
	t.Helper()
	nc := Dial(t, b, "auditor")
	src, err := bus.NewAuditReader(nc).ReadAll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return src, nc.Close
}

func readAll(t testing.TB, src audit.Source) (out []audit.Stored) {
	t.Helper()
	for st, err := range src.Messages {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, st)
	}
	return out
}

// AddPrincipals stores principals of an installation, each with a key of its own, as an earlier run would have left
// them. Others of the installation are removed.
func AddPrincipals(t testing.TB, home bus.Home, principals ...subjects.Principal) {
	t.Helper()
	if err := home.CreateFolders(); err != nil {
		t.Fatal(err)
	}
	for i, p := range principals {
		ensureKeys(t, home.Keys(), []string{p.Name})
		key, err := home.Keys().Public(p.Name)
		if err != nil {
			t.Fatal(err)
		}
		principals[i].Keys = map[string]string{p.Name: key}
	}
	if err := home.WritePrincipals(principals); err != nil {
		t.Fatal(err)
	}
}

// Subscribe decodes every message on a subject and sends it to a channel. The test fails on one that is not a T. The
// caller confirms the subscription with [ConfirmSubscriptions].
func Subscribe[T any](t testing.TB, nc *nats.Conn, subject string, to chan<- T) {
	t.Helper()
	if _, err := nc.Subscribe(subject, func(m *nats.Msg) {
		var v T
		if err := json.Unmarshal(m.Data, &v); err != nil {
			t.Errorf("%s: %v", subject, err)
		}
		to <- v
	}); err != nil {
		t.Fatal(err)
	}
}

// ForgeRequest publishes a request that claims in its headers to come from another account, and announces that the
// server denies it.
func (b *Bus) ForgeRequest(nc *nats.Conn, subject, account string, body []byte) {
	b.t.Helper()
	m := nats.NewMsg(subject)
	m.Data, m.Reply = body, nats.NewInbox()
	m.Header.Set(subjects.HeaderType, subjects.TypeJSON)
	m.Header.Set("Nats-Request-Info", `{"acc":"`+account+`"}`)
	m.Header.Set("Conclave-From", account)
	b.ExpectViolations(1)
	if err := nc.PublishMsg(m); err != nil {
		b.t.Fatal(err)
	}
}
