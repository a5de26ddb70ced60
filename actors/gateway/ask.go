package gateway

import (
	"context"
	"errors"
	"strings"
	"time"
	"unicode"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// defaultAskTimeout is how long a caller waits who does not say how long.
const defaultAskTimeout = 30 * time.Minute

// onAsk asks for somebody on the bus and says the answer while it grows. Pieces of the growing answer may be lost on
// their way here; what is missing is said when the whole answer is there. What the caller has read in the end is the
// answer, and before it, on lines of its own, whatever the model said between its tool calls.
func (g *Gateway) onAsk(ctx context.Context, in actor.Msg[subjects.Query], say func(subjects.Delta) error, out actor.Out) error {
	q := Question{Query: in.Body.Query, SessionID: in.Body.SessionID, QueryID: in.Body.QueryID, Model: in.Body.Model, Reference: in.Body.Reference}
	if q.SessionID == "" {
		q.SessionID = in.Session
	}
	if q.QueryID == "" {
		q.QueryID = in.Query
	}
	if err := validateQuestion(out, &q); err != nil {
		return toFault(err)
	}
	if in.Deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, defaultAskTimeout)
		defer cancel()
	}
	delta, err := subjects.ResponseDelta.With(q.QueryID)
	if err != nil {
		return err
	}
	hear := g.live.subscribe(func(ev Event) bool { return ev.Subject == delta.Name })
	defer g.live.unsubscribe(hear)
	cur := g.events.cursorAtEnd()
	if _, err := g.storeQuestion(ctx, out, q); err != nil {
		return toFault(err)
	}
	text := &answerStream{emit: func(step, n int, t string) error {
		return say(subjects.Delta{QueryID: q.QueryID, RespondentID: subjects.Generator, Step: step, N: n, Text: t})
	}}
	for {
		ev, ok, more, err := cur.next(ctx)
		switch {
		case ok:
			end, err := readOutcome(ev, q.QueryID)
			if err != nil {
				return toFault(err)
			}
			if end != nil {
				return finishAnswer(text, *end)
			}
			continue
		case err != nil && ctx.Err() == nil:
			more = nil // the link is down: the heartbeat below tries again
		}
		select {
		case <-more:
		case l := <-hear.events:
			if err := text.add(*l.delta); err != nil {
				return err
			}
		case <-time.After(pollInterval):
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return subjects.Faultf(subjects.CodeTimeout, "no answer in time; the question %s is still being worked at, in session %s", q.QueryID, q.SessionID)
			}
			return subjects.Faultf(subjects.CodeUnavailable, "the gateway is stopping; the question %s is kept and will be answered, in session %s", q.QueryID, q.SessionID)
		}
	}
}

// finishAnswer says what is missing of the answer, and how it ended when it did not end well.
func finishAnswer(text *answerStream, end outcome) error {
	if end.dead != nil {
		return subjects.Faultf(end.dead.Code, "%s gave the question up: %s", end.dead.Actor, end.dead.Reason)
	}
	if err := text.finish(end.response.Answer); err != nil {
		return err
	}
	if end.response.Error != nil {
		return end.response.Error
	}
	return nil
}

// toFault is what somebody on the bus is told.
func toFault(err error) error {
	var p *problem
	if errors.As(err, &p) {
		return p.Fault
	}
	return err
}

// answerStream passes the pieces of an answer on so that their sum is the answer: in order, without blanks at its ends, which
// answers do not have, and nothing after a piece is missing. Each step of the model begins a new line.
type answerStream struct {
	emit func(step, n int, text string) error

	begun   bool
	step    int
	last    int    // number of the last piece
	said    string // of this step
	held    string // blanks that may be the end
	earlier bool   // something was said in a step before
	broken  bool   // a piece of this step is missing
	n       int
}

func (t *answerStream) add(d subjects.Delta) error {
	if t.begun && d.Step < t.step {
		return nil
	}
	if !t.begun || d.Step > t.step {
		// Pieces may be counted per answer or per step: the first of a step follows on the last, or is number 0.
		follows := d.N == 0 || t.begun && !t.broken && d.N == t.last+1
		t.newStep(d.Step)
		t.broken = !follows
	} else if d.N != t.last+1 {
		t.broken = true
	}
	t.last = d.N
	if t.broken {
		return nil
	}
	text := t.held + d.Text
	if t.said == "" {
		text = strings.TrimLeftFunc(text, unicode.IsSpace)
	}
	whole := strings.TrimRightFunc(text, unicode.IsSpace)
	t.held = text[len(whole):]
	return t.send(whole)
}

func (t *answerStream) newStep(step int) {
	t.earlier = t.earlier || t.said != ""
	t.begun, t.step, t.said, t.held = true, step, "", ""
}

// send says a piece, on a new line when it is the first of its step.
func (t *answerStream) send(text string) error {
	if text == "" {
		return nil
	}
	piece := text
	if t.said == "" && t.earlier {
		piece = "\n" + text
	}
	t.said += text
	t.n++
	return t.emit(t.step, t.n-1, piece)
}

// finish says what is missing. When the answer is not what was growing, it is said whole on a new line.
func (t *answerStream) finish(answer string) error {
	if t.said != "" {
		if rest, ok := strings.CutPrefix(strings.TrimLeftFunc(answer, unicode.IsSpace), t.said); ok {
			return t.send(rest)
		}
		t.newStep(t.step)
	}
	return t.send(answer)
}
