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

// typeLines is the content type of an export: a JSON object on each line.
const typeLines = "application/x-ndjson"

// Bounds of an import, and of what of it goes into one message.
const (
	maxImport    = 8 << 20
	batchEntries = 64
	batchBytes   = 256 << 10
)

// onExport writes every memory as a line, page by page.
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
	begun := false
	for {
		var fault *subjects.Fault
		page, err := g.adminMemory(r, q)
		switch {
		case errors.As(err, &fault) && fault.Code == subjects.CodeTooLarge && q.Limit > 1: // long ones: fewer of them
			q.Limit /= 2
			continue
		case err == nil && page.Next != "" && (page.Next == q.After || len(page.Entries) == 0):
			err = problemf(http.StatusBadGateway, subjects.CodeInternal, "memory's list has no end; its log says why")
		}
		if err == nil {
			err = g.writeLines(w, page.Entries, !begun)
			begun = true
		}
		switch {
		case err != nil && begun:
			g.cutOff(w, fmt.Errorf("exporting memory: %w", err))
			return nil
		case err != nil:
			return err
		case page.Next == "":
			return nil
		}
		q.After = page.Next
	}
}

func (g *Gateway) writeLines(w http.ResponseWriter, entries []subjects.MemoryEntry, first bool) error {
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
		w.Header().Set("Content-Type", typeLines)
		w.Header().Set("Content-Disposition", `attachment; filename="memory.jsonl"`)
		w.WriteHeader(http.StatusOK)
	}
	if _, err := w.Write(b.Bytes()); err != nil {
		return err
	}
	return rc.Flush()
}

// cutOff ends an answer in the middle so that the client sees that it is not whole.
func (g *Gateway) cutOff(w http.ResponseWriter, why error) {
	g.out.LogError(why)
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		conn.Close()
	}
}

// Imported is what POST /memory/import answers.
type Imported struct {
	Entries int            `json:"entries"`
	Actions map[string]int `json:"actions"` // how many were stored, unchanged, refused
	Refused []Refused      `json:"refused"`
}

// Refused is an entry that memory did not take.
type Refused struct {
	ID  string `json:"id"`
	Why string `json:"why"`
}

// onImport reads an export back. All of it is looked at before the first line is sent.
func (g *Gateway) onImport(w http.ResponseWriter, r *http.Request) error {
	v, err := parseParams(r, "trusted")
	if err != nil {
		return err
	}
	if !slices.Contains([]string{"", "0", "1"}, v.Get("trusted")) {
		return problemf(http.StatusBadRequest, subjects.CodeMalformed, "trusted is 0 or 1")
	}
	leave, err := acquireSlot(g.slots.streams, "streams are open")
	if err != nil {
		return err
	}
	defer leave()
	entries, err := g.readLines(w, r)
	if err != nil {
		return err
	}
	done := Imported{Entries: len(entries), Actions: map[string]int{}, Refused: []Refused{}}
	for len(entries) > 0 {
		n := batch(entries)
		got, err := g.writeMemory(r, subjects.MemoryWriteRequest{Entries: entries[:n], Restore: true, Trusted: v.Get("trusted") == "1"})
		if err != nil {
			if some := done.Entries - len(entries); some > 0 {
				g.out.LogError(fmt.Errorf("an import ended after %d of %d entries: %w", some, done.Entries, err))
			}
			return err
		}
		for _, res := range got.Results {
			done.Actions[res.Action]++
			if res.Action == refused {
				done.Refused = append(done.Refused, Refused{res.ID, res.Why})
			}
		}
		entries = entries[n:]
	}
	g.writeJSON(w, http.StatusOK, done)
	return nil
}

// batch is how many entries go into one message, at least one.
func batch(entries []subjects.MemoryEntry) int {
	size := 0
	for i, e := range entries {
		if size += len(e.Corpus) + len(e.Description) + len(e.Name) + 2<<10; i > 0 && (i == batchEntries || size > batchBytes) {
			return i
		}
	}
	return len(entries)
}

// readLines reads an export strictly.
func (g *Gateway) readLines(w http.ResponseWriter, r *http.Request) ([]subjects.MemoryEntry, error) {
	types := r.Header.Values("Content-Type")
	if len(types) != 1 || !isLines(types[0]) || r.Header.Get("Content-Encoding") != "" {
		return nil, problemf(http.StatusUnsupportedMediaType, subjects.CodeCodec, "send the header Content-Type: %s, and the body as it is", typeLines)
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(6 * g.bodyTimeout)) // it is larger than other bodies
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxImport))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, problemf(http.StatusRequestEntityTooLarge, subjects.CodeTooLarge, "at most %d MB; conclave memory import takes more", maxImport>>20)
	case err != nil:
		w.Header().Set("Connection", "close")
		return nil, problemf(http.StatusBadRequest, subjects.CodeMalformed, "the body did not come whole, or not in time")
	}
	_ = rc.SetReadDeadline(time.Time{}) // from now on only its end is waited for
	var out []subjects.MemoryEntry
	n := 0
	for line := range bytes.Lines(data) {
		n++
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		if len(line) > subjects.MaxBody {
			return nil, problemf(http.StatusRequestEntityTooLarge, subjects.CodeTooLarge, "line %d: a line has at most %d KB", n, subjects.MaxBody>>10)
		}
		var e subjects.MemoryEntry
		if err := actor.DecodeStrict(line, &e); err != nil {
			return nil, problemf(http.StatusBadRequest, subjects.CodeMalformed, "line %d: %v", n, err)
		}
		if why := oddEntry(e); why != "" {
			return nil, problemf(http.StatusBadRequest, subjects.CodeMalformed, "line %d: %s", n, why)
		}
		out = append(out, e)
	}
	if len(out) == 0 {
		return nil, problemf(http.StatusBadRequest, subjects.CodeMalformed, "there is no memory in it: send one JSON object on each line")
	}
	return out, nil
}

func isLines(contentType string) bool {
	base, _, err := mime.ParseMediaType(contentType)
	return err == nil && (base == typeLines || base == "application/jsonl")
}

// oddEntry says what is wrong with an entry that no export can hold, "" when nothing is.
func oddEntry(e subjects.MemoryEntry) string {
	switch {
	case subjects.CheckToken(e.ID) != nil:
		return "it has no id"
	case !slices.Contains(memoryKinds, e.Kind):
		return "kind is engram, fact or document"
	case !slices.Contains(memoryStates, e.State):
		return "state is active, candidate or superseded"
	case !slices.Contains(memoryTrust, e.Provenance.Trust):
		return "trust is trusted or untrusted"
	}
	return ""
}
