package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/jsonschema"
	"conclave/pkg/model"
	"conclave/pkg/model/wire"
	"conclave/pkg/strict"
	"conclave/pkg/text"
	"conclave/subjects"
)

// onChat selects a model and streams its reply. It rejects a malformed request, and denies one without a usable model,
// for a model on another machine without permission, with tools or images that the model does not support, with an
// image that is not stored, and when the queue is full; each is recorded. When the server fails before a part of the
// reply was sent, another one that can answer takes over and the caller gets a notice; each attempt is a call of its
// own in the audit log.
func (m *Model) onChat(ctx context.Context, in actor.Msg[subjects.ChatRequest], send func(subjects.ChatChunk) error,
	out actor.Out,
) error {
	ctx, end := m.calls.track(ctx, in.Query)
	defer end()
	rec := m.newRecord(subjects.ActionModelChat, in.From, in.Session, in.Query, in.Body.Model, in.Body.Messages)
	r, err := parseChat(in.Body)
	if err != nil {
		return m.refuse(ctx, out, rec, err)
	}
	defer func() {
		if err := m.meter.write(out.Now(), false); err != nil {
			out.LogError(err)
		}
	}()
	c := &chatCall{
		in: in, request: r, rec: rec, begun: out.Now(),
		from: newRequester(in.From, in.Session, in.Body.Background),
	}
	c.send = func(p subjects.ChatChunk) error {
		c.sent = c.sent || p.Content != "" || p.Thinking != "" || len(p.ToolCalls) > 0 || p.Done
		return send(p)
	}
	s := selection{role: in.Body.Role, hint: in.Body.Hint, model: in.Body.Model, now: c.begun, from: c.from}
	var failed error
	for {
		t, err := m.selectModel(ctx, s)
		switch {
		case failed != nil && err != nil:
			return failed // no other model can answer
		case err != nil:
			rec.Tool = t.key()
			return m.refuse(ctx, out, rec, err)
		}
		if failed != nil {
			if err := c.send(subjects.ChatChunk{Notice: fmt.Sprintf("%s; %s answers instead", c.lost,
				t.describePlace())}); err != nil {
				t.end()
				return err
			}
		}
		err = m.answerChat(ctx, c, t, s, out)
		t.end()
		if err == nil || c.lost == "" || ctx.Err() != nil {
			return err
		}
		failed, s.exclude = err, append(s.exclude, t.server.name)
	}
}

// chatCall is a chat request while it is answered.
type chatCall struct {
	in      actor.Msg[subjects.ChatRequest]
	request model.Request
	rec     subjects.AuditRecord
	from    requester
	begun   time.Time
	send    sendFunc
	sent    bool   // a part of the reply was sent
	lost    string // why the server could not answer, when another one may; "" = none may
}

// answerChat answers a request with one model. The last chunk is sent only after the
// outcome is in the audit log: a reply without a record is not completed. With an error it sets c.lost when another
// server may answer.
func (m *Model) answerChat(ctx context.Context, c *chatCall, t target, s selection, out actor.Out) error {
	c.lost = ""
	rec, from, in := c.rec, c.from, c.in
	rec.Tool = t.key()
	r, err := t.buildRequest(c.request)
	var imageBytes int64
	if err == nil {
		imageBytes, err = m.checkImages(ctx, out, t, r, in.From, in.Session)
	}
	if err == nil && t.queue().isFull(from) {
		err = errQueueFull
	}
	if err == nil && from.priority > foreground {
		err = m.checkSwap(ctx, t)
	}
	if err == nil && imageBytes > 0 {
		var release func()
		if release, err = m.images.reserve(imageBytes); err == nil {
			defer release()
			err = loadImages(ctx, out, r)
		}
	}
	if err != nil {
		return m.refuse(ctx, out, rec, err)
	}
	last, err := actor.Audited(ctx, out, m.gate, rec, func(ctx context.Context, p *actor.Permit) (model.Chunk, error) {
		last, began, err := m.runChat(m.withAlternative(ctx, t, s), p, t, r, c)
		if errors.Is(err, model.ErrMissing) {
			t.server.dropCache()
		}
		if err != nil && !c.sent && isServerLost(err) {
			c.lost = text.OneLine(err.Error(), maxText/2)
		}
		last.Final.Model, last.Final.Total = t.name, out.Now().Sub(c.begun)
		return last, reportOutcome(ctx, p, began, err)
	})
	if err != nil {
		return err
	}
	if err := sendChunk(last, t, c.send); err != nil {
		return err
	}
	if t.needsCallTest() && from.priority == foreground {
		m.scheduleCallTest(ctx, out.WithIDs("", ""), t)
	}
	return nil
}

// isServerLost reports whether another server may answer a request that failed.
func isServerLost(err error) bool {
	return model.IsAny(err, model.ErrUnreachable, model.ErrMissing, model.ErrCut, model.ErrRunner)
}

// withAlternative bounds how long a call waits for the link to a machine before its first chunk: not long when another
// model can answer.
func (m *Model) withAlternative(ctx context.Context, t target, s selection) context.Context {
	if t.machine == "" {
		return ctx
	}
	s.from, s.exclude = requester{}, append(slices.Clip(s.exclude), t.server.name)
	if _, err := m.selectModel(ctx, s); err != nil {
		return ctx
	}
	return withLinkTimeout(ctx, m.cfg.Link.Move)
}

// runChat waits for a slot and sends all chunks of the reply but the last, which it returns. began reports whether the
// model was asked, also with an error. A request that is preempted before a chunk was sent is retried with its next
// slot, and one whose JSON schema made the server fail is retried once without the schema, with a notice: for the
// caller and for the audit log that is one call.
func (m *Model) runChat(ctx context.Context, p *actor.Permit, t target, r model.Request, c *chatCall) (
	last model.Chunk, began bool, err error,
) {
	if err := p.Check(); err != nil {
		return last, false, err
	}
	// before the queue: a caller that stops waiting must know who may have got the prompt
	if err := c.send(subjects.ChatChunk{Model: t.name, Remote: t.host()}); err != nil {
		return last, false, err
	}
	observe := func(turn context.Context) (model.Chunk, error) {
		return m.observeReply(turn, t, c.in.Body.Role, c.in.Query, r, c.from.priority, c.send)
	}
	attempt := func(turn context.Context) (err error) {
		last, err = observe(turn)
		if len(r.Format) == 0 || c.sent || !errors.Is(err, model.ErrRunner) && !errors.Is(err, model.ErrUnsupported) {
			return err
		}
		notice := fmt.Sprintf("%s; asked again without the JSON schema", text.OneLine(err.Error(), maxText/2))
		if err := c.send(subjects.ChatChunk{Notice: notice}); err != nil {
			return err
		}
		r.Format = nil
		last, err = observe(turn)
		return err
	}
	began, err = t.queue().run(ctx, c.from, t.backendName, func(turn context.Context) error {
		if c.from.priority == foreground || t.opts.KeepAlive == "-1" {
			return attempt(turn)
		}
		return m.watchSwap(turn, t, func() error { return attempt(turn) })
	})
	return last, began, err
}

// measureReply is [Model.streamReply], measured. When the prompt takes long to read it sends a chunk about that first,
// which is not a part of the reply; background requests have none, since nobody is shown it.
func (m *Model) measureReply(turn context.Context, t target, r model.Request, priority int, send sendFunc) (model.Chunk,
	error,
) {
	if t.isDemo {
		return m.streamReply(turn, t, r, send)
	}
	measured, reading := m.meter.begin(t.key(), r)
	if priority == foreground && reading.Expected >= minShownReading {
		c, err := wire.EncodeChunk(model.Chunk{Reading: &reading})
		if err == nil {
			err = send(c)
		}
		if err != nil {
			return model.Chunk{}, err
		}
	}
	seen := observedReply{begun: time.Now()}
	last, err := m.streamReply(turn, t, r, func(c subjects.ChatChunk) error {
		seen.add(c)
		return send(c)
	})
	seen.end(last)
	if t.machine != "" {
		m.machines.noteEnd(turn, t, seen, err)
	}
	if err != nil {
		return last, err
	}
	if t.machine != "" {
		seen.replaceClaims(&last.Final)
	} else if f := &last.Final; f.PromptTime == 0 && !seen.first.IsZero() { // not every server reports it
		f.PromptTime, f.OutputTime = seen.first.Sub(seen.begun), seen.ended.Sub(seen.first)
	}
	measured.finish(last.Final)
	return last, nil
}

// minShownReading is the expected time to the first token from which on the caller is told.
const minShownReading = time.Second

// streamReply asks the model once and sends all chunks but the last, which it returns. It denies a reply that comes
// from another machine without permission, and rejects one that is longer than maxReply, has invalid tool calls or ends
// without a last chunk. turn ends when the request is preempted: see preemptionError.
func (m *Model) streamReply(turn context.Context, t target, r model.Request, send sendFunc) (last model.Chunk,
	err error,
) {
	size, sent, forwarded := 0, false, false
	sendNoted := func(c subjects.ChatChunk) error {
		sent = true
		return send(c)
	}
	for c, err := range t.server.backend.Chat(turn, r) {
		if err != nil {
			return model.Chunk{}, preemptionError(turn, err, sent)
		}
		if host := c.Final.RemoteHost; host != "" && !t.isDemo {
			if host != t.host() && !forwarded {
				forwarded = true
				if err := send(subjects.ChatChunk{Model: t.name, Remote: host}); err != nil {
					return model.Chunk{}, err
				}
			}
			if err := m.checkRemote(t.name, t.backendName, host); err != nil {
				return model.Chunk{}, err
			}
		}
		if size += chunkSize(c); size > maxReply {
			return model.Chunk{}, fmt.Errorf("%w: the reply of %s is too long, more than %d MB", model.ErrMalformed,
				t.name, maxReply>>20)
		}
		if c.Done { // a complete reply is used although its turn may just have been preempted
			c.Final.RemoteHost = cmp.Or(c.Final.RemoteHost, t.host())
			_, err := encodeChunk(model.Chunk{Calls: c.Calls}) // before the outcome is recorded as ok
			return c, err
		}
		if turn.Err() != nil { // the server goes on although the request was cancelled
			break
		}
		if c.Notice != "" { // of the link to a machine; not a part of the reply
			if err := send(subjects.ChatChunk{Notice: c.Notice}); err != nil {
				return model.Chunk{}, err
			}
			continue
		}
		if err := sendChunk(c, t, sendNoted); err != nil {
			return model.Chunk{}, err
		}
	}
	if turn.Err() != nil {
		return model.Chunk{}, preemptionError(turn, context.Cause(turn), sent)
	}
	return model.Chunk{}, fmt.Errorf("%w: %s stopped without saying that it is done", model.ErrCut, t.name)
}

// parseChat decodes a chat request. It rejects as malformed, besides what [wire.DecodeRequest] rejects: invalid names
// of role, hint or model, a format together with tools, options out of bounds, too many tools or stop sequences,
// messages with an unknown role, and tools without a name or an object as parameters.
func parseChat(q subjects.ChatRequest) (model.Request, error) {
	r, err := wire.DecodeRequest(q)
	if err != nil {
		return r, err
	}
	malformed := func(format string, a ...any) (model.Request, error) {
		return r, subjects.Faultf(subjects.CodeMalformed, format, a...)
	}
	switch o := r.Options; {
	case q.Role != "" && subjects.CheckToken(q.Role) != nil:
		return malformed("the role may hold letters, digits, - and _ only")
	case q.Hint != "" && !slices.Contains(subjects.Hints, q.Hint):
		return malformed("the hint is not one of %v", subjects.Hints)
	case q.Model != "" && checkName(q.Model) != nil:
		return malformed("%v", checkName(q.Model))
	case len(r.Format) > 0 && len(r.Tools) > 0:
		return malformed("a format and tools at once: models then make no calls; ask with the tools first")
	case o.Predict < 0:
		return malformed("predict must not be negative")
	case o.Temperature != nil && (*o.Temperature < 0 || *o.Temperature > maxTemperature):
		return malformed("the temperature is not between 0 and %d", maxTemperature)
	case len(o.Stop) > maxStops:
		return malformed("more than %d stop sequences", maxStops)
	case len(r.Tools) > maxTools:
		return malformed("more than %d tools", maxTools)
	}
	for i, msg := range r.Messages {
		if !slices.Contains([]string{model.System, model.User, model.Assistant, model.ToolRole}, msg.Role) {
			return malformed("message %d: a role is system, user, assistant or tool", i)
		}
	}
	for _, tool := range r.Tools {
		if tool.Name == "" || strict.CheckObject(tool.Parameters) != nil {
			return malformed("a tool needs a name and parameters that are one JSON object")
		}
	}
	return r, nil
}

// buildRequest returns the request for the backend: context window and keep-alive are the model's for every caller, and
// Predict is at most the configured one, which 0 stands for. The JSON schema of the reply is reduced to what servers
// accept, see [jsonschema.ForGrammar]; callers check the reply. It rejects tools for a model that has none with
// [model.ErrNoTools].
func (t target) buildRequest(r model.Request) (model.Request, error) {
	if len(r.Tools) > 0 && !t.info.Tools {
		return r, fmt.Errorf("%w: %s; tools have to be described in the prompt", model.ErrNoTools, t.name)
	}
	r.Model = t.backendName
	if len(r.Format) > 0 {
		r.Format = jsonschema.ForGrammar(r.Format)
	}
	if t.server.name == OpenAI { // llama.cpp's server makes a grammar of the parameters of tools too
		r.Tools = slices.Clone(r.Tools)
		for i := range r.Tools {
			r.Tools[i].Parameters = jsonschema.ForGrammar(r.Tools[i].Parameters)
		}
	}
	r.Stream = r.Stream && t.streams()
	r.Think = t.thinkOption(r.Think)
	o := &r.Options
	o.Window, o.KeepAlive = t.window(), t.opts.KeepAlive
	if o.Predict == 0 || o.Predict > t.opts.Predict {
		o.Predict = t.opts.Predict
	}
	if o.Temperature == nil && t.opts.Temperature != nil {
		v := float64(*t.opts.Temperature)
		o.Temperature = &v
	}
	return r, nil
}

// streams reports whether the model's replies are streamed.
func (t target) streams() bool { return t.opts.Stream == nil || *t.opts.Stream }

// thinkOption returns whether the model shall think aloud. It is always explicit, because defaults differ, except for
// OpenAI servers that do not report the capability: there it is what was requested.
func (t target) thinkOption(requested *bool) *bool {
	if t.server.name == OpenAI && !t.info.Thinking {
		return requested
	}
	on := t.info.Thinking && (requested == nil || *requested)
	return &on
}
