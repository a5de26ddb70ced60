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

// thinkingBlock is a thinking block as cached for the next request of the tool loop.
type thinkingBlock struct {
	Thinking  string `json:"t,omitempty"`
	Signature string `json:"s,omitempty"`
	Hidden    string `json:"h,omitempty"` // redacted thinking
}

// decodeThinking returns the blocks of cached thinking; nil when there is none or it cannot be decoded.
func decodeThinking(kept []byte) (blocks []sdk.ContentBlockParamUnion) {
	var all []thinkingBlock
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

// reply assembles one reply.
type reply struct {
	asked remote.RequestInfo
	call  *remote.Call
	keep  *remote.SignatureCache

	final    model.Final
	open     map[int64]*block // of a stream, by index
	thoughts []thinkingBlock
	first    string // id of the first call
	calls    int
}

// block is a content block that is still being streamed.
type block struct {
	kind string
	id   string
	name string
	text strings.Builder // arguments or thinking
	sign string
}

// readStream reads events until message_stop and yields what is in them, then the last chunk. A stream that ends before
// is a transport error, a panic of the library is an error too. errStopped = the caller stopped iterating.
func (p *reply) readStream(
	ctx context.Context, s *ssestream.Stream[sdk.MessageStreamEventUnion], yield func(model.Chunk, error) bool,
) error {
	defer s.Close()
	p.open = map[int64]*block{}
	more := false
	next := func() error { more = s.Next(); return s.Err() }
	for {
		if err := remote.RecoverPanic(next); err != nil {
			return convertError(ctx, p.call, err, p.asked)
		}
		if !more {
			return p.call.TransportError(ctx, nil)
		}
		e := s.Current()
		if e.Type == "message_stop" {
			p.cacheThinking()
			yield(model.Chunk{Done: true, Final: p.final}, nil)
			return nil
		}
		c, err := p.readEvent(e)
		if err != nil {
			return err
		}
		c.Content, c.Thinking = replaceInvalidUTF8(c.Content), replaceInvalidUTF8(c.Thinking)
		if (c.Content != "" || c.Thinking != "" || len(c.Calls) > 0) && !yield(c, nil) {
			return errStopped
		}
	}
}

// readEvent processes one event and returns the content, thinking or completed call in it; other events, unknown ones
// included, return an empty chunk. It rejects too many open blocks, and an event for a block that was not begun.
func (p *reply) readEvent(e sdk.MessageStreamEventUnion) (c model.Chunk, err error) {
	switch e.Type {
	case "message_start":
		p.startReply(e.Message)
	case "content_block_start":
		w := e.ContentBlock
		if len(p.open) > mostCalls {
			return c, p.call.ProtocolError(fmt.Sprintf("sends more than %d blocks at once", mostCalls))
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
			return c, p.call.ProtocolError("continues a block that it did not begin")
		}
		c.Content, c.Thinking = e.Delta.Text, e.Delta.Thinking
		o.text.WriteString(e.Delta.PartialJSON + e.Delta.Thinking)
		o.sign += e.Delta.Signature
	case "content_block_stop":
		o := p.open[e.Index]
		if o == nil {
			return c, p.call.ProtocolError("ends a block that it did not begin")
		}
		delete(p.open, e.Index)
		return p.finishBlock(o)
	case "message_delta":
		p.final.Reason = stopReason(string(e.Delta.StopReason))
		p.final.OutputTokens = int(e.Usage.OutputTokens)
		// The counts of the prompt are said again here only where they grew.
		if n := e.Usage.InputTokens + e.Usage.CacheCreationInputTokens + e.Usage.CacheReadInputTokens; n > 0 {
			p.final.PromptTokens = max(p.final.PromptTokens, int(n))
		}
	}
	return c, nil
}

func (p *reply) startReply(m sdk.Message) {
	if m.Model != "" {
		p.final.Model = m.Model
	}
	p.final.PromptTokens = int(m.Usage.InputTokens + m.Usage.CacheCreationInputTokens + m.Usage.CacheReadInputTokens)
	p.final.OutputTokens = int(m.Usage.OutputTokens)
}

// finishBlock handles a complete block: it returns a call, or stores thinking for the cache; other blocks return
// nothing. It rejects more than mostCalls calls in a reply, and a call without a name or whose arguments are not a JSON
// object. No arguments are {}.
func (p *reply) finishBlock(o *block) (c model.Chunk, err error) {
	switch o.kind {
	case "thinking":
		p.thoughts = append(p.thoughts, thinkingBlock{Thinking: o.text.String(), Signature: o.sign})
	case "redacted_thinking":
		p.thoughts = append(p.thoughts, thinkingBlock{Hidden: o.sign})
	case "tool_use":
		args := strings.TrimSpace(replaceInvalidUTF8(o.text.String()))
		if args == "" {
			args = "{}"
		}
		switch p.calls++; {
		case p.calls > mostCalls:
			return c, p.call.ProtocolError(fmt.Sprintf("makes more than %d calls at once", mostCalls))
		case o.name == "":
			return c, p.call.ProtocolError("sends a call without a name")
		case args[0] != '{' || !json.Valid([]byte(args)):
			return c, p.call.ProtocolError("sends a call whose arguments are not a JSON object")
		}
		if p.first == "" {
			p.first = o.id
		}
		c.Calls = []model.Call{{
			ID: replaceInvalidUTF8(o.id), Name: replaceInvalidUTF8(o.name),
			Arguments: json.RawMessage(args),
		}}
	}
	return c, nil
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

// readWhole yields a reply that is not streamed as one chunk. It rejects a reply without a message, and calls as
// finishBlock does.
func (p *reply) readWhole(m *sdk.Message, yield func(model.Chunk, error) bool) error {
	if m == nil || m.Role == "" {
		return p.call.ProtocolError("answers without a message")
	}
	p.startReply(*m)
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
		c, err := p.finishBlock(o)
		if err != nil {
			return err
		}
		out.Calls = append(out.Calls, c.Calls...)
	}
	out.Content, out.Thinking = replaceInvalidUTF8(out.Content), replaceInvalidUTF8(out.Thinking)
	p.cacheThinking()
	p.final.Reason = stopReason(string(m.StopReason))
	out.Final = p.final
	yield(out, nil)
	return nil
}

// replaceInvalidUTF8 replaces invalid bytes, which the SDK does not.
func replaceInvalidUTF8(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return string([]rune(s))
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
