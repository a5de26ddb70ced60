package generator

import (
	"bytes"
	"container/list"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"conclave/pkg/actor"
	"conclave/pkg/model"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Bounds of what is kept of a session. A bucket takes values of one megabyte.
const (
	maxConversation = 700 << 10
	maxPast         = 200 // query ids of turns that were let go, so that a question that comes again is known
)

// history is the conversation as the model is sent it.
func history(c subjects.Conversation) []model.Message {
	said := c.Messages()
	out := make([]model.Message, 0, len(said))
	for _, m := range said {
		to := model.Message{Role: m.Role, Content: m.Content, ToolName: m.ToolName, CallID: m.CallID}
		for _, call := range m.Calls {
			to.Calls = append(to.Calls, model.Call{ID: call.ID, Name: call.Name, Arguments: call.Arguments})
		}
		out = append(out, to)
	}
	return out
}

// rounds is what is kept of a turn between its question and its answer: calls with all their results. Thinking, nudges
// and half a round are left out: a model that is shown a call without its result repeats it.
func rounds(messages []model.Message) (out []subjects.Message) {
	for i := 0; i < len(messages); i++ {
		m := messages[i]
		end := i + 1 + len(m.Calls)
		if len(m.Calls) == 0 || end > len(messages) || slices.ContainsFunc(messages[i+1:end], func(r model.Message) bool { return r.Role != model.ToolRole }) {
			continue
		}
		said := subjects.Message{Role: m.Role, Content: m.Content}
		for _, c := range m.Calls {
			said.Calls = append(said.Calls, subjects.MessageCall{ID: c.ID, Name: c.Name, Arguments: c.Arguments})
		}
		out = append(out, said)
		for _, r := range messages[i+1 : end] {
			out = append(out, subjects.Message{Role: r.Role, Content: r.Content, ToolName: r.ToolName, CallID: r.CallID})
		}
		i = end - 1
	}
	return out
}

// add appends a turn and lets go of what is too much, the oldest first. It changes nothing of c that another may hold.
func add(c subjects.Conversation, t subjects.Turn, most int) (subjects.Conversation, []byte, error) {
	c.Turns, c.Updated, c.Labels = append(slices.Clone(c.Turns), t), t.Time, labelsOf(c).Join(t.Labels)
	for len(c.Turns) > most {
		c = drop(c)
	}
	for {
		data, err := marshal(c)
		if err != nil {
			return c, nil, fmt.Errorf("encoding the conversation: %w", err)
		}
		if len(data) <= maxConversation {
			return c, data, nil
		}
		last := &c.Turns[len(c.Turns)-1]
		switch {
		case len(c.Turns) > 1:
			for over := len(data) - maxConversation; over > 0 && len(c.Turns) > 1; c = drop(c) {
				turn, err := marshal(c.Turns[0])
				if err != nil {
					return c, nil, fmt.Errorf("encoding the conversation: %w", err)
				}
				over -= len(turn)
			}
		case len(last.Messages) > 0: // one turn alone is too large: the question and the answer matter most
			last.Messages = nil
		case len(last.Query) > 1<<10 || len(last.Answer) > 1<<10:
			last.Query, last.Answer = text.Clip(last.Query, len(last.Query)/2), text.Clip(last.Answer, len(last.Answer)/2)
		default:
			c.Summary = text.Clip(c.Summary, len(c.Summary)/2)
		}
	}
}

// labelsOf are those of all that was said in a conversation. What was summarized or let go before conversations had labels
// could have been anybody's.
func labelsOf(c subjects.Conversation) *subjects.Labels {
	all := c.Labels
	if all == nil && c.Summarized+c.Dropped > 0 {
		all = &subjects.Labels{Trust: subjects.Untrusted, Privacy: subjects.Private}
	}
	for _, t := range c.Turns {
		all = all.Join(t.Labels)
	}
	return all
}

// drop lets go of the oldest turn.
func drop(c subjects.Conversation) subjects.Conversation {
	c = past(c, 1)
	c.Dropped++
	return c
}

// past takes the oldest n turns out and remembers their ids.
func past(c subjects.Conversation, n int) subjects.Conversation {
	c.Past = slices.Clip(c.Past)
	for _, t := range c.Turns[:n] {
		c.Past = append(c.Past, t.QueryID)
	}
	c.Turns = c.Turns[n:]
	if over := len(c.Past) - maxPast; over > 0 {
		c.Past = c.Past[over:]
	}
	return c
}

// marshal writes JSON as it is, without escaping what only a web page would mind: the arguments of a call are kept as
// the model wrote them.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// sitting is what is known of a session, and which revisions of the bucket that is.
type sitting struct {
	conv    subjects.Conversation
	convRev uint64
	rec     record // the turn that was begun last; zero when it is over and its record was not read
	recRev  uint64
}

// hot keeps the sessions that were used last, so that a turn begins without reading. That it is up to date is not known
// but tried: the first write of a turn names the revision it believes in, and is refused when somebody wrote in between.
type hot struct {
	most int

	mu    sync.Mutex
	order *list.List // of string, last used in front
	held  map[string]*held
}

type held struct {
	sitting
	at *list.Element
}

func newHot(most int) *hot {
	return &hot{most: most, order: list.New(), held: map[string]*held{}}
}

func (h *hot) get(session string) (sitting, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.held[session]
	if s == nil {
		return sitting{}, false
	}
	h.order.MoveToFront(s.at)
	return s.sitting, true
}

// put keeps a session whose turn is over.
func (h *hot) put(session string, s sitting) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.rec = record{}
	if old := h.held[session]; old != nil {
		old.sitting = s
		h.order.MoveToFront(old.at)
		return
	}
	h.held[session] = &held{s, h.order.PushFront(session)}
	for h.order.Len() > h.most {
		oldest := h.order.Remove(h.order.Back()).(string)
		delete(h.held, oldest)
	}
}

// renew replaces the conversation of a session, if it is still the one that the new one was made from.
func (h *hot) renew(session string, from uint64, c subjects.Conversation, rev uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.held[session]; s != nil && s.convRev == from {
		s.conv, s.convRev = c, rev
	}
}

// freshen replaces the conversation of a session by a later one.
func (h *hot) freshen(session string, c subjects.Conversation, rev uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.held[session]; s != nil && s.convRev < rev {
		s.conv, s.convRev = c, rev
	}
}

func (h *hot) drop(session string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.held[session]; s != nil {
		h.order.Remove(s.at)
		delete(h.held, session)
	}
}

// load reads a session, from the hot set when it is there.
func (g *Generator) load(ctx context.Context, store actor.Store, session string) (sitting, error) {
	if s, ok := g.hot.get(session); ok {
		return s, nil
	}
	var s sitting
	data, rev, err := store.Get(ctx, turnKey(session))
	switch {
	case errors.Is(err, actor.ErrNotFound):
	case err != nil:
		return s, err
	default:
		if err := json.Unmarshal(data, &s.rec); err != nil { // written by another version: the turn begins anew
			s.rec = record{}
		}
		s.recRev = rev
	}
	s.conv, s.convRev, err = readConversation(ctx, store, session)
	return s, err
}

// readConversation reads what is kept of a session. One that cannot be read is an error, not an empty one: what follows
// would be written over it.
func readConversation(ctx context.Context, store actor.Store, session string) (subjects.Conversation, uint64, error) {
	c := subjects.Conversation{SessionID: session, Turns: []subjects.Turn{}}
	data, rev, err := store.Get(ctx, subjects.ConversationKey(session))
	if errors.Is(err, actor.ErrNotFound) {
		return c, 0, nil
	}
	if err != nil {
		return c, 0, err
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return c, 0, fmt.Errorf("the conversation of session %s cannot be read: %w", session, err)
	}
	c.SessionID = session
	return c, rev, nil
}
