//go:build unix

package policy

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"conclave/pkg/file"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Errors of [ReplaceInside] and [MakeWorkFolder].
var (
	// ErrSymlink means that the path of a file to write is a symlink.
	ErrSymlink = errors.New("it is a symbolic link; write to the file that it points to")
	// ErrForeign means that a file belongs to another user, or that others can change it.
	ErrForeign = file.ErrForeign
	// ErrWorkspace is [ErrForeign] of the workspace.
	ErrWorkspace = fmt.Errorf("the workspace is rejected: %w; set workspace in tools.yaml, and paths in "+
		"manifest.yaml, to another folder", ErrForeign)
)

// lockTimeout is how long a write waits for others in the same folder. One takes milliseconds, but nothing orders those
// that wait: a hundred at a time by two processes made one of them wait for more than ten seconds.
const lockTimeout = time.Minute

// ReplaceInside writes a regular file in one of the allowed folders atomically: a reader sees the old content or the
// new one, also after a crash. It writes a temporary file beside it, syncs it and renames it. It keeps permissions and
// owner of an existing file, makes missing folders, and never writes through a symlink or to a file with a hard link in
// a closed folder. Folders and races are treated as in [OpenInside]. created reports that the file is new.
//
// makeContent is called while the folder is locked, so that it may read the file: writes of this and of other processes
// follow one another. The error wraps [file.ErrLocked] when the lock was not free within lockTimeout.
func ReplaceInside(path string, makeContent func() ([]byte, error), allowed, closed []string) (created bool,
	err error,
) {
	if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return false, fmt.Errorf("writing %s: %w", text.OneLine(path, 60), ErrSymlink)
	}
	f, err := openContained(path, allowed, closed, true, func(dir int, name string, ids []fileID) (int, error) {
		folder, err := openFolderAt(dir, ".", ids)
		if err != nil {
			return -1, err
		}
		if created, err = replaceLocked(dir, folder, name, makeContent, closed); err != nil {
			unix.Close(folder)
			return -1, err
		}
		return folder, nil
	})
	if err != nil {
		return false, fmt.Errorf("writing %s: %w", text.OneLine(path, 60), err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil { // the folder: otherwise a crash can undo the rename
		return created, fmt.Errorf("syncing the folder of %s: %w", text.OneLine(path, 60), stripPath(err))
	}
	return created, nil
}

// replaceLocked replaces the file name in the folder that is open as the descriptors dir and folder, under the lock of
// that folder. The caller syncs the folder without it: a later write reads this one and is synced with it.
func replaceLocked(dir, folder int, name string, makeContent func() ([]byte, error), closed []string) (created bool,
	err error,
) {
	if err := file.LockOpenFolder(folder, lockTimeout); err != nil {
		return false, err
	}
	defer unix.Flock(folder, unix.LOCK_UN)
	old, err := statReplaced(dir, name, closed)
	if err != nil {
		return false, err
	}
	data, err := makeContent()
	if err != nil {
		return false, err
	}
	return old == nil, replaceAt(dir, name, data, old)
}

// statReplaced returns the file that a write would replace, nil when there is none. It denies what is not a regular
// file, and a file with a hard link in a closed folder.
func statReplaced(dir int, name string, closed []string) (*unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return nil, ErrSwapped
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, ErrNotRegular
	case st.Nlink > 1 && hasLinkIn(closed, &st):
		return nil, ErrClosed
	}
	return &st, nil
}

// replaceAt writes data to a temporary file in the folder descriptor dir, with the permissions and owner of old, and
// renames it to name. A rename replaces a symlink that appears meanwhile and does not follow it.
func replaceAt(dir int, name string, data []byte, old *unix.Stat_t) error {
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return err
	}
	temp := ".conclave-" + hex.EncodeToString(random[:])
	mode := os.FileMode(0o644) // less the umask
	if old != nil {
		mode = 0o600
	}
	fd, err := openat(dir, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, mode)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), temp)
	_, err = f.Write(data)
	if err == nil && old != nil {
		err = keepOwner(fd, old)
	}
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = unix.Renameat(dir, temp, dir, name)
	}
	if err != nil {
		_ = unix.Unlinkat(dir, temp, 0) // the first error matters
		return stripPath(err)
	}
	return nil
}

// keepOwner gives the file fd the owner and the permissions of old, without setuid, setgid and sticky bits.
func keepOwner(fd int, old *unix.Stat_t) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Uid != old.Uid || st.Gid != old.Gid {
		if err := unix.Fchown(fd, int(old.Uid), int(old.Gid)); err != nil {
			return ErrForeign
		}
	}
	return unix.Fchmod(fd, uint32(old.Mode&0o777))
}

// MakeWorkFolder creates the working folder of a call when it does not exist, and closes it and the workspace above it
// to other users. The workspace must pass [file.MakeFolder]: in /tmp another user could have made it. The owner of the
// working folder itself is not checked, because only this user can make a folder in the workspace, and as root it is
// lent to the user of programs. Without a working folder it returns [ErrOutside].
func MakeWorkFolder(r *subjects.FolderRules) error {
	if r == nil || r.Work == "" {
		return fmt.Errorf("opening the working folder: %w", ErrOutside)
	}
	workspace := filepath.Dir(r.Work)
	f, err := openContained(filepath.Join(r.Work, "x"), append([]string{workspace}, r.Allowed...), r.Closed, true,
		func(dir int, _ string, ids []fileID) (int, error) {
			return openFolderAt(dir, ".", ids)
		})
	if err != nil {
		return fmt.Errorf("opening the working folder %s: %w", text.OneLine(r.Work, 60), err)
	}
	defer f.Close()
	if err := file.MakeFolder(workspace); errors.Is(err, ErrForeign) {
		return fmt.Errorf("using the folder %s: %w", text.OneLine(workspace, 60), ErrWorkspace)
	} else if err != nil {
		return fmt.Errorf("closing the folder %s to other users: %w", text.OneLine(workspace, 60), err)
	}
	if err := f.Chmod(0o700); err != nil {
		return fmt.Errorf("closing the folder %s to other users: %w", text.OneLine(r.Work, 60), err)
	}
	return nil
}
