package model

import (
	"unicode/utf8"

	"conclave/pkg/model"
	"conclave/pkg/model/wire"
	"conclave/subjects"
)

// sendFunc sends one chunk of a reply to the caller.
type sendFunc = func(subjects.ChatChunk) error

// chunkSize returns the bytes of text and tool calls in c.
func chunkSize(c model.Chunk) int {
	n := len(c.Content) + len(c.Thinking)
	for _, call := range c.Calls {
		n += len(call.ID) + len(call.Name) + len(call.Arguments)
	}
	return n
}

// sendChunk sends c, in several messages when it is too large for one; an empty chunk that is not the last is not sent.
// The final one carries the demo flag and the notice of t. It rejects tool calls as encodeChunk does.
func sendChunk(c model.Chunk, t target, send sendFunc) error {
	for _, c := range splitChunk(c) {
		p, err := encodeChunk(c)
		if err != nil {
			return err
		}
		if p.Done {
			p.DemoModel, p.Notice = t.isDemo, t.notice
			p.Usage.ModelCalls = 1
		}
		if err := send(p); err != nil {
			return err
		}
	}
	return nil
}

// encodeChunk encodes a chunk for the bus. It rejects tool calls that are no JSON or longer than [maxChunk].
func encodeChunk(c model.Chunk) (subjects.ChatChunk, error) {
	p, err := wire.EncodeChunk(c)
	if err != nil || len(p.ToolCalls) > maxChunk {
		return p, errBadCalls
	}
	return p, nil
}

// splitChunk divides a chunk into chunks of at most [maxChunk] bytes of text: thinking, then content, then the rest. An
// empty chunk that is not the last gives none.
func splitChunk(c model.Chunk) (all []model.Chunk) {
	if len(c.Content)+len(c.Thinking) <= maxChunk {
		if chunkSize(c) == 0 && !c.Done {
			return nil
		}
		return []model.Chunk{c}
	}
	for _, part := range splitText(c.Thinking) {
		all = append(all, model.Chunk{Thinking: part})
	}
	for _, part := range splitText(c.Content) {
		all = append(all, model.Chunk{Content: part})
	}
	c.Content, c.Thinking = "", ""
	if chunkSize(c) > 0 || c.Done {
		all = append(all, c)
	}
	return all
}

// splitText divides a text between characters into parts of at most [maxChunk] bytes; an empty text has none.
func splitText(s string) (parts []string) {
	for len(s) > maxChunk {
		n := maxChunk
		for n > maxChunk-utf8.UTFMax && !utf8.RuneStart(s[n]) {
			n--
		}
		parts, s = append(parts, s[:n]), s[n:]
	}
	if s != "" {
		parts = append(parts, s)
	}
	return parts
}
