package config_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/highwayhash"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"conclave/config"
	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/pkg/auditlog"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// damageFixture is a stopped installation with an audit log in it, and what the audit log holds.
//
//	1       AUDIT   genesis
//	2..13   broker  first: 1 open, 2 before ... 13 after: six calls
//	14..25  broker  second: 1 open with a link to first, 2 before ... 13 after: six calls
type damageFixture struct {
	cfg           config.Config
	home          bus.Home
	first, second string // the chains of the two runs
	msgs          []audit.Stored
	intact        string // a copy of the stream's files
	backup        string // another from before the last run
}

// newDamageFixture makes the calls of the given runs, one run of the system each.
func newDamageFixture(t *testing.T, runs ...int) *damageFixture {
	t.Helper()
	s := &damageFixture{cfg: settings(t), home: newHome(t), intact: filepath.Join(t.TempDir(), "intact"), backup: filepath.Join(t.TempDir(), "backup")}
	for i, n := range runs {
		if i > 0 {
			copyTree(t, filepath.Join(s.home.AuditStreams(), subjects.Audit), s.backup)
		}
		r := up(t, s.cfg, s.home, config.Actors...)
		calls(t, r.Bus, n)
		verified(t, s.home, r.Bus)
		if i == len(runs)-1 {
			s.msgs = readAuditLog(t, r.Bus)
		}
		down(t, r)
	}
	for _, m := range s.msgs {
		switch chain := strings.TrimPrefix(m.Subject, "audit.broker."); {
		case chain == m.Subject || chain == s.first:
		case s.first == "":
			s.first = chain
		default:
			s.second = chain
		}
	}
	copyTree(t, filepath.Join(s.home.AuditStreams(), subjects.Audit), s.intact)
	return s
}

func copyTree(t testing.TB, from, to string) {
	t.Helper()
	if err := os.RemoveAll(to); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// restoreIntact puts the stream's files back as they were.
func (s *damageFixture) restoreIntact(t testing.TB) {
	t.Helper()
	copyTree(t, s.intact, filepath.Join(s.home.AuditStreams(), subjects.Audit))
	if err := os.RemoveAll(s.home.Damaged()); err != nil {
		t.Fatal(err)
	}
}

// blocks are the files that hold the messages.
func blocks(t testing.TB, store string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(store, "msgs", "*.blk"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no block files in %s: %v", store, err)
	}
	return names
}

// lastBlock is the one file of a small audit log.
func (s *damageFixture) lastBlock(t testing.TB) string {
	t.Helper()
	names := blocks(t, filepath.Join(s.home.AuditStreams(), subjects.Audit))
	if len(names) != 1 {
		t.Fatalf("block files %v", names)
	}
	return names[0]
}

func (s *damageFixture) dropIndex(t testing.TB) {
	t.Helper()
	if err := os.Remove(filepath.Join(filepath.Join(s.home.AuditStreams(), subjects.Audit), "msgs", "index.db")); err != nil {
		t.Fatal(err)
	}
}

// verifyStopped checks the audit log in its files, as the commands do on a stopped system, and that this changes nothing.
func (s *damageFixture) verifyStopped(t testing.TB) (audit.Report, error) {
	t.Helper()
	before := bustest.HashTree(t, s.home.Data)
	heads, err := audit.ReadHeads(s.home.Heads())
	if err != nil {
		t.Fatal(err)
	}
	files, err := bus.OpenAuditFiles(filepath.Join(s.home.AuditStreams(), subjects.Audit))
	if err != nil {
		return audit.Report{}, err
	}
	src, err := files.ReadAfter(t.Context(), 0)
	if err != nil {
		return audit.Report{}, err
	}
	rep, err := auditlog.VerifySource(t.Context(), s.home, src, heads, nil)
	if bustest.HashTree(t, s.home.Data) != before {
		t.Error("verification changed the data folder")
	}
	return rep, err
}

// verify starts the system on what is there, without actors, and checks the audit log. The error may be that of the start.
func (s *damageFixture) verify(t testing.TB) (audit.Report, error) {
	t.Helper()
	r, err := s.cfg.Start(t.Context(), s.home, nil)
	if err != nil {
		return audit.Report{}, err
	}
	defer down(t, r)
	return auditlog.Verify(t.Context(), s.home, r.Bus)
}

// firstProblem is the first problem that names a record. A hole in the stream's own sequence is told before it.
func firstProblem(rep audit.Report) audit.Problem {
	for _, p := range rep.Problems {
		if p.Chain != "" && p.Record > 0 {
			return p
		}
	}
	return audit.Problem{}
}

// checkFirstProblem checks that the audit log is not whole and that the record is named.
func checkFirstProblem(t *testing.T, rep audit.Report, account, chain string, record uint64, text string) {
	t.Helper()
	p := firstProblem(rep)
	if rep.OK || rep.First == nil {
		t.Fatal("not found")
	}
	if p.Account != account || p.Chain != chain || p.Record != record || !strings.Contains(p.Text, text) {
		t.Errorf("named %v\nwant %s, chain %s, record %d: ... %s ...\nall: %v", p, account, chain, record, text, rep.Problems)
	}
}

// storedMessage is one message as a block file keeps it: length, sequence, time, subject, headers, body, checksum.
type storedMessage []byte

const (
	keptHeader = 22
	keptSum    = 8
	hasHeaders = 1 << 31
)

func readBlock(t testing.TB, file string) []storedMessage {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out []storedMessage
	for len(b) > 0 {
		n := binary.LittleEndian.Uint32(b) &^ hasHeaders
		if len(b) < keptHeader || int(n) > len(b) {
			t.Fatalf("%s is not laid out as this test thinks", file)
		}
		out, b = append(out, b[:n]), b[n:]
	}
	return out
}

// sign gives a message a sequence and the checksum that the server would have given it: whoever can write the files can
// do that as well.
func (k storedMessage) sign(t testing.TB, seq uint64) {
	t.Helper()
	binary.LittleEndian.PutUint64(k[4:], seq)
	key := sha256.Sum256([]byte("AUDIT-1"))
	h, err := highwayhash.New64(key[:])
	if err != nil {
		t.Fatal(err)
	}
	data := k[keptHeader : len(k)-keptSum]
	subject := int(binary.LittleEndian.Uint16(k[20:]))
	h.Write(k[4:20])
	h.Write(data[:subject])
	if binary.LittleEndian.Uint32(k)&hasHeaders != 0 {
		subject += 4
	}
	h.Write(data[subject:])
	copy(k[len(k)-keptSum:], h.Sum(nil))
}

// writeBlock writes the messages as if the server had never had others, and takes its index away.
func (s *damageFixture) writeBlock(t testing.TB, msgs []storedMessage) {
	t.Helper()
	var b []byte
	for i, k := range msgs {
		k = slices.Clone(k)
		k.sign(t, uint64(i+1))
		b = append(b, k...)
	}
	if err := os.WriteFile(s.lastBlock(t), b, 0o600); err != nil {
		t.Fatal(err)
	}
	s.dropIndex(t)
}

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
		{"removed last record of an earlier run", drop(13), "", second, 1, "links to record 13 of chain " + first + ", which ends at 12 here"},
		{"removed run", func(m []storedMessage) []storedMessage { return m[:13] }, "", second, 1, "lost chain"},
		{"removed earlier run", func(m []storedMessage) []storedMessage { return slices.Delete(m, 1, 13) }, "", second, 1, "links to record 13 of chain " + first + ", which is not in the stream"},
		{"removed everything but the beginning", func(m []storedMessage) []storedMessage { return m[:1] }, "", second, 1, "lost chain"},
		{"removed beginning", drop(1), "", first, 1, "does not begin with a genesis"},
		{"reordered records", swap(16, 20), "", second, 4, "records 4 to 7 are missing"},
		{"reordered neighbours", swap(3, 4), "", first, 3, "record 3 is missing"},
		{"repeated record", func(m []storedMessage) []storedMessage { return slices.Insert(m, 20, m[19]) }, "", second, 8, "is repeated"},
		{"another tool", alter(16, "get_datetime", "get_datetimf"), "", second, 4, "record 4 was altered"},
		{"a failure made of a success", alter(17, "\xa2ok", "\xa2no"), "", second, 5, "record 5 was altered"},
		{"another agent", alter(18, "operator", "operater"), "", second, 6, "record 6 was altered"},
		{"another agent in the last record", alter(25, "operator", "operater"), "", second, 13, "not the one that was anchored"},
		{"another agent in an earlier run", alter(6, "operator", "operater"), "", first, 6, "record 6 was altered"},
		{"another beginning", alter(1, "audit.genesis", "audit.genesiz"), "AUDIT", "genesis", 1, "not the one that was anchored"},
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
			t.Errorf("byte %d, bit %#x is in message %d, record %d of %s: named %v, all %v", f.at, f.bit, seq, decoded(t, st)[0].Seq, chain, p, rep.Problems)
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
		{"cut off, the index gone", func(t *testing.T) { cut(ends + 100)(t); s.dropIndex(t) }, s.second, 6, "lost tail", nil},
		{"the end lost, and nothing else to see", func(t *testing.T) { s.writeBlock(t, msgs[:19]) }, s.second, 8, "lost tail", nil},
		{"a backup from before the last run put back", func(t *testing.T) { copyTree(t, s.backup, filepath.Join(s.home.AuditStreams(), subjects.Audit)) }, s.second, 1, "lost chain", nil},
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
				if !errors.Is(err, tt.start) || !strings.Contains(err.Error(), "conclave audit rotate") || !strings.Contains(err.Error(), s.home.Store()) {
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
		r := up(t, s.cfg, s.home, config.Actors...)
		calls(t, r.Bus, 1)
		rep := verified(t, s.home, r.Bus)
		if !slices.ContainsFunc(rep.Genesis.OldHeads, func(h subjects.AuditHead) bool { return h.Chain == s.second && h.Seq == 13 }) {
			t.Errorf("the successor has forgotten what was lost: %+v", rep.Genesis)
		}
	})
}

// TestDamageAtStartIsSetAside flips one bit in the header of a record. The start reports it, keeps the damaged block as it was
// before the server repairs it, and keeps every other record; verification names the loss until the log is rotated.
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
	r, err := s.cfg.Start(t.Context(), s.home, slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelError})))
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
	rep, err := auditlog.Verify(t.Context(), s.home, r.Bus)
	if err != nil {
		t.Fatal(err)
	}
	checkFirstProblem(t, rep, "broker", s.first, 3, "record 3 is missing")
	if rep.Messages != len(msgs)-1 || !slices.ContainsFunc(rep.Problems, func(p audit.Problem) bool { return strings.Contains(p.Text, kept[0][:len(kept[0])-len("/1.blk")]) }) {
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
	if moved, err := filepath.Glob(filepath.Join(s.home.Sealed(), "*.damaged", "*", "1.blk")); err != nil || len(moved) != 1 {
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
	if b, err := os.ReadFile(filepath.Join(rot.Store, subjects.Audit, "msgs", "1.blk")); err != nil || !bytes.Equal(b, damaged) {
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
		r := up(t, s.cfg, s.home, config.Actors...)
		calls(t, r.Bus, 3)
		rep, err := auditlog.Verify(t.Context(), s.home, r.Bus)
		if err != nil {
			t.Fatal(err)
		}
		down(t, r)
		if p := firstProblem(rep); rep.OK || p.Account != "broker" || p.Record != 1 || !strings.Contains(p.Text, "links to record 13 of chain "+s.first+", which ends at 9 here") {
			t.Fatalf("named %v", p)
		}
	}
}

// countRecords is how often the clock was reached, as discovery tells it.
func countRecords(t testing.TB, b *bus.Bus) int {
	t.Helper()
	nc, err := b.Dial("user")
	if err != nil {
		t.Fatal(err)
	}
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
	runs, befores := countRecords(t, r.Bus), countAllowed(t, readAuditLog(t, r.Bus))
	t.Logf("full after %s: %d ok, %d withheld, %d refused; %d runs, %d on record", time.Since(start).Round(time.Millisecond), ok.Load(), withheld.Load(), refused.Load(), runs, befores)
	if refused.Load() == 0 {
		t.Fatal("never full")
	}
	if int64(runs) != ok.Load()+withheld.Load() || runs != befores {
		t.Errorf("%d runs, %d answered, %d on record: something ran unaudited", runs, ok.Load()+withheld.Load(), befores)
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
	if g == nil || g.Sealed != filepath.Base(rot.Sealed) || g.SHA256 != rot.SHA256 || g.LastSeq != uint64(before.Messages) {
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
			if _, err := s.cfg.Start(t.Context(), s.home, nil, config.Actors...); !errors.Is(err, auditlog.ErrInterrupted) || !strings.Contains(err.Error(), "conclave audit rotate") {
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
		r := up(t, s.cfg, s.home, config.Actors...)
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
		plan = readAuditLog(t, b)[0].Data
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
	r := up(t, s.cfg, s.home, config.Actors...)
	calls(t, r.Bus, 2)
	rep := verified(t, s.home, r.Bus)
	if rep.Genesis.Sealed != filepath.Base(rot.Sealed) {
		t.Errorf("the successor names %q, sealed was %q", rep.Genesis.Sealed, rot.Sealed)
	}
	checkSealed(t, rot, rep.Genesis)
}

// TestCanary: the arguments of a call stand in the event copies, which is what those are for, and nowhere else: not in
// the audit, not in the anchors, not in the log, in no other file.
func TestCanary(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	cfg := settings(t)
	var log syncBuffer
	r, err := cfg.Start(t.Context(), home, debugLog(&log), config.Actors...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { down(t, r) })
	p := dialOperator(t, r.Bus)
	var canaries []string
	sent := func(tool, args string, code string) {
		t.Helper()
		canary := "canary" + actor.NewID()
		canaries = append(canaries, canary)
		res := p.callTool(t.Context(), tool, actor.NewID(), strings.ReplaceAll(args, "CANARY", canary))
		if res.Error == nil && code != "" || res.Error != nil && res.Error.Code != code {
			t.Errorf("%s %s: %v, want %q", tool, args, res.Error, code)
		}
	}
	sent("get_datetime", `{"timezone":"CANARY"}`, subjects.CodeTool)
	sent("get_datetime", `{"CANARY":"UTC"}`, subjects.CodeDenied)
	sent("get_datetime", `{"timezone":"UTC","CANARY":1,"CANARY":2}`, subjects.CodeMalformed)
	sent("fs_read", `{"path":"CANARY"}`, subjects.CodeTool)
	sent("no_such_tool", `{"query":"CANARY"}`, subjects.CodeUnknownTool)
	copies := len(canaries)
	// These never become a call, so there is no copy of them.
	sent("get_datetime", `{"timezone":CANARY`, subjects.CodeMalformed)
	for body, code := range map[string]string{
		`{"call_id":"c","args":{"timezone":CANARY}}`:                                       subjects.CodeMalformed,
		`{"call_id":"c","timezone":"CANARY"}`:                                              subjects.CodeMalformed,
		`{"call_id":"c","args":{"timezone":"CANARY` + strings.Repeat("x", 300<<10) + `"}}`: subjects.CodeTooLarge,
	} {
		canary := "canary" + actor.NewID()
		canaries = append(canaries, canary)
		m := nats.NewMsg("tool.request.get_datetime")
		m.Data = []byte(strings.ReplaceAll(body, "CANARY", canary))
		m.Header.Set(subjects.HeaderType, subjects.TypeJSON)
		m.Header.Set(subjects.HeaderDeadline, strconv.FormatInt(time.Now().Add(testTimeout).UnixMilli(), 10))
		if reply, err := p.nc.RequestMsg(m, testTimeout); err != nil || reply.Header.Get(subjects.HeaderErrCode) != code {
			t.Errorf("%.60s: %v, %v", body, reply, err)
		}
	}

	msgs := readAuditLog(t, r.Bus)
	plain := sha256.Sum256([]byte(`{"timezone":"` + canaries[0] + `"}`))
	hashes := 0
	for _, m := range msgs {
		for _, rec := range decoded(t, m) {
			if rec.ParamsHash == hex.EncodeToString(plain[:]) {
				t.Error("a hash of the arguments without a key: it can be guessed")
			}
			if rec.ParamsHash != "" {
				hashes++
			}
		}
	}
	if hashes < copies {
		t.Errorf("%d records with a hash, %d calls", hashes, copies)
	}
	verified(t, home, r.Bus)
	down(t, r)

	where := map[string][]string{} // canary -> files that hold it
	err = filepath.WalkDir(home.Data, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(name)
		for _, c := range canaries {
			if bytes.Contains(b, []byte(c)) {
				where[c] = append(where[c], name)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range canaries {
		for _, name := range where[c] {
			if !strings.Contains(name, filepath.Join("CORE", "streams", "EVENTS")) {
				t.Errorf("canary %d stands in %s", i, name)
			}
		}
		if (len(where[c]) > 0) != (i < copies) {
			t.Errorf("canary %d stands in %v", i, where[c])
		}
		if strings.Contains(log.String(), c) {
			t.Errorf("canary %d stands in the log", i)
		}
	}
	if !strings.Contains(log.String(), "dead letter") || !strings.Contains(log.String(), "level=DEBUG") {
		t.Errorf("the log was not caught: %s", log.String())
	}
	for _, m := range msgs {
		for _, c := range canaries {
			if bytes.Contains(m.Data, []byte(c)) {
				t.Errorf("message %d of the audit holds a canary", m.Seq)
			}
		}
	}
	t.Logf("%d canaries, %d audit messages, %d bytes of log", len(canaries), len(msgs), len(log.String()))
}
