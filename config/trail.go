package config

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"conclave/pkg/audit"
	"conclave/pkg/bus"
	"conclave/subjects"
)

// ErrRotation means that a rotation was cut off between two steps.
var ErrRotation = errors.New("a rotation of the audit was interrupted; run conclave audit rotate again")

// ErrAnchorsGone means that the audit log has records and nothing outside it says where they end.
var ErrAnchorsGone = errors.New("the audit's anchors are gone")

// Provision makes the streams with the given step and sees to the beginning of the audit log: a new trail gets its first
// record, which is then anchored; an audit log that has lost its records is not quietly replaced by an empty one. A plan that a
// crash left behind is followed only if it fits the anchors and the sealed file: a planted one would replace the audit log.
func Provision(ctx context.Context, home bus.Home, b *bus.Bus, step func(ctx context.Context, genesis []byte) error) error {
	heads, err := audit.ReadHeads(home.Heads())
	if err != nil {
		return err
	}
	p, err := readPlan(home)
	switch {
	case errors.Is(err, fs.ErrNotExist) && len(heads) > 0:
		err := step(ctx, nil)
		if errors.Is(err, bus.ErrAuditLost) {
			return fmt.Errorf("%w: bring back %s, or accept the loss and open a new trail with conclave audit rotate", err, home.Store())
		}
		return err
	case errors.Is(err, fs.ErrNotExist):
		data, err := plan(home, subjects.AuditGenesis{})
		if err != nil {
			return err
		}
		err = open(ctx, home, b, step, data)
		if errors.Is(err, ErrRotation) { // there is an audit log, and it does not begin with what was just planned
			return errors.Join(fmt.Errorf("%w: bring back %s, or seal what is there with conclave audit rotate", ErrAnchorsGone, home.Heads()), os.Remove(home.Pending()))
		}
		return err
	case err == nil:
		err = p.check(ctx, home, heads)
	}
	if err == nil && !p.anchored && p.report.First != nil {
		err = fmt.Errorf("the audit log that it seals does not verify, first %s", p.report.First)
	}
	if err != nil {
		return fmt.Errorf("%w; %s was not followed: %w", ErrRotation, home.Pending(), err)
	}
	return open(ctx, home, b, step, p.data)
}

// open makes the streams and begins the audit log as planned.
func open(ctx context.Context, home bus.Home, b *bus.Bus, step func(ctx context.Context, genesis []byte) error, planned []byte) error {
	if err := step(ctx, planned); err != nil {
		return err
	}
	return begin(ctx, home, b, planned)
}

// pending is the first record of the next trail, as it lies on the disk.
type pending struct {
	data     []byte
	genesis  *subjects.AuditGenesis
	anchored bool         // the anchors have it already
	report   audit.Report // on the audit log that it seals, if it seals one
}

func readPlan(home bus.Home) (p pending, err error) {
	if p.data, err = os.ReadFile(home.Pending()); err != nil {
		return p, fmt.Errorf("opening the audit log: %w", err)
	}
	batch, err := audit.DecodeBatch(p.data)
	if err != nil || len(batch) != 1 || batch[0].Record.Genesis == nil {
		return p, errors.New("it is not the first record of an audit log")
	}
	p.genesis = batch[0].Record.Genesis
	return p, nil
}

// check compares a plan with the anchors and with the file that it seals: no anchor may be left out, for the next trail
// would forget it, and none may be made up. Whether the sealed audit log itself is whole is in the report.
func (p *pending) check(ctx context.Context, home bus.Home, heads []subjects.AuditHead) error {
	heads = slices.DeleteFunc(slices.Clone(heads), func(h subjects.AuditHead) bool { return h.Seq == 0 })
	begun := slices.ContainsFunc(heads, func(h subjects.AuditHead) bool { return h.Account == audit.GenesisAccount })
	if !begun && p.genesis.Sealed == "" && len(p.genesis.OldHeads) == 0 {
		return nil // the very first start was cut off; an actor elsewhere may have written since, and nothing is excused
	}
	_, err := audit.Beginning(audit.Stored{Subject: audit.GenesisSubject, Data: p.data}, heads)
	p.anchored = err == nil
	for _, h := range heads {
		if own := p.anchored && h.Account == audit.GenesisAccount; !own && !slices.Contains(p.genesis.OldHeads, h) {
			return fmt.Errorf("it leaves out record %d of %s, chain %s, which is anchored", h.Seq, h.Account, h.Chain)
		}
	}
	if p.genesis.Sealed == "" {
		if len(heads) > 0 && !p.anchored {
			return errors.New("it names no sealed trail, and one is anchored")
		}
		return nil
	}
	file, err := sealedFile(home, p.genesis.Sealed)
	if err != nil {
		return err
	}
	var sum audit.Summary
	err = readExport(file, func(src audit.Source) (err error) {
		sum, err = audit.Export(ctx, src, io.Discard) // there is one way to write an export, so writing it again hashes it
		return err
	})
	switch {
	case err != nil:
		return err
	case sum.SHA256 != p.genesis.SHA256:
		return fmt.Errorf("%s is not the file that was sealed: its SHA-256 is %s, not %s", file, sum.SHA256, p.genesis.SHA256)
	case p.anchored || len(heads) == 0:
		heads = p.genesis.OldHeads
	}
	for _, h := range p.genesis.OldHeads {
		if h.Seq > 0 && !slices.Contains(heads, h) && !slices.Contains(sum.Heads, h) {
			return fmt.Errorf("it holds record %d of %s, chain %s, which is neither anchored nor in %s", h.Seq, h.Account, h.Chain, file)
		}
	}
	p.report, err = reread(ctx, file, heads)
	return err
}

// plan writes down the first record of the next trail.
func plan(home bus.Home, g subjects.AuditGenesis) ([]byte, error) {
	data, _, err := audit.EncodeGenesis(time.Now(), g)
	if err != nil {
		return nil, fmt.Errorf("opening the audit log: %w", err)
	}
	if err := writeFile(home.Pending(), data); err != nil {
		return nil, fmt.Errorf("opening the audit log: %w", err)
	}
	return data, nil
}

// begin checks that the audit log begins with the planned record, and anchors it.
func begin(ctx context.Context, home bus.Home, b *bus.Bus, planned []byte) error {
	nc, err := b.Dial("auditor")
	if err != nil {
		return err
	}
	defer nc.Close()
	first, err := bus.AuditFirst(ctx, nc)
	if err != nil {
		return fmt.Errorf("opening the audit log: %w", err)
	}
	if !bytes.Equal(first.Data, planned) {
		return ErrRotation
	}
	batch, err := audit.DecodeBatch(planned)
	if err != nil {
		return fmt.Errorf("opening the audit log: %w", err)
	}
	head := subjects.AuditHead{Account: audit.GenesisAccount, Chain: audit.GenesisChain, Seq: 1, Hash: hex.EncodeToString(batch[0].Hash[:])}
	if err := audit.WriteHead(home.Heads(), head); err != nil {
		return err
	}
	return os.Remove(home.Pending())
}

// Verify checks the audit log against its anchors, with the auditor's key, and the sealed audit logs before it.
func Verify(ctx context.Context, home bus.Home, b *bus.Bus) (audit.Report, error) {
	nc, err := b.Dial("auditor")
	if err != nil {
		return audit.Report{}, err
	}
	defer nc.Close()
	heads, err := audit.ReadHeads(home.Heads()) // before the end of the stream is taken: what is anchored must be there
	if err != nil {
		return audit.Report{}, err
	}
	src, err := bus.AuditSource(ctx, nc)
	if err != nil {
		return audit.Report{}, err
	}
	return Check(ctx, home, src, heads)
}

// Check is [Verify] for an audit log that was opened already.
func Check(ctx context.Context, home bus.Home, src audit.Source, heads []subjects.AuditHead) (audit.Report, error) {
	rep, err := audit.Verify(ctx, src, heads, audit.VerifyOptions{Accounts: subjects.AuditWriters})
	if err != nil || rep.Genesis == nil { // a beginning that nobody vouches for vouches for nothing
		return rep, err
	}
	if rep.Predecessors, err = Predecessors(ctx, home, rep.Genesis); err != nil {
		rep.OK = false
		return rep, err
	}
	for _, s := range rep.Predecessors {
		if s.Problem != "" {
			rep.Add(audit.Problem{Text: s.Problem})
		}
	}
	return rep, nil
}

// Predecessors walks from an anchored first record to the sealed audit log that it names, from that one's first record to the
// one before, and so on. Nothing else vouches for a sealed file: a file beside it may be anybody's. The walk ends at a file
// that is missing or altered.
func Predecessors(ctx context.Context, home bus.Home, g *subjects.AuditGenesis) (path []audit.Sealed, err error) {
	for by := ""; g != nil && g.Sealed != ""; {
		s := audit.Sealed{File: g.Sealed, SHA256: g.SHA256, By: by, OldHeads: g.OldHeads}
		sum, first, err := readSealed(ctx, home, s.File)
		g, by = nil, s.File
		switch {
		case ctx.Err() != nil:
			return path, ctx.Err()
		case errors.Is(err, fs.ErrNotExist):
			s.Problem = fmt.Sprintf("the sealed audit log %s is missing from %s", s.File, home.Sealed())
		case err != nil:
			s.Problem = fmt.Sprintf("the sealed audit log %s cannot be read: %v", s.File, err)
		case sum != s.SHA256:
			s.Problem = fmt.Sprintf("the sealed audit log %s is not the one that was sealed: its SHA-256 is %s, not %s", s.File, sum, s.SHA256)
		default:
			// A trail that had lost its beginning is sealed all the same; what it then begins with names no predecessor.
			if g, err = audit.Beginning(first, s.OldHeads); err != nil {
				s.Note = fmt.Sprintf("nothing vouches for what was sealed before it: %v", err)
			}
		}
		path = append(path, s)
	}
	return path, nil
}

// sealedFile is where a sealed trail lies. The name comes from a record, so it must be no more than a name.
func sealedFile(home bus.Home, name string) (string, error) {
	if name != filepath.Base(name) || !filepath.IsLocal(name) {
		return "", fmt.Errorf("%q is not the name of a file", name)
	}
	return filepath.Join(home.Sealed(), name), nil
}

// readSealed hashes a sealed file and returns its first message, in one reading.
func readSealed(ctx context.Context, home bus.Home, name string) (sum string, first audit.Stored, err error) {
	file, err := sealedFile(home, name)
	if err != nil {
		return "", first, err
	}
	f, err := os.Open(file)
	if err != nil {
		return "", first, err
	}
	defer f.Close()
	stop := context.AfterFunc(ctx, func() { f.Close() })
	defer stop()
	h := sha256.New()
	if src, err := audit.OpenExport(io.TeeReader(f, h)); err == nil {
		for m, err := range src.Messages {
			if err == nil {
				first = m
			}
			break
		}
	}
	if _, err := io.Copy(h, f); err != nil {
		return "", first, err
	}
	return hex.EncodeToString(h.Sum(nil)), first, nil
}

// Rotation is what a rotation did.
type Rotation struct {
	Sealed  string       `json:"sealed"` // the export
	SHA256  string       `json:"sha256"`
	Store   string       `json:"store"` // the stream's own files, kept as they were
	Report  audit.Report `json:"report"`
	Records int          `json:"records"`
}

// Rotate exports the audit log, seals it and opens a successor whose first record holds the old heads. The system must be
// stopped: the data folder is held meanwhile. The old stream is moved, never deleted, so no key needs the right to.
func (c Config) Rotate(ctx context.Context, home bus.Home, log *slog.Logger) (rot Rotation, err error) {
	if err := home.Make(); err != nil {
		return rot, err
	}
	unlock, err := home.Lock()
	if err != nil {
		return rot, fmt.Errorf("the audit is rotated while conclave is stopped: %w", err)
	}
	defer unlock()
	if rot, done, err := c.resume(ctx, home, log); done || err != nil {
		return rot, err
	}
	name := "audit-" + time.Now().UTC().Format("20060102T150405.000Z")
	genesis, err := c.seal(ctx, home, log, name, &rot)
	if err != nil {
		return rot, err
	}
	planned, err := plan(home, genesis)
	if err != nil {
		return rot, err
	}
	// From here on a crash leaves the plan behind, and a second rotation starts over from what is there.
	rot.Store = filepath.Join(home.Sealed(), name+".store")
	if err := os.Rename(home.AuditStore(), rot.Store); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return rot, fmt.Errorf("moving the old stream: %w", err)
	}
	return rot, c.WithServer(home, log, func(s *bus.Server, b *bus.Bus) error {
		return open(ctx, home, b, s.Provision, planned)
	})
}

// resume finishes a rotation that was cut off after the old stream was moved. Starting over would seal the nothing that
// is left, and the successor would not name the file that holds the records.
func (c Config) resume(ctx context.Context, home bus.Home, log *slog.Logger) (rot Rotation, done bool, err error) {
	p, err := readPlan(home)
	switch {
	case p.data == nil && errors.Is(err, fs.ErrNotExist):
		return rot, false, nil
	case p.data == nil:
		return rot, false, fmt.Errorf("resuming the rotation: %w", err)
	case err != nil || p.genesis.Sealed == "":
		return rot, false, nil // not the plan of a rotation: plan again
	}
	if rot.Sealed, err = sealedFile(home, p.genesis.Sealed); err != nil {
		return Rotation{}, false, nil
	}
	rot.SHA256 = p.genesis.SHA256
	rot.Store = strings.TrimSuffix(rot.Sealed, ".jsonl") + ".store"
	if _, err := os.Stat(rot.Store); err != nil {
		return Rotation{}, false, nil
	}
	heads, err := audit.ReadHeads(home.Heads())
	if err != nil {
		return rot, true, err
	}
	if err := p.check(ctx, home, heads); err != nil {
		return rot, true, fmt.Errorf("the interrupted rotation cannot go on: %w: bring back the sealed audit log, or delete %s to seal what is there now", err, home.Pending())
	}
	rot.Report, rot.Records = p.report, p.report.Records
	return rot, true, c.WithServer(home, log, func(s *bus.Server, b *bus.Bus) error {
		return open(ctx, home, b, s.Provision, p.data)
	})
}

// readExport opens a sealed file for one walk.
func readExport(file string, f func(audit.Source) error) error {
	r, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("reading the export back: %w", err)
	}
	defer r.Close()
	src, err := audit.OpenExport(r)
	if err == nil {
		err = f(src)
	}
	if err != nil {
		return fmt.Errorf("reading the export back: %w", err)
	}
	return nil
}

// reread checks a sealed file against the heads of its trail.
func reread(ctx context.Context, file string, heads []subjects.AuditHead) (rep audit.Report, err error) {
	err = readExport(file, func(src audit.Source) (err error) {
		rep, err = audit.Verify(ctx, src, heads, audit.VerifyOptions{Accounts: subjects.AuditWriters})
		return err
	})
	return rep, err
}

// seal exports the audit log to a file, checks that file, and returns what the successor must remember.
func (c Config) seal(ctx context.Context, home bus.Home, log *slog.Logger, name string, rot *Rotation) (g subjects.AuditGenesis, err error) {
	g.Sealed = name + ".jsonl"
	rot.Sealed = filepath.Join(home.Sealed(), g.Sealed)
	heads, err := audit.ReadHeads(home.Heads())
	if err != nil {
		return g, err
	}
	err = c.WithServer(home, log, func(_ *bus.Server, b *bus.Bus) error {
		nc, err := b.Dial("auditor")
		if err != nil {
			return err
		}
		defer nc.Close()
		src, err := bus.AuditSource(ctx, nc)
		var api *jetstream.APIError
		switch {
		case errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamNotFound:
			// No stream at all: there is nothing to export, and the anchors say what was lost.
			src = audit.Source{Messages: func(func(audit.Stored, error) bool) {}}
		case err != nil: // there may be records: an empty export would seal them away
			return err
		}
		f, err := os.OpenFile(rot.Sealed, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return fmt.Errorf("exporting: %w", err)
		}
		defer f.Close()
		sum := sha256.New()
		summary, err := audit.Export(ctx, src, io.MultiWriter(f, sum))
		if err != nil {
			return fmt.Errorf("exporting: %w", err)
		}
		if err := errors.Join(f.Sync(), f.Chmod(0o400), f.Close()); err != nil {
			return fmt.Errorf("exporting: %w", err)
		}
		rot.Records = summary.Records
		g.SHA256, g.LastSeq, g.OldHeads = hex.EncodeToString(sum.Sum(nil)), src.Last, audit.MergeHeads(heads, summary.Heads)
		rot.SHA256 = g.SHA256
		return nil
	})
	if err != nil {
		return g, err
	}
	rot.Report, err = reread(ctx, rot.Sealed, heads)
	return g, err
}

// WithServer runs the embedded server alone, without actors, for f. The caller holds the data folder.
func (c Config) WithServer(home bus.Home, log *slog.Logger, f func(*bus.Server, *bus.Bus) error) error {
	lasting, _ := subjects.Table().Roles()
	keys := home.Keys()
	if _, err := keys.Ensure(lasting); err != nil {
		return err
	}
	cfg := c.Server(home)
	cfg.Listen = "127.0.0.1:0"
	s, err := bus.StartServer(cfg, keys, log)
	if err != nil {
		return err
	}
	defer s.Stop(context.Background())
	return f(s, &bus.Bus{URL: s.URL(), Keys: keys, Srv: s, Log: log})
}

// writeFile writes a whole file or none, on the disk when it returns.
func writeFile(name string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(name), ".tmp-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(data)
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), name); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(name)) // the name is on the disk only when its folder is
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
