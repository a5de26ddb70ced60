//go:build unix

package policy

import (
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

// What opening a file can be refused for.
var (
	// ErrOutside is a path that leads out of every allowed folder.
	ErrOutside = errors.New("it lies outside the allowed folders")
	// ErrClosed is a path, or another name of a file, in a closed folder.
	ErrClosed = errors.New("it lies in a folder of Conclave itself, and those are closed to every tool")
	// ErrNotRegular is a device, a pipe, a socket, or a folder where a file was wanted.
	ErrNotRegular = errors.New("it is not a regular file")
	// ErrNotFolder is anything but a folder where one was wanted.
	ErrNotFolder = errors.New("it is not a folder")
	// ErrSwapped is a path of which a part was replaced while it was opened.
	ErrSwapped = errors.New("it changed while it was opened; try again")
)

// openFlags are those a tool may open a file with.
const openFlags = os.O_RDONLY | os.O_WRONLY | os.O_RDWR | os.O_CREATE | os.O_EXCL | os.O_TRUNC | os.O_APPEND | os.O_SYNC

// OpenInside opens a regular file that lies in one of the allowed folders and in none of the closed ones. What is checked
// is what is opened: links are resolved first, and then every part of the path is opened from the one before it, where
// nothing is a link any more. A link that appears meanwhile is refused. Closed folders are told by what they are and not
// by their name alone, so another mount or another spelling of them is closed too.
//
// allowed must be resolved, see [ResolveFolders]; an unresolved one allows nothing. path begins with /.
func OpenInside(path string, flag int, perm os.FileMode, allowed, closed []string) (*os.File, error) {
	if flag&^openFlags != 0 {
		return nil, fmt.Errorf("opening %s: these flags are not for tools", text.OneLine(path, 60))
	}
	f, err := openContained(path, allowed, closed, func(dir int, name string, ids []fileID) (int, error) {
		return openRegular(dir, name, flag, perm, ids, closed)
	})
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", text.OneLine(path, 60), err)
	}
	return f, nil
}

// OpenFolder is OpenInside for a folder, to list it.
func OpenFolder(path string, allowed, closed []string) (*os.File, error) {
	f, err := openContained(path, allowed, closed, func(dir int, name string, ids []fileID) (int, error) {
		fd, err := openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
		if err != nil {
			return -1, mapSwapError(err, ErrNotFolder)
		}
		return denyClosed(fd, ids)
	})
	if err != nil {
		return nil, fmt.Errorf("opening the folder %s: %w", text.OneLine(path, 60), err)
	}
	return f, nil
}

// fileID tells files apart whatever they are called.
type fileID struct{ dev, ino uint64 }

func newFileID(st *unix.Stat_t) fileID { return fileID{uint64(st.Dev), st.Ino} } // Dev is of another type on other systems

// openContained walks to the folder of path and lets last open what is in it.
func openContained(path string, allowed, closed []string, last func(dir int, name string, ids []fileID) (int, error)) (*os.File, error) {
	plain, err := ExpandPath(path, "")
	if err != nil {
		return nil, err
	}
	real, err := ResolvePath(plain)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(allowed, func(f string) bool { return filepath.IsAbs(f) && isInside(real, filepath.Clean(f)) }) {
		return nil, ErrOutside
	}
	ids, err := statClosedFolders(real, closed)
	if err != nil {
		return nil, err
	}
	dir, err := openat(unix.AT_FDCWD, "/", oPath|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { unix.Close(dir) }()
	folder, name := filepath.Split(real)
	for part := range strings.SplitSeq(folder, "/") {
		if part == "" {
			continue
		}
		next, err := openat(dir, part, oPath|unix.O_DIRECTORY, 0)
		if err != nil {
			return nil, mapSwapError(err, err)
		}
		if next, err = denyClosed(next, ids); err != nil {
			return nil, err
		}
		unix.Close(dir)
		dir = next
	}
	fd, err := last(dir, or(name, "."), ids)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), real), nil
}

// statClosedFolders are the closed folders that exist. It refuses when path lies in one by name.
func statClosedFolders(path string, closed []string) (ids []fileID, err error) {
	for _, f := range closed {
		real, err := ResolvePath(f)
		if err != nil && !errors.Is(err, ErrSpecial) {
			return nil, ErrClosed // nobody can tell, so it may be
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

// openat never follows a link, never waits for the other end of a pipe, and leaves nothing open for a child.
func openat(dir int, name string, flag int, perm os.FileMode) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, flag|unix.O_NOFOLLOW|unix.O_CLOEXEC, uint32(perm.Perm()))
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// denyClosed is fd, unless it is a closed folder: then it is closed.
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

// mapSwapError is what an error means where nothing was a link a moment ago.
func mapSwapError(err, otherwise error) error {
	switch {
	case errors.Is(err, unix.ELOOP):
		return ErrSwapped
	case errors.Is(err, unix.ENOTDIR):
		return errors.Join(ErrSwapped, otherwise)
	}
	return err
}

// openRegular opens or creates the file name in dir. It is emptied only after it was looked at.
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
	// A device is looked at before it is opened: opening alone can do something.
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
	case (before.Nlink > 1 || st.Nlink > 1) && hasLinkIn(closed, &st): // by now that name may be gone
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

// maxClosedFiles is how many files of the closed folders are looked at for another name of one.
const maxClosedFiles = 20_000

// hasLinkIn reports whether a file with several names has one of them in a closed folder, or may have.
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
				case errors.Is(err, fs.ErrNotExist): // gone meanwhile
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
