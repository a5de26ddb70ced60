package quickstart

import (
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"
)

// TestEndLater: garbage is collected less at the beginning, and as by default after it.
func TestEndLater(t *testing.T) {
	current := func() int {
		p := debug.SetGCPercent(firstPercent)
		debug.SetGCPercent(p)
		return p
	}
	if percent < 0 { // the user's choice stays
		EndLater()
		return
	}
	if got := current(); got != firstPercent || percent != defaultPercent {
		t.Errorf("at first %d, and %d before", got, percent)
	}
	synctest.Test(t, func(*testing.T) {
		EndLater()
		time.Sleep(period - 1)
		if got := current(); got != firstPercent {
			t.Errorf("before the end %d", got)
		}
		time.Sleep(1)
		synctest.Wait()
		if got := current(); got != defaultPercent {
			t.Errorf("after the end %d", got)
		}
	})
}
