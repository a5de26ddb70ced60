package loop_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"

	"conclave/pkg/loop"
	"conclave/pkg/model"
)

// scriptedChat is a model that gives one reply after another.
type scriptedChat struct{ replies []model.Chunk }

func (s *scriptedChat) Chat(context.Context, model.Request) iter.Seq2[model.Chunk, error] {
	return func(yield func(model.Chunk, error) bool) {
		next := s.replies[0]
		s.replies = s.replies[1:]
		next.Done = true
		yield(next, nil)
	}
}

// A model calls a tool and answers from its result. The arguments are coerced to the tool's schema before the tool
// runs.
func ExampleRunTurn() {
	chat := &scriptedChat{replies: []model.Chunk{
		{Calls: []model.Call{{ID: "1", Name: "get_weather", Arguments: json.RawMessage(`{"city":"Bern","days":"2"}`)}}},
		{Content: "It will be sunny in Bern."},
	}}
	agent := loop.Agent{
		Chat:   chat,
		System: "You are a weather assistant.",
		Tools: []model.Tool{{
			Name: "get_weather",
			Parameters: json.RawMessage(
				`{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},` +
					`"required":["city"]}`),
		}},
		RunTool: func(_ context.Context, c model.Call) loop.Result {
			fmt.Println("run", c.Name, string(c.Arguments))
			return loop.Result{Text: "sunny, 21 degrees"}
		},
	}
	checkpoints := 0
	hooks := loop.Hooks{Checkpoint: func(context.Context, *loop.State) error { checkpoints++; return nil }}
	question := loop.State{Messages: []model.Message{{Role: model.User, Content: "How is the weather in Bern?"}}}
	state, err := loop.RunTurn(context.Background(), agent, loop.Input{State: question}, hooks)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(state.Answer)
	fmt.Println(len(state.Finished), "call,", checkpoints, "checkpoints")
	// Output:
	// run get_weather {"city":"Bern","days":2}
	// It will be sunny in Bern.
	// 1 call, 3 checkpoints
}
