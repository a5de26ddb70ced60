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
	return newTool("notes_read", notesReadText, `"query"`, `
		"query": {"type": "string", "minLength": 1, "maxLength": 200,
			"description": "words to search for, or * to list or read all"},
		"path": {"type": "string", "minLength": 1, "maxLength": 4096,
			"description": "one note, or a folder of notes, where there are several"}`,
		readFacts(policy.Args{"path": {Role: policy.RoleID}, "query": {Role: policy.RoleContent}}, "note", "notes"),
		withFiles("read", func(ctx context.Context, c Call, a struct {
			Path  string `json:"path"`
			Query string `json:"query"`
		},
		) (string, error) {
			at, err := c.orDefaultFolder(a.Path)
			if err != nil {
				return "", err
			}
			return readNotes(ctx, c, at, strings.Trim(a.Query, " *"))
		}))
}

// readNotes searches notes, lists a folder or reads one note.
func readNotes(ctx context.Context, c Call, at, query string) (string, error) {
	if query != "" {
		return searchFiles(ctx, c, at, "(?i)"+regexp.QuoteMeta(query), "*.md")
	}
	entries, more, err := c.readFolder(at, maxListed)
	if errors.Is(err, policy.ErrNotFolder) {
		if !isOfKind(at, noteExtension) {
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
		case e.Type().IsRegular() && isOfKind(e.Name(), noteExtension):
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

const noteExtension = ".md"

var errNotNote = errors.New("a note is a file that ends in .md")

// notesAdd returns the tool notes_add, under the path rules of the file tools. Its preview is the difference to the
// note as it is.
func notesAdd() *Tool {
	return newTool("notes_add", notesAddText, `"text"`, `
		"text": {"type": "string", "minLength": 1, "maxLength": 32768,
			"description": "what to add, in Markdown"},
		"path": {"type": "string", "minLength": 1, "maxLength": 4096,
			"description": "the note, where there are several"}`,
		writeFacts(policy.ActCreate,
			policy.Args{"path": {Role: policy.RoleID}, "text": {Role: policy.RoleContent}}, 64<<10),
		withArgs(func(_ context.Context, c Call, a struct {
			Path string `json:"path"`
			Text string `json:"text"`
		},
		) (Output, error) {
			added := fmt.Sprintf("\n## %s\n\n%s\n", c.Now.In(time.Local).Format(timeForm), strings.TrimSpace(a.Text))
			return addToFile(c, a.Path, "notes"+noteExtension, errNotNote, func(old []byte) ([]byte, error) {
				return append(slices.Clip(old), added...), nil
			})
		}))
}

// addToFile writes a file with what change makes of its content, nil for a new one; in preview mode it returns the
// difference and changes nothing. Without a file it is that of [Call.defaultFile], by name; a file with another
// extension than name is rejected with notOfKind.
func addToFile(c Call, file, name string, notOfKind error, change func(old []byte) ([]byte, error)) (Output, error) {
	if file == "" {
		var err error
		if file, err = c.defaultFile(name); err != nil {
			return Output{}, fileFailure("add", err)
		}
	}
	if !isOfKind(file, path.Ext(name)) {
		return Output{}, fmt.Errorf("%w: %w", actor.ErrArguments, notOfKind)
	}
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
