package acceptance

import (
	"slices"
	"strings"
	"testing"

	"conclave/config"
	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/scriptserver"
)

// usualTools are the tools that most questions need.
var usualTools = []string{"get_datetime", "web_search", "web_fetch", "search_memory"}

// The first prompt of a question with the usual four tools has at most 900 tokens, as the shipped system renders it for
// the model server. Native calls: with the definitions of the four. Constrained calls: with all tools, which are a line
// each.
func TestFirstPromptWithFourToolsHasAtMost900Tokens(t *testing.T) {
	t.Parallel()
	for parameters, definitions := range map[string]int{"12B": len(usualTools), "1.5B": 0} {
		t.Run(parameters, func(t *testing.T) {
			t.Parallel()
			server := modeltest.New(t, scriptserver.Script{"gemma4:12b": {
				{
					Always: true, When: scriptserver.When{LastContains: "choice"},
					Reply: scriptserver.Reply{Content: `{"choice":"answer"}`},
				},
				{Always: true, Reply: scriptserver.Reply{Content: "Hello."}},
			}}, scriptserver.WithModels(scriptserver.Model{
				Name: "gemma4:12b", Family: "gemma", Parameters: parameters,
				Window: 32768, Tools: true,
			}))
			c := settings(t, "system.gateway.listen", "127.0.0.1:0")
			c.Models.Ollama.URL, c.Critic.Enabled = server.URL, false
			user := dialUser(t, up(t, c, newHome(t), config.Actors...).Bus)
			askQuestion(t, user, "s1", "hi")
			all := server.Requests()
			first := all[slices.IndexFunc(all, func(r scriptserver.Request) bool { return r.Texts == nil })]
			tools := slices.DeleteFunc(slices.Clone(first.Tools), func(tool model.Tool) bool {
				return !slices.Contains(usualTools, tool.Name)
			})
			if len(tools) != definitions {
				t.Errorf("%d of the usual tools are defined, want %d", len(tools), definitions)
			}
			for _, name := range usualTools {
				// A small model is not offered the search that ran before, and no tool for an address that is not
				// there.
				missing := definitions == 0 && (name == "search_memory" || name == "web_fetch")
				if strings.Contains(string(first.Raw), name) == missing {
					t.Errorf("%s is offered: %t", name, missing)
				}
			}
			n := loop.Estimate("", tools, first.Messages)
			t.Logf("%d tokens", n)
			if n > 900 {
				t.Errorf("the first prompt has %d tokens, want at most 900", n)
			}
		})
	}
}
