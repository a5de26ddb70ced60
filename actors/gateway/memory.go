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

// adminMemory sends an administrative request to memory as the user. Errors are those of [explainMemory].
func (g *Gateway) adminMemory(ctx context.Context, q subjects.MemoryAdminRequest) (subjects.MemoryAdminReply, error) {
	got, err := g.client.AdminMemory(ctx, q)
	return got, explainMemory(err)
}

// explainMemory returns the problem of a memory that does not run or has failed, and any other err as it is.
func explainMemory(err error) error {
	var f *subjects.Fault
	switch {
	case !errors.As(err, &f):
	case f.Code == subjects.CodeUnavailable && !actor.IsReplyFault(err):
		return unavailablef("the memory actor is not running; start it with: conclave actor memory")
	case f.Code == subjects.CodeInternal:
		return problemf(http.StatusBadGateway, f.Code, "memory failed; see its log")
	}
	return err
}

// findEntry returns the memory whose id, or unambiguous id prefix, is in the request's path, with its whole text. It
// rejects an invalid id and one shorter than minIDPrefix; an unknown or ambiguous one is 404.
func (g *Gateway) findEntry(ctx context.Context, r *http.Request) (subjects.MemoryEntry, error) {
	id := r.PathValue("id")
	if len(id) < minIDPrefix {
		return subjects.MemoryEntry{}, malformedf("the memory's id: at least %d characters are required", minIDPrefix)
	}
	e, err := g.client.ShowMemory(ctx, id)
	var f *subjects.Fault
	var ambiguous *client.AmbiguousError
	switch {
	case errors.As(err, &f) && f.Code == subjects.CodeMalformed: // not found or ambiguous; the fault's text says which
		return e, notFoundf("%s", f.Text)
	case errors.Is(err, client.ErrNotFound), errors.As(err, &ambiguous):
		return e, notFoundf("memory %s not found; GET /memory lists the entries", id)
	}
	return e, explainMemory(err)
}

// checkChoice rejects a parameter value that is not one of words. An empty value is accepted.
func checkChoice(name, v string, words ...string) error {
	if v == "" || slices.Contains(words, v) {
		return nil
	}
	return malformedf("%s must be one of %s", name, strings.Join(words, ", "))
}

// checkFlag rejects a value of the parameter name other than 0, 1 and "".
func checkFlag(name, v string) error {
	if v == "" || v == "0" || v == "1" {
		return nil
	}
	return malformedf("%s must be 0 or 1", name)
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
		checkChoice("trust", v.Get("trust"), client.MemoryTrust...), checkFlag("whole", v.Get("whole"))); err != nil {
		return nil, err
	}
	got, err := g.adminMemory(ctx, subjects.MemoryAdminRequest{
		Op: "list", Kind: v.Get("kind"), State: v.Get("state"), Trust: v.Get("trust"), Tag: v.Get("tag"),
		From: v.Get("from"), Text: v.Get("text"),
		Limit: limit, After: v.Get("after"), Whole: v.Get("whole") == "1",
	})
	return object{{"entries", got.Entries}, {"next", got.Next}}, err
}

// onRecall searches memory with the ranking that the assistant gets. It rejects an empty q, and max beyond maxHits;
// without max memory decides the number of hits. A reply that ends early is 502.
func (g *Gateway) onRecall(ctx context.Context, r *http.Request) (any, error) {
	v := r.URL.Query()
	most, err := parseNumber("max", v.Get("max"), 0, maxHits)
	if err := cmp.Or(err, checkChoice("kind", v.Get("kind"), client.MemoryKinds...), checkFlag("all", v.Get("all")),
		checkFlag("whole", v.Get("whole")), checkFlag("fresh", v.Get("fresh"))); err != nil {
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
	if errors.Is(err, client.ErrIncomplete) {
		return nil, problemf(http.StatusBadGateway, subjects.CodeUnavailable, "incomplete reply from memory; retry")
	}
	return object{
		{"hits", last.Hits},
		{"cached", last.Cached},
		{"notes", append([]subjects.Note{}, last.Notes...)},
		{"ms", last.Millis},
	}, explainMemory(err)
}

// onMemory returns one memory with its correlated entries, [] when there are none. Errors are those of
// [Gateway.findEntry].
func (g *Gateway) onMemory(ctx context.Context, r *http.Request) (any, error) {
	e, err := g.findEntry(ctx, r)
	if err != nil {
		return nil, err
	}
	others, err := g.client.RelatedMemories(ctx, e)
	return object{{"entry", e}, {"correlated", others}}, explainMemory(err)
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
	return object{{"relations", append([]subjects.Relation{}, got.Relations...)}}, err
}

// onMemoryStatus returns the size and search mode of memory.
func (g *Gateway) onMemoryStatus(ctx context.Context, _ *http.Request) (any, error) {
	got, err := g.adminMemory(ctx, subjects.MemoryAdminRequest{Op: "status"})
	if err == nil && got.Status == nil {
		err = problemf(http.StatusBadGateway, subjects.CodeInternal, "no status in the reply of memory; see its log")
	}
	return got.Status, err
}
