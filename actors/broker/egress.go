package broker

import (
	"net/url"
	"strings"

	"conclave/pkg/policy"
	"conclave/subjects"
)

// setEgress notes in the result of a call that ran, by the tool k, whether it sent data off this machine, and to which
// host or machine as far as the arguments tell. It rests on the facts of the tool and on where it runs, never on the
// result:
//   - a tool that runs on another machine gets the arguments there;
//   - a tool of this build without the effects egress and fetch uses no network, and programs run in the sandbox
//     without one;
//   - a tool of the user is what its declaration says, and unknown without one;
//   - a tool of an MCP server is unknown unless its declaration says that it sends: the server may have a network.
//
// A call that sends and failed may have sent nothing, so that it is unknown.
func (b *Broker) setEgress(res *subjects.ToolResult, c call, k Known) {
	_, ours := b.table.build[k.Name]
	sends := k.Has(policy.Egress) || k.Has(policy.Fetch)
	switch {
	case ours && b.table.build[k.Name].Zone != k.Zone:
		res.Egress, res.Destinations = subjects.EgressSent, []string{strings.TrimPrefix(k.Zone, "tools_")}
	case !k.Known || !k.Effects.Declared() || sends && res.Error != nil || !ours && !sends &&
		strings.HasPrefix(k.Name, subjects.MCP+"_"):
		res.Egress = subjects.EgressUnknown
	case sends:
		res.Egress = subjects.EgressSent
		if u, err := url.Parse(requestedURL(k.Tool, c.args)); err == nil && u.Hostname() != "" {
			res.Destinations = []string{u.Hostname()}
		}
	default:
		res.Egress = subjects.EgressNone
	}
}

// unrunEgress is the egress of a call that was denied or not recorded: none, unless a preview of it ran that may send
// data.
func (b *Broker) unrunEgress(c call) string {
	k, ok := b.table.get(c.tool)
	if c.previewed && (!ok || k.Has(policy.Egress) || k.Has(policy.Fetch)) {
		return subjects.EgressUnknown
	}
	return subjects.EgressNone
}
