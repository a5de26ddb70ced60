package anthropic

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"conclave/pkg/model"
	"conclave/pkg/model/internal/remote"
)

// maxOpenBlocks is how many blocks of a stream may be incomplete at a time.
const maxOpenBlocks = 128

// usage is the service's token count.
type usage struct {
	Input        int `json:"input_tokens"`
	CacheWritten int `json:"cache_creation_input_tokens"`
	CacheRead    int `json:"cache_read_input_tokens"`
	Output       int `json:"output_tokens"`
}

func (u usage) prompt() int { return u.Input + u.CacheWritten + u.CacheRead }

// envelope is a reply without its content.
type envelope struct {
	Role  string `json:"role"`
	Model string `json:"model"`
	Usage usage  `json:"usage"`
}

// event is an event of a stream. Its Type says which other fields it has.
type event struct {
	Type    string          `json:"type"`
	Message envelope        `json:"message"`
	Index   int             `json:"index"`
	Block   block           `json:"content_block"`
	Error   json.RawMessage `json:"error"`
	Usage   usage           `json:"usage"`
	Delta   struct {
		Text      string `json:"text"`
		Thinking  string `json:"thinking"`
		Signature string `json:"signature"`
		Input     string `json:"partial_json"`
		Reason    string `json:"stop_reason"`
	} `json:"delta"`
}

// reply implements [remote.Reply].
type reply struct {
	call *remote.Call
	keep *remote.SignatureCache

	final    model.Final
	open     map[int]*openBlock // of a stream, by index
	thoughts []block            // for the next request of the tool loop
	first    string             // id of the first call
	calls    int
}

// openBlock is a content block that is still being streamed.
type openBlock struct {
	block
	text strings.Builder // further arguments or thinking
}

// ReadEvent implements [remote.Reply]. Unknown events return an empty chunk. It rejects too many open blocks, and an
// event for a block that was not begun.
func (p *reply) ReadEvent(data []byte) (c model.Chunk, err error) {
	var e event
	if json.Unmarshal(data, &e) != nil {
		return c, p.call.ProtocolError("sends something that does not follow its protocol")
	}
	switch e.Type {
	case "error":
		return c, p.call.EventError(e.Error)
	case "message_start":
		p.startReply(e.Message)
	case "content_block_start":
		if len(p.open) > maxOpenBlocks {
			return c, p.call.ProtocolError(fmt.Sprintf("sends more than %d blocks at once", maxOpenBlocks))
		}
		p.open[e.Index] = &openBlock{block: e.Block}
		return e.Block.chunk(), nil
	case "content_block_delta":
		o := p.open[e.Index]
		if o == nil {
			return c, p.call.ProtocolError("continues a block that it did not begin")
		}
		o.text.WriteString(e.Delta.Input + e.Delta.Thinking)
		o.Signature += e.Delta.Signature
		return model.Chunk{Content: e.Delta.Text, Thinking: e.Delta.Thinking}, nil
	case "content_block_stop":
		o := p.open[e.Index]
		if o == nil {
			return c, p.call.ProtocolError("ends a block that it did not begin")
		}
		delete(p.open, e.Index)
		switch text := o.text.String(); o.Type {
		case "thinking":
			text = o.chunk().Thinking + text
			o.Thinking = &text
		case "tool_use":
			if text != "" { // in place of the empty object with which it began
				o.Input = []byte(text)
			}
		}
		c.Calls, err = p.finishBlock(o.block)
		return c, err
	case "message_delta":
		p.final.Reason = stopReason(e.Delta.Reason)
		p.final.OutputTokens = e.Usage.Output
		// The counts of the prompt are said again here only where they grew.
		p.final.PromptTokens = max(p.final.PromptTokens, e.Usage.prompt())
	case "message_stop":
		p.cacheThinking()
		return model.Chunk{Done: true, Final: p.final}, nil
	}
	return c, nil
}

// EndStream implements [remote.Reply]. A stream without message_stop was cut off.
func (p *reply) EndStream() (model.Chunk, error) { return model.Chunk{}, nil }

func (p *reply) startReply(m envelope) {
	if m.Model != "" {
		p.final.Model = m.Model
	}
	p.final.PromptTokens, p.final.OutputTokens = m.Usage.prompt(), m.Usage.Output
}

// chunk returns the content and the thinking in a block.
func (b block) chunk() (c model.Chunk) {
	switch {
	case b.Type == "text":
		c.Content = b.Text
	case b.Type == "thinking" && b.Thinking != nil:
		c.Thinking = *b.Thinking
	}
	return c
}

// finishBlock returns the call in a complete block, and keeps thinking for the cache. It rejects an invalid call.
func (p *reply) finishBlock(b block) ([]model.Call, error) {
	switch b.Type {
	case "thinking", "redacted_thinking":
		p.thoughts = append(p.thoughts, b)
	case "tool_use":
		p.calls++
		c, err := p.call.DecodeToolCall(p.calls, b.ID, b.Name, b.Input)
		if err != nil {
			return nil, err
		}
		p.first = cmp.Or(p.first, c.ID)
		return []model.Call{c}, nil
	}
	return nil, nil
}

// cacheThinking caches the thinking of this reply under the id of its first call. A reply without calls or thinking is
// not cached.
func (p *reply) cacheThinking() {
	if p.first == "" || len(p.thoughts) == 0 {
		return
	}
	if kept, err := json.Marshal(p.thoughts); err == nil {
		p.keep.Put(p.first, kept)
	}
}

// ReadWhole implements [remote.Reply]. It rejects a reply without a role.
func (p *reply) ReadWhole(data []byte) (out model.Chunk, err error) {
	var m struct {
		envelope
		Content []block         `json:"content"`
		Reason  string          `json:"stop_reason"`
		Error   json.RawMessage `json:"error"`
	}
	if json.Unmarshal(data, &m) != nil {
		return out, p.call.ProtocolError("sends something that does not follow its protocol")
	}
	if err := p.call.EventError(m.Error); err != nil {
		return out, err
	}
	if m.Role == "" {
		return out, p.call.ProtocolError("answers without a message")
	}
	p.startReply(m.envelope)
	for _, b := range m.Content {
		c := b.chunk()
		if c.Calls, err = p.finishBlock(b); err != nil {
			return out, err
		}
		out.Content, out.Thinking = out.Content+c.Content, out.Thinking+c.Thinking
		out.Calls = append(out.Calls, c.Calls...)
	}
	p.cacheThinking()
	p.final.Reason = stopReason(m.Reason)
	out.Done, out.Final = true, p.final
	return out, nil
}

// stopReason maps the service's stop reason to the terms of the other backends: stop or length. Any other is returned
// unchanged.
func stopReason(s string) string {
	switch s {
	case "end_turn", "stop_sequence", "tool_use":
		return "stop"
	case "max_tokens", "model_context_window_exceeded":
		return "length"
	}
	return s
}
