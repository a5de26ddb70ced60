//go:build linux && (amd64 || arm64)

package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// insideID is the user and group id of the program inside the sandbox.
const insideID = "1000"

// visible are the folders and files of the system that a program may read.
var (
	systemRoots = []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}
	systemFiles = []string{
		"/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
		"/etc/localtime",
	}
	// madeFiles replace those of the machine, which tell about its users and network.
	madeFiles = map[string]string{
		"/etc/passwd":        "sandbox:x:" + insideID + ":" + insideID + "::/tmp:/bin/sh\n",
		"/etc/group":         "sandbox:x:" + insideID + ":\n",
		"/etc/hosts":         "127.0.0.1 localhost\n::1 localhost\n",
		"/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
	}
	// maskedProc are files of procfs that are not bound to a namespace.
	maskedProc = []string{
		"/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/timer_list", "/proc/sched_debug", "/proc/kallsyms",
		"/proc/kmsg",
		"/proc/sysrq-trigger", "/proc/cmdline", "/proc/config.gz", "/proc/kpagecount", "/proc/kpageflags",
		"/proc/kpagecgroup", "/proc/iomem",
		"/proc/ioports", "/proc/modules", "/proc/vmallocinfo", "/proc/slabinfo", "/proc/pagetypeinfo",
	}
	maskedProcFolders = []string{
		"/proc/acpi", "/proc/asound", "/proc/scsi", "/proc/fs", "/proc/driver", "/proc/bus",
		"/proc/irq",
	}
)

// arguments returns the arguments of bubblewrap that build the sandbox. The order matters: a later mount covers an
// earlier one.
func (r *runner) arguments(f *files) ([]string, error) {
	filter, err := newFilter()
	if err != nil {
		return nil, err
	}
	if err := f.data("--seccomp", "", filter); err != nil {
		return nil, err
	}
	if supports("--disable-userns") { // besides the filter
		f.args = append(f.args, "--disable-userns")
	}
	disk := strconv.FormatInt(r.spec.Limits.Disk, 10)
	args := []string{
		"--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try",
		"--uid", insideID, "--gid", insideID, "--hostname", "sandbox", "--new-session", "--die-with-parent",
		"--cap-drop", "ALL",
		"--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev", "--size", disk, "--tmpfs", "/dev/shm",
		"--remount-ro", "/dev",
		"--size", disk, "--tmpfs", "/tmp",
	}
	system, err := systemMounts(f)
	if err != nil {
		return nil, err
	}
	args = append(append(args, system...), r.folderMounts()...)
	for name, value := range r.spec.Secrets {
		if err := f.data("", name, value); err != nil {
			return nil, err
		}
		if supports("--perms") { // 0600 otherwise
			args = append(args, "--perms", "0400")
		}
		args = append(args, "--ro-bind-data", strconv.Itoa(f.last()), SecretFolder+"/"+name)
	}
	args = append(args, "--remount-ro", "/", "--chdir", r.spec.Dir,
		"--setenv", "PATH", Path, "--setenv", "HOME", r.spec.Dir, "--setenv", "TMPDIR", "/tmp", "--setenv", "LANG",
		"C.UTF-8")
	if env := r.environment(); env != "" {
		if err := f.data("", "environment", []byte(env)); err != nil {
			return nil, err
		}
		args = append(args, "--args", strconv.Itoa(f.last()))
	}
	return append(args, "--"), nil
}

// systemMounts returns the arguments that show the system's programs and libraries and the made files, and cover what
// procfs tells about the machine.
func systemMounts(f *files) (args []string, err error) {
	for _, path := range systemRoots {
		info, err := os.Lstat(path)
		switch {
		case err != nil:
		case info.Mode()&os.ModeSymlink != 0:
			if target, err := os.Readlink(path); err == nil {
				args = append(args, "--symlink", target, path)
			}
		case info.IsDir():
			args = append(args, "--ro-bind", path, path)
		}
	}
	for _, path := range systemFiles {
		args = append(args, "--ro-bind-try", path, path)
	}
	for path, text := range madeFiles {
		if err := f.data("", path, []byte(text)); err != nil {
			return nil, err
		}
		args = append(args, "--ro-bind-data", strconv.Itoa(f.last()), path)
	}
	for _, path := range maskedProc {
		if _, err := os.Lstat(path); err == nil {
			args = append(args, "--ro-bind", "/dev/null", path)
		}
	}
	for _, path := range maskedProcFolders {
		if _, err := os.Lstat(path); err == nil {
			args = append(args, "--size", "4096", "--tmpfs", path, "--remount-ro", path)
		}
	}
	return args, nil
}

// folderMounts returns the arguments that show the folders and the socket of the run, and cover the closed folders.
func (r *runner) folderMounts() (args []string) {
	var below []string // of the working folder, which would cover them
	for _, path := range r.spec.ReadOnly {
		if isWithin(r.spec.Dir, path) && path != r.spec.Dir {
			below = append(below, "--ro-bind", path, path)
		} else {
			args = append(args, "--ro-bind", path, path)
		}
	}
	for _, path := range r.spec.ReadWrite {
		args = append(args, "--bind", path, path)
	}
	args = append(append(args, "--bind", r.spec.Dir, r.spec.Dir), below...)
	if r.spec.Socket != "" {
		args = append(args, "--ro-bind", r.spec.Socket, r.spec.Socket)
	}
	for _, closed := range r.spec.Closed {
		if real, err := filepath.EvalSymlinks(closed); err == nil && isVisibleInside(real) {
			args = append(args, "--size", "4096", "--tmpfs", real, "--remount-ro", real)
		}
	}
	return args
}

// environment returns the arguments that set the environment, each ended by a zero byte: other users can read a command
// line, and a server may get a credential by the environment.
func (r *runner) environment() string {
	var b strings.Builder
	for _, e := range r.spec.Env {
		if name, value, ok := strings.Cut(e, "="); ok && name != "" {
			b.WriteString("--setenv\x00" + name + "\x00" + value + "\x00")
		}
	}
	return b.String()
}

// isVisibleInside reports whether a closed folder would be visible in the sandbox without a mount that covers it.
func isVisibleInside(closed string) bool {
	for _, root := range append([]string{"/usr"}, systemRoots...) {
		if isWithin(root, closed) {
			return true
		}
	}
	return false
}

// programArgs returns the program behind prlimit, which sets the limits of a process inside the sandbox: the kernel
// counts processes by user namespace there, and the limit of the namespace's creator would count all processes of the
// user.
func (r *runner) programArgs() []string {
	l := r.spec.Limits
	args := []string{"/usr/bin/prlimit"}
	for _, one := range []struct {
		option   string
		resource int
		value    uint64
	}{
		{"--as", unix.RLIMIT_AS, uint64(l.Memory)},
		{"--core", unix.RLIMIT_CORE, 0},
		{"--cpu", unix.RLIMIT_CPU, uint64(l.CPU / time.Second)},
		{"--fsize", unix.RLIMIT_FSIZE, uint64(l.FileSize)},
		{"--memlock", unix.RLIMIT_MEMLOCK, 64 << 10},
		{"--msgqueue", unix.RLIMIT_MSGQUEUE, 0},
		{"--nofile", unix.RLIMIT_NOFILE, uint64(l.OpenFiles)},
		{"--nproc", unix.RLIMIT_NPROC, uint64(l.Processes) + 1}, // process 1 is bubblewrap's
		{"--rtprio", unix.RLIMIT_RTPRIO, 0},
		{"--sigpending", unix.RLIMIT_SIGPENDING, 1024},
	} {
		var now unix.Rlimit
		if unix.Getrlimit(one.resource, &now) == nil {
			one.value = min(one.value, now.Max) // a limit cannot be raised
		}
		args = append(args, fmt.Sprintf("%s=%d", one.option, one.value))
	}
	return append(append(args, "--"), r.spec.Args...)
}

// files are the descriptors that bubblewrap inherits, and the arguments that name them.
type files struct {
	args   []string
	child  []*os.File // the child's ends: descriptors 3 and up
	parent []*os.File
	stdin  *os.File // the child's end; nil = none
}

// last returns the number that the file added last has in the child.
func (f *files) last() int { return 2 + len(f.child) }

// data adds a pipe that holds b, as the value of option. b must fit into a pipe.
func (f *files) data(option, name string, b []byte) error {
	w, err := f.toChild(option)
	if err != nil {
		return err
	}
	defer w.Close()
	if len(b) > 60<<10 {
		return fmt.Errorf("%s%s is too large for a pipe", option, name)
	}
	_, err = w.Write(b)
	return err
}

// toChild adds a pipe that the child reads, as the value of option ("" = the caller names it).
func (f *files) toChild(option string) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	f.add(option, r, w)
	return w, nil
}

// fromChild adds a pipe that the child writes, as the value of option.
func (f *files) fromChild(option string) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	f.add(option, w, r)
	return r, nil
}

func (f *files) add(option string, child, parent *os.File) {
	f.child, f.parent = append(f.child, child), append(f.parent, parent)
	if option != "" {
		f.args = append(f.args, option, strconv.Itoa(f.last()))
	}
}

// closeChild closes the child's ends in this process.
func (f *files) closeChild() {
	for _, c := range f.child {
		c.Close()
	}
	if f.stdin != nil {
		f.stdin.Close()
	}
}

// close closes everything. Files that are closed already stay so.
func (f *files) close() {
	f.closeChild()
	for _, p := range f.parent {
		p.Close()
	}
}
