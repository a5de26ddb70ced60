package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"conclave/subjects"
)

// named is a respondent for people: whoever was not shown to anybody is called so.
func named(respondent string) string {
	if respondent == subjects.RespondentB {
		return respondent + " (not shown)"
	}
	return plain(or(respondent, "-"))
}

// outOf is a score for a column.
func outOf(c subjects.Critique) string {
	if c.Score == 0 {
		return "ungraded: " + clip(or(plain(c.Ungraded), "not said why"), 48)
	}
	return fmt.Sprintf("%d/5", c.Score)
}

// verdict is what a comparison says of one of the two.
func verdict(p *subjects.Pairwise, respondent string) string {
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

// printGrades prints the list.
func (a *app) printGrades(rows []gradeRow) error {
	if len(rows) == 0 {
		a.say("no grades yet: the critic grades each answer after it was given; %s doctor says whether it is there", a.program())
		return nil
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TIME\tGRADE\tRUBRIC\tRESPONDENT\tVERDICT\tQUERY\tQUESTION")
	columns, _, ok := terminal(a.stdout)
	room := 60
	if ok {
		room = max(20, columns-80)
	}
	for _, r := range rows {
		c := r.Critique
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", stamp(r.Time), outOf(c), plain(or(c.Rubric, "-")), named(c.RespondentID),
			verdict(r.Pairwise, c.RespondentID), plain(short(c.QueryID)), plain(clip(or(r.Question, "(no longer kept)"), room)))
	}
	return w.Flush()
}

// printJudged prints everything about one question.
func (a *app) printJudged(j judgement) error {
	line := func(name, format string, v ...any) {
		fmt.Fprintf(a.stdout, "%s %s\n", a.paint(a.stdout, dim, fmt.Sprintf("%-9s", name)), plain(fmt.Sprintf(format, v...)))
	}
	line("query", "%s", j.Query)
	line("session", "%s", or(j.Session, "-"))
	a.message("user", "", j.Question)
	for _, x := range j.Answers {
		about := strings.TrimSpace(stamp(x.Time) + " " + x.Model)
		if x.RespondentB {
			about += ", for comparison: nobody was shown it"
		}
		a.message(x.Respondent, about, x.Answer)
		if x.RespondentB && x.Critique != nil {
			x.Critique.Retry = false // there is nobody to offer it to
		}
		a.printCritique(x.Critique, line)
		if r := x.Reward; r != nil {
			line("you", "%s", strings.TrimSuffix(fmt.Sprintf("%+.1f%s: %s", r.Value, sourceOf(r.Source), oneLine(r.Words)), ": "))
		}
	}
	a.printVerdict(j.Pairwise, line)
	return a.stdout.err
}

// sourceOf says of a reward where it came from, when the user did not say it.
func sourceOf(source subjects.Source) string {
	if source == subjects.RewardConversation {
		return " (a model took it from the conversation)"
	}
	return ""
}

// printCritique prints a grade with everything about it.
func (a *app) printCritique(c *subjects.Critique, line func(name, format string, v ...any)) {
	if c == nil {
		line("grade", "none yet")
		return
	}
	if c.Score == 0 {
		line("grade", "ungraded: %s", or(oneLine(c.Ungraded), "not said why"))
	} else {
		line("grade", "%d of 5, looked for: %s", c.Score, or(c.Rubric, "-"))
	}
	if c.Feedback != "" {
		line("feedback", "%s", oneLine(c.Feedback))
	}
	for _, l := range unfounded(*c) {
		line("claim", "%s", l)
	}
	if c.Retry {
		line("retry", "another try should be offered")
	}
	judgedBy(c.Model, c.Notice, line)
}

// judgedBy prints which model judged.
func judgedBy(model, notice string, line func(name, format string, v ...any)) {
	if model != "" {
		line("judge", "%s", model)
	}
	if notice != "" {
		line("notice", "%s", oneLine(notice))
	}
}

// printVerdict prints a comparison with both judgements.
func (a *app) printVerdict(p *subjects.Pairwise, line func(name, format string, v ...any)) {
	if p == nil {
		return
	}
	switch p.Winner {
	case "":
		line("verdict", "undecided: %s", or(oneLine(p.Undecided), "not said why"))
	case subjects.Tie:
		line("verdict", "a tie between %s", strings.Join(p.Between, " and "))
	default:
		line("verdict", "%s is better", named(p.Winner))
	}
	for i, v := range p.Verdicts {
		order := strings.Join(p.Between, ", then ")
		if i == 1 && len(p.Between) == 2 {
			order = p.Between[1] + ", then " + p.Between[0]
		}
		line("", "read %s: %s", order, or(v, "undecided"))
	}
	if p.Reason != "" {
		line("reason", "%s", oneLine(p.Reason))
	}
	judgedBy(p.Model, p.Notice, line)
}

// printGradesOf prints what others thought of a turn, below its answer.
func (a *app) printGradesOf(g *subjects.Grades) {
	if g == nil {
		return
	}
	tell := func(format string, v ...any) {
		fmt.Fprintln(a.stdout, "  "+a.paint(a.stdout, dim, plain(fmt.Sprintf(format, v...))))
	}
	if g.Critic > 0 {
		tell("%s", graded(subjects.Critique{Score: g.Critic, Feedback: g.Feedback}))
	}
	if g.Pairwise != "" {
		tell("compared with another answer: %s", map[bool]string{true: "a tie", false: g.Pairwise + " was better"}[g.Pairwise == subjects.Tie])
	}
	if g.Rewards > 0 {
		tell("%s", strings.TrimSuffix(fmt.Sprintf("you: %+.1f: %s", g.Reward, oneLine(g.Words)), ": "))
	}
}
