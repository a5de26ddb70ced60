//go:build unix

package file_test

import (
	"errors"
	"testing"
	"time"

	"conclave/pkg/file"
)

// TestLockFolderEnds: a lock that another holds ends the wait with an error.
func TestLockFolderEnds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	unlock, err := file.LockFolder(dir, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.LockFolder(dir, time.Millisecond); !errors.Is(err, file.ErrLocked) {
		t.Errorf("while it is held: %v", err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	if unlock, err = file.LockFolder(dir, time.Minute); err != nil {
		t.Fatalf("after it was free: %v", err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
}
