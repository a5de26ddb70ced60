package critic

import (
	"context"
	"fmt"
	"strconv"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// onDeliberation grades the contribution of a persona by the persona's own rubric, in the background as answers are. It
// ignores contributions that have none or did not succeed. It rejects an event without a valid query id or persona.
func (c *Critic) onDeliberation(ctx context.Context, in actor.Msg[subjects.Deliberation], out actor.Out) error {
	d := in.Body
	if d.Status != subjects.DeliberationDone || d.Rubric == "" {
		return nil
	}
	token := subjects.PersonaToken(d.Persona)
	switch why := CheckRubric(d.Rubric); {
	case subjects.CheckToken(d.QueryID) != nil || token == "" || in.From != subjects.Committee:
		return subjects.Faultf(subjects.CodeMalformed, "a deliberation needs a valid query id and persona, and comes "+
			"from the committee")
	case why != "":
		return subjects.Faultf(subjects.CodeMalformed, "the rubric of %s is invalid: %s", token, why)
	}
	if subjects.CheckToken(d.SessionID) != nil {
		d.SessionID = in.Session
	}
	a := answer{
		Response: subjects.Response{
			SessionID: d.SessionID, QueryID: d.QueryID, Query: d.Query, Answer: d.Response,
			ToolCalls: d.Calls, Labels: d.Labels, Partial: d.Partial,
		},
		from: subjects.PersonaRespondent(d.Persona), stored: in.StoredAt, attempt: in.Attempt, persona: d.Persona,
		round: d.Round, rubric: d.Rubric,
	}
	if err := c.gradeOnce(ctx, out.WithIDs(d.SessionID, d.QueryID), a); err != nil {
		return actor.RetryAfter(fmt.Errorf("judging %s in %s: %w", a.from, a.QueryID, err),
			c.retryDelay<<min(a.attempt, subjects.MaxDeliver))
	}
	return nil
}

// key is that of the grade of a: of an account's answer, or of a persona's contribution in a round.
func (a answer) key() string {
	if a.persona != "" {
		return gradeKey(a.QueryID, a.from) + "." + strconv.Itoa(a.round)
	}
	return gradeKey(a.QueryID, a.from)
}
