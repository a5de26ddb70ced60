package policy

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"

	"conclave/pkg/text"
)

// pathsLayer confines file tools to the folders that the manifest gives the caller's type, and the types above it. The
// folders of Conclave itself are closed to every tool, under every override. The zero value refuses every path.
//
// What it lets pass must be opened with [OpenInside]: a link can be swapped between the verdict and the use.
type pathsLayer struct {
	manifest Manifest
	home     string
	closed   []string // as written and as resolved
	folders  map[folderKey][]string
	resolve  func(path string) (string, error)
	err      error
}

// folderKey is what folders are given for.
type folderKey struct{ typ, tool string }

// newSystemPathsLayer returns the layer over the files of this machine. home is what ~ stands for.
func newSystemPathsLayer(m Manifest, home string, closed []string) pathsLayer {
	return newPathsLayer(m, home, closed, ResolvePath)
}

// newPathsLayer returns a layer that follows links by resolve, which must do so as [ResolvePath] does. The folders are
// resolved here, once. One of the manifest's that cannot be resolved is not given; a closed one that cannot be resolved
// closes everything.
func newPathsLayer(m Manifest, home string, closed []string, resolve func(string) (string, error)) pathsLayer {
	l := pathsLayer{manifest: m, home: home, resolve: resolve, folders: map[folderKey][]string{}}
	if resolve == nil {
		return l
	}
	for _, f := range closed {
		plain, err := ExpandPath(f, home)
		if err != nil {
			l.err = fmt.Errorf("the closed folder %s: %w", text.OneLine(f, 60), err)
			return l
		}
		l.closed = append(l.closed, path.Clean(plain))
		switch real, err := resolve(plain); {
		case err == nil:
			l.closed = append(l.closed, real)
		case !errors.Is(err, ErrSpecial): // that is refused anyway
			l.err = fmt.Errorf("the closed folder %s: %w", text.OneLine(f, 60), err)
			return l
		}
	}
	for name, t := range m.Types {
		for tool, folders := range t.Paths {
			for _, f := range folders {
				if real, err := ResolveFolders([]string{f}, home, resolve); err == nil {
					l.folders[folderKey{name, tool}] = append(l.folders[folderKey{name, tool}], real...)
				}
			}
		}
	}
	return l
}

// Name implements [Layer].
func (pathsLayer) Name() string { return "paths" }

// Rules of the paths layer.
const (
	ruleNoPaths     = "no_paths"     // the layer cannot tell where paths lead, or which are closed
	ruleUnconfined  = "unconfined"   // the manifest gives folders for the tool, and none of its arguments is a path
	rulePathForm    = "path_form"    // not a path, or one that readers take in different ways
	ruleSpecialPath = "special_path" // into /proc, /sys or /dev
	ruleUnresolved  = "unresolved"   // nobody can tell where it leads
	ruleClosed      = "closed"       // one of Conclave's own folders
	ruleOutside     = "outside"      // not in a folder of the caller's type
	ruleOutsideLine = "outside_line" // not in a folder of an agent above the caller
	ruleUnknownLine = "unknown_line" // nobody knows the agents above the caller
)

// Judge implements [Layer].
func (l pathsLayer) Judge(_ context.Context, c Call) Verdict {
	if len(c.Tool.Paths) == 0 {
		if len(l.manifest.Types[c.Type].Paths[c.Tool.Name]) > 0 {
			return Deny(ruleUnconfined, fmt.Sprintf("the manifest confines %s to folders, and none of its arguments is declared as a path; its facts have to name one", c.Tool.Name))
		}
		return Pass()
	}
	if l.resolve == nil {
		return Deny(ruleNoPaths, "nobody can tell where paths lead, so no file may be reached")
	}
	if l.err != nil {
		return Deny(ruleNoPaths, fmt.Sprintf("nobody can tell which folders are closed, so no file may be reached: %v", l.err))
	}
	args, v := parseArgs(c)
	if args == nil {
		return v
	}
	bounds, v := l.folderBounds(c)
	if bounds == nil {
		return v
	}
	for _, name := range c.Tool.Paths {
		given := args.Member(name)
		if given == nil {
			continue // whether it may be missing is for the schema to say
		}
		paths, ok := given.Strings()
		if !ok {
			return Deny(rulePathForm, fmt.Sprintf("%q is not a path", name), "a path from / or ~/")
		}
		for _, p := range paths {
			if v := l.judgePath(c, p, bounds); v.kind != verdictPass {
				return v
			}
		}
	}
	return Pass()
}

// judgePath judges one path.
func (l pathsLayer) judgePath(c Call, given string, bounds []folderBound) Verdict {
	shown := text.OneLine(given, 60)
	plain, err := ExpandPath(given, l.home)
	if err != nil {
		return Deny(rulePathForm, fmt.Sprintf("the path %s is refused: %v", shown, err), "a path from / or ~/")
	}
	written := path.Clean(plain)
	real, err := l.resolve(plain)
	switch {
	case isSpecialPath(written) || errors.Is(err, ErrSpecial) || err == nil && isSpecialPath(real):
		return Deny(ruleSpecialPath, fmt.Sprintf("the path %s is refused: %v", shown, ErrSpecial))
	case l.isClosed(written) || err == nil && l.isClosed(real):
		return Deny(ruleClosed, fmt.Sprintf("the path %s lies in a folder of Conclave itself, and those are closed to every tool", shown))
	case err == nil && l.holdsClosed(real) && slices.ContainsFunc([]Effect{Exec, Mutate, Destroy}, c.Tool.Has):
		return Deny(ruleClosed, fmt.Sprintf("the folder %s holds a folder of Conclave itself, and %s would reach into it; give a folder beside it", shown, c.Tool.Name))
	}
	for _, b := range bounds {
		// Of a path outside, nobody learns whether it is there.
		if where := real; err == nil && !b.contains(where) || err != nil && !b.contains(written) {
			return b.deny(c.Tool.Name, shown)
		}
	}
	if err != nil {
		return Deny(ruleUnresolved, fmt.Sprintf("nobody can tell where the path %s leads: %v", shown, stripPath(err)))
	}
	if !path.IsAbs(real) || path.Clean(real) != real {
		return Deny(ruleUnresolved, fmt.Sprintf("nobody can tell where the path %s leads", shown))
	}
	return Pass()
}

func (l pathsLayer) isClosed(p string) bool {
	return slices.ContainsFunc(l.closed, func(f string) bool { return isInsideFold(p, f) })
}

// holdsClosed reports whether a closed folder lies below p: who runs or changes something in p reaches it too.
func (l pathsLayer) holdsClosed(p string) bool {
	return slices.ContainsFunc(l.closed, func(f string) bool { return isInsideFold(f, p) })
}

// folderBound is what one agent of the line may reach.
type folderBound struct {
	ancestor string // "" = the caller itself
	typ      string
	folders  []string // resolved
	written  []string // as the manifest has them
}

func (b folderBound) contains(p string) bool {
	return slices.ContainsFunc(b.folders, func(f string) bool { return isInside(p, f) })
}

func (b folderBound) deny(tool, shown string) Verdict {
	switch {
	case b.ancestor != "":
		return Deny(ruleOutsideLine, fmt.Sprintf("the path %s is outside the folders that %s of type %s has for %s, and an agent never reaches more than those above it", shown, b.ancestor, b.typ, tool), b.written...)
	case len(b.folders) == 0:
		return Deny(ruleOutside, fmt.Sprintf("the manifest gives agents of type %s no folder for %s", b.typ, tool))
	}
	return Deny(ruleOutside, fmt.Sprintf("the path %s is outside the folders of type %s for %s", shown, b.typ, tool), b.written...)
}

// folderBounds are the folders that a path must lie in, each of them: the caller's, and those of every agent above it up to one
// whose type inherits nothing. An agent above that only passes the tool on, and names no folder for it, does not narrow
// it. nil comes with a refusal; under ALL an account itself is bound by none.
func (l pathsLayer) folderBounds(c Call) ([]folderBound, Verdict) {
	root, ok := l.manifest.Accounts[c.Caller.Account]
	if !ok || len(c.Lineage) != len(c.Caller.Path) {
		return nil, Deny(ruleUnknownLine, fmt.Sprintf("nobody knows the agents above %s, so it may reach no file", c.Caller.ID()))
	}
	types := []string{root}
	for i, s := range c.Lineage {
		if s.Name != c.Caller.Path[i] {
			return nil, Deny(ruleUnknownLine, fmt.Sprintf("nobody knows the agents above %s, so it may reach no file", c.Caller.ID()))
		}
		types = append(types, s.Type)
	}
	if types[len(types)-1] != c.Type {
		return nil, Deny(ruleUnknownLine, fmt.Sprintf("%s is not of type %s, so it may reach no file", c.Caller.ID(), text.OneLine(c.Type, 40)))
	}
	out := []folderBound{}
	if c.hasFullOverride() {
		return out, Verdict{}
	}
	for i, typ := range slices.Backward(types) {
		t := l.manifest.Types[typ]
		b := folderBound{typ: typ, folders: l.folders[folderKey{typ, c.Tool.Name}], written: t.Paths[c.Tool.Name]}
		if i < len(types)-1 {
			b.ancestor = c.Caller.Account
			if i > 0 {
				b.ancestor = c.Lineage[i-1].Name
			}
		}
		passesOn := !slices.Contains(t.Tools, c.Tool.Name) && slices.Contains(t.Delegable, c.Tool.Name)
		if _, named := t.Paths[c.Tool.Name]; b.ancestor == "" || named || !passesOn {
			out = append(out, b)
		}
		if t.Unbound {
			break
		}
	}
	return out, Verdict{}
}
