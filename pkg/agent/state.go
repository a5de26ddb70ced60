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

// EmitState publishes a state of an actor without waiting: it is a view of the work, and a failure is only logged. The
// ids of out are those of the question.
func EmitState(out actor.Out, name, to, session, query string) {
	topic, err := subjects.AgentStateEvent.With(name)
	if err == nil {
		err = actor.EmitAsync(context.Background(), out, topic, subjects.AgentState{
			SessionID: session, QueryID: query,
			To: to,
		})
	}
	if err != nil {
		out.LogError(err)
	}
}
