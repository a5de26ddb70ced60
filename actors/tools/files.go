package tools

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"conclave/pkg/actor"
	"conclave/pkg/file"
	"conclave/pkg/policy"
)

// The file tools open every file and folder with [policy.OpenInside], [policy.OpenFolder] and [policy.ReplaceInside],
// under the folders that the broker sends with the call. Paths are absolute: the broker has expanded them.

// sniffBytes is how much of a file decides whether it is text.
const sniffBytes = 8 << 10

// openFile opens a file of the call for reading.
func (c Call) openFile(path string) (*os.File, error) {
	if c.Folders == nil {
		return nil, policy.ErrOutside
	}
	return policy.OpenInside(path, os.O_RDONLY, 0, c.Folders.Allowed, c.Folders.Closed)
}

// readFolder returns the entries of a folder of the call, sorted by name, at most limit; more reports that there are
// others.
func (c Call) readFolder(path string, limit int) (entries []fs.DirEntry, more bool, err error) {
	if c.Folders == nil {
		return nil, false, policy.ErrOutside
	}
	f, err := policy.OpenFolder(path, c.Folders.Allowed, c.Folders.Closed)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	entries, err = f.ReadDir(limit + 1)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if more = len(entries) > limit; more {
		entries = entries[:limit]
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, more, err
}

// defaultFolder returns the folder of a call that names no path: the one that its caller has for the tool.
func (c Call) defaultFolder() (string, error) {
	if c.Folders == nil || len(c.Folders.Allowed) == 0 {
		return "", policy.ErrOutside
	}
	if len(c.Folders.Allowed) > 1 {
		return "", errors.New("give path, in one of " + strings.Join(c.Folders.Allowed, ", "))
	}
	return filepath.Clean(c.Folders.Allowed[0]), nil
}

// orDefaultFolder returns path, and the default folder for "".
func (c Call) orDefaultFolder(path string) (string, error) {
	if path != "" {
		return path, nil
	}
	return c.defaultFolder()
}

// defaultFile returns the file of a call that names no path: the one in [Call.defaultFolder] with the extension of
// name, or name in that folder when there is none. With several it fails; their names are not in the error, because
// anybody may have chosen them.
func (c Call) defaultFile(name string) (string, error) {
	folder, err := c.defaultFolder()
	if err != nil {
		return "", err
	}
	entries, _, err := c.readFolder(folder, maxListed)
	if err != nil {
		return "", err
	}
	var found []string
	for _, e := range entries {
		if e.Type().IsRegular() && isOfKind(e.Name(), filepath.Ext(name)) {
			found = append(found, filepath.Join(folder, e.Name()))
		}
	}
	switch len(found) {
	case 0:
		return filepath.Join(folder, name), nil
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("%w: there are %d such files; give path, fs_list shows them", actor.ErrArguments, len(found))
}

// isOfKind reports whether the name of a file has an extension, such as .md.
func isOfKind(file, extension string) bool { return strings.EqualFold(filepath.Ext(file), extension) }

// makeWorkFolder creates the working folder when path is in it.
func (c Call) makeWorkFolder(path string) error {
	if c.Folders == nil || !isBelow(path, c.Folders.Work) {
		return nil
	}
	return policy.MakeWorkFolder(c.Folders)
}

// isBelow reports whether the resolved form of an absolute path is folder or is in it.
func isBelow(path, folder string) bool {
	real, err := policy.ResolvePath(path)
	if err != nil || folder == "" {
		return false
	}
	rel, err := filepath.Rel(folder, real)
	return err == nil && filepath.IsLocal(rel)
}

// isText reports whether the beginning of a file is text in UTF-8. A character may be cut at the end of it.
func isText(head []byte) bool {
	if bytes.IndexByte(head, 0) >= 0 {
		return false
	}
	for i := 0; i < utf8.UTFMax && len(head) >= sniffBytes-utf8.UTFMax && !utf8.Valid(head); i++ {
		head = head[:len(head)-1]
	}
	return utf8.Valid(head)
}

// describeBinary describes a file whose content is not shown.
func describeBinary(head []byte, size int64) string {
	return fmt.Sprintf("binary file, %s, %d bytes; its content is not shown", http.DetectContentType(head), size)
}

// fileFailure returns the failure of a file tool, without the path, which the caller knows.
func fileFailure(what string, err error) error {
	reason := ""
	for _, known := range []error{
		policy.ErrSwapped, policy.ErrOutside, policy.ErrClosed, policy.ErrNotRegular, policy.ErrNotFolder,
		policy.ErrSpecial, policy.ErrSymlink, policy.ErrForeign, policy.ErrWorkspace, file.ErrLocked,
	} {
		if errors.Is(err, known) {
			reason = known.Error()
		}
	}
	switch {
	case reason != "":
	case errors.Is(err, fs.ErrNotExist):
		reason = "no such file or folder"
	case errors.Is(err, fs.ErrPermission):
		reason = "permission denied"
	default:
		var p *fs.PathError
		if errors.As(err, &p) {
			err = p.Err
		}
		reason = strings.ToValidUTF8(err.Error(), "?")
	}
	return Failure(what + " failed: " + reason)
}

// readFacts are the facts of a tool that reads files, which are private and, as anybody may have written them,
// untrusted. about are the words of a question that calls for it.
func readFacts(args policy.Args, about ...string) policy.Tool {
	return policy.Tool{
		Act: policy.ActRead, Paths: []string{"path"}, Args: args, About: about,
		Effects: policy.Declare(policy.ReadsPrivate, policy.ReadsUntrusted), Timeout: 20 * time.Second,
		MaxArgs: 16 << 10,
	}
}

// writeFacts are the facts of a tool that writes a file, with arguments of at most maxArgs bytes.
func writeFacts(act policy.Act, args policy.Args, maxArgs int) policy.Tool {
	return policy.Tool{
		Act: act, Paths: []string{"path"}, Args: args, Preview: true, Keeps: true,
		Effects: policy.Declare(policy.Mutate), Timeout: 20 * time.Second, MaxArgs: maxArgs,
	}
}

// withFiles is [withArgs] for a tool whose errors, but for rejected arguments, are those of files.
func withFiles[A any](doing string, run func(ctx context.Context, c Call, args A) (string, error)) runFunc {
	return withArgs(func(ctx context.Context, c Call, args A) (Output, error) {
		s, err := run(ctx, c, args)
		if err != nil && !errors.Is(err, actor.ErrArguments) {
			err = fileFailure(doing, err)
		}
		return Output{Text: s}, err
	})
}
