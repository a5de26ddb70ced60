package generator

import (
	"context"
	"strings"
	"time"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// Tokens that come faster than this are put together: a watcher cannot read them apart, and each message costs.
const (
	deltaInterval = 15 * time.Millisecond
	deltaBytes    = 2 << 10
)

// deltaStream says what a model writes as it comes. It may be lost: the whole answer follows.
type deltaStream struct {
	out      actor.Out
	from     string // the respondent
	query    string
	topic    subjects.Topic[subjects.Delta]
	n        int
	step     int
	text     strings.Builder
	lastEmit time.Time
}

// newDeltaStream makes a stream of deltas of a respondent. The query must be a valid token.
func newDeltaStream(out actor.Out, topic subjects.Topic[subjects.Delta], from, query string) (*deltaStream, error) {
	t, err := topic.With(query)
	return &deltaStream{out: out, from: from, query: query, topic: t}, err
}

func (l *deltaStream) write(ctx context.Context, step int, text string) {
	if step != l.step {
		l.flush(ctx)
	}
	l.step = step
	l.text.WriteString(text)
	if now := l.out.Now(); l.text.Len() >= deltaBytes || now.Sub(l.lastEmit) >= deltaInterval {
		l.flush(ctx)
	}
}

// flush says what has come together. One that was never opened has nothing to say.
func (l *deltaStream) flush(ctx context.Context) {
	if l == nil || l.text.Len() == 0 {
		return
	}
	_ = actor.Emit(ctx, l.out, l.topic, subjects.Delta{QueryID: l.query, RespondentID: l.from, Step: l.step, N: l.n, Text: l.text.String()})
	l.n++
	l.text.Reset()
	l.lastEmit = l.out.Now()
}
