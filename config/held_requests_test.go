package config_test

import (
	"bufio"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// TestHeldRequests: the figures at policy.Tool.Rare are what the words of the tools find in requests that were written
// for this measurement, before anybody read the words.
func TestHeldRequests(t *testing.T) {
	t.Parallel()
	cfg, _ := load(t, nil)
	rare := map[string][]string{}
	for _, k := range cfg.BuildTools() {
		if len(k.Rare) > 0 {
			rare[k.Name] = k.Rare
		}
	}
	f, err := os.Open("testdata/held_requests.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var english, other, others, englishFound, otherFound, needless int
	for rows := bufio.NewScanner(f); rows.Scan(); {
		var row struct {
			Tools      []string
			Lang, Text string
		}
		if err := json.Unmarshal(rows.Bytes(), &row); err != nil {
			t.Fatal(err)
		}
		words := strings.FieldsFunc(strings.ToLower(row.Text), func(r rune) bool {
			return !unicode.IsLetter(r) && !unicode.IsDigit(r)
		})
		offered := func(tool string) int {
			if slices.ContainsFunc(rare[tool], func(w string) bool { return slices.Contains(words, w) }) {
				return 1
			}
			return 0
		}
		switch {
		case len(row.Tools) > 0 && rare[row.Tools[0]] == nil: // offered where the user has a folder for it
		case len(row.Tools) == 0:
			most := 0
			for tool := range rare {
				most = max(most, offered(tool))
			}
			others, needless = others+1, needless+most
		case row.Lang == "en":
			english, englishFound = english+1, englishFound+offered(row.Tools[0])
		default:
			other, otherFound = other+1, otherFound+offered(row.Tools[0])
		}
	}
	got := []int{len(rare), englishFound, english, otherFound, other, needless, others}
	if want := []int{2, 6, 12, 4, 8, 0, 28}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
