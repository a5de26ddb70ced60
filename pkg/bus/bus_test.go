package bus_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// TestGeneratedFilesMatchTable checks that the generated files match the table.
func TestGeneratedFilesMatchTable(t *testing.T) {
	t.Parallel()
	l := subjects.Table()
	for name, want := range map[string]string{"nats.conf": l.Conf(), "docs/bus.md": l.Doc()} {
		got, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s is not what the table says: run go generate ./subjects", name)
		}
	}
}

func TestEnsureNeverRewritesKeys(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "keys")
	k := bus.Keys{Dir: dir}
	roles := []string{"user", "broker"}
	if n, err := k.Ensure(roles); err != nil || n != 2 {
		t.Fatalf("Ensure = %d, %v", n, err)
	}
	checkMode(t, dir, 0o700)
	before := map[string]string{}
	for _, r := range roles {
		checkMode(t, k.Path(r), 0o600)
		before[r] = readAuditMessages(t, k.Path(r))
	}
	if before["user"] == before["broker"] {
		t.Error("two roles have one key")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}

	// Never rewritten, not even a damaged one: the user must decide.
	if err := os.WriteFile(k.Path("broker"), []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := k.Ensure(append(roles, "critic")); err != nil || n != 1 {
		t.Errorf("second Ensure = %d, %v, want the one that was missing", n, err)
	}
	if got := readAuditMessages(t, k.Path("user")); got != before["user"] {
		t.Error("an existing key was rewritten")
	}
	if got := readAuditMessages(t, k.Path("broker")); got != "broken" {
		t.Error("a damaged key was rewritten")
	}
	if _, err := k.Seed("broker"); err == nil || !strings.Contains(err.Error(), k.Path("broker")) || !strings.Contains(err.Error(), "damaged") || strings.Contains(err.Error(), "broken") {
		t.Errorf("a damaged file: %v, want its name and not its content", err)
	}
	if _, err := k.Seed("nobody"); !errors.Is(err, bus.ErrMissingKey) || !strings.Contains(err.Error(), k.Path("nobody")) {
		t.Errorf("a missing file: %v, want ErrMissingKey and its name", err)
	}
	pub, err := k.Public("user")
	if err != nil || !strings.HasPrefix(pub, "U") {
		t.Errorf("Public = %q, %v", pub, err)
	}
}

func TestSeedRejectsReadableKeyFile(t *testing.T) {
	t.Parallel()
	k := bus.Keys{Dir: t.TempDir()}
	if _, err := k.Ensure([]string{"user"}); err != nil {
		t.Fatal(err)
	}
	for _, m := range []fs.FileMode{0o640, 0o604, 0o620, 0o660, 0o666, 0o601} {
		if err := os.Chmod(k.Path("user"), m); err != nil {
			t.Fatal(err)
		}
		if _, err := k.Seed("user"); err == nil || !strings.Contains(err.Error(), "chmod 600") || !strings.Contains(err.Error(), k.Path("user")) {
			t.Errorf("mode %o: %v, want a refusal that says what to do", m, err)
		}
	}
	for _, m := range []fs.FileMode{0o600, 0o400} { // the control
		if err := os.Chmod(k.Path("user"), m); err != nil {
			t.Fatal(err)
		}
		if _, err := k.Seed("user"); err != nil {
			t.Errorf("mode %o: %v", m, err)
		}
	}
}

// TestConcurrentEnsureSharesKeys: concurrent first starts end up with the same complete keys.
func TestConcurrentEnsureSharesKeys(t *testing.T) {
	t.Parallel()
	k := bus.Keys{Dir: filepath.Join(t.TempDir(), "keys")}
	lasting, _ := subjects.Table().Roles()
	const starts = 4
	seen := make([]map[string]string, starts)
	var wg sync.WaitGroup
	for i := range starts {
		wg.Go(func() {
			if _, err := k.Ensure(lasting); err != nil {
				t.Error(err)
				return
			}
			seen[i] = map[string]string{}
			for _, r := range lasting {
				pub, err := k.Public(r)
				if err != nil {
					t.Error(err)
				}
				seen[i][r] = pub
			}
		})
	}
	wg.Wait()
	for i := range starts {
		for _, r := range lasting {
			if seen[i][r] != seen[0][r] {
				t.Errorf("start %d has another key for %s", i, r)
			}
		}
	}
}

func checkMode(t *testing.T, path string, want fs.FileMode) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != want {
		t.Errorf("%s has mode %o, want %o", path, got, want)
	}
}

func readAuditMessages(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestDialErrorsAreDistinct: each failure to connect has its own error, which names the role.
func TestDialErrorsAreDistinct(t *testing.T) {
	t.Parallel()
	b := startBus(t)
	strange := bus.Keys{Dir: filepath.Join(t.TempDir(), "keys")}
	if _, err := strange.Ensure([]string{"generator"}); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // an address at which nobody will answer
	if err != nil {
		t.Fatal(err)
	}
	dead := "nats://" + l.Addr().String()
	l.Close()
	for _, tt := range []struct {
		name string
		bus  *bus.Bus
		want error
	}{
		{"key of another installation", &bus.Bus{URL: b.URL, Keys: strange, Server: b.Server, TCP: true}, bus.ErrKeyRejected},
		{"nobody there", &bus.Bus{URL: dead, Keys: b.Keys}, bus.ErrUnreachable},
		{"no key file", &bus.Bus{URL: b.URL, Keys: bus.Keys{Dir: t.TempDir()}}, bus.ErrMissingKey},
	} {
		nc, err := tt.bus.Dial("generator")
		if err == nil {
			nc.Close()
			t.Errorf("%s: connected", tt.name)
			continue
		}
		for _, other := range []error{bus.ErrKeyRejected, bus.ErrUnreachable, bus.ErrMissingKey} {
			if errors.Is(err, other) != (other == tt.want) {
				t.Errorf("%s: %v: is %v = %v", tt.name, err, other, errors.Is(err, other))
			}
		}
		if !strings.Contains(err.Error(), "generator") {
			t.Errorf("%s: %v does not name the role", tt.name, err)
		}
	}
	nc, err := b.Dial("generator") // the control
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
}

func TestStartServerReportsPortTaken(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := t.TempDir()
	keys := bus.Keys{Dir: filepath.Join(dir, "keys")}
	lasting, _ := subjects.Table().Roles()
	if _, err := keys.Ensure(lasting); err != nil {
		t.Fatal(err)
	}
	_, err = bus.StartServer(bus.ServerConfig{Listen: l.Addr().String(), Store: filepath.Join(dir, "jetstream")}, keys, nil)
	if !errors.Is(err, bus.ErrPortTaken) || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("%v, want ErrPortTaken and the address", err)
	}
}

// TestConfirmSubscriptionsReportsDenial: a denied subscription is reported before the actor is ready.
func TestConfirmSubscriptionsReportsDenial(t *testing.T) {
	t.Parallel()
	b := startBus(t)
	troubles := make(chan bus.ConnError, 8)
	b.OnConnError = func(tr bus.ConnError) { troubles <- tr }
	nc, err := b.Dial("critic")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := nc.SubscribeSync("tool.request.compare_answers"); err != nil {
		t.Fatal(err)
	}
	if err := bustest.ConfirmSubscriptions(t.Context(), nc); err != nil {
		t.Errorf("its own tool: %v", err)
	}
	if _, err := nc.SubscribeSync("tool.request.run_shell"); err != nil {
		t.Fatal(err)
	}
	if err := bustest.ConfirmSubscriptions(t.Context(), nc); !errors.Is(err, nats.ErrPermissionViolation) {
		t.Errorf("another's tool: %v, want a permission violation", err)
	}
	select {
	case tr := <-troubles:
		if !tr.IsDenied() || tr.Role != "critic" {
			t.Errorf("heard of %+v, want a denial of critic", tr)
		}
	case <-time.After(testTimeout):
		t.Error("nobody heard of the violation")
	}
}

// TestRestartKeepsStreamsAndClients: port, streams, acknowledged messages and clients survive.
func TestRestartKeepsStreamsAndClients(t *testing.T) {
	t.Parallel()
	b := startBus(t)
	url := b.Server.URL()
	type client struct {
		nc   *nats.Conn
		back chan struct{}
	}
	var clients []client
	for _, tcp := range []bool{false, true} {
		for _, role := range []string{"generator", "user"} {
			back := make(chan struct{}, 8)
			c := &bus.Bus{URL: b.URL, Keys: b.Keys, Server: b.Server, TCP: tcp}
			nc, err := c.Dial(role, nats.ReconnectHandler(func(*nats.Conn) { back <- struct{}{} }))
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			clients = append(clients, client{nc, back})
		}
	}
	sub, err := clients[3].nc.SubscribeSync("response.generation")
	if err != nil {
		t.Fatal(err)
	}
	if err := bustest.ConfirmSubscriptions(t.Context(), clients[3].nc); err != nil {
		t.Fatal(err)
	}
	const acked = 50
	for i := range acked {
		if _, err := clients[0].nc.Request("response.generation", fmt.Appendf(nil, "%d", i), testTimeout); err != nil {
			t.Fatal(err)
		}
	}

	if err := b.Server.Restart(); err != nil {
		t.Fatal(err)
	}
	if got := b.Server.URL(); got != url {
		t.Errorf("listens at %s, was %s", got, url)
	}
	for i, c := range clients {
		select {
		case <-c.back:
		case <-time.After(testTimeout):
			t.Fatalf("client %d does not come back: %v", i, c.nc.LastError())
		}
		if err := c.nc.FlushTimeout(testTimeout); err != nil { // its subscriptions are known to the new server too
			t.Fatal(err)
		}
	}
	js, err := bustest.CoreJetStream(clients[1].nc)
	if err != nil {
		t.Fatal(err)
	}
	st, err := js.Stream(t.Context(), "EVENTS")
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(testTimeout); st.CachedInfo().State.Msgs < acked && time.Now().Before(end); {
		if _, err := st.Info(t.Context()); err != nil { // EVENTS continues to take the events of their author
			t.Fatal(err)
		}
	}
	if got := st.CachedInfo().State; got.Msgs != acked || got.LastSeq != acked {
		t.Errorf("%d messages up to %d, want the %d that were acknowledged", got.Msgs, got.LastSeq, acked)
	}
	m, err := st.GetMsg(t.Context(), acked)
	if err != nil || string(m.Data) != fmt.Sprint(acked-1) || m.Subject != "from.generator.response.generation" {
		t.Errorf("the last one is %v, %v", m, err)
	}
	// Both kinds of client publish and receive as before, with the same permissions.
	for i := range 2 {
		if _, err := clients[2*i].nc.Request("response.generation", []byte("after"), testTimeout); err != nil {
			t.Error(err)
		}
	}
	for heard := 0; heard < acked+2; heard++ {
		if _, err := sub.NextMsg(testTimeout); err != nil {
			t.Fatalf("heard %d: %v", heard, err)
		}
	}
	if err := b.Server.Provision(t.Context(), []byte("x")); err == nil {
		t.Error("a restart brought the provisioners' keys back")
	}
	b.Server.Stop(context.Background())
	if err := b.Server.Restart(); err == nil {
		t.Error("restarted after a stop for good")
	}
}

// TestSecondProvisionFails: the provisioners' keys are valid for one provisioning and wiped after it.
func TestSecondProvisionFails(t *testing.T) {
	t.Parallel()
	b := startBus(t)
	if err := b.Server.Provision(t.Context(), []byte("x")); err == nil || !strings.Contains(err.Error(), "already done") {
		t.Errorf("second Provision: %v", err)
	}
	_, boot := subjects.Table().Roles()
	for _, r := range boot {
		if _, err := b.Keys.Seed(r); !errors.Is(err, bus.ErrMissingKey) {
			t.Errorf("%s has a key file: %v", r, err)
		}
	}
}

// TestProvisionOnExistingStoreChangesNothing: a second start on the same store changes nothing. An empty audit log without a genesis is
// rejected.
func TestProvisionOnExistingStoreChangesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := provisionOnce(t, dir, nil); !errors.Is(err, bus.ErrAuditLost) {
		t.Errorf("an empty trail without a first record: %v, want ErrTrailLost", err)
	}
	if err := provisionOnce(t, dir, []byte("first")); err != nil {
		t.Fatal(err)
	}
	var before map[string]streamState
	for i := range 3 {
		b := startUnprovisioned(t, dir)
		if err := b.Server.Provision(t.Context(), []byte("another first")); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			nc, err := b.Dial("generator")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := nc.Request("response.generation", []byte("{}"), testTimeout); err != nil {
				t.Fatal(err)
			}
			nc.Close()
		}
		now := readStreamStates(t, b)
		if before != nil {
			for name, s := range now {
				was := before[name]
				if s.Msgs != was.Msgs || s.Last != was.Last || s.Consumers != was.Consumers || s.Config != was.Config {
					t.Errorf("start %d: %s is %+v, was %+v", i, name, s, was)
				}
			}
		}
		before = now
		b.Server.Stop(context.Background())
	}
	if s := before[subjects.Audit]; s.Msgs != 1 || s.Subjects["audit.AUDIT.genesis"] != 1 {
		t.Errorf("the audit log holds %+v, want its first record once", s)
	}
	if s := before["EVENTS"]; s.Msgs != 1 {
		t.Errorf("EVENTS holds %+v, want one message", s)
	}
}

// startUnprovisioned starts a server on a folder, not yet provisioned.
func startUnprovisioned(t testing.TB, dir string) *bus.Bus {
	t.Helper()
	keys := bus.Keys{Dir: filepath.Join(dir, "keys")}
	lasting, _ := subjects.Table().Roles()
	if _, err := keys.Ensure(lasting); err != nil {
		t.Fatal(err)
	}
	srv, err := bus.StartServer(bus.ServerConfig{Store: filepath.Join(dir, "jetstream")}, keys, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { srv.Stop(context.Background()) })
	return &bus.Bus{URL: srv.URL(), Keys: keys, Server: srv}
}

// provisionOnce starts, provisions and stops.
func provisionOnce(t *testing.T, dir string, genesis []byte) error {
	t.Helper()
	b := startUnprovisioned(t, dir)
	defer b.Server.Stop(context.Background())
	return b.Server.Provision(t.Context(), genesis)
}

// readStreamStates reads the state of every stream.
func readStreamStates(t *testing.T, b *bus.Bus) map[string]streamState {
	t.Helper()
	h := &harness{t: t, parent: t, b: b, table: subjects.Table()}
	for role, nc := range map[string]**nats.Conn{"user": &h.user, "auditor": &h.audit, "sys": &h.sys} {
		c, err := b.Dial(role)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		*nc = c
	}
	return h.streamStates()
}

// TestProvisionRejectsAlteredAuditStream: a stream whose settings could lose, rewrite or add records is rejected as audit log.
func TestProvisionRejectsAlteredAuditStream(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := provisionOnce(t, dir, []byte("first")); err != nil {
		t.Fatal(err)
	}
	real := forgeAuditStream(t, filepath.Join(dir, "jetstream"), jetstream.StreamConfig{})
	for _, tt := range []struct {
		name   string
		tamper func(c *jetstream.StreamConfig)
		ok     bool
	}{
		{"as it was", func(*jetstream.StreamConfig) {}, true},
		{"of another size", func(c *jetstream.StreamConfig) { c.MaxBytes = 64 << 20 }, true},
		{"keeps one record", func(c *jetstream.StreamConfig) { c.MaxMsgs = 1 }, false},
		{"keeps one record of each writer", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 }, false},
		{"forgets after an hour", func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }, false},
		{"forgets when a record says so", func(c *jetstream.StreamConfig) { c.AllowMsgTTL = true }, false},
		{"forgets the oldest when full", func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardOld }, false},
		{"forgets what is read", func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy }, false},
		{"may be deleted from", func(c *jetstream.StreamConfig) { c.DenyDelete = false }, false},
		{"may be purged", func(c *jetstream.StreamConfig) { c.DenyPurge = false }, false},
		{"may be rolled up", func(c *jetstream.StreamConfig) { c.DenyPurge, c.AllowRollup = false, true }, false},
		{"takes other subjects", func(c *jetstream.StreamConfig) { c.Subjects = append(c.Subjects, "other.>") }, false},
		{"misses records", func(c *jetstream.StreamConfig) { c.Subjects = []string{"audit.broker.*"} }, false},
		{"renames the writers", func(c *jetstream.StreamConfig) {
			c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: "audit.*.*", Destination: "audit.broker.{{wildcard(2)}}"}
		}, false},
		{"takes records of another stream", func(c *jetstream.StreamConfig) { c.Sources = []*jetstream.StreamSource{{Name: "FORGED"}} }, false},
		{"passes records on", func(c *jetstream.StreamConfig) {
			c.RePublish = &jetstream.RePublish{Source: ">", Destination: "copy.>"}
		}, false},
		{"says nothing when it cannot store", func(c *jetstream.StreamConfig) { c.NoAck = true }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			c := real
			tt.tamper(&c)
			forgeAuditStream(t, filepath.Join(dir, "jetstream"), c)
			switch err := provisionOnce(t, dir, []byte("another first")); {
			case tt.ok && err != nil:
				t.Errorf("refused: %v", err)
			case !tt.ok && err == nil:
				t.Error("taken for the audit log")
			case !tt.ok && !strings.Contains(err.Error(), subjects.Audit):
				t.Errorf("%v does not name the audit log", err)
			}
		})
	}
}

// startPlainServer starts a server without permissions on a store, with one account. The caller must call stop.
func startPlainServer(t *testing.T, store, account string) (js jetstream.JetStream, stop func()) {
	t.Helper()
	opts := &server.Options{}
	if err := opts.ProcessConfigString(fmt.Sprintf("listen: \"127.0.0.1:-1\"\njetstream { store_dir: %q, max_mem: 16MB, max_file: 1TB }\naccounts { %s { jetstream: enabled, users: [{ user: x, password: x }] } }\n", store, account)); err != nil {
		t.Fatal(err)
	}
	opts.NoSigs, opts.NoLog = true, true
	ns, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	if !ns.ReadyForConnections(testTimeout) {
		t.Fatal("not ready")
	}
	nc, err := nats.Connect(ns.ClientURL(), nats.UserInfo("x", "x"))
	if err != nil {
		t.Fatal(err)
	}
	if js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	return js, func() {
		nc.Close()
		ns.Shutdown()
		ns.WaitForShutdown()
	}
}

// TestEventsOfSharedStreamMoveUnderQuotas: a store from a build in which all authors published to EVENTS itself opens. Its
// events stay, with their sequences, consumers and the last event that each consumer had acknowledged; new ones follow.
func TestEventsOfSharedStreamMoveUnderQuotas(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	js, stop := startPlainServer(t, filepath.Join(dir, "jetstream"), subjects.Core)
	old := jetstream.StreamConfig{Name: "EVENTS", Subjects: []string{"from.*.>"}, MaxBytes: 1 << 30, MaxAge: 90 * 24 * time.Hour, Duplicates: 2 * time.Minute, MaxMsgSize: 1 << 20, RePublish: &jetstream.RePublish{Source: "from.*.>", Destination: "live.>"}}
	if _, err := js.CreateStream(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	c, err := js.CreateConsumer(t.Context(), "EVENTS", jetstream.ConsumerConfig{Durable: "critic", AckPolicy: jetstream.AckExplicitPolicy, MaxWaiting: 64, FilterSubjects: []string{"from.*.response.generation"}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if _, err := js.Publish(t.Context(), "from.generator.response.generation", fmt.Appendf(nil, "%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	m, err := c.Next(jetstream.FetchMaxWait(testTimeout))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.DoubleAck(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop()

	for start := range 2 {
		b := startUnprovisioned(t, dir)
		if err := b.Server.Provision(t.Context(), []byte("first")); err != nil {
			t.Fatal(err)
		}
		user, err := b.Dial("user")
		if err != nil {
			t.Fatal(err)
		}
		live, err := user.SubscribeSync("response.generation")
		if err != nil {
			t.Fatal(err)
		}
		if err := bustest.ConfirmSubscriptions(t.Context(), user); err != nil {
			t.Fatal(err)
		}
		generator, err := b.Dial("generator")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := generator.Request("response.generation", []byte("new"), testTimeout); err != nil {
			t.Fatal(err)
		}
		if m, err := live.NextMsg(testTimeout); err != nil || string(m.Data) != "new" || m.Header.Values("Nats-Sequence")[len(m.Header.Values("Nats-Sequence"))-1] != fmt.Sprint(11+start) {
			t.Fatalf("the event after %d others arrived as %v, %v", 10+start, m, err)
		}
		for seq, body := range map[int]string{1: "0", 10: "9", 11: "new"} {
			r, err := user.Request("core.API.STREAM.MSG.GET.EVENTS", fmt.Appendf(nil, `{"seq":%d}`, seq), testTimeout)
			if err != nil || !strings.Contains(string(r.Data), base64.StdEncoding.EncodeToString([]byte(body))) {
				t.Errorf("event %d is %v, %v, want %q", seq, r, err, body)
			}
		}
		critic, err := b.Dial("critic_in")
		if err != nil {
			t.Fatal(err)
		}
		r, err := critic.Request("core.API.CONSUMER.INFO.EVENTS.critic", nil, testTimeout)
		if err != nil || !strings.Contains(string(r.Data), `"ack_floor":{"consumer_seq":1,"stream_seq":1`) {
			t.Errorf("the consumer is %s, %v", r.Data, err)
		}
		for _, nc := range []*nats.Conn{user, generator, critic} {
			nc.Close()
		}
		b.Server.Stop(context.Background())
	}
}

// forgeAuditStream creates an audit stream with other settings, as an attacker who can write the disk could, with a record in it.
// Without settings it only returns those of the existing stream.
func forgeAuditStream(t *testing.T, store string, c jetstream.StreamConfig) jetstream.StreamConfig {
	t.Helper()
	js, stop := startPlainServer(t, store, subjects.Audit)
	defer stop()
	if c.Name == "" {
		st, err := js.Stream(t.Context(), subjects.Audit)
		if err != nil {
			t.Fatal(err)
		}
		return st.CachedInfo().Config
	}
	if _, err := js.CreateStream(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	// An audit log with a record is not treated as new.
	if err := js.Conn().Publish("audit.broker.x", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(testTimeout); ; {
		st, err := js.Stream(t.Context(), subjects.Audit)
		if err != nil {
			t.Fatal(err)
		}
		if st.CachedInfo().State.Msgs > 0 {
			return c
		}
		if time.Now().After(end) {
			t.Fatal("the record is not stored")
		}
	}
}

func TestWriteContextsKeepsOtherInstallation(t *testing.T) {
	t.Parallel()
	config := t.TempDir()
	mine, other := bus.Keys{Dir: t.TempDir()}, bus.Keys{Dir: t.TempDir()}
	for _, k := range []bus.Keys{mine, other} {
		if _, err := k.Ensure([]string{"user", "auditor"}); err != nil {
			t.Fatal(err)
		}
	}
	folder, err := bus.WriteContexts(config, mine, "nats://127.0.0.1:1", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bus.WriteContexts(config, other, "nats://127.0.0.1:2", ""); !errors.Is(err, bus.ErrOtherContext) {
		t.Errorf("another installation's contexts were taken over: %v", err)
	}
	// Neither is written when only the second is another's.
	first := filepath.Join(folder, "conclave.json")
	if err := os.Remove(first); err != nil {
		t.Fatal(err)
	}
	if _, err := bus.WriteContexts(config, other, "nats://127.0.0.1:2", ""); !errors.Is(err, bus.ErrOtherContext) {
		t.Errorf("another installation's audit context was taken over: %v", err)
	}
	if _, err := os.Stat(first); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("one of two contexts was written before the other was found to be foreign: %v", err)
	}
	if _, err := bus.WriteContexts(config, mine, "nats://127.0.0.1:3", ""); err != nil {
		t.Errorf("one's own contexts cannot be moved to a new address: %v", err)
	}
	if err := os.RemoveAll(mine.Dir); err != nil {
		t.Fatal(err)
	}
	if _, err := bus.WriteContexts(config, other, "nats://127.0.0.1:2", ""); err != nil {
		t.Errorf("contexts whose installation is gone stay for ever: %v", err)
	}
	b, err := os.ReadFile(filepath.Join(folder, "conclave-audit.json"))
	if err != nil || !strings.Contains(string(b), `"jetstream_api_prefix": "auditlog.API"`) {
		t.Errorf("the audit's context is %s, %v", b, err)
	}
	// A context of the user's own is kept, however it authenticates.
	for _, own := range []string{`{"description":"mine","url":"nats://elsewhere","user":"me"}`, `{"url":"nats://elsewhere","creds":"/a.creds"}`, `{"description":"Conclave's audit, read only","token":"x"}`, "not JSON", ""} {
		if err := os.WriteFile(filepath.Join(folder, "conclave-audit.json"), []byte(own), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := bus.WriteContexts(config, other, "nats://127.0.0.1:2", "")
		if b, _ := os.ReadFile(filepath.Join(folder, "conclave-audit.json")); !errors.Is(err, bus.ErrOtherContext) || string(b) != own {
			t.Errorf("the user's context %s became %s, %v", own, b, err)
		}
	}
}

// Only the default data folder has contexts in the user's home.
func TestNATSConfigOfTemporaryData(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_DATA_HOME", filepath.Join(dir, "data"))
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(dir, "config"))
	usual, err := bus.DefaultHome()
	if err != nil {
		t.Fatal(err)
	}
	for data, want := range map[string]string{usual.Data: filepath.Join(dir, "config"), "/tmp/x": "/tmp/x"} {
		if got, err := (bus.Home{Data: data}).NATSConfig(); got != want || err != nil {
			t.Errorf("%s: %s, %v", data, got, err)
		}
	}
}

func TestCreateFoldersRejectsWritableFolder(t *testing.T) {
	for _, which := range []string{"data", "config"} {
		dir := t.TempDir()
		home := bus.Home{Data: filepath.Join(dir, "data"), Config: filepath.Join(dir, "config")}
		if err := home.CreateFolders(); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, which), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := home.CreateFolders(); !errors.Is(err, bus.ErrFolderWritable) || !strings.Contains(err.Error(), "chmod 700") {
			t.Errorf("%s: %v", which, err)
		}
	}
}

// TestEnvIsSafeToSource has a data folder whose name would run a command if the file were quoted carelessly.
func TestEnvIsSafeToSource(t *testing.T) {
	dir := t.TempDir()
	home := bus.Home{Data: filepath.Join(dir, "a'; touch marker; '"), Config: filepath.Join(dir, "c")}
	if err := home.CreateFolders(); err != nil {
		t.Fatal(err)
	}
	lasting, boot := subjects.Table().Roles()
	if _, err := home.Keys().Ensure(append(lasting, boot...)); err != nil {
		t.Fatal(err)
	}
	if err := home.WriteEnv(bus.ServerConfig{Store: home.Store()}); err != nil {
		t.Fatal(err)
	}
	sh := exec.Command("sh", "-c", `. "$0" && printf %s "$CONCLAVE_STORE"`, home.Env())
	sh.Dir = dir
	out, err := sh.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if want := strconv.Quote(home.Store()); string(out) != want {
		t.Errorf("CONCLAVE_STORE is %s, want %s", out, want)
	}
	if _, err := os.Stat(filepath.Join(dir, "marker")); err == nil {
		t.Error("sourcing the file ran a command")
	}
}
