package witness_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/actors/witness"
	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/audit"
	"conclave/pkg/auditlog"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// hub is a system with an audit log that can be stopped, copied and started again.
type hub struct {
	t    *testing.T
	home bus.Home
	srv  *bus.Server
	bus  *bus.Bus
}

func newHub(t *testing.T) *hub {
	t.Helper()
	dir := t.TempDir()
	h := &hub{t: t, home: bus.Home{Data: filepath.Join(dir, "data"), Config: filepath.Join(dir, "config")}}
	if err := h.home.CreateFolders(); err != nil {
		t.Fatal(err)
	}
	h.start()
	return h
}

func (h *hub) start() {
	h.t.Helper()
	lasting, _ := subjects.Table().Roles()
	if _, err := h.home.Keys().Ensure(lasting); err != nil {
		h.t.Fatal(err)
	}
	srv, err := bus.StartServer(bus.ServerConfig{Store: h.home.Store()}, h.home.Keys(), nil)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { srv.Stop(context.Background()) })
	h.srv, h.bus = srv, &bus.Bus{URL: srv.URL(), Keys: h.home.Keys(), Server: srv}
	if err := auditlog.Provision(h.t.Context(), h.home, h.bus, srv.Provision); err != nil {
		h.t.Fatal(err)
	}
}

func (h *hub) stop() { h.srv.Stop(context.Background()) }

// record appends n records of the broker, in a chain of their own.
func (h *hub) record(n int) {
	h.t.Helper()
	nc := h.dial("broker")
	w, err := audit.Open(h.t.Context(), audit.Options{Account: "broker", Dir: h.home.Heads(), Log: bus.NewAuditLog(nc)})
	if err != nil {
		h.t.Fatal(err)
	}
	for range n {
		if err := w.Append(h.t.Context(), subjects.AuditRecord{
			ID: actor.NewID(), Phase: subjects.AuditBefore,
			AgentID: "generator", Action: subjects.ActionToolCall, Tool: "get_datetime",
			Status: subjects.StatusAllowed,
		}); err != nil {
			h.t.Fatal(err)
		}
	}
	if err := w.Close(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
}

func (h *hub) dial(role string) *nats.Conn {
	h.t.Helper()
	return bustest.Dial(h.t, h.bus, role)
}

// verify verifies the log of the hub with the heads of the witness, none = alone.
func (h *hub) verify(heads []string) audit.Report {
	h.t.Helper()
	var kept []audit.KeptHead
	for _, text := range heads {
		head, err := audit.ParseLogHead(text)
		if err != nil {
			h.t.Fatal(err)
		}
		kept = append(kept, audit.KeptHead{LogHead: head, Where: "the witness gpu-box"})
	}
	anchors, err := audit.ReadHeads(h.home.Heads())
	if err != nil {
		h.t.Fatal(err)
	}
	src, err := bus.NewAuditReader(h.dial("auditor")).ReadAll(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	rep, err := auditlog.VerifySource(h.t.Context(), h.home, src, anchors, kept)
	if err != nil {
		h.t.Fatal(err)
	}
	return rep
}

// snapshot copies the data folder, and restore puts it back in its place, both while the hub is stopped.
func (h *hub) snapshot(to string) {
	if err := os.CopyFS(to, os.DirFS(h.home.Data)); err != nil {
		h.t.Fatal(err)
	}
}

func (h *hub) restore(from string) {
	if err := os.RemoveAll(h.home.Data); err != nil {
		h.t.Fatal(err)
	}
	if err := os.Rename(from, h.home.Data); err != nil {
		h.t.Fatal(err)
	}
	for _, dir := range []string{h.home.Data, h.home.Keys().Dir} {
		if err := os.Chmod(dir, 0o700); err != nil {
			h.t.Fatal(err)
		}
	}
	entries, _ := filepath.Glob(filepath.Join(h.home.Data, "*", "*"))
	for _, e := range entries {
		if info, err := os.Stat(e); err == nil && info.Mode().IsRegular() {
			_ = os.Chmod(e, 0o600)
		}
	}
}

// machine is the server of another machine; its hub does not answer, and the tests read the hub directly.
type machine struct {
	t   *testing.T
	bus *bus.Bus
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	dir := t.TempDir()
	p := subjects.Principal{Name: "gpu-box", Kind: subjects.MachinePrincipal, Actors: []string{"witness"}}
	seeds, keys := bus.Keys{Dir: filepath.Join(dir, "seeds")}, bus.Keys{Dir: filepath.Join(dir, "keys")}
	roles, err := bus.LeafRoles(p)
	if err != nil {
		t.Fatal(err)
	}
	for k, names := range map[bus.Keys][]string{seeds: p.Accounts(), keys: roles} {
		if _, err := k.Ensure(names); err != nil {
			t.Fatal(err)
		}
	}
	srv, err := bus.StartLeaf(bus.LeafConfig{
		Machine: p, Address: "127.0.0.1:1", Seeds: seeds,
		Store: filepath.Join(dir, "jetstream"),
	}, keys, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { srv.Stop(context.Background()) })
	return &machine{t, &bus.Bus{URL: srv.URL(), Keys: keys, Server: srv}}
}

// heads starts a witness of h on the machine, requests its heads and stops it.
func (m *machine) heads(h *hub) subjects.WitnessHeads {
	m.t.Helper()
	nc, err := m.bus.Dial(subjects.WitnessStore)
	if err != nil {
		m.t.Fatal(err)
	}
	defer nc.Close()
	store, err := witness.OpenStore(m.t.Context(), nc, 1<<30)
	if err != nil {
		m.t.Fatal(err)
	}
	w := witness.New(bus.NewAuditReader(h.dial("auditor")), store, time.Hour)
	rec := &actortest.Recorder{}
	if err := w.Start(m.t.Context(), rec.Out()); err != nil {
		m.t.Fatal(err)
	}
	defer w.Close(m.t.Context())
	body, err := rec.Deliver(m.t, w, actortest.Message{Subject: "witness.head", Body: subjects.Empty{}})
	if err != nil {
		m.t.Fatal(err)
	}
	var reply subjects.WitnessHeads
	if err := json.Unmarshal([]byte(body), &reply); err != nil {
		m.t.Fatal(err)
	}
	return reply
}

// The copy has the head of the hub's log, and grows with it, over restarts of both.
func TestWitnessCopiesTheLog(t *testing.T) {
	t.Parallel()
	h, m := newHub(t), newMachine(t)
	for i := range 3 {
		h.record(5)
		got := m.heads(h)
		if want := h.verify(nil).Head.String(); len(got.Heads) != 1 || got.Heads[0] != want || got.Conflict != "" {
			t.Fatalf("round %d: %+v, want %s", i, got, want)
		}
		if rep := h.verify(got.Heads); !rep.OK {
			t.Fatalf("round %d: %v", i, rep.First)
		}
		h.stop()
		h.start()
	}
}

// A hub whose log was rolled back together with its anchors verifies by itself. The witness shows the rollback, at once
// and also after the log has grown beyond the copy.
func TestWitnessFindsRollback(t *testing.T) {
	t.Parallel()
	h, m := newHub(t), newMachine(t)
	h.record(5)
	h.stop()
	old := filepath.Join(t.TempDir(), "old")
	h.snapshot(old)
	h.start()
	h.record(5)
	before := m.heads(h)
	h.stop()
	h.restore(old)
	h.start()

	if rep := h.verify(nil); !rep.OK {
		t.Fatalf("the hub alone finds it, so this test shows nothing: %v", rep.First)
	}
	got := m.heads(h)
	if len(got.Heads) != 1 || got.Heads[0] != before.Heads[0] || !strings.Contains(got.Conflict, "rolled back") {
		t.Errorf("%+v, want the head %s", got, before.Heads[0])
	}
	if rep := h.verify(got.Heads); rep.OK || !strings.Contains(rep.First.String(), "rolled back") ||
		!strings.Contains(rep.First.String(), "gpu-box") {
		t.Errorf("%v", rep.First)
	}

	h.record(20)
	if rep := h.verify(nil); !rep.OK {
		t.Fatalf("the hub alone: %v", rep.First)
	}
	got = m.heads(h)
	if got.Heads[0] != before.Heads[0] || !strings.Contains(got.Conflict, "changed or replaced") {
		t.Errorf("after the log has grown: %+v", got)
	}
	if rep := h.verify(got.Heads); rep.OK || !strings.Contains(rep.First.String(), "does not match") {
		t.Errorf("after the log has grown: %v", rep.First)
	}
}

// After a rotation the witness begins a copy of the new log and keeps that of the sealed one; a hub that returns to the
// sealed log is found.
func TestWitnessFollowsRotation(t *testing.T) {
	t.Parallel()
	h, m := newHub(t), newMachine(t)
	h.record(5)
	first := m.heads(h)
	h.stop()
	old := filepath.Join(t.TempDir(), "old")
	h.snapshot(old)
	if _, err := auditlog.Rotate(t.Context(), h.home, bus.ServerConfig{Store: h.home.Store()}, nil); err != nil {
		t.Fatal(err)
	}
	h.start()
	h.record(5)
	got := m.heads(h)
	if len(got.Heads) != 2 || got.Heads[0] != first.Heads[0] || got.Conflict != "" {
		t.Fatalf("%+v, want %s first", got, first.Heads[0])
	}
	if rep := h.verify(got.Heads); !rep.OK {
		t.Errorf("%v", rep.First)
	}
	h.stop()
	h.restore(old)
	h.start()
	if rep := h.verify(nil); !rep.OK {
		t.Fatalf("the hub alone finds it: %v", rep.First)
	}
	if rep := h.verify(m.heads(h).Heads); rep.OK || !strings.Contains(rep.First.String(), "rolled back or replaced") {
		t.Errorf("%v", rep.First)
	}
}
