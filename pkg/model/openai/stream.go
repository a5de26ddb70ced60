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

// stream reads server-sent events until the end mark. A stream that says why it finished and then ends counts as whole
// too: not every server sends the mark.
func (p *reply) stream(ctx context.Context, body io.Reader, yield func(model.Chunk, error) bool) error {
	events := newEvents(body)
	for {
		data, err := events.next()
		switch {
		case errors.Is(err, errLong):
			return p.call.Unreadable(fmt.Sprintf("sends an event of more than %d bytes", mostEvent))
		case err != nil && (!errors.Is(err, io.EOF) || p.final.Reason == ""):
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return p.call.Failed(ctx, err)
		case err != nil, string(data) == "[DONE]":
			return p.finish(yield)
		}
		c, err := p.read(data)
		if err != nil {
			return err
		}
		if (c.Content != "" || c.Thinking != "") && !yield(c, nil) {
			return errStopped
		}
	}
}

func (p *reply) finish(yield func(model.Chunk, error) bool) error {
	last, err := p.end()
	if err != nil {
		return err
	}
	yield(last, nil)
	return nil
}

// events splits a stream into the data of its events.
type events struct {
	r *bufio.Reader
}

func newEvents(r io.Reader) *events { return &events{r: bufio.NewReaderSize(r, 16<<10)} }

var errLong = errors.New("event too long")

// next returns the data of the next event that has some. At the end of the stream an event that was not closed by an
// empty line still counts: the data is whole JSON or will be found not to be.
func (e *events) next() ([]byte, error) {
	var data []byte
	seen := false
	for {
		line, err := e.line()
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

// wrapError makes an error line look like the events that others send.
func wrapError(value []byte) []byte {
	if !json.Valid(value) {
		value, _ = json.Marshal(string(value))
	}
	return append(append([]byte(`{"error":`), value...), '}')
}

// line returns the next line without its end.
func (e *events) line() ([]byte, error) {
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

// fragment is a piece of a call. The first has id and name, the rest more of the arguments.
type fragment struct {
	Index    *int   `json:"index"`
	ID       string `json:"id"`
	Function struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"function"`
}

// calls puts fragments together, in the order in which their calls began.
type calls struct {
	list []*building
}

type building struct {
	index int
	id    string
	name  string
	args  strings.Builder
}

// add takes in one fragment.
func (c *calls) add(f fragment) error {
	b := c.find(f)
	if b == nil {
		if len(c.list) == mostCalls {
			return fmt.Errorf("makes more than %d calls at once", mostCalls)
		}
		b = &building{index: len(c.list), id: f.ID}
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

// find returns the call that f continues; nil when f begins one. Some servers give no index, or 0 to every call: then a
// new id together with a name begins a call.
func (c *calls) find(f fragment) *building {
	begins := func(b *building) bool { return f.ID != "" && b.id != "" && f.ID != b.id && f.Function.Name != "" }
	for i := len(c.list) - 1; i >= 0; i-- {
		b := c.list[i]
		switch {
		case f.Index != nil && b.index != *f.Index:
			continue
		case begins(b):
			if f.Index != nil {
				return c.byID(f.ID)
			}
			return nil
		case f.Index == nil && f.ID == "" && f.Function.Name != "" && b.args.Len() > 0 && json.Valid([]byte(b.args.String())):
			return nil // neither index nor id, and the last call is complete
		}
		return b
	}
	return nil
}

func (c *calls) byID(id string) *building {
	for _, b := range c.list {
		if b.id == id {
			return b
		}
	}
	return nil
}

// whole returns the finished calls. A call without a name or with arguments that are no object is the model's mistake.
func (c *calls) whole() ([]model.Call, error) {
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
