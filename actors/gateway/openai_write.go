package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

// completionWriter writes a reply in OpenAI's form: one JSON object, or a stream of server-sent events that begins with
// the first text. Its methods may be called by several goroutines.
type completionWriter struct {
	g      *Gateway
	stream bool
	usage  bool // the client asks for the usage at the end of the stream
	head   completion

	response *responseState // of /v1/responses, nil for a completion

	mu  sync.Mutex
	sse sseWriter
}

// newCompletionWriter returns the writer of the reply to in. id is that of the question or of the call.
func (g *Gateway) newCompletionWriter(w http.ResponseWriter, in completionRequest, id string) *completionWriter {
	prefix := "chatcmpl-"
	if in.response != nil {
		prefix = responsePrefix
	}
	object := "chat.completion"
	if in.Stream {
		object += ".chunk"
	}
	return &completionWriter{
		g: g, sse: sseWriter{w: w, timeout: g.cfg.WriteTimeout}, stream: in.Stream,
		usage:    in.StreamOptions.IncludeUsage,
		response: in.response, head: completion{
			ID: prefix + id, Object: object, Created: g.out.Now().Unix(),
			Model: in.Model,
		},
	}
}

// keepAlive begins a stream and sends a comment at every heartbeat, so that clients and proxies do not give up while
// the answer is prepared. It ends with ctx or when stop is called, which waits for it. Without a stream it does
// nothing.
func (o *completionWriter) keepAlive(ctx context.Context) (stop func()) {
	if !o.stream {
		return func() {}
	}
	_ = o.writeText("")
	return repeat(ctx, o.g.cfg.Heartbeat, func() { _ = o.write([]byte(": keep-alive\n\n")) })
}

// repeat calls f at every interval until ctx ends or stop is called, which waits for it.
func repeat(ctx context.Context, interval time.Duration, f func()) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				f()
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		cancel()
		done.Wait()
	}
}

func (o *completionWriter) writeText(t string) error {
	return o.writeDelta(completionText{Content: &t})
}

func (o *completionWriter) writeThinking(t string) error {
	return o.writeDelta(completionText{Reasoning: t})
}

// writeDelta writes a part of a streamed reply; without a stream it does nothing.
func (o *completionWriter) writeDelta(part completionText) error {
	switch {
	case !o.stream:
		return nil
	case o.response != nil && part.Content == nil: // thinking, which has no place in a response of text
		return nil
	case o.response != nil:
		return o.writeResponseText(*part.Content)
	}
	return o.writeChunk(completionChoice{Delta: &part}, nil)
}

// writeChunk writes one event of the stream. The first has the role.
func (o *completionWriter) writeChunk(choice completionChoice, usage *completionUsage) error {
	if !o.hasBegun() && choice.Delta != nil {
		choice.Delta.Role = "assistant"
	}
	chunk := o.head
	chunk.Usage, chunk.Choices = usage, []completionChoice{choice}
	if choice.Delta == nil {
		chunk.Choices = []completionChoice{}
	}
	data, err := json.Marshal(chunk)
	if err != nil {
		return err
	}
	return o.write([]byte("data: " + string(data) + "\n\n"))
}

// writeEnd writes the reason of the end, the usage when the client asked for it, and the mark that ends a stream.
func (o *completionWriter) writeEnd(reason string, usage *completionUsage) error {
	if o.response != nil {
		o.writeResponseEnd(reason, usage)
		return nil
	}
	_ = o.writeChunk(completionChoice{Delta: &completionText{}, Finish: &reason}, nil)
	if o.usage {
		_ = o.writeChunk(completionChoice{}, usage)
	}
	_ = o.write([]byte("data: [DONE]\n\n"))
	return nil
}

// writeWhole writes a reply that is not streamed.
func (o *completionWriter) writeWhole(text completionText, reason string, usage *completionUsage) error {
	if o.response != nil {
		status, incomplete := responseStatus(reason)
		o.g.writeJSON(o.sse.w, http.StatusOK,
			o.newResponse(status, incomplete, []responseMessage{o.newMessage(status, *text.Content)}, usage))
		return nil
	}
	text.Role = "assistant"
	reply := o.head
	reply.Choices, reply.Usage = []completionChoice{{Message: &text, Finish: &reason}}, usage
	o.g.writeJSON(o.sse.w, http.StatusOK, reply)
	return nil
}

// fail reports an error: in the stream when it has begun, otherwise by returning it.
func (o *completionWriter) fail(err error) error {
	if !o.hasBegun() {
		return err
	}
	p := toProblem(err)
	if p == nil {
		p = o.g.hideError(err)
	}
	if o.response != nil {
		o.writeResponseFailure(p.toOpenAI())
		return nil
	}
	data, err := json.Marshal(p.toOpenAI())
	if err != nil {
		return err
	}
	_ = o.write([]byte("data: " + string(data) + "\n\ndata: [DONE]\n\n"))
	return nil
}

// write sends bytes of the stream at once, after the header when they are the first.
func (o *completionWriter) write(data []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sse.send(data)
}

// hasBegun reports whether a part of the stream was sent.
func (o *completionWriter) hasBegun() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sse.begun
}
