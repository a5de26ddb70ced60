package actor_test

import (
	"context"
	"encoding/json"
	"fmt"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/subjects"
)

// grader is an actor that grades each answer. It keeps nothing between messages.
type grader struct{}

func (grader) Name() string { return "critic" }

func (g grader) Routes() []actor.Route {
	return []actor.Route{actor.On(subjects.ResponseGeneration, g.onResponse)}
}

func (grader) onResponse(ctx context.Context, in actor.Msg[subjects.Response], out actor.Out) error {
	grade := subjects.Critique{QueryID: in.Query, Score: 5, Rubric: "plain"}
	if in.Body.Answer == "" {
		grade.Score = 1
	}
	return actor.Emit(ctx, out, subjects.CritiqueResult, grade)
}

// An actor handles one message without a bus; the recorder has what it published.
func Example() {
	var recorder actortest.Recorder
	route := grader{}.Routes()[0]
	header := map[string]string{subjects.HeaderQuery: "q1"}
	_, err := actor.Deliver(context.Background(), route, "from.generator.response.generation", header,
		subjects.Response{Answer: "Oslo."}, recorder.Out())
	if err != nil {
		fmt.Println(err)
	}
	for _, event := range recorder.Published() {
		var grade subjects.Critique
		err := json.Unmarshal([]byte(event.Body), &grade)
		fmt.Println(event.Subject, grade.QueryID, grade.Score, err)
	}
	// Output: critique.result q1 5 <nil>
}
