// Package witness keeps a copy of the hub's audit log on another machine, so that a rollback of the hub's log together
// with its anchors can be found.
//
// It listens on witness.head, which only the hub's auditor reaches, and reads the audit streams of the hub by sequence.
// It appends each message once and never changes its copy: a log that no longer continues the copy is a conflict, not
// an update.
package witness

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/pkg/bus"
	"conclave/subjects"
)

// defaultInterval is how often the hub is read.
const defaultInterval = 2 * time.Second

// Witness is the actor.
type Witness struct {
	hub      bus.AuditReaders
	store    *Store
	interval time.Duration

	cancel  context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	logs     []*copied // in the order in which they were first seen
	synced   time.Time // of the last complete comparison with the hub
	conflict string    // why the hub's log does not continue the copy, "" when it does
}

// copied is the state of one copied log.
type copied struct {
	id     string
	hasher audit.HeadHasher
	last   map[string]digest // of the last message of each stream
}

// digest identifies one message.
type digest struct {
	seq uint64
	sum [sha256.Size]byte
}

func digestOf(m audit.Stored) digest {
	return digest{m.Seq, sha256.Sum256([]byte(m.Subject + "\n" + string(m.Data)))}
}

// New returns a witness that copies from hub to store every interval; 0 = 2 s.
func New(hub bus.AuditReaders, store *Store, interval time.Duration) *Witness {
	if interval <= 0 {
		interval = defaultInterval
	}
	return &Witness{hub: hub, store: store, interval: interval}
}

// Name implements [actor.Actor].
func (w *Witness) Name() string { return "witness" }

// Routes implements [actor.Actor].
func (w *Witness) Routes() []actor.Route {
	return []actor.Route{actor.Serve(subjects.WitnessHead, w.onHead)}
}

// Start implements [actor.Starter]: it reads the copies, and then copies until Close. A hub that is not reachable is no
// error.
func (w *Witness) Start(ctx context.Context, out actor.Out) error {
	if err := w.store.Each(ctx, func(log string, m audit.Stored) { w.logOf(log).add(m) }); err != nil {
		return fmt.Errorf("reading the copy of the audit log: %w", err)
	}
	ctx, w.cancel = context.WithCancel(context.WithoutCancel(ctx))
	w.running.Go(func() { w.run(ctx, out) })
	return nil
}

// Close implements [actor.Closer].
func (w *Witness) Close(context.Context) error {
	if w.cancel != nil {
		w.cancel()
		w.running.Wait()
	}
	return nil
}

// run copies every interval until ctx ends. An error is logged when it differs from the one before.
func (w *Witness) run(ctx context.Context, out actor.Out) {
	tick := time.NewTicker(w.interval)
	defer tick.Stop()
	before := ""
	for {
		err := w.sync(ctx, out.Now)
		if ctx.Err() != nil {
			return
		}
		now := ""
		if err != nil {
			now = err.Error()
		}
		if now != before && now != "" {
			out.LogError(fmt.Errorf("copying the audit log of the hub: %w", err))
		}
		before = now
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// onHead returns the heads of all copied logs, the newest last. It reads the hub before, so that the heads hold
// everything that the hub had acknowledged when it was asked.
func (w *Witness) onHead(ctx context.Context, _ actor.Msg[subjects.Empty], out actor.Out) (subjects.WitnessHeads,
	error,
) {
	err := w.sync(ctx, out.Now)
	w.mu.Lock()
	defer w.mu.Unlock()
	reply := subjects.WitnessHeads{Synced: w.synced, Conflict: w.conflict, Heads: []string{}}
	if err != nil && w.conflict == "" {
		out.LogError(err) // the heads are those of the last comparison
	}
	for _, l := range w.logs {
		if h := l.hasher.Head(); h.Log != "" {
			reply.Heads = append(reply.Heads, h.String())
		}
	}
	return reply, nil
}

// errConflict means that the hub's log does not continue the copy.
var errConflict = errors.New("the hub's audit log is not the one that was copied")

// sync copies what the hub has stored since. The error wraps errConflict when the hub's log does not continue the copy;
// nothing is copied then.
func (w *Witness) sync(ctx context.Context, now func() time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.copyStreams(ctx)
	switch {
	case err == nil:
		w.synced, w.conflict = now().UTC(), ""
	case errors.Is(err, errConflict):
		w.synced, w.conflict = now().UTC(), err.Error()
	}
	return err
}

// copyStreams copies the new messages of every stream, after it has compared the last copied message of each.
func (w *Witness) copyStreams(ctx context.Context) error {
	if len(w.hub) == 0 {
		return errors.New("no audit streams to read")
	}
	id, err := w.readLogID(ctx)
	if err != nil {
		return err
	}
	l := w.logOf(id)
	for _, compareOnly := range []bool{true, false} { // all streams are compared before anything is copied
		for _, r := range w.hub {
			if err := w.copyStream(ctx, l, r, compareOnly); err != nil {
				return err
			}
		}
	}
	return nil
}

// readLogID returns the id of the hub's present log. The first message is read only when the last copied one is not
// where it was.
func (w *Witness) readLogID(ctx context.Context) (string, error) {
	main := w.hub[0]
	if len(w.logs) > 0 {
		l := w.logs[len(w.logs)-1]
		if have := l.last[""]; have.seq > 0 {
			for m, err := range readFrom(ctx, main, have.seq) {
				if err == nil && digestOf(m) == have {
					return l.id, nil
				}
				break
			}
		}
	}
	first, err := bus.ReadFirstAuditMessage(ctx, w.hub)
	if err != nil {
		return "", err
	}
	var h audit.HeadHasher
	h.Add(first)
	return h.Head().Log, nil
}

// readFrom returns the messages of a stream from the sequence seq on.
func readFrom(ctx context.Context, r bus.AuditReader, seq uint64) func(yield func(audit.Stored, error) bool) {
	src, err := r.ReadAfter(ctx, max(seq, 1)-1)
	if err != nil {
		return func(yield func(audit.Stored, error) bool) { yield(audit.Stored{}, err) }
	}
	return func(yield func(audit.Stored, error) bool) {
		if src.Messages == nil {
			return
		}
		for m, err := range src.Messages {
			if !yield(m, err) {
				return
			}
		}
	}
}

// copyStream compares the last copied message of a stream with the hub's, and unless compareOnly is set appends those
// after it.
func (w *Witness) copyStream(ctx context.Context, l *copied, r bus.AuditReader, compareOnly bool) error {
	have := l.last[r.Owner()]
	src, err := r.ReadAfter(ctx, max(have.seq, 1)-1)
	name := audit.MessageName(r.Owner(), have.seq)
	switch {
	case errors.Is(err, bus.ErrNoAudit) && have.seq == 0:
		return nil
	case errors.Is(err, bus.ErrNoAudit):
		return fmt.Errorf("%w: the stream of %s is gone", errConflict, name)
	case err != nil:
		return err
	case src.Last < have.seq:
		return fmt.Errorf("%w: it was rolled back to %s, and the copy has %s", errConflict,
			audit.MessageName(r.Owner(), src.Last), name)
	case src.Messages == nil || compareOnly && have.seq == 0:
		return nil
	}
	first := true
	for m, err := range src.Messages {
		if err != nil {
			return err
		}
		if first && have.seq > 0 {
			first = false
			if digestOf(m) != have {
				return fmt.Errorf("%w: message %s was changed or replaced", errConflict, name)
			}
			if compareOnly {
				return nil
			}
			continue
		}
		if err := w.store.Append(ctx, l.id, m); err != nil {
			return fmt.Errorf("storing message %s: %w", audit.MessageName(m.Stream, m.Seq), err)
		}
		l.add(m)
	}
	if first && have.seq > 0 {
		return fmt.Errorf("%w: message %s is gone", errConflict, name)
	}
	return nil
}

// logOf returns the state of a copied log, and moves it to the end: it is the hub's present one.
func (w *Witness) logOf(id string) *copied {
	i := slices.IndexFunc(w.logs, func(l *copied) bool { return l.id == id })
	if i < 0 {
		w.logs = append(w.logs, &copied{id: id, last: map[string]digest{}})
		return w.logs[len(w.logs)-1]
	}
	l := w.logs[i]
	w.logs = append(slices.Delete(w.logs, i, i+1), l)
	return l
}

func (l *copied) add(m audit.Stored) {
	l.hasher.Add(m)
	l.last[m.Stream] = digestOf(m)
}
