package acceptance

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"conclave/subjects"
)

// TestChaosCallsSurvivePrincipalChanges makes 1,000 brokered calls a second while principals are added and revoked,
// each by the registry: no call is lost. CONCLAVE_CHAOS=1 makes 10,000 calls and 100 changes.
func TestChaosCallsSurvivePrincipalChanges(t *testing.T) {
	t.Parallel()
	if !full() {
		t.Skip("runs with CONCLAVE_CHAOS=1: a thousand calls per second need the machine for themselves; " +
			"TestCallsSurviveReload is the short form")
	}
	const calls, changes = 10_000, 50
	r := up(t, settings(t), newHome(t), append([]string{"get_datetime"}, hubActors...)...)
	callUntilOK(t, r.Bus)
	b := *r.Bus
	b.TCP = true
	operator, user := dialOperator(t, &b), dialClient(t, &b, "user")
	keys := make([]map[string]string, changes)
	for i := range keys {
		name := fmt.Sprintf("tool-%d", i)
		if _, err := b.Keys.Ensure([]string{name}); err != nil {
			t.Fatal(err)
		}
		key, err := b.Keys.Public(name)
		if err != nil {
			t.Fatal(err)
		}
		keys[i] = map[string]string{name: key}
	}

	var running sync.WaitGroup
	var made, lost atomic.Int64
	ended := make(chan struct{})
	began := time.Now()
	running.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for n := 0; ; {
			select {
			case <-tick.C:
			case <-t.Context().Done():
				return
			}
			select {
			case <-ended:
				if n >= calls {
					return
				}
			default:
			}
			due := min(int(time.Since(began)/time.Millisecond), n+4) // a busy machine misses ticks, and catches up
			for ; n < due; n++ {
				running.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
					defer cancel()
					made.Add(1)
					if res := operator.callTool(ctx, "get_datetime", "", utc); res.Error != nil && lost.Add(1) <= 5 {
						t.Error(res.Error)
					}
				})
			}
		}
	})
	for _, action := range []string{subjects.PrincipalAdd, subjects.PrincipalRevoke} {
		for i := range changes {
			p := subjects.Principal{Name: fmt.Sprintf("tool-%d", i)}
			if action == subjects.PrincipalAdd {
				p.Kind, p.Tools, p.Keys = subjects.ToolPrincipal, []string{fmt.Sprintf("forecast_%d", i)}, keys[i]
			}
			if err := user.ChangePrincipal(t.Context(),
				subjects.PrincipalChange{Action: action, Principal: p}); err != nil {
				t.Errorf("%s %s: %v", action, p.Name, err)
			}
		}
	}
	took := time.Since(began)
	close(ended)
	running.Wait()
	t.Logf("%d calls in %s, %d additions and %d revocations in %s, %d calls lost", made.Load(),
		time.Since(began).Round(time.Millisecond), changes, changes, took.Round(time.Millisecond), lost.Load())
}
