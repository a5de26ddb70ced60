package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// conversations is the bucket that the answerer keeps them in. The gateway may read it and nothing else.
var conversations = subjects.StateBucket(subjects.Generator)

// Session is one line of the list.
type Session struct {
	ID      string    `json:"session_id"`
	Title   string    `json:"title"` // the first question, shortened
	Turns   int       `json:"turns"`
	Updated time.Time `json:"updated"`
}

// Bounds of the list. A conversation is read whole to be listed, because nothing else says when it was used last.
const (
	maxSessions = 500  // listed
	maxRead     = 5000 // read; of more than these the first by id
	maxTitle    = 80
	readers     = 8
)

// errDamaged means that a conversation is there and cannot be read.
var errDamaged = errors.New("a conversation could not be read")

// onSessions lists the conversations, the latest first.
func (g *Gateway) onSessions(w http.ResponseWriter, r *http.Request) error {
	if _, err := params(r); err != nil {
		return err
	}
	ctx, cancel := g.until(r.Context(), lookTime)
	defer cancel()
	keys, err := g.out.Store(conversations).Keys(ctx, subjects.ConversationPrefix)
	if err != nil {
		return g.unread(ctx, err)
	}
	var names []string
	for _, k := range keys {
		if name, ok := subjects.SessionOf(k); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	unread := max(0, len(names)-maxRead)
	list, err := g.list(ctx, names[:len(names)-unread])
	if err != nil {
		return g.unread(ctx, err)
	}
	more := unread + max(0, len(list)-maxSessions)
	list = list[:min(len(list), maxSessions)]
	g.write(w, http.StatusOK, struct {
		Sessions []Session `json:"sessions"`
		More     int       `json:"more"` // conversations that are not in the list
	}{list, more})
	return nil
}

// list reads conversations, several at once. One that went away in between is left out; one that is damaged does not keep
// the others from being listed.
func (g *Gateway) list(ctx context.Context, names []string) ([]Session, error) {
	list := make([]Session, len(names))
	errs := make([]error, len(names))
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(readers, len(names)) {
		wg.Go(func() {
			for i := range next {
				c, err := g.conversation(ctx, names[i])
				list[i], errs[i] = summary(names[i], c), err
			}
		})
	}
	for i := range names {
		next <- i
	}
	close(next)
	wg.Wait()
	found := []Session{}
	for i, s := range list {
		switch {
		case errs[i] == nil:
			found = append(found, s)
		case errors.Is(errs[i], errDamaged):
			g.out.LogError(errs[i])
			found = append(found, Session{ID: names[i], Title: "(could not be read)"})
		case !errors.Is(errs[i], actor.ErrNotFound):
			return nil, errs[i]
		}
	}
	slices.SortFunc(found, func(a, b Session) int {
		return cmp.Or(b.Updated.Compare(a.Updated), cmp.Compare(a.ID, b.ID))
	})
	return found, nil
}

// conversation reads one. It is read loosely: an older one may have been written by an older build.
func (g *Gateway) conversation(ctx context.Context, session string) (subjects.Conversation, error) {
	var c subjects.Conversation
	data, _, err := g.out.Store(conversations).Get(ctx, subjects.ConversationKey(session))
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return c, fmt.Errorf("%w: %s: %w", errDamaged, session, err)
	}
	return c, nil
}

func summary(id string, c subjects.Conversation) Session {
	s := Session{ID: id, Turns: len(c.Turns) + c.Summarized + c.Dropped, Updated: c.Updated}
	switch {
	case len(c.Turns) > 0:
		s.Title = title(c.Turns[0].Query)
	case c.Summary != "":
		s.Title = title(c.Summary)
	}
	return s
}

// title is the beginning of a text on one line.
func title(text string) string {
	line := []rune(strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " "))
	if len(line) > maxTitle {
		return string(line[:maxTitle-1]) + "…"
	}
	return string(line)
}

// unread says why conversations could not be read.
func (g *Gateway) unread(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		if errors.Is(context.Cause(ctx), errWaited) {
			return problemf(http.StatusGatewayTimeout, subjects.CodeTimeout, "the conversations could not be read in %s", lookTime)
		}
		return context.Cause(ctx)
	}
	if !g.link.IsConnected() {
		return problemf(http.StatusServiceUnavailable, subjects.CodeUnavailable, "the link to the bus is down; it is tried again by itself")
	}
	return err
}

// onSession shows one conversation: what is kept of it, and message by message as the model is sent it.
func (g *Gateway) onSession(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	if err := checkID("the session id", id); err != nil {
		return err
	}
	if _, err := params(r); err != nil {
		return err
	}
	ctx, cancel := g.until(r.Context(), lookTime)
	defer cancel()
	c, err := g.conversation(ctx, id)
	if errors.Is(err, actor.ErrNotFound) {
		return problemf(http.StatusNotFound, codeNotFound, "there is no conversation %s; GET /sessions lists those there are", id)
	}
	if err != nil {
		return g.unread(ctx, err)
	}
	body := struct {
		Session
		Summary    string             `json:"summary"` // stands for the turns before the first message
		Summarized int                `json:"summarized"`
		Dropped    int                `json:"dropped"`
		Messages   []subjects.Message `json:"messages"`
		Kept       []subjects.Turn    `json:"conversation"`
	}{summary(id, c), c.Summary, c.Summarized, c.Dropped, c.Messages(), c.Turns}
	if body.Messages == nil {
		body.Messages = []subjects.Message{}
	}
	if body.Kept == nil {
		body.Kept = []subjects.Turn{}
	}
	g.write(w, http.StatusOK, body)
	return nil
}
