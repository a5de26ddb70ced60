// Command memory compares memory's search with its peers on the same entries and queries: chromem-go, sqlite-vec, and
// DuckDB with array_cosine_similarity. Ours runs as in the memory actor, index and store; the reference of every result
// is exhaustive scoring by the same formula. Each engine is a process of its own; up to 100,000 entries they are loaded
// side by side and alternate, so that the load of the machine affects all alike. Ratios within a run are what counts.
//
// It also measures a whole conclave: resident memory with many entries, and searches while entries are stored over
// HTTP.
//
// Run it in the folder bench: go run ./memory
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"conclave/bench/internal/instance"
)

// options are the flags.
type options struct {
	sizes         []int
	queries       int
	engines       []string
	seed          uint64
	budget        time.Duration
	count, rate   int // of the system: entries to store, searches per second
	compare       bool
	system        bool
	program, temp string
}

func main() {
	var o options
	sizes := flag.String("sizes", "1k,10k,100k", "entries, several with commas; 1m takes half an hour, 12 GB of "+
		"memory and 20 GB of disk")
	names := flag.String("engines", "", "only these: "+strings.Join(engineOrder, ", "))
	flag.IntVar(&o.queries, "queries", 200, "queries of each engine")
	flag.Uint64Var(&o.seed, "seed", 1, "of the data")
	flag.DurationVar(&o.budget, "budget", time.Minute, "time of each engine and size; a slow one answers fewer "+
		"queries, but at least 20")
	flag.IntVar(&o.count, "n", 10_000, "entries to store while searches run")
	flag.IntVar(&o.rate, "rate", 100, "searches per second meanwhile")
	flag.BoolVar(&o.compare, "compare", false, "only compare the engines")
	flag.BoolVar(&o.system, "system", false, "only measure a whole conclave, with each of the sizes up to 100k; "+
		"entries are stored with the smallest")
	flag.StringVar(&o.program, "conclave", "", "the `program` conclave (default: built from ..)")
	flag.StringVar(&o.temp, "dir", "", "`folder` for databases (default: the system's temporary folder)")
	check := flag.Bool("check", false, "exit 1 when a limit does not hold")
	asJSON := flag.Bool("json", false, "print JSON")
	child := flag.String("child", "", "internal: run an engine")
	flag.Parse()
	if *child != "" {
		exitOn(runChild(*child))
		return
	}
	if !o.compare && !o.system {
		o.compare, o.system = true, true
	}
	var err error
	o.sizes, err = parseSizes(*sizes)
	exitOn(err)
	o.engines, err = parseEngines(*names)
	exitOn(err)
	if o.queries < 1 || o.count < 1 || o.rate < 1 || flag.NArg() > 0 {
		exitOn(errors.New("-queries, -n and -rate are at least 1, and there are no arguments beside the flags"))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	rep, err := o.measure(ctx)
	stop()
	exitOn(err)
	if *asJSON {
		exitOn(json.NewEncoder(os.Stdout).Encode(rep))
	} else {
		rep.print()
	}
	if *check && !rep.holds() {
		os.Exit(1)
	}
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "memory:", err)
		os.Exit(1)
	}
}

func logProgress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}

func parseSizes(text string) ([]int, error) {
	var out []int
	for part := range strings.SplitSeq(text, ",") {
		number, factor := strings.ToLower(strings.TrimSpace(part)), 1
		if cut, ok := strings.CutSuffix(number, "k"); ok {
			number, factor = cut, 1000
		} else if cut, ok := strings.CutSuffix(number, "m"); ok {
			number, factor = cut, 1_000_000
		}
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || n*factor < 100 || n*factor > 10_000_000 {
			return nil, fmt.Errorf("size %q: write it like 500, 10k or 1m, from 100 to 10m", part)
		}
		out = append(out, n*factor)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// parseEngines returns the engines of a list in their order, all that are built in when it is empty.
func parseEngines(text string) ([]string, error) {
	wanted := engineOrder
	if text != "" {
		wanted = strings.Split(text, ",")
	}
	var out []string
	for _, name := range engineOrder {
		if hasSQLite || !strings.HasPrefix(name, "sqlite") {
			out = append(out, name)
		}
	}
	for _, name := range wanted {
		if text != "" && !slices.Contains(out, name) {
			return nil, fmt.Errorf("no engine %q; there are %s (those of SQLite with -tags sqlitevec,sqlite_fts5)",
				name, strings.Join(engineOrder, ", "))
		}
	}
	return slices.DeleteFunc(out, func(name string) bool { return !slices.Contains(wanted, name) }), nil
}

// short returns a number of entries as the flag takes it.
func short(n int) string {
	switch {
	case n >= 1_000_000 && n%1_000_000 == 0:
		return strconv.Itoa(n/1_000_000) + "m"
	case n >= 1000 && n%1000 == 0:
		return strconv.Itoa(n/1000) + "k"
	}
	return strconv.Itoa(n)
}

// alternating is up to how many entries the engines are loaded side by side.
const alternating = 100_000

func (o options) measure(ctx context.Context) (_ *report, err error) {
	scratch, err := os.MkdirTemp(o.temp, "conclave-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(scratch)
	rep := &report{Queries: o.queries}
	for _, n := range o.sizes {
		if !o.compare {
			break
		}
		if err := o.compareSize(ctx, rep, n, scratch); err != nil {
			return nil, fmt.Errorf("%s entries: %w", short(n), err)
		}
	}
	if o.system {
		if err := o.measureSystems(ctx, rep); err != nil {
			return nil, err
		}
	}
	rep.setLimits()
	return rep, nil
}

// compareSize compares the engines at one size. Only one process can open a store: the second engine of ours has a
// copy.
func (o options) compareSize(ctx context.Context, rep *report, n int, scratch string) error {
	store, err := os.MkdirTemp(scratch, "store-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(store)
	c := comparison{
		rows: n, queries: o.queries, seed: o.seed, budget: o.budget, scratch: scratch,
		dirs: map[string]string{"hybrid": store, "cosine": store}, references: map[string][][]int{},
	}
	logProgress("%s entries: filling a store", short(n))
	t := table{Rows: n}
	if t.Fill, err = runFill(ctx, job{Rows: n, Seed: o.seed, Dir: store}); err != nil {
		return err
	}
	if n > alternating {
		for _, name := range o.engines {
			f, err := c.run(ctx, name)
			if err != nil {
				return err
			}
			t.Figures = append(t.Figures, f...)
		}
	} else {
		copied, err := os.MkdirTemp(scratch, "copy-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(copied)
		if err := os.CopyFS(copied, os.DirFS(store)); err != nil {
			return err
		}
		c.dirs["cosine"] = copied
		if t.Figures, err = c.run(ctx, o.engines...); err != nil {
			return err
		}
	}
	rep.Tables = append(rep.Tables, t)
	return nil
}

// measureSystems measures a whole conclave with each size up to alternating. With the smallest, entries are stored
// while searches run.
func (o options) measureSystems(ctx context.Context, rep *report) error {
	if o.program == "" {
		program, remove, err := instance.Build(ctx)
		if err != nil {
			return err
		}
		defer remove()
		o.program = program
	}
	for i, n := range o.sizes {
		if i > 0 {
			o.count = 0
		}
		if n > alternating {
			break
		}
		f, err := measureSystem(ctx, o.program, newDataset(n, o.seed), o.count, o.rate)
		if err != nil {
			return err
		}
		rep.Systems = append(rep.Systems, f)
	}
	return nil
}
