package loop

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A reply that never decides itself costs as much as it is long, not the square of it: eight times the pieces must not
// cost much more than eight times as much. The processor's time is measured, so a busy machine does not matter.
func TestScanIsLinear(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const few, many = 1 << 10, 1 << 13
	for _, unit := range []string{
		" ", "\n", "{", "[", "`", "<", "</", "\"", "x", "```\n", "``` ", "{\"name\":", "[ ", "<tool_call> ", "<tool_call>{", "<function=x",
		"web_search ", "web_search {\"", "<think>", "{\"name\":\"web_search\"}\n", "a\n{\"name\":\"a\"}",
	} {
		short, long := time.Hour, time.Hour
		for range 3 {
			short, long = min(short, cost(unit, few)), min(long, cost(unit, many))
		}
		if long > 24*max(short, 200*time.Microsecond) {
			t.Errorf("%q: %d pieces cost %s, %d cost %s", unit, few, short, many, long)
		}
		if long == 0 {
			t.Fatal("nothing was measured")
		}
	}
}

// cost is the processor's time for reading a unit n times.
func cost(unit string, n int) time.Duration {
	var s scan
	s.reset(offeredNames)
	before := threadTime()
	for range n {
		s.push(unit)
		s.tokens = s.tokens[:0]
	}
	s.finish(true)
	return threadTime() - before
}

func threadTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}
