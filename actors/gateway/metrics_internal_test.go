package gateway

import (
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/telemetry"
	"conclave/subjects"
)

// find returns the sample of an actor with these labels.
func (c sampleList) find(actor, name string, labels ...string) (out []telemetry.Sample) {
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

// TestMetricsText compares the text of all kinds of metrics with the format of Prometheus.
func TestMetricsText(t *testing.T) {
	t.Parallel()
	counts := make([]uint64, len(telemetry.TokensPerSecond.Buckets)+1)
	counts[0], counts[1], counts[len(counts)-1] = 2, 1, 4
	denied := func(tool string, n float64) actorSample {
		return actorSample{"broker", telemetry.Sample{
			Name: telemetry.ToolCalls.Name, Labels: []string{tool, "denied", "none"}, Value: n,
		}}
	}
	got := string(encodeMetrics(sampleList{
		denied("t", 1e7),
		denied("a\"b\\c\nd", 0),
		denied("\xff", 1),
		{"", telemetry.Sample{Name: telemetry.ApprovalsWaiting.Name, Value: 0.5}},
		{"model", telemetry.Sample{
			Name: telemetry.TokensPerSecond.Name, Labels: []string{"m"}, Value: 12.5,
			Counts: counts,
		}},
	}))
	var buckets strings.Builder
	for i, bound := range append(telemetry.TokensPerSecond.Buckets, math.Inf(1)) {
		n := 3
		switch i {
		case 0:
			n = 2
		case len(counts) - 1:
			n = 7
		}
		fmt.Fprintf(&buckets, "conclave_model_tokens_per_second_bucket{actor=\"model\",model=\"m\",le=\"%v\"} %d\n",
			bound, n)
	}
	want := `# HELP conclave_approvals_waiting Tool calls that wait for the user's approval.
# TYPE conclave_approvals_waiting gauge
conclave_approvals_waiting 0.5
# HELP conclave_model_tokens_per_second Output tokens per second of one reply.
# TYPE conclave_model_tokens_per_second histogram
` + buckets.String() + `conclave_model_tokens_per_second_sum{actor="model",model="m"} 12.5
conclave_model_tokens_per_second_count{actor="model",model="m"} 7
# HELP conclave_tool_calls_total ` + telemetry.ToolCalls.Help + `
# TYPE conclave_tool_calls_total counter
conclave_tool_calls_total{actor="broker",decision="denied",result="none",tool="a\"b\\c\nd"} 0
conclave_tool_calls_total{actor="broker",decision="denied",result="none",tool="t"} 1e+07
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestRuntimeMetrics checks that each metric of the Go runtime has a type, a name of its own and a number.
func TestRuntimeMetrics(t *testing.T) {
	t.Parallel()
	text := strings.TrimSuffix(string(encodeRuntimeMetrics()), "\n")
	series := regexp.MustCompile(`^(go_[a-z_]+)(\{[a-z]+="[^"]+"\})? [0-9.e+-]+$`)
	values := map[string]bool{}
	name := ""
	for line := range strings.SplitSeq(text, "\n") {
		if declared, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, _, _ = strings.Cut(declared, " ")
			continue
		}
		m := series.FindStringSubmatch(line)
		if m == nil || values[m[1]+m[2]] || m[1] != name && m[1] != name+"_sum" && m[1] != name+"_count" {
			t.Errorf("after the type of %s: %s", name, line)
			continue
		}
		values[m[1]+m[2]] = true
	}
	if len(values) != 35 {
		t.Errorf("%d values", len(values))
	}
}
