package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"conclave/pkg/client"
	"conclave/subjects"
)

// typeNDJSON is the content type of an export: one JSON object on each line.
const typeNDJSON = "application/x-ndjson"

// maxImport is the largest import, in bytes.
const maxImport = 8 << 20

// onExport writes every memory as a line of JSON, page by page, with smaller pages when entries are long. An error
// after the first page aborts the connection, so that the client does not take a partial export for a complete one. It
// counts as a stream; when too many are open it is rejected with 429.
func (g *Gateway) onExport(w http.ResponseWriter, r *http.Request) error {
	leave, err := acquireSlot(g.slots.streams, "streams are open")
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := g.withTimeout(r.Context(), noTimeout)
	defer cancel()
	started := false
	for page, err := range g.client.MemoryPages(ctx, subjects.MemoryAdminRequest{Op: "list", Whole: true}, 0) {
		switch {
		case errors.Is(err, client.ErrCursor):
			err = problemf(http.StatusBadGateway, subjects.CodeInternal, "invalid cursor in the reply of memory; see "+
				"its log")
		case err != nil:
			err = g.explainEnd(ctx, explainMemory(err))
		default:
			err = g.writeEntries(w, page.Entries, !started)
			started = true
		}
		switch {
		case err != nil && started:
			g.abortResponse(w, fmt.Errorf("exporting memory: %w", err))
			return nil
		case err != nil:
			return err
		}
	}
	return nil
}

// writeEntries writes and flushes one page of an export, a JSON object per line; first writes the response header
// before it.
func (g *Gateway) writeEntries(w http.ResponseWriter, entries []subjects.MemoryEntry, first bool) error {
	var b bytes.Buffer
	if err := client.WriteExport(&b, entries); err != nil {
		return err
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

// onImport restores an export. Every line is validated before the first is sent to memory. Entries are stored as
// untrusted unless trusted is 1. Entries that memory refuses are listed in the response. An error between batches
// leaves the earlier ones stored.
func (g *Gateway) onImport(w http.ResponseWriter, r *http.Request) error {
	trusted := r.URL.Query().Get("trusted")
	if err := checkFlag("trusted", trusted); err != nil {
		return err
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
	store := func(ctx context.Context, _ *http.Request) (any, error) {
		got, err := g.client.RestoreMemories(ctx, client.EachEntry(entries), trusted == "1")
		if err != nil && len(got.Results) > 0 {
			g.out.LogError(fmt.Errorf("importing memory: stopped after %d of %d entries: %w", len(got.Results),
				len(entries), err))
		}
		actions, refused := map[string]int{}, []object{}
		for _, res := range got.Results {
			actions[res.Action]++
			if res.Action == actionRefused {
				refused = append(refused, object{{"id", res.ID}, {"why", res.Why}})
			}
		}
		return object{{"entries", len(entries)}, {"actions", actions}, {"refused", refused}}, explainMemory(err)
	}
	// stored even when the client disconnects
	return g.respond(noTimeout, store)(w, r.WithContext(context.WithoutCancel(r.Context())))
}

// readEntries decodes an export strictly, a JSON object per line; errors name the line. It rejects a body longer than
// maxImport, other content types, an encoded body, a line longer than [client.MaxExportLine], an invalid entry, and a
// body without entries.
func (g *Gateway) readEntries(w http.ResponseWriter, r *http.Request) ([]subjects.MemoryEntry, error) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(6 * g.bodyTimeout)) // larger than other bodies
	data, err := g.readLimited(w, r, maxImport, typeNDJSON, "application/jsonl")
	if p := toProblem(err); p != nil && p.status == http.StatusRequestEntityTooLarge {
		return nil, tooLargef("body too large; at most %d MB. Import larger files with: conclave memory import",
			maxImport>>20)
	}
	if err != nil {
		return nil, err
	}
	var out []subjects.MemoryEntry
	for e, err := range client.ReadExport(bytes.NewReader(data)) {
		var line *client.LineError
		switch {
		case errors.As(err, &line) && line.TooLong:
			return nil, tooLargef("line %d: too large; at most %d KB", line.Line, client.MaxExportLine>>10)
		case errors.As(err, &line):
			return nil, malformedf("line %d: %v", line.Line, line.Err)
		case err != nil:
			return nil, err
		}
		out = append(out, e)
	}
	if len(out) == 0 {
		return nil, malformedf("no entries; send one JSON object on each line")
	}
	return out, nil
}
