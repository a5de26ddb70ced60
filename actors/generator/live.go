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
	liveEvery = 15 * time.Millisecond
	liveMost  = 2 << 10
)

// live says what a model writes as it comes. It may be lost: the whole answer follows.
type live struct {
	out   actor.Out
	from  string // the respondent
	query string
	topic subjects.Topic[subjects.Delta]
	n     int
	step  int
	text  strings.Builder
	said  time.Time
}

// newLive makes a stream of deltas of a respondent. The query must be a valid token.
func newLive(out actor.Out, topic subjects.Topic[subjects.Delta], from, query string) (*live, error) {
	t, err := topic.With(query)
	return &live{out: out, from: from, query: query, topic: t}, err
}

func (l *live) say(ctx context.Context, step int, text string) {
	if step != l.step {
		l.flush(ctx)
	}
	l.step = step
	l.text.WriteString(text)
	if now := l.out.Now(); l.text.Len() >= liveMost || now.Sub(l.said) >= liveEvery {
		l.flush(ctx)
	}
}

// flush says what has come together. One that was never opened has nothing to say.
func (l *live) flush(ctx context.Context) {
	if l == nil || l.text.Len() == 0 {
		return
	}
	_ = actor.Emit(ctx, l.out, l.topic, subjects.Delta{QueryID: l.query, RespondentID: l.from, Step: l.step, N: l.n, Text: l.text.String()})
	l.n++
	l.text.Reset()
	l.said = l.out.Now()
}
