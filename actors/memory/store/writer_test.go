//go:build cgo

package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"conclave/pkg/datatest"
	"conclave/subjects"
)

// paused keeps the writer from working until go is called, so that what is handed in meanwhile goes together.
func paused(t *testing.T, s *Store) (wait func(n int), release func()) {
	t.Helper()
	began, end := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- s.write(context.Background(), func(*tx) error {
			select {
			case <-began:
			default:
				close(began)
			}
			<-end
			return nil
		})
	}()
	<-began
	wait = func(n int) {
		t.Helper()
		for len(s.writer.queue) < n {
			if t.Context().Err() != nil {
				t.Fatal("nobody hands in")
			}
		}
	}
	return wait, func() {
		close(end)
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestWritesAreBatched(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	putEntries(t, s, newFact("there"))
	wait, release := paused(t, s)
	const n = 20
	var all sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		all.Go(func() {
			e := newFact(fmt.Sprint("e", i))
			if i == 7 {
				e.ID = "there" // one of them cannot be stored
			}
			_, errs[i] = s.Put(context.Background(), Item{Entry: e})
		})
	}
	wait(n)
	release()
	all.Wait()
	for i, err := range errs {
		var want error
		if i == 7 {
			want = ErrExists
		}
		if !errors.Is(err, want) {
			t.Errorf("%d: got %v, want %v", i, err, want)
		}
	}
	if c := queryCount(t, s, "SELECT count(*) FROM entries"); c != n {
		t.Errorf("%d entries, want %d", c, n)
	}
}

// TestBatchedWritesSeeEachOther: a later write of a batch sees the earlier ones.
func TestBatchedWritesSeeEachOther(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	wait, release := paused(t, s)
	var all sync.WaitGroup
	next := 0
	hand := func(do func() error) {
		next++
		n := next
		all.Go(func() {
			if err := do(); err != nil {
				t.Errorf("step %d: %v", n, err)
			}
		})
		wait(n)
	}
	ctx := context.Background()
	hand(func() error {
		_, err := s.Put(ctx, Item{Entry: newEngram("a", "q", "g"), Vectors: randomVectors("m", 4, 1)})
		return err
	})
	hand(func() error { _, err := s.Grade(ctx, Grade{Query: "q", Respondent: "g", Critic: ptr(4)}); return err })
	hand(func() error { _, err := s.Grade(ctx, Grade{Query: "q", Respondent: "g", Reward: ptr(1.0)}); return err })
	hand(func() error { _, err := s.Put(ctx, Item{Entry: newFact("b")}); return err })
	hand(func() error { return s.Merge(ctx, "a", Addition{Correlating: []string{"b"}}) })
	hand(func() error { _, err := s.Forget(ctx, "b"); return err })
	hand(func() error { _, err := s.Put(ctx, Item{Entry: newFact("b")}); return err }) // the same id again
	hand(func() error { _, err := s.Pin(ctx, true, "a", "b"); return err })
	release()
	all.Wait()
	a, b := getEntry(t, s, "a"), getEntry(t, s, "b")
	if a.Grades.Critic != 4 || a.Grades.Rewards != 1 || !a.Pinned || !b.Pinned || len(a.Correlating) != 0 {
		t.Errorf("a is %+v\nb is %+v", a, b)
	}
}

func TestWriteWithCanceledCaller(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	wait, release := paused(t, s)
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		_, err := s.Put(ctx, Item{Entry: newFact("a")})
		left <- err
	}()
	wait(1)
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	release()
	putEntries(t, s, newFact("b"))
	if all, err := s.Get(t.Context(), "a", "b"); err != nil || ids(all) != "b" {
		t.Errorf("there are %q, %v: nobody waited for a when its turn came", ids(all), err)
	}
}

func TestClosed(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	putEntries(t, s, newFact("a"))
	for range 2 {
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	for name, try := range map[string]func() error{
		"put":    func() error { _, err := s.Put(ctx, Item{Entry: newFact("b")}); return err },
		"get":    func() error { _, err := s.Get(ctx, "a"); return err },
		"list":   func() error { _, _, err := s.List(ctx, Filter{}); return err },
		"load":   func() error { return s.Load(ctx, "m", func(IndexEntry) error { return nil }) },
		"known":  func() error { _, _, err := s.FindAnswer(ctx, "q", "g"); return err },
		"graph":  func() error { _, err := s.Relations(ctx, GraphQuery{}); return err },
		"stats":  func() error { _, err := s.Stats(ctx); return err },
		"verify": func() error { return s.Verify(ctx) },
		"forget": func() error { _, err := s.Forget(ctx, "a"); return err },
	} {
		if err := try(); !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCloseWhileWriting: closing waits for accepted writes and rejects later ones.
func TestCloseWhileWriting(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var all sync.WaitGroup
	stored := make([]bool, 40)
	for i := range stored {
		all.Go(func() {
			_, err := s.Put(context.Background(), Item{Entry: newFact(fmt.Sprint("e", i))})
			if err != nil && !errors.Is(err, ErrClosed) {
				t.Errorf("%d: %v", i, err)
			}
			stored[i] = err == nil
		})
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	all.Wait()
	s = openStore(t, s.path)
	for i, was := range stored {
		got, err := s.Get(t.Context(), fmt.Sprint("e", i))
		if err != nil || was != (len(got) == 1) {
			t.Errorf("%d was acknowledged: %v, is there: %d, %v", i, was, len(got), err)
		}
	}
}

// TestConcurrentWrites: all operations concurrently, for the race detector. The entry that every goroutine recalls is
// stored before they start, because Touch ignores entries that do not exist yet.
func TestConcurrentWrites(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ctx := context.Background()
	putEntries(t, s, newFact("common"))
	var all sync.WaitGroup
	for w := range 6 {
		all.Go(func() {
			for i := range 8 {
				id := fmt.Sprintf("w%d-%d", w, i)
				if _,
					err := s.Put(ctx,
					Item{Entry: newEngram(id, "q"+id, "g"), Vectors: randomVectors("m", 4, uint64(i))}); err != nil {
					t.Error(err)
				}
				if err := s.Touch(ctx, testTime, id, "common"); err != nil {
					t.Error(err)
				}
				if _,
					err := s.Grade(ctx, Grade{
					Query: "q" + id, Respondent: "g", Critic: ptr(3),
					Event: id,
				}); err != nil {
					t.Error(err)
				}
				switch i % 4 {
				case 1:
					if _, err := s.Forget(ctx, id); err != nil {
						t.Error(err)
					}
				case 2:
					if err := s.Merge(ctx, id, Addition{Correlating: []string{fmt.Sprintf("w%d-0", w)}}); err != nil {
						t.Error(err)
					}
				case 3:
					if _, err := s.Update(ctx, id, subjects.MemoryEdit{Name: ptr("n")}, testTime); err != nil {
						t.Error(err)
					}
				}
				if _, err := s.IndexEntries(ctx, "m", id); err != nil {
					t.Error(err)
				}
				if err := s.Load(ctx, "m", func(IndexEntry) error { return nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if n := queryCount(t, s, "SELECT count(*) FROM entries"); n != 37 {
		t.Errorf("%d entries, want 37", n)
	}
	if e := getEntry(t, s, "common"); e.Accesses != 6*8 {
		t.Errorf("common was recalled %d times, want 48", e.Accesses)
	}
}

// fillTheDisk writes until the system lets no file grow any more, and says what was acknowledged.
func fillTheDisk(path string) error {
	ctx := context.Background()
	s, err := Open(ctx, path, Options{})
	if err != nil {
		return err
	}
	// A file may have so many bytes from now on. The runtime of Go turns the signal that comes with it into an error.
	most, err := strconv.ParseUint(os.Getenv(limitEnv), 10, 64)
	if err != nil {
		return err
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: most, Max: most}); err != nil {
		return err
	}
	for i := range 1000 {
		e := newFact(fmt.Sprint("e", i))
		e.Corpus = strings.Repeat(fmt.Sprintf("%07d ", i*i), 32<<10)
		if _, err := s.Put(ctx, Item{Entry: e}); err != nil {
			printLine("error", err)
			break
		}
		printLine("stored", e.ID)
	}
	_, err = s.Put(ctx, Item{Entry: newFact("small")})
	printLine("then", err)
	printLine("closed", s.Close(ctx))
	return nil
}

func TestDiskFull(t *testing.T) {
	t.Parallel()
	for name, most := range map[string]int{"for the log": 2 << 20, "for the file": 17 << 20} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(datatest.Dir(t), "memory.duckdb")
			o := startChild(t, "fill", path, limitEnv+"="+strconv.Itoa(most))
			var stored []string
			failed := ""
			for o.lines.Scan() {
				what, rest, _ := strings.Cut(o.lines.Text(), " ")
				switch what {
				case "stored":
					stored = append(stored, rest)
				case "error":
					failed = rest
				}
			}
			if err := o.cmd.Wait(); err != nil {
				t.Errorf("the other process: %v", err)
			}
			if failed == "" || len(stored) == 0 {
				t.Fatalf("nothing failed, or everything: %d stored, %q", len(stored), failed)
			}
			s := openStore(t, path)
			all, err := s.Get(t.Context(), stored...)
			if err != nil || len(all) != len(stored) {
				t.Errorf("%d of %d that were acknowledged are there, %v", len(all), len(stored), err)
			}
			putEntries(t, s, newFact("after"))
		})
	}
}
