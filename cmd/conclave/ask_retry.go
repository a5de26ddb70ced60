package main

import (
	"context"
	"errors"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// retryLine is what goes with a question that is asked again. A question that was asked again before has it at its end.
const retryLine = subjects.RetryInstruction

const (
	retryWords = 1000 // bytes of what was said of the answer that go with it
	goodGrade  = 4    // the critic's words about an answer of this grade are praise
)

// checkRetry refuses what cannot be meant.
func (q *ask) checkRetry(words []string) error {
	switch {
	case !q.retry:
		return nil
	case len(words) > 0:
		return usage("--retry asks the last question again: leave the words out, or --retry")
	}
	q.goOn = q.goOn || q.session == "" // the last session, as with rate
	return nil
}

// lastQuestion makes the question anew that was asked last in the session. The critic's words go with it where no stranger's
// words went into the answer: what is said about such an answer may repeat them.
func (q *ask) lastQuestion(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reading)
	defer cancel()
	c, err := conversation(ctx, q.out.Store(conversations), q.session)
	switch {
	case errors.Is(err, actor.ErrNotFound), err == nil && len(c.Turns) == 0:
		return fail(exitFailed, "there is no answer in the session "+q.session, "ask something first; "+q.program()+" session list shows what there is")
	case err != nil:
		return err
	}
	q.question = askAgain(c.Turns[len(c.Turns)-1])
	return nil
}

// askAgain is a turn's question for another try.
func askAgain(t subjects.Turn) string {
	question := subjects.UserText(t.Query) + "\n\n" + retryLine
	g := t.Grades
	if g == nil {
		return question
	}
	if g.Words != "" && g.Reward < 0 {
		question += " I said of it: " + clip(plain(g.Words), retryWords)
	}
	// Praise would contradict what was just said.
	if g.Feedback != "" && g.Critic < goodGrade && t.Labels != nil && t.Labels.Trust == subjects.Trusted {
		question += " A critic said of it: " + clip(plain(g.Feedback), retryWords)
	}
	return question
}
