// Package critic grades each answer before memory may learn from it.
//
// It listens on response.generation, which comes from the event stream and waits there while it is away, and on
// tool.request.compare_answers, which only the broker reaches. It asks model.chat and model.list. It speaks on
// critique.result, pairwise.result and tool.schema.compare_answers.
//
// An answer gets one grade, or a reason why it has none. When the generator and respondent B have both answered a question,
// their answers are compared, once in each order. Everything is written down before it is said: after a crash it is said
// again under the same id and stored once.
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
	"conclave/subjects"
)

// name is the actor's.
const name = "critic"

// Critic is the actor. Several may run, in one process or in many: they share the answers.
type Critic struct {
	// Boundary is called before and after each durable step, with its name: grade (the judgement is written down), critique
	// (it is said), graded (that it was said), half (one of two answers is written down), verdict, pairwise and compared
	// likewise for the two, each with "/before" and "/after". It is where tests of crashes pull the plug.
	Boundary func(step string)

	cfg   Config
	pause time.Duration
	room  struct { // the window of the judge's model, asked for now and then
		sync.Mutex
		tokens int
		until  time.Time
	}
}

// New returns a critic. cfg must be valid.
func New(cfg Config) *Critic { return &Critic{cfg: cfg, pause: usualPause} }

// Name implements [actor.Actor].
func (c *Critic) Name() string { return name }

// Routes implements [actor.Actor].
func (c *Critic) Routes() []actor.Route {
	if !c.cfg.Enabled { // what is said meanwhile is not judged later either
		return []actor.Route{actor.On(subjects.ResponseGeneration, unread[subjects.Response])}
	}
	// Two at once: one may wait for the model while the other is written down.
	routes := []actor.Route{actor.On(subjects.ResponseGeneration, c.onResponse, actor.Workers(2))}
	for _, t := range tools {
		if s, err := subjects.ToolEndpoint(t.schema.Name); err == nil {
			routes = append(routes, actor.Serve(s, t.handler(c)))
		}
	}
	return routes
}

// unread takes an event and keeps nothing of it.
func unread[T any](context.Context, actor.Msg[T], actor.Out) error { return nil }

// Start implements [actor.Starter]: the tool announces itself.
func (c *Critic) Start(ctx context.Context, out actor.Out) error {
	if !c.cfg.Enabled {
		return nil
	}
	for _, t := range tools {
		topic, err := subjects.ToolSchemaEvent.With(t.schema.Name)
		if err != nil {
			return err
		}
		if err := actor.Emit(ctx, out, topic, t.schema); err != nil {
			return err
		}
	}
	return nil
}

// Describe implements [actor.Describer]: a broker that starts later reads the definition from discovery.
func (c *Critic) Describe() (version, text string, metadata map[string]string) {
	metadata = map[string]string{}
	if c.cfg.Enabled {
		for _, t := range tools {
			metadata["definition."+t.schema.Name] = t.definition()
		}
	}
	return Version, "conclave critic", metadata
}

// at marks a durable step.
func (c *Critic) at(step string) {
	if c.Boundary != nil {
		c.Boundary(step)
	}
}

// heard is an answer with what is known about it. Who gave it is what the server wrote into the subject.
type heard struct {
	subjects.Response
	from   string
	stored time.Time // zero = not known
	try    int
	reused bool // its query id was used in another session before
}

// last reports whether the message will not be tried again after this.
func (h heard) last() bool { return h.try >= subjects.MaxDeliver }

// onResponse grades one answer, and compares it when it is the second of two. It returns nil when what is to be said is
// stored, also when it was stored before.
func (c *Critic) onResponse(ctx context.Context, in actor.Msg[subjects.Response], out actor.Out) error {
	h := heard{Response: in.Body, from: in.From, stored: in.StoredAt, try: in.Attempt}
	h.QueryID = cmp.Or(h.QueryID, in.Query)
	if subjects.CheckToken(h.QueryID) != nil || subjects.CheckToken(h.from) != nil {
		return subjects.Faultf(subjects.CodeMalformed, "an answer needs a query id that can stand in a subject")
	}
	if subjects.CheckToken(h.SessionID) != nil {
		h.SessionID = in.Session
	}
	out = out.WithIDs(h.SessionID, h.QueryID)
	err := c.graded(ctx, out, h)
	if err == nil {
		err = c.paired(ctx, out, h)
	}
	if err != nil {
		// A model server that is started again takes a minute to be there.
		return actor.RetryAfter(fmt.Errorf("judging the answer of %s to %s: %w", h.from, h.QueryID, err), c.pause<<min(h.try, subjects.MaxDeliver))
	}
	return nil
}

// usualPause is half of the first wait before an answer is looked at again; each wait is twice as long as the one before.
const usualPause = 2500 * time.Millisecond

// unfitFor says why an answer is neither graded nor compared, "" when it is.
func (c *Critic) unfitFor(h heard, now time.Time) string {
	switch {
	case h.Error != nil || strings.TrimSpace(h.Answer) == "":
		return "there is no answer to grade"
	case h.reused:
		return "the id of its question was used in another session before, and grades go by that id"
	case h.Partial:
		return "the answer is not whole"
	case !h.stored.IsZero() && now.Sub(h.stored) > c.cfg.MaxAge:
		return fmt.Sprintf("the answer is older than %s", short(c.cfg.MaxAge))
	}
	return ""
}

// errGiven means that the message was handed out more often than any message is: whoever worked at it died of it.
var errGiven = errors.New("it was begun too often and never finished")
