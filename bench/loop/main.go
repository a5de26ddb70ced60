// Command loop measures what one tool iteration of the agent loop costs: a model call that asks for a tool, the tool,
// and the way back. Over HTTP it stands beside the bare requests and beside the official Ollama client, against the
// same scripted server in a process of its own; in process, with a model that answers at once, it stands beside eino's
// ReAct agent and langchaingo's functions agent. All of it is one run, interleaved, so that the machine's mood hits all
// of them alike. Only ratios mean anything.
//
// Run it from the folder bench: go run ./loop
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"
)

// A turn has this many tool iterations and then an answer: every contender makes the same model calls in the same
// order, and the cost of a turn is divided by its model calls.
const (
	iterations = 4
	modelCalls = iterations + 1
)

func main() {
	n := flag.Int("n", 200, "turns of each contender in a round")
	rounds := flag.Int("rounds", 15, "rounds; each contender is measured once in each")
	check := flag.Bool("check", false, "exit 1 when a limit does not hold")
	asJSON := flag.Bool("json", false, "print JSON")
	child := flag.Bool("child", false, "internal: be the scripted server")
	flag.Parse()
	if *child {
		fail(serve())
		return
	}
	rep, err := measure(*n, *rounds)
	fail(err)
	if *asJSON {
		fail(json.NewEncoder(os.Stdout).Encode(rep))
	} else {
		rep.print()
	}
	if *check && !rep.holds() {
		os.Exit(1)
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "loop:", err)
		os.Exit(1)
	}
}

// contender is one way to run a turn.
type contender struct {
	name string
	turn func(ctx context.Context) error
}

// figure is what one contender cost per model call.
type figure struct {
	Name   string  `json:"name"`
	Micros float64 `json:"us"` // median of the rounds
	Allocs float64 `json:"allocs"`
	Bytes  float64 `json:"bytes"`
}

// report is the whole run.
type report struct {
	HTTP    []figure `json:"http"`
	Process []figure `json:"in_process"`
	Limits  []limit  `json:"limits"`
}

// limit is a ratio that should hold.
type limit struct {
	Text string  `json:"text"`
	Got  float64 `json:"got"`
	Aim  float64 `json:"aim"`
	Most bool    `json:"at_most"` // else at least
}

func (l limit) holds() bool {
	if l.Most {
		return l.Got <= l.Aim
	}
	return l.Got >= l.Aim
}

func measure(n, rounds int) (*report, error) {
	server, stop, err := startChild()
	if err != nil {
		return nil, err
	}
	defer stop()
	over, err := overHTTP(server)
	if err != nil {
		return nil, err
	}
	within, err := inProcess()
	if err != nil {
		return nil, err
	}
	rep := &report{}
	if rep.HTTP, err = run(over, max(1, n/4), rounds); err != nil {
		return nil, err
	}
	if rep.Process, err = run(within, n*5, rounds); err != nil {
		return nil, err
	}
	h, p := rep.HTTP, rep.Process
	rep.Limits = []limit{
		{"loop over the HTTP floor, time", h[1].Micros / h[0].Micros, 1.5, true},
		{"loop over HTTP, allocations", h[1].Allocs, 120, true},
		{"streaming loop over the streaming HTTP floor, time", h[3].Micros / h[2].Micros, 1.5, true},
		{"official Ollama client over the loop, time", h[4].Micros / h[1].Micros, 10, false},
		{
			"the better of eino and langchaingo over the loop, time", min(p[1].Micros, p[2].Micros) / p[0].Micros, 5,
			false,
		},
		{
			"the better of eino and langchaingo over the loop, allocations",
			min(p[1].Allocs, p[2].Allocs) / p[0].Allocs,
			5, false,
		},
	}
	return rep, nil
}

// run measures contenders round by round, one after the other within each.
func run(all []contender, n, rounds int) ([]figure, error) {
	ctx := context.Background()
	times := make([][]float64, len(all))
	out := make([]figure, len(all))
	for i, c := range all { // warm up: connections, pools, caches
		for range max(1, n/4) {
			if err := c.turn(ctx); err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
		}
		out[i].Name = c.name
	}
	for range rounds {
		for i, c := range all {
			runtime.GC()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			for range n {
				if err := c.turn(ctx); err != nil {
					return nil, fmt.Errorf("%s: %w", c.name, err)
				}
			}
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			calls := float64(n * modelCalls)
			times[i] = append(times[i], took.Seconds()*1e6/calls)
			out[i].Allocs += float64(after.Mallocs-before.Mallocs) / calls / float64(rounds)
			out[i].Bytes += float64(after.TotalAlloc-before.TotalAlloc) / calls / float64(rounds)
		}
	}
	for i := range out {
		slices.Sort(times[i])
		out[i].Micros = times[i][len(times[i])/2]
	}
	return out, nil
}

func (r *report) print() {
	w := tabwriter.NewWriter(os.Stdout, 0, 4, 2, ' ', 0)
	for _, part := range []struct {
		title string
		rows  []figure
	}{{"over HTTP, scripted server in its own process", r.HTTP}, {
		"in process, a model that answers at once",
		r.Process,
	}} {
		fmt.Fprintf(w, "%s\tus\tallocs\tbytes\tof the first\n", part.title)
		for _, f := range part.rows {
			fmt.Fprintf(w, "%s\t%.1f\t%.1f\t%.0f\t%.2fx\n", f.Name, f.Micros, f.Allocs, f.Bytes,
				f.Micros/part.rows[0].Micros)
		}
		fmt.Fprintln(w)
	}
	for _, l := range r.Limits {
		word, verdict := "at least", "holds"
		if l.Most {
			word = "at most"
		}
		if !l.holds() {
			verdict = "DOES NOT HOLD"
		}
		fmt.Fprintf(w, "%s\t%.2f\t%s %g\t%s\n", l.Text, l.Got, word, l.Aim, verdict)
	}
	w.Flush()
}

func (r *report) holds() bool {
	return !slices.ContainsFunc(r.Limits, func(l limit) bool { return !l.holds() })
}
