package acceptance

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/config"
	"conclave/pkg/audit"
	"conclave/pkg/auditlog"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// newStoredMessage lays a message out as a block file keeps it. Its sequence and checksum are still missing.
func newStoredMessage(subject string, data []byte) storedMessage {
	k := make(storedMessage, keptHeader+len(subject)+len(data)+keptSum)
	binary.LittleEndian.PutUint32(k, uint32(len(k)))
	binary.LittleEndian.PutUint64(k[12:], uint64(time.Now().UnixNano()))
	binary.LittleEndian.PutUint16(k[20:], uint16(len(subject)))
	copy(k[keptHeader:], subject)
	copy(k[keptHeader+len(subject):], data)
	return k
}

func (s *damageFixture) readHeads(t testing.TB) []subjects.AuditHead {
	t.Helper()
	heads, err := audit.ReadHeads(s.home.Heads())
	if err != nil {
		t.Fatal(err)
	}
	return heads
}

// readHead is the one anchor of an account.
func (s *damageFixture) readHead(t testing.TB, account string) subjects.AuditHead {
	t.Helper()
	heads := s.readHeads(t)
	i := slices.IndexFunc(heads, func(h subjects.AuditHead) bool { return h.Account == account })
	if i < 0 {
		t.Fatalf("%s has no anchor: %v", account, heads)
	}
	return heads[i]
}

func encodeGenesis(t testing.TB, g subjects.AuditGenesis) []byte {
	t.Helper()
	data, _, err := audit.EncodeGenesis(time.Now(), g)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// encodeChain encodes records one after the other and returns the message and the hash of the last.
func encodeChain(t testing.TB, prev string, seq uint64, recs ...subjects.AuditRecord) ([]byte, string) {
	t.Helper()
	for i := range recs {
		recs[i].Seq, recs[i].Prev = seq+uint64(i), prev
		one, err := audit.EncodeBatch(recs[i])
		if err != nil {
			t.Fatal(err)
		}
		batch, err := audit.DecodeBatch(one)
		if err != nil {
			t.Fatal(err)
		}
		prev = hex.EncodeToString(batch[0].Hash[:])
	}
	data, err := audit.EncodeBatch(recs...)
	if err != nil {
		t.Fatal(err)
	}
	return data, prev
}

// encodeExport is a well-formed export of the messages.
func encodeExport(t testing.TB, msgs []audit.Stored) ([]byte, audit.Summary) {
	t.Helper()
	var b bytes.Buffer
	src := audit.Source{
		StreamRange: audit.StreamRange{First: 1, Last: uint64(len(msgs))},
		Messages: func(yield func(audit.Stored, error) bool) {
			for _, m := range msgs {
				if !yield(m, nil) {
					return
				}
			}
		},
	}
	sum, err := audit.Export(t.Context(), src, &b)
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), sum
}

func writeFile(t testing.TB, file string, data []byte) {
	t.Helper()
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func removeFile(t testing.TB, file string) {
	t.Helper()
	if err := os.RemoveAll(file); err != nil {
		t.Fatal(err)
	}
}

// TestForgedBeginning replaces the first record by one whose old heads are the anchors, which somebody with the store
// in his hands can compute. The anchors must not be excused by it.
func TestForgedBeginning(t *testing.T) {
	t.Parallel()
	s := newDamageFixture(t, 3)
	forged := newStoredMessage(audit.GenesisSubject, encodeGenesis(t, subjects.AuditGenesis{OldHeads: s.readHeads(t)}))
	rebuilt := []storedMessage{forged}
	prev := ""
	for _, m := range s.msgs[1:] {
		recs := decoded(t, m)
		for i := range recs {
			if recs[i].Phase == subjects.AuditBefore {
				recs[i].AgentID = "somebody"
			}
		}
		var data []byte
		data, prev = encodeChain(t, prev, recs[0].Seq, recs...)
		rebuilt = append(rebuilt, newStoredMessage(m.Subject, data))
	}
	for _, tt := range []struct {
		name string
		msgs []storedMessage
	}{
		{"nothing else left", []storedMessage{forged}},
		{"the audit log rebuilt behind it, with another agent", rebuilt},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s.restoreIntact(t)
			s.writeBlock(t, tt.msgs)
			rep, err := s.verifyStopped(t)
			if err != nil {
				t.Fatal(err)
			}
			checkFirstProblem(t, rep, audit.GenesisAccount, audit.GenesisChain, 1, "not the one that was anchored")
			if rep.Genesis != nil || rep.Bad < 2 {
				t.Errorf("the forged record is believed: %+v", rep)
			}
			// Going on does not heal it.
			if rep, err = s.verify(t); err != nil || rep.OK {
				t.Errorf("after a start: %+v, %v", rep, err)
			}
		})
	}
	t.Run("the anchor of the beginning removed", func(t *testing.T) {
		s.restoreIntact(t)
		removeFile(t, filepath.Join(s.home.Heads(), audit.GenesisAccount+"."+audit.GenesisChain+".head"))
		rep, err := s.verifyStopped(t)
		if err != nil {
			t.Fatal(err)
		}
		checkFirstProblem(t, rep, audit.GenesisAccount, audit.GenesisChain, 1, "unconfirmed genesis")
	})
}

// TestForgedEnd adds records after the last acknowledged one. No anchor can tell them from those that a crash leaves,
// so they are counted.
func TestForgedEnd(t *testing.T) {
	t.Parallel()
	s := newDamageFixture(t, 3)
	h := s.readHead(t, "broker")
	act := func(chain string, phase string) subjects.AuditRecord {
		return subjects.AuditRecord{
			Chain: chain, Time: time.Now().UTC(), Phase: phase, ID: chain, AgentID: "operator",
			Action: "tool.call", Tool: "run_shell", Status: subjects.StatusAllowed,
		}
	}
	tail, _ := encodeChain(t, h.Hash, h.Seq+1, act(h.Chain, subjects.AuditBefore), act(h.Chain, subjects.AuditAfter))
	first := act("FORGED", subjects.AuditOpen)
	first.Action, first.Links = subjects.ActionOpenChain, []subjects.AuditHead{h}
	chain, _ := encodeChain(t, "", 1, first, act("FORGED", subjects.AuditBefore))
	s.writeBlock(t, append(readBlock(t, s.lastBlock(t)), newStoredMessage("audit.broker."+h.Chain, tail),
		newStoredMessage("audit.broker.FORGED", chain)))
	rep, err := s.verifyStopped(t)
	if err != nil || !rep.OK || rep.Unacknowledged != 4 {
		t.Errorf("%+v, %v", rep, err)
	}
	r := up(t, s.cfg, s.home, clockActors...)
	calls(t, r.Bus, 2)
	if rep := verified(t, s.home, r.Bus); rep.Unacknowledged != 4 {
		t.Errorf("after going on: %+v", rep)
	}
}

// TestForgedActionIsReported: with the key, the chain and the anchor of model, a record of a tool call can be stored.
// It is under model's account, which may not record tool calls.
func TestForgedActionIsReported(t *testing.T) {
	t.Parallel()
	s := newDamageFixture(t, 1)
	r := up(t, s.cfg, s.home)
	defer down(t, r)
	nc := bustest.Dial(t, r.Bus, "model")
	defer nc.Close()
	const chain = "FORGED"
	rec := subjects.AuditRecord{
		Chain: chain, Time: time.Now().UTC(), Phase: subjects.AuditOpen, ID: chain,
		Action: subjects.ActionOpenChain,
	}
	forged := rec
	forged.Phase, forged.Action, forged.AgentID, forged.AgentType = subjects.AuditBefore, subjects.ActionToolCall,
		"generator", "assistant"
	forged.Tool, forged.Status = "run_shell", subjects.StatusAllowed
	data, hash := encodeChain(t, "", 1, rec, forged)
	if err := audit.WriteHead(s.home.Heads(), subjects.AuditHead{
		Account: "model", Chain: chain, Seq: 2,
		Hash: hash,
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := bus.NewAuditLog(nc).Append(t.Context(), chain, "forged", data); err != nil {
		t.Fatal(err)
	}
	rep, err := verifyLog(t, s.home, r.Bus)
	if err != nil {
		t.Fatal(err)
	}
	checkFirstProblem(t, rep, "model", chain, 2, `the account model may not record the action "tool.call"`)

	w, err := audit.Open(t.Context(), audit.Options{Account: "model", Dir: t.TempDir(), Log: bus.NewAuditLog(nc)})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close(t.Context())
	forged.Chain = ""
	if err := w.Append(t.Context(), forged); err == nil || !strings.Contains(err.Error(), "may not record") {
		t.Errorf("model's own writer: %v", err)
	}
}

// TestPlantedPlan leaves a plan for the next log that no rotation made. It must not replace the audit log, least of all
// with the system's own hand on the anchors.
func TestPlantedPlan(t *testing.T) {
	t.Parallel()
	s := newDamageFixture(t, 3)
	heads := s.readHeads(t)
	whole, sum := encodeExport(t, s.msgs)
	cut, cutSum := encodeExport(t, s.msgs[:3])
	all := audit.MergeHeads(heads, sum.Heads)
	broker := s.readHead(t, "broker")
	for _, tt := range []struct {
		name string
		plan []byte
		file []byte // what lies under the name of the plan
		why  string
	}{
		{"no sealed log", encodeGenesis(t, subjects.AuditGenesis{OldHeads: all}), nil, "names no sealed log"},
		{
			"a sealed log that is not there",
			encodeGenesis(t, subjects.AuditGenesis{Sealed: "audit-x.jsonl", SHA256: sum.SHA256, OldHeads: all}), nil,
			"no such file",
		},
		{"another file", encodeGenesis(t, subjects.AuditGenesis{
			Sealed: "audit-x.jsonl", SHA256: cutSum.SHA256,
			OldHeads: all,
		}), whole, "not the file that was sealed"},
		{
			"a damaged file",
			encodeGenesis(t, subjects.AuditGenesis{Sealed: "audit-x.jsonl", SHA256: sum.SHA256, OldHeads: all}),
			whole[:len(whole)/2], "truncated",
		},
		{
			"a sealed log that was cut",
			encodeGenesis(t, subjects.AuditGenesis{
				Sealed: "audit-x.jsonl", SHA256: cutSum.SHA256,
				OldHeads: audit.MergeHeads(heads, cutSum.Heads),
			}), cut, "lost tail",
		},
		{"an anchor left out", encodeGenesis(t, subjects.AuditGenesis{
			Sealed: "audit-x.jsonl", SHA256: sum.SHA256,
			OldHeads: slices.DeleteFunc(slices.Clone(all), func(h subjects.AuditHead) bool { return h == broker }),
		}), whole, "omits the anchored record"},
		{"an anchor made up", encodeGenesis(t, subjects.AuditGenesis{
			Sealed: "audit-x.jsonl", SHA256: sum.SHA256,
			OldHeads: audit.MergeHeads(all,
				[]subjects.AuditHead{{Account: "memory", Chain: "m", Seq: 3, Hash: broker.Hash}}),
		}), whole, "neither anchored nor in"},
		{"a name with a path", encodeGenesis(t, subjects.AuditGenesis{
			Sealed: "../audit-x.jsonl", SHA256: sum.SHA256,
			OldHeads: all,
		}), nil, "is not a file name"},
		{"the plan of this very trail", s.msgs[0].Data, nil, "omits the anchored record"},
		{"an empty plan", encodeGenesis(t, subjects.AuditGenesis{}), nil, "omits the anchored record"},
		{"not a plan", []byte("rubbish"), nil, "not a genesis record"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			removeFile(t, s.home.AuditStreams())
			file := filepath.Join(s.home.Sealed(), "audit-x.jsonl")
			removeFile(t, file)
			if tt.file != nil {
				writeFile(t, file, tt.file)
			}
			writeFile(t, s.home.Pending(), tt.plan)
			r, err := s.cfg.Start(t.Context(), s.home, nil)
			if err == nil {
				down(t, r)
			}
			if !errors.Is(err, auditlog.ErrInterrupted) || !strings.Contains(err.Error(), tt.why) ||
				!strings.Contains(err.Error(), s.home.Pending()) {
				t.Errorf("started: %v, want %q", err, tt.why)
			}
			if !slices.Equal(s.readHeads(t), heads) {
				t.Error("the anchors were touched")
			}
		})
	}
	t.Run("resumed by hand", func(t *testing.T) {
		// With the folder of a moved store beside it the plan looks like a rotation that was cut off. Rotating goes on
		// with it only if it fits, and then says that what was sealed is not whole.
		removeFile(t, s.home.AuditStreams())
		writeFile(t, filepath.Join(s.home.Sealed(), "audit-x.jsonl"), cut)
		if err := os.MkdirAll(filepath.Join(s.home.Sealed(), "audit-x.store"), 0o700); err != nil {
			t.Fatal(err)
		}
		writeFile(t, s.home.Pending(),
			encodeGenesis(t, subjects.AuditGenesis{
				Sealed: "audit-x.jsonl", SHA256: cutSum.SHA256,
				OldHeads: cutSum.Heads,
			}))
		if _, err := auditlog.Rotate(t.Context(), s.home, s.cfg.ServerConfig(s.home), nil); err == nil ||
			!strings.Contains(err.Error(), "omits the anchored record") ||
			!strings.Contains(err.Error(), s.home.Pending()) {
			t.Errorf("rotated: %v", err)
		}
		writeFile(t, s.home.Pending(),
			encodeGenesis(t, subjects.AuditGenesis{
				Sealed: "audit-x.jsonl", SHA256: cutSum.SHA256,
				OldHeads: audit.MergeHeads(heads, cutSum.Heads),
			}))
		rot, err := auditlog.Rotate(t.Context(), s.home, s.cfg.ServerConfig(s.home), nil)
		if err != nil || rot.Report.OK || !strings.Contains(rot.Report.First.Text, "lost tail") {
			t.Errorf("rotated: %+v, %v", rot, err)
		}
	})
}

// TestRotationInterruptedBeforeTheAnchor cuts a rotation off at each step after the plan, with the old beginning still
// anchored.
func TestRotationInterruptedBeforeTheAnchor(t *testing.T) {
	t.Parallel()
	// rotated leaves a finished rotation whose new beginning is not anchored yet.
	rotated := func(t *testing.T, whole bool) (*damageFixture, auditlog.Rotation) {
		s := newDamageFixture(t, 3)
		if !whole {
			s.writeBlock(t, readBlock(t, s.lastBlock(t))[:5])
		}
		old := s.readHead(t, audit.GenesisAccount)
		rot, err := auditlog.Rotate(t.Context(), s.home, s.cfg.ServerConfig(s.home), nil)
		if err != nil || rot.Report.OK != whole {
			t.Fatalf("%+v, %v", rot, err)
		}
		err = auditlog.WithServer(s.home, s.cfg.ServerConfig(s.home), nil, func(_ *bus.Server, b *bus.Bus) error {
			writeFile(t, s.home.Pending(), bustest.ReadAuditLog(t, b)[0].Data)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := audit.WriteHead(s.home.Heads(), old); err != nil {
			t.Fatal(err)
		}
		return s, rot
	}
	goesOn := func(t *testing.T, s *damageFixture, rot auditlog.Rotation) {
		t.Helper()
		r := up(t, s.cfg, s.home, clockActors...)
		calls(t, r.Bus, 1)
		if rep := verified(t, s.home, r.Bus); rot.Sealed != "" && rep.Genesis.Sealed != filepath.Base(rot.Sealed) {
			t.Errorf("the successor names %q", rep.Genesis.Sealed)
		}
		if _, err := os.Stat(s.home.Pending()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the plan is still there: %v", err)
		}
	}
	t.Run("the very first start, and somebody has written since", func(t *testing.T) {
		s := newDamageFixture(t, 3)
		removeFile(t, filepath.Join(s.home.Heads(), audit.GenesisAccount+"."+audit.GenesisChain+".head"))
		writeFile(t, s.home.Pending(), s.msgs[0].Data)
		goesOn(t, s, auditlog.Rotation{})
	})
	t.Run("planned, not moved", func(t *testing.T) {
		s, rot := rotated(t, true)
		removeFile(t, s.home.AuditStreams())
		if err := os.Rename(rot.Store, s.home.AuditStreams()); err != nil {
			t.Fatal(err)
		}
		if _, err := s.cfg.Start(t.Context(), s.home, nil); !errors.Is(err, auditlog.ErrInterrupted) {
			t.Fatalf("started: %v", err)
		}
		s.checkRecovers(t, 7)
	})
	t.Run("moved", func(t *testing.T) {
		s, rot := rotated(t, true)
		removeFile(t, s.home.AuditStreams())
		goesOn(t, s, rot)
	})
	t.Run("opened, not anchored", func(t *testing.T) {
		s, rot := rotated(t, true)
		goesOn(t, s, rot)
	})
	t.Run("the old trail was damaged", func(t *testing.T) {
		s, rot := rotated(t, false)
		removeFile(t, s.home.AuditStreams())
		// A start does not decide that; a rotation does, and says so.
		if _, err := s.cfg.Start(t.Context(), s.home, nil); !errors.Is(err, auditlog.ErrInterrupted) {
			t.Fatalf("started: %v", err)
		}
		again, err := auditlog.Rotate(t.Context(), s.home, s.cfg.ServerConfig(s.home), nil)
		if err != nil || again.Report.OK || again.Sealed != rot.Sealed {
			t.Fatalf("%+v, %v", again, err)
		}
		goesOn(t, s, rot)
	})
}

// TestSealedFiles: each sealed file is vouched for from the current trail backwards, and by nothing that lies beside
// it.
func TestSealedFiles(t *testing.T) {
	t.Parallel()
	s := newDamageFixture(t, 2)
	var sealed []string // newest last
	for range 3 {
		rot, err := auditlog.Rotate(t.Context(), s.home, s.cfg.ServerConfig(s.home), nil)
		if err != nil || !rot.Report.OK {
			t.Fatalf("%+v, %v", rot, err)
		}
		sealed = append(sealed, rot.Sealed)
		r := up(t, s.cfg, s.home, clockActors...)
		calls(t, r.Bus, 1)
		down(t, r)
	}
	intact := map[string][]byte{}
	for _, file := range sealed {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		intact[file] = b
	}
	cut, cutSum := encodeExport(t, s.msgs[:3])
	successor, _ := encodeExport(t,
		[]audit.Stored{{Seq: 1, Subject: audit.GenesisSubject, Data: encodeGenesis(t, subjects.AuditGenesis{
			Sealed: filepath.Base(sealed[0]), SHA256: cutSum.SHA256, OldHeads: cutSum.Heads,
		})}})
	flipped := func(b []byte) []byte {
		b = slices.Clone(b)
		b[len(b)/2] ^= 1
		return b
	}
	for _, tt := range []struct {
		name string
		do   func(t *testing.T)
		bad  int // the file that is named
		text string
		path int // how far the walk came
	}{
		{"intact", func(*testing.T) {}, -1, "", 3},
		{"the newest missing", func(t *testing.T) { removeFile(t, sealed[2]) }, 2, "is missing", 1},
		{"the oldest missing", func(t *testing.T) { removeFile(t, sealed[0]) }, 0, "is missing", 3},
		{"one in the middle altered", func(t *testing.T) {
			writeFile(t, sealed[1], flipped(intact[sealed[1]]))
		}, 1, "not the one that was sealed", 2},
		{"the oldest altered", func(t *testing.T) {
			writeFile(t, sealed[0], flipped(intact[sealed[0]]))
		}, 0, "not the one that was sealed", 3},
		{"something appended", func(t *testing.T) {
			writeFile(t, sealed[0], append(slices.Clone(intact[sealed[0]]), '\n'))
		}, 0, "not the one that was sealed", 3},
		{"emptied", func(t *testing.T) { writeFile(t, sealed[2], nil) }, 2, "not the one that was sealed", 1},
		{"two exchanged", func(t *testing.T) {
			writeFile(t, sealed[0], intact[sealed[1]])
			writeFile(t, sealed[1], intact[sealed[0]])
		}, 1, "not the one that was sealed", 2},
		{"a folder in its place", func(t *testing.T) {
			removeFile(t, sealed[1])
			if err := os.Mkdir(sealed[1], 0o700); err != nil {
				t.Fatal(err)
			}
		}, 1, "cannot be read", 2},
		{"cut and sealed again, with a successor beside it", func(t *testing.T) {
			writeFile(t, sealed[0], cut)
			writeFile(t, filepath.Join(s.home.Sealed(), "audit-0.jsonl"), successor)
		}, 0, "not the one that was sealed", 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			removeFile(t, s.home.Sealed())
			if err := s.home.CreateFolders(); err != nil {
				t.Fatal(err)
			}
			for file, b := range intact {
				writeFile(t, file, b)
			}
			tt.do(t)
			rep, err := s.verifyStopped(t)
			if err != nil {
				t.Fatal(err)
			}
			if len(rep.Predecessors) != tt.path {
				t.Errorf("the walk came to %+v", rep.Predecessors)
			}
			if tt.bad < 0 {
				if !rep.OK {
					t.Errorf("%+v", rep)
				}
				for i, p := range rep.Predecessors {
					file := sealed[len(sealed)-1-i]
					if sum := sha256.Sum256(intact[file]); p.File != filepath.Base(file) ||
						p.SHA256 != hex.EncodeToString(sum[:]) || p.Note != "" {
						t.Errorf("%+v is not %s", p, file)
					}
				}
				return
			}
			if rep.OK || rep.Bad != 1 || !strings.Contains(rep.First.Text, tt.text) ||
				!strings.Contains(rep.First.Text, filepath.Base(sealed[tt.bad])) {
				t.Errorf("%d problems, first %v", rep.Bad, rep.First)
			}
		})
	}
}

// TestSealedWithForgedBeginning: an audit log whose beginning was forged is sealed as it is, but what it says of the
// trails before it is not believed.
func TestSealedWithForgedBeginning(t *testing.T) {
	t.Parallel()
	s := newDamageFixture(t, 2)
	if rot, err := auditlog.Rotate(t.Context(), s.home, s.cfg.ServerConfig(s.home), nil); err != nil || !rot.Report.OK {
		t.Fatalf("%+v, %v", rot, err)
	}
	file, sum := encodeExport(t, s.msgs[:1])
	writeFile(t, filepath.Join(s.home.Sealed(), "audit-x.jsonl"), file)
	s.writeBlock(t,
		[]storedMessage{newStoredMessage(audit.GenesisSubject,
			encodeGenesis(t, subjects.AuditGenesis{
				Sealed: "audit-x.jsonl", SHA256: sum.SHA256,
				OldHeads: s.readHeads(t),
			}))})
	rot, err := auditlog.Rotate(t.Context(), s.home, s.cfg.ServerConfig(s.home), nil)
	if err != nil || rot.Report.OK {
		t.Fatalf("%+v, %v", rot, err)
	}
	rep, err := s.verifyStopped(t)
	if err != nil || !rep.OK || len(rep.Predecessors) != 1 ||
		!strings.Contains(rep.Predecessors[0].Note, "not the one that was anchored") {
		t.Errorf("%+v, %v", rep, err)
	}
}

// TestAnchorsGone removes everything that vouches for the audit log from outside: the system does not begin a new one
// over it.
func TestAnchorsGone(t *testing.T) {
	t.Parallel()
	cfg, home := settings(t), newHome(t)
	for _, want := range []error{nil, auditlog.ErrAnchorsMissing, auditlog.ErrAnchorsMissing} {
		c, err := cfg.Start(t.Context(), home, nil, config.Actors...)
		if !errors.Is(err, want) {
			t.Fatalf("start: %v, want %v", err, want)
		}
		if err == nil {
			if err := c.Stop(context.Background()); err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(filepath.Join(home.Data, "audit")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := auditlog.Rotate(t.Context(), home, cfg.ServerConfig(home), nil); err != nil {
		t.Fatal(err)
	}
	c, err := cfg.Start(t.Context(), home, nil, config.Actors...)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
}
