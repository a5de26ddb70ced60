package agent

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/pkg/actor/actortest"
	"conclave/subjects"
)

func TestDeltaStream(t *testing.T) {
	t.Parallel()
	w := &actortest.Recorder{}
	w.Time = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	l, err := NewDeltaStream(w.Out(), subjects.ResponseDelta, "generator", "q1")
	if err != nil {
		t.Fatal(err)
	}
	for i, text := range []string{"a", "b", "c", strings.Repeat("d", deltaBytes), "e", "f"} {
		if i == 5 {
			w.Time = w.Time.Add(deltaInterval)
		}
		l.Write(t.Context(), 1+i/4, text)
	}
	l.Flush(t.Context())
	l.Flush(t.Context())
	var got []string
	for i, r := range w.Published() {
		var d subjects.Delta
		if err := json.Unmarshal([]byte(r.Body), &d); err != nil || r.Subject != "response.delta.q1" {
			t.Fatalf("%+v: %v", r, err)
		}
		if d.N != i {
			t.Errorf("numbered %d, want %d", d.N, i)
		}
		got = append(got, fmt.Sprintf("%d %.3s", d.Step, d.Text))
	}
	if want := []string{"1 a", "1 bcd", "2 ef"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if _, err := NewDeltaStream(w.Out(), subjects.ResponseDelta, "generator", "a.b"); err == nil {
		t.Error("an odd id became a subject")
	}
}
