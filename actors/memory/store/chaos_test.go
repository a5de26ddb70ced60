//go:build cgo

package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/pkg/datatest"
	"conclave/subjects"
)

// The other process acts and says what it begins and what was acknowledged; it is killed at some moment. What was
// acknowledged must be there, what was forgotten must stay gone, and what was begun may be either, but never half.

// actUntilKilled acts with several hands, each on entries of its own, and closes the memory now and then.
func actUntilKilled(path string) error {
	ctx := context.Background()
	var out sync.Mutex
	say := func(words ...any) {
		out.Lock()
		defer out.Unlock()
		fmt.Fprintln(os.Stdout, words...)
	}
	round := os.Getpid() // never the same twice on one file, as good as never
	for turn := 0; ; turn++ {
		say("begin open")
		s, err := Open(ctx, path, Options{})
		if err != nil {
			return err
		}
		say("done open")
		var hands sync.WaitGroup
		errs := make([]error, 3)
		for h := range errs {
			hands.Go(func() {
				a := actor{s: s, say: say, name: fmt.Sprintf("r%dt%dh%d", round, turn, h)}
				for range 12 {
					if errs[h] = a.act(ctx); errs[h] != nil {
						return
					}
				}
			})
		}
		hands.Wait()
		say("begin close")
		if err := errors.Join(append(errs, s.Close(ctx))...); err != nil {
			return err
		}
		say("done close")
	}
}

// actor is one hand.
type actor struct {
	s    *Store
	say  func(...any)
	name string
	n    int
	mine []string
}

// act does one thing and says so before and after.
func (a *actor) act(ctx context.Context) error {
	what := []string{"put", "put", "put", "supersede", "merge", "grade", "forget", "update", "relate"}[rand.IntN(9)]
	if len(a.mine) == 0 {
		what = "put"
	}
	a.n++
	id, old := fmt.Sprintf("%s-%d", a.name, a.n), ""
	if what != "put" {
		old = a.mine[rand.IntN(len(a.mine))]
	}
	a.say("begin", what, id, old)
	var err error
	switch what {
	case "put":
		items := []Item{
			{Entry: newEngram(id, "q-"+id, "gen"), Vectors: randomVectors("m", 64, uint64(a.n))},
			{Entry: newFact(id + "f")},
		}
		_, err = a.s.Put(ctx, items...)
		a.mine = append(a.mine, id)
	case "supersede":
		e := newEngram(id, "q-"+id, "gen")
		e.Supersedes, e.Correlating = []string{old}, []string{old}
		_, err = a.s.Put(ctx, Item{Entry: e, Vectors: randomVectors("m", 64, uint64(a.n))})
		a.mine = append(a.mine, id)
	case "merge":
		err = a.s.Merge(ctx, old, Addition{Tags: []string{"tag-" + id}})
	case "grade":
		_, err = a.s.Grade(ctx, Grade{Query: "q-" + old, Respondent: "gen", Reward: ptr(1.0), Event: id})
	case "forget":
		_, err = a.s.Forget(ctx, old)
		a.mine = slices.DeleteFunc(a.mine, func(m string) bool { return m == old })
	case "update":
		_, err = a.s.Update(ctx, old, subjects.MemoryEdit{Name: ptr("name-" + id)},
			time.Now())
	case "relate":
		r := line1("rel-"+id, old, "Anna", "knows", id)
		err = a.s.PutRelations(ctx, RelationWrite{Relation: r})
	}
	if err != nil {
		return fmt.Errorf("%s %s %s: %w", what, id, old, err)
	}
	a.say("done", what, id, old)
	return nil
}

// should is what must be true of an entry.
type should struct {
	gone    bool
	name    string
	by      string // the successor
	tags    []string
	rewards int
	lines   int
	unsure  bool // something was begun with it
}

// expected follows what the other process says.
type expected struct {
	entries map[string]*should
	begun   map[string][]string // by the act's id
}

func (x *expected) hear(line string) {
	w := strings.Fields(line)
	if len(w) < 3 {
		return // open and close
	}
	if w[0] == "begin" {
		x.begun[w[2]] = w[1:]
		return
	}
	delete(x.begun, w[2])
	what, id, old := w[1], w[2], ""
	if len(w) > 3 {
		old = w[3]
	}
	e := x.entries[old]
	switch what {
	case "put":
		x.entries[id], x.entries[id+"f"] = &should{name: "name of " + id}, &should{name: "name of " + id + "f"}
	case "supersede":
		x.entries[id] = &should{name: "name of " + id}
		if e.by == "" {
			e.by = id
		}
	case "merge":
		e.tags = append(e.tags, "tag-"+id)
	case "grade":
		e.rewards++
	case "forget":
		for _, o := range x.entries { // what it superseded is its successor's
			if o.by == old {
				o.by = e.by
			}
		}
		*e = should{gone: true}
	case "update":
		e.name = "name-" + id
	case "relate":
		e.lines++
	}
}

// killed marks what was begun and not acknowledged: it may have happened.
func (x *expected) killed() {
	for _, w := range x.begun {
		for _, id := range w[1:] {
			if e := x.entries[id]; e != nil && !e.gone {
				e.unsure = true
				for _, o := range x.entries { // a successor that may be gone
					if o.by == id {
						o.unsure = true
					}
				}
			}
		}
	}
	clear(x.begun)
}

// check compares the memory with what was acknowledged.
func (x *expected) check(t *testing.T, s *Store) {
	t.Helper()
	ids := slices.Sorted(maps.Keys(x.entries))
	got, err := s.Get(t.Context(), ids...)
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]subjects.MemoryEntry{}
	for _, e := range got {
		there[e.ID] = e
	}
	lines := map[string]int{}
	all, err := s.Relations(t.Context(), GraphQuery{Limit: maxPageSize})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		lines[r.Entry]++
	}
	for _, id := range ids {
		want := x.entries[id]
		e, is := there[id]
		switch {
		case want.gone && is:
			t.Errorf("%s was forgotten and is there", id)
		case want.gone || want.unsure && !is:
		case !is:
			t.Errorf("%s was acknowledged and is gone", id)
		case want.unsure:
		case e.Name != want.name || e.SupersededBy != want.by || !slices.Equal(e.Tags, want.tags) ||
			e.Grades.Rewards != want.rewards || len(all) < maxPageSize && lines[id] != want.lines:
			t.Errorf("%s is %q by %q %v rewards %d lines %d\nwant %+v", id, e.Name, e.SupersededBy, e.Tags,
				e.Grades.Rewards, lines[id], want)
		}
	}
	known := map[string]bool{}
	err = s.query(t.Context(), func(r *sql.Rows) error {
		var query string
		err := r.Scan(&query)
		known[query] = true
		return err
	}, "SELECT query FROM answers WHERE id IS NULL")
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range x.entries {
		if want.gone && !known["q-"+id] {
			t.Errorf("the answer %s was forgotten, and a repeated event would bring it back", id)
		}
	}
}

// settle takes over what is there of what was unsure: from now on it has to stay.
func (x *expected) settle(t *testing.T, s *Store) {
	t.Helper()
	for id, want := range x.entries {
		if !want.unsure {
			continue
		}
		got, err := s.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) == 0 {
			*want = should{gone: true}
			continue
		}
		e := got[0]
		lines := queryCount(t, s, "SELECT count(*) FROM relations r JOIN entries e ON e.row = r.row WHERE e.id = ?", id)
		*want = should{name: e.Name, by: e.SupersededBy, tags: e.Tags, rewards: e.Grades.Rewards, lines: lines}
	}
}

// TestChaosKillStore kills a writer at random moments. CONCLAVE_CHAOS=1 kills it 200 times.
func TestChaosKillStore(t *testing.T) {
	t.Parallel()
	kills := 5
	if os.Getenv("CONCLAVE_CHAOS") != "" {
		kills = 200
	}
	path := filepath.Join(datatest.Dir(t), "memory.duckdb")
	x := &expected{entries: map[string]*should{}, begun: map[string][]string{}}
	acts := 0
	for kill := range kills {
		o := startChild(t, "act", path)
		// After some lines, and in some rounds before the first: while the file is made or the log is read.
		for range rand.IntN(120) {
			if !o.lines.Scan() {
				break
			}
			x.hear(o.lines.Text())
			acts++
		}
		// And not only when something was just said.
		time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
		if err := o.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for o.lines.Scan() { // what it said before it died
			x.hear(o.lines.Text())
			acts++
		}
		if err := o.cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("the writer was not killed: %v", err)
		}
		x.killed()
		s, err := Open(t.Context(), path, Options{})
		if err != nil {
			t.Fatalf("kill %d: %v", kill, err)
		}
		if err := s.Verify(t.Context()); err != nil {
			t.Errorf("kill %d: %v", kill, err)
		}
		x.check(t, s)
		x.settle(t, s)
		if err := s.Close(t.Context()); err != nil {
			t.Errorf("kill %d: %v", kill, err)
		}
		if t.Failed() {
			return
		}
	}
	if acts == 0 {
		t.Error("it was always killed before it did anything")
	}
	t.Logf("%d kills, %d lines, %d entries", kills, acts, len(x.entries))
}
