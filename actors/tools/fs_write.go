package tools

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/pkg/text"
	"conclave/subjects"
)

//go:embed fs_write.md
var fsWriteText string

// Limits of a write.
const (
	maxWriteBytes   = 128 << 10 // of the arguments' content
	maxAppendBytes  = 4 << 20   // of a file that is appended to, and of one that a diff is made of
	maxPreviewBytes = 16 << 10
)

// fsWrite returns the tool fs_write. It writes atomically; its preview is the difference to the file as it is.
func fsWrite() *Tool {
	return newTool("fs_write", fsWriteText, `"path","content"`, `
		"path": {"type": "string", "minLength": 1, "maxLength": 4096, "description": "the file"},
		"content": {"type": "string", "maxLength": 131072, "description": "the text"},
		"append": {"type": "boolean", "description": "add the text at the end of the file"}`,
		writeFacts(policy.ActChange, policy.Args{
			"path": {Role: policy.RoleID}, "content": {Role: policy.RoleContent},
			"append": {Role: policy.RoleSetting},
		}, 224<<10),
		withArgs(func(ctx context.Context, c Call, a struct {
			Path    string `json:"path"`
			Content string `json:"content"`
			Append  bool   `json:"append"`
		},
		) (Output, error) {
			if len(a.Content) > maxWriteBytes {
				return Output{}, fmt.Errorf("%w: content has %d bytes, limit %d", actor.ErrArguments, len(a.Content),
					maxWriteBytes)
			}
			if c.Mode == subjects.ModePreview {
				s, err := previewWrite(c, a.Path, a.Content, a.Append)
				if err != nil {
					return Output{}, fileFailure("preview", err)
				}
				return Output{Text: s}, nil
			}
			out, err := writeFile(c, a.Path, func(readOld oldReader) ([]byte, error) {
				if !a.Append {
					return []byte(a.Content), nil
				}
				old, err := readOld()
				return append(slices.Clip(old), a.Content...), err
			})
			if err != nil {
				return Output{}, fileFailure("write", err)
			}
			return out, nil
		}))
}

// contentMaker returns the content of a file that is written. It calls read for the content that is there, nil for a
// new file, when it needs it.
type contentMaker func(read oldReader) ([]byte, error)

// oldReader returns the content of a file before it is written.
type oldReader func() ([]byte, error)

// writeFile writes the file and returns its path, its size and whether it is new. Text is appended by writing the whole
// file again, so that it is atomic too: no other call writes to the folder from makeContent to the end. In capture mode
// it keeps the state before and writes nothing.
func writeFile(c Call, path string, makeContent contentMaker) (Output, error) {
	if c.Folders == nil {
		return Output{}, policy.ErrOutside
	}
	if c.Mode == subjects.ModeCapture {
		return c.captureFile(path, makeContent)
	}
	if err := c.makeWorkFolder(path); err != nil {
		return Output{}, err
	}
	var data []byte
	var failed error
	created, err := c.replaceFile(path, func(read oldReader) ([]byte, error) {
		data, failed = makeContent(read)
		return data, failed
	})
	if err := cmp.Or(failed, err); err != nil {
		return Output{}, err
	}
	report, err := json.Marshal(struct {
		Path    string `json:"path"`
		Bytes   int    `json:"bytes"`
		Created bool   `json:"created"`
	}{path, len(data), created})
	out := Output{Text: string(report), Artifacts: []string{path}}
	if c.Change != nil {
		out.Change = &subjects.ChangeRef{ID: c.Change.ID, Files: out.Artifacts}
	}
	return out, err
}

// errFileTooLarge means that a file is too large to be appended to or compared.
var errFileTooLarge = errors.New("the file is too large")

// readWhole returns the content of a file of at most maxAppendBytes.
func readWhole(c Call, path string) ([]byte, error) {
	f, err := c.openFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxAppendBytes+1))
	if err == nil && len(data) > maxAppendBytes {
		err = errFileTooLarge
	}
	return data, err
}

// readOld is [readWhole] for a file that may be new: then it returns nil.
func readOld(c Call, path string) ([]byte, error) {
	old, err := readWhole(c, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return old, err
}

// previewWrite returns what a write would change, as a unified diff of at most maxPreviewBytes. It changes nothing.
func previewWrite(c Call, path, content string, isAppend bool) (string, error) {
	if c.Folders == nil {
		return "", policy.ErrOutside
	}
	shown := text.OneLine(path, 300)
	old, err := readWhole(c, path)
	before := shown
	switch {
	case errors.Is(err, fs.ErrNotExist):
		before = "/dev/null"
	case errors.Is(err, errFileTooLarge):
		return fmt.Sprintf("%s has more than %d bytes, so its difference is not shown; %d bytes of text would be "+
			"written", shown, maxAppendBytes, len(content)), nil
	case err != nil:
		return "", err
	case !isText(old[:min(len(old), sniffBytes)]):
		return fmt.Sprintf("%s is a %s; %d bytes of text would be written", shown,
			strings.TrimSuffix(describeBinary(old, int64(len(old))), "; its content is not shown"), len(content)), nil
	}
	data := []byte(content)
	if isAppend {
		data = append(append([]byte{}, old...), data...)
	}
	d := string(diff.Diff(before, old, shown, data))
	if d == "" {
		if before == shown {
			return shown + " would stay as it is", nil
		}
		return shown + " would be created empty", nil
	}
	_, d, _ = strings.Cut(d, "\n") // without the line "diff a b"
	if len(d) > maxPreviewBytes {
		d = fmt.Sprintf("%s\n[cut: %d of %d bytes of the difference are shown]", text.Cut(d, maxPreviewBytes),
			maxPreviewBytes, len(d))
	}
	return d, nil
}
