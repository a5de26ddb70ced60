package gateway

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/client"
	"conclave/subjects"
)

// memoryTimeout is the timeout of a request to memory that stores nothing.
const memoryTimeout = time.Minute

// minIDPrefix is the shortest prefix of a memory id that is accepted.
const minIDPrefix = 6

// Limits of a list, and of the text of a fact in bytes.
const (
	defaultPage = client.MemoryPage
	maxPage     = 500
	maxHits     = 20
	maxFact     = 64 << 10
)

// adminMemory sends an administrative request to memory as the user. Errors are those of [mapMemoryFault].
func (g *Gateway) adminMemory(ctx context.Context, q subjects.MemoryAdminRequest) (subjects.MemoryAdminReply, error) {
	got, err := g.client.AdminMemory(ctx, q)
	return got, mapMemoryFault(ctx, err)
}

// mapMemoryFault converts an error of a memory request to the problem for the client, nil for nil; ctx is the context
// of the request. It is errClosing when the gateway stops. Errors that are not faults, and faults that need no other
// text or status, are returned unchanged.
func mapMemoryFault(ctx context.Context, err error) error {
	var f *subjects.Fault
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), errClosing):
		return errClosing
	case !errors.As(err, &f):
		return err
	}
	switch f.Code {
	case subjects.CodeUnavailable:
		if !actor.IsReplyFault(err) {
			return problemf(http.StatusServiceUnavailable, f.Code, "the memory actor is not running; start it with: "+
				"conclave actor memory")
		}
	case subjects.CodeNoAudit, subjects.CodeUnrecorded:
		return problemf(http.StatusServiceUnavailable, f.Code, "%s", f.Text)
	case subjects.CodeExpired:
		return problemf(http.StatusGatewayTimeout, f.Code, "%s", f.Text)
	case subjects.CodeInternal:
		return problemf(http.StatusBadGateway, f.Code, "memory failed; see its log")
	}
	return err
}

// findEntry returns the memory whose id, or unambiguous id prefix, is in the request's path, with its whole text. It
// rejects an invalid id and one shorter than minIDPrefix; an unknown or ambiguous one is 404.
func (g *Gateway) findEntry(ctx context.Context, r *http.Request) (subjects.MemoryEntry, error) {
	var none subjects.MemoryEntry
	id := r.PathValue("id")
	if err := checkID("the memory's id", id); err != nil {
		return none, err
	}
	if len(id) < minIDPrefix {
		return none, malformedf("the memory's id: at least %d characters are required", minIDPrefix)
	}
	e, err := g.client.ShowMemory(ctx, id)
	var f *subjects.Fault
	var ambiguous *client.AmbiguousError
	switch {
	case errors.As(err, &f) && f.Code == subjects.CodeMalformed: // not found or ambiguous; the fault's text says which
		return none, notFoundf("%s", f.Text)
	case errors.Is(err, client.ErrNotFound), errors.As(err, &ambiguous):
		return none, notFoundf("memory %s not found; GET /memory lists the entries", id)
	}
	return e, mapMemoryFault(ctx, err)
}

// checkChoice rejects a parameter value that is not one of words. An empty value is accepted.
func checkChoice(name, v string, words ...string) error {
	if v == "" || slices.Contains(words, v) {
		return nil
	}
	return malformedf("%s must be one of %s", name, strings.Join(words, ", "))
}

// parseNumber parses the value v of the parameter name. It rejects everything but a number from 1 to most; usual is the
// value of an empty one and need not be in that range.
func parseNumber(name, v string, usual, most int) (int, error) {
	if v == "" {
		return usual, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > most {
		return 0, malformedf("%s must be a number from 1 to %d", name, most)
	}
	return n, nil
}

// onMemories lists one page of memories, newest first, with the cursor of the next page. It rejects unknown values of
// kind, state, trust and whole, and a limit beyond maxPage.
func (g *Gateway) onMemories(ctx context.Context, r *http.Request) (any, error) {
	v := r.URL.Query()
	limit, err := parseNumber("limit", v.Get("limit"), defaultPage, maxPage)
	if err := cmp.Or(err, checkChoice("kind", v.Get("kind"), client.MemoryKinds...),
		checkChoice("state", v.Get("state"), client.MemoryStates...),
		checkChoice("trust", v.Get("trust"), client.MemoryTrust...), checkChoice("whole", v.Get("whole"), "0",
			"1")); err != nil {
		return nil, err
	}
	got, err := g.adminMemory(ctx, subjects.MemoryAdminRequest{
		Op: "list", Kind: v.Get("kind"), State: v.Get("state"), Trust: v.Get("trust"), Tag: v.Get("tag"),
		From: v.Get("from"), Text: v.Get("text"),
		Limit: limit, After: v.Get("after"), Whole: v.Get("whole") == "1",
	})
	if err != nil {
		return nil, err
	}
	return struct {
		Entries []subjects.MemoryEntry `json:"entries"`
		Next    string                 `json:"next"` // cursor of the next page; "": this is the last one
	}{got.Entries, got.Next}, nil
}

// onRecall searches memory with the ranking that the assistant gets. It rejects an empty q, and max beyond maxHits;
// without max memory decides the number of hits. A reply that ends early is 502.
func (g *Gateway) onRecall(ctx context.Context, r *http.Request) (any, error) {
	v := r.URL.Query()
	most, err := parseNumber("max", v.Get("max"), 0, maxHits)
	if err := cmp.Or(err, checkChoice("kind", v.Get("kind"), client.MemoryKinds...),
		checkChoice("whole", v.Get("whole"), "0", "1"), checkChoice("fresh", v.Get("fresh"), "0", "1"),
		checkChoice("all", v.Get("all"), "0", "1")); err != nil {
		return nil, err
	}
	q := subjects.MemoryQuery{
		Query: strings.TrimSpace(v.Get("q")), Max: most, Kind: v.Get("kind"),
		Whole: v.Get("whole") == "1", Fresh: v.Get("fresh") == "1", All: v.Get("all") == "1",
	}
	if q.Query == "" {
		return nil, malformedf("q is required: the text to search for")
	}
	last, err := g.client.SearchMemory(ctx, q)
	switch {
	case errors.Is(err, client.ErrIncomplete):
		return nil, problemf(http.StatusBadGateway, subjects.CodeUnavailable, "incomplete reply from memory; retry")
	case err != nil:
		return nil, mapMemoryFault(ctx, err)
	}
	return struct {
		Hits   []subjects.MemoryHit `json:"hits"`
		Cached bool                 `json:"cached"`
		Notes  []subjects.Note      `json:"notes"`
		Millis float64              `json:"ms"`
	}{last.Hits, last.Cached, append([]subjects.Note{}, last.Notes...), last.Millis}, nil
}

// onMemory returns one memory with its correlated entries, [] when there are none. Errors are those of
// [Gateway.findEntry].
func (g *Gateway) onMemory(ctx context.Context, r *http.Request) (any, error) {
	e, err := g.findEntry(ctx, r)
	if err != nil {
		return nil, err
	}
	others, err := g.client.RelatedMemories(ctx, e)
	if err != nil {
		return nil, mapMemoryFault(ctx, err)
	}
	return struct {
		Entry      subjects.MemoryEntry   `json:"entry"`
		Correlated []subjects.MemoryEntry `json:"correlated"`
	}{e, others}, nil
}

// onGraph lists relations of the knowledge graph that match q, any when it is empty; at most limit, which is at most
// maxPage.
func (g *Gateway) onGraph(ctx context.Context, r *http.Request) (any, error) {
	v := r.URL.Query()
	limit, err := parseNumber("limit", v.Get("limit"), defaultPage, maxPage)
	if err != nil {
		return nil, err
	}
	graph := subjects.MemoryAdminRequest{Op: "graph", Query: strings.TrimSpace(v.Get("q")), Limit: limit}
	got, err := g.adminMemory(ctx, graph)
	if err != nil {
		return nil, err
	}
	return struct {
		Relations []subjects.Relation `json:"relations"`
	}{append([]subjects.Relation{}, got.Relations...)}, nil
}

// onMemoryStatus returns the size and search mode of memory.
func (g *Gateway) onMemoryStatus(ctx context.Context, _ *http.Request) (any, error) {
	got, err := g.adminMemory(ctx, subjects.MemoryAdminRequest{Op: "status"})
	switch {
	case err != nil:
		return nil, err
	case got.Status == nil:
		return nil, problemf(http.StatusBadGateway, subjects.CodeInternal,
			"no status in the reply of memory; see its log")
	}
	return got.Status, nil
}
