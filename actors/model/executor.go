package model

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/model"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Executor is the model actor of a machine that joined the system: it runs calls of the hub's model actor on the local
// Ollama, and nothing else. It has no credentials, no audit log (the hub records every call before it is sent) and no
// queue: the hub admits as many calls as the machine has slots.
//
// It listens on agent.model.model.report, .run, .end, .embed and .pull. A call outlives the request that started it,
// because the link may be cut: its output is kept until the hub has it, see [execution].
type Executor struct {
	machine string
	limits  Server  // as they are reported to the hub
	server  *server // its queues are not used
	times   LinkTimes

	mu       sync.Mutex
	calls    map[string]*execution
	ended    []string // ids of ended calls, the oldest first: a late copy of a request must not run the model again
	stopping bool
	running  sync.WaitGroup // of calls
}

// Bounds of an executor.
const (
	maxExecutions = 128      // calls that run or whose output is kept
	maxEnded      = 4096     // ids of ended calls
	maxBuffered   = 64 << 20 // bytes of output of all calls; with more, no call starts
)

// NewExecutor returns the model actor of a machine. The limits of server are reported to the hub. It fails when the
// address of server is on another machine: conversations go to the machine that was invited, and no further.
func NewExecutor(machine string, server Server, b model.Backend) (*Executor, error) {
	if host := server.RemoteHost(); host != "" {
		return nil,
			fmt.Errorf("%w: the models of a machine run on that machine, and ollama.url in models.yaml is on %s",
				model.ErrRemote, text.Clip(host, 100))
	}
	return &Executor{
		machine: machine, limits: server, server: newServer(Ollama, server, b), times: LinkTimes{}.withDefaults(),
		calls: map[string]*execution{},
	}, nil
}

// Name implements [actor.Actor].
func (x *Executor) Name() string { return "model" }

// Routes implements [actor.Actor].
func (x *Executor) Routes() []actor.Route {
	return []actor.Route{
		actor.Serve(subjects.MachineReport, x.onReport, actor.Workers(4)),
		actor.ServeStream(subjects.MachineRun, x.onRun, actor.Workers(2*maxExecutions)),
		actor.Serve(subjects.MachineRunEnd, x.onEnd, actor.Workers(4)),
		actor.Serve(subjects.MachineEmbed, x.onEmbed, actor.Workers(16)),
		actor.ServeStream(subjects.MachinePull, x.onPull, actor.Workers(2)),
	}
}

// Close implements [actor.Closer]: it stops all calls and waits for them.
func (x *Executor) Close(context.Context) error {
	x.mu.Lock()
	x.stopping = true
	for _, e := range x.calls {
		e.stop()
	}
	x.mu.Unlock()
	x.running.Wait()
	x.server.close()
	return nil
}

// checkCaller rejects every account but the hub's model actor. The server has written the account into the subject.
func checkCaller(account string) error {
	if account != "model" {
		return subjects.Faultf(subjects.CodeDenied, "only the model actor of the hub may use the models of a machine")
	}
	return nil
}

// onReport reports the models of this machine and its limits. Models that would leave it are left out.
func (x *Executor) onReport(ctx context.Context, in actor.Msg[subjects.Empty], out actor.Out) (subjects.ModelReport,
	error,
) {
	if err := checkCaller(in.From); err != nil {
		return subjects.ModelReport{}, err
	}
	infos, err := x.server.listModels(ctx)
	if err != nil {
		return subjects.ModelReport{}, toFault(ctx, err)
	}
	r := subjects.ModelReport{
		Models: []subjects.MachineModel{}, Slots: cmp.Or(x.limits.Slots, defaultSlots), Batch: cmp.Or(x.limits.Batch,
			defaultBatch),
		Exclusive: x.limits.Exclusive,
	}
	for _, listed := range infos {
		i, err := x.server.lookupInfo(ctx, listed.Name, out.Now())
		if err == nil && i.Digest != listed.Digest { // it was pulled again
			x.server.dropCache()
			i, err = x.server.lookupInfo(ctx, listed.Name, out.Now())
		}
		if err != nil || isRemote(listed.Name, cmp.Or(i.Remote, listed.Remote)) {
			continue
		}
		r.Models = append(r.Models, subjects.MachineModel{
			Name: listed.Name, Digest: text.Clip(listed.Digest, 100), Size: listed.Size,
			Family: text.Clip(i.Family, 100), Parameters: text.Clip(i.Parameters, 100), Window: i.Window,
			Tools: i.Tools, Thinking: i.Thinking, Embedding: i.Embedding, Loaded: listed.Loaded,
		})
	}
	return r, nil
}

// checkModel rejects names that are none, and models that Ollama forwards to another machine.
func (x *Executor) checkModel(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return subjects.Faultf(subjects.CodeMalformed, "%v", err)
	}
	i, err := x.server.backend.Show(ctx, name)
	if err == nil && isRemote(name, i.Remote) {
		err = fmt.Errorf("%w: %s would leave %s", model.ErrRemote, name, x.machine)
	}
	if err != nil {
		return toFault(ctx, err)
	}
	return nil
}

// onRun starts a call, or finds the one with the same id, and sends its chunks from Next on. It sends a chunk without
// content at once and whenever nothing came for a moment, so that the hub knows that the link works. It ends after the
// lease, with the last chunk or the error of the call, or when the hub asks again for the same call: then that request
// reads on.
func (x *Executor) onRun(ctx context.Context, in actor.Msg[subjects.ModelRun], send func(subjects.ModelRunChunk) error,
	_ actor.Out,
) error {
	if err := checkCaller(in.From); err != nil {
		return err
	}
	e, err := x.attach(ctx, in.Body)
	if err != nil {
		return err
	}
	reader := e.addReader()
	lease := time.NewTimer(x.times.Lease)
	defer lease.Stop()
	alive := time.NewTicker(x.times.KeepAlive)
	defer alive.Stop()
	next := in.Body.Next
	keepAlive := func() error { return send(subjects.ModelRunChunk{Call: e.id, N: next}) }
	if err := keepAlive(); err != nil {
		return err
	}
	for {
		o, ok := e.read(reader, next)
		if !ok {
			return nil
		}
		for _, c := range o.chunks {
			if err := send(c); err != nil {
				return err
			}
			next++
		}
		if o.last {
			return o.err
		}
		if len(o.chunks) > 0 {
			continue
		}
		select {
		case <-o.changed:
		case <-alive.C:
			if err := keepAlive(); err != nil {
				return err
			}
		case <-lease.C:
			return nil
		case <-ctx.Done():
			return subjects.Faultf(subjects.CodeUnavailable, "the model actor of %s stops", x.machine)
		}
	}
}

// attach finds the call of a request or starts it. It rejects malformed requests, a call that ended, one that is not
// known without the request that starts it, and a new one when there are too many.
func (x *Executor) attach(ctx context.Context, q subjects.ModelRun) (*execution, error) {
	if err := subjects.CheckToken(q.Call); err != nil || q.Next < 0 {
		return nil, subjects.Faultf(subjects.CodeMalformed, "a call needs an id and the number of a chunk")
	}
	x.mu.Lock()
	e := x.calls[q.Call]
	gone := slices.Contains(x.ended, q.Call)
	x.mu.Unlock()
	switch {
	case e != nil:
		return e, nil
	case gone:
		return nil, subjects.Faultf(subjects.CodeStopped, "the call has ended")
	case q.Request == nil || q.Next > 0:
		return nil, subjects.Faultf(subjects.CodeModelCut, "%s does not know the call any more; it was restarted",
			x.machine)
	}
	r, err := parseChat(*q.Request)
	if err != nil {
		return nil, err
	}
	r.Model, r.Stream = q.Request.Model, q.Request.Stream
	if err := x.checkModel(ctx, r.Model); err != nil {
		return nil, err
	}
	limit := min(time.Duration(q.Millis)*time.Millisecond, maxExecutionTime)
	if limit <= 0 {
		return nil, subjects.Faultf(subjects.CodeMalformed, "a call needs a time limit")
	}
	return x.start(q.Call, r, limit)
}

// maxExecutionTime bounds every call.
const maxExecutionTime = 30 * time.Minute

// start starts a call in the background, or returns the one with this id that another request has just started.
func (x *Executor) start(id string, r model.Request, limit time.Duration) (*execution, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.calls[id]; e != nil {
		return e, nil
	}
	buffered := 0
	for _, e := range x.calls {
		buffered += e.size()
	}
	if x.stopping || len(x.calls) >= maxExecutions || buffered > maxBuffered {
		return nil, subjects.Faultf(subjects.CodeBusy, "%s has too many calls; retry in a moment", x.machine)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	e := newExecution(id, cancel)
	e.expire = time.AfterFunc(x.times.Orphan, func() { x.end(id) })
	e.orphan = x.times.Orphan
	x.calls[id] = e
	x.running.Go(func() {
		defer cancel()
		e.finish(e.generate(ctx, x.server.backend, r))
	})
	return e, nil
}

// onEnd ends a call.
func (x *Executor) onEnd(_ context.Context, in actor.Msg[subjects.ModelRunEnd], _ actor.Out) (subjects.Empty, error) {
	if err := checkCaller(in.From); err != nil {
		return subjects.Empty{}, err
	}
	if err := subjects.CheckToken(in.Body.Call); err != nil {
		return subjects.Empty{}, subjects.Faultf(subjects.CodeMalformed, "a call needs an id")
	}
	x.end(in.Body.Call)
	return subjects.Empty{}, nil
}

// end stops a call, forgets its output and keeps its id. A call that is not known yet cannot start afterwards.
func (x *Executor) end(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.calls[id]; e != nil {
		e.stop()
		delete(x.calls, id)
	}
	if !slices.Contains(x.ended, id) {
		if len(x.ended) >= maxEnded {
			x.ended = slices.Delete(x.ended, 0, 1)
		}
		x.ended = append(x.ended, id)
	}
}

// onEmbed computes embeddings. The hub has split and prefixed the texts.
func (x *Executor) onEmbed(ctx context.Context, in actor.Msg[subjects.EmbedRequest], _ actor.Out) (subjects.EmbedReply,
	error,
) {
	if err := checkCaller(in.From); err != nil {
		return subjects.EmbedReply{}, err
	}
	if err := checkEmbed(in.Body); err != nil {
		return subjects.EmbedReply{}, err
	}
	if err := x.checkModel(ctx, in.Body.Model); err != nil {
		return subjects.EmbedReply{}, err
	}
	v, err := x.server.backend.Embed(ctx, in.Body.Model, in.Body.Texts)
	if err != nil {
		return subjects.EmbedReply{}, toFault(ctx, err)
	}
	return subjects.EmbedReply{Vectors: v.Values, Model: in.Body.Model}, nil
}

// onPull downloads a model to this machine. The hub has checked that the user asked for it.
func (x *Executor) onPull(ctx context.Context, in actor.Msg[subjects.PullRequest],
	send func(subjects.PullProgress) error, _ actor.Out,
) error {
	if err := checkCaller(in.From); err != nil {
		return err
	}
	if err := checkName(in.Body.Model); err != nil || isRemote(in.Body.Model, "") {
		return subjects.Faultf(subjects.CodeMalformed, "this is not the name of a model for %s", x.machine)
	}
	if err := x.server.pull(ctx, in.Body.Model, send); err != nil {
		return toFault(ctx, err)
	}
	return nil
}
