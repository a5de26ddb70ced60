package acceptance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"conclave/config"
	"conclave/pkg/actor"
	"conclave/pkg/backup"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/client"
	"conclave/subjects"
)

// TestBackupUnderLoad backs up a system while questions are asked, tools are called and memories are added, restores
// the backup and compares: everything that was acknowledged before the backup is there, everything that is there is the
// same in the source, no request failed, and the restored system works.
func TestBackupUnderLoad(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	c := settings(t, "memory.model", "false", "critic.enabled", "false", "system.gateway.listen", "127.0.0.1:0")
	r := up(t, c, home, config.Actors...)
	user := dialUser(t, r.Bus)
	ctx := t.Context()
	ask := func(user *client.Client, n int) {
		q, err := user.Ask(ctx, client.Question{Session: fmt.Sprint("s", n%3), Text: "What time is it in Tokyo?"})
		if err != nil {
			t.Error(err)
			return
		}
		defer q.Close()
		if res, err := q.Wait(); err != nil || res.Error != nil {
			t.Errorf("%+v, %v", res.Error, err)
		}
	}
	remember := func(user *client.Client, n int) {
		if _, _, err := user.AddMemory(ctx, subjects.MemoryEntry{Corpus: fmt.Sprintf("My locker number %d is at the "+
			"station of town %d.", n, n)}, false); err != nil {
			t.Error(err)
		}
	}
	const early = 4
	for n := range early {
		ask(user, n)
		remember(user, n)
	}
	calls(t, r.Bus, 3)
	acknowledged := len(bustest.ReadAuditLog(t, r.Bus))

	loading, stop := context.WithCancel(ctx)
	var load sync.WaitGroup
	for lane := range 3 {
		p, user := dialOperator(t, r.Bus), dialUser(t, r.Bus)
		load.Go(func() {
			for n := early; loading.Err() == nil; n++ {
				if res := p.callTool(ctx, "get_datetime", actor.NewID(), utc); res.Error != nil {
					t.Errorf("during the backup: %v", res.Error)
				}
				ask(user, n)
				remember(user, n*10+lane)
			}
		})
	}
	b, err := config.BeginBackup(ctx, home)
	if err != nil {
		t.Fatal(err)
	}
	dest := filepath.Join(t.TempDir(), "backup.tar.gz")
	var paused time.Duration
	pauses := 0
	m, err := backup.Create(ctx, dest,
		backup.Options{Home: home, Pause: func(ctx context.Context) (func() bool, error) {
			resume, err := b.Pause(ctx)
			begin := time.Now()
			return func() bool {
				lasted := resume()
				pauses, paused = pauses+1, paused+time.Since(begin)
				return lasted
			}, err
		}})
	if err == nil {
		err = b.Done()
	}
	if err := errors.Join(err, b.Close()); err != nil {
		t.Fatal(err)
	}
	stop()
	load.Wait()
	t.Logf("%d files, %d bytes, paused %d times for %s", len(m.Files), m.Size(), pauses, paused.Round(time.Millisecond))

	restored := newHome(t)
	if _, err := backup.Restore(ctx, dest, restored, nil, func(home bus.Home) error {
		rep, err := config.VerifyStopped(ctx, home)
		if err == nil && !rep.OK {
			err = fmt.Errorf("%d problems, the first: %v", rep.Bad, rep.First)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	second := up(t, c, restored) // the server alone: nothing changes
	source := map[string][]byte{}
	for _, m := range bustest.ReadAuditLog(t, r.Bus) {
		source[m.Subject+fmt.Sprint(m.Seq)] = m.Data
	}
	copied := bustest.ReadAuditLog(t, second.Bus)
	for _, m := range copied {
		if !bytes.Equal(source[m.Subject+fmt.Sprint(m.Seq)], m.Data) {
			t.Errorf("%s %d is not the record of the source", m.Subject, m.Seq)
		}
	}
	if len(copied) < acknowledged || len(copied) >= len(source) {
		t.Errorf("%d audit messages are restored, %d were stored before the backup and %d after it", len(copied),
			acknowledged, len(source))
	}
	verified(t, restored, second.Bus)

	if err := second.Run(ctx, c, restored, slog.New(slog.DiscardHandler), config.Actors...); err != nil {
		t.Fatal(err)
	}
	again := dialUser(t, second.Bus)
	before, after := readContents(t, user), readContents(t, again)
	for key, text := range after {
		if source, ok := before[key]; !ok || key[0] == 'm' && source != text {
			t.Errorf("%s is %q, in the source %q", key, text, before[key])
		}
	}
	for n := range early {
		if after[fmt.Sprintf("memory My locker number %d is at the station of town %d.", n, n)] == "" {
			t.Errorf("memory %d is lost", n)
		}
	}
	ask(again, 0)
	calls(t, second.Bus, 1)
	verified(t, restored, second.Bus)
}

// readContents returns the turns of all sessions and the facts in memory.
func readContents(t *testing.T, user *client.Client) map[string]string {
	t.Helper()
	out := map[string]string{}
	ids, err := user.SessionIDs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		conversation, err := user.Session(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		for _, turn := range conversation.Turns {
			out["turn "+id+" "+turn.QueryID] = turn.Answer
		}
	}
	facts, _, err := user.ListMemories(t.Context(), subjects.MemoryAdminRequest{Kind: subjects.KindFact, Whole: true},
		0)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range facts {
		out["memory "+e.Corpus] = e.ID
	}
	return out
}

// TestBackupIsRecorded ends a backup in the middle: the pause ends with the connection, and the audit log says that it
// failed.
func TestBackupIsRecorded(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	r := up(t, settings(t), home, "tools", "broker")
	b, err := config.BeginBackup(t.Context(), home)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(home.BackupSocket())
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket has mode %v, %v", info.Mode(), err)
	}
	if _, err := b.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	calls(t, r.Bus, 1) // it goes on
	for {
		var statuses []string
		for _, m := range bustest.ReadAuditLog(t, r.Bus) {
			for _, rec := range decoded(t, m) {
				if rec.Action == subjects.ActionBackup {
					statuses = append(statuses, rec.Phase+" "+rec.Status)
				}
			}
		}
		if len(statuses) == 2 {
			if statuses[0] != "before allowed" || statuses[1] != "after failed" {
				t.Errorf("recorded %v", statuses)
			}
			return
		}
		if err := t.Context().Err(); err != nil {
			t.Fatal(err)
		}
	}
}
