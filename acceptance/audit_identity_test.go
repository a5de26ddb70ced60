package acceptance

import (
	"slices"
	"testing"

	"conclave/config"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/client"
	"conclave/subjects"
)

// TestEveryRecordNamesTypeAndLineage asks a question, which reads and writes memory and calls a model for several
// callers. Every record names the agent type and the lineage of the account that the server attested.
func TestEveryRecordNamesTypeAndLineage(t *testing.T) {
	t.Parallel()
	server := onlyModels(t)
	c := settings(t, "system.gateway.listen", "127.0.0.1:0")
	c.Models.Ollama.URL = server.URL
	home := newHome(t)
	r := up(t, c, home, config.Actors...)
	user := dialUser(t, r.Bus)
	q, err := user.Ask(t.Context(), client.Question{Session: "s1", Text: "hi", Timeout: testTimeout})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if response, err := q.Wait(); err != nil || response.Error != nil {
		t.Fatal(err, response.Error)
	}
	awaitStored(t, user, q.ID)
	if res := dialOperator(t, r.Bus).callTool(t.Context(), "search_memory", "c1", `{"query":"hi"}`); res.Error != nil {
		t.Fatal(res.Error)
	}
	types := map[string]string{
		"generator": "assistant", "operator": "operator", "user": "user", "gateway": "user", "critic": "actor",
		"memory": "actor", "broker": "actor", "reward": "actor",
	}
	seen := map[string]bool{}
	for _, m := range bustest.ReadAuditLog(t, r.Bus) {
		for _, rec := range decoded(t, m) {
			if rec.Phase == subjects.AuditOpen {
				continue
			}
			seen[rec.Action+" "+rec.AgentID] = true
			if want := types[rec.AgentID]; rec.AgentType != want || want == "" ||
				!slices.Equal(rec.Lineage, []string{rec.AgentID}) {
				t.Errorf("%s: %s of %q has type %q, want %q, and lineage %v", m.Subject, rec.Action, rec.AgentID,
					rec.AgentType, want, rec.Lineage)
			}
		}
	}
	for _, want := range []string{
		"model.chat generator", "model.chat critic", "model.embed memory",
		"memory.write generator", "memory.read operator", "tool.call operator",
	} {
		if !seen[want] {
			t.Errorf("no record of %s: %v", want, seen)
		}
	}
	verified(t, home, r.Bus)
}
