// Command soak runs a mixed load against conclave up for minutes or hours and fails when something grows: resident
// memory, goroutines, open files, subscriptions, latency. The model is the built-in demo model, everything else as
// shipped; the load arrives over HTTP, in many sessions: questions, questions that call a tool, calls that wait for an
// approval, cancelled questions, facts to store, and searches in memory. It prints a sample per interval, and how many
// bytes a question takes on disk, by stream.
//
// Run it from the folder bench: go run ./soak -for 2h
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"conclave/bench/internal/instance"
)

var (
	length    = flag.Duration("for", 10*time.Minute, "how long the load lasts")
	questions = flag.Int64("questions", 0, "end the load after this many questions; 0 = only after -for")
	clients   = flag.Int("clients", 4, "clients at once, each with a session of its own")
	turns     = flag.Int("turns", 10, "questions of a session before its client begins another")
	plain     = flag.Bool("plain", false, "questions without tools only")
	every     = flag.Duration("every", 15*time.Second, "interval of the samples")
	idle      = flag.Duration("idle", 30*time.Second, "how long nobody asks at the end, before the last sample")
	reference = flag.Int64("reference", 2000, "the first sample after this many questions is the one that later ones "+
		"are compared with; -for / 3 at the latest")
	profiles = flag.String("profiles", "", "`folder` for heap profiles of the reference sample and the last one")
	program  = flag.String("conclave", "", "`program` to run; default: build it")
	asJSON   = flag.Bool("json", false, "print the samples as JSON lines")
	latency  = flag.Float64("latency", 0, "fail when the p99 of the last third is more than this many times that of "+
		"the reference; 0 = print only")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

// run starts an instance, loads it and prints the samples. It fails when a request fails or a limit does not hold.
func run(ctx context.Context) error {
	path := *program
	if path == "" {
		built, remove, err := instance.Build(ctx)
		if err != nil {
			return err
		}
		defer remove()
		path = built
	}
	settings, err := makeSettings()
	if err != nil {
		return err
	}
	i, err := instance.Create(path, settings)
	if err != nil {
		return err
	}
	defer i.Remove()
	system, err := i.Start(ctx, "--pprof")
	if err != nil {
		return err
	}
	defer system.Stop()
	s := &sampler{system: system, data: i.DataDir(), began: time.Now(), load: newLoad(system)}
	if err := s.take(ctx, "start"); err != nil {
		return err
	}
	if err := s.measure(ctx); err != nil {
		return err
	}
	s.printDisk()
	return s.check()
}

// makeSettings returns the settings of the instance: the demo model, and save_memory among the tools that need an
// approval.
func makeSettings() (map[string]string, error) {
	manifest, err := os.ReadFile(filepath.Join("..", "config", "manifest.yaml"))
	if err != nil {
		return nil, fmt.Errorf("run this in the folder bench: %w", err)
	}
	const risky = "\nhigh_risk: ["
	if !strings.Contains(string(manifest), risky) {
		return nil, fmt.Errorf("the manifest has no line high_risk")
	}
	return map[string]string{
		"models.yaml":   "demo_model: always\n",
		"manifest.yaml": strings.Replace(string(manifest), risky, risky+"save_memory, ", 1),
	}, nil
}

// measure runs the load and takes samples until it ends, then one more after the idle time.
func (s *sampler) measure(ctx context.Context) error {
	loading, cancel := context.WithTimeout(ctx, *length)
	defer cancel()
	failed := make(chan error, 1)
	go func() { failed <- s.load.run(loading) }()
	tick := time.NewTicker(*every)
	defer tick.Stop()
	for {
		select {
		case err := <-failed:
			if err == nil {
				err = ctx.Err()
			}
			if err == nil {
				err = s.take(ctx, "")
			}
			if err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(*idle):
			}
			return s.take(ctx, "idle")
		case <-tick.C:
			if err := s.take(ctx, ""); err != nil && loading.Err() == nil {
				return err
			}
		}
	}
}

func printJSON(v any) {
	data, _ := json.Marshal(v)
	fmt.Println(string(data))
}
