package subjects

import "slices"

// Kind of an edge.
type Kind string

const (
	// ServiceImport is a service import: the caller publishes, the owner hears, replies find their way back.
	ServiceImport Kind = "service"
	// StreamImport is a stream import: the owner publishes, the watcher hears.
	StreamImport Kind = "stream"
)

// Edge says that principals Who reach Owner's subject Remote under their local name Local. It is written once; the
// export, the import and the client's permission all come from it.
//
// Remote may hold "<who>": the server then writes the caller's account there, and a configuration in which another
// account claims that token does not load. That is how identity is a fact of routing and not a claim.
type Edge struct {
	Callers      []string
	Kind         Kind
	Owner        string
	Remote       string
	Local        string   // "" = Remote
	Permission   []string // narrower client permission than Local
	StreamReply  bool     // several replies, ended by an empty message without headers
	ReplyTimeout string   // longest wait for a reply, or between two replies
}

// User is one key of an account.
type User struct {
	Role            string // name of the key file and of the variable $NK_<role>
	Pub             []string
	Sub             []string
	Boot            bool   // exists only while the streams are made
	Isolated        bool   // shares the account with others: gets none of the account's edges, and answers only what it was asked
	ResponseTimeout string // with Alone: how long an answer may take
}

// Account is one principal, or a place where streams live and nobody else.
type Account struct {
	Name   string
	Doc    string
	Store  string // JetStream limits; only places have them
	Serves bool   // answers requests of others
	Users  []User
}

// Layout is the whole table.
type Layout struct {
	Accounts  []Account
	Edges     []Edge
	Streams   []Stream
	Consumers []Consumer
}

// Places: accounts that hold streams. No client lives in them after boot, because JetStream publishes to any reply
// subject with the account's own rights.
const (
	Core  = "CORE"
	Audit = "AUDIT"
	Sys   = "SYS"
)

var (
	// Agents ask for tools.
	Agents = []string{"generator", "respondent_b", "committee", "orchestrator", "operator"}
	// Respondents publish answers and keep state between messages.
	Respondents = []string{"generator", "respondent_b", "committee", "orchestrator"}
	// VisibleRespondents are those whose answers the user sees.
	VisibleRespondents = slices.DeleteFunc(slices.Clone(Respondents), func(a string) bool { return a == RespondentB })
	// UserAccounts are the roles through which the user speaks.
	UserAccounts = []string{"user", "gateway"}
	// Actors are the accounts with one actor behind them: they have dead letters. Not tools: the acknowledgement of a
	// dead letter goes wherever its speaker says, and in an account of many that is the neighbour's door.
	Actors = []string{"broker", "memory", "critic", "reward", "model", "secrets", "router", "gateway", "generator", "respondent_b", "committee", "orchestrator"}
	// AuditWriters append to the audit, each under its own name. Not those who act on a model's words: whoever may append
	// can fill it, and then nothing runs.
	AuditWriters = []string{"broker", "memory", "secrets", "model", "orchestrator", "gateway"}
	// Tools of this machine, one key each: inside the account tools the key is the boundary.
	Tools = []string{"get_datetime", "web_search", "web_fetch", "fs_read", "fs_write", "fs_list", "fs_search", "run_code", "run_shell", "package_install"}
	// Zones are accounts that serve tools to the broker.
	Zones = map[string][]string{
		"tools":  Tools,
		"memory": {"search_memory", "save_memory", "search_knowledge_graph"},
		"critic": {"compare_answers"},
		"reward": {"give_feedback"},
	}
	zoneOrder = []string{"tools", "memory", "critic", "reward"}
	// configurable actors take config.set from the user; each writes the change into the audit.
	configurable = AuditWriters
	// republished is what EVENTS passes on to people under the plain subject.
	republished = []string{
		"query.received", "query.committee", "query.task",
		"response.generation", "answer.dialog", "agent.state.>", "agent.return.*", "tool.request.>", "tool.result.*",
		"approval.request.*", "approval.decision.*", "critique.result", "pairwise.result", "user.feedback", "reward.event",
		"memory.stored", "memory.annotated", "memory.recalled", "committee.deliberation.*", "task.progress.*", "query.cancel.*", "dead.*",
	}
)

// Partitions of the turns: order is kept within a session, and sessions are spread over this many consumers.
const Partitions = 16

// respondentBConsumers are the consumers of respondent B: nobody waits for it, and each consumer costs the server ten milliseconds at
// its stop.
const respondentBConsumers = 4

// ToolRole is the role of a tool of this machine.
func ToolRole(tool string) string { return "tool_" + tool }

// ZoneOf is the account that serves the tool, "" when none does.
func ZoneOf(tool string) string {
	for _, z := range zoneOrder {
		if slices.Contains(Zones[z], tool) {
			return z
		}
	}
	return ""
}

// Table is the layout of Conclave: who reaches whose subject under which name.
func Table() Layout {
	l := Layout{Accounts: accounts(), Streams: streams(), Consumers: consumers()}
	add := func(e ...Edge) { l.Edges = append(l.Edges, e...) }

	// Agents to the broker. The server refuses paths of more than MaxDepth spawned agents.
	add(Edge{Callers: Agents, Kind: ServiceImport, Owner: "broker", Remote: "agent.<who>.tool.request.>", Local: "tool.request.>", Permission: withSubpaths("tool.request.*", MaxDepth), ReplyTimeout: "10m"})
	add(Edge{Callers: Agents, Kind: ServiceImport, Owner: "broker", Remote: "agent.<who>.broker.>", Local: "broker.>", Permission: append(withSubpaths("broker.discover", MaxDepth), withSubpaths("broker.validate", MaxDepth)...), ReplyTimeout: "2m"})
	add(Edge{Callers: Agents, Kind: ServiceImport, Owner: "broker", Remote: "agent.<who>.agent.spawn", Local: "agent.spawn", ReplyTimeout: "2m"})
	add(Edge{Callers: Agents, Kind: ServiceImport, Owner: "broker", Remote: "agent.<who>.agent.spawn.>", Local: "agent.spawn.>", Permission: withSubpaths("agent.spawn.*", MaxDepth-2), ReplyTimeout: "2m"})
	add(Edge{Callers: Agents, Kind: StreamImport, Owner: "broker", Remote: "agent.<who>.tool.output.*", Local: "tool.output.*"})

	// What only the user may say.
	add(Edge{Callers: UserAccounts, Kind: ServiceImport, Owner: "broker", Remote: "ctl.<who>.approval.decision.*", Local: "approval.decision.*", ReplyTimeout: "30s"})
	for _, s := range []string{"approval.list", "approval.revoke.*", "policy.explain", "session.config"} {
		add(Edge{Callers: UserAccounts, Kind: ServiceImport, Owner: "broker", Remote: "ctl.<who>." + s, Local: s, ReplyTimeout: "30s"})
	}
	for _, a := range configurable {
		who := slices.DeleteFunc(slices.Clone(UserAccounts), func(p string) bool { return p == a })
		add(Edge{Callers: who, Kind: ServiceImport, Owner: a, Remote: "ctl.<who>.config.set", Local: "config.set." + a, ReplyTimeout: "30s"})
	}
	for _, s := range []string{"memory.query", "memory.write", "memory.correlated", "memory.admin"} {
		add(Edge{Callers: UserAccounts, Kind: ServiceImport, Owner: "memory", Remote: "ctl.<who>." + s, Local: s, StreamReply: true, ReplyTimeout: "2m"})
	}
	add(Edge{Callers: []string{"user"}, Kind: ServiceImport, Owner: "gateway", Remote: "query.ask", StreamReply: true, ReplyTimeout: "30m"})

	// The broker to the tools and to the secrets. Never under a local name that the broker exports: imports chain, and a
	// call would reach the tool with no broker alive.
	for _, z := range zoneOrder {
		add(toolEdges(z)...)
	}
	add(Edge{Callers: []string{"broker"}, Kind: ServiceImport, Owner: "secrets", Remote: "secret.get", ReplyTimeout: "30s"})
	// Keys of remote models: the model actor asks the broker, never the secrets.
	add(Edge{Callers: []string{"model"}, Kind: ServiceImport, Owner: "broker", Remote: "agent.<who>.secret.use", Local: "secret.use", ReplyTimeout: "30s"})
	add(Edge{Callers: UserAccounts, Kind: StreamImport, Owner: "broker", Remote: "tool.output.*"})

	// Events: publish and be told that it is stored. The author's account is part of the stored subject.
	event := func(who []string, subjects ...string) {
		for _, s := range subjects {
			add(Edge{Callers: who, Kind: ServiceImport, Owner: Core, Remote: "from.<who>." + s, Local: s})
		}
	}
	event(Respondents, "response.generation", "agent.state.<who>", "agent.state.<who>.>")
	event(VisibleRespondents, "answer.dialog") // respondent B has no part in the dialog
	event([]string{"committee"}, "committee.deliberation.*")
	event([]string{"orchestrator"}, "task.progress.*", "agent.return.*")
	event([]string{"critic"}, "critique.result", "pairwise.result")
	event([]string{"reward"}, "reward.event")
	event([]string{"memory"}, "memory.stored", "memory.annotated", "memory.recalled")
	event(UserAccounts, "user.feedback", "query.cancel.*")
	event(Actors, "dead.<who>")
	for _, s := range []string{"tool.request.>", "tool.result.*", "approval.request.*", "approval.decision.*"} {
		add(Edge{Callers: []string{"broker"}, Kind: ServiceImport, Owner: Core, Remote: "from.<who>." + s, Local: "event." + s})
	}

	// Events: listen. A message that came in by a service import never leaves by a stream export, so EVENTS republishes.
	for _, s := range republished {
		add(Edge{Callers: UserAccounts, Kind: StreamImport, Owner: Core, Remote: "live." + s, Local: s})
	}
	for _, s := range []string{"reward.event", "critique.result"} { // what was thought of their answers
		add(Edge{Callers: VisibleRespondents, Kind: StreamImport, Owner: Core, Remote: "live." + s, Local: s}) // respondent B's are beside no conversation
	}
	add(Edge{Callers: append(slices.Clone(Respondents), "model"), Kind: StreamImport, Owner: Core, Remote: "live.query.cancel.*", Local: "query.cancel.*"})
	// Live tokens come straight from the agent's account, no stream behind them. Respondent B is respondent B: not here.
	for _, a := range VisibleRespondents {
		add(Edge{Callers: UserAccounts, Kind: StreamImport, Owner: a, Remote: "response.delta.*"}, Edge{Callers: UserAccounts, Kind: StreamImport, Owner: a, Remote: "response.thinking.*"})
	}
	for _, p := range UserAccounts {
		// Replay by sequence. Not a direct get: its Nats-Subject header can be forged by the writer.
		add(jetStreamEdge(p, "STREAM.INFO.EVENTS", false, ""), jetStreamEdge(p, "STREAM.MSG.GET.EVENTS", false, ""))
	}

	// Questions.
	for _, s := range []string{"query.received", "query.committee", "query.task"} {
		add(Edge{Callers: UserAccounts, Kind: ServiceImport, Owner: Core, Remote: s})
	}
	add(Edge{Callers: []string{"router"}, Kind: ServiceImport, Owner: Core, Remote: "query.session.*"})
	add(Edge{Callers: []string{"router"}, Kind: StreamImport, Owner: Core, Remote: MaxDeliveriesAdvisory.Name, Local: MaxDeliveriesAdvisory.Received})
	// A turn that was handed out too often is read once more, to tell its caller. Its author is the router itself.
	add(jetStreamEdge(Router, "STREAM.MSG.GET.TURNS", false, ""))
	// The broker reads what the user said from where the router put it, and takes no agent's word for it.
	add(jetStreamEdge("broker", "STREAM.MSG.GET.TURNS", false, ""))
	for _, p := range l.Consumers {
		add(consumerEdges(p)...)
	}

	// State: one bucket per owner.
	for _, s := range l.Streams {
		if s.Bucket != "" {
			add(bucketEdges(s.Owner, s.Bucket)...)
		}
	}
	// Respondent B goes on from what the user was told, not from what it would have said itself.
	add(jetStreamEdge(RespondentB, "STREAM.INFO.KV_"+StateBucket(Generator), false, ""), jetStreamEdge(RespondentB, "DIRECT.GET.KV_"+StateBucket(Generator)+".$KV."+StateBucket(Generator)+".conv.>", false, ""))
	for _, p := range UserAccounts {
		add(jetStreamEdge(p, "STREAM.INFO.KV_parked", false, ""), jetStreamEdge(p, "DIRECT.GET.KV_parked.>", false, "")) // large results, read only
		for _, a := range Respondents {                                                                                  // the user's own conversations, read only
			add(jetStreamEdge(p, "STREAM.INFO.KV_"+StateBucket(a), false, ""), jetStreamEdge(p, "DIRECT.GET.KV_"+StateBucket(a)+".>", false, ""))
		}
	}

	// Models.
	add(Edge{Callers: slices.Concat(Respondents, []string{"memory", "critic", "broker"}), Kind: ServiceImport, Owner: "model", Remote: "agent.<who>.model.>", Local: "model.>", Permission: []string{"model.chat", "model.embed", "model.list", "model.stop.*"}, StreamReply: true, ReplyTimeout: "30m"})
	add(Edge{Callers: UserAccounts, Kind: ServiceImport, Owner: "model", Remote: "agent.<who>.model.>", Local: "model.>", Permission: []string{"model.list", "model.pull", "model.stop.*"}, StreamReply: true, ReplyTimeout: "30m"})

	// The audit: writers append under their own name and read nothing; the auditor reads and appends nothing.
	add(Edge{Callers: AuditWriters, Kind: ServiceImport, Owner: Audit, Remote: "audit.<who>.*", Local: "audit.*"})
	for _, s := range []string{"STREAM.INFO.AUDIT", "STREAM.NAMES", "STREAM.LIST", "STREAM.MSG.GET.AUDIT", "INFO"} {
		add(Edge{Callers: []string{"auditor"}, Kind: ServiceImport, Owner: Audit, Remote: "$JS.API." + s, Local: "auditlog.API." + s})
	}

	// Discovery and statistics, by the micro protocol: several accounts may stand behind one $SRV.
	for _, o := range servingAccounts(l.Accounts) {
		add(Edge{Callers: []string{"user"}, Kind: ServiceImport, Owner: o, Remote: "$SRV.>", StreamReply: true, ReplyTimeout: "5s"})
		if o != "gateway" { // it exports $SRV.> itself: the same local name would chain
			add(Edge{Callers: []string{"gateway"}, Kind: ServiceImport, Owner: o, Remote: "$SRV.>", Local: "disco." + o + ".>", StreamReply: true, ReplyTimeout: "5s"})
		}
	}
	return l
}

// accounts are the principals and the places.
func accounts() []Account {
	out := []Account{
		{Name: Sys, Doc: "monitoring, allow-listed: a free system user could purge the audit", Users: []User{{
			Role: "sys", Isolated: true,
			Pub: []string{"$SYS.REQ.SERVER.PING", "$SYS.REQ.SERVER.PING.STATSZ", "$SYS.REQ.SERVER.PING.VARZ", "$SYS.REQ.SERVER.PING.CONNZ", "$SYS.REQ.SERVER.PING.JSZ", "$SYS.REQ.SERVER.PING.HEALTHZ"},
			Sub: []string{"_INBOX.>"},
		}}},
		{
			Name: Audit, Doc: "the audit log. Nobody lives here: a reader inside could append by naming an audit subject as reply subject", Store: "{ max_file: 512GB, max_mem: 0, max_streams: 1, max_consumers: 1 }",
			Users: []User{{Role: "audit_prov", Boot: true, Pub: []string{"$JS.API.STREAM.CREATE.AUDIT", "$JS.API.STREAM.INFO.AUDIT", "audit.AUDIT.genesis"}, Sub: []string{"_INBOX.>"}}},
		},
		{
			Name: Core, Doc: "questions, events and state. Nobody lives here, for the same reason", Store: "{ max_file: 512GB, max_mem: 16MB, max_streams: 32, max_consumers: 128 }",
			Users: []User{{Role: "core_prov", Boot: true, Pub: []string{"$JS.API.STREAM.CREATE.*", "$JS.API.STREAM.UPDATE.*", "$JS.API.STREAM.INFO.*", "$JS.API.CONSUMER.CREATE.>", "$JS.API.CONSUMER.INFO.>", "$JS.API.INFO"}, Sub: []string{"_INBOX.>"}}},
		},
		{Name: "auditor", Doc: "the user as reader of the audit", Users: []User{{Role: "auditor"}}},
		{Name: "user", Doc: "the user: nats and conclave on the command line. Subscribing to > means all that is imported, nothing else", Users: []User{{Role: "user", Sub: []string{">"}}}},
		{Name: "gateway", Doc: "HTTP, page, query.ask", Serves: true, Users: []User{{Role: "gateway", Sub: append(discoverySubjects("gateway"), "query.ask", "ctl.*.config.set")}}},
		{Name: "broker", Doc: "the one door between agents and tools", Serves: true, Users: []User{{
			Role: "broker",
			Sub:  append(discoverySubjects("broker"), "agent.*.tool.request.>", "agent.*.broker.>", "agent.*.agent.spawn", "agent.*.agent.spawn.>", "agent.*.secret.use", "ctl.*.approval.decision.*", "ctl.*.approval.list", "ctl.*.approval.revoke.*", "ctl.*.policy.explain", "ctl.*.session.config", "ctl.*.config.set", "tool.schema.*.*"),
			Pub:  []string{"agent.*.tool.output.*", "tool.output.*"},
		}}},
		{Name: "secrets", Doc: "credentials, for the broker only", Serves: true, Users: []User{{Role: "secrets", Sub: append(discoverySubjects("secrets"), "secret.get", "ctl.*.config.set")}}},
		{Name: "model", Doc: "inference; an account of its own so that it can live on another machine", Serves: true, Users: []User{{Role: "model", Sub: append(discoverySubjects("model"), "agent.*.model.>", "ctl.*.config.set")}}},
		{Name: "router", Doc: "puts questions into the order of their sessions", Serves: true, Users: []User{{Role: "router", Sub: discoverySubjects("router")}}},
		{Name: "tools", Doc: "the tools of this machine, one key each", Serves: true},
	}
	for i := range out {
		if out[i].Name != "tools" {
			continue
		}
		for _, t := range Tools {
			role := ToolRole(t)
			out[i].Users = append(out[i].Users, User{
				Role: role, Isolated: true, ResponseTimeout: "10m",
				Sub: append(discoverySubjects(t), "tool.request."+t, "_INBOX."+role+".>"),
				Pub: []string{"tool.schema." + t, "tool.output." + t + ".*"},
			})
		}
	}
	for _, z := range zoneOrder[1:] {
		var sub, pub []string
		for _, t := range Zones[z] {
			sub, pub = append(sub, "tool.request."+t), append(pub, "tool.schema."+t, "tool.output."+t+".*")
		}
		doc := map[string]string{"memory": "what is remembered; serves its own tools", "critic": "grades; serves its own tool", "reward": "feedback; serves its own tool"}[z]
		if z == "memory" {
			sub = append(sub, "ctl.*.config.set", "ctl.*.memory.*")
		}
		out = append(out, Account{Name: z, Doc: doc, Serves: true, Users: []User{{Role: z, Sub: append(discoverySubjects(z), sub...), Pub: pub}}})
	}
	for _, a := range Agents {
		acc := Account{Name: a, Doc: "an agent: asks the broker for tools", Users: []User{{Role: a}}}
		if a == "operator" {
			acc.Doc = "the user's own tool calls, through the same broker"
		}
		if slices.Contains(Respondents, a) {
			acc.Serves = true
			acc.Users[0].Sub = discoverySubjects(a)
			if slices.Contains(configurable, a) {
				acc.Users[0].Sub = append(acc.Users[0].Sub, "ctl.*.config.set")
			}
			if a != RespondentB {
				acc.Users[0].Pub = []string{"response.delta.*", "response.thinking.*"}
			}
		}
		out = append(out, acc)
	}
	for _, w := range consumingActors() {
		out = append(out, Account{Name: w + "_in", Doc: "pulls for " + w + ", nothing else: a pulled message keeps its author's subject, and its puller could say it again", Users: []User{{Role: w + "_in"}}})
	}
	return out
}

// discoverySubjects is what a service subscribes to so that nats micro ls finds it.
func discoverySubjects(name string) (out []string) {
	for _, v := range []string{"PING", "INFO", "STATS"} {
		out = append(out, "$SRV."+v, "$SRV."+v+"."+name, "$SRV."+v+"."+name+".*")
	}
	return out
}

// servingAccounts lists the accounts that answer discovery.
func servingAccounts(accs []Account) (out []string) {
	for _, a := range accs {
		if a.Serves {
			out = append(out, a.Name)
		}
	}
	return out
}

// toolEdges is how the broker reaches the tools of one account.
func toolEdges(z string) []Edge {
	broker := []string{"broker"}
	var out []Edge
	for _, t := range Zones[z] {
		out = append(out, Edge{Callers: broker, Kind: ServiceImport, Owner: z, Remote: "tool.request." + t, Local: "tool.call." + z + "." + t, ReplyTimeout: "10m"})
	}
	return append(out,
		Edge{Callers: broker, Kind: StreamImport, Owner: z, Remote: "tool.schema.*", Local: "tool.schema." + z + ".*"},
		Edge{Callers: broker, Kind: StreamImport, Owner: z, Remote: "tool.output.*.*", Local: "tool.output." + z + ".*.*"},
		Edge{Callers: broker, Kind: ServiceImport, Owner: z, Remote: "$SRV.>", Local: "disco." + z + ".>", StreamReply: true, ReplyTimeout: "5s"})
}

// jetStreamEdge is one subject of the JetStream API. An account without JetStream answers $JS.API itself ("not enabled"), so it
// needs another local name.
func jetStreamEdge(who, subject string, many bool, silence string) Edge {
	return Edge{Callers: []string{who}, Kind: ServiceImport, Owner: Core, Remote: "$JS.API." + subject, Local: "core.API." + subject, StreamReply: many, ReplyTimeout: silence}
}

// consumerEdges is the three subjects of one durable consumer, in an account that holds nothing else.
func consumerEdges(p Consumer) []Edge {
	who := p.Actor + "_in"
	return []Edge{
		jetStreamEdge(who, "CONSUMER.INFO."+p.Stream+"."+p.Name, false, ""),
		jetStreamEdge(who, "CONSUMER.MSG.NEXT."+p.Stream+"."+p.Name, true, "2m"),
		{Callers: []string{who}, Kind: ServiceImport, Owner: Core, Remote: "$JS.ACK." + p.Stream + "." + p.Name + ".>"},
	}
}

// bucketEdges is put, compare-and-set, get, delete and list of one's own keys. One bucket per owner, because a roll-up on
// any writable key empties the whole bucket. No consumer: its deliver subject would speak with the place's rights.
func bucketEdges(who, name string) []Edge {
	s := "KV_" + name
	return []Edge{
		{Callers: []string{who}, Kind: ServiceImport, Owner: Core, Remote: "$KV." + name + ".>", Local: "core.API.$KV." + name + ".>"}, // nats.go puts the prefix before $KV too
		jetStreamEdge(who, "STREAM.INFO."+s, false, ""),
		jetStreamEdge(who, "DIRECT.GET."+s, true, "30s"),
		jetStreamEdge(who, "DIRECT.GET."+s+".>", false, ""),
	}
}

// withSubpaths is pattern with zero to n more tokens.
func withSubpaths(pattern string, n int) (out []string) {
	for range n + 1 {
		out = append(out, pattern)
		pattern += ".*"
	}
	return out
}
