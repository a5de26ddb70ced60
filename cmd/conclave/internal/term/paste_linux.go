package term

import (
	"os"

	"golang.org/x/sys/unix"
)

// hideControlEcho has a terminal echo control characters as they are and not as ^X, so that it ignores the marks of a paste.
// The returned function restores the former mode. Failures are ignored: only the echo would differ.
func hideControlEcho(f *os.File) (restore func()) {
	mode, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return func() {}
	}
	former := *mode
	mode.Lflag &^= unix.ECHOCTL
	_ = unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, mode)
	return func() { _ = unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, &former) }
}
