package anthropic

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	sdk "github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/packages/ssestream"

	"conclave/pkg/model"
	"conclave/pkg/model/internal/remote"
)

// thought is a block of thinking as it is kept for the way back.
type thought struct {
	Thinking  string `json:"t,omitempty"`
	Signature string `json:"s,omitempty"`
	Hidden    string `json:"h,omitempty"` // what the service sends instead of thinking it does not show
}

func thoughts(kept []byte) (blocks []sdk.ContentBlockParamUnion) {
	var all []thought
	if json.Unmarshal(kept, &all) != nil {
		return nil
	}
	for _, t := range all {
		if t.Hidden != "" {
			blocks = append(blocks, sdk.NewRedactedThinkingBlock(t.Hidden))
		} else {
			blocks = append(blocks, sdk.NewThinkingBlock(t.Signature, t.Thinking))
		}
	}
	return blocks
}

// reply is one reply in the making.
type reply struct {
	asked remote.Asked
	call  *remote.Call
	keep  *remote.Keep

	final    model.Final
	open     map[int64]*block // of a stream, by index
	thoughts []thought
	first    string // id of the first call
	calls    int
}

// block is a part of the reply that is still coming.
type block struct {
	kind string
	id   string
	name string
	text strings.Builder // arguments or thinking
	sign string
}

// stream reads events until the one that says it was the last.
func (p *reply) stream(
	ctx context.Context, s *ssestream.Stream[sdk.MessageStreamEventUnion], yield func(model.Chunk, error) bool,
) error {
	defer s.Close()
	p.open = map[int64]*block{}
	more := false
	next := func() error { more = s.Next(); return s.Err() }
	for {
		if err := remote.Guarded(next); err != nil {
			return fault(ctx, p.call, err, p.asked)
		}
		if !more {
			return p.call.Failed(ctx, nil)
		}
		e := s.Current()
		if e.Type == "message_stop" {
			p.remember()
			yield(model.Chunk{Done: true, Final: p.final}, nil)
			return nil
		}
		c, err := p.event(e)
		if err != nil {
			return err
		}
		c.Content, c.Thinking = valid(c.Content), valid(c.Thinking)
		if (c.Content != "" || c.Thinking != "" || len(c.Calls) > 0) && !yield(c, nil) {
			return errStopped
		}
	}
}

// event takes in one event and returns what of it can be shown at once.
func (p *reply) event(e sdk.MessageStreamEventUnion) (c model.Chunk, err error) {
	switch e.Type {
	case "message_start":
		p.begin(e.Message)
	case "content_block_start":
		w := e.ContentBlock
		if len(p.open) > mostCalls {
			return c, p.call.Unreadable(fmt.Sprintf("sends more than %d blocks at once", mostCalls))
		}
		o := &block{kind: w.Type, id: w.ID, name: w.Name, sign: w.Signature}
		p.open[e.Index] = o
		switch w.Type {
		case "text":
			c.Content = w.Text
		case "thinking":
			c.Thinking = w.Thinking
			o.text.WriteString(w.Thinking)
		case "redacted_thinking":
			o.sign = w.Data
		}
	case "content_block_delta":
		o := p.open[e.Index]
		if o == nil {
			return c, p.call.Unreadable("continues a block that it did not begin")
		}
		c.Content, c.Thinking = e.Delta.Text, e.Delta.Thinking
		o.text.WriteString(e.Delta.PartialJSON + e.Delta.Thinking)
		o.sign += e.Delta.Signature
	case "content_block_stop":
		o := p.open[e.Index]
		if o == nil {
			return c, p.call.Unreadable("ends a block that it did not begin")
		}
		delete(p.open, e.Index)
		return p.done(o)
	case "message_delta":
		p.final.Reason = reason(string(e.Delta.StopReason))
		p.final.OutputTokens = int(e.Usage.OutputTokens)
		// The counts of the prompt are said again here only where they grew.
		if n := e.Usage.InputTokens + e.Usage.CacheCreationInputTokens + e.Usage.CacheReadInputTokens; n > 0 {
			p.final.PromptTokens = max(p.final.PromptTokens, int(n))
		}
	}
	return c, nil
}

func (p *reply) begin(m sdk.Message) {
	if m.Model != "" {
		p.final.Model = m.Model
	}
	p.final.PromptTokens = int(m.Usage.InputTokens + m.Usage.CacheCreationInputTokens + m.Usage.CacheReadInputTokens)
	p.final.OutputTokens = int(m.Usage.OutputTokens)
}

// done takes in a block that is complete: a call can be shown now, thinking can be kept.
func (p *reply) done(o *block) (c model.Chunk, err error) {
	switch o.kind {
	case "thinking":
		p.thoughts = append(p.thoughts, thought{Thinking: o.text.String(), Signature: o.sign})
	case "redacted_thinking":
		p.thoughts = append(p.thoughts, thought{Hidden: o.sign})
	case "tool_use":
		args := strings.TrimSpace(valid(o.text.String()))
		if args == "" {
			args = "{}"
		}
		switch p.calls++; {
		case p.calls > mostCalls:
			return c, p.call.Unreadable(fmt.Sprintf("makes more than %d calls at once", mostCalls))
		case o.name == "":
			return c, p.call.Unreadable("sends a call without a name")
		case args[0] != '{' || !json.Valid([]byte(args)):
			return c, p.call.Unreadable("sends a call whose arguments are not a JSON object")
		}
		if p.first == "" {
			p.first = o.id
		}
		c.Calls = []model.Call{{ID: valid(o.id), Name: valid(o.name), Arguments: json.RawMessage(args)}}
	}
	return c, nil
}

// remember keeps the thinking that led to calls.
func (p *reply) remember() {
	if p.first == "" || len(p.thoughts) == 0 {
		return
	}
	if kept, err := json.Marshal(p.thoughts); err == nil {
		p.keep.Put(p.first, kept)
	}
}

// whole reads a reply that comes in one piece.
func (p *reply) whole(m *sdk.Message, yield func(model.Chunk, error) bool) error {
	if m == nil || m.Role == "" {
		return p.call.Unreadable("answers without a message")
	}
	p.begin(*m)
	out := model.Chunk{Done: true}
	for _, w := range m.Content {
		o := &block{kind: w.Type, id: w.ID, name: w.Name, sign: w.Signature}
		switch w.Type {
		case "text":
			out.Content += w.Text
		case "thinking":
			out.Thinking += w.Thinking
			o.text.WriteString(w.Thinking)
		case "redacted_thinking":
			o.sign = w.Data
		case "tool_use":
			o.text.Write(w.Input)
		}
		c, err := p.done(o)
		if err != nil {
			return err
		}
		out.Calls = append(out.Calls, c.Calls...)
	}
	out.Content, out.Thinking = valid(out.Content), valid(out.Thinking)
	p.remember()
	p.final.Reason = reason(string(m.StopReason))
	out.Final = p.final
	yield(out, nil)
	return nil
}

// valid replaces bytes that are no UTF-8, which the library lets through.
func valid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return string([]rune(s))
}

// reason says it in the words that the other backends use, where there are some.
func reason(s string) string {
	switch s {
	case "end_turn", "stop_sequence", "tool_use":
		return "stop"
	case "max_tokens", "model_context_window_exceeded":
		return "length"
	}
	return s
}
