package subjects

// Every subject of the bus. Name is what a speaker says and a watcher sees; Heard is what the owner hears after the
// server has written the speaker's account into it.
var (
	// Questions.
	QueryReceived  = Topic[Query]{Spec{Name: "query.received", Keep: "QUERIES", Plain: true, Doc: "a question for the assistant"}}
	QueryCommittee = Topic[Query]{Spec{Name: "query.committee", Keep: "QUERIES", Plain: true, Doc: "a question to deliberate"}}
	QueryTask      = Topic[Query]{Spec{Name: "query.task", Keep: "QUERIES", Plain: true, Doc: "a task to carry out"}}
	QuerySession   = Topic[Query]{Spec{Name: "query.session.*", Heard: "turn.*.*", Keep: "TURNS", Doc: "a question in its session's order, from the router"}}
	QueryAsk       = Service[Query, Delta]{Spec{Name: "query.ask", Plain: true, Doc: "ask and read the answer as it grows; an empty message ends it"}}
	QueryCancel    = Topic[Cancel]{Spec{Name: "query.cancel.*", Keep: "EVENTS", Plain: true, Doc: "stop a query, keep what is there"}}

	// Answers.
	ResponseDelta      = Topic[Delta]{Spec{Name: "response.delta.*", Drop: true, Doc: "live tokens of an answer"}}
	ResponseThinking   = Topic[Delta]{Spec{Name: "response.thinking.*", Drop: true, Doc: "live tokens of thinking"}}
	ResponseGeneration = Topic[Response]{Spec{Name: "response.generation", Heard: "from.*.response.generation", Keep: "EVENTS", Doc: "the whole answer with all that led to it"}}
	AnswerDialog       = Topic[Dialog]{Spec{Name: "answer.dialog", Heard: "from.*.answer.dialog", Keep: "EVENTS", Doc: "light form of the answer, never thinking"}}
	AgentStateOf       = Topic[AgentState]{Spec{Name: "agent.state.>", Heard: "from.*.agent.state.>", Keep: "EVENTS", Doc: "state machine transitions and interim words"}}

	// Tools.
	ToolAnnounce = Topic[ToolSchema]{Spec{Name: "tool.schema.*", Heard: "tool.schema.*.*", Codec: Msgpack, Keep: "KV_schemas", Max: 64 << 10, Doc: "a tool announces its schema"}}
	ToolAsk      = Service[ToolRequest, ToolResult]{Spec{Name: "tool.request.>", Heard: "agent.*.tool.request.>", Codec: Msgpack, Timed: true, Max: 256 << 10, Doc: "an agent asks the broker for a call"}}
	ToolRun      = Service[ToolOrder, ToolResult]{Spec{Name: "tool.call.*.*", Heard: "tool.request.*", Codec: Msgpack, Timed: true, Max: 256 << 10, Doc: "the broker calls the tool"}}
	ToolInfo     = Service[Nothing, Nothing]{Spec{Name: "disco.*.INFO.*", Heard: "$SRV.INFO.*", Doc: "the broker asks a tool for its definition"}}
	ToolAsked    = Topic[ToolRequest]{Spec{Name: "event.tool.request.>", Heard: "from.*.tool.request.>", Keep: "EVENTS", Doc: "the broker's copy of a call, seen as tool.request.<tool>"}}
	ToolDone     = Topic[ToolResult]{Spec{Name: "event.tool.result.*", Heard: "from.*.tool.result.*", Keep: "EVENTS", Doc: "the broker's copy of a result, seen as tool.result.<tool>"}}
	ToolLive     = Topic[ToolOutput]{Spec{Name: "tool.output.*", Drop: true, Doc: "live output of a long tool"}}

	// The broker's other services.
	BrokerDiscover      = Service[DiscoverRequest, DiscoverReply]{Spec{Name: "broker.discover", Heard: "agent.*.broker.discover", Codec: Msgpack, Timed: true, Keep: "AUDIT", Doc: "which few tools fit a task"}}
	BrokerDiscoverBelow = Service[DiscoverRequest, DiscoverReply]{Spec{Name: "broker.discover.>", Heard: "agent.*.broker.discover.>", Codec: Msgpack, Timed: true, Keep: "AUDIT", Doc: "the same for a spawned agent"}}
	BrokerValidate      = Service[ToolRequest, Verdict]{Spec{Name: "broker.validate", Heard: "agent.*.broker.validate", Codec: Msgpack, Timed: true, Keep: "AUDIT", Doc: "dry run of a call"}}
	BrokerValidateBelow = Service[ToolRequest, Verdict]{Spec{Name: "broker.validate.>", Heard: "agent.*.broker.validate.>", Codec: Msgpack, Timed: true, Keep: "AUDIT", Doc: "the same for a spawned agent"}}
	AgentSpawn          = Service[SpawnRequest, SpawnReply]{Spec{Name: "agent.spawn", Heard: "agent.*.agent.spawn", Codec: Msgpack, Timed: true, Keep: "AUDIT", Doc: "make a child agent"}}
	AgentSpawnBelow     = Service[SpawnRequest, SpawnReply]{Spec{Name: "agent.spawn.>", Heard: "agent.*.agent.spawn.>", Codec: Msgpack, Timed: true, Keep: "AUDIT", Doc: "make a child of a spawned agent"}}
	SecretUsed          = Service[SecretUse, SecretValue]{Spec{Name: "secret.use", Heard: "agent.*.secret.use", Codec: Msgpack, Timed: true, Keep: "AUDIT", Doc: "the key of a remote model, sealed to the one who needs it"}}

	// What only the user may say.
	ApprovalAsked   = Topic[ApprovalRequest]{Spec{Name: "event.approval.request.*", Heard: "from.*.approval.request.*", Keep: "EVENTS", Doc: "a user is asked, seen as approval.request.<id>"}}
	ApprovalAnswer  = Service[ApprovalDecision, ApprovalReply]{Spec{Name: "approval.decision.*", Heard: "ctl.*.approval.decision.*", Doc: "the user's answer; the first wins"}}
	ApprovalDecided = Topic[ApprovalReply]{Spec{Name: "event.approval.decision.*", Heard: "from.*.approval.decision.*", Keep: "EVENTS", Doc: "the broker's copy of the answer"}}
	ApprovalsOf     = Service[ApprovalQuery, ApprovalList]{Spec{Name: "approval.list", Heard: "ctl.*.approval.list", Doc: "what waits for an answer, and the answers that hold for good"}}
	ApprovalRevoke  = Service[Nothing, Done]{Spec{Name: "approval.revoke.*", Heard: "ctl.*.approval.revoke.*", Doc: "an answer no longer holds"}}
	PolicyExplain   = Service[ExplainRequest, Verdict]{Spec{Name: "policy.explain", Heard: "ctl.*.policy.explain", Doc: "the user's dry run of somebody's call"}}
	SessionSet      = Service[SessionConfig, SessionConfig]{Spec{Name: "session.config", Heard: "ctl.*.session.config", Keep: "KV_session_config", Doc: "override level, disabled tools, grants"}}
	ConfigSetOf     = Service[ConfigSet, Done]{Spec{Name: "config.set.*", Heard: "ctl.*.config.set", Keep: "AUDIT", Doc: "settings of an actor"}}

	// Models.
	ModelChat  = Service[ChatRequest, ChatChunk]{Spec{Name: "model.chat", Heard: "agent.*.model.chat", Codec: Msgpack, Timed: true, Stop: "model.stop.*", Doc: "inference, streamed"}}
	ModelStop  = Topic[Nothing]{Spec{Name: "model.stop.*", Heard: "agent.*.model.stop.*", Drop: true, Doc: "the caller no longer listens"}}
	ModelEmbed = Service[EmbedRequest, EmbedReply]{Spec{Name: "model.embed", Heard: "agent.*.model.embed", Codec: Msgpack, Timed: true, Doc: "vectors"}}
	ModelNames = Service[Nothing, ModelList]{Spec{Name: "model.list", Heard: "agent.*.model.list", Codec: Msgpack, Timed: true, Doc: "models at hand, and which role each has"}}
	ModelPull  = Service[PullRequest, PullProgress]{Spec{Name: "model.pull", Heard: "agent.*.model.pull", Codec: Msgpack, Timed: true, Stop: "model.stop.*", Doc: "fetch a model, streamed progress; the user only"}}

	// Quality.
	CritiqueResult = Topic[Critique]{Spec{Name: "critique.result", Heard: "from.*.critique.result", Keep: "EVENTS", Doc: "a grade of 1 to 5 with feedback"}}
	PairwiseResult = Topic[Pairwise]{Spec{Name: "pairwise.result", Heard: "from.*.pairwise.result", Keep: "EVENTS", Doc: "the verdict between two answers"}}
	UserFeedback   = Topic[Feedback]{Spec{Name: "user.feedback", Heard: "from.*.user.feedback", Keep: "EVENTS", Doc: "thumbs, stars, words"}}
	RewardEvent    = Topic[Reward]{Spec{Name: "reward.event", Heard: "from.*.reward.event", Keep: "EVENTS", Doc: "feedback for the agent that produced the answer"}}

	// Memory.
	MemoryRecalls    = Service[MemoryQuery, MemoryReply]{Spec{Name: "memory.query", Heard: "ctl.*.memory.query", Codec: Msgpack, Timed: true, Keep: "AUDIT", Doc: "recall, told stage by stage"}}
	MemoryWriting    = Service[MemoryWrites, MemoryWritten]{Spec{Name: "memory.write", Heard: "ctl.*.memory.write", Codec: Msgpack, Timed: true, Keep: "AUDIT", Doc: "remember entries, or a document"}}
	MemoryCorrelated = Service[MemoryIDs, MemoryReply]{Spec{Name: "memory.correlated", Heard: "ctl.*.memory.correlated", Codec: Msgpack, Timed: true, Keep: "AUDIT", Doc: "what goes with these"}}
	MemoryAdminOf    = Service[MemoryAdmin, MemoryAdmined]{Spec{Name: "memory.admin", Heard: "ctl.*.memory.admin", Codec: Msgpack, Timed: true, Keep: "AUDIT", Doc: "list, show, edit, pin, forget"}}
	MemoryStored     = Topic[MemoryEvent]{Spec{Name: "memory.stored", Heard: "from.*.memory.stored", Keep: "EVENTS", Doc: "something was remembered"}}
	MemoryAnnotated  = Topic[MemoryEvent]{Spec{Name: "memory.annotated", Heard: "from.*.memory.annotated", Keep: "EVENTS", Doc: "a memory got a grade"}}
	MemoryRecalled   = Topic[MemoryEvent]{Spec{Name: "memory.recalled", Heard: "from.*.memory.recalled", Keep: "EVENTS", Doc: "what was recalled and why"}}

	// Committee and orchestrator.
	Deliberated   = Topic[Deliberation]{Spec{Name: "committee.deliberation.*", Heard: "from.*.committee.deliberation.*", Keep: "EVENTS", Doc: "one persona's turn"}}
	TaskState     = Topic[TaskProgress]{Spec{Name: "task.progress.*", Heard: "from.*.task.progress.*", Keep: "EVENTS", Doc: "plan and subtask states"}}
	AgentReturned = Topic[AgentReturn]{Spec{Name: "agent.return.*", Heard: "from.*.agent.return.*", Keep: "EVENTS", Doc: "the structured return of a subagent"}}

	// The system itself.
	Dead      = Topic[DeadLetter]{Spec{Name: "dead.*", Heard: "from.*.dead.*", Keep: "EVENTS", Doc: "what could not be read or kept failing, with the reason"}}
	SecretOf  = Service[SecretGet, SecretValue]{Spec{Name: "secret.get", Codec: Msgpack, Timed: true, Keep: "AUDIT", Doc: "one credential, sealed to the tool that needs it"}}
	Exhausted = Topic[Advisory]{Spec{Name: "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>", Heard: "core.EVENT.MAX_DELIVERIES.>", Max: 4 << 10, Doc: "the server's word that a message was handed out too often and will not come again"}}
	AuditLine = Topic[AuditRecord]{Spec{Name: "audit.*", Heard: "audit.*.*", Codec: Msgpack, Keep: "AUDIT", Doc: "audit records on the writer's chain, several in one message: a list of encoded records"}}
)

// Specs lists every subject, in the order of docs/bus.md.
func Specs() []Spec {
	return []Spec{
		QueryReceived.Spec, QueryCommittee.Spec, QueryTask.Spec, QuerySession.Spec, QueryAsk.Spec, QueryCancel.Spec,
		ResponseDelta.Spec, ResponseThinking.Spec, ResponseGeneration.Spec, AnswerDialog.Spec, AgentStateOf.Spec,
		ToolAnnounce.Spec, ToolAsk.Spec, ToolRun.Spec, ToolInfo.Spec, ToolAsked.Spec, ToolDone.Spec, ToolLive.Spec,
		BrokerDiscover.Spec, BrokerDiscoverBelow.Spec, BrokerValidate.Spec, BrokerValidateBelow.Spec, AgentSpawn.Spec, AgentSpawnBelow.Spec, SecretUsed.Spec,
		ApprovalAsked.Spec, ApprovalAnswer.Spec, ApprovalDecided.Spec, ApprovalsOf.Spec, ApprovalRevoke.Spec, PolicyExplain.Spec, SessionSet.Spec, ConfigSetOf.Spec,
		ModelChat.Spec, ModelStop.Spec, ModelEmbed.Spec, ModelNames.Spec, ModelPull.Spec,
		CritiqueResult.Spec, PairwiseResult.Spec, UserFeedback.Spec, RewardEvent.Spec,
		MemoryRecalls.Spec, MemoryWriting.Spec, MemoryCorrelated.Spec, MemoryAdminOf.Spec, MemoryStored.Spec, MemoryAnnotated.Spec, MemoryRecalled.Spec,
		Deliberated.Spec, TaskState.Spec, AgentReturned.Spec,
		Dead.Spec, SecretOf.Spec, Exhausted.Spec, AuditLine.Spec,
	}
}

// ToolAt is [ToolRun] as one tool hears it. A tool may listen to nothing but its own name.
func ToolAt(tool string) (Service[ToolOrder, ToolResult], error) {
	s := ToolRun
	var err error
	s.Heard, err = fill(s.Heard, []string{tool})
	return s, err
}
