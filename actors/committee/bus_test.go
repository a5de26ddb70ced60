package committee

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/model"
	"conclave/pkg/model/wire"
	"conclave/subjects"
)

// patience is the timeout of expected messages.
const patience = time.Minute

type fakeActor struct {
	name   string
	routes []actor.Route
}

func (s fakeActor) Name() string          { return s.name }
func (s fakeActor) Routes() []actor.Route { return s.routes }

// receive returns the next message, or fails the test.
func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatal("no message")
	}
	panic("unreachable")
}

// TestOnTheBus: a turn under the real grants. The server lets the committee consume its turns, call tools, keep its
// state, read the assistant's conversation, and publish; the broker sees its calls under its own account.
func TestOnTheBus(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	run := func(a actor.Actor) { b.RunActor(a, actor.Config{RetryDelay: 20 * time.Millisecond}) }
	called := make(chan string, 16)
	run(fakeActor{"broker", []actor.Route{
		actor.Serve(subjects.BrokerDiscover, func(context.Context, actor.Msg[subjects.DiscoverRequest],
			actor.Out,
		) (subjects.DiscoverReply, error) {
			return subjects.DiscoverReply{Tools: []subjects.ToolSchema{{
				Name: "search_memory", Description: "finds",
				Parameters: json.RawMessage(
					`{"type":"object","properties":{"query":{"type":"string"}},"required":["query"]}`),
			}}}, nil
		}),
		actor.Serve(subjects.ToolRequestService, func(_ context.Context, in actor.Msg[subjects.ToolRequest],
			_ actor.Out,
		) (subjects.ToolResult, error) {
			called <- in.Subject
			return subjects.ToolResult{CallID: in.Body.CallID, Tool: "search_memory", Result: "black coffee"}, nil
		}),
	}})
	run(fakeActor{"model", []actor.Route{
		actor.ServeStream(subjects.ModelChat, func(_ context.Context, in actor.Msg[subjects.ChatRequest],
			say func(subjects.ChatChunk) error, _ actor.Out,
		) error {
			r, err := wire.DecodeRequest(in.Body)
			if err != nil {
				return err
			}
			c := model.Chunk{Content: "I agree.\nDISSENT: none", Done: true, Final: model.Final{Model: "test:8b"}}
			last := r.Messages[len(r.Messages)-1]
			switch self := strings.Contains(r.Messages[0].Content, "You are The Self"); {
			case self && last.Role == model.User && slices.ContainsFunc(r.Messages, func(m model.Message) bool {
				return m.Content == "earlier"
			}):
				c.Content, c.Calls = "",
					[]model.Call{{ID: "c1", Name: "search_memory", Arguments: json.RawMessage(`{"query":"coffee"}`)}}
			case self:
				c.Content = "Have " + last.Content
			}
			p, err := wire.EncodeChunk(c)
			if err != nil {
				return err
			}
			return say(p)
		}),
		actor.Serve(subjects.ModelListService, func(context.Context, actor.Msg[subjects.Empty],
			actor.Out,
		) (subjects.ModelList, error) {
			return subjects.ModelList{Roles: []subjects.RoleModel{{
				Role: "assistant", Model: "test:8b", Window: 8192,
				Stream: true, Tools: true,
			}}}, nil
		}),
	}})
	data, err := json.Marshal(subjects.Conversation{
		SessionID: "s1",
		Turns:     []subjects.Turn{{QueryID: "q0", Query: "earlier", Answer: "yes"}},
	})
	if err == nil {
		_, err = b.Out("generator").Store("state_generator").Put(t.Context(), "conv.s1", data, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	user := b.Connect("user")
	answers, events, deltas, states := make(chan subjects.Response, 8), make(chan subjects.Deliberation, 64),
		make(chan subjects.Delta, 64), make(chan subjects.AgentState, 256)
	bustest.Subscribe(t, user, "response.generation", answers)
	bustest.Subscribe(t, user, "committee.deliberation.q1", events)
	bustest.Subscribe(t, user, "response.delta.q1", deltas)
	bustest.Subscribe(t, user, "agent.state.committee.inner_child", states)
	run(New(shippedConfig(t)))
	topic, err := subjects.TurnCommittee.With("s1")
	if err == nil {
		err = actor.Emit(t.Context(), b.Out("router").WithIDs("s1", "q1"), topic, question())
	}
	if err != nil {
		t.Fatal(err)
	}
	r := receive(t, answers)
	if r.Answer != "Have black coffee" || r.RespondentID != "committee" || r.QueryID != "q1" ||
		len(r.Deliberations) != 3 || len(r.ToolCalls) != 1 || r.Error != nil {
		t.Errorf("%+v", r)
	}
	if got := receive(t, called); got != "agent.committee.tool.request.search_memory" {
		t.Errorf("the broker saw %s", got)
	}
	var got []string
	for range 8 {
		d := receive(t, events)
		got = append(got, d.Persona+" "+d.Status)
	}
	if want := []string{
		"The Inner Child working", "The Inner Child done", "The Inner Critic working",
		"The Inner Critic done", "The Protector working", "The Protector done", "The Self working",
		"The Self done",
	}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if d := receive(t, deltas); d.RespondentID != "committee" {
		t.Errorf("%+v", d)
	}
	receive(t, states)
}
