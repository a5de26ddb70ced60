package critic

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/agent"
	"conclave/subjects"
)

// bucket holds the results of the critic from before they are published. Of two processes that judge the same answer
// only one can store its result; the other publishes that one. Each result has an unguessable id: published again, it
// is stored in the stream once.
const bucket = "judged"

// judgements are the grades of answers, by [gradeKey].
var judgements = actor.Bucket[judgement]{Name: bucket}

// gradeKey is the key of the grade of an account's answer.
func gradeKey(query, account string) string { return "grade." + query + "." + account }

// judgement is a stored grade. It implements [actor.Outbox].
type judgement struct {
	ID       string             `json:"id"`
	Session  string             `json:"session,omitempty"`
	Critique *subjects.Critique `json:"critique,omitempty"` // nil once it is published
	Said     bool               `json:"said,omitempty"`     // it is published
}

// Pending implements [actor.Outbox].
func (j *judgement) Pending() []actor.Event {
	if j.Said || j.Critique == nil {
		return nil
	}
	return []actor.Event{actor.NewEvent("critique", subjects.CritiqueResult, j.ID, *j.Critique)}
}

// MarkPublished implements [actor.Outbox].
func (j *judgement) MarkPublished() { *j = judgement{ID: j.ID, Session: j.Session, Said: true} }

// publishTimeout bounds publishing a critique that could not be stored.
const publishTimeout = 10 * time.Second

// gradeOnce grades an answer unless it has a grade, and publishes the grade unless it is published. An error means that
// a retry may help. At the last attempt a grade that cannot be stored is published all the same, perhaps twice.
func (c *Critic) gradeOnce(ctx context.Context, out actor.Out, a answer) error {
	key := a.key()
	stored, err := judgements.Load(ctx, out, key)
	if err != nil {
		return err
	}
	// A client chooses the query id, and may use it again in another session. Grades go by that id, also in memory: a
	// second one would be taken for the grade of the first answer.
	if s := stored.Value.Session; s != "" && a.SessionID != "" && s != a.SessionID {
		key, a.reused = key+"."+a.SessionID, true
		if stored, err = judgements.Load(ctx, out, key); err != nil {
			return err
		}
	}
	var critique *subjects.Critique
	_, err = judgements.UpdateFrom(ctx, out, "grade", key, stored, func(j *judgement, found bool) (bool, error) {
		if found {
			return false, nil
		}
		g, err := c.gradeAnswer(ctx, out, a)
		if err != nil {
			return false, err
		}
		critique = &g
		*j = judgement{ID: out.NewID(), Session: a.SessionID, Critique: &g}
		return true, nil
	})
	if critique == nil || !errors.Is(err, actor.ErrNotStored) || !a.isLastAttempt() {
		return err
	}
	out.LogError(err) // the bucket is full or not writable: the critique is published all the same, perhaps twice
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishTimeout)
	defer cancel()
	return actor.EmitOnce(ctx, out, subjects.CritiqueResult, out.NewID(), *critique)
}

// gradeAnswer has one answer judged. It returns an error only for a failure that a retry may overcome; after any other,
// and at the last attempt, the critique has no score, and Ungraded says why.
func (c *Critic) gradeAnswer(ctx context.Context, out actor.Out, a answer) (subjects.Critique, error) {
	agent.EmitState(out, subjects.AgentState{SessionID: a.SessionID, QueryID: a.QueryID, To: agent.StateGrading}, name)
	begun := out.Now()
	g := subjects.Critique{
		SessionID: a.SessionID, QueryID: a.QueryID, RespondentID: a.from, Persona: a.persona, Round: a.round,
		Rubric: selectRubric(a),
		Labels: &subjects.Labels{Trust: subjects.Untrusted, Privacy: subjects.Private}, // of an answer without labels
	}
	if a.Labels != nil {
		g.Labels = a.Labels.Join(nil)
	}
	if g.Ungraded = c.ungradedReason(a, begun); g.Ungraded != "" {
		return g, nil
	}
	v, err := judgeReply{}, errTooManyAttempts
	if a.attempt <= subjects.MaxDeliver {
		m := c.newGradeInput(a.Response, g.Rubric, cmp.Or(a.rubric, c.rubricText(g.Rubric)), out.NewID())
		m.complete = hasAllCalls(a)
		v, err = c.askJudge(ctx, out, m, scores)
	}
	if err != nil && isTransient(err) {
		if !a.isLastAttempt() {
			return g, err
		}
		out.LogError(newGiveUpError(err))
	}
	g.Model, g.Notice, g.SelfGraded = v.model, v.notice, isSameModel(v.model, a.Model)
	if err != nil {
		g.Ungraded = describeFailure(err, a.attempt)
	} else {
		g.Score, g.Feedback = int(v.result-'0'), v.feedback
	}
	g.Retry = a.persona == "" && g.Score >= 1 && g.Score <= c.cfg.RetryAt
	g.Millis = out.Now().Sub(begun).Milliseconds()
	return g, nil
}

// hasAllCalls reports whether the record of an answer has all its calls. Accounts that delegate make none themselves,
// a record that was too large may have lost them, and what the runtime recalled is no call of the model.
func hasAllCalls(a answer) bool {
	if a.from != subjects.Generator && a.from != subjects.RespondentB {
		return false
	}
	cut := slices.ContainsFunc(a.Notes, func(n subjects.Note) bool { return n.Code == subjects.NoteRecordCut })
	return !cut && len(a.Recalls) == 0 || len(a.ToolCalls) > 0
}
