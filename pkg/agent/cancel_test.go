package agent

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

// A query is canceled whether it runs or begins later; of too many the oldest is forgotten.
func TestCancellations(t *testing.T) {
	t.Parallel()
	var s Cancellations
	running, end := s.Watch(t.Context(), "q1")
	defer end()
	s.Cancel("q1")
	s.Cancel("q2")
	later, endLater := s.Watch(t.Context(), "q2")
	defer endLater()
	for name, ctx := range map[string]context.Context{"running": running, "later": later} {
		if !errors.Is(context.Cause(ctx), ErrCanceled) {
			t.Errorf("%s: %v", name, context.Cause(ctx))
		}
	}
	other, endOther := s.Watch(t.Context(), "q3")
	defer endOther()
	if other.Err() != nil {
		t.Error(other.Err())
	}
	for i := range maxCanceled + 10 {
		s.Cancel(fmt.Sprint(i))
		s.Cancel(fmt.Sprint(i))
	}
	if len(s.canceled) != maxCanceled || s.canceled[0] != "10" {
		t.Errorf("%d, from %s", len(s.canceled), s.canceled[0])
	}
}
