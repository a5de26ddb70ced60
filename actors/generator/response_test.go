package generator

import (
	"slices"
	"testing"

	"conclave/pkg/loop"
	"conclave/pkg/model"
)

// A tool of which no call gave a result is named under the answer, with the reason of its last call.
func TestToolsWithoutResultAreNoted(t *testing.T) {
	t.Parallel()
	call := func(tool, fault, text string) loop.FinishedCall {
		return loop.FinishedCall{Call: model.Call{Name: tool}, Result: loop.Result{Text: text, Fault: fault}}
	}
	for _, tt := range []struct {
		name  string
		calls []loop.FinishedCall
		want  []string
	}{
		{"no call", nil, nil},
		{"a result", []loop.FinishedCall{call("web_search", "", "news")}, nil},
		{
			"two failures, the last counts",
			[]loop.FinishedCall{call("web_search", "tool", "a"), call("web_search", "tool", "start SearXNG\nat once")},
			[]string{`web_search gave no result: "start SearXNG at once"`},
		},
		{
			"a failure and a result of the same tool",
			[]loop.FinishedCall{call("web_search", "tool", "a"), call("web_search", "", "news")},
			nil,
		},
		{
			"a result of another tool",
			[]loop.FinishedCall{call("web_search", "denied", "not allowed"), call("get_datetime", "", "noon")},
			[]string{`web_search gave no result: "not allowed"`},
		},
	} {
		var got []string
		for _, n := range noteFailedCalls(tt.calls) {
			got = append(got, n.Text)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
