package callcheck

import (
	"encoding/json"
	"testing"

	"conclave/pkg/model"
)

func TestRepliesAreJudged(t *testing.T) {
	t.Parallel()
	call := func(name, arguments string) model.Message {
		return model.Message{Calls: []model.Call{{Name: name, Arguments: json.RawMessage(arguments)}}}
	}
	steps := Steps()
	for _, s := range steps {
		if !s.Passes(s.Reply) {
			t.Errorf("the right reply to %q does not pass", s.Messages[1].Content)
		}
		if found, ok := Find(s.Request()); !ok || found.Reply.Content != s.Reply.Content {
			t.Errorf("%q is not found", s.Messages[1].Content)
		}
	}
	for name, tt := range map[string]struct {
		step  int
		reply model.Message
		want  bool
	}{
		"another spelling of the values": {1, call("set_lamp", `{"room":" Kitchen","on":"False"}`), true},
		"a further argument":             {0, call("parcel_status", `{"parcel":"ZX-4471","verbose":true}`), true},
		"no call":                        {0, model.Message{Content: "I will look it up."}, false},
		"the call as text": {
			0,
			model.Message{Content: `{"name":"parcel_status","arguments":{"parcel":"ZX-4471"}}`},
			false,
		},
		"another tool":                {0, call("set_lamp", `{"parcel":"ZX-4471"}`), false},
		"a wrong value":               {1, call("set_lamp", `{"room":"kitchen","on":true}`), false},
		"a missing argument":          {1, call("set_lamp", `{"room":"kitchen"}`), false},
		"arguments that are not JSON": {0, call("parcel_status", `{`), false},
		"the call twice": {
			0,
			model.Message{Calls: append(call("parcel_status", `{"parcel":"ZX-4471"}`).Calls,
				call("parcel_status", `{"parcel":"ZX-4471"}`).Calls...)},
			false,
		},
		"a call that is not needed":       {2, call("parcel_status", `{"parcel":"2+2"}`), false},
		"a wrong answer":                  {2, model.Message{Content: "It is 5."}, false},
		"the call again after its result": {3, call("parcel_status", `{"parcel":"ZX-4471"}`), false},
		"an answer without the result":    {3, model.Message{Content: "I do not know."}, false},
	} {
		if got := steps[tt.step].Passes(tt.reply); got != tt.want {
			t.Errorf("%s: passes %t", name, got)
		}
	}
	if _, ok := Find(model.Request{Messages: []model.Message{{Role: model.User, Content: "hi"}}}); ok {
		t.Error("a question is taken for a part of the test")
	}
}
