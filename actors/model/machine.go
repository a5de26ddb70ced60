package model

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/model"
	"conclave/pkg/model/wire"
	"conclave/pkg/text"
	"conclave/subjects"
)

// machine is the model actor of another machine, as a backend of this one: see [Executor]. Its list of models is the
// last report. Nothing that it sends is trusted: sizes are bounded, and every chunk must be the next one of the call
// that was asked for.
type machine struct {
	name   string
	out    actor.Out
	times  LinkTimes
	server *server                                                   // with this machine as its backend
	spawn  func(ctx context.Context, work func(ctx context.Context)) // see [Model.spawn]

	mu        sync.Mutex
	models    []model.Info
	connected bool
	reported  time.Time // when the last report, or a part of a call, arrived
	reason    string    // why it is not connected

	avoidUntil time.Time // it is the last choice until then, see [machines.noteEnd]
}

// lostError means that the link to a machine was down for too long, or that the machine does not know the call any
// more.
type lostError struct {
	machine string
	why     string
	started bool // a part of the reply was sent
}

func (e *lostError) Error() string {
	if e.started {
		return fmt.Sprintf("the answer ends here: %s; ask again", e.why)
	}
	return fmt.Sprintf("%s; check it with: conclave machines", e.why)
}

// Unwrap makes it a cut reply or an unreachable server for errors.Is.
func (e *lostError) Unwrap() error {
	if e.started {
		return model.ErrCut
	}
	return model.ErrUnreachable
}

// linkTimeoutKey is the key of the longest time that a call waits for the link while nothing was received.
type linkTimeoutKey struct{}

// withLinkTimeout returns a context in which a call on a machine waits at most d for the link before its first chunk.
func withLinkTimeout(ctx context.Context, d time.Duration) context.Context {
	return context.WithValue(ctx, linkTimeoutKey{}, d)
}

// Chat implements [model.Chat]. The machine runs the call once, however often the link is cut: after each cut the same
// call is read on from the next chunk. When the link is silent, and when it is back, it yields a notice. It gives up
// with a [lostError] when the link is down for too long. When the caller stops, the call is stopped on the machine.
func (c *machine) Chat(ctx context.Context, r model.Request) iter.Seq2[model.Chunk, error] {
	return func(yield func(model.Chunk, error) bool) {
		q, err := wire.EncodeRequest(r)
		if err != nil {
			yield(model.Chunk{}, err)
			return
		}
		deadline, ok := ctx.Deadline()
		if !ok {
			yield(model.Chunk{}, subjects.Faultf(subjects.CodeNoDeadline, "a call on %s needs a deadline", c.name))
			return
		}
		call := &machineCall{
			machine: c, yield: yield, begun: time.Now(), heard: time.Now(),
			body: subjects.ModelRun{Call: c.out.NewID(), Request: &q, Millis: time.Until(deadline).Milliseconds()},
		}
		defer c.endCall(call.body.Call)
		if err := call.read(ctx); err != nil && !call.stopped {
			yield(model.Chunk{}, err)
		}
	}
}

// machineCall is a call in progress.
type machineCall struct {
	machine *machine
	yield   func(model.Chunk, error) bool
	body    subjects.ModelRun // of the next request
	begun   time.Time
	heard   time.Time // when something was received last
	started bool      // content was received
	silent  bool      // the user was told that the link is interrupted
	done    bool      // the last chunk was received
	stopped bool      // the caller stopped
}

// read reads the call to its end, with as many requests as that takes.
func (c *machineCall) read(ctx context.Context) error {
	m := c.machine
	for {
		begun := time.Now()
		err := c.readOnce(ctx)
		switch {
		case c.done || c.stopped:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		}
		if since := time.Since(c.heard); since >= m.times.Silence && !c.silent {
			c.silent = true
			m.setDisconnected("the connection is interrupted")
			if !c.emit(model.Chunk{Notice: fmt.Sprintf("the connection to %s is interrupted; waiting for it",
				m.name)}) {
				return nil
			}
		} else if limit := c.patience(ctx); since >= limit {
			return &lostError{
				m.name, fmt.Sprintf("the connection to %s was lost for %s", m.name, limit.Round(100*time.Millisecond)),
				c.started,
			}
		}
		select {
		case <-time.After(m.times.Retry - time.Since(begun)):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// patience is how long the link may be down now.
func (c *machineCall) patience(ctx context.Context) time.Duration {
	if d, ok := ctx.Value(linkTimeoutKey{}).(time.Duration); ok && !c.started {
		return d
	}
	return c.machine.times.Lost
}

// checkStall fails when the machine is alive but sent no content for so long that another model answers instead.
// Without another one the call goes on: a long prompt can take minutes to read.
func (c *machineCall) checkStall(ctx context.Context) error {
	limit := c.machine.times.Stall
	if ctx.Value(linkTimeoutKey{}) == nil || c.started || c.heard.Sub(c.begun) < limit {
		return nil
	}
	return &lostError{c.machine.name, fmt.Sprintf("%s sent no part of the answer for %s", c.machine.name,
		limit.Round(100*time.Millisecond)), false}
}

// readOnce reads chunks with one request, until the last one, until the link is silent, or until the machine ends the
// request. An error ends the call; nil means that it can be read on, unless it is done or stopped.
func (c *machineCall) readOnce(ctx context.Context) error {
	m := c.machine
	topic, err := subjects.MachineRun.With(m.name)
	if err != nil {
		return err
	}
	attempt, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(m.times.Silence, func() { cancel(errLinkSilent) })
	defer timer.Stop()
	for p, err := range actor.AskStream(attempt, m.out, topic, c.body) {
		timer.Stop() // the caller may be slow
		switch {
		case actor.IsReplyFault(err) && subjects.CodeOf(err) != subjects.CodeUnavailable: // else it may be back soon
			return c.explain(err)
		case err != nil:
			return nil // silent, cut, or a piece was lost
		case p.Call != c.body.Call:
			return fmt.Errorf("%w: %s sent a part of another call", model.ErrMalformed, m.name)
		}
		c.heard = time.Now()
		m.setReached(c.heard)
		if c.silent {
			c.silent = false
			if !c.emit(model.Chunk{Notice: fmt.Sprintf("the connection to %s is back", m.name)}) {
				return nil
			}
		}
		switch {
		case p.Chunk == nil || p.N < c.body.Next: // a sign of life, or a chunk that was received before
			if err := c.checkStall(ctx); err != nil {
				return err
			}
		case p.N > c.body.Next:
			return nil
		default:
			chunk, err := decodeRunChunk(p)
			if err != nil {
				return err
			}
			c.body.Next++
			c.body.Request = nil
			c.started = c.started || chunkSize(chunk) > 0
			if c.done = chunk.Done; !c.emit(chunk) || c.done {
				return nil
			}
			if err := c.checkStall(ctx); err != nil { // chunks without content are signs of life only
				return err
			}
		}
		timer.Reset(m.times.Silence)
	}
	return nil
}

// emit yields a chunk and reports whether the caller goes on.
func (c *machineCall) emit(chunk model.Chunk) bool {
	if !c.yield(chunk, nil) {
		c.stopped = true
	}
	return !c.stopped
}

// explain returns the error of the call for a fault of the machine. A call that the machine does not know any more is
// lost.
func (c *machineCall) explain(err error) error {
	code := subjects.CodeOf(err)
	if code == subjects.CodeStopped || code == subjects.CodeModelCut && c.body.Next > 0 {
		return &lostError{c.machine.name, fmt.Sprintf("%s does not know the call any more: it was restarted, or was "+
			"cut off for too long", c.machine.name), c.started}
	}
	return c.machine.decodeError(err)
}

// decodeError returns the error for a fault of the machine, with a bounded text that names it.
func (c *machine) decodeError(err error) error {
	if f, ok := errors.AsType[*subjects.Fault](err); ok && f != nil {
		bounded := subjects.Faultf(f.Code, "%s: %s", c.name, text.OneLine(f.Text, maxText/2))
		if actor.IsReplyFault(err) {
			return wire.DecodeError(actor.ReplyFault(bounded))
		}
		return &disconnectedError{machine: c.name}
	}
	return err
}

// decodeRunChunk decodes a chunk from a machine. Counts out of bounds are dropped, and so are times and what only the
// hub says.
func decodeRunChunk(p subjects.ModelRunChunk) (model.Chunk, error) {
	c, err := wire.DecodeChunk(*p.Chunk)
	if err != nil {
		return c, err
	}
	c.Reading, c.Notice = nil, ""
	f := &c.Final
	for _, n := range []*int{&f.PromptTokens, &f.OutputTokens} {
		if *n < 0 || *n > maxCountedTokens {
			*n = 0
		}
	}
	f.Reason = text.Clip(f.Reason, 40)
	f.PromptTime, f.OutputTime, f.Total = 0, 0, 0
	return c, nil
}

// maxCountedTokens is more than any window.
const maxCountedTokens = 1 << 24

// endCall tells the machine, in the background, that a call is not read any more. It repeats that while the link is
// down, for as long as the machine keeps a call that nobody reads. It is no part of the question's trace.
func (c *machine) endCall(id string) {
	topic, err := subjects.MachineRunEnd.With(c.name)
	if err != nil {
		return
	}
	c.spawn(context.Background(), func(closing context.Context) {
		for end := time.Now().Add(c.times.Orphan); time.Now().Before(end); {
			attempt, cancel := context.WithTimeout(context.WithoutCancel(closing), c.times.Silence)
			_, err := actor.Ask(attempt, c.out, topic, subjects.ModelRunEnd{Call: id})
			cancel()
			if err == nil || actor.IsReplyFault(err) {
				return
			}
			select {
			case <-closing.Done(): // the machine ends the call by itself
				return
			case <-time.After(c.times.Silence):
			}
		}
	})
}

// Embed implements [model.Embedder].
func (c *machine) Embed(ctx context.Context, name string, texts []string) (model.Vectors, error) {
	topic, err := subjects.MachineEmbed.With(c.name)
	if err != nil {
		return model.Vectors{}, err
	}
	v := model.Vectors{Model: name}
	for first := 0; first < len(texts); {
		batch := texts[first : first+wire.CountBatchTexts(texts[first:])]
		reply, err := actor.Ask(ctx, c.out, topic, subjects.EmbedRequest{Model: name, Texts: batch})
		if err != nil {
			return model.Vectors{}, c.decodeError(err)
		}
		if len(reply.Vectors) != len(batch) {
			return model.Vectors{}, fmt.Errorf("%w: %s sent %d vectors for %d texts", model.ErrMalformed, c.name,
				len(reply.Vectors), len(batch))
		}
		v.Values = append(v.Values, reply.Vectors...)
		first += len(batch)
	}
	return v, nil
}

// List implements [model.Backend]: the models of the last report.
func (c *machine) List(context.Context) ([]model.Info, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.connected {
		return nil, &disconnectedError{machine: c.name}
	}
	return c.models, nil
}

// Show implements [model.Backend], by the last report.
func (c *machine) Show(_ context.Context, name string) (model.Info, error) {
	info, held, connected := c.find(name)
	switch {
	case !held:
		return model.Info{}, fmt.Errorf("%w: %s has no %s", model.ErrMissing, c.name, name)
	case !connected:
		return model.Info{}, &disconnectedError{name, c.name}
	}
	return info, nil
}

// find looks a model up in the last report, with or without :latest.
func (c *machine) find(name string) (info model.Info, held, connected bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range c.models {
		if trimLatest(i.Name) == trimLatest(name) {
			return i, true, c.connected
		}
	}
	return model.Info{}, false, c.connected
}

// Pull implements [model.Backend].
func (c *machine) Pull(ctx context.Context, name string) iter.Seq2[model.Progress, error] {
	return func(yield func(model.Progress, error) bool) {
		topic, err := subjects.MachinePull.With(c.name)
		if err != nil {
			yield(model.Progress{}, err)
			return
		}
		for p, err := range actor.AskStream(ctx, c.out, topic, subjects.PullRequest{Model: name}) {
			if err != nil {
				yield(model.Progress{}, c.decodeError(err))
				return
			}
			if !yield(model.Progress{Status: p.Status, Digest: p.Digest, Total: p.Total, Completed: p.Completed}, nil) {
				return
			}
		}
	}
}

// refresh asks the machine for its models.
func (c *machine) refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	topic, err := subjects.MachineReport.With(c.name)
	if err != nil {
		return
	}
	began := time.Now()
	report, err := actor.Ask(ctx, c.out, topic, subjects.Empty{})
	if err != nil {
		if !c.wasReachedAfter(began) { // else a call has heard of it meanwhile
			c.setDisconnected(text.OneLine(c.decodeError(err).Error(), maxText))
		}
		return
	}
	var models []model.Info
	for _, i := range report.Models {
		if checkName(i.Name) != nil || isRemote(i.Name, "") || len(models) == maxModels {
			continue
		}
		models = append(models, model.Info{
			Name: i.Name, Digest: text.Clip(i.Digest, 100), Size: max(0, i.Size), Family: text.Clip(i.Family, 100),
			Parameters: text.Clip(i.Parameters, 100),
			Window:     min(max(0, i.Window), maxWindow), Tools: i.Tools, Thinking: i.Thinking, Embedding: i.Embedding,
			Loaded: i.Loaded,
		})
	}
	c.server.setLimits(Server{
		Slots: min(max(1, report.Slots), maxMachineSlots), Batch: min(max(1, report.Batch), 1024),
		Exclusive: report.Exclusive,
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.models, c.connected, c.reason, c.reported = models, true, "", time.Now()
}

const (
	reportTimeout   = 5 * time.Second
	maxMachineSlots = maxExecutions / 2
)

// wasConnected reports whether the machine was connected so recently that a call can wait for it.
func (c *machine) wasConnected() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.reported.IsZero() && time.Since(c.reported) < c.times.Lost
}

// wasReachedAfter reports whether something of the machine arrived after a time.
func (c *machine) wasReachedAfter(begin time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reported.After(begin)
}

// setReached notes that a call received something from the machine: it can be used, also when no report arrives at
// present.
func (c *machine) setReached(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reported.IsZero() {
		c.connected, c.reason, c.reported = true, "", now
	}
}

// setDisconnected notes that the machine cannot be used until its next report.
func (c *machine) setDisconnected(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connected, c.reason = false, reason
}
