package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"conclave/subjects"
)

// Every name of the table is an account; every other account has the foreground priority.
func TestPriorityDependsOnAccount(t *testing.T) {
	t.Parallel()
	for account, rank := range backgroundPriority {
		if !slices.Contains(subjects.Actors, account) || rank <= foreground || rank >= priorities {
			t.Errorf("%s has priority %d", account, rank)
		}
	}
	for _, tt := range []struct {
		name, account string
		want          int
	}{
		{"the generator", subjects.Generator, 0},
		{"respondent B", subjects.RespondentB, 1},
		{"the critic", "critic", 2},
		{"memory", "memory", 0},
		{"in capitals", "Critic", 0},
		{"a longer name", "critic2", 0},
		{"a part of the name", "respondent", 0},
		{"no account", "", 0},
	} {
		if got := priorityOf(tt.account); got != tt.want {
			t.Errorf("%s has priority %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestQueuePreempts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name                string
		slots, ahead, batch int  // 0 slots = 1, 0 batch = 4
		exclusive           bool // one model at a time
		requests            []simulatedRequest
		want                string
	}{
		{
			name: "a higher priority starts first, regardless of arrival",
			requests: []simulatedRequest{
				{0, "memory", "A", 2, 0},
				{1, "critic", "A", 1, 0},
				{1, "respondent_b", "A", 1, 0},
				{1, "generator", "A", 1, 0},
			},
			want: "0 memory@|2 generator@ memory.|3 generator. respondent_b@|4 critic@ respondent_b.|5 critic.",
		},
		{
			name:     "the critic starts at once in an empty queue",
			requests: []simulatedRequest{{0, "critic/1", "A", 1, 0}, {0, "critic/2", "A", 1, 0}},
			want:     "0 critic/1@|1 critic/1. critic/2@|2 critic/2.",
		},
		{
			name:     "the critic is preempted and restarts",
			requests: []simulatedRequest{{0, "critic", "A", 10, 0}, {1, "generator", "A", 2, 0}},
			want:     "0 critic@|1 critic! generator@|3 critic@ generator.|13 critic.",
		},
		{
			name:     "the generator preempts respondent B",
			requests: []simulatedRequest{{0, "respondent_b", "A", 10, 0}, {1, "generator", "A", 2, 0}},
			want:     "0 respondent_b@|1 generator@ respondent_b!|3 generator. respondent_b@|13 respondent_b.",
		},
		{
			name:     "respondent B preempts the critic",
			requests: []simulatedRequest{{0, "critic", "A", 3, 0}, {1, "respondent_b", "A", 2, 0}},
			want:     "0 critic@|1 critic! respondent_b@|3 critic@ respondent_b.|6 critic.",
		},
		{
			name:     "the critic does not preempt respondent B",
			requests: []simulatedRequest{{0, "respondent_b", "A", 3, 0}, {1, "critic", "A", 1, 0}},
			want:     "0 respondent_b@|3 critic@ respondent_b.|4 critic.",
		},
		{
			name:  "requests of equal priority do not preempt",
			slots: 2,
			requests: []simulatedRequest{
				{0, "critic/1", "A", 2, 0},
				{0, "critic/2", "A", 3, 0},
				{1, "critic/3", "A", 1, 0},
			},
			want: "0 critic/1@ critic/2@|2 critic/1. critic/3@|3 critic/2. critic/3.",
		},
		{
			name: "a foreground request is never preempted",
			requests: []simulatedRequest{
				{0, "memory", "A", 3, 0},
				{1, "generator", "A", 1, 0},
				{1, "broker", "A", 1, 0},
			},
			want: "0 memory@|3 generator@ memory.|4 broker@ generator.|5 broker.",
		},
		{
			name:     "an account whose name begins like the critic's is not preempted",
			requests: []simulatedRequest{{0, "critics", "A", 2, 0}, {1, "generator", "A", 1, 0}},
			want:     "0 critics@|2 critics. generator@|3 generator.",
		},
		{
			name: "a request preempted twice finishes before later ones",
			requests: []simulatedRequest{
				{0, "critic/1", "A", 2, 0},
				{0, "critic/2", "A", 1, 0},
				{1, "generator/1", "A", 1, 0},
				{3, "generator/2", "A", 1, 0},
			},
			want: "0 critic/1@|1 critic/1! generator/1@|2 critic/1@ generator/1.|3 critic/1! generator/2@|4 " +
				"critic/1@ generator/2.|6 critic/1. critic/2@|7 critic/2.",
		},
		{
			name: "it stays before later requests of its session",
			requests: []simulatedRequest{
				{0, "critic", "first", 2, 0},
				{0, "critic", "second", 1, 0},
				{0, "critic/2", "third", 1, 0},
				{1, "generator", "A", 1, 0},
			},
			want: "0 critic@|1 critic! generator@|2 critic@ generator.|4 critic. critic/2@|5 critic/2. critic@|6 " +
				"critic.",
		},
		{
			name: "a server that is slow to cancel holds no slot",
			requests: []simulatedRequest{
				{0, "critic/1", "A", 10, 5},
				{0, "critic/2", "A", 1, 0},
				{1, "generator", "A", 2, 0},
			},
			want: "0 critic/1@|1 critic/1! generator@|3 critic/2@ generator.|4 critic/2.|6 critic/1@|16 critic/1.",
		},
		{
			name: "its late return does not free the slot of another request",
			requests: []simulatedRequest{
				{0, "critic", "A", 3, 1},
				{1, "generator", "A", 4, 0},
				{3, "memory", "A", 1, 0},
				{3, "broker", "A", 1, 0},
			},
			want: "0 critic@|1 critic! generator@|5 generator. memory@|6 broker@ memory.|7 broker. critic@|10 " +
				"critic.",
		},
		{
			name:  "the lowest priority is preempted first",
			slots: 2,
			requests: []simulatedRequest{
				{0, "critic", "A", 9, 0},
				{0, "respondent_b", "A", 2, 0},
				{1, "generator", "A", 1, 0},
			},
			want: "0 critic@ respondent_b@|1 critic! generator@|2 critic@ generator. respondent_b.|11 critic.",
		},
		{
			name:  "of equal priorities the latest is preempted",
			slots: 2,
			requests: []simulatedRequest{
				{0, "critic/1", "A", 2, 0},
				{0, "critic/2", "A", 2, 0},
				{1, "generator", "A", 1, 0},
			},
			want: "0 critic/1@ critic/2@|1 critic/2! generator@|2 critic/1. critic/2@ generator.|4 critic/2.",
		},
		{
			name:     "none is preempted while a slot is free",
			slots:    2,
			requests: []simulatedRequest{{0, "critic", "A", 2, 0}, {1, "generator", "B", 2, 0}},
			want:     "0 critic@|1 generator@|2 critic.|3 generator.",
		},
		{
			name: "only as many as needed are preempted", slots: 3,
			requests: []simulatedRequest{
				{0, "critic/1", "A", 2, 0},
				{0, "critic/2", "A", 2, 0},
				{0, "critic/3", "A", 2, 0},
				{1, "generator", "A", 1, 0},
			},
			want: "0 critic/1@ critic/2@ critic/3@|1 critic/3! generator@|2 critic/1. critic/2. critic/3@ " +
				"generator.|4 critic/3.",
		},
		{
			name: "one model at a time: all requests for another model are preempted", slots: 3, exclusive: true,
			requests: []simulatedRequest{
				{0, "critic/1", "J", 2, 0},
				{0, "critic/2", "J", 2, 0},
				{1, "generator", "A", 1, 0},
			},
			want: "0 critic/1@ critic/2@|1 critic/1! critic/2! generator@|2 critic/1@ critic/2@ generator.|4 " +
				"critic/1. critic/2.",
		},
		{
			name: "one model at a time: the same model runs beside it", slots: 2, exclusive: true,
			requests: []simulatedRequest{{0, "critic", "A", 2, 0}, {1, "generator", "A", 1, 0}},
			want:     "0 critic@|1 generator@|2 critic. generator.",
		},
		{
			name: "one model at a time: none is preempted while a foreground request holds the model", slots: 2,
			exclusive: true,
			requests: []simulatedRequest{
				{0, "memory", "J", 3, 0},
				{0, "critic", "J", 9, 0},
				{1, "generator", "A", 1, 0},
			},
			want: "0 critic@ memory@|3 critic! generator@ memory.|4 critic@ generator.|13 critic.",
		},
		{
			name: "one model at a time: a lower priority does not join the model that has to end first", slots: 3,
			exclusive: true,
			requests: []simulatedRequest{
				{0, "memory", "J", 3, 0},
				{1, "generator", "A", 1, 0},
				{1, "critic", "J", 1, 0},
				{2, "respondent_b", "A", 1, 0},
			},
			want: "0 memory@|3 generator@ memory. respondent_b@|4 critic@ generator. respondent_b.|5 critic.",
		},
		{
			name: "a batch for the loaded model does not start before a higher priority", exclusive: true,
			requests: []simulatedRequest{
				{0, "memory", "J", 2, 0},
				{1, "critic/1", "J", 1, 0},
				{1, "critic/2", "J", 1, 0},
				{1, "respondent_b", "J", 1, 0},
				{1, "generator", "A", 1, 0},
			},
			want: "0 memory@|2 generator@ memory.|3 generator. respondent_b@|4 critic/1@ respondent_b.|5 critic/1. " +
				"critic/2@|6 critic/2.",
		},
		{
			name: "requests of equal background priority keep their batches", exclusive: true,
			requests: []simulatedRequest{
				{0, "critic/1", "J", 1, 0},
				{0, "critic/2", "K", 1, 0},
				{0, "critic/3", "J", 1, 0},
			},
			want: "0 critic/1@|1 critic/1. critic/3@|2 critic/2@ critic/3.|3 critic/2.",
		},
		{
			name: "background requests do not count for a foreground batch", exclusive: true, batch: 2,
			requests: []simulatedRequest{
				{0, "respondent_b/1", "A", 1, 0},
				{0, "respondent_b/2", "A", 9, 0},
				{2, "generator/1", "A", 2, 0},
				{3, "generator/2", "C", 1, 0},
				{3, "generator/3", "A", 1, 0},
			},
			want: "0 respondent_b/1@|1 respondent_b/1. respondent_b/2@|2 generator/1@ respondent_b/2!|4 generator/1. " +
				"generator/3@|5 generator/2@ generator/3.|6 generator/2. respondent_b/2@|15 respondent_b/2.",
		},
		{
			name: "ahead: no request is queued on the server behind the critic", ahead: 1,
			requests: []simulatedRequest{
				{0, "critic", "A", 2, 0},
				{1, "generator/1", "A", 2, 0},
				{1, "generator/2", "A", 2, 0},
			},
			want: "0 critic@|1 critic! generator/1@ generator/2@|3 critic@ generator/1. generator/2.|5 critic.",
		},
		{
			name: "ahead: background requests are not queued on the server", ahead: 2,
			requests: []simulatedRequest{
				{0, "generator", "A", 2, 0},
				{0, "critic/1", "A", 1, 0},
				{0, "respondent_b", "A", 1, 0},
			},
			want: "0 generator@|2 generator. respondent_b@|3 critic/1@ respondent_b.|4 critic/1.",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(max(tt.slots, 1), 100, tt.exclusive, cmp.Or(tt.batch, 4))
				q.ahead = tt.ahead
				h := newSimulation(q)
				h.runAll(t, tt.requests)
				if got := h.history(); got != tt.want {
					t.Errorf("history\n  %s\nwant\n  %s", got, tt.want)
				}
				newQueueHarness(t, q).checkEmpty()
			})
		})
	}
}

// One that was preempted and waits again is gone at once when it is no longer wanted.
func TestPreemptedRequestEndsWithItsContext(t *testing.T) {
	t.Parallel()
	why := errors.New("stopped")
	for _, tt := range []struct {
		name string
		end  func(context.Context) (context.Context, context.CancelFunc)
		want error
		at   time.Duration
	}{
		{"stopped", func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(ctx)
			time.AfterFunc(3*time.Second, func() { cancel(why) })
			return ctx, func() { cancel(nil) }
		}, why, 3 * time.Second},
		{"too late", func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 4*time.Second)
		}, context.DeadlineExceeded, 4 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := newSimulation(newQueue(1, 100, true, 4))
			ctx, cancel := tt.end(t.Context())
			defer cancel()
			var all sync.WaitGroup
			all.Go(func() {
				began, err := h.runRequest(ctx, simulatedRequest{who: "critic", model: "J", works: 100})
				if took := time.Since(h.begun); !errors.Is(err, tt.want) || !began || took != tt.at {
					t.Errorf("%s: %v, began %v, after %s", tt.name, err, began, took)
				}
			})
			synctest.Wait()
			time.Sleep(time.Second)
			all.Go(func() {
				if _,
					err := h.runRequest(t.Context(), simulatedRequest{
					who: "generator", model: "A",
					works: 10,
				}); err != nil {
					t.Error(err)
				}
			})
			all.Wait()
			if got := h.history(); got != "0 critic@|1 critic! generator@|11 generator." {
				t.Errorf("%s: %s", tt.name, got)
			}
			newQueueHarness(t, h.q).checkEmpty()
		})
	}
}

// probingContext is a context that reports when Done is first called.
type probingContext struct {
	context.Context
	look func()
}

func (c probingContext) Done() <-chan struct{} {
	c.look()
	return c.Context.Done()
}

// One that is told to leave between being admitted and beginning does not begin: the server never hears of it.
func TestPreemptedBeforeWorkBegins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1, 4, true, 4)
		parent, cancel := context.WithCancel(t.Context())
		defer cancel()
		var leave func()
		looked := false
		ctx := probingContext{parent, func() {
			if looked {
				return
			}
			q.mu.Lock()
			looked = len(q.running) == 1
			q.mu.Unlock()
			if looked { // it has its slot and is about to see that
				leave, _ = acquireSlot(t.Context(), q, "generator", "generator", "A")
			}
		}}
		var all sync.WaitGroup
		times := 0
		all.Go(func() {
			began, err := q.run(ctx, asRequester("critic", "critic"), "A", func(turn context.Context) error {
				times++
				return context.Cause(turn)
			})
			if !began || err != nil {
				t.Errorf("began %v, %v", began, err)
			}
		})
		synctest.Wait()
		if leave == nil || times != 0 || q.waiting != [priorities]int{0, 0, 1} {
			t.Fatalf("it began %d times, %v wait", times, q.waiting)
		}
		leave()
		all.Wait()
		if times != 1 {
			t.Errorf("it began %d times", times)
		}
		newQueueHarness(t, q).checkEmpty()
	})
}

// A flood of background requests takes no place of the foreground, the critic's none of respondent
// B's, and a preempted request is not rejected because of it.
func TestBackgroundFloodLeavesForegroundPlaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newSimulation(newQueue(1, 16, true, 4))
		ctx, end := context.WithCancel(t.Context())
		var all sync.WaitGroup
		come := func(who string) {
			all.Go(func() {
				if _, err := h.runRequest(ctx, simulatedRequest{who: who, model: "A", works: 1000}); !errors.Is(err,
					context.Canceled) {
					t.Errorf("%s: %v", who, err)
				}
			})
			synctest.Wait()
		}
		for i := range 5 { // one runs and four wait
			come(fmt.Sprintf("critic/%d", i))
		}
		if _, err := h.runRequest(t.Context(), simulatedRequest{who: "critic/5", model: "A"}); !errors.Is(err,
			errQueueFull) || !h.q.isFull(asRequester("critic", "")) {
			t.Errorf("the critic has more than its places: %v", err)
		}
		if h.q.isFull(asRequester(subjects.RespondentB, "")) || h.q.isFull(asRequester("generator", "")) {
			t.Error("the critic keeps others out")
		}
		come("respondent_b/0") // the critic's that ran waits again, as one more than it has places for
		for i := range 4 {
			come(fmt.Sprintf("respondent_b/%d", 1+i))
		}
		if h.q.waiting != [priorities]int{0, 4, 5} || !h.q.isFull(asRequester(subjects.RespondentB, "")) {
			t.Errorf("waiting %v", h.q.waiting)
		}
		come("memory/0") // sends respondent B away
		for i := range 16 {
			who := fmt.Sprintf("generator/%d", i)
			if i >= 12 {
				who = fmt.Sprintf("memory/%d", i)
			}
			if account, _, _ := strings.Cut(who, "/"); h.q.isFull(asRequester(account, "")) {
				t.Fatalf("no room for %s: %v", who, h.q.waiting)
			}
			come(who)
		}
		if h.q.waiting != [priorities]int{16, 5, 5} || !h.q.isFull(asRequester("broker", "")) {
			t.Errorf("waiting %v", h.q.waiting)
		}
		if err := checkInvariants(h.q); err != nil {
			t.Error(err)
		}
		end()
		all.Wait()
		newQueueHarness(t, h.q).checkEmpty()
	})
	for most, want := range map[int]int{1: 1, 2: 1, 512: 128, 1 << 16: maxBackground} {
		q := newQueue(1, most, false, 4)
		q.waiting[2] = want - 1
		before := q.isFull(asRequester("critic", ""))
		q.waiting[2]++
		if before || !q.isFull(asRequester("critic", "")) {
			t.Errorf("of %d places the critic has not %d", most, want)
		}
	}
}

// A slot is free again when work panics.
func TestPanicReleasesSlot(t *testing.T) {
	t.Parallel()
	q := newQueue(1, 4, true, 4)
	func() {
		defer func() { _ = recover() }()
		_, _ = q.run(t.Context(), asRequester("critic", "critic"), "A", func(context.Context) error { panic("oh") })
	}()
	newQueueHarness(t, q).checkEmpty()
}
