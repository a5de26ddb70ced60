package main

import (
	"fmt"
	"slices"
)

// report is one run.
type report struct {
	Queries int              `json:"queries"`
	Tables  []table          `json:"tables"`
	Systems []*systemFigures `json:"systems"`
	Limits  []limit          `json:"limits"`
}

// table is the comparison at one size.
type table struct {
	Rows    int      `json:"rows"`
	Fill    filled   `json:"fill"`
	Figures []figure `json:"figures"`
}

func (t table) of(engine string) (figure, bool) {
	i := slices.IndexFunc(t.Figures, func(f figure) bool { return f.Engine == engine })
	if i < 0 {
		return figure{}, false
	}
	return t.Figures[i], true
}

// limit is a target.
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

func (r *report) holds() bool {
	return !slices.ContainsFunc(r.Limits, func(l limit) bool { return !l.holds() })
}

// Targets.
const (
	maxAt100k   = 15  // milliseconds, p50
	maxAt1m     = 60  // milliseconds, p50
	maxResident = 450 // MB of memory's part with 100,000 entries
)

// setLimits sets the limits of the sizes that were measured.
func (r *report) setLimits() {
	add := func(got, aim float64, most bool, text string) {
		r.Limits = append(r.Limits, limit{text, got, aim, most})
	}
	for _, t := range r.Tables {
		f, ok := t.of("hybrid")
		if !ok {
			continue
		}
		add(f.Same, 1, false, fmt.Sprintf("ours at %s, the same result as exhaustive scoring", short(t.Rows)))
		switch t.Rows {
		case 100_000:
			add(f.P50, maxAt100k, true, "ours at 100k, p50 in ms")
		case 1_000_000:
			add(f.P50, maxAt1m, true, "ours at 1m, p50 in ms")
		}
	}
	for _, s := range r.Systems {
		add(float64(s.Errors), 0, true, fmt.Sprintf("conclave up with %s, errors", short(s.Rows)))
		if s.Rows == 100_000 {
			add(float64(s.Resident-s.Empty)/(1<<20), maxResident, true, "resident MB of 100k entries")
		}
	}
}

func (r *report) print() {
	if len(r.Tables) > 0 {
		fmt.Printf("Vectors of %d numbers, the best %d of each query. One process for each engine. Up to %s entries "+
			"they alternate in blocks of %d queries; above, one follows the other.\n", dims, top, short(alternating),
			block)
	}
	for _, t := range r.Tables {
		fmt.Printf("\n%s entries:\n\n", short(t.Rows))
		fmt.Println("| engine | p50 | p95 | p50 to ours | to ours, cosine alone | of the exhaustive result | same " +
			"order | resident | queries |")
		fmt.Println("|---|---|---|---|---|---|---|---|---|")
		for _, f := range t.Figures {
			found, same := "", ""
			if f.Compared > 0 {
				found, same = fmt.Sprintf("%.1f %%", 100*f.Recall), fmt.Sprintf("%.1f %% of %d", 100*f.Same, f.Compared)
			}
			fmt.Printf("| %s | %s | %s | %s | %s | %s | %s | %s | %d |\n", engines[f.Engine].title, ms(f.P50),
				ms(f.P95), t.ratio(f, "hybrid"), t.ratio(f, "cosine"), found, same, megabytes(f.Resident), f.Asked)
		}
		for _, f := range t.Figures {
			if f.About != "" {
				fmt.Printf("\n%s: %s\n", engines[f.Engine].title, f.About)
			}
		}
		fmt.Printf("\nthe store took %.0f entries per second in batches of %d, %s on disk\n", t.Fill.Rate, fillBatch,
			megabytes(t.Fill.Bytes))
	}
	for _, s := range r.Systems {
		s.print()
	}
	r.printLimits()
}

func (s *systemFigures) print() {
	fmt.Printf("\nconclave up with %s entries, vectors of %d numbers: ready after %.1f s, resident %s, without "+
		"entries %s\n\n", short(s.Rows), systemDims, s.Ready, megabytes(s.Resident), megabytes(s.Empty))
	fmt.Println("| over HTTP | searches | p50 | p95 | p99 |\n|---|---|---|---|---|")
	row := func(what string, l load) {
		fmt.Printf("| %s | %d | %s | %s | %s |\n", what, l.Searches, ms(l.P50), ms(l.P95), ms(l.P99))
	}
	row("one search after the other", s.Single)
	if s.Stored > 0 {
		row(fmt.Sprintf("%d searches per second while %d entries are stored, %.0f per second by %d clients", s.Searches,
			s.Stored, s.Rate, writers), s.During)
		fmt.Printf("\nresident after the writes: %s\n", megabytes(s.After))
	}
	fmt.Printf("\n%d errors %s\n", s.Errors, s.First)
}

func (r *report) printLimits() {
	if len(r.Limits) == 0 {
		return
	}
	fmt.Println("\n| target | measured | aim | |\n|---|---|---|---|")
	for _, l := range r.Limits {
		verb, verdict := "at least", "holds"
		if l.Most {
			verb = "at most"
		}
		if !l.holds() {
			verdict = "DOES NOT HOLD"
		}
		fmt.Printf("| %s | %.4g | %s %g | %s |\n", l.Text, l.Got, verb, l.Aim, verdict)
	}
}

// ratio returns the p50 of f to that of another engine, "" without that one.
func (t table) ratio(f figure, to string) string {
	g, ok := t.of(to)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%.1f", f.P50/g.P50)
}

func ms(v float64) string {
	switch {
	case v < 1:
		return fmt.Sprintf("%.2f ms", v)
	case v < 100:
		return fmt.Sprintf("%.1f ms", v)
	}
	return fmt.Sprintf("%.0f ms", v)
}

func megabytes(n int64) string { return fmt.Sprintf("%.0f MB", float64(n)/(1<<20)) }
