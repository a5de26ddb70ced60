package actor_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// TestRepeatedRefusalsAreOneRecord: an agent that is denied the same action again and again gets one record for each of the
// first denials of a period, one for each 500 others and one for the rest. Denials of other agents and other actions keep their own records.
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
	if n := len(log.records); n != 53 {
		t.Errorf("%d records of 2000 denials, want 50, and 3 for 500 each", n)
	}
	deny("committee", subjects.ActionDiscover)
	deny("generator", subjects.ActionSpawn)
	if n := len(log.records); n != 55 {
		t.Errorf("%d records, want those of the other agent and of the other action too", n)
	}
	rec.Time = now.Add(11 * time.Second)
	deny("committee", subjects.ActionSpawn)
	last := log.records[len(log.records)-2]
	if len(log.records) != 57 || last.AgentID != "generator" || last.Action != subjects.ActionDiscover || last.Status != subjects.StatusDenied || !strings.HasPrefix(last.Reason, "repeated: 450 more") {
		t.Errorf("%d records, the summary is %+v", len(log.records), last)
	}
}

// TestCountedRefusalsAreRecordedByToolAtTheEnd: 60 denials for each of two tools and for each of 100 invented ones. The first 50 have a
// record each; the numbers of the others are recorded when the gate is closed, for at most 33 tools.
func TestCountedRefusalsAreRecordedByToolAtTheEnd(t *testing.T) {
	log := &recordingLog{}
	gate := &actor.Gate{Log: log}
	rec := actortest.Recorder{Time: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	deny := func(tool string) {
		t.Helper()
		if err := gate.Record(t.Context(), rec.Out(), subjects.AuditRecord{AgentID: "generator", Action: subjects.ActionToolCall, Tool: tool}, subjects.StatusDenied, "manifest"); err != nil {
			t.Fatal(err)
		}
	}
	for range 60 {
		deny("run_shell")
		deny("fs_write")
	}
	for i := range 100 {
		deny(fmt.Sprintf("invented_%d", i))
	}
	if err := gate.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(log.records); n != 50+33 {
		t.Fatalf("%d records, want 50 and one for each of 32 tools and the others", n)
	}
	total := 0
	for _, r := range log.records[50:] {
		var n int
		if _, err := fmt.Sscanf(r.Reason, "repeated: %d more", &n); err != nil || r.AgentID != "generator" || r.ID == "" {
			t.Errorf("%+v: %v", r, err)
		}
		if total += n; (r.Tool == "run_shell" || r.Tool == "fs_write") && n != 35 {
			t.Errorf("%d denials of %s counted, want 35", n, r.Tool)
		}
	}
	if total != 120+100-50 {
		t.Errorf("%d denials counted, want 170", total)
	}
	if err := gate.Close(t.Context()); err != nil || len(log.records) != 83 {
		t.Errorf("closed again: %d records, %v", len(log.records), err)
	}
}

// TestCrashLosesABoundedNumberOfRefusals: without Close, at most 499 denials have neither a record nor a part in one.
func TestCrashLosesABoundedNumberOfRefusals(t *testing.T) {
	log := &recordingLog{}
	gate := &actor.Gate{Log: log}
	rec := actortest.Recorder{Time: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	known := 0
	for i := range 5000 {
		before := len(log.records)
		if err := gate.Record(t.Context(), rec.Out(), subjects.AuditRecord{AgentID: "generator", Action: subjects.ActionToolCall, Tool: "run_shell"}, subjects.StatusDenied, "manifest"); err != nil {
			t.Fatal(err)
		}
		for _, r := range log.records[before:] {
			n := 0
			if _, err := fmt.Sscanf(r.Reason, "repeated: %d more", &n); err != nil {
				n = 1
			}
			known += n
		}
		if lost := i + 1 - known; lost > 499 {
			t.Fatalf("after %d denials a crash loses %d", i+1, lost)
		}
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
