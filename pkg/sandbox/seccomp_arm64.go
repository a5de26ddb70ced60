//go:build linux

package sandbox

import "golang.org/x/sys/unix"

// nativeArch is the architecture whose system calls the filter allows.
const nativeArch = unix.AUDIT_ARCH_AARCH64

// deniedHere are denied calls that only this architecture has.
var deniedHere = []uint32{unix.SYS_LOOKUP_DCOOKIE}

// modeCallsHere are modeCalls that only this architecture has.
var modeCallsHere []modeCall
