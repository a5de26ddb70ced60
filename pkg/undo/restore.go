package undo

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
	"golang.org/x/sys/unix"

	"conclave/pkg/file"
	"conclave/pkg/policy"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Selection is what to undo.
type Selection struct {
	IDs  []string
	Only []string // paths; empty = all of the changes
	// Overwrite restores a file also when somebody else changed it since.
	Overwrite bool
}

// Plan is what an undo would do now.
type Plan struct {
	Steps    []Step
	Refusals []*Refusal
	folders  []string // that the changes made
}

// Step restores one object.
type Step struct {
	Path     string
	From, To State
	Merged   bool   // later changes by others stay
	Now      []byte // content of From
	Content  []byte // of To
}

// Sum identifies the plan: a later one with the same sum does the same.
func (p Plan) Sum() string {
	var all strings.Builder
	for _, s := range p.Steps {
		fmt.Fprintf(&all, "%q %s %o %s %o\n", s.Path, s.From.Sum, s.From.Mode, s.To.Sum, s.To.Mode)
	}
	fmt.Fprintf(&all, "%q", p.folders)
	return sum([]byte(all.String()))
}

// Diff returns what the step changes, for the user.
func (s Step) Diff() string { return Diff(s.Path, s.From.Exists(), s.Now, s.To.Exists(), s.Content) }

const maxDiff = 16 << 10 // bytes

// Diff returns the difference between two states of the file at path as a unified diff of at most maxDiff bytes, or a
// sentence for a file that is no text.
func Diff(path string, existed bool, before []byte, exists bool, after []byte) string {
	shown := text.OneLine(path, 300)
	if !isText(before) || !isText(after) {
		return fmt.Sprintf("%s is no text, or too long: %d bytes become %d", shown, len(before), len(after))
	}
	from, to := shown, shown
	if !existed {
		from = "/dev/null"
	}
	if !exists {
		to = "/dev/null"
	}
	d := string(diff.Diff(from, before, to, after))
	switch {
	case d != "":
		_, d, _ = strings.Cut(d, "\n") // without the line "diff a b"
	case from == to:
		return shown + " would stay as it is"
	case exists:
		return shown + " would be created empty"
	default:
		return shown + ", which is empty, would be removed"
	}
	if len(d) > maxDiff {
		d = fmt.Sprintf("%s\n[cut: %d of %d bytes of the difference are shown]", text.Cut(d, maxDiff), maxDiff, len(d))
	}
	return d
}

// show returns what a change did to its object o, as [Diff].
func show(k Keeper, o Object) (string, error) {
	before, after, err := contents(k, o)
	return Diff(o.Path, o.Before.Exists(), before, o.After.Exists(), after), err
}

// contents returns what is kept of an object, nil for a state in which there was none.
func contents(k Keeper, o Object) (before, after []byte, err error) {
	if o.Before.Exists() {
		before, err = k.Content(o.Path, o.Before)
	}
	if err == nil && o.After.Exists() {
		after, err = k.Content(o.Path, o.After)
	}
	return before, after, err
}

// Content implements [Keeper].
func (s *Store) Content(path string, at State) ([]byte, error) { return s.getObject(path, at.Sum) }

// Merge implements [Keeper].
func (s *Store) Merge(base, ours, theirs []byte) ([]byte, bool) { return mergeText(base, ours, theirs) }

// PlanUndo returns what an undo would do now. It changes nothing.
func PlanUndo(k Keeper, sel Selection, f *subjects.FolderRules) (p Plan, err error) {
	all, err := k.Changes()
	if err != nil {
		return p, err
	}
	pending, paths := map[string][]Change{}, []string{}
	for _, id := range sel.IDs {
		at := slices.IndexFunc(all, func(c Change) bool { return c.ID == id })
		if at < 0 {
			p.Refusals = append(p.Refusals, k.ExplainMissing(id))
			continue
		}
		c := all[at]
		found := false
		var by string
		for i, undone := range c.Undone(all) {
			o := c.Objects[i]
			if undone != "" || len(sel.Only) > 0 && !slices.Contains(sel.Only, o.Path) {
				by = undone
				continue
			}
			if found = true; pending[o.Path] == nil {
				paths = append(paths, o.Path)
			}
			pending[o.Path] = append(pending[o.Path], c)
			if o.Folder != "" {
				p.folders = append(p.folders, o.Folder)
			}
		}
		if !found && by != "" {
			p.Refusals = append(p.Refusals, refuse("", ReasonUndone, "change %s was undone already by %s", id, by))
		}
	}
	for _, path := range paths {
		step, err := planObject(k, path, pending[path], all, sel.Overwrite, f)
		var refusal *Refusal
		switch {
		case errors.As(err, &refusal):
			p.Refusals = append(p.Refusals, refusal)
		case err != nil:
			return p, err
		default:
			p.Steps = append(p.Steps, step)
		}
	}
	return p, nil
}

// ExplainMissing implements [Keeper].
func (s *Store) ExplainMissing(id string) *Refusal {
	if c, err := s.getEntry(id); err == nil && c.Phase == Captured {
		return refuse("", ReasonNotDone, "the call of %s changed nothing", c.Tool)
	}
	return NoChange(id)
}

// NoChange is the refusal to undo a change that is not kept.
func NoChange(id string) *Refusal {
	return refuse("", ReasonUnknown, "there is no change %s, or it is no longer kept", id)
}

// planObject returns how the object at path is restored to its state before the changes, newest undone first. What
// others changed since stays where it can be merged.
func planObject(k Keeper, path string, changes, all []Change, overwrite bool, f *subjects.FolderRules) (Step, error) {
	now, state, err := k.Read(path, f)
	switch {
	case errors.Is(err, ErrNotKept):
		return Step{}, refuse(path, ReasonFull, "%s is not changed, because its content now could not be kept: %v",
			path, err)
	case err != nil:
		return Step{}, refuse(path, ReasonOutside, "%s cannot be read: %v", path, err)
	}
	step := Step{Path: path, From: state, To: state, Now: now, Content: now}
	slices.SortStableFunc(changes, func(a, b Change) int { return b.Time.Compare(a.Time) })
	for _, c := range changes {
		o := c.Objects[slices.IndexFunc(c.Objects, func(o Object) bool { return o.Path == path })]
		switch {
		case step.To.Sum == o.Before.Sum: // restored already, but for its permissions
			if step.To.Exists() && step.To.Mode == o.After.Mode {
				step.To.Mode = o.Before.Mode
			}
		case step.To.Sum == o.After.Sum || overwrite:
			if step.Content, _, err = contents(k, Object{Path: path, Before: o.Before}); err != nil {
				return step, err
			}
			mode := step.To.Mode
			if !step.To.Exists() || mode == o.After.Mode {
				mode = o.Before.Mode
			}
			step.To = State{Sum: o.Before.Sum, Size: o.Before.Size, Mode: mode}
		default:
			if err := mergeObject(k, &step, c, o, all); err != nil {
				return step, err
			}
		}
	}
	return step, nil
}

// mergeObject takes what the change c did to its object o out of the content of step, which others changed since.
func mergeObject(k Keeper, step *Step, c Change, o Object, all []Change) error {
	who := "outside of Conclave"
	for _, later := range all {
		isLater := later.ID != c.ID && later.Time.After(c.Time)
		if isLater && slices.ContainsFunc(later.Objects, func(l Object) bool { return l.Path == o.Path }) {
			who = fmt.Sprintf("by %s, change %s", later.Tool, later.ID)
		}
	}
	if !step.To.Exists() {
		return refuse(o.Path, ReasonDeleted, "%s was removed since, %s", o.Path, who)
	}
	before, after, err := contents(k, o)
	if err != nil {
		return err
	}
	if !isText(before) || !isText(after) || !isText(step.Content) {
		return refuse(o.Path, ReasonBinary, "%s is no text and was changed since, %s", o.Path, who)
	}
	merged, ok := k.Merge(after, before, step.Content)
	if !ok {
		return refuse(o.Path, ReasonChanged, "%s was changed since in the same place, %s", o.Path, who)
	}
	step.Content, step.Merged = merged, true
	step.To = State{Sum: sum(merged), Size: int64(len(merged)), Mode: step.To.Mode}
	return nil
}

// Undo does what p plans as the change c, and returns the refusals of files that others changed since the plan was
// made. Of a plan with refusals it does the rest. A crash leaves each file as it was or restored, and the change c of
// those that are.
func (s *Store) Undo(c Change, p Plan, f *subjects.FolderRules) (refusals []*Refusal, err error) {
	steps := slices.DeleteFunc(slices.Clone(p.Steps), func(st Step) bool { return st.From == st.To })
	for _, st := range steps {
		c.Objects = append(c.Objects, Object{Path: st.Path})
	}
	c.Phase = Captured
	if err := s.locked(func() error { return s.noteEntry(c) }); err != nil {
		return nil, err
	}
	for i, st := range steps {
		c.Objects[i].Folder = missingFolder(st.Path)
		_, err := s.apply(&c, i, func(_ []byte, now State) (policy.FileContent, error) {
			if now.Sum != st.From.Sum {
				return policy.FileContent{}, refuse(st.Path, ReasonChanged, "%s was changed just now", st.Path)
			}
			return policy.FileContent{Data: st.Content, Mode: st.To.Mode, Gone: !st.To.Exists()}, nil
		}, f)
		var refusal *Refusal
		switch {
		case errors.As(err, &refusal):
		case errors.Is(err, ErrNotKept):
			refusal = refuse(st.Path, ReasonFull, "%s is not changed, because its content now could not be kept: %v; "+
				"conclave changes purge makes room", st.Path, err)
		case err != nil && isRefusedPath(err):
			refusal = refuse(st.Path, ReasonOutside, "%s cannot be written: %v", st.Path, err)
		case err != nil:
			return refusals, errors.Join(err, s.finish(&c))
		}
		if refusal != nil {
			c.Objects[i] = Object{Path: st.Path}
			refusals = append(refusals, refusal)
		}
	}
	if err := s.finish(&c); err != nil {
		return refusals, err
	}
	s.removeFolders(p)
	return refusals, nil
}

// isRefusedPath reports whether a file could not be written because of its path.
func isRefusedPath(err error) bool {
	return slices.ContainsFunc([]error{
		policy.ErrOutside, policy.ErrClosed, policy.ErrSwapped, policy.ErrSymlink, policy.ErrNotRegular,
		policy.ErrSpecial, policy.ErrForeign, fs.ErrPermission, fs.ErrNotExist, file.ErrLocked,
	}, func(known error) bool { return errors.Is(err, known) })
}

// removeFolders removes the folders that the undone changes made, when they are empty now.
func (s *Store) removeFolders(p Plan) {
	for _, st := range p.Steps {
		if st.To.Exists() {
			continue
		}
		for dir := filepath.Dir(st.Path); slices.ContainsFunc(p.folders, func(made string) bool {
			return dir == made || strings.HasPrefix(dir, made+"/")
		}); dir = filepath.Dir(dir) {
			if unix.Rmdir(dir) != nil { // not empty
				break
			}
		}
	}
}
