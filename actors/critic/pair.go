package critic

import (
	"context"
	"fmt"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/text"
	"conclave/subjects"
)

// pairAccounts are the accounts whose answers are compared, in the order of a verdict. The judge does not see them.
var pairAccounts = []string{subjects.Generator, subjects.RespondentB}

// pairs are the answers to a question that wait for their comparison, and the verdicts, by [pairKey].
var pairs = actor.Bucket[pair]{Name: bucket}

// pairKey is the key of the answers to a question.
func pairKey(query string) string { return "pair." + query }

// pair is the answers to one question, or their verdict. It implements [actor.Outbox].
type pair struct {
	Answers map[string]pairAnswer `json:"answers,omitempty"` // by account, until they are compared
	// the second came after the pair wait: they are not compared
	Late    bool               `json:"late,omitempty"`
	ID      string             `json:"id,omitempty"`
	Verdict *subjects.Pairwise `json:"verdict,omitempty"` // nil once it is published
	Said    bool               `json:"said,omitempty"`    // the verdict is published
}

// pairAnswer is one of two answers, cut to what a judge is shown.
type pairAnswer struct {
	Session   string    `json:"session,omitempty"`
	Question  string    `json:"question"`
	Reference string    `json:"reference,omitempty"`
	Answer    string    `json:"answer"`
	Model     string    `json:"model,omitempty"`
	Rubric    string    `json:"rubric"`
	Stored    time.Time `json:"stored"`
}

// Pending implements [actor.Outbox].
func (p *pair) Pending() []actor.Event {
	if p.Said || p.Verdict == nil {
		return nil
	}
	return []actor.Event{actor.NewEvent("pairwise", subjects.PairwiseResult, p.ID, *p.Verdict)}
}

// MarkPublished implements [actor.Outbox].
func (p *pair) MarkPublished() { *p = pair{ID: p.ID, Said: true} }

// isOpen reports whether the pair still waits for an answer or for its verdict in this session. Answers of two sessions
// under one query id are not compared.
func (p *pair) isOpen(session string) bool {
	for _, other := range p.Answers {
		if other.Session != session {
			return false
		}
	}
	return !p.Said && !p.Late && p.Verdict == nil
}

// comparePair stores an answer for its comparison, and has the two compared when both are stored. It does nothing for
// answers of other accounts than the generator and respondent B, with a PairWait of 0, and for answers that are not
// graded. An error means that a retry may help.
func (c *Critic) comparePair(ctx context.Context, out actor.Out, a answer) error {
	if a.from != subjects.Generator && a.from != subjects.RespondentB || c.cfg.PairWait == 0 ||
		c.ungradedReason(a, out.Now()) != "" {
		return nil
	}
	key := pairKey(a.QueryID)
	stored, err := pairs.Update(ctx, out, "half", key, func(p *pair, _ bool) (bool, error) {
		if _, found := p.Answers[a.from]; found || !p.isOpen(a.SessionID) {
			return false, nil
		}
		c.addToPair(p, a)
		return true, nil
	})
	if err != nil {
		return err
	}
	_, err = pairs.UpdateFrom(ctx, out, "verdict", key, stored, func(p *pair, _ bool) (bool, error) {
		if !p.isOpen(a.SessionID) || len(p.Answers) < len(pairAccounts) {
			return false, nil
		}
		w, err := c.decidePair(ctx, out, a, *p)
		if err != nil {
			return false, err
		}
		*p = pair{ID: out.NewID(), Verdict: &w}
		return true, nil
	})
	return err
}

// addToPair adds an answer to a pair, redacted and cut. When the answers are further apart than PairWait it closes the
// pair instead: it is never compared.
func (c *Critic) addToPair(p *pair, a answer) {
	if p.Answers == nil {
		p.Answers = map[string]pairAnswer{}
	}
	for _, other := range p.Answers {
		if a.stored.Sub(other.Stored).Abs() > c.cfg.PairWait {
			*p = pair{Late: true}
			return
		}
	}
	p.Answers[a.from] = pairAnswer{
		Session: a.SessionID, Question: text.Clip(redact(a.Query), maxQuestion),
		Reference: text.Clip(redact(a.Reference), maxReference), Answer: text.Clip(redact(a.Answer), maxAnswer),
		Model: a.Model, Rubric: selectRubric(a), Stored: a.stored,
	}
}

// decidePair has the two answers of p compared; both must be stored. Like [Critic.gradeAnswer] it returns an error only
// for a failure that a retry may overcome; after any other there is no winner, and Undecided says why. A judgement that
// changes with the order is a tie.
func (c *Critic) decidePair(ctx context.Context, out actor.Out, a answer, p pair) (subjects.Pairwise, error) {
	w := subjects.Pairwise{SessionID: a.SessionID, QueryID: a.QueryID, Between: pairAccounts}
	first, second := p.Answers[pairAccounts[0]], p.Answers[pairAccounts[1]]
	rubric := subjects.RubricPlain
	if first.Rubric == second.Rubric {
		rubric = first.Rubric
	}
	r, err := comparison{}, errTooManyAttempts
	if a.attempt <= subjects.MaxDeliver {
		r, err = c.compareAnswers(ctx, out, c.rubricText(rubric), first.Question, first.Reference, first.Answer,
			second.Answer)
	}
	if err != nil && isTransient(err) {
		if !a.isLastAttempt() {
			return w, err
		}
		out.LogError(newGiveUpError(err))
	}
	w.Model, w.Notice = r.model, r.notice
	w.SelfGraded = isSameModel(r.model, first.Model) || isSameModel(r.model, second.Model)
	for _, better := range r.better {
		w.Verdicts = append(w.Verdicts, pairAccounts[better])
	}
	switch {
	case err != nil:
		w.Undecided = describeFailure(err, a.attempt)
	case r.isTie():
		w.Winner, w.Reason = subjects.Tie, "the judgement changed with the order of the answers"
	default:
		w.Winner = pairAccounts[r.better[0]]
		w.Reason = fmt.Sprintf("Response A is the answer of %s, Response B that of %s. %s", pairAccounts[0],
			pairAccounts[1], r.feedback)
	}
	return w, nil
}

// comparison is the result of judging two answers in both orders.
type comparison struct {
	better        []int  // index of the better answer in each judgement
	feedback      string // of the first judgement: in it Response A is the first answer
	model, notice string
}

// isTie reports whether the judgement depends on the order of the answers.
func (r comparison) isTie() bool { return len(r.better) == 2 && r.better[0] != r.better[1] }

// compareAnswers has two answers judged in both orders, first as Response A and then as Response B. reference may be
// "". After an error it returns the judgements up to then. The feedback is that of the first order.
func (c *Critic) compareAnswers(ctx context.Context, out actor.Out, rubric, question, reference, first,
	second string,
) (r comparison, err error) {
	m := judgeInput{
		question: sanitize(question, maxQuestion), reference: sanitize(reference, maxReference),
		rubric: rubric,
	}
	answers := []string{sanitize(first, maxAnswer), sanitize(second, maxAnswer)}
	for order := range 2 {
		m.answers = []string{answers[order], answers[1-order]}
		v, err := c.askJudge(ctx, out, m, letters)
		if err != nil {
			return r, err
		}
		if order == 0 {
			r.feedback = v.feedback
		}
		r.model, r.notice = v.model, v.notice
		r.better = append(r.better, order^int(v.result-'A'))
	}
	return r, nil
}
