package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"conclave/pkg/actor"
	"conclave/pkg/document"
	"conclave/subjects"
)

// exports are the files that are read back as exports. An export says itself what each entry is, so it must be meant: each
// was named, and nothing but exports was named beside it. What lies in a folder, or what a shell made of *, is not.
func (p *importing) exports(files []document.File) map[string]bool {
	out := map[string]bool{}
	for _, f := range files {
		if !p.isExport(f) {
			return nil
		}
		out[f.Path] = true
	}
	return out
}

// isExport reports whether a file that was named looks like an export: its name, and its first line.
func (p *importing) isExport(f document.File) bool {
	if !f.Given || !strings.EqualFold(filepath.Ext(f.Path), ".jsonl") {
		return false
	}
	is := false
	_ = entriesOf(f.Path, func(int, subjects.MemoryEntry) error { // one that cannot be read is none
		is = true
		return io.EOF
	})
	return is
}

// maxEntry is the longest line of an export: what does not fit into a message cannot be sent.
const maxEntry = subjects.MaxBody - 8<<10

// entriesOf reads an export line by line, strictly.
func entriesOf(path string, each func(line int, e subjects.MemoryEntry) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, maxEntry)
	n := 0
	for sc.Scan() {
		n++
		l := bytes.TrimSpace(sc.Bytes())
		if len(l) == 0 {
			continue
		}
		var e subjects.MemoryEntry
		if err := actor.DecodeStrict(l, &e); err != nil {
			return fmt.Errorf("line %d is no memory: %w", n, err)
		}
		if why := oddEntry(e); why != "" {
			return fmt.Errorf("line %d is no memory: %s", n, why)
		}
		if err := each(n, e); err != nil {
			return err
		}
	}
	if errors.Is(sc.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("line %d is longer than %s", n+1, size(maxEntry))
	}
	return sc.Err()
}

// oddEntry says what is wrong with an entry that no export can hold, "" when nothing is.
func oddEntry(e subjects.MemoryEntry) string {
	switch {
	case subjects.CheckToken(e.ID) != nil:
		return "it has no id"
	case !slices.Contains(memoryKinds, e.Kind):
		return "kind is " + strings.Join(memoryKinds, ", ")
	case !slices.Contains(memoryStates, e.State):
		return "state is " + strings.Join(memoryStates, ", ")
	case !slices.Contains(memoryTrust, e.Provenance.Trust):
		return "trust is " + strings.Join(memoryTrust, ", ")
	}
	return ""
}

// restore reads an export back. It is looked through first: half an export that ends in nonsense is not begun.
func (p *importing) restore(ctx context.Context, path string, r *imported) error {
	if err := entriesOf(path, func(int, subjects.MemoryEntry) error { return ctx.Err() }); err != nil {
		return err
	}
	var batch []subjects.MemoryEntry
	bytes := 0
	send := func() error {
		if len(batch) == 0 {
			return nil
		}
		w, err := p.write(ctx, subjects.MemoryWriteRequest{Entries: batch, Restore: true, Trusted: p.trusted})
		if err != nil {
			return err
		}
		r.took(w)
		batch, bytes = nil, 0
		return nil
	}
	err := entriesOf(path, func(_ int, e subjects.MemoryEntry) error {
		n := len(e.Corpus) + len(e.Description) + len(e.Name) + 2<<10
		if len(batch) == batchEntries || bytes+n > batchBytes {
			if err := send(); err != nil {
				return err
			}
		}
		batch, bytes = append(batch, e), bytes+n
		return nil
	})
	if err == nil {
		err = send()
	}
	r.State = fileRestored
	return err
}
