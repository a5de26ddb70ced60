package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"conclave/pkg/text"
)

// Bounds of a path, as Linux has them, so that every machine agrees.
const (
	maxPathBytes = 4096 // bytes
	maxNameBytes = 255  // bytes between two slashes
	maxSymlinks  = 40
)

// specialFolders hold no files but doors: into other processes, into the kernel, to devices. No tool gets there,
// whatever is allowed: /proc/self/root is the whole machine again.
var specialFolders = []string{"/proc", "/sys", "/dev"}

// ErrSpecial is what a path into /proc, /sys or /dev gets, on its way too.
var ErrSpecial = errors.New("it leads into /proc, /sys or /dev, which no tool may reach")

// ExpandPath is a path as an agent writes it, from / or ~/, with ~ replaced by home. It looks at no file. The error says
// what a path has to be and repeats nothing of it.
func ExpandPath(p, home string) (string, error) {
	rest, tilde := strings.CutPrefix(p, "~")
	switch {
	case tilde && !path.IsAbs(home):
		return "", errors.New("there is no home folder; write the path from /")
	case tilde && (rest == "" || rest[0] == '/'):
		p = strings.TrimSuffix(home, "/") + "/" + strings.TrimPrefix(rest, "/")
	case !path.IsAbs(p):
		return "", errors.New("write the path from / or ~/")
	}
	if len(p) > maxPathBytes {
		return "", fmt.Errorf("it is longer than %d bytes", maxPathBytes)
	}
	if !utf8.ValidString(p) || strings.ContainsFunc(p, unicode.IsControl) {
		return "", errors.New("it holds control characters or bytes that are no text")
	}
	for name := range strings.SplitSeq(p, "/") {
		if len(name) > maxNameBytes {
			return "", fmt.Errorf("a name in it is longer than %d bytes", maxNameBytes)
		}
	}
	return p, nil
}

// ResolvePath is where an absolute path really leads, in the way the kernel goes: link by link, with .. after a link
// being above the link's target. What does not exist yet is kept as written behind the last folder that does; a link to
// something that does not exist leads there all the same, because a write would create it there.
func ResolvePath(p string) (string, error) {
	if !path.IsAbs(p) {
		return "", errors.New("it does not begin with /")
	}
	at, rest, links, missing := "/", p, 0, false
	for rest != "" {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		switch name {
		case "", ".":
			continue
		case "..":
			if missing {
				return "", errors.New("it goes up from a folder that does not exist")
			}
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, name)
		if isSpecialPath(next) {
			return "", ErrSpecial
		}
		if missing {
			at = next
			continue
		}
		info, err := os.Lstat(next)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			at, missing = next, true
		case err != nil:
			return "", stripPath(err)
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(next)
			if err != nil {
				return "", stripPath(err)
			}
			if links++; links > maxSymlinks || target == "" || len(target) > maxPathBytes {
				return "", errors.New("it leads through too many or broken links")
			}
			if path.IsAbs(target) {
				at = "/"
			}
			rest = target + "/" + rest
		case !info.IsDir() && strings.Trim(rest, "/") != "":
			return "", errors.New("a file in it is used as a folder")
		default:
			at = next
		}
	}
	if len(at) > maxPathBytes {
		return "", fmt.Errorf("it leads to a path longer than %d bytes", maxPathBytes)
	}
	return at, nil
}

// ResolveFolders are folders as the manifest writes them, with ~ replaced and links resolved. It is done once, when the
// rules are read: a folder that is replaced by a link later must not give what the link points to.
func ResolveFolders(folders []string, home string, resolve func(string) (string, error)) ([]string, error) {
	var out []string
	for _, f := range folders {
		plain, err := ExpandPath(f, home)
		if err == nil {
			plain, err = resolve(plain)
		}
		if err != nil {
			return nil, fmt.Errorf("resolving the folder %s: %w", text.OneLine(f, 60), err)
		}
		out = append(out, plain)
	}
	return out, nil
}

// stripPath is the cause of an error of the file system, without the path, which may be long or another's.
func stripPath(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// isSpecialPath reports whether a clean path lies in a folder that is no folder.
func isSpecialPath(p string) bool {
	return slices.ContainsFunc(specialFolders, func(f string) bool { return isInsideFold(p, f) })
}

// isInside reports whether the clean path p is the folder or lies in it.
func isInside(p, folder string) bool {
	folder = strings.TrimSuffix(folder, "/")
	return p == folder || folder == "" || strings.HasPrefix(p, folder+"/")
}

// isInsideFold is inside for what is to be refused: letters may differ in case, because on some file systems that is the same
// folder.
func isInsideFold(p, folder string) bool {
	for {
		var want, got string
		folder = strings.TrimLeft(folder, "/")
		p = strings.TrimLeft(p, "/")
		if folder == "" {
			return true
		}
		want, folder, _ = strings.Cut(folder, "/")
		if got, p, _ = strings.Cut(p, "/"); !strings.EqualFold(want, got) {
			return false
		}
	}
}
