package model

import (
	"iter"
	"strings"
)

// Collect puts the pieces of a reply together. A reply without its last piece is [ErrCut]. What came before an error is
// returned with it.
func Collect(reply iter.Seq2[Chunk, error]) (Message, Final, error) {
	m := Message{Role: Assistant}
	var content, thinking strings.Builder
	var final Final
	var failed error
	pieces, done := 0, false
	for c, err := range reply {
		if err != nil {
			failed = err
			break
		}
		// Most replies that are not streamed come in one piece: no builder for them.
		if pieces++; pieces == 1 {
			m.Content, m.Thinking = c.Content, c.Thinking
		} else {
			if pieces == 2 {
				content.WriteString(m.Content)
				thinking.WriteString(m.Thinking)
			}
			content.WriteString(c.Content)
			thinking.WriteString(c.Thinking)
		}
		if len(m.Calls) == 0 {
			m.Calls = c.Calls
		} else {
			m.Calls = append(m.Calls[:len(m.Calls):len(m.Calls)], c.Calls...)
		}
		if c.Done {
			final, done = c.Final, true
			break
		}
	}
	if pieces > 1 {
		m.Content, m.Thinking = content.String(), thinking.String()
	}
	if failed == nil && !done {
		failed = ErrCut
	}
	return m, final, failed
}
