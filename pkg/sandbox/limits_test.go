//go:build linux && (amd64 || arm64)

package sandbox

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestRunReturnsTheResult runs ordinary programs: exit code, output in order, input, environment, changed files.
func TestRunReturnsTheResult(t *testing.T) {
	t.Parallel()
	requireSandbox(t)
	dir := newWorkFolder(t)
	if err := os.WriteFile(filepath.Join(dir, "kept"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var live bytes.Buffer
	script := `cat; echo "$GREETING" >&2; echo last; mkdir sub .cache; echo text > sub/new; echo text > .cache/x; ` +
		`ln -s /etc/passwd link; exit 7`
	r, err := Run(t.Context(), Spec{
		Args: []string{"sh", "-c", script}, Dir: dir, Limits: DefaultLimits, Stdin: []byte("input\n"),
		Env:    []string{"GREETING=hello=you"},
		Output: func(piece []byte) { live.Write(piece) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := "input\nhello=you\nlast\n"; string(r.Output) != want || live.String() != want {
		t.Errorf("output %q, live %q, want %q", r.Output, live.String(), want)
	}
	if r.ExitCode != 7 || r.Stopped != StopNone {
		t.Errorf("exit code %d, stopped %q", r.ExitCode, r.Stopped)
	}
	if want := []string{filepath.Join(dir, "sub/new")}; !slices.Equal(r.Changed, want) {
		t.Errorf("changed %q, want %q", r.Changed, want)
	}
}

// TestRunReadsWhatRootWrote uses a file that another user may not read: when Conclave runs as root, the program runs as
// another user, who owns the working folder.
func TestRunReadsWhatRootWrote(t *testing.T) {
	t.Parallel()
	requireSandbox(t)
	dir := newWorkFolder(t)
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sub", "private"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(newWorkFolder(t), "outside")
	if err := os.WriteFile(outside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(outside, filepath.Join(dir, "hard")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "soft")); err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), Spec{Args: []string{"cat", "sub/private"}, Dir: dir, Limits: DefaultLimits})
	if err != nil || string(r.Output) != "mine" {
		t.Errorf("%v %q", err, r.Output)
	}
	info, err := os.Stat(outside)
	if err != nil {
		t.Fatal(err)
	}
	if info.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()) {
		t.Error("a file outside of the working folder changed its owner")
	}
	if info, err = os.Stat(filepath.Join(dir, "sub", "private")); err != nil ||
		info.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()) {
		t.Error("the working folder was not given back", err)
	}
}

// TestSandboxLimits reaches the limits that no escape probe reaches.
func TestSandboxLimits(t *testing.T) {
	t.Parallel()
	requireSandbox(t)
	for _, c := range []struct {
		name   string
		args   []string
		limits func(*Limits)
		want   Stop
		code   int
	}{
		{"time", []string{"sleep", "1000"}, func(l *Limits) { l.Time = 200 * time.Millisecond }, StopTime, 137},
		{"time of a program that ignores signals", []string{"sh", "-c", "trap '' TERM INT HUP; while :; do sleep " +
			"1000; done"}, func(l *Limits) { l.Time = 200 * time.Millisecond }, StopTime, 137},
		{"processor time", []string{"sh", "-c", "while :; do :; done"}, func(l *Limits) {
			l.CPU = time.Second
		}, StopNone, 137},
		{"output", []string{"sh", "-c", "while :; do echo x; done"}, func(l *Limits) {
			l.Output = 1000
		}, StopOutput, 137},
		{"none", []string{"true"}, func(*Limits) {}, StopNone, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := DefaultLimits
			c.limits(&l)
			r, err := Run(t.Context(), Spec{Args: c.args, Dir: newWorkFolder(t), Limits: l})
			if err != nil {
				t.Fatal(err)
			}
			if r.Stopped != c.want || r.ExitCode != c.code {
				t.Errorf("stopped %q, exit code %d; want %q, %d", r.Stopped, r.ExitCode, c.want, c.code)
			}
			if len(r.Output) > l.Output {
				t.Errorf("%d bytes of output", len(r.Output))
			}
		})
	}
}

// TestSandboxKillsTheTree checks that no process survives a run: neither one that left its session nor one that ignores
// all signals. Each listens on a socket in the working folder, so that the test can see whether it lives.
func TestSandboxKillsTheTree(t *testing.T) {
	requireSandbox(t)
	program := buildProbes(t)
	listening := func(socket string) bool {
		c, err := net.Dial("unix", socket)
		if err == nil {
			c.Close()
		}
		return !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) // a busy listener is one too
	}
	run := func(t *testing.T, ctx context.Context, probe string, output func(socket string)) Result {
		dir := newWorkFolder(t)
		socket := filepath.Join(dir, "s")
		r, err := Run(ctx, Spec{
			Args: []string{program, probe, socket}, Dir: dir, ReadOnly: []string{program}, Limits: DefaultLimits,
			Output: func([]byte) { output(socket) },
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(socket); err != nil {
			t.Fatal("the program did not run: ", err)
		}
		if listening(socket) {
			t.Error("a process outlived the run")
		}
		return r
	}
	t.Run("after a normal exit", func(t *testing.T) {
		if r := run(t, t.Context(), "listen", func(string) {}); r.ExitCode != 0 {
			t.Errorf("exit code %d: %s", r.ExitCode, r.Output)
		}
	})
	t.Run("when canceled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		lived := false
		r := run(t, ctx, "listen_and_wait", func(socket string) {
			lived = listening(socket)
			cancel()
		})
		if !lived || r.Stopped != StopCanceled {
			t.Errorf("lived %v, stopped %q: %s", lived, r.Stopped, r.Output)
		}
	})
	t.Run("when Conclave is killed", func(t *testing.T) {
		dir := newWorkFolder(t)
		socket := filepath.Join(dir, "s")
		c := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestSandboxForAKilledParent$")
		c.Env = append(os.Environ(), "CONCLAVE_TEST_DIR="+dir, probesVariable+"="+program)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		waitFor(t, func() bool { return listening(socket) })
		c.Process.Kill()
		c.Wait()
		waitFor(t, func() bool { return !listening(socket) })
	})
	runAsOrdinaryUser(t, program, "TestSandboxKillsTheTree/when_Conclave_is_killed")
}

// TestSandboxForAKilledParent is the process that [TestSandboxKillsTheTree] kills.
func TestSandboxForAKilledParent(t *testing.T) {
	dir, program := os.Getenv("CONCLAVE_TEST_DIR"), os.Getenv(probesVariable)
	if dir == "" {
		return
	}
	Run(t.Context(), Spec{
		Args: []string{program, "listen_and_wait", filepath.Join(dir, "s")}, Dir: dir,
		ReadOnly: []string{program}, Limits: DefaultLimits,
	})
}

// waitFor waits until done reports true.
func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !done(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("timeout")
		}
	}
}

// TestRunClosesFolder: a program cannot open its working folder to other users, or keep it from being measured, beyond
// the run.
func TestRunClosesFolder(t *testing.T) {
	t.Parallel()
	requireSandbox(t)
	for _, mode := range []string{"0777", "0000"} {
		dir := newWorkFolder(t)
		if r,
			err := Run(t.Context(), Spec{
			Args: []string{"chmod", mode, "."}, Dir: dir,
			Limits: DefaultLimits,
		}); err != nil || r.ExitCode != 0 {
			t.Fatalf("%s: %v %d %s", mode, err, r.ExitCode, r.Output)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v %v", mode, info.Mode(), err)
		}
	}
}

// TestReadFolder: nesting beyond the bounds is reported and costs no more than the bounds, the end of the context ends
// it, and symlinks are not followed.
func TestReadFolder(t *testing.T) {
	t.Parallel()
	dir := newWorkFolder(t)
	work, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer work.Close()
	deep := strings.Repeat("d/", maxDepth-1)
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, deep), 0o700), os.WriteFile(filepath.Join(dir, deep, "f"),
		[]byte("x"), 0o600), os.Symlink("/usr", filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	got, err := readFolder(t.Context(), work, 1000, true)
	if _, found := got.files[deep+"f"]; err != nil || !found || got.entries != maxDepth+1 ||
		got.exceeds(DefaultLimits) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := readFolder(t.Context(), work, 10, true); err != nil || got.entries != 11 {
		t.Errorf("%d entries, %v", got.entries, err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := readFolder(canceled, work, 1000, true); !errors.Is(err, context.Canceled) {
		t.Errorf("the walk did not end with its context: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, deep, "d", "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	if got, err := readFolder(t.Context(), work, 1000, true); err != nil || !got.exceeds(DefaultLimits) {
		t.Errorf("too deep: %+v, %v", got, err)
	}
	if os.Geteuid() == 0 { // the parts within the bounds change their owner, and no symlink is followed
		if err := chownTree(t.Context(), work, nobodyUser, nobodyUser); err != nil {
			t.Error(err)
		}
		for path, want := range map[string]uint32{"": nobodyUser, "link": nobodyUser, deep + "f": nobodyUser, deep +
			"d/d": 0} {
			info, err := os.Lstat(filepath.Join(dir, path))
			if err != nil || info.Sys().(*syscall.Stat_t).Uid != want {
				t.Errorf("%q: %v %v", path, info, err)
			}
		}
	}
}

// TestRunRejects has the folders that must not become working folders, and programs that do not start.
func TestRunRejects(t *testing.T) {
	t.Parallel()
	requireSandbox(t)
	dir := newWorkFolder(t)
	link := filepath.Join(newWorkFolder(t), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		spec Spec
		want string
	}{
		{"no program", Spec{Dir: dir}, "no program"},
		{"relative folder", Spec{Args: []string{"true"}, Dir: "."}, "not an absolute path"},
		{"trick: ..", Spec{Args: []string{"true"}, Dir: dir + "/../.."}, "not an absolute path"},
		{"the root", Spec{Args: []string{"true"}, Dir: "/"}, "not an absolute path"},
		{"all of /tmp", Spec{Args: []string{"true"}, Dir: "/tmp"}, "not /tmp itself"},
		{"a folder of the system", Spec{Args: []string{"true"}, Dir: "/usr/share"}, "folder of the system"},
		{"trick: symlink", Spec{Args: []string{"true"}, Dir: link}, "through a symlink"},
		{"missing folder", Spec{Args: []string{"true"}, Dir: dir + "/missing"}, "no such file"},
		{"a closed folder", Spec{Args: []string{"true"}, Dir: dir, Closed: []string{dir}}, "is closed to programs"},
		{
			"in a closed folder",
			Spec{Args: []string{"true"}, Dir: dir, Closed: []string{filepath.Dir(dir)}},
			"is closed to programs",
		},
		{
			"around a closed folder",
			Spec{Args: []string{"true"}, Dir: dir, Closed: []string{dir + "/keys"}},
			"is closed to programs",
		},
		{"closed folder to read", Spec{
			Args: []string{"true"}, Dir: dir, ReadOnly: []string{link},
			Closed: []string{link},
		}, "is closed to programs"},
		{
			"procfs to read",
			Spec{Args: []string{"true"}, Dir: dir, ReadOnly: []string{"/proc"}},
			"reaches other processes",
		},
		{
			"a process to read",
			Spec{Args: []string{"true"}, Dir: dir, ReadOnly: []string{"/proc/1"}},
			"reaches other processes",
		},
		{
			"devices to change",
			Spec{Args: []string{"true"}, Dir: dir, ReadWrite: []string{"/dev"}},
			"reaches other processes",
		},
		{
			"sysfs to change",
			Spec{Args: []string{"true"}, Dir: dir, ReadWrite: []string{"/sys/fs"}},
			"reaches other processes",
		},
		{
			"sockets of services to read",
			Spec{Args: []string{"true"}, Dir: dir, ReadOnly: []string{"/run"}},
			"reaches other processes",
		},
		{
			"trick: another name of that folder",
			Spec{Args: []string{"true"}, Dir: dir, ReadOnly: []string{"/var/run/docker.sock"}},
			"reaches other processes",
		},
		{"trick: zero byte", Spec{Args: []string{"true\x00"}, Dir: dir}, "zero byte"},
		{"no limits", Spec{Args: []string{"true"}, Dir: dir, Limits: Limits{Time: 1}}, "is not positive"},
	} {
		if c.spec.Limits == (Limits{}) {
			c.spec.Limits = DefaultLimits
		}
		if _, err := Run(t.Context(), c.spec); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	r, err := Run(t.Context(), Spec{Args: []string{"conclave-nonexistent"}, Dir: dir, Limits: DefaultLimits})
	if err != nil || r.ExitCode != 127 {
		t.Errorf("missing program: exit code %d, %v", r.ExitCode, err)
	}
}

// TestRunIgnoresProgramsOfTheUser puts programs of the same names as the sandbox's own first in PATH and in the working
// folder.
func TestRunIgnoresProgramsOfTheUser(t *testing.T) {
	requireSandbox(t)
	dir := newWorkFolder(t)
	for _, name := range []string{"bwrap", "prlimit", "sh"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\necho trick\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Chdir(dir)
	r, err := Run(t.Context(), Spec{Args: []string{"sh", "-c", "echo real"}, Dir: dir, Limits: DefaultLimits})
	if err != nil || string(r.Output) != "real\n" {
		t.Errorf("%v %q", err, r.Output)
	}
}

// TestSelfTestObservesDenials removes one observation after the other: each makes the self-test fail.
func TestSelfTestObservesDenials(t *testing.T) {
	t.Parallel()
	requireSandbox(t)
	outside := filepath.Join(newWorkFolder(t), "outside")
	if err := os.WriteFile(outside, []byte("outside\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), Spec{
		Args: []string{"sh", "-c", selfTestScript, "sh", outside}, Dir: newWorkFolder(t),
		Limits: DefaultLimits,
	})
	if err != nil {
		t.Fatal(err)
	}
	good := string(r.Output)
	if err := checkObserved(splitSections(good)); err != nil {
		t.Fatalf("the sandbox fails its self-test: %v", err)
	}
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func() string{
		"no filter":      func() string { return strings.Replace(good, "Seccomp:\t2", "Seccomp:\t0", 1) },
		"new privileges": func() string { return strings.Replace(good, "NoNewPrivs:\t1", "NoNewPrivs:\t0", 1) },
		"capabilities": func() string {
			return strings.Replace(good, "CapEff:\t0000000000000000", "CapEff:\t0000000000200000", 1)
		},
		"host network": func() string { return replaceNamespace(good, "net", own) },
		"interface":    func() string { return strings.Replace(good, "    lo:", "  eth0: 0\n    lo:", 1) },
		"descriptor": func() string {
			return strings.Replace(good, " 2 -> pipe", " 7 -> socket:[1]\nx 2 -> pipe", 1)
		},
		"environment":      func() string { return strings.Replace(good, "\nLANG=", "\nTOKEN=x\nLANG=", 1) },
		"no process limit": func() string { return strings.Replace(good, "Max processes  ", "Max elsewhere ", 1) },
		"file outside": func() string {
			return strings.Replace(good, "== escaped\n", "== escaped\nread a file outside\n", 1)
		},
		"incomplete": func() string { return strings.Replace(good, "== end", "", 1) },
		"folder":     func() string { return strings.Replace(good, "wrote to the working folder", "", 1) },
		"nothing":    func() string { return "" },
	} {
		changed := change()
		if changed == good {
			t.Errorf("%s: nothing changed", name)
		}
		if err := checkObserved(splitSections(changed)); err == nil {
			t.Errorf("%s: passed", name)
		}
	}
}

// replaceNamespace returns output with another link of a namespace.
func replaceNamespace(output, name, link string) string {
	before, after, _ := strings.Cut(output, " "+name+" -> ")
	_, rest, _ := strings.Cut(after, "\n")
	return before + " " + name + " -> " + link + "\n" + rest
}
