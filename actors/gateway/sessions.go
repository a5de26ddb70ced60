package gateway

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"
	"time"
	"unicode"

	"conclave/pkg/client"
	"conclave/subjects"
)

// Session is one session in the list.
type Session struct {
	ID      string    `json:"session_id"`
	Title   string    `json:"title"` // of the user, of a model, or the first question, shortened
	Turns   int       `json:"turns"`
	Updated time.Time `json:"updated"`
	// Client is the client whose session it is: its questions are untrusted content, and the user cannot ask in it. ""
	// = the user's.
	Client string `json:"client"`
	Pinned bool   `json:"pinned,omitempty"`
	// Archived says that the user has put it away: the page lists it apart.
	Archived bool `json:"archived,omitempty"`
	// Running says that a question of it is being answered. The first one has no turn yet.
	Running bool `json:"running,omitempty"`
}

// Bounds of the list.
const (
	maxSessions = 500
	maxTitle    = 80
)

// onSessions lists at most maxSessions sessions, last used first, and the number of those left out. A session that
// cannot be decoded is listed with that as its title.
func (g *Gateway) onSessions(ctx context.Context, _ *http.Request) (any, error) {
	found, more, err := g.client.Sessions(ctx, maxSessions, nil)
	if extra := len(found) - maxSessions; extra > 0 {
		found, more = found[:maxSessions], more+extra
	}
	list := make([]Session, len(found))
	notes := g.readNotes(ctx)
	for i, s := range found {
		list[i] = describeSession(s)
		notes[s.ID].describe(&list[i])
		if s.Err != nil {
			g.out.LogError(s.Err)
			list[i].Title = "(cannot be decoded)"
		}
	}
	return object{{"sessions", list}, {"more", more}}, err
}

// describeSession returns the line of a session in the list. Without a turn the title is the summary.
func describeSession(s client.SessionSummary) Session {
	return Session{
		ID: s.ID, Title: makeTitle(cmp.Or(s.Question, s.Summary)), Turns: s.Turns, Updated: s.Updated,
		Client: subjects.ClientOf(s.ID), Running: s.Running,
	}
}

// makeTitle returns the beginning of a text on one line.
func makeTitle(text string) string {
	line := []rune(strings.Join(strings.FieldsFunc(text, func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r)
	}), " "))
	if len(line) > maxTitle {
		return string(line[:maxTitle-1]) + "…"
	}
	return string(line)
}

// explainSession returns a problem 404 for a session that does not exist, and any other err as it is.
func explainSession(id string, err error) error {
	if errors.Is(err, client.ErrNotFound) {
		return notFoundf("session %s not found; GET /sessions lists the sessions", id)
	}
	return err
}

// onSession returns one conversation: its turns, and its messages as the model gets them. An unknown session is 404.
func (g *Gateway) onSession(ctx context.Context, r *http.Request) (any, error) {
	id := r.PathValue("id")
	c, err := g.client.Session(ctx, id)
	if err != nil {
		return nil, explainSession(id, err)
	}
	return struct {
		Session
		Summary    string             `json:"summary"` // replaces the turns before the first message
		Summarized int                `json:"summarized"`
		Dropped    int                `json:"dropped"`
		Archived   int                `json:"archived"` // turns before the first message that are kept
		Window     string             `json:"window"`   // question with which the part begins that the model gets
		Messages   []subjects.Message `json:"messages"`
		Kept       []subjects.Turn    `json:"conversation"`
		Branches   []Branch           `json:"branches"`
	}{
		describeSession(client.Summarize(c)), c.Summary, c.Summarized, c.Dropped, c.Archived, g.findWindow(ctx, c),
		append([]subjects.Message{}, c.Messages()...), append([]subjects.Turn{}, c.Turns...), listBranches(c),
	}, nil
}

// findWindow returns the query id of the oldest turn of a conversation that the model gets with the next question; "" =
// it gets all turns, or the generator does not say.
func (g *Gateway) findWindow(ctx context.Context, c subjects.Conversation) string {
	sent, err := g.client.SessionContext(ctx, c.SessionID)
	if err != nil || sent.Summarized+sent.Dropped+sent.Omitted == 0 {
		return ""
	}
	for _, t := range c.Turns {
		if t.Respondent != "" { // the context is that of the assistant
			continue
		}
		if sent.Omitted == 0 {
			return t.QueryID
		}
		sent.Omitted--
	}
	return ""
}

// Bounds of a page of archived turns.
const (
	defaultTurns = 50
	maxTurns     = 200
)

// onArchivedTurns returns a page of the turns of a session that are no longer in its conversation, oldest first: the
// latest ones, or those before another page. An unknown session is 404, and so is an unknown page.
func (g *Gateway) onArchivedTurns(ctx context.Context, r *http.Request) (any, error) {
	id := r.PathValue("id")
	p := r.URL.Query()
	limit, err := parseNumber("limit", p.Get("limit"), defaultTurns, maxTurns)
	if err != nil {
		return nil, err
	}
	page, err := g.client.ArchivedTurns(ctx, id, p.Get("before"), limit)
	if errors.Is(err, client.ErrPage) {
		return nil, notFoundf("before: no such page of session %s; it is the field before of another page", id)
	}
	turns := append([]subjects.Turn{}, page.Turns...)
	return object{{"conversation", turns}, {"before", page.Before}, {"lost", page.Lost}}, explainSession(id, err)
}

// Branch is a part of a conversation that was set aside.
type Branch struct {
	ID      string    `json:"id"`    // its first question
	After   string    `json:"after"` // question of the turn before it; "" = the first turn
	Time    time.Time `json:"time"`  // of its first answer
	Queries []string  `json:"queries"`
}

func listBranches(c subjects.Conversation) []Branch {
	out := []Branch{}
	for _, b := range c.Branches {
		one := Branch{ID: b.Turns[0].QueryID, After: b.After, Time: b.Turns[0].Time}
		for _, t := range b.Turns {
			one.Queries = append(one.Queries, t.QueryID)
		}
		out = append(out, one)
	}
	return out
}

// SessionBranch is the body of POST /sessions/{id}/branch. One of its fields is set.
type SessionBranch struct {
	Before string `json:"before"` // question that is set aside with all turns after it
	To     string `json:"to"`     // branch to continue with
}

// onSessionBranch sets a question and the turns after it aside, so that the next question follows the turn before it,
// or continues with a branch that was set aside. Nothing is deleted. A session whose question is being answered is 409.
func (g *Gateway) onSessionBranch(ctx context.Context, r *http.Request, in SessionBranch) (any, error) {
	id := r.PathValue("id")
	change, query := subjects.SessionBranch, in.Before
	if in.To != "" {
		change, query = subjects.SessionSwitch, in.To
	}
	if in.Before != "" && in.To != "" || subjects.CheckToken(query) != nil {
		return nil, malformedf("before or to is required: the id of a question")
	}
	if owner := subjects.ClientOf(id); owner != "" {
		return nil, deniedf("session %s belongs to the client %s", id, owner)
	}
	if _, err := g.client.Session(ctx, id); err != nil {
		return nil, explainSession(id, err)
	}
	done, err := g.client.BranchSession(ctx, id, change, query)
	return done, mapConflict(err, subjects.CodeBusy)
}

// mapConflict returns a problem 409 for a fault with this code, and any other err as it is.
func mapConflict(err error, code string) error {
	var f *subjects.Fault
	if errors.As(err, &f) && f.Code == code {
		return conflictf("%s", f.Text)
	}
	return err
}

// changeTimeout is the timeout of a change of a conversation; a model writes the summary.
const changeTimeout = 5 * time.Minute

// onSessionChange returns the handler that deletes or summarizes one conversation; change is [subjects.SessionDelete]
// or [subjects.SessionCompact]. An unknown session is 404, one whose question is being answered 409.
func (g *Gateway) onSessionChange(change string) handler {
	return g.change(changeTimeout, func(ctx context.Context, r *http.Request) (any, error) {
		id := r.PathValue("id")
		_, err := g.client.Session(ctx, id)
		if err != nil && !errors.Is(err, client.ErrUnreadable) {
			return nil, explainSession(id, err)
		}
		done, err := g.client.ChangeSession(ctx, id, change)
		if err != nil || change != subjects.SessionDelete {
			return done, mapConflict(err, subjects.CodeBusy)
		}
		if _, err := g.storeNote(ctx, id, func(sessionNote) sessionNote { return sessionNote{} }); err != nil {
			return nil, storeFault(g.out, noteBucket, err)
		}
		return done, nil
	})
}
