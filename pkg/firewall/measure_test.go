//go:build measure

package firewall

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

// half splits the rows by a hash, so that rules can be written on one half and measured on the other.
func half(key string) int {
	sum := sha256.Sum256([]byte(key))
	return int(sum[0] & 1)
}

// part counts flagged texts.
type part struct{ flagged, all int }

func (p *part) count(flagged bool) {
	p.all++
	if flagged {
		p.flagged++
	}
}

func (p part) String() string {
	return fmt.Sprintf("%d of %d (%.1f %%)", p.flagged, p.all, 100*float64(p.flagged)/float64(max(p.all, 1)))
}

func (p part) rate() float64 { return float64(p.flagged) / float64(max(p.all, 1)) }

func TestDevTexts(t *testing.T) {
	attacks, harmless := rows(t, "injections-dev.jsonl"), rows(t, "benign-dev.jsonl")
	verbose := os.Getenv("CONCLAVE_TEXTS_SHOW")
	var recall, wrong part
	var recallHalf, wrongHalf [2]part
	techniques, categories := map[string]*part{}, map[string]*part{}
	tally := func(m map[string]*part, key string, flagged bool) {
		if m[key] == nil {
			m[key] = &part{}
		}
		m[key].count(flagged)
	}
	for _, r := range attacks {
		got := Scan(r.Text)
		recall.count(got.Flagged)
		recallHalf[half(r.Payload)].count(got.Flagged)
		tally(techniques, r.Technique, got.Flagged)
		if verbose == "missed" && !got.Flagged {
			t.Logf("missed %s score %d: %.300q\n%+v", r.Technique, got.Score, r.Text, got.Findings)
		}
	}
	bytes := 0
	start := time.Now()
	for _, r := range harmless {
		got := Scan(r.Text)
		bytes += len(r.Text)
		wrong.count(got.Flagged)
		wrongHalf[half(r.ID)].count(got.Flagged)
		tally(categories, r.Category, got.Flagged)
		if verbose == "wrong" && got.Flagged {
			t.Logf("wrong %s score %d: %+v", r.Category, got.Score, got.Findings)
		}
	}
	took := time.Since(start)

	t.Logf("recall %v; first half %v, second half %v", recall, recallHalf[0], recallHalf[1])
	t.Logf("false positives %v; first half %v, second half %v", wrong, wrongHalf[0], wrongHalf[1])
	for _, m := range []map[string]*part{techniques, categories} {
		var keys []string
		for k := range m {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			t.Logf("  %-32s %v", k, *m[k])
		}
	}
	t.Logf("%v per 10 KB over %d KB of harmless texts", took*10240/time.Duration(bytes), bytes>>10)
	if recall.rate() < 0.45 {
		t.Errorf("recall %v is below 45 %%", recall)
	}
	if wrong.rate() > 0.01 {
		t.Errorf("false positives %v are above 1 %%", wrong)
	}
}
