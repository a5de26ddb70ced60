package model_test

import (
	"encoding/json"
	"strings"
	"testing"

	"conclave/pkg/model/scriptserver"
	"conclave/subjects"
)

// A schema that would kill a real server's runner is sent without the bounds that no grammar holds.
func TestSchemaIsPrepared(t *testing.T) {
	t.Parallel()
	w := newHarness(t, always("big"), nil)
	r := w.ask(subjects.ChatRequest{Format: json.RawMessage(
		`{"type":"object","properties":{"plan":{"type":"string","minLength":1,"maxLength":4000,"pattern":"x"}}}`)})
	if r.err != nil || !r.last.Done {
		t.Fatalf("%v, %+v", r.err, r.last)
	}
	want := `{"type":"object","properties":{"plan":{"type":"string","minLength":1}}}`
	if got := string(w.srv.Requests()[0].Format); got != want {
		t.Errorf("the server got %s, want %s", got, want)
	}
}

// A server that fails on a schema is asked once more without it, and the user is told why.
func TestSchemaIsLeftOutAfterFailure(t *testing.T) {
	t.Parallel()
	schema := json.RawMessage(`{"type":"object","properties":{"a":{"type":"string"}}}`)
	for name, c := range map[string]struct {
		failures []string
		schema   json.RawMessage
		code     string
		asked    int
	}{
		"the runner died":        {[]string{scriptserver.RunnerDied}, schema, "", 2},
		"the schema is rejected": {[]string{"invalid JSON schema in format"}, schema, "", 2},
		"it dies without it too": {
			[]string{scriptserver.RunnerDied, scriptserver.RunnerDied}, schema, subjects.CodeModelRunner, 2,
		},
		"there is no schema": {
			[]string{"llama runner process has terminated: signal: killed"}, nil, subjects.CodeModelRunner, 1,
		},
		"another failure":         {[]string{"CUDA out of memory"}, schema, subjects.CodeUnavailable, 1},
		"nothing fails, one call": {nil, schema, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var script []scriptserver.Exchange
			for _, text := range c.failures {
				script = append(script, scriptserver.Exchange{Reply: scriptserver.Reply{
					Quirks: scriptserver.Quirks{Status: 500, ErrorLine: text},
				}})
			}
			script = append(script, scriptserver.Exchange{Reply: scriptserver.Reply{Content: `{"a":"b"}`}})
			w := newHarness(t, scriptserver.Script{"big": script}, nil)
			r := w.ask(subjects.ChatRequest{Format: c.schema})
			requests := w.srv.Requests()
			if r.code() != c.code || len(requests) != c.asked {
				t.Fatalf("%v after %d requests, want %q after %d", r.err, len(requests), c.code, c.asked)
			}
			if c.asked == 2 && (len(requests[0].Format) == 0 || len(requests[1].Format) > 0) {
				t.Error("the second request has the schema")
			}
			if c.code == subjects.CodeModelRunner && !strings.Contains(r.err.Error(), "log") {
				t.Errorf("the error does not say what to do: %v", r.err)
			}
			notice := ""
			for _, p := range r.pieces {
				notice += p.Notice
			}
			if told := strings.Contains(notice, "without the JSON schema"); told != (c.asked == 2) {
				t.Errorf("the notice is %q", notice)
			}
			if n := len(w.records); n != 2 {
				t.Errorf("%d audit records, want one call", n)
			}
			_ = w.srv.Err()
		})
	}
}
