//go:build measure

package digest

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"conclave/pkg/firewall"
	"conclave/pkg/text"
)

// row is a line of the two files of texts.
type row struct{ ID, Technique, Category, Payload, Text string }

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

// TestDevTexts counts the orders that survive the stripper, and how much of harmless texts does.
func TestDevTexts(t *testing.T) {
	type part struct{ n, all int }
	verbose := os.Getenv("CONCLAVE_TEXTS_SHOW")
	survived, kept := map[string]*part{}, map[string]*part{}
	count := func(m map[string]*part, key string, n, all int) {
		for _, k := range []string{key, "all"} {
			if m[k] == nil {
				m[k] = &part{}
			}
			m[k].n += n
			m[k].all += all
		}
	}
	for _, r := range rows(t, "injections-dev.jsonl") {
		sentences, _ := stripOrders(r.Text)
		left := strings.Join(sentences, " ")
		if firewall.Scan(left).Flagged {
			t.Errorf("%s is still flagged", r.ID)
		}
		hit := 0
		whole := text.Fold(left)
		for _, s := range text.SentenceTexts(r.Payload, 100) {
			if len(text.Words(s)) >= 4 && strings.Contains(whole, text.Fold(s)) {
				hit = 1
				if verbose == "survived" {
					t.Logf("%s %s: %.200q", r.ID, r.Technique, s)
				}
				break
			}
		}
		count(survived, r.Technique, hit, 1)
	}
	for _, r := range rows(t, "benign-dev.jsonl") {
		sentences, _ := stripOrders(r.Text)
		left := strings.Join(sentences, " ")
		if verbose == r.Category {
			t.Logf("%s: %d of %d bytes\n%s\n--- left:\n%s", r.ID, len(left), len(r.Text), r.Text, left)
		}
		count(kept, r.Category, len(left), len(r.Text))
	}
	for _, m := range []map[string]*part{survived, kept} {
		var names []string
		for k := range m {
			names = append(names, k)
		}
		slices.Sort(names)
		for _, k := range names {
			t.Logf("%-40s %7d of %7d (%.1f %%)", k, m[k].n, m[k].all, 100*float64(m[k].n)/float64(m[k].all))
		}
	}
}
