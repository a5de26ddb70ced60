package actor_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/audit"
	"conclave/subjects"
)

// memoryLog is an audit log that fails for some phases.
type memoryLog struct {
	fail    map[string]error // by phase
	records []subjects.AuditRecord
	story   []string
}

func (l *memoryLog) Append(ctx context.Context, rec subjects.AuditRecord) error {
	if _, ok := ctx.Deadline(); !ok || ctx.Err() != nil {
		return fmt.Errorf("no deadline, or expired: %v", ctx.Err())
	}
	if err := l.fail[rec.Phase]; err != nil {
		return err
	}
	l.records = append(l.records, rec)
	l.story = append(l.story, strings.Join(strings.Fields(rec.Phase+" "+rec.Status+" "+rec.Reason), " "))
	return nil
}

func TestAudited(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		fail  map[string]error
		act   func(p *actor.Permit) (string, error)
		got   string
		code  string
		text  string
		story []string
	}{
		{name: "success", got: "value", story: []string{"before allowed once", "act", "after ok"}},
		{
			name: "fault", act: func(*actor.Permit) (string, error) {
				return "part", subjects.Faultf(subjects.CodeTool, "x")
			},
			got: "part", code: subjects.CodeTool, story: []string{
				"before allowed once", "act",
				"after failed tool_failed",
			},
		},
		{
			name: "other error", act: func(*actor.Permit) (string, error) { return "", errors.New("secret text") },
			text: "secret text", story: []string{"before allowed once", "act", "after failed internal"},
		},
		{
			name: "reported outcome", act: func(p *actor.Permit) (string, error) {
				p.Report(subjects.StatusUnknown, subjects.CodeTimeout)
				return "", subjects.Faultf(subjects.CodeTimeout, "x")
			},
			code: subjects.CodeTimeout, story: []string{"before allowed once", "act", "after unknown timeout"},
		},
		{
			name: "intent not stored", fail: map[string]error{"before": context.DeadlineExceeded},
			code: subjects.CodeNoAudit, text: "the audit did not acknowledge the record, so nothing was read; see " +
				"conclave doctor",
		},
		{
			name: "audit full", fail: map[string]error{"before": fmt.Errorf("append: %w", audit.ErrFull)},
			code: subjects.CodeNoAudit, text: "the audit is full, so nothing was read; stop conclave and run " +
				"conclave audit rotate",
		},
		{
			name: "outcome not stored", fail: map[string]error{"after": context.DeadlineExceeded},
			code: subjects.CodeUnrecorded, text: "it was read, but the audit did not acknowledge the outcome, so the " +
				"result is withheld",
			story: []string{"before allowed once", "act"},
		},
		{
			name: "failed, and outcome not stored", fail: map[string]error{"after": context.DeadlineExceeded},
			act:  func(*actor.Permit) (string, error) { return "part", subjects.Faultf(subjects.CodeTool, "x") },
			code: subjects.CodeTool, story: []string{"before allowed once", "act"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			log := &memoryLog{fail: tt.fail}
			gate := &actor.Gate{Log: log, NotDone: "nothing was read", Done: "it was read"}
			var rec actortest.Recorder
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			var kept *actor.Permit
			got, err := actor.Audited(ctx, rec.Out(), gate, subjects.AuditRecord{
				AgentID: "a", Action: "x.read",
				Reason: "once",
			},
				func(_ context.Context, p *actor.Permit) (string, error) {
					if p.Check() != nil {
						t.Error("the permit is not valid")
					}
					cancel() // the caller goes away: the outcome is stored all the same
					kept = p
					log.story = append(log.story, "act")
					if tt.act == nil {
						return "value", nil
					}
					return tt.act(p)
				})
			if got != tt.got || faultCode(err) != tt.code || (err == nil) != (tt.code == "" && tt.text == "") ||
				err != nil && !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %q, %v", got, err)
			}
			if !slices.Equal(log.story, tt.story) {
				t.Errorf("story %q, want %q", log.story, tt.story)
			}
			if unrecorded := tt.fail["after"] != nil; errors.Is(err, actor.ErrUnrecorded) != unrecorded {
				t.Errorf("unrecorded is %t: %v", !unrecorded, err)
			}
			for _, r := range log.records {
				if r.ID != "id-1" || r.AgentID != "a" || r.Action != "x.read" {
					t.Errorf("record %+v", r)
				}
			}
			if kept != nil && kept.Check() == nil {
				t.Error("the permit outlives its act")
			}
		})
	}
}

func TestForgedPermitIsRejected(t *testing.T) {
	t.Parallel()
	var none *actor.Permit
	if none.Check() == nil || new(actor.Permit).Check() == nil || (&actor.Permit{}).Check() == nil {
		t.Error("a permit that no gate made is valid")
	}
}

func TestPanicLeavesIntentOpenAndEndsPermit(t *testing.T) {
	t.Parallel()
	log := &memoryLog{}
	var rec actortest.Recorder
	var kept *actor.Permit
	func() {
		defer func() { _ = recover() }()
		_, _ = actor.Audited(t.Context(), rec.Out(), &actor.Gate{Log: log}, subjects.AuditRecord{},
			func(_ context.Context, p *actor.Permit) (int, error) {
				kept = p
				panic("x")
			})
	}()
	if !slices.Equal(log.story, []string{"before allowed"}) || kept.Check() == nil {
		t.Errorf("story %q, permit %v", log.story, kept.Check())
	}
}

func TestGateRecordsRefusals(t *testing.T) {
	t.Parallel()
	var rec actortest.Recorder
	log := &memoryLog{}
	gate := &actor.Gate{Log: log}
	for _, status := range []string{
		subjects.StatusDenied, subjects.StatusRefused, subjects.StatusReplayed,
		subjects.StatusPending, subjects.StatusShown,
	} {
		if err := gate.Record(t.Context(), rec.Out(), subjects.AuditRecord{Action: "x"}, status, "why"); err != nil {
			t.Error(err)
		}
	}
	for _, status := range []string{subjects.StatusAllowed, subjects.StatusOK, ""} {
		if gate.Record(t.Context(), rec.Out(), subjects.AuditRecord{Action: "x"}, status, "") == nil {
			t.Errorf("trick: an act is recorded as over with %q", status)
		}
	}
	if len(log.records) != 5 || len(rec.Logged()) != 0 {
		t.Errorf("records %+v, logged %v", log.records, rec.Logged())
	}
	log.fail = map[string]error{"before": audit.ErrFull}
	if err := gate.Record(t.Context(), rec.Out(), subjects.AuditRecord{Action: "x"}, subjects.StatusDenied,
		""); faultCode(err) != subjects.CodeNoAudit {
		t.Error(err)
	}
	gate.Refuse(t.Context(), rec.Out(), subjects.AuditRecord{Action: "x"}, subjects.StatusDenied, "")
	if len(rec.Logged()) != 1 {
		t.Errorf("logged %v", rec.Logged())
	}
}

func TestGateRecordsRejectedMessages(t *testing.T) {
	t.Parallel()
	log := &memoryLog{}
	gate := &actor.Gate{Log: log}
	a := &testActor{
		name:   "a",
		routes: []actor.Route{actor.Serve(subjects.ToolRequestService, echoArgs, gate.OnReject("tool.call", nil))},
	}
	var rec actortest.Recorder
	rec.Time = time.Now()
	_, err := rec.Deliver(t, a, actortest.Message{
		Subject: "agent.generator.tool.request.x", Body: []byte("{"),
		Session: "s1", Query: "q1", Deadline: rec.Time.Add(time.Minute),
	})
	if faultCode(err) != subjects.CodeMalformed || len(log.records) != 1 {
		t.Fatalf("%v, records %+v", err, log.records)
	}
	if r := log.records[0]; r.AgentID != "generator" || r.Action != "tool.call" || r.Session != "s1" ||
		r.Query != "q1" || r.Status != subjects.StatusRefused || r.Reason != subjects.CodeMalformed {
		t.Errorf("record %+v", r)
	}
}

// exampleLog is an audit log that prints, for an example.
type exampleLog struct{}

func (exampleLog) Append(_ context.Context, rec subjects.AuditRecord) error {
	fmt.Println("audit:", rec.Phase, rec.Status)
	return nil
}

func ExampleAudited() {
	gate := &actor.Gate{Log: exampleLog{}, NotDone: "nothing was read", Done: "it was read"}
	read := func(p *actor.Permit, name string) (string, error) { // cannot be called without a permit
		if err := p.Check(); err != nil {
			return "", err
		}
		return "the content of " + name, nil
	}
	var rec actortest.Recorder // takes the place of the bus
	got, err := actor.Audited(context.Background(), rec.Out(), gate,
		subjects.AuditRecord{AgentID: "generator", Action: "file.read"},
		func(_ context.Context, p *actor.Permit) (string, error) { return read(p, "a.txt") })
	fmt.Println(got, err)
	_, err = read(nil, "b.txt")
	fmt.Println(err)
	// Output:
	// audit: before allowed
	// audit: after ok
	// the content of a.txt <nil>
	// no effect without an audit record: the permit is missing or its act has ended
}
