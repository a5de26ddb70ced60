//go:build linux && (amd64 || arm64)

package sandbox

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Bounds of the working folder. Reading a chain of nested folders costs a descriptor for each.
const (
	maxDepth    = 64
	maxRelative = 4096 // bytes of a path below the working folder
)

// folder is the state of the working folder.
type folder struct {
	files   map[string]fileState // regular files by relative path
	bytes   int64                // on disk
	entries int
	hidden  bool // a part of it is nested too deep or cannot be read, so bytes and entries are not all
}

// fileState changes with every change of a file. A program can set the time of modification, not that of the change.
type fileState struct {
	inode   uint64
	size    int64
	changed unix.Timespec
}

// exceeds reports whether the folder is larger than the limits allow. One that cannot be measured is.
func (f folder) exceeds(l Limits) bool { return f.hidden || f.bytes > l.Disk || f.entries > l.Entries }

// readFolder reads the working folder without following symlinks. It stops after more than most entries, at the end of
// ctx, and at a part that is nested too deep or that the program made unreadable. A file that disappears meanwhile is
// left out.
func readFolder(ctx context.Context, work *os.Root, most int, withFiles bool) (folder, error) {
	out := folder{files: map[string]fileState{}}
	err := walkFolder(ctx, work, func(e entry) error {
		if e.depth > maxDepth || len(e.path) > maxRelative {
			return errHidden
		}
		out.entries++
		out.bytes += e.stat.Blocks * 512
		if withFiles && e.stat.Mode&unix.S_IFMT == unix.S_IFREG {
			out.files[e.path] = fileState{inode: e.stat.Ino, size: e.stat.Size, changed: e.stat.Ctim}
		}
		if out.entries > most {
			return fs.SkipAll
		}
		return nil
	})
	if errors.Is(err, errHidden) {
		out.hidden, err = true, nil
	}
	if errors.Is(err, fs.SkipAll) {
		err = nil
	}
	return out, err
}

// errHidden means that a part of the working folder is nested too deep or cannot be read.
var errHidden = errors.New("a part of the working folder is nested too deep or cannot be read")

// entry is a file or folder below the working folder.
type entry struct {
	parent int // descriptor of the folder that holds it
	name   string
	path   string // relative to the working folder
	depth  int    // 1 = in the working folder itself
	stat   unix.Stat_t
}

func (e entry) isFolder() bool { return e.stat.Mode&unix.S_IFMT == unix.S_IFDIR }

// walkFolder calls visit for everything below the working folder, a folder before its content, until visit or ctx has
// an error; for [fs.SkipDir] it leaves the content out. It opens each folder once, relative to the one that holds it,
// and follows no symlink. It returns errHidden for a folder that it may not read.
func walkFolder(ctx context.Context, work *os.Root, visit func(entry) error) error {
	top, err := work.Open(".")
	if errors.Is(err, fs.ErrPermission) {
		return errHidden
	}
	if err != nil {
		return err
	}
	defer top.Close()
	return walkOpened(ctx, top, "", 1, visit)
}

// walkOpened is [walkFolder] for the content of an open folder; depth is that of its entries.
func walkOpened(ctx context.Context, dir *os.File, path string, depth int, visit func(entry) error) error {
	for {
		names, err := dir.Readdirnames(256)
		if errors.Is(err, io.EOF) || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := ctx.Err(); err != nil {
				return err
			}
			e := entry{parent: int(dir.Fd()), name: name, path: filepath.Join(path, name), depth: depth}
			err := unix.Fstatat(e.parent, name, &e.stat, unix.AT_SYMLINK_NOFOLLOW)
			if err == nil {
				err = visit(e)
				if errors.Is(err, fs.SkipDir) {
					continue
				}
				if err == nil && e.isFolder() {
					err = walkEntry(ctx, e, visit)
				}
			}
			switch {
			case errors.Is(err, unix.EACCES):
				return errHidden
			case err != nil && !isReplaced(err):
				return err
			}
		}
	}
}

// walkEntry is [walkFolder] for the content of a folder below the working folder.
func walkEntry(ctx context.Context, e entry, visit func(entry) error) error {
	fd, err := unix.Openat(e.parent, e.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), e.name)
	defer dir.Close()
	if err := walkOpened(ctx, dir, e.path, e.depth+1, visit); err != nil && !isReplaced(err) {
		return err
	}
	return nil
}

// isReplaced reports whether err says that a file disappeared or became another one while the folder was read.
func isReplaced(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR)
}

// isHidden reports whether a relative path contains a name with a leading dot, such as that of a cache.
func isHidden(path string) bool { return strings.HasPrefix(path, ".") || strings.Contains(path, "/.") }

// changedSince returns the absolute paths of the files that differ from before or are new, without hidden ones, sorted,
// at most [MaxChanged].
func (f folder) changedSince(before folder, dir string) (out []string) {
	for path, state := range f.files {
		if old, ok := before.files[path]; (!ok || old != state) && !isHidden(path) {
			out = append(out, filepath.Join(dir, path))
		}
	}
	slices.Sort(out)
	return out[:min(len(out), MaxChanged)]
}
