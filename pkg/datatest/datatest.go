// Package datatest gives a test a folder for the data of a system, and files that are made once for all tests.
package datatest

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
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

// MakeOnce returns a function with the content of the file that create makes, once, at the path that it is given:
// copying an empty database is quicker than making one for each test.
func MakeOnce(create func(path string) error) func() ([]byte, error) {
	return sync.OnceValues(func() ([]byte, error) {
		dir, err := os.MkdirTemp("", "conclave-test-")
		if err != nil {
			return nil, err
		}
		path := filepath.Join(dir, "file")
		err = create(path)
		content, rerr := os.ReadFile(path)
		return content, errors.Join(err, rerr, os.RemoveAll(dir))
	})
}
