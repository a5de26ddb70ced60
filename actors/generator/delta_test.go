package generator

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/subjects"
)

func TestDeltaStream(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.Time = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	l, err := newDeltaStream(w.Out(), subjects.ResponseDelta, "generator", "q1")
	if err != nil {
		t.Fatal(err)
	}
	for i, text := range []string{"a", "b", "c", strings.Repeat("d", deltaBytes), "e", "f"} {
		if i == 5 {
			w.Time = w.Time.Add(deltaInterval)
		}
		l.write(t.Context(), 1+i/4, text)
	}
	l.flush(t.Context())
	l.flush(t.Context())
	var got []string
	for i, d := range emitted[subjects.Delta](w, "response.delta.q1") {
		if d.N != i {
			t.Errorf("numbered %d, want %d", d.N, i)
		}
		got = append(got, fmt.Sprintf("%d %.3s", d.Step, d.Text))
	}
	if want := []string{"1 a", "1 bcd", "2 ef"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if _, err := newDeltaStream(w.Out(), subjects.ResponseDelta, "generator", "a.b"); err == nil {
		t.Error("an odd id became a subject")
	}
}
