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

// Replacement is a change of one file by [ReplaceInside]. Its functions are called while the folder of the file is
// locked, so that they may read the file: changes by this and by other processes follow one another.
type Replacement struct {
	// Make returns what the file shall hold.
	Make func() (FileContent, error)
	// Temp is the name beside the file under which the new content is written; "" = a random one.
	Temp string
	// Begin is called before the file changes, when the new content is on disk beside it as the file temp; "" for a
	// removal. After an error nothing changes. nil = nothing to do.
	Begin func(temp string) error
	// End is called after Begin: when the file has changed, or when it has not and temp still exists. nil = nothing to
	// do.
	End func(changed bool) error
}

// FileContent is what a file shall hold.
type FileContent struct {
	Data []byte
	Mode fs.FileMode // permission bits; 0 = as they are, those of a new file by the umask
	Gone bool        // the file shall be removed
}

// ReplaceInside writes or removes a regular file in one of the allowed folders atomically: a reader sees the old
// content or the new one, also after a crash. It writes a temporary file beside it, syncs it and renames it. It keeps
// the owner of an existing file, makes missing folders, and never writes through a symlink or to a file with a hard
// link in a closed folder. Folders and races are treated as in [OpenInside]. created reports that the file is new.
//
// The error wraps [file.ErrLocked] when the lock was not free within lockTimeout.
func ReplaceInside(path string, r Replacement, allowed, closed []string) (created bool, err error) {
	if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return false, fmt.Errorf("writing %s: %w", text.OneLine(path, 60), ErrSymlink)
	}
	f, err := openContained(path, allowed, closed, true, func(dir int, name string, ids []fileID) (int, error) {
		folder, err := openFolderAt(dir, ".", ids)
		if err != nil {
			return -1, err
		}
		if created, err = replaceLocked(dir, folder, name, r, closed); err != nil {
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
func replaceLocked(dir, folder int, name string, r Replacement, closed []string) (created bool, err error) {
	if err := file.LockOpenFolder(folder, lockTimeout); err != nil {
		return false, err
	}
	defer unix.Flock(folder, unix.LOCK_UN)
	old, err := statReplaced(dir, name, closed)
	if err != nil {
		return false, err
	}
	content, err := r.Make()
	if err != nil {
		return false, err
	}
	return old == nil, replaceAt(dir, name, content, old, r)
}

// RemoveInside removes a file that a crash left beside another one, as [Replacement].Begin named it, while their
// folder is locked, and reports whether there was one. keep is called first, under the lock: true removes nothing.
func RemoveInside(path string, keep func() bool, allowed []string) (found bool, err error) {
	f, err := openContained(path, allowed, nil, false, func(dir int, name string, ids []fileID) (int, error) {
		folder, err := openFolderAt(dir, ".", ids)
		if err != nil {
			return -1, err
		}
		err = file.LockOpenFolder(folder, lockTimeout)
		if err == nil && !keep() {
			if err = unix.Unlinkat(dir, name, 0); err == nil {
				found = true
			} else if errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
		}
		return folder, err
	})
	if err != nil {
		return false, err
	}
	return found, f.Close() // releases the lock
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

// replaceAt writes content to a temporary file in the folder descriptor dir, with the permissions and owner of old, and
// renames it to name. A rename replaces a symlink that appears meanwhile and does not follow it.
func replaceAt(dir int, name string, content FileContent, old *unix.Stat_t, r Replacement) (err error) {
	temp := ""
	if !content.Gone {
		if temp, err = writeTemp(dir, r.Temp, content, old); err != nil {
			return err
		}
	}
	if r.Begin != nil {
		err = r.Begin(temp)
	}
	changed := false
	if err == nil {
		if content.Gone {
			err = unix.Unlinkat(dir, name, 0)
		} else {
			err = unix.Renameat(dir, temp, dir, name)
		}
		changed = err == nil
		if r.End != nil {
			err = errors.Join(err, r.End(changed))
		}
	}
	if !changed && temp != "" {
		_ = unix.Unlinkat(dir, temp, 0) // the first error matters
	}
	return stripPath(err)
}

// writeTemp writes content to a new file in the folder descriptor dir, syncs it and returns its name.
func writeTemp(dir int, temp string, content FileContent, old *unix.Stat_t) (_ string, err error) {
	if temp == "" {
		var random [8]byte
		if _, err := rand.Read(random[:]); err != nil {
			return "", err
		}
		temp = ".conclave-" + hex.EncodeToString(random[:])
	}
	mode := os.FileMode(0o644) // less the umask
	if old != nil || content.Mode != 0 {
		mode = 0o600
	}
	fd, err := openat(dir, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, mode)
	if err != nil {
		return "", stripPath(err)
	}
	f := os.NewFile(uintptr(fd), temp)
	_, err = f.Write(content.Data)
	if err == nil && old != nil {
		err = keepOwner(fd, old)
	}
	if err == nil && content.Mode != 0 {
		err = f.Chmod(content.Mode.Perm())
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		_ = unix.Unlinkat(dir, temp, 0) // the first error matters
		return "", stripPath(err)
	}
	return temp, nil
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
