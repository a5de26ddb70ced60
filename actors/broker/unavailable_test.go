package broker

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/pkg/actor/actortest"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// TestSpawnedAgentGetsNoToolWithoutBackend: a tool whose process says that its backend does not answer is left out,
// with the reason, for an agent that was spawned, and offered in front of the user, where a failed call tells the
// reason.
func TestSpawnedAgentGetsNoToolWithoutBackend(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ why, want string }{
		{"no SearXNG answers;\nstart it", "no SearXNG answers; start it"},
		{"", ""},
	} {
		h := newSessionFixture(t, func(h *sessionFixture) {
			h.facts = func(all map[string]policy.Tool) {
				f := all["web_search"]
				f.Backend = true
				all["web_search"] = f
			}
		})
		h.rec.Reply = func(subject string, body []byte) (any, error) {
			if strings.HasSuffix(subject, ".INFO.web_search") {
				return map[string]any{"metadata": map[string]string{"unavailable": tt.why}}, nil
			}
			return h.answerAll(subject, body)
		}
		h.addEmptyTurn("s1", "q1")
		child := h.mustSpawn(t, "generator", "s1", subjects.SpawnRequest{Type: "researcher"})
		for who, spawned := range map[string]bool{"generator": false, child: true} {
			account, path, _ := strings.Cut(who, ".")
			raw, err := h.rec.Deliver(t, h, actortest.Message{
				Subject: strings.TrimSuffix("agent."+account+".broker.discover."+path, "."),
				Session: "s1", Query: "q1", Body: subjects.DiscoverRequest{Max: maxTools},
				Deadline: noon.Add(time.Minute),
			})
			if err != nil {
				t.Fatal(err)
			}
			var got subjects.DiscoverReply
			if err := json.Unmarshal([]byte(raw), &got); err != nil {
				t.Fatal(err)
			}
			var missing []subjects.UnavailableTool
			if spawned && tt.want != "" {
				missing = []subjects.UnavailableTool{{Name: "web_search", Why: tt.want}}
			}
			isOffered := slices.ContainsFunc(got.Tools, func(s subjects.ToolSchema) bool {
				return s.Name == "web_search"
			})
			if !slices.Equal(got.Unavailable, missing) || isOffered != (missing == nil) {
				t.Errorf("%q, %s: offered %t, unavailable %+v", tt.why, who, isOffered, got.Unavailable)
			}
		}
	}
}
