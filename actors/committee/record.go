package committee

import (
	"context"
	"slices"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/respondent"
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
	Written   time.Time `json:"written,omitzero"` // the last write

	Context *staticContext      `json:"context,omitempty"`
	Done    []contribution      `json:"done,omitempty"` // finished and failed ones, in the order of their end
	Events  []pendingEvent      `json:"events,omitempty"`
	Answer  *respondent.Pending `json:"answer,omitempty"`
	// Published means that the events of the answer are stored.
	Published bool `json:"published,omitempty"`
	Finished  bool `json:"finished,omitempty"` // and it is part of the conversation
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

// Pending implements [actor.Outbox].
func (r *record) Pending() (out []actor.Event) {
	for _, e := range r.Events {
		if topic, err := subjects.DeliberationEvent.With(r.QueryID); err == nil {
			out = append(out, actor.NewEvent("deliberation", topic, e.ID, e.Body))
		}
	}
	return out
}

// MarkPublished implements [actor.Outbox].
func (r *record) MarkPublished() { r.Events = nil }

// has reports whether a persona's turn in a round has ended.
func (r record) has(persona string, round int) bool {
	return slices.ContainsFunc(r.Done, func(c contribution) bool { return c.Persona == persona && c.Round == round })
}

// Load implements [respondent.Work].
func (t *turn) Load(ctx context.Context, _ bool) (v actor.Versioned[record], done bool, err error) {
	v, err = records.Load(ctx, t.Out, recordKey(t.Query.QueryID))
	return v, v.Value.Finished, err
}

// Claim implements [respondent.Work].
func (t *turn) Claim(r *record, resumed bool) {
	if !resumed {
		r.SessionID, r.Began = t.Session, t.Out.Now().UTC()
	}
}

// Finish implements [respondent.Work]: the record stays to recognize a duplicate.
func (t *turn) Finish(r *record) bool {
	*r = record{SessionID: r.SessionID, QueryID: r.QueryID, Owner: r.Owner, Began: r.Began, Finished: true}
	return true
}

// maxShrunk bounds the answer in a record that was too large, in bytes.
const maxShrunk = 128 << 10

// Shrink implements [respondent.Work].
func (t *turn) Shrink(r *record) bool {
	r.Done = slices.Clone(r.Done)
	for i := range r.Done {
		r.Done[i].Calls, r.Done[i].Response = nil, text.Clip(r.Done[i].Response, 1<<10)
	}
	if r.Answer != nil {
		short := *r.Answer
		short.Response = respondent.ShrinkResponse(short.Response, maxShrunk)
		r.Answer = &short
	}
	return true
}
