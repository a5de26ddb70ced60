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

// File is a file that was found.
type File struct {
	Path  string // absolute, links resolved: a file has one name, however it was reached
	Given bool   // it was named itself, and not found in a folder
}

// Skipped is what was left out.
type Skipped struct {
	Path string
	Why  string
	Err  error // what went wrong; nil = it is left out on purpose
}

// MaxFiles is how many files are found at most.
const MaxFiles = 100_000

// Walk finds the files that paths stand for, sorted: files themselves, and all files in folders. Hidden files and folders
// and node_modules are left out, unless they are named themselves. A link in a folder is followed only to a regular file in
// the same folder, and not into what is left out: a folder of strangers must not reach for anything else of this machine.
func Walk(paths ...string) ([]File, []Skipped) {
	w := &walk{seen: map[string]bool{}}
	for _, p := range paths {
		w.root(p)
	}
	slices.SortFunc(w.files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	slices.SortStableFunc(w.skipped, func(a, b Skipped) int { return strings.Compare(a.Path, b.Path) })
	return w.files, w.skipped
}

type walk struct {
	files   []File
	skipped []Skipped
	seen    map[string]bool
	full    bool
}

func (w *walk) skip(path, why string, err error) {
	w.skipped = append(w.skipped, Skipped{path, why, err})
}

func (w *walk) failed(path string, err error) {
	err = unreadable(err)
	w.skip(path, err.Error(), err)
}

func (w *walk) add(path string, given bool) {
	switch {
	case w.seen[path]:
		return
	case len(w.files) < MaxFiles:
		w.seen[path] = true
		w.files = append(w.files, File{path, given})
	case !w.full:
		w.full = true
		err := fmt.Errorf("there are more than %d files; name fewer folders", MaxFiles)
		w.skip(path, err.Error(), err)
	}
}

// root takes what a person named. It is followed wherever it leads: the user knows.
func (w *walk) root(path string) {
	real, err := filepath.Abs(path)
	if err == nil {
		real, err = filepath.EvalSymlinks(real)
	}
	if err != nil {
		w.failed(path, err)
		return
	}
	info, err := os.Stat(real)
	switch {
	case err != nil:
		w.failed(path, err)
	case info.IsDir():
		w.folder(real)
	case info.Mode().IsRegular():
		w.add(real, true)
	default:
		err := errors.New("it is not a regular file")
		w.skip(path, err.Error(), err)
	}
}

// folder takes the files below root. Links come last, so that a file is found under its own name first.
func (w *walk) folder(root string) {
	var links []string
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error { // the function returns no other errors
		if err != nil {
			w.failed(path, err)
			if d != nil && d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		switch why := leftOut(d.Name()); {
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
			w.add(path, false)
		default:
			w.skip(path, "it is not a regular file", nil)
		}
		return nil
	})
	for _, l := range links {
		w.link(root, l)
	}
}

// link follows a link that was found in root.
func (w *walk) link(root, path string) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		w.skip(path, "it is a link that leads nowhere", nil)
		return
	}
	rel, err := filepath.Rel(root, real)
	if err != nil || rel == ".." || strings.HasPrefix(rel, ".."+string(filepath.Separator)) {
		w.skip(path, "it is a link that leads out of the folder", nil)
		return
	}
	info, err := os.Lstat(real)
	if err != nil || !info.Mode().IsRegular() {
		w.skip(path, "it is a link to something that is not a regular file", nil)
		return
	}
	for part := range strings.SplitSeq(rel, string(filepath.Separator)) {
		if why := leftOut(part); why != "" {
			w.skip(path, "it is a link to what is left out", nil)
			return
		}
	}
	if w.seen[real] {
		w.skip(path, "it is a link to a file that is taken already", nil)
		return
	}
	w.add(real, false)
}

// leftOut says why a name in a folder is left out, "" when it is not.
func leftOut(name string) string {
	switch {
	case name == "node_modules":
		return "it holds what others wrote"
	case strings.HasPrefix(name, "."):
		return "it is hidden"
	}
	return ""
}
