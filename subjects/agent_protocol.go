package subjects

import "slices"

// AgentsHeartbeat is the heartbeat of the agent protocol. Its field names are the protocol's.
type AgentsHeartbeat struct {
	Agent           string `json:"agent"`
	Owner           string `json:"owner"`
	Session         string `json:"session"`
	InstanceID      string `json:"instance_id"`
	Time            string `json:"ts"` // RFC 3339, UTC
	IntervalSeconds int    `json:"interval_s"`
	ProtocolVersion string `json:"protocol_version"`
}

// agentProtocolEdges let callers use the agent protocol at the gateway. The owner in a local subject is the caller's
// own account: the server denies the subjects of another owner, and imports no heartbeat of one. A client of the
// protocol subscribes to the heartbeats of all owners, and receives its own.
func agentProtocolEdges(callers []string) []Edge {
	return []Edge{
		{
			Callers: callers, Kind: ServiceImport, Owner: "gateway", Remote: "client.<who>.agents.prompt.*.*",
			Local: "agents.prompt.*.<who>.*", StreamReply: true, ReplyTimeout: "30m",
		},
		{
			Callers: callers, Kind: ServiceImport, Owner: "gateway", Remote: "client.<who>.agents.status.*.*",
			Local: "agents.status.*.<who>.*", ReplyTimeout: "30s",
		},
		{
			Callers: callers, Kind: ServiceImport, Owner: "gateway", Remote: "client.<who>.agents.srv.*",
			Local: AgentsService.Name, StreamReply: true, ReplyTimeout: "5s",
		},
		{
			Callers: callers, Kind: ServiceImport, Owner: "gateway", Remote: "client.<who>.agents.srv.*.*",
			Local: AgentsInstance.Name, StreamReply: true, ReplyTimeout: "5s",
		},
		{
			Callers: callers, Kind: StreamImport, Owner: "gateway", Remote: "client.<who>.agents.hb.*.*",
			Local: "agents.hb.*.<who>.*", Permission: []string{"agents.hb.*.*.*"},
		},
	}
}

// agentReplyEdge lets the user decide approvals in a stream of the agent protocol. Clients have no such edge: a
// decision is the user's.
func agentReplyEdge() Edge {
	return Edge{
		Callers: []string{"user"}, Kind: ServiceImport, Owner: "gateway", Remote: "client.<who>.agents.reply.*",
		Local: "agents.reply.<who>.*", ReplyTimeout: "30s",
	}
}

// isClientEdge reports whether a run-time client may have the edge e: questions, and nothing else.
func isClientEdge(e Edge) bool {
	return e.Owner == "gateway" &&
		(e.Remote == askRemote || slices.ContainsFunc(agentProtocolEdges(nil), func(p Edge) bool {
			return p.Remote == e.Remote && p.Local == e.Local && p.Kind == e.Kind
		}))
}
