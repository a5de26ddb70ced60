package model

import (
	"unicode/utf8"

	"conclave/pkg/model"
	"conclave/pkg/model/wire"
	"conclave/subjects"
)

func sizeOf(c model.Chunk) int {
	n := len(c.Content) + len(c.Thinking)
	for _, call := range c.Calls {
		n += len(call.ID) + len(call.Name) + len(call.Arguments)
	}
	return n
}

// sayAll says a chunk, in several pieces when it is too large for one message.
func sayAll(c model.Chunk, say func(subjects.ChatChunk) error) error {
	for _, c := range split(c) {
		p, err := piece(c)
		if err != nil {
			return err
		}
		if err := say(p); err != nil {
			return err
		}
	}
	return nil
}

// sayLast says the chunk that is done, with who answered. That its calls can be said was checked before.
func sayLast(c model.Chunk, t target, say func(subjects.ChatChunk) error) error {
	for _, c := range split(c) {
		p, err := piece(c)
		if err != nil {
			return err
		}
		if p.Done {
			p.DemoModel, p.Notice = t.standIn, t.notice
			p.Usage.ModelCalls = 1
		}
		if err := say(p); err != nil {
			return err
		}
	}
	return nil
}

func piece(c model.Chunk) (subjects.ChatChunk, error) {
	p, err := wire.Piece(c)
	if err != nil || len(p.ToolCalls) > maxPiece {
		return p, errCalls
	}
	return p, nil
}

// split divides a chunk into such as fit a message: thinking, then words, then the rest. Nothing to say is no chunk.
func split(c model.Chunk) (all []model.Chunk) {
	if len(c.Content)+len(c.Thinking) <= maxPiece {
		if sizeOf(c) == 0 && !c.Done {
			return nil
		}
		return []model.Chunk{c}
	}
	for _, part := range cut(c.Thinking) {
		all = append(all, model.Chunk{Thinking: part})
	}
	for _, part := range cut(c.Content) {
		all = append(all, model.Chunk{Content: part})
	}
	c.Content, c.Thinking = "", ""
	if sizeOf(c) > 0 || c.Done {
		all = append(all, c)
	}
	return all
}

// cut divides a text between characters.
func cut(s string) (parts []string) {
	for len(s) > maxPiece {
		n := maxPiece
		for n > maxPiece-utf8.UTFMax && !utf8.RuneStart(s[n]) {
			n--
		}
		parts, s = append(parts, s[:n]), s[n:]
	}
	if s != "" {
		parts = append(parts, s)
	}
	return parts
}
