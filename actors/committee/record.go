package committee

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/text"
	"conclave/subjects"
)

// records is the bucket of turn records, by [recordKey].
var records = actor.Bucket[record]{Name: subjects.StateBucket(name), MaxSize: 960 << 10}

// recordKey is the key of the record of a question.
func recordKey(query string) string { return subjects.TurnPrefix + "." + query }

// record is the checkpoint of a turn, written after each contribution. It is also its lock: only the attempt that
// claimed it last may change it. It implements [actor.Outbox]: its events are stored with it before they are published.
type record struct {
	SessionID string    `json:"session_id"`
	QueryID   string    `json:"query_id"`
	Owner     string    `json:"owner"`             // id of the attempt that holds the turn
	Stalled   int       `json:"stalled,omitempty"` // times it was claimed again since its last progress
	Began     time.Time `json:"began"`

	Context   *staticContext `json:"context,omitempty"`
	Done      []contribution `json:"done,omitempty"` // finished and failed ones, in the order of their end
	Events    []pendingEvent `json:"events,omitempty"`
	Answer    *pendingAnswer `json:"answer,omitempty"`
	Published bool           `json:"published,omitempty"` // the answer is
	Finished  bool           `json:"finished,omitempty"`  // the answer is also part of the conversation
}

// contribution is one persona's turn in one round, as far as later turns and the answer need it.
type contribution struct {
	Persona  string              `json:"persona"`
	Round    int                 `json:"round"`
	Response string              `json:"response,omitempty"`
	Dissents bool                `json:"dissents,omitempty"`
	Dissent  string              `json:"dissent,omitempty"`
	Calls    []subjects.ToolCall `json:"calls,omitempty"`
	Made     int                 `json:"made,omitempty"` // number of calls, also of those that are left out
	Usage    subjects.Usage      `json:"usage"`
	Model    string              `json:"model,omitempty"`
	Demo     bool                `json:"demo,omitempty"` // the built-in demo model spoke
	Labels   *subjects.Labels    `json:"labels,omitempty"`
	Recalls  []string            `json:"recalls,omitempty"`
	Error    *subjects.Fault     `json:"error,omitempty"`
}

// staticContext is what memory holds for the question, for models without tools.
type staticContext struct {
	Text    string              `json:"text"`
	Calls   []subjects.ToolCall `json:"calls,omitempty"`
	Labels  *subjects.Labels    `json:"labels,omitempty"`
	Recalls []string            `json:"recalls,omitempty"`
}

// pendingEvent is a deliberation event with the id under which it is published.
type pendingEvent struct {
	ID   string                `json:"id"`
	Body subjects.Deliberation `json:"body"`
}

// pendingAnswer is a finished answer with the ids of its events. Published again under the same ids it is stored once.
type pendingAnswer struct {
	Response   subjects.Response `json:"response"`
	ResponseID string            `json:"response_id"`
	DialogID   string            `json:"dialog_id"`
}

// Pending implements [actor.Outbox].
func (r *record) Pending() (out []actor.Event) {
	for _, e := range r.Events {
		if topic, err := subjects.DeliberationEvent.With(r.QueryID); err == nil {
			out = append(out, actor.NewEvent("deliberation", topic, e.ID, e.Body))
		}
	}
	if a := r.Answer; a != nil && !r.Published {
		d := subjects.Dialog{
			SessionID: a.Response.SessionID, QueryID: a.Response.QueryID, Query: a.Response.Query,
			Answer: a.Response.Answer, RespondentID: a.Response.RespondentID,
		}
		out = append(out, actor.NewEvent("response", subjects.ResponseGeneration, a.ResponseID, a.Response),
			actor.NewEvent("dialog", subjects.AnswerDialog, a.DialogID, d))
	}
	return out
}

// MarkPublished implements [actor.Outbox].
func (r *record) MarkPublished() { r.Events, r.Published = nil, r.Answer != nil }

// has reports whether a persona's turn in a round has ended.
func (r record) has(persona string, round int) bool {
	return slices.ContainsFunc(r.Done, func(c contribution) bool { return c.Persona == persona && c.Round == round })
}

// shrink drops what the events hold too, for a record that would be too large.
func (r *record) shrink() {
	r.Done = slices.Clone(r.Done)
	for i := range r.Done {
		r.Done[i].Calls, r.Done[i].Response = nil, text.Clip(r.Done[i].Response, 1<<10)
	}
	if r.Answer != nil {
		short := *r.Answer
		short.Response.ToolCalls, short.Response.Thinking, short.Response.Answer = []subjects.ToolCall{},
			text.Clip(short.Response.Thinking, 4<<10), text.Clip(short.Response.Answer, 32<<10)
		short.Response.Notes = append(slices.Clone(short.Response.Notes),
			subjects.Note{Code: subjects.NoteRecordCut, Text: "the record of this answer was too large and is " +
				"shortened"})
		r.Answer = &short
	}
}

// errNotOwner means that another process has taken over the turn: this one must publish nothing more.
var errNotOwner = errors.New("another process has taken over this turn")

// claim makes this attempt the owner of the turn. It reports true when the turn is finished.
func (t *turn) claim(ctx context.Context) (finished bool, err error) {
	t.stored, err = records.Update(ctx, t.out, "turn.start", recordKey(t.query.QueryID),
		func(r *record, found bool) (bool, error) {
			if r.Finished {
				return false, nil
			}
			if !found {
				*r = record{SessionID: t.sessionID, QueryID: t.query.QueryID, Began: t.out.Now().UTC()}
			} else if r.Owner != t.owner { // not the write of this attempt whose acknowledgement was lost
				r.Stalled++
			}
			r.Owner = t.owner
			return true, nil
		})
	return t.stored.Value.Finished, err
}

// update changes the record and publishes its pending events. It fails with errNotOwner when another attempt has
// claimed the turn. A record that is too large is shortened. change may be called more than once, each time with the
// stored record.
func (t *turn) update(ctx context.Context, step string, change func(r *record)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, short := range []bool{false, true} {
		stored, err := records.UpdateFrom(ctx, t.out, step, recordKey(t.query.QueryID), t.stored,
			func(r *record, found bool) (bool, error) {
				if !found || r.Owner != t.owner {
					return false, errNotOwner
				}
				r.Stalled = 0
				if change(r); short {
					r.shrink()
				}
				return true, nil
			})
		switch {
		case err == nil:
			t.stored = stored
			return nil
		case !errors.Is(err, actor.ErrTooLarge):
			return fmt.Errorf("storing the turn: %w", err)
		}
	}
	return errRecordTooLarge
}

// snapshot is the record as it was stored last.
func (t *turn) snapshot() record {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stored.Value
}

// awaitInterval is how often awaitOtherOwner polls.
const awaitInterval = 250 * time.Millisecond

// awaitOtherOwner waits until the process that has taken over the turn has finished it, and returns nil. It fails with
// CodeBusy when that takes longer than one contribution may or than ctx. Acknowledging the message earlier would take
// it from the other process.
func (t *turn) awaitOtherOwner(ctx context.Context) error {
	wait, cancel := context.WithTimeout(ctx, t.c.cfg.Wall)
	defer cancel()
	for {
		r, err := records.Load(wait, t.out, recordKey(t.query.QueryID))
		if err == nil && r.Value.Finished {
			return nil
		}
		select {
		case <-wait.Done():
			return subjects.Faultf(subjects.CodeBusy, "another committee has taken over this turn")
		case <-time.After(awaitInterval):
		}
	}
}
