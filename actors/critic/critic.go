// Package critic grades each answer before memory may learn from it.
//
// It listens on response.generation and committee.deliberation.<query>, a durable subscription whose events wait while
// no critic runs, and on tool.request.compare_answers, which only the broker reaches. It asks model.chat and
// model.list. It speaks on critique.result, pairwise.result and tool.schema.compare_answers.
//
// An answer gets one grade, or a reason why it has none. When the generator and respondent B have both answered a
// question, their answers are compared, once in each order. Every result is stored before it is published: after a
// crash it is published again under the same id, and the stream stores it once.
package critic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// name is the actor's.
const name = "critic"

// Version is the version of the tool in discovery.
const Version = "0.1.0"

// Critic is the actor. Several may run, in one process or in many: they share the answers.
type Critic struct {
	cfg         Config
	retryDelay  time.Duration
	judgeWindow struct { // the cached context window of the judge's model
		sync.Mutex
		tokens int
		until  time.Time
	}
}

// New returns a critic. cfg must be valid.
func New(cfg Config) *Critic { return &Critic{cfg: cfg, retryDelay: baseRetryDelay} }

// Name implements [actor.Actor].
func (c *Critic) Name() string { return name }

// Routes implements [actor.Actor]. A disabled critic consumes the answers, so that they are not graded later either.
func (c *Critic) Routes() []actor.Route {
	if !c.cfg.Enabled {
		return []actor.Route{
			actor.On(subjects.ResponseGeneration, ignoreEvent[subjects.Response]),
			actor.On(subjects.DeliberationEvent, ignoreEvent[subjects.Deliberation]),
		}
	}
	// Two workers: one may wait for the model while the other stores its result.
	routes := []actor.Route{
		actor.On(subjects.ResponseGeneration, c.onResponse, actor.Workers(2)),
		actor.On(subjects.DeliberationEvent, c.onDeliberation, actor.Workers(1)),
	}
	return append(routes, c.toolset().Routes()...)
}

// ignoreEvent acknowledges an event.
func ignoreEvent[T any](context.Context, actor.Msg[T], actor.Out) error { return nil }

// Start implements [actor.Starter].
func (c *Critic) Start(ctx context.Context, out actor.Out) error {
	return c.toolset().Announce(ctx, out)
}

// Describe implements [actor.Describer].
func (c *Critic) Describe() (metadata map[string]string) {
	return c.toolset().Definitions()
}

// toolset returns the tools that the critic serves, none when it is disabled.
func (c *Critic) toolset() actor.Toolset {
	if !c.cfg.Enabled {
		return nil
	}
	return actor.Toolset{c.compareAnswersTool()}
}

// Tools returns the tools of an enabled critic, for the broker's table.
func Tools() actor.Toolset { return New(Config{Enabled: true}).toolset() }

// answer is a response with its delivery. from is the account that the server wrote into the subject.
type answer struct {
	subjects.Response
	from    string
	stored  time.Time // in the stream; zero = not known
	attempt int       // of the delivery, from 1
	reused  bool      // its query id was used in another session before

	// Of a persona's contribution: its name, its round and its own rubric; "" = it is the answer of an account.
	persona string
	round   int
	rubric  string
}

// isLastAttempt reports whether the message is not delivered again.
func (a answer) isLastAttempt() bool { return a.attempt >= subjects.MaxDeliver }

// onResponse grades one answer, and compares it when it is the second of two. It returns nil when the results are
// published, also when they were before, and when the answer cannot be graded; otherwise the answer is delivered again
// after a delay that doubles with each attempt. It rejects an answer without a valid query id or author.
func (c *Critic) onResponse(ctx context.Context, in actor.Msg[subjects.Response], out actor.Out) error {
	a := answer{Response: in.Body, from: in.From, stored: in.StoredAt, attempt: in.Attempt}
	a.QueryID = cmp.Or(a.QueryID, in.Query)
	if subjects.CheckToken(a.QueryID) != nil || subjects.CheckToken(a.from) != nil {
		return subjects.Faultf(subjects.CodeMalformed, "an answer needs a query id that is a valid subject token")
	}
	if subjects.CheckToken(a.SessionID) != nil {
		a.SessionID = in.Session
	}
	out = out.WithIDs(a.SessionID, a.QueryID)
	err := c.gradeOnce(ctx, out, a)
	if err == nil {
		err = c.comparePair(ctx, out, a)
	}
	if err != nil {
		return actor.RetryAfter(fmt.Errorf("judging the answer of %s to %s: %w", a.from, a.QueryID, err),
			c.retryDelay<<min(a.attempt, subjects.MaxDeliver))
	}
	return nil
}

// baseRetryDelay is half of the first retry delay; each delay is twice the one before. A model server that restarts
// takes a minute to be ready.
const baseRetryDelay = 2500 * time.Millisecond

// ungradedReason returns why an answer is neither graded nor compared, "" when it is: it failed or is empty, partial,
// older than MaxAge, or its query id was used in another session.
func (c *Critic) ungradedReason(a answer, now time.Time) string {
	switch {
	case a.Error != nil || strings.TrimSpace(a.Answer) == "":
		return "there is no answer to grade"
	case a.reused:
		return "the id of its question was used in another session before, and grades go by that id"
	case a.Partial:
		return "the answer is not whole"
	case !a.stored.IsZero() && now.Sub(a.stored) > c.cfg.MaxAge:
		return fmt.Sprintf("the answer is older than %s", strict.FormatDuration(c.cfg.MaxAge))
	}
	return ""
}

// errTooManyAttempts means that the message was delivered more than [subjects.MaxDeliver] times: each earlier attempt
// ended in a crash.
var errTooManyAttempts = errors.New("it was begun too often and never finished")
