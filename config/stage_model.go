package config

import (
	"encoding/json"
	"maps"

	"conclave/pkg/actor"
	"conclave/pkg/model/scriptserver"
	"conclave/pkg/story"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// The models of a stage: which there are, who they are for, and what they say.

// embedder is the model for vectors that every scripted server has. It makes them of words.
const embedder = "nomic-embed-text"

// scriptedRoles gives every role of the script the model of its own name, so that a script is kept by role. What is no role
// is the name of a model that the story's settings ask for. The model for vectors is there too. Those of other roles are not, as on a machine where only some were fetched; nor are those of hints,
// so that a role's own answers.
func scriptedRoles(s *story.Story, known map[string]string, url string) map[string]any {
	front := ""
	if s.Server.Key != "" {
		front = "openai/"
	}
	roles := map[string]any{subjects.RoleAssistant: front + "assistant", subjects.RoleEmbeddings: front + embedder}
	for role := range script(s) {
		if known[role] != "" {
			roles[role] = front + role
		}
	}
	out := map[string]any{"ollama": map[string]any{"url": url, "rest": "0s"}, "roles": roles, "demo_model": "never"}
	if front != "" {
		out["hints"] = map[string]any{"simple": front + "none", "reasoning": front + "none", "code": front + "none"}
		out["ollama"] = map[string]any{"url": nobody}
		out["openai"] = map[string]any{"url": url, "key": s.Server.Key}
	}
	return out
}

// script is what the story's models say, and what the small one says that chooses tools: those that the story is about. Which
// ones that model would choose of many is not a story's matter, unless it has a script for it. Where the assistant has no
// model it is not there either: it would answer in its place.
func script(s *story.Story) scriptserver.Script {
	if s.Model[subjects.RoleAssistant] == nil || s.Model[subjects.RoleTools] != nil {
		return s.Model
	}
	names := []string{}
	for _, role := range strict.Keys(s.Model) {
		for _, x := range s.Model[role] {
			names = append(names, x.When.ToolsInclude...)
			for _, c := range x.Reply.Calls {
				names = append(names, c.Name)
			}
		}
	}
	chosen, _ := json.Marshal(map[string][]string{"tools": names}) // texts can always be written
	all := maps.Clone(s.Model)
	all[subjects.RoleTools] = []scriptserver.Exchange{{Reply: scriptserver.Reply{Content: string(chosen)}, Always: true}}
	return all
}

// scriptedKey makes the model server ask for the credential that the story names. One that the story does not have is
// one that nobody knows.
func scriptedKey(s *story.Story) scriptserver.Option {
	value := s.Credentials[s.Server.Key]
	if value == "" {
		value = actor.NewID()
	}
	return scriptserver.WithProtocol(scriptserver.OpenAI(value))
}

// scriptedModels describes the models that are not as the server would have them by itself.
func scriptedModels(s *story.Story) scriptserver.Option {
	var all []scriptserver.Model
	yes := func(b *bool) bool { return b == nil || *b }
	for _, role := range strict.Keys(s.Server.Models) {
		m := s.Server.Models[role]
		d := scriptserver.Model{Name: role, Family: "scripted", Parameters: "1B", Window: 131072, Tools: yes(m.Tools), Thinking: yes(m.Thinking)}
		if m.Window > 0 {
			d.Window = m.Window
		}
		all = append(all, d)
	}
	return scriptserver.WithModels(all...)
}
