// Package reward turns what the user thought of an answer into a reward for the agent that gave it.
//
// It listens on response.generation of everybody whose answers the user sees, and on user.feedback, which only the
// person's accounts can say; both come from the event stream and wait there while it is away. It serves the tool
// give_feedback, which only the broker reaches. It speaks on reward.event, dead.reward and tool.schema.give_feedback.
//
// What is known of each answer, and what was said about it, stands in the bucket rewarded. A change is written down
// there before it is said, with the id under which it is said: after a crash it is said again, and stored once.
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

// Version of the tool, as discovery shows it.
const Version = "0.1.0"

// Reward is the actor. It keeps nothing between messages that is not in its bucket.
type Reward struct {
	// Boundary is called before and after each durable step, with its name: answer and last for an answer, opinion, event and
	// said for what was thought of it, each with "/before" and "/after". It is where tests of crashes pull the plug.
	Boundary func(step string)

	began atomic.Int64 // when it was started, unix nanoseconds; 0 = it was not yet
}

// New returns a reward. It has no settings.
func New() *Reward { return &Reward{} }

// Name implements [actor.Actor].
func (r *Reward) Name() string { return name }

// Routes implements [actor.Actor]. Answers and feedback come one by one: then an answer is known before what is said of it.
func (r *Reward) Routes() []actor.Route {
	routes := []actor.Route{
		actor.On(subjects.ResponseGeneration, r.onResponse),
		actor.On(subjects.UserFeedback, r.onFeedback),
	}
	if s, err := subjects.ToolEndpoint(giveFeedback.Schema.Name); err == nil {
		routes = append(routes, actor.Serve(s, r.onGive))
	}
	return routes
}

// Start implements [actor.Starter]: the tool announces itself.
func (r *Reward) Start(ctx context.Context, out actor.Out) error {
	r.began.Store(out.Now().UnixNano())
	topic, err := subjects.ToolSchemaEvent.With(giveFeedback.Schema.Name)
	if err != nil {
		return err
	}
	return actor.Emit(ctx, out, topic, giveFeedback.Schema)
}

// Describe implements [actor.Describer]: a broker that starts later reads the definition from discovery.
func (r *Reward) Describe() (version, text string, metadata map[string]string) {
	return Version, "conclave reward", map[string]string{"definition." + giveFeedback.Schema.Name: definition()}
}

// young reports whether it was started so recently that an answer may still be held by one that died: the stream gives such
// a message out again only after [subjects.AckWait].
func (r *Reward) young(now time.Time) bool {
	began := r.began.Load()
	return began == 0 || now.Sub(time.Unix(0, began)) < 2*subjects.AckWait
}

// at marks a durable step.
func (r *Reward) at(step string) {
	if r.Boundary != nil {
		r.Boundary(step)
	}
}
