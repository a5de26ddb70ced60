package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"conclave/bench/internal/instance"
)

// sample is the state of the process at a time. Sizes are in bytes.
type sample struct {
	At         time.Duration    `json:"at"`
	Note       string           `json:"note,omitempty"`
	Questions  int64            `json:"questions"`
	Requests   int64            `json:"requests"`
	RSS        int64            `json:"rss"`
	Anonymous  int64            `json:"anonymous"` // part of the resident memory that is no file
	Files      int64            `json:"files"`     // open files
	Disk       int64            `json:"disk"`
	P50        time.Duration    `json:"p50"`
	P99        time.Duration    `json:"p99"`
	CPU        time.Duration    `json:"cpu"` // of the process, since its start
	Counters   map[string]int64 `json:"counters"`
	DiskByPart map[string]int64 `json:"disk_by_part"`
}

// sampler takes samples of a running system.
type sampler struct {
	system  *instance.System
	data    string
	began   time.Time
	load    *load
	samples []sample
	base    int // index of the reference sample; 0 = none yet
}

// take adds a sample and prints it.
func (s *sampler) take(ctx context.Context, note string) error {
	x := sample{
		At: time.Since(s.began), Note: note, Questions: s.load.questions.Load(),
		Requests: s.load.requests.Load(),
	}
	x.P50, x.P99 = percentiles(s.load.takeLatencies())
	var err error
	if err = s.system.Request(ctx, "GET", "/debug/counters", nil, &x.Counters); err != nil {
		return err
	}
	if err = x.readProcess(s.system.PID); err != nil {
		return err
	}
	if x.DiskByPart, err = measureDisk(s.data); err != nil {
		return err
	}
	for _, n := range x.DiskByPart {
		x.Disk += n
	}
	s.samples = append(s.samples, x)
	if s.base == 0 && (x.Questions >= *reference || x.At >= *length/3) {
		s.base = len(s.samples) - 1
		if err := s.saveProfile(ctx, "reference"); err != nil {
			return err
		}
	}
	if note == "idle" {
		if err := s.saveProfile(ctx, "last"); err != nil {
			return err
		}
	}
	if *asJSON {
		printJSON(x)
		return nil
	}
	if len(s.samples) == 1 {
		fmt.Printf("%8s %9s %8s %8s %8s %8s %7s %6s %6s %9s %8s %8s %8s\n", "time", "questions", "rss MB", "anon MB",
			"heap MB", "go MB", "gorout.", "files", "subs", "disk MB", "p50", "p99", "cpu s")
	}
	c := x.Counters
	fmt.Printf("%8s %9d %8.1f %8.1f %8.1f %8.1f %7d %6d %6d %9.1f %8s %8s %8.1f %s\n", x.At.Round(time.Second),
		x.Questions, mega(x.RSS), mega(x.Anonymous), mega(c["heap_live"]), mega(c["mapped"]-c["heap_released"]),
		c["goroutines"], x.Files, c["subscriptions"], mega(x.Disk), x.P50.Round(100*time.Microsecond),
		x.P99.Round(100*time.Microsecond), x.CPU.Seconds(), note)
	if n := s.load.unavailable.Load(); n > 0 && note == "idle" {
		fmt.Printf("%d requests were rejected as unavailable, to be retried\n", n)
	}
	return nil
}

func mega(n int64) float64 { return float64(n) / 1e6 }

// saveProfile writes heap profiles to the folder of -profiles, if it is given.
func (s *sampler) saveProfile(ctx context.Context, name string) error {
	if *profiles == "" {
		return nil
	}
	if err := os.MkdirAll(*profiles, 0o700); err != nil {
		return err
	}
	for kind, query := range map[string]string{"heap": "?gc=1", "goroutine": ""} {
		data, err := s.system.Get(ctx, "/debug/pprof/"+kind+query)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(*profiles, name+"."+kind), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// readProcess reads the memory, the time and the open files of the process from /proc.
func (x *sample) readProcess(pid int) error {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(status)) {
		name, rest, _ := strings.Cut(line, ":")
		n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		switch name {
		case "VmRSS":
			x.RSS = n << 10
		case "RssAnon":
			x.Anonymous = n << 10
		}
	}
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) > 12 {
		for _, f := range fields[11:13] { // user and system time, in ticks of 10 ms
			n, _ := strconv.ParseInt(f, 10, 64)
			x.CPU += time.Duration(n) * 10 * time.Millisecond
		}
	}
	files, err := os.ReadDir(filepath.Join(dir, "fd"))
	x.Files = int64(len(files))
	return err
}

// measureDisk returns the bytes below the data folder by part: a stream, or a file or folder at the top.
func measureDisk(data string) (map[string]int64, error) {
	out := map[string]int64{}
	err := filepath.WalkDir(data, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // removed meanwhile
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(data, path)
		parts := strings.Split(rel, string(filepath.Separator))
		name := parts[0]
		if i := slices.Index(parts, "streams"); i > 0 && len(parts) > i+1 {
			name = parts[i+1]
			if slices.Contains(parts, "obs") {
				name += " (consumers)"
			}
		}
		out[name] += info.Size()
		return nil
	})
	return out, err
}

// percentiles returns the median and the 99th percentile, 0 without values.
func percentiles(d []time.Duration) (p50, p99 time.Duration) {
	if len(d) == 0 {
		return 0, 0
	}
	slices.Sort(d)
	return d[len(d)/2], d[len(d)*99/100]
}

// printDisk prints how much each part grew per question between the reference sample and the last one.
func (s *sampler) printDisk() {
	first, last := s.samples[s.base], s.samples[len(s.samples)-1]
	n := last.Questions - first.Questions
	if *asJSON || n <= 0 {
		return
	}
	type row struct {
		name string
		each int64
	}
	var rows []row
	for name, size := range last.DiskByPart {
		rows = append(rows, row{name, (size - first.DiskByPart[name]) / n})
	}
	slices.SortFunc(rows, func(a, b row) int { return int(b.each - a.each) })
	fmt.Printf("\nbytes on disk per question: %d\n", (last.Disk-first.Disk)/n)
	for _, r := range rows {
		if r.each >= 10 || r.each <= -10 {
			fmt.Printf("%8d  %s\n", r.each, r.name)
		}
	}
}

// check compares the last samples with the reference: the last one under load when the reference has -reference
// questions, since caches fill before, and the one after the idle time. Small numbers have an allowance for noise.
func (s *sampler) check() error {
	if s.base == 0 || s.base >= len(s.samples)-2 {
		return errors.New("too short: no sample after the reference one; make -for longer or -every shorter")
	}
	base, loaded, last := s.samples[s.base], s.samples[len(s.samples)-2], s.samples[len(s.samples)-1]
	var errs []error
	limit := func(what string, before, after, allowance int64, factor float64) {
		if most := max(before+allowance, int64(float64(before)*factor)); after > most {
			errs = append(errs, fmt.Errorf("%s grew from %d to %d, at most %d", what, before, after, most))
		}
	}
	room := int64(128 << 20) // for caches that were not full yet
	if base.Questions >= *reference {
		room = 0
		limit("resident memory under load", base.RSS, loaded.RSS, 0, 1.3)
	}
	limit("resident memory when idle", base.RSS, last.RSS, room, 1.3)
	limit("the number of goroutines", s.samples[0].Counters["goroutines"], last.Counters["goroutines"], 200, 1)
	limit("the number of open files", base.Files, last.Files, 60, 1.3)
	limit("the number of subscriptions", s.samples[0].Counters["subscriptions"], last.Counters["subscriptions"], 50, 1)
	if *latency > 0 {
		var late []time.Duration
		for _, x := range s.samples[s.base+1:] {
			if x.At > s.samples[len(s.samples)-1].At*2/3 && x.P99 > 0 {
				late = append(late, x.P99)
			}
		}
		median, _ := percentiles(late)
		limit("the p99 of the answers", int64(base.P99), int64(median), 0, *latency)
	}
	return errors.Join(errs...)
}
