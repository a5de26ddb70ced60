package memory

import (
	"context"
	"fmt"
	"math"

	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/pkg/firewall"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Grades are stored under query and respondent, not under the entry: a grade may arrive before its answer.

// maxFeedback bounds the feedback of a critic that is stored, in bytes.
const maxFeedback = 4 << 10

// onCritique stores the score of a critic, with its feedback without credentials and cut to maxFeedback, which says
// when the model of the answer graded itself. A score outside 1 to 5 means ungraded and is ignored, and so is the grade
// of a persona's contribution: memory stores answers.
func (m *Memory) onCritique(ctx context.Context, in actor.Msg[subjects.Critique], out actor.Out) error {
	c := in.Body
	if c.Score < 1 || c.Score > 5 || c.Persona != "" {
		return nil
	}
	feedback, _ := firewall.Redact(c.Feedback)
	if c.SelfGraded {
		feedback = subjects.GradedByItself + ": " + feedback
	}
	feedback = text.Clip(feedback, maxFeedback)
	g := store.Grade{Query: c.QueryID, Respondent: c.RespondentID, Critic: &c.Score, Feedback: &feedback}
	return storeGrade(ctx, m, in, out, g, fmt.Sprintf("the critic gave %d of 5", c.Score))
}

// onPairwise stores which of two answers was better. A comparison without a winner is ignored.
func (m *Memory) onPairwise(ctx context.Context, in actor.Msg[subjects.Pairwise], out actor.Out) error {
	if in.Body.Winner == "" {
		return nil
	}
	winner := text.Clip(in.Body.Winner, subjects.MaxToken)
	return storeGrade(ctx, m, in, out, store.Grade{Query: in.Body.QueryID, Pairwise: &winner}, "compared: "+winner)
}

// onReward stores the latest reward of an answer: the highest count wins, whatever the order of arrival; 0 means the
// latest. The value is clamped to -1..1, NaN is 0. A count that is negative or beyond 32 bits is rejected.
func (m *Memory) onReward(ctx context.Context, in actor.Msg[subjects.Reward], out actor.Out) error {
	value := min(max(in.Body.Value, -1), 1)
	if math.IsNaN(value) {
		value = 0
	}
	if in.Body.Count < 0 || in.Body.Count > math.MaxInt32 {
		return subjects.Faultf(subjects.CodeMalformed, "invalid reward count %d", in.Body.Count)
	}
	g := store.Grade{Query: in.Body.QueryID, Respondent: in.Body.RespondentID, Reward: &value, Count: in.Body.Count}
	return storeGrade(ctx, m, in, out, g, fmt.Sprintf("a reward of %+.1f", value))
}

// storeGrade stores a grade once per event and publishes it with the reason why; while the answer is not stored yet the
// event says "waiting". A grade without a valid query, or with an invalid respondent, is rejected; failures that may
// pass are retried. A grade that changes nothing is not published: a sender may repeat it later than the stream
// deduplicates.
func storeGrade[T any](ctx context.Context, m *Memory, in actor.Msg[T], out actor.Out, g store.Grade,
	why string,
) error {
	if subjects.CheckToken(g.Query) != nil || g.Respondent != "" && subjects.CheckToken(g.Respondent) != nil {
		return subjects.Faultf(subjects.CodeMalformed, "a grade without a valid query or respondent")
	}
	g.Event = fmt.Sprintf("%d %d", in.Seq, in.StoredAt.UnixNano()) // a recreated stream starts at sequence 1 again
	a := act{
		caller: in.From, action: subjects.ActionMemoryAnnotate,
		params: []byte(g.Query + "\n" + g.Respondent + "\n" + g.Event), query: g.Query,
	}
	return m.retryEvent(ctx, out, func() error {
		_, err := audited(ctx, m, out, a, func(ctx context.Context, db *access) (none struct{}, err error) {
			graded, err := db.Grade(ctx, g)
			if err != nil {
				return none, fmt.Errorf("grading the answer to %s: %w", g.Query, err)
			}
			if graded == nil {
				return none, nil
			}
			m.updateIndexGrades(graded)
			ev := subjects.MemoryEvent{
				QueryID: g.Query, Action: "annotated", IDs: []string{}, Why: why,
				Of: g.Respondent, By: in.From,
			}
			if len(graded) == 0 {
				ev.Action, ev.Why = "waiting", why+"; its answer is not here yet"
			}
			for _, e := range graded {
				ev.IDs = append(ev.IDs, e.ID)
			}
			id := m.hash.Hash([]byte("annotated " + g.Event))
			return none, actor.EmitOnce(ctx, out.WithIDs("", g.Query), subjects.MemoryAnnotated, id, ev)
		})
		return err
	})
}
