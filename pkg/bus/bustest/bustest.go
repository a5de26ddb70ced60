// Package bustest runs a real NATS server with the real permissions for one test, with its own keys, store and port. An
// unexpected permission violation fails the test.
package bustest

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"conclave/pkg/audit"
	"conclave/pkg/bus"
	"conclave/pkg/datatest"
	"conclave/subjects"
)

// Bus is a server for one test.
type Bus struct {
	*bus.Bus
	Dir string

	t          testing.TB
	mu         sync.Mutex
	expected   int // violations that the test has announced and that have not occurred
	connErrors []bus.ConnError
}

// collectLess lets garbage grow to four times what is in use: tests start a server each, and collecting what these
// leave is a tenth of their processor time.
var collectLess = sync.OnceFunc(func() { debug.SetGCPercent(400) })

// Start runs a provisioned server with an anchored genesis, all lasting keys, and its own store and port; it stops with
// the test. configure may change its configuration. The test fails on a permission violation that it did not announce,
// and on an announced one that did not occur.
func Start(t testing.TB, configure ...func(*bus.ServerConfig)) *Bus {
	t.Helper()
	collectLess()
	b := &Bus{t: t, Dir: datatest.Dir(t)}
	keys := bus.Keys{Dir: filepath.Join(b.Dir, "keys")}
	lasting, _ := subjects.Table().Roles()
	if _, err := keys.Ensure(lasting); err != nil {
		t.Fatal(err)
	}
	cfg := bus.ServerConfig{Store: filepath.Join(b.Dir, "jetstream"), Listen: ReservePort(t)} // it may restart
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
	t.Cleanup(b.awaitViolations)
	b.Bus = &bus.Bus{URL: srv.URL(), Keys: keys, Server: srv, OnConnError: b.handleConnError}
	return b
}

// Heads returns the folder of the audit anchors.
func (b *Bus) Heads() string { return filepath.Join(b.Dir, "heads") }

// Connect connects a role with its real permissions, or fails the test; the connection closes with the test.
func (b *Bus) Connect(role string, opts ...nats.Option) *nats.Conn {
	b.t.Helper()
	return Dial(b.t, b.Bus, role, opts...)
}

// Dial is [Bus.Connect] for a bus that another package started.
func Dial(t testing.TB, b *bus.Bus, role string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := b.Dial(role, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// AwaitEvents waits until EVENTS has every event that was acknowledged: authors publish to streams of their own, from
// which EVENTS takes them, except for the broker's copies of calls and results, which it stores itself. It may be used
// on a store that began empty only.
func (b *Bus) AwaitEvents() {
	b.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		stored, published, err := b.countEvents()
		switch {
		// the test may end while another goroutine waits; for the same reason it is not Fatal
		case b.t.Context().Err() != nil, err == nil && stored == published:
			return
		case err != nil:
			b.t.Error(err)
			return
		case time.Now().After(deadline):
			b.t.Errorf("bustest: EVENTS has %d of %d events", stored, published)
			return
		}
	}
}

// countEvents returns the number of events in EVENTS, and of those that were published until then.
func (b *Bus) countEvents() (stored, published uint64, err error) {
	nc, err := b.Dial("user")
	if err != nil {
		return 0, 0, err
	}
	defer nc.Close()
	type state struct {
		Last     uint64            `json:"last_seq"`
		Subjects map[string]uint64 `json:"subjects"` // messages by subject
	}
	read := func(stream, filter string) (state, error) {
		m, err := nc.Request("core.API.STREAM.INFO."+stream, []byte(`{"subjects_filter":"`+filter+`"}`), time.Minute)
		if err != nil {
			return state{}, err
		}
		var reply struct{ State state }
		return reply.State, json.Unmarshal(m.Data, &reply)
	}
	for _, st := range subjects.Table().Streams {
		if !strings.HasPrefix(st.Name, subjects.EventStream("")) {
			continue
		}
		of, err := read(st.Name, "")
		if err != nil {
			return 0, 0, err
		}
		published += of.Last
	}
	events, err := read("EVENTS", "from.broker.tool.>")
	for _, n := range events.Subjects {
		published += n
	}
	return events.Last, published, err
}

// ExpectViolations announces n permission violations that the test causes.
func (b *Bus) ExpectViolations(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expected += n
}

// AllowParallel lets n tests of this process run at once, unless -parallel says otherwise: tests on a bus wait for
// servers more than they compute. They also collect garbage less often. TestMain calls it before it runs the tests.
func AllowParallel(n int) {
	collectLess()
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(n))
	}
}

// ConnErrors returns the asynchronous connection errors so far.
func (b *Bus) ConnErrors() []bus.ConnError {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]bus.ConnError(nil), b.connErrors...)
}

// awaitViolations fails a test whose announced violations did not all occur, because the server then permits too much.
// It waits up to 20 s, because violations are reported asynchronously.
func (b *Bus) awaitViolations() {
	left := func() int {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.expected
	}
	for deadline := time.Now().Add(20 * time.Second); left() > 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if n := left(); n > 0 {
		b.t.Errorf("bustest: %d announced violations did not occur", n)
	}
}

// handleConnError records an asynchronous error of a connection, and fails the test when it is a permission violation
// that the test has not announced.
func (b *Bus) handleConnError(tr bus.ConnError) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.connErrors = append(b.connErrors, tr)
	if !tr.IsDenied() {
		return
	}
	if b.expected > 0 {
		b.expected--
		return
	}
	b.t.Errorf("bustest: %s: %v", tr.Role, tr.Err)
}

// ConfirmSubscriptions flushes the subscriptions of nc and returns the permission violation if the server denied one.
// Only after it returns nil is an actor ready.
func ConfirmSubscriptions(ctx context.Context, nc *nats.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := nc.FlushWithContext(ctx); err != nil {
		return fmt.Errorf("flushing: %w", err)
	}
	if err := nc.LastError(); errors.Is(err, nats.ErrPermissionViolation) {
		return err
	}
	return nil
}

// CoreJetStream returns the JetStream of CORE for an account without streams.
func CoreJetStream(nc *nats.Conn) (jetstream.JetStream, error) {
	return jetstream.NewWithAPIPrefix(nc, bus.CoreAPI)
}
