package broker_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/actors/broker"
	"conclave/pkg/actor"
	"conclave/pkg/agent"
	"conclave/pkg/audit"
	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// TestRepeatedCallAfterKilledBroker closes the connection of a broker in mid-call: its reply is lost, and the agent
// repeats the call under the same call_id. A harmless tool runs again; of one with lasting effects the agent learns
// that the outcome is unknown, and it runs once.
func TestRepeatedCallAfterKilledBroker(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		effects policy.Effects
		runs    int64
		fault   string
	}{
		{"harmless", policy.Declare(), 2, ""},
		{"lasting", policy.Declare(policy.Mutate), 1, subjects.CodeUncertain},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newBusFixture(t)
			w.known.Effects, w.known.Timeout = tt.effects, time.Second
			began, release := make(chan struct{}, 8), make(chan struct{})
			tool := &fakeTool{schema: clock, run: func(context.Context) (string, error) {
				began <- struct{}{}
				<-release
				return "noon", nil
			}}
			w.startTool(tool)
			conns := make(chan *nats.Conn, 8)
			spec := w.AuditedSpec("broker", func(_ context.Context, a *audit.Writer, h *audit.Hasher) (actor.Actor,
				error,
			) {
				return broker.New(broker.Config{CallTimeout: testTimeout, AuditTimeout: time.Second},
					rules(parseTestManifest(w.t), testChain(w.t)), a, h, []broker.Known{w.known}), nil
			})
			build := spec.Make
			spec.Make = func(ctx context.Context, nc *nats.Conn) (actor.Actor, error) {
				conns <- nc
				return build(ctx, nc)
			}
			w.Run(spec, actor.Config{DrainTimeout: time.Second})
			caller := &agent.Agent{
				Out: w.Out("operator"), ToolTimeout: testTimeout,
				RepeatAfter: 100 * time.Millisecond,
			}
			result := make(chan loop.Result, 1)
			go func() {
				result <- caller.RunTool(t.Context(),
					model.Call{ID: "1", Name: "get_datetime", Arguments: json.RawMessage(`{"timezone":"UTC"}`)})
			}()
			<-began
			(<-conns).Close()
			close(release)
			got := <-result
			if got.Fault != tt.fault || tt.fault == "" && got.Text != "noon" {
				t.Errorf("result %+v, want fault %q", got, tt.fault)
			}
			if n := tool.runs.Load(); n != tt.runs {
				t.Errorf("the tool ran %d times, want %d", n, tt.runs)
			}
		})
	}
}
