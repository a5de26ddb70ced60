package subjects

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Stream is what keeps messages, made at boot and never by an actor.
type Stream struct {
	Name     string
	Account  string // CORE or AUDIT
	Doc      string
	Subjects []string
	Bucket   string // KV bucket of this name, "" = a stream
	Owner    string // who reads and writes the bucket
	// MapFrom and MapTo rename what comes in; used for the partitions of TURNS.
	MapFrom, MapTo string
	// Echo republishes what is stored, so that it can leave the place: from -> to.
	RepublishFrom, RepublishTo string
	MaxAge                     time.Duration
	MaxBytes                   int64         // 0 = the account's limit. A bucket always has one: its owner must not fill the disk for all
	DedupeWindow               time.Duration // window in which a message id is stored once
}

// Consumer is a durable consumer, pulled through the account <Who>_in.
type Consumer struct {
	Actor   string
	Stream  string
	Name    string
	Filter  []string
	Ordered bool // one unacknowledged message at a time: keeps the order
	// Unlimited messages come again until they are handled, however often whoever handles them died. Their actor must see for
	// itself when it is enough: see [MaxDeliver].
	Unlimited bool
}

// AckWait is how soon a dead consumer's message goes to another; long work sends in-progress acks well within it.
const AckWait = 5 * time.Second

// MaxDeliver is how often a message is tried before it becomes a dead letter. One that lasts is handed out again all the
// same when nobody could write that letter.
const MaxDeliver = 5

// streams are all streams and buckets.
func streams() []Stream {
	out := []Stream{
		{Name: "AUDIT", Account: Audit, Doc: "every decision and outcome; append-only", Subjects: []string{"audit.*.*"}, DedupeWindow: 2 * time.Minute},
		{Name: "QUERIES", Account: Core, Doc: "questions, kept until someone answers", Subjects: []string{"query.received", "query.committee", "query.task"}, RepublishFrom: "query.*", RepublishTo: "live.query.{{wildcard(1)}}", MaxAge: 30 * 24 * time.Hour, DedupeWindow: 2 * time.Minute},
		{
			Name: "TURNS", Account: Core, Doc: "questions in the order of their sessions", Subjects: []string{"query.session.*"},
			MapFrom: "query.session.*", MapTo: fmt.Sprintf("turn.{{partition(%d,1)}}.{{wildcard(1)}}", Partitions), MaxAge: 30 * 24 * time.Hour, DedupeWindow: 2 * time.Minute,
		},
		{
			Name: "EVENTS", Account: Core, Doc: "what happened, under its author's name; passed on live under the plain subject", Subjects: []string{"from.*.>"},
			RepublishFrom: "from.*.>", RepublishTo: "live.>", MaxAge: 90 * 24 * time.Hour, DedupeWindow: 2 * time.Minute,
		},
	}
	kv := func(owner, name, doc string) *Stream {
		out = append(out, Stream{Name: "KV_" + name, Account: Core, Bucket: name, Owner: owner, Doc: doc, Subjects: []string{"$KV." + name + ".>"}, MaxBytes: 256 << 20})
		return &out[len(out)-1]
	}
	kv("broker", "spawns", "spawned agents and their lineage").MaxAge = 90 * 24 * time.Hour
	ledger := kv("broker", "ledger", "calls that ran, so that none runs twice")
	ledger.MaxAge, ledger.MaxBytes = 30*24*time.Hour, 1<<30 // as long as a question may come again
	kv("broker", "session_config", "overrides of a session")
	kv("broker", "schemas", "tools as announced, each definition's hash pinned")
	kv("broker", "flow", "where the content of a session came from") // as long as the conversation itself: taint does not expire
	kv("broker", "approvals", "questions to the user and their answers").MaxAge = 90 * 24 * time.Hour
	kv("broker", "rules", "answers of the user that hold until they are revoked")
	kv("broker", "parked", "results that were too large to be shown").MaxAge = 7 * 24 * time.Hour
	kv("critic", "judged", "answers that were judged or wait to be compared").MaxAge = 30 * 24 * time.Hour
	kv("reward", "rewarded", "answers that can be rewarded, and how they were").MaxAge = 90 * 24 * time.Hour
	kv("gateway", "sessions", "sessions as the page lists them")
	for _, a := range Respondents {
		kv(a, StateBucket(a), "conversation and checkpoints of "+a).MaxBytes = 4 << 30
	}
	return out
}

// consumers are all durable consumers.
func consumers() []Consumer {
	answers := []string{"from.*.response.generation"}
	var seen []string // only what the user has seen can be rewarded
	for _, a := range VisibleRespondents {
		seen = append(seen, "from."+a+".response.generation")
	}
	out := []Consumer{
		{Actor: "memory", Stream: "EVENTS", Name: "memory", Filter: append(slices.Clone(answers), "from.critic.critique.result", "from.critic.pairwise.result", "from.reward.reward.event")},
		{Actor: "critic", Stream: "EVENTS", Name: "critic", Filter: answers, Unlimited: true},
		{Actor: "reward", Stream: "EVENTS", Name: "reward", Filter: append(seen, "from.*.user.feedback"), Unlimited: true},
		{Actor: "router", Stream: "QUERIES", Name: "router", Filter: []string{"query.received"}, Ordered: true},
		{Actor: "committee", Stream: "QUERIES", Name: "committee", Filter: []string{"query.committee"}},
		{Actor: "orchestrator", Stream: "QUERIES", Name: "orchestrator", Filter: []string{"query.task"}},
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

// consumingActors are the actors that pull.
func consumingActors() (out []string) {
	for _, p := range consumers() {
		if !slices.Contains(out, p.Actor) {
			out = append(out, p.Actor)
		}
	}
	return out
}

// Roles lists every key of the table: the lasting ones and those of boot.
func (l Layout) Roles() (lasting, boot []string) {
	for _, a := range l.Accounts {
		for _, u := range a.Users {
			if u.Boot {
				boot = append(boot, u.Role)
			} else {
				lasting = append(lasting, u.Role)
			}
		}
	}
	return lasting, boot
}

// AccountOf is the account of a role, "" when there is no such role.
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
