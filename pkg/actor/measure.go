package actor

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/micro"

	"conclave/pkg/telemetry"
	"conclave/subjects"
)

// StatsReply is the reply of an actor to a STATS request: that of the micro protocol, and the samples of its metrics.
type StatsReply struct {
	micro.Stats
	Counter string             `json:"counter,omitempty"` // identifies the counters: they start at zero under each
	Samples []telemetry.Sample `json:"samples,omitempty"`
}

// Measurer is an actor with gauges of its own. Measure is called for each STATS reply, concurrently, and must not
// block.
type Measurer interface {
	Measure() []telemetry.Sample
}

// CollectStats returns the statistics of every actor, the caller included, which must be the directory: see
// [subjects.Directory]. The name of each is that of the account that replied.
func CollectStats(ctx context.Context, out Out) ([]StatsReply, error) {
	c, ok := out.(*connOut)
	if !ok || c.ownStats == nil {
		return nil, errors.New("only a running actor collects statistics")
	}
	var all []StatsReply
	err := DiscoverAll(ctx, out, "STATS", func(data []byte) {
		var s StatsReply
		if json.Unmarshal(data, &s) == nil {
			all = append(all, s)
		}
	})
	if own, ok := c.ownStats().(StatsReply); ok {
		all = append(all, own)
	}
	return all, err
}

// samples returns the counters of the actor and the gauges of this run.
func (r *running) samples() []telemetry.Sample {
	state, restarts, _ := r.health.Snapshot()
	waiting, handled, ready := 0, int64(0), 0.0
	for _, l := range r.routes {
		waiting += l.mailbox.length()
		handled += l.inFlight.Load()
	}
	if state == Ready || state == Starting { // this run answers, so it is subscribed
		ready = 1
	}
	out := append(r.health.meter.Samples(),
		telemetry.Sample{Name: telemetry.Mailbox.Name, Value: float64(waiting)},
		telemetry.Sample{Name: telemetry.InFlight.Name, Value: float64(handled)},
		telemetry.Sample{Name: telemetry.Instances.Name, Value: ready},
		telemetry.Sample{Name: telemetry.Restarts.Name, Value: float64(restarts)})
	if m, ok := r.actor.(Measurer); ok {
		out = append(out, m.Measure()...)
	}
	return out
}

// recordHandled counts one handled message of l that took d, as an error unless err is nil.
func (r *running) recordHandled(l *routeRun, d time.Duration, err error) {
	l.counters.recordHandled(d, err)
	result := "ok"
	if err != nil {
		result = "error"
	}
	r.health.meter.Add(&telemetry.Messages, 1, l.endpoint, result)
	r.health.meter.Add(&telemetry.MessageSeconds, d.Seconds(), l.endpoint)
}

// recordRejected counts a message of l that was rejected with code.
func (r *running) recordRejected(l *routeRun, code string) {
	l.counters.recordRejected(code)
	r.health.meter.Add(&telemetry.Messages, 1, l.endpoint, "rejected")
}

// measureAudit counts an audit record that was appended within d, or not with an error.
func measureAudit(ctx context.Context, d time.Duration, err error) {
	if err != nil {
		telemetry.Count(ctx, &telemetry.AuditRecords, "failed")
		return
	}
	telemetry.Count(ctx, &telemetry.AuditRecords, "stored")
	telemetry.Add(ctx, &telemetry.AuditSeconds, d.Seconds())
}

// measureEvent counts the answer, the grade or the dead letter in an event that its stream has just stored. Events are
// the one place that all respondents share, and a stored event is no repetition.
func measureEvent(ctx context.Context, spec subjects.Spec, body []byte) {
	switch {
	case strings.HasPrefix(spec.Name, "dead."):
		var d subjects.DeadLetter
		if json.Unmarshal(body, &d) == nil {
			telemetry.Count(ctx, &telemetry.DeadLetters, d.Code)
		}
	case spec.Name == subjects.ResponseGeneration.Name:
		var r struct {
			Error *subjects.Fault `json:"error"`
			Usage subjects.Usage  `json:"usage"`
			Notes []subjects.Note `json:"notes"`
		}
		if json.Unmarshal(body, &r) != nil {
			return
		}
		end := subjects.Response{Error: r.Error, Notes: r.Notes}.State()
		telemetry.Count(ctx, &telemetry.Questions, end)
		telemetry.Add(ctx, &telemetry.QuestionSeconds, float64(r.Usage.Millis)/1000)
	case spec.Name == subjects.CritiqueResult.Name:
		var c subjects.Critique
		if json.Unmarshal(body, &c) != nil {
			return
		}
		grade := "ungraded"
		if c.Ungraded == "" {
			grade = strconv.Itoa(c.Score)
		}
		telemetry.Count(ctx, &telemetry.Grades, grade)
	}
}
