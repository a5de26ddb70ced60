// Package schematest checks that model servers accept the JSON schemas that a package sends. A test of this package
// walks the tree and fails when a schema is in no test that calls [Check].
package schematest

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"conclave/pkg/jsonschema"
	"conclave/pkg/model"
	"conclave/pkg/model/ollama"
	"conclave/pkg/model/scriptserver"
)

// LiveVariable is the environment variable with the address of a real Ollama. When it is set, [Check] also sends each
// schema to the smallest chat model there.
const LiveVariable = "CONCLAVE_LIVE_OLLAMA"

// Check fails the test for each schema that is not valid, or that a model server would not accept in the form in which
// the model actor sends it. The keys name the schemas in messages.
func Check(t *testing.T, schemas map[string]json.RawMessage) {
	t.Helper()
	for name, schema := range schemas {
		if _, err := jsonschema.Compile(schema); err != nil {
			t.Errorf("%s is not a valid schema: %v", name, err)
			continue
		}
		prepared := jsonschema.ForGrammar(schema)
		if err := scriptserver.CheckGrammar(prepared); err != nil {
			t.Errorf("%s: a model server fails with %q on %s", name, err, prepared)
		}
	}
	t.Run("live", func(t *testing.T) { checkLive(t, schemas) })
}

// checkLive sends each schema once to a real Ollama. The reply may be cut off, but must begin as the schema says.
func checkLive(t *testing.T, schemas map[string]json.RawMessage) {
	url := os.Getenv(LiveVariable)
	if url == "" {
		t.Skip("no real Ollama: start one with .ci/live --serve and set CONCLAVE_LIVE_OLLAMA to the address that it " +
			"prints")
	}
	backend, err := ollama.New(ollama.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer backend.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	chat, err := smallestChat(ctx, backend)
	if err != nil {
		t.Fatal(err)
	}
	for name, schema := range schemas {
		reply, _, err := model.Collect(backend.Chat(ctx, model.Request{
			Model: chat, Format: jsonschema.ForGrammar(schema),
			Messages: []model.Message{{Role: model.User, Content: "Reply with JSON."}},
			Options:  model.Options{Window: 1024, Predict: 8},
		}))
		if err != nil || reply.Content == "" || reply.Content[0] != '{' {
			t.Errorf("%s: %q, %v", name, reply.Content, err)
		}
	}
}

// smallestChat returns the name of the smallest model of a server that can chat.
func smallestChat(ctx context.Context, b model.Backend) (string, error) {
	infos, err := b.List(ctx)
	if err != nil {
		return "", err
	}
	slices.SortFunc(infos, func(a, b model.Info) int { return int(a.Size - b.Size) })
	for _, i := range infos {
		if more, err := b.Show(ctx, i.Name); err == nil && !more.Embedding {
			return i.Name, nil
		}
	}
	return "", errors.New("the server has no chat model")
}
