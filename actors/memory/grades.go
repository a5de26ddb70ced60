package memory

import (
	"context"
	"fmt"
	"math"
	"time"

	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/pkg/firewall"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Grades stand under the question and who answered it, not under the entry: one that comes before its answer was kept
// waits there.

// maxFeedback bounds what is kept of a critic's words.
const maxFeedback = 4 << 10

// onCritique takes down a grade.
func (m *Memory) onCritique(ctx context.Context, in actor.Msg[subjects.Critique], out actor.Out) error {
	c := in.Body
	if c.Score < 1 || c.Score > 5 {
		return nil // ungraded
	}
	words, _ := firewall.Redact(c.Feedback) // a critic may quote what was answered
	words = text.Clip(words, maxFeedback)
	return m.grade(ctx, out, in.From, in.Seq, in.StoredAt, store.Grade{Query: c.QueryID, Respondent: c.RespondentID, Critic: &c.Score, Feedback: &words},
		fmt.Sprintf("the critic gave %d of 5", c.Score))
}

// onPairwise takes down which of two answers was the better one.
func (m *Memory) onPairwise(ctx context.Context, in actor.Msg[subjects.Pairwise], out actor.Out) error {
	if in.Body.Winner == "" {
		return nil // undecided
	}
	winner := text.Clip(in.Body.Winner, subjects.MaxToken)
	return m.grade(ctx, out, in.From, in.Seq, in.StoredAt, store.Grade{Query: in.Body.QueryID, Pairwise: &winner}, "compared: "+winner)
}

// onReward takes down what the user thinks now. Rewards of one answer are counted: one that comes late changes nothing.
func (m *Memory) onReward(ctx context.Context, in actor.Msg[subjects.Reward], out actor.Out) error {
	value := min(max(in.Body.Value, -1), 1)
	if value != value { // no number
		value = 0
	}
	if in.Body.Count < 0 || in.Body.Count > math.MaxInt32 {
		return subjects.Faultf(subjects.CodeMalformed, "a reward that counts %d", in.Body.Count)
	}
	return m.grade(ctx, out, in.From, in.Seq, in.StoredAt, store.Grade{Query: in.Body.QueryID, Respondent: in.Body.RespondentID, Reward: &value, Count: in.Body.Count},
		fmt.Sprintf("a reward of %+.1f", value))
}

// grade writes a grade down and tells of it. Of what changes nothing there is nothing to tell: whoever graded may say it
// again later than the stream remembers ids.
func (m *Memory) grade(ctx context.Context, out actor.Out, from string, seq uint64, stored time.Time, g store.Grade, why string) error {
	if subjects.CheckToken(g.Query) != nil || g.Respondent != "" && subjects.CheckToken(g.Respondent) != nil {
		return subjects.Faultf(subjects.CodeMalformed, "a grade for no question")
	}
	g.Event = fmt.Sprintf("%d %d", seq, stored.UnixNano()) // a stream that is made anew counts from one again
	a := act{who: from, action: actGrade, params: []byte(g.Query + "\n" + g.Respondent + "\n" + g.Event), query: g.Query}
	return m.retryEvent(ctx, out, func() error {
		return m.recorded(ctx, out, a, func() error {
			of, err := m.unaudited.Grade(ctx, g)
			if err != nil {
				return fmt.Errorf("grading the answer to %s: %w", g.Query, err)
			}
			if of == nil {
				return nil
			}
			m.updateIndexGrades(ctx, of)
			ev := subjects.MemoryEvent{QueryID: g.Query, Action: "annotated", IDs: []string{}, Why: why, Of: g.Respondent, By: from}
			if len(of) == 0 {
				ev.Action, ev.Why = "waiting", why+"; its answer is not here yet"
			}
			for _, e := range of {
				ev.IDs = append(ev.IDs, e.ID)
			}
			id := m.hash.Hash([]byte("annotated " + g.Event))
			return actor.EmitOnce(ctx, out.WithIDs("", g.Query), subjects.MemoryAnnotated, id, ev)
		})
	})
}
