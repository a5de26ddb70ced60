//go:build unix

package policy

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"conclave/pkg/text"
)

// Errors of [OpenInside] and [OpenFolder].
var (
	// ErrOutside means that the resolved path is in none of the allowed folders.
	ErrOutside = errors.New("it is outside the allowed folders")
	// ErrClosed means that the path, or a hard link to the same file, is in a closed folder.
	ErrClosed = errors.New("it is in one of Conclave's own folders, which are closed to every tool")
	// ErrNotRegular means that the path is a device, a pipe, a socket or a folder.
	ErrNotRegular = errors.New("it is not a regular file")
	// ErrNotFolder means that the path of [OpenFolder] is not a folder.
	ErrNotFolder = errors.New("it is not a folder")
	// ErrSwapped means that the path is not its own resolved form: a part of it was replaced by a symlink after it was
	// judged, or while it was opened.
	ErrSwapped = errors.New("a folder in its path was replaced after it was checked; retry")
)

// openFlags are the flags that [OpenInside] accepts.
const openFlags = os.O_RDONLY | os.O_WRONLY | os.O_RDWR | os.O_CREATE | os.O_EXCL | os.O_TRUNC | os.O_APPEND | os.O_SYNC

// OpenInside opens a regular file in one of the allowed folders and in none of the closed ones, without a race between
// check and use: it denies a path with a symlink in it, then opens each part of the path relative to the one before it
// and denies a symlink that appears meanwhile. Closed folders are compared by device and inode as well as by name, so
// another mount, spelling or hard link does not open them. It rejects flags outside of openFlags; perm applies to a new
// file.
//
// path must be absolute and resolved, as [Chain.ExpandPaths] returns it. allowed must be resolved, see
// [ResolveFolders]; an unresolved folder allows nothing, and so does an empty list. closed must be absolute; a closed
// folder that cannot be resolved denies every path, and one that does not exist is compared by name only.
func OpenInside(path string, flag int, perm os.FileMode, allowed, closed []string) (*os.File, error) {
	if flag&^openFlags != 0 {
		return nil, fmt.Errorf("opening %s: flags not allowed", text.OneLine(path, 60))
	}
	f, err := openContained(path, allowed, closed, false, func(dir int, name string, ids []fileID) (int, error) {
		return openRegular(dir, name, flag, perm, ids, closed)
	})
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", text.OneLine(path, 60), err)
	}
	return f, nil
}

// OpenFolder is [OpenInside] for listing a folder: it opens it read-only, and returns ErrNotFolder for a file.
func OpenFolder(path string, allowed, closed []string) (*os.File, error) {
	f, err := openContained(path, allowed, closed, false, openFolderAt)
	if err != nil {
		return nil, fmt.Errorf("opening the folder %s: %w", text.OneLine(path, 60), err)
	}
	return f, nil
}

// openFolderAt opens the folder name in the folder descriptor dir for listing. It does not follow a symlink.
func openFolderAt(dir int, name string, ids []fileID) (int, error) {
	fd, err := openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, mapSwapError(err, ErrNotFolder)
	}
	return denyClosed(fd, ids)
}

// fileID identifies a file independently of its names.
type fileID struct{ dev, ino uint64 }

// the type of Dev differs between systems
func newFileID(st *unix.Stat_t) fileID { return fileID{uint64(st.Dev), st.Ino} }

// openContained denies a path that resolves outside of allowed, into closed or to another path, opens its folder part
// by part without following symlinks, and calls last to open the final name, "." for the root, relative to the
// descriptor dir. With create it makes missing folders that are in allowed, for this user only. ids are the closed
// folders that exist. last returns a descriptor, which openContained then owns and makes blocking.
func openContained(path string, allowed, closed []string, create bool,
	last func(dir int, name string, ids []fileID) (int, error),
) (*os.File, error) {
	plain, err := ExpandPath(path, "")
	if err != nil {
		return nil, err
	}
	real, err := ResolvePath(plain)
	if err != nil {
		return nil, err
	}
	isAllowed := func(p string) bool {
		return slices.ContainsFunc(allowed, func(f string) bool {
			return filepath.IsAbs(f) && isInside(p, filepath.Clean(f))
		})
	}
	if !isAllowed(real) {
		return nil, ErrOutside
	}
	ids, err := statClosedFolders(real, closed)
	if err != nil {
		return nil, err
	}
	if real != path { // the user may have approved path, and it leads elsewhere now
		return nil, ErrSwapped
	}
	dir, err := openat(unix.AT_FDCWD, "/", oPath|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { unix.Close(dir) }()
	folder, name := filepath.Split(real)
	at := "/"
	for part := range strings.SplitSeq(folder, "/") {
		if part == "" {
			continue
		}
		at = filepath.Join(at, part)
		next, err := openat(dir, part, oPath|unix.O_DIRECTORY, 0)
		if create && errors.Is(err, fs.ErrNotExist) && isAllowed(at) {
			if err = unix.Mkdirat(dir, part, 0o700); err == nil || errors.Is(err, fs.ErrExist) {
				next, err = openat(dir, part, oPath|unix.O_DIRECTORY, 0)
			}
		}
		if err != nil {
			return nil, mapSwapError(err, err)
		}
		if next, err = denyClosed(next, ids); err != nil {
			return nil, err
		}
		unix.Close(dir)
		dir = next
	}
	fd, err := last(dir, cmp.Or(name, "."), ids)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), real), nil
}

// statClosedFolders returns the ids of the closed folders that exist; a missing one has none. It returns ErrClosed when
// path is in one by name, also in another case, or when a closed folder cannot be resolved. path must be resolved.
func statClosedFolders(path string, closed []string) (ids []fileID, err error) {
	for _, f := range closed {
		real, err := ResolvePath(f)
		if err != nil && !errors.Is(err, ErrSpecial) {
			return nil, ErrClosed // unknown location: path may be in it
		}
		if isInsideFold(path, f) || err == nil && isInsideFold(path, real) {
			return nil, ErrClosed
		}
		var st unix.Stat_t
		switch err := unix.Stat(f, &st); {
		case err == nil:
			ids = append(ids, newFileID(&st))
		case !errors.Is(err, fs.ErrNotExist):
			return nil, ErrClosed
		}
	}
	return ids, nil
}

// checkLinkOwner returns ErrUntrustedLink for a symlink in a folder that everybody may write to, and for one that
// belongs neither to this user nor to root.
func checkLinkOwner(link string) error {
	var st, parent unix.Stat_t
	if err := errors.Join(unix.Lstat(link, &st), unix.Stat(filepath.Dir(link), &parent)); err != nil {
		return err
	}
	if parent.Mode&0o002 != 0 || st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%w: %s", ErrUntrustedLink, text.OneLine(link, 60))
	}
	return nil
}

// openat opens name relative to dir, never follows a symlink, and closes the descriptor on exec. It retries on EINTR.
// To not block on a pipe, the caller passes O_NONBLOCK.
func openat(dir int, name string, flag int, perm os.FileMode) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, flag|unix.O_NOFOLLOW|unix.O_CLOEXEC, uint32(perm.Perm()))
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// denyClosed returns fd, or closes it and returns ErrClosed when it is a closed folder, ErrSpecial when it is on a
// kernel file system, and the error when it cannot be examined.
func denyClosed(fd int, ids []fileID) (int, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	if err == nil && slices.Contains(ids, newFileID(&st)) {
		err = ErrClosed
	}
	if err == nil {
		err = denyKernelFS(fd)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// mapSwapError translates an error of openat on a path that had no symlinks when it was resolved: a symlink now means
// ErrSwapped, a file in place of a folder ErrSwapped joined with otherwise. It returns every other error unchanged.
func mapSwapError(err, otherwise error) error {
	switch {
	case errors.Is(err, unix.ELOOP):
		return ErrSwapped
	case errors.Is(err, unix.ENOTDIR):
		return errors.Join(ErrSwapped, otherwise)
	}
	return err
}

// openRegular opens or creates the regular file name in the folder descriptor dir and returns its descriptor, in
// non-blocking mode; flag and perm are those of [OpenInside]. It denies other file types, files with a hard link in a
// closed folder, and a file that was replaced between stat and open. O_TRUNC takes effect only after these checks.
func openRegular(dir int, name string, flag int, perm os.FileMode, ids []fileID, closed []string) (int, error) {
	how := flag&^(os.O_CREATE|os.O_EXCL|os.O_TRUNC) | unix.O_NONBLOCK | unix.O_NOCTTY
	if flag&os.O_CREATE != 0 {
		fd, err := openat(dir, name, how|unix.O_CREAT|unix.O_EXCL, perm)
		if err == nil {
			return denyClosed(fd, ids)
		}
		if flag&os.O_EXCL != 0 || !errors.Is(err, fs.ErrExist) {
			return -1, err
		}
	}
	// The type is checked before opening, because opening a device can have side effects.
	var before, st unix.Stat_t
	if err := unix.Fstatat(dir, name, &before, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return -1, err
	}
	switch before.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFLNK:
		return -1, ErrSwapped
	default:
		return -1, ErrNotRegular
	}
	fd, err := openat(dir, name, how, 0)
	if err != nil {
		return -1, mapSwapError(err, err)
	}
	if fd, err = denyClosed(fd, ids); err != nil {
		return -1, err
	}
	err = unix.Fstat(fd, &st)
	switch {
	case err != nil:
	case st.Mode&unix.S_IFMT != unix.S_IFREG || newFileID(&st) != newFileID(&before):
		err = ErrSwapped
	case (before.Nlink > 1 || st.Nlink > 1) && hasLinkIn(closed, &st): // both counts: the other link may be gone by now
		err = ErrClosed
	case flag&os.O_TRUNC != 0:
		err = unix.Ftruncate(fd, 0)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// maxClosedFiles is the number of files that hasLinkIn examines; beyond it the answer is true.
const maxClosedFiles = 20_000

// hasLinkIn reports whether a closed folder contains a hard link to file. It fails closed: true on any error and beyond
// maxClosedFiles files. A closed folder that does not exist contains nothing.
func hasLinkIn(closed []string, file *unix.Stat_t) bool {
	seen, found := 0, errors.New("found")
	for _, f := range closed {
		real, err := filepath.EvalSymlinks(f)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = filepath.WalkDir(real, func(p string, _ fs.DirEntry, err error) error {
				var st unix.Stat_t
				if seen++; seen > maxClosedFiles {
					return found
				}
				if err == nil {
					err = unix.Lstat(p, &st)
				}
				switch {
				case errors.Is(err, fs.ErrNotExist): // removed meanwhile
					return nil
				case err == nil && newFileID(&st) == newFileID(file):
					return found
				}
				return err
			})
		}
		if err != nil {
			return true
		}
	}
	return false
}
