package tools

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"conclave/pkg/policy"
	"conclave/pkg/sandbox"
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

// captureFile keeps the state of the file that the call would change. The text of the result is why it is not kept,
// "" when it is.
func (c Call) captureFile(path string, makeContent contentMaker) (Output, error) {
	data, err := makeContent(func() ([]byte, error) { return readOld(c, path) })
	if err != nil {
		return Output{}, err
	}
	store, err := c.changes.open()
	if err == nil {
		err = store.Capture(undo.NewChange(c.Change.Change), path, int64(len(data)), c.Folders, c.Now)
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
		err = store.CaptureTree(undo.NewChange(c.Change.Change), c.Folders.Work, skippedFolders, c.Folders, c.Now)
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
	seal, err := store.BeginTree(undo.NewChange(c.Change.Change), c.Folders.Work, skippedFolders, c.Folders)
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
	return store.Replace(undo.NewChange(c.Change.Change), path, func(old []byte) ([]byte, error) {
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
func (t *Tool) serveChanges(o subjects.ToolOrder, now time.Time) (res subjects.ToolResult, err error) {
	store, err := t.changes.open()
	if err != nil {
		return res, subjects.Faultf(subjects.CodeUnavailable, "%v", err)
	}
	res.Result, err = undo.Serve(store, o.Change, o.Folders, now)
	return res, err
}
