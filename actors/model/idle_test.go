package model

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// The assistant's model is A, the critic's J, respondent B's B.
func TestIdleDelayKeepsLoadedModel(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name         string
		slots, batch int // 0 slots = 1, 0 batch = 4
		idleDelay    int // in seconds
		sideBySide   bool
		requests     []simulatedRequest
		want         string
	}{
		{
			name: "a turn that continues within the delay finds its model loaded", idleDelay: 2,
			requests: []simulatedRequest{
				{0, "generator/1", "A", 1, 0},
				{0, "critic", "J", 1, 0},
				{2, "generator/2", "A", 1, 0},
			},
			want: "0 generator/1@|1 generator/1.|2 generator/2@|3 generator/2.|5 critic@|6 critic.",
		},
		{
			name: "after the delay the critic loads its model", idleDelay: 2,
			requests: []simulatedRequest{
				{0, "generator/1", "A", 1, 0},
				{0, "critic", "J", 1, 0},
				{5, "generator/2", "A", 1, 0},
			},
			want: "0 generator/1@|1 generator/1.|3 critic@|4 critic.|5 generator/2@|6 generator/2.",
		},
		{
			name: "a preempted request waits for the delay too", idleDelay: 2,
			requests: []simulatedRequest{
				{0, "generator/1", "A", 1, 0},
				{0, "critic", "J", 9, 0},
				{5, "generator/2", "A", 1, 0},
			},
			want: "0 generator/1@|1 generator/1.|3 critic@|5 critic! generator/2@|6 generator/2.|8 critic@|17 " +
				"critic.",
		},
		{
			name: "a request requeued after the delay starts at once", idleDelay: 2,
			requests: []simulatedRequest{{0, "critic", "J", 2, 9}, {1, "generator", "A", 1, 0}},
			want:     "0 critic@|1 critic! generator@|2 generator.|10 critic@|12 critic.",
		},
		{
			name: "a foreground request just before the end restarts the delay", idleDelay: 3,
			requests: []simulatedRequest{
				{0, "generator/1", "A", 1, 0},
				{1, "critic", "J", 1, 0},
				{3, "generator/2", "A", 2, 0},
				{7, "generator/3", "A", 1, 0},
			},
			want: "0 generator/1@|1 generator/1.|3 generator/2@|5 generator/2.|7 generator/3@|8 generator/3.|11 " +
				"critic@|12 critic.",
		},
		{
			name: "the delay counts from the end of the last foreground request", idleDelay: 2, slots: 2,
			requests: []simulatedRequest{
				{0, "generator/1", "A", 1, 0},
				{0, "generator/2", "A", 4, 0},
				{0, "critic", "J", 1, 0},
			},
			want: "0 generator/1@ generator/2@|1 generator/1.|4 generator/2.|6 critic@|7 critic.",
		},
		{
			name: "the delay does not count from the arrival of the critic", idleDelay: 3,
			requests: []simulatedRequest{{0, "generator", "A", 1, 0}, {3, "critic", "J", 1, 0}},
			want:     "0 generator@|1 generator.|4 critic@|5 critic.",
		},
		{
			name: "idle for longer than the delay", idleDelay: 2,
			requests: []simulatedRequest{{0, "generator", "A", 1, 0}, {4, "critic", "J", 1, 0}},
			want:     "0 generator@|1 generator.|4 critic@|5 critic.",
		},
		{
			name: "no foreground request so far, and equal priority does not count", idleDelay: 60,
			requests: []simulatedRequest{
				{0, "critic/1", "J", 1, 0},
				{0, "critic/2", "K", 1, 0},
				{4, "critic/3", "J", 1, 0},
			},
			want: "0 critic/1@|1 critic/1. critic/2@|2 critic/2.|4 critic/3@|5 critic/3.",
		},
		{
			name: "requests of equal priority keep their batches", idleDelay: 60, slots: 2, batch: 1,
			requests: []simulatedRequest{
				{0, "critic/1", "J", 4, 0},
				{0, "critic/2", "K", 1, 0},
				{1, "critic/3", "J", 1, 0},
			},
			want: "0 critic/1@|4 critic/1. critic/2@|5 critic/2. critic/3@|6 critic/3.",
		},
		{
			name: "a request for the loaded model starts at once", idleDelay: 60,
			requests: []simulatedRequest{
				{0, "generator", "A", 1, 0},
				{0, "critic", "A", 1, 0},
				{0, "respondent_b", "A", 1, 0},
			},
			want: "0 generator@|1 generator. respondent_b@|2 critic@ respondent_b.|3 critic.",
		},
		{
			name: "models loaded side by side start at once", idleDelay: 60, sideBySide: true,
			requests: []simulatedRequest{{0, "generator", "A", 1, 0}, {0, "critic", "J", 1, 0}},
			want:     "0 generator@|1 critic@ generator.|2 critic.",
		},
		{
			name: "without a delay",
			requests: []simulatedRequest{
				{0, "generator/1", "A", 1, 0},
				{0, "critic", "J", 1, 0},
				{2, "generator/2", "A", 1, 0},
			},
			want: "0 generator/1@|1 critic@ generator/1.|2 critic. generator/2@|3 generator/2.",
		},
		{
			name: "foreground requests do not wait", idleDelay: 60,
			requests: []simulatedRequest{
				{0, "generator", "A", 1, 0},
				{0, "memory", "C", 1, 0},
				{0, "critics", "J", 1, 0},
			},
			want: "0 generator@|1 generator. memory@|2 critics@ memory.|3 critics.",
		},
		{
			name: "respondent B waits for the delay", idleDelay: 2,
			requests: []simulatedRequest{{0, "generator", "A", 1, 0}, {0, "respondent_b", "B", 1, 0}},
			want:     "0 generator@|1 generator.|3 respondent_b@|4 respondent_b.",
		},
		{
			name: "the critic waits for the delay after respondent B", idleDelay: 2,
			requests: []simulatedRequest{
				{0, "generator", "A", 1, 0},
				{0, "respondent_b", "A", 3, 0},
				{0, "critic", "J", 1, 0},
			},
			want: "0 generator@|1 generator. respondent_b@|4 respondent_b.|6 critic@|7 critic.",
		},
		{
			name: "the critic uses the model that respondent B loaded at once", idleDelay: 2,
			requests: []simulatedRequest{
				{0, "generator", "A", 1, 0},
				{0, "respondent_b", "B", 1, 0},
				{0, "critic", "B", 1, 0},
			},
			want: "0 generator@|1 generator.|3 respondent_b@|4 critic@ respondent_b.|5 critic.",
		},
		{
			name: "respondent B does not wait for a delay after the critic", idleDelay: 2,
			requests: []simulatedRequest{{0, "critic", "J", 9, 0}, {1, "respondent_b", "B", 1, 0}},
			want:     "0 critic@|1 critic! respondent_b@|2 respondent_b.|4 critic@|13 critic.",
		},
		{
			name:      "while respondent B waits, the critic does not start before it, even for the loaded model",
			idleDelay: 2,
			requests: []simulatedRequest{
				{0, "generator", "A", 1, 0},
				{0, "respondent_b", "B", 1, 0},
				{0, "critic", "A", 9, 0},
			},
			want: "0 generator@|1 generator.|3 respondent_b@|4 respondent_b.|6 critic@|15 critic.",
		},
		{
			name: "a waiting request preempts none before the delay ends", idleDelay: 2, slots: 2,
			requests: []simulatedRequest{
				{0, "generator", "A", 1, 0},
				{0, "critic", "A", 9, 0},
				{0, "respondent_b", "B", 1, 0},
			},
			want: "0 critic@ generator@|1 generator.|3 critic! respondent_b@|4 respondent_b.|6 critic@|15 critic.",
		},
		{
			name: "a request of equal priority for the loaded model starts during the delay, though its batch " +
				"is over",
			idleDelay: 3, batch: 1,
			requests: []simulatedRequest{
				{0, "generator", "A", 1, 0},
				{0, "critic/1", "J", 1, 0},
				{0, "critic/2", "A", 2, 0},
				{0, "critic/3", "A", 2, 0},
				{0, "critic/4", "A", 1, 0},
			},
			want: "0 generator@|1 critic/2@ generator.|3 critic/2. critic/3@|5 critic/1@ critic/3.|6 critic/1. " +
				"critic/4@|7 critic/4.",
		},
		{
			name: "a request for the loaded model starts beside the foreground", idleDelay: 2, slots: 2, batch: 1,
			requests: []simulatedRequest{
				{0, "generator", "A", 4, 0},
				{0, "critic/1", "J", 1, 0},
				{1, "critic/2", "A", 1, 0},
			},
			want: "0 generator@|1 critic/2@|2 critic/2.|4 generator.|6 critic/1@|7 critic/1.",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(max(tt.slots, 1), 100, !tt.sideBySide, cmp.Or(tt.batch, 4))
				q.idleDelay = time.Duration(tt.idleDelay) * time.Second
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

// The generator is there from 0 to 1, and from 1 on only requests wait that an idle delay holds back. One is cancelled
// at 2.
func TestRequestEndsDuringIdleDelay(t *testing.T) {
	t.Parallel()
	why := errors.New("cancelled")
	for _, tt := range []struct {
		name      string
		cancelled string
		remaining []simulatedRequest
		want      string
	}{
		{"no request is left, and no timer", "critic/1", nil, ""},
		{
			"the delay of an equal request continues", "critic/1",
			[]simulatedRequest{{0, "critic/2", "J", 1, 0}},
			"|3 critic/2@|4 critic/2.",
		},
		{
			"another request for a third model", "critic/1",
			[]simulatedRequest{{0, "critic/2", "K", 1, 0}},
			"|3 critic/2@|4 critic/2.",
		},
		{
			"the delay of the critic counts from the end of respondent B", "respondent_b",
			[]simulatedRequest{{0, "critic", "J", 1, 0}},
			"|4 critic@|5 critic.",
		},
		{
			"a request held back by respondent B starts at once", "respondent_b",
			[]simulatedRequest{{0, "critic", "A", 1, 0}},
			"|2 critic@|3 critic.",
		},
		{
			"cancelling the critic does not change the delay of respondent B", "critic",
			[]simulatedRequest{{0, "respondent_b", "B", 1, 0}},
			"|3 respondent_b@|4 respondent_b.",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(1, 100, true, 4)
				q.idleDelay = 2 * time.Second
				h := newSimulation(q)
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(2*time.Second, func() { cancel(why) })
				var cancelled sync.WaitGroup
				cancelled.Go(func() {
					time.Sleep(time.Millisecond) // the generator has its slot
					began, err := h.runRequest(ctx, simulatedRequest{who: tt.cancelled, model: "J", works: 9})
					if took := time.Since(h.begun); began || !errors.Is(err, why) || took != 2*time.Second {
						t.Errorf("began %v, %v, after %s", began, err, took)
					}
					if len(tt.remaining) == 0 && q.idleTimer.Stop() {
						t.Error("the timer runs although no request waits")
					}
				})
				h.runAll(t, append([]simulatedRequest{{0, "generator", "A", 1, 0}}, tt.remaining...))
				cancelled.Wait()
				if got, want := h.history(), "0 generator@|1 generator."+tt.want; got != want {
					t.Errorf("history\n  %s\nwant\n  %s", got, want)
				}
				newQueueHarness(t, q).checkEmpty()
			})
		})
	}
}

// The timer runs only while a request waits for the end of an idle delay.
func TestIdleTimerAdmits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1, 100, true, 4)
		q.idleDelay = 4 * time.Second
		h := newSimulation(q)
		var all sync.WaitGroup
		start := func(who, model string, works int) {
			all.Go(func() {
				if _,
					err := h.runRequest(t.Context(),
					simulatedRequest{who: who, model: model, works: works}); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		checkTimer := func(moment string, want bool) {
			t.Helper()
			q.mu.Lock()
			defer q.mu.Unlock()
			got := q.idleTimer != nil && q.idleTimer.Stop()
			if got {
				q.idleTimer.Reset(q.remainingIdle(2))
			}
			if got != want {
				t.Errorf("%s: the timer runs: %v", moment, got)
			}
		}
		waitSecond := func() { time.Sleep(time.Second); synctest.Wait() }
		start("critic/1", "J", 1)
		waitSecond()
		start("critic/2", "K", 1)
		waitSecond()
		if q.idleTimer != nil {
			t.Error("a timer, although there was no foreground request")
		}
		start("generator/1", "A", 1)
		start("critic/3", "J", 1)
		checkTimer("a foreground request has the slot", false)
		waitSecond()
		checkTimer("it ended", true)
		start("critic/4", "J", 1)
		checkTimer("another request waits", true)
		start("generator/2", "A", 1)
		checkTimer("a second foreground request", false)
		waitSecond()
		checkTimer("the second one ended", true)
		time.Sleep(3 * time.Second)
		checkTimer("a second before the end", true)
		waitSecond()
		checkTimer("the delay is over", false)
		waitSecond()
		checkTimer("one request is done, the next has the slot", false)
		all.Wait()
		if got := h.history(); got != "0 critic/1@|1 critic/1. critic/2@|2 critic/2. generator/1@|3 generator/1. "+
			"generator/2@|4 generator/2.|8 critic/3@|9 critic/3. critic/4@|10 critic/4." {
			t.Error(got)
		}
		newQueueHarness(t, q).checkEmpty()
	})
}
