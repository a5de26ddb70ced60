package tools

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Notes are Markdown files. Reading and adding are two tools, because the facts by which the broker judges a call
// belong to a tool.

var (
	//go:embed notes_read.md
	notesReadText string
	//go:embed notes_add.md
	notesAddText string
)

// notesRead returns the tool notes_read, under the path rules of the file tools.
func notesRead() *Tool {
	return &Tool{
		schema: fileSchema("notes_read", notesReadText, `"query"`, `
			"query": {"type": "string", "minLength": 1, "maxLength": 200,
				"description": "words to search for, or * to list or read all"},
			"path": {"type": "string", "minLength": 1, "maxLength": 4096,
				"description": "one note, or a folder of notes, where there are several"}`),
		facts: policy.Tool{
			Name: "notes_read", Zone: "tools", Known: true, Act: policy.ActRead, Paths: []string{"path"},
			Args:    policy.Args{"path": {Role: policy.RoleID}, "query": {Role: policy.RoleContent}},
			About:   []string{"note", "notes"},
			Effects: policy.Declare(policy.ReadsPrivate, policy.ReadsUntrusted), Timeout: 20 * time.Second,
			MaxArgs: 16 << 10,
		},
		run: withArgs(func(ctx context.Context, c Call, a struct {
			Path  string `json:"path"`
			Query string `json:"query"`
		},
		) (Output, error) {
			if a.Path == "" {
				var err error
				if a.Path, err = c.defaultFolder(); err != nil {
					return Output{}, fileFailure("read", err)
				}
			}
			s, err := readNotes(ctx, c, a.Path, strings.Trim(a.Query, " *"))
			if err != nil {
				return Output{}, fileFailure("read", err)
			}
			return Output{Text: s}, nil
		}),
	}
}

// readNotes searches notes, lists a folder or reads one note.
func readNotes(ctx context.Context, c Call, at, query string) (string, error) {
	if query != "" {
		s := newFileSearch(c, at, "(?i)"+regexp.QuoteMeta(query), "*.md")
		ctx, cancel := context.WithTimeout(ctx, searchTimeout)
		defer cancel()
		if err := s.searchPath(ctx); err != nil {
			return "", err
		}
		return s.render(), nil
	}
	entries, more, err := c.readFolder(at, maxListed)
	if errors.Is(err, policy.ErrNotFolder) {
		if !isNote(at) {
			return "", errNotNote
		}
		return readLines(ctx, c, at, 1, 0)
	}
	if err != nil {
		return "", err
	}
	var lines []string
	for _, e := range entries {
		switch {
		case e.IsDir():
			lines = append(lines, text.OneLine(e.Name(), maxNameShown)+"/")
		case e.Type().IsRegular() && isNote(e.Name()):
			lines = append(lines, text.OneLine(e.Name(), maxNameShown))
		}
	}
	if len(lines) == 0 {
		lines = append(lines, "[no notes]")
	}
	if more {
		lines = append(lines, "[there are more]")
	}
	return strings.Join(lines, "\n"), nil
}

var errNotNote = errors.New("a note is a file that ends in .md")

func isNote(file string) bool { return strings.EqualFold(path.Ext(file), ".md") }

// notesAdd returns the tool notes_add, under the path rules of the file tools. Its preview is the difference to the
// note as it is.
func notesAdd() *Tool {
	return &Tool{
		schema: fileSchema("notes_add", notesAddText, `"text"`, `
			"text": {"type": "string", "minLength": 1, "maxLength": 32768,
				"description": "what to add, in Markdown"},
			"path": {"type": "string", "minLength": 1, "maxLength": 4096,
				"description": "the note, where there are several"}`),
		facts: policy.Tool{
			Name: "notes_add", Zone: "tools", Known: true, Act: policy.ActCreate, Paths: []string{"path"},
			Preview: true, Keeps: true,
			Args:    policy.Args{"path": {Role: policy.RoleID}, "text": {Role: policy.RoleContent}},
			Effects: policy.Declare(policy.Mutate), Timeout: 20 * time.Second, MaxArgs: 64 << 10,
		},
		run: withArgs(func(_ context.Context, c Call, a struct {
			Path string `json:"path"`
			Text string `json:"text"`
		},
		) (Output, error) {
			if a.Path == "" {
				var err error
				if a.Path, err = c.defaultFile(isNote, "notes.md"); err != nil {
					return Output{}, fileFailure("add", err)
				}
			}
			if !isNote(a.Path) {
				return Output{}, fmt.Errorf("%w: %w", actor.ErrArguments, errNotNote)
			}
			added := fmt.Sprintf("\n## %s\n\n%s\n", c.Now.In(time.Local).Format("2006-01-02 15:04"),
				strings.TrimSpace(a.Text))
			return addToFile(c, a.Path, func(old []byte) ([]byte, error) {
				return append(slices.Clip(old), added...), nil
			})
		}),
	}
}

// addToFile writes a file with what change makes of its content, nil for a new one; in preview mode it returns the
// difference and changes nothing.
func addToFile(c Call, file string, change func(old []byte) ([]byte, error)) (Output, error) {
	makeContent := func(read oldReader) ([]byte, error) {
		old, err := read()
		if err != nil {
			return nil, err
		}
		if !isText(old[:min(len(old), sniffBytes)]) {
			return nil, errors.New("the file is not a text")
		}
		return change(old)
	}
	if c.Mode == subjects.ModePreview {
		data, err := makeContent(func() ([]byte, error) { return readOld(c, file) })
		if err != nil {
			return Output{}, fileFailure("add", err)
		}
		s, err := previewWrite(c, file, string(data), false)
		if err != nil {
			return Output{}, fileFailure("preview", err)
		}
		return Output{Text: s}, nil
	}
	out, err := writeFile(c, file, makeContent)
	if err != nil {
		return Output{}, fileFailure("add", err)
	}
	return out, nil
}
