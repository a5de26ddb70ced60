package critic

import (
	"context"
	"errors"
	"fmt"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/text"
	"conclave/subjects"
)

// between are those whose answers are compared, in the order in which they stand in a verdict. The judge is never told.
var between = []string{subjects.Generator, subjects.RespondentB}

// pair is where two answers to one question meet.
type pair struct {
	Answers map[string]half    `json:"answers,omitempty"` // by account, until they are compared
	Late    bool               `json:"late,omitempty"`    // the second came too late: they are not compared
	ID      string             `json:"id,omitempty"`
	Verdict *subjects.Pairwise `json:"verdict,omitempty"` // until it was said
	Said    bool               `json:"said,omitempty"`
}

// half is one of two answers: as much of it as a judge is shown.
type half struct {
	Session   string    `json:"session,omitempty"`
	Question  string    `json:"question"`
	Reference string    `json:"reference,omitempty"`
	Answer    string    `json:"answer"`
	Rubric    string    `json:"rubric"`
	Stored    time.Time `json:"stored"`
}

// over reports whether nothing is left to do.
func (p pair) over() bool { return p.Said || p.Late }

// both reports whether there are two answers.
func (p pair) both() bool { return len(p.Answers) == len(between) }

// collisions bounds how often a record is read again because another wrote it meanwhile. Two answers meet there.
const collisions = 8

// paired writes an answer down for its comparison. Whoever finds both compares them.
func (c *Critic) paired(ctx context.Context, out actor.Out, h heard) error {
	if h.from != subjects.Generator && h.from != subjects.RespondentB || c.cfg.PairWait == 0 || c.unfitFor(h, out.Now()) != "" {
		return nil
	}
	for range collisions {
		done, err := c.pairOnce(ctx, out, h)
		if done || err != nil && !errors.Is(err, actor.ErrChanged) {
			return err
		}
	}
	return fmt.Errorf("%w, again and again", actor.ErrChanged)
}

// pairOnce goes from where the record stands to the end, or until another writes it.
func (c *Critic) pairOnce(ctx context.Context, out actor.Out, h heard) (done bool, err error) {
	key := pairKey(h.QueryID)
	var p pair
	rev, err := c.read(ctx, out, key, &p)
	if err != nil || p.over() {
		return err == nil, err
	}
	for _, other := range p.Answers {
		if other.Session != h.SessionID {
			return true, nil // two questions that go by the same id
		}
	}
	if _, there := p.Answers[h.from]; p.Verdict == nil && !there {
		c.join(&p, h)
		if rev, err = c.write(ctx, out, "half", key, p, rev); err != nil {
			return false, err
		}
	}
	if p.Verdict == nil {
		if p.over() || !p.both() {
			return true, nil
		}
		w, err := c.verdict(ctx, out, h, p)
		if err != nil {
			return false, err
		}
		p = pair{ID: out.NewID(), Verdict: &w}
		if rev, err = c.write(ctx, out, "verdict", key, p, rev); err != nil {
			return false, err
		}
	}
	if err := say(ctx, c, out, "pairwise", subjects.PairwiseResult, p.ID, *p.Verdict); err != nil {
		return false, err
	}
	_, err = c.write(ctx, out, "compared", key, pair{ID: p.ID, Said: true}, rev)
	return err == nil, err
}

// join adds an answer to a pair. One that comes too late ends it.
func (c *Critic) join(p *pair, h heard) {
	if p.Answers == nil {
		p.Answers = map[string]half{}
	}
	for _, other := range p.Answers {
		if h.stored.Sub(other.Stored).Abs() > c.cfg.PairWait {
			*p = pair{Late: true}
			return
		}
	}
	p.Answers[h.from] = half{
		Session: h.SessionID, Question: text.Clip(scrub(h.Query), maxQuestion), Reference: text.Clip(scrub(h.Reference), maxReference), Answer: text.Clip(scrub(h.Answer), maxAnswer),
		Rubric: rubricFor(h.from, h.Response), Stored: h.stored,
	}
}

// verdict compares two answers. As with a grade, the error is for what may be over when it is tried again.
func (c *Critic) verdict(ctx context.Context, out actor.Out, h heard, p pair) (subjects.Pairwise, error) {
	w := subjects.Pairwise{SessionID: h.SessionID, QueryID: h.QueryID, Between: between}
	first, second := p.Answers[between[0]], p.Answers[between[1]]
	rubric := subjects.RubricPlain
	if first.Rubric == second.Rubric {
		rubric = first.Rubric
	}
	r, err := ruling{}, errGiven
	if h.try <= subjects.MaxDeliver {
		r, err = c.compare(ctx, out, c.rubric(rubric), first.Question, first.Reference, first.Answer, second.Answer)
	}
	if err != nil && passing(err) {
		if !h.last() {
			return w, err
		}
		out.LogError(givingUp(err))
	}
	w.Model, w.Notice = r.by, r.notice
	for _, better := range r.better {
		w.Verdicts = append(w.Verdicts, between[better])
	}
	switch {
	case err != nil:
		w.Undecided = excuse(err, h.try)
	case r.even():
		w.Winner, w.Reason = subjects.Tie, "the judgement changed with the order of the answers"
	default:
		w.Winner = between[r.better[0]]
		w.Reason = fmt.Sprintf("Response A is the answer of %s, Response B that of %s. %s", between[0], between[1], r.words)
	}
	return w, nil
}

// ruling is what came of judging two answers in both orders.
type ruling struct {
	better     []int // which of the two each judgement named
	words      string
	by, notice string
}

// even reports whether the order decided, and not the answers.
func (r ruling) even() bool { return len(r.better) == 2 && r.better[0] != r.better[1] }

// compare has two answers judged as they stand and swapped. With an error it returns the judgements that there are.
func (c *Critic) compare(ctx context.Context, out actor.Out, rubric, question, reference, first, second string) (r ruling, err error) {
	m := material{question: clean(question, maxQuestion), reference: clean(reference, maxReference), rubric: rubric}
	answers := []string{clean(first, maxAnswer), clean(second, maxAnswer)}
	for order := range 2 {
		m.answers = []string{answers[order], answers[1-order]}
		v, err := c.judge(ctx, out, m, letters)
		if err != nil {
			return r, err
		}
		if order == 0 {
			r.words = v.words // in them A is the first
		}
		r.by, r.notice = v.by, v.notice
		r.better = append(r.better, order^int(v.result-'A'))
	}
	return r, nil
}
