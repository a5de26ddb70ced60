package openai

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"conclave/pkg/model"
)

const (
	mostEvent = 4 << 20 // bytes of one event
	mostCalls = 128     // in one reply
)

// readStream reads server-sent events until [DONE] and yields what is in them, then the last chunk. A stream that ends
// after a finish_reason is complete too, because not every server sends [DONE]; one that ends before is a transport
// error. An event of more than mostEvent bytes is rejected. errStopped = the caller stopped iterating.
func (p *reply) readStream(ctx context.Context, body io.Reader, yield func(model.Chunk, error) bool) error {
	events := newEventReader(body)
	for {
		data, err := events.nextEvent()
		switch {
		case errors.Is(err, errLong):
			return p.call.ProtocolError(fmt.Sprintf("sends an event of more than %d bytes", mostEvent))
		case err != nil && (!errors.Is(err, io.EOF) || p.final.Reason == ""):
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return p.call.TransportError(ctx, err)
		case err != nil, string(data) == "[DONE]":
			return p.yieldFinal(yield)
		}
		c, err := p.readEvent(data)
		if err != nil {
			return err
		}
		if (c.Content != "" || c.Thinking != "") && !yield(c, nil) {
			return errStopped
		}
	}
}

// yieldFinal yields the last chunk, or fails as finalChunk does.
func (p *reply) yieldFinal(yield func(model.Chunk, error) bool) error {
	last, err := p.finalChunk()
	if err != nil {
		return err
	}
	yield(last, nil)
	return nil
}

// eventReader splits a stream into the data of its events.
type eventReader struct {
	r *bufio.Reader
}

func newEventReader(r io.Reader) *eventReader { return &eventReader{r: bufio.NewReaderSize(r, 16<<10)} }

var errLong = errors.New("event too long")

// nextEvent returns the data of the next event with data; other events are skipped, and an error line counts as an
// event. An event at the end of the stream counts even without its closing blank line; if it was cut, decoding its JSON
// fails. The end is [io.EOF], more than mostEvent bytes are errLong.
func (e *eventReader) nextEvent() ([]byte, error) {
	var data []byte
	seen := false
	for {
		line, err := e.readLine()
		if err != nil {
			if seen && errors.Is(err, io.EOF) {
				return data, nil
			}
			return nil, err
		}
		if len(line) == 0 {
			if seen {
				return data, nil
			}
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "data":
			if seen {
				data = append(data, '\n')
			}
			if len(data)+len(value) > mostEvent {
				return nil, errLong
			}
			data, seen = append(data, value...), true
		case "error":
			// llama.cpp writes this line instead of an event.
			return wrapError(value), nil
		}
	}
}

// wrapError converts an error line to the event form of other servers.
func wrapError(value []byte) []byte {
	if !json.Valid(value) {
		value, _ = json.Marshal(string(value))
	}
	return append(append([]byte(`{"error":`), value...), '}')
}

// readLine returns the next line without its terminator; the last one may lack it. The end is [io.EOF], a line of more
// than mostEvent bytes is errLong.
func (e *eventReader) readLine() ([]byte, error) {
	var line []byte
	for {
		part, err := e.r.ReadSlice('\n')
		if len(line)+len(part) > mostEvent {
			return nil, errLong
		}
		line = append(line, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && (len(line) == 0 || !errors.Is(err, io.EOF)):
			return nil, err
		}
		return bytes.TrimRight(line, "\r\n"), nil
	}
}

// fragment is a piece of a tool call: the first holds id and name, later ones more of the arguments.
type fragment struct {
	Index    *int   `json:"index"`
	ID       string `json:"id"`
	Function struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"function"`
}

// callAssembler joins fragments into calls, in the order in which the calls began.
type callAssembler struct {
	list []*partialCall
}

type partialCall struct {
	index int
	id    string
	name  string
	args  strings.Builder
}

// addFragment adds f to the call it continues, or begins a call. It rejects more than mostCalls calls. Arguments may be
// a string of JSON, as the protocol requires, or JSON itself.
func (c *callAssembler) addFragment(f fragment) error {
	b := c.findCall(f)
	if b == nil {
		if len(c.list) == mostCalls {
			return fmt.Errorf("makes more than %d calls at once", mostCalls)
		}
		b = &partialCall{index: len(c.list), id: f.ID}
		if f.Index != nil {
			b.index = *f.Index
		}
		c.list = append(c.list, b)
	}
	if b.id == "" {
		b.id = f.ID
	}
	if f.Function.Name != b.name { // some repeat the name with each fragment, some send it in pieces
		b.name += f.Function.Name
	}
	if raw := f.Function.Arguments; len(raw) > 0 && string(raw) != "null" {
		var text string
		if json.Unmarshal(raw, &text) != nil {
			text = string(raw) // an object instead of a text that holds one
		}
		b.args.WriteString(text)
	}
	return nil
}

// findCall returns the call that f continues, or nil if f begins one. Some servers send no index, or 0 for every call;
// then a new id with a name begins a call.
func (c *callAssembler) findCall(f fragment) *partialCall {
	begins := func(b *partialCall) bool { return f.ID != "" && b.id != "" && f.ID != b.id && f.Function.Name != "" }
	for i := len(c.list) - 1; i >= 0; i-- {
		b := c.list[i]
		switch {
		case f.Index != nil && b.index != *f.Index:
			continue
		case begins(b):
			if f.Index != nil {
				return c.findByID(f.ID)
			}
			return nil
		case f.Index == nil && f.ID == "" && f.Function.Name != "" && b.args.Len() > 0 &&
			json.Valid([]byte(b.args.String())):
			return nil // neither index nor id, and the last call is complete
		}
		return b
	}
	return nil
}

func (c *callAssembler) findByID(id string) *partialCall {
	for _, b := range c.list {
		if b.id == id {
			return b
		}
	}
	return nil
}

// finish returns the complete calls, nil if there are none; no arguments are {}. It fails for a call without a name or
// whose arguments are not a JSON object.
func (c *callAssembler) finish() ([]model.Call, error) {
	var out []model.Call
	for _, b := range c.list {
		args := strings.TrimSpace(b.args.String())
		if args == "" {
			args = "{}"
		}
		switch {
		case b.name == "":
			return nil, errors.New("sends a call without a name")
		case args[0] != '{' || !json.Valid([]byte(args)):
			return nil, errors.New("sends a call whose arguments are not a JSON object")
		}
		out = append(out, model.Call{ID: b.id, Name: b.name, Arguments: json.RawMessage(args)})
	}
	return out, nil
}
