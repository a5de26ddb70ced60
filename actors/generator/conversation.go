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

// historyMessages is the conversation as the model is sent it.
func historyMessages(c subjects.Conversation) []model.Message {
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

// completeRounds is what is kept of a turn between its question and its answer: calls with all their results. Thinking, nudges
// and half a round are left out: a model that is shown a call without its result repeats it.
func completeRounds(messages []model.Message) (out []subjects.Message) {
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

// appendTurn appends a turn and lets go of what is too much, the oldest first. It changes nothing of c that another may hold.
func appendTurn(c subjects.Conversation, t subjects.Turn, most int) (subjects.Conversation, []byte, error) {
	c.Turns, c.Updated, c.Labels = append(slices.Clone(c.Turns), t), t.Time, labelsOf(c).Join(t.Labels)
	for len(c.Turns) > most {
		c = dropOldestTurn(c)
	}
	for {
		data, err := encodeJSON(c)
		if err != nil {
			return c, nil, fmt.Errorf("encoding the conversation: %w", err)
		}
		if len(data) <= maxConversation {
			return c, data, nil
		}
		last := &c.Turns[len(c.Turns)-1]
		switch {
		case len(c.Turns) > 1:
			for over := len(data) - maxConversation; over > 0 && len(c.Turns) > 1; c = dropOldestTurn(c) {
				turn, err := encodeJSON(c.Turns[0])
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

// dropOldestTurn lets go of the oldest turn.
func dropOldestTurn(c subjects.Conversation) subjects.Conversation {
	c = removeOldestTurns(c, 1)
	c.Dropped++
	return c
}

// removeOldestTurns takes the oldest n turns out and remembers their ids.
func removeOldestTurns(c subjects.Conversation, n int) subjects.Conversation {
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

// encodeJSON writes JSON as it is, without escaping what only a web page would mind: the arguments of a call are kept as
// the model wrote them.
func encodeJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// sessionState is what is known of a session, and which revisions of the bucket that is.
type sessionState struct {
	conversation    subjects.Conversation
	conversationRev uint64
	record          turnRecord // the turn that was begun last; zero when it is over and its record was not read
	recordRev       uint64
}

// sessionCache keeps the sessions that were used last, so that a turn begins without reading. That it is up to date is not known
// but tried: the first write of a turn names the revision it believes in, and is refused when somebody wrote in between.
type sessionCache struct {
	capacity int

	mu      sync.Mutex
	order   *list.List // of string, last used in front
	entries map[string]*cachedSession
}

type cachedSession struct {
	sessionState
	element *list.Element
}

func newSessionCache(most int) *sessionCache {
	return &sessionCache{capacity: most, order: list.New(), entries: map[string]*cachedSession{}}
}

func (h *sessionCache) get(session string) (sessionState, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.entries[session]
	if s == nil {
		return sessionState{}, false
	}
	h.order.MoveToFront(s.element)
	return s.sessionState, true
}

// put keeps a session whose turn is over.
func (h *sessionCache) put(session string, s sessionState) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.record = turnRecord{}
	if old := h.entries[session]; old != nil {
		old.sessionState = s
		h.order.MoveToFront(old.element)
		return
	}
	h.entries[session] = &cachedSession{s, h.order.PushFront(session)}
	for h.order.Len() > h.capacity {
		oldest := h.order.Remove(h.order.Back()).(string)
		delete(h.entries, oldest)
	}
}

// replace replaces the conversation of a session, if it is still the one that the new one was made from.
func (h *sessionCache) replace(session string, from uint64, c subjects.Conversation, rev uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.entries[session]; s != nil && s.conversationRev == from {
		s.conversation, s.conversationRev = c, rev
	}
}

// replaceOlder replaces the conversation of a session by a later one.
func (h *sessionCache) replaceOlder(session string, c subjects.Conversation, rev uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.entries[session]; s != nil && s.conversationRev < rev {
		s.conversation, s.conversationRev = c, rev
	}
}

func (h *sessionCache) remove(session string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.entries[session]; s != nil {
		h.order.Remove(s.element)
		delete(h.entries, session)
	}
}

// loadSession reads a session, from the hot set when it is there.
func (g *Generator) loadSession(ctx context.Context, store actor.Store, session string) (sessionState, error) {
	if s, ok := g.sessions.get(session); ok {
		return s, nil
	}
	var s sessionState
	data, rev, err := store.Get(ctx, turnKey(session))
	switch {
	case errors.Is(err, actor.ErrNotFound):
	case err != nil:
		return s, err
	default:
		if err := json.Unmarshal(data, &s.record); err != nil { // written by another version: the turn begins anew
			s.record = turnRecord{}
		}
		s.recordRev = rev
	}
	s.conversation, s.conversationRev, err = readConversation(ctx, store, session)
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
