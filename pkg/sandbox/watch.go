//go:build linux && (amd64 || arm64)

package sandbox

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// watchEvery is the least time between two measurements. One that takes long is followed by a pause ten times as long.
const watchEvery = 100 * time.Millisecond

// writtenFactor bounds the bytes that a run writes to disks, as a multiple of the limit of the working folder: files
// that were deleted while open are in no folder.
const writtenFactor = 4

// watch ends the run at its deadline, at the end of ctx, and when its processes or its working folder grow too large.
// It returns when the run is over. Measurements run beside it, because a program can make them slow.
func (r *runner) watch(ctx context.Context) {
	deadline := time.NewTimer(r.spec.Limits.Time)
	defer deadline.Stop()
	measuring, cancel := context.WithCancel(ctx)
	exceeded := make(chan Stop, 1)
	var measured sync.WaitGroup
	measured.Go(func() { r.measureRepeatedly(measuring, exceeded) })
	defer measured.Wait()
	defer cancel()
	select {
	case <-r.done:
	case <-ctx.Done():
		r.stop(StopCanceled)
	case <-deadline.C:
		r.stop(StopTime)
	case why := <-exceeded:
		r.stop(why)
	}
}

// measureRepeatedly sends the first limit that the run exceeds, and returns then or at the end of ctx.
func (r *runner) measureRepeatedly(ctx context.Context, exceeded chan<- Stop) {
	next := time.NewTimer(watchEvery)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		began := time.Now()
		if why := r.measure(ctx); why != StopNone {
			exceeded <- why
			return
		}
		next.Reset(max(watchEvery, 10*time.Since(began)))
	}
}

// measure returns the limit that the run exceeds now.
func (r *runner) measure(ctx context.Context) Stop {
	l := r.spec.Limits
	var resident, written int64
	for _, pid := range descendants(r.first) {
		resident += residentBytes(pid)
		written += writtenBytes(pid)
	}
	if resident > l.TotalMemory || r.group.outOfMemory() { // the kernel may have killed another process than the first
		return StopMemory
	}
	if written > writtenFactor*l.Disk {
		return StopDisk
	}
	if further := slices.Concat(r.spec.ReadOnly, r.spec.ReadWrite); len(further) > 0 {
		if socket, _ := findBoundSocket(further); socket != "" {
			return StopSocket
		}
		if r.mounts != nil && r.mounts.hasNew(further) {
			return StopMount
		}
	}
	// An error is a folder that changes while it is read; the next measurement sees it.
	if now, err := readFolder(ctx, r.work, l.Entries, false); err == nil && now.exceeds(l) {
		return StopDisk
	}
	return StopNone
}

// descendants returns first and all processes below it.
func descendants(first int) []int {
	all := []int{first}
	for i := 0; i < len(all); i++ {
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", all[i]))
		if err != nil {
			continue
		}
		for _, t := range threads {
			children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", all[i], t.Name()))
			if err != nil {
				continue
			}
			for _, c := range strings.Fields(string(children)) {
				if pid, err := strconv.Atoi(c); err == nil {
					all = append(all, pid)
				}
			}
		}
	}
	return all
}

// residentBytes returns the resident memory of a process, 0 when it is gone.
func residentBytes(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	if f := strings.Fields(string(b)); len(f) > 1 {
		pages, _ := strconv.ParseInt(f[1], 10, 64)
		return pages * int64(os.Getpagesize())
	}
	return 0
}

// writtenBytes returns the bytes that a process and its children that ended wrote to disks, 0 when it is gone.
func writtenBytes(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(line, "write_bytes: "); ok {
			written, _ := strconv.ParseInt(strings.TrimSpace(n), 10, 64)
			return written
		}
	}
	return 0
}
