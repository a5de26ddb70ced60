// Package router orders questions by session, so that several generators can share the work and the answers of each
// session stay in order.
//
// It consumes query.received, query.committee and query.task from QUERIES and schedule.due.<schedule> from SCHEDULED,
// and subscribes to the server's advisory that a message reached its delivery limit; it may then read that turn. It
// publishes on query.session.<session>, turn.committee.<session> and turn.orchestrator.<session>, stored in TURNS, and
// on dead.router. It also receives the subjects that no actor of this build serves, and rejects their messages.
package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// Router is the actor. It has no state: the turn depends only on the question and its position in the stream, so a
// redelivered question becomes the same turn.
type Router struct{}

// New returns a router.
func New() *Router { return &Router{} }

// Name implements [actor.Actor].
func (r *Router) Name() string { return subjects.Router }

// Routes implements [actor.Actor].
func (r *Router) Routes() []actor.Route {
	routes := []actor.Route{
		// One at a time: it must keep the order.
		actor.On(subjects.QueryReceived, r.route(subjects.QuerySession), actor.Workers(1)),
		actor.On(subjects.QueryCommittee, r.route(subjects.TurnCommittee), actor.Workers(1)),
		actor.On(subjects.QueryTask, r.route(subjects.TurnTask), actor.Workers(1)),
		actor.On(subjects.ScheduleDue, r.onDue, actor.Workers(1)),
		actor.Subscribe(subjects.MaxDeliveriesAdvisory, r.onExhausted),
	}
	for _, s := range subjects.UnservedSpecs() {
		routes = append(routes, actor.Refuse(s, subjects.Faultf(subjects.CodeUnserved, "%s is not served by this "+
			"version; the message was dropped. %s", s.Name, s.Unserved)))
	}
	return routes
}

// route returns the handler of questions that become turns of the topic to.
func (r *Router) route(to subjects.Topic[subjects.Query]) func(context.Context, actor.Msg[subjects.Query],
	actor.Out) error {
	return func(ctx context.Context, in actor.Msg[subjects.Query], out actor.Out) error {
		return r.onQuery(ctx, in, out, to)
	}
}

// onQuery publishes a question as a turn of its session ([subjects.StoredQuestion.Turn]), on the topic to, under a
// message id that dedupes redeliveries. An empty or too long question, one whose attachments
// [subjects.CheckAttachments] or whose options or session [subjects.Query.CheckOptions] or
// [subjects.Query.CheckSession] rejects, and one for which TURNS has no room becomes a dead letter and is not retried.
func (r *Router) onQuery(ctx context.Context, in actor.Msg[subjects.Query], out actor.Out,
	to subjects.Topic[subjects.Query],
) error {
	asked := subjects.StoredQuestion{
		Query: in.Body, Subject: in.Subject, Seq: in.Seq, StoredAt: in.StoredAt,
		QueryHeader: in.Query, SessionHeader: in.Session,
	}
	key, q := asked.Key(), asked.Turn()
	out = out.WithIDs(q.SessionID, q.QueryID)
	if strings.TrimSpace(q.Query) == "" {
		return writeDeadLetter(ctx, out, "dead-"+key, in.Subject, subjects.CodeMalformed, "the question is empty")
	}
	if err := errors.Join(subjects.CheckAttachments(q.Attachments), q.CheckOptions(), q.CheckSession()); err != nil {
		return writeDeadLetter(ctx, out, "dead-"+key, in.Subject, subjects.CodeMalformed, err.Error())
	}
	topic, err := to.With(q.SessionID)
	if err != nil {
		return err
	}
	// Only the router may publish here, so no other account can use up a message id that it could guess.
	err = actor.EmitOnce(ctx, out, topic, "turn-"+key, q)
	switch code := subjects.CodeOf(err); code {
	case subjects.CodeTooLarge:
		return writeDeadLetter(ctx, out, "dead-"+key, in.Subject, code, "the question is too long")
	case subjects.CodeFull:
		return writeDeadLetter(ctx, out, "dead-"+key, in.Subject, code, "too many questions of the last 30 days "+
			"are stored. The question was not stored and will not be answered")
	}
	return err
}

// onExhausted publishes a dead letter about a message that reached its delivery limit without an acknowledgement. Every
// instance of the router does so. The dead letter of a turn that the user waits for carries the ids of the question, so
// that its client is notified; they are missing when the turn cannot be read, which is logged.
func (r *Router) onExhausted(ctx context.Context, in actor.Msg[subjects.Advisory], out actor.Out) error {
	a := in.Body
	consumer, _, _ := strings.Cut(a.Consumer, "-")
	// Not an id derived from the advisory: another publisher could use it first and suppress the dead letter. Several
	// routers publish one each, which is harmless.
	id := out.NewID()
	reason := fmt.Sprintf("%s did not finish message %d of %s in %d attempts; it is not retried. Ask again, and look "+
		"into the log of %s",
		consumer, a.StreamSeq, a.Stream, a.Deliveries, consumer)
	if subjects.IsVisibleTurn(a.Stream, a.Consumer) {
		session, query, err := readTurnIDs(ctx, out, a.StreamSeq)
		if err != nil {
			out.LogError(err)
		} else {
			out = out.WithIDs(session, query)
		}
	}
	return writeDeadLetter(ctx, out, id, in.Subject, subjects.CodeUnavailable, reason)
}

// readTurnIDs reads the session and query ids of the turn at a sequence of TURNS. Only the router publishes there, so
// the ids are valid. It fails when the turn is no longer stored.
func readTurnIDs(ctx context.Context, out actor.Out, seq uint64) (session, query string, err error) {
	m, err := actor.ReadStored(ctx, out, subjects.QuerySession.Stream, map[string]any{"seq": seq})
	if err == nil && m == nil {
		err = errors.New("no message")
	}
	var q subjects.Query
	if err == nil {
		err = json.Unmarshal(m.Data, &q)
	}
	if err != nil {
		return "", "", fmt.Errorf("reading turn %d: %w", seq, err)
	}
	return q.SessionID, q.QueryID, nil
}

// writeDeadLetter publishes a dead letter about a message that is not retried. id dedupes it.
func writeDeadLetter(ctx context.Context, out actor.Out, id, subject, code, reason string) error {
	topic, err := subjects.DeadLetterEvent.With(subjects.Router)
	if err != nil {
		return err
	}
	return actor.EmitOnce(ctx, out, topic, id, subjects.DeadLetter{
		Actor: subjects.Router, Subject: subject, Code: code,
		Reason: reason, Time: out.Now().UTC(),
	})
}
