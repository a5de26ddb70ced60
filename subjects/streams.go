package subjects

import (
	"cmp"
	"fmt"
	"slices"
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
	MaxAge                     time.Duration
	MaxBytes                   int64         // 0 = the account's limit. A bucket always has one, so that its owner cannot fill the disk
	DedupeWindow               time.Duration // period in which a message id is stored once
}

// Consumer is a durable consumer, pulled through the account <Actor>_in.
type Consumer struct {
	Actor   string
	Stream  string
	Name    string
	Filter  []string
	Ordered bool // one unacknowledged message at a time: keeps the order
	// Unlimited means no delivery limit: a message is redelivered until it is acknowledged, also when its handler crashes each
	// time. The actor must stop retrying itself: see [MaxDeliver].
	Unlimited bool
}

// AckWait is the time after which an unacknowledged message is redelivered. Long handlers send in-progress acks within it.
const AckWait = 5 * time.Second

// MaxDeliver is the number of attempts before a message becomes a dead letter. A message of an Unlimited consumer is
// redelivered after that as long as its dead letter could not be stored.
const MaxDeliver = 5

// streams lists all streams and buckets, with age, size and dedupe window; zero means no limit of its own. The sizes of
// AUDIT and EVENTS are configured.
func streams() []Stream {
	out := []Stream{
		{Name: "AUDIT", Account: Audit, Doc: "every decision and outcome; append-only", Subjects: []string{"audit.*.*"}, DedupeWindow: 2 * time.Minute},
		{Name: "QUERIES", Account: Core, Doc: "questions as the user published them", Subjects: []string{"query.received", "query.committee", "query.task"}, RepublishFrom: "query.*", RepublishTo: "live.query.{{wildcard(1)}}", MaxAge: 30 * 24 * time.Hour, DedupeWindow: 2 * time.Minute},
		{
			Name: "TURNS", Account: Core, Doc: "questions in order, partitioned by session", Subjects: []string{"query.session.*"},
			MapFrom: "query.session.*", MapTo: fmt.Sprintf("turn.{{partition(%d,1)}}.{{wildcard(1)}}", Partitions), MaxAge: 30 * 24 * time.Hour, DedupeWindow: 2 * time.Minute,
		},
		{
			Name: "EVENTS", Account: Core, Doc: "events under their author's account; republished live without it", Subjects: []string{"from.*.>"},
			RepublishFrom: "from.*.>", RepublishTo: "live.>", MaxAge: 90 * 24 * time.Hour, DedupeWindow: 2 * time.Minute,
		},
	}
	kv := func(owner, name, doc string) *Stream {
		out = append(out, Stream{Name: "KV_" + name, Account: Core, Bucket: name, Owner: owner, Doc: doc, Subjects: []string{"$KV." + name + ".>"}, MaxBytes: 256 << 20})
		return &out[len(out)-1]
	}
	kv("broker", "spawns", "spawned agents and their lineage").MaxAge = 90 * 24 * time.Hour
	ledger := kv("broker", "ledger", "calls that ran, to dedupe retries")
	ledger.MaxAge, ledger.MaxBytes = 30*24*time.Hour, 1<<30 // as long as a question may be redelivered
	kv("broker", "session_config", "policy overrides per session")
	kv("broker", "schemas", "announced tools, each definition's hash pinned")
	kv("broker", "flow", "taint of a session: the origin of its content") // as long as the conversation itself: taint does not expire
	kv("broker", "approvals", "approval requests and decisions").MaxAge = 90 * 24 * time.Hour
	kv("broker", "rules", "standing approval rules, until they are revoked")
	kv("broker", "parked", "complete results that were too large to return").MaxAge = 7 * 24 * time.Hour
	kv("critic", "judged", "answers that were graded or wait for comparison").MaxAge = 30 * 24 * time.Hour
	kv("reward", "rewarded", "answers that can be rated, and their rewards").MaxAge = 90 * 24 * time.Hour
	kv("gateway", "sessions", "session list of the page")
	for _, a := range Respondents {
		kv(a, StateBucket(a), "conversation and checkpoints of "+a).MaxBytes = 4 << 30
	}
	return out
}

// consumers lists all durable consumers, sorted by actor. The partitions of TURNS are divided among the consumers of the
// generator, one each, and of respondent B; those are ordered, so that the turns of a session stay in order.
func consumers() []Consumer {
	answers := []string{"from.*.response.generation"}
	var seen []string // only answers that the user saw can be rewarded
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

// Roles lists the roles of all keys, in the order of the accounts: the lasting ones, and those of the provisioners, which
// exist only at boot.
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
