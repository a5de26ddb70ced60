package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"conclave/actors/mcp"
	"conclave/config"
	"conclave/pkg/bus"
)

// TestEditFile: a change that the loader rejects never reaches the folder; one that it accepts keeps a symbolic link
// and the mode.
func TestEditFile(t *testing.T) {
	t.Parallel()
	dir, target := t.TempDir(), filepath.Join(t.TempDir(), "dotfile")
	link := filepath.Join(dir, "critic.yaml")
	if err := os.WriteFile(target, []byte("retry_at: 1\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(target)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		content           string
		changed, rejected bool
	}{
		{"retry_at: -1\n", false, true},
		{"unknown: 1\n", false, true},
		{"retry_at: 1\n", false, false},
		{"retry_at: 2\n", true, false},
	} {
		changed, err := config.EditFile(dir, "critic.yaml", func([]byte, string) ([]byte, error) {
			return []byte(tt.content), nil
		})
		if changed != tt.changed || (err != nil) != tt.rejected {
			t.Errorf("%q: changed %t, %v", tt.content, changed, err)
		}
		if after, err := os.Stat(target); err != nil || os.SameFile(before, after) == tt.changed ||
			after.Mode() != before.Mode() {
			t.Errorf("%q: %v, %v", tt.content, after, err)
		}
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link was replaced: %v, %v", info, err)
	}
}

// TestConcurrentEdits: edits of one file by several callers, each with a lock of its own as in processes of their own,
// are all kept.
func TestConcurrentEdits(t *testing.T) {
	t.Parallel()
	home := bus.Home{Config: filepath.Join(t.TempDir(), "config")}
	var edits sync.WaitGroup
	for i := range 8 {
		edits.Go(func() {
			if err := config.SetMCPServer(home, fmt.Sprint("server", i), &mcp.Server{Command: "sh"}); err != nil {
				t.Error(err)
			}
		})
	}
	edits.Wait()
	c, err := config.Load(home.Config)
	if err != nil || len(c.MCP.Servers) != 8 {
		t.Errorf("%d of 8 servers are in the file, %v", len(c.MCP.Servers), err)
	}
}
