package model_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"conclave/actors/model"
	llm "conclave/pkg/model"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/scriptserver"
	"conclave/subjects"
)

const embedSubject = "agent.memory.model.embed"

// smallEmbedder is a server whose embedding model has a window of 512 tokens, as all-minilm has.
func smallEmbedder() scriptserver.Option {
	return scriptserver.WithModels(scriptserver.Model{
		Name: "nomic-embed-text", Family: "bert", Window: 512,
		Embedding: true,
	})
}

// embeddedTexts returns the inputs of every embedding request that the server got.
func (w *harness) embeddedTexts() (out []string) {
	for _, r := range w.srv.Requests() {
		out = append(out, r.Texts...)
	}
	return out
}

// A server with a small window rejects a request with one long text as a whole. The text is split instead.
func TestLongTextIsEmbeddedInWindows(t *testing.T) {
	t.Parallel()
	w := newHarness(t, always("big"), nil, smallEmbedder())
	for name, text := range map[string]string{
		"a note of 6 KB":       strings.Repeat("where the car was parked on Monday ", 180),
		"without blanks":       strings.Repeat("x", 6<<10),
		"of another script":    strings.Repeat("\u8eca\u5eab", 1<<10),
		"denser than expected": strings.Repeat("a b c d ", 1<<10),
	} {
		var e subjects.EmbedReply
		err := w.deliver(embedSubject, subjects.EmbedRequest{Texts: []string{"car", text, "garage"}}, &e)
		if err != nil || len(e.Vectors) != 3 || len(e.Failed) != 0 || len(e.Vectors[1]) != len(e.Vectors[0]) {
			t.Errorf("%s: %v, %d vectors, failed %v", name, err, len(e.Vectors), e.Failed)
		}
	}
}

// rejecting fails a request with a text that contains poison, as Ollama does when a vector is not a number.
type rejecting struct{ llm.Backend }

func (r rejecting) Embed(ctx context.Context, name string, texts []string) (llm.Vectors, error) {
	for _, t := range texts {
		switch {
		case strings.Contains(t, "poison"):
			return llm.Vectors{}, errors.New("the Ollama server failed: unsupported value: NaN")
		case strings.Contains(t, "dense") && len(t) > 100:
			return llm.Vectors{}, llm.ErrTooLong
		}
	}
	return r.Backend.Embed(ctx, name, texts)
}

func TestOneRejectedTextDoesNotFailTheBatch(t *testing.T) {
	t.Parallel()
	srv := modeltest.New(t, always("big"))
	w := &harness{t: t, srv: srv, refuse: map[string]error{}}
	w.build(defaultConfig(srv.URL), map[string]llm.Backend{model.Ollama: rejecting{newBackend(t, srv.URL)}})
	var e subjects.EmbedReply
	err := w.deliver(embedSubject,
		subjects.EmbedRequest{Texts: []string{"one", "poison", strings.Repeat("dense ", 100)}}, &e)
	if err != nil || len(e.Vectors) != 3 || len(e.Vectors[0]) == 0 || len(e.Vectors[1]) != 0 || len(e.Vectors[2]) == 0 {
		t.Fatalf("%v, vectors %d", err, len(e.Vectors))
	}
	if len(e.Failed) != 1 || e.Failed[0].Index != 1 || !strings.Contains(e.Failed[0].Reason, "NaN") {
		t.Errorf("failed %+v", e.Failed)
	}
	if err := w.deliver(embedSubject, subjects.EmbedRequest{Texts: []string{"poison"}}, nil); err == nil {
		t.Error("a request without any vector succeeded")
	}
}

// A prefix is part of what a model was trained with, so a model without one in its settings gets plain texts.
func TestEmbeddingPrefixesBelongToTheModel(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		options         model.Options
		query, document string
	}{
		"with prefixes": {
			model.Options{QueryPrefix: "search_query: ", DocumentPrefix: "search_document: "},
			"search_query: car", "search_document: car",
		},
		"without": {model.Options{}, "car", "car"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t, always("big"), func(c *model.Config) {
				c.Models = map[string]model.Options{"nomic-embed-text": tt.options}
			})
			for _, task := range []string{subjects.EmbedQuery, subjects.EmbedDocument, ""} {
				if err := w.deliver(embedSubject, subjects.EmbedRequest{Texts: []string{"car"}, Task: task},
					nil); err != nil {
					t.Fatal(err)
				}
			}
			if got := w.embeddedTexts(); len(got) != 3 || got[0] != tt.query || got[1] != tt.document ||
				got[2] != "car" {
				t.Errorf("embedded %q", got)
			}
		})
	}
}
