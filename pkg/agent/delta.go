package agent

import (
	"context"
	"strings"
	"time"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// Tokens are merged into one message for deltaInterval or up to deltaBytes: each message has a cost.
const (
	deltaInterval = 15 * time.Millisecond
	deltaBytes    = 2 << 10
)

// DeltaStream publishes the output of a model as it is generated. Deltas may drop: the whole answer follows.
type DeltaStream struct {
	out      actor.Out
	from     string // the respondent
	query    string
	topic    subjects.Topic[subjects.Delta]
	n        int
	step     int
	text     strings.Builder
	lastEmit time.Time
}

// NewDeltaStream is a stream of deltas of the respondent from. It rejects a query id that is not a valid token.
func NewDeltaStream(out actor.Out, topic subjects.Topic[subjects.Delta], from, query string) (*DeltaStream, error) {
	t, err := topic.With(query)
	return &DeltaStream{out: out, from: from, query: query, topic: t}, err
}

// Write adds text of a step and publishes when deltaBytes or deltaInterval is reached. Text of another step is never
// merged with it.
func (l *DeltaStream) Write(ctx context.Context, step int, text string) {
	if step != l.step {
		l.Flush(ctx)
	}
	l.step = step
	l.text.WriteString(text)
	if now := l.out.Now(); l.text.Len() >= deltaBytes || now.Sub(l.lastEmit) >= deltaInterval {
		l.Flush(ctx)
	}
}

// Flush publishes the merged text, if there is any. Errors are ignored: deltas may drop. A nil stream has none.
func (l *DeltaStream) Flush(ctx context.Context) {
	if l == nil || l.text.Len() == 0 {
		return
	}
	_ = actor.Emit(ctx, l.out, l.topic, subjects.Delta{
		QueryID: l.query, RespondentID: l.from, Step: l.step, N: l.n,
		Text: l.text.String(),
	})
	l.n++
	l.text.Reset()
	l.lastEmit = l.out.Now()
}

// AnswerStreams publish the thinking and the answer of a model as they are generated; nil publishes nothing. What was
// thought is published before the text that follows it.
type AnswerStreams struct{ thinking, answer *DeltaStream }

// NewAnswerStreams are the streams of the respondent from for a question, whose id must be a valid token.
func NewAnswerStreams(out actor.Out, from, query string) *AnswerStreams {
	thinking, _ := NewDeltaStream(out, subjects.ResponseThinking, from, query)
	answer, _ := NewDeltaStream(out, subjects.ResponseDelta, from, query)
	return &AnswerStreams{thinking, answer}
}

// Flush publishes what is merged so far.
func (s *AnswerStreams) Flush(ctx context.Context) {
	if s != nil {
		s.thinking.Flush(ctx)
		s.answer.Flush(ctx)
	}
}

// WriteThinking adds thinking of a step.
func (s *AnswerStreams) WriteThinking(ctx context.Context, step int, text string) {
	s.thinking.Write(ctx, step, text)
}

// WriteToken adds text of a step.
func (s *AnswerStreams) WriteToken(ctx context.Context, step int, text string) {
	s.thinking.Flush(ctx)
	s.answer.Write(ctx, step, text)
}
