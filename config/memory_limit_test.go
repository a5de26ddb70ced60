package config

import "testing"

func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	for live, want := range map[uint64]int64{
		0: 256 << 20, 100 << 20: 256 << 20, 200 << 20: 280 << 20,
		1 << 30: 1280 << 20,
	} {
		if got := memoryLimit(live); got != want {
			t.Errorf("the limit for %d MB is %d MB, want %d", live>>20, got>>20, want>>20)
		}
	}
}

func TestIdleDetector(t *testing.T) {
	t.Parallel()
	var d idleDetector
	allocated := uint64(0)
	// run adds seconds in which each allocates bytes, and returns how often the process became idle.
	run := func(seconds int, bytes uint64) (n int) {
		for range seconds {
			allocated += bytes
			if d.add(allocated) {
				n++
			}
		}
		return n
	}
	for _, step := range []struct {
		name    string
		seconds int
		bytes   uint64
		want    int
	}{
		{"busy", 60, 20 << 20, 0},
		{"not yet idle", idleSeconds - 1, 0, 0},
		{"idle, once", 600, 10 << 10, 1},
		{"a single question", 1, 1 << 20, 0},
		{"still idle", 600, 10 << 10, 0},
		{"busy again", 10, 20 << 20, 0},
		{"idle again", 60, 10 << 10, 1},
		{"steady load at the limit", 100, idleBytes/idleSeconds + 1, 0},
	} {
		if got := run(step.seconds, step.bytes); got != step.want {
			t.Errorf("%s: became idle %d times, want %d", step.name, got, step.want)
		}
	}
}
