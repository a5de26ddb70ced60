package broker

import (
	"encoding/json"
	"slices"
	"testing"

	"conclave/pkg/policy"
	"conclave/subjects"
)

// TestEgressOfACall: whether a call sent data off this machine follows from the facts of its tool and from where it
// runs.
func TestEgressOfACall(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t)
	build := func(name string) Known {
		k, ok := h.table.build[name]
		if !ok {
			t.Fatalf("no tool %s", name)
		}
		return k
	}
	elsewhere := func(k Known) Known {
		k.Zone = "tools_box"
		return k
	}
	added := func(name string, effects policy.Effects) Known {
		return Known{Tool: policy.Tool{Name: name, Zone: "weather", Known: true, Effects: effects}}
	}
	failed := subjects.Faultf(subjects.CodeTool, "failed")
	for _, tt := range []struct {
		name  string
		k     Known
		args  string
		fault *subjects.Fault
		want  string
		to    []string
	}{
		{"no network", build("get_datetime"), `{}`, nil, subjects.EgressNone, nil},
		{"no network, failed", build("get_datetime"), `{}`, failed, subjects.EgressNone, nil},
		{"on another machine", elsewhere(build("get_datetime")), `{}`, nil, subjects.EgressSent, []string{"box"}},
		{"search", build("web_search"), `{"query":"fish"}`, nil, subjects.EgressSent, nil},
		{"search that failed", build("web_search"), `{"query":"fish"}`, failed, subjects.EgressUnknown, nil},
		{
			"page", build("web_fetch"), `{"url":"https://example.org:443/a"}`, nil, subjects.EgressSent,
			[]string{"example.org"},
		},
		{"own tool that sends", added("forecast", policy.Declare(policy.Egress)), `{}`, nil, subjects.EgressSent, nil},
		{
			"own tool that reads", added("forecast", policy.Declare(policy.ReadsPrivate)), `{}`, nil,
			subjects.EgressNone,
			nil,
		},
		{
			"own tool without effects declared", added("forecast", policy.Effects{}), `{}`, nil, subjects.EgressUnknown,
			nil,
		},
		{
			"trick: unknown tool",
			Known{Tool: policy.Tool{Name: "forecast", Effects: policy.Declare()}},
			`{}`, nil,
			subjects.EgressUnknown, nil,
		},
		{"MCP server that sends", added("mcp_a_b", policy.Declare(policy.Egress)), `{}`, nil, subjects.EgressSent, nil},
		{
			"trick: an MCP server with a network that declares a read",
			added("mcp_a_b", policy.Declare(policy.ReadsPrivate)), `{}`, nil, subjects.EgressUnknown, nil,
		},
	} {
		res := subjects.ToolResult{Error: tt.fault}
		h.setEgress(&res, json.RawMessage(tt.args), tt.k)
		if res.Egress != tt.want || !slices.Equal(res.Destinations, tt.to) {
			t.Errorf("%s: %s %v, want %s %v", tt.name, res.Egress, res.Destinations, tt.want, tt.to)
		}
	}
}
