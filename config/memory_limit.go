package config

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// Memory that the Go runtime may use beyond the live heap, in bytes: a quarter of it, and at least minHeadroom. Most of
// a large heap are the caches of streams and the index of memory, which hold few pointers, so that collecting it
// earlier costs little. Below minMemoryLimit the process is small enough for the runtime's own pace.
const (
	minHeadroom    = 80 << 20
	minMemoryLimit = 256 << 20
)

// memoryLimit returns the soft limit of the memory of the Go runtime for a live heap of this size.
func memoryLimit(live uint64) int64 {
	return max(minMemoryLimit, int64(live+max(minHeadroom, live/4)))
}

// idleDetector tells when the process has become idle, from the bytes that it has allocated since its start.
type idleDetector struct {
	seconds []uint64 // the last readings, one per second
	freed   bool     // since the process became idle
	at      uint64   // reading when it was freed
}

// The process is idle when it allocates less than idleBytes in idleSeconds; it is busy again after busyBytes. What an
// idle system allocates for heartbeats is far below that.
const (
	idleSeconds = 20
	idleBytes   = 16 << 20
	busyBytes   = 64 << 20
)

// add takes the reading of another second, and reports true once when the process has become idle.
func (d *idleDetector) add(allocated uint64) bool {
	if d.freed && allocated-d.at > busyBytes {
		d.freed, d.seconds = false, nil
	}
	d.seconds = append(d.seconds, allocated)
	if len(d.seconds) <= idleSeconds {
		return false
	}
	earlier := d.seconds[0]
	d.seconds = d.seconds[1:]
	if d.freed || allocated-earlier >= idleBytes {
		return false
	}
	d.freed, d.at = true, allocated
	return true
}

// holdMemory keeps the memory of the process near the live heap until ctx ends: it adjusts the soft limit of the Go
// runtime, so that garbage is collected before the process grows, and gives memory back to the operating system when
// the process has become idle. With a limit of the user in GOMEMLIMIT it does nothing.
func holdMemory(ctx context.Context) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	readings := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	var idle idleDetector
	var limit int64
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		metrics.Read(readings)
		// A small change is left alone: setting the limit stops the process for a moment.
		if next := memoryLimit(readings[0].Value.Uint64()); next > limit || next < limit*9/10 {
			limit = next
			debug.SetMemoryLimit(limit)
		}
		if idle.add(readings[1].Value.Uint64()) {
			debug.FreeOSMemory()
			debug.FreeOSMemory() // buffers in pools outlive one collection
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
