package policy

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"path"
	"slices"
	"strings"

	"conclave/subjects"
)

// DefaultWorkspace is the folder that holds one working folder for each question.
const DefaultWorkspace = "/tmp/agent-sandbox"

// WorkFolder returns the working folder of a question, directly below the workspace; "" without a workspace and for an
// invalid query id. Its name is the query id and a hash of session and query id: clients choose query ids, and the same
// id in another session must not lead to the files of the first.
func WorkFolder(workspace, session, query string) string {
	if workspace == "" || subjects.CheckToken(query) != nil {
		return ""
	}
	sum := sha256.Sum256([]byte(session + "\x00" + query))
	return path.Join(workspace, query+"-"+hex.EncodeToString(sum[:4]))
}

// paths returns the paths layer of the chain; false when it has none.
func (ch Chain) paths() (pathsLayer, bool) {
	for _, l := range ch {
		if p, ok := l.(pathsLayer); ok {
			return p, true
		}
	}
	return pathsLayer{}, false
}

// ExpandPaths returns the arguments of a call with every path of the tool absolute and without symlinks: a relative
// path is joined to the folder work, a leading ~ is replaced by the home folder, and symlinks are resolved. It must run
// before the layers judge, so that approval, audit log and tool see the path that was judged: a symlink that appears
// while the user decides does not lead an approved call elsewhere, because [OpenInside] and [ReplaceInside] reject a
// path that is not its own resolved form. It leaves a path that it cannot expand, and one that is closed, for the paths
// layer to deny. args must be one JSON object without duplicate names; work "" leaves relative paths.
func (ch Chain) ExpandPaths(t Tool, args json.RawMessage, work string) json.RawMessage {
	if len(t.Paths) == 0 {
		return args
	}
	layer, _ := ch.paths()
	var members map[string]json.RawMessage
	if json.Unmarshal(args, &members) != nil {
		return args
	}
	changed := false
	for _, name := range t.Paths {
		if expanded, ok := layer.expandValue(members[name], work); ok {
			members[name], changed = expanded, true
		}
	}
	if !changed {
		return args
	}
	out, err := encodePlain(members)
	if err != nil {
		return args
	}
	return out
}

// expandValue expands one path or a list of paths; false when that changes nothing.
func (l pathsLayer) expandValue(value json.RawMessage, work string) (json.RawMessage, bool) {
	var one string
	var list []string
	var expanded any
	switch {
	case json.Unmarshal(value, &one) == nil:
		long := l.expandPath(one, work)
		if long == one {
			return nil, false
		}
		expanded = long
	case json.Unmarshal(value, &list) == nil && len(list) > 0:
		long := make([]string, len(list))
		for i, p := range list {
			long[i] = l.expandPath(p, work)
		}
		if slices.Equal(long, list) {
			return nil, false
		}
		expanded = long
	default:
		return nil, false
	}
	out, err := encodePlain(expanded)
	return out, err == nil
}

// expandPath returns an absolute path without symlinks for p; p itself when it is empty or cannot be expanded. A path
// that is or leads into a closed or special folder keeps its symlinks, because the layer denies both forms.
func (l pathsLayer) expandPath(p, work string) string {
	long := p
	switch {
	case strings.HasPrefix(p, "~"):
		var err error
		if long, err = ExpandPath(p, l.home); err != nil {
			return p
		}
	case p != "" && !path.IsAbs(p) && path.IsAbs(work):
		long = path.Join(work, p) // cleaned: the user must see where "../x" leads
	case !path.IsAbs(p):
		return p
	}
	if l.resolve == nil || l.isClosed(path.Clean(long)) || isSpecialPath(path.Clean(long)) {
		return long
	}
	if real, err := l.resolve(long); err == nil && !l.isClosed(real) && !isSpecialPath(real) {
		return real
	}
	return long
}

// encodePlain encodes v without the escapes for HTML, which would only make arguments harder to read.
func encodePlain(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(b.Bytes()), nil
}

// UsesFolders reports whether the tool has paths or runs code.
func (t Tool) UsesFolders() bool { return len(t.Paths) > 0 || t.Has(Exec) }

// FolderRules returns the folders that an allowed call may access, for its tool; nil for a tool that neither has paths
// nor runs code. work is the working folder of the question, "" for none.
//
// A tool with path arguments gets the folders of the caller's type for this tool, intersected with those of its
// ancestors. A tool that runs code and has no path argument gets the working folder alone, and only when each of these
// types lists it for some tool. A full override lifts the folders of the types, never the closed folders.
func (ch Chain) FolderRules(c Call, work string) *subjects.FolderRules {
	if !c.Tool.Known || !c.Tool.UsesFolders() {
		return nil
	}
	hasPaths := len(c.Tool.Paths) > 0
	l, ok := ch.paths()
	if !ok || l.resolve == nil || l.trust == nil || l.err != nil {
		return nil
	}
	rules := &subjects.FolderRules{Closed: slices.Clone(l.closed)}
	bounds, _ := l.folderBounds(c)
	if bounds == nil {
		return rules
	}
	allowed := []string{"/"}
	for _, b := range bounds {
		if !hasPaths {
			b.folders = l.foldersOfType(b.typ)
		}
		allowed = intersectFolders(allowed, b.folders)
	}
	inAllowed := func(p string) bool {
		return slices.ContainsFunc(allowed, func(f string) bool { return isInside(p, f) })
	}
	if work != "" {
		if real, err := l.trust(work); err == nil && inAllowed(real) && !isSpecialPath(real) && !l.isClosed(real) &&
			!l.holdsClosed(real) {
			rules.Work = real
		}
	}
	switch {
	case hasPaths:
		rules.Allowed = allowed
	case rules.Work != "":
		rules.Allowed = []string{rules.Work}
	}
	return rules
}

// UndoFolders returns the folders in which an undo by the user may restore what was there: all but the closed ones; nil
// when these are not known.
func (ch Chain) UndoFolders() *subjects.FolderRules {
	l, ok := ch.paths()
	if !ok || l.resolve == nil || l.trust == nil || l.err != nil {
		return nil
	}
	return &subjects.FolderRules{Allowed: []string{"/"}, Closed: slices.Clone(l.closed)}
}

// foldersOfType returns the resolved folders that a type has for any tool.
func (l pathsLayer) foldersOfType(typ string) (out []string) {
	for key, folders := range l.folders {
		if key.typ == typ {
			out = append(out, folders...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// intersectFolders returns the folders that are in one of a and in one of b.
func intersectFolders(a, b []string) (out []string) {
	add := func(f string) {
		if !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	for _, x := range a {
		for _, y := range b {
			switch {
			case isInside(x, y):
				add(x)
			case isInside(y, x):
				add(y)
			}
		}
	}
	return out
}

// IsInAllowedFolder reports whether the absolute and clean path p is in a folder of the rules by name, and in none of
// the closed ones. It does not access the file system: a tool must open files with [OpenInside].
func IsInAllowedFolder(p string, r *subjects.FolderRules) bool {
	if r == nil || !path.IsAbs(p) || path.Clean(p) != p {
		return false
	}
	return slices.ContainsFunc(r.Allowed, func(f string) bool { return isInside(p, f) }) &&
		!slices.ContainsFunc(r.Closed, func(f string) bool { return isInsideFold(p, f) })
}
