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

	"conclave/pkg/file"
	"conclave/subjects"
)

// Options configures a [Writer]. Account, Dir and Log are required.
type Options struct {
	Account string // that owns the chain
	Dir     string // folder of the head files, created if missing
	Log     Log

	Now   func() time.Time // nil = time.Now
	NewID func() string    // unguessable, one subject token; nil = 130 random bits

	Timeout time.Duration // of one attempt; 0 = 2 s
	// how long an uncertain message is retried; 0 = 10 s. The stream must remember message ids for longer.
	Retry   time.Duration
	Backoff time.Duration // before the second attempt, then doubling; 0 = 20 ms
}

const maxRetry = time.Minute // half of the dedupe window of the stream

// Writer appends records to one chain and is safe for concurrent use. It has no goroutine: a caller that finds the
// writer idle sends its own record at once; the calls that arrive meanwhile are sent together in the next message, by
// the first of them (group commit). The zero Writer rejects every record.
type Writer struct {
	opts Options

	mu       sync.Mutex
	busy     bool          // a caller leads: it owns encoder, batch, current and unlinked until it passes the lead on
	closed   bool          // new calls are rejected
	released bool          // files are closed
	queue    []*appendCall // calls that wait for a leader
	idle     chan struct{}

	encoder  *batchEncoder
	batch    []*appendCall
	current  *anchor   // the chain being written; nil after an uncertain append
	unlinked []*anchor // heads of earlier chains that no acknowledged record links yet
}

// appendCall is one call of [Writer.Append].
type appendCall struct {
	rec   subjects.AuditRecord
	size  int
	wake  chan struct{} // nil for a call that did not wait
	state callState     // guarded by Writer.mu
	err   error         // set before state becomes finished
}

type callState int

// lockTimeout is how long a writer waits for another one that begins or adopts heads.
const lockTimeout = 30 * time.Second

const (
	queued   callState = iota
	leading            // woken to send the next batch
	sent               // in the batch of another caller
	finished           // err is the result
)

// Open starts a writer and adopts the head files of the account's earlier chains whose writers have ended. It sends
// nothing: a full store does not prevent a process from starting. It rejects invalid options, a head file of the
// account that is unreadable, and a folder that other users may write. The caller must call [Writer.Close].
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

// validate rejects a missing log or folder, an account that is no token or is the genesis', negative durations and a
// retry over maxRetry, and sets the defaults.
func (o *Options) validate() error {
	switch {
	case o.Log == nil:
		return errors.New("log missing")
	case o.Dir == "":
		return errors.New("folder of the heads missing")
	case !isToken(o.Account) || o.Account == GenesisAccount:
		return fmt.Errorf("invalid account %q", o.Account)
	case o.Timeout < 0 || o.Retry < 0 || o.Backoff < 0 || o.Retry > maxRetry:
		return fmt.Errorf("timeout, retry and backoff must not be negative, and retry is at most %s", maxRetry)
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

// Append stores rec and returns nil only when the stream has acknowledged it and the anchor is at rec or after it. The
// writer sets Chain, Seq, Prev and Time. An error that wraps [ErrUncertain] means that the record may be stored
// nevertheless: the caller must not retry under the same id, because a second outcome of one act would look forged.
//
// A caller whose ctx ends while it waits gets an error at once. The caller that sends a message completes it within
// Options.Timeout and Options.Retry regardless of its ctx: the other records in the message depend on it, and an
// abandoned message would end the chain.
func (w *Writer) Append(ctx context.Context, rec subjects.AuditRecord) error {
	if err := w.append(ctx, rec); err != nil {
		return fmt.Errorf("append audit record: %w", err)
	}
	return nil
}

// append implements [Writer.Append]. It rejects what [checkRecord] rejects, and everything when the writer is closed.
// The caller that leads sends the batch and gives its result to the other calls in it.
func (w *Writer) append(ctx context.Context, rec subjects.AuditRecord) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	size, err := checkRecord(w.opts.Account, &rec)
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

// waitTurn queues e until another caller has sent it, it leads, or ctx ends. Without the lead err is the result of e:
// nil means stored, and wraps [ErrUncertain] when ctx ended while e was being sent. It is called with the lock held,
// and returns with the lock held only if e leads.
func (w *Writer) waitTurn(ctx context.Context, e *appendCall) (leads bool, err error) {
	e.rec.Lineage = slices.Clone(e.rec.Lineage) // the caller may return, and change it, before it is encoded
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

// fillBatch sets the next batch: first, then queued calls in order up to maxBatchRecords and maxBatchBytes. The caller
// leads and holds the lock.
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

// passLead makes the oldest queued call the leader, or marks the writer idle and wakes [Writer.Close]. The caller
// leads, and holds the lock.
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

// commitBatch sends the batch as one message and moves the head when it is acknowledged, which nil means. After a
// rejection the chain continues unchanged; after an error that wraps [ErrUncertain] it is retired. The caller leads and
// does not hold the lock.
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
		// The old heads are removed only when the new one is durable.
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

// encodeBatch sets chain, sequence, predecessor and time of the batch's records and encodes them after the current
// head, preceded by the open record in a new chain. It returns the head to anchor once the message is acknowledged;
// w.current keeps its own. The bytes are valid until the next call.
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
		open := subjects.AuditRecord{Phase: subjects.AuditOpen, ID: head.Chain, Action: subjects.ActionOpenChain}
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

// sendMessage appends one message and returns nil when it is acknowledged. While the result is uncertain it retries
// under the same message id, with backoff, for Options.Retry; the end of ctx does not interrupt it. An error that does
// not wrap [ErrUncertain] means not stored.
func (w *Writer) sendMessage(ctx context.Context, data []byte) error {
	id := w.opts.NewID()
	if !isToken(id) {
		return fmt.Errorf("%w: invalid message id %q", ErrRefused, id)
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
			// This attempt was rejected, but an earlier one may have been stored.
			return err
		}
	}
}

// attemptAppend sends the message once, within Options.Timeout. Only the first attempt can report that the message is
// not stored, and that a fresh id is a duplicate ([ErrDuplicate]): after it a duplicate is a success, and every failure
// wraps [ErrUncertain]. A panic of the log is an uncertain failure.
func (w *Writer) attemptAppend(ctx context.Context, id string, data []byte, first bool) (err error) {
	ctx, cancel := context.WithTimeout(ctx, w.opts.Timeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil { // otherwise the queued callers would wait forever
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

// isNotStored reports whether err means that the message is certainly not stored.
func isNotStored(err error) bool { return errors.Is(err, ErrFull) || errors.Is(err, ErrRefused) }

// retireChain ends the current chain, which must exist. The next commit starts a chain that links its last acknowledged
// record; until then its head file stays, locked.
//
// The head file of a chain without acknowledged records is deleted if the chain had links: the next chain repeats the
// links, which tells a verifier that the chain was abandoned. Otherwise a long outage would accumulate heads.
func (w *Writer) retireChain() {
	a := w.current
	w.current = nil
	if a.head.Seq == 0 && len(w.unlinked) > 0 {
		a.removeFile()
		return
	}
	w.unlinked = append(w.unlinked, a)
}

// adoptHeads locks the heads of the account's ended chains, which the new chain links, and creates the new chain. Heads
// of running writers are skipped, empty head files removed. After an error the caller must close the files.
func (w *Writer) adoptHeads() error {
	if err := makeHeadsDir(w.opts.Dir); err != nil {
		return err
	}
	unlock, err := file.LockFolder(w.opts.Dir, lockTimeout) // one writer at a time adopts old heads and creates its own
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
		case !a.marked: // no message of it was sent
			a.removeFile()
		default:
			w.unlinked = append(w.unlinked, a)
		}
	}
	return w.createChain()
}

// startChain creates a chain after the previous one was retired.
func (w *Writer) startChain() error {
	unlock, err := file.LockFolder(w.opts.Dir, lockTimeout) // one writer at a time adopts old heads and creates its own
	if err != nil {
		return err
	}
	defer unlock()
	return w.createChain()
}

// createChain creates the head file of a new chain and makes it current. The heads that the chain will link are synced
// first: after a crash of the machine no link may name a later record than the head file. It rejects a generated name
// that is no token. The caller holds the lock of the folder.
func (w *Writer) createChain() error {
	for _, a := range w.unlinked {
		if err := a.file.Sync(); err != nil {
			return err
		}
	}
	chain := w.opts.NewID()
	if !isToken(chain) {
		return fmt.Errorf("invalid chain name %q", chain)
	}
	cur, err := createAnchor(w.opts.Dir, w.opts.Account, chain)
	if err != nil {
		return err
	}
	w.current = cur
	return nil
}

// Close rejects new calls, waits for the queued ones, syncs the anchor and closes the files. When ctx ends first it
// returns an error, the writer remains closed to new calls, and Close may be called again. On a closed writer and the
// zero one it returns nil.
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

// closeFiles closes the head files, which releases their locks. The head file of a chain that sent no message is
// removed.
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
