package actor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/subjects"
)

// shout is a tool that returns its text in capitals.
var shout = actor.Tool{
	Schema: subjects.ToolSchema{
		Name: "shout", Version: "1", Description: "shouts",
		Parameters: json.RawMessage(`{"type":"object"}`),
	},
	Run: func(_ context.Context, in actor.Msg[subjects.ToolOrder], _ actor.Out) (subjects.ToolResult, error) {
		var args struct {
			Text string `json:"text"`
		}
		if err := actor.DecodeArguments(in.Body.Args, &args); err != nil {
			return subjects.ToolResult{}, err
		}
		switch args.Text {
		case "fault":
			return subjects.ToolResult{Result: "half"}, subjects.Faultf(subjects.CodeTool, "no")
		case "error":
			return subjects.ToolResult{}, errors.New("details for the log")
		}
		return subjects.ToolResult{Result: strings.ToUpper(args.Text), Labels: in.Body.Labels}, nil
	},
}

func TestToolset(t *testing.T) {
	t.Parallel()
	set := actor.Toolset{shout}
	a := &testActor{name: "critic", routes: set.Routes()}
	var rec actortest.Recorder
	rec.Time = time.Now()
	for _, tt := range []struct{ name, args, want, err string }{
		{"runs", `{"text":"hi"}`, `"result":"HI"`, ""},
		{"unknown argument", `{"loud":true}`, `bad arguments`, ""},
		{"trick: argument in another case", `{"TEXT":"hi"}`, `bad arguments`, ""},
		{"fault is a result", `{"text":"fault"}`, `"error":{"code":"` + subjects.CodeTool, ""},
		{"other error is a failure", `{"text":"error"}`, "", "running shout: details for the log"},
	} {
		got, err := rec.Deliver(t, a, actortest.Message{
			Subject: "tool.request.shout", Deadline: rec.Time.Add(time.Minute),
			Body: subjects.ToolOrder{CallID: "c1", QueryID: "q1", Args: json.RawMessage(tt.args)},
		})
		if !strings.Contains(got, tt.want) ||
			(err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err {
			t.Errorf("%s: %s, %v", tt.name, got, err)
		}
		if err == nil && (!strings.Contains(got, `"call_id":"c1"`) || !strings.Contains(got, `"query_id":"q1"`) ||
			!strings.Contains(got, `"tool":"shout"`) || strings.Contains(got, "half")) {
			t.Errorf("%s: %s", tt.name, got)
		}
	}
	if err := set.Announce(t.Context(), rec.Out()); err != nil || len(rec.Published()) != 1 ||
		rec.Published()[0].Subject != "tool.schema.shout" {
		t.Errorf("announced %+v, %v", rec.Published(), err)
	}
	var s subjects.ToolSchema
	if err := json.Unmarshal([]byte(set.Definitions()["definition.shout"]), &s); err != nil || s.Name != "shout" {
		t.Errorf("definitions %v, %v", set.Definitions(), err)
	}
	bad := actor.Toolset{{Schema: subjects.ToolSchema{Name: "not.a.token"}}}
	if len(bad.Routes()) != 0 || bad.Announce(t.Context(), rec.Out()) == nil {
		t.Error("trick: a tool whose name is no token is served")
	}
}

func ExampleToolset() {
	var rec actortest.Recorder // takes the place of the bus
	set := actor.Toolset{{Schema: subjects.ToolSchema{Name: "shout", Description: "shouts", Version: "1"}}}
	for _, r := range set.Routes() {
		fmt.Println("serves", r.Spec().Subscription())
	}
	fmt.Println(set.Announce(context.Background(), rec.Out()), rec.Published()[0].Subject)
	for field := range set.Definitions() {
		fmt.Println("discovery shows", field)
	}
	// Output:
	// serves tool.request.shout
	// <nil> tool.schema.shout
	// discovery shows definition.shout
}
