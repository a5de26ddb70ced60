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
		rest         int // in seconds
		sideBySide   bool
		guests       []simulatedRequest
		want         string
	}{
		{
			name: "a pause in a turn shorter than the rest: the next step finds its model", rest: 2,
			guests: []simulatedRequest{{0, "generator/1", "A", 1, 0}, {0, "critic", "J", 1, 0}, {2, "generator/2", "A", 1, 0}},
			want:   "0 generator/1@|1 generator/1.|2 generator/2@|3 generator/2.|5 critic@|6 critic.",
		},
		{
			name: "a longer one", rest: 2,
			guests: []simulatedRequest{{0, "generator/1", "A", 1, 0}, {0, "critic", "J", 1, 0}, {5, "generator/2", "A", 1, 0}},
			want:   "0 generator/1@|1 generator/1.|3 critic@|4 critic.|5 generator/2@|6 generator/2.",
		},
		{
			name: "who gave way rests too", rest: 2,
			guests: []simulatedRequest{{0, "generator/1", "A", 1, 0}, {0, "critic", "J", 9, 0}, {5, "generator/2", "A", 1, 0}},
			want:   "0 generator/1@|1 generator/1.|3 critic@|5 critic! generator/2@|6 generator/2.|8 critic@|17 critic.",
		},
		{
			name: "who comes back late from giving way rests no more", rest: 2,
			guests: []simulatedRequest{{0, "critic", "J", 2, 9}, {1, "generator", "A", 1, 0}},
			want:   "0 critic@|1 critic! generator@|2 generator.|10 critic@|12 critic.",
		},
		{
			name: "somebody in front comes just before it is over: it starts anew", rest: 3,
			guests: []simulatedRequest{{0, "generator/1", "A", 1, 0}, {1, "critic", "J", 1, 0}, {3, "generator/2", "A", 2, 0}, {7, "generator/3", "A", 1, 0}},
			want:   "0 generator/1@|1 generator/1.|3 generator/2@|5 generator/2.|7 generator/3@|8 generator/3.|11 critic@|12 critic.",
		},
		{
			name: "it counts from the last one that leaves", rest: 2, slots: 2,
			guests: []simulatedRequest{{0, "generator/1", "A", 1, 0}, {0, "generator/2", "A", 4, 0}, {0, "critic", "J", 1, 0}},
			want:   "0 generator/1@ generator/2@|1 generator/1.|4 generator/2.|6 critic@|7 critic.",
		},
		{
			name: "it does not count from when the critic came", rest: 3,
			guests: []simulatedRequest{{0, "generator", "A", 1, 0}, {3, "critic", "J", 1, 0}},
			want:   "0 generator@|1 generator.|4 critic@|5 critic.",
		},
		{
			name: "nobody was there for longer", rest: 2,
			guests: []simulatedRequest{{0, "generator", "A", 1, 0}, {4, "critic", "J", 1, 0}},
			want:   "0 generator@|1 generator.|4 critic@|5 critic.",
		},
		{
			name: "nobody in front was ever there, and equals do not count", rest: 60,
			guests: []simulatedRequest{{0, "critic/1", "J", 1, 0}, {0, "critic/2", "K", 1, 0}, {4, "critic/3", "J", 1, 0}},
			want:   "0 critic/1@|1 critic/1. critic/2@|2 critic/2.|4 critic/3@|5 critic/3.",
		},
		{
			name: "equals keep their batches", rest: 60, slots: 2, batch: 1,
			guests: []simulatedRequest{{0, "critic/1", "J", 4, 0}, {0, "critic/2", "K", 1, 0}, {1, "critic/3", "J", 1, 0}},
			want:   "0 critic/1@|4 critic/1. critic/2@|5 critic/2. critic/3@|6 critic/3.",
		},
		{
			name: "the loaded model at once", rest: 60,
			guests: []simulatedRequest{{0, "generator", "A", 1, 0}, {0, "critic", "A", 1, 0}, {0, "respondent_b", "A", 1, 0}},
			want:   "0 generator@|1 generator. respondent_b@|2 critic@ respondent_b.|3 critic.",
		},
		{
			name: "models that do not exclude one another at once", rest: 60, sideBySide: true,
			guests: []simulatedRequest{{0, "generator", "A", 1, 0}, {0, "critic", "J", 1, 0}},
			want:   "0 generator@|1 critic@ generator.|2 critic.",
		},
		{
			name:   "no rest at once",
			guests: []simulatedRequest{{0, "generator/1", "A", 1, 0}, {0, "critic", "J", 1, 0}, {2, "generator/2", "A", 1, 0}},
			want:   "0 generator/1@|1 critic@ generator/1.|2 critic. generator/2@|3 generator/2.",
		},
		{
			name: "nobody in front rests", rest: 60,
			guests: []simulatedRequest{{0, "generator", "A", 1, 0}, {0, "memory", "C", 1, 0}, {0, "critics", "J", 1, 0}},
			want:   "0 generator@|1 generator. memory@|2 critics@ memory.|3 critics.",
		},
		{
			name: "respondent B rests as well", rest: 2,
			guests: []simulatedRequest{{0, "generator", "A", 1, 0}, {0, "respondent_b", "B", 1, 0}},
			want:   "0 generator@|1 generator.|3 respondent_b@|4 respondent_b.",
		},
		{
			name: "the critic rests after respondent B", rest: 2,
			guests: []simulatedRequest{{0, "generator", "A", 1, 0}, {0, "respondent_b", "A", 3, 0}, {0, "critic", "J", 1, 0}},
			want:   "0 generator@|1 generator. respondent_b@|4 respondent_b.|6 critic@|7 critic.",
		},
		{
			name: "what respondent B has loaded, the critic uses at once", rest: 2,
			guests: []simulatedRequest{{0, "generator", "A", 1, 0}, {0, "respondent_b", "B", 1, 0}, {0, "critic", "B", 1, 0}},
			want:   "0 generator@|1 generator.|3 respondent_b@|4 critic@ respondent_b.|5 critic.",
		},
		{
			name: "respondent B does not rest after the critic", rest: 2,
			guests: []simulatedRequest{{0, "critic", "J", 9, 0}, {1, "respondent_b", "B", 1, 0}},
			want:   "0 critic@|1 critic! respondent_b@|2 respondent_b.|4 critic@|13 critic.",
		},
		{
			name: "trick: while respondent B rests, the critic does not go before it, not even for the loaded model", rest: 2,
			guests: []simulatedRequest{{0, "generator", "A", 1, 0}, {0, "respondent_b", "B", 1, 0}, {0, "critic", "A", 9, 0}},
			want:   "0 generator@|1 generator.|3 respondent_b@|4 respondent_b.|6 critic@|15 critic.",
		},
		{
			name: "nobody leaves for one that rests", rest: 2, slots: 2,
			guests: []simulatedRequest{{0, "generator", "A", 1, 0}, {0, "critic", "A", 9, 0}, {0, "respondent_b", "B", 1, 0}},
			want:   "0 critic@ generator@|1 generator.|3 critic! respondent_b@|4 respondent_b.|6 critic@|15 critic.",
		},
		{
			name: "an equal for the loaded model goes while one rests, though its batch is over", rest: 3, batch: 1,
			guests: []simulatedRequest{{0, "generator", "A", 1, 0}, {0, "critic/1", "J", 1, 0}, {0, "critic/2", "A", 2, 0}, {0, "critic/3", "A", 2, 0}, {0, "critic/4", "A", 1, 0}},
			want:   "0 generator@|1 critic/2@ generator.|3 critic/2. critic/3@|5 critic/1@ critic/3.|6 critic/1. critic/4@|7 critic/4.",
		},
		{
			name: "an equal for the loaded model goes beside those in front", rest: 2, slots: 2, batch: 1,
			guests: []simulatedRequest{{0, "generator", "A", 4, 0}, {0, "critic/1", "J", 1, 0}, {1, "critic/2", "A", 1, 0}},
			want:   "0 generator@|1 critic/2@|2 critic/2.|4 generator.|6 critic/1@|7 critic/1.",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(max(tt.slots, 1), 100, !tt.sideBySide, cmp.Or(tt.batch, 4))
				q.idleDelay = time.Duration(tt.rest) * time.Second
				h := newSimulation(q)
				h.runAll(t, tt.guests)
				if got := h.history(); got != tt.want {
					t.Errorf("what happened\n  %s\nwant\n  %s", got, tt.want)
				}
				newQueueHarness(t, q).checkEmpty()
			})
		})
	}
}

// The generator is there from 0 to 1, and from 1 on only requests wait that an idle delay holds back. One is cancelled at 2.
func TestRequestEndsDuringIdleDelay(t *testing.T) {
	t.Parallel()
	why := errors.New("changed his mind")
	for _, tt := range []struct {
		name  string
		goes  string
		stays []simulatedRequest
		want  string
	}{
		{"nobody is left, and no alarm", "critic/1", nil, ""},
		{"the rest of an equal goes on", "critic/1", []simulatedRequest{{0, "critic/2", "J", 1, 0}}, "|3 critic/2@|4 critic/2."},
		{"another one for a third model", "critic/1", []simulatedRequest{{0, "critic/2", "K", 1, 0}}, "|3 critic/2@|4 critic/2."},
		{"respondent B was there for as long as it waited", "respondent_b", []simulatedRequest{{0, "critic", "J", 1, 0}}, "|4 critic@|5 critic."},
		{"whom respondent B held back goes at once", "respondent_b", []simulatedRequest{{0, "critic", "A", 1, 0}}, "|2 critic@|3 critic."},
		{"trick: the critic leaves respondent B's rest as it is", "critic", []simulatedRequest{{0, "respondent_b", "B", 1, 0}}, "|3 respondent_b@|4 respondent_b."},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(1, 100, true, 4)
				q.idleDelay = 2 * time.Second
				h := newSimulation(q)
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(2*time.Second, func() { cancel(why) })
				var gone sync.WaitGroup
				gone.Go(func() {
					time.Sleep(time.Millisecond) // the generator has its slot
					began, err := h.runRequest(ctx, simulatedRequest{who: tt.goes, model: "J", works: 9})
					if took := time.Since(h.begun); began || !errors.Is(err, why) || took != 2*time.Second {
						t.Errorf("began %v, %v, after %s", began, err, took)
					}
					if len(tt.stays) == 0 && q.idleTimer.Stop() {
						t.Error("the alarm goes on for nobody")
					}
				})
				h.runAll(t, append([]simulatedRequest{{0, "generator", "A", 1, 0}}, tt.stays...))
				gone.Wait()
				if got, want := h.history(), "0 generator@|1 generator."+tt.want; got != want {
					t.Errorf("what happened\n  %s\nwant\n  %s", got, want)
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
		come := func(who, model string, works int) {
			all.Go(func() {
				if _, err := h.runRequest(t.Context(), simulatedRequest{who: who, model: model, works: works}); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		runs := func(moment string, want bool) {
			t.Helper()
			q.mu.Lock()
			defer q.mu.Unlock()
			got := q.idleTimer != nil && q.idleTimer.Stop()
			if got {
				q.idleTimer.Reset(q.remainingIdle(2))
			}
			if got != want {
				t.Errorf("%s: the alarm runs: %v", moment, got)
			}
		}
		second := func() { time.Sleep(time.Second); synctest.Wait() }
		come("critic/1", "J", 1)
		second()
		come("critic/2", "K", 1)
		second()
		if q.idleTimer != nil {
			t.Error("an alarm, though nobody was ever in front")
		}
		come("generator/1", "A", 1)
		come("critic/3", "J", 1)
		runs("somebody in front has the slot", false)
		second()
		runs("he is gone", true)
		come("critic/4", "J", 1)
		runs("one more waits", true)
		come("generator/2", "A", 1)
		runs("somebody in front again", false)
		second()
		runs("gone again", true)
		time.Sleep(3 * time.Second)
		runs("a second before the end", true)
		second()
		runs("it is over", false)
		second()
		runs("one is done, the other is let in", false)
		all.Wait()
		if got := h.history(); got != "0 critic/1@|1 critic/1. critic/2@|2 critic/2. generator/1@|3 generator/1. generator/2@|4 generator/2.|8 critic/3@|9 critic/3. critic/4@|10 critic/4." {
			t.Error(got)
		}
		newQueueHarness(t, q).checkEmpty()
	})
}
