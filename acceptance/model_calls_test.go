package acceptance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"conclave/config"
	"conclave/pkg/bus"
	"conclave/pkg/client"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/scriptserver"
	"conclave/subjects"
)

// onlyModels is a model server with the shipped assistant's model and embedding model.
func onlyModels(t *testing.T) *scriptserver.Server {
	t.Helper()
	return modeltest.New(t, scriptserver.Script{"gemma4:12b": {
		{
			Always: true, When: scriptserver.When{LastContains: "Choose the tools"},
			Reply: scriptserver.Reply{Content: `{"tools":["get_datetime"]}`},
		},
		{
			Always: true, When: scriptserver.When{Contains: []string{"[RESULT]"}},
			Reply: scriptserver.Reply{Content: "Feedback: Polite. [RESULT] 4"},
		},
		{Always: true, Reply: scriptserver.Reply{Content: "Hello."}},
	}}, scriptserver.WithModels(
		scriptserver.Model{Name: "gemma4:12b", Family: "gemma", Parameters: "12B", Window: 131072, Tools: true},
		scriptserver.Model{Name: "nomic-embed-text", Embedding: true, Window: 8192},
	))
}

// modelCost is what the requests to a model server cost, at four bytes per token.
type modelCost struct {
	chats, tokens, models int // models: distinct chat models, each of which the server must load
	purposes              []string
}

// measureCost adds up chat requests. Embeddings are not chats.
func measureCost(requests []scriptserver.Request) (c modelCost) {
	var models []string
	for _, r := range requests {
		if r.Texts != nil {
			continue
		}
		size := 0
		for _, m := range r.Messages {
			size += len(m.Content) + 12
		}
		for _, tool := range r.Tools {
			size += len(tool.Name) + len(tool.Description) + len(tool.Parameters)
		}
		c.chats++
		c.tokens += size / 4
		models = append(models, r.Model)
		first, _, _ := strings.Cut(r.Messages[0].Content, "\n")
		c.purposes = append(c.purposes, fmt.Sprintf("%d tokens, %d tools: %.50s", size/4, len(r.Tools), first))
	}
	slices.Sort(models)
	c.models = len(slices.Compact(models))
	return c
}

// untilAnswer returns the requests up to the one that generated the answer, the only kind with tools. Memory and the
// critic send theirs after the answer.
func untilAnswer(requests []scriptserver.Request) []scriptserver.Request {
	for i, r := range slices.Backward(requests) {
		if len(r.Tools) > 0 {
			return requests[:i+1]
		}
	}
	return nil
}

// countDescriptions counts the requests by which memory has answers described.
func countDescriptions(requests []scriptserver.Request) (n int) {
	for _, r := range requests {
		if len(r.Messages) > 0 && strings.HasPrefix(r.Messages[0].Content, "You file a question and its answer") {
			n++
		}
	}
	return n
}

// awaitStored waits until the answer to query has a grade and is in memory.
func awaitStored(t *testing.T, c *client.Client, query string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	w, err := c.Watch(ctx, ">", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	waiting := map[string]bool{"critique.result": true, "memory.stored": true}
	for e, err := range w.Events(ctx) {
		if err != nil {
			t.Fatalf("waiting for %v: %v", waiting, err)
		}
		if e.Query == query {
			delete(waiting, e.Subject)
		}
		if len(waiting) == 0 {
			return
		}
	}
}

// dialUser returns a client with the user's key until the test ends.
func dialUser(t *testing.T, b *bus.Bus) *client.Client {
	t.Helper()
	return dialClient(t, b, "user")
}

// askQuestion asks a question and returns the answer, which must not be an error.
func askQuestion(t *testing.T, user *client.Client, session, question string) subjects.Response {
	t.Helper()
	q, err := user.Ask(t.Context(), client.Question{Session: session, Text: question, Timeout: testTimeout})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	response, err := q.Wait()
	if err != nil || response.Error != nil {
		t.Fatal(err, response.Error)
	}
	return response
}

// A greeting to the shipped system with one chat model costs one model call before the answer: no call selects tools
// while all of them fit. The tools stay the same from question to question, so the server evaluates their definitions
// once.
func TestGreetingCostsOneModelCallBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	server := onlyModels(t)
	c := settings(t, "system.gateway.listen", "127.0.0.1:0")
	c.Models.Ollama.URL = server.URL
	r := up(t, c, newHome(t), config.Actors...)
	user := dialUser(t, r.Bus)
	var prefixes []string
	session, seen := "s1", 0
	for i, question := range []string{"hi", "What is the weather in Oslo today?"} {
		response := askQuestion(t, user, session, question)
		for _, n := range response.Notes {
			if n.Code == subjects.NoteModel {
				t.Errorf("a notice about the model: %s", n.Text)
			}
		}
		awaitStored(t, user, response.QueryID)
		if i == 0 { // in the background, before the next question
			waitFor(t, "memory has the answer described", func() bool {
				return countDescriptions(server.Requests()) == 1
			})
		}
		all := server.Requests()[seen:]
		seen += len(all)
		before := untilAnswer(all)
		cost, whole := measureCost(before), measureCost(all)
		t.Logf("%q: before the answer %d calls, %d prompt tokens; in all %d calls, %d prompt tokens, %d models\n%s",
			question,
			cost.chats, cost.tokens, whole.chats, whole.tokens, whole.models, strings.Join(whole.purposes, "\n"))
		if cost.chats != 1 {
			t.Errorf("%q cost %d model calls before the answer, want 1:\n%s", question, cost.chats,
				strings.Join(cost.purposes, "\n"))
		}
		for _, x := range before {
			if len(x.Tools) > 0 {
				names := make([]string, len(x.Tools))
				for i, tool := range x.Tools {
					names[i] = tool.Name
				}
				prefixes = append(prefixes, x.Messages[0].Content+strings.Join(names, " "))
			}
		}
	}
	if len(slices.Compact(prefixes)) != 1 {
		t.Errorf("system prompt and tools changed between questions: %q", prefixes)
	}
}
