//go:build linux && (amd64 || arm64)

package sandbox

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"conclave/pkg/programtest"
)

// Exit codes of the probes.
const (
	probeEscaped = 0
	probeDenied  = 1
	probeUnknown = 3 // the kernel does not know the call
)

// control says where a probe must succeed outside of the sandbox, so that it cannot pass by being broken.
type control int

const (
	everybody control = iota // outside it succeeds for every user
	onlyRoot                 // outside it succeeds for root
	usually                  // outside it succeeds, unless the machine restricts it too
	nobody                   // outside it would do harm
)

// probe is one attempt to leave the sandbox.
type probe struct {
	class   string
	name    string
	args    []string
	control control
	closed  string              // besides Conclave's folder
	limits  Limits              // what is set replaces the default
	escaped func(r Result) bool // nil = exit code 0
	before  func(t *testing.T)  // before the run in the sandbox
	extra   func() (f *os.File) // a descriptor for the control
}

// canary must not be seen inside, and the probes look for it.
const canary = "canary-5a1e07"

// probes are the attempts. Half of them are known tricks.
func probes(h host) []probe {
	parent := strconv.Itoa(os.Getpid())
	proc := "/proc/" + parent
	small := Limits{Disk: 4 << 20, FileSize: 2 << 20}
	stoppedBy := func(want Stop) func(Result) bool { return func(r Result) bool { return r.Stopped != want } }
	exists := func(path string) func(Result) bool {
		return func(Result) bool {
			_, err := os.Lstat(path)
			return err == nil
		}
	}
	tmp, shm := "/tmp/conclave-probe-"+parent, "/dev/shm/conclave-probe-"+parent
	return []probe{
		{class: "files", name: "file outside", args: []string{"read", h.outside("canary")}},
		{
			class: "files", name: "file in a folder of Conclave",
			args: []string{"read", h.outside("conclave/keys/broker.nk")},
		},
		{
			class: "files", name: "closed folder in a visible one", args: []string{"list", "/usr/share/doc"},
			closed: "/usr/share",
		},
		{class: "files", name: "relative path with ..", args: []string{"read", "../outside/canary"}},
		{class: "files", name: "create a file outside", args: []string{"create", h.outside("created")}},
		{
			class: "files", name: "overwrite a file of the system", args: []string{"open_write", "/usr/lib/os-release"},
			control: onlyRoot,
		},
		{class: "files", name: "create a file in /", args: []string{"create", "/conclave-probe"}, control: nobody},
		{
			class: "files", name: "create a file in /etc", args: []string{"create", "/etc/conclave-probe"},
			control: nobody,
		},
		{class: "files", name: "password hashes", args: []string{"has_content", "/etc/shadow"}, control: onlyRoot},
		{class: "files", name: "settings of the machine", args: []string{"list", "/etc/systemd"}, control: usually},
		{class: "files", name: "home of root", args: []string{"list", "/root"}, control: onlyRoot},
		{class: "files", name: "homes", args: []string{"list", "/home"}},
		{class: "files", name: "/var", args: []string{"list", "/var/lib"}},
		{class: "files", name: "/run", args: []string{"list", "/run"}},
		{class: "files", name: "private /tmp", args: []string{"create", tmp}, escaped: exists(tmp), control: nobody},
		{
			class: "files", name: "private /dev/shm", args: []string{"create", shm}, escaped: exists(shm),
			control: nobody,
		},
		{class: "files", name: "file handle", args: []string{"file_handle"}},
		{class: "links", name: "symlink to a file outside", args: []string{"symlink", h.outside("canary")}},
		{class: "links", name: "symlink race", args: []string{"symlink_race", h.outside("canary")}},
		{
			class: "links", name: "working folder exchanged for a symlink",
			args: []string{"exchange_race", h.outside("")},
		},
		{class: "links", name: "hard link to a file outside", args: []string{"hardlink", h.outside("canary")}},
		{class: "links", name: "rename to a folder outside", args: []string{"rename_out", h.outside("renamed")}},
		{class: "devices", name: "devices of the machine", args: []string{"devices"}},
		{class: "devices", name: "kernel log", args: []string{"has_content", "/dev/kmsg"}, control: usually},
		{class: "devices", name: "new block device", args: []string{"mknod"}, control: onlyRoot},
		{class: "devices", name: "file in /dev", args: []string{"create", "/dev/conclave-probe"}, control: nobody},
		{class: "terminal", name: "TIOCSTI", args: []string{"tiocsti"}, control: usually},
		{
			class: "terminal", name: "trick: TIOCSTI with high bits", args: []string{"tiocsti_high_bits"},
			control: usually,
		},
		{class: "terminal", name: "TIOCLINUX", args: []string{"tioclinux"}},
		{
			class: "descriptors", name: "inherited descriptor", args: []string{"descriptors"}, before: leakDescriptor,
			extra: func() *os.File { return os.Stderr },
		},
		{class: "environment", name: "environment", args: []string{"environment", canary}},
		{class: "procfs", name: "status of a process outside", args: []string{"has_content", proc + "/status"}},
		{class: "procfs", name: "environment of a process outside", args: []string{"has_content", proc + "/environ"}},
		{
			class: "procfs", name: "root of a process outside",
			args: []string{"read", proc + "/root" + h.outside("canary")},
		},
		{class: "procfs", name: "folder of a process outside", args: []string{"list", proc + "/cwd"}},
		{class: "procfs", name: "descriptors of a process outside", args: []string{"list", proc + "/fd"}},
		{
			class: "procfs", name: "memory of a process outside", args: []string{"open_write", proc + "/mem"},
			control: onlyRoot,
		},
		{
			class: "procfs", name: "root of process 1", args: []string{"read", "/proc/1/root" + h.outside("canary")},
			control: usually,
		},
		{
			class: "procfs", name: "core_pattern", args: []string{"open_write", "/proc/sys/kernel/core_pattern"},
			control: onlyRoot,
		},
		{
			class: "procfs", name: "hotplug helper", args: []string{"open_write", "/proc/sys/kernel/modprobe"},
			control: usually,
		},
		{class: "procfs", name: "sysrq-trigger", args: []string{"open_write", "/proc/sysrq-trigger"}, control: usually},
		{class: "procfs", name: "kernel symbols", args: []string{"has_content", "/proc/kallsyms"}, control: usually},
		{class: "procfs", name: "kernel command line", args: []string{"has_content", "/proc/cmdline"}},
		{class: "procfs", name: "users of keys", args: []string{"has_content", "/proc/key-users"}, control: usually},
		{class: "procfs", name: "own program through /proc/self/exe", args: []string{"chmod_self"}},
		{class: "sysfs", name: "sysfs", args: []string{"list", "/sys/kernel"}},
		{class: "cgroup", name: "control groups", args: []string{"list", "/sys/fs/cgroup"}},
		{
			class: "cgroup", name: "limits of the own control group",
			args: []string{"create", "/sys/fs/cgroup/conclave-probe"}, control: nobody,
		},
		{class: "processes", name: "signal to the parent", args: []string{"kill", parent}},
		{class: "processes", name: "ptrace of the parent", args: []string{"ptrace_traceme"}},
		{class: "processes", name: "ptrace of a child", args: []string{"ptrace_attach"}, control: usually},
		{class: "processes", name: "process_vm_readv", args: []string{"vm_read"}},
		{class: "processes", name: "process_vm_writev", args: []string{"vm_write"}},
		{class: "processes", name: "pidfd_getfd", args: []string{"pidfd_getfd"}},
		{class: "processes", name: "kcmp", args: []string{"kcmp"}, control: usually},
		{class: "processes", name: "priority", args: []string{"nice"}, control: onlyRoot},
		{class: "privileges", name: "setuid", args: []string{"setuid"}, control: onlyRoot},
		{class: "privileges", name: "setgid", args: []string{"setgid"}, control: onlyRoot},
		{
			class: "privileges", name: "trick: setuid bit by chmod", args: []string{"set_id", "chmod"},
			control: everybody,
		},
		{
			class: "privileges", name: "trick: setuid bit by fchmod", args: []string{"set_id", "fchmod"},
			control: everybody,
		},
		{
			class: "privileges", name: "trick: setuid bit by fchmodat", args: []string{"set_id", "fchmodat"},
			control: everybody,
		},
		{
			class: "privileges", name: "trick: setuid bit by fchmodat2", args: []string{"set_id", "fchmodat2"},
			control: everybody,
		},
		{
			class: "privileges", name: "trick: setuid bit by mknod", args: []string{"set_id", "mknod"},
			control: everybody,
		},
		{
			class: "privileges", name: "trick: setuid bit by mknodat", args: []string{"set_id", "mknodat"},
			control: everybody,
		},
		{
			class: "privileges", name: "trick: setuid bit by creat", args: []string{"set_id", "creat"},
			control: everybody,
		},
		{class: "privileges", name: "trick: setuid bit by open", args: []string{"set_id", "open"}, control: everybody},
		{
			class: "privileges", name: "trick: setuid bit by old_open", args: []string{"set_id", "old_open"},
			control: everybody,
		},
		{
			class: "privileges", name: "trick: setuid bit by openat2", args: []string{"set_id", "openat2"},
			control: everybody,
		},
		{
			class: "privileges", name: "trick: setuid bit by tmpfile", args: []string{"set_id", "tmpfile"},
			control: usually,
		},
		{class: "privileges", name: "setuid program", args: []string{"setuid_program", h.setuid}, control: onlyRoot},
		{class: "privileges", name: "capability in the bounding set", args: []string{"bounding_set"}, control: usually},
		{class: "namespaces", name: "unshare a user namespace", args: []string{"unshare_user"}},
		{class: "namespaces", name: "unshare user, network and mounts", args: []string{"unshare_user_net"}},
		{class: "namespaces", name: "clone into a user namespace", args: []string{"clone_user"}},
		{class: "namespaces", name: "trick: clone flags with high bits", args: []string{"clone_high_bits"}},
		{class: "namespaces", name: "trick: clone3, whose flags a filter cannot read", args: []string{"clone3_user"}},
		{class: "namespaces", name: "setns", args: []string{"setns"}, control: onlyRoot},
		{class: "namespaces", name: "name of the machine", args: []string{"hostname", h.name}},
		{class: "namespaces", name: "sethostname", args: []string{"sethostname"}, control: onlyRoot},
		{class: "mounts", name: "mount", args: []string{"mount"}},
		{class: "mounts", name: "umount", args: []string{"umount"}},
		{class: "mounts", name: "pivot_root", args: []string{"pivot_root"}, control: onlyRoot},
		{class: "mounts", name: "chroot", args: []string{"chroot"}},
		{class: "mounts", name: "fsopen", args: []string{"fsopen"}, control: onlyRoot},
		{class: "mounts", name: "open_tree", args: []string{"open_tree"}},
		{class: "mounts", name: "move_mount", args: []string{"move_mount"}, control: onlyRoot},
		{class: "kernel", name: "io_uring_setup", args: []string{"io_uring_setup"}, control: usually},
		{class: "kernel", name: "io_uring_enter", args: []string{"io_uring_enter"}, control: usually},
		{class: "kernel", name: "io_uring_register", args: []string{"io_uring_register"}, control: usually},
		{class: "kernel", name: "bpf", args: []string{"bpf"}, control: usually},
		{class: "kernel", name: "perf_event_open", args: []string{"perf"}, control: usually},
		{class: "kernel", name: "userfaultfd", args: []string{"userfaultfd"}, control: usually},
		{class: "kernel", name: "kexec_load", args: []string{"kexec"}, control: onlyRoot},
		{class: "kernel", name: "load a module", args: []string{"init_module"}, control: onlyRoot},
		{class: "kernel", name: "remove a module", args: []string{"delete_module"}, control: onlyRoot},
		{class: "kernel", name: "reboot", args: []string{"reboot"}, control: onlyRoot},
		{class: "kernel", name: "set the clock", args: []string{"settime"}, control: usually},
		{class: "kernel", name: "swapon", args: []string{"swapon"}, control: onlyRoot},
		{class: "kernel", name: "kernel log by syslog", args: []string{"syslog"}, control: usually},
		{class: "kernel", name: "fanotify", args: []string{"fanotify"}, control: onlyRoot},
		{class: "kernel", name: "vmsplice", args: []string{"vmsplice"}},
		{class: "kernel", name: "personality without address randomization", args: []string{"personality"}},
		{class: "kernel", name: "trick: 32-bit system call", args: []string{"int80"}, control: usually},
		{class: "kernel", name: "trick: x32 system call", args: []string{"x32"}, control: usually},
		{class: "kernel", name: "modify_ldt", args: []string{"modify_ldt"}, control: usually},
		{class: "kernel", name: "iopl", args: []string{"iopl"}, control: usually},
		{class: "keyring", name: "session keyring", args: []string{"keyctl"}},
		{class: "keyring", name: "add a key", args: []string{"add_key"}},
		{class: "keyring", name: "request a key", args: []string{"request_key"}},
		{class: "network", name: "NATS port", args: []string{"tcp", "127.0.0.1", h.nats}},
		{class: "network", name: "another loopback port", args: []string{"tcp", "127.0.0.2", h.other}},
		{class: "network", name: "UDP on loopback", args: []string{"udp", "127.0.0.1", h.udp}},
		{class: "network", name: "raw socket", args: []string{"raw_socket"}, control: onlyRoot},
		{class: "network", name: "packet socket", args: []string{"packet_socket"}, control: onlyRoot},
		{class: "network", name: "netlink", args: []string{"netlink"}},
		{
			class: "network", name: "trick: AF_VSOCK, which is in no namespace", args: []string{"vsock"},
			control: usually,
		},
		{class: "network", name: "AF_ALG", args: []string{"alg"}, control: usually},
		{class: "sockets", name: "Unix socket of Conclave", args: []string{"unix", h.outside("conclave/http.sock")}},
		{class: "sockets", name: "D-Bus session bus", args: []string{"unix", h.outside("bus")}},
		{
			class: "sockets", name: "D-Bus system bus", args: []string{"unix", "/run/dbus/system_bus_socket"},
			control: usually,
		},
		{class: "sockets", name: "abstract socket", args: []string{"abstract", h.abstract}},
		{
			class: "bombs", name: "processes", args: []string{"fork_bomb", "40"}, limits: Limits{Processes: 32},
			control: nobody,
		},
		{
			class: "bombs", name: "memory of one process", args: []string{"memory_bomb", "200"},
			limits: Limits{Memory: 128 << 20}, control: nobody,
		},
		{
			class: "bombs", name: "memory of many processes", args: []string{"many_memory_bombs", "6", "32"},
			limits: Limits{TotalMemory: 96 << 20}, escaped: stoppedBy(StopMemory), control: nobody,
		},
		{class: "bombs", name: "memory outside of processes: memfd", args: []string{"memfd"}},
		{class: "bombs", name: "memory outside of processes: shmget", args: []string{"shmget"}},
		{
			class: "bombs", name: "memory outside of processes: /tmp", args: []string{"fill", "/tmp", "10", "1"},
			limits: small, control: nobody,
		},
		{
			class: "bombs", name: "memory outside of processes: /dev/shm", args: []string{
				"fill", "/dev/shm", "10",
				"1",
			},
			limits: small, control: nobody,
		},
		{class: "bombs", name: "file size", args: []string{"fill", ".", "1", "3"}, limits: small, control: nobody},
		{
			class: "bombs", name: "disk", args: []string{"fill", ".", "10", "1"}, limits: small,
			escaped: stoppedBy(StopDisk), control: nobody,
		},
		{
			class: "bombs", name: "trick: disk of deleted files", args: []string{"fill_deleted", ".", "20", "1"},
			limits: small, escaped: stoppedBy(StopDisk), control: nobody,
		},
		{
			class: "bombs", name: "trick: disk in a folder that cannot be listed", args: []string{
				"fill_hidden", "8",
				"1",
			},
			limits: small, escaped: stoppedBy(StopDisk), control: nobody,
		},
		{
			class: "bombs", name: "trick: disk allocated and not written", args: []string{"allocate", "1"},
			limits:  small,
			control: usually,
		},
		{
			class: "bombs", name: "trick: nested folders", args: []string{"nest", "200"}, escaped: stoppedBy(StopDisk),
			control: nobody,
		},
		{
			class: "bombs", name: "files", args: []string{"many_files", "300"}, limits: Limits{Entries: 100},
			escaped: stoppedBy(StopDisk), control: nobody,
		},
		{class: "bombs", name: "open files", args: []string{"open_bomb", "100"}, limits: Limits{OpenFiles: 64}},
		{
			class: "bombs", name: "output", args: []string{"output_bomb"}, limits: Limits{Output: 64 << 10},
			escaped: stoppedBy(StopOutput), control: nobody,
		},
	}
}

// TestEscapeProbes runs every probe in the sandbox, where it must be denied, and outside of it, where it must succeed.
// As root it runs the table again as an ordinary user.
func TestEscapeProbes(t *testing.T) {
	requireSandbox(t)
	h := newHost(t)
	t.Setenv("CONCLAVE_SECRET", canary)
	var tried, escaped atomic.Int32
	t.Run("probes", func(t *testing.T) {
		for _, p := range probes(h) {
			t.Run(p.class+"/"+p.name, func(t *testing.T) {
				if p.before == nil { // others could close the descriptor that it leaks
					t.Parallel()
				}
				tried.Add(1)
				h.checkControl(t, p)
				if h.escapes(t, p) {
					escaped.Add(1)
					t.Errorf("%v succeeded in the sandbox", p.args)
				}
			})
		}
	})
	t.Logf("%d escape probes, %d succeeded", tried.Load(), escaped.Load())
	if tried.Load() < 60 {
		t.Errorf("only %d probes", tried.Load())
	}
	runAsOrdinaryUser(t, h.program, " escape probes, 0 succeeded")
}

// host is what the probes try to reach: files, sockets and ports of the machine.
type host struct {
	base, program, setuid, name, nats, other, udp, abstract string
}

func (h host) outside(name string) string { return filepath.Join(h.base, "outside", name) }

// newHost makes the files and starts the listeners.
func newHost(t *testing.T) host {
	base := newWorkFolder(t)
	h := host{base: base, program: buildProbes(t), abstract: fmt.Sprintf("conclave-probe-%d", os.Getpid())}
	var err error
	if h.name, err = os.Hostname(); err != nil {
		t.Fatal(err)
	}
	h.setuid = filepath.Join(base, "programs", "setuid")
	for _, dir := range []string{"outside/conclave/keys", "programs"} {
		if err := os.MkdirAll(filepath.Join(base, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program, err := os.ReadFile(h.program)
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string][]byte{
		h.outside("canary"):                  []byte(canary),
		h.outside("conclave/keys/broker.nk"): []byte(canary), h.setuid: program,
	} {
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(h.setuid, 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	listen := func(network, at string) string {
		l, err := net.Listen(network, at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		_, port, _ := net.SplitHostPort(l.Addr().String())
		return port
	}
	h.nats, h.other = listen("tcp4", "127.0.0.1:0"), listen("tcp4", "127.0.0.2:0")
	for _, at := range []string{h.outside("conclave/http.sock"), h.outside("bus"), "@" + h.abstract} {
		listen("unix", at)
	}
	echo, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { echo.Close() })
	go func() {
		b := make([]byte, 16)
		for {
			n, from, err := echo.ReadFrom(b)
			if err != nil {
				return
			}
			echo.WriteTo(b[:n], from)
		}
	}()
	_, h.udp, _ = net.SplitHostPort(echo.LocalAddr().String())
	return h
}

// escapes runs a probe in the sandbox and reports whether it succeeded.
func (h host) escapes(t *testing.T, p probe) bool {
	t.Helper()
	if p.before != nil {
		p.before(t)
	}
	closed := []string{h.outside("conclave")}
	if p.closed != "" {
		closed = append(closed, p.closed)
	}
	r, err := Run(t.Context(), Spec{
		Args: append([]string{h.program}, p.args...), Dir: h.newFolder(t), Limits: mergeLimits(p.limits),
		ReadOnly: []string{h.program, filepath.Dir(h.setuid)}, Closed: closed,
	})
	if err != nil {
		t.Fatal(err)
	}
	killed := r.ExitCode == 128+int(syscall.SIGSYS) || r.ExitCode == 128+int(syscall.SIGKILL)
	if r.Stopped == StopNone && !killed && r.ExitCode != probeEscaped && r.ExitCode != probeDenied &&
		r.ExitCode != probeUnknown {
		t.Fatalf("the probe is broken: exit code %d: %s", r.ExitCode, r.Output)
	}
	if r.Stopped == StopTime {
		t.Fatal("the probe reached the time limit")
	}
	if p.escaped != nil {
		return p.escaped(r)
	}
	return r.ExitCode == probeEscaped && r.Stopped == StopNone
}

// checkControl runs a probe outside, where it must succeed.
func (h host) checkControl(t *testing.T, p probe) {
	t.Helper()
	if p.control == nobody || p.control == onlyRoot && os.Geteuid() != 0 {
		return
	}
	c := exec.CommandContext(t.Context(), h.program, p.args...)
	c.Dir = h.newFolder(t)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if p.extra != nil {
		c.ExtraFiles = []*os.File{p.extra()}
	}
	out, err := c.CombinedOutput()
	switch exit := (*exec.ExitError)(nil); {
	case err == nil:
	case errors.As(err, &exit) && exit.ExitCode() == probeUnknown:
		t.Log("no control: this kernel does not know the call")
	case p.control == usually:
		t.Logf("no control: this machine denies it too: %v %s", err, out)
	default:
		t.Errorf("the probe does not succeed outside of the sandbox: %v %s", err, out)
	}
}

// newFolder returns a new folder beside outside, so that relative paths are the same for every probe.
func (h host) newFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(h.base, "work")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// mergeLimits returns the default limits with those of l that are set, and a time limit that no probe reaches.
func mergeLimits(l Limits) Limits {
	out := DefaultLimits
	out.Time = time.Minute
	for _, one := range []struct{ to, from *int64 }{
		{&out.Memory, &l.Memory},
		{&out.TotalMemory, &l.TotalMemory},
		{&out.FileSize, &l.FileSize},
		{&out.Disk, &l.Disk},
	} {
		if *one.from != 0 {
			*one.to = *one.from
		}
	}
	for _, one := range []struct{ to, from *int }{
		{&out.Processes, &l.Processes},
		{&out.OpenFiles, &l.OpenFiles},
		{&out.Entries, &l.Entries},
		{&out.Output, &l.Output},
	} {
		if *one.from != 0 {
			*one.to = *one.from
		}
	}
	return out
}

// leakDescriptor opens a file in a way that children inherit it.
func leakDescriptor(t *testing.T) {
	fd, err := syscall.Open("/etc/passwd", syscall.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
}

//go:embed testdata/probes.c
var probesSource []byte

// probesVariable names the compiled probes for the run as an ordinary user.
const probesVariable = "CONCLAVE_TEST_PROBES"

// buildProbes compiles the probes.
func buildProbes(t *testing.T) string {
	t.Helper()
	if built := os.Getenv(probesVariable); built != "" {
		source, err := os.ReadFile(built)
		if err != nil {
			t.Fatal(err)
		}
		program := filepath.Join(newWorkFolder(t), "probes") // the user's own, as the control chmod_self needs it
		if err := os.WriteFile(program, source, 0o755); err != nil {
			t.Fatal(err)
		}
		return program
	}
	compiler := programtest.Require(t, "apt-get install gcc", "gcc")
	program := filepath.Join(newWorkFolder(t), "probes")
	c := exec.CommandContext(t.Context(), compiler, "-O1", "-x", "c", "-o", program, "-")
	c.Stdin = bytes.NewReader(probesSource)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("compiling the probes: %v\n%s", err, out)
	}
	return program
}

// runAsOrdinaryUser runs this test again as an unprivileged user, when it runs as root. The output must contain want.
func runAsOrdinaryUser(t *testing.T, program, want string) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	t.Run("as an ordinary user", func(t *testing.T) {
		own, err := os.ReadFile("/proc/self/exe")
		if err != nil {
			t.Fatal(err)
		}
		base := newWorkFolder(t)
		test, tmp := filepath.Join(base, "sandbox.test"), filepath.Join(base, "tmp")
		if err := errors.Join(os.WriteFile(test, own, 0o755), os.Mkdir(tmp, 0o700),
			os.Chown(tmp, nobodyUser, nobodyUser)); err != nil {
			t.Fatal(err)
		}
		name, _, _ := strings.Cut(t.Name(), "/")
		c := exec.CommandContext(t.Context(), test, "-test.run=^"+name+"$", "-test.v")
		c.Dir = tmp
		c.Env = []string{
			"PATH=/usr/bin:/bin", "TMPDIR=" + tmp, "CI=" + os.Getenv("CI"), probesVariable + "=" + program,
			"CONCLAVE_SECRET=" + canary,
		}
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobodyUser, Gid: nobodyUser}}
		out, err := c.CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte(want)) || !bytes.Contains(out, []byte("\n--- PASS: "+name)) {
			t.Fatalf("%v\n%s", err, out)
		}
	})
}
