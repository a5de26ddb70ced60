package acceptance

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"

	"conclave/config"
	"conclave/subjects"
)

// TestAssistantPathWithoutPersonas: the requests to the assistant's model are byte for byte the same without the
// committee, with it, and without any persona.
func TestAssistantPathWithoutPersonas(t *testing.T) {
	t.Parallel()
	ask := func(t *testing.T, over string, names []string) string {
		server := onlyModels(t)
		folder := t.TempDir()
		for name, text := range map[string]string{
			"personas.yaml": over, "memory.yaml": "enabled: false\n",
			"critic.yaml": "enabled: false\n",
		} {
			writeFile(t, filepath.Join(folder, name), []byte(text))
		}
		c, err := config.Load(folder)
		if err == nil {
			err = c.Apply(map[string]string{"system.listen": "127.0.0.1:0", "system.gateway.listen": "127.0.0.1:0"})
		}
		if err != nil {
			t.Fatal(err)
		}
		c.Models.Ollama.URL = server.URL
		r := up(t, c, newHome(t), names...)
		user := dialUser(t, r.Bus)
		for _, question := range []string{"hi", "Should I move?"} {
			askQuestion(t, user, "s1", question)
		}
		var asked []any
		for _, r := range server.Requests() {
			if r.Texts == nil {
				asked = append(asked, []any{r.Model, r.Messages, r.Tools, r.Options, r.Think, r.Format})
			}
		}
		data, err := json.Marshal(asked)
		if err != nil || len(asked) < 2 {
			t.Fatalf("%v, %d requests", err, len(asked))
		}
		return string(data)
	}
	without := ask(t, "", slices.DeleteFunc(slices.Clone(config.Actors), func(n string) bool {
		return n == subjects.Committee
	}))
	if with := ask(t, "rounds: 2\n", config.Actors); with != without {
		t.Errorf("with the committee: %s\nwithout: %s", with, without)
	}
	if none := ask(t, "active: []\npersonas: []\n", config.Actors); none != without {
		t.Errorf("without personas: %s\nwithout the committee: %s", none, without)
	}
}
