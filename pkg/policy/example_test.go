package policy_test

import (
	"context"
	"encoding/json"
	"fmt"

	"conclave/pkg/policy"
	"conclave/subjects"
)

// A chain of layers decides a call; a denial names the layer, the rule and the reason.
func Example() {
	m, err := policy.ParseManifest([]byte("types:\n  assistant:\n    tools: [get_datetime]\naccounts:\n  generator: "+
		"assistant\n"), "manifest.yaml")
	if err != nil {
		fmt.Println(err)
		return
	}
	chain := m.Chain(policy.Env{Home: "/home/user"})
	for _, tool := range []string{"get_datetime", "web_search"} {
		d := chain.Decide(context.Background(), policy.Call{
			Caller: subjects.Caller{Account: "generator"}, Type: "assistant",
			Tool:   policy.Tool{Name: tool, Known: true, Effects: policy.Declare()},
			Schema: json.RawMessage(`{"type":"object"}`), Args: json.RawMessage(`{}`),
		})
		if denial := d.Denial(); denial != nil {
			fmt.Printf("%s: denied by %s.%s: %s\n", tool, denial.Layer, denial.Rule, denial.Reason)
			continue
		}
		fmt.Printf("%s: allowed: %t\n", tool, d.Allowed())
	}
	// Output:
	// get_datetime: allowed: true
	// web_search: denied by manifest.not_in_set: the manifest does not give "web_search" to agents of type "assistant"
}
