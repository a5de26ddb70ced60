package model

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"conclave/subjects"
)

// crowd are the accounts of the random requests.
var crowd = []string{"generator", "memory", subjects.RespondentB, "critic"}

// Random arrivals, cancellations and preemptions of requests that end late: no slot is lost or assigned twice, no
// request waits that could run, no foreground request is preempted, and every request that is not cancelled runs.
func TestRandomPrioritiesKeepInvariants(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 2))
			q := newQueue(1+rnd.IntN(3), 10_000, rnd.IntN(3) > 0, 1+rnd.IntN(4))
			q.ahead = rnd.IntN(2)
			h := newSimulation(q)
			var all sync.WaitGroup
			var mu sync.Mutex
			stayed, served, cut := 0, 0, 0
			for range 120 {
				g := simulatedRequest{
					who:   fmt.Sprintf("%s/%d", crowd[rnd.IntN(len(crowd))], rnd.IntN(4)),
					model: string(rune('A' + rnd.IntN(3))),
					works: rnd.IntN(4), stubborn: rnd.IntN(3) * rnd.IntN(4),
				}
				ctx, leaves := t.Context(), rnd.IntN(4) == 0
				if leaves {
					c, cancel := context.WithTimeout(ctx, time.Duration(rnd.IntN(15))*time.Second)
					defer cancel()
					ctx = c
				} else {
					stayed++
				}
				all.Go(func() {
					_, err := h.runRequest(ctx, g)
					mu.Lock()
					defer mu.Unlock()
					switch {
					case err == nil && !leaves:
						served++
					case err != nil && !leaves:
						t.Errorf("seed %d: %s: %v", seed, g.who, err)
					}
				})
				synctest.Wait()
				if err := checkInvariants(q); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				time.Sleep(time.Duration(rnd.IntN(2000)) * time.Millisecond)
			}
			all.Wait()
			for _, n := range h.events {
				if strings.HasSuffix(n.what, "!") {
					cut++
				}
			}
			if served != stayed || cut == 0 {
				t.Errorf("seed %d: %d of %d served, %d times somebody left", seed, served, stayed, cut)
			}
			newQueueHarness(t, q).checkEmpty()
		})
	}
}

// The same without a clock, for the race detector: many at once, as fast as they can.
func TestConcurrentPrioritiesKeepInvariants(t *testing.T) {
	t.Parallel()
	for _, exclusive := range []bool{false, true} {
		q := newQueue(2, 1000, exclusive, 3)
		var all sync.WaitGroup
		for i := range 24 {
			all.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(i), 3))
				account := crowd[i%len(crowd)]
				for n := range 150 {
					ctx, cancel := context.WithCancel(t.Context())
					if rnd.IntN(8) == 0 {
						go cancel()
					}
					_, err := q.run(ctx, asRequester(account, fmt.Sprint(account, "/", n%3)),
						string(rune('A'+rnd.IntN(2))), func(turn context.Context) error {
							for range rnd.IntN(20) {
								if runtime.Gosched(); turn.Err() != nil && rnd.IntN(3) == 0 {
									break // sooner or later
								}
							}
							if errors.Is(context.Cause(turn), errPreempted) && priorityOf(account) == foreground {
								t.Errorf("%s was sent away", account)
							}
							return context.Cause(turn)
						})
					if err != nil && !errors.Is(err, context.Canceled) {
						t.Errorf("%s: %v", account, err)
					}
					cancel()
					if err := checkInvariants(q); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		newQueueHarness(t, q).checkEmpty()
	}
}
