// Command memory measures recall beside its peers: our index of vectors, chromem-go, coder/hnsw, sqlite-vec and SQL in
// DuckDB search the same rows for the same queries; then the staged recall, names to descriptions to corpus, runs end to
// end against the same stages built on chromem-go and in SQL. Each contender is a process of its own, and up to 100,000
// rows they stand loaded side by side and take turns, so that the machine's mood hits all of them alike. One streaming read
// of the vectors' bytes is the yardstick. Only ratios mean anything.
//
// It also measures a start with a full store, and recalls while engrams are written.
//
// Run it from the folder bench: go run ./memory
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// settings are what the flags say.
type settings struct {
	sizes   []int
	asks    int
	engines []string
	seed    uint64
	budget  time.Duration
	count   int // engrams to write
	rate    int // how many of them in a second
	parts   []string
	scratch string
}

func main() {
	sizes := flag.String("sizes", "1k,10k,100k", "rows, several with commas; 1m takes a quarter of an hour, 12 GB of memory and 20 GB of disk")
	asks := flag.Int("queries", 200, "queries of each contender")
	engines := flag.String("engines", "", "only these: "+strings.Join(flatOrder, ", "))
	seed := flag.Uint64("seed", 1, "of the data")
	budget := flag.Duration("budget", time.Minute, "for each contender and size; a slow one is asked less often, but at least 20 times")
	n := flag.Int("n", 10000, "engrams to write while recalls run")
	rate := flag.Int("rate", 0, "how many of them in a second; 0 = as fast as it goes")
	folder := flag.String("dir", "", "where the databases go; nothing = the system's folder for such things")
	check := flag.Bool("check", false, "exit 1 when a limit does not hold")
	asJSON := flag.Bool("json", false, "print JSON")
	only := map[string]*bool{}
	for _, p := range parts {
		only[p.name] = flag.Bool(p.name, false, "measure only "+p.what+"; several may be named")
	}
	child := flag.String("child", "", "internal: be a contender")
	flag.Parse()
	if *child != "" {
		fail(runChild(*child))
		return
	}
	s := settings{asks: *asks, seed: *seed, budget: *budget, count: *n, rate: *rate}
	var err error
	s.sizes, err = parseSizes(*sizes)
	fail(err)
	s.engines, err = parseEngines(*engines)
	fail(err)
	if s.asks < 1 || s.count < 1 || s.rate < 0 || flag.NArg() > 0 {
		fail(errors.New("-queries and -n are at least 1, and there is nothing beside the flags"))
	}
	for _, p := range parts {
		if *only[p.name] {
			s.parts = append(s.parts, p.name)
		}
	}
	rep, err := s.measure(*folder)
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
		fmt.Fprintln(os.Stderr, "memory:", err)
		os.Exit(1)
	}
}

// say tells how far it is.
func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}

// parts are what can be measured alone.
var parts = []struct{ name, what string }{
	{"flat", "the search for the nearest"},
	{"staged", "the staged recall"},
	{"start", "a start with a full store"},
	{"ingest", "recalls while engrams are written"},
}

func (s settings) wants(part string) bool {
	return len(s.parts) == 0 || slices.Contains(s.parts, part)
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
		if err != nil || n < 1 || n*factor < 2*names || n*factor > 10_000_000 {
			return nil, fmt.Errorf("size %q: write it like 500, 10k or 1m, from %d to 10m", part, 2*names)
		}
		out = append(out, n*factor)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

func parseEngines(text string) ([]string, error) {
	var out []string
	if text == "" {
		for _, name := range flatOrder {
			if name != "sqlite-vec" || sqliteVec {
				out = append(out, name)
			}
		}
		return out, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		name := strings.TrimSpace(part)
		if !slices.Contains(flatOrder, name) {
			return nil, fmt.Errorf("no engine %q; there are %s", name, strings.Join(flatOrder, ", "))
		}
		if name == "sqlite-vec" && !sqliteVec {
			_, err := openLite(job{})
			return nil, err
		}
		out = append(out, name)
	}
	if !slices.Contains(out, "stream") {
		out = append(out, "stream") // nothing can be said without the yardstick
	}
	return out, nil
}

// short is a number of rows as it is written on the command line.
func short(n int) string {
	switch {
	case n >= 1_000_000 && n%1_000_000 == 0:
		return strconv.Itoa(n/1_000_000) + "m"
	case n >= 1000 && n%1000 == 0:
		return strconv.Itoa(n/1000) + "k"
	}
	return strconv.Itoa(n)
}

// sideBySide is up to how many rows the contenders stand in memory together.
const sideBySide = 100_000

// measure runs the parts.
func (s settings) measure(folder string) (_ *report, err error) {
	scratch, remove, err := scratchFolder(folder)
	if err != nil {
		return nil, err
	}
	defer remove()
	onInterrupt(remove)
	s.scratch = scratch
	rep := &report{Asks: s.asks}
	for _, n := range s.sizes {
		if err := s.measureSize(rep, n); err != nil {
			return nil, fmt.Errorf("%s rows: %w", short(n), err)
		}
	}
	rep.limits()
	return rep, nil
}

// measureSize is everything at one size. The parts beside the flat search run at 100,000 rows and above, or at the largest
// size when all are smaller: below, they say little.
func (s settings) measureSize(rep *report, n int) error {
	w := newWorld(n, s.seed)
	queries := w.queries(s.asks)
	large := n >= sideBySide || n == s.sizes[len(s.sizes)-1]
	var first [][]scored
	if s.wants("flat") || large && s.wants("staged") {
		say("%s rows: the exact answers", short(n))
		first = truth(w, queries)
	}
	if s.wants("flat") {
		want := make([]answer, len(first))
		for j := range first {
			want[j] = answerOf(first[j], names)
		}
		figures, err := s.contest("flat", n, s.flatAt(n), nil, want)
		if err != nil {
			return err
		}
		rep.Flat = append(rep.Flat, table{n, figures})
	}
	if !large || !(s.wants("staged") || s.wants("start") || s.wants("ingest")) {
		return nil
	}
	return s.measureStore(rep, w, queries, first)
}

// contest runs one, side by side or one at a time.
func (s settings) contest(part string, n int, engines []string, dirs map[string]string, want []answer) ([]figure, error) {
	c := contest{part: part, engines: engines, rows: n, asks: s.asks, seed: s.seed, scratch: s.scratch, dirs: dirs, budget: s.budget}
	if n <= sideBySide {
		return c.run(want)
	}
	var out []figure
	for _, e := range engines {
		c.engines = []string{e}
		f, err := c.run(want)
		if err != nil {
			return nil, err
		}
		out = append(out, f...)
	}
	return out, nil
}
