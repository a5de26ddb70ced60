package config

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"conclave/actors/gateway"
	"conclave/actors/memory"
	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/pkg/auditlog"
	"conclave/pkg/bus"
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
	err := r.recordBackup(ctx, c, home, func() error {
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

// recordBackup runs a backup between its two audit records. Without the first it does not run.
func (r *Instance) recordBackup(ctx context.Context, c Config, home bus.Home, run func() error) error {
	nc, err := r.Bus.Dial("gateway")
	if err != nil {
		return err
	}
	defer nc.Close()
	out, err := actor.NewOut(nc)
	if err != nil {
		return err
	}
	once, again := splitAuditTimeout(c.System.Actor.AuditTimeout)
	w, err := audit.Open(ctx, audit.Options{
		Account: "gateway", Dir: home.Heads(), Log: bus.NewAuditLog(nc),
		Timeout: once, Retry: again,
	})
	if err != nil {
		return err
	}
	defer w.Close(context.WithoutCancel(ctx))
	gate := &actor.Gate{
		Log: w, Timeout: c.System.Actor.AuditTimeout, NotDone: "nothing was backed up",
		Done: "the backup was made",
	}
	rec := subjects.AuditRecord{AgentID: "user", AgentType: "user", Action: subjects.ActionBackup}
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
