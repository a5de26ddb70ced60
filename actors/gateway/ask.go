package gateway

import (
	"context"
	"errors"
	"strings"
	"time"
	"unicode"

	"conclave/pkg/actor"
	"conclave/pkg/client"
	"conclave/subjects"
)

// defaultAskTimeout is the deadline of a request without one.
const defaultAskTimeout = 30 * time.Minute

// onAsk stores a question for a caller on the bus, waits for its outcome and sends the answer in one message, because a
// plain request reads only the first; a caller that asks for a streamed reply gets it as it grows. Live tokens may be
// lost; the missing part of the answer is sent when it is complete. On lines before a streamed answer the caller gets
// the interim texts of the model between tool calls, as far as their tokens arrive. Without a deadline of the caller it
// waits defaultAskTimeout. A fault timeout or unavailable (the gateway stops) does not cancel the question: it is
// stored and is still answered.
func (g *Gateway) onAsk(ctx context.Context, in actor.Msg[subjects.Query], say func(subjects.Delta) error,
	out actor.Out,
) error {
	q := Question{
		Query: in.Body.Query, Attachments: in.Body.Attachments, SessionID: in.Body.SessionID,
		QueryID: in.Body.QueryID, Model: in.Body.Model, Hint: in.Body.Hint, Reference: in.Body.Reference,
	}
	if q.SessionID == "" {
		q.SessionID = in.Session
	}
	if q.QueryID == "" {
		q.QueryID = in.Query
	}
	var caller *clientAccess
	if in.From != "user" {
		var err error
		if caller, err = g.tokens.findName(ctx, out, in.From); err != nil {
			return err
		}
	}
	if in.Deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, defaultAskTimeout)
		defer cancel()
	}
	return g.answerOnBus(ctx, out, caller, &q, nil, in.Streams, nil, func(step, n int, t string) error {
		return say(subjects.Delta{QueryID: q.QueryID, RespondentID: subjects.Generator, Step: step, N: n, Text: t})
	})
}

// answerOnBus asks a question for a caller on the bus and emits the answer, with streams as it grows. onEvent, which
// may be nil, gets each event of the question. A retry of an answered question gets its answer. The error is the fault
// for the caller.
func (g *Gateway) answerOnBus(ctx context.Context, out actor.Out, caller *clientAccess, in *Question, images [][]byte,
	streams bool, onEvent func(client.Event), emit func(step, n int, text string) error,
) error {
	var hear []subjects.Topic[subjects.Delta]
	if streams {
		hear = append(hear, subjects.ResponseDelta)
	}
	q, err := g.ask(ctx, out, caller, in, images, hear...)
	if errors.Is(err, errAsked) {
		if end := g.findRepeated(ctx, in); end != nil {
			return finishAnswer(&answerStream{emit: emit}, end, streams)
		}
	}
	if err != nil {
		return toFault(err)
	}
	defer q.leave()
	text := &answerStream{emit: emit}
	end, err := q.wait(ctx, sink{onEvent, func(l liveEvent) error { return text.add(*l.delta) }})
	switch {
	case err == nil:
		return finishAnswer(text, end, streams)
	case errors.Is(err, errRevoked):
		return subjects.Faultf(subjects.CodeDenied, "the client was revoked")
	case errors.Is(err, context.Canceled):
		err = errClosing
	}
	return toFault(explainUnanswered(q.question, err))
}

// findRepeated returns the outcome of a question that was asked before with the same ids and text, nil when it has none
// or cannot be read.
func (g *Gateway) findRepeated(ctx context.Context, in *Question) *client.Outcome {
	ctx, cancel := g.withTimeout(ctx, lookupTimeout)
	defer cancel()
	end, err := g.findOutcome(ctx, question{id: in.QueryID, session: in.SessionID})
	if err != nil || end.Response == nil || end.Response.SessionID != in.SessionID || end.Response.Query != in.Query {
		return nil
	}
	return end
}

// finishAnswer sends the missing part of the answer and returns the fault of the outcome: a dead letter, for which
// nothing is sent, or the error of a response. nil means that the answer is complete. A caller that does not read a
// streamed reply may see the first message only, so that of a partial answer also says why it is incomplete.
func finishAnswer(text *answerStream, end *client.Outcome, streams bool) error {
	if end.Dead != nil {
		return explainDeadLetter(end.Dead)
	}
	answer, fault := end.Response.Answer, end.Response.Error
	if !streams && fault != nil && answer != "" {
		answer += "\n\n[incomplete: " + fault.Text + "]"
	}
	if err := text.finish(answer); err != nil {
		return err
	}
	if fault != nil {
		return fault
	}
	return nil
}

// toFault returns the fault of a problem for a caller on the bus.
func toFault(err error) error {
	var p *problem
	if errors.As(err, &p) {
		return p.Fault
	}
	return err
}

// answerStream forwards tokens so that they add up to the answer: in order, without leading and trailing space, and
// none after a lost token. Each step of the model starts a new line.
type answerStream struct {
	emit func(step, n int, text string) error

	begun   bool
	step    int
	last    int    // number of the last token
	said    string // text sent of this step
	held    string // space that may be trailing
	earlier bool   // an earlier step has text
	broken  bool   // a token of this step is lost
	n       int
}

// add sends the text of a live token without trailing space, which is held until more text follows. It ignores tokens
// of an earlier step, and after a gap in the numbers every further token of that step. [answerStream.finish] sends what
// is missing of the answer; lost tokens of interim texts stay lost.
func (t *answerStream) add(d subjects.Delta) error {
	if t.begun && d.Step < t.step {
		return nil
	}
	if !t.begun || d.Step > t.step {
		// Tokens are numbered per answer or per step: the first of a step follows the last, or has number 0.
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

// send emits text and records it as sent, on a new line when it is the first of its step and an earlier step has text.
// An empty text is not emitted.
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

// finish sends the part of the complete answer that the tokens of the last step did not. An answer that does not begin
// with their text is sent completely on a new line.
func (t *answerStream) finish(answer string) error {
	if t.said != "" {
		if rest, ok := strings.CutPrefix(strings.TrimLeftFunc(answer, unicode.IsSpace), t.said); ok {
			return t.send(rest)
		}
		t.newStep(t.step)
	}
	return t.send(answer)
}
