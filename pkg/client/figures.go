package client

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/nats-io/nats.go/micro"

	"conclave/pkg/actor"
)

// SubjectFigures are the figures of one subject of one instance of an actor.
type SubjectFigures struct {
	ID       string `json:"id"` // of the instance
	Subject  string `json:"subject"`
	Requests int    `json:"requests"`
	Errors   int    `json:"errors"`
	actor.RouteStats
}

// ActorFigures are the figures of all instances of an actor: sums, and the highest latency of its subjects. The state
// is that of the instance that is least ready.
type ActorFigures struct {
	Actor     string           `json:"actor"`
	Instances int              `json:"instances"`
	Requests  int              `json:"requests"`
	Errors    int              `json:"errors"`
	Subjects  []SubjectFigures `json:"subjects"` // sorted by instance and subject
	actor.RouteStats
}

// ListFigures returns the figures of each actor, sorted by name; it is never nil. A service that is not one of our
// actors has only requests and errors.
func ListFigures(stats []micro.Stats) []ActorFigures {
	all := []ActorFigures{}
	slices.SortFunc(stats, func(a, b micro.Stats) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	for _, s := range stats {
		if len(all) == 0 || all[len(all)-1].Actor != s.Name {
			all = append(all, ActorFigures{Actor: s.Name, Subjects: []SubjectFigures{}})
		}
		all[len(all)-1].addInstance(s)
	}
	return all
}

// addInstance adds the figures of an instance.
func (f *ActorFigures) addInstance(s micro.Stats) {
	f.Instances++
	slices.SortFunc(s.Endpoints, func(a, b *micro.EndpointStats) int { return cmp.Compare(a.Subject, b.Subject) })
	restarts := f.Restarts
	if len(s.Endpoints) == 0 && (f.State == "" || f.State == actor.Ready) {
		f.State = actor.State(s.Metadata[actor.StateMetadata])
	}
	for _, e := range s.Endpoints {
		r := SubjectFigures{ID: s.ID, Subject: e.Subject, Requests: e.NumRequests, Errors: e.NumErrors}
		_ = json.Unmarshal(e.Data, &r.RouteStats)
		f.Subjects = append(f.Subjects, r)
		f.Requests, f.Errors = f.Requests+r.Requests, f.Errors+r.Errors
		f.Mailbox, f.InFlight, f.Rejected = f.Mailbox+r.Mailbox, f.InFlight+r.InFlight, f.Rejected+r.Rejected
		f.P50, f.P95, f.P99 = max(f.P50, r.P50), max(f.P95, r.P95), max(f.P99, r.P99)
		f.Restarts = max(f.Restarts, restarts+r.Restarts) // every subject has those of its instance
		if f.State == "" || f.State == actor.Ready {
			f.State = r.State
		}
	}
}
