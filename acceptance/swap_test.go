package acceptance

import (
	"fmt"
	"slices"
	"testing"

	"conclave/config"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/scriptserver"
)

// A server with room for one model, the shipped settings, and a grading and an embedding model installed: each of the
// two may unload the assistant's twice (the first time unnoticed, when the other one had unloaded it just before), and
// from then on twenty questions with grades and memory load no other one.
func TestTwentyQuestionsSwapNoModel(t *testing.T) {
	t.Parallel()
	server := modeltest.New(t, scriptserver.Script{"gemma4:12b": {
		{
			Always: true, When: scriptserver.When{Contains: []string{"[RESULT]"}},
			Reply: scriptserver.Reply{Content: "Feedback: Polite. [RESULT] 4"},
		},
		{Always: true, Reply: scriptserver.Reply{Content: "Hello."}},
	}, "prometheus:7b": {{Always: true, Reply: scriptserver.Reply{Content: "Feedback: Polite. [RESULT] 4"}}}},
		scriptserver.WithCapacity(1))
	c := settings(t, "system.gateway.listen", "127.0.0.1:0")
	c.Models.Ollama.URL = server.URL
	user := dialUser(t, up(t, c, newHome(t), config.Actors...).Bus)
	settled := scriptserver.Stats{}
	for i := range 20 {
		response := askQuestion(t, user, fmt.Sprintf("s%d", i/5), fmt.Sprintf("What is %d times seven?", i))
		if i%5 == 0 || i == 19 {
			awaitStored(t, user, response.QueryID)
		}
		if i == 5 {
			settled = server.Stats()
		}
	}
	s := server.Stats()
	t.Logf("%d chats, %d loads, %d of them after six questions", s.Started, s.Loads, s.Loads-settled.Loads)
	if settled.Swaps > 7 || s.Loads != settled.Loads {
		t.Errorf("after six questions %d loads and %d swaps, at the end %d and %d", settled.Loads, settled.Swaps,
			s.Loads, s.Swaps)
	}
	graded := slices.ContainsFunc(server.Requests(), func(r scriptserver.Request) bool {
		return r.Model == "gemma4:12b" && len(r.Tools) == 0 && r.Texts == nil
	})
	if !graded {
		t.Error("no grade and no digest was requested")
	}
}
