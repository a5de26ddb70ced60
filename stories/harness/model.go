package harness

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"

	"conclave/actors/model"
	"conclave/pkg/actor"
	"conclave/pkg/model/scriptserver"
	"conclave/pkg/story"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// embedder is the embedding model that every scripted server has.
const embedder = "nomic-embed-text"

// modelSettings returns the models section: every role of the script uses the model of its own name. A name in the
// script that is no role is a model that the story's settings use. Other roles and hints have no model, as on a machine
// where only some models were pulled.
func modelSettings(s *story.Story, url string) map[string]any {
	prefix := ""
	if s.Server.Key != "" {
		prefix = "openai/"
	}
	roles := map[string]any{subjects.RoleAssistant: prefix + "assistant", subjects.RoleEmbeddings: prefix + embedder}
	for role := range buildScript(s) {
		if slices.Contains(model.Roles, role) {
			roles[role] = prefix + role
		}
	}
	out := map[string]any{"ollama": map[string]any{"url": url}, "roles": roles, "demo_model": "never"}
	if prefix != "" {
		out["ollama"] = map[string]any{"url": unusedURL}
		out["openai"] = map[string]any{"url": url, "key": s.Server.Key}
	}
	return out
}

// buildScript returns the story's script. When it has none for the role that selects tools, that role selects every
// tool that the script names; without an assistant there is no such role either, because its model would answer in its
// place.
func buildScript(s *story.Story) scriptserver.Script {
	if s.Model[subjects.RoleAssistant] == nil || s.Model[subjects.RoleTools] != nil {
		return s.Model
	}
	names := []string{}
	for _, role := range strict.SortedKeys(s.Model) {
		for _, x := range s.Model[role] {
			names = append(names, x.When.ToolsInclude...)
			for _, c := range x.Reply.Calls {
				names = append(names, c.Name)
			}
		}
	}
	selected, _ := json.Marshal(map[string][]string{"tools": names}) // strings can always be encoded
	all := maps.Clone(s.Model)
	all[subjects.RoleTools] = []scriptserver.Exchange{{
		Reply:  scriptserver.Reply{Content: string(selected)},
		Always: true,
	}}
	return all
}

// withKey makes the model server require the credential that the story names. A credential that the story does not have
// becomes a random key, which rejects every request.
func withKey(s *story.Story) scriptserver.Option {
	value := s.Credentials[s.Server.Key]
	if value == "" {
		value = actor.NewID()
	}
	return scriptserver.WithProtocol(scriptserver.OpenAI(value))
}

// withModels describes the models whose abilities the story restricts. Abilities that it does not mention are on, and a
// window of 0 is 131072 tokens.
func withModels(s *story.Story) scriptserver.Option {
	var all []scriptserver.Model
	isSet := func(b *bool) bool { return b == nil || *b }
	for _, role := range strict.SortedKeys(s.Server.Models) {
		m := s.Server.Models[role]
		d := scriptserver.DefaultModel(role)
		d.Tools, d.Thinking, d.Vision = isSet(m.Tools), isSet(m.Thinking), m.Vision
		d.Window = cmp.Or(m.Window, d.Window)
		all = append(all, d)
	}
	return scriptserver.WithModels(all...)
}
