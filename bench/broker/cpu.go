package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/metrics"
	"syscall"
	"time"
)

// allocations are numbers of allocated objects.
type allocations struct {
	all    uint64 // in all processes
	broker uint64 // in the process of the broker
}

// ownAllocations returns the number of objects that this process has allocated.
func ownAllocations() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:objects"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// allocations returns what the processes of a kind have allocated so far.
func (k kind) allocations() (out allocations, err error) {
	out.all = ownAllocations()
	for _, c := range k.apart {
		n, err := c.allocations()
		if err != nil {
			return out, err
		}
		out.all += n
		if c.part == "broker" || c.part == "empty-broker" {
			out.broker = n
		}
	}
	return out, nil
}

// processorTime returns the processor time of the processes of a kind, so far. One that cannot be read counts as 0.
func (k kind) processorTime() (sum time.Duration) {
	var used syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &used) == nil {
		sum = time.Duration(used.Utime.Nano() + used.Stime.Nano())
	}
	for _, c := range k.apart {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", c.cmd.Process.Pid))
		for _, file := range threads {
			var ns int64
			if data, err := os.ReadFile(file); err == nil {
				_, _ = fmt.Sscan(string(data), &ns)
			}
			sum += time.Duration(ns)
		}
	}
	return sum
}
