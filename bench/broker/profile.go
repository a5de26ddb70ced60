package main

import (
	"context"
	"os"
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
	k, stop, err := brokeredKind(ctx, "in process", "10s", false)
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
