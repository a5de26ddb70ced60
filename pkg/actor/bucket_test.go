package actor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// tally counts rewards of one query and announces each count once.
type tally struct {
	Count int    `json:"count"`
	Event string `json:"event,omitempty"` // id of the event of this count
	Done  bool   `json:"done,omitempty"`
}

func (c *tally) Pending() []actor.Event {
	if c.Event == "" || c.Done {
		return nil
	}
	return []actor.Event{actor.NewEvent("event", subjects.RewardEvent, c.Event,
		subjects.Reward{QueryID: "q1", Count: c.Count}).WithIDs("s1", "q1")}
}

func (c *tally) MarkPublished() { c.Done = true }

var tallies = actor.Bucket[tally]{Name: "rewarded"}

// increment adds one.
func increment(ctx context.Context, out actor.Out) (actor.Versioned[tally], error) {
	return tallies.Update(ctx, out, "count", "k", func(c *tally, _ bool) (bool, error) {
		*c = tally{Count: c.Count + 1, Event: out.NewID()}
		return true, nil
	})
}

var tallySteps = []string{
	"count/before", "count/after", "event/before", "event/after", "event.mark/before",
	"event.mark/after",
}

// publishedCounts lists the counts that were published, and checks their ids.
func publishedCounts(t *testing.T, rec *actortest.Recorder) (counts []int) {
	t.Helper()
	for _, s := range rec.Published() {
		var r subjects.Reward
		if err := json.Unmarshal([]byte(s.Body), &r); err != nil || s.ID == "" || s.Query != "q1" || s.Session != "s1" {
			t.Errorf("published %+v", s)
		}
		counts = append(counts, r.Count)
	}
	return counts
}

func TestUpdateStoresPublishesAndMarks(t *testing.T) {
	t.Parallel()
	var rec actortest.Recorder
	var steps []string
	v, err := increment(actor.WithSteps(t.Context(), func(s string) { steps = append(steps, s) }), rec.Out())
	if err != nil || v.Value.Count != 1 || !v.Value.Done || v.Revision != 2 || !slices.Equal(steps, tallySteps) {
		t.Errorf("%+v, %v, steps %q", v, err, steps)
	}
	loaded, err := tallies.Load(t.Context(), rec.Out(), "k")
	if err != nil || loaded != v || !slices.Equal(publishedCounts(t, &rec), []int{1}) {
		t.Errorf("%+v, %v, published %v", loaded, err, publishedCounts(t, &rec))
	}
}

type crash string

// TestCrashInUpdate: an event whose value is stored is published exactly once, by the next process to touch the key.
func TestCrashInUpdate(t *testing.T) {
	t.Parallel()
	for i, at := range tallySteps {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			var rec actortest.Recorder
			func() {
				defer func() {
					if p := recover(); p != crash(at) {
						t.Errorf("no crash at %s: %v", at, p)
					}
				}()
				_, _ = increment(actor.WithSteps(t.Context(), func(s string) {
					if s == at {
						panic(crash(s))
					}
				}), rec.Out())
			}()
			for range 2 {
				if _, err := tallies.Update(t.Context(), rec.Out(), "look", "k", func(*tally, bool) (bool, error) {
					return false, nil
				}); err != nil {
					t.Fatal(err)
				}
			}
			want := []int{1}
			if i == 0 {
				want = nil // nothing was stored
			}
			if got := publishedCounts(t, &rec); !slices.Equal(got, want) {
				t.Errorf("published %v, want %v", got, want)
			}
		})
	}
}

// TestUpdateConflict: a process that is paused at any step while another updates the key loses nothing and
// publishes nothing twice.
func TestUpdateConflict(t *testing.T) {
	t.Parallel()
	for _, at := range tallySteps {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			var rec actortest.Recorder
			met := false
			ctx := actor.WithSteps(t.Context(), func(s string) {
				if s == at && !met {
					met = true
					if _, err := increment(t.Context(), rec.Out()); err != nil {
						t.Error(err)
					}
				}
			})
			if _, err := increment(ctx, rec.Out()); err != nil {
				t.Fatal(err)
			}
			v, err := tallies.Load(t.Context(), rec.Out(), "k")
			if err != nil || v.Value.Count != 2 || !v.Value.Done ||
				!slices.Equal(publishedCounts(t, &rec), []int{1, 2}) {
				t.Errorf("%+v, %v, published %v", v, err, publishedCounts(t, &rec))
			}
		})
	}
}

func TestUpdateErrors(t *testing.T) {
	t.Parallel()
	var rec actortest.Recorder
	out := rec.Out()
	own := errors.New("own")
	if _, err := tallies.Update(t.Context(), out, "x", "k", func(_ *tally, found bool) (bool, error) {
		return found, own
	}); err != own {
		t.Errorf("the error of change became %v", err)
	}
	rec.FailStore = errors.New("bucket full")
	if _, err := increment(t.Context(), out); !errors.Is(err, actor.ErrNotStored) || !errors.Is(err, rec.FailStore) {
		t.Error(err)
	}
	rec.FailStore = nil
	rec.FailPublish = func(string) error { return own }
	v, err := increment(t.Context(), out)
	if !errors.Is(err, own) || errors.Is(err, actor.ErrNotStored) || v.Revision == 0 {
		t.Errorf("an event that cannot be published: %+v, %v", v, err)
	}
	rec.FailPublish = nil
	if _, err := increment(t.Context(), out); err != nil || !slices.Equal(publishedCounts(t, &rec), []int{1, 2}) {
		t.Errorf("%v, published %v", err, publishedCounts(t, &rec))
	}
	// An outdated start is no loss: the newer value is read.
	if v, err := tallies.UpdateFrom(t.Context(), out, "x", "k", v, func(c *tally, _ bool) (bool, error) {
		c.Count += 10
		return true, nil
	}); err != nil || v.Value.Count != 12 {
		t.Errorf("%+v, %v", v, err)
	}
	small := actor.Bucket[tally]{Name: "rewarded", MaxSize: 10}
	if _, err := small.Store(t.Context(), out, "x", "k2", actor.Versioned[tally]{Value: tally{Count: 1}}); !errors.Is(
		err, actor.ErrTooLarge) {
		t.Error(err)
	}
	always := actor.WithSteps(t.Context(), func(s string) { // another writer wins each time
		if s != "lose/before" {
			return
		}
		if _, err := increment(t.Context(), out); err != nil {
			t.Error(err)
		}
	})
	if _, err := tallies.Update(always, out, "lose", "k", func(*tally, bool) (bool, error) {
		return true, nil
	}); !errors.Is(err, actor.ErrBusy) {
		t.Error(err)
	}
	if _, err := out.Store("rewarded").Put(t.Context(), "bad", []byte("{"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := tallies.Load(t.Context(), out, "bad"); err == nil {
		t.Error("damaged JSON was read")
	}
}

// TestUpdateOutlivesItsCaller: what was begun is stored and published although the caller has gone.
func TestUpdateOutlivesItsCaller(t *testing.T) {
	t.Parallel()
	var rec actortest.Recorder
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if v, err := increment(ctx, rec.Out()); err != nil || !v.Value.Done {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestStepWithoutObserver(t *testing.T) {
	t.Parallel()
	actor.Step(t.Context(), "x")
	actor.Step(actor.WithSteps(t.Context(), nil), "x")
}

// TestRuntimeObservesSteps: the observer of the configuration sees the steps of handlers and of the start.
func TestRuntimeObservesSteps(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	steps := make(chan string, 2)
	a := &testActor{name: "broker", start: func(ctx context.Context, _ actor.Out) error {
		actor.Step(ctx, "start")
		return nil
	}}
	a.routes = []actor.Route{actor.Serve(subjects.ToolRequestService,
		func(ctx context.Context, in toolMsg, out actor.Out) (subjects.ToolResult, error) {
			actor.Step(ctx, "handle")
			return echoArgs(ctx, in, out)
		})}
	supervise(t, b, a.spec(), actor.Config{Steps: func(s string) { steps <- s }})
	if _, err := askTool(t, newOut(t, b.Connect("generator")), "c1"); err != nil {
		t.Fatal(err)
	}
	if first, second := <-steps, <-steps; first != "start" || second != "handle" {
		t.Errorf("observed %s, %s", first, second)
	}
}

func ExampleBucket() {
	var rec actortest.Recorder // takes the place of the bus
	ctx, out := context.Background(), rec.Out()
	counts := actor.Bucket[struct{ N int }]{Name: "counts"}
	for range 3 {
		v, err := counts.Update(ctx, out, "count", "answers", func(v *struct{ N int }, found bool) (bool, error) {
			v.N++
			return true, nil
		})
		fmt.Println(v.Value.N, v.Revision, err)
	}
	// Output:
	// 1 1 <nil>
	// 2 2 <nil>
	// 3 3 <nil>
}
