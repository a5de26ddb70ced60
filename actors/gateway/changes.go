package gateway

import (
	"context"
	"math"
	"net/http"
	"time"

	"conclave/subjects"
)

// undoTimeout is the timeout of a list of changes and of an undo.
const undoTimeout = 2 * time.Minute

// onChanges lists the changes by calls that can be undone, newest first; one with its differences when id names it.
func (g *Gateway) onChanges(ctx context.Context, r *http.Request) (any, error) {
	v := r.URL.Query()
	q := subjects.ChangeQuery{ChangeSelection: subjects.ChangeSelection{
		ID: v.Get("id"), Query: v.Get("query"), Session: v.Get("session"),
	}}
	var err error
	if q.Limit, err = parseNumber("limit", v.Get("limit"), 0, math.MaxInt32); err != nil {
		return nil, err
	}
	list, err := g.client.Changes(ctx, q)
	return object{
		{"changes", list.Changes}, {"more", list.More}, {"missing", append([]string{}, list.Missing...)},
	}, err
}

// onUndo plans an undo, does it, or removes what is kept of changes, as the user. What is not restored is in the reply.
func (g *Gateway) onUndo(ctx context.Context, _ *http.Request, in subjects.UndoRequest) (any, error) {
	reply, err := g.client.Undo(ctx, in)
	return object{
		{"done", reply.Done},
		{"id", reply.ID},
		{"plan", reply.Plan},
		{"changes", append([]string{}, reply.Changes...)},
		{"files", append([]subjects.UndoFile{}, reply.Files...)},
		{"refusals", append([]subjects.UndoRefusal{}, reply.Refusals...)},
		{"purged", reply.Purged},
	}, err
}
