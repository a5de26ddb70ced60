// Package respondent answers questions durably: one procedure for every actor that answers, whatever it does for it.
//
// A turn is one question. Its record is its checkpoint and its lock: each write names the revision of the one before,
// so of two processes with the same turn only one goes on. After a crash in any state the next delivery resumes:
//
//	state      stored by                                after a crash
//	claimed    the record, with the id of the attempt   the next delivery claims it
//	working    the record, by [Turn.Checkpoint]         it resumes from the last checkpoint
//	answered   the record, with the ids of the events   it is published, without another answer
//	published  EVENTS, under these ids                  it is published again under the same ids, unless
//	                                                    the record tells that it was
//	appended   the conversation, by [Work.Append]       [Work.Load] finds it
//	finished   the record, by [Work.Finish]             there is nothing to do
//
// EVENTS knows an id for two minutes. A crash between the first publication and the end of Append that is resumed later
// than that publishes twice; a process that was paused for as long does not, because it checks that it still owns the
// turn.
package respondent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/agent"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Fields points to the parts of a record that this package reads and writes.
type Fields struct {
	QueryID, Owner *string    // Owner is the id of the attempt that holds the turn
	Stalled        *int       // claims by further attempts since the last checkpoint
	Written        *time.Time // the last write
	Pending        **Pending  // nil = there is no answer yet
	Published      *bool      // the events of the answer are stored; nil = the record does not tell
}

// Pending is a finished answer with the ids of its events. Published again under the same ids it is stored once.
type Pending struct {
	Response   subjects.Response  `json:"response"`
	ResponseID string             `json:"response_id"`
	DialogID   string             `json:"dialog_id"`
	Messages   []subjects.Message `json:"messages,omitempty"` // for the conversation
	Summary    string             `json:"summary,omitempty"`  // for later tasks of the session
}

// Stage is what a turn has reached.
type Stage int

// Stages of a turn; a turn that has an answer already goes from Claimed to Answered.
const (
	Claimed   Stage = iota // this attempt owns the turn
	Answered               // the answer is stored, and is published next
	Finished               // the answer is published and part of the conversation
	Duplicate              // the question was answered before; the only stage of such an attempt
	Failed                 // the attempt ended before that; the turn is retried or runs elsewhere
)

// Work is an actor's part of one attempt at a turn. Its methods are called one after the other.
type Work[R any] interface {
	// Load reads the record, from a cache unless fresh is set, and reports whether the question is answered and part of
	// the conversation. The record may be that of another question. One that cannot be decoded is
	// [actor.ErrUnreadable], with its revision.
	Load(ctx context.Context, fresh bool) (v actor.Versioned[R], done bool, err error)
	// Claim completes the record before it is stored: an empty one, or that of an interrupted attempt.
	Claim(r *R, resumed bool)
	// Run works until there is an answer, from the progress in the record. Its error is explained in the answer, unless
	// it is one of a checkpoint.
	Run(ctx context.Context) error
	// Respond builds the answer from what Run left, or without Run from the progress in the record, and the change of
	// the record that is stored with it. cause is nil, the error that the answer is about, or [agent.ErrCanceled].
	Respond(ctx context.Context, cause error) (p Pending, change func(r *R), err error)
	// Append adds the published answer to the conversation, once.
	Append(ctx context.Context, p Pending) error
	// Finish makes the record of a finished turn small. false = it stays as it is.
	Finish(r *R) bool
	// Shrink removes from a record that is too large what events hold too. false = there is nothing.
	Shrink(r *R) bool
	// Enter is called when the turn enters a stage, to publish its state.
	Enter(ctx context.Context, s Stage)
}

// Abandoner is a [Work] whose record is shared by the questions of a session.
type Abandoner[R any] interface {
	// Abandoned returns the earlier question of the record if it was not answered. It is not delivered again: the next
	// question of a session is delivered after the last attempt at the one before.
	Abandoned(r R) (q subjects.Query, ok bool)
}

// Respondent answers questions with records of type R.
type Respondent[R any] struct {
	Account string // its name, and the respondent id in its events
	Tokens  int    // in the subject of a turn, of which the last is the session
	Hidden  bool   // it publishes no notes and no dialog: users do not see its answers
	// Unlimited means that the consumer of its turns has no delivery limit: an interrupted attempt is resumed, however
	// many there were. Run counts those without progress in Stalled itself.
	Unlimited bool
	Bucket    actor.Bucket[R]
	Key       func(session, query string) string // of the record
	Fields    func(r *R) Fields
	New       func(t *Turn[R]) Work[R]
	// Patience is how long another process that has taken over a turn may write nothing.
	Patience time.Duration

	cancels agent.Cancellations
}

// Errors of a turn. Those of [Turn.Checkpoint] end the attempt, except ErrTooLarge, which is answered.
var (
	// ErrNotOwner means that another process has taken over the turn: this one must publish nothing more.
	ErrNotOwner = errors.New("another process has taken over this turn")
	// ErrNotStored means that the record could not be written: the turn is retried.
	ErrNotStored = errors.New("storing the turn")
	// ErrTooLarge means that the record exceeds the size of its bucket.
	ErrTooLarge = errors.New("the turn has grown too large to be written down")
	// ErrExhausted means that no attempt is left.
	ErrExhausted = errors.New("answering this question failed each time it was tried")
)

const (
	storeTimeout  = 10 * time.Second       // of one write or publication
	holdAfter     = time.Minute            // after this long without a write, ownership is checked before publishing
	maxStalled    = 2                      // crashes without progress after which the last attempt is not risked
	claimAttempts = 8                      // against concurrent writers
	awaitInterval = 250 * time.Millisecond // between reads of a turn that another process has
)

// Name implements [actor.Actor].
func (k *Respondent[R]) Name() string { return k.Account }

// OnTurn answers one question. It returns nil when the answer is stored, also when it was stored before or by another
// process. It rejects a message without a session, its last token, and a query id: only the router publishes turns. Any
// other error has the message delivered again; on the last attempt a failure is published.
func (k *Respondent[R]) OnTurn(ctx context.Context, in actor.Msg[subjects.Query], out actor.Out) error {
	n := len(in.Tokens)
	if n == 0 || n != k.Tokens || subjects.CheckToken(in.Tokens[n-1]) != nil ||
		subjects.CheckToken(in.Body.QueryID) != nil {
		return subjects.Faultf(subjects.CodeMalformed, "a turn needs a valid session and query id; only the router "+
			"publishes turns")
	}
	t := k.newTurn(in.Tokens[n-1], in.Body, out)
	t.Attempt, t.Last = in.Attempt, in.Attempt >= subjects.MaxDeliver
	err := t.run(ctx)
	switch {
	case errors.Is(err, ErrNotOwner):
		return t.awaitOtherOwner(ctx)
	case err != nil && t.mustAnswer(ctx):
		t.emitFailure(ctx, err)
	}
	return err
}

// OnCancel cancels a query that is running here, or that will.
func (k *Respondent[R]) OnCancel(_ context.Context, in actor.Msg[subjects.Cancel], _ actor.Out) error {
	if len(in.Tokens) == 1 && subjects.CheckToken(in.Tokens[0]) == nil {
		k.Cancel(in.Tokens[0])
	}
	return nil
}

// Cancel cancels a query that is running here, or that will.
func (k *Respondent[R]) Cancel(query string) { k.cancels.Cancel(query) }

// Turn is one attempt, in this process, to answer one question. Its methods may be called concurrently.
type Turn[R any] struct {
	Out     actor.Out
	Session string
	Query   subjects.Query
	Owner   string // id of this attempt
	Attempt int    // delivery of the message
	Last    bool   // the message will not be delivered again
	State   string // published last, for notes

	k           *Respondent[R]
	work        Work[R]
	isAbandoned bool // the message of the question is not delivered at all
	isUnread    bool // the record of earlier attempts could not be read

	mu       sync.Mutex // guards stored, notes and storeErr
	stored   actor.Versioned[R]
	notes    []subjects.Note
	storeErr error // of the last write
}

func (k *Respondent[R]) newTurn(session string, q subjects.Query, out actor.Out) *Turn[R] {
	t := &Turn[R]{k: k, Out: out.WithIDs(session, q.QueryID), Session: session, Query: q, Owner: out.NewID()}
	t.work = k.New(t)
	return t
}

// run answers the question. nil = the answer is published and part of the conversation, now or before. ErrNotOwner =
// another process has the turn. On the last attempt an error becomes the answer, so that the user is not left without
// one, also when the process shuts down: no further delivery comes.
func (t *Turn[R]) run(ctx context.Context) (err error) {
	if t.Last { // on earlier attempts the runtime recovers and retries
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("%w: panic: %v", ErrExhausted, p)
			}
		}()
	}
	done, err := t.claim(ctx)
	if done {
		t.work.Enter(ctx, Duplicate)
	}
	if done || err != nil {
		return err
	}
	t.work.Enter(ctx, Claimed)
	if t.pending() == nil {
		err = t.answer(ctx)
		if err != nil && !errors.Is(err, ErrNotOwner) && t.mustAnswer(ctx) {
			t.Out.LogError(err)
			err = nil
			if t.pending() == nil { // a stored answer whose events could not be published stays
				err = t.storeAnswer(ctx, ErrExhausted)
			}
		}
	}
	if err == nil {
		t.work.Enter(ctx, Answered)
		err = t.publish(ctx)
	}
	if err != nil {
		t.work.Enter(ctx, Failed)
		return err
	}
	t.work.Enter(ctx, Finished)
	return nil
}

// mustAnswer reports whether a failure must be answered, because the message is not delivered again.
func (t *Turn[R]) mustAnswer(ctx context.Context) bool {
	return t.Last && (ctx.Err() == nil || !t.k.Unlimited)
}

// claim makes this attempt the owner of the turn. It reports true when the question was answered before. It first
// finishes another turn of the record that was abandoned. A record that cannot be read is replaced. It fails with
// CodeBusy when others change the record in each of claimAttempts.
func (t *Turn[R]) claim(ctx context.Context) (done bool, err error) {
	for n := range claimAttempts {
		v, done, err := t.work.Load(ctx, n > 0)
		if t.isUnread = errors.Is(err, actor.ErrUnreadable); t.isUnread {
			t.Out.LogError(err)
			err = nil
		}
		if err == nil && !done {
			v, err = t.k.Bucket.Publish(ctx, t.Out, t.key(), v)
		}
		if done || err != nil {
			return done, err
		}
		if q, ok := t.abandoned(v.Value); ok {
			left := t.k.newTurn(t.Session, q, t.Out)
			left.Last, left.isAbandoned = true, true
			err = left.run(ctx)
		} else if err = t.adopt(ctx, v); err == nil {
			return false, nil
		}
		if err != nil && !errors.Is(err, ErrNotOwner) {
			return false, err
		}
	}
	return false, subjects.Faultf(subjects.CodeBusy, "claiming the turn: others kept changing it; the question is "+
		"retried later")
}

func (t *Turn[R]) key() string { return t.k.Key(t.Session, t.Query.QueryID) }

func (t *Turn[R]) abandoned(r R) (q subjects.Query, ok bool) {
	if a, shared := t.work.(Abandoner[R]); shared && *t.k.Fields(&r).QueryID != t.Query.QueryID {
		return a.Abandoned(r)
	}
	return q, false
}

// adopt stores the record v, or a new one if v is that of another question, under this attempt. ErrNotOwner = another
// process has written it since.
func (t *Turn[R]) adopt(ctx context.Context, v actor.Versioned[R]) error {
	resumed := *t.k.Fields(&v.Value).QueryID == t.Query.QueryID
	if !resumed {
		v.Value = *new(R)
	}
	f := t.k.Fields(&v.Value)
	if resumed && !t.k.Unlimited {
		*f.Stalled++
	}
	t.work.Claim(&v.Value, resumed)
	*f.QueryID, *f.Owner = t.Query.QueryID, t.Owner
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stored = v // also when the write fails: emitFailure must know of a stored answer
	return t.store(ctx, "turn.start", v)
}

// answer runs the work and stores the answer; what prevents one, and a cancellation by the user, are stored as the
// answer too. It answers without the work on a last attempt after maxStalled crashes without progress, a question that
// is not delivered again, and one whose record could not be read: starting over could do twice what has an effect. An
// error means that the turn is retried later.
func (t *Turn[R]) answer(ctx context.Context) error {
	r := t.Record()
	switch {
	case t.isUnread:
		t.Note(subjects.NoteLost, "what was stored of an earlier attempt cannot be read")
		return t.storeAnswer(ctx, ErrExhausted)
	case t.isAbandoned:
		t.Note(subjects.NoteLost, "every attempt to answer it was interrupted")
		return t.storeAnswer(ctx, ErrExhausted)
	case t.Last && !t.k.Unlimited && *t.k.Fields(&r).Stalled >= maxStalled:
		t.Note(subjects.NoteLost, fmt.Sprintf("%d attempts were interrupted before there was an answer", t.Attempt))
		return t.storeAnswer(ctx, ErrExhausted)
	}
	inner, end := t.k.cancels.Watch(ctx, t.Query.QueryID)
	defer end()
	err := context.Cause(inner)
	if err == nil {
		err = t.work.Run(inner)
	}
	t.mu.Lock()
	storeErr := t.storeErr
	t.mu.Unlock()
	switch {
	case errors.Is(err, ErrNotOwner), errors.Is(err, ErrNotStored):
		return err
	case err == nil:
	case errors.Is(storeErr, ErrTooLarge):
		err = ErrTooLarge
	case storeErr != nil:
		return storeErr
	case errors.Is(context.Cause(inner), agent.ErrCanceled), errors.Is(err, agent.ErrCanceled):
		err = agent.ErrCanceled // also at shutdown: a cancellation is not stored
	case errors.Is(ctx.Err(), context.Canceled): // shutdown: the turn is resumed later
		return context.Cause(ctx)
	case ctx.Err() != nil: // the caller's own deadline
		err = ctx.Err()
	}
	return t.storeAnswer(ctx, err)
}

// storeAnswer stores the answer with the ids under which it will be published.
func (t *Turn[R]) storeAnswer(ctx context.Context, cause error) error {
	p, change, err := t.work.Respond(ctx, cause)
	if err != nil {
		return err
	}
	p.ResponseID, p.DialogID = t.Out.NewID(), t.Out.NewID()
	err = t.Checkpoint(ctx, "turn.answer", func(r *R) {
		*t.k.Fields(r).Pending = &p
		change(r)
	})
	if f := p.Response.Error; f != nil && err == nil {
		if f.Code == subjects.CodeInternal && !errors.Is(cause, ErrExhausted) {
			t.Out.LogError(cause)
		}
		t.EmitNote(f.Code, f.Text)
	}
	return err
}

// publish publishes the stored answer, then adds it to the conversation: a turn in the conversation has been published.
// It checks ownership before each step and stops at the first error; a retry publishes under the same ids, so that
// nothing is stored twice.
func (t *Turn[R]) publish(ctx context.Context) error {
	p := t.pending()
	steps := []struct {
		step string
		do   func(ctx context.Context) error
	}{
		{"response", func(ctx context.Context) error {
			return actor.EmitOnce(ctx, t.Out, subjects.ResponseGeneration, p.ResponseID, p.Response)
		}},
		{"dialog", func(ctx context.Context) error {
			return actor.EmitOnce(ctx, t.Out, subjects.AnswerDialog, p.DialogID, subjects.Dialog{
				SessionID: t.Session, QueryID: t.Query.QueryID, Query: p.Response.Query, Answer: p.Response.Answer,
				RespondentID: t.k.Account,
			})
		}},
		{"published", func(ctx context.Context) error {
			return t.Checkpoint(ctx, "turn.published", func(r *R) { *t.k.Fields(r).Published = true })
		}},
		{"conversation", func(ctx context.Context) error { return t.work.Append(ctx, *p) }},
	}
	r := t.Record()
	published := t.k.Fields(&r).Published
	if published != nil && *published {
		steps = steps[len(steps)-1:]
	}
	for _, s := range steps {
		if t.k.Hidden && s.step == "dialog" || published == nil && s.step == "published" {
			continue
		}
		if err := t.hold(ctx); err != nil {
			return err
		}
		actor.Step(ctx, s.step+"/before")
		stepCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
		err := s.do(stepCtx)
		cancel()
		if err != nil {
			return err
		}
		actor.Step(ctx, s.step+"/after")
	}
	r = t.Record()
	if !t.work.Finish(&r) {
		return nil
	}
	err := t.Checkpoint(ctx, "turn.finish", func(next *R) { *next = r })
	if err != nil && !errors.Is(err, ErrNotOwner) {
		t.Out.LogError(err) // the answer is published and part of the conversation
		return nil
	}
	return err
}

// hold fails with ErrNotOwner when another process has taken over the turn. It checks, by writing the record, only when
// the last write is older than holdAfter. A process that was paused for longer than the stream remembers message ids
// would otherwise publish an answer that another has published in its place.
func (t *Turn[R]) hold(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if age := t.Out.Now().Sub(*t.k.Fields(&t.stored.Value).Written); age >= 0 && age < holdAfter {
		return nil
	}
	return t.store(ctx, "turn.hold", t.stored)
}

// awaitOtherOwner waits until the process that has taken over the turn has finished it, and returns nil. It fails with
// CodeBusy when that writes nothing for Patience, and when ctx ends. Acknowledging the message earlier would take it
// from the other process; returning an error at once would deliver it a third time.
func (t *Turn[R]) awaitOtherOwner(ctx context.Context) error {
	last, changed := uint64(0), time.Now() // not the time of the write: the clock of the other process may differ
	for {
		v, done, err := t.work.Load(ctx, true)
		if err == nil && done {
			return nil
		}
		if err == nil && v.Revision != last {
			last, changed = v.Revision, time.Now()
		}
		if time.Since(changed) <= t.k.Patience {
			select {
			case <-ctx.Done():
			case <-time.After(awaitInterval):
				continue
			}
		}
		return subjects.Faultf(subjects.CodeBusy, "another process has taken over this turn and did not finish it")
	}
}

// emitFailure logs cause and publishes that there will be no answer, when not even that could be stored in the record.
// It does nothing when an answer is stored: it may have been published.
func (t *Turn[R]) emitFailure(ctx context.Context, cause error) {
	if t.pending() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	t.Out.LogError(cause)
	p, _, err := t.work.Respond(ctx, ErrExhausted)
	if err == nil {
		err = actor.EmitOnce(ctx, t.Out, subjects.ResponseGeneration, t.Out.NewID(), p.Response)
	}
	if err != nil {
		t.Out.LogError(err)
	}
}

// Record is the record with all changes.
func (t *Turn[R]) Record() R {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stored.Value
}

func (t *Turn[R]) pending() *Pending {
	r := t.Record()
	return *t.k.Fields(&r).Pending
}

// Revision is that of the record as it is stored.
func (t *Turn[R]) Revision() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stored.Revision
}

// Edit changes the record. The change is stored with the next checkpoint.
func (t *Turn[R]) Edit(change func(r *R)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change(&t.stored.Value)
}

// Checkpoint is [Turn.Update] for progress: attempts before it do not count as stalled.
func (t *Turn[R]) Checkpoint(ctx context.Context, step string, change func(r *R)) error {
	return t.Update(ctx, step, func(r *R) {
		change(r)
		*t.k.Fields(r).Stalled = 0
	})
}

// Update changes the record and stores it, also when ctx has ended, then publishes the events of an R that is an
// [actor.Outbox]. step names the write. change must not modify what the record refers to; without a write the record is
// as before. A record that is too large is shrunk.
func (t *Turn[R]) Update(ctx context.Context, step string, change func(r *R)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.stored
	change(&v.Value)
	err := t.store(ctx, step, v)
	if errors.Is(err, ErrTooLarge) && t.work.Shrink(&v.Value) {
		err = t.store(ctx, step, v)
	}
	t.storeErr = err
	return err
}

// store writes the record and publishes its events. t.mu must be held.
func (t *Turn[R]) store(ctx context.Context, step string, v actor.Versioned[R]) error {
	*t.k.Fields(&v.Value).Written = t.Out.Now().UTC()
	stored, err := StoreOwned(ctx, t.Out, t.k.Bucket, step, t.key(), v, t.owner)
	if err != nil {
		return err
	}
	t.stored = stored
	if stored, err = t.k.Bucket.Publish(ctx, t.Out, t.key(), stored); err != nil {
		return fmt.Errorf("%w: %w", ErrNotStored, err)
	}
	if t.owner(&stored.Value) != t.Owner {
		return ErrNotOwner
	}
	t.stored = stored
	return nil
}

func (t *Turn[R]) owner(r *R) string { return *t.k.Fields(r).Owner }

// StoreOwned writes a record that has an owner by compare-and-set. A record that was changed since, but by the same
// owner, is the last write, whose acknowledgement was lost: it is replaced. It fails with ErrNotOwner when the stored
// record belongs to another attempt, with ErrTooLarge, and with ErrNotStored after any other error.
func StoreOwned[R any](ctx context.Context, out actor.Out, b actor.Bucket[R], step, key string, v actor.Versioned[R],
	owner func(r *R) string,
) (actor.Versioned[R], error) {
	stored, err := b.Store(ctx, out, step, key, v)
	if errors.Is(err, actor.ErrChanged) {
		var there actor.Versioned[R]
		if there, err = b.Load(ctx, out, key); err == nil {
			if owner(&there.Value) != owner(&v.Value) {
				return v, ErrNotOwner
			}
			v.Revision = there.Revision
			stored, err = b.Store(ctx, out, step, key, v)
		}
	}
	switch {
	case errors.Is(err, actor.ErrChanged):
		return v, ErrNotOwner
	case errors.Is(err, actor.ErrTooLarge):
		return v, ErrTooLarge
	case err != nil:
		return v, fmt.Errorf("%w: %w", ErrNotStored, err)
	}
	return stored, nil
}

// Note adds a note to the answer, once, and publishes it now.
func (t *Turn[R]) Note(code, words string) {
	n := subjects.Note{Code: code, Text: words}
	t.mu.Lock()
	known := slices.Contains(t.notes, n)
	if !known {
		t.notes = append(t.notes, n)
	}
	t.mu.Unlock()
	if !known {
		t.EmitNote(code, words)
	}
}

// Notes are the notes of the answer.
func (t *Turn[R]) Notes() []subjects.Note {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.notes)
}

// EmitNote publishes a note that is not part of the answer.
func (t *Turn[R]) EmitNote(code, words string) {
	t.EmitState(subjects.AgentState{To: t.State, Code: code, Words: text.Clip(words, 1<<10)})
}

// EmitState publishes a state of the turn, or of an agent below the respondent: see [agent.EmitState]. Of a hidden
// respondent only transitions are published: notes, faults and texts are only in its answer.
func (t *Turn[R]) EmitState(s subjects.AgentState, path ...string) {
	if t.k.Hidden && s.Event == "" {
		return
	}
	s.SessionID, s.QueryID = t.Session, t.Query.QueryID
	agent.EmitState(t.Out, s, append([]string{t.k.Account}, path...)...)
}
