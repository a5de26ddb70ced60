package tools

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"conclave/pkg/policy"
	"conclave/pkg/sandbox"
	"conclave/subjects"
)

// scratch is the folder in a working folder for what a tool itself writes. It is hidden, so its files are not
// artifacts.
const scratch = ".run"

// programTimeout is the timeout of a tool that runs a program: that of the program, and time to start it and to end it.
func programTimeout(w Workspace) time.Duration { return w.Sandbox.Time + 15*time.Second }

// programFacts are the facts that all tools share whose calls are a program of the model.
func programFacts(w Workspace) policy.Tool {
	return policy.Tool{
		Keeps: true, Sandboxed: true, Act: policy.ActExecute,
		Effects: policy.Declare(policy.Exec, policy.Mutate, policy.ReadsPrivate, policy.ReadsUntrusted),
		Timeout: programTimeout(w), MaxArgs: maxCode, MaxResult: maxOutput + 16<<10,
	}
}

// program is a program to run in the working folder of a call.
type program struct {
	args  []string
	stdin string
	files []codeFile // written to the working folder before
}

// codeFile is a file in the working folder, by relative path.
type codeFile struct {
	Path    string `json:"path"`
	Content string `json:"content"`
}

// runProgram runs a program in the sandbox and describes the outcome for the model: exit code, duration, changed files,
// output. A program that fails is a result; a working folder or sandbox that cannot be used is a [Failure].
//
// In capture mode it keeps the state of the working folder and runs nothing; as a change it can be undone.
func (c Call) runProgram(ctx context.Context, w Workspace, p program) (out Output, err error) {
	if c.Mode == subjects.ModeCapture {
		return c.captureFolder(ctx)
	}
	work, err := c.openWorkFolder()
	if err != nil {
		return Output{}, err
	}
	defer work.Close()
	if c.Change != nil {
		end, err := c.beginFolder(ctx)
		if err != nil {
			return Output{}, Failure("the program was not started: " + err.Error())
		}
		defer func() {
			changed, failed := end()
			out.Change = nil
			if len(changed) > 0 {
				out.Change = &subjects.ChangeRef{ID: c.Change.ID, Files: changed}
			}
			err = errors.Join(err, failed)
		}()
	}
	for _, f := range p.files {
		if err := writeInside(work, f); err != nil {
			return Output{}, Failure(fmt.Sprintf("writing %s failed: %v", f.Path, err))
		}
	}
	live := lineEmitter{emit: c.Emit}
	r, err := sandbox.Run(ctx, sandbox.Spec{
		Args: p.args, Dir: c.Folders.Work, ReadOnly: findPackages(work), Closed: c.Folders.Closed,
		Env: programEnv(c.Folders.Work), Stdin: []byte(p.stdin), Limits: w.Sandbox.limits(), Output: live.write,
	})
	live.flush()
	if err != nil {
		return Output{}, Failure("the program was not started: " + err.Error())
	}
	if r.Stopped == sandbox.StopCanceled {
		return Output{}, context.Cause(ctx)
	}
	return Output{Text: describeRun(r, c.Folders.Work), Artifacts: r.Changed}, nil
}

// findPackages returns the folder of installed packages, if there is one. Its state is not kept, so that programs only
// read it.
func findPackages(work *os.Root) []string {
	if info, err := work.Lstat(packageFolder); err != nil || !info.IsDir() {
		return nil
	}
	return []string{filepath.Join(work.Name(), packageFolder)}
}

// openWorkFolder creates the working folder of the call when it is missing, and opens it.
func (c Call) openWorkFolder() (*os.Root, error) {
	if c.Folders == nil || c.Folders.Work == "" {
		return nil, Failure("there is no working folder for this caller; its type needs a folder in the manifest " +
			"that holds the workspace")
	}
	if err := policy.MakeWorkFolder(c.Folders); err != nil {
		return nil, fileFailure("opening the working folder", err)
	}
	work, err := os.OpenRoot(c.Folders.Work)
	if err != nil {
		return nil, fileFailure("opening the working folder", err)
	}
	return work, nil
}

// writeInside replaces a file in the working folder. A program may have put a symlink or a pipe there: it is removed
// and never followed.
func writeInside(work *os.Root, f codeFile) error {
	if !fs.ValidPath(f.Path) || f.Path == "." {
		return errors.New("the path must be relative and must not contain parent folders")
	}
	if err := work.MkdirAll(path.Dir(f.Path), 0o755); err != nil {
		return err
	}
	if err := work.Remove(f.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := work.OpenFile(f.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = file.WriteString(f.Content)
	return errors.Join(err, file.Close())
}

// newScratchFile returns a file that no other call of the task uses.
func newScratchFile(name, content string) codeFile {
	return codeFile{Path: path.Join(scratch, rand.Text(), name), Content: content}
}

// programEnv is the environment of every program. Caches are in the working folder, so that a second run is fast.
func programEnv(dir string) []string {
	return []string{
		"PYTHONPATH=" + dir + ":" + filepath.Join(dir, packageFolder), "PYTHONDONTWRITEBYTECODE=1",
		"PYTHONUNBUFFERED=1",
		"GOCACHE=" + dir + "/.cache/go-build", "GOPATH=" + dir + "/.cache/go", "GOTOOLCHAIN=local", "GOPROXY=off",
		"GOFLAGS=-buildvcs=false", "CGO_ENABLED=0",
	}
}

// shownArtifacts bounds the files that the text of a result names; all are in the result itself.
const shownArtifacts = 20

// describeRun returns a run as text for the model.
func describeRun(r sandbox.Result, dir string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "exit code: %d\nduration: %.1f s\n", r.ExitCode, r.Duration.Seconds())
	if r.Stopped != sandbox.StopNone {
		fmt.Fprintf(&b, "stopped: %s\n", r.Stopped)
	}
	if len(r.Changed) > 0 {
		fmt.Fprintf(&b, "changed files in %s:\n", dir)
		for _, a := range r.Changed[:min(len(r.Changed), shownArtifacts)] {
			rel, _ := filepath.Rel(dir, a)
			fmt.Fprintf(&b, "  %q\n", rel)
		}
		if more := len(r.Changed) - shownArtifacts; more > 0 {
			fmt.Fprintf(&b, "  and %d more\n", more)
		}
	}
	if len(r.Output) == 0 {
		b.WriteString("no output\n")
		return b.String()
	}
	b.WriteString("output:\n")
	b.WriteString(strings.ToValidUTF8(string(r.Output), "\uFFFD"))
	return b.String()
}

// lineEmitter passes output on in whole lines, or in pieces of maxLine bytes, so that no character is cut.
type lineEmitter struct {
	emit func(string)
	held []byte
}

const maxLine = 4 << 10

func (l *lineEmitter) write(piece []byte) {
	l.held = append(l.held, piece...)
	end := strings.LastIndexByte(string(l.held), '\n') + 1
	for end == 0 && len(l.held) > maxLine { // a long line: keep the character that may be incomplete
		end = len(l.held)
		for i := 0; i < utf8.UTFMax && end > 0 && !utf8.RuneStart(l.held[end-1]); i++ {
			end--
		}
		end = max(end-1, 1)
	}
	if end > 0 {
		l.send(l.held[:end])
		l.held = append(l.held[:0], l.held[end:]...)
	}
}

// flush passes on the rest.
func (l *lineEmitter) flush() {
	l.send(l.held)
	l.held = nil
}

func (l *lineEmitter) send(b []byte) {
	if len(b) > 0 && l.emit != nil {
		l.emit(string(b))
	}
}
