//go:build unix && !linux

package policy

import "golang.org/x/sys/unix"

// oPath opens a folder for use as the base of openat. Without O_PATH this needs permission to list the folder.
const oPath = unix.O_RDONLY

// denyKernelFS permits every file: kernel file systems are checked on Linux only.
func denyKernelFS(int) error { return nil }
