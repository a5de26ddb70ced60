package audit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"conclave/subjects"
)

// Options say who writes, where to and how patiently. Account, Dir and Log are needed; the rest has defaults.
type Options struct {
	Account string // whose chain it is
	Dir     string // the folder of the head files, made if missing
	Log     Log

	Now   func() time.Time // time.Now
	NewID func() string    // unguessable, one subject token; 130 random bits

	Timeout time.Duration // of one try to append, 2s
	Retry   time.Duration // how long a message of unknown fate is sent again, 10s; the stream must know its ids for longer
	Backoff time.Duration // before the second try, doubling from there; 20ms
}

const maxRetry = time.Minute // half of the time for which the stream remembers message ids

// Writer appends records to one chain and is safe for concurrent use. It has no goroutine of its own: a caller that
// finds the writer free sends its own record at once, and the callers that come while it waits go out together in the
// next message, sent by the first of them. The zero Writer refuses everything.
type Writer struct {
	opts Options

	mu       sync.Mutex
	busy     bool          // somebody leads: owns build, batch, cur and old, and will pass them on
	closed   bool          // no new callers
	released bool          // files released
	queue    []*appendCall // callers waiting to be led
	idle     chan struct{}

	encoder  *batchEncoder
	batch    []*appendCall
	current  *anchor   // the chain being written; nil after an uncertain end
	unlinked []*anchor // ends of earlier chains that no acknowledged record links to yet
}

// appendCall is one waiting call.
type appendCall struct {
	rec   subjects.AuditRecord
	size  int
	wake  chan struct{} // nil for a caller that did not have to wait
	state callState     // guarded by Writer.mu
	err   error         // set before state becomes finished
}

type callState int

const (
	queued   callState = iota
	leading            // woken to send the next message
	sent               // in a message that somebody else sends
	finished           // err is the answer
)

// Open starts a writer. It takes over the head files of the account's earlier chains whose writers are gone. Nothing
// is sent before the first Append, so a full store does not keep a process from starting.
func Open(ctx context.Context, opts Options) (*Writer, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("open audit writer: %w", err)
	}
	w := &Writer{opts: opts, encoder: newBatchEncoder()}
	if err := w.opts.validate(); err != nil {
		return nil, fmt.Errorf("open audit writer: %w", err)
	}
	if err := w.adoptHeads(); err != nil {
		w.closeFiles()
		return nil, fmt.Errorf("open audit writer: %w", err)
	}
	return w, nil
}

func (o *Options) validate() error {
	switch {
	case o.Log == nil:
		return errors.New("no log to write to")
	case o.Dir == "":
		return errors.New("no folder for the heads")
	case !isToken(o.Account) || o.Account == GenesisAccount:
		return fmt.Errorf("%q cannot be the account of a writer", o.Account)
	case o.Timeout < 0 || o.Retry < 0 || o.Backoff < 0 || o.Retry > maxRetry:
		return fmt.Errorf("times must be positive and retry at most %s", maxRetry)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.NewID == nil {
		o.NewID = rand.Text
	}
	if o.Timeout == 0 {
		o.Timeout = 2 * time.Second
	}
	if o.Retry == 0 {
		o.Retry = 10 * time.Second
	}
	if o.Backoff == 0 {
		o.Backoff = 20 * time.Millisecond
	}
	return nil
}

// Append writes rec and returns nil only when the stream has acknowledged it and the anchor stands on it or after it.
// Chain, Seq, Prev and Time are the writer's to set. An error that wraps [ErrUncertain] means that the record may be
// stored nevertheless: do not repeat it under the same id, a second outcome of one act would look forged.
//
// A caller whose ctx ends while it waits for others gets an error at once. The one that sends a message sees it
// through for Options.Timeout and Options.Retry whatever its ctx says: the others in the message depend on it, and an
// abandoned message would cost the chain.
func (w *Writer) Append(ctx context.Context, rec subjects.AuditRecord) error {
	if err := w.append(ctx, rec); err != nil {
		return fmt.Errorf("append audit record: %w", err)
	}
	return nil
}

func (w *Writer) append(ctx context.Context, rec subjects.AuditRecord) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	size, err := checkRecord(&rec)
	if err != nil {
		return err
	}
	e := &appendCall{rec: rec, size: size}

	w.mu.Lock()
	if w.encoder == nil || w.closed {
		w.mu.Unlock()
		return ErrClosed
	}
	if w.busy {
		if led, err := w.waitTurn(ctx, e); !led {
			return err
		}
	}
	w.busy = true
	w.fillBatch(e)
	w.mu.Unlock()

	err = w.commitBatch(ctx)

	w.mu.Lock()
	defer w.mu.Unlock()
	for _, other := range w.batch[1:] {
		other.state, other.err = finished, err
		other.wake <- struct{}{}
	}
	clear(w.batch)
	w.passLead()
	return err
}

// waitTurn queues e and returns when it has an answer, when it leads, or when ctx ends. It is called with the lock held
// and returns with it held only if e leads.
func (w *Writer) waitTurn(ctx context.Context, e *appendCall) (leads bool, err error) {
	e.rec.Lineage = slices.Clone(e.rec.Lineage) // the caller may be gone before it is encoded
	e.wake = make(chan struct{}, 1)
	w.queue = append(w.queue, e)
	w.mu.Unlock()

	select {
	case <-e.wake:
	case <-ctx.Done():
	}

	w.mu.Lock()
	switch e.state {
	case leading:
		if ctx.Err() == nil {
			return true, nil
		}
		w.passLead()
		err = ctx.Err()
	case queued:
		w.queue = slices.DeleteFunc(w.queue, func(o *appendCall) bool { return o == e })
		err = ctx.Err()
	case sent:
		err = fmt.Errorf("%w: %w", ErrUncertain, ctx.Err())
	case finished:
		err = e.err
	}
	w.mu.Unlock()
	return false, err
}

// fillBatch makes the next batch: first, and whoever waits, as far as the limits allow. The lock is held.
func (w *Writer) fillBatch(first *appendCall) {
	first.state = sent
	w.batch = append(w.batch[:0], first)
	n, size := 0, first.size
	for _, e := range w.queue {
		size += e.size
		if len(w.batch) == maxBatchRecords || size > maxBatchBytes {
			break
		}
		e.state = sent
		w.batch = append(w.batch, e)
		n++
	}
	w.queue = slices.Delete(w.queue, 0, n)
}

// passLead gives the lead to the caller that has waited longest. The lock is held.
func (w *Writer) passLead() {
	if len(w.queue) > 0 {
		next := w.queue[0]
		w.queue = slices.Delete(w.queue, 0, 1)
		next.state = leading
		next.wake <- struct{}{}
		return
	}
	w.busy = false
	if w.idle != nil {
		close(w.idle)
		w.idle = nil
	}
}

// commitBatch sends the batch as one message. The head moves only when the message is acknowledged; after a definite
// refusal the same chain goes on as if nothing had happened, after an uncertain end it is never written again.
func (w *Writer) commitBatch(ctx context.Context) error {
	if w.current == nil {
		if err := w.startChain(); err != nil {
			return fmt.Errorf("start chain: %w", err)
		}
	}
	head, data, err := w.encodeBatch()
	if err != nil {
		return err
	}
	if err := w.current.markUsed(); err != nil {
		return err
	}
	if err := w.sendMessage(ctx, data); err != nil {
		if errors.Is(err, ErrUncertain) {
			w.retireChain()
		}
		return err
	}

	opens := w.current.head.Seq == 0
	err = w.current.writeHead(head)
	if err == nil && opens {
		// The old heads may go only when the new one is sure to be found.
		err = w.current.file.Sync()
	}
	if err != nil {
		w.retireChain()
		return fmt.Errorf("%w: stored but not anchored: %w", ErrUncertain, err)
	}
	if opens {
		for _, a := range w.unlinked {
			a.removeFile()
		}
		w.unlinked = nil
	}
	return nil
}

// encodeBatch frames the batch after the current head, with the open record in front if the chain has none yet.
func (w *Writer) encodeBatch() (subjects.AuditHead, []byte, error) {
	head := w.current.head
	now := w.opts.Now().UTC()
	w.encoder.reset()
	add := func(rec *subjects.AuditRecord) error {
		rec.Chain, rec.Seq, rec.Prev, rec.Time = head.Chain, head.Seq+1, head.Hash, now
		hash, err := w.encoder.addRecord(rec)
		head.Seq, head.Hash = rec.Seq, hash
		return err
	}
	if head.Seq == 0 {
		open := subjects.AuditRecord{Phase: subjects.AuditOpen, ID: head.Chain, Action: "audit.open"}
		for _, a := range w.unlinked {
			open.Links = append(open.Links, a.head)
		}
		if err := add(&open); err != nil {
			return head, nil, err
		}
	}
	for _, e := range w.batch {
		if err := add(&e.rec); err != nil {
			return head, nil, err
		}
	}
	data, err := w.encoder.message()
	return head, data, err
}

// sendMessage appends one message, again and again under the same id while nobody knows whether it is stored.
func (w *Writer) sendMessage(ctx context.Context, data []byte) error {
	id := w.opts.NewID()
	if !isToken(id) {
		return fmt.Errorf("%w: %q cannot be a message id", ErrRefused, id)
	}
	ctx = context.WithoutCancel(ctx)
	err := w.attemptAppend(ctx, id, data, true)
	if err == nil || !errors.Is(err, ErrUncertain) {
		return err
	}

	ctx, cancel := context.WithTimeout(ctx, w.opts.Retry)
	defer cancel()
	pause := w.opts.Backoff
	for {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
		pause = min(2*pause, time.Second)
		again := w.attemptAppend(ctx, id, data, false)
		if again == nil {
			return nil
		}
		if ctx.Err() == nil {
			err = again
		}
		if isNotStored(again) {
			// This try was refused, but what became of the first one is still open.
			return err
		}
	}
}

// attemptAppend sends the message once. Only the first try can be refused for certain; every other failure is uncertain.
func (w *Writer) attemptAppend(ctx context.Context, id string, data []byte, first bool) (err error) {
	ctx, cancel := context.WithTimeout(ctx, w.opts.Timeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil { // or everybody behind would wait for ever
			err = fmt.Errorf("%w: the log panicked: %v", ErrUncertain, p)
		}
	}()
	duplicate, err := w.opts.Log.Append(ctx, w.current.head.Chain, id, data)
	switch {
	case err == nil && duplicate && first:
		return ErrDuplicate
	case err == nil:
		return nil
	case isNotStored(err) && first:
		return err
	}
	return fmt.Errorf("%w: %w", ErrUncertain, err)
}

func isNotStored(err error) bool { return errors.Is(err, ErrFull) || errors.Is(err, ErrRefused) }

// retireChain ends the current chain; the next commit starts another that links to its last acknowledged record.
//
// A chain of which nothing was acknowledged leaves no head behind if it had links: the next chain repeats the same
// links, and that tells a verifier that it came to nothing. Otherwise a long outage would pile up heads without end.
func (w *Writer) retireChain() {
	a := w.current
	w.current = nil
	if a.head.Seq == 0 && len(w.unlinked) > 0 {
		a.removeFile()
		return
	}
	w.unlinked = append(w.unlinked, a)
}

// adoptHeads collects the ends of the account's dead chains and starts a new one.
func (w *Writer) adoptHeads() error {
	if err := makeHeadsDir(w.opts.Dir); err != nil {
		return err
	}
	unlock, err := lockHeadsDir(w.opts.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	names, err := listHeadFiles(w.opts.Dir, w.opts.Account)
	if err != nil {
		return err
	}
	for _, name := range names {
		a, err := openAnchor(filepath.Join(w.opts.Dir, name))
		switch {
		case errors.Is(err, errHeadLocked):
		case err != nil:
			return err
		case !a.marked: // nothing of it was ever sent
			a.removeFile()
		default:
			w.unlinked = append(w.unlinked, a)
		}
	}
	return w.createChain()
}

// startChain starts a chain after an uncertain end.
func (w *Writer) startChain() error {
	unlock, err := lockHeadsDir(w.opts.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	return w.createChain()
}

// createChain makes the head file of a new chain. What the chain will link is made durable first, so that it never says
// more than a later chain finds after a crash of the machine.
func (w *Writer) createChain() error {
	for _, a := range w.unlinked {
		if err := a.file.Sync(); err != nil {
			return err
		}
	}
	chain := w.opts.NewID()
	if !isToken(chain) {
		return fmt.Errorf("%q cannot be the name of a chain", chain)
	}
	cur, err := createAnchor(w.opts.Dir, w.opts.Account, chain)
	if err != nil {
		return err
	}
	w.current = cur
	return nil
}

// Close lets the callers that wait have their answers, makes the anchor durable and lets go of the files. When ctx
// ends first the writer stays shut, and Close may be called again.
func (w *Writer) Close(ctx context.Context) error {
	w.mu.Lock()
	w.closed = true
	for w.busy {
		if w.idle == nil {
			w.idle = make(chan struct{})
		}
		idle := w.idle
		w.mu.Unlock()
		select {
		case <-idle:
		case <-ctx.Done():
			return fmt.Errorf("close audit writer: %w", ctx.Err())
		}
		w.mu.Lock()
	}
	defer w.mu.Unlock()
	if w.released || w.encoder == nil {
		return nil
	}
	w.released = true
	if err := w.closeFiles(); err != nil {
		return fmt.Errorf("close audit writer: %w", err)
	}
	return nil
}

// closeFiles closes the files, which frees their locks.
func (w *Writer) closeFiles() error {
	var errs []error
	if w.current != nil {
		if w.current.marked {
			errs = append(errs, w.current.file.Sync(), w.current.file.Close())
		} else {
			w.current.removeFile()
		}
	}
	for _, a := range w.unlinked {
		errs = append(errs, a.file.Close())
	}
	return errors.Join(errs...)
}
