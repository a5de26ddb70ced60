package model

import (
	"iter"
	"strings"
)

// Collect concatenates the chunks of a reply. It returns [ErrCut] for a reply without its last chunk. With an error it
// returns the message received until then.
func Collect(reply iter.Seq2[Chunk, error]) (Message, Final, error) {
	m := Message{Role: Assistant}
	var content, thinking strings.Builder
	final, failed := Final{}, ErrCut
	for c, err := range reply {
		if err != nil {
			failed = err
			break
		}
		content.WriteString(c.Content)
		thinking.WriteString(c.Thinking)
		m.Calls = append(m.Calls, c.Calls...)
		if c.Done {
			final, failed = c.Final, nil
			break
		}
	}
	m.Content, m.Thinking = content.String(), thinking.String()
	return m, final, failed
}
