package gateway

import (
	"context"
	"errors"
	"net/http"
	"time"

	"conclave/pkg/client"
	"conclave/subjects"
)

// lookupTimeout is the timeout of a search in the event log.
const lookupTimeout = 10 * time.Second

// onQueryStatus returns the answer to an earlier question, asked here or elsewhere. Without an answer it is 202 for a
// question that was asked here and 404 for any other; a search longer than lookupTimeout is 504. The events of the
// question are in the response only when it was asked here.
func (g *Gateway) onQueryStatus(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	if err := checkOwnQuery(r, id); err != nil {
		return err
	}
	return g.writeState(w, r, id)
}

// writeState writes the answer to a question or that there is none yet, as [Gateway.onQueryStatus] does.
func (g *Gateway) writeState(w http.ResponseWriter, r *http.Request, id string) error {
	q, known := g.questions.find(id)
	if !known {
		q = question{id: id}
		p, err := g.admit(g.out, clientOf(r), 1, 0) // without an index of answers it reads all of them
		if err != nil {
			return err
		}
		defer p.leave()
	}
	ctx, cancel := g.withTimeout(r.Context(), lookupTimeout)
	defer cancel()
	end, err := g.findOutcome(ctx, q)
	switch {
	case errors.Is(err, errNone) && known:
		g.writeJSON(w, http.StatusAccepted, q.ids(subjects.StateRunning))
		return nil
	case errors.Is(err, errNone):
		return notFoundf("no answer to %s, and the question was not asked here", id)
	case errors.Is(err, errTimeout):
		return problemf(http.StatusGatewayTimeout, subjects.CodeTimeout, "timeout: no answer to %s found within %s; "+
			"see its session", id, lookupTimeout)
	case err != nil:
		return err
	}
	rec := answerRecord{judgements: judgements{respondent: end.From}}
	if known {
		err = g.readEventsOf(ctx, q, end.Seq, rec.add)
	}
	if err != nil {
		return err
	}
	if end.Response != nil {
		g.findJudgements(ctx, end.Response.SessionID, id, end.Seq, &rec.judgements)
	}
	return g.writeAnswer(w, r, q, end, &rec)
}

// findOutcome finds the answer to a question, else the dead letter behind the sequence q.since. [errNone] means that
// there is no outcome yet. When ctx ends the error is its cause.
func (g *Gateway) findOutcome(ctx context.Context, q question) (*client.Outcome, error) {
	end, err := g.findAnswer(ctx, q)
	if end == nil && err == nil {
		end, err = g.findDeadLetter(ctx, q)
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return end, err
}

// findDeadLetter finds the dead letter of a question, or returns [errNone].
func (g *Gateway) findDeadLetter(ctx context.Context, q question) (*client.Outcome, error) {
	for _, who := range append([]string{subjects.Router}, q.respondents()...) {
		for ev, err := range g.client.EventsFrom(ctx, q.since+1, subjects.DeadLetterEvent.StoredBy(who)) {
			if err != nil {
				return nil, err
			}
			if end, err := readOutcome(ev, q); end != nil || err != nil {
				return end, err
			}
		}
	}
	return nil, errNone
}

// findAnswer finds the answer to a question by the index of answers, or among those that are newer than the index; nil
// when there is none. Without an index, because the reward actor does not run, it reads all answers.
func (g *Gateway) findAnswer(ctx context.Context, q question) (*client.Outcome, error) {
	at, indexed, err := g.client.AnswerPlace(ctx, q.id)
	if err != nil {
		return nil, err
	}
	if indexed {
		ev, _, err := g.client.Event(ctx, at.Answer.Seq)
		if err != nil {
			return nil, err
		}
		if end, err := readOutcome(ev, q); end != nil || err != nil {
			return end, err
		}
	}
	for ev, err := range g.client.EventsBack(ctx, subjects.ResponseGeneration.Subscription()) {
		if err != nil || ev.Seq <= q.since {
			return nil, err
		}
		if end, err := readOutcome(ev, q); end != nil || err != nil {
			return end, err
		}
		// Only the answer that the index has tells that it covers the log up to here.
		if at, indexed, err := g.client.AnswerPlace(ctx, ev.Query); err != nil || indexed && at.Answer.Seq == ev.Seq {
			return nil, err
		}
	}
	return nil, nil
}

// readEventsOf passes the events of a question, up to the sequence last of its outcome, to onEvent.
func (g *Gateway) readEventsOf(ctx context.Context, q question, last uint64, onEvent func(client.Event)) error {
	cur := g.events.OpenCursor(ctx)
	defer cur.Close()
	cur.At = q.since
	for cur.At < last {
		ev, ok, _, err := cur.Next(ctx)
		if err != nil {
			return err
		}
		if !ok {
			return nil
		}
		if ev.Query == q.id {
			onEvent(ev)
		}
	}
	return nil
}

// onCancel publishes the cancellation of a question and responds with 202 without waiting for its effect, also for an
// unknown question. The text so far becomes a partial answer.
func (g *Gateway) onCancel(ctx context.Context, r *http.Request) (any, error) {
	id := r.PathValue("id")
	if err := checkOwnQuery(r, id); err != nil {
		return nil, err
	}
	q, _ := g.questions.find(id)
	ctx, cancel := g.withStoreTimeout(ctx)
	defer cancel()
	if err := g.client.CancelQuery(ctx, q.session, id, "asked for over HTTP"); err != nil {
		return nil, storeFault(g.out, subjects.QueryCancel.Name, err)
	}
	return accepted{object{{"query_id", id}, {"state", "stopping"}}}, nil
}
