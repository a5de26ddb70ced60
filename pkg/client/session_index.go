package client

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/text"
	"conclave/subjects"
)

// SessionSummary is one session in a list.
type SessionSummary struct {
	ID       string    `json:"session_id"`
	Turns    int       `json:"turns"`          // with those that were summarized or dropped
	Question string    `json:"first_question"` // at most [maxQuestion] bytes; "" when no turn is kept
	Updated  time.Time `json:"updated"`
	Running  bool      `json:"running,omitempty"` // a question of it is being answered
	Summary  string    `json:"-"`                 // of older turns, when there is no Question
	Err      error     `json:"-"`                 // wraps [ErrUnreadable]; then only ID is set

	isStored bool // a conversation is; without one, the first question is being answered
}

const (
	maxQuestion = 4 << 10 // bytes of a question in the list
	// turnWindow is the number of writes to a bucket before the first list among which unfinished turns are looked for:
	// the records of all turns would double the cost of that list.
	turnWindow = 2000
)

// sessionIndex has the summary of every stored session. A list reads only what was written since the last one, by the
// sequences of the buckets: a conversation that did not change is not read again. It belongs to a client, is empty at
// first, and is rebuilt when the sequences of a bucket begin anew. The zero value is ready.
type sessionIndex struct {
	mu    sync.Mutex
	parts map[string]*indexPart // by bucket
}

// indexPart is the part of the index that comes from one bucket.
type indexPart struct {
	nextConversation, nextTurn uint64 // first sequences that were not read; 0 = nothing was
	conversations              map[string]indexedConversation
	turns                      map[string]indexedTurn // not finished, by key
}

// indexedConversation is what the index keeps of a conversation.
type indexedConversation struct {
	SessionSummary
	began    time.Time // time of the first turn that is kept
	answered []string  // query id of the last turn, then of those that are no longer kept
}

// indexedTurn is what the index keeps of a turn record.
type indexedTurn struct {
	subjects.TurnRecord
	written time.Time
}

// refresh reads the changes of a bucket since the last call.
func (x *sessionIndex) refresh(ctx context.Context, c *Client, bucket string) (*indexPart, error) {
	state, err := c.streamStatus(ctx, coreAPI, "KV_"+bucket)
	if err != nil {
		return nil, err
	}
	p := x.parts[bucket]
	if p == nil || max(p.nextConversation, p.nextTurn) > state.Last+1 {
		p = &indexPart{
			1, max(1, state.Last-min(state.Last, turnWindow)),
			map[string]indexedConversation{},
			map[string]indexedTurn{},
		}
		x.parts[bucket] = p
	}
	// Turns first: one that is finished in between is then in a conversation that is read below.
	p.nextTurn, err = actor.ReadChanges(ctx, c.out, bucket, subjects.TurnPrefix+".*", p.nextTurn,
		func(key string, m actor.StoredMessage) {
			t := indexedTurn{written: m.Time}
			// another version's record counts as none
			if json.Unmarshal(m.Data, &t.TurnRecord) != nil || t.Finished || t.QueryID == "" {
				delete(p.turns, key)
				return
			}
			if t.SessionID == "" {
				t.SessionID = strings.TrimPrefix(key, subjects.TurnPrefix+".")
			}
			t.Query = text.Clip(t.Query, maxQuestion)
			p.turns[key] = t
		})
	if err != nil {
		return nil, err
	}
	p.nextConversation, err = actor.ReadChanges(ctx, c.out, bucket, subjects.ConversationPrefix+".*",
		p.nextConversation, func(key string, m actor.StoredMessage) {
			id, ok := subjects.SessionOf(key)
			if !ok {
				return
			}
			conv, err := decodeConversation(id, m.Data)
			s := indexedConversation{SessionSummary: SessionSummary{ID: id, Err: err, isStored: true}}
			if err == nil {
				s = indexConversation(conv)
			}
			p.conversations[id] = s
		})
	return p, err
}

// indexConversation returns what the index keeps of a conversation. One that was deleted is kept as not stored.
func indexConversation(conv subjects.Conversation) indexedConversation {
	s := indexedConversation{SessionSummary: Summarize(conv), answered: slices.Clone(conv.Past)}
	s.isStored = !conv.Deleted
	if n := len(conv.Turns); n > 0 {
		s.began, s.answered = conv.Turns[0].Time, append([]string{conv.Turns[n-1].QueryID}, s.answered...)
	}
	return s
}

// merge adds what another bucket has of the same session.
func (s indexedConversation) merge(o indexedConversation) indexedConversation {
	switch {
	case !s.isStored || o.isStored && o.Err != nil:
		return o
	case !o.isStored || s.Err != nil:
		return s
	}
	if s.Question == "" || o.Question != "" && o.began.Before(s.began) {
		s.Question, s.began = o.Question, o.began
	}
	if s.Turns += o.Turns; o.Updated.After(s.Updated) {
		s.Updated = o.Updated
	}
	return s
}

// isRunning reports whether a turn of the part is being answered: it is not in the conversation, and was checkpointed
// lately.
func (p *indexPart) isRunning(t indexedTurn, now time.Time) bool {
	return !slices.Contains(p.conversations[t.SessionID].answered, t.QueryID) &&
		now.Sub(t.written) < subjects.TurnAbandoned
}

// Sessions lists the sessions, last used first, never nil, also those whose first question is being answered. One that
// cannot be decoded is listed with Err. The first list of a client reads every conversation, a later one those that
// changed. A list that fails or ends with ctx keeps what it has read.
func (c *Client) Sessions(ctx context.Context) ([]SessionSummary, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	x := &c.sessions
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.parts == nil {
		x.parts = map[string]*indexPart{}
	}
	all, running := map[string]indexedConversation{}, map[string]indexedTurn{}
	for _, bucket := range sessionBuckets {
		p, err := x.refresh(ctx, c, bucket)
		if err != nil {
			return nil, fmt.Errorf("listing the sessions: %w", err)
		}
		for id, s := range p.conversations {
			all[id] = all[id].merge(s)
		}
		for _, t := range p.turns {
			if p.isRunning(t, c.out.Now()) && t.written.After(running[t.SessionID].written) {
				running[t.SessionID] = t
			}
		}
	}
	for id, t := range running {
		s := all[id]
		if !s.isStored {
			s.SessionSummary = SessionSummary{ID: id, Question: t.Query, Updated: t.written}
		}
		s.Running = true
		all[id] = s
	}
	found := []SessionSummary{}
	for _, s := range all {
		if s.isStored || s.Running {
			found = append(found, s.SessionSummary)
		}
	}
	slices.SortFunc(found, func(a, b SessionSummary) int {
		return cmp.Or(b.Updated.Compare(a.Updated), cmp.Compare(a.ID, b.ID))
	})
	return found, nil
}

// LastSession returns the id of the user's readable session that was used last, [ErrNotFound] when there is none. One
// without a stored answer is none.
func (c *Client) LastSession(ctx context.Context) (string, error) {
	all, err := c.Sessions(ctx)
	if err != nil {
		return "", err
	}
	for _, s := range all {
		if s.Err == nil && s.isStored && subjects.ClientOf(s.ID) == "" {
			return s.ID, nil
		}
	}
	return "", fmt.Errorf("session %w", ErrNotFound)
}

// Summarize describes a conversation.
func Summarize(c subjects.Conversation) SessionSummary {
	s := SessionSummary{ID: c.SessionID, Turns: len(c.Turns) + c.Summarized + c.Dropped, Updated: c.Updated}
	if len(c.Turns) > 0 {
		s.Question = text.Clip(c.Turns[0].Query, maxQuestion)
	} else {
		s.Summary = text.Clip(c.Summary, maxQuestion)
	}
	return s
}
