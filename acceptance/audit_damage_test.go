package acceptance

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"conclave/pkg/audit"
	"conclave/pkg/auditlog"
	"conclave/pkg/bus"
	"conclave/pkg/damage"
	"conclave/subjects"
)

// TestForgedFiles changes the files as somebody would who knows the server's format: the server notices nothing, every
// checksum is right and the sequence has no hole. The chain and its anchors tell nevertheless.
func TestForgedFiles(t *testing.T) {
	t.Parallel()
	s := newDamageFixture(t, 6, 6)
	if len(s.msgs) != 25 || s.first == "" || s.second == "" {
		t.Fatalf("%d messages, chains %q and %q", len(s.msgs), s.first, s.second)
	}
	drop := func(i int) func([]storedMessage) []storedMessage {
		return func(m []storedMessage) []storedMessage { return slices.Delete(m, i-1, i) }
	}
	swap := func(i, j int) func([]storedMessage) []storedMessage {
		return func(m []storedMessage) []storedMessage { m[i-1], m[j-1] = m[j-1], m[i-1]; return m }
	}
	alter := func(i int, old, new string) func([]storedMessage) []storedMessage {
		return func(m []storedMessage) []storedMessage {
			k := bytes.Replace(m[i-1], []byte(old), []byte(new), 1)
			if bytes.Equal(k, m[i-1]) {
				panic(fmt.Sprintf("message %d does not hold %s", i, old))
			}
			m[i-1] = k
			return m
		}
	}
	first, second := s.first, s.second
	for _, tt := range []struct {
		name    string
		change  func([]storedMessage) []storedMessage
		account string // "" = broker
		chain   string
		record  uint64
		text    string
	}{
		{"nothing", func(m []storedMessage) []storedMessage { return m }, "", "", 0, ""},
		{"removed record", drop(17), "", second, 5, "record 5 is missing"},
		{"removed record of an earlier run", drop(5), "", first, 5, "record 5 is missing"},
		{"removed first record", drop(14), "", second, 1, "records 1 to 2 are missing"},
		{"removed last record", drop(25), "", second, 13, "lost tail"},
		{"removed last record of an earlier run", drop(13), "", second, 1, "links to record 13 of chain " + first +
			", which ends at 12 here"},
		{"removed run", func(m []storedMessage) []storedMessage { return m[:13] }, "", second, 1, "lost chain"},
		{"removed earlier run", func(m []storedMessage) []storedMessage {
			return slices.Delete(m, 1, 13)
		}, "", second, 1, "links to record 13 of chain " + first + ", which is not in the stream"},
		{"removed everything but the beginning", func(m []storedMessage) []storedMessage {
			return m[:1]
		}, "", second, 1, "lost chain"},
		{"removed beginning", drop(1), "", first, 1, "does not begin with a genesis"},
		{"reordered records", swap(16, 20), "", second, 4, "records 4 to 7 are missing"},
		{"reordered neighbours", swap(3, 4), "", first, 3, "record 3 is missing"},
		{"repeated record", func(m []storedMessage) []storedMessage {
			return slices.Insert(m, 20, m[19])
		}, "", second, 8, "is repeated"},
		{"another tool", alter(16, "get_datetime", "get_datetimf"), "", second, 4, "record 4 was altered"},
		{"a failure made of a success", alter(17, "\xa2ok", "\xa2no"), "", second, 5, "record 5 was altered"},
		{"another agent", alter(18, "operator", "operater"), "", second, 6, "record 6 was altered"},
		{
			"another agent in the last record", alter(25, "operator", "operater"), "", second, 13,
			"not the one that was anchored",
		},
		{"another agent in an earlier run", alter(6, "operator", "operater"), "", first, 6, "record 6 was altered"},
		{
			"another beginning", alter(1, "audit.genesis", "audit.genesiz"), "AUDIT", "genesis", 1,
			"not the one that was anchored",
		},
		{"another writer's name", alter(20, "audit.broker.", "audit.memory."), "memory", second, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s.restoreIntact(t)
			s.writeBlock(t, tt.change(readBlock(t, s.lastBlock(t))))
			rep, err := s.verifyStopped(t)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case tt.text == "" && tt.chain == "":
				if !rep.OK || rep.Records != 27 {
					t.Errorf("the test's own hand shows: %+v", rep)
				}
			case tt.record == 0:
				if rep.OK || rep.First.Account != tt.account || rep.First.Chain != tt.chain {
					t.Errorf("first %v", rep.First)
				}
			default:
				account := tt.account
				if account == "" {
					account = "broker"
				}
				checkFirstProblem(t, rep, account, tt.chain, tt.record, tt.text)
			}
		})
	}
}

// TestFlippedBits flips one bit of the block file, many times over. The server loses records over it without a word;
// the audit log must show it every time, and name the record that the bit belongs to.
func TestFlippedBits(t *testing.T) {
	t.Parallel()
	s := newDamageFixture(t, 12)
	s.restoreIntact(t)
	msgs := readBlock(t, s.lastBlock(t))
	size := 0
	for _, k := range msgs {
		size += len(k)
	}
	const seed = 20260115
	rng := rand.New(rand.NewSource(seed))
	type flip struct {
		at  int
		bit byte
	}
	var flips []flip
	for range 30 {
		flips = append(flips, flip{rng.Intn(size), 1 << rng.Intn(8)})
	}
	if full() { // also each byte around one message: lengths, sequence, time, checksum
		at := size / 2
		for off, i := 0, 0; i < len(msgs); off, i = off+len(msgs[i]), i+1 {
			if off+len(msgs[i]) <= at {
				continue
			}
			for j := range keptHeader {
				flips = append(flips, flip{off + j, 1 << rng.Intn(8)})
			}
			subject := int(binary.LittleEndian.Uint16(msgs[i][20:]))
			for j := range 4 {
				flips = append(flips, flip{off + keptHeader + subject + j, 1 << rng.Intn(8)})
			}
			for j := range keptSum {
				flips = append(flips, flip{off + len(msgs[i]) - 1 - j, 1 << rng.Intn(8)})
			}
			break
		}
	}
	found := 0
	lost := map[string]int{}
	for _, f := range flips {
		s.restoreIntact(t)
		b, err := os.ReadFile(s.lastBlock(t))
		if err != nil {
			t.Fatal(err)
		}
		b[f.at] ^= f.bit
		if err := os.WriteFile(s.lastBlock(t), b, 0o600); err != nil {
			t.Fatal(err)
		}
		// Which message the bit belongs to, and which record that is.
		seq, begin := 1, 0
		for begin+len(msgs[seq-1]) <= f.at {
			begin += len(msgs[seq-1])
			seq++
		}
		st := s.msgs[seq-1]
		account, chain := strings.Split(st.Subject, ".")[1], strings.Split(st.Subject, ".")[2]
		rep, err := s.verifyStopped(t)
		switch {
		case err != nil:
			t.Errorf("byte %d, bit %#x: %v", f.at, f.bit, err)
			continue
		case rep.OK:
			t.Errorf("byte %d, bit %#x in message %d: not found", f.at, f.bit, seq)
			continue
		}
		found++
		if p := firstProblem(rep); p.Account != account || p.Chain != chain || p.Record != decoded(t, st)[0].Seq {
			t.Errorf("byte %d, bit %#x is in message %d, record %d of %s: named %v, all %v", f.at, f.bit, seq,
				decoded(t, st)[0].Seq, chain, p, rep.Problems)
		}
		kind := "records lost from the middle"
		if strings.Contains(firstProblem(rep).Text, "lost tail") {
			kind = "the end lost"
		}
		lost[kind]++
	}
	t.Logf("seed %d: %d of %d flipped bits found, %v", seed, found, len(flips), lost)
}

// TestDamagedFiles does to the files what a disk, a backup or a hand can do.
func TestDamagedFiles(t *testing.T) {
	t.Parallel()
	s := newDamageFixture(t, 6, 6)
	msgs := readBlock(t, filepath.Join(s.intact, "msgs", "1.blk"))
	ends := 0
	for _, k := range msgs[:17] {
		ends += len(k)
	}
	cut := func(at int) func(*testing.T) {
		return func(t *testing.T) {
			if err := os.Truncate(s.lastBlock(t), int64(at)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tt := range []struct {
		name   string
		damage func(t *testing.T)
		chain  string
		record uint64
		text   string
		start  error // instead: the start refuses
	}{
		{"cut off between two messages", cut(ends), s.second, 6, "lost tail", nil},
		{"cut off in the middle of a message", cut(ends + 100), s.second, 6, "lost tail", nil},
		{"cut off in the middle of a length", cut(ends + 2), s.second, 6, "lost tail", nil},
		{"cut off, the index gone", func(t *testing.T) {
			cut(ends + 100)(t)
			s.dropIndex(t)
		}, s.second, 6, "lost tail", nil},
		{"the end lost, and nothing else to see", func(t *testing.T) {
			s.writeBlock(t, msgs[:19])
		}, s.second, 8, "lost tail", nil},
		{"a backup from before the last run put back", func(t *testing.T) {
			copyTree(t, s.backup, filepath.Join(s.home.AuditStreams(), subjects.Audit))
		}, s.second, 1, "lost chain", nil},
		{"the end overwritten with zeros", func(t *testing.T) {
			f, err := os.OpenFile(s.lastBlock(t), os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			info, err := f.Stat()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt(make([]byte, info.Size()-int64(ends)), int64(ends)); err != nil {
				t.Fatal(err)
			}
		}, s.second, 6, "", nil},
		{"the block emptied", cut(0), "genesis", 1, "lost chain", nil},
		{"the block removed", func(t *testing.T) {
			if err := os.Remove(s.lastBlock(t)); err != nil {
				t.Fatal(err)
			}
		}, "genesis", 1, "lost chain", nil},
		{"the stream removed", func(t *testing.T) {
			if err := os.RemoveAll(filepath.Join(s.home.AuditStreams(), subjects.Audit)); err != nil {
				t.Fatal(err)
			}
		}, "", 0, "", bus.ErrAuditLost},
		{"the whole store removed", func(t *testing.T) {
			if err := os.RemoveAll(s.home.Store()); err != nil {
				t.Fatal(err)
			}
		}, "", 0, "", bus.ErrAuditLost},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s.restoreIntact(t)
			tt.damage(t)
			rep, err := s.verify(t)
			if tt.start != nil {
				if !errors.Is(err, tt.start) || !strings.Contains(err.Error(), "conclave audit rotate") ||
					!strings.Contains(err.Error(), s.home.Store()) {
					t.Fatalf("report %+v, error %v", rep, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			account := "broker"
			if tt.chain == "genesis" {
				account = "AUDIT"
			}
			checkFirstProblem(t, rep, account, tt.chain, tt.record, tt.text)
		})
	}
	// The last row leaves nothing. Whoever accepts the loss rotates: the loss stays on record, and work goes on.
	t.Run("the loss accepted", func(t *testing.T) {
		if err := os.RemoveAll(s.home.Store()); err != nil {
			t.Fatal(err)
		}
		rot, err := auditlog.Rotate(t.Context(), s.home, s.cfg.ServerConfig(s.home), nil)
		if err != nil {
			t.Fatal(err)
		}
		if rot.Report.OK || rot.Records != 0 {
			t.Errorf("the rotation says %+v", rot)
		}
		r := up(t, s.cfg, s.home, clockActors...)
		calls(t, r.Bus, 1)
		rep := verified(t, s.home, r.Bus)
		if !slices.ContainsFunc(rep.Genesis.OldHeads, func(h subjects.AuditHead) bool {
			return h.Chain == s.second && h.Seq == 13
		}) {
			t.Errorf("the successor has forgotten what was lost: %+v", rep.Genesis)
		}
	})
}

// TestDamageAtStartIsSetAside flips one bit in the header of a record. The start reports it, keeps the damaged block as
// it was before the server repairs it, and keeps every other record; verification names the loss until the log is
// rotated.
func TestDamageAtStartIsSetAside(t *testing.T) {
	t.Parallel()
	s := newDamageFixture(t, 6)
	block := s.lastBlock(t)
	damaged, err := os.ReadFile(block)
	if err != nil {
		t.Fatal(err)
	}
	msgs := readBlock(t, block)
	damaged[len(msgs[0])+len(msgs[1])] ^= 0x40 // the length of the third message
	if err := os.WriteFile(block, damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	r, err := s.cfg.Start(t.Context(), s.home,
		slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelError})))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "the audit log is damaged") {
		t.Errorf("the start logged %s", &log)
	}
	kept, err := filepath.Glob(filepath.Join(s.home.Damaged(), "*", "1.blk"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("kept files %v, %v", kept, err)
	}
	if b, err := os.ReadFile(kept[0]); err != nil || !bytes.Equal(b, damaged) {
		t.Errorf("the damaged block was not kept as it was: %v", err)
	}
	rep, err := verifyLog(t, s.home, r.Bus)
	if err != nil {
		t.Fatal(err)
	}
	checkFirstProblem(t, rep, "broker", s.first, 3, "record 3 is missing")
	if rep.Messages != len(msgs)-1 || !slices.ContainsFunc(rep.Problems, func(p audit.Problem) bool {
		return strings.Contains(p.Text, kept[0][:len(kept[0])-len("/1.blk")])
	}) {
		t.Errorf("%d of %d messages, problems %v", rep.Messages, len(msgs), rep.Problems)
	}
	down(t, r)
	if rep, err = s.verifyStopped(t); err != nil {
		t.Fatal(err)
	}
	checkFirstProblem(t, rep, "broker", s.first, 3, "record 3 is missing")

	rot, err := auditlog.Rotate(t.Context(), s.home, s.cfg.ServerConfig(s.home), nil)
	if err != nil || rot.Report.OK {
		t.Fatalf("rotation %+v, %v", rot, err)
	}
	if rep, err = s.verifyStopped(t); err != nil || !rep.OK {
		t.Errorf("after the rotation: %v, %v", rep.Problems, err)
	}
	if moved, err := filepath.Glob(filepath.Join(s.home.Sealed(), "*.damaged", "*", "1.blk")); err != nil ||
		len(moved) != 1 {
		t.Errorf("the damaged block is not beside the sealed log: %v, %v", moved, err)
	}
}

// TestRotationKeepsDamagedFiles: a rotation seals a damaged log without a server that would repair it first.
func TestRotationKeepsDamagedFiles(t *testing.T) {
	t.Parallel()
	s := newDamageFixture(t, 6)
	damaged, err := os.ReadFile(s.lastBlock(t))
	if err != nil {
		t.Fatal(err)
	}
	damaged[0] ^= 0x40
	if err := os.WriteFile(s.lastBlock(t), damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	rot, err := auditlog.Rotate(t.Context(), s.home, s.cfg.ServerConfig(s.home), nil)
	if err != nil || rot.Report.OK {
		t.Fatalf("rotation %+v, %v", rot, err)
	}
	if b, err := os.ReadFile(filepath.Join(rot.Store, subjects.Audit, "msgs", "1.blk")); err != nil ||
		!bytes.Equal(b, damaged) {
		t.Errorf("the sealed stream was changed: %v", err)
	}
	if rot.Report.Messages != len(s.msgs)-1 {
		t.Errorf("%d of %d messages sealed", rot.Report.Messages, len(s.msgs))
	}
}

// TestDamageDoesNotHeal: a system that goes on after a loss does not cover it with new records.
func TestDamageDoesNotHeal(t *testing.T) {
	t.Parallel()
	s := newDamageFixture(t, 6)
	s.writeBlock(t, readBlock(t, s.lastBlock(t))[:9])
	for range 2 {
		r := up(t, s.cfg, s.home, clockActors...)
		calls(t, r.Bus, 3)
		rep, err := verifyLog(t, s.home, r.Bus)
		if err != nil {
			t.Fatal(err)
		}
		down(t, r)
		if p := firstProblem(rep); rep.OK || p.Account != "broker" || p.Record != 1 ||
			!strings.Contains(p.Text, "links to record 13 of chain "+s.first+", which ends at 9 here") {
			t.Fatalf("named %v", p)
		}
	}
}

// TestRotationReportsDamagedStreams: a rotation starts a server too, which would repair a damaged stream of another
// account without a word. The rotated audit log itself is not reported as lost.
func TestRotationReportsDamagedStreams(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	c := settings(t)
	r := up(t, c, home, "broker", "get_datetime")
	calls(t, r.Bus, 3)
	if err := r.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(home.Store(), "jetstream", subjects.Core, "streams", "EVENTS", "msgs", "1.blk")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 0x10
	index := filepath.Join(filepath.Dir(path), "index.db") // which a killed server does not leave
	if err := errors.Join(os.WriteFile(path, b, 0o600), os.Remove(index)); err != nil {
		t.Fatal(err)
	}
	if _, err := auditlog.Rotate(t.Context(), home, c.ServerConfig(home), nil); err != nil {
		t.Fatal(err)
	}
	up(t, c, home)
	found, err := damage.Read(home.Data)
	if err != nil || len(found) != 1 || found[0].Kept == "" ||
		!strings.HasPrefix(found[0].Text, "stream EVENTS") {
		t.Errorf("found %v, %v", found, err)
	}
}
