package client_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// TestConcurrentSchedules: of writes that are based on the same state, one is stored, and the others learn that they are not.
func TestConcurrentSchedules(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	began := time.Now().UTC().Truncate(time.Minute)
	s := subjects.Schedule{When: "daily 8:00", Zone: "UTC", Query: "what is new", Mode: "assistant", Made: began, Since: began}
	for _, what := range []string{"add", "change"} {
		_, all, err := f.c.Schedules(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var stored atomic.Int32
		var writers sync.WaitGroup
		for range 8 {
			writers.Go(func() {
				switch err := f.c.StoreSchedule(t.Context(), "s1", all["s1"].Revision, s); {
				case err == nil:
					stored.Add(1)
				case !errors.Is(err, actor.ErrChanged):
					t.Errorf("%s: %v", what, err)
				}
			})
		}
		writers.Wait()
		if n := stored.Load(); n != 1 {
			t.Errorf("%s: %d of 8 writes were stored", what, n)
		}
	}
}
