package model

import (
	"testing"

	"conclave/pkg/model"
	"conclave/subjects"
)

func TestCallModeBySizeAndSetting(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		t    target
		want string
	}{
		{"large with tools", target{info: model.Info{Tools: true, Parameters: "7.6B"}}, subjects.CallNative},
		{"unknown size", target{info: model.Info{Tools: true}}, subjects.CallNative},
		{"unreadable size", target{info: model.Info{Tools: true, Parameters: "many"}}, subjects.CallNative},
		{"small", target{info: model.Info{Tools: true, Parameters: "1.8B"}}, subjects.CallConstrained},
		{"very small", target{info: model.Info{Tools: true, Parameters: "134.52M"}}, subjects.CallConstrained},
		{"large without tool calls", target{info: model.Info{Parameters: "70B"}}, ""},
		{"small, set to native", target{
			info: model.Info{Tools: true, Parameters: "1B"},
			opts: Options{Calls: subjects.CallNative},
		}, subjects.CallNative},
		{"large, set to constrained", target{
			info: model.Info{Tools: true, Parameters: "70B"},
			opts: Options{Calls: subjects.CallConstrained},
		}, subjects.CallConstrained},
		{
			"small, set to auto",
			target{info: model.Info{Tools: true, Parameters: "1B"}, opts: Options{Calls: CallAuto}},
			subjects.CallConstrained,
		},
		{"for embeddings", target{info: model.Info{Embedding: true, Parameters: "137M"}}, ""},
		{"the demo model", target{isDemo: true}, subjects.CallNative},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := tt.t.callMode(); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}
