package recall

import (
	"bufio"
	"encoding/json"
	"os"
	"testing"
)

// TestHeldQuestions: the figures in the package comment are what the index of words finds for questions that were
// written for this measurement and that no word list was changed for since.
func TestHeldQuestions(t *testing.T) {
	t.Parallel()
	f, err := os.Open("testdata/held_questions.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	type row struct{ Language, Entry, Question string }
	var all []row
	index := newWordIndex()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var r row
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
		index.add(&record{key: uint64(len(all))}, "", r.Entry)
	}
	first := map[string]int{}
	for i, r := range all {
		q := index.search(r.Question)
		best, score := uint64(0), float32(0)
		for key := range q.matches() {
			if m := q.match(uint32(key)); m.share > score { // rows are numbered as they were added
				best, score = key, m.share
			}
		}
		q.release()
		if best == uint64(i+1) {
			first[r.Language]++
		}
	}
	if first["en"] != 39 || first["de"] != 10 || len(all) != 50 {
		t.Errorf("first for %v of %d questions", first, len(all))
	}
}
