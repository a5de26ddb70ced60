package gateway

import (
	"fmt"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/telemetry"
	"conclave/subjects"
)

// find returns the sample of an actor with these labels.
func (c sampleCollector) find(actor, name string, labels ...string) (out []telemetry.Sample) {
	for _, s := range c {
		if s.actor == actor && s.Name == name && (len(labels) == 0 || s.Labels[0] == labels[0]) {
			out = append(out, s.Sample)
		}
	}
	return out
}

func reply(name, counter string, samples ...telemetry.Sample) actor.StatsReply {
	r := actor.StatsReply{Counter: counter, Samples: samples}
	r.Name = name
	return r
}

func questions(n float64) telemetry.Sample {
	return telemetry.Sample{Name: telemetry.Questions.Name, Labels: []string{"answered"}, Value: n}
}

func TestCountersAreAddedUp(t *testing.T) {
	t.Parallel()
	var s metricStore
	now := time.Now()
	waiting := telemetry.Sample{Name: telemetry.Mailbox.Name, Value: 3}
	sum := func(stats ...actor.StatsReply) (float64, int) {
		now = now.Add(time.Second)
		got := s.merge(stats, now)
		total := got.find("generator", telemetry.Questions.Name)
		if len(total) != 1 {
			t.Fatalf("%+v", got)
		}
		return total[0].Value, len(got.find("generator", telemetry.Mailbox.Name))
	}
	for _, step := range []struct {
		name   string
		stats  []actor.StatsReply
		want   float64
		gauges int
	}{
		{"two instances", []actor.StatsReply{
			reply("generator", "a", questions(5), waiting),
			reply("generator", "b", questions(2), waiting),
		}, 7, 1},
		{"one is gone", []actor.StatsReply{reply("generator", "a", questions(6), waiting)}, 8, 1},
		{"it was restarted", []actor.StatsReply{reply("generator", "c", questions(1))}, 9, 0},
		{"none answers", nil, 9, 0},
	} {
		if got, gauges := sum(step.stats...); got != step.want || gauges != step.gauges {
			t.Errorf("%s: %v with %d gauges, want %v and %d", step.name, got, gauges, step.want, step.gauges)
		}
	}
	for i := range 3 * maxCounterSets { // many instances, one after the other
		sum(reply("generator", string(rune('Ā'+i)), questions(1)))
	}
	if got, _ := sum(); got != 9+3*maxCounterSets || len(s.counters) > maxCounterSets {
		t.Errorf("%v questions, %d instances kept", got, len(s.counters))
	}
	if got, _ := sum(reply("generator", "a", questions(6))); got != 9+3*maxCounterSets {
		t.Errorf("%v questions after a retired instance replied again", got)
	}
	for i := range maxEnded + maxCounterSets {
		sum(reply("generator", fmt.Sprint(i), questions(1)))
	}
	if len(s.ended) != maxEnded {
		t.Errorf("%d ids of retired instances", len(s.ended))
	}
}

// TestSamplesOfActorsAreChecked shows what an actor on another machine cannot do with its samples.
func TestSamplesOfActorsAreChecked(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		from   string
		sample telemetry.Sample
	}{
		{"unknown metric", "model", telemetry.Sample{Name: "conclave_forged"}},
		{"metric of the system", "model", telemetry.Sample{
			Name:   telemetry.StreamBytes.Name,
			Labels: []string{"AUDIT"},
		}},
		{"too few labels", "model", telemetry.Sample{Name: telemetry.Questions.Name}},
		{"too many labels", "model", telemetry.Sample{
			Name:   telemetry.Questions.Name,
			Labels: []string{"answered", "x"},
		}},
		{"wrong buckets", "model", telemetry.Sample{
			Name: telemetry.ModelSeconds.Name, Labels: []string{"m"},
			Counts: []uint64{1},
		}},
		{"negative", "model", telemetry.Sample{
			Name: telemetry.Questions.Name, Labels: []string{"answered"},
			Value: -1,
		}},
		{"unknown metric of the registry", subjects.Registry, telemetry.Sample{Name: "conclave_forged"}},
	} {
		var s metricStore
		if got := s.merge([]actor.StatsReply{reply(c.from, "a", c.sample)}, time.Now()); len(got) != 0 {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
	var many []telemetry.Sample
	for range 2 * maxReplySamples {
		many = append(many, questions(1))
	}
	var s metricStore
	if got := s.merge([]actor.StatsReply{reply("model", "a", many...)}, time.Now()).find("model",
		telemetry.Questions.Name); len(got) != 1 || got[0].Value != maxReplySamples {
		t.Errorf("%+v", got)
	}
}
