package generator

import (
	"context"
	"errors"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/agent"
	"conclave/pkg/loop"
	"conclave/pkg/respondent"
	"conclave/pkg/respondent/conversation"
	"conclave/pkg/text"
	"conclave/subjects"
)

// turnKey is the key of the record of a session's latest turn.
func turnKey(session string) string { return subjects.TurnPrefix + "." + session }

// Stages of a turn.
const (
	stageReceived   = "received"   // claimed; no model was called yet
	stageWorking    = "working"    // State holds the progress
	stagePublishing = "publishing" // Publish holds the answer
)

// turnRecord is the checkpoint of a turn. It is also its lock: each write names the revision of the one before, so of
// two processes with the same turn only one can go on.
type turnRecord struct {
	QueryID string `json:"query_id"`
	Query   string `json:"query"`
	// Attachments of the question without credentials. Nonce is that of the frames around them, unpredictable.
	Attachments []subjects.Attachment `json:"attachments,omitempty"`
	Nonce       string                `json:"nonce,omitempty"`
	// Reference is a good answer, for the critic. No model that answers sees it.
	Reference string `json:"reference,omitempty"`
	// Graded tells the model how its last answer was graded; "" = nothing. Later grades do not change a turn that has
	// begun.
	Graded  string              `json:"graded,omitempty"`
	Owner   string              `json:"owner"` // id of the attempt that holds the turn
	Stage   string              `json:"stage"`
	Stalled int                 `json:"stalled,omitempty"` // times it was claimed again since its last progress
	Began   time.Time           `json:"began"`
	Written time.Time           `json:"written"`
	State   *loop.State         `json:"state,omitempty"`
	Publish *respondent.Pending `json:"publish,omitempty"`
	// Labels join those of all results so far: the trust and the privacy of the answer.
	Labels  *subjects.Labels `json:"labels,omitempty"`
	Recalls []string         `json:"recalls,omitempty"` // memories in the results
	// Recall is the recall before the first model call; nil = there was none.
	Recall *loop.FinishedCall `json:"recall,omitempty"`
}

// maxRecord bounds a record, in bytes: below the limit of the bucket.
const maxRecord = 960 << 10

// Load implements [respondent.Work].
func (t *turn) Load(ctx context.Context, fresh bool) (v actor.Versioned[turnRecord], done bool, err error) {
	if fresh {
		t.g.sessions.remove(t.Session)
	}
	s, err := t.g.loadSession(ctx, t.Out.Store(t.g.Bucket.Name), t.Session)
	if err != nil && !errors.Is(err, actor.ErrUnreadable) {
		return v, false, err
	}
	t.loaded, t.prior = s, s.conversation
	if t.g.isRespondentB {
		t.prior = t.userConversation(ctx, s.conversation)
	}
	v.Value, v.Revision = s.record, s.recordRev
	return v, s.conversation.Answered(t.Query.QueryID), err
}

// Abandoned implements [respondent.Abandoner]. Nobody waits for the answers of respondent B.
func (t *turn) Abandoned(r turnRecord) (q subjects.Query, ok bool) {
	return subjects.Query{
		SessionID: t.Session, QueryID: r.QueryID, Query: r.Query, Attachments: r.Attachments, Reference: r.Reference,
	}, r.QueryID != "" && !t.loaded.conversation.Answered(r.QueryID) && !t.g.isRespondentB
}

// Claim implements [respondent.Work]. A question that is too long is clipped.
func (t *turn) Claim(r *turnRecord, resumed bool) {
	if !resumed {
		r.Query, r.Reference, r.Stage = t.Query.Query, text.Clip(t.Query.Reference, maxReference), stageReceived
		r.Began, r.Graded = t.Out.Now().UTC(), t.g.describeGrades(t.prior)
		r.Attachments, r.Nonce = agent.RedactAttachments(t.Query.Attachments), agent.NewNonce(t.Out)
	}
	r.Labels = r.Labels.Join(conversation.Labels(t.prior)).Join(agent.LabelAttachments(r.Attachments)).
		Join(agent.LabelQuestion(t.Query, t.Session))
	t.results = agent.Collection{}
	t.results.Add(subjects.ToolResult{Labels: r.Labels, Recalls: r.Recalls})
	if t.isQueryTooLong() {
		r.Query, r.Attachments = text.Clip(r.Query, 16<<10),
			conversation.ShortenAttachments(r.Attachments, conversation.MaxAttachmentStart)
	}
}

// maxQuestion bounds an encoded question with its attachments, in bytes: with the progress of the turn it must fit into
// a record.
const maxQuestion = 128 << 10

func (t *turn) isQueryTooLong() bool {
	data, err := actor.EncodeValue(subjects.Query{Query: t.Query.Query, Attachments: t.Query.Attachments})
	return err != nil || len(data) > maxQuestion
}

// Shrink implements [respondent.Work]: tool results are in the events too.
func (t *turn) Shrink(r *turnRecord) bool {
	if r.Publish == nil {
		return false
	}
	short := *r.Publish
	short.Messages, r.Publish = nil, &short
	return true
}

// maxFinishedRecord is how large the record of a finished turn may stay, in bytes.
const maxFinishedRecord = 16 << 10

// Finish implements [respondent.Work]: the conversation holds the answer, and the record of a session that is never
// used again would stay. A small one does.
func (t *turn) Finish(r *turnRecord) bool {
	if data, err := actor.EncodeValue(r); err == nil && len(data) < maxFinishedRecord {
		return false
	}
	*r = turnRecord{QueryID: r.QueryID, Owner: r.Owner, Stage: r.Stage, Began: r.Began}
	return true
}
