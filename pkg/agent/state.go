package agent

import (
	"context"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// States of actors beside the respondents, published when the work begins. Its result is an event of its own.
const (
	StateGrading   = "GRADING"   // the critic; ends with critique.result
	StateRecalling = "RECALLING" // memory; ends with memory.recalled
	StateStoring   = "STORING"   // memory; ends with memory.stored
)

// EmitState publishes a state of an actor, or of an agent below it, without waiting: it is a view of the work, and a
// failure is only logged. path is the name of the actor and the agents below it. The ids of out are those of s.
func EmitState(out actor.Out, s subjects.AgentState, path ...string) {
	actor.EmitView(context.Background(), out, subjects.AgentStateEvent, s, path...)
}
