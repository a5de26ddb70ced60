package main

import (
	"fmt"
	"slices"
	"strings"
)

// report is one run.
type report struct {
	Asks   int        `json:"queries"`
	Flat   []table    `json:"flat"`
	Staged []table    `json:"staged"`
	Fills  []filled   `json:"fills"`
	Starts []started  `json:"starts"`
	Ingest []ingested `json:"ingest"`
	Limits []limit    `json:"limits"`
}

// table is a contest at one size.
type table struct {
	Rows    int      `json:"rows"`
	Figures []figure `json:"figures"`
}

func (t table) of(engine string) (figure, bool) {
	i := slices.IndexFunc(t.Figures, func(f figure) bool { return f.Engine == engine })
	if i < 0 {
		return figure{}, false
	}
	return t.Figures[i], true
}

// limit is what should hold.
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

func (r *report) most(got, aim float64, text string, args ...any) {
	r.Limits = append(r.Limits, limit{fmt.Sprintf(text, args...), got, aim, true})
}

func (r *report) least(got, aim float64, text string, args ...any) {
	r.Limits = append(r.Limits, limit{fmt.Sprintf(text, args...), got, aim, false})
}

// The limits. Ratios are of the p50.
const (
	leastRecall   = 0.999 // of our search, of the exact twenty
	leastSame     = 1     // of our staged recall: the five that an exact one finds
	leastChromem  = 8     // chromem-go with a second stage to ours, at 100,000 rows
	leastDefaults = 25    // the same stages in SQL to ours
	leastTuned    = 5
	mostOfRead    = 0.45 // ours to one read of the names' bytes
	mostExact     = 100  // milliseconds at a million rows
	mostPrefilter = 30   // the same with the prefilter, where its recall is good enough
	goodPrefilter = 0.99
	mostStart     = 2 // seconds until 100,000 entries can be recalled
	mostWriting   = 2 // p99 of a recall while engrams are written to that while none are
)

const million = 1_000_000

// limits fills in what the sizes that ran can tell.
func (r *report) limits() {
	for _, t := range r.Flat {
		// Above prefilterFrom the exact path has to be exact, and the prefilter only good enough.
		if f, ok := t.of("exact"); ok {
			r.least(f.Recall, leastRecall, "search at %s, prefilter off, recall", short(t.Rows))
		}
		if f, ok := t.of("ours"); ok {
			aim := leastRecall
			if t.Rows > prefilterFrom {
				aim = goodPrefilter
			}
			r.least(f.Recall, aim, "search at %s, recall", short(t.Rows))
		}
		if t.Rows == million {
			r.largeLimits("search", t)
		}
	}
	for _, t := range r.Staged {
		f, ok := t.of("ours")
		if !ok {
			continue
		}
		if e, ok := t.of("exact"); ok {
			r.least(e.Same, leastSame, "staged recall at %s, prefilter off, same five as exact", short(t.Rows))
		} else {
			r.least(f.Same, leastSame, "staged recall at %s, same five as exact", short(t.Rows))
		}
		if t.Rows == sideBySide {
			r.stagedLimits(t, f)
		}
		if t.Rows == million {
			r.largeLimits("staged recall", t)
		}
	}
	for _, s := range r.Starts {
		if s.Rows == sideBySide {
			r.most(s.Seconds, mostStart, "start with %s entries, seconds", short(s.Rows))
		}
	}
	for _, in := range r.Ingest {
		for _, k := range in.Kinds {
			if in.Rows >= sideBySide && k.During.Recalls > 0 {
				r.most(k.During.P99/in.Idle.P99, mostWriting, "recall at %s, p99 while engrams are %s, to idle", short(in.Rows), k.Kind)
			}
		}
	}
}

func (r *report) stagedLimits(t table, ours figure) {
	for _, against := range []struct {
		engine string
		aim    float64
	}{{"chromem", leastChromem}, {"duckdb", leastDefaults}, {"tuned", leastTuned}} {
		if f, ok := t.of(against.engine); ok {
			r.least(f.P50/ours.P50, against.aim, "staged recall at %s, %s to ours", short(t.Rows), titles[against.engine])
		}
	}
	if f, ok := t.of("stream"); ok {
		r.most(ours.P50/f.P50, mostOfRead, "staged recall at %s, ours to one read of the names' bytes", short(t.Rows))
	}
}

// largeLimits are those of a million rows.
func (r *report) largeLimits(what string, t table) {
	if f, ok := t.of("exact"); ok {
		r.most(f.P50, mostExact, "%s at 1m, prefilter off, p50 in ms", what)
	}
	// Where the prefilter is not good enough it switches itself off, and then the exact path's limit holds.
	if f, ok := t.of("ours"); ok {
		aim := float64(mostExact)
		if f.Prefilter {
			aim = mostPrefilter
		}
		r.most(f.P50, aim, "%s at 1m, p50 in ms", what)
	}
}

func (r *report) print() {
	fmt.Printf("Vectors of %d dimensions in clusters, %d queries, one process for each contender. Up to %s rows they take turns in blocks of %d; above, one after the other.\n", dims, r.Asks, short(sideBySide), block)
	for _, t := range r.Flat {
		fmt.Printf("\nThe %d nearest of %s rows:\n\n", names, short(t.Rows))
		fmt.Println("| engine | p50 | p99 | of one read | to ours | recall | rows/s taken in | resident | at most | asked |")
		fmt.Println("|---|---|---|---|---|---|---|---|---|---|")
		for _, f := range t.Figures {
			recall := fmt.Sprintf("%.4f", f.Recall)
			if f.Engine == "stream" {
				recall = ""
			}
			fmt.Printf("| %s | %s | %s | %s | %s | %s | %.0f | %s | %s | %d |\n", titles[f.Engine], ms(f.P50), ms(f.P99), t.ratio(f, "stream"), t.ratio(f, "ours"), recall, f.Rate, bytes(f.Resident), bytes(f.Peak), f.Asked)
		}
		t.printAbout()
	}
	for _, t := range r.Staged {
		fmt.Printf("\nThe staged recall of %s rows: %d by name, %d by description, the corpus of those:\n\n", short(t.Rows), names, top)
		fmt.Println("| engine | p50 | p99 | of one read | to ours | same five | in the same order | resident | asked |")
		fmt.Println("|---|---|---|---|---|---|---|---|---|")
		for _, f := range t.Figures {
			same, ordered := fmt.Sprintf("%.1f %%", 100*f.Same), fmt.Sprintf("%.1f %%", 100*f.Ordered)
			if f.Engine == "stream" {
				same, ordered = "", ""
			}
			fmt.Printf("| %s | %s | %s | %s | %s | %s | %s | %s | %d |\n", titles[f.Engine], ms(f.P50), ms(f.P99), t.ratio(f, "stream"), t.ratio(f, "ours"), same, ordered, bytes(f.Resident), f.Asked)
		}
		t.printAbout()
	}
	r.printStore()
	r.printLimits()
}

func (r *report) printStore() {
	if len(r.Fills)+len(r.Starts)+len(r.Ingest) > 0 {
		fmt.Println()
	}
	for _, f := range r.Fills {
		fmt.Printf("the store took %s entries in batches of %d: %.0f per second, %s on disk\n", short(f.Rows), fillBatch, f.Rate, bytes(f.Bytes))
	}
	for _, s := range r.Starts {
		fmt.Printf("start with %s entries, best of %d: %.2f s (store opened after %.2f s), then resident %s, at most %s; words ready after %.2f s more\n",
			short(s.Rows), s.Times, s.Seconds, s.Opened, bytes(s.Resident), bytes(s.Peak), s.Words)
	}
	for _, in := range r.Ingest {
		fmt.Printf("\nA recall of %s entries each %s, idle and while %d answers at once are remembered:\n\n", short(in.Rows), pace, writers)
		fmt.Println("| engrams are | written alone | with recalls beside | recall p50 | p99 | p99 to idle | recalls |")
		fmt.Println("|---|---|---|---|---|---|---|")
		fmt.Printf("| not written | | | %s | %s | 1.00 | %d |\n", ms(in.Idle.P50), ms(in.Idle.P99), in.Idle.Recalls)
		for _, k := range in.Kinds {
			fmt.Printf("| %s | %.0f/s | %.0f/s | %s | %s | %.2f | %d |\n", k.Kind, k.Alone, k.Rate, ms(k.During.P50), ms(k.During.P99), k.During.P99/in.Idle.P99, k.During.Recalls)
		}
	}
}

func (r *report) printLimits() {
	if len(r.Limits) == 0 {
		return
	}
	fmt.Println("\n| limit | seen | aim | |")
	fmt.Println("|---|---|---|---|")
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

func (t table) printAbout() {
	for _, f := range t.Figures {
		if f.About != "" {
			fmt.Printf("\n%s: %s\n", titles[f.Engine], strings.TrimSpace(f.About))
		}
	}
}

// ratio is the p50 of f to that of another contender, if that one is there.
func (t table) ratio(f figure, to string) string {
	g, ok := t.of(to)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%.2f", f.P50/g.P50)
}

func ms(v float64) string {
	switch {
	case v < 1:
		return fmt.Sprintf("%.3f ms", v)
	case v < 100:
		return fmt.Sprintf("%.1f ms", v)
	}
	return fmt.Sprintf("%.0f ms", v)
}

func bytes(n int64) string {
	if n >= 1<<30 {
		return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
}
