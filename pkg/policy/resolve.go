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

// Limits of a path. They are those of Linux on every system.
const (
	maxPathBytes = 4096 // bytes
	maxNameBytes = 255  // bytes between two slashes
	maxSymlinks  = 40
)

// specialFolders expose processes, the kernel and devices. They are denied to every tool under every override:
// /proc/self/root, for example, is the whole file system.
var specialFolders = []string{"/proc", "/sys", "/dev"}

// ErrSpecial means that a path leads into or through /proc, /sys or /dev.
var ErrSpecial = errors.New("it leads into /proc, /sys or /dev, which are closed to every tool")

// ExpandPath returns an agent's path with a leading ~ replaced by home; without an absolute home it rejects ~. It
// rejects relative and empty paths, ~user, control characters, invalid UTF-8, paths over maxPathBytes and names over
// maxNameBytes. It keeps ".." and does not access the file system, and its errors do not echo the path.
func ExpandPath(p, home string) (string, error) {
	rest, tilde := strings.CutPrefix(p, "~")
	switch {
	case tilde && !path.IsAbs(home):
		return "", errors.New("no home folder is known; write the path from /")
	case tilde && (rest == "" || rest[0] == '/'):
		p = strings.TrimSuffix(home, "/") + "/" + strings.TrimPrefix(rest, "/")
	case !path.IsAbs(p):
		return "", errors.New("write the path from / or ~/")
	}
	if len(p) > maxPathBytes {
		return "", fmt.Errorf("it is longer than %d bytes", maxPathBytes)
	}
	if !utf8.ValidString(p) || strings.ContainsFunc(p, unicode.IsControl) {
		return "", errors.New("it contains control characters or invalid UTF-8")
	}
	for name := range strings.SplitSeq(p, "/") {
		if len(name) > maxNameBytes {
			return "", fmt.Errorf("a name in it is longer than %d bytes", maxNameBytes)
		}
	}
	return p, nil
}

// ResolvePath resolves the symlinks of an absolute path as the kernel does: ".." after a symlink is the parent of its
// target. Parts that do not exist yet are kept as written; a dangling symlink resolves to its target, because a write
// would create the file there. It rejects relative paths, ".." after a missing part, a file where a folder is needed,
// more than maxSymlinks symlinks and results over maxPathBytes, and returns ErrSpecial for special folders. The result
// is clean.
func ResolvePath(p string) (string, error) {
	return resolvePath(p, func(string) error { return nil })
}

// ErrUntrustedLink means that a folder of the rules is reached through a symlink that another user of the machine could
// have made.
var ErrUntrustedLink = errors.New("it is reached through a symbolic link that another user could have made")

// resolveTrusted is [ResolvePath] for the folders that rules name. It returns ErrUntrustedLink for a symlink in a
// folder that everybody may write to, such as /tmp, and for one that belongs neither to this user nor to root: its
// owner would choose the folder that the rules open.
func resolveTrusted(p string) (string, error) { return resolvePath(p, checkLinkOwner) }

// resolvePath is [ResolvePath]; check is called for each symlink, with its path, and an error of it is returned.
func resolvePath(p string, check func(link string) error) (string, error) {
	if !path.IsAbs(p) {
		return "", errors.New("it does not start with /")
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
			if err := check(next); err != nil {
				return "", err
			}
			target, err := os.Readlink(next)
			if err != nil {
				return "", stripPath(err)
			}
			if links++; links > maxSymlinks || target == "" || len(target) > maxPathBytes {
				return "", errors.New("it contains too many or broken symlinks")
			}
			if path.IsAbs(target) {
				at = "/"
			}
			rest = target + "/" + rest
		case !info.IsDir() && strings.Trim(rest, "/") != "":
			return "", errors.New("a part of it is a file, not a folder")
		default:
			at = next
		}
	}
	if len(at) > maxPathBytes {
		return "", fmt.Errorf("it resolves to a path longer than %d bytes", maxPathBytes)
	}
	return at, nil
}

// ResolveFolders returns the folders of a manifest with ~ replaced by home and symlinks resolved by resolve; one that
// cannot be resolved fails all. Callers must resolve once, when the rules are loaded: a folder that is replaced by a
// symlink later must not give access to the symlink's target.
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

// stripPath returns the cause of a file system error without its path, which may be long or outside of the allowed
// folders.
func stripPath(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// isSpecialPath reports whether the clean path p is or is in a special folder, ignoring case.
func isSpecialPath(p string) bool {
	return slices.ContainsFunc(specialFolders, func(f string) bool { return isInsideFold(p, f) })
}

// isInside reports whether the clean path p is folder or is in it. Case matters: it is for permissions.
func isInside(p, folder string) bool {
	folder = strings.TrimSuffix(folder, "/")
	return p == folder || folder == "" || strings.HasPrefix(p, folder+"/")
}

// isInsideFold is [isInside] ignoring case, for denials: some file systems are case-insensitive. It compares name by
// name; both must be clean and absolute.
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
