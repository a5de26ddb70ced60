//go:build linux && (amd64 || arm64)

package sandbox

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// lastSyscall is the newest system call that programs may use (mseal, Linux 6.10). Newer ones do not exist for them, so
// that a newer kernel does not open what nobody has judged.
const lastSyscall = 462

// namespaceFlags are the flags of clone that create a namespace. CLONE_NEWTIME is not a flag of clone: its bit is part
// of the exit signal.
const namespaceFlags = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// missingCalls fail with ENOSYS: programs know how to do without them. The flags of clone3 are in memory that a filter
// cannot read, and neither can it read the mode in openat2. The memory behind memfd_create and shmget is in no process,
// where no limit counts it.
var missingCalls = []uint32{
	unix.SYS_CLONE3, unix.SYS_OPENAT2, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_MEMFD_CREATE,
	unix.SYS_MEMFD_SECRET, unix.SYS_SHMGET, unix.SYS_MSGGET, unix.SYS_SEMGET, unix.SYS_MQ_OPEN,
}

// deniedCalls fail with EPERM, whatever their arguments.
var deniedCalls = []uint32{
	// other processes
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PROCESS_MADVISE,
	unix.SYS_PROCESS_MRELEASE,
	unix.SYS_PIDFD_GETFD, unix.SYS_KCMP,
	// namespaces and mounts
	unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT,
	unix.SYS_MOVE_MOUNT,
	unix.SYS_OPEN_TREE, unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR,
	unix.SYS_STATMOUNT, unix.SYS_LISTMOUNT, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_NAME_TO_HANDLE_AT,
	// the keyring
	unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
	// parts of the kernel with a history of escapes
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_FANOTIFY_INIT, unix.SYS_FANOTIFY_MARK,
	unix.SYS_VMSPLICE,
	unix.SYS_MOVE_PAGES, unix.SYS_MIGRATE_PAGES, unix.SYS_MBIND, unix.SYS_SET_MEMPOLICY,
	unix.SYS_SET_MEMPOLICY_HOME_NODE,
	unix.SYS_REMAP_FILE_PAGES, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_NFSSERVCTL, unix.SYS_LSM_SET_SELF_ATTR,
	// the machine
	unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
	unix.SYS_REBOOT,
	unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_SYSLOG, unix.SYS_VHANGUP, unix.SYS_SETHOSTNAME,
	unix.SYS_SETDOMAINNAME,
	unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX,
}

// modeCall is a call that sets the permissions of a file: the number of its argument mode. flags is that of the open
// flags, 0 for a call without them; only flags that create a file give the mode a meaning.
type modeCall struct{ call, mode, flags uint32 }

// modeCalls are denied with setuid or setgid bits in their mode, so that no program leaves a file behind that runs as
// another user.
var modeCalls = []modeCall{
	{unix.SYS_FCHMOD, 1, 0},
	{unix.SYS_FCHMODAT, 2, 0},
	{unix.SYS_FCHMODAT2, 2, 0},
	{unix.SYS_MKNODAT, 2, 0},
	{unix.SYS_OPENAT, 3, 2},
}

// Bits in the arguments of modeCalls.
const (
	setidBits   = unix.S_ISUID | unix.S_ISGID
	createFlags = unix.O_CREAT | unix.O_TMPFILE&^unix.O_DIRECTORY
)

// Offsets in struct seccomp_data. Arguments are 64 bits wide, and the arguments that the filter reads are 32 bits wide
// in the kernel: it ignores the upper half, and so does the filter.
const (
	offsetCall = 0
	offsetArch = 4
	offsetArgs = 16
)

// newFilter returns the seccomp filter as the kernel reads it. It kills a process that makes a call of another
// architecture.
func newFilter() ([]byte, error) {
	fail := func(errno uint32) bpf.Instruction { return bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | errno} }
	allow := bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: nativeArch, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS},
		bpf.LoadAbsolute{Off: offsetCall, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: lastSyscall, SkipFalse: 1}, // also the calls of the x32 architecture
		fail(uint32(unix.ENOSYS)),
	}
	// on adds the instructions for one call; they must end in a verdict.
	on := func(call uint32, then ...bpf.Instruction) {
		program = append(program, bpf.JumpIf{Cond: bpf.JumpEqual, Val: call, SkipFalse: uint8(len(then))})
		program = append(program, then...)
	}
	arg := func(n uint32) bpf.Instruction { return bpf.LoadAbsolute{Off: offsetArgs + 8*n, Size: 4} }
	for _, call := range missingCalls {
		on(call, fail(uint32(unix.ENOSYS)))
	}
	for _, call := range append(deniedCalls, deniedHere...) {
		on(call, fail(uint32(unix.EPERM)))
	}
	// the kernel does not count it as written; programs write zeros instead
	on(unix.SYS_FALLOCATE, fail(uint32(unix.EOPNOTSUPP)))
	for _, m := range append(modeCalls, modeCallsHere...) {
		check := []bpf.Instruction{
			arg(m.mode),
			bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: setidBits, SkipFalse: 1},
			fail(uint32(unix.EPERM)), allow,
		}
		if m.flags != 0 {
			check = append([]bpf.Instruction{arg(m.flags), bpf.JumpIf{
				Cond: bpf.JumpBitsSet, Val: createFlags,
				SkipTrue: 1,
			}, allow}, check...)
		}
		on(m.call, check...)
	}
	on(unix.SYS_CLONE,
		arg(0), bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: namespaceFlags, SkipFalse: 1}, fail(uint32(unix.EPERM)), allow)
	on(unix.SYS_IOCTL, // input for a terminal, which its shell would run
		arg(1), bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.TIOCSTI, SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: tioclinux, SkipFalse: 1}, fail(uint32(unix.EPERM)), allow)
	on(unix.SYS_PERSONALITY, // 0xffffffff asks for the current one
		arg(0), bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0xffffffff, SkipTrue: 1}, fail(uint32(unix.EPERM)), allow)
	// Sockets of the machine itself. The network namespace is empty; families such as AF_VSOCK are not part of it.
	families := []bpf.Instruction{
		arg(0),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_UNIX, SkipTrue: 3},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET6, SkipTrue: 1},
		fail(uint32(unix.EAFNOSUPPORT)),
		arg(1),
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0xf},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SOCK_RAW, SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SOCK_PACKET, SkipFalse: 1},
		fail(uint32(unix.EPERM)), allow,
	}
	on(unix.SYS_SOCKET, families...)
	on(unix.SYS_SOCKETPAIR, families...)
	program = append(program, allow)

	raw, err := bpf.Assemble(program)
	if err != nil {
		return nil, fmt.Errorf("assembling the seccomp filter: %w", err)
	}
	var out []byte
	for _, r := range raw {
		out = binary.NativeEndian.AppendUint16(out, r.Op)
		out = append(out, r.Jt, r.Jf)
		out = binary.NativeEndian.AppendUint32(out, r.K)
	}
	return out, nil
}

// tioclinux is TIOCLINUX: it pastes the selection of a console.
const tioclinux = 0x541c
