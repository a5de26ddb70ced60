// Package conversation reads and writes the history of a session in the bucket of a respondent: the latest turns, whose
// size and number are bounded, are one value, which the prompt is made from, and each turn before them has a value of
// its own in the archive, where views read it.
package conversation

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
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
	maxFirst    = 400 // bytes of the first question that stay when its turn is archived
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
	if state := r.State(); state != subjects.StateAnswered {
		t.State = state
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
// latest most turns in it; the others are archived. It retries against concurrent writers, calls next each time, and
// fails with CodeBusy after 8 attempts. It returns the conversation as it is stored, its revision, and its size in
// bytes, 0 = the question was answered before.
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
		now, err := replace(ctx, store, c, rev, added, data)
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

// Replace stores next in the place of c, which has revision rev, and archives the oldest turns of c that next lacks.
// The error wraps [actor.ErrChanged] when rev is outdated.
func Replace(ctx context.Context, store actor.Store, c subjects.Conversation, rev uint64,
	next subjects.Conversation,
) (uint64, error) {
	data, err := actor.EncodeValue(next)
	if err != nil {
		return 0, fmt.Errorf("encoding the conversation: %w", err)
	}
	return replace(ctx, store, c, rev, next, data)
}

// replace is [Replace] with next encoded. The turns are archived first: none is lost when the process ends in between.
// When another writer was first, what it leaves in the archive is not read, or it is the same, or the user deleted the
// conversation: then it is erased again.
func replace(ctx context.Context, store actor.Store, c subjects.Conversation, rev uint64, next subjects.Conversation,
	data []byte,
) (uint64, error) {
	n := next.Archived - c.Archived
	err := archive(ctx, store, c, n)
	if err == nil {
		rev, err = store.Put(ctx, subjects.ConversationKey(c.SessionID), data, rev)
	}
	if err == nil || n == 0 {
		return rev, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), eraseTimeout)
	defer cancel()
	now, _, eraseErr := Read(ctx, store, c.SessionID)
	if eraseErr == nil {
		eraseErr = EraseArchive(ctx, store, c.SessionID, now.Deletions)
	}
	return 0, cmp.Or(eraseErr, err)
}

// eraseTimeout bounds the erasure of archived turns, also when the write that left them was cancelled.
const eraseTimeout = 10 * time.Second

// archive stores the oldest n turns of c in the archive, before they are removed from it.
func archive(ctx context.Context, store actor.Store, c subjects.Conversation, n int) error {
	for i, t := range c.Turns[:n] {
		data, err := actor.EncodeValue(t)
		if err == nil {
			err = overwrite(ctx, store, c.ArchivedTurnKey(c.Archived+i), data)
		}
		if err != nil {
			return fmt.Errorf("archiving a turn of session %s: %w", c.SessionID, err)
		}
	}
	return nil
}

// EraseArchive deletes the turns of a session that were archived before a deletion of its conversation, also those that
// it does not count. deletions is the number of the deletion, [EveryDeletion] erases all.
func EraseArchive(ctx context.Context, store actor.Store, session string, deletions int) error {
	if deletions == 0 {
		return nil
	}
	prefix := subjects.ArchivePrefix(session)
	keys, err := store.Keys(ctx, prefix)
	for _, key := range keys {
		after := 0
		if number, _, ok := strings.Cut(key[len(prefix)+1:], "."); ok {
			after, _ = strconv.Atoi(number) // only numbers are stored
		}
		if err == nil && after < deletions {
			err = overwrite(ctx, store, key, nil)
		}
	}
	if err != nil {
		return fmt.Errorf("deleting the archived turns of session %s: %w", session, err)
	}
	return nil
}

// EveryDeletion is a number that no conversation was deleted as often as.
const EveryDeletion = math.MaxInt

// overwrite stores a value whatever the key has; nil deletes it.
func overwrite(ctx context.Context, store actor.Store, key string, data []byte) error {
	for rev := uint64(0); ; {
		_, err := store.Put(ctx, key, data, rev)
		if !errors.Is(err, actor.ErrChanged) {
			return err
		}
		var had []byte
		if had, rev, err = store.Get(ctx, key); err != nil || bytes.Equal(had, data) {
			return err
		}
	}
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
		Deleted: true, Deletions: c.Deletions + 1,
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
	c = remember(c, c.Branches[0].Turns)
	c.Branches = c.Branches[1:]
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

// RemoveOldest removes the oldest n turns, at most len(c.Turns), and counts them as archived: see [Replace]. The first
// question of the conversation stays, so that its title does not change.
func RemoveOldest(c subjects.Conversation, n int) subjects.Conversation {
	if n > 0 && c.First == "" {
		c.First, c.Began = text.Clip(c.Turns[0].Query, maxFirst), c.Turns[0].Time
	}
	c = remember(c, c.Turns[:n])
	c.Turns, c.Archived = c.Turns[n:], c.Archived+n
	return c
}

// remember keeps the query ids of turns in Past, of which the oldest beyond maxPast are forgotten.
func remember(c subjects.Conversation, turns []subjects.Turn) subjects.Conversation {
	c.Past = slices.Clip(c.Past)
	for _, t := range turns {
		c.Past = append(c.Past, t.QueryID)
	}
	if over := len(c.Past) - maxPast; over > 0 {
		c.Past = c.Past[over:]
	}
	return c
}
