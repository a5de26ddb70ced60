package gateway

import (
	"context"
	"errors"
	"net/http"
	"strconv"
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
	if text := v.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, malformedf("limit must be a number from 1")
		}
		q.Limit = n
	}
	list, err := g.client.Changes(ctx, q)
	if err != nil {
		return nil, mapBrokerFault(err)
	}
	return struct {
		Changes []subjects.Change `json:"changes"`
		More    bool              `json:"more"`
	}{list.Changes, list.More}, nil
}

// onUndo plans an undo, does it, or removes what is kept of changes, as the user. What is not restored is in the reply.
func (g *Gateway) onUndo(ctx context.Context, _ *http.Request, in subjects.UndoRequest) (any, error) {
	reply, err := g.client.Undo(ctx, in)
	var f *subjects.Fault
	switch {
	case errors.As(err, &f) && f.Code == subjects.CodeMalformed:
		return nil, malformedf("%s", f.Text)
	case err != nil:
		return nil, mapBrokerFault(err)
	}
	return struct {
		Done     bool                   `json:"done"`
		ID       string                 `json:"id"`
		Plan     string                 `json:"plan"`
		Changes  []string               `json:"changes"`
		Files    []subjects.UndoFile    `json:"files"`
		Refusals []subjects.UndoRefusal `json:"refusals"`
		Purged   int                    `json:"purged"`
	}{
		reply.Done, reply.ID, reply.Plan, append([]string{}, reply.Changes...),
		append([]subjects.UndoFile{}, reply.Files...), append([]subjects.UndoRefusal{}, reply.Refusals...),
		reply.Purged,
	}, nil
}
