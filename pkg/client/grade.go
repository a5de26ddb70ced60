package client

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"conclave/subjects"
)

// maxGradeEvents bounds the events read to collect grades.
const maxGradeEvents = 5000

// GradedAnswer is a grade in a list.
type GradedAnswer struct {
	Time     time.Time          `json:"time"`
	Question string             `json:"question"` // "" = no longer in the log
	Critique subjects.Critique  `json:"critique"`
	Pairwise *subjects.Pairwise `json:"pairwise,omitempty"`
}

// Grades returns the latest grades, at most n, newest first, with the comparisons and the questions. Both are left out
// where the log has none within [maxGradeEvents] events. The list is never nil without an error; n must be positive.
func (c *Client) Grades(ctx context.Context, n int) ([]GradedAnswer, error) {
	grades := []GradedAnswer{}
	var oldest uint64
	err := eachEvent(c.EventsBack(ctx, subjects.CritiqueResult.StoredBy(accountCritic)), func(e Event) bool {
		if g := ReadGrade(e); g != nil {
			grades, oldest = append(grades, GradedAnswer{Time: e.Time, Critique: *g}), e.Seq
		}
		return len(grades) < n
	})
	switch {
	case err != nil:
		return nil, err
	case len(grades) == 0:
		return grades, nil
	}
	return grades, c.completeGrades(ctx, grades, oldest)
}

// eachEvent calls f with the events, at most [maxGradeEvents], until it returns false. An error ends the events.
func eachEvent(events iter.Seq2[Event, error], f func(Event) bool) error {
	n := 0
	for e, err := range events {
		if err != nil {
			return err
		}
		if n++; !f(e) || n == maxGradeEvents {
			break
		}
	}
	return nil
}

// completeGrades adds to grades the comparisons, read forward from the sequence oldest, and the questions, read back
// from the end of the log. It reads at most [maxGradeEvents] events for each; what it does not find stays empty.
func (c *Client) completeGrades(ctx context.Context, grades []GradedAnswer, oldest uint64) error {
	byQuery := map[string][]*GradedAnswer{}
	for i := range grades {
		id := grades[i].Critique.QueryID
		byQuery[id] = append(byQuery[id], &grades[i])
	}
	err := eachEvent(c.EventsFrom(ctx, oldest, subjects.PairwiseResult.StoredBy(accountCritic)), func(e Event) bool {
		var p subjects.Pairwise
		if e.Decode(&p) {
			for _, g := range byQuery[p.QueryID] {
				g.Pairwise = &p
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	return eachEvent(c.EventsBack(ctx, subjects.ResponseGeneration.Subscription()), func(e Event) bool {
		var r subjects.Response
		if e.Decode(&r) {
			for _, g := range byQuery[r.QueryID] {
				g.Question = r.Query
			}
			delete(byQuery, r.QueryID)
		}
		return len(byQuery) > 0
	})
}

// Judgement is everything known about the answers to one question.
type Judgement struct {
	Session  string             `json:"session_id"`
	Query    string             `json:"query_id"`
	Question string             `json:"question"`
	Answers  []JudgedAnswer     `json:"answers"` // the assistant's first, respondent B's last
	Pairwise *subjects.Pairwise `json:"pairwise,omitempty"`
}

// JudgedAnswer is an answer with its grade and reward.
type JudgedAnswer struct {
	Respondent  string             `json:"respondent_id"`
	RespondentB bool               `json:"unseen,omitempty"` // given for comparison, not shown to the user
	Time        time.Time          `json:"time"`
	Model       string             `json:"model"`
	Answer      string             `json:"answer"`
	Critique    *subjects.Critique `json:"critique,omitempty"`
	Reward      *subjects.Reward   `json:"reward,omitempty"`
}

// FindQuery returns the complete id of the answered question with this id or a prefix of at least [IDPrefix]
// characters. [ErrNotFound] means that the log has no answer to it among the latest [maxGradeEvents]; several are an
// [*AmbiguousError].
func (c *Client) FindQuery(ctx context.Context, id string) (string, error) {
	j, _, err := c.answersTo(ctx, id)
	return j.Query, err
}

// Judge returns everything known about the answers to the question with this id or prefix, with the errors of
// [Client.FindQuery]. An answer without a grade, comparison or reward has nil there: there is none yet, or none within
// [maxGradeEvents] events after it.
func (c *Client) Judge(ctx context.Context, id string) (Judgement, error) {
	j, first, err := c.answersTo(ctx, id)
	if err != nil {
		return j, err
	}
	for _, read := range []struct {
		stored string
		add    func(Event)
	}{
		{subjects.CritiqueResult.StoredBy(accountCritic), j.addGrade},
		{subjects.PairwiseResult.StoredBy(accountCritic), j.addComparison},
		{subjects.RewardEvent.StoredBy(accountReward), j.addReward},
	} {
		if err := eachEvent(c.EventsFrom(ctx, first, read.stored), func(e Event) bool {
			read.add(e)
			return true
		}); err != nil {
			return j, err
		}
	}
	return j, nil
}

// answersTo finds the answers to a question by id or prefix, the assistant's before respondent B's, and the sequence of
// the earliest. It reads back at most [maxGradeEvents] answers, and keeps the latest answer of each respondent. A
// prefix shorter than [IDPrefix] fits nothing; none is [ErrNotFound], several questions are an [*AmbiguousError].
func (c *Client) answersTo(ctx context.Context, id string) (j Judgement, first uint64, err error) {
	others := map[string]bool{}
	err = eachEvent(c.EventsBack(ctx, subjects.ResponseGeneration.Subscription()), func(e Event) bool {
		var r subjects.Response
		if !e.Decode(&r) || r.QueryID != id && (len(id) < IDPrefix || !strings.HasPrefix(r.QueryID, id)) {
			return true
		}
		if j.Query != "" && j.Query != r.QueryID {
			others[r.QueryID] = true
			return true
		}
		j.Session, j.Query, j.Question, first = r.SessionID, r.QueryID, r.Query, e.Seq
		if j.answerOf(e.From) == nil {
			j.Answers = append(j.Answers, JudgedAnswer{
				Respondent: e.From, RespondentB: e.From == subjects.RespondentB,
				Time: e.Time, Model: r.Model, Answer: r.Answer,
			})
		}
		return r.QueryID != id || len(j.Answers) != 2 // a complete id, and both respondents: nothing else can fit
	})
	switch {
	case err != nil:
		return Judgement{}, 0, err
	case len(others) > 0 && j.Query != id:
		return Judgement{}, 0, &AmbiguousError{id, len(others) + 1}
	case j.Query == "":
		return j, 0, fmt.Errorf("answer to query %s: %w", id, ErrNotFound)
	}
	slices.SortStableFunc(j.Answers, func(x, y JudgedAnswer) int {
		switch {
		case x.RespondentB == y.RespondentB:
			return strings.Compare(x.Respondent, y.Respondent)
		case y.RespondentB:
			return -1
		}
		return 1
	})
	return j, first, nil
}

// answerOf returns the answer of a respondent for changing it in place, nil when there is none.
func (j *Judgement) answerOf(respondent string) *JudgedAnswer {
	for i := range j.Answers {
		if j.Answers[i].Respondent == respondent {
			return &j.Answers[i]
		}
	}
	return nil
}

// addGrade attaches a grade to the answer that it is about. The first grade of an answer holds. Events that are no
// grade, or about another question or respondent, are ignored.
func (j *Judgement) addGrade(e Event) {
	if g := ReadGrade(e); g != nil && g.QueryID == j.Query {
		if a := j.answerOf(g.RespondentID); a != nil && a.Critique == nil {
			a.Critique = g
		}
	}
}

// addComparison keeps the first comparison of the answers. The caller passes only events of the critic's account.
func (j *Judgement) addComparison(e Event) {
	var p subjects.Pairwise
	if j.Pairwise == nil && e.Decode(&p) && p.QueryID == j.Query {
		j.Pairwise = &p
	}
}

// addReward keeps the latest reward of an answer, that with the highest count: the last feedback holds. Events about
// another question or respondent are ignored. The caller passes only events of the reward actor's account.
func (j *Judgement) addReward(e Event) {
	var r subjects.Reward
	if e.Decode(&r) && r.QueryID == j.Query {
		if a := j.answerOf(r.RespondentID); a != nil && (a.Reward == nil || r.Count >= a.Reward.Count) {
			a.Reward = &r
		}
	}
}
