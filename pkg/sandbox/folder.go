//go:build linux && (amd64 || arm64)

package sandbox

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// folder is the state of the working folder.
type folder struct {
	files   map[string]fileState // regular files by relative path
	bytes   int64                // on disk
	entries int
}

// fileState changes with every change of a file. A program can set the time of modification, not that of the change.
type fileState struct {
	inode   uint64
	size    int64
	changed syscall.Timespec
}

// readFolder reads the working folder without following symlinks. It stops after more than most entries. A file that
// disappears meanwhile is left out, and so is a folder that the program made unreadable.
func readFolder(work *os.Root, most int) (folder, error) {
	out := folder{files: map[string]fileState{}}
	err := fs.WalkDir(work.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return nil
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return nil
		}
		out.entries++
		out.bytes += stat.Blocks * 512
		if d.Type().IsRegular() {
			out.files[path] = fileState{inode: stat.Ino, size: stat.Size, changed: stat.Ctim}
		}
		if out.entries > most {
			return fs.SkipAll
		}
		return nil
	})
	return out, err
}

// isHidden reports whether a relative path contains a name with a leading dot, such as that of a cache.
func isHidden(path string) bool { return strings.HasPrefix(path, ".") || strings.Contains(path, "/.") }

// changedSince returns the absolute paths of the files that differ from before or are new, without hidden ones, sorted, at most
// [MaxChanged].
func (f folder) changedSince(before folder, dir string) (out []string) {
	for path, state := range f.files {
		if old, ok := before.files[path]; (!ok || old != state) && !isHidden(path) {
			out = append(out, filepath.Join(dir, path))
		}
	}
	slices.Sort(out)
	return out[:min(len(out), MaxChanged)]
}
