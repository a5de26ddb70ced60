package config

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"conclave/actors/gateway"
	"conclave/actors/memory"
	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/pkg/auditlog"
	"conclave/pkg/backup"
	"conclave/pkg/bus"
	"conclave/pkg/damage"
	"conclave/pkg/file"
	"conclave/subjects"
)

// A backup is made by the process of conclave backup, which may read the files. The running system takes part on a Unix
// socket of mode 0600 in the data folder: it records the backup in the audit log, and pauses while the last changes are
// copied. Each side sends lines. The end of the connection ends a pause.
const (
	lineBegin   = "backup"
	linePause   = "pause"
	lineResume  = "resume"
	lineDone    = "done"
	lineOK      = "ok"
	lineExpired = "expired"
	lineError   = "error "
)

// maxPause bounds one pause of a backup.
const maxPause = 5 * time.Second

// errBackupFailed is the outcome of a backup whose process did not report its end.
var errBackupFailed = errors.New("the backup did not complete")

// serveBackups lets conclave backup pause the system, until ctx ends; it returns at once. Without the socket, for
// example on a file system that has none, only a stopped system can be backed up. log may be nil.
func (r *Instance) serveBackups(ctx context.Context, c Config, home bus.Home, log *slog.Logger) {
	ln, err := gateway.ListenSocket(ctx, home.BackupSocket())
	if err != nil {
		if log != nil {
			log.Warn("conclave backup works only while conclave is stopped", "err", err)
		}
		return
	}
	stop := context.AfterFunc(ctx, func() { ln.Close() })
	r.watch.Go(func() {
		defer stop()
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			r.watch.Go(func() {
				end := context.AfterFunc(ctx, func() { conn.Close() })
				defer end()
				defer conn.Close()
				if err := r.serveBackup(ctx, c, home, conn); err != nil && log != nil {
					log.Warn("backup", "err", err)
				}
			})
		}
	})
}

// serveBackup records one backup and pauses the system when its process says so.
func (r *Instance) serveBackup(ctx context.Context, c Config, home bus.Home, conn net.Conn) error {
	lines := bufio.NewScanner(conn)
	lines.Buffer(make([]byte, 256), 256)
	if !lines.Scan() || lines.Text() != lineBegin {
		return errors.New("malformed request")
	}
	err := r.recordBackup(ctx, c, home, "user", func() error {
		if _, err := fmt.Fprintln(conn, lineOK); err != nil {
			return err
		}
		return r.pauseForBackup(conn, lines)
	})
	if err != nil && !errors.Is(err, errBackupFailed) {
		_, _ = fmt.Fprintln(conn, lineError+strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if err == nil {
		_, err = fmt.Fprintln(conn, lineOK)
	}
	return err
}

// recordBackup runs a backup between its two audit records, in which it is an act of agent. Without the first it does
// not run.
func (r *Instance) recordBackup(ctx context.Context, c Config, home bus.Home, agent string, run func() error) error {
	nc, err := r.Bus.Dial("gateway")
	if err != nil {
		return err
	}
	defer nc.Close()
	out, err := actor.NewOut(nc)
	if err != nil {
		return err
	}
	w, _, err := openAudit(ctx, home, "gateway", nc, c.System.Actor.AuditTimeout)
	if err != nil {
		return err
	}
	defer w.Close(context.WithoutCancel(ctx))
	gate := &actor.Gate{
		Log: w, Timeout: c.System.Actor.AuditTimeout, NotDone: "nothing was backed up",
		Done: "the backup was made",
	}
	rec := subjects.AuditRecord{AgentID: agent, AgentType: agent, Action: subjects.ActionBackup}
	_, err = actor.Audited(ctx, out, gate, rec, func(context.Context, *actor.Permit) (struct{}, error) {
		return struct{}{}, run()
	})
	return err
}

// pauseForBackup pauses and resumes the server as the lines say, until the backup is done.
func (r *Instance) pauseForBackup(conn net.Conn, lines *bufio.Scanner) error {
	var resume func() bool
	defer func() {
		if resume != nil {
			resume()
		}
	}()
	for lines.Scan() {
		reply := lineOK
		switch line := lines.Text(); {
		case line == linePause && resume == nil:
			resume = r.server.Pause(maxPause)
		case line == lineResume && resume != nil:
			if !resume() {
				reply = lineExpired
			}
			resume = nil
		case line == lineDone && resume == nil:
			return nil
		default:
			return errors.New("malformed request")
		}
		if _, err := fmt.Fprintln(conn, reply); err != nil {
			return err
		}
	}
	return errBackupFailed
}

// Times of scheduled backups.
const (
	firstBackup = 10 * time.Minute // after the start
	backupRetry = time.Hour        // after one that failed
	quietTime   = time.Minute      // without a stored message; longer than an hour is not waited for it
)

// BackupFolder is the folder of the scheduled backups of home.
func (c Config) BackupFolder(home bus.Home) string {
	return cmp.Or(c.System.Backup.Folder, filepath.Clean(home.Data)+"-backups")
}

// keepBackups makes scheduled backups until ctx ends. log may be nil.
func (r *Instance) keepBackups(ctx context.Context, c Config, home bus.Home, log *slog.Logger) {
	if c.System.Backup.Every == 0 {
		return
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	backupTimer{
		every: c.System.Backup.Every,
		newest: func() (at time.Time) {
			made, err := backup.ListScheduled(c.BackupFolder(home))
			if err != nil {
				log.Error("scheduled backups cannot be listed", "err", err)
			}
			if len(made) > 0 {
				at = made[0].Time
			}
			return at
		},
		stored: func() int64 { return r.server.Counters()["stored_messages"] },
		make: func(ctx context.Context) bool {
			path, err := r.makeBackup(ctx, c, home)
			if err == nil {
				log.Info("backup made and verified", "path", path)
			} else if ctx.Err() == nil {
				log.Error("the scheduled backup failed", "err", err)
			}
			return err == nil
		},
	}.run(ctx)
}

// backupTimer says when backups are made.
type backupTimer struct {
	every  time.Duration
	newest func() time.Time               // of the newest backup; zero = there is none
	stored func() int64                   // messages that were stored so far
	make   func(ctx context.Context) bool // makes one, and reports whether it did
}

// run makes a backup whenever the newest is older than every, at a quiet moment, until ctx ends.
func (b backupTimer) run(ctx context.Context) {
	for wait := firstBackup; ; {
		if at := b.newest(); !at.IsZero() {
			wait = max(wait, time.Until(at.Add(b.every)))
		}
		if !sleep(ctx, wait) || !b.awaitQuiet(ctx) {
			return
		}
		if wait = firstBackup; !b.make(ctx) {
			wait = backupRetry
		}
	}
}

// sleep waits for d, and reports whether ctx has not ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// awaitQuiet waits until no message was stored for quietTime, an hour at most, and reports whether ctx has not ended.
func (b backupTimer) awaitQuiet(ctx context.Context) bool {
	for end := time.Now().Add(time.Hour); time.Now().Before(end); {
		before := b.stored()
		if !sleep(ctx, quietTime) {
			return false
		}
		if b.stored() == before {
			break
		}
	}
	return true
}

// makeBackup makes a scheduled backup, verifies it and deletes those that are too many. It fails when the disk has less
// space than twice the data and 1 GiB: a full disk would stop the system. While damage is not accepted it deletes none:
// the older ones may have what is lost.
func (r *Instance) makeBackup(ctx context.Context, c Config, home bus.Home) (path string, err error) {
	folder := c.BackupFolder(home)
	if err := file.MakeFolder(folder); err != nil {
		return "", fmt.Errorf("%s: %w: set backup.folder in system.yaml", folder, err)
	}
	size, err := backup.Size(home)
	if err != nil {
		return "", err
	}
	free, err := bus.FreeBytes(folder)
	if err != nil {
		return "", err
	}
	if need := 2*size + 1<<30; free < need {
		return "", fmt.Errorf("%s has %d MiB of free space, a backup needs %d MiB: free some, or set backup.folder in "+
			"system.yaml", folder, free>>20, need>>20)
	}
	key, err := audit.LoadHasher(home.BackupKey())
	if err != nil {
		return "", err
	}
	path = backup.ScheduledPath(folder, time.Now())
	err = r.recordBackup(ctx, c, home, "gateway", func() error {
		_, err := backup.Create(ctx, path, backup.Options{
			Home: home, Build: c.wiring.Version, Key: key,
			Pause: func(context.Context) (func() bool, error) { return r.server.Pause(maxPause), nil },
		})
		if err != nil {
			return err
		}
		if err := backup.Verify(ctx, path); err != nil {
			return errors.Join(err, os.Remove(path)) // it would count as the newest
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	if found, err := damage.Read(home.Data); err != nil || len(found) > 0 {
		return path, err
	}
	if err := backup.PruneScheduled(folder, c.System.Backup.Keep); err != nil {
		return path, fmt.Errorf("%s was made, but older backups were not deleted: %w", path, err)
	}
	return path, nil
}

// Backup is the part of a running system in a backup. It is used by one goroutine.
type Backup struct {
	conn  net.Conn
	lines *bufio.Scanner
}

// backupTimeout bounds the wait for a reply of the running system.
const backupTimeout = time.Minute

// BeginBackup connects to the system that runs on home, which records the backup in the audit log. The caller must call
// Close.
func BeginBackup(ctx context.Context, home bus.Home) (*Backup, error) {
	conn, err := gateway.DialSocket(ctx, home.BackupSocket())
	if err != nil {
		return nil, fmt.Errorf("asking the running system for a backup: %w", err)
	}
	b := &Backup{conn: conn, lines: bufio.NewScanner(conn)}
	if _, err := b.request(lineBegin); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return b, nil
}

// request sends a line and returns the reply.
func (b *Backup) request(line string) (string, error) {
	if err := b.conn.SetDeadline(time.Now().Add(backupTimeout)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintln(b.conn, line); err != nil {
		return "", fmt.Errorf("asking the running system for a backup: %w", err)
	}
	if !b.lines.Scan() {
		return "", errors.New("asking the running system for a backup: it closed the connection; it may be stopping")
	}
	reply := b.lines.Text()
	if text, failed := strings.CutPrefix(reply, lineError); failed {
		return "", fmt.Errorf("the running system refused the backup: %s", text)
	}
	return reply, nil
}

// Pause pauses the system until resume is called, which reports whether the pause lasted until then: it is bounded.
func (b *Backup) Pause(context.Context) (resume func() bool, err error) {
	if _, err := b.request(linePause); err != nil {
		return nil, err
	}
	return func() bool {
		reply, err := b.request(lineResume)
		return err == nil && reply == lineOK
	}, nil
}

// Done records that the backup is complete.
func (b *Backup) Done() error {
	_, err := b.request(lineDone)
	return err
}

// Close ends the backup. Without Done it is recorded as failed.
func (b *Backup) Close() error { return b.conn.Close() }

// VerifyStopped verifies the audit log and the memory of a data folder that no system uses. A log that does not verify
// is in the report; the error means that one of them cannot be read, or that memory is damaged.
func VerifyStopped(ctx context.Context, home bus.Home) (rep audit.Report, err error) {
	heads, err := audit.ReadHeads(home.Heads())
	if err != nil {
		return rep, err
	}
	files, err := bus.OpenAuditLog(home)
	if err != nil {
		return rep, err
	}
	src, err := bus.ReadFiles(files).ReadAll(ctx)
	if err != nil {
		return rep, err
	}
	if rep, err = auditlog.VerifySource(ctx, home, src, heads, nil); err != nil {
		return rep, err
	}
	if err := memory.Verify(ctx, home.Data); err != nil {
		return rep, fmt.Errorf("memory: %w", err)
	}
	return rep, nil
}
