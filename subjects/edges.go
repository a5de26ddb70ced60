package subjects

import (
	"cmp"
	"slices"
	"strings"
	"sync"
)

// Kind of an edge.
type Kind string

const (
	// ServiceImport is a request: the caller publishes, the owner receives and replies.
	ServiceImport Kind = "service"
	// StreamImport is a subscription: the owner publishes, the caller receives.
	StreamImport Kind = "stream"
)

// Edge lets Callers reach Owner's subject Remote under their local name Local. The export, the import and the client's
// permission are generated from it.
//
// Remote may hold "<who>": the server writes the caller's account there, and rejects a configuration in which another
// account claims that token. Identity is a fact of routing, not a claim.
type Edge struct {
	Callers      []string
	Kind         Kind
	Owner        string
	Remote       string
	Local        string   // "" = Remote
	Permission   []string // client permission, where narrower than Local
	StreamReply  bool     // several replies; an empty message without headers ends them
	ReplyTimeout string   // longest wait for a reply, or between two replies
}

// User is one key of an account.
type User struct {
	Role     string // name of the key file and of the variable $NK_<role>
	Key      string // public key of a run-time principal; "" = the variable
	Leaf     bool   // connects as a leaf node only: a machine
	Pub      []string
	Sub      []string
	Boot     bool // exists only while the streams are created
	Isolated bool // has none of the account's edges: only Pub and Sub
}

// Account is one principal, or a stream account without clients.
type Account struct {
	Name   string
	Doc    string
	Store  string // JetStream limits; stream accounts only
	Serves bool   // replies to requests
	// MaxConns is the largest number of connections. All accounts together have fewer than the server allows, so that
	// no account can take the connections of another.
	MaxConns int
	MaxLeafs int // leaf node connections, one per machine; 0 = none
	Users    []User
	// Principal is the kind of the run-time principal that the account belongs to; "" = an account of the table.
	Principal PrincipalKind
}

// Layout is the complete table of the bus.
type Layout struct {
	Accounts  []Account
	Edges     []Edge
	Streams   []Stream
	Consumers []Consumer
}

// Stream accounts and the system account. They have no clients after boot, because JetStream publishes to any reply
// subject with the account's own permissions.
const (
	Core  = "CORE"
	Audit = "AUDIT"
	Sys   = "SYS"
)

var (
	// Agents request tool calls.
	Agents = []string{"generator", "respondent_b", "committee", "orchestrator", "operator"}
	// Respondents publish answers and store state between messages.
	Respondents = []string{"generator", "respondent_b", "committee", "orchestrator"}
	// VisibleRespondents are those whose answers the user sees.
	VisibleRespondents = slices.DeleteFunc(slices.Clone(Respondents), func(a string) bool { return a == RespondentB })
	// UserAccounts are the accounts that act for the user.
	UserAccounts = []string{"user", "gateway"}
	// Actors are the accounts of one actor each: they publish dead letters. Not tools, which reach nothing.
	Actors = []string{
		Registry, "broker", "memory", "critic", "reward", "model", "secrets", "router", "gateway",
		"generator", "respondent_b", "committee", "orchestrator", MCP,
	}
	// AuditWriters append to the audit log, each under its own account. Respondents that act on a model's text do not:
	// a writer can fill the log, and then no call runs.
	AuditWriters = []string{"broker", "memory", "secrets", "model", "orchestrator", "gateway", Registry}
	// Tools of this machine, one account each.
	Tools = []string{
		"get_datetime", "web_search", "web_fetch", "fs_read", "fs_write", "fs_list", "fs_search",
		"run_code", "run_shell", "package_install", "academic_search", "get_location", "calendar_read", "calendar_add",
		"notes_read", "notes_add",
	}
	// CredentialTools are the tools that may use a credential.
	CredentialTools = []string{"web_search"}
	// Zones are groups of tools, by the name that the broker calls them under: the account that serves them, or the
	// tools of this machine.
	Zones = map[string][]string{
		"tools":  Tools,
		"memory": {"search_memory", "save_memory", "search_knowledge_graph"},
		"critic": {"compare_answers"},
		"reward": {"give_feedback"},
	}
	zoneOrder = []string{"tools", "memory", "critic", "reward"}
	// configurable actors serve config.set for the user and record the change in the audit log.
	configurable = AuditWriters
	// republished are the subjects that the user's accounts can watch, without the author.
	republished = []string{
		"query.received", "query.committee", "query.task",
		"response.generation", "answer.dialog", "agent.state.>", "agent.return.*", "tool.request.>", "tool.result.*",
		"approval.request.*", "approval.decision.*", "critique.result", "pairwise.result", "user.feedback",
		"reward.event", "auditlog.head",
		"memory.stored", "memory.annotated", "memory.recalled", "committee.deliberation.*", "task.progress.*",
		"query.cancel.*", "query.grants.*", "dead.*", "audit.capacity",
	}
)

// Partitions of TURNS: order is kept within a session, and sessions are spread over this many consumers.
const Partitions = 16

// respondentBConsumers is the number of consumers of respondent B. No user waits for it, and each consumer adds ten
// milliseconds to the server's shutdown.
const respondentBConsumers = 4

// ToolRole is the role and the account of a tool of this machine.
func ToolRole(tool string) string { return "tool_" + tool }

// ZoneAccount is the account that serves a tool of a zone.
func ZoneAccount(zone, tool string) string {
	if zone == toolsZone {
		return ToolRole(tool)
	}
	return zone
}

// ZoneOf returns the zone of a tool of the table, "" when none does.
func ZoneOf(tool string) string {
	for _, z := range zoneOrder {
		if slices.Contains(Zones[z], tool) {
			return z
		}
	}
	return ""
}

// Table is the layout of Conclave: which account reaches which subject of which owner, under which local name. The
// caller must not change it: it is made once.
func Table() Layout { return table() }

var table = sync.OnceValue(func() Layout {
	l := Layout{Accounts: accounts(), Streams: streams(), Consumers: consumers()}
	l.Edges = slices.Concat(agentEdges(), controlEdges(), brokerEdges(), publishEdges(), watchEdges(),
		questionEdges(l.Consumers), scheduleEdges(), principalEdges(), settingEdges(),
		stateEdges(l.Streams), modelEdges(), auditEdges(), discoveryEdges(l.Discoverables()))
	unserved := UnservedSpecs()
	// a message would wait for an actor that does not exist
	l.Edges = slices.DeleteFunc(l.Edges, func(e Edge) bool { return e.reachesAny(unserved) })
	l.Edges = append(l.Edges, unservedEdges(unserved)...)
	// an append to the copy of a caller does not write here
	l.Accounts, l.Edges = slices.Clip(l.Accounts), slices.Clip(l.Edges)
	l.Streams, l.Consumers = slices.Clip(l.Streams), slices.Clip(l.Consumers)
	return l
})

// reachesAny reports whether e lets its callers send or watch one of the subjects.
func (e Edge) reachesAny(specs []Spec) bool {
	local := cmp.Or(e.Local, e.Remote)
	return slices.ContainsFunc(specs, func(s Spec) bool { return Overlap(s.Name, local) })
}

// unservedEdges lead from the account "user" to the router for the subjects of [UnservedSpecs]. The server alone could
// only deny them, and the sender of a denied request waits until its timeout. Other accounts have no program that sends
// them.
func unservedEdges(unserved []Spec) (out []Edge) {
	for _, s := range unserved {
		out = append(out, Edge{
			Callers: []string{"user"}, Kind: ServiceImport, Owner: Router,
			Remote: strings.Replace(s.Received, "*", "<who>", 1), Local: s.Name, ReplyTimeout: "5s",
		})
	}
	return out
}

// agentEdges returns the edges from agents to the broker: tool calls, discovery, validation, spawning, and the output
// of an agent's own tools. The server denies spawn chains deeper than MaxDepth, and writes the agent's account into the
// subject.
func agentEdges() []Edge {
	return []Edge{
		{
			Callers: Agents, Kind: ServiceImport, Owner: "broker", Remote: "agent.<who>.tool.request.>",
			Local: "tool.request.>", Permission: withSubpaths("tool.request.*", MaxDepth), ReplyTimeout: "10m",
		},
		{
			Callers: Agents, Kind: ServiceImport, Owner: "broker", Remote: "agent.<who>.broker.>", Local: "broker.>",
			Permission: append(withSubpaths("broker.discover", MaxDepth),
				withSubpaths("broker.validate", MaxDepth)...),
			ReplyTimeout: "2m",
		},
		{
			Callers: Agents, Kind: ServiceImport, Owner: "broker", Remote: "agent.<who>.agent.spawn",
			Local:        "agent.spawn",
			ReplyTimeout: "2m",
		},
		{
			Callers: Agents, Kind: ServiceImport, Owner: "broker", Remote: "agent.<who>.agent.spawn.>",
			Local: "agent.spawn.>", Permission: withSubpaths("agent.spawn.*", MaxDepth-2), ReplyTimeout: "2m",
		},
		{
			Callers: Agents, Kind: StreamImport, Owner: "broker", Remote: "agent.<who>.tool.output.*",
			Local: "tool.output.*",
		},
	}
}

// controlEdges returns the requests that only the user's accounts may make: approvals, policy, session and actor
// configuration, memory; and query.ask and the agent protocol of the gateway, for the account "user" only. No account
// configures itself.
func controlEdges() (out []Edge) {
	for _, s := range []string{
		"approval.decision.*", "approval.list", "approval.revoke.*", "policy.explain",
		"session.config",
	} {
		out = append(out, Edge{
			Callers: UserAccounts, Kind: ServiceImport, Owner: "broker", Remote: "ctl.<who>." + s,
			Local: s, ReplyTimeout: "30s",
		})
	}
	out = append(out, Edge{
		Callers: UserAccounts, Kind: ServiceImport, Owner: "broker", Remote: "ctl.<who>.tool.list",
		Local: ToolListService.Name, ReplyTimeout: "30s",
	},
		Edge{
			Callers: UserAccounts, Kind: ServiceImport, Owner: "broker", Remote: "ctl.<who>.change.list",
			Local: ChangeListService.Name, ReplyTimeout: "2m",
		},
		Edge{
			Callers: UserAccounts, Kind: ServiceImport, Owner: "broker", Remote: "ctl.<who>.change.undo",
			Local: ChangeUndoService.Name, ReplyTimeout: "2m",
		},
		// not the gateway: what reaches it by HTTP must not admit a tool
		Edge{
			Callers: []string{"user"}, Kind: ServiceImport, Owner: "broker", Remote: "ctl.<who>.tool.accept",
			Local: ToolAcceptService.Name, ReplyTimeout: "30s",
		})
	for _, a := range configurable {
		callers := slices.DeleteFunc(slices.Clone(UserAccounts), func(p string) bool { return p == a })
		out = append(out, Edge{
			Callers: callers, Kind: ServiceImport, Owner: a, Remote: "ctl.<who>.config.set",
			Local: "config.set." + a, ReplyTimeout: "30s",
		})
	}
	out = append(out, Edge{
		Callers: UserAccounts, Kind: ServiceImport, Owner: Generator,
		Remote: "ctl.<who>.session.change", Local: "session.change", ReplyTimeout: "10m",
	},
		Edge{
			Callers: UserAccounts, Kind: ServiceImport, Owner: Committee, Remote: "ctl.<who>.session.change.committee",
			Local: "session.change.committee", ReplyTimeout: "30s",
		})
	out = append(out, Edge{
		Callers: UserAccounts, Kind: ServiceImport, Owner: Generator,
		Remote: "ctl.<who>.session.context", Local: "session.context", ReplyTimeout: "30s",
	})
	out = append(out, Edge{
		Callers: UserAccounts, Kind: ServiceImport, Owner: Orchestrator,
		Remote: "ctl.<who>.task.change", Local: "task.change", ReplyTimeout: "30s",
	})
	for _, s := range []string{"memory.query", "memory.write", "memory.correlated", "memory.admin"} {
		out = append(out, Edge{
			Callers: UserAccounts, Kind: ServiceImport, Owner: "memory", Remote: "ctl.<who>." + s,
			Local: s, StreamReply: true, ReplyTimeout: "2m",
		})
	}
	out = append(out, Edge{
		Callers: []string{"user"}, Kind: ServiceImport, Owner: "gateway", Remote: askRemote,
		Local: QueryAsk.Name, StreamReply: true, ReplyTimeout: "30m",
	})
	return append(append(out, agentProtocolEdges([]string{"user"})...), agentReplyEdge())
}

// askRemote is query.ask as the gateway receives it, with the account that asks.
const askRemote = "client.<who>.query.ask"

// brokerEdges returns the edges from the broker to the tools and the secrets actor, which no other account may call,
// and those to the broker for credentials of models and live tool output. No local name may be one that the broker
// exports: imports chain, and a call would reach the tool without the broker.
func brokerEdges() (out []Edge) {
	for _, t := range Tools {
		out = append(out, toolEdges(toolsZone, ToolRole(t), []string{t})...)
	}
	for _, z := range zoneOrder[1:] {
		out = append(out, toolEdges(z, z, Zones[z])...)
	}
	return append(out, sealKeyEdge("model"), sealKeyEdge(MCP),
		Edge{
			Callers: []string{"broker"}, Kind: ServiceImport, Owner: "secrets", Remote: "secret.get",
			ReplyTimeout: "30s",
		},
		// API keys of remote models, and credentials of MCP servers: requested from the broker, never from the secrets
		// actor.
		Edge{
			Callers: []string{"model", MCP}, Kind: ServiceImport, Owner: "broker", Remote: "agent.<who>.secret.use",
			Local: "secret.use", ReplyTimeout: "30s",
		},
		Edge{Callers: UserAccounts, Kind: StreamImport, Owner: "broker", Remote: "tool.output.*"})
}

// sealKeyEdge lets the secrets actor ask an account whether a process of it has a key. The server, and not the broker,
// says whose key it is: a credential is sealed to no other.
func sealKeyEdge(owner string) Edge {
	return Edge{
		Callers: []string{"secrets"}, Kind: ServiceImport, Owner: owner, Remote: SealKeyService.Received,
		Local: "receiver." + owner + "." + SealKeyService.Received, ReplyTimeout: "5s",
	}
}

// usesCredentials reports whether one of the tools may use a credential.
func usesCredentials(tools []string) bool {
	return slices.ContainsFunc(tools, func(t string) bool { return slices.Contains(CredentialTools, t) })
}

// principalEdges let the user change the run-time principals, and the actors that use them read the list and learn of
// changes. The gateway only reads: what reaches it by HTTP must not create accounts.
func principalEdges() []Edge {
	readers := append(slices.Clone(UserAccounts), "broker", "model")
	return []Edge{
		{
			Callers: []string{"user"}, Kind: ServiceImport, Owner: Registry, Remote: "ctl.<who>.principal.change",
			Local: PrincipalChangeService.Name, ReplyTimeout: "2m",
		},
		{
			Callers: []string{"user"}, Kind: ServiceImport, Owner: Registry, Remote: "ctl.<who>.machine.invite",
			Local: MachineInviteService.Name, ReplyTimeout: "2m",
		},
		{
			Callers: UserAccounts, Kind: ServiceImport, Owner: Registry, Remote: "ctl.<who>.machine.list",
			Local: MachineListService.Name, ReplyTimeout: "30s",
		},
		{
			Callers: readers, Kind: ServiceImport, Owner: Registry, Remote: "agent.<who>.principal.list",
			Local: PrincipalListService.Name, ReplyTimeout: "30s",
		},
		{Callers: readers, Kind: StreamImport, Owner: Registry, Remote: PrincipalChanged.Name},
	}
}

// settingEdges let the accounts that act for the user read and change settings, and check the installation. The
// registry restricts what can be changed.
func settingEdges() []Edge {
	return []Edge{
		{
			Callers: UserAccounts, Kind: ServiceImport, Owner: Registry, Remote: "ctl.<who>.settings.list",
			Local: SettingListService.Name, ReplyTimeout: "30s",
		},
		{
			Callers: UserAccounts, Kind: ServiceImport, Owner: Registry, Remote: "ctl.<who>.settings.change",
			Local: SettingChangeService.Name, ReplyTimeout: "2m",
		},
		{
			Callers: UserAccounts, Kind: ServiceImport, Owner: Registry, Remote: "ctl.<who>.doctor.run",
			Local: DoctorService.Name, ReplyTimeout: "2m",
		},
	}
}

// publishEdges returns the edges that store events in EVENTS, acknowledged: which account may publish which event. The
// server writes the author's account into the stored subject. The broker publishes its own under the local prefix
// "event.".
func publishEdges() (out []Edge) {
	event := func(callers []string, subjects ...string) {
		for _, s := range subjects {
			out = append(out, Edge{
				Callers: callers, Kind: ServiceImport, Owner: Core, Remote: "from.<who>." + s,
				Local: s,
			})
		}
	}
	event(Respondents, "response.generation", "agent.state.<who>", "agent.state.<who>.>")
	event([]string{"critic", "memory"}, "agent.state.<who>")
	event(VisibleRespondents, "answer.dialog") // respondent B has no part in the dialog
	event([]string{"committee"}, "committee.deliberation.*")
	event([]string{"orchestrator"}, "task.progress.*", "agent.return.*")
	event([]string{"critic"}, "critique.result", "pairwise.result")
	event([]string{"reward"}, "reward.event")
	event([]string{"auditor"}, "auditlog.head")
	event([]string{"memory"}, "memory.stored", "memory.annotated", "memory.recalled")
	event(UserAccounts, "user.feedback", "query.cancel.*")
	event([]string{"auditor"}, "audit.capacity")
	event(Actors, strings.TrimPrefix(deadLetters, "from.<who>."))
	for _, s := range []string{
		"tool.request.>", "tool.result.*", "approval.request.*", "approval.decision.*",
		"query.grants.*",
	} {
		out = append(out, Edge{
			Callers: []string{"broker"}, Kind: ServiceImport, Owner: Core, Remote: "from.<who>." + s,
			Local: "event." + s,
		})
	}
	return out
}

// watchEdges returns the edges that subscribe to live events and tokens, and the user's replay of EVENTS. A message
// that arrived by a service import never leaves by a stream export, so EVENTS republishes.
func watchEdges() (out []Edge) {
	live := func(callers []string, s string) Edge {
		return Edge{Callers: callers, Kind: StreamImport, Owner: Core, Remote: "live." + s, Local: s}
	}
	for _, s := range republished {
		out = append(out, live(UserAccounts, s))
	}
	// respondent B has no conversation to add grades to
	out = append(out, live(VisibleRespondents, "reward.event"), live(VisibleRespondents, "critique.result"),
		live(append(slices.Clone(Respondents), "model", "broker"), "query.cancel.*"))
	// Live tokens come from the agent's account, without a stream. Those of respondent B are not exported.
	for _, a := range VisibleRespondents {
		out = append(out, Edge{Callers: UserAccounts, Kind: StreamImport, Owner: a, Remote: "response.delta.*"},
			Edge{Callers: UserAccounts, Kind: StreamImport, Owner: a, Remote: "response.thinking.*"})
	}
	for _, p := range UserAccounts {
		// Replay by sequence. Not a direct get: the publisher can forge its Nats-Subject header.
		out = append(out, jetStreamEdge(p, "STREAM.MSG.GET.EVENTS", false, ""))
	}
	return append(out, jetStreamEdge("gateway", "STREAM.INFO.EVENTS", false, ""))
}

// questionEdges returns the edges with which the user publishes questions for the assistant, the committee and the
// orchestrator, and the router publishes their turns; only it may. all are the durable consumers of
// every stream: each may pull and acknowledge its messages. Router and broker may read a stored turn, and the router is
// told of messages that reached their delivery limit.
func questionEdges(all []Consumer) (out []Edge) {
	for _, s := range []string{"query.received", "query.committee", "query.task"} {
		out = append(out, Edge{Callers: UserAccounts, Kind: ServiceImport, Owner: Core, Remote: s})
	}
	out = append(out,
		Edge{Callers: []string{"router"}, Kind: ServiceImport, Owner: Core, Remote: "query.session.*"},
		Edge{Callers: []string{"router"}, Kind: ServiceImport, Owner: Core, Remote: TurnCommittee.Name},
		Edge{Callers: []string{"router"}, Kind: ServiceImport, Owner: Core, Remote: TurnTask.Name},
		Edge{
			Callers: []string{"router"}, Kind: StreamImport, Owner: Core, Remote: MaxDeliveriesAdvisory.Name,
			Local: MaxDeliveriesAdvisory.Received,
		},
		// The router reads a turn that reached its delivery limit, to notify the client. The router is its only author.
		jetStreamEdge(Router, "STREAM.MSG.GET.TURNS", false, ""),
		// The broker reads the user's text as the router ordered it, and does not trust an agent's copy.
		jetStreamEdge("broker", "STREAM.MSG.GET.TURNS", false, ""),
		// The broker compares a turn with the question that the user stored: the router is not the user.
		jetStreamEdge("broker", "STREAM.MSG.GET.QUERIES", false, ""),
		// The broker reads whether the user cancelled a query, also while no broker was running.
		jetStreamEdge("broker", "STREAM.MSG.GET.EVENTS", false, ""))
	for _, c := range all {
		out = append(out, consumerEdges(c)...)
	}
	return out
}

// scheduleEdges let the user change schedules through the broker, which records and stores the change, the scheduler
// say which are due, and the router read what to ask then. The scheduler can ask nothing itself. The user cannot store
// a definition: it would have no record.
func scheduleEdges() []Edge {
	return []Edge{
		// not the gateway: what reaches it by HTTP must not ask later
		{
			Callers: []string{"user"}, Kind: ServiceImport, Owner: "broker", Remote: "ctl.<who>.schedule.change",
			Local: ScheduleChangeService.Name, ReplyTimeout: "30s",
		},
		{Callers: []string{"broker"}, Kind: ServiceImport, Owner: Core, Remote: ScheduleDefinition.Name},
		jetStreamEdge("broker", "STREAM.MSG.GET."+ScheduleDefinition.Stream, false, ""),
		{Callers: []string{Scheduler}, Kind: ServiceImport, Owner: Core, Remote: ScheduleDue.Name},
		jetStreamEdge(Scheduler, "STREAM.MSG.GET."+ScheduleDefinition.Stream, false, ""),
		jetStreamEdge(Scheduler, "STREAM.MSG.GET."+ScheduleDue.Stream, false, ""), // its own state
		jetStreamEdge(Router, "STREAM.MSG.GET."+ScheduleDefinition.Stream, false, ""),
		jetStreamEdge("user", "STREAM.MSG.GET."+ScheduleDefinition.Stream, false, ""),
		jetStreamEdge("user", "STREAM.MSG.GET."+ScheduleDue.Stream, false, ""),
	}
}

// stateEdges gives each owner read and write access to its buckets in all, the user the list and the figures of all
// streams, the other respondents read-only access to the generator's conversations, and the user's accounts to large
// results, to the index of answers and to the respondents' state, that of conversations also in the order of changes.
func stateEdges(all []Stream) (out []Edge) {
	for _, s := range all {
		if s.Bucket != "" {
			out = append(out, bucketEdges(s.Owner, s.Bucket)...)
		}
	}
	// The user may look at every stream and bucket, not into it: nats stream ls, stream info, kv ls and account info.
	for _, s := range []string{"INFO", "STREAM.NAMES", "STREAM.LIST"} {
		out = append(out, jetStreamEdge("user", s, false, ""))
	}
	for _, s := range all {
		if s.Account == Core {
			out = append(out, jetStreamEdge("user", "STREAM.INFO."+s.Name, false, ""))
		}
	}
	readOnly := func(who, bucket, keys string) {
		out = append(out, jetStreamEdge(who, "DIRECT.GET.KV_"+bucket+keys, false, ""))
		if who != "user" { // it may look at every stream
			out = append(out, jetStreamEdge(who, "STREAM.INFO.KV_"+bucket, false, ""))
		}
	}
	// Respondent B continues the generator's conversation, which the user saw, and not its own. Committee and
	// orchestrator read it for what the user said before in the session.
	for _, who := range []string{RespondentB, Committee, Orchestrator} {
		readOnly(who, StateBucket(Generator), ".$KV."+StateBucket(Generator)+".conv.>")
	}
	for _, p := range UserAccounts {
		readOnly(p, "parked", ".>")                                          // large results
		readOnly(p, AnswerBucket, ".$KV."+AnswerBucket+"."+answerPrefix+">") // where the answer to a question is
		for _, a := range Respondents {
			readOnly(p, StateBucket(a), ".>")     // the user's own conversations
			if a == Generator || a == Committee { // what changed since the last list of sessions
				out = append(out, jetStreamEdge(p, "STREAM.MSG.GET.KV_"+StateBucket(a), false, ""))
			}
		}
	}
	return append(out, attachmentEdges()...)
}

// attachmentEdges let the user's accounts store attached images, the respondents of a question and the model actor read
// them, and the generator, which deletes sessions, overwrite them. It cannot forge one: readers compare the hash.
func attachmentEdges() []Edge {
	out := []Edge{{
		Callers: append([]string{Generator}, UserAccounts...), Kind: ServiceImport, Owner: Core,
		Remote: AttachmentPiece.Name,
	}}
	for _, who := range []string{Generator, RespondentB, "model"} {
		out = append(out, jetStreamEdge(who, "STREAM.MSG.GET."+AttachmentPiece.Stream, false, ""))
	}
	// lists the pieces of a session
	return append(out, jetStreamEdge(Generator, "STREAM.INFO."+AttachmentPiece.Stream, false, ""))
}

// modelEdges lead to the model actor: actors run inference, the user's accounts list and pull models. The gateway runs
// inference for programs that bring tools of their own.
func modelEdges() []Edge {
	callers := slices.Concat(Respondents, []string{"memory", "critic", "broker"})
	return []Edge{
		{
			Callers: callers, Kind: ServiceImport, Owner: "model", Remote: "agent.<who>.model.>", Local: "model.>",
			Permission: []string{"model.chat", "model.embed", "model.list", "model.stop.*"}, StreamReply: true,
			ReplyTimeout: "30m",
		},
		{
			Callers: []string{"user"}, Kind: ServiceImport, Owner: "model", Remote: "agent.<who>.model.>",
			Local: "model.>", Permission: []string{"model.list", "model.pull", "model.stop.*"}, StreamReply: true,
			ReplyTimeout: "30m",
		},
		{
			Callers: []string{"gateway"}, Kind: ServiceImport, Owner: "model", Remote: "agent.<who>.model.>",
			Local: "model.>", Permission: []string{
				"model.chat", "model.embed", "model.list", "model.pull",
				"model.stop.*",
			}, StreamReply: true, ReplyTimeout: "30m",
		},
	}
}

// auditEdges let each writer append to its own stream, under its own account, and read nothing; the auditor reads and
// appends nothing there.
func auditEdges() []Edge {
	out := []Edge{{
		Callers: []string{"broker"}, Kind: ServiceImport, Owner: Audit, Remote: "audit.<who>.*",
		Local: "audit.*",
	}}
	for _, w := range AuditWriters {
		if AuditStream(w) != Audit {
			out = append(out, Edge{
				Callers: []string{w}, Kind: ServiceImport, Owner: Audit, Remote: "append.<who>.*",
				Local: "audit.*",
			})
		}
	}
	return append(out, auditReadEdges("auditor")...)
}

// auditReadEdges let an account read the audit log and the figures of its streams.
func auditReadEdges(who string) (out []Edge) {
	verbs := []string{"STREAM.NAMES", "STREAM.LIST", "INFO"}
	for _, w := range AuditWriters {
		verbs = append(verbs, "STREAM.INFO."+AuditStream(w), "STREAM.MSG.GET."+AuditStream(w))
	}
	for _, s := range verbs {
		out = append(out, Edge{
			Callers: []string{who}, Kind: ServiceImport, Owner: Audit, Remote: "$JS.API." + s,
			Local: "auditlog.API." + s,
		})
	}
	return out
}

// Directory is the actor that answers discovery requests without a name ($SRV.PING, INFO and STATS) for all actors, so
// that nobody can list itself under another's name: it requests each name from the account that the table grants it to.
const Directory = "gateway"

// discoveryVerbs are the requests of the micro protocol.
var discoveryVerbs = []string{"PING", "INFO", "STATS"}

// Discoverable is an actor or a tool that answers discovery requests under its name.
type Discoverable struct {
	Name    string
	Account string
	Doc     string
}

// Discoverables lists who answers discovery requests, in the order of the accounts.
func (l Layout) Discoverables() (out []Discoverable) {
	for _, a := range l.Accounts {
		switch {
		case !a.Serves:
		case strings.HasPrefix(a.Name, ToolRole("")):
			out = append(out, Discoverable{strings.TrimPrefix(a.Name, ToolRole("")), a.Name, a.Doc})
		default:
			out = append(out, Discoverable{a.Name, a.Name, a.Doc})
		}
	}
	return out
}

// discoveryEdges returns discovery and statistics by the micro protocol for "user": by name from the account that has
// the name, and without a name from the directory, which reaches each account under "disco.<account>.>".
func discoveryEdges(all []Discoverable) (out []Edge) {
	user := []string{"user"}
	for _, d := range all {
		for _, s := range []string{"$SRV.*." + d.Name, "$SRV.*." + d.Name + ".*"} {
			out = append(out, Edge{
				Callers: user, Kind: ServiceImport, Owner: d.Account, Remote: s, StreamReply: true,
				ReplyTimeout: "5s",
			})
		}
	}
	for _, v := range discoveryVerbs {
		out = append(out, Edge{
			Callers: user, Kind: ServiceImport, Owner: Directory, Remote: "$SRV." + v,
			StreamReply: true, ReplyTimeout: "5s",
		})
	}
	var accounts []string
	for _, d := range all {
		if d.Account != Directory { // it exports $SRV itself: the same local name would chain
			accounts = append(accounts, d.Account)
		}
	}
	for _, a := range dedupe(accounts) {
		out = append(out, Edge{
			Callers: []string{Directory}, Kind: ServiceImport, Owner: a, Remote: "$SRV.>",
			Local: "disco." + a + ".>", StreamReply: true, ReplyTimeout: "5s",
		})
	}
	return out
}

// maxConns are the accounts that may have more connections than an actor: the user's commands and programs, the
// auditor and the operator.
var maxConns = map[string]int{"user": 256, "auditor": 32, "operator": 64}

// accounts lists the stream accounts, the principals, and one account "<actor>_in" per consuming actor, which only
// pulls.
func accounts() []Account {
	out := fixedAccounts()
	for _, t := range Tools {
		out = append(out, toolAccount(t))
	}
	for _, z := range zoneOrder[1:] {
		out = append(out, zoneAccount(z))
	}
	for _, a := range Agents {
		out = append(out, agentAccount(a))
	}
	for _, w := range consumingActors() {
		out = append(out, Account{Name: w + "_in", Doc: "pulls for " + w + " only: a pulled message keeps its " +
			"author's subject, and its puller could publish there", Users: []User{{Role: w + "_in"}}})
	}
	for i, a := range out {
		out[i].MaxConns = cmp.Or(maxConns[a.Name], 24)
		if strings.HasPrefix(a.Name, ToolRole("")) {
			out[i].MaxConns = 8
		}
	}
	return out
}

// fixedAccounts returns the accounts whose grants depend on no list of tools or agents. Users get these permissions
// besides those that repeat the account's imports, except isolated and boot users, which get no others.
func fixedAccounts() []Account {
	inbox := []string{"_INBOX.>"}
	return []Account{
		{Name: Sys, Doc: "monitoring, and changes of run-time principals on a stand-alone server, by an allow list: " +
			"an unrestricted system user could purge the audit log", Users: []User{{
			Role: "sys", Isolated: true, Sub: inbox,
			Pub: []string{
				"$SYS.REQ.SERVER.PING", "$SYS.REQ.SERVER.PING.STATSZ", "$SYS.REQ.SERVER.PING.VARZ",
				"$SYS.REQ.SERVER.PING.CONNZ", "$SYS.REQ.SERVER.PING.JSZ", "$SYS.REQ.SERVER.PING.HEALTHZ",
				"$SYS.REQ.SERVER.*.RELOAD", "$SYS.REQ.SERVER.*.LEAFZ", "$SYS.REQ.SERVER.*.KICK",
			},
		}}},
		{
			Name: Audit, Doc: "the audit log. No clients after boot: a reader in this account could append by using " +
				"an audit subject as reply subject",
			Store: "{ max_file: 512GB, max_mem: 0, max_streams: 8, max_consumers: 1 }",
			Users: []User{{
				Role: "audit_prov", Boot: true,
				Pub: []string{"$JS.API.STREAM.CREATE.*", "$JS.API.STREAM.INFO.*", "audit.AUDIT.genesis"}, Sub: inbox,
			}},
		},
		{
			Name: Core, Doc: "questions, events and state. No clients after boot, for the same reason",
			Store: "{ max_file: 512GB, max_mem: 16MB, max_streams: 56, max_consumers: 128 }",
			Users: []User{{
				Role: "core_prov", Boot: true,
				Pub: []string{
					"$JS.API.STREAM.CREATE.*", "$JS.API.STREAM.UPDATE.*", "$JS.API.STREAM.INFO.*",
					"$JS.API.CONSUMER.CREATE.>", "$JS.API.CONSUMER.INFO.>", "$JS.API.INFO",
				}, Sub: inbox,
			}},
		},
		{
			Name: "auditor", Doc: "the user as reader of the audit log",
			Users: []User{{Role: "auditor", Pub: cliSubjects}},
		},
		{Name: "user", Doc: "the user on the command line: nats and conclave. A subscription to > receives the " +
			"imports and nothing else", Users: []User{{Role: "user", Sub: []string{">"}, Pub: cliSubjects}}},
		{Name: "gateway", Doc: "HTTP, page, query.ask, agent protocol", Serves: true, Users: []User{{
			Role: "gateway",
			Sub: append(discoverySubjects("gateway"), QueryAsk.Received, AgentsPrompt.Received, AgentsStatus.Received,
				AgentsReply.Received, AgentsService.Received, AgentsInstance.Received, "ctl.*.config.set"),
			Pub: []string{AgentsHeartbeats.Name},
		}}},
		{
			Name: "broker", Doc: "authorizes every tool call: the only path from agents to tools", Serves: true,
			Users: []User{{
				Role: "broker",
				Sub: append(discoverySubjects("broker"), "agent.*.tool.request.>", "agent.*.broker.>",
					"agent.*.agent.spawn", "agent.*.agent.spawn.>", "agent.*.secret.use", "ctl.*.approval.decision.*",
					"ctl.*.approval.list", "ctl.*.approval.revoke.*", "ctl.*.policy.explain", ToolListService.Received,
					ToolAcceptService.Received, ScheduleChangeService.Received, ChangeListService.Received,
					ChangeUndoService.Received, "ctl.*.session.config",
					"ctl.*.config.set", "tool.schema.*.*", "tool.output.*.*.*"),
				Pub: []string{"agent.*.tool.output.*", "tool.output.*"},
			}},
		},
		{
			Name: Registry, Doc: "keeps the principals that were added at run time, and the settings", Serves: true,
			Users: []User{{
				Role: Registry, Sub: append(discoverySubjects(Registry), PrincipalChangeService.Received,
					PrincipalListService.Received, MachineInviteService.Received, MachineListService.Received,
					SettingListService.Received, SettingChangeService.Received, DoctorService.Received,
					"ctl.*.config.set"),
				Pub: []string{PrincipalChanged.Name},
			}},
		},
		{
			Name: "secrets", Doc: "credentials, for the broker only", Serves: true,
			Users: []User{{Role: "secrets", Sub: append(discoverySubjects("secrets"), "secret.get",
				"ctl.*.config.set")}},
		},
		{
			Name: "model", Doc: "inference; its own account, so that it can run on another machine", Serves: true,
			Users: []User{{Role: "model", Sub: append(discoverySubjects("model"), "agent.*.model.>",
				"ctl.*.config.set", SealKeyService.Received)}},
		},
		{
			Name: MCP, Doc: "starts MCP servers; each serves its tools with the key of a principal of its own",
			Serves: true, Users: []User{{Role: MCP, Sub: append(discoverySubjects(MCP), SealKeyService.Received)}},
		},
		routerAccount(),
		{
			Name: Scheduler, Doc: "says which schedules are due; the router reads their questions", Serves: true,
			Users: []User{{Role: Scheduler, Sub: discoverySubjects(Scheduler)}},
		},
	}
}

// routerAccount returns the account of the router, which also replies to requests that no actor serves yet.
func routerAccount() Account {
	u := User{Role: Router, Sub: discoverySubjects(Router)}
	for _, s := range UnservedSpecs() {
		u.Sub = append(u.Sub, s.Received)
	}
	return Account{
		Name: Router, Doc: "orders questions by session, and rejects messages that no actor serves yet",
		Serves: true, Users: []User{u},
	}
}

// toolsZone is the zone of the tools of this machine, each in an account of its own. tools_<machine> is the zone and
// the account of the tools of another one.
const toolsZone = "tools"

// CLIInboxPrefix is the prefix of the inboxes of the nats command line tool, set in its contexts.
const CLIInboxPrefix = "_INBOX.nats_cli"

// cliSubjects are the subjects that the nats command line tool publishes besides the account's edges: its own user and,
// to measure the connection, its own inbox. Not the inboxes of other programs, which would accept forged replies.
var cliSubjects = []string{"$SYS.REQ.USER.INFO", CLIInboxPrefix + ".>"}

// toolAccount returns the account of a tool of this machine. It receives its own requests and discovery only, and
// publishes its own schema, its output and replies.
func toolAccount(tool string) Account {
	u := User{Role: ToolRole(tool), Sub: discoverySubjects(tool)}
	u.serveTools([]string{tool})
	return Account{
		Name: ToolRole(tool), Doc: "the tool " + tool + " of this machine: called by the broker only",
		Serves: true, Users: []User{u},
	}
}

// zoneAccount returns the account of z, an actor that serves its own tools: memory, critic or reward. Its one key may
// serve all tools of the zone.
func zoneAccount(z string) Account {
	doc := map[string]string{
		"memory": "stores and recalls entries; serves its own tools",
		"critic": "grades answers; serves its own tool", "reward": "rewards from feedback; serves its own tool",
	}[z]
	u := User{Role: z, Sub: discoverySubjects(z)}
	u.serveTools(Zones[z])
	if z == "memory" {
		u.Sub = append(u.Sub, "ctl.*.config.set", "ctl.*.memory.*")
	}
	return Account{Name: z, Doc: doc, Serves: true, Users: []User{u}}
}

// serveTools lets u receive the calls of tools, and publish their schemas and output.
func (u *User) serveTools(tools []string) {
	if usesCredentials(tools) {
		u.Sub = append(u.Sub, SealKeyService.Received)
	}
	for _, t := range tools {
		u.Sub, u.Pub = append(u.Sub, "tool.request."+t), append(u.Pub, "tool.schema."+t, "tool.output."+t+".*")
	}
}

// agentAccount returns the account of an agent. Respondents also serve discovery, and config.set if they are
// configurable; all of them but respondent B publish live tokens. The generator changes stored conversations, and the
// orchestrator tasks, for the user.
func agentAccount(name string) Account {
	a := Account{Name: name, Doc: "an agent: requests tool calls from the broker", Users: []User{{Role: name}}}
	if name == "operator" {
		a.Doc = "the user's own tool calls, through the same broker"
	}
	if !slices.Contains(Respondents, name) {
		return a
	}
	a.Serves = true
	a.Users[0].Sub = discoverySubjects(name)
	if slices.Contains(configurable, name) {
		a.Users[0].Sub = append(a.Users[0].Sub, "ctl.*.config.set")
	}
	switch name {
	case Generator:
		a.Users[0].Sub = append(a.Users[0].Sub, "ctl.*.session.change", "ctl.*.session.context")
	case Committee:
		a.Users[0].Sub = append(a.Users[0].Sub, "ctl.*.session.change.committee")
	}
	if name == Orchestrator {
		a.Users[0].Sub = append(a.Users[0].Sub, "ctl.*.task.change")
	}
	if name != RespondentB {
		a.Users[0].Pub = []string{"response.delta.*", "response.thinking.*"}
	}
	return a
}

// discoverySubjects are the subjects on which an actor answers discovery requests: its name, and each instance of it.
// Only the directory also answers requests without a name.
func discoverySubjects(name string) (out []string) {
	for _, v := range discoveryVerbs {
		if name == Directory {
			out = append(out, "$SRV."+v)
		}
		out = append(out, "$SRV."+v+"."+name, "$SRV."+v+"."+name+".*")
	}
	return out
}

// toolEdges returns the edges from the broker to tools of the account owner: calls, announced schemas, live output and
// discovery, and from the secrets actor to the key of a tool with credentials. A call is local to the broker as
// tool.call.<zone>.<tool>. Each edge names its tool, so that an account can announce and serve no other.
func toolEdges(zone, owner string, tools []string) (out []Edge) {
	broker := []string{"broker"}
	for _, t := range tools {
		out = append(out,
			Edge{Callers: broker, Kind: ServiceImport, Owner: owner, Remote: "tool.request." + t, Local: "tool.call." +
				zone + "." + t, ReplyTimeout: "10m"},
			Edge{Callers: broker, Kind: StreamImport, Owner: owner, Remote: "tool.schema." + t, Local: "tool.schema." +
				zone + "." + t},
			Edge{
				Callers: broker, Kind: StreamImport, Owner: owner, Remote: "tool.output." + t + ".*",
				Local: "tool.output." + zone + "." + t + ".*",
			})
	}
	if usesCredentials(tools) {
		out = append(out, sealKeyEdge(owner))
	}
	if zone == toolsZone {
		for _, t := range tools {
			out = append(out, Edge{
				Callers: broker, Kind: ServiceImport, Owner: owner, Remote: "$SRV.*." + t,
				Local: "disco." + zone + ".*." + t, StreamReply: true, ReplyTimeout: "5s",
			})
		}
		return out
	}
	return append(out, Edge{Callers: broker, Kind: ServiceImport, Owner: owner, Remote: "$SRV.>", Local: "disco." +
		zone + ".>", StreamReply: true, ReplyTimeout: "5s"})
}

// jetStreamEdge is one subject of the JetStream API. In an account without JetStream the server replies to $JS.API
// itself ("not enabled"), so the edge has another local name.
func jetStreamEdge(who, subject string, streamReply bool, timeout string) Edge {
	return Edge{
		Callers: []string{who}, Kind: ServiceImport, Owner: Core, Remote: "$JS.API." + subject,
		Local: "core.API." + subject, StreamReply: streamReply, ReplyTimeout: timeout,
	}
}

// consumerEdges are the three subjects of a durable consumer, in the account <actor>_in, which has no other grants.
func consumerEdges(p Consumer) []Edge {
	who := p.Actor + "_in"
	return []Edge{
		jetStreamEdge(who, "CONSUMER.INFO."+p.Stream+"."+p.Name, false, ""),
		jetStreamEdge(who, "CONSUMER.MSG.NEXT."+p.Stream+"."+p.Name, true, "2m"),
		{Callers: []string{who}, Kind: ServiceImport, Owner: Core, Remote: "$JS.ACK." + p.Stream + "." + p.Name + ".>"},
	}
}

// bucketEdges are put, compare-and-set, get, delete and list for the owner of a bucket. One bucket per owner, because a
// roll-up of any writable key empties the bucket. No consumer: its deliver subject has the permissions of the stream
// account.
func bucketEdges(who, name string) []Edge {
	s := "KV_" + name
	return []Edge{
		// nats.go puts the prefix before $KV too
		{
			Callers: []string{who}, Kind: ServiceImport, Owner: Core, Remote: "$KV." + name + ".>",
			Local: "core.API.$KV." + name + ".>",
		},
		jetStreamEdge(who, "STREAM.INFO."+s, false, ""),
		// of a replicated bucket: any replica, also an outdated one, replies to a direct get
		jetStreamEdge(who, "STREAM.MSG.GET."+s, false, ""),
		jetStreamEdge(who, "DIRECT.GET."+s, true, "30s"),
		jetStreamEdge(who, "DIRECT.GET."+s+".>", false, ""),
	}
}

// withSubpaths returns pattern followed by zero to n wildcard tokens.
func withSubpaths(pattern string, n int) (out []string) {
	for range n + 1 {
		out = append(out, pattern)
		pattern += ".*"
	}
	return out
}
