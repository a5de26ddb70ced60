package undo

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestSequences: in random sequences of effects, edits by others, crashes and undos over files, notes and calendars,
// every undo restores byte for byte, or keeps what others did, or refuses with the right reason and changes nothing.
// What is recorded as done is in the file, and the store stays within its limit. CONCLAVE_UNDO is the number of
// sequences, CONCLAVE_SEED the first.
func TestSequences(t *testing.T) {
	t.Parallel()
	n, seed := 10, uint64(1)
	if v, err := strconv.Atoi(os.Getenv("CONCLAVE_UNDO")); err == nil {
		n = v
	}
	if v, err := strconv.ParseUint(os.Getenv("CONCLAVE_SEED"), 10, 64); err == nil {
		seed = v
	}
	seeds := make(chan uint64)
	counts := make(chan map[string]int, n)
	var running sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		running.Go(func() {
			for s := range seeds {
				q := &sequence{t: t, seed: s, r: rand.New(rand.NewPCG(s, 0)), count: map[string]int{}}
				q.run()
				counts <- q.count
			}
		})
	}
	for i := range n {
		seeds <- seed + uint64(i)
	}
	close(seeds)
	running.Wait()
	close(counts)
	total := map[string]int{}
	for c := range counts {
		for k, v := range c {
			total[k] += v
		}
	}
	t.Logf("%d sequences: %v", n, total)
}

// sequence is one random sequence with the model of its files: what they hold, and what each change did.
type sequence struct {
	t     *testing.T
	seed  uint64
	r     *rand.Rand
	f     *fixture
	dir   string
	limit Limits
	files map[string]string // content by name; missing = no file
	done  []modelChange
	ids   int
	crash int // the step at which the process dies, 0 = never
	count map[string]int
}

// modelChange is a change of the model: the states of one file or, for an undo, of several.
type modelChange struct {
	id     string
	undoes []string
	files  map[string][2]string // before and after; absent is a missing file
}

const absent = "\x00absent"

// crashed is the panic of a process that dies.
type crashed struct{}

func (q *sequence) fail(format string, a ...any) {
	q.t.Helper()
	q.t.Errorf("seed %d: %s", q.seed, fmt.Sprintf(format, a...))
}

// restart opens the store as a new process does.
func (q *sequence) restart() {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	if q.f != nil {
		now = q.f.now
	}
	q.f = newFixture(q.t, q.dir, q.limit, func(string) {
		if q.crash--; q.crash == 0 {
			panic(crashed{})
		}
	})
	q.f.now = now
}

// survive runs act, and reports false when the process died in it; then it has been restarted.
func (q *sequence) survive(act func()) (alive bool) {
	if q.r.IntN(4) == 0 {
		q.crash = 1 + q.r.IntN(9)
	}
	defer func() {
		q.crash = 0
		if p := recover(); p != nil {
			if _, ok := p.(crashed); !ok {
				panic(p)
			}
			q.count["crashes"]++
			q.restart()
		}
	}()
	act()
	return true
}

func (q *sequence) run() {
	q.dir = tempDir(q.t)
	q.limit = Limits{Days: 30, Size: 1 << 20, MaxFile: 64 << 10}
	if q.r.IntN(3) == 0 {
		q.limit.Size = 400
	}
	q.files = map[string]string{}
	q.restart()
	for range 25 {
		switch n := q.r.IntN(10); {
		case n < 5:
			q.change()
		case n < 7:
			q.editByOthers()
		default:
			q.undo()
		}
		q.check()
		if q.t.Failed() {
			return
		}
	}
}

// pick returns a file, of one of the kinds that the tools write.
func (q *sequence) pick() string {
	return []string{"a.txt", "b.txt", "deep/c.txt", "n.md", "c.ics", "bin.dat"}[q.r.IntN(6)]
}

// makeContent is what a tool makes of a file: all of it, a line or a section at its end, or an event in a calendar.
func (q *sequence) makeContent(name, id string) func(old []byte) ([]byte, error) {
	whole := q.r.IntN(3) == 0
	return func(old []byte) ([]byte, error) {
		text := string(old)
		switch filepath.Ext(name) {
		case ".md":
			return []byte(text + "\n## " + id + "\n\nnote " + id + "\n"), nil
		case ".ics":
			head, ok := strings.CutSuffix(text, "END:VCALENDAR\n")
			if !ok {
				head = "BEGIN:VCALENDAR\n"
			}
			return []byte(head + "BEGIN:VEVENT\nUID:" + id + "\nEND:VEVENT\nEND:VCALENDAR\n"), nil
		case ".dat":
			return []byte("\x00" + id), nil
		}
		if whole {
			return []byte("all of " + id + "\n"), nil
		}
		return []byte(text + "line " + id + "\n"), nil
	}
}

// now is what a file of the model holds.
func (q *sequence) now(name string) string {
	if content, ok := q.files[name]; ok {
		return content
	}
	return absent
}

func (q *sequence) set(name, content string) {
	if content == absent {
		delete(q.files, name)
	} else {
		q.files[name] = content
	}
}

func (q *sequence) newID() string {
	q.ids++
	return fmt.Sprintf("id%d", q.ids)
}

// change is a call of a tool.
func (q *sequence) change() {
	name, id := q.pick(), q.newID()
	before := q.now(name)
	next := q.makeContent(name, id)
	old := []byte(before)
	if before == absent {
		old = nil
	}
	data, _ := next(old)
	var err error
	alive := q.survive(func() { err = q.f.change(id, name, next) })
	if alive && err != nil {
		if !strings.Contains(err.Error(), ErrNotKept.Error()) {
			q.fail("changing %s: %v", name, err)
		}
		q.count["not kept"]++
		return
	}
	if happened := q.happened(id); alive && !happened {
		q.fail("%s returned and is not recorded", id)
	} else if happened {
		q.count["changes"]++
		q.set(name, string(data))
		q.done = append(q.done, modelChange{id: id, files: map[string][2]string{name: {before, string(data)}}})
	}
}

// happened reports whether a change is recorded as done.
func (q *sequence) happened(id string) bool {
	all, err := q.f.Changes()
	if err != nil {
		q.fail("%v", err)
	}
	return slices.ContainsFunc(all, func(c Change) bool { return c.ID == id })
}

// editByOthers is what an editor does, or a user who removes a file.
func (q *sequence) editByOthers() {
	name := q.pick()
	before := q.now(name)
	if before == absent {
		return
	}
	q.count["edits"]++
	id := q.newID()
	var next string
	switch q.r.IntN(4) {
	case 0:
		next = absent
		if err := os.Remove(q.f.path(name)); err != nil {
			q.fail("%v", err)
		}
	case 1:
		next = "mine " + id + "\n" + before
	case 2:
		next = before + "mine " + id + "\n"
	default:
		lines := strings.SplitAfter(before, "\n")
		lines[q.r.IntN(len(lines))] = "edited " + id + "\n"
		next = strings.Join(lines, "")
	}
	if next != absent {
		q.f.edit(q.t, name, next)
	}
	q.set(name, next)
}

// undo takes back some of the changes: one, several, a part, or the last one, with or without crash.
func (q *sequence) undo() {
	if len(q.done) == 0 {
		return
	}
	var sel Selection
	for range 1 + q.r.IntN(3) {
		id := q.done[q.r.IntN(len(q.done))].id
		if !slices.Contains(sel.IDs, id) {
			sel.IDs = append(sel.IDs, id)
		}
	}
	if q.r.IntN(4) == 0 {
		sel.Only = []string{q.f.path(q.pick())}
	}
	sel.Overwrite = q.r.IntN(6) == 0
	p, err := PlanUndo(q.f, sel, q.f.rules)
	if err != nil {
		q.fail("planning: %v", err)
		return
	}
	want := q.checkPlan(sel, p)
	if len(p.Refusals) > 0 && q.r.IntN(2) == 0 {
		q.count["refused"]++
		return
	}
	id := q.newID()
	q.f.now = q.f.now.Add(time.Second)
	var refusals []*Refusal
	alive := q.survive(func() {
		refusals, err = q.f.Undo(Change{ID: id, Time: q.f.now, Undoes: sel.IDs}, p, q.f.rules)
	})
	if alive && err != nil {
		q.fail("undoing: %v", err)
	}
	q.count["undos"]++
	u := modelChange{id: id, undoes: sel.IDs, files: map[string][2]string{}}
	all, err := q.f.Changes()
	if err != nil {
		q.fail("%v", err)
	}
	at := slices.IndexFunc(all, func(c Change) bool { return c.ID == id })
	for name, content := range want {
		isRefused := slices.ContainsFunc(refusals, func(r *Refusal) bool { return r.Path == q.f.path(name) })
		isDone := at >= 0 && slices.ContainsFunc(all[at].Objects, func(o Object) bool {
			return o.Path == q.f.path(name)
		})
		switch {
		case alive && isRefused && refusals[0].Reason != ReasonFull:
			q.fail("%s is refused with %s", name, refusals[0].Reason)
		case alive && !isRefused && !isDone:
			q.fail("%s is not recorded as restored", name)
		case isDone:
			u.files[name] = [2]string{q.now(name), content}
			q.set(name, content)
		}
	}
	if len(u.files) > 0 {
		q.done = append(q.done, u)
	}
}

// isUndone reports whether the model has an undo of a file of a change that is not undone.
func (q *sequence) isUndone(c modelChange, name string) bool {
	return slices.ContainsFunc(q.done, func(u modelChange) bool {
		_, has := u.files[name]
		return has && slices.Contains(u.undoes, c.id) && !q.isUndone(u, name)
	})
}

// checkPlan compares a plan with the model, and returns what the files that it changes hold then.
func (q *sequence) checkPlan(sel Selection, p Plan) (want map[string]string) {
	want = map[string]string{}
	expected := map[string]string{} // a reason, or the content
	merged := map[string]bool{}
	for _, c := range slices.Backward(q.done) {
		if !slices.Contains(sel.IDs, c.id) {
			continue
		}
		for name, state := range c.files {
			isChosen := len(sel.Only) == 0 || slices.Contains(sel.Only, q.f.path(name))
			if !isChosen || q.isUndone(c, name) || merged[name] {
				continue
			}
			now, ok := expected[name]
			if !ok {
				now = q.now(name)
			}
			switch {
			case strings.HasPrefix(now, "refused "):
			case now == state[0]:
				expected[name] = now
			case now == state[1] || sel.Overwrite:
				expected[name] = state[0]
			case now == absent:
				expected[name] = "refused " + ReasonDeleted
			case strings.Contains(now+state[0]+state[1], "\x00") && !strings.HasPrefix(state[0], absent) &&
				state[1] != absent, strings.HasPrefix(now, "\x00"):
				expected[name] = "refused " + ReasonBinary
			default:
				merged[name] = true // merged or refused: checked by the lines
			}
		}
	}
	for _, step := range p.Steps {
		name := strings.TrimPrefix(step.Path, q.f.dir+"/")
		got := absent
		if step.To.Exists() {
			got = string(step.Content)
		}
		if !merged[name] && got != expected[name] {
			q.fail("%s would hold %q, want %q", name, got, expected[name])
		}
		if merged[name] {
			q.count["merges"]++
			q.checkMerge(sel, name, got)
		}
		if got != q.now(name) {
			want[name] = got
		}
		delete(expected, name)
		delete(merged, name)
	}
	for _, r := range p.Refusals {
		name := strings.TrimPrefix(r.Path, q.f.dir+"/")
		switch {
		case r.Path == "":
			if r.Reason != ReasonUndone {
				q.fail("refused with %s: %s", r.Reason, r.Text)
			}
		case merged[name] && (r.Reason == ReasonChanged || r.Reason == ReasonDeleted || r.Reason == ReasonBinary):
		case expected[name] != "refused "+r.Reason:
			q.fail("%s is refused with %s, want %q", name, r.Reason, expected[name])
		}
		q.count[r.Reason]++
		delete(expected, name)
		delete(merged, name)
	}
	if len(expected)+len(merged) > 0 {
		q.fail("the plan leaves out %v %v", expected, merged)
	}
	return want
}

// checkMerge requires that a merge keeps every line that only others wrote.
func (q *sequence) checkMerge(sel Selection, name, got string) {
	if sel.Overwrite {
		return
	}
	for line := range strings.Lines(q.now(name)) {
		isForeign := strings.HasPrefix(line, "mine ") || strings.HasPrefix(line, "edited ")
		fromChange := slices.ContainsFunc(q.done, func(c modelChange) bool {
			return slices.Contains(sel.IDs, c.id) && strings.Contains(c.files[name][1], line)
		})
		if isForeign && !fromChange && !strings.Contains(got, line) {
			q.fail("%s lost %q: %q becomes %q", name, line, q.now(name), got)
		}
	}
}

// check compares the files with the model, and the store with its limit.
func (q *sequence) check() {
	if _, err := q.f.Changes(); err != nil { // completes what a crash ended
		q.fail("%v", err)
	}
	for _, name := range []string{"a.txt", "b.txt", "deep/c.txt", "n.md", "c.ics", "bin.dat"} {
		data, err := os.ReadFile(q.f.path(name))
		got := string(data)
		if err != nil {
			got = absent
		}
		if got != q.now(name) {
			q.fail("%s holds %q, want %q", name, got, q.now(name))
		}
	}
	if size, err := q.f.Size(); err != nil || size > int64(q.limit.Size) {
		q.fail("the store has %d bytes, limit %s, %v", size, q.limit.Size, err)
	}
}
