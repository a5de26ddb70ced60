package telemetry

// Buckets of histograms: seconds of messages, of model calls and answers, and tokens per second.
var (
	fastSeconds = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60}
	slowSeconds = []float64{.05, .1, .25, .5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600}
	tokenRates  = []float64{1, 2, 5, 10, 20, 30, 50, 75, 100, 150, 250, 500, 1000}
)

// The metrics of actors, which the runtime, the broker, the model actor and others count.
var (
	Messages = Metric{
		Name: "conclave_messages_total", Kind: Counter, Labels: []string{"endpoint", "result"},
		Help: "Messages by endpoint and result: ok, error or rejected.",
	}
	MessageSeconds = Metric{
		Name: "conclave_message_seconds", Kind: Histogram, Labels: []string{"endpoint"},
		Buckets: fastSeconds, Help: "Time of handling one message.",
	}
	Mailbox   = Metric{Name: "conclave_mailbox_messages", Kind: Gauge, Help: "Messages that wait for a worker."}
	InFlight  = Metric{Name: "conclave_messages_in_flight", Kind: Gauge, Help: "Messages that are being handled."}
	Instances = Metric{Name: "conclave_actor_instances", Kind: Gauge, Help: "Instances of the actor that answer " +
		"and are ready."}
	Restarts    = Metric{Name: "conclave_actor_restarts_total", Kind: Counter, Help: "Restarts after a failure."}
	DeadLetters = Metric{
		Name: "conclave_dead_letters_total", Kind: Counter, Labels: []string{"code"},
		Help: "Messages that could not be handled, by error code.",
	}

	AuditRecords = Metric{
		Name: "conclave_audit_records_total", Kind: Counter, Labels: []string{"result"},
		Help: "Audit records by result: stored or failed.",
	}
	AuditSeconds = Metric{
		Name: "conclave_audit_seconds", Kind: Histogram, Buckets: fastSeconds,
		Help: "Time until the audit log acknowledged a record.",
	}

	Questions = Metric{
		Name: "conclave_questions_total", Kind: Counter, Labels: []string{"end"},
		Help: "Answered questions by end: answered, partial, stopped or failed.",
	}
	QuestionSeconds = Metric{
		Name: "conclave_question_seconds", Kind: Histogram, Buckets: slowSeconds,
		Help: "Time from the start of a question to its answer.",
	}
	Grades = Metric{
		Name: "conclave_grades_total", Kind: Counter, Labels: []string{"grade"},
		Help: "Grades of answers: 1 to 5, or ungraded.",
	}

	ModelCalls = Metric{
		Name: "conclave_model_calls_total", Kind: Counter,
		Labels: []string{"model", "role", "result"}, Help: "Chat requests to model servers by result: ok, failed or " +
			"stopped.",
	}
	ModelSeconds = Metric{
		Name: "conclave_model_call_seconds", Kind: Histogram, Labels: []string{"model"},
		Buckets: slowSeconds, Help: "Time of one chat request to a model server, without the wait for a slot.",
	}
	FirstToken = Metric{
		Name: "conclave_model_first_token_seconds", Kind: Histogram, Labels: []string{"model"},
		Buckets: slowSeconds, Help: "Time to the first part of a reply, without the wait for a slot.",
	}
	ModelTokens = Metric{
		Name: "conclave_model_tokens_total", Kind: Counter, Labels: []string{"model", "direction"},
		Help: "Tokens by direction: input or output.",
	}
	TokensPerSecond = Metric{
		Name: "conclave_model_tokens_per_second", Kind: Histogram, Labels: []string{"model"},
		Buckets: tokenRates, Help: "Output tokens per second of one reply.",
	}

	ToolCalls = Metric{
		Name: "conclave_tool_calls_total", Kind: Counter,
		Labels: []string{"tool", "decision", "result"}, Help: "Tool calls by decision of the broker (allowed, " +
			"approved, denied) and result (ok, failed, none).",
	}
	ToolSeconds = Metric{
		Name: "conclave_tool_call_seconds", Kind: Histogram, Labels: []string{"tool"},
		Buckets: fastSeconds, Help: "Time of the tool itself.",
	}
	BrokerOverhead = Metric{
		Name: "conclave_broker_overhead_seconds", Kind: Histogram, Buckets: fastSeconds,
		Help: "Time that the broker adds to a call that needed no approval: decision, audit records, result checks.",
	}

	SpansDropped = Metric{Name: "conclave_spans_dropped_total", Kind: Counter, Help: "Spans that were not exported, " +
		"because the collector was slow or did not answer."}
)

// The metrics of the system, which the gateway reads when it is asked for them.
var (
	ApprovalsWaiting = Metric{
		Name: "conclave_approvals_waiting", Kind: Gauge, System: true,
		Help: "Tool calls that wait for the user's approval.",
	}
	MemoryEntries = Metric{
		Name: "conclave_memory_entries", Kind: Gauge, System: true, Labels: []string{"kind"},
		Help: "Entries of the memory by kind.",
	}
	Machines = Metric{
		Name: "conclave_machines", Kind: Gauge, System: true, Labels: []string{"state"},
		Help: "Other machines by state of their link: up or down.",
	}
	StreamMessages = Metric{
		Name: "conclave_stream_messages", Kind: Gauge, System: true, Labels: []string{"stream"},
		Help: "Messages in a stream.",
	}
	StreamBytes = Metric{
		Name: "conclave_stream_bytes", Kind: Gauge, System: true, Labels: []string{"stream"},
		Help: "Bytes in a stream.",
	}
	StreamMaxBytes = Metric{
		Name: "conclave_stream_max_bytes", Kind: Gauge, System: true, Labels: []string{"stream"},
		Help: "Limit of a stream in bytes; absent = none.",
	}
	Unanswered = Metric{
		Name: "conclave_scrape_errors", Kind: Gauge, System: true, Labels: []string{"source"},
		Help: "1 when a part of the last scrape could not be read: actors, approvals, memory or machines.",
	}
)

// All lists the metrics, for the gateway and for tests.
var All = []*Metric{
	&Messages, &MessageSeconds, &Mailbox, &InFlight, &Instances, &Restarts, &DeadLetters, &AuditRecords, &AuditSeconds,
	&Questions, &QuestionSeconds, &Grades, &ModelCalls, &ModelSeconds, &FirstToken, &ModelTokens, &TokensPerSecond,
	&ToolCalls, &ToolSeconds, &BrokerOverhead, &SpansDropped,
	&ApprovalsWaiting, &MemoryEntries, &Machines, &StreamMessages, &StreamBytes, &StreamMaxBytes, &Unanswered,
}
