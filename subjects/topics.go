package subjects

// Every subject of the bus. Name is the subject as published and watched; Received is the subject as the owner gets it,
// after the server has written the publisher's account into it. A variable is named after its subject, with Service or
// Event where the payload type has that name.
var (
	// Questions.
	QueryReceived = Topic[Query]{Spec{
		Name: "query.received", Stream: "QUERIES", PlainText: true,
		Doc: "a question for the assistant",
	}}
	QueryCommittee = Topic[Query]{Spec{
		Name: "query.committee", Stream: "QUERIES", PlainText: true,
		Doc: "a question to deliberate",
	}}
	QueryTask = Topic[Query]{Spec{
		Name: "query.task", Stream: "QUERIES", PlainText: true,
		Doc: "a task to carry out",
	}}
	QuerySession = Topic[Query]{Spec{
		Name: "query.session.*", Received: "turn.*.*", Stream: "TURNS",
		Doc: "a question in its session's order, from the router",
	}}
	TurnCommittee = Topic[Query]{Spec{Name: "turn.committee.*", Stream: "TURNS", Doc: "a question for the " +
		"committee, by session, from the router"}}
	TurnTask = Topic[Query]{Spec{Name: "turn.orchestrator.*", Stream: "TURNS", Doc: "a task for the " +
		"orchestrator, by session, from the router"}}
	QueryAsk = Service[Query, Delta]{Spec{
		Name: "query.ask", Received: "client.*.query.ask", PlainText: true,
		Doc: "ask and get the answer in one message, or with the header Conclave-Stream as it grows; an empty " +
			"message ends it",
	}}
	QueryCancel = Topic[Cancel]{Spec{
		Name: "query.cancel.*", Stream: "EVENTS", PlainText: true,
		Doc: "stop a query and keep its partial answer",
	}}

	// The agent protocol: agents.<verb>.<agent>.<owner>.<session>, where the owner is the account of the caller.
	AgentsPrompt = Service[[]byte, []byte]{Spec{
		Name: "agents.prompt.*.*.*", Received: "client.*.agents.prompt.*.*",
		Codec: Raw, Doc: "agent protocol: a prompt for an agent in a session of the caller; the reply is typed " +
			"chunks, and an empty message ends it",
	}}
	AgentsStatus = Service[[]byte, []byte]{Spec{
		Name: "agents.status.*.*.*", Received: "client.*.agents.status.*.*",
		Codec: Raw, MaxPayload: 4 << 10, Doc: "agent protocol: a heartbeat on request",
	}}
	AgentsReply = Service[[]byte, []byte]{Spec{
		Name: "agents.reply.*.*", Received: "client.*.agents.reply.*",
		Codec: Raw, MaxPayload: 4 << 10, Doc: "agent protocol: the reply to a query chunk, for accounts that may " +
			"approve calls",
	}}
	AgentsService = Service[[]byte, []byte]{Spec{
		Name: "$SRV.*.agents", Received: "client.*.agents.srv.*",
		Codec: Raw, MaxPayload: 4 << 10, Doc: "agent protocol: discovery of the agents of the caller",
	}}
	AgentsInstance = Service[[]byte, []byte]{Spec{
		Name: "$SRV.*.agents.*", Received: "client.*.agents.srv.*.*",
		Codec: Raw, MaxPayload: 4 << 10, Doc: "the same for one instance",
	}}
	AgentsHeartbeats = Topic[AgentsHeartbeat]{Spec{
		Name: "client.*.agents.hb.*.*", Received: "agents.hb.*.*.*",
		Lossy: true, Doc: "agent protocol: an agent is running",
	}}

	AttachmentPiece = Topic[[]byte]{Spec{
		Name: "attachment.*.*.*", Codec: Raw, Stream: "ATTACHMENTS",
		MaxPayload: MaxPiece, Doc: "a piece of an attached image, by session, SHA-256 and index; empty = deleted",
	}}

	// Schedules.
	ScheduleDefinition = Topic[Schedule]{Spec{
		Name: "schedule.definition.*", Stream: "SCHEDULES", MaxPayload: 128 << 10,
		Doc: "the definition of a schedule, stored by the broker for the user",
	}}
	ScheduleDue = Topic[ScheduleRun]{Spec{
		Name: "schedule.due.*", Stream: "SCHEDULED", MaxPayload: 4 << 10,
		Doc: "a schedule is due; the router asks its question",
	}}

	ScheduleChangeService = Service[ScheduleChange,
		Schedule]{Spec{
		Name: "schedule.change", Received: "ctl.*.schedule.change", NeedsDeadline: true,
		MaxPayload: 128 << 10, Stream: "AUDIT", Doc: "the user adds, pauses, resumes or removes a schedule",
	}}

	// Answers.
	ResponseDelta      = Topic[Delta]{Spec{Name: "response.delta.*", Lossy: true, Doc: "live tokens of an answer"}}
	ResponseThinking   = Topic[Delta]{Spec{Name: "response.thinking.*", Lossy: true, Doc: "live tokens of thinking"}}
	ResponseGeneration = Topic[Response]{Spec{
		Name: "response.generation", Received: "from.*.response.generation",
		Stream: "EVENTS", Doc: "the whole answer with its tool calls, recalls and usage",
	}}
	AnswerDialog = Topic[Dialog]{Spec{
		Name: "answer.dialog", Received: "from.*.answer.dialog", Stream: "EVENTS",
		Doc: "light form of the answer, never thinking",
	}}
	AgentStateEvent = Topic[AgentState]{Spec{
		Name: "agent.state.>", Received: "from.*.agent.state.>",
		Stream: "EVENTS", Doc: "state machine transitions and interim text",
	}}

	// Tools.
	ToolSchemaEvent = Topic[ToolSchema]{Spec{
		Name: "tool.schema.*", Received: "tool.schema.*.*", Codec: Msgpack,
		Stream: "KV_schemas", MaxPayload: 64 << 10, Doc: "a tool announces its schema",
	}}
	ToolRequestService = Service[ToolRequest,
		ToolResult]{Spec{
		Name: "tool.request.>", Received: "agent.*.tool.request.>", Codec: Msgpack,
		NeedsDeadline: true, MaxPayload: 256 << 10, Doc: "an agent requests a tool call from the broker",
	}}
	ToolCallService = Service[ToolOrder, ToolResult]{Spec{
		Name: "tool.call.*.*", Received: "tool.request.*",
		Codec: Msgpack, NeedsDeadline: true, MaxPayload: 256 << 10, Doc: "the broker calls the tool",
	}}
	ToolInfo = Service[Empty, Empty]{Spec{
		Name: "disco.*.INFO.*", Received: "$SRV.INFO.*",
		Doc: "the broker requests a tool's definition",
	}}
	ToolRequestEvent = Topic[ToolRequest]{Spec{
		Name: "event.tool.request.>", Received: "from.*.tool.request.>",
		Stream: "EVENTS", Doc: "the broker's copy of a call, seen as tool.request.<tool>",
	}}
	ToolResultEvent = Topic[ToolResult]{Spec{
		Name: "event.tool.result.*", Received: "from.*.tool.result.*",
		Stream: "EVENTS", Doc: "the broker's copy of a result, seen as tool.result.<tool>",
	}}
	ToolOutputEvent = Topic[ToolOutput]{Spec{Name: "tool.output.*", Lossy: true, Doc: "live output of a running " +
		"tool, checked by the broker, for the user"}}
	AgentOutputEvent = Topic[ToolOutput]{Spec{
		Name: "agent.*.tool.output.*", Lossy: true,
		Doc: "the same for the agent that called, which sees it as tool.output.<call>",
	}}
	ToolRunOutput = Topic[ToolOutput]{Spec{
		Name: "tool.output.*.*", Received: "tool.output.*.*.*", Codec: Msgpack,
		Lossy: true, MaxPayload: 64 << 10, Doc: "a tool publishes live output for the broker; the broker receives it " +
			"with the zone of the tool",
	}}

	// The broker's other services.
	BrokerDiscover = Service[DiscoverRequest, DiscoverReply]{Spec{
		Name:     "broker.discover",
		Received: "agent.*.broker.discover", Codec: Msgpack, NeedsDeadline: true, Stream: "AUDIT",
		Doc: "which few tools fit a task",
	}}
	BrokerDiscoverBelow = Service[DiscoverRequest, DiscoverReply]{Spec{
		Name:     "broker.discover.>",
		Received: "agent.*.broker.discover.>", Codec: Msgpack, NeedsDeadline: true, Stream: "AUDIT",
		Doc: "the same for a spawned agent",
	}}
	BrokerValidate = Service[ToolRequest,
		Verdict]{Spec{
		Name: "broker.validate", Received: "agent.*.broker.validate", Codec: Msgpack, NeedsDeadline: true,
		Stream: "AUDIT", Doc: "dry run of a tool call",
	}}
	BrokerValidateBelow = Service[ToolRequest,
		Verdict]{Spec{
		Name: "broker.validate.>", Received: "agent.*.broker.validate.>", Codec: Msgpack,
		NeedsDeadline: true, Stream: "AUDIT", Doc: "the same for a spawned agent",
	}}
	AgentSpawn = Service[SpawnRequest, SpawnReply]{Spec{
		Name: "agent.spawn", Received: "agent.*.agent.spawn",
		Codec: Msgpack, NeedsDeadline: true, Stream: "AUDIT", Doc: "make a child agent",
	}}
	AgentSpawnBelow = Service[SpawnRequest,
		SpawnReply]{Spec{
		Name: "agent.spawn.>", Received: "agent.*.agent.spawn.>", Codec: Msgpack, NeedsDeadline: true,
		Stream: "AUDIT", Doc: "make a child of a spawned agent",
	}}
	SecretUseService = Service[SecretUse, SecretValue]{Spec{
		Name: "secret.use", Received: "agent.*.secret.use",
		Codec: Msgpack, NeedsDeadline: true, Stream: "AUDIT", Doc: "a credential of a remote model or an MCP server, " +
			"sealed to the actor that uses it",
	}}

	QueryGrantsEvent = Topic[Grants]{Spec{
		Name: "event.query.grants.*", Received: "from.*.query.grants.*",
		Stream: "EVENTS", Doc: "what a question permits after untrusted content, derived from the user's words, seen " +
			"as query.grants.<query>",
	}}

	// Control: for the user's accounts only.
	ApprovalRequestEvent = Topic[ApprovalRequest]{Spec{
		Name:     "event.approval.request.*",
		Received: "from.*.approval.request.*", Stream: "EVENTS", Doc: "the user is asked for approval, seen as " +
			"approval.request.<id>",
	}}
	ApprovalDecisionService = Service[ApprovalDecision, ApprovalReply]{Spec{
		Name:     "approval.decision.*",
		Received: "ctl.*.approval.decision.*", Doc: "the user's decision; the first one holds",
	}}
	ApprovalDecisionEvent = Topic[ApprovalReply]{Spec{
		Name:     "event.approval.decision.*",
		Received: "from.*.approval.decision.*", Stream: "EVENTS", Doc: "the broker's copy of the decision",
	}}
	ApprovalListService = Service[ApprovalQuery,
		ApprovalList]{Spec{Name: "approval.list", Received: "ctl.*.approval.list", Doc: "pending approvals and " +
		"standing rules"}}
	ApprovalRevoke = Service[Empty, Done]{Spec{
		Name: "approval.revoke.*", Received: "ctl.*.approval.revoke.*",
		Doc: "revoke a standing rule",
	}}
	ToolListService = Service[ToolQuery, ToolList]{Spec{
		Name: "tool.list", Received: "ctl.*.tool.list",
		NeedsDeadline: true, Doc: "the tools of run-time principals and their definitions",
	}}
	ToolAcceptService = Service[ToolAccept, ToolStatus]{Spec{
		Name: "tool.accept", Received: "ctl.*.tool.accept",
		NeedsDeadline: true, Stream: "AUDIT", Doc: "accept the changed definition of a tool",
	}}
	ChangeListService = Service[ChangeQuery, ChangeList]{Spec{
		Name: "change.list", Received: "ctl.*.change.list",
		NeedsDeadline: true, Stream: "AUDIT", Doc: "changes by calls that can be undone",
	}}
	ChangeUndoService = Service[UndoRequest, UndoReply]{Spec{
		Name: "change.undo", Received: "ctl.*.change.undo",
		NeedsDeadline: true, Stream: "AUDIT", Doc: "take changes back, or remove what is kept of them",
	}}
	PolicyExplain = Service[ExplainRequest,
		Verdict]{Spec{Name: "policy.explain", Received: "ctl.*.policy.explain", Doc: "the user's dry run of an " +
		"agent's call"}}
	SessionConfigService = Service[SessionConfig,
		SessionConfig]{Spec{
		Name: "session.config", Received: "ctl.*.session.config", Stream: "KV_session_config",
		Doc: "override level, disabled tools, grants",
	}}
	SessionChangeService = Service[SessionChange, SessionChanged]{Spec{
		Name:     "session.change",
		Received: "ctl.*.session.change", NeedsDeadline: true, Stream: "KV_state_generator",
		Doc: "delete, summarize or branch a conversation",
	}}
	SessionContextService = Service[SessionContextRequest, SessionContext]{Spec{
		Name:     "session.context",
		Received: "ctl.*.session.context", NeedsDeadline: true, Doc: "the messages that the model gets with the next " +
			"question of a session",
	}}
	TaskChangeService = Service[TaskChange, TaskChanged]{Spec{
		Name: "task.change", Received: "ctl.*.task.change",
		NeedsDeadline: true, Stream: "AUDIT", Doc: "pause, resume or cancel a task",
	}}
	SessionChangeCommittee = Service[SessionChange, SessionChanged]{Spec{
		Name:     "session.change.committee",
		Received: "ctl.*.session.change.committee", NeedsDeadline: true, Stream: "KV_state_committee",
		Doc: "delete the committee's part of a conversation",
	}}
	ConfigSetService = Service[ConfigSet, Done]{Spec{
		Name: "config.set.*", Received: "ctl.*.config.set",
		Stream: "AUDIT", Unserved: "Change the actor's file in the config folder and restart conclave up.",
		Doc: "settings of an actor",
	}}

	// Run-time principals.
	PrincipalChangeService = Service[PrincipalChange, PrincipalList]{Spec{
		Name:     "principal.change",
		Received: "ctl.*.principal.change", NeedsDeadline: true, Stream: "AUDIT",
		Doc: "add, revoke or rotate a run-time principal",
	}}
	PrincipalListService = Service[Empty,
		PrincipalList]{Spec{
		Name: "principal.list", Received: "agent.*.principal.list", NeedsDeadline: true,
		Doc: "the run-time principals",
	}}
	PrincipalChanged = Topic[PrincipalNotice]{Spec{
		Name: "principal.changed", Lossy: true,
		Doc: "the run-time principals changed; readers request the list again, and at intervals, because this " +
			"message may be lost",
	}}

	// Settings.
	SettingListService = Service[Empty, SettingList]{Spec{
		Name: "settings.list", Received: "ctl.*.settings.list",
		NeedsDeadline: true, Doc: "every setting with its origin",
	}}
	SettingChangeService = Service[SettingChange, SettingChanged]{Spec{
		Name:     "settings.change",
		Received: "ctl.*.settings.change", NeedsDeadline: true, Stream: "AUDIT",
		Doc: "write a setting to the user's file, and apply it where that needs no restart",
	}}
	DoctorService = Service[Empty, DoctorReport]{Spec{
		Name: "doctor.run", Received: "ctl.*.doctor.run",
		NeedsDeadline: true, Doc: "check the installation, as conclave doctor does",
	}}

	// Models.
	ModelChat = Service[ChatRequest, ChatChunk]{Spec{
		Name: "model.chat", Received: "agent.*.model.chat",
		Codec: Msgpack, NeedsDeadline: true, Stop: "model.stop.*", Doc: "inference, streamed",
	}}
	ModelStop = Topic[Empty]{Spec{
		Name: "model.stop.*", Received: "agent.*.model.stop.*", Lossy: true,
		Doc: "the caller stopped reading, or with probe-<id> asks whether its request is held",
	}}
	ModelEmbed = Service[EmbedRequest, EmbedReply]{Spec{
		Name: "model.embed", Received: "agent.*.model.embed",
		Codec: Msgpack, NeedsDeadline: true, Doc: "embeddings",
	}}
	ModelListService = Service[Empty, ModelList]{Spec{
		Name: "model.list", Received: "agent.*.model.list",
		Codec: Msgpack, NeedsDeadline: true, Doc: "available models, and the model of each role",
	}}
	MachineReport = Service[Empty, ModelReport]{Spec{
		Name:     "machine.*.model.report",
		Received: "agent.*.model.report", Codec: Msgpack, NeedsDeadline: true, Background: true,
		Doc: "the model actor asks that of a machine for its models and limits",
	}}
	MachineRun = Service[ModelRun, ModelRunChunk]{Spec{
		Name: "machine.*.model.run", Received: "agent.*.model.run",
		Codec: Msgpack, NeedsDeadline: true, Doc: "a call on a machine: run it, or go on reading it after a cut link",
	}}
	MachineRunEnd = Service[ModelRunEnd, Empty]{Spec{
		Name: "machine.*.model.end", Received: "agent.*.model.end",
		Codec: Msgpack, NeedsDeadline: true, Background: true, Doc: "stop a call on a machine and forget its output",
	}}
	MachineEmbed = Service[EmbedRequest, EmbedReply]{Spec{
		Name:     "machine.*.model.embed",
		Received: "agent.*.model.embed", Codec: Msgpack, NeedsDeadline: true, Doc: "embeddings on a machine",
	}}
	MachinePull = Service[PullRequest, PullProgress]{Spec{
		Name:     "machine.*.model.pull",
		Received: "agent.*.model.pull", Codec: Msgpack, NeedsDeadline: true, Doc: "fetch a model to a machine, " +
			"streamed progress",
	}}
	ModelPull = Service[PullRequest, PullProgress]{Spec{
		Name: "model.pull", Received: "agent.*.model.pull",
		Codec: Msgpack, NeedsDeadline: true, Stop: "model.stop.*",
		Doc: "fetch a model, streamed progress; the user only",
	}}

	// Quality.
	CritiqueResult = Topic[Critique]{Spec{
		Name: "critique.result", Received: "from.*.critique.result", Stream: "EVENTS",
		Doc: "a grade of 1 to 5 with feedback",
	}}
	PairwiseResult = Topic[Pairwise]{Spec{
		Name: "pairwise.result", Received: "from.*.pairwise.result", Stream: "EVENTS",
		Doc: "the verdict between two answers",
	}}
	UserFeedback = Topic[Feedback]{Spec{
		Name: "user.feedback", Received: "from.*.user.feedback", Stream: "EVENTS",
		Doc: "thumbs, stars, words",
	}}
	RewardEvent = Topic[Reward]{Spec{
		Name: "reward.event", Received: "from.*.reward.event", Stream: "EVENTS",
		Doc: "feedback for the agent that produced the answer",
	}}

	// Memory.
	MemoryQueryService = Service[MemoryQuery, MemoryReply]{Spec{
		Name: "memory.query", Received: "ctl.*.memory.query",
		Codec: Msgpack, NeedsDeadline: true, Stream: "AUDIT", Doc: "recall, streamed by stage",
	}}
	MemoryWriteService = Service[MemoryWriteRequest, MemoryWriteReply]{Spec{
		Name:     "memory.write",
		Received: "ctl.*.memory.write", Codec: Msgpack, NeedsDeadline: true, Stream: "AUDIT",
		Doc: "store entries, or import a document",
	}}
	MemoryCorrelated = Service[MemoryIDs, MemoryReply]{Spec{
		Name:     "memory.correlated",
		Received: "ctl.*.memory.correlated", Codec: Msgpack, NeedsDeadline: true, Stream: "AUDIT",
		Doc: "entries correlated with the given ones",
	}}
	MemoryAdminService = Service[MemoryAdminRequest, MemoryAdminReply]{Spec{
		Name:     "memory.admin",
		Received: "ctl.*.memory.admin", Codec: Msgpack, NeedsDeadline: true, Stream: "AUDIT",
		Doc: "list, show, edit, pin, forget",
	}}
	MemoryStored = Topic[MemoryEvent]{Spec{
		Name: "memory.stored", Received: "from.*.memory.stored",
		Stream: "EVENTS", Doc: "an entry was stored",
	}}
	MemoryAnnotated = Topic[MemoryEvent]{Spec{
		Name: "memory.annotated", Received: "from.*.memory.annotated",
		Stream: "EVENTS", Doc: "an entry was graded",
	}}
	MemoryRecalled = Topic[MemoryEvent]{Spec{
		Name: "memory.recalled", Received: "from.*.memory.recalled",
		Stream: "EVENTS", Doc: "what was recalled and why",
	}}

	// Committee and orchestrator.
	DeliberationEvent = Topic[Deliberation]{Spec{
		Name:     "committee.deliberation.*",
		Received: "from.*.committee.deliberation.*", Stream: "EVENTS", Doc: "one persona's turn",
	}}
	TaskProgressEvent = Topic[TaskProgress]{Spec{
		Name: "task.progress.*", Received: "from.*.task.progress.*",
		Stream: "EVENTS", Doc: "plan and subtask states",
	}}
	AgentReturnEvent = Topic[AgentReturn]{Spec{
		Name: "agent.return.*", Received: "from.*.agent.return.*",
		Stream: "EVENTS", Doc: "the structured return of a subagent",
	}}

	// The system itself.
	DeadLetterEvent = Topic[DeadLetter]{Spec{
		Name: "dead.*", Received: "from.*.dead.*", Stream: "EVENTS",
		Doc: "dead letter: a message that was rejected or kept failing, with the reason",
	}}
	MachineInviteService = Service[MachineInvite, MachineInvited]{Spec{
		Name:     "machine.invite",
		Received: "ctl.*.machine.invite", NeedsDeadline: true, Stream: "AUDIT",
		Doc: "invite a machine, or let it replace its keys",
	}}
	MachineListService = Service[Empty, MachineList]{Spec{
		Name: "machine.list", Received: "ctl.*.machine.list",
		NeedsDeadline: true, Doc: "machines and their connections",
	}}
	WitnessHead = Service[Empty, WitnessHeads]{Spec{
		Name: "witness.*.head", Received: "witness.head",
		Doc: "the auditor requests the heads of the copies of the audit log on a machine",
	}}
	SecretGetService = Service[SecretGet, SecretValue]{Spec{
		Name: "secret.get", Codec: Msgpack,
		NeedsDeadline: true, Stream: "AUDIT", Doc: "one credential, sealed to the tool that needs it",
	}}
	SealKeyService = Service[Empty, Empty]{Spec{
		Name: "receiver.*.seal.key.*", Received: "seal.key.*",
		NeedsDeadline: true, MaxPayload: 4 << 10, Doc: "the secrets actor asks the account of a receiver for a key; " +
			"the process that has its private half replies",
	}}
	MaxDeliveriesAdvisory = Topic[Advisory]{Spec{
		Name:     "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>",
		Received: "core.EVENT.MAX_DELIVERIES.>", MaxPayload: 4 << 10, Doc: "advisory of the server: a message " +
			"reached its delivery limit and is not redelivered",
	}}
	AuditLogHeadEvent = Topic[AuditLogHead]{Spec{
		Name: "auditlog.head", Received: "from.*.auditlog.head",
		Stream: "EVENTS", Doc: "the head of the audit log, kept outside it",
	}}
	AuditCapacityEvent = Topic[AuditCapacity]{Spec{
		Name: "audit.capacity", Received: "from.*.audit.capacity",
		Stream: "EVENTS", Doc: "a writer's part of the audit log is 80 % full",
	}}
	AuditRecordEvent = Topic[AuditRecord]{Spec{
		Name: "audit.*", Received: "audit.*.*", Codec: Msgpack,
		Stream: "AUDIT", Doc: "audit records on the writer's chain, several in one message: a list of encoded records",
	}}
)

// UnservedSpecs lists the subjects that no actor of this build serves, as the router receives them from the user: it
// replies with a fault whatever the body holds.
func UnservedSpecs() (out []Spec) {
	for _, s := range AllSpecs() {
		if s.Unserved != "" {
			out = append(out, Spec{
				Name: s.Name, Received: "ctl.*.unserved." + s.Name, PlainText: true,
				Unserved: s.Unserved,
			})
		}
	}
	return out
}

// AllSpecs lists every subject, in the order of docs/bus.md. A new subject must be added here.
func AllSpecs() []Spec {
	return []Spec{
		QueryReceived.Spec, QueryCommittee.Spec, QueryTask.Spec, QuerySession.Spec, TurnCommittee.Spec, TurnTask.Spec,
		QueryAsk.Spec, QueryCancel.Spec, AttachmentPiece.Spec,
		AgentsPrompt.Spec, AgentsStatus.Spec, AgentsReply.Spec, AgentsService.Spec, AgentsInstance.Spec,
		AgentsHeartbeats.Spec,
		ScheduleDefinition.Spec, ScheduleDue.Spec, ScheduleChangeService.Spec,
		ResponseDelta.Spec, ResponseThinking.Spec, ResponseGeneration.Spec, AnswerDialog.Spec, AgentStateEvent.Spec,
		ToolSchemaEvent.Spec, ToolRequestService.Spec, ToolCallService.Spec, ToolInfo.Spec, ToolRequestEvent.Spec,
		ToolResultEvent.Spec, ToolOutputEvent.Spec, AgentOutputEvent.Spec, ToolRunOutput.Spec,
		BrokerDiscover.Spec, BrokerDiscoverBelow.Spec, BrokerValidate.Spec, BrokerValidateBelow.Spec, AgentSpawn.Spec,
		AgentSpawnBelow.Spec, SecretUseService.Spec, QueryGrantsEvent.Spec,
		ApprovalRequestEvent.Spec, ApprovalDecisionService.Spec, ApprovalDecisionEvent.Spec, ApprovalListService.Spec,
		ApprovalRevoke.Spec, ToolListService.Spec, ToolAcceptService.Spec, ChangeListService.Spec,
		ChangeUndoService.Spec, PolicyExplain.Spec,
		SessionConfigService.Spec, SessionChangeService.Spec, SessionContextService.Spec, SessionChangeCommittee.Spec,
		TaskChangeService.Spec, ConfigSetService.Spec,
		PrincipalChangeService.Spec, PrincipalListService.Spec, PrincipalChanged.Spec,
		SettingListService.Spec, SettingChangeService.Spec, DoctorService.Spec,
		ModelChat.Spec, ModelStop.Spec, ModelEmbed.Spec, ModelListService.Spec, ModelPull.Spec,
		MachineReport.Spec, MachineRun.Spec, MachineRunEnd.Spec, MachineEmbed.Spec, MachinePull.Spec,
		CritiqueResult.Spec, PairwiseResult.Spec, UserFeedback.Spec, RewardEvent.Spec,
		MemoryQueryService.Spec, MemoryWriteService.Spec, MemoryCorrelated.Spec, MemoryAdminService.Spec,
		MemoryStored.Spec, MemoryAnnotated.Spec, MemoryRecalled.Spec,
		DeliberationEvent.Spec, TaskProgressEvent.Spec, AgentReturnEvent.Spec,
		DeadLetterEvent.Spec, MachineInviteService.Spec, MachineListService.Spec, WitnessHead.Spec,
		SecretGetService.Spec, SealKeyService.Spec, MaxDeliveriesAdvisory.Spec,
		AuditLogHeadEvent.Spec, AuditCapacityEvent.Spec, AuditRecordEvent.Spec,
	}
}

// ToolEndpoint is [ToolCallService] as one tool receives it. A tool may subscribe to its own name only.
func ToolEndpoint(tool string) (Service[ToolOrder, ToolResult], error) {
	s := ToolCallService
	var err error
	s.Received, err = fillWildcards(s.Received, []string{tool})
	return s, err
}

// SealKeyEndpoint is [SealKeyService] as the process with the private half of a public key receives it.
func SealKeyEndpoint(key string) (Service[Empty, Empty], error) {
	s := SealKeyService
	var err error
	s.Received, err = fillWildcards(s.Received, []string{key})
	return s, err
}
