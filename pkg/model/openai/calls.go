package openai

import (
	"cmp"
	"encoding/json"
	"strings"

	"conclave/pkg/model"
	"conclave/pkg/model/internal/remote"
)

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

// addFragment adds f to the call it continues, or begins a call. Of more calls than finish accepts, all but one are
// dropped. Arguments may be a string of JSON, as the protocol requires, or JSON itself.
func (c *callAssembler) addFragment(f fragment) {
	b := c.findCall(f)
	if b == nil {
		if len(c.list) > remote.MaxCalls {
			return
		}
		b = &partialCall{index: len(c.list), id: f.ID}
		if f.Index != nil {
			b.index = *f.Index
		}
		c.list = append(c.list, b)
	}
	b.id = cmp.Or(b.id, f.ID)
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

// finish returns the complete calls, nil if there are none. It fails as [remote.Call.DecodeToolCall] does.
func (c *callAssembler) finish(call *remote.Call) (out []model.Call, err error) {
	for i, b := range c.list {
		tool, err := call.DecodeToolCall(i+1, b.id, b.name, []byte(b.args.String()))
		if err != nil {
			return nil, err
		}
		out = append(out, tool)
	}
	return out, nil
}
