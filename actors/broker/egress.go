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
	sends := b.sendsData(k.Tool)
	switch {
	case b.isElsewhere(k.Tool):
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

// isElsewhere reports whether a tool of this build runs on another machine.
func (b *Broker) isElsewhere(t policy.Tool) bool {
	home, ours := b.table.build[t.Name]
	return ours && home.Zone != t.Zone
}

// sendsData reports whether a tool sends data off this machine when it runs or makes a preview: by its effects, which
// an unknown tool has all of, or because it gets its arguments on another machine.
func (b *Broker) sendsData(t policy.Tool) bool {
	return t.Has(policy.Egress) || t.Has(policy.Fetch) || b.isElsewhere(t)
}

// unrunEgress is the egress of a call that was denied or not recorded: none, unless a preview of it ran that may send
// data. j is nil for a call that no layer judged.
func (b *Broker) unrunEgress(j *stage.Judged) string {
	if j != nil && j.Previewed() && b.sendsData(j.Facts().Tool) {
		return subjects.EgressUnknown
	}
	return subjects.EgressNone
}
