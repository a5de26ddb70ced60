package term

import (
	"os"

	"golang.org/x/sys/unix"
)

// hideControlEcho has a terminal echo control characters as they are and not as ^X, so that it ignores the marks of a
// paste. The returned function restores the former mode. Failures are ignored: only the echo would differ.
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

// flushInput discards what a terminal has received and nobody has read. Failures are ignored: [TooFast] still holds.
func flushInput(f *os.File) { _ = unix.IoctlSetInt(int(f.Fd()), unix.TCFLSH, unix.TCIFLUSH) }

// pendingWait is how long the rest of a paste may take to arrive, in milliseconds.
const pendingWait = 50

// discardPending reports whether a terminal has input that was not read, also an unfinished line, and discards it.
// After the end of the input this is the rest of a paste that contains a Ctrl-D. In doubt it is true: what follows
// counts as pasted.
func discardPending(f *os.File) bool {
	fd := int(f.Fd())
	mode, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return true
	}
	former := *mode
	mode.Lflag &^= unix.ICANON // an unfinished line is readable only so
	if unix.IoctlSetTermios(fd, unix.TCSETS, mode) != nil {
		return true
	}
	defer func() { _ = unix.IoctlSetTermios(fd, unix.TCSETSF, &former) }() // F discards what is pending
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, pendingWait)
	return err != nil || n > 0
}
