package generator

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"conclave/pkg/actor"
	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/subjects"
)

// A response that is too large is shrunk, with a note.
func TestResponseIsShrunk(t *testing.T) {
	t.Parallel()
	small := subjects.Response{Query: "q", Answer: "a"}
	if got := shrinkResponse(small); fmt.Sprint(got) != fmt.Sprint(small) {
		t.Errorf("a small one became %+v", got)
	}
	calls := []subjects.ToolCall{{
		Tool: "a", Args: json.RawMessage(`"` + strings.Repeat("x", 300<<10) + `"`),
		Result: strings.Repeat("y", 500<<10),
	}}
	for name, r := range map[string]subjects.Response{
		"results":  {Answer: "a", ToolCalls: calls},
		"thinking": {Answer: "a", Thinking: strings.Repeat("\x01", 120<<10)},
		"question": {Answer: "a", Query: strings.Repeat("z", 700<<10)},
		"answer":   {Answer: strings.Repeat("z", 700<<10)},
		"many": {
			Answer: "a",
			ToolCalls: slices.Repeat(
				[]subjects.ToolCall{{Tool: strings.Repeat("t", 1000), Result: strings.Repeat("y", 1000)}}, 1000),
		},
	} {
		before, _ := actor.EncodeValue(r)
		got := shrinkResponse(r)
		data, err := actor.EncodeValue(got)
		if err != nil || len(data) > maxResponse || !slices.Contains(noteCodes(got.Notes), subjects.NoteRecordCut) ||
			got.Answer == "" {
			t.Errorf("%s: %v, %d bytes, notes %v", name, err, len(data), got.Notes)
		}
		if after, _ := actor.EncodeValue(r); string(after) != string(before) {
			t.Errorf("%s: the original was changed", name)
		}
	}
}

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
