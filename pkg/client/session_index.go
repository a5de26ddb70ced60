package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
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
	Question string    `json:"first_question"` // at most [maxQuestion] bytes; "" = not known
	Updated  time.Time `json:"updated"`
	Running  bool      `json:"running,omitempty"` // a question of it is being answered
	Summary  string    `json:"-"`                 // of older turns, when there is no Question
	Err      error     `json:"-"`                 // wraps [ErrUnreadable]; then only ID is set

	isStored bool // a conversation is; without one, the first question is being answered
}

const (
	maxQuestion = 4 << 10 // bytes of a question in the list
	// sessionStride is the number of writes to a bucket that are searched at once for earlier sessions.
	sessionStride = 500
	// turnWindow is the number of writes to a bucket before the first list among which unfinished turns are looked for:
	// the records of all turns would double the cost of that list.
	turnWindow = 2000
)

// sessionIndex has the summaries of the sessions that were used last. A list reads what was written since the last one,
// by the sequences of the buckets, and earlier sessions until it has enough: a conversation that did not change is not
// read again. It belongs to a client, is empty at first, and is rebuilt when the sequences of a bucket begin anew. The
// zero value is ready.
type sessionIndex struct {
	mu    sync.Mutex
	parts map[string]*indexPart // by bucket
}

// indexPart is the part of the index that comes from one bucket.
type indexPart struct {
	nextConversation, nextTurn uint64          // first sequences that were not read; 0 = nothing was
	first                      uint64          // conversations before it were not read
	unread                     map[string]bool // their sessions
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
		end := state.Last + 1
		p = &indexPart{
			nextConversation: end, nextTurn: end - min(state.Last, turnWindow), first: end, unread: map[string]bool{},
			conversations: map[string]indexedConversation{}, turns: map[string]indexedTurn{},
		}
		keys, err := c.out.Store(bucket).Keys(ctx, subjects.ConversationPrefix)
		if err != nil {
			return nil, err
		}
		for _, key := range keys {
			if id, ok := subjects.SessionOf(key); ok {
				p.unread[id] = true
			}
		}
		x.parts[bucket] = p
	}
	// Turns first: one that is finished in between is then in a conversation that is read below.
	p.nextTurn, err = actor.ReadChanges(ctx, c.out, bucket, subjects.TurnPrefix+".*", p.nextTurn, math.MaxUint64,
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
	p.nextConversation, err = p.read(ctx, c, bucket, p.nextConversation, math.MaxUint64)
	return p, err
}

// read reads the conversations of a bucket that were written at the sequence from or later and before end, and returns
// the sequence with which to go on.
func (p *indexPart) read(ctx context.Context, c *Client, bucket string, from, end uint64) (next uint64, err error) {
	return actor.ReadChanges(ctx, c.out, bucket, subjects.ConversationPrefix+".*", from, end,
		func(key string, m actor.StoredMessage) {
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
			delete(p.unread, id)
		})
}

// readEarlier reads earlier conversations until n of those that were read are wanted, or none is left.
func (p *indexPart) readEarlier(ctx context.Context, c *Client, bucket string, n int,
	want func(SessionSummary) bool,
) error {
	for len(p.unread) > 0 && p.first > 1 {
		found := 0
		for _, s := range p.conversations {
			if s.isStored && want(s.SessionSummary) {
				found++
			}
		}
		if found >= n {
			return nil
		}
		from := p.first - min(p.first-1, sessionStride)
		if _, err := p.read(ctx, c, bucket, from, p.first); err != nil {
			return err
		}
		p.first = from
	}
	return nil
}

// indexConversation returns what the index keeps of a conversation. One that was deleted is kept as not stored.
func indexConversation(conv subjects.Conversation) indexedConversation {
	s := indexedConversation{SessionSummary: Summarize(conv), answered: slices.Clone(conv.Past)}
	s.isStored = !conv.Deleted
	if n := len(conv.Turns); n > 0 {
		s.began = cmp.Or(conv.Began, conv.Turns[0].Time)
		s.answered = append([]string{conv.Turns[n-1].QueryID}, s.answered...)
	}
	return s
}

// isFirst reports whether the first question of s was asked before that of o.
func (s indexedConversation) isFirst(o indexedConversation) bool {
	return o.Question == "" || s.Question != "" && s.began.Before(o.began)
}

// merge adds what another bucket has of the same session.
func (s indexedConversation) merge(o indexedConversation) indexedConversation {
	switch {
	case !s.isStored || o.isStored && o.Err != nil:
		return o
	case !o.isStored || s.Err != nil:
		return s
	}
	if o.isFirst(s) {
		s.Question, s.began = o.Question, o.began
	}
	s.Turns += o.Turns
	if o.Updated.After(s.Updated) {
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

// Sessions lists the sessions, last used first, never nil, also those whose first question is being answered: all that
// it has read, among them the n wanted ones that were used last; a nil want is every session. unread is the number of
// the others, which may be deleted. One that cannot be decoded is listed with Err. A later list of a client reads the
// conversations that changed. A list that fails or ends with ctx keeps what it has read.
func (c *Client) Sessions(ctx context.Context, n int, want func(SessionSummary) bool) (list []SessionSummary,
	unread int, err error,
) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if want == nil {
		want = func(SessionSummary) bool { return true }
	}
	x := &c.sessions
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.parts == nil {
		x.parts = map[string]*indexPart{}
	}
	for _, bucket := range sessionBuckets {
		p, err := x.refresh(ctx, c, bucket)
		if err == nil {
			err = p.readEarlier(ctx, c, bucket, n, want)
		}
		if err != nil {
			return nil, 0, fmt.Errorf("listing the sessions: %w", err)
		}
	}
	if unread, err = x.complete(ctx, c); err != nil {
		return nil, 0, fmt.Errorf("listing the sessions: %w", err)
	}
	return x.list(c.out.Now()), unread, nil
}

// complete reads the part of each session that only one bucket was read of, and returns the number of sessions of which
// nothing was read.
func (x *sessionIndex) complete(ctx context.Context, c *Client) (unread int, err error) {
	others := map[string]bool{}
	for bucket, p := range x.parts {
		for id := range p.unread {
			if !slices.ContainsFunc(sessionBuckets, func(b string) bool {
				return x.parts[b].conversations[id].isStored
			}) {
				others[id] = true
				continue
			}
			switch conv, err := c.readConversation(ctx, bucket, id); {
			case err == nil:
				p.conversations[id] = indexConversation(conv)
			case !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrUnreadable):
				return 0, err
			}
			delete(p.unread, id)
		}
	}
	return len(others), nil
}

// list merges the parts.
func (x *sessionIndex) list(now time.Time) []SessionSummary {
	all, running := map[string]indexedConversation{}, map[string]indexedTurn{}
	for _, p := range x.parts {
		for id, s := range p.conversations {
			all[id] = all[id].merge(s)
		}
		for _, t := range p.turns {
			if p.isRunning(t, now) && t.written.After(running[t.SessionID].written) {
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
	return found
}

// LastSession returns the id of the user's readable session that was used last, [ErrNotFound] when there is none. One
// without a stored answer is none.
func (c *Client) LastSession(ctx context.Context) (string, error) {
	isOwn := func(s SessionSummary) bool { return s.Err == nil && s.isStored && subjects.ClientOf(s.ID) == "" }
	all, _, err := c.Sessions(ctx, 1, isOwn)
	if err != nil {
		return "", err
	}
	if i := slices.IndexFunc(all, isOwn); i >= 0 {
		return all[i].ID, nil
	}
	return "", fmt.Errorf("session %w", ErrNotFound)
}

// Summarize describes a conversation.
func Summarize(c subjects.Conversation) SessionSummary {
	s := SessionSummary{ID: c.SessionID, Turns: len(c.Turns) + c.Summarized + c.Dropped, Updated: c.Updated}
	switch {
	case c.First != "":
		s.Question = c.First
	case len(c.Turns) > 0:
		s.Question = text.Clip(c.Turns[0].Query, maxQuestion)
	default:
		s.Summary = text.Clip(c.Summary, maxQuestion)
	}
	return s
}
