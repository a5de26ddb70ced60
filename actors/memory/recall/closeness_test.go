package recall

import (
	"math"
	"testing"
	"time"

	"conclave/pkg/date"
)

func TestClosenessFallsOverAWeek(t *testing.T) {
	t.Parallel()
	at := func(d int) time.Time { return time.Date(2023, 5, d, 0, 0, 0, 0, time.UTC) }
	ranges := []date.Range{{From: at(8), Until: at(9)}}
	for d, want := range map[int]float64{8: 1, 9: 1, 12: 1 - 3./7, 16: 0, 25: 0, 1: 0, 7: 1 - 1./7} {
		if got := rateCloseness(ranges, at(d)); math.Abs(got-want) > 1e-9 {
			t.Errorf("%d May: %v, want %v", d, got, want)
		}
	}
}
