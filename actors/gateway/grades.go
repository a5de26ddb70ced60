package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"conclave/subjects"
)

// judgements is what others thought of the answer that the user sees, as far as it was heard.
type judgements struct {
	grade    *subjects.Critique
	pairwise *subjects.Pairwise
	reward   *subjects.Reward
}

// add takes an event in that judges the answer. Whose word it is stands in its stored subject; what is about respondent B's
// answer is no judgement of this one.
func (j *judgements) add(ev Event) {
	switch {
	case ev.Subject == subjects.CritiqueResult.Name && ev.From == criticAccount:
		var c subjects.Critique
		if json.Unmarshal(ev.Payload, &c) == nil && c.RespondentID == subjects.Generator {
			j.grade = &c
		}
	case ev.Subject == subjects.PairwiseResult.Name && ev.From == criticAccount:
		var p subjects.Pairwise
		if json.Unmarshal(ev.Payload, &p) == nil {
			j.pairwise = &p
		}
	case ev.Subject == subjects.RewardEvent.Name && ev.From == rewardAccount:
		var r subjects.Reward
		if json.Unmarshal(ev.Payload, &r) == nil && r.RespondentID == subjects.Generator && (j.reward == nil || r.Count >= j.reward.Count) {
			j.reward = &r
		}
	}
}

// gradeWait is how long a client waits for the grade after the answer.
type gradeWait struct {
	duration time.Duration
	explicit bool // by this client, and not by the configuration
}

// waitForGrade collects what comes after the answer: until its grade is there, or for the time of the window. A critic that is
// behind is not waited for: when a window of the configuration went by without the grade, no further answer waits until
// a grade is heard that came within the window after its answer. So one that is slow, stalled or not there costs one answer
// the window, and not every one. Who asks for a window gets it.
func (g *Gateway) waitForGrade(ctx context.Context, cur *cursor, query string, window gradeWait, rec *answerRecord) {
	if window.duration <= 0 || !window.explicit && g.criticLate.Load() {
		return
	}
	ctx, cancel := g.withTimeout(ctx, window.duration)
	defer cancel()
	for rec.grade == nil {
		ev, err := cur.wait(ctx)
		if err != nil {
			if !window.explicit && errors.Is(context.Cause(ctx), errTimeout) {
				g.criticLate.Store(true)
			}
			return
		}
		if ev.Query == query {
			rec.add(ev)
		}
	}
}

// answerTimes is how long ago the latest answers were given, to see how fast the critic is. One goroutine follows the events.
type answerTimes struct {
	given map[string]time.Time
	order []string
}

// maxAnswerTimes is how many answers are remembered: a critic that is so many behind is behind.
const maxAnswerTimes = 256

// trackCritic takes note of answers, and of a grade that came soon after its answer: the critic keeps up.
func (g *Gateway) trackCritic(ev Event) {
	switch {
	case ev.From == subjects.Generator && ev.Subject == subjects.ResponseGeneration.Name:
		g.answerTimes.add(ev.Query, ev.Time)
	case ev.From == criticAccount && ev.Subject == subjects.CritiqueResult.Name:
		if given, known := g.answerTimes.given[ev.Query]; known && ev.Time.Sub(given) <= g.cfg.GradeWait {
			g.criticLate.Store(false)
		}
	}
}

func (p *answerTimes) add(query string, at time.Time) {
	if p.given == nil {
		p.given = map[string]time.Time{}
	}
	if _, again := p.given[query]; !again {
		p.order = append(p.order, query)
	}
	p.given[query] = at
	if len(p.order) > maxAnswerTimes {
		delete(p.given, p.order[0])
		p.order = p.order[1:]
	}
}

// Bounds of the search for what was thought of an answer that was given before. A grade and a verdict come soon after
// their answer, so that few others stand between; people rate seldom.
const (
	maxJudgementReads = 1000
	judgementTimeout  = 2 * time.Second
)

// findJudgements searches what was thought of an answer, after its place in EVENTS. What is not found in time is left out.
func (g *Gateway) findJudgements(ctx context.Context, query string, after uint64, into *judgements) {
	ctx, cancel := g.withTimeout(ctx, judgementTimeout)
	defer cancel()
	search := func(stored string, found func() bool) {
		at := after
		for range maxJudgementReads {
			ev, err := g.events.readEvent(ctx, at+1, stored)
			if err != nil {
				return
			}
			if at = ev.Seq; ev.Query != query {
				continue
			}
			if into.add(ev); found() {
				return
			}
		}
	}
	search(subjects.CritiqueResult.StoredBy(criticAccount), func() bool { return into.grade != nil })
	search(subjects.PairwiseResult.StoredBy(criticAccount), func() bool { return into.pairwise != nil })
	search(subjects.RewardEvent.StoredBy(rewardAccount), func() bool { return false }) // the last one holds
}
