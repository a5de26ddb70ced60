package subjects

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Stream is a stream or a key-value bucket, created at boot and never by an actor.
type Stream struct {
	Name     string
	Account  string // CORE or AUDIT
	Doc      string
	Subjects []string
	Bucket   string // name of the key-value bucket, "" = a stream
	Owner    string // account that reads and writes the bucket
	// MapFrom and MapTo are the subject transform of incoming messages: the partitions of TURNS.
	MapFrom, MapTo string
	// RepublishFrom and RepublishTo republish stored messages, so that other accounts can import them.
	RepublishFrom, RepublishTo string
	// streams whose messages are copied into this one, which has no subjects of its own then
	Sources []string
	MaxAge  time.Duration
	// 0 = Share. A bucket always has one, so that its owner cannot fill the disk
	MaxBytes int64
	// percent of the configured size of the audit log (account AUDIT) or of the events (CORE)
	Share         int64
	MaxPerSubject int64 // messages per subject; 0 = unlimited. When reached, new ones are rejected
	KeepLast      bool  // one message per subject: a new one replaces it
	MaxMsgSize    int32 // bytes of a message; 0 = the server's limit
	// a full stream rejects new messages, and their publishers get an error, instead of dropping the oldest
	RejectWhenFull bool
	DedupeWindow   time.Duration // period in which a message id is stored once
}

// Consumer is a durable consumer, pulled through the account <Actor>_in.
type Consumer struct {
	Actor   string
	Stream  string
	Name    string
	Filter  []string
	Ordered bool // one unacknowledged message at a time: keeps the order
	// Unlimited means no delivery limit: a message is redelivered until it is acknowledged, also when its handler
	// crashes each time. The actor must stop retrying itself: see [MaxDeliver].
	Unlimited bool
}

// AckWait is the time after which an unacknowledged message is redelivered. Long handlers send in-progress acks within
// it.
const AckWait = 5 * time.Second

// MaxDeliver is the number of attempts before a message becomes a dead letter. A message of an Unlimited consumer is
// redelivered after that as long as its dead letter could not be stored.
const MaxDeliver = 5

// maxQuestionBytes bounds QUERIES and TURNS each. A full one rejects new questions; a question is kept for questionAge.
const (
	maxQuestionBytes = 256 << 20
	questionAge      = 30 * 24 * time.Hour
)

// streams lists all streams and buckets, with age, size and dedupe window; zero means no limit of its own. The sizes of
// the audit log and of the events are configured.
func streams() []Stream {
	out := slices.Concat(auditStreams(), []Stream{
		{
			Name: "QUERIES", Account: Core, Doc: "questions as the user published them",
			Subjects: []string{"query.received", "query.committee", "query.task"}, RepublishFrom: "query.*",
			RepublishTo: "live.query.{{wildcard(1)}}",
			MaxAge:      questionAge, MaxBytes: maxQuestionBytes, RejectWhenFull: true, DedupeWindow: 2 * time.Minute,
		},
		{
			Name: "TURNS", Account: Core, Doc: "questions in order, those for the assistant partitioned by session",
			Subjects: []string{"query.session.*", TurnCommittee.Name, TurnTask.Name},
			MapFrom:  "query.session.*", MapTo: fmt.Sprintf("turn.{{partition(%d,1)}}.{{wildcard(1)}}", Partitions),
			MaxAge: questionAge, MaxBytes: maxQuestionBytes, RejectWhenFull: true, DedupeWindow: 2 * time.Minute,
		},
		{
			Name: AttachmentPiece.Stream, Account: Core, Doc: "attached images in pieces, by session and SHA-256",
			Subjects: []string{AttachmentPiece.Name},
			MaxAge:   questionAge, MaxBytes: 1 << 30, MaxMsgSize: MaxPiece + 4<<10, KeepLast: true,
			RejectWhenFull: true,
			DedupeWindow:   2 * time.Minute,
		},
		{
			Name: ScheduleDefinition.Stream, Account: Core, Doc: "schedules as the user defined them, the last state " +
				"of each", Subjects: []string{ScheduleDefinition.Name},
			MaxBytes: 64 << 20, KeepLast: true, RejectWhenFull: true, DedupeWindow: 2 * time.Minute,
		},
		{
			Name: ScheduleDue.Stream, Account: Core, Doc: "the last occurrence of each schedule",
			Subjects: []string{ScheduleDue.Name},
			MaxBytes: 16 << 20, KeepLast: true, RejectWhenFull: true, DedupeWindow: 2 * time.Minute,
		},
	}, eventStreams())
	kv := func(owner, name, doc string) *Stream {
		out = append(out, Stream{
			Name: "KV_" + name, Account: Core, Bucket: name, Owner: owner, Doc: doc,
			Subjects: []string{"$KV." + name + ".>"}, MaxBytes: 256 << 20,
		})
		return &out[len(out)-1]
	}
	kv("broker", "spawns", "spawned agents and their lineage").MaxAge = 90 * 24 * time.Hour
	ledger := kv("broker", "ledger", "calls that ran, to dedupe retries")
	ledger.MaxAge, ledger.MaxBytes = 30*24*time.Hour, 1<<30 // as long as a question may be redelivered
	kv("broker", "session_config", "policy overrides per session")
	kv("broker", "schemas", "announced tools, each definition's hash pinned")
	// as long as the conversation itself: taint does not expire
	kv("broker", "flow", "taint of a session: the origin of its content")
	approvals := kv("broker", "approvals", "approval requests and decisions")
	approvals.MaxAge, approvals.MaxBytes = 90*24*time.Hour, 2<<30 // more than ApprovalBytes on each of these days
	kv("broker", "rules", "standing approval rules, until they are revoked")
	kv("broker", "parked", "complete results that were too large to return").MaxAge = 7 * 24 * time.Hour
	kv("critic", "judged", "answers that were graded or wait for comparison").MaxAge = 30 * 24 * time.Hour
	kv("reward", AnswerBucket, "answers that can be rated, and their rewards").MaxAge = 90 * 24 * time.Hour
	kv("gateway", "sessions", "session list of the page")
	for _, a := range Respondents {
		kv(a, StateBucket(a), "conversation and checkpoints of "+a).MaxBytes = 4 << 30
	}
	return out
}

// auditStreams returns the streams of the audit log, one per writer, so that a writer that fills its own stops itself
// and no other. That of the broker has the genesis record too, and the records of all writers from builds that had one
// stream. The subjects of the others differ from its subjects, and are mapped to audit.<account>.<chain> when stored.
func auditStreams() []Stream {
	out := []Stream{{
		Name: Audit, Account: Audit, Doc: "every decision and outcome of the broker; append-only",
		Subjects: []string{"audit.*.*"},
		Share:    auditShares["broker"], RejectWhenFull: true, DedupeWindow: 2 * time.Minute,
	}}
	for _, w := range AuditWriters {
		if AuditStream(w) == Audit {
			continue
		}
		out = append(out, Stream{
			Name: AuditStream(w), Account: Audit, Doc: "audit records of " + w +
				"; append-only", Subjects: []string{"append." + w + ".*"},
			MapFrom: "append." + w + ".*", MapTo: "audit." + w + ".{{wildcard(1)}}",
			Share: auditShares[w], MaxMsgSize: 256 << 10, RejectWhenFull: true, DedupeWindow: 2 * time.Minute,
		})
	}
	return out
}

// auditShares are the parts of the audit log that its writers may fill, in percent. They add up to 100.
var auditShares = map[string]int64{
	"broker": 50, "model": 24, "memory": 14, "secrets": 3, "orchestrator": 3,
	"gateway": 4, Registry: 2,
}

// AuditStream is the stream that stores the audit records of an account.
func AuditStream(account string) string {
	if account == "broker" {
		return Audit
	}
	return Audit + "_" + account
}

// eventQuotaPeriod is the period of an author's quota of events.
const eventQuotaPeriod = 24 * time.Hour

// eventStreams returns EVENTS and the streams by which events enter it, one per author, each with a quota of bytes per
// day, one for approvals, so that no other event of the broker takes their place, and one for dead letters, with a
// quota of messages per author and day. An author over its quota gets an error until its earlier events are a day old,
// and cannot drop the events of others: at most its share of EVENTS per day. The copies of calls and results are stored
// in EVENTS at once, because there are two for each call and an event that enters by another stream costs the server
// twice as much; the broker itself bounds them to CopyShare.
func eventStreams() (out []Stream) {
	events := Stream{
		Name: "EVENTS", Account: Core, Doc: "all events, in order, under their author's account; republished live " +
			"without it",
		Subjects:      copyEvents,
		RepublishFrom: "from.*.>", RepublishTo: "live.>", MaxAge: 90 * 24 * time.Hour, Share: 100,
		DedupeWindow: 2 * time.Minute,
	}
	for _, author := range eventAuthors() {
		share := int64(3)
		// most of the bytes of normal use are answers, recalled entries and the copies of calls and results
		if author == Generator || author == "memory" {
			share = 12
		}
		s := Stream{
			Name: EventStream(author), Account: Core, Doc: "events of " + author +
				" of the last day", MaxAge: eventQuotaPeriod,
			Share: share, RejectWhenFull: true, DedupeWindow: 2 * time.Minute,
		}
		for _, e := range publishEdges() {
			stored, _ := e.Resolve(author)
			elsewhere := e.Remote == deadLetters || slices.Contains(approvalEvents, stored) ||
				slices.Contains(copyEvents, stored)
			if slices.Contains(e.Callers, author) && !elsewhere {
				s.Subjects = append(s.Subjects, stored)
			}
		}
		out = append(out, s)
	}
	out = append(out, Stream{ // after that of the broker, which had these subjects in earlier builds
		Name: approvalStream, Account: Core, Doc: "approvals of the last day", Subjects: approvalEvents,
		MaxAge: eventQuotaPeriod, MaxBytes: ApprovalBytes, RejectWhenFull: true, DedupeWindow: 2 * time.Minute,
	}, Stream{
		Name: deadLetterStream, Account: Core, Doc: "dead letters of the last day", Subjects: []string{"from.*.dead.*"},
		MaxAge:   eventQuotaPeriod,
		MaxBytes: 64 << 20, MaxPerSubject: MaxDeadLetters, MaxMsgSize: 8 << 10, RejectWhenFull: true,
		DedupeWindow: 2 * time.Minute,
	})
	for _, s := range out {
		events.Sources = append(events.Sources, s.Name)
	}
	return append(out, events)
}

// MaxDeadLetters is the number of dead letters of an actor that are stored per day.
const MaxDeadLetters = 500

// ApprovalBytes is the size of the approval requests and decisions that are stored per day.
const ApprovalBytes = 16 << 20

const (
	deadLetters      = "from.<who>.dead.<who>"
	deadLetterStream = "EVENTS_dead"
	approvalStream   = "EVENTS_approvals"
)

// CopyShare is the part of EVENTS that the broker's copies of calls and results may take per day, in percent.
const CopyShare = 12

// copyEvents are the stored subjects of the broker's copies of calls and results.
var copyEvents = []string{ToolRequestEvent.StoredBy("broker"), ToolResultEvent.StoredBy("broker")}

// approvalEvents are the stored subjects of approval requests and decisions.
var approvalEvents = []string{ApprovalRequestEvent.StoredBy("broker"), ApprovalDecisionEvent.StoredBy("broker")}

// eventAuthors lists the accounts that publish events other than dead letters, in the order of the edges.
func eventAuthors() (out []string) {
	for _, e := range publishEdges() {
		if e.Remote != deadLetters {
			out = append(out, e.Callers...)
		}
	}
	return dedupe(out)
}

// EventStream is the stream by which the events of an account enter EVENTS.
func EventStream(account string) string { return "EVENTS_" + account }

// StoredIn returns the stream that acknowledges messages of s published by an account: s.Stream itself, or the stream
// by which its events enter EVENTS.
func (s Spec) StoredIn(account string) string {
	switch {
	case s.Stream != "EVENTS", strings.HasPrefix(s.Received, "from.*.tool."):
		return s.Stream
	case s.Subscription() == DeadLetterEvent.Subscription():
		return deadLetterStream
	case strings.HasPrefix(s.Received, "from.*.approval."):
		return approvalStream
	}
	return EventStream(account)
}

// consumers lists all durable consumers, sorted by actor. The partitions of TURNS are divided among the consumers of
// the generator, one each, and of respondent B; those are ordered, so that the turns of a session stay in order.
func consumers() []Consumer {
	answers := []string{"from.*.response.generation"}
	var seen []string // only answers that the user saw can be rewarded
	for _, a := range VisibleRespondents {
		seen = append(seen, "from."+a+".response.generation")
	}
	out := []Consumer{
		{
			Actor: "memory", Stream: "EVENTS", Name: "memory",
			Filter: append(slices.Clone(answers), "from.critic.critique.result", "from.critic.pairwise.result",
				"from.reward.reward.event"),
		},
		{
			Actor: "critic", Stream: "EVENTS", Name: "critic",
			Filter: append(slices.Clone(answers), DeliberationEvent.StoredBy(Committee)), Unlimited: true,
		},
		{
			Actor: "reward", Stream: "EVENTS", Name: "reward", Filter: append(seen, "from.*.user.feedback"),
			Unlimited: true,
		},
		{Actor: "router", Stream: "QUERIES", Name: "router", Filter: []string{
			"query.received", "query.committee",
			"query.task",
		}, Ordered: true},
		{
			Actor: "router", Stream: ScheduleDue.Stream, Name: "router-scheduled", Filter: []string{ScheduleDue.Name},
			Ordered: true, Unlimited: true,
		},
		{Actor: Committee, Stream: "TURNS", Name: Committee, Filter: []string{TurnCommittee.Name}},
		// a long task survives many restarts
		{Actor: Orchestrator, Stream: "TURNS", Name: Orchestrator, Filter: []string{TurnTask.Name}, Unlimited: true},
	}
	for who, n := range map[string]int{"generator": Partitions, "respondent_b": respondentBConsumers} {
		for i := range n {
			p := Consumer{Actor: who, Stream: "TURNS", Name: fmt.Sprintf("%s-%d", who, i), Ordered: true}
			for part := i; part < Partitions; part += n {
				p.Filter = append(p.Filter, fmt.Sprintf("turn.%d.*", part))
			}
			out = append(out, p)
		}
	}
	slices.SortStableFunc(out, func(a, b Consumer) int { return cmp.Compare(a.Actor, b.Actor) })
	return out
}

// ConsumesTurns reports whether an account answers the user's messages, which the router stores in TURNS. What the user
// allows for a session holds for these accounts only.
func ConsumesTurns(account string) bool { return slices.Contains(turnConsumers, account) }

// turnConsumers are the accounts with a durable consumer of TURNS.
var turnConsumers = func() (out []string) {
	for _, c := range consumers() {
		if c.Stream == "TURNS" && !slices.Contains(out, c.Actor) {
			out = append(out, c.Actor)
		}
	}
	return out
}()

// consumingActors lists the actors with a durable consumer.
func consumingActors() (out []string) {
	for _, p := range consumers() {
		if !slices.Contains(out, p.Actor) {
			out = append(out, p.Actor)
		}
	}
	return out
}

// Roles lists the roles of all keys with a variable, in the order of the accounts: the lasting ones, and those of the
// provisioners, which exist only at boot. Keys of run-time principals have none.
func (l Layout) Roles() (lasting, boot []string) {
	for _, a := range l.Accounts {
		for _, u := range a.Users {
			switch {
			case u.Key != "":
			case u.Boot:
				boot = append(boot, u.Role)
			default:
				lasting = append(lasting, u.Role)
			}
		}
	}
	return lasting, boot
}

// AccountOf returns the account of a role, "" for an unknown role.
func (l Layout) AccountOf(role string) string {
	for _, a := range l.Accounts {
		for _, u := range a.Users {
			if u.Role == role {
				return a.Name
			}
		}
	}
	return ""
}
