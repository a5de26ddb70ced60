package tools

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"conclave/pkg/policy"
	"conclave/pkg/sandbox"
	"conclave/pkg/text"
	"conclave/pkg/undo"
	"conclave/subjects"
)

// A tool that changes files of the user keeps their state before, in the store of this machine (see [undo]): first when
// the broker asks for it, before it decides, and again when the file is written, if it changed meanwhile.

// changeStore opens the store when it is first used. Each process has one, which its tools share.
type changeStore struct {
	folder string // "" = there is none
	limits undo.Limits

	once  sync.Once
	store *undo.Store
	err   error

	programs chan struct{} // has an element for each program that runs as a change
	mu       sync.Mutex
	running  map[string]chan struct{} // by folder; closed when the program in it has ended
}

// Bounds of programs that run as changes, and for which nobody is asked.
const (
	maxPrograms = 4                // in a process at a time
	programWait = 10 * time.Second // for another one in the same folder, and for one of maxPrograms
)

// newChangeStore returns the store of a process in a folder; "" = it keeps nothing.
func newChangeStore(folder string, limits undo.Limits) *changeStore {
	return &changeStore{
		folder: folder, limits: limits,
		programs: make(chan struct{}, maxPrograms), running: map[string]chan struct{}{},
	}
}

// startProgram waits until a program may run in a folder: one at a time, so that its change has nothing of others. The
// caller calls end when it has ended.
func (s *changeStore) startProgram(ctx context.Context, folder string) (end func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, programWait)
	defer cancel()
	ended := make(chan struct{})
	for {
		s.mu.Lock()
		other, isBusy := s.running[folder]
		if !isBusy {
			s.running[folder] = ended
		}
		s.mu.Unlock()
		if !isBusy {
			break
		}
		select {
		case <-other:
		case <-ctx.Done():
			return nil, errors.New("another program runs in its working folder; try again when that has ended")
		}
	}
	leave := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.running, folder)
		close(ended)
	}
	select {
	case s.programs <- struct{}{}:
		return func() {
			<-s.programs
			leave()
		}, nil
	case <-ctx.Done():
		leave()
		return nil, fmt.Errorf("%d programs run already; try again when one has ended", maxPrograms)
	}
}

var errNoStore = fmt.Errorf("%w: this process has no folder for it", undo.ErrNotKept)

func (s *changeStore) open() (*undo.Store, error) {
	if s == nil || s.folder == "" {
		return nil, errNoStore
	}
	s.once.Do(func() { s.store, s.err = undo.Open(s.folder, s.limits, nil) })
	return s.store, s.err
}

// newChange returns the change that an order describes, as the journal has it.
func newChange(o subjects.Change) undo.Change {
	return undo.Change{
		ID: o.ID, Time: o.Time, Tool: o.Tool, Agent: o.Agent, Type: o.Type, Call: o.Call, Session: o.Session,
		Query: o.Query, Sources: o.Sources, Undoes: o.Undoes,
	}
}

// captureFile keeps the state of the file that the call would change. The text of the result is why it is not kept,
// "" when it is.
func (c Call) captureFile(path string, makeContent contentMaker) (Output, error) {
	data, err := makeContent(func() ([]byte, error) { return readOld(c, path) })
	if err != nil {
		return Output{}, err
	}
	store, err := c.changes.open()
	if err == nil {
		err = store.Capture(newChange(c.Change.Change), path, int64(len(data)), c.Folders, c.Now)
	}
	if errors.Is(err, undo.ErrNotKept) {
		return Output{Text: err.Error()}, nil
	}
	if err != nil {
		return Output{}, err
	}
	return Output{Change: &subjects.ChangeRef{
		ID: c.Change.ID, Files: []string{path}, Runs: isProgram(path, data),
	}}, nil
}

// skippedFolders are the folders in a working folder of which no state is kept: they are made again when they are gone,
// and programs do not write to that of packages.
var skippedFolders = []string{scratch, ".cache", packageFolder}

// captureFolder keeps the state of the working folder, as [Call.captureFile] does of a file. It keeps nothing where
// programs cannot be confined: the broker lets one run without a question because its folder is kept.
func (c Call) captureFolder(ctx context.Context) (Output, error) {
	if c.Folders == nil || c.Folders.Work == "" {
		return Output{Text: "there is no working folder"}, nil
	}
	if err := sandbox.SelfTest(ctx); err != nil {
		return Output{Text: err.Error()}, nil
	}
	store, err := c.changes.open()
	if err == nil {
		err = store.CaptureTree(newChange(c.Change.Change), c.Folders.Work, skippedFolders, c.Folders, c.Now)
	}
	if errors.Is(err, undo.ErrNotKept) {
		return Output{Text: err.Error()}, nil
	}
	if err != nil {
		return Output{}, err
	}
	return Output{Change: &subjects.ChangeRef{ID: c.Change.ID, Files: []string{c.Folders.Work}, Runs: true}}, nil
}

// beginFolder begins the change of a program in the working folder, which must be the one whose state is kept. The
// caller calls end when the program has ended; it returns the files that have changed.
func (c Call) beginFolder(ctx context.Context) (end func() ([]string, error), err error) {
	if !slices.Equal(c.Change.paths(), []string{c.Folders.Work}) {
		return nil, errors.New("its working folder is not the one whose state is kept; try again")
	}
	store, err := c.changes.open()
	if err != nil {
		return nil, err
	}
	ended, err := c.changes.startProgram(ctx, c.Folders.Work)
	if err != nil {
		return nil, err
	}
	seal, err := store.BeginTree(newChange(c.Change.Change), c.Folders.Work, skippedFolders, c.Folders)
	if err != nil {
		ended()
		return nil, err
	}
	return func() ([]string, error) {
		defer ended()
		return seal()
	}, nil
}

// isProgram reports whether the file at path can be started now, or with this content: it is executable or in a folder
// of programs, or the content is that of a script or a binary.
func isProgram(path string, data []byte) bool {
	if slices.Contains(filepath.SplitList(os.Getenv("PATH")), filepath.Dir(path)) {
		return true
	}
	for _, magic := range []string{"#!", "\x7fELF", "MZ", "\xcf\xfa\xed\xfe", "\xca\xfe\xba\xbe"} {
		if bytes.HasPrefix(data, []byte(magic)) {
			return true
		}
	}
	info, err := os.Stat(path)
	return err == nil && info.Mode().Perm()&0o111 != 0
}

// replaceFile writes a file: as a change that can be undone when the broker names one.
func (c Call) replaceFile(path string, makeContent contentMaker) (created bool, err error) {
	if c.Change == nil {
		return policy.ReplaceInside(path, policy.Replacement{Make: func() (policy.FileContent, error) {
			data, err := makeContent(func() ([]byte, error) { return readOld(c, path) })
			return policy.FileContent{Data: data}, err
		}}, c.Folders.Allowed, c.Folders.Closed)
	}
	if !slices.Equal(c.Change.paths(), []string{path}) {
		return false, errors.New("another file would be changed than the one whose state is kept; try again")
	}
	store, err := c.changes.open()
	if err != nil {
		return false, err
	}
	return store.Replace(newChange(c.Change.Change), path, func(old []byte) ([]byte, error) {
		return makeContent(func() ([]byte, error) {
			if len(old) > maxAppendBytes {
				return nil, errFileTooLarge
			}
			return old, nil
		})
	}, c.Folders)
}

// changeOrder is the order of the broker about the change as which a call takes effect.
type changeOrder struct{ subjects.ChangeOrder }

func (o changeOrder) paths() (paths []string) {
	for _, f := range o.Files {
		paths = append(paths, f.Path)
	}
	return paths
}

// serveChanges lists the changes of the store, or takes some back, as the broker ordered.
func (t *Tool) serveChanges(_ context.Context, o subjects.ToolOrder, now time.Time) (subjects.ToolResult, error) {
	if o.Change == nil {
		return subjects.ToolResult{}, subjects.Faultf(subjects.CodeMalformed, "the order names no change")
	}
	store, err := t.changes.open()
	if err != nil {
		return subjects.ToolResult{}, subjects.Faultf(subjects.CodeUnavailable, "%v", err)
	}
	all, err := store.Changes()
	if err != nil {
		return subjects.ToolResult{}, err
	}
	var reply any
	switch q := o.Change.Undo; {
	case q == nil && o.Change.List == nil:
		err = subjects.Faultf(subjects.CodeMalformed, "the order asks for nothing")
	case q == nil:
		reply, err = listChanges(store, all, *o.Change.List)
	case q.Action == subjects.UndoPurge && q.All:
		reply, err = purgeChanges(store, nil)
	default:
		var found []undo.Change
		if found, err = selectChanges(all, q.ChangeSelection); err != nil {
			break
		}
		if q.Action == subjects.UndoPurge {
			reply, err = purgeChanges(store, changeIDs(found))
		} else {
			reply, err = undoChanges(store, *o.Change, found, o.Folders, now)
		}
	}
	if err != nil {
		return subjects.ToolResult{}, err
	}
	data, err := json.Marshal(reply)
	return subjects.ToolResult{Result: string(data)}, err
}

func purgeChanges(store *undo.Store, ids []string) (subjects.UndoReply, error) {
	n, err := store.Purge(ids)
	return subjects.UndoReply{Done: true, Changes: ids, Purged: n}, err
}

func changeIDs(changes []undo.Change) []string {
	ids := make([]string, len(changes))
	for i, c := range changes {
		ids[i] = c.ID
	}
	return ids
}

// minChangeID is how much of an id the user must type.
const minChangeID = 4

// selectChanges returns the changes that s selects, newest first. Those of a question or a session are the ones of its
// agents that are not undone, without the undos of the user.
func selectChanges(all []undo.Change, s subjects.ChangeSelection) (found []undo.Change, _ error) {
	for _, c := range slices.Backward(all) {
		isOpen := len(c.Undoes) == 0 && slices.Contains(c.Undone(all), "")
		var selected bool
		switch {
		case s.ID != "":
			selected = len(s.ID) >= minChangeID && (strings.HasPrefix(c.ID, s.ID) || c.Call == s.ID)
		case s.Query != "":
			selected = c.Query == s.Query && isOpen
		case s.Session != "":
			selected = c.Session == s.Session && isOpen
		case s.Last:
			selected = isOpen && len(found) == 0
		case s.All:
			selected = isOpen
		}
		if s.ID != "" && c.ID == s.ID { // a whole id is never ambiguous
			return []undo.Change{c}, nil
		}
		if selected {
			found = append(found, c)
		}
	}
	switch {
	case len(found) == 0 && s.ID != "":
		return nil, subjects.Faultf(subjects.CodeMalformed, "there is no change %s that can be undone; conclave "+
			"changes lists them", text.OneLine(s.ID, 40))
	case len(found) == 0 && s.Query+s.Session != "":
		return nil, subjects.Faultf(subjects.CodeMalformed, "%s has changed nothing that can be undone",
			text.OneLine(cmp.Or(s.Query, s.Session), 40))
	case len(found) == 0:
		return nil, subjects.Faultf(subjects.CodeMalformed, "there is nothing to undo")
	case s.ID != "" && slices.ContainsFunc(found, func(c undo.Change) bool { return c.Call != found[0].Call }):
		return nil, subjects.Faultf(subjects.CodeMalformed, "%s means several changes; write more of the id",
			text.OneLine(s.ID, 40))
	}
	return found, nil
}

// Bounds of a reply, so that it fits into a message.
const (
	maxChangeList  = 512 << 10
	maxChangeDiffs = 256 << 10
)

// listChanges returns the changes that q selects, newest first, as many as fit into a message; those of an id and the
// last one with the differences that they made.
func listChanges(store *undo.Store, all []undo.Change, q subjects.ChangeQuery) (list subjects.ChangeList, err error) {
	list.Changes = []subjects.Change{}
	found := slices.Clone(all)
	slices.Reverse(found)
	if q.ChangeSelection != (subjects.ChangeSelection{}) {
		if found, err = selectChanges(all, q.ChangeSelection); err != nil {
			return list, err
		}
	}
	size, diffs := 0, 0
	for _, c := range found {
		shown := subjects.Change{
			ID: c.ID, Time: c.Time, Tool: c.Tool, Agent: c.Agent, Type: c.Type, Call: c.Call, Session: c.Session,
			Query: c.Query, Sources: c.Sources, Undoes: c.Undoes,
		}
		undone := c.Undone(all)
		for i, o := range c.Objects {
			f := subjects.ChangeFile{Path: o.Path, Kind: o.Kind(), Bytes: o.After.Size, Undone: undone[i]}
			if (q.ID != "" || q.Last) && diffs < maxChangeDiffs {
				if f.Diff, err = store.Show(c, o.Path); err != nil {
					f.Diff = err.Error()
				}
				diffs += len(f.Diff)
			}
			shown.Files = append(shown.Files, f)
		}
		data, err := json.Marshal(shown)
		if err != nil {
			return list, err
		}
		n := len(list.Changes)
		if size += len(data); size > maxChangeList && n > 0 || q.Limit > 0 && n == q.Limit {
			list.More = true
			break
		}
		list.Changes = append(list.Changes, shown)
	}
	return list, nil
}

func touches(c undo.Change, path string) bool {
	return slices.ContainsFunc(c.Objects, func(o undo.Object) bool { return o.Path == path })
}

// undoChanges plans an undo, and does it when that is what was ordered and nothing speaks against it.
func undoChanges(store *undo.Store, o subjects.ChangeOrder, changes []undo.Change, f *subjects.FolderRules,
	now time.Time,
) (reply subjects.UndoReply, err error) {
	q, ids := o.Undo, changeIDs(changes)
	if q.Action != subjects.UndoPlan && q.Action != subjects.UndoApply {
		return reply, subjects.Faultf(subjects.CodeMalformed, "unknown action; choose plan, apply or purge")
	}
	for _, path := range q.Only {
		if !slices.ContainsFunc(changes, func(c undo.Change) bool { return touches(c, path) }) {
			return reply, subjects.Faultf(subjects.CodeMalformed, "the change has no such file: %s",
				text.OneLine(path, 200))
		}
	}
	p, err := store.Plan(undo.Selection{IDs: ids, Only: q.Only, Overwrite: q.Overwrite}, f)
	if err != nil {
		return reply, err
	}
	reply = subjects.UndoReply{Plan: p.Sum(), Changes: ids, Files: []subjects.UndoFile{}}
	diffs := 0
	for _, s := range p.Steps {
		file := subjects.UndoFile{Path: s.Path, Merged: s.Merged, Same: s.From == s.To}
		if diffs < maxChangeDiffs {
			file.Diff = s.Diff()
			diffs += len(file.Diff)
		}
		reply.Files = append(reply.Files, file)
	}
	refusals := p.Refusals
	isChanged := q.Plan != "" && q.Plan != reply.Plan
	if q.Action == subjects.UndoApply && !isChanged && (len(refusals) == 0 || q.Partial) {
		c := newChange(o.Change)
		c.Time, c.Undoes = now, ids
		later, err := store.Undo(c, p, f)
		if err != nil {
			return reply, err
		}
		refusals = append(refusals, later...)
		reply.Done, reply.ID = true, c.ID
	}
	for _, r := range refusals {
		reply.Refusals = append(reply.Refusals, subjects.UndoRefusal{Path: r.Path, Reason: r.Reason, Text: r.Text})
	}
	if isChanged {
		reply.Refusals = append(reply.Refusals, subjects.UndoRefusal{
			Reason: undo.ReasonChanged, Text: "the files have changed since you saw what would happen; look again",
		})
	}
	return reply, nil
}
