package view

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"conclave/cmd/conclave/internal/term"
	"conclave/pkg/client"
	"conclave/subjects"
)

// GradeLine is a grade with its feedback in one sanitized line. A score of 0 is ungraded, with the reason.
func GradeLine(c subjects.Critique) string {
	if c.Score == 0 {
		return "ungraded: " + cmp.Or(term.OneLine(c.Ungraded), "no reason given")
	}
	graded := "graded"
	if c.SelfGraded {
		graded = subjects.GradedByItself + ","
	}
	return strings.TrimSuffix(fmt.Sprintf("%s %d of 5: %s", graded, c.Score, term.OneLine(c.Feedback)), ": ")
}

// retryHint is the command that asks again, "" unless the critic recommends it. program begins the command.
func retryHint(c subjects.Critique, program string) string {
	if !c.Retry {
		return ""
	}
	return "try again: " + program + " ask --retry"
}

// respondentName is the name of a respondent for display, "-" for none. Respondent B, whose answers are not shown to
// the user, is marked.
func respondentName(respondent string) string {
	if respondent == subjects.RespondentB {
		return respondent + " (not shown)"
	}
	return term.Plain(cmp.Or(respondent, "-"))
}

// verdictFor is the result of a comparison for one of the two respondents: won, lost, tie, undecided, or "-" without a
// comparison.
func verdictFor(p *subjects.Pairwise, respondent string) string {
	switch {
	case p == nil:
		return "-"
	case p.Winner == "":
		return "undecided"
	case p.Winner == subjects.Tie:
		return subjects.Tie
	case p.Winner == respondent:
		return "won"
	}
	return "lost"
}

// Grades prints a list of grades as a table, in the order given. A question that the log no longer has is shown as
// such.
func Grades(w io.Writer, grades []client.GradedAnswer) {
	rows := [][]string{{"TIME", "GRADE", "RUBRIC", "RESPONDENT", "VERDICT", "QUERY", "QUESTION"}}
	for _, g := range grades {
		c := g.Critique
		score := fmt.Sprintf("%d/5", c.Score)
		if c.SelfGraded {
			score += " " + subjects.GradedByItself
		}
		if c.Score == 0 {
			score = "ungraded: " + term.Clip(cmp.Or(term.Plain(c.Ungraded), "no reason given"), 48)
		}
		rows = append(rows, []string{
			term.Stamp(g.Time), score, term.Plain(cmp.Or(c.Rubric, "-")), respondentName(c.RespondentID),
			verdictFor(g.Pairwise, c.RespondentID),
			term.Plain(term.ShortID(c.QueryID)), term.Plain(term.Clip(cmp.Or(g.Question, "(no longer kept)"),
				nameRoom(w))),
		})
	}
	term.Table(w, rows, term.Layout{Drop: []string{"RUBRIC", "VERDICT", "RESPONDENT", "TIME"}})
}

// fields prints lines of a dim name and a sanitized value.
type fields struct{ w io.Writer }

func (f fields) line(name, format string, v ...any) {
	fmt.Fprintf(f.w, "%s %s\n", term.Paint(f.w, term.Dim, fmt.Sprintf("%-9s", name)),
		term.Plain(fmt.Sprintf(format, v...)))
}

// Judgement prints everything about the answers to one question: each with its grade and reward, as far as there are
// any, then the comparison.
func Judgement(w io.Writer, j client.Judgement) {
	f := fields{w}
	f.line("query", "%s", j.Query)
	f.line("session", "%s", cmp.Or(j.Session, "-"))
	message(w, "user", "", j.Question)
	for _, a := range j.Answers {
		about := strings.TrimSpace(term.Stamp(a.Time) + " " + a.Model)
		if a.RespondentB {
			about += ", for comparison, not shown to the user"
		}
		message(w, a.Respondent, about, a.Answer)
		f.critique(a.Critique, !a.RespondentB)
		if r := a.Reward; r != nil {
			source := ""
			if r.Source == subjects.RewardConversation {
				source = " (detected in the conversation)"
			}
			f.line("you", "%s", strings.TrimSuffix(fmt.Sprintf("%+.1f%s: %s", r.Value, source, term.OneLine(r.Words)),
				": "))
		}
	}
	f.comparison(j.Pairwise)
}

// critique prints a grade, or that there is none yet for nil. A recommended retry is mentioned only when the user has
// seen the answer.
func (f fields) critique(c *subjects.Critique, seen bool) {
	if c == nil {
		f.line("grade", "none yet")
		return
	}
	if c.Score == 0 {
		f.line("grade", "ungraded: %s", cmp.Or(term.OneLine(c.Ungraded), "no reason given"))
	} else {
		f.line("grade", "%d of 5, rubric %s", c.Score, cmp.Or(c.Rubric, "-"))
	}
	if c.Feedback != "" {
		f.line("feedback", "%s", term.OneLine(c.Feedback))
	}
	if c.Retry && seen {
		f.line("retry", "recommended")
	}
	f.judge(c.Model, c.Notice, c.SelfGraded)
}

// judge prints which model judged, whether it judged its own answer, and a notice about it, such as that it replaces
// another. Empty values print nothing.
func (f fields) judge(model, notice string, self bool) {
	if self {
		model += ", " + subjects.GradedByItself
	}
	if model != "" {
		f.line("judge", "%s", model)
	}
	if notice != "" {
		f.line("notice", "%s", term.OneLine(notice))
	}
}

// comparison prints a pairwise verdict with the judgements in both orders; nil prints nothing. An empty winner is
// undecided, with the reason.
func (f fields) comparison(p *subjects.Pairwise) {
	if p == nil {
		return
	}
	switch p.Winner {
	case "":
		f.line("verdict", "undecided: %s", cmp.Or(term.OneLine(p.Undecided), "no reason given"))
	case subjects.Tie:
		f.line("verdict", "a tie between %s", strings.Join(p.Between, " and "))
	default:
		f.line("verdict", "%s is better", respondentName(p.Winner))
	}
	for i, v := range p.Verdicts {
		order := strings.Join(p.Between, ", then ")
		if i == 1 && len(p.Between) == 2 {
			order = p.Between[1] + ", then " + p.Between[0]
		}
		f.line("", "read %s: %s", order, cmp.Or(v, "undecided"))
	}
	if p.Reason != "" {
		f.line("reason", "%s", term.OneLine(p.Reason))
	}
	f.judge(p.Model, p.Notice, p.SelfGraded)
}

// Reward is a reward with a sign, "0" for none.
func Reward(v float64) string {
	if v == 0 {
		return "0"
	}
	return fmt.Sprintf("%+.1f", v)
}
