package auditlog

import (
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
	"strings"
	"time"

	"conclave/pkg/audit"
	"conclave/pkg/bus"
	"conclave/subjects"
)

// Rotation is the result of a rotation.
type Rotation struct {
	Sealed  string       `json:"sealed"` // path of the export
	SHA256  string       `json:"sha256"`
	Store   string       `json:"store"` // folder with the files of the old streams, unchanged
	Report  audit.Report `json:"report"`
	Records int          `json:"records"`
}

// rotator is one rotation: the data folder and the embedded server that reads and creates its streams.
type rotator struct {
	home   bus.Home
	server bus.ServerConfig
	log    *slog.Logger
}

// Rotate exports the audit log, seals it and opens a successor whose genesis record holds the old heads. The system
// must be stopped, else the error is [bus.ErrInUse]: Rotate locks the data folder. A log that does not verify, or is
// lost, is sealed too, with the problems in Rotation.Report. The old stream is moved and never deleted, so no key needs
// the right to delete. An interrupted rotation is resumed.
func Rotate(ctx context.Context, home bus.Home, server bus.ServerConfig, log *slog.Logger) (rot Rotation, err error) {
	if err := home.CreateFolders(); err != nil {
		return rot, err
	}
	unlock, err := home.Lock()
	if err != nil {
		return rot, fmt.Errorf("the audit is rotated while conclave is stopped: %w", err)
	}
	defer unlock()
	r := rotator{home: home, server: server, log: log}
	if rot, done, err := r.resume(ctx); done || err != nil {
		return rot, err
	}
	name := "audit-" + time.Now().UTC().Format("20060102T150405.000Z")
	rot, genesis, err := r.seal(ctx, name)
	if err != nil {
		return rot, err
	}
	data, err := writePending(home, genesis)
	if err != nil {
		return rot, err
	}
	// From here on a crash leaves the pending genesis behind; until the stream is moved, the next rotation starts over.
	rot.Store = filepath.Join(home.Sealed(), name+".store")
	for _, move := range [][2]string{
		{home.Damaged(), filepath.Join(home.Sealed(), name+".damaged")},
		{home.AuditStreams(), rot.Store},
	} {
		if err := os.Rename(move[0], move[1]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return rot, fmt.Errorf("moving the old stream: %w", err)
		}
	}
	return rot, r.openSuccessor(ctx, data)
}

// openSuccessor creates the next log with a pending genesis record.
func (r rotator) openSuccessor(ctx context.Context, genesis []byte) error {
	if err := r.home.ForgetAuditCounts(); err != nil {
		return err
	}
	return WithServer(r.home, r.server, r.log, func(s *bus.Server, b *bus.Bus) error {
		return openLog(ctx, r.home, b, s.Provision, genesis)
	})
}

// resume finishes a rotation that was interrupted after the old stream was moved; done is false when there is none, and
// the caller starts over. Starting over after the move would seal an empty log, and the successor would not name the
// file that holds the records. It fails when the pending genesis disagrees with the anchors or the sealed file.
func (r rotator) resume(ctx context.Context) (rot Rotation, done bool, err error) {
	p, err := readPending(r.home)
	switch {
	case p.data == nil && errors.Is(err, fs.ErrNotExist):
		return rot, false, nil
	case p.data == nil:
		return rot, false, fmt.Errorf("resuming the rotation: %w", err)
	case err != nil || p.genesis.Sealed == "":
		return rot, false, nil // not written by a rotation: it is replaced
	}
	if rot.Sealed, err = sealedPath(r.home, p.genesis.Sealed); err != nil {
		return Rotation{}, false, nil
	}
	rot.SHA256 = p.genesis.SHA256
	rot.Store = strings.TrimSuffix(rot.Sealed, ".jsonl") + ".store"
	if _, err := os.Stat(rot.Store); err != nil {
		return Rotation{}, false, nil
	}
	heads, err := audit.ReadHeads(r.home.Heads())
	if err != nil {
		return rot, true, err
	}
	if err := p.check(ctx, r.home, heads); err != nil {
		return rot, true, fmt.Errorf("resuming the rotation: %w: restore the sealed audit log, or delete %s to seal "+
			"the current one", err, r.home.Pending())
	}
	rot.Report, rot.Records = p.report, p.report.Records
	return rot, true, r.openSuccessor(ctx, p.data)
}

// readExport passes a sealed file to f as a source, which is valid until f returns. An error of f is wrapped as one of
// reading.
func readExport(file string, f func(audit.Source) error) error {
	r, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("reading the export: %w", err)
	}
	defer r.Close()
	src, err := audit.OpenExport(r)
	if err == nil {
		err = f(src)
	}
	if err != nil {
		return fmt.Errorf("reading the export: %w", err)
	}
	return nil
}

// verifyExport checks a sealed file against the heads of its log.
func verifyExport(ctx context.Context, file string, heads []subjects.AuditHead) (rep audit.Report, err error) {
	err = readExport(file, func(src audit.Source) (err error) {
		rep, err = audit.Verify(ctx, src, heads, audit.VerifyOptions{Actions: subjects.AuditActions})
		return err
	})
	return rep, err
}

// seal exports the audit log to the new file name.jsonl, verifies the file, and returns the genesis of the successor. A
// log that does not verify is sealed too, with the problems in rot.Report; a missing stream is sealed as an empty log.
// Any other failure to read is an error, because there may be records.
func (r rotator) seal(ctx context.Context, name string) (rot Rotation, g subjects.AuditGenesis, err error) {
	g.Sealed = name + ".jsonl"
	rot.Sealed = filepath.Join(r.home.Sealed(), g.Sealed)
	heads, err := audit.ReadHeads(r.home.Heads())
	if err != nil {
		return rot, g, err
	}
	src, err := readFiles(ctx, r.home)
	if err != nil { // there may be records, which an empty export would drop
		return rot, g, err
	}
	sum := sha256.New()
	summary, err := exportLog(ctx, src, rot.Sealed, sum)
	if err != nil {
		return rot, g, fmt.Errorf("exporting the audit log: %w", err)
	}
	rot.Records, rot.SHA256 = summary.Records, hex.EncodeToString(sum.Sum(nil))
	g.SHA256, g.LastSeq, g.OldHeads = rot.SHA256, src.Size(), audit.MergeHeads(heads, summary.Heads)
	if rot.Report, err = verifyExport(ctx, rot.Sealed, heads); err == nil {
		rot.Report.AddDamage(src.Damage)
		addEarlierDamage(r.home, &rot.Report)
	}
	return rot, g, err
}

// readFiles reads the audit log of a stopped server, without a server: that would repair a damaged log before it is
// sealed. Without a stream the source is empty, and the anchors show which records were lost.
func readFiles(ctx context.Context, home bus.Home) (audit.Source, error) {
	files, err := bus.OpenAuditLog(home)
	if errors.Is(err, bus.ErrNoAudit) {
		return audit.Source{Messages: func(func(audit.Stored, error) bool) {}}, nil
	}
	if err != nil {
		return audit.Source{}, err
	}
	return bus.ReadFiles(files).ReadAll(ctx)
}

// exportLog writes src to a new file, read-only and on disk when exportLog returns, and to sum. An existing file is an
// error and is not changed; a failed export leaves a partial file.
func exportLog(ctx context.Context, src audit.Source, file string, sum io.Writer) (audit.Summary, error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return audit.Summary{}, err
	}
	defer f.Close()
	summary, err := audit.Export(ctx, src, io.MultiWriter(f, sum))
	if err != nil {
		return summary, err
	}
	return summary, errors.Join(f.Sync(), f.Chmod(0o400), f.Close())
}

// WithServer runs the embedded server on a free port of the loopback interface, without actors, until f returns, and
// returns its error. Missing keys are created; streams are not. Damage of streams is reported before the server repairs
// it. The caller must hold the lock of the data folder.
func WithServer(home bus.Home, server bus.ServerConfig, log *slog.Logger, f func(*bus.Server, *bus.Bus) error) error {
	lasting, _ := subjects.Table().Roles()
	keys := home.Keys()
	if _, err := keys.Ensure(lasting); err != nil {
		return err
	}
	found, err := bus.FindDamagedStreams(home)
	for _, d := range found {
		err = errors.Join(err, d.AddTo(home.Data))
	}
	if err != nil {
		return err
	}
	server.Listen = "127.0.0.1:0"
	s, err := bus.StartServer(server, keys, log)
	if err != nil {
		return err
	}
	defer s.Stop(context.Background())
	return f(s, &bus.Bus{URL: s.URL(), Keys: keys, Server: s, Log: log})
}
