package tools

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/pkg/text"
)

//go:embed fs_search.md
var fsSearchText string

// Limits of a search.
const (
	maxSearchFiles   = 5000
	maxSearchEntries = 50_000   // files and folders that are looked at
	maxSearchBytes   = 64 << 20 // of all files
	maxMatches       = 100
	maxMatchLine     = 300
	maxSearchText    = 12 << 10
	maxSearchDepth   = 20
	searchTimeout    = 10 * time.Second
)

// fsSearch returns the tool fs_search. It does not follow symlinks and leaves out binary files and .git.
func fsSearch() *Tool {
	return newTool("fs_search", fsSearchText, `"path","pattern"`, `
		"path": {"type": "string", "minLength": 1, "maxLength": 4096,
			"description": "the folder, or one file"},
		"pattern": {"type": "string", "minLength": 1, "maxLength": 1000,
			"description": "regular expression"},
		"glob": {"type": "string", "minLength": 1, "maxLength": 200,
			"description": "names of files, such as *.go"}`,
		readFacts(policy.Args{
			"path": {Role: policy.RoleID}, "pattern": {Role: policy.RoleContent},
			"glob": {Role: policy.RoleSetting},
		}, "file", "folder", "code", "log"),
		withFiles("search", func(ctx context.Context, c Call, a struct {
			Path    string `json:"path"`
			Pattern string `json:"pattern"`
			Glob    string `json:"glob"`
		},
		) (string, error) {
			if _, err := path.Match(a.Glob, ""); err != nil {
				return "", fmt.Errorf("%w: glob is not valid; write *.go", actor.ErrArguments)
			}
			if err := c.makeWorkFolder(a.Path); err != nil {
				return "", err
			}
			return searchFiles(ctx, c, a.Path, a.Pattern, a.Glob)
		}))
}

// fileSearch is one search and what it found.
type fileSearch struct {
	call    Call
	root    string
	glob    string
	pattern *regexp.Regexp
	literal bool // the pattern is not a regular expression

	lines          []string
	size           int // bytes of lines
	files, entries int
	bytes          int64
	skipped        int    // files that could not be read
	cut            string // the limit that ended the search, "" = none
}

// searchFiles returns what a search in the folder root, or in the file root, finds. An invalid pattern is taken
// literally.
func searchFiles(ctx context.Context, c Call, root, pattern, glob string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, searchTimeout)
	defer cancel()
	s := &fileSearch{call: c, root: root, glob: glob}
	var err error
	if s.pattern, err = regexp.Compile(pattern); err != nil {
		s.pattern, s.literal = regexp.MustCompile(regexp.QuoteMeta(pattern)), true
	}
	err = s.searchFolder(ctx, root, 0)
	if errors.Is(err, policy.ErrNotFolder) {
		err = s.searchFile(ctx, root)
	}
	return s.render(), err
}

// searchFolder searches the files of a folder and the folders in it, in the order of their names, until a limit is
// reached. Only the folder at depth 0 must be readable.
func (s *fileSearch) searchFolder(ctx context.Context, folder string, depth int) error {
	entries, more, err := s.call.readFolder(folder, maxSearchEntries)
	if err != nil {
		return err
	}
	if more {
		s.cut = "too many entries in one folder"
	}
	for _, e := range entries {
		at := path.Join(folder, e.Name())
		s.entries++
		switch {
		case ctx.Err() != nil:
			s.cut = "the time limit"
		case s.files >= maxSearchFiles || s.entries > maxSearchEntries:
			s.cut = "the limit of files"
		}
		if s.cut != "" {
			return nil
		}
		switch {
		case e.IsDir() && e.Name() != ".git" && depth < maxSearchDepth:
			if err := s.searchFolder(ctx, at, depth+1); err != nil {
				s.skipped++
			}
		case e.Type().IsRegular() && s.matchesGlob(at):
			if err := s.searchFile(ctx, at); err != nil {
				s.skipped++
			}
		}
	}
	return nil
}

// matchesGlob reports whether a file is searched: the glob matches its name or, with a slash in it, its path below
// root.
func (s *fileSearch) matchesGlob(file string) bool {
	if s.glob == "" {
		return true
	}
	name := path.Base(file)
	if strings.Contains(s.glob, "/") {
		name = strings.TrimPrefix(strings.TrimPrefix(file, s.root), "/")
	}
	ok, err := path.Match(s.glob, name)
	return err == nil && ok
}

// searchFile adds the matching lines of a text file. A line beyond the buffer is searched in parts.
func (s *fileSearch) searchFile(ctx context.Context, file string) error {
	f, err := s.call.openFile(file)
	if err != nil {
		return err
	}
	defer f.Close()
	s.files++
	r := bufio.NewReaderSize(f, 64<<10)
	head, err := r.Peek(sniffBytes)
	if err != nil && !errors.Is(err, io.EOF) || !isText(head) {
		return nil
	}
	shown := text.OneLine(strings.TrimPrefix(strings.TrimPrefix(file, s.root), "/"), maxNameShown)
	if file == s.root {
		shown = text.OneLine(path.Base(file), maxNameShown)
	}
	err = eachLine(ctx, r, func(line int, part []byte) bool {
		if s.pattern.Match(bytes.TrimRight(part, "\r\n")) {
			s.addMatch(fmt.Sprintf("%s:%d: %s", shown, line, text.OneLine(string(part), maxMatchLine)))
		}
		if s.bytes += int64(len(part)); s.bytes > maxSearchBytes {
			s.cut = cmp.Or(s.cut, "the limit of bytes")
		}
		return s.cut == ""
	})
	if ctx.Err() != nil {
		s.cut = cmp.Or(s.cut, "the time limit")
		return nil
	}
	return err
}

// addMatch adds one line of the result.
func (s *fileSearch) addMatch(line string) {
	if s.size += len(line) + 1; len(s.lines) >= maxMatches || s.size > maxSearchText {
		s.cut = "the limit of matches"
		return
	}
	s.lines = append(s.lines, line)
}

// render returns the matches with notes on what was left out.
func (s *fileSearch) render() string {
	out := slices.Clone(s.lines)
	if len(out) == 0 {
		out = append(out, "[no matches]")
	}
	if s.literal {
		out = append(out, "[the pattern is not a regular expression and was searched for as it is]")
	}
	if s.skipped > 0 {
		out = append(out, fmt.Sprintf("[%d files or folders could not be read]", s.skipped))
	}
	if s.cut != "" {
		out = append(out, fmt.Sprintf("[ended by %s after %d files; search in a folder below, or with a glob]", s.cut,
			s.files))
	}
	return strings.Join(out, "\n")
}
