package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// processorTime returns the processor time of this process and of those with the given ids, so far. A process that
// cannot be read counts as 0.
func processorTime(pids []int) (sum time.Duration) {
	var used syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &used) == nil {
		sum = time.Duration(used.Utime.Nano() + used.Stime.Nano())
	}
	for _, pid := range pids {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
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
