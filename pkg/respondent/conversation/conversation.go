// Package conversation reads and writes the history of a session in the bucket of a respondent. Its size and the number
// of its turns are bounded; labels and query ids of turns that are dropped stay.
package conversation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Bounds of a conversation. The bucket's values are at most one megabyte.
const (
	maxBytes    = 700 << 10
	maxPast     = 200 // query ids of dropped turns, kept to recognize duplicates
	maxBranches = 32
	maxModel    = 200 // bytes of the name of a model
	// MaxAttachmentStart bounds the text of an attachment that is kept for views, in bytes.
	MaxAttachmentStart = 200
)

// Read reads the conversation of a session; one that does not exist is empty, with revision 0. One that cannot be
// decoded is an error, because an empty one would be written over it.
func Read(ctx context.Context, store actor.Store, session string) (subjects.Conversation, uint64, error) {
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

// NewTurn is the turn of a published response.
func NewTurn(r subjects.Response, now time.Time) subjects.Turn {
	t := subjects.Turn{
		QueryID: r.QueryID, Query: r.Query, Answer: r.Answer, Model: text.Clip(r.Model, maxModel), Partial: r.Partial,
		Labels: r.Labels, Time: now, Attachments: ShortenAttachments(r.Attachments, MaxAttachmentStart),
	}
	if r.Error != nil {
		t.Error = r.Error.Code
	}
	return t
}

// ShortenAttachments returns the attachments with at most most bytes of each text. The slice is not modified.
func ShortenAttachments(all []subjects.Attachment, most int) []subjects.Attachment {
	var out []subjects.Attachment
	for _, a := range all {
		a.Text = text.Clip(a.Text, most)
		out = append(out, a)
	}
	return out
}

// Append adds the turn that next returns to c, the conversation as it was read with revision rev, once, and keeps the
// latest most turns. It retries against concurrent writers, calls next each time, and fails with CodeBusy after 8
// attempts. It returns the conversation as it is stored, its revision, and its size in bytes, 0 = the question was
// answered before.
func Append(ctx context.Context, store actor.Store, c subjects.Conversation, rev uint64, next func() subjects.Turn,
	most int,
) (subjects.Conversation, uint64, int, error) {
	for range 8 {
		turn := next()
		if c.Answered(turn.QueryID) {
			return c, rev, 0, nil
		}
		added, data, err := add(c, turn, most)
		if err != nil {
			return c, rev, 0, err
		}
		now, err := store.Put(ctx, subjects.ConversationKey(c.SessionID), data, rev)
		if err == nil {
			return added, now, len(data), nil
		}
		if !errors.Is(err, actor.ErrChanged) {
			return c, rev, 0, err
		}
		if c, rev, err = Read(ctx, store, c.SessionID); err != nil {
			return c, rev, 0, err
		}
	}
	return c, rev, 0, subjects.Faultf(subjects.CodeBusy, "storing the conversation: others kept changing it; it is "+
		"retried later")
}

// add appends a turn and drops the oldest turns beyond most and beyond maxBytes, branches before them. A single turn
// that is too large loses its tool messages and attachments; then question and answer, and last the summary, are halved
// until it fits. It also returns the encoded conversation. The slices of c are not modified.
func add(c subjects.Conversation, t subjects.Turn, most int) (subjects.Conversation, []byte, error) {
	c.Turns, c.Updated, c.Labels, c.Deleted = append(slices.Clone(c.Turns), t), t.Time, Labels(c).Join(t.Labels), false
	for len(c.Turns) > most {
		c = dropOldestTurn(c)
	}
	for {
		data, err := actor.EncodeValue(c)
		if err != nil {
			return c, nil, fmt.Errorf("encoding the conversation: %w", err)
		}
		if len(data) <= maxBytes {
			return c, data, nil
		}
		last := &c.Turns[len(c.Turns)-1]
		switch {
		case len(c.Branches) > 0:
			c = dropOldestBranch(c)
		case len(c.Turns) > 1:
			for over := len(data) - maxBytes; over > 0 && len(c.Turns) > 1; c = dropOldestTurn(c) {
				turn, err := actor.EncodeValue(c.Turns[0])
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

// Labels joins the labels of all turns of a conversation, also of dropped ones; nil = no turn has labels. Turns that
// were summarized or dropped before conversations had labels count as untrusted and private.
func Labels(c subjects.Conversation) *subjects.Labels {
	all := c.Labels
	if all == nil && c.Summarized+c.Dropped > 0 {
		all = &subjects.Labels{Trust: subjects.Untrusted, Privacy: subjects.Private}
	}
	for _, t := range c.Turns {
		all = all.Join(t.Labels)
	}
	return all
}

// Erase returns an encoded conversation that the user deleted: only the query ids of its latest turns stay, so that no
// question is answered twice.
func Erase(c subjects.Conversation, now time.Time) ([]byte, error) {
	for len(c.Branches) > 0 {
		c = dropOldestBranch(c)
	}
	return actor.EncodeValue(subjects.Conversation{
		SessionID: c.SessionID, Turns: []subjects.Turn{}, Past: RemoveOldest(c, len(c.Turns)).Past, Updated: now,
		Deleted: true,
	})
}

// dropOldestTurn removes the oldest turn and counts it as dropped.
func dropOldestTurn(c subjects.Conversation) subjects.Conversation {
	c = RemoveOldest(c, 1)
	c.Dropped++
	return c
}

// dropOldestBranch removes the oldest branch; its query ids stay in Past.
func dropOldestBranch(c subjects.Conversation) subjects.Conversation {
	kept := c.Turns
	c.Turns, c.Branches = c.Branches[0].Turns, c.Branches[1:]
	c = RemoveOldest(c, len(c.Turns))
	c.Turns = kept
	return c
}

// SetAside moves the turns from at on to a branch, of which the oldest beyond maxBranches are dropped. Their labels
// stay with the conversation. Without turns there it changes nothing.
func SetAside(c subjects.Conversation, at int) subjects.Conversation {
	if at == len(c.Turns) {
		return c
	}
	c.Labels = Labels(c)
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

// RemoveOldest removes the oldest n turns, at most len(c.Turns), and keeps their query ids in Past, of which the oldest
// beyond maxPast are forgotten.
func RemoveOldest(c subjects.Conversation, n int) subjects.Conversation {
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
