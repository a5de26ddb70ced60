//go:build unix

package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// ErrForeign means that a file or folder belongs to another user, or that others can change it.
var ErrForeign = errors.New("it belongs to another user or may be changed by others")

// MakeFolder makes the folder at path, an absolute one, and those above it that are missing, and closes it to other
// users: mode 0700, as root 0711, because a folder in it may be lent to the user of programs. It rejects with
// [ErrForeign] a folder that another user made or can change, also by replacing it or one above it, and one that is
// reached through a symlink.
func MakeFolder(path string) error {
	mode := fs.FileMode(0o700)
	if os.Geteuid() == 0 {
		mode = 0o711
	}
	if err := checkAbove(filepath.Dir(path), mode); err != nil {
		return err
	}
	if err := makeWithMode(path, mode); err != nil {
		return err
	}
	f, err := os.OpenFile(path, syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("using the folder %s: %w", path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if owner(info) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("using the folder %s: %w", path, ErrForeign)
	}
	return f.Chmod(mode)
}

// ErrLocked means that another process, or another goroutine, held the lock of a folder for as long as the caller
// waited.
var ErrLocked = errors.New("another process is changing it; try again")

// LockFolder waits for the exclusive lock of a folder, at most timeout: then the error wraps [ErrLocked]. Only callers
// of this function respect it, in this process and in others. The caller must call unlock.
func LockFolder(path string, timeout time.Duration) (unlock func() error, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := LockOpenFolder(int(f.Fd()), timeout); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f.Close, nil
}

// LockOpenFolder is [LockFolder] for a folder that is open as the descriptor fd. Closing it releases the lock.
func LockOpenFolder(fd int, timeout time.Duration) error {
	for deadline := time.Now().Add(timeout); ; time.Sleep(10 * time.Millisecond) { // nothing tells that a lock is free
		err := syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, syscall.EINTR) && !errors.Is(err, syscall.EWOULDBLOCK):
			return err
		case time.Now().After(deadline):
			return ErrLocked
		}
	}
}

// checkAbove makes the folder dir and those above it that are missing. It rejects one in which another user can replace
// the next: one that belongs neither to this user nor to the system, or that everybody may write to and that is not
// sticky, as /tmp is. As root it also rejects one that a group may write to; that of a user is often the user's own.
func checkAbove(dir string, mode fs.FileMode) error {
	if parent := filepath.Dir(dir); parent != dir {
		if err := checkAbove(parent, mode); err != nil {
			return err
		}
		if err := makeWithMode(dir, mode); err != nil {
			return err
		}
	}
	others := fs.FileMode(0o002)
	if os.Geteuid() == rootUser {
		others = 0o022
	}
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return err
	case info.Mode()&fs.ModeSymlink != 0:
		return fmt.Errorf("using the folder %s: it is a symlink; name the folder that it points to", dir)
	case !info.IsDir():
		return fmt.Errorf("using the folder %s: %w", dir, syscall.ENOTDIR)
	case info.Mode().Perm()&others != 0 && info.Mode()&fs.ModeSticky == 0, owner(info) != os.Geteuid() &&
		owner(info) != rootUser && !isUnmapped(owner(info)):
		return fmt.Errorf("using the folder %s: %w", dir, ErrForeign)
	}
	return nil
}

// Users that folders of the system belong to. In a user namespace without root they belong to a user that stands for
// all unmapped ones.
const (
	rootUser     = 0
	unmappedUser = 65534
)

// isUnmapped reports whether a user stands for those that this user namespace does not map. Outside of one it is a user
// like others.
func isUnmapped(user int) bool {
	mapped, err := os.ReadFile("/proc/self/uid_map")
	return user == unmappedUser && err == nil &&
		!slices.Equal(strings.Fields(string(mapped)), []string{"0", "0", "4294967295"})
}

// makeWithMode makes a folder with exactly this mode, whatever the umask; one that exists stays as it is.
func makeWithMode(dir string, mode fs.FileMode) error {
	err := os.Mkdir(dir, mode)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Chmod(dir, mode)
}

// owner returns the user that a file belongs to, -1 when it is not known.
func owner(info fs.FileInfo) int {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(s.Uid)
	}
	return -1
}
