package respondent

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// A response that is too large is shrunk, with a note.
func TestResponseIsShrunk(t *testing.T) {
	t.Parallel()
	const most = 640 << 10
	small := subjects.Response{Query: "q", Answer: "a"}
	if got := ShrinkResponse(small, most); fmt.Sprint(got) != fmt.Sprint(small) {
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
		got := ShrinkResponse(r, most)
		data, err := actor.EncodeValue(got)
		if err != nil || len(data) > most || len(got.Notes) != 1 || got.Notes[0].Code != subjects.NoteRecordCut ||
			got.Answer == "" {
			t.Errorf("%s: %v, %d bytes, notes %v", name, err, len(data), got.Notes)
		}
		if after, _ := actor.EncodeValue(r); string(after) != string(before) {
			t.Errorf("%s: the original was changed", name)
		}
	}
}
