package memory

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"conclave/actors/memory/store"
	"conclave/pkg/strict"
	"conclave/pkg/undo"
	"conclave/subjects"
)

// savedAs calls save_memory as a change.
func (w *fixture) savedAs(id, query, args string, change ...func(*subjects.ToolOrder)) subjects.ToolResult {
	w.t.Helper()
	return w.saved(args, append([]func(*subjects.ToolOrder){func(o *subjects.ToolOrder) {
		o.CallID, o.QueryID = id, query
		o.Change = &subjects.ChangeOrder{Change: subjects.Change{
			ID: id, Tool: "save_memory", Call: id, Query: query, Session: "s1", Time: w.clock(),
		}}
	}}, change...)...)
}

// changesKept lists what can be undone.
func (w *fixture) changesKept(q subjects.ChangeQuery) (list subjects.ChangeList) {
	w.t.Helper()
	w.order(subjects.ChangeOrder{List: &q}, &list)
	return list
}

// undo takes changes back, or says what that would do.
func (w *fixture) undo(id string, q subjects.UndoRequest) (r subjects.UndoReply) {
	w.t.Helper()
	w.order(subjects.ChangeOrder{Change: subjects.Change{ID: id, Tool: "undo", Time: w.clock()}, Undo: &q}, &r)
	return r
}

// order gives an order about changes, as the broker does.
func (w *fixture) order(o subjects.ChangeOrder, reply any) {
	w.t.Helper()
	res := w.callTool("save_memory", subjects.ToolOrder{
		Mode: subjects.ModeUndo, Change: &o, Args: json.RawMessage(`{}`),
	})
	if res.Error != nil {
		w.t.Fatal(res.Error)
	}
	if err := json.Unmarshal([]byte(res.Result), reply); err != nil {
		w.t.Fatal(err)
	}
}

// undoOf is a request to take one change back.
func undoOf(id string) subjects.UndoRequest {
	return subjects.UndoRequest{
		Action: subjects.UndoApply, ChangeSelection: subjects.ChangeSelection{ID: id},
	}
}

// snapshot returns all entries, as they are compared, by path.
func (w *fixture) snapshot() map[string]string {
	w.t.Helper()
	entries, _, err := w.db.List(w.t.Context(), store.Filter{Limit: 1000})
	if err != nil {
		w.t.Fatal(err)
	}
	all := map[string]string{}
	for _, e := range entries {
		data, err := store.EncodeEntry(e)
		if err != nil {
			w.t.Fatal(err)
		}
		all[entryPath(e.ID)] = string(data)
	}
	return all
}

// TestUndoMemory: what save_memory stored, merged, kept and dropped, and what that superseded later, is restored row by
// row, and an undo is undone too.
func TestUndoMemory(t *testing.T) {
	t.Parallel()
	candidate := ""
	for name, tt := range map[string]struct {
		before func(w *fixture)
		call   func(w *fixture) subjects.ToolResult
		files  int
	}{
		"stored": {nil, func(w *fixture) subjects.ToolResult {
			return w.savedAs("c-1", "q1", `{"content":"The user drinks coffee black.","tags":["drinks"]}`)
		}, 1},
		"merged": {func(w *fixture) {
			w.saved(`{"content":"The user drinks coffee black."}`)
		}, func(w *fixture) subjects.ToolResult {
			return w.savedAs("c-1", "q1", `{"content":"The user drinks coffee black.","tags":["drinks"]}`)
		}, 2},
		"dropped": {func(w *fixture) {
			candidate = w.saved(`{"content":"The train leaves at nine."}`, spawned).Recalls[0]
		}, func(w *fixture) subjects.ToolResult {
			return w.savedAs("c-1", "q1", fmt.Sprintf(`{"content":"drop","candidate":%q}`, candidate))
		}, 1},
		"kept": {func(w *fixture) {
			candidate = w.saved(`{"content":"The train leaves at nine."}`, spawned).Recalls[0]
		}, func(w *fixture) subjects.ToolResult {
			return w.savedAs("c-1", "q1", fmt.Sprintf(`{"content":"keep","candidate":%q}`, candidate))
		}, 2},
		"superseded by its digest": {func(w *fixture) {
			w.chat = func(_, user, _ string) (string, error) {
				city := "Ghent"
				if strings.Contains(user, "Turin") {
					city = "Turin"
				}
				return modelReply("home", "Where the user lives.", fmt.Sprintf(
					`{"subject":"the user","predicate":"lives in","object":%q,"tense":"is"}`, city)), nil
			}
			w.m.cfg.Model = true
			w.storeFact("The user lives in Ghent.")
			w.refine()
			w.advance(time.Hour)
		}, func(w *fixture) subjects.ToolResult {
			res := w.savedAs("c-1", "q1", `{"content":"The user lives in Turin."}`)
			w.refine()
			return res
		}, 2},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			w := newFixture(t)
			if tt.before != nil {
				tt.before(w)
			}
			before := w.snapshot()
			relations, err := w.db.Relations(t.Context(), store.GraphQuery{})
			if err != nil {
				t.Fatal(err)
			}
			res := tt.call(w)
			if res.Error != nil || res.Change == nil || res.Change.ID != "c-1" {
				t.Fatalf("%+v, change %+v", res, res.Change)
			}
			after := w.snapshot()
			list := w.changesKept(subjects.ChangeQuery{ChangeSelection: subjects.ChangeSelection{Last: true}})
			if len(list.Changes) != 1 || len(list.Changes[0].Files) != tt.files || list.Changes[0].Query != "q1" {
				t.Fatalf("%+v", list)
			}
			if r := w.undo("u-1", undoOf("c-1")); !r.Done || len(r.Refusals) > 0 || len(r.Files) != tt.files {
				t.Fatalf("%+v", r)
			}
			if got := w.snapshot(); !maps.Equal(got, before) {
				t.Errorf("restored\n%q\nwant\n%q", got, before)
			}
			if got, _ := w.db.Relations(t.Context(), store.GraphQuery{}); !slices.Equal(got, relations) {
				t.Errorf("relations %+v, want %+v", got, relations)
			}
			w.restart()
			if r := w.undo("u-2", undoOf("u-1")); !r.Done || len(r.Refusals) > 0 {
				t.Fatalf("%+v", r)
			}
			if got := w.snapshot(); !maps.Equal(got, after) {
				t.Errorf("done again\n%q\nwant\n%q", got, after)
			}
			if r := w.undo("u-3", undoOf("u-1")); r.Done || len(r.Refusals) != 1 ||
				r.Refusals[0].Reason != undo.ReasonUndone {
				t.Errorf("undone twice: %+v", r)
			}
		})
	}
}

func spawned(o *subjects.ToolOrder) { o.Caller, o.Spawned = "orchestrator.r1", true }

// TestUndoMemoryRefuses: an entry that the user edited, and one that was forgotten, are not restored, and nothing is
// kept of what was forgotten.
func TestUndoMemoryRefuses(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	edited := w.savedAs("c-1", "q1", `{"content":"The user drinks coffee black."}`).Recalls[0]
	name := "coffee"
	if _, err := w.admin(subjects.MemoryAdminRequest{
		Op: "edit", IDs: []string{edited}, Edit: &subjects.MemoryEdit{Name: &name},
	}); err != nil {
		t.Fatal(err)
	}
	before := w.snapshot()
	r := w.undo("u-1", undoOf("c-1"))
	if r.Done || len(r.Refusals) != 1 || r.Refusals[0].Reason != undo.ReasonChanged {
		t.Errorf("%+v", r)
	}
	if got := w.snapshot(); !maps.Equal(got, before) {
		t.Errorf("a refused undo changed %q to %q", before, got)
	}
	forgotten := w.savedAs("c-2", "q1", `{"content":"The safe opens with 7315."}`).Recalls[0]
	if _, err := w.admin(subjects.MemoryAdminRequest{Op: "forget", IDs: []string{forgotten}}); err != nil {
		t.Fatal(err)
	}
	kept, err := w.db.Changes(t.Context())
	if err != nil || strings.Contains(fmt.Sprintf("%s", kept), "7315") {
		t.Errorf("kept after it was forgotten: %s, %v", kept, err)
	}
	r = w.undo("u-2", subjects.UndoRequest{
		Action: subjects.UndoPurge, ChangeSelection: subjects.ChangeSelection{ID: "c-1"},
	})
	if list := w.changesKept(subjects.ChangeQuery{}); r.Purged != 1 || len(list.Changes) > 0 {
		t.Errorf("purged %+v, left %+v", r, list)
	}
}

// TestSequences: in random sequences of calls, edits by the user, crashes and undos, every undo restores the rows that
// were, or refuses with the right reason and changes nothing; what a call did is what is kept of it, also when the
// process dies in the middle; and what is kept stays within its limit. CONCLAVE_UNDO is the number of sequences,
// CONCLAVE_SEED the first.
func TestSequences(t *testing.T) {
	t.Parallel()
	n, seed := 5, uint64(1)
	if v, err := strconv.Atoi(os.Getenv("CONCLAVE_UNDO")); err == nil {
		n = v
	}
	if v, err := strconv.ParseUint(os.Getenv("CONCLAVE_SEED"), 10, 64); err == nil {
		seed = v
	}
	count := map[string]int{}
	for i := range n {
		t.Run(fmt.Sprint(seed+uint64(i)), func(t *testing.T) {
			q := &sequence{r: rand.New(rand.NewPCG(seed+uint64(i), 0)), t: t, count: count}
			q.run()
		})
	}
	t.Logf("%d sequences: %v", n, count)
}

// sequence is one random sequence, with what each change did by its model: the states of entries before and after.
type sequence struct {
	t     *testing.T
	r     *rand.Rand
	w     *fixture
	first string // the file of its database at the beginning
	limit int64
	done  []entryChange
	ids   int
	dies  int
	count map[string]int
}

// entryChange is a change of the model; "" is a missing entry.
type entryChange struct {
	id, query string
	undoes    []string
	entries   map[string][2]string
}

func (q *sequence) run() {
	q.limit = 1 << 20
	if q.r.IntN(4) == 0 {
		q.limit = 5000
	}
	q.w = newFixture(q.t, func(c *Config) { c.Undo.Size = strict.Size(q.limit) })
	q.first = q.w.path
	for range 25 {
		q.w.advance(time.Second)
		switch n := q.r.IntN(10); {
		case n < 5:
			q.call()
		case n < 7:
			q.editByUser()
		default:
			q.undo()
		}
		if q.t.Failed() {
			return
		}
	}
}

// reopen has the actor use the database at a path.
func (q *sequence) reopen(path string) {
	cfg := q.w.m.cfg
	q.w.close()
	q.w.path = path
	q.w.open(cfg)
}

func (q *sequence) newID() string {
	q.ids++
	return fmt.Sprintf("change%03d", q.ids)
}

// survive runs act, and has the process die at some time in it: what is in the files then is all that is left.
func (q *sequence) survive(act func()) (alive bool) {
	if q.r.IntN(8) > 0 {
		act()
		return true
	}
	left := 1 + q.r.IntN(6)
	q.dies++
	path := filepath.Join(filepath.Dir(q.first), fmt.Sprint("after", q.dies), "memory.duckdb")
	q.w.onClock = func() {
		if left--; left == 0 {
			copyDatabase(q.t, q.w.path, path)
		}
	}
	act()
	q.w.onClock = nil
	if left > 0 {
		copyDatabase(q.t, q.w.path, path)
	}
	q.count["crashes"]++
	q.reopen(path)
	return false
}

// copyDatabase copies the files of a database as a crash would leave them.
func copyDatabase(t *testing.T, from, to string) {
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		t.Error(err)
	}
	files, err := filepath.Glob(from + "*")
	if err != nil {
		t.Error(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(to+strings.TrimPrefix(f, from), data, 0o600)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// call is a call of save_memory: a new fact, one that is known, a proposal, or a decision about one.
func (q *sequence) call() {
	id, query := q.newID(), fmt.Sprintf("q%d", q.r.IntN(3))
	before := q.w.snapshot()
	args, how := fmt.Sprintf(`{"content":"The %s number %d is %s.","tags":[%q]}`, pick(q.r, "boat", "house", "train"),
		q.r.IntN(4), pick(q.r, "red", "old", "far away"), id), func(*subjects.ToolOrder) {}
	switch candidates := q.candidates(before); {
	case q.r.IntN(4) == 0:
		how = spawned
	case len(candidates) > 0 && q.r.IntN(3) == 0:
		args = fmt.Sprintf(`{"content":%q,"candidate":%q}`, pick(q.r, "keep", "drop"), pick(q.r, candidates...))
	}
	var res subjects.ToolResult
	alive := q.survive(func() { res = q.w.savedAs(id, query, args, how) })
	if alive && res.Error != nil {
		q.t.Fatalf("%s: %v", args, res.Error)
	}
	q.record(entryChange{id: id, query: query}, before, false)
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// candidates returns the ids of the proposals in a snapshot.
func (q *sequence) candidates(entries map[string]string) (ids []string) {
	for _, path := range slices.Sorted(maps.Keys(entries)) {
		if strings.Contains(entries[path], `"state": "candidate"`) {
			ids = append(ids, strings.TrimPrefix(path, entryPath("")))
		}
	}
	return ids
}

// record adds what a call or an undo did to the model, and requires that exactly that is kept.
func (q *sequence) record(c entryChange, before map[string]string, mustKeep bool) {
	after := q.w.snapshot()
	c.entries = map[string][2]string{}
	for path := range maps.Keys(mergeKeys(before, after)) {
		if before[path] != after[path] {
			c.entries[path] = [2]string{before[path], after[path]}
		}
	}
	rows, err := q.w.db.Changes(q.t.Context())
	if err != nil {
		q.t.Fatal(err)
	}
	kept, size := map[string][2]string{}, int64(0)
	for _, r := range rows {
		size += int64(len(r.Before) + len(r.After))
		if r.Change == c.id {
			kept[entryPath(r.Entry)] = [2]string{string(r.Before), string(r.After)}
		}
	}
	if size > q.limit {
		q.t.Errorf("%d bytes are kept, limit %d", size, q.limit)
	}
	isFull := !mustKeep && q.limit < 1<<20
	for path, state := range c.entries {
		if kept[path] != state && !isFull {
			q.t.Errorf("%s: kept of %s is %q, want %q", c.id, path, kept[path], state)
		}
	}
	for path, state := range kept {
		if c.entries[path] != state {
			q.t.Errorf("%s: kept of %s is %q, but it did %q", c.id, path, state, c.entries[path])
		}
	}
	if c.entries = kept; len(kept) > 0 {
		q.count["changes"]++
		q.done = append(q.done, c)
	}
}

func mergeKeys(a, b map[string]string) map[string]string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// editByUser edits, pins or forgets an entry. What is forgotten is kept nowhere.
func (q *sequence) editByUser() {
	before := q.w.snapshot()
	if len(before) == 0 {
		return
	}
	q.count["edits"]++
	id := strings.TrimPrefix(pick(q.r, slices.Sorted(maps.Keys(before))...), entryPath(""))
	name := "edited " + q.newID()
	op := pick(q.r, "edit", "pin", "unpin", "forget")
	if _, err := q.w.admin(subjects.MemoryAdminRequest{
		Op: op, IDs: []string{id}, Edit: map[string]*subjects.MemoryEdit{"edit": {Name: &name}}[op],
	}); err != nil {
		q.t.Fatal(err)
	}
	if op != "forget" {
		return
	}
	after := q.w.snapshot()
	for i := range q.done {
		for path := range q.done[i].entries {
			_, is := after[path]
			_, was := before[path]
			if was && !is {
				delete(q.done[i].entries, path)
			}
		}
	}
	q.done = slices.DeleteFunc(q.done, func(c entryChange) bool { return len(c.entries) == 0 })
}

// isUndone reports whether the model has an undo of an entry of a change that is not undone.
func (q *sequence) isUndone(c entryChange, path string) bool {
	return slices.ContainsFunc(q.done, func(u entryChange) bool {
		_, has := u.entries[path]
		return has && slices.Contains(u.undoes, c.id) && !q.isUndone(u, path)
	})
}

// undo takes one change back, or all of a question, and compares with the model.
func (q *sequence) undo() {
	if len(q.done) == 0 {
		return
	}
	before := q.w.snapshot()
	chosen := pick(q.r, q.done...)
	req := undoOf(chosen.id)
	selected := []entryChange{chosen}
	if chosen.query != "" && q.r.IntN(2) == 0 {
		req.ChangeSelection = subjects.ChangeSelection{Query: chosen.query}
		selected = slices.DeleteFunc(slices.Clone(q.done), func(c entryChange) bool {
			isOpen := slices.ContainsFunc(slices.Collect(maps.Keys(c.entries)), func(p string) bool {
				return !q.isUndone(c, p)
			})
			return c.query != chosen.query || !isOpen || len(c.undoes) > 0
		})
		if len(selected) == 0 {
			return
		}
	}
	req.Overwrite = q.r.IntN(6) == 0
	want, refused := q.plan(selected, before, req.Overwrite)
	id := q.newID()
	var r subjects.UndoReply
	alive := q.survive(func() { r = q.w.undo(id, req) })
	q.count["undos"]++
	for _, x := range r.Refusals {
		q.count[x.Reason]++
		isFull := x.Reason == undo.ReasonFull && q.limit < 1<<20
		if want := refused[x.Path]; x.Reason != want && !isFull && !(x.Path == "" && x.Reason == undo.ReasonUndone) {
			q.t.Errorf("%s is refused with %s, want %q: %s", x.Path, x.Reason, want, x.Text)
		}
	}
	after := q.w.snapshot()
	if alive && len(r.Refusals) == 0 && len(refused) > 0 {
		q.t.Errorf("not refused: %v", refused)
	}
	ids := make([]string, len(selected))
	for i, c := range selected {
		ids[i] = c.id
	}
	isDone := !maps.Equal(before, after)
	if isDone || alive && len(r.Refusals) == 0 {
		for path, content := range want {
			if after[path] != content {
				q.t.Errorf("%s is %q, want %q", path, after[path], content)
			}
		}
	}
	if len(r.Refusals) > 0 && isDone {
		q.t.Errorf("a refused undo changed %q to %q", before, after)
	}
	q.record(entryChange{id: id, undoes: ids}, before, true)
}

// plan returns what the entries of changes hold when these are undone, and which are refused why.
func (q *sequence) plan(selected []entryChange, now map[string]string, overwrite bool) (want,
	refused map[string]string,
) {
	want, refused = map[string]string{}, map[string]string{}
	for _, c := range slices.Backward(selected) {
		for path, state := range c.entries {
			if q.isUndone(c, path) || refused[path] != "" {
				continue
			}
			at, ok := want[path]
			if !ok {
				at = now[path]
			}
			switch {
			case at == state[0]:
				want[path] = at
			case at == state[1] || overwrite:
				want[path] = state[0]
			case at == "":
				refused[path] = undo.ReasonDeleted
			default:
				refused[path] = undo.ReasonChanged
			}
		}
	}
	return want, refused
}
