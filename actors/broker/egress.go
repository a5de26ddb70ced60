package broker

import (
	"encoding/json"
	"net/url"
	"strings"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// setEgress notes in the result of a call that ran, by the tool k with args, whether it sent data off this machine, and
// to which host or machine as far as the arguments tell. It rests on the facts of the tool and on where it runs, never
// on the result:
//   - a tool that runs on another machine gets the arguments there;
//   - a tool of this build without the effects egress and fetch uses no network, and programs run in the sandbox
//     without one;
//   - a tool of the user is what its declaration says, and unknown without one;
//   - a tool of an MCP server is unknown unless its declaration says that it sends: the server may have a network.
//
// A call that sends and failed may have sent nothing, so that it is unknown.
func (b *Broker) setEgress(res *subjects.ToolResult, args json.RawMessage, k Known) {
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
		if u, err := url.Parse(requestedURL(k.Tool, args)); err == nil && u.Hostname() != "" {
			res.Destinations = []string{u.Hostname()}
		}
	default:
		res.Egress = subjects.EgressNone
	}
}

// unrunEgress is the egress of a call that was denied or not recorded: none, unless a preview of it ran that may send
// data. j is nil for a call that no layer judged.
func unrunEgress(j *stage.Judged) string {
	if j == nil || !j.Previewed() {
		return subjects.EgressNone
	}
	if t := j.Facts().Tool; t.Has(policy.Egress) || t.Has(policy.Fetch) {
		return subjects.EgressUnknown
	}
	return subjects.EgressNone
}
