// Package reward turns the user's opinion of an answer into a reward for the agent that gave it.
//
// It listens on response.generation of the accounts whose answers the user sees, and on user.feedback, which only the
// user's accounts can publish; both are durable subscriptions whose events wait while no reward runs. It serves the
// tool give_feedback, which only the broker reaches. It speaks on reward.event, dead.reward and
// tool.schema.give_feedback.
//
// Answers and their ratings are in the bucket rewarded. A changed rating is stored there with the id of its event
// before the event is published: after a crash it is published again, and the stream stores it once.
package reward

import (
	"context"
	"sync/atomic"
	"time"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// name is the actor's.
const name = "reward"

// Version is the version of the tool in discovery.
const Version = "0.1.0"

// Reward is the actor. All state between messages is in its bucket.
type Reward struct {
	startedAt atomic.Int64 // unix nanoseconds; 0 = not started yet
}

// New returns a reward. It has no settings.
func New() *Reward { return &Reward{} }

// Name implements [actor.Actor].
func (r *Reward) Name() string { return name }

// Routes implements [actor.Actor]. Answers and feedback have one worker each, so that an answer is stored before the
// feedback on it is handled.
func (r *Reward) Routes() []actor.Route {
	routes := []actor.Route{
		actor.On(subjects.ResponseGeneration, r.onResponse),
		actor.On(subjects.UserFeedback, r.onFeedback),
	}
	return append(routes, r.toolset().Routes()...)
}

// Start implements [actor.Starter].
func (r *Reward) Start(ctx context.Context, out actor.Out) error {
	r.startedAt.Store(out.Now().UnixNano())
	return r.toolset().Announce(ctx, out)
}

// Describe implements [actor.Describer].
func (r *Reward) Describe() (metadata map[string]string) {
	return r.toolset().Definitions()
}

// toolset returns the tools that reward serves.
func (r *Reward) toolset() actor.Toolset { return actor.Toolset{r.giveFeedbackTool()} }

// Tools returns the tools that reward serves, for the broker's table.
func Tools() actor.Toolset { return New().toolset() }

// mayHaveUnackedAnswers reports whether reward started so recently that an answer may still be assigned to a crashed
// process: the stream delivers it again only after [subjects.AckWait].
func (r *Reward) mayHaveUnackedAnswers(now time.Time) bool {
	started := r.startedAt.Load()
	return started == 0 || now.Sub(time.Unix(0, started)) < 2*subjects.AckWait
}
