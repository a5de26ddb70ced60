//go:build !linux

package term

import "os"

// hideControlEcho does nothing here: the marks of a paste are echoed.
func hideControlEcho(*os.File) (restore func()) { return func() {} }

// discardPending does nothing here: a paste that contains a Ctrl-D is not recognized.
func discardPending(*os.File) bool { return false }
