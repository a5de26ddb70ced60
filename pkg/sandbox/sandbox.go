// Package sandbox runs a program of untrusted origin with bubblewrap: in namespaces of its own, without a network, with
// the system's programs read-only and one working folder read-write, under a seccomp filter and resource limits.
//
// The program sees neither Conclave's folders and sockets nor any other process of the machine. When Conclave runs as
// root, the program runs as an unprivileged user. A sandbox that does not deny what it must is never used: [SelfTest]
// observes the denials once per process, and [Run] fails without it.
package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// ErrUnavailable is the error of a machine on which programs cannot be run safely. Its text says why and how to fix it.
var ErrUnavailable = errors.New("sandbox unavailable")

// Spec is one run of a program.
type Spec struct {
	Args []string // program and arguments; the program is looked up in [Path], inside the sandbox
	// Dir is the working folder, at the same path inside and outside: absolute, without symlinks. When Conclave runs as
	// root, the files in it belong to the sandbox's user during the run, and that user must be able to search the
	// folders above it.
	Dir string
	// ReadOnly are further files and folders that the program may read, at the same path, also below Dir. Run rejects
	// those of a file system of the kernel and those that hold a Unix socket of a process outside, here and in
	// ReadWrite.
	ReadOnly []string
	// ReadWrite are further folders that the program may change, at the same path. When Conclave runs as root, the
	// program has the rights of another user there: only the working folder is lent to it.
	ReadWrite []string
	Socket    string // of a process outside that the program may connect to, at the same path; "" = none
	// Closed are folders that the program must not see: Run rejects a Dir, ReadOnly or ReadWrite that holds one or lies
	// in one, and hides those below the system's folders.
	Closed []string
	// Env is the whole environment besides PATH, HOME, TMPDIR and LANG. It is not on a command line.
	Env []string
	// Secrets are files in [SecretFolder] by name, read-only, in memory, and gone with the sandbox.
	Secrets map[string][]byte
	Stdin   []byte
	// Pipes connects a program that is a server; nil = Stdin, and the output is collected.
	Pipes  *Pipes
	Limits Limits
	// Output is called with each piece of output as it arrives, from one goroutine. It must not keep the slice.
	Output func(piece []byte)
}

// Pipes are standard input and output of a program that is a server. Run closes both files. What the program writes to
// Out is neither collected nor limited; of its standard error the first bytes are the output of the run, and the rest
// is dropped.
type Pipes struct{ In, Out *os.File }

// close closes both files, once or more often.
func (p *Pipes) close() {
	if p != nil {
		p.In.Close()
		p.Out.Close()
	}
}

// Limits bound a run. Every limit must be positive; [DefaultLimits] are those of the tools.
type Limits struct {
	Time        time.Duration // wall clock
	CPU         time.Duration // processor time of each process, in whole seconds
	Memory      int64         // address space of each process, in bytes
	TotalMemory int64         // resident memory of all processes together, in bytes
	Processes   int           // processes and threads at a time
	OpenFiles   int           // of each process
	FileSize    int64         // of each file, in bytes
	// of all files in the working folder, in bytes; as much again may be in /tmp, which is in memory
	Disk    int64
	Entries int // files and folders in the working folder
	Output  int // bytes of standard output and standard error together
}

// DefaultLimits are enough for scripts, tests and small builds.
var DefaultLimits = Limits{
	Time: 60 * time.Second, CPU: 60 * time.Second, Memory: 4 << 30, TotalMemory: 1 << 30, Processes: 128,
	OpenFiles: 256,
	FileSize:  64 << 20, Disk: 256 << 20, Entries: 20_000, Output: 256 << 10,
}

// Validate reports the first limit that is not positive.
func (l Limits) Validate() error {
	for _, one := range []struct {
		name  string
		value int64
	}{
		{"time", int64(l.Time)},
		{"cpu", int64(l.CPU / time.Second)},
		{"memory", l.Memory},
		{"total memory", l.TotalMemory},
		{"processes", int64(l.Processes)},
		{"open files", int64(l.OpenFiles)},
		{"file size", l.FileSize},
		{"disk", l.Disk},
		{"entries", int64(l.Entries)},
		{"output", int64(l.Output)},
	} {
		if one.value <= 0 {
			return fmt.Errorf("sandbox limit %q is not positive", one.name)
		}
	}
	return nil
}

// Stop is why a run was ended before the program exited by itself.
type Stop string

// Reasons to end a run. A limit of a single process (address space, processor time, processes, open files, file size)
// is enforced by the kernel: the program sees an error or a signal, and Stop is empty.
const (
	StopNone     Stop = ""
	StopCanceled Stop = "canceled"
	StopTime     Stop = "time limit exceeded"
	StopMemory   Stop = "memory limit exceeded"
	StopDisk     Stop = "disk limit exceeded"
	StopOutput   Stop = "output limit exceeded"
	StopSocket   Stop = "a process outside opened a Unix socket in a folder that the program sees"
	StopMount    Stop = "a file system was mounted in a folder that the program sees"
)

// Result is the outcome of a run.
type Result struct {
	ExitCode int    // of the program; 128 + the signal that ended it
	Output   []byte // standard output and standard error, in the order in which they were written
	Stopped  Stop
	Duration time.Duration
	// Changed are the regular files of the working folder that the run created or changed, at most [MaxChanged],
	// sorted. Symlinks are not among them, and neither are hidden files, whose path contains a name with a leading dot.
	Changed []string
}

// MaxChanged bounds the files in [Result.Changed].
const MaxChanged = 200

// SecretFolder is the folder of [Spec.Secrets] inside the sandbox.
const SecretFolder = "/run/credentials"

// Path is the search path inside the sandbox.
const Path = "/usr/local/bin:/usr/local/go/bin:/usr/bin:/bin"

// systemFolders are visible inside, masked, or mounted anew: no working folder may be one of them or lie in one.
var systemFolders = []string{
	"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/dev", "/proc",
	"/sys", "/run", "/boot",
}

// outsideFolders hold sockets of services, devices, and facts about other processes. The sandbox has its own.
var outsideFolders = []string{"/dev", "/proc", "/sys", "/run", "/var/run"}

// validate reports the first reason why s must not be run. It does not look at the file system.
func (s Spec) validate() error {
	if len(s.Args) == 0 || s.Args[0] == "" {
		return errors.New("sandbox: no program")
	}
	for _, a := range append(append([]string{s.Dir}, s.Args...), s.Env...) {
		if strings.IndexByte(a, 0) >= 0 {
			return errors.New("sandbox: an argument contains a zero byte")
		}
	}
	for name := range s.Secrets {
		if name == "." || name == ".." || name != filepath.Base(name) || strings.IndexByte(name, 0) >= 0 {
			return errors.New("sandbox: the name of a credential is not that of a file")
		}
	}
	if err := s.checkFolder(s.Dir); err != nil {
		return err
	}
	if s.Dir == "/tmp" {
		return errors.New("sandbox: the working folder must be a folder in /tmp, not /tmp itself")
	}
	for _, f := range systemFolders {
		if isWithin(f, s.Dir) || isWithin(s.Dir, f) {
			return fmt.Errorf("sandbox: the working folder %s is a folder of the system", s.Dir)
		}
	}
	for _, r := range append(slices.Clone(s.ReadOnly), s.ReadWrite...) {
		if err := s.checkFolder(r); err != nil {
			return err
		}
		for _, f := range outsideFolders {
			if isWithin(f, r) {
				return fmt.Errorf("sandbox: %s is closed to programs: through %s a program reaches other processes "+
					"and the kernel", r, f)
			}
		}
	}
	if s.Socket != "" {
		if err := s.checkFolder(s.Socket); err != nil {
			return err
		}
	}
	return s.Limits.Validate()
}

// checkFolder rejects a path that is not absolute and clean, or that overlaps with a closed folder.
func (s Spec) checkFolder(path string) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" {
		return fmt.Errorf("sandbox: %q is not an absolute path of a folder", path)
	}
	for _, c := range s.Closed {
		if isWithin(c, path) || isWithin(path, c) {
			return fmt.Errorf("sandbox: %s overlaps with %s, which is closed to programs", path, c)
		}
	}
	return nil
}

// isWithin reports whether path is root or lies in it.
func isWithin(root, path string) bool {
	return path == root || strings.HasPrefix(path, strings.TrimSuffix(root, "/")+"/")
}
