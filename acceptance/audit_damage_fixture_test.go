package acceptance

import (
	"crypto/sha256"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/minio/highwayhash"

	"conclave/config"
	"conclave/pkg/audit"
	"conclave/pkg/auditlog"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/datatest"
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

// clockActors are the actors that a call of the clock needs. The others of a whole system record nothing when they
// start, so that the audit log is the same without them.
var clockActors = []string{"broker", "get_datetime"}

// newDamageFixture makes the calls of the given runs, one run of the system each.
func newDamageFixture(t *testing.T, runs ...int) *damageFixture {
	t.Helper()
	if os.Getenv("CONCLAVE_SHORT") != "" {
		t.Skip("CONCLAVE_SHORT is set")
	}
	s := &damageFixture{
		cfg: settings(t), home: newHome(t), intact: filepath.Join(datatest.Dir(t), "intact"),
		backup: filepath.Join(datatest.Dir(t), "backup"),
	}
	for i, n := range runs {
		if i > 0 {
			copyTree(t, filepath.Join(s.home.AuditStreams(), subjects.Audit), s.backup)
		}
		r := up(t, s.cfg, s.home, clockActors...)
		calls(t, r.Bus, n)
		verified(t, s.home, r.Bus)
		if i == len(runs)-1 {
			s.msgs = bustest.ReadAuditLog(t, r.Bus)
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
	if err := os.Remove(filepath.Join(filepath.Join(s.home.AuditStreams(), subjects.Audit), "msgs",
		"index.db")); err != nil {
		t.Fatal(err)
	}
}

// verifyStopped checks the audit log in its files, as the commands do on a stopped system, and that this changes
// nothing.
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

// verify starts the system on what is there, without actors, and checks the audit log. The error may be that of the
// start.
func (s *damageFixture) verify(t testing.TB) (audit.Report, error) {
	t.Helper()
	r, err := s.cfg.Start(t.Context(), s.home, nil)
	if err != nil {
		return audit.Report{}, err
	}
	defer down(t, r)
	return verifyLog(t, s.home, r.Bus)
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
		t.Errorf("named %v\nwant %s, chain %s, record %d: ... %s ...\nall: %v", p, account, chain, record, text,
			rep.Problems)
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
