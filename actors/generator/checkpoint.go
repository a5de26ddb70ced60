package generator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/loop"
	"conclave/subjects"
)

// turnKey is where the turn of a session is written down that was begun last.
func turnKey(session string) string { return "turn." + session }

// Stages of a turn.
const (
	stageReceived   = "received"   // begun; nothing has been asked yet
	stageWorking    = "working"    // as far as State says
	stagePublishing = "publishing" // the answer is in Publish
)

// turnRecord is a turn as it is written down. It is also the fence: each write names the revision of the one before, so of
// two that work at the same turn only one can go on.
type turnRecord struct {
	QueryID string `json:"query_id"`
	Query   string `json:"query"`
	// Reference is what a good answer says, for whoever grades it. No model that answers sees it.
	Reference string `json:"reference,omitempty"`
	// Graded is what the model is told of its last answer, "" = nothing. It is decided once: what is heard since does not
	// change a turn that has begun.
	Graded  string         `json:"graded,omitempty"`
	Owner   string         `json:"owner"` // of this life of the turn
	Stage   string         `json:"stage"`
	Try     int            `json:"try"`               // of the message that brought it
	Stalled int            `json:"stalled,omitempty"` // times it was begun again since it last came further
	Began   time.Time      `json:"began"`
	Written time.Time      `json:"written"`
	State   *loop.State    `json:"state,omitempty"`
	Publish *pendingAnswer `json:"publish,omitempty"`
	// Labels are those of all results so far: what strangers wrote into the answer, and whose it is.
	Labels  *subjects.Labels `json:"labels,omitempty"`
	Recalls []string         `json:"recalls,omitempty"` // memories that results showed
}

// pendingAnswer is a finished answer with the ids under which it is said. Said again with the same ids it is stored once.
type pendingAnswer struct {
	Response   subjects.Response  `json:"response"`
	ResponseID string             `json:"response_id"`
	DialogID   string             `json:"dialog_id"`
	Messages   []subjects.Message `json:"messages,omitempty"` // for the conversation
}

// errNotOwner means that another has taken over the turn: nothing more may be said or done here.
var errNotOwner = errors.New("another has taken over this turn")

const (
	maxRecord           = 960 << 10        // below what the bucket takes
	storeTimeout        = 10 * time.Second // longest wait for one write
	ownershipCheckAfter = time.Minute      // after this long without a write, the fence is tried before anything is said
)

// storeRecord writes the turn down if nobody else has since. step names the boundary.
func (t *turn) storeRecord(ctx context.Context, step string) error {
	t.rec.Written = t.out.Now().UTC()
	t.resultMu.Lock()
	data, err := encodeJSON(t.rec)
	t.resultMu.Unlock()
	if err != nil {
		return fmt.Errorf("encoding the turn: %w", err)
	}
	if len(data) > maxRecord {
		return errRecordTooLarge
	}
	ctx, cancel := withStoreTimeout(ctx)
	defer cancel()
	t.g.at(step + "/before")
	rev, err := t.store.Put(ctx, turnKey(t.sessionID), data, t.rev)
	if errors.Is(err, actor.ErrChanged) {
		rev, err = t.replaceOwnRecord(ctx, data)
	}
	if err != nil {
		return fmt.Errorf("writing the turn down: %w", err)
	}
	t.rev, t.size = rev, len(data)
	t.g.at(step + "/after")
	return nil
}

// replaceOwnRecord writes over the turn's own last write, whose acknowledgement was lost. Anybody else's is left alone.
func (t *turn) replaceOwnRecord(ctx context.Context, data []byte) (uint64, error) {
	there, rev, err := t.store.Get(ctx, turnKey(t.sessionID))
	if err != nil {
		return 0, err
	}
	var r turnRecord
	if json.Unmarshal(there, &r) != nil || r.Owner != t.rec.Owner {
		return 0, errNotOwner
	}
	rev, err = t.store.Put(ctx, turnKey(t.sessionID), data, rev)
	if errors.Is(err, actor.ErrChanged) {
		return 0, errNotOwner
	}
	return rev, err
}

// checkOwnership makes sure that the turn is still this one's. A process that was paused for longer than the stream remembers ids
// would say an answer again that another has said in its place.
func (t *turn) checkOwnership(ctx context.Context) error {
	if t.out.Now().Sub(t.rec.Written) < ownershipCheckAfter {
		return nil
	}
	return t.storeRecord(ctx, "turn.hold")
}

// withStoreTimeout is a context for a write that is seen through although the turn was stopped.
func withStoreTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
}
