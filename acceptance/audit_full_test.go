package acceptance

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/micro"

	"conclave/config"
	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/pkg/auditlog"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// countRecords is how often the clock was reached, as discovery tells it.
func countRecords(t testing.TB, b *bus.Bus) int {
	t.Helper()
	nc := bustest.Dial(t, b, "user")
	defer nc.Close()
	m, err := nc.Request("$SRV.STATS.get_datetime", nil, testTimeout)
	if err != nil {
		t.Fatal(err)
	}
	var s micro.Stats
	if err := json.Unmarshal(m.Data, &s); err != nil {
		t.Fatal(err)
	}
	return s.Endpoints[0].NumRequests
}

// countAllowed counts the calls that the audit log says were let through.
func countAllowed(t testing.TB, msgs []audit.Stored) (n int) {
	t.Helper()
	for _, m := range msgs {
		for _, rec := range decoded(t, m) {
			if rec.Phase == subjects.AuditBefore && rec.Status == subjects.StatusAllowed {
				n++
			}
		}
	}
	return n
}

// TestStoreFull fills the audit: from then on nothing runs, until it is rotated. Then everything goes on, and the old
// readAuditLog stands sealed beside the new one.
func TestStoreFull(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	cfg := settings(t, "system.audit_max", "1MB") // the least there is
	r := up(t, cfg, home, config.Actors...)
	start := time.Now()

	var ok, withheld, refused atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		p := dialOperator(t, r.Bus)
		wg.Go(func() {
			for range 10_000 {
				res := p.callTool(t.Context(), "get_datetime", actor.NewID(), utc)
				switch {
				case res.Error == nil:
					ok.Add(1)
				case res.Error.Code == subjects.CodeUnrecorded:
					withheld.Add(1)
				case res.Error.Code == subjects.CodeNoAudit:
					if !strings.Contains(res.Error.Text, "conclave audit rotate") {
						t.Errorf("told %q", res.Error.Text)
					}
					if refused.Add(1) >= 64 { // one call may not fit where a smaller one still does
						return
					}
				default:
					t.Errorf("told %v", res.Error)
					return
				}
			}
		})
	}
	wg.Wait()
	runs, befores := countRecords(t, r.Bus), countAllowed(t, bustest.ReadAuditLog(t, r.Bus))
	t.Logf("full after %s: %d ok, %d withheld, %d refused; %d runs, %d on record",
		time.Since(start).Round(time.Millisecond), ok.Load(), withheld.Load(), refused.Load(), runs, befores)
	if refused.Load() == 0 {
		t.Fatal("never full")
	}
	if int64(runs) != ok.Load()+withheld.Load() || runs != befores {
		t.Errorf("%d runs, %d answered, %d on record: something ran unaudited", runs, ok.Load()+withheld.Load(),
			befores)
	}
	before := verified(t, home, r.Bus)
	if int64(before.Pending) != withheld.Load() {
		t.Errorf("%d without an outcome, %d were withheld", before.Pending, withheld.Load())
	}

	// Not while it runs.
	if _, err := auditlog.Rotate(t.Context(), home, cfg.ServerConfig(home), nil); !errors.Is(err, bus.ErrInUse) {
		t.Fatalf("rotated while running: %v", err)
	}
	down(t, r)
	oldHeads, err := audit.ReadHeads(home.Heads())
	if err != nil {
		t.Fatal(err)
	}
	rot, err := auditlog.Rotate(t.Context(), home, cfg.ServerConfig(home), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !rot.Report.OK || rot.Records != before.Records {
		t.Errorf("sealed %+v, there were %d records", rot, before.Records)
	}

	r = up(t, cfg, home, config.Actors...)
	calls(t, r.Bus, 5)
	rep := verified(t, home, r.Bus)
	g := rep.Genesis
	if g == nil || g.Sealed != filepath.Base(rot.Sealed) || g.SHA256 != rot.SHA256 ||
		g.LastSeq != uint64(before.Messages) {
		t.Fatalf("the first record says %+v, the rotation %+v", g, rot)
	}
	for _, h := range oldHeads {
		if !slices.Contains(g.OldHeads, h) {
			t.Errorf("the first record does not hold the head %+v", h)
		}
	}
	checkSealed(t, rot, g)
}

// checkSealed holds a sealed file to what the first record of its successor says of it.
func checkSealed(t *testing.T, rot auditlog.Rotation, g *subjects.AuditGenesis) {
	t.Helper()
	b, err := os.ReadFile(rot.Sealed)
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != g.SHA256 {
		t.Error("the sealed file is not the one that was sealed")
	}
	if info, err := os.Stat(rot.Sealed); err != nil || info.Mode().Perm() != 0o400 {
		t.Errorf("the sealed file can be written: %v, %v", info.Mode(), err)
	}
	check := func(b []byte) (audit.Report, error) {
		src, err := audit.OpenExport(bytes.NewReader(b))
		if err != nil {
			return audit.Report{}, err
		}
		return audit.Verify(t.Context(), src, g.OldHeads, audit.VerifyOptions{Actions: subjects.AuditActions})
	}
	if rep, err := check(b); err != nil || !rep.OK || rep.Records != rot.Records {
		t.Errorf("the sealed file: %+v, %v", rep, err)
	}
	b[len(b)/2] ^= 1
	if rep, err := check(b); err == nil && rep.OK {
		t.Error("a flipped bit in the sealed file is not found")
	}
	if blocks(t, filepath.Join(rot.Store, subjects.Audit)) == nil {
		t.Error("the old stream's own files are gone")
	}
}

// TestRotationInterrupted cuts a rotation off between its steps.
func TestRotationInterrupted(t *testing.T) {
	t.Parallel()
	t.Run("planned, not moved", func(t *testing.T) {
		s := newDamageFixture(t, 3)
		plan, _, err := audit.EncodeGenesis(time.Now(), subjects.AuditGenesis{Sealed: "audit-lost.jsonl"})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(s.home.Pending(), plan, 0o600); err != nil {
			t.Fatal(err)
		}
		for range 2 { // it says so every time
			if _, err := s.cfg.Start(t.Context(), s.home, nil, config.Actors...); !errors.Is(err,
				auditlog.ErrInterrupted) || !strings.Contains(err.Error(), "conclave audit rotate") {
				t.Fatalf("started: %v", err)
			}
		}
		s.checkRecovers(t, 7)
	})
	t.Run("moved, the successor not opened: rotate again", func(t *testing.T) {
		s := newDamageFixture(t, 3)
		s.rotate(t)
		s.checkRecovers(t, 7)
	})
	t.Run("moved, the successor not opened: start", func(t *testing.T) {
		s := newDamageFixture(t, 3)
		plan := s.rotate(t)
		r := up(t, s.cfg, s.home, clockActors...)
		calls(t, r.Bus, 1)
		if rep := verified(t, s.home, r.Bus); rep.Genesis.Sealed != plan.Sealed {
			t.Errorf("the successor names %q, the plan %q", rep.Genesis.Sealed, plan.Sealed)
		}
	})
	t.Run("the very first start", func(t *testing.T) {
		s := newDamageFixture(t, 1)
		// A plan on the disk and no stream: it crashed before the first record was written.
		home := newHome(t)
		if err := home.CreateFolders(); err != nil {
			t.Fatal(err)
		}
		plan, _, err := audit.EncodeGenesis(time.Now(), subjects.AuditGenesis{})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(home.Pending(), plan, 0o600); err != nil {
			t.Fatal(err)
		}
		r := up(t, s.cfg, home, config.Actors...)
		calls(t, r.Bus, 1)
		verified(t, home, r.Bus)
		if _, err := os.Stat(home.Pending()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the plan is still there: %v", err)
		}
	})
}

// rotate leaves what a rotation leaves that is cut off right after the old stream was moved.
func (s *damageFixture) rotate(t *testing.T) *subjects.AuditGenesis {
	t.Helper()
	rot, err := auditlog.Rotate(t.Context(), s.home, s.cfg.ServerConfig(s.home), nil)
	if err != nil {
		t.Fatal(err)
	}
	var plan []byte
	err = auditlog.WithServer(s.home, s.cfg.ServerConfig(s.home), nil, func(_ *bus.Server, b *bus.Bus) error {
		plan = bustest.ReadAuditLog(t, b)[0].Data
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// Back to that moment: the plan is written, the successor is not there.
	if err := os.RemoveAll(filepath.Join(s.home.AuditStreams(), subjects.Audit)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.home.Pending(), plan, 0o600); err != nil {
		t.Fatal(err)
	}
	batch, err := audit.DecodeBatch(plan)
	if err != nil || batch[0].Record.Genesis.SHA256 != rot.SHA256 {
		t.Fatalf("%+v, %v", batch, err)
	}
	return batch[0].Record.Genesis
}

// checkRecovers rotates once more and expects a successor that names the file with the records.
func (s *damageFixture) checkRecovers(t *testing.T, records int) {
	t.Helper()
	rot, err := auditlog.Rotate(t.Context(), s.home, s.cfg.ServerConfig(s.home), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !rot.Report.OK || rot.Records != records+1 {
		t.Errorf("sealed %+v, want %d records and the first one", rot, records)
	}
	r := up(t, s.cfg, s.home, clockActors...)
	calls(t, r.Bus, 2)
	rep := verified(t, s.home, r.Bus)
	if rep.Genesis.Sealed != filepath.Base(rot.Sealed) {
		t.Errorf("the successor names %q, sealed was %q", rep.Genesis.Sealed, rot.Sealed)
	}
	checkSealed(t, rot, rep.Genesis)
}
