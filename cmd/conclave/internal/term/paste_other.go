//go:build !linux

package term

import "os"

// hideControlEcho does nothing here: the marks of a paste are echoed.
func hideControlEcho(*os.File) (restore func()) { return func() {} }

// flushInput does nothing here: [TooFast] still holds.
func flushInput(*os.File) {}

// discardPending is true: whether a pasted Ctrl-D ended the input is unknown here, so that everything behind the first
// mark counts as pasted.
func discardPending(*os.File) bool { return true }
