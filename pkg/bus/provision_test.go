package bus_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// TestSecondProvisionFails: the provisioners' keys are valid for one provisioning and wiped after it.
func TestSecondProvisionFails(t *testing.T) {
	t.Parallel()
	b := startBus(t)
	if err := b.Server.Provision(t.Context(), []byte("x")); err == nil ||
		!strings.Contains(err.Error(), "already done") {
		t.Errorf("second Provision: %v", err)
	}
	_, boot := subjects.Table().Roles()
	for _, r := range boot {
		if _, err := b.Keys.Seed(r); !errors.Is(err, bus.ErrMissingKey) {
			t.Errorf("%s has a key file: %v", r, err)
		}
	}
}

// TestProvisionOnExistingStoreChangesNothing: a second start on the same store changes nothing. An empty audit log
// without a genesis is rejected.
func TestProvisionOnExistingStoreChangesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := provisionOnce(t, dir, nil); !errors.Is(err, bus.ErrAuditLost) {
		t.Errorf("an empty audit log without a first record: %v, want ErrAuditLost", err)
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

// TestProvisionDoesNotWaitForLateSource: a stream that EVENTS has looked for before it was there is a source at once,
// and not when the server looks again, after 12 s. Events before and after are stored once.
func TestProvisionDoesNotWaitForLateSource(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	emit := func(b *bus.Bus, role, subject string) {
		t.Helper()
		if _, err := bustest.Dial(t, b, role).Request(subject, []byte("{}"), testTimeout); err != nil {
			t.Fatal(err)
		}
	}
	b := startUnprovisioned(t, dir)
	if err := b.Server.Provision(t.Context(), []byte("genesis")); err != nil {
		t.Fatal(err)
	}
	emit(b, "generator", "response.generation")
	awaitEvents(t, b, 1)
	b.Server.Stop(context.Background())
	found, err := filepath.Glob(filepath.Join(dir, "jetstream", "jetstream", "CORE", "streams", "EVENTS_critic"))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	if err := os.RemoveAll(found[0]); err != nil {
		t.Fatal(err)
	}

	b = startUnprovisioned(t, dir)
	user := bustest.Dial(t, b, "user")
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for hasFailed := false; !hasFailed; {
		if ctx.Err() != nil {
			t.Fatal("no source of EVENTS failed")
		}
		m, err := user.Request("core.API.STREAM.INFO.EVENTS", nil, testTimeout)
		if err != nil {
			t.Fatal(err)
		}
		var info jetstream.StreamInfo
		if err := json.Unmarshal(m.Data, &info); err != nil {
			t.Fatal(err)
		}
		hasFailed = slices.ContainsFunc(info.Sources, func(s *jetstream.StreamSourceInfo) bool {
			return s.Error != nil
		})
	}
	began := time.Now()
	if err := b.Server.Provision(t.Context(), []byte("genesis")); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took >= 5*time.Second { // half of that is what a slow machine takes
		t.Errorf("provisioning took %s: it waited for the server's next attempt", took)
	}
	emit(b, "critic", "critique.result")
	emit(b, "generator", "response.generation")
	awaitEvents(t, b, 3)
}

// awaitEvents waits until EVENTS has n messages.
func awaitEvents(t *testing.T, b *bus.Bus, n uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for {
		has := readStreamStates(t, b)["EVENTS"].Msgs
		if has == n {
			return
		}
		if has > n || ctx.Err() != nil {
			t.Fatalf("EVENTS has %d messages, want %d", has, n)
		}
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
		c := bustest.Dial(t, b, role)
		*nc = c
	}
	return h.streamStates()
}

// TestProvisionRejectsAlteredAuditStream: a stream whose settings could lose, rewrite or add records is rejected as
// audit log.
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
			c.SubjectTransform = &jetstream.SubjectTransformConfig{
				Source:      "audit.*.*",
				Destination: "audit.broker.{{wildcard(2)}}",
			}
		}, false},
		{"takes records of another stream", func(c *jetstream.StreamConfig) {
			c.Sources = []*jetstream.StreamSource{{Name: "FORGED"}}
		}, false},
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
	if err := opts.ProcessConfigString(fmt.Sprintf("listen: \"127.0.0.1:-1\"\njetstream { store_dir: %q, max_mem: "+
		"16MB, max_file: 1TB }\naccounts { %s { jetstream: enabled, users: [{ user: x, password: x }] } }\n", store,
		account)); err != nil {
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

// TestEventsOfSharedStreamMoveUnderQuotas: a store from a build in which all authors published to EVENTS itself opens.
// Its events stay, with their sequences, consumers and the last event that each consumer had acknowledged; new ones
// follow.
func TestEventsOfSharedStreamMoveUnderQuotas(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	js, stop := startPlainServer(t, filepath.Join(dir, "jetstream"), subjects.Core)
	old := jetstream.StreamConfig{
		Name: "EVENTS", Subjects: []string{"from.*.>"}, MaxBytes: 1 << 30,
		MaxAge: 90 * 24 * time.Hour, Duplicates: 2 * time.Minute, MaxMsgSize: 1 << 20, RePublish: &jetstream.RePublish{
			Source: "from.*.>", Destination: "live.>",
		},
	}
	if _, err := js.CreateStream(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	c, err := js.CreateConsumer(t.Context(), "EVENTS", jetstream.ConsumerConfig{
		Durable:   "critic",
		AckPolicy: jetstream.AckExplicitPolicy, MaxWaiting: 64, FilterSubjects: []string{"from.*.response.generation"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if _, err := js.Publish(t.Context(), "from.generator.response.generation",
			fmt.Appendf(nil, "%d", i)); err != nil {
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
		if m, err := live.NextMsg(testTimeout); err != nil || string(m.Data) != "new" ||
			m.Header.Values("Nats-Sequence")[len(m.Header.Values("Nats-Sequence"))-1] != fmt.Sprint(11+start) {
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

// TestCopiesMoveToEvents: a store from a build in which the copies of calls entered EVENTS by the stream of the broker
// opens. They are stored once from then on.
func TestCopiesMoveToEvents(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	js, stop := startPlainServer(t, filepath.Join(dir, "jetstream"), subjects.Core)
	for _, c := range []jetstream.StreamConfig{
		{Name: "EVENTS_broker", Subjects: []string{"from.broker.tool.request.>", "from.broker.tool.result.*"}},
		{Name: "EVENTS", Sources: []*jetstream.StreamSource{{Name: "EVENTS_broker"}}},
	} {
		if _, err := js.CreateStream(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := js.Publish(t.Context(), "from.broker.tool.result.x", []byte("old")); err != nil {
		t.Fatal(err)
	}
	stop()
	b := startUnprovisioned(t, dir)
	if err := b.Server.Provision(t.Context(), []byte("first")); err != nil {
		t.Fatal(err)
	}
	nc, err := b.Dial("broker")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	r, err := nc.Request("event.tool.result.x", []byte("new"), testTimeout)
	if err != nil || !strings.Contains(string(r.Data), `"stream":"EVENTS"`) {
		t.Errorf("a copy was acknowledged by %s, %v", r.Data, err)
	}
	user, err := b.Dial("user")
	if err != nil {
		t.Fatal(err)
	}
	defer user.Close()
	for stream, want := range map[string]int{"EVENTS": 2, "EVENTS_broker": 1} {
		holds := fmt.Sprintf(`"messages":%d,`, want)
		for end := time.Now().Add(testTimeout); ; {
			r, err := user.Request("core.API.STREAM.INFO."+stream, nil, testTimeout)
			if err == nil && strings.Contains(string(r.Data), holds) {
				break
			}
			if err != nil || time.Now().After(end) {
				t.Fatalf("%s is %s, %v, want %s", stream, r.Data, err, holds)
			}
		}
	}
}

// forgeAuditStream creates an audit stream with other settings, as an attacker who can write the disk could, with a
// record in it. Without settings it only returns those of the existing stream.
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
