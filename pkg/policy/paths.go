package policy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"

	"conclave/pkg/text"
)

// pathsLayer confines file tools to the folders that the manifest gives the caller's type and its ancestors' types.
// Conclave's own folders are closed to every tool under every override. The zero value denies every path.
//
// Tools must open a path that passed with [OpenInside]: a symlink can be swapped between the verdict and the use.
type pathsLayer struct {
	manifest Manifest
	home     string
	closed   []string // as written and as resolved
	folders  map[folderKey][]string
	resolve  func(path string) (string, error)
	trust    func(path string) (string, error) // resolve for folders of the rules, see resolveTrusted
	err      error                             // why the closed folders are unknown; denies every path
}

// folderKey identifies a set of allowed folders.
type folderKey struct{ typ, tool string }

// newSystemPathsLayer returns the layer over the file system of this machine. home replaces ~ in paths.
func newSystemPathsLayer(m Manifest, home string, closed []string) pathsLayer {
	return newPathsLayer(m, home, closed, ResolvePath, resolveTrusted)
}

// newPathsLayer returns a layer that resolves symlinks with resolve, which must behave as [ResolvePath], and those of
// manifest folders with trust; with a nil resolve it denies every path. Folders are resolved once, here. A manifest
// folder that cannot be resolved is omitted, see [OmittedFolders]; a closed folder that cannot be resolved denies every
// path.
func newPathsLayer(m Manifest, home string, closed []string, resolve, trust func(string) (string, error)) pathsLayer {
	l := pathsLayer{manifest: m, home: home, resolve: resolve, trust: trust, folders: map[folderKey][]string{}}
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
		case !errors.Is(err, ErrSpecial): // special paths are denied anyway
			l.err = fmt.Errorf("the closed folder %s: %w", text.OneLine(f, 60), err)
			return l
		}
	}
	for name, t := range m.Types {
		for tool, folders := range t.Paths {
			for _, f := range folders {
				if real, err := ResolveFolders([]string{f}, home, trust); err == nil {
					l.folders[folderKey{name, tool}] = append(l.folders[folderKey{name, tool}], real...)
				}
			}
		}
	}
	return l
}

// OmittedFolders returns an error for each folder of the manifest that gives no access on this machine, because it
// cannot be resolved or because another user could choose where it leads. It is sorted and names each folder once. home
// replaces ~.
func OmittedFolders(m Manifest, home string) (out []error) {
	found := map[string]error{}
	for _, t := range m.Types {
		for _, folders := range t.Paths {
			for _, f := range folders {
				if _, err := ResolveFolders([]string{f}, home, resolveTrusted); err != nil {
					found[f] = err
				}
			}
		}
	}
	for _, f := range slices.Sorted(maps.Keys(found)) {
		out = append(out, found[f])
	}
	return out
}

// Name implements [Layer].
func (pathsLayer) Name() string { return "paths" }

// Rules of the paths layer.
const (
	ruleNoPaths         = "no_paths"     // the layer cannot resolve paths, or the closed folders are unknown
	ruleUnconfined      = "unconfined"   // the manifest lists folders for a tool that declares no path argument
	rulePathForm        = "path_form"    // not an absolute path, too long, or with control characters
	ruleSpecialPath     = "special_path" // into /proc, /sys or /dev
	ruleUnresolved      = "unresolved"   // the path cannot be resolved
	ruleClosed          = "closed"       // one of Conclave's own folders
	ruleOutside         = "outside"      // not in a folder of the caller's type
	ruleOutsideAncestor = "outside_line" // not in a folder of an ancestor's type
	ruleUnknownLineage  = "unknown_line" // the caller's lineage is unknown or does not match
)

// Judge denies malformed arguments, an unknown lineage, and a path that is no string, malformed, special, unresolvable,
// closed, above a closed folder if the tool changes or executes, or outside of one of folderBounds, to which not every
// ancestor adds; a full override lifts these alone. A path argument that is not given passes. A tool that declares none
// is denied only if its type has folders for it. While paths cannot be resolved, every path tool is denied. It never
// asks.
func (l pathsLayer) Judge(_ context.Context, c Call) Verdict {
	if len(c.Tool.Paths) == 0 {
		if len(l.manifest.Types[c.Type].Paths[c.Tool.Name]) > 0 {
			return Deny(ruleUnconfined, fmt.Sprintf("the manifest confines %s to folders, but the tool declares no "+
				"path argument; declare paths in the tool's facts", c.Tool.Name))
		}
		return Pass()
	}
	if l.resolve == nil {
		return Deny(ruleNoPaths, "paths cannot be resolved, so every file access is denied")
	}
	if l.err != nil {
		return Deny(ruleNoPaths, fmt.Sprintf("the closed folders are unknown, so every file access is denied: %v",
			l.err))
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
			continue // the schema decides whether it is required
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

// judgePath denies a path that is malformed, special, closed, unresolvable or outside of one of the bounds; no bounds
// bound nothing. A tool that executes, changes or destroys is also denied a folder that contains a closed one. The
// denial of a path outside does not reveal whether it exists. given is the path as the caller wrote it.
func (l pathsLayer) judgePath(c Call, given string, bounds []folderBound) Verdict {
	shown := text.OneLine(given, 60)
	plain, err := ExpandPath(given, l.home)
	if err != nil {
		return Deny(rulePathForm, fmt.Sprintf("the path %s is rejected: %v", shown, err), "a path from / or ~/")
	}
	written := path.Clean(plain)
	real, err := l.resolve(plain)
	switch {
	case isSpecialPath(written) || errors.Is(err, ErrSpecial) || err == nil && isSpecialPath(real):
		return Deny(ruleSpecialPath, fmt.Sprintf("the path %s is denied: %v", shown, ErrSpecial))
	case l.isClosed(written) || err == nil && l.isClosed(real):
		return Deny(ruleClosed, fmt.Sprintf("the path %s is in one of Conclave's own folders, which are closed to "+
			"every tool", shown))
	case err == nil && l.holdsClosed(real) && slices.ContainsFunc([]Effect{Exec, Mutate, Destroy}, c.Tool.Has):
		return Deny(ruleClosed, fmt.Sprintf("the folder %s contains one of Conclave's own folders, which %s could "+
			"change; use another folder", shown, c.Tool.Name))
	}
	for _, b := range bounds {
		// A path outside is denied as such whether it exists or not.
		if err == nil && !b.contains(real) || err != nil && !b.contains(written) {
			return b.deny(c.Tool.Name, shown)
		}
	}
	if err != nil {
		return Deny(ruleUnresolved, fmt.Sprintf("the path %s cannot be resolved: %v", shown, stripPath(err)))
	}
	if !path.IsAbs(real) || path.Clean(real) != real {
		return Deny(ruleUnresolved, fmt.Sprintf("the path %s cannot be resolved", shown))
	}
	return Pass()
}

// isClosed reports whether the clean path p is or is in a closed folder, ignoring case.
func (l pathsLayer) isClosed(p string) bool {
	return slices.ContainsFunc(l.closed, func(f string) bool { return isInsideFold(p, f) })
}

// holdsClosed reports whether p contains a closed folder: a tool that executes or changes something in p could access
// it.
func (l pathsLayer) holdsClosed(p string) bool {
	return slices.ContainsFunc(l.closed, func(f string) bool { return isInsideFold(f, p) })
}

// folderBound is the set of folders that one agent of a lineage may access with a tool.
type folderBound struct {
	ancestor string // name of the ancestor, "" = the caller itself
	typ      string
	folders  []string // resolved
	written  []string // as the manifest writes them, for denials
}

// contains reports whether the clean, resolved path p is in one of the folders.
func (b folderBound) contains(p string) bool {
	return slices.ContainsFunc(b.folders, func(f string) bool { return isInside(p, f) })
}

// deny returns the denial of a path outside of b; shown is the path as the caller wrote it, clipped. The rule tells the
// caller's own folders from an ancestor's.
func (b folderBound) deny(tool, shown string) Verdict {
	switch {
	case b.ancestor != "":
		return Deny(ruleOutsideAncestor, fmt.Sprintf("the path %s is outside the folders that %s of type %s has for "+
			"%s; an agent never has more folders than its ancestors", shown, b.ancestor, b.typ, tool), b.written...)
	case len(b.folders) == 0:
		return Deny(ruleOutside, fmt.Sprintf("the manifest gives agents of type %s no folder for %s", b.typ, tool))
	}
	return Deny(ruleOutside, fmt.Sprintf("the path %s is outside the folders of type %s for %s", shown, b.typ, tool),
		b.written...)
}

// folderBounds returns the bounds that a path must all satisfy: the caller's, and those of its ancestors up to one of
// an unbound type. An ancestor that only delegates the tool and lists no folder for it adds no bound. nil comes with a
// denial: the lineage is unknown. An empty result, for an account under a full override, bounds nothing.
func (l pathsLayer) folderBounds(c Call) ([]folderBound, Verdict) {
	root, ok := l.manifest.Accounts[c.Caller.Account]
	if !ok || len(c.Lineage) != len(c.Caller.Path) {
		return nil, Deny(ruleUnknownLineage, fmt.Sprintf("the lineage of %s is unknown, so every file access is denied",
			c.Caller.ID()))
	}
	types := []string{root}
	for i, s := range c.Lineage {
		if s.Name != c.Caller.Path[i] {
			return nil, Deny(ruleUnknownLineage, fmt.Sprintf("the lineage of %s is unknown, so every file access is "+
				"denied", c.Caller.ID()))
		}
		types = append(types, s.Type)
	}
	if types[len(types)-1] != c.Type {
		return nil, Deny(ruleUnknownLineage, fmt.Sprintf("%s is not of type %s, so every file access is denied",
			c.Caller.ID(), text.OneLine(c.Type, 40)))
	}
	out := []folderBound{}
	if c.HasFullOverride() {
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
		delegates := !slices.Contains(t.Tools, c.Tool.Name) && slices.Contains(t.Delegable, c.Tool.Name)
		if _, named := t.Paths[c.Tool.Name]; b.ancestor == "" || named || !delegates {
			out = append(out, b)
		}
		if t.Unbound {
			break
		}
	}
	return out, Verdict{}
}
