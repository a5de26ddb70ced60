package logfile

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestFollowThroughRotations shows that a reader sees every line once and in order while two processes write and
// rotate.
func TestFollowThroughRotations(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "logs")
	a, b := New(dir, "up", 1<<16, nil), New(dir, "up", 1<<16, nil)
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Fatal("a folder before the first line")
	}
	for _, f := range []*File{a, b} {
		if _, err := fmt.Fprintln(f, "a line that a crash cut"); err != nil {
			t.Fatal(err)
		}
	}
	if a.path == b.path {
		t.Fatal("two processes share a file")
	}
	const n, chunk = 3000, 300 // a chunk is less than a file: a reader that falls behind two rotations loses lines
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	read := map[string]chan bool{"a": make(chan bool, n), "b": make(chan bool, n)}
	write := func(f *File, actor string) {
		log := slog.New(slog.NewJSONHandler(f, nil))
		for i := range n {
			log.Info("x", "actor", actor, "query", fmt.Sprint(i))
			if (i+1)%chunk != 0 {
				continue
			}
			for range chunk {
				select {
				case <-read[actor]:
				case <-ctx.Done():
					return
				}
			}
		}
	}
	go write(a, "a")
	go write(b, "b")
	next := map[string]int{}
	err := Follow(ctx, dir, time.Millisecond/2, func(batch []Record) error {
		for _, r := range batch {
			if want := fmt.Sprint(next[r.Actor]); r.Query != want {
				t.Fatalf("%s of %s, want %s", r.Query, r.Actor, want)
			}
			read[r.Actor] <- true
			next[r.Actor]++
		}
		if next["a"] == n && next["b"] == n {
			cancel()
		}
		return nil
	})
	if err != nil || next["a"] != n || next["b"] != n {
		t.Fatal(next, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 6 { // two of each: current, predecessor, lock
		t.Fatal(entries, err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || info.Mode().Perm() != 0o600 || info.Size() > 1<<16 {
			t.Errorf("%s: %v %d", e.Name(), info.Mode(), info.Size())
		}
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	var failed error
	c := New(dir, "up", 1<<16, func(err error) { failed = err }) // appends to the file of the process that ended
	if _, err := fmt.Fprintln(c, "x"); err != nil || c.path != a.path || c.size <= 2 || failed != nil {
		t.Errorf("%+v %v %v", c, err, failed)
	}
	for _, f := range []*File{b, c} {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := fmt.Fprintln(c, "x"); err == nil || failed == nil {
		t.Error("a closed log was written")
	}
}

// TestLogAfterCutLine shows that a line that a crash cut costs no later record.
func TestLogAfterCutLine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "up.jsonl"), []byte(`{"time":"2026-01-02T03:04:05Z","msg":"cu`),
		0o600); err != nil {
		t.Fatal(err)
	}
	f := New(dir, "up", 1<<16, nil)
	slog.New(slog.NewJSONHandler(f, nil)).Info("x", "query", "q1")
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := Read(dir); err != nil || len(got) != 1 || got[0].Query != "q1" {
		t.Errorf("%+v %v", got, err)
	}
}
