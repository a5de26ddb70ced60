//go:build linux

package sandbox

import "golang.org/x/sys/unix"

// nativeArch is the architecture whose system calls the filter allows.
const nativeArch = unix.AUDIT_ARCH_X86_64

// deniedHere are denied calls that only this architecture has.
var deniedHere = []uint32{
	unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_MODIFY_LDT, unix.SYS_USELIB, unix.SYS_USTAT, unix.SYS_SYSFS,
	unix.SYS__SYSCTL,
	unix.SYS_LOOKUP_DCOOKIE, unix.SYS_CREATE_MODULE, unix.SYS_GET_KERNEL_SYMS, unix.SYS_QUERY_MODULE,
}

// modeCallsHere are modeCalls that only this architecture has.
var modeCallsHere = []modeCall{
	{unix.SYS_CHMOD, 1, 0},
	{unix.SYS_MKNOD, 1, 0},
	{unix.SYS_CREAT, 1, 0},
	{unix.SYS_OPEN, 2, 1},
}
