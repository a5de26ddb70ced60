package tools

import (
	"bufio"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"strings"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/pkg/text"
)

//go:embed fs_read.md
var fsReadText string

// Limits of a read.
const (
	maxReadBytes = 12 << 10 // of one result; the broker would park more
	maxReadLines = 2000     // also in the schema
	maxScanBytes = 64 << 20 // of the file, to find and count lines
)

// fsRead returns the tool fs_read.
func fsRead() *Tool {
	return newTool("fs_read", fsReadText, `"path"`, `
		"path": {"type": "string", "minLength": 1, "maxLength": 4096, "description": "the file"},
		"offset": {"type": "integer", "minimum": 1, "description": "first line to return, from 1"},
		"limit": {"type": "integer", "minimum": 1, "maximum": 2000, "description": "most lines to return"}`,
		readFacts(policy.Args{
			"path": {Role: policy.RoleID}, "offset": {Role: policy.RoleSetting},
			"limit": {Role: policy.RoleSetting},
		}, "file", "document", "code", "log"),
		withFiles("read", func(ctx context.Context, c Call, a struct {
			Path   string `json:"path"`
			Offset int    `json:"offset"`
			Limit  int    `json:"limit"`
		},
		) (string, error) {
			if a.Offset < 0 || a.Limit < 0 || a.Limit > maxReadLines {
				return "", fmt.Errorf("%w: offset must be positive and limit at most %d", actor.ErrArguments,
					maxReadLines)
			}
			return readLines(ctx, c, a.Path, max(a.Offset, 1), a.Limit)
		}))
}

// readLines returns lines of a text file from the line first on, at most limit lines (0 = maxReadLines) and
// maxReadBytes bytes, with a note on what is left out. A binary file is described only.
func readLines(ctx context.Context, c Call, path string, first, limit int) (string, error) {
	f, err := c.openFile(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	r := bufio.NewReaderSize(io.LimitReader(f, maxScanBytes), sniffBytes)
	head, err := r.Peek(sniffBytes)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	switch {
	case len(head) == 0:
		return "[the file is empty]", nil
	case !isText(head):
		return describeBinary(head, info.Size()), nil
	}
	w := lineWindow{first: first, limit: cmp.Or(limit, maxReadLines)}
	err = eachLine(ctx, r, func(line int, part []byte) bool {
		w.add(line, string(part))
		return true
	})
	return w.render(info.Size() > maxScanBytes), err
}

// eachLine calls each with the lines of r, numbered from 1, until it returns false. Long lines come in parts, so that
// memory is bounded.
func eachLine(ctx context.Context, r *bufio.Reader, each func(line int, part []byte) bool) error {
	isStart := true
	for line := 0; ctx.Err() == nil; {
		part, err := r.ReadSlice('\n')
		if len(part) > 0 {
			if isStart {
				line++
			}
			isStart = part[len(part)-1] == '\n'
			if !each(line, part) {
				return nil
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
	return ctx.Err()
}

// lineWindow collects a range of lines.
type lineWindow struct {
	first, limit int
	b            strings.Builder
	line         int  // number of the last line that was read
	last         int  // number of the last line that is in the result
	cut          bool // the last line in the result is incomplete
	full         bool // no more lines fit
}

// add adds a line or a part of one, if it is in the range and fits.
func (w *lineWindow) add(line int, part string) {
	w.line = line
	if w.full || w.line < w.first {
		return
	}
	if w.line >= w.first+w.limit {
		w.full = true
		return
	}
	if left := maxReadBytes - w.b.Len(); len(part) > left {
		w.full = true
		if w.last != w.line && w.b.Len() > 0 {
			return // the line begins the next part
		}
		part, w.cut = text.Cut(part, left), true
	}
	w.b.WriteString(part)
	w.last = w.line
}

// render returns the lines with a note on what is left out. partial reports that the file has more than was scanned.
func (w *lineWindow) render(partial bool) string {
	s := strings.ToValidUTF8(w.b.String(), "\uFFFD")
	total := fmt.Sprint(w.line)
	if partial {
		total = "more than " + total
	}
	switch {
	case w.last == 0:
		return fmt.Sprintf("[the file has %s lines; line %d is beyond its end]", total, w.first)
	case w.last < w.line || partial || w.cut:
		note := ""
		if w.cut {
			note = "; line " + fmt.Sprint(w.last) + " is cut"
		}
		return fmt.Sprintf("%s\n[lines %d to %d of %s%s; continue with offset %d]", strings.TrimSuffix(s, "\n"),
			w.first, w.last, total, note, w.last+1)
	case w.first > 1:
		return fmt.Sprintf("%s\n[lines %d to %d of %s]", strings.TrimSuffix(s, "\n"), w.first, w.last, total)
	}
	return s
}
