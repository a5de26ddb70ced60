package actor_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// TestRepeatedRefusalsAreOneRecord: an agent that is denied the same action again and again gets one record for each of
// the first denials of a period, one for the others each time their number has doubled, and one for the rest. Denials
// of other agents and other actions keep their own records.
func TestRepeatedRefusalsAreOneRecord(t *testing.T) {
	log := &recordingLog{}
	gate := &actor.Gate{Log: log}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	rec := actortest.Recorder{Time: now}
	out := rec.Out()
	deny := func(agent, action string) {
		t.Helper()
		if err := gate.Record(t.Context(), out, subjects.AuditRecord{AgentID: agent, Action: action},
			subjects.StatusDenied, "manifest"); err != nil {
			t.Fatal(err)
		}
	}
	for range 1000 {
		deny("generator", subjects.ActionDiscover)
		deny("generator.coder-1", subjects.ActionDiscover) // the same account
	}
	if n := len(log.records); n != 52 {
		t.Errorf("%d records of 2000 denials, want 50, and 2 for 500 each", n)
	}
	deny("committee", subjects.ActionDiscover)
	deny("generator", subjects.ActionSpawn)
	if n := len(log.records); n != 54 {
		t.Errorf("%d records, want those of the other agent and of the other action too", n)
	}
	rec.Time = now.Add(11 * time.Second)
	deny("committee", subjects.ActionSpawn)
	last := log.records[len(log.records)-2]
	if len(log.records) != 56 || last.AgentID != "generator" || last.Action != subjects.ActionDiscover ||
		last.Status != subjects.StatusDenied || !strings.HasPrefix(last.Reason, "repeated: 950 more") {
		t.Errorf("%d records, the summary is %+v", len(log.records), last)
	}
}

// TestRepetitionsAreFewRecords: an agent that repeats a call which waits for an approval does not fill the log.
func TestRepetitionsAreFewRecords(t *testing.T) {
	log := &recordingLog{}
	gate := &actor.Gate{Log: log}
	rec := actortest.Recorder{Time: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	for range 2000 {
		gate.Refuse(t.Context(), rec.Out(), subjects.AuditRecord{
			AgentID: "generator", Action: subjects.ActionToolCall,
			Tool: "web_fetch",
		}, subjects.StatusPending, "repeated")
	}
	if n := len(log.records); n != 52 {
		t.Errorf("%d records of 2000 repetitions, want 50, and 2 for 500 each", n)
	}
}

// TestCountedRefusalsAreRecordedByToolAtTheEnd: 60 denials for each of two tools and for each of 100 invented ones. The
// first 50 have a record each; the numbers of the others are recorded when the gate is closed, for the five most
// frequent tools each and for the others together.
func TestCountedRefusalsAreRecordedByToolAtTheEnd(t *testing.T) {
	log := &recordingLog{}
	gate := &actor.Gate{Log: log}
	rec := actortest.Recorder{Time: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	deny := func(tool string) {
		t.Helper()
		if err := gate.Record(t.Context(), rec.Out(),
			subjects.AuditRecord{AgentID: "generator", Action: subjects.ActionToolCall, Tool: tool},
			subjects.StatusDenied, "manifest"); err != nil {
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
	if n := len(log.records); n != 50+6 {
		t.Fatalf("%d records, want 50 and one for each of 5 tools and the others", n)
	}
	total, byTool := 0, map[string]int{}
	for _, r := range log.records[50:] {
		var n int
		if _, err := fmt.Sscanf(r.Reason, "repeated: %d more", &n); err != nil || r.AgentID != "generator" ||
			r.ID == "" {
			t.Errorf("%+v: %v", r, err)
		}
		total += n
		byTool[r.Tool] = n
	}
	if byTool["run_shell"] != 35 || byTool["fs_write"] != 35 || byTool[""] != 97 {
		t.Errorf("counted by tool: %v, want 35 of run_shell, 35 of fs_write and 97 of several tools", byTool)
	}
	if total != 120+100-50 {
		t.Errorf("%d denials counted, want 170", total)
	}
	if err := gate.Close(t.Context()); err != nil || len(log.records) != 56 {
		t.Errorf("closed again: %d records, %v", len(log.records), err)
	}
}

// TestCrashLosesABoundedNumberOfRefusals: without Close, at most 499 denials have neither a record nor a part in one,
// and in a flood less than half of them.
func TestCrashLosesABoundedNumberOfRefusals(t *testing.T) {
	log := &recordingLog{}
	gate := &actor.Gate{Log: log}
	rec := actortest.Recorder{Time: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	known := 0
	for i := range 5000 {
		before := len(log.records)
		if err := gate.Record(t.Context(), rec.Out(),
			subjects.AuditRecord{AgentID: "generator", Action: subjects.ActionToolCall, Tool: "run_shell"},
			subjects.StatusDenied, "manifest"); err != nil {
			t.Fatal(err)
		}
		for _, r := range log.records[before:] {
			n := 0
			if _, err := fmt.Sscanf(r.Reason, "repeated: %d more", &n); err != nil {
				n = 1
			}
			known += n
		}
		if lost := i + 1 - known; lost > 499 && 2*lost >= i+1 {
			t.Fatalf("after %d denials a crash loses %d", i+1, lost)
		}
	}
}

// TestRefusalsOfInventedToolsAreFewRecords: an agent that invents a name of a tool for each of 100,000 denied calls
// gets a record for each of the first, a logarithmic number of totals and a few records at the end of the period.
func TestRefusalsOfInventedToolsAreFewRecords(t *testing.T) {
	log := &recordingLog{}
	gate := &actor.Gate{Log: log}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	rec := actortest.Recorder{Time: now}
	out := rec.Out()
	deny := func(tool string) {
		t.Helper()
		if err := gate.Record(t.Context(), out,
			subjects.AuditRecord{AgentID: "generator", Action: subjects.ActionToolCall, Tool: tool},
			subjects.StatusDenied, "manifest"); err != nil {
			t.Fatal(err)
		}
	}
	const flood = 100_000
	for i := range flood {
		deny(fmt.Sprintf("invented_%d", i))
	}
	if n := len(log.records); n != 50+8 {
		t.Errorf("%d records of the flood, want 50, and totals at 500, 1000, ... 64000", n)
	}
	rec.Time = now.Add(11 * time.Second)
	deny("run_shell")
	if n := len(log.records); n != 50+8+6+1 {
		t.Errorf("%d records after the period, want 6 for its rest, and the new denial", n)
	}
	if n := log.refusals(); n != flood+1 {
		t.Errorf("the records are about %d denials, want %d", n, flood+1)
	}
}

// TestCountedRefusalsAreKeptWhenTheLogFails: while the log rejects the numbers of counted denials, a denial that is not
// counted has its record, and the numbers are recorded later.
func TestCountedRefusalsAreKeptWhenTheLogFails(t *testing.T) {
	log := &recordingLog{rejectSummaries: true}
	gate := &actor.Gate{Log: log}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	rec := actortest.Recorder{Time: now}
	out := rec.Out()
	deny := func(agent, tool string) error {
		return gate.Record(t.Context(), out, subjects.AuditRecord{
			AgentID: agent, Action: subjects.ActionToolCall,
			Tool: tool,
		}, subjects.StatusDenied, "manifest")
	}
	failed := 0
	for i := range 50 + 1100 {
		if deny("generator", fmt.Sprintf("invented_%d", i%50)) != nil {
			failed++
		}
	}
	if failed != 2 {
		t.Errorf("%d denials returned an error, want those with the totals at 500 and 1000", failed)
	}
	rec.Time = now.Add(11 * time.Second)
	if err := deny("committee", "run_shell"); err != nil {
		t.Errorf("a denial while the number of earlier ones is not stored: %v", err)
	}
	if last := log.records[len(log.records)-1]; len(log.records) != 51 || last.AgentID != "committee" {
		t.Errorf("%d records, the last is %+v", len(log.records), last)
	}
	if err := gate.Close(t.Context()); err == nil {
		t.Error("closed without an error")
	}
	log.rejectSummaries = false
	if err := gate.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := log.refusals(); n != 50+1100+1 || len(log.records) != 51+6 {
		t.Errorf("%d records about %d denials, want 57 about 1151", len(log.records), n)
	}
}

// recordingLog is an audit log in memory. With rejectSummaries, records about counted refusals fail.
type recordingLog struct {
	records         []subjects.AuditRecord
	rejectSummaries bool
}

func (l *recordingLog) Append(_ context.Context, rec subjects.AuditRecord) error {
	if l.rejectSummaries && strings.HasPrefix(rec.Reason, "repeated: ") {
		return errors.New("no acknowledgement")
	}
	l.records = append(l.records, rec)
	return nil
}

// refusals returns the number of refusals that the records are about.
func (l *recordingLog) refusals() (total int) {
	for _, r := range l.records {
		var n int
		if _, err := fmt.Sscanf(r.Reason, "repeated: %d more", &n); err != nil {
			n = 1
		}
		total += n
	}
	return total
}

// TestRequestsOverTheRateAreRejected: a route with a rate serves ten seconds' worth of requests at once and rejects the
// others of that account. Another account is served.
func TestRequestsOverTheRateAreRejected(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	startActor(t, b, "broker", actor.Config{},
		actor.Serve(subjects.BrokerDiscover, func(context.Context, actor.Msg[subjects.DiscoverRequest],
			actor.Out,
		) (subjects.DiscoverReply, error) {
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
	if served < 20 || served > 60 || refused == nil ||
		!strings.Contains(refused.Error(), "limit: too many requests: at most 2 per second") {
		t.Errorf("%d requests served, then %v", served, refused)
	}
	if err := ask(newOut(t, b.Connect("committee"))); err != nil {
		t.Errorf("another account: %v", err)
	}
}
