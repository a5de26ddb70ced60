package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"time"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// typeNDJSON is the content type of an export: one JSON object on each line.
const typeNDJSON = "application/x-ndjson"

// Limits of an import in bytes, and of one request to memory.
const (
	maxImport    = 8 << 20
	batchEntries = 64
	batchBytes   = 256 << 10
)

// onExport writes every memory as a line of JSON, page by page, with smaller pages when entries are long. An error after the
// first page aborts the connection, so that the client does not take a partial export for a complete one. It counts as a
// stream; when too many are open it is rejected with 429.
func (g *Gateway) onExport(w http.ResponseWriter, r *http.Request) error {
	if _, err := parseParams(r); err != nil {
		return err
	}
	leave, err := acquireSlot(g.slots.streams, "streams are open")
	if err != nil {
		return err
	}
	defer leave()
	q := subjects.MemoryAdminRequest{Op: "list", Whole: true, Limit: defaultPage}
	started := false
	for {
		var fault *subjects.Fault
		page, err := g.adminMemory(r, q)
		switch {
		case errors.As(err, &fault) && fault.Code == subjects.CodeTooLarge && q.Limit > 1: // long entries: retry with a smaller page
			q.Limit /= 2
			continue
		case err == nil && page.Next != "" && (page.Next == q.After || len(page.Entries) == 0):
			err = problemf(http.StatusBadGateway, subjects.CodeInternal, "invalid cursor in the reply of memory; see its log")
		}
		if err == nil {
			err = g.writeEntries(w, page.Entries, !started)
			started = true
		}
		switch {
		case err != nil && started:
			g.abortResponse(w, fmt.Errorf("exporting memory: %w", err))
			return nil
		case err != nil:
			return err
		case page.Next == "":
			return nil
		}
		q.After = page.Next
	}
}

// writeEntries writes and flushes one page of an export, a JSON object per line; first writes the response header before it.
func (g *Gateway) writeEntries(w http.ResponseWriter, entries []subjects.MemoryEntry, first bool) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	for _, e := range entries {
		if err := enc.Encode(e); err != nil {
			return err
		}
	}
	rc := http.NewResponseController(w)
	if err := rc.SetWriteDeadline(time.Now().Add(3 * g.cfg.WriteTimeout)); err != nil {
		return err
	}
	if first {
		w.Header().Set("Content-Type", typeNDJSON)
		w.Header().Set("Content-Disposition", `attachment; filename="memory.jsonl"`)
		w.WriteHeader(http.StatusOK)
	}
	if _, err := w.Write(b.Bytes()); err != nil {
		return err
	}
	return rc.Flush()
}

// abortResponse logs cause and closes the connection, so that the client sees an incomplete response.
func (g *Gateway) abortResponse(w http.ResponseWriter, cause error) {
	g.out.LogError(cause)
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		conn.Close()
	}
}

// Imported is the response of POST /memory/import.
type Imported struct {
	Entries int            `json:"entries"`
	Actions map[string]int `json:"actions"` // number of entries by action: stored, unchanged, refused
	Refused []Refused      `json:"refused"`
}

// Refused is an entry that memory did not store.
type Refused struct {
	ID  string `json:"id"`
	Why string `json:"why"`
}

// onImport restores an export. Every line is validated before the first is sent to memory. Entries are stored as untrusted
// unless trusted is 1. Entries that memory refuses are listed in the response. An error between batches leaves the earlier
// ones stored.
func (g *Gateway) onImport(w http.ResponseWriter, r *http.Request) error {
	v, err := parseParams(r, "trusted")
	if err != nil {
		return err
	}
	if !slices.Contains([]string{"", "0", "1"}, v.Get("trusted")) {
		return problemf(http.StatusBadRequest, subjects.CodeMalformed, "trusted must be 0 or 1")
	}
	leave, err := acquireSlot(g.slots.streams, "streams are open")
	if err != nil {
		return err
	}
	defer leave()
	entries, err := g.readEntries(w, r)
	if err != nil {
		return err
	}
	done := Imported{Entries: len(entries), Actions: map[string]int{}, Refused: []Refused{}}
	for len(entries) > 0 {
		n := countBatch(entries)
		got, err := g.writeMemory(r, subjects.MemoryWriteRequest{Entries: entries[:n], Restore: true, Trusted: v.Get("trusted") == "1"})
		if err != nil {
			if stored := done.Entries - len(entries); stored > 0 {
				g.out.LogError(fmt.Errorf("importing memory: stopped after %d of %d entries: %w", stored, done.Entries, err))
			}
			return err
		}
		for _, res := range got.Results {
			done.Actions[res.Action]++
			if res.Action == actionRefused {
				done.Refused = append(done.Refused, Refused{res.ID, res.Why})
			}
		}
		entries = entries[n:]
	}
	g.writeJSON(w, http.StatusOK, done)
	return nil
}

// countBatch returns how many of the first entries fit into one request, by batchEntries and batchBytes: at least one, and 0
// only for no entries.
func countBatch(entries []subjects.MemoryEntry) int {
	size := 0
	for i, e := range entries {
		if size += len(e.Corpus) + len(e.Description) + len(e.Name) + 2<<10; i > 0 && (i == batchEntries || size > batchBytes) {
			return i
		}
	}
	return len(entries)
}

// readEntries decodes an export strictly, a JSON object per line; errors name the line. It rejects a body longer than
// maxImport, other content types, an encoded body, a line longer than [subjects.MaxBody], an invalid entry, and a body
// without entries.
func (g *Gateway) readEntries(w http.ResponseWriter, r *http.Request) ([]subjects.MemoryEntry, error) {
	types := r.Header.Values("Content-Type")
	if len(types) != 1 || !isNDJSON(types[0]) || r.Header.Get("Content-Encoding") != "" {
		return nil, problemf(http.StatusUnsupportedMediaType, subjects.CodeCodec, "unsupported content type; send Content-Type: %s without Content-Encoding", typeNDJSON)
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(6 * g.bodyTimeout)) // larger than other bodies
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxImport))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, problemf(http.StatusRequestEntityTooLarge, subjects.CodeTooLarge, "body too large; at most %d MB. Import larger files with: conclave memory import", maxImport>>20)
	case err != nil:
		w.Header().Set("Connection", "close")
		return nil, problemf(http.StatusBadRequest, subjects.CodeMalformed, "incomplete body, or timeout")
	}
	_ = rc.SetReadDeadline(time.Time{}) // the deadline is for the body only
	var out []subjects.MemoryEntry
	n := 0
	for line := range bytes.Lines(data) {
		n++
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		if len(line) > subjects.MaxBody {
			return nil, problemf(http.StatusRequestEntityTooLarge, subjects.CodeTooLarge, "line %d: too large; at most %d KB", n, subjects.MaxBody>>10)
		}
		var e subjects.MemoryEntry
		if err := actor.DecodeStrict(line, &e); err != nil {
			return nil, problemf(http.StatusBadRequest, subjects.CodeMalformed, "line %d: %v", n, err)
		}
		if why := describeInvalidEntry(e); why != "" {
			return nil, problemf(http.StatusBadRequest, subjects.CodeMalformed, "line %d: %s", n, why)
		}
		out = append(out, e)
	}
	if len(out) == 0 {
		return nil, problemf(http.StatusBadRequest, subjects.CodeMalformed, "no entries; send one JSON object on each line")
	}
	return out, nil
}

// isNDJSON reports whether contentType is one of newline-delimited JSON.
func isNDJSON(contentType string) bool {
	base, _, err := mime.ParseMediaType(contentType)
	return err == nil && (base == typeNDJSON || base == "application/jsonl")
}

// describeInvalidEntry returns what is wrong with id, kind, state or trust of an imported entry, "" when they are valid.
// Memory itself checks the rest.
func describeInvalidEntry(e subjects.MemoryEntry) string {
	switch {
	case subjects.CheckToken(e.ID) != nil:
		return "id is missing or invalid"
	case !slices.Contains(memoryKinds, e.Kind):
		return "kind must be engram, fact or document"
	case !slices.Contains(memoryStates, e.State):
		return "state must be active, candidate or superseded"
	case !slices.Contains(memoryTrust, e.Provenance.Trust):
		return "trust must be trusted or untrusted"
	}
	return ""
}
