// Package bustest runs a real server under the real grants for one test: its own keys, store and port. A permission
// violation nobody expected fails the test.
package bustest

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/pkg/audit"
	"conclave/pkg/bus"
	"conclave/subjects"
)

// Bus is a server for one test.
type Bus struct {
	*bus.Bus
	Dir string

	t       testing.TB
	mu      sync.Mutex
	expect  int // violations a test has announced
	trouble []bus.Trouble
}

// Start runs a provisioned server that ends with the test. configure may change where and how it listens.
func Start(t testing.TB, configure ...func(*bus.ServerConfig)) *Bus {
	t.Helper()
	b := &Bus{t: t, Dir: t.TempDir()}
	keys := bus.Keys{Dir: filepath.Join(b.Dir, "keys")}
	lasting, _ := subjects.Table().Roles()
	if _, err := keys.Ensure(lasting); err != nil {
		t.Fatal(err)
	}
	cfg := bus.ServerConfig{Store: filepath.Join(b.Dir, "jetstream")}
	for _, c := range configure {
		c(&cfg)
	}
	srv, err := bus.StartServer(cfg, keys, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { srv.Stop(context.Background()) })
	genesis, head, err := audit.EncodeGenesis(time.Now(), subjects.AuditGenesis{})
	if err != nil {
		t.Fatal(err)
	}
	if err := audit.WriteHead(b.Heads(), head); err != nil {
		t.Fatal(err)
	}
	if err := srv.Provision(t.Context(), genesis); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.cameTrue)
	b.Bus = &bus.Bus{URL: srv.URL(), Keys: keys, Srv: srv, OnTrouble: b.onTrouble}
	return b
}

// Heads is the folder of the audit's anchors for this test.
func (b *Bus) Heads() string { return filepath.Join(b.Dir, "heads") }

// As connects a role for the test; the connection closes with it.
func (b *Bus) As(role string, opts ...nats.Option) *nats.Conn {
	b.t.Helper()
	nc, err := b.Dial(role, opts...)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(nc.Close)
	return nc
}

// Expect announces n violations: the test is about them.
func (b *Bus) Expect(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expect += n
}

// Trouble returns what the error handlers have heard.
func (b *Bus) Trouble() []bus.Trouble {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]bus.Trouble(nil), b.trouble...)
}

// cameTrue fails a test whose announced violations did not come: the server permits what it should not. They are told
// by the connection's reader, which may need a moment.
func (b *Bus) cameTrue() {
	left := func() int {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.expect
	}
	for deadline := time.Now().Add(2 * time.Second); left() > 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if n := left(); n > 0 {
		b.t.Errorf("bustest: %d announced violations did not come", n)
	}
}

func (b *Bus) onTrouble(tr bus.Trouble) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trouble = append(b.trouble, tr)
	if !tr.Denied() {
		return
	}
	if b.expect > 0 {
		b.expect--
		return
	}
	b.t.Errorf("bustest: %s: %v", tr.Role, tr.Err)
}
