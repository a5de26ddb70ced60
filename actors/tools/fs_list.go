package tools

import (
	"context"
	_ "embed"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/pkg/text"
)

//go:embed fs_list.md
var fsListText string

// Limits of a listing.
const (
	maxListed    = 400
	maxDepth     = 5 // also in the schema
	maxNameShown = 300
)

// fsList returns the tool fs_list. Names of files are private and, like content, untrusted.
func fsList() *Tool {
	return newTool("fs_list", fsListText, `"path"`, `
		"path": {"type": "string", "minLength": 1, "maxLength": 4096, "description": "the folder"},
		"depth": {"type": "integer", "minimum": 1, "maximum": 5,
			"description": "levels of folders to list; 1 when left out"}`,
		readFacts(policy.Args{"path": {Role: policy.RoleID}, "depth": {Role: policy.RoleSetting}},
			"file", "folder", "directory"),
		withFiles("list", func(ctx context.Context, c Call, a struct {
			Path  string `json:"path"`
			Depth int    `json:"depth"`
		},
		) (string, error) {
			if a.Depth < 0 || a.Depth > maxDepth {
				return "", fmt.Errorf("%w: depth must be between 1 and %d", actor.ErrArguments, maxDepth)
			}
			if err := c.makeWorkFolder(a.Path); err != nil {
				return "", err
			}
			l := listing{call: c}
			err := l.addFolder(ctx, a.Path, "", max(a.Depth, 1))
			return l.render(), err
		}))
}

// listing collects the entries of folders.
type listing struct {
	call  Call
	lines []string
	cut   bool // there are more entries
}

// addFolder adds the entries of a folder and, below depth 1, of the folders in it. prefix is its name in the result. A
// folder below the first that cannot be opened is marked.
func (l *listing) addFolder(ctx context.Context, folder, prefix string, depth int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	entries, more, err := l.call.readFolder(folder, maxListed)
	if err != nil {
		return err
	}
	l.cut = l.cut || more
	for _, e := range entries {
		if len(l.lines) >= maxListed {
			l.cut = true
			return nil
		}
		name := prefix + e.Name()
		l.lines = append(l.lines, describeEntry(name, e))
		if !e.IsDir() || depth <= 1 {
			continue
		}
		if err := l.addFolder(ctx, path.Join(folder, e.Name()), name+"/", depth-1); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			l.lines[len(l.lines)-1] += "  (cannot be opened)"
		}
	}
	return nil
}

// describeEntry returns one line about an entry. Symlinks are not followed.
func describeEntry(name string, e fs.DirEntry) string {
	shown := text.OneLine(name, maxNameShown)
	switch {
	case e.IsDir():
		return shown + "/"
	case e.Type()&fs.ModeSymlink != 0:
		return shown + "  symbolic link"
	case !e.Type().IsRegular():
		return shown + "  special file"
	}
	info, err := e.Info()
	if err != nil {
		return shown
	}
	return fmt.Sprintf("%s  %d bytes  %s", shown, info.Size(), info.ModTime().UTC().Format("2006-01-02 15:04"))
}

// render returns the listing as text.
func (l *listing) render() string {
	if len(l.lines) == 0 {
		return "[the folder is empty]"
	}
	s := strings.Join(l.lines, "\n")
	if l.cut {
		s += fmt.Sprintf("\n[cut after %d entries]", len(l.lines))
	}
	return s
}
