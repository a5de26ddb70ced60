package generator

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"conclave/pkg/actor"
	"conclave/pkg/model/wire"
	"conclave/subjects"
)

func TestModelErrorsAreExplained(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ code, text, want string }{
		{subjects.CodeModelUnreachable, "the model server is unreachable: no connection to http://localhost:11434; " +
			"start it with: ollama serve", "The model server is unreachable: no connection to " +
			"http://localhost:11434; start it with: ollama serve."},
		{
			subjects.CodeModelUnreachable, "the model server is unreachable at llama.example: connection refused; is " +
				"it running?", "The model server is unreachable at llama.example: connection refused; is it running? " +
				"Start that server, then ask again",
		},
		{
			subjects.CodeModelMissing, "model not found: x; fetch it with: conclave model pull x",
			"fetch it with: conclave model pull x.",
		},
		{subjects.CodeModelMissing, "model not found", "Fetch it with: conclave model pull"},
		{subjects.CodeModelRemote, "the request would leave this machine: x:cloud", "Nothing was sent."},
		{subjects.CodeModelKey, "the model server requires a valid key", "conclave secret set"},
		{subjects.CodeModelTooLong, "the prompt exceeds the model's context window", "new session"},
		{subjects.CodeUnsupported, "not supported by the backend", "models.yaml"},
		{subjects.CodeTimeout, "no answer from model.chat in time", "The model did not answer in time."},
		{subjects.CodeInternal, "model failed; its log says why", "Ask again."},
	} {
		t.Run(tt.code+" "+tt.text, func(t *testing.T) {
			t.Parallel()
			f, words := explain(wire.DecodeError(actor.ReplyFault(subjects.Faultf(tt.code, "%s", tt.text))))
			if f.Code != tt.code || !strings.Contains(words, tt.want) || strings.Contains(words, "\n") {
				t.Errorf("%+v, %q", f, words)
			}
		})
	}
	for _, tt := range explanations {
		if f, words := explain(fmt.Errorf("deep inside: %w", tt.Err)); f.Code != tt.Code || words == "" ||
			f.Text == "" {
			t.Errorf("%v: %+v, %q", tt.Err, f, words)
		}
	}
	f, words := explain(errors.New("secret inside"))
	if f.Code != subjects.CodeInternal || strings.Contains(words+f.Text, "secret") {
		t.Errorf("an unknown error is told as %+v, %q", f, words)
	}
}

// A permanent model error is explained in the answer.
func TestModelErrorIsAnswered(t *testing.T) {
	t.Parallel()
	w := newHarness(t, subjects.Faultf(subjects.CodeModelMissing, "model not found: x; fetch it with: conclave model "+
		"pull x"))
	if err := w.ask(New(subjects.Generator, shippedConfig()), "s1", "q1", "Hello?", 1); err != nil {
		t.Fatal(err)
	}
	if r := w.onlyResponse(); r.Error == nil || r.Error.Code != subjects.CodeModelMissing ||
		r.Answer != "Model not found: x; fetch it with: conclave model pull x." {
		t.Errorf("answer: %+v", r)
	}
	if got := w.statePath(); got != "IDLE RECEIVING GENERATING PUBLISHING IDLE" {
		t.Errorf("states: %s", got)
	}
	w.requireNoErrors()
}
