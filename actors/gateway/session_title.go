package gateway

import (
	"context"
	"errors"
	"net/http"

	"conclave/pkg/actor"
)

// titleBucket has the titles that the user gave to sessions, by session id.
const titleBucket = "sessions"

// Title is the body of PATCH /sessions/{id}.
type Title struct {
	Title string `json:"title"`
}

// onRename gives a session a title; an empty one restores the beginning of its first question. An unknown session is 404.
func (g *Gateway) onRename(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	if err := checkID("the session id", id); err != nil {
		return err
	}
	if _, err := parseParams(r); err != nil {
		return err
	}
	var in Title
	if err := g.readBody(w, r, &in); err != nil {
		return err
	}
	in.Title = makeTitle(in.Title)
	ctx, cancel := g.withTimeout(r.Context(), lookupTimeout)
	defer cancel()
	if _, err := g.client.Session(ctx, id); err != nil {
		return g.mapSessionError(ctx, id, err)
	}
	if err := g.storeTitle(ctx, id, in.Title); err != nil {
		return storeFault(g.out, titleBucket, err)
	}
	g.writeJSON(w, http.StatusOK, struct {
		SessionID string `json:"session_id"`
		Title     string `json:"title"`
	}{id, in.Title})
	return nil
}

// storeTitle stores the title of a session; "" removes it. The last of concurrent changes wins.
func (g *Gateway) storeTitle(ctx context.Context, session, title string) error {
	titles := g.out.Store(titleBucket)
	for {
		_, revision, err := titles.Get(ctx, session)
		switch {
		case errors.Is(err, actor.ErrNotFound) && title == "":
			return nil
		case err != nil && !errors.Is(err, actor.ErrNotFound):
			return err
		}
		if _, err = titles.Put(ctx, session, []byte(title), revision); !errors.Is(err, actor.ErrChanged) {
			return err
		}
	}
}

// readTitles returns the titles that the user gave, by session id. Without the bucket there are none, and the list of sessions
// shows their questions.
func (g *Gateway) readTitles(ctx context.Context) map[string]string {
	out := map[string]string{}
	titles := g.out.Store(titleBucket)
	keys, err := titles.Keys(ctx, "")
	if err != nil {
		g.out.LogError(err)
		return out
	}
	for _, key := range keys {
		title, _, err := titles.Get(ctx, key)
		if err == nil && len(title) > 0 {
			out[key] = string(title)
		}
	}
	return out
}
