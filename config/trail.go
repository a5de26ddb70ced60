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
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"conclave/pkg/audit"
	"conclave/pkg/bus"
	"conclave/subjects"
)

// ErrRotation means that a rotation was cut off between two steps.
var ErrRotation = errors.New("a rotation of the audit was interrupted; run conclave audit rotate again")

// Provision makes the streams with the given step and sees to the beginning of the trail: a new trail gets its first
// record, which is then anchored; a trail that has lost its records is not quietly replaced by an empty one.
func Provision(ctx context.Context, home bus.Home, b *bus.Bus, step func(ctx context.Context, genesis []byte) error) error {
	pending, err := os.ReadFile(home.Pending())
	if errors.Is(err, fs.ErrNotExist) {
		heads, err := audit.ReadHeads(home.Heads())
		if err != nil {
			return err
		}
		if len(heads) > 0 {
			err := step(ctx, nil)
			if errors.Is(err, bus.ErrTrailLost) {
				return fmt.Errorf("%w: bring back %s, or accept the loss and open a new trail with conclave audit rotate", err, home.Store())
			}
			return err
		}
		if pending, err = plan(home, subjects.AuditGenesis{}); err != nil {
			return err
		}
	} else if err != nil {
		return fmt.Errorf("opening the trail: %w", err)
	}
	if err := step(ctx, pending); err != nil {
		return err
	}
	return begin(ctx, home, b, pending)
}

// plan writes down the first record of the next trail.
func plan(home bus.Home, g subjects.AuditGenesis) ([]byte, error) {
	data, _, err := audit.EncodeGenesis(time.Now(), g)
	if err != nil {
		return nil, fmt.Errorf("opening the trail: %w", err)
	}
	if err := writeFile(home.Pending(), data); err != nil {
		return nil, fmt.Errorf("opening the trail: %w", err)
	}
	return data, nil
}

// begin checks that the trail begins with the planned record, and anchors it.
func begin(ctx context.Context, home bus.Home, b *bus.Bus, planned []byte) error {
	nc, err := b.Dial("auditor")
	if err != nil {
		return err
	}
	defer nc.Close()
	first, err := bus.AuditFirst(ctx, nc)
	if err != nil {
		return fmt.Errorf("opening the trail: %w", err)
	}
	if !bytes.Equal(first.Data, planned) {
		return ErrRotation
	}
	batch, err := audit.DecodeBatch(planned)
	if err != nil {
		return fmt.Errorf("opening the trail: %w", err)
	}
	head := subjects.AuditHead{Account: audit.GenesisAccount, Chain: audit.GenesisChain, Seq: 1, Hash: hex.EncodeToString(batch[0].Hash[:])}
	if err := audit.WriteHead(home.Heads(), head); err != nil {
		return err
	}
	return os.Remove(home.Pending())
}

// Verify checks the trail against its anchors, with the auditor's key.
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
	return audit.Verify(ctx, src, heads, audit.VerifyOptions{Accounts: subjects.AuditWriters})
}

// Rotation is what a rotation did.
type Rotation struct {
	Sealed  string       `json:"sealed"` // the export
	SHA256  string       `json:"sha256"`
	Store   string       `json:"store"` // the stream's own files, kept as they were
	Report  audit.Report `json:"report"`
	Records int          `json:"records"`
}

// Rotate exports the trail, seals it and opens a successor whose first record holds the old heads. The system must be
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
	if _, err := plan(home, genesis); err != nil {
		return rot, err
	}
	// From here on a crash leaves the plan behind, and a second rotation starts over from what is there.
	rot.Store = filepath.Join(home.Sealed(), name+".store")
	if err := os.Rename(home.TrailStore(), rot.Store); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return rot, fmt.Errorf("moving the old stream: %w", err)
	}
	return rot, c.WithServer(home, log, func(s *bus.Server, b *bus.Bus) error {
		return Provision(ctx, home, b, s.Provision)
	})
}

// resume finishes a rotation that was cut off after the old stream was moved. Starting over would seal the nothing that
// is left, and the successor would not name the file that holds the records.
func (c Config) resume(ctx context.Context, home bus.Home, log *slog.Logger) (rot Rotation, done bool, err error) {
	pending, err := os.ReadFile(home.Pending())
	if errors.Is(err, fs.ErrNotExist) {
		return rot, false, nil
	}
	if err != nil {
		return rot, false, fmt.Errorf("resuming the rotation: %w", err)
	}
	batch, err := audit.DecodeBatch(pending)
	if err != nil || len(batch) != 1 || batch[0].Record.Genesis == nil {
		return rot, false, nil // not a plan: plan again
	}
	g := batch[0].Record.Genesis
	rot.Sealed, rot.SHA256 = filepath.Join(home.Sealed(), g.Sealed), g.SHA256
	rot.Store = strings.TrimSuffix(rot.Sealed, ".jsonl") + ".store"
	if _, err := os.Stat(rot.Store); g.Sealed == "" || err != nil {
		return Rotation{}, false, nil
	}
	if rot.Report, err = reread(ctx, rot.Sealed, g.OldHeads); err != nil {
		return rot, true, err
	}
	rot.Records = rot.Report.Records
	return rot, true, c.WithServer(home, log, func(s *bus.Server, b *bus.Bus) error {
		return Provision(ctx, home, b, s.Provision)
	})
}

// reread checks a sealed file against the heads of its trail.
func reread(ctx context.Context, file string, heads []subjects.AuditHead) (rep audit.Report, err error) {
	f, err := os.Open(file)
	if err != nil {
		return rep, fmt.Errorf("reading the export back: %w", err)
	}
	defer f.Close()
	src, err := audit.OpenExport(f)
	if err == nil {
		rep, err = audit.Verify(ctx, src, heads, audit.VerifyOptions{Accounts: subjects.AuditWriters})
	}
	if err != nil {
		return rep, fmt.Errorf("reading the export back: %w", err)
	}
	return rep, nil
}

// seal exports the trail to a file, checks that file, and returns what the successor must remember.
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
	return os.Rename(tmp.Name(), name)
}
