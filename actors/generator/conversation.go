package generator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"conclave/pkg/actor"
	"conclave/pkg/model"
	"conclave/pkg/respondent/conversation"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// buildHistory converts a conversation to messages for the model.
func buildHistory(c subjects.Conversation) []model.Message {
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

// selectCompleteRounds returns the messages of a turn that the conversation keeps between question and answer: calls
// with all their results. Thinking, nudges and incomplete rounds are left out: a model that sees a call without its
// result repeats it. The search of memory before the turn is left out too: the next question has its own, and pinned
// facts would be repeated with every turn. nil = there were no calls.
func selectCompleteRounds(messages []model.Message) (out []subjects.Message) {
	for i := 0; i < len(messages); i++ {
		m := messages[i]
		end := i + 1 + len(m.Calls)
		if len(m.Calls) == 0 || end > len(messages) ||
			slices.ContainsFunc(messages[i+1:end], func(r model.Message) bool { return r.Role != model.ToolRole }) {
			continue
		}
		if len(m.Calls) == 1 && m.Calls[0].ID == recallCall && m.Calls[0].Name == recallTool {
			i = end - 1
			continue
		}
		said := subjects.Message{Role: m.Role, Content: m.Content}
		for _, c := range m.Calls {
			said.Calls = append(said.Calls, subjects.MessageCall{ID: c.ID, Name: c.Name, Arguments: c.Arguments})
		}
		out = append(out, said)
		for _, r := range messages[i+1 : end] {
			out = append(out, subjects.Message{
				Role: r.Role, Content: r.Content, ToolName: r.ToolName,
				CallID: r.CallID,
			})
		}
		i = end - 1
	}
	return out
}

// sessionState is a session as it was loaded, with the revisions in the bucket.
type sessionState struct {
	conversation    subjects.Conversation
	conversationRev uint64
	record          turnRecord // of the latest turn; zero when that is finished and came from the cache
	recordRev       uint64
}

// sessionCache caches the most recently used sessions, so that a turn begins without reads. An entry may be outdated:
// the first write of a turn names the cached revision and fails when another process wrote since.
type sessionCache struct {
	capacity int

	mu      sync.Mutex
	order   []string // session ids, most recently used last
	entries map[string]*sessionState
}

func newSessionCache(most int) *sessionCache {
	return &sessionCache{capacity: most, entries: map[string]*sessionState{}}
}

// get returns a cached session and marks it as used; false = it is not cached.
func (h *sessionCache) get(session string) (sessionState, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.entries[session]
	if s == nil {
		return sessionState{}, false
	}
	h.forget(session)
	h.order = append(h.order, session)
	return *s, true
}

// put caches a session whose turn is finished, without its record. The least recently used session beyond the capacity
// is evicted.
func (h *sessionCache) put(session string, s sessionState) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.record = turnRecord{}
	h.entries[session] = &s
	h.forget(session)
	h.order = append(h.order, session)
	for len(h.order) > h.capacity {
		delete(h.entries, h.order[0])
		h.order = h.order[1:]
	}
}

// forget removes a session from the order. The caller holds mu.
func (h *sessionCache) forget(session string) {
	h.order = slices.DeleteFunc(h.order, func(s string) bool { return s == session })
}

// replaceOlder replaces the cached conversation of a session if its revision is below rev. A session that is not cached
// is not added.
func (h *sessionCache) replaceOlder(session string, c subjects.Conversation, rev uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.entries[session]; s != nil && s.conversationRev < rev {
		s.conversation, s.conversationRev = c, rev
	}
}

// remove drops a session from the cache, so that its next turn reads it.
func (h *sessionCache) remove(session string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget(session)
	delete(h.entries, session)
}

// loadSession returns a session from the cache, or reads it; one that does not exist is empty. A conversation that
// cannot be decoded is an error. A record that cannot be decoded is [actor.ErrUnreadable], with all else.
func (g *Generator) loadSession(ctx context.Context, store actor.Store, session string) (sessionState, error) {
	if s, ok := g.sessions.get(session); ok {
		return s, nil
	}
	var s sessionState
	data, rev, err := store.Get(ctx, turnKey(session))
	var unreadable error
	switch {
	case errors.Is(err, actor.ErrNotFound):
	case err != nil:
		return s, err
	default:
		if err := strict.DecodeStored(data, &s.record); err != nil {
			s.record = turnRecord{}
			unreadable = fmt.Errorf("%w: turn of session %s: %w", actor.ErrUnreadable, session, err)
		}
		s.recordRev = rev
	}
	if s.conversation, s.conversationRev, err = conversation.Read(ctx, store, session); err != nil {
		return s, err
	}
	return s, unreadable
}
