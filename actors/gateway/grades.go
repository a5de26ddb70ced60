package gateway

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"conclave/pkg/client"
	"conclave/subjects"
)

// judgements are the grade, comparison and reward of the answer that the user sees.
type judgements struct {
	respondent string // the account that answered

	grade    *subjects.Critique
	pairwise *subjects.Pairwise
	reward   *subjects.Reward
}

// add records the grade, comparison or reward of an event; other events are ignored. Only the accounts of critic and
// reward count, and no grade or reward of another account's answer. A reward with a lower count than the recorded one
// is ignored.
func (j *judgements) add(ev client.Event) {
	if c := client.ReadGrade(ev); c != nil && c.RespondentID == j.respondent {
		j.grade = c
	}
	if p, _, ok := client.DecodeAs(ev, subjects.PairwiseResult); ok && ev.From == criticAccount {
		j.pairwise = &p
	}
	if r, _, ok := client.DecodeAs(ev, subjects.RewardEvent); ok && ev.From == rewardAccount &&
		r.RespondentID == j.respondent && (j.reward == nil || r.Count >= j.reward.Count) {
		j.reward = &r
	}
}

// gradeWait is how long a client waits for the grade after the answer.
type gradeWait struct {
	duration time.Duration
	explicit bool // requested by the client, not configured
}

// waitForGrade adds events after the answer to rec until its grade arrives or the grade wait is over; with a wait of 0
// it returns at once. After a configured grade wait without a grade, further answers do not wait until some grade
// arrives in time again. So a critic that is slow, stalled or absent delays one answer and not every one. A grade wait
// that the client requests (explicit) is always kept.
func (g *Gateway) waitForGrade(ctx context.Context, cur *client.Cursor, query string, window gradeWait,
	rec *answerRecord,
) {
	if window.duration <= 0 || !window.explicit && g.criticLate.Load() {
		return
	}
	ctx, cancel := g.withTimeout(ctx, window.duration)
	defer cancel()
	for rec.grade == nil {
		ev, err := cur.Wait(ctx)
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

// maxAnswerTimes is the number of answers that are remembered.
const maxAnswerTimes = 256

// trackCritic records the times of answers, and marks the critic as on time when a grade arrives within the configured
// grade wait after its answer. Only the reader of the event feed may call it: answerTimes has no lock.
func (g *Gateway) trackCritic(ev client.Event) {
	switch {
	case slices.Contains(subjects.VisibleRespondents, ev.From) && ev.Subject == subjects.ResponseGeneration.Name:
		g.answerTimes.put(ev.Query, ev.Time, maxAnswerTimes)
	case ev.From == criticAccount && ev.Subject == subjects.CritiqueResult.Name:
		if given, known := g.answerTimes.values[ev.Query]; known && ev.Time.Sub(given) <= g.cfg.GradeWait {
			g.criticLate.Store(false)
		}
	}
}

// Bounds of the search for judgements of an earlier answer. Grade and comparison follow soon after the answer, and a
// reward after its feedback.
const (
	maxJudgementReads = 100
	judgementTimeout  = 2 * time.Second
)

// findJudgements searches the event log behind the sequence after, which is that of the answer, for the judgements of
// query. It reads at most maxJudgementReads events of each kind within judgementTimeout, and then, until ctx ends, more
// for the grade of an answer that the conversation knows to be graded: a critic that was away grades it behind many
// others. What it does not find stays nil, without error.
func (g *Gateway) findJudgements(ctx context.Context, session, query string, after uint64, into *judgements) {
	soon, cancel := g.withTimeout(ctx, judgementTimeout)
	defer cancel()
	critiques := subjects.CritiqueResult.StoredBy(criticAccount)
	graded := func() bool { return into.grade != nil }
	ungraded := g.searchJudgement(soon, query, after, critiques, maxJudgementReads, into, graded)
	g.searchJudgement(soon, query, after, subjects.PairwiseResult.StoredBy(criticAccount), maxJudgementReads, into,
		func() bool { return into.pairwise != nil })
	at, indexed, err := g.client.AnswerPlace(soon, query)
	if err == nil && (at.Count > 0 || !indexed) {
		g.searchJudgement(soon, query, max(after, at.Rated.Seq), subjects.RewardEvent.StoredBy(rewardAccount),
			maxJudgementReads, into, func() bool {
				return indexed && into.reward != nil && into.reward.Count >= at.Count
			})
	}
	if !graded() && g.isGraded(ctx, session, query) {
		g.searchJudgement(ctx, query, ungraded, critiques, math.MaxInt, into, graded)
	}
}

// searchJudgement adds the events of query among at most most events of a stored subject behind the sequence after,
// until found reports true, there are no more, or a read fails. It returns the sequence of the last event that it read,
// or after.
func (g *Gateway) searchJudgement(ctx context.Context, query string, after uint64, stored string, most int,
	into *judgements, found func() bool,
) (last uint64) {
	last = after
	reads := 0
	for ev, err := range g.client.EventsFrom(ctx, after+1, stored) {
		if reads++; err != nil || reads > most {
			break
		}
		last = ev.Seq
		if ev.Query != query {
			continue
		}
		if into.add(ev); found() {
			break
		}
	}
	return last
}

// isGraded reports whether the conversation of a session has the critic's grade of an answer.
func (g *Gateway) isGraded(ctx context.Context, session, query string) bool {
	conv, err := g.client.Session(ctx, session)
	return err == nil && slices.ContainsFunc(conv.Turns, func(t subjects.Turn) bool {
		return t.QueryID == query && t.Grades != nil && t.Grades.Critic > 0
	})
}
