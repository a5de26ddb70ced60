package config_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/config"
	"conclave/pkg/audit"
	"conclave/pkg/backup"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/damage"
	"conclave/pkg/datatest"
	"conclave/subjects"
)

// TestScheduledBackup: the running system makes backups that can be restored, records them and deletes only its own
// that are too many, and none while damage is not accepted.
func TestScheduledBackup(t *testing.T) {
	t.Parallel()
	newHome := func() bus.Home {
		dir := datatest.Dir(t)
		return bus.Home{Data: filepath.Join(dir, "data"), Config: filepath.Join(dir, "config")}
	}
	home := newHome()
	c, err := config.Load("")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(map[string]string{
		"system.listen": "127.0.0.1:0", "system.sync": "10s", "system.backup.keep": "2",
	}); err != nil {
		t.Fatal(err)
	}
	r, err := c.Start(t.Context(), home, nil, "broker")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	folder := c.BackupFolder(home)
	if rel, err := filepath.Rel(home.Data, folder); err != nil || filepath.IsLocal(rel) {
		t.Fatalf("the backups are in the data folder: %s", folder)
	}
	if !slices.Contains(c.PolicyEnv(home).Closed, folder) || !slices.Contains(c.MCPOptions(home).Closed, folder) {
		t.Error("tools or MCP servers can read the backups")
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	others := []string{"conclave-2026-11-16.tar.gz", "notes.tar.gz", "conclave-20260101T000000Z.tar.gz.part"}
	old := []string{"conclave-20260101T000000Z.tar.gz", "conclave-20260102T000000Z.tar.gz"}
	for _, name := range append(others, old...) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := damage.Add(home.Data, damage.Report{Text: "lost"}); err != nil {
		t.Fatal(err)
	}
	first, err := r.MakeBackup(t.Context(), c, home)
	if err != nil {
		t.Fatal(err)
	}
	if made, err := backup.ListScheduled(folder); err != nil || len(made) != 3 || made[0].Path != first {
		t.Errorf("with damage: %v, %v", made, err)
	}
	if accepted, err := damage.Accept(home.Data); err != nil || len(accepted) != 1 {
		t.Fatal(err)
	}
	if err := os.Rename(first, filepath.Join(folder, "conclave-20260103T000000Z.tar.gz")); err != nil {
		t.Fatal(err)
	}
	second, err := r.MakeBackup(t.Context(), c, home)
	if err != nil {
		t.Fatal(err)
	}
	made, err := backup.ListScheduled(folder)
	if err != nil || len(made) != 2 || made[0].Path != second || time.Since(made[0].Time) > time.Hour {
		t.Errorf("kept %v, %v", made, err)
	}
	for _, name := range others {
		if _, err := os.Stat(filepath.Join(folder, name)); err != nil {
			t.Errorf("a file of the user is gone: %v", err)
		}
	}
	records := 0
	for _, st := range bustest.ReadAuditLog(t, r.Bus) {
		if strings.Contains(st.Subject, ".genesis") {
			continue
		}
		batch, err := audit.DecodeBatch(st.Data)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range batch {
			if d.Record.Action == subjects.ActionBackup {
				records++
			}
		}
	}
	if records != 4 {
		t.Errorf("%d records of two backups, want an intent and an outcome each", records)
	}
	if _, err := backup.Restore(t.Context(), second, newHome(), nil, func(restored bus.Home) error {
		_, err := config.VerifyStopped(t.Context(), restored)
		return err
	}); err != nil {
		t.Error(err)
	}
	if err := os.Truncate(second, 1000); err != nil {
		t.Fatal(err)
	}
	if err := backup.Verify(t.Context(), second); err == nil {
		t.Error("a backup that is cut off is accepted")
	}
}
