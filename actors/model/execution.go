package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"conclave/pkg/model"
	"conclave/subjects"
)

// execution is a call on a machine: it runs without a reader, and keeps its whole output, at most maxReply, so that the
// hub can read on from any chunk after a cut. It ends when the hub ends it, or when no request has asked for it for the
// orphan time: then the hub is gone.
type execution struct {
	id     string
	cancel context.CancelFunc
	expire *time.Timer // ends the call
	orphan time.Duration

	mu       sync.Mutex
	chunks   []subjects.ModelRunChunk
	bytes    int
	finished bool
	err      error         // of a finished call, nil = it is complete
	changed  chan struct{} // closed and replaced when one of the fields above changes, or reader
	reader   int           // the request that reads; earlier ones stop
}

func newExecution(id string, cancel context.CancelFunc) *execution {
	return &execution{id: id, cancel: cancel, changed: make(chan struct{})}
}

// generate asks the model and keeps its chunks. The error is a fault for the hub.
func (e *execution) generate(ctx context.Context, b model.Backend, r model.Request) error {
	for c, err := range b.Chat(ctx, r) {
		if err == nil && c.Final.RemoteHost != "" {
			err = fmt.Errorf("%w: Ollama forwards %s to %s", model.ErrRemote, r.Model, c.Final.RemoteHost)
		}
		if err == nil {
			err = e.add(c)
		}
		if err != nil {
			return toFault(ctx, err)
		}
		if c.Done {
			return nil
		}
	}
	if ctx.Err() != nil {
		return toFault(ctx, context.Cause(ctx))
	}
	return toFault(ctx, fmt.Errorf("%w: %s stopped without saying that it is done", model.ErrCut, r.Model))
}

// errReplyTooLong means that a reply is longer than maxReply.
var errReplyTooLong = fmt.Errorf("%w: the reply is too long, more than %d MB", model.ErrMalformed, maxReply>>20)

// add keeps a chunk, in several pieces when it is too large for one message.
func (e *execution) add(c model.Chunk) error {
	for _, c := range splitChunk(c) {
		p, err := encodeChunk(c)
		if err != nil {
			return err
		}
		n := subjects.ModelRunChunk{Call: e.id, Chunk: &p}
		e.mu.Lock()
		if e.bytes += chunkSize(c); e.bytes > maxReply {
			e.mu.Unlock()
			return errReplyTooLong
		}
		n.N = len(e.chunks)
		e.chunks = append(e.chunks, n)
		e.notify()
		e.mu.Unlock()
	}
	return nil
}

// finish notes the end of the call; err is nil when the reply is complete.
func (e *execution) finish(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.finished, e.err = true, err
	e.notify()
}

// notify wakes the readers. The caller holds mu.
func (e *execution) notify() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// addReader makes a new request the one that reads, which also proves that the hub is alive.
func (e *execution) addReader() (reader int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.expire.Reset(e.orphan)
	e.reader++
	e.notify()
	return e.reader
}

// maxRead is the largest number of chunks of one read.
const maxRead = 64

// output is a part of the output of a call.
type output struct {
	chunks  []subjects.ModelRunChunk
	last    bool            // there is nothing after chunks
	err     error           // with last: of the call, nil = the reply is complete
	changed <-chan struct{} // closed when there is more
}

// read returns the output from chunk next on, at most maxRead chunks. ok is false when a later request reads, or the
// call was ended.
func (e *execution) read(reader, next int) (o output, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if reader != e.reader {
		return output{}, false
	}
	if next < len(e.chunks) {
		o.chunks = e.chunks[next:min(len(e.chunks), next+maxRead)]
	}
	o.last, o.err, o.changed = e.finished && next+len(o.chunks) >= len(e.chunks), e.err, e.changed
	return o, true
}

func (e *execution) size() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.bytes
}

// stop ends the call and all its readers.
func (e *execution) stop() {
	e.expire.Stop()
	e.cancel()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reader++
	e.notify()
}

// LinkTimes are the times of the link to a machine. The zero value of each has a default; tests shorten them.
type LinkTimes struct {
	KeepAlive time.Duration // between two signs of life of a call without output
	Silence   time.Duration // after which the link counts as interrupted
	Retry     time.Duration // between two attempts to read on
	Move      time.Duration // without a link, before a call without output moves to another model
	Lost      time.Duration // without a link, before a call fails
	Stall     time.Duration // without content but with a link, before a call moves to another model
	Avoid     time.Duration // after a failed call, during which the machine is the last choice
	Lease     time.Duration // of one request that reads; the next one proves that the hub is alive
	Orphan    time.Duration // without a request, before a machine stops a call
	Refresh   time.Duration // between two reports of a machine
}

func (t LinkTimes) withDefaults() LinkTimes {
	return LinkTimes{
		KeepAlive: cmp.Or(t.KeepAlive, 500*time.Millisecond),
		Silence:   cmp.Or(t.Silence, 1500*time.Millisecond),
		Retry:     cmp.Or(t.Retry, 100*time.Millisecond),
		Move:      cmp.Or(t.Move, 5*time.Second),
		Lost:      cmp.Or(t.Lost, 20*time.Second),
		Stall:     cmp.Or(t.Stall, 2*time.Minute),
		Avoid:     cmp.Or(t.Avoid, time.Minute),
		Lease:     cmp.Or(t.Lease, 10*time.Second),
		Orphan:    cmp.Or(t.Orphan, 40*time.Second),
		Refresh:   cmp.Or(t.Refresh, 2*time.Second),
	}
}

var errLinkSilent = errors.New("no sign of life from the machine")
