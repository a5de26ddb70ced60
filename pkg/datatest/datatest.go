// Package datatest gives a test a folder for the data of a system.
package datatest

import (
	"os"
	"syscall"
	"testing"
)

// Folder of files in memory, and the bytes that must be free there before a test uses it.
const (
	memoryFolder = "/dev/shm"
	memoryNeeded = 2 << 30
)

// Dir returns a folder for keys, streams and databases that is removed with the test. It is in memory where there
// is room: a system creates some 500 files, and on a virtual disk these cost more processor time than most tests. What
// a tool or a program in the sandbox opens must be in [testing.TB.TempDir]: they may not open files in /dev.
func Dir(t testing.TB) string {
	t.Helper()
	var space syscall.Statfs_t
	if err := syscall.Statfs(memoryFolder, &space); err != nil || space.Bavail*uint64(space.Bsize) < memoryNeeded {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp(memoryFolder, "conclave-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
