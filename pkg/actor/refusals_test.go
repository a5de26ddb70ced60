package actor_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// TestRepeatedRefusalsAreOneRecord: an agent that is denied the same action again and again gets one record for each of the
// first denials of a period and one for all others. Denials of other agents and other actions keep their own records.
func TestRepeatedRefusalsAreOneRecord(t *testing.T) {
	log := &recordingLog{}
	gate := &actor.Gate{Log: log}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	rec := actortest.Recorder{Time: now}
	out := rec.Out()
	deny := func(agent, action string) {
		t.Helper()
		if err := gate.Record(t.Context(), out, subjects.AuditRecord{AgentID: agent, Action: action}, subjects.StatusDenied, "manifest"); err != nil {
			t.Fatal(err)
		}
	}
	for range 1000 {
		deny("generator", subjects.ActionDiscover)
		deny("generator.coder-1", subjects.ActionDiscover) // the same account
	}
	if n := len(log.records); n != 50 {
		t.Errorf("%d records of 2000 denials, want 50", n)
	}
	deny("committee", subjects.ActionDiscover)
	deny("generator", subjects.ActionSpawn)
	if n := len(log.records); n != 52 {
		t.Errorf("%d records, want those of the other agent and of the other action too", n)
	}
	rec.Time = now.Add(11 * time.Second)
	deny("committee", subjects.ActionSpawn)
	last := log.records[len(log.records)-2]
	if len(log.records) != 54 || last.AgentID != "generator" || last.Action != subjects.ActionDiscover || last.Status != subjects.StatusDenied || !strings.HasPrefix(last.Reason, "repeated: 1950 more") {
		t.Errorf("%d records, the summary is %+v", len(log.records), last)
	}
}

type recordingLog struct{ records []subjects.AuditRecord }

func (l *recordingLog) Append(_ context.Context, rec subjects.AuditRecord) error {
	l.records = append(l.records, rec)
	return nil
}

// TestRequestsOverTheRateAreRejected: a route with a rate serves ten seconds' worth of requests at once and rejects the
// others of that account. Another account is served.
func TestRequestsOverTheRateAreRejected(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	startActor(t, b, "broker", actor.Config{}, actor.Serve(subjects.BrokerDiscover, func(context.Context, actor.Msg[subjects.DiscoverRequest], actor.Out) (subjects.DiscoverReply, error) {
		return subjects.DiscoverReply{}, nil
	}, actor.MaxRate(2)))
	ask := func(out actor.Out) error {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		_, err := actor.Ask(ctx, out, subjects.BrokerDiscover, subjects.DiscoverRequest{Task: "x"})
		return err
	}
	generator := newOut(t, b.Connect("generator"))
	served := 0
	var refused error
	for range 100 {
		if refused = ask(generator); refused != nil {
			break
		}
		served++
	}
	if served < 20 || served > 60 || refused == nil || !strings.Contains(refused.Error(), "limit: too many requests: at most 2 per second") {
		t.Errorf("%d requests served, then %v", served, refused)
	}
	if err := ask(newOut(t, b.Connect("committee"))); err != nil {
		t.Errorf("another account: %v", err)
	}
}
