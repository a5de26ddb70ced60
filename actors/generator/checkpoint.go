package generator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/loop"
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
	Graded  string         `json:"graded,omitempty"`
	Owner   string         `json:"owner"` // id of the attempt that holds the turn
	Stage   string         `json:"stage"`
	Try     int            `json:"try"`               // delivery attempt of the message
	Stalled int            `json:"stalled,omitempty"` // times it was claimed again since its last progress
	Began   time.Time      `json:"began"`
	Written time.Time      `json:"written"`
	State   *loop.State    `json:"state,omitempty"`
	Publish *pendingAnswer `json:"publish,omitempty"`
	// Labels join those of all results so far: the trust and the privacy of the answer.
	Labels  *subjects.Labels `json:"labels,omitempty"`
	Recalls []string         `json:"recalls,omitempty"` // memories in the results
	// Recall is the recall before the first model call; nil = there was none.
	Recall *loop.FinishedCall `json:"recall,omitempty"`
}

// pendingAnswer is a finished answer with the ids of its events. Published again under the same ids it is stored once.
type pendingAnswer struct {
	Response   subjects.Response  `json:"response"`
	ResponseID string             `json:"response_id"`
	DialogID   string             `json:"dialog_id"`
	Messages   []subjects.Message `json:"messages,omitempty"` // for the conversation
}

// errNotOwner means that another process has taken over the turn: this one must publish nothing more.
var errNotOwner = errors.New("another process has taken over this turn")

const (
	maxRecord           = 960 << 10        // bytes; below the limit of the bucket
	storeTimeout        = 10 * time.Second // of one write
	ownershipCheckAfter = time.Minute      // after this long without a write, ownership is checked before publishing
)

// records is the bucket of turn records.
func (g *Generator) records() actor.Bucket[turnRecord] {
	return actor.Bucket[turnRecord]{Name: g.bucket(), MaxSize: maxRecord, Timeout: storeTimeout}
}

// storeRecord writes the record by compare-and-set, also when ctx has ended. step names the write. It fails with
// errNotOwner when another process was first, with errRecordTooLarge when the record exceeds maxRecord, and with the
// error of the store.
func (t *turn) storeRecord(ctx context.Context, step string) error {
	t.record.Written = t.out.Now().UTC()
	t.resultMu.Lock()
	v := actor.Versioned[turnRecord]{Value: t.record, Revision: t.rev}
	t.resultMu.Unlock()
	stored, err := t.g.records().Store(ctx, t.out, step, turnKey(t.sessionID), v)
	if errors.Is(err, actor.ErrChanged) {
		stored, err = t.replaceOwnRecord(ctx, step, v)
	}
	switch {
	case errors.Is(err, actor.ErrTooLarge):
		return errRecordTooLarge
	case err != nil:
		return fmt.Errorf("storing the turn: %w", err)
	}
	t.rev = stored.Revision
	return nil
}

// replaceOwnRecord writes v after a write failed as changed: over the last write of this attempt, whose acknowledgement
// was lost. It fails with errNotOwner when the stored record belongs to another attempt or changes again, and with
// actor.ErrNotFound when there is none.
func (t *turn) replaceOwnRecord(ctx context.Context, step string, v actor.Versioned[turnRecord]) (
	actor.Versioned[turnRecord], error,
) {
	there, err := t.g.records().Load(ctx, t.out, turnKey(t.sessionID))
	switch {
	case err != nil:
		return v, err
	case there.Revision == 0:
		return v, actor.ErrNotFound
	case there.Value.Owner != v.Value.Owner:
		return v, errNotOwner
	}
	v.Revision = there.Revision
	stored, err := t.g.records().Store(ctx, t.out, step, turnKey(t.sessionID), v)
	if errors.Is(err, actor.ErrChanged) {
		return v, errNotOwner
	}
	return stored, err
}

// checkOwnership fails with errNotOwner when another process has taken over the turn. It checks, by writing the record,
// only when the last write is older than ownershipCheckAfter. A process that was paused for longer than the stream
// remembers message ids would otherwise publish an answer that another has published in its place.
func (t *turn) checkOwnership(ctx context.Context) error {
	if t.out.Now().Sub(t.record.Written) < ownershipCheckAfter {
		return nil
	}
	return t.storeRecord(ctx, "turn.hold")
}

// withStoreTimeout is a context for a write that must be completed although the turn was canceled.
func withStoreTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
}
