// Package auditlog opens, verifies and rotates the audit log of a data folder: the stream on the bus, the anchors that
// name its last records, and the sealed files of earlier logs. The format of one log is in package audit.
package auditlog

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"conclave/pkg/audit"
	"conclave/pkg/bus"
	"conclave/pkg/file"
	"conclave/subjects"
)

// ErrInterrupted means that a rotation stopped between two steps.
var ErrInterrupted = errors.New("a rotation of the audit was interrupted; run conclave audit rotate again")

// ErrAnchorsMissing means that the audit log has records and no anchor outside the stream confirms the last ones.
var ErrAnchorsMissing = errors.New("the anchors of the audit are missing")

// CreateStreams creates the streams on the bus. genesis is the first record of a new audit log; nil means that the log
// must exist already, and its absence is [bus.ErrAuditLost].
type CreateStreams func(ctx context.Context, genesis []byte) error

// Provision creates the streams with create and opens the audit log: a new log gets its genesis record, which is then
// anchored. It fails with [bus.ErrAuditLost] when anchors exist and the records are lost, with [ErrAnchorsMissing] when
// records exist and no anchor does, and with [ErrInterrupted] when a pending genesis that a crash left behind disagrees
// with the anchors or the sealed file, or seals a log that does not verify: a planted one would replace the log.
func Provision(ctx context.Context, home bus.Home, b *bus.Bus, create CreateStreams) error {
	heads, err := audit.ReadHeads(home.Heads())
	if err != nil {
		return err
	}
	p, err := readPending(home)
	switch {
	case errors.Is(err, fs.ErrNotExist) && len(heads) > 0:
		err := create(ctx, nil)
		if errors.Is(err, bus.ErrAuditLost) {
			return fmt.Errorf("%w: restore %s, or accept the loss and open a new log with conclave audit rotate", err,
				home.Store())
		}
		return err
	case errors.Is(err, fs.ErrNotExist):
		data, err := writePending(home, subjects.AuditGenesis{})
		if err != nil {
			return err
		}
		err = openLog(ctx, home, b, create, data)
		if errors.Is(err, ErrInterrupted) { // a log exists, and its first record is not the one just written
			return errors.Join(fmt.Errorf("%w: restore %s, or seal the existing log with conclave audit rotate",
				ErrAnchorsMissing, home.Heads()), os.Remove(home.Pending()))
		}
		return err
	case err == nil:
		err = p.check(ctx, home, heads)
	}
	if err == nil && !p.anchored && p.report.First != nil {
		err = fmt.Errorf("the audit log that it seals does not verify, first %s", p.report.First)
	}
	if err != nil {
		return fmt.Errorf("%w; %s was rejected: %w", ErrInterrupted, home.Pending(), err)
	}
	return openLog(ctx, home, b, create, p.data)
}

// openLog creates the streams with a pending genesis record, anchors it and removes the pending file. It returns
// [ErrInterrupted], and anchors nothing, when the log begins with another record. genesis must have been accepted by
// the caller.
func openLog(ctx context.Context, home bus.Home, b *bus.Bus, create CreateStreams, genesis []byte) error {
	if err := create(ctx, genesis); err != nil {
		return err
	}
	nc, err := b.Dial("auditor")
	if err != nil {
		return err
	}
	defer nc.Close()
	first, err := bus.ReadFirstAuditMessage(ctx, bus.NewAuditReader(nc))
	if err != nil {
		return fmt.Errorf("opening the audit log: %w", err)
	}
	if !bytes.Equal(first.Data, genesis) {
		return ErrInterrupted
	}
	batch, err := audit.DecodeBatch(genesis)
	if err != nil {
		return fmt.Errorf("opening the audit log: %w", err)
	}
	head := subjects.AuditHead{
		Account: audit.GenesisAccount, Chain: audit.GenesisChain, Seq: 1,
		Hash: hex.EncodeToString(batch[0].Hash[:]),
	}
	if err := audit.WriteHead(home.Heads(), head); err != nil {
		return err
	}
	return os.Remove(home.Pending())
}

// pending is the genesis record of the next log, stored on disk before the streams are touched.
type pending struct {
	data     []byte
	genesis  *subjects.AuditGenesis
	anchored bool         // the anchors name it already
	report   audit.Report // on the log that it seals; empty when it seals none
}

// readPending reads the pending genesis record. The error wraps [fs.ErrNotExist] when there is none; data is nil when
// the file cannot be read, and set with an error when it holds no genesis record. The content is not trusted yet: see
// [pending.check].
func readPending(home bus.Home) (p pending, err error) {
	if p.data, err = os.ReadFile(home.Pending()); err != nil {
		return p, fmt.Errorf("opening the audit log: %w", err)
	}
	batch, err := audit.DecodeBatch(p.data)
	if err != nil || len(batch) != 1 || batch[0].Record.Genesis == nil {
		return p, errors.New("not a genesis record")
	}
	p.genesis = batch[0].Record.Genesis
	return p, nil
}

// writePending stores the genesis record g of the next log in place of an earlier one, and returns its bytes. It is on
// disk when writePending returns.
func writePending(home bus.Home, g subjects.AuditGenesis) ([]byte, error) {
	data, _, err := audit.EncodeGenesis(time.Now(), g)
	if err != nil {
		return nil, fmt.Errorf("opening the audit log: %w", err)
	}
	if err := file.Replace(home.Pending(), data); err != nil {
		return nil, fmt.Errorf("opening the audit log: %w", err)
	}
	return data, nil
}

// check compares p with the anchors in heads and with the file that it seals. It rejects a record that omits an anchor,
// because the next log would forget it, that contains an invented one, or that names no sealed log although one is
// anchored. It sets p.anchored, and p.report if a log is sealed; a sealed log that does not verify is no error.
func (p *pending) check(ctx context.Context, home bus.Home, heads []subjects.AuditHead) error {
	heads = slices.DeleteFunc(slices.Clone(heads), func(h subjects.AuditHead) bool { return h.Seq == 0 })
	hasGenesis := slices.ContainsFunc(heads, func(h subjects.AuditHead) bool {
		return h.Account == audit.GenesisAccount
	})
	if !hasGenesis && p.genesis.Sealed == "" && len(p.genesis.OldHeads) == 0 {
		// the first start was interrupted; an actor elsewhere may have written since, and no anchor is excused
		return nil
	}
	_, err := audit.ReadGenesis(audit.Stored{Subject: audit.GenesisSubject, Data: p.data}, heads)
	p.anchored = err == nil
	for _, h := range heads {
		if own := p.anchored && h.Account == audit.GenesisAccount; !own && !slices.Contains(p.genesis.OldHeads, h) {
			return fmt.Errorf("it omits the anchored record %d of %s, chain %s", h.Seq, h.Account, h.Chain)
		}
	}
	if p.genesis.Sealed == "" {
		if len(heads) > 0 && !p.anchored {
			return errors.New("it names no sealed log, and one is anchored")
		}
		return nil
	}
	return p.checkSealed(ctx, home, heads)
}

// checkSealed compares p with the sealed file that it names: its SHA-256 must be the recorded one, and each old head
// must be anchored or in the file. It sets p.report. heads are the anchors of a record that [pending.check] has not
// rejected.
func (p *pending) checkSealed(ctx context.Context, home bus.Home, heads []subjects.AuditHead) error {
	file, err := sealedPath(home, p.genesis.Sealed)
	if err != nil {
		return err
	}
	var sum audit.Summary
	err = readExport(file, func(src audit.Source) (err error) {
		sum, err = audit.Export(ctx, src, io.Discard) // the encoding is canonical, so exporting again yields the hash
		return err
	})
	switch {
	case err != nil:
		return err
	case sum.SHA256 != p.genesis.SHA256:
		return fmt.Errorf("%s is not the file that was sealed: its SHA-256 is %s, not %s", file, sum.SHA256,
			p.genesis.SHA256)
	case p.anchored || len(heads) == 0:
		heads = p.genesis.OldHeads
	}
	for _, h := range p.genesis.OldHeads {
		if h.Seq > 0 && !slices.Contains(heads, h) && !slices.Contains(sum.Heads, h) {
			return fmt.Errorf("it holds record %d of %s, chain %s, which is neither anchored nor in %s", h.Seq,
				h.Account, h.Chain, file)
		}
	}
	p.report, err = verifyExport(ctx, file, heads)
	return err
}

// VerifySource checks an open audit log against its anchors, and compares it with heads that were kept outside; then it
// checks that the sealed logs before it are unchanged. heads and kept must have been read before src was opened: every
// anchored record must be in it. Problems are in the report, which is not OK then; the error means that the log could
// not be read. Sealed logs are checked only if the genesis record is anchored: another one proves nothing about them.
func VerifySource(ctx context.Context, home bus.Home, src audit.Source, heads []subjects.AuditHead,
	kept []audit.KeptHead,
) (audit.Report, error) {
	rep, err := audit.Verify(ctx, src, heads, audit.VerifyOptions{Actions: subjects.AuditActions, Kept: kept})
	if err != nil {
		return rep, err
	}
	addEarlierDamage(home, &rep)
	// ListPredecessors returns none for a nil genesis: one that is not anchored proves nothing about sealed logs.
	if rep.Predecessors, err = ListPredecessors(ctx, home, rep.Genesis); err != nil {
		rep.OK = false
		return rep, err
	}
	for _, s := range rep.Predecessors {
		if s.Problem != "" {
			rep.AddProblem(audit.Problem{Text: s.Problem})
		}
	}
	problems, err := checkForeign(ctx, home, rep.Foreign, rep.Predecessors)
	for _, p := range problems {
		rep.AddProblem(p)
	}
	if err != nil {
		rep.OK = false
	}
	return rep, err
}

// ListPredecessors returns the sealed logs before an anchored genesis record, newest first: the file that g names, the
// file that this one's genesis names, and so on; none when g is nil or names no file. No other file of the folder is
// trusted. Each file is hashed, not verified. The list ends at a file that is missing or altered, which has its Problem
// set. The error is that of ctx.
func ListPredecessors(ctx context.Context, home bus.Home, g *subjects.AuditGenesis) (path []audit.Sealed, err error) {
	for by := ""; g != nil && g.Sealed != ""; {
		s := audit.Sealed{File: g.Sealed, SHA256: g.SHA256, By: by, OldHeads: g.OldHeads}
		sum, first, err := hashSealed(ctx, home, s.File)
		g, by = nil, s.File
		switch {
		case ctx.Err() != nil:
			return path, ctx.Err()
		case errors.Is(err, fs.ErrNotExist):
			s.Problem = fmt.Sprintf("the sealed audit log %s is missing from %s", s.File, home.Sealed())
		case err != nil:
			s.Problem = fmt.Sprintf("the sealed audit log %s cannot be read: %v", s.File, err)
		case sum != s.SHA256:
			s.Problem = fmt.Sprintf("the sealed audit log %s is not the one that was sealed: its SHA-256 is %s, not %s",
				s.File, sum, s.SHA256)
		default:
			// A log that had lost its genesis record is sealed nevertheless; its first record names no predecessor.
			if g, err = audit.ReadGenesis(first, s.OldHeads); err != nil {
				s.Note = fmt.Sprintf("no record confirms the logs sealed before it: %v", err)
			}
		}
		path = append(path, s)
	}
	return path, nil
}

// sealedPath returns the path of a sealed log. It rejects a name with a folder in it: the name comes from a record.
func sealedPath(home bus.Home, name string) (string, error) {
	if name != filepath.Base(name) || !filepath.IsLocal(name) {
		return "", fmt.Errorf("%q is not a file name", name)
	}
	return filepath.Join(home.Sealed(), name), nil
}

// hashSealed returns the SHA-256 of a sealed log and its first message, in one pass. first is zero when the file is no
// export: the caller must compare the hash before it uses either. It rejects a name with a folder in it, and fails when
// ctx ends.
func hashSealed(ctx context.Context, home bus.Home, name string) (sum string, first audit.Stored, err error) {
	file, err := sealedPath(home, name)
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
