package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"unicode/utf8"

	"conclave/pkg/model"
)

// MaxCalls is how many tool calls one reply may have.
const MaxCalls = 128

// Reply assembles one reply of a service. A chunk that it returns is Done when it is the last of the reply.
type Reply interface {
	// ReadEvent returns the content, thinking and calls in an event of a stream; the chunk may be empty.
	ReadEvent(data []byte) (model.Chunk, error)
	// EndStream returns the rest of a reply whose stream ended before a chunk was Done. The reply was cut off if this
	// one is not Done either.
	EndStream() (model.Chunk, error)
	// ReadWhole returns a reply that is not streamed. It was cut off if the chunk is not Done.
	ReadWhole(data []byte) (model.Chunk, error)
}

// Chat implements [model.Chat] for a service: encode returns the path and the body of the request, begin an empty
// reply. A server that does not stream although it was asked to is read as a whole. Errors wrap a sentinel of package
// model where one applies: see [Call.StatusError] and [Call.TransportError].
func (c *Client) Chat(
	ctx context.Context, r model.Request,
	encode func(context.Context, model.Request) (path string, body any, err error), begin func(*Call) Reply,
) iter.Seq2[model.Chunk, error] {
	return func(yield func(model.Chunk, error) bool) {
		// When the caller stops iterating, the connection is closed, which cancels the request at the server.
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		err := func() error {
			path, body, err := encode(ctx, r)
			if err != nil {
				return err
			}
			resp, call, err := c.Send(ctx, path, body, InfoOf(r))
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind == "text/event-stream" {
				return call.readStream(ctx, resp.Body, begin(call), yield)
			}
			return call.readWhole(ctx, resp.Body, begin(call), yield)
		}()
		if err != nil {
			yield(model.Chunk{}, fmt.Errorf("chat: %w", err))
		}
	}
}

// readStream yields the chunks of a streamed reply until the last one or until the caller stops iterating. An error was
// not yielded yet.
func (c *Call) readStream(
	ctx context.Context, body io.Reader, reply Reply, yield func(model.Chunk, error) bool,
) error {
	events := newEventReader(body)
	for {
		data, err := events.nextEvent()
		var chunk model.Chunk
		switch {
		case err == nil:
			chunk, err = reply.ReadEvent(data)
		case errors.Is(err, errLong):
			return c.ProtocolError(fmt.Sprintf("sends an event of more than %d bytes", maxEventBytes))
		case !errors.Is(err, io.EOF):
			return c.TransportError(ctx, err)
		default:
			if chunk, err = reply.EndStream(); err == nil && !chunk.Done {
				return c.TransportError(ctx, nil)
			}
		}
		switch {
		case err != nil:
			return err
		case !chunk.Done && chunk.Content == "" && chunk.Thinking == "" && len(chunk.Calls) == 0:
		case !yield(chunk, nil), chunk.Done:
			return nil
		}
	}
}

// readWhole yields a reply that is not streamed.
func (c *Call) readWhole(ctx context.Context, body io.Reader, reply Reply, yield func(model.Chunk, error) bool) error {
	data, err := io.ReadAll(body)
	if err != nil {
		return c.TransportError(ctx, err)
	}
	chunk, err := reply.ReadWhole(data)
	switch {
	case err != nil:
		return err
	case !chunk.Done:
		return c.TransportError(ctx, nil)
	}
	yield(chunk, nil)
	return nil
}

// DecodeToolCall returns the n-th tool call of a reply. It rejects more than MaxCalls calls, a call without a name, and
// arguments that are not a JSON object.
func (c *Call) DecodeToolCall(n int, id, name string, arguments []byte) (model.Call, error) {
	args, ok := JSONObject(arguments)
	switch {
	case n > MaxCalls:
		return model.Call{}, c.ProtocolError(fmt.Sprintf("makes more than %d calls at once", MaxCalls))
	case name == "":
		return model.Call{}, c.ProtocolError("sends a call without a name")
	case !ok:
		return model.Call{}, c.ProtocolError("sends a call whose arguments are not a JSON object")
	}
	return model.Call{ID: id, Name: name, Arguments: args}, nil
}

// JSONObject returns raw if it is a JSON object, with U+FFFD for bytes that are not UTF-8, because neither services nor
// the bus accept them. It returns {} for no value and for null, and {} and false for anything else.
func JSONObject(raw []byte) (json.RawMessage, bool) {
	raw = bytes.TrimSpace(raw)
	switch {
	case len(raw) == 0, string(raw) == "null":
		return json.RawMessage("{}"), true
	case raw[0] != '{' || !json.Valid(raw):
		return json.RawMessage("{}"), false
	}
	if !utf8.Valid(raw) {
		raw = bytes.ToValidUTF8(raw, []byte(string(utf8.RuneError)))
	}
	return raw, true
}
