package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"net/http"
	"sync"

	"conclave/pkg/actor"
	"conclave/pkg/client"
	"conclave/subjects"
)

// noteBucket has what the user noted about sessions, by session id.
const noteBucket = "sessions"

// sessionNote is what the user noted about a session, and the title that a model wrote.
type sessionNote struct {
	Title      string `json:"title,omitempty"` // "": ModelTitle, or the beginning of the first question
	ModelTitle string `json:"model_title,omitempty"`
	Pinned     bool   `json:"pinned,omitempty"`
	Archived   bool   `json:"archived,omitempty"` // not in the list of the page unless the user looks for it
}

// title returns the title of a session, "" when it has only its first question.
func (n sessionNote) title() string { return cmp.Or(n.Title, n.ModelTitle) }

// describe adds the note to the line of its session in a list.
func (n sessionNote) describe(s *Session) {
	s.Title, s.Pinned, s.Archived = cmp.Or(n.title(), s.Title), n.Pinned, n.Archived
}

// titleOf returns the title of a conversation as the list of sessions has it.
func (g *Gateway) titleOf(ctx context.Context, c subjects.Conversation) string {
	s := describeSession(client.Summarize(c))
	g.readNotes(ctx)[c.SessionID].describe(&s)
	return s.Title
}

// SessionPatch is the body of PATCH /sessions/{id}. A field that is left out is not changed.
type SessionPatch struct {
	Title    *string `json:"title"`
	Pinned   *bool   `json:"pinned"`
	Archived *bool   `json:"archived"`
}

// onSessionPatch gives a session a title, pins or archives it; an empty title restores the one that a model wrote, or
// the beginning of its first question. An unknown session is 404.
func (g *Gateway) onSessionPatch(ctx context.Context, r *http.Request, in SessionPatch) (any, error) {
	id := r.PathValue("id")
	if in.Title == nil && in.Pinned == nil && in.Archived == nil {
		return nil, malformedf("title, pinned or archived is required")
	}
	if _, err := g.client.Session(ctx, id); err != nil {
		return nil, explainSession(id, err)
	}
	note, err := g.storeNote(ctx, id, func(n sessionNote) sessionNote {
		if in.Title != nil {
			n.Title = makeTitle(*in.Title)
		}
		if in.Pinned != nil {
			n.Pinned = *in.Pinned
		}
		if in.Archived != nil {
			n.Archived = *in.Archived
		}
		return n
	})
	if err != nil {
		return nil, storeFault(g.out, noteBucket, err)
	}
	return object{
		{"session_id", id}, {"title", note.title()}, {"pinned", note.Pinned}, {"archived", note.Archived},
	}, nil
}

// storeNote stores what change makes of the note of a session, and returns it. The empty note removes what is stored.
func (g *Gateway) storeNote(ctx context.Context, session string, change func(sessionNote) sessionNote) (sessionNote,
	error,
) {
	notes := g.out.Store(noteBucket)
	for {
		data, revision, err := notes.Get(ctx, session)
		if err != nil && !errors.Is(err, actor.ErrNotFound) {
			return sessionNote{}, err
		}
		note := change(decodeNote(data))
		if note == (sessionNote{}) && err != nil {
			return note, nil
		}
		var changed []byte
		if note != (sessionNote{}) {
			if changed, err = json.Marshal(note); err != nil {
				return note, err
			}
		}
		if _, err = notes.Put(ctx, session, changed, revision); !errors.Is(err, actor.ErrChanged) {
			return note, err
		}
	}
}

// decodeNote returns a stored note. Earlier versions stored the title alone, as text.
func decodeNote(data []byte) sessionNote {
	var n sessionNote
	if len(data) > 0 && json.Unmarshal(data, &n) != nil {
		return sessionNote{Title: string(data)}
	}
	return n
}

// noteIndex has the notes of the user by session id, as of the last list of sessions.
type noteIndex struct {
	mu   sync.Mutex
	next uint64 // sequence of the bucket that was not read yet; 0 = none was
	all  map[string]sessionNote
}

// readNotes returns the notes of the user, by session id. It reads those that changed since the last call. Without the
// bucket there are none, and the list of sessions shows their questions.
func (g *Gateway) readNotes(ctx context.Context) map[string]sessionNote {
	x := &g.notes
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.all == nil {
		x.next, x.all = 1, map[string]sessionNote{}
	}
	var err error
	x.next, err = actor.ReadChanges(ctx, g.out, noteBucket, ">", x.next, math.MaxUint64,
		func(session string, m actor.StoredMessage) {
			if len(m.Data) == 0 {
				delete(x.all, session)
				return
			}
			x.all[session] = decodeNote(m.Data)
		})
	if err != nil {
		g.out.LogError(err)
	}
	return maps.Clone(x.all)
}
