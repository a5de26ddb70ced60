package document

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// File is a file that Walk found.
type File struct {
	Path  string // absolute, links resolved: a file has one name, however it was reached
	Given bool   // it was named itself, and not found in a folder
}

// Skipped is a path that Walk skipped.
type Skipped struct {
	Path string
	Why  string
	Err  error // what went wrong; nil = it is left out on purpose
}

// MaxFiles is the limit of files that Walk returns.
const MaxFiles = 100_000

// Walk returns the files that paths stand for, sorted: files themselves, and all files below folders, each once and at
// most [MaxFiles]. It skips hidden files, hidden folders and node_modules unless they are named themselves. A link
// below a folder is followed only to a regular file in the same folder: an untrusted folder must not reach other files
// of this machine. Every skipped path has a reason; Err is nil for those left out on purpose.
func Walk(paths ...string) ([]File, []Skipped) {
	w := &walker{seen: map[string]bool{}}
	for _, p := range paths {
		w.walkRoot(p)
	}
	slices.SortFunc(w.files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	slices.SortStableFunc(w.skipped, func(a, b Skipped) int { return strings.Compare(a.Path, b.Path) })
	return w.files, w.skipped
}

type walker struct {
	files   []File
	skipped []Skipped
	seen    map[string]bool
	full    bool
}

func (w *walker) skip(path, why string, err error) {
	w.skipped = append(w.skipped, Skipped{path, why, err})
}

func (w *walker) skipFailed(path string, err error) {
	err = readError(err)
	w.skip(path, err.Error(), err)
}

// addFile adds a file once; given means that the user named it. Beyond [MaxFiles] it is not added, and only the first
// such file is reported as skipped.
func (w *walker) addFile(path string, given bool) {
	switch {
	case w.seen[path]:
		return
	case len(w.files) < MaxFiles:
		w.seen[path] = true
		w.files = append(w.files, File{path, given})
	case !w.full:
		w.full = true
		err := fmt.Errorf("more than %d files; name fewer folders", MaxFiles)
		w.skip(path, err.Error(), err)
	}
}

// walkRoot adds a path that the user named, a file or the files below a folder. It follows links anywhere: the user
// named it. A path that cannot be read or is no regular file is skipped with an error.
func (w *walker) walkRoot(path string) {
	real, err := filepath.Abs(path)
	if err == nil {
		real, err = filepath.EvalSymlinks(real)
	}
	if err != nil {
		w.skipFailed(path, err)
		return
	}
	info, err := os.Stat(real)
	switch {
	case err != nil:
		w.skipFailed(path, err)
	case info.IsDir():
		w.walkFolder(real)
	case info.Mode().IsRegular():
		w.addFile(real, true)
	default:
		err := errors.New("not a regular file")
		w.skip(path, err.Error(), err)
	}
}

// walkFolder adds the files below root, which must have no links in its path. Links come last, so that a file is found
// under its own name first. What cannot be read is skipped with an error, and the walk goes on.
func (w *walker) walkFolder(root string) {
	var links []string
	// the function returns no other errors
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			w.skipFailed(path, err)
			if d != nil && d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		switch why := skipReason(d.Name()); {
		case path == root:
		case why != "" && d.IsDir():
			w.skip(path, why, nil)
			return fs.SkipDir
		case why != "":
			w.skip(path, why, nil)
		case d.IsDir():
		case d.Type()&fs.ModeSymlink != 0:
			links = append(links, path)
		case d.Type().IsRegular():
			w.addFile(path, false)
		default:
			w.skip(path, "not a regular file", nil)
		}
		return nil
	})
	for _, l := range links {
		w.followLink(root, l)
	}
}

// followLink adds the target of a link below root, or skips it with a reason: a broken link, a target outside of root,
// hidden, not a regular file, or already included.
func (w *walker) followLink(root, path string) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		w.skip(path, "broken link", nil)
		return
	}
	rel, err := filepath.Rel(root, real)
	if err != nil || rel == ".." || strings.HasPrefix(rel, ".."+string(filepath.Separator)) {
		w.skip(path, "link out of the folder", nil)
		return
	}
	info, err := os.Lstat(real)
	if err != nil || !info.Mode().IsRegular() {
		w.skip(path, "link to something that is not a regular file", nil)
		return
	}
	for part := range strings.SplitSeq(rel, string(filepath.Separator)) {
		if why := skipReason(part); why != "" {
			w.skip(path, "link to a skipped file", nil)
			return
		}
	}
	if w.seen[real] {
		w.skip(path, "link to a file that is included already", nil)
		return
	}
	w.addFile(real, false)
}

// skipReason returns why a name below a folder is skipped, "" when it is not: node_modules and names that begin with a
// dot.
func skipReason(name string) string {
	switch {
	case name == "node_modules":
		return "dependencies"
	case strings.HasPrefix(name, "."):
		return "hidden"
	}
	return ""
}
