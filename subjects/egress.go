package subjects

import (
	"cmp"
	"slices"
	"strings"
)

// Values of [ToolResult].Egress. Any other value counts as [EgressUnknown].
const (
	EgressNone    = "none"    // nothing left this machine: the call did not run, or its tool uses no network
	EgressSent    = "sent"    // the tool sent data off this machine, or runs on another one
	EgressUnknown = "unknown" // the tool may have sent data
)

// ThisMachine stands for this machine in [Usage].Hosts.
const ThisMachine = "this machine"

// AddHosts returns hosts, a list as in [Usage], with those of more that are not in it yet.
func AddHosts(hosts, more string) string {
	for h := range strings.SplitSeq(more, ", ") {
		switch {
		case h == "" || slices.Contains(strings.Split(hosts, ", "), h):
		case hosts == "":
			hosts = h
		default:
			hosts += ", " + h
		}
	}
	return hosts
}

// JoinHosts returns the list of [Usage] for hosts, of which "" is this machine.
func JoinHosts(hosts []string) (out string) {
	for _, h := range hosts {
		out = AddHosts(out, cmp.Or(h, ThisMachine))
	}
	return out
}

// DescribeEgress says for the user what left this machine for an answer: the calls that the broker's results say, and
// the prompts by the hosts of its models. A successful call of the answer without a result of the broker, and a model
// of an unknown host, may have sent something. A call that failed without one did not reach the broker.
func DescribeEgress(results []ToolResult, r Response) string {
	var sent, unknown []string
	add := func(list *[]string, name string) {
		if !slices.Contains(*list, name) {
			*list = append(*list, name)
		}
	}
	for _, t := range results {
		switch t.Egress {
		case EgressNone:
		case EgressSent:
			add(&sent, t.Tool)
		default:
			add(&unknown, t.Tool)
		}
	}
	for _, c := range r.ToolCalls {
		if c.Error == nil && !slices.ContainsFunc(results, func(t ToolResult) bool { return t.CallID == c.CallID }) {
			add(&unknown, c.Tool)
		}
	}
	for h := range strings.SplitSeq(r.Usage.Hosts, ", ") {
		switch {
		case h == "" && r.Usage.ModelCalls > 0:
			add(&unknown, "the prompt")
		case h != "" && h != ThisMachine:
			add(&sent, "the prompt (to "+h+")")
		}
	}
	unknown = slices.DeleteFunc(unknown, func(name string) bool { return slices.Contains(sent, name) })
	var parts []string
	if len(sent) > 0 {
		parts = append(parts, strings.Join(sent, ", ")+" left this machine")
	}
	if len(unknown) > 0 {
		parts = append(parts, strings.Join(unknown, ", ")+" may have left this machine")
	}
	if parts == nil {
		return "nothing left this machine"
	}
	return strings.Join(parts, "; ")
}
