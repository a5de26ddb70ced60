package model

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// queueHarness sends requests to a queue and records the order in which they are admitted.
type queueHarness struct {
	t *testing.T
	q *queue

	mu    sync.Mutex
	story []string
	now   map[string]int // models running
	most  int            // models at once, ever
	peak  int            // requests at once, ever
	group sync.WaitGroup
}

func newQueueHarness(t *testing.T, q *queue) *queueHarness {
	return &queueHarness{t: t, q: q, now: map[string]int{}}
}

// acquireSlot waits for a slot.
func acquireSlot(ctx context.Context, q *queue, owner, key, model string) (leave func(), err error) {
	w := &entry{requester: asRequester(owner, key), model: model}
	_, err = q.acquire(ctx, w)
	return func() { q.release(w) }, err
}

// runRequest starts a request that works for the given time. It returns when the request waits or works.
func (d *queueHarness) runRequest(ctx context.Context, key, model string, work time.Duration) {
	d.group.Go(func() {
		leave, err := acquireSlot(ctx, d.q, strings.SplitN(key, "/", 2)[0], key, model)
		if err != nil {
			return
		}
		d.mu.Lock()
		d.story = append(d.story, key+":"+model)
		d.now[model]++
		d.most = max(d.most, len(d.now))
		n := 0
		for _, v := range d.now {
			n += v
		}
		d.peak = max(d.peak, n)
		d.mu.Unlock()
		time.Sleep(work)
		d.mu.Lock()
		if d.now[model]--; d.now[model] == 0 {
			delete(d.now, model)
		}
		d.mu.Unlock()
		leave()
	})
	synctest.Wait()
}

func (d *queueHarness) history() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.story, " ")
}

// checkEmpty checks that the queue is empty.
func (d *queueHarness) checkEmpty() {
	d.t.Helper()
	d.q.mu.Lock()
	defer d.q.mu.Unlock()
	if len(d.q.running) != 0 || d.q.waiting != [priorities]int{} || len(d.q.lines) != 0 || len(d.q.waitingBy) != 0 {
		d.t.Errorf("left behind: %d running, %d waiting, %d lines, owners %v", len(d.q.running),
			d.q.waiting, len(d.q.lines), d.q.waitingBy)
	}
}

func (d *queueHarness) checkHistory(story string) {
	d.t.Helper()
	d.group.Wait()
	if got := d.history(); got != story {
		d.t.Errorf("order\n  %s\nwant\n  %s", got, story)
	}
	d.checkEmpty()
}

func TestQueueTakesTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newQueueHarness(t, newQueue(1, 100, true, 4))
		d.runRequest(t.Context(), "z", "m", time.Second) // holds the slot while the others come
		for _, key := range []string{"a", "a", "a", "a", "b", "b", "c"} {
			d.runRequest(t.Context(), key, "m", time.Second)
		}
		// One session with four questions does not delay the two with fewer; a new session is last.
		d.checkHistory("z:m a:m b:m c:m a:m b:m a:m a:m")
	})
}

func TestQueueKeepsOrderWithinAKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newQueueHarness(t, newQueue(1, 100, false, 4))
		d.runRequest(t.Context(), "z", "m", time.Second)
		for i := range 5 {
			d.runRequest(t.Context(), "a", fmt.Sprint(i), time.Second)
		}
		d.checkHistory("z:m a:0 a:1 a:2 a:3 a:4")
	})
}

func TestQueueSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newQueueHarness(t, newQueue(3, 100, true, 100))
		begun := time.Now()
		for i := range 9 {
			d.runRequest(t.Context(), fmt.Sprint(i), "m", time.Second)
		}
		d.group.Wait()
		if d.peak != 3 {
			t.Errorf("%d at once, want 3", d.peak)
		}
		if took := time.Since(begun); took != 3*time.Second {
			t.Errorf("nine seconds of work took %s with three slots", took)
		}
		d.checkEmpty()
	})
}

func TestQueueOneModelAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newQueueHarness(t, newQueue(4, 100, true, 2))
		for i := range 4 {
			d.runRequest(t.Context(), fmt.Sprintf("a%d", i), "A", time.Second)
			d.runRequest(t.Context(), fmt.Sprintf("b%d", i), "B", time.Second)
			d.runRequest(t.Context(), fmt.Sprintf("c%d", i), "C", time.Second)
		}
		d.group.Wait()
		if d.most != 1 {
			t.Errorf("%d models ran at once: %s", d.most, d.history())
		}
		if len(d.story) != 12 {
			t.Errorf("%d of 12 were let in: %s", len(d.story), d.history())
		}
		d.checkEmpty()
	})
}

func TestQueueModelsSideBySide(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newQueueHarness(t, newQueue(2, 100, false, 1))
		d.runRequest(t.Context(), "a", "A", time.Second)
		d.runRequest(t.Context(), "b", "B", time.Second)
		d.group.Wait()
		if d.most != 2 {
			t.Errorf("%d models ran at once, want 2", d.most)
		}
	})
}

// Requests for the loaded model go together, up to the bound; then it is the turn of the longest wait for
// another.
func TestQueueBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newQueueHarness(t, newQueue(1, 100, true, 3))
		d.runRequest(t.Context(), "z", "A", time.Second)
		d.runRequest(t.Context(), "c", "C", time.Second)
		for i := range 4 {
			d.runRequest(t.Context(), fmt.Sprintf("a%d", i), "A", time.Second)
			d.runRequest(t.Context(), fmt.Sprintf("b%d", i), "B", time.Second)
		}
		d.checkHistory("z:A a0:A a1:A c:C b0:B b1:B b2:B a2:A a3:A b3:B")
	})
}

// Somebody who always comes back for the same model cannot keep another waiting for ever.
func TestQueueDoesNotStarve(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{1, 4} {
		synctest.Test(t, func(t *testing.T) {
			d := newQueueHarness(t, newQueue(slots, 100, true, 4))
			ctx, stop := context.WithCancel(t.Context())
			for i := range 8 {
				d.group.Go(func() {
					for ctx.Err() == nil {
						leave, err := acquireSlot(ctx, d.q, "greedy", fmt.Sprint("greedy", i), "A")
						if err != nil {
							return
						}
						time.Sleep(time.Second)
						leave()
					}
				})
			}
			synctest.Wait()
			for range 5 {
				time.Sleep(1500 * time.Millisecond)
				begun := time.Now()
				leave, err := acquireSlot(t.Context(), d.q, "modest", "modest", "B")
				if err != nil {
					t.Fatal(err)
				}
				// At most one batch, and what runs already.
				if waited := time.Since(begun); waited > 5*time.Second {
					t.Errorf("%d slots: waited %s", slots, waited)
				}
				time.Sleep(time.Second)
				leave()
			}
			stop()
			d.group.Wait()
			d.checkEmpty()
		})
	}
}

func TestQueueCancelled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newQueueHarness(t, newQueue(1, 2, true, 4))
		d.runRequest(t.Context(), "z", "A", time.Hour)
		why := errors.New("cancelled")
		ctx, cancel := context.WithCancelCause(t.Context())
		got := make(chan error, 1)
		go func() {
			_, err := acquireSlot(ctx, d.q, "a", "a", "A")
			got <- err
		}()
		synctest.Wait()
		begun := time.Now()
		cancel(why)
		if err := <-got; !errors.Is(err, why) {
			t.Errorf("got %v", err)
		}
		if time.Since(begun) != 0 {
			t.Error("cancelling took time")
		}
		if d.q.waiting != [priorities]int{} {
			t.Errorf("requests still wait: %d", d.q.waiting)
		}
		if _, err := acquireSlot(ctx, d.q, "a", "a", "A"); !errors.Is(err, why) {
			t.Errorf("a cancelled request got a slot: %v", err)
		}
		// A deadline is a cause like any other.
		late, cancelLate := context.WithTimeout(t.Context(), time.Minute)
		defer cancelLate()
		if _, err := acquireSlot(late, d.q, "a", "a", "A"); !errors.Is(err, context.DeadlineExceeded) ||
			time.Since(begun) != time.Minute {
			t.Errorf("got %v after %s", err, time.Since(begun))
		}
		d.group.Wait()
		d.checkEmpty()
	})
}

// A cancelled request no longer delays the requests behind it.
func TestCancelledRequestUnblocksOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newQueueHarness(t, newQueue(2, 100, true, 1))
		d.runRequest(t.Context(), "z", "A", time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		d.runRequest(ctx, "b", "B", time.Second)
		d.runRequest(t.Context(), "a", "A", time.Second)
		if got := d.history(); got != "z:A" {
			t.Fatalf("too early: %s", got)
		}
		cancel()
		synctest.Wait()
		if got := d.history(); got != "z:A a:A" {
			t.Errorf("got %s", got)
		}
		d.group.Wait()
		d.checkEmpty()
	})
}

func TestQueueFull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newQueueHarness(t, newQueue(1, 8, true, 4))
		d.runRequest(t.Context(), "z", "A", time.Hour)
		for i := range 6 {
			d.runRequest(t.Context(), fmt.Sprintf("flood/%d", i), "A", time.Second)
		}
		if !d.q.isFull(asRequester("flood", "")) {
			t.Error("one account may take it all")
		}
		if _, err := acquireSlot(t.Context(), d.q, "flood", "flood/7", "A"); !errors.Is(err, errQueueFull) {
			t.Errorf("one account took more than its share: %v", err)
		}
		if d.q.isFull(asRequester("other", "")) {
			t.Error("there is room for others")
		}
		d.runRequest(t.Context(), "other/1", "A", time.Second)
		d.runRequest(t.Context(), "another/1", "A", time.Second)
		if _, err := acquireSlot(t.Context(), d.q, "third", "third/1", "A"); !errors.Is(err, errQueueFull) {
			t.Errorf("more than the bound wait: %v", err)
		}
		d.group.Wait()
		d.checkEmpty()
	})
}

// Whatever comes and goes, in whatever order: no slot is lost, no two models meet, all who stay are served.
func TestConcurrentRequestsKeepInvariants(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			d := newQueueHarness(t, newQueue(1+rnd.IntN(4), 1000, true, 1+rnd.IntN(4)))
			stayed := 0
			for range 150 {
				ctx := t.Context()
				if rnd.IntN(3) == 0 {
					c, cancel := context.WithTimeout(ctx, time.Duration(rnd.IntN(20))*time.Second)
					defer cancel()
					ctx = c
				} else {
					stayed++
				}
				d.runRequest(ctx, fmt.Sprintf("k%d", rnd.IntN(12)), string(rune('A'+rnd.IntN(3))),
					time.Duration(rnd.IntN(3000))*time.Millisecond)
				time.Sleep(time.Duration(rnd.IntN(500)) * time.Millisecond)
			}
			d.group.Wait()
			if d.most > 1 || d.peak > d.q.slots || len(d.story) < stayed {
				t.Errorf("seed %d: %d models and %d requests at once, %d of %d served", seed, d.most, d.peak,
					len(d.story), stayed)
			}
			d.checkEmpty()
		})
	}
}

// A model that is always asked for gets its share in the long run, with many sessions on each side.
func TestAccountCannotFillQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newQueueHarness(t, newQueue(2, 100, true, 4))
		ctx, stop := context.WithCancel(t.Context())
		served := map[string]int{}
		var mu sync.Mutex
		for _, key := range []string{"a1:A", "a2:A", "a3:A", "a4:A", "a5:A", "b1:B", "c1:C"} {
			_, model, _ := strings.Cut(key, ":")
			d.group.Go(func() {
				for {
					leave, err := acquireSlot(ctx, d.q, key, key, model)
					if err != nil {
						return
					}
					mu.Lock()
					served[key]++
					mu.Unlock()
					time.Sleep(time.Second)
					leave()
				}
			})
		}
		time.Sleep(1000 * time.Second)
		stop()
		d.group.Wait()
		var counts []int
		for _, n := range served {
			counts = append(counts, n)
		}
		if slices.Min(counts)*4 < slices.Max(counts) {
			t.Errorf("shares %v", served)
		}
		d.checkEmpty()
	})
}
