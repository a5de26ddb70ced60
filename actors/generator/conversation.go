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

// Bounds of a conversation. The bucket's values are at most one megabyte.
const (
	maxConversation = 700 << 10
	maxPast         = 200 // query ids of dropped turns, kept to recognize duplicates
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

// appendTurn appends a turn and drops the oldest turns beyond most and beyond maxConversation bytes, branches before
// them. A single turn that is too large loses its tool messages and attachments; then question and answer, and last the
// summary, are halved until it fits. It also returns the encoded conversation. The slices of c are not modified.
func appendTurn(c subjects.Conversation, t subjects.Turn, most int) (subjects.Conversation, []byte, error) {
	c.Turns, c.Updated, c.Labels, c.Deleted = append(slices.Clone(c.Turns), t), t.Time, joinLabels(c).Join(t.Labels),
		false
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
		case len(c.Branches) > 0:
			c = dropOldestBranch(c)
		case len(c.Turns) > 1:
			for over := len(data) - maxConversation; over > 0 && len(c.Turns) > 1; c = dropOldestTurn(c) {
				turn, err := encodeJSON(c.Turns[0])
				if err != nil {
					return c, nil, fmt.Errorf("encoding the conversation: %w", err)
				}
				over -= len(turn)
			}
		case len(last.Messages) > 0: // one turn alone is too large: keep question and answer
			last.Messages = nil
		case last.Attached != "":
			last.Attached = ""
		case len(last.Query) > 1<<10 || len(last.Answer) > 1<<10:
			last.Query, last.Answer = text.Clip(last.Query, len(last.Query)/2), text.Clip(last.Answer,
				len(last.Answer)/2)
		default:
			c.Summary = text.Clip(c.Summary, len(c.Summary)/2)
		}
	}
}

// joinLabels joins the labels of all turns of a conversation, also of dropped ones; nil = no turn has labels. Turns
// that were summarized or dropped before conversations had labels count as untrusted and private.
func joinLabels(c subjects.Conversation) *subjects.Labels {
	all := c.Labels
	if all == nil && c.Summarized+c.Dropped > 0 {
		all = &subjects.Labels{Trust: subjects.Untrusted, Privacy: subjects.Private}
	}
	for _, t := range c.Turns {
		all = all.Join(t.Labels)
	}
	return all
}

// dropOldestTurn removes the oldest turn and counts it as dropped.
func dropOldestTurn(c subjects.Conversation) subjects.Conversation {
	c = removeOldestTurns(c, 1)
	c.Dropped++
	return c
}

// maxBranches is the number of branches that a conversation keeps.
const maxBranches = 32

// dropOldestBranch removes the oldest branch; its query ids stay in Past.
func dropOldestBranch(c subjects.Conversation) subjects.Conversation {
	kept := c.Turns
	c.Turns, c.Branches = c.Branches[0].Turns, c.Branches[1:]
	c = removeOldestTurns(c, len(c.Turns))
	c.Turns = kept
	return c
}

// setTurnsAside moves the turns from at on to a branch. Their labels stay with the conversation. Without turns there it
// changes nothing.
func setTurnsAside(c subjects.Conversation, at int) subjects.Conversation {
	if at == len(c.Turns) {
		return c
	}
	c.Labels = joinLabels(c)
	b := subjects.Branch{Turns: c.Turns[at:]}
	if at > 0 {
		b.After = c.Turns[at-1].QueryID
	}
	c.Turns, c.Branches = c.Turns[:at:at], append(slices.Clip(c.Branches), b)
	for len(c.Branches) > maxBranches {
		c = dropOldestBranch(c)
	}
	return c
}

// removeOldestTurns removes the oldest n turns, at most len(c.Turns), and keeps their query ids in Past, of which the
// oldest beyond maxPast are forgotten.
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

// encodeJSON encodes v without escapes for HTML: the arguments of a call stay as the model wrote them.
func encodeJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
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
	order   *list.List // of session ids, most recently used first
	entries map[string]*cachedSession
}

type cachedSession struct {
	sessionState
	element *list.Element
}

func newSessionCache(most int) *sessionCache {
	return &sessionCache{capacity: most, order: list.New(), entries: map[string]*cachedSession{}}
}

// get returns a cached session and marks it as used; false = it is not cached.
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

// put caches a session whose turn is finished, without its record. The least recently used session beyond the capacity
// is evicted.
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

// replace replaces the cached conversation of a session if its revision is from. A session that is not cached is not
// added.
func (h *sessionCache) replace(session string, from uint64, c subjects.Conversation, rev uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.entries[session]; s != nil && s.conversationRev == from {
		s.conversation, s.conversationRev = c, rev
	}
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
	if s := h.entries[session]; s != nil {
		h.order.Remove(s.element)
		delete(h.entries, session)
	}
}

// loadSession returns a session from the cache, or reads it; one that does not exist is empty. A record that cannot be
// decoded, as of another version, counts as none: the turn starts again. A conversation that cannot be decoded is an
// error.
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
		if err := json.Unmarshal(data, &s.record); err != nil {
			s.record = turnRecord{}
		}
		s.recordRev = rev
	}
	s.conversation, s.conversationRev, err = readConversation(ctx, store, session)
	return s, err
}

// readConversation reads the conversation of a session; one that does not exist is empty, with revision 0. One that
// cannot be decoded is an error, because an empty one would be written over it.
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
		return c, 0, fmt.Errorf("reading the conversation of session %s: %w", session, err)
	}
	c.SessionID = session
	return c, rev, nil
}
