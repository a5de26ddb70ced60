package critic

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"conclave/pkg/actor"
	"conclave/pkg/text"
	"conclave/subjects"
)

// critique judges one answer. The error is for what may be over when it is tried again; everything else is a critique
// that says why there is no grade.
func (c *Critic) critique(ctx context.Context, out actor.Out, h heard) (subjects.Critique, error) {
	begun := out.Now()
	g := subjects.Critique{
		SessionID: h.SessionID, QueryID: h.QueryID, RespondentID: h.from, Rubric: rubricFor(h.from, h.Response),
		Labels: &subjects.Labels{Trust: subjects.Untrusted, Privacy: subjects.Private}, // what nobody vouches for
	}
	if h.Labels != nil {
		g.Labels = h.Labels.Join(nil)
	}
	if g.Ungraded = c.unfitFor(h, begun); g.Ungraded != "" {
		return g, nil
	}
	v, err := verdict{}, errGiven
	if h.try <= subjects.MaxDeliver {
		v, err = c.judge(ctx, out, c.toGrade(h.Response, g.Rubric, out.NewID()), scores)
	}
	if err != nil && passing(err) {
		if !h.last() {
			return g, err
		}
		out.LogError(givingUp(err))
	}
	g.Model, g.Notice = v.by, v.notice
	if err != nil {
		g.Ungraded = excuse(err, h.try)
	} else {
		g.Score, g.Feedback = int(v.result-'0'), v.words
	}
	if c.cfg.Claims {
		c.hold(&g, h)
	}
	g.Retry = g.Score >= 1 && g.Score <= c.cfg.RetryAt
	g.Millis = out.Now().Sub(begun).Milliseconds()
	return g, nil
}

// hold holds an answer to what it says was done. A judge that sees no calls believes such words.
func (c *Critic) hold(g *subjects.Critique, h heard) {
	if !recorded(h) {
		return
	}
	// Without credentials before it is taken apart: a part of one, or one without its name, would not be known for what it is.
	g.Claims = claims(h.Query, scrub(h.Answer), done(h.Response))
	if len(g.Claims) == 0 {
		return
	}
	first := g.Claims[0]
	told := fmt.Sprintf("The answer says that something was done which no call did: %q (%s would have).", first.Said, strings.Join(first.Needs, " or "))
	if more := len(g.Claims) - 1; more > 0 {
		told += fmt.Sprintf(" And %d more of the kind.", more)
	}
	g.Feedback = strings.TrimSpace(text.Clip(g.Feedback, maxFeedback-len(told)-8) + "\n\n" + told)
	if c.cfg.ClaimCap > 0 && g.Score > c.cfg.ClaimCap {
		g.Score = c.cfg.ClaimCap
	}
}

// recorded reports whether an answer's record holds all its calls. Those who let others work for them make none
// themselves, and a record that was too large may have lost them.
func recorded(h heard) bool {
	if h.from != subjects.Generator && h.from != subjects.RespondentB {
		return false
	}
	cut := slices.ContainsFunc(h.Notes, func(n subjects.Note) bool { return n.Code == subjects.NoteRecordCut })
	return !cut || len(h.ToolCalls) > 0
}

// done are the tools that ran. Memories that went into an answer were looked up, by whatever way.
func done(r subjects.Response) []string {
	ran := ranTools(r.ToolCalls)
	if len(r.Recalls) > 0 && !slices.Contains(ran, "search_memory") {
		ran = append(ran, "search_memory")
	}
	return ran
}
