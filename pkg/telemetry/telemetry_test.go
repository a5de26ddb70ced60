package telemetry

import (
	"fmt"
	"slices"
	"sync"
	"testing"
)

func TestMeter(t *testing.T) {
	t.Parallel()
	m := NewMeter()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				ctx := WithScope(t.Context(), &Scope{Meter: m})
				Count(ctx, &Questions, "answered")
				Add(ctx, &ModelSeconds, 0.05, "a") // a value at a bound belongs to its bucket
				Add(ctx, &ModelSeconds, 10000, "a")
			}
		})
	}
	wg.Wait()
	Count(t.Context(), &Questions, "answered")                                   // no meter: nothing
	Count(WithScope(t.Context(), &Scope{Meter: m}), &Questions, "answered", "x") // wrong labels: nothing
	var none *Meter
	none.Add(&Questions, 1, "answered")
	got := m.Samples()
	if len(got) != 2 || got[1].Name != Questions.Name || got[1].Value != 800 {
		t.Fatalf("%+v", got)
	}
	if h := got[0]; h.Counts[0] != 800 || h.Counts[len(h.Counts)-1] != 800 ||
		len(h.Counts) != len(ModelSeconds.Buckets)+1 {
		t.Errorf("histogram %+v", h)
	}
}

// TestSeriesAreBounded shows that a caller who chooses label values cannot make series without limit.
func TestSeriesAreBounded(t *testing.T) {
	t.Parallel()
	m := NewMeter()
	for i := range 10_000 {
		m.Add(&ToolCalls, 1, fmt.Sprintf("tool%d", i), "allowed", "ok")
	}
	got := m.Samples()
	total := 0.0
	for _, s := range got {
		total += s.Value
	}
	rest := slices.IndexFunc(got, func(s Sample) bool { return s.Labels[0] == OtherLabel })
	if len(got) != maxSeries+1 || total != 10_000 || rest < 0 || got[rest].Value != 10_000-maxSeries {
		t.Errorf("%d series, %v in all, other at %d", len(got), total, rest)
	}
}
