package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
)

// profile writes a CPU profile of brokered calls in process alone: of those of the table, or with layers of searches
// with every layer on.
func profile(file string, n int, layers bool) error {
	ctx := context.Background()
	work, stop, err := profiled(ctx, n, layers)
	if err != nil {
		return err
	}
	defer stop()
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := pprof.StartCPUProfile(f); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	return work()
}

func profiled(ctx context.Context, n int, layers bool) (work func() error, stop func(), err error) {
	if layers {
		w, err := openTown(ctx, false)
		if err != nil {
			return nil, nil, err
		}
		r := requests[slices.IndexFunc(requests, func(r request) bool { return r.tool == "web_search" })]
		return func() error {
			for range n / block {
				if _, err := w.block(ctx, fullForm, r); err != nil {
					return err
				}
			}
			return nil
		}, w.stop, nil
	}
	k, stop, err := callKind{form: forms[2], sync: syncModes[0]}.start(ctx, "in process")
	if err != nil {
		return nil, nil, err
	}
	return func() error {
		for range n {
			if err := k.call(ctx); err != nil {
				return err
			}
		}
		return nil
	}, stop, nil
}

// profileDir is the variable with the folder into which each part that is a process of its own writes where its
// processor time went and what it allocated. The last system that is measured has the last word.
const profileDir = "CONCLAVE_BENCH_PROFILES"

// profilePart begins the profiles of a part, if the variable is set. The caller must call end.
func profilePart(part string) (end func() error, err error) {
	dir := os.Getenv(profileDir)
	if dir == "" {
		return func() error { return nil }, nil
	}
	runtime.MemProfileRate = 512
	cpu, err := os.Create(filepath.Join(dir, part+".cpu"))
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(cpu); err != nil {
		return nil, err
	}
	return func() error {
		pprof.StopCPUProfile()
		allocs, err := os.Create(filepath.Join(dir, part+".allocs"))
		if err != nil {
			return err
		}
		return errors.Join(cpu.Close(), pprof.Lookup("allocs").WriteTo(allocs, 0), allocs.Close())
	}, nil
}
