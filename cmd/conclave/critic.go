package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"conclave/subjects"
)

// Bounds of a look at what was thought of answers: events that are read, and the time for it.
const (
	mostJudged = 5000
	judgedTime = 30 * time.Second
	mostGrades = 1000 // in one list
)

// criticCommand shows what was thought of answers.
func (a *app) criticCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "critic",
		Short: "Show what was thought of answers",
		Long: `Shows the grades that the critic gave, its verdicts between the answers of two respondents, and what you said yourself. It
is read from the log of events, which keeps ninety days.`,
		Example: `  conclave critic show
  conclave critic show 3f9c01d2`,
		Args:                       noArgs,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SuggestionsMinimumDistance: 2,
	}
	cmd.AddCommand(a.criticShowCommand())
	return cmd
}

func (a *app) criticShowCommand() *cobra.Command {
	var last int
	cmd := &cobra.Command{
		Use:   "show [query]",
		Short: "List the latest grades, or show all that was thought of one question's answers",
		Long: `Without an argument it lists the latest grades, the newest first: time, grade or why there is none, what was looked for,
who answered, the verdict between two answers, the question's id and its first words. Answers that were only given for
comparison are listed too and marked as respondent B; nobody was shown them.

With the id of a question, or its beginning from eight letters on, it shows everything: both answers' grades and the critic's
words, what an answer says was done and no call did, the verdict with both judgements, which model judged, and what you
said.

With --json it is one array, or one document.`,
		Example: `  conclave critic show --last 30
  conclave critic show 3f9c01d2
  conclave critic show --json | jq '.[] | select(.critique.score < 3)'`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, v []string) error {
			switch {
			case last < 1 || last > mostGrades:
				return usage("--last %d: from 1 to %d", last, mostGrades)
			case len(v) > 0 && subjects.CheckToken(v[0]) != nil:
				return usage("%q cannot be a query: use letters, digits, _ and -", clip(v[0], 40))
			}
			nc, err := a.dial("user")
			if err != nil {
				return err
			}
			defer nc.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), judgedTime)
			defer cancel()
			if len(v) > 0 {
				return quietly(cmd.Context(), a.showJudged(ctx, nc, v[0]))
			}
			return quietly(cmd.Context(), a.listGrades(ctx, nc, last))
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().IntVar(&last, "last", 10, "how many grades to list")
	return cmd
}

// gradeRow is one grade in the list.
type gradeRow struct {
	Time     time.Time          `json:"time"`
	Question string             `json:"question"` // "" = it is no longer kept
	Critique subjects.Critique  `json:"critique"`
	Pairwise *subjects.Pairwise `json:"pairwise,omitempty"`
}

// listGrades lists the latest grades, the newest first.
func (a *app) listGrades(ctx context.Context, nc *nats.Conn, n int) error {
	rows := []gradeRow{}
	var oldest uint64
	err := back(ctx, nc, subjects.CritiqueResult.StoredBy(criticActor), 0, mostJudged, func(s said) bool {
		var c subjects.Critique
		if json.Unmarshal(s.Body, &c) == nil {
			rows, oldest = append(rows, gradeRow{Time: s.Time, Critique: c}), s.Seq
		}
		return len(rows) < n
	})
	if err != nil {
		return err
	}
	if len(rows) > 0 {
		if err := complete(ctx, nc, rows, oldest); err != nil {
			return err
		}
	}
	if a.json {
		return a.document(rows)
	}
	return a.printGrades(rows)
}

// complete adds the verdicts, which come after the grades, and the questions, which come before them.
func complete(ctx context.Context, nc *nats.Conn, rows []gradeRow, oldest uint64) error {
	open := map[string]bool{}
	for _, r := range rows {
		open[r.Critique.QueryID] = true
	}
	err := forth(ctx, nc, subjects.PairwiseResult.StoredBy(criticActor), oldest, mostJudged, func(s said) bool {
		var p subjects.Pairwise
		if json.Unmarshal(s.Body, &p) == nil && open[p.QueryID] {
			for i := range rows {
				if rows[i].Critique.QueryID == p.QueryID {
					rows[i].Pairwise = &p
				}
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	return back(ctx, nc, subjects.ResponseGeneration.Subscription(), 0, mostJudged, func(s said) bool {
		var r subjects.Response
		if json.Unmarshal(s.Body, &r) != nil || !open[r.QueryID] {
			return true
		}
		delete(open, r.QueryID)
		for i := range rows {
			if rows[i].Critique.QueryID == r.QueryID {
				rows[i].Question = r.Query
			}
		}
		return len(open) > 0
	})
}

// judgement is all that was thought of one question's answers.
type judgement struct {
	Session  string             `json:"session_id"`
	Query    string             `json:"query_id"`
	Question string             `json:"question"`
	Answers  []judgedAnswer     `json:"answers"`
	Pairwise *subjects.Pairwise `json:"pairwise,omitempty"`
}

// judgedAnswer is an answer and what was thought of it.
type judgedAnswer struct {
	Respondent  string             `json:"respondent_id"`
	RespondentB bool               `json:"unseen,omitempty"` // nobody was shown it
	Time        time.Time          `json:"time"`
	Model       string             `json:"model"`
	Answer      string             `json:"answer"`
	Critique    *subjects.Critique `json:"critique,omitempty"`
	Reward      *subjects.Reward   `json:"reward,omitempty"`
}

// showJudged shows all that was thought of one question's answers.
func (a *app) showJudged(ctx context.Context, nc *nats.Conn, id string) error {
	j, first, err := a.answersTo(ctx, nc, id)
	if err != nil {
		return err
	}
	if err := j.collect(ctx, nc, first); err != nil {
		return err
	}
	if a.json {
		return a.document(j)
	}
	return a.printJudged(j)
}

// answersTo finds the answers to a question, and the place of the first of them. The id may be the beginning of one.
func (a *app) answersTo(ctx context.Context, nc *nats.Conn, id string) (j judgement, first uint64, err error) {
	others := map[string]bool{}
	err = back(ctx, nc, subjects.ResponseGeneration.Subscription(), 0, mostJudged, func(s said) bool {
		var r subjects.Response
		if json.Unmarshal(s.Body, &r) != nil || r.QueryID != id && (len(id) < enough || !strings.HasPrefix(r.QueryID, id)) {
			return true
		}
		if j.Query != "" && j.Query != r.QueryID {
			others[r.QueryID] = true
			return true
		}
		j.Session, j.Query, j.Question, first = r.SessionID, r.QueryID, r.Query, s.Seq
		if !slices.ContainsFunc(j.Answers, func(o judgedAnswer) bool { return o.Respondent == s.From }) {
			j.Answers = append(j.Answers, judgedAnswer{Respondent: s.From, RespondentB: s.From == subjects.RespondentB, Time: s.Time, Model: r.Model, Answer: r.Answer})
		}
		// The other answer to a question that is named in full stands close by; who names a beginning may mean another one.
		return r.QueryID != id || len(j.Answers) < 2
	})
	switch {
	case err != nil:
		return j, 0, err
	case len(others) > 0 && j.Query != id:
		return j, 0, fail(exitFailed, "several questions begin with "+id, "give more of the id")
	case j.Query == "" && len(id) < enough:
		return j, 0, fail(exitFailed, fmt.Sprintf("there is no question %s, and %d letters are too few for a beginning", id, len(id)), fmt.Sprintf("give at least %d of the id", enough))
	case j.Query == "":
		return j, 0, fail(exitFailed, "there is no answer to the question "+id, a.program()+" critic show lists what was graded")
	}
	slices.SortStableFunc(j.Answers, func(x, y judgedAnswer) int { // what the user saw comes first
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

// collect adds what was thought of the answers, from the place of the first of them on.
func (j *judgement) collect(ctx context.Context, nc *nats.Conn, from uint64) error {
	of := func(respondent string) *judgedAnswer {
		for i := range j.Answers {
			if j.Answers[i].Respondent == respondent {
				return &j.Answers[i]
			}
		}
		return nil
	}
	err := forth(ctx, nc, subjects.CritiqueResult.StoredBy(criticActor), from, mostJudged, func(s said) bool {
		var c subjects.Critique
		if json.Unmarshal(s.Body, &c) == nil && c.QueryID == j.Query {
			if a := of(c.RespondentID); a != nil {
				a.Critique = &c
			}
		}
		return slices.ContainsFunc(j.Answers, func(a judgedAnswer) bool { return a.Critique == nil })
	})
	if err != nil {
		return err
	}
	err = forth(ctx, nc, subjects.PairwiseResult.StoredBy(criticActor), from, mostJudged, func(s said) bool {
		var p subjects.Pairwise
		if json.Unmarshal(s.Body, &p) == nil && p.QueryID == j.Query {
			j.Pairwise = &p
		}
		return j.Pairwise == nil
	})
	if err != nil {
		return err
	}
	return forth(ctx, nc, subjects.RewardEvent.StoredBy(rewardActor), from, mostJudged, func(s said) bool {
		var r subjects.Reward
		if json.Unmarshal(s.Body, &r) == nil && r.QueryID == j.Query {
			if a := of(r.RespondentID); a != nil && (a.Reward == nil || r.Count >= a.Reward.Count) {
				a.Reward = &r
			}
		}
		return true // the last one holds
	})
}
