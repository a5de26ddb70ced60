package main

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func writeData(t *testing.T, lines ...string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "data.jsonl")
	if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func turnLine(conv, id, text string) string {
	return `{"kind":"turn","conv":"` + conv + `","id":"` + id +
		`","session":1,"date":"1:56 pm on 8 May, 2023","speaker":"Ana","text":"` + text + `","caption":null}`
}

func questionLine(conv, text, evidence string) string {
	return `{"kind":"question","conv":"` + conv + `","category":"temporal","question":"` + text + `","evidence":["` +
		evidence + `"]}`
}

// Positions count per conversation, evidence is looked up in its own conversation, and a question without any is left
// out.
func TestDatasetNumbersTurnsAndResolvesEvidence(t *testing.T) {
	t.Parallel()
	d, err := readDataset(writeData(t, turnLine("1", "a", "hi"), turnLine("2", "a", "ho"), turnLine("1", "b", "he"),
		questionLine("2", "who?", "a"), questionLine("2", "what?", "b")))
	if err != nil {
		t.Fatal(err)
	}
	if got := d.turns[2]; got.position != 2 || got.plain() != `(1:56 pm on 8 May, 2023) Ana said, "he"` ||
		!got.happened.Equal(time.Date(2023, 5, 8, 13, 56, 0, 0, time.UTC)) {
		t.Errorf("got %+v", got)
	}
	if len(d.questions) != 1 || d.skipped != 1 || !slices.Equal(d.questions[0].evidence, []int{1}) ||
		!slices.Equal(d.conversations, []string{"1", "2"}) {
		t.Errorf("questions %+v, %d skipped, conversations %v", d.questions, d.skipped, d.conversations)
	}
}

func TestDatasetRejectsInvalidFiles(t *testing.T) {
	t.Parallel()
	for name, lines := range map[string][]string{
		"unknown kind": {`{"kind":"song"}`},
		"other date":   {strings.ReplaceAll(turnLine("1", "a", "hi"), "8 May, 2023", "2023-05-08")},
		"no questions": {turnLine("1", "a", "hi")},
		"not JSON":     {"hello"},
	} {
		if _, err := readDataset(writeData(t, lines...)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// Two of four pieces of evidence in the first five are half the recall; the first of them decides the reciprocal rank.
func TestRecallCountsShareOfEvidence(t *testing.T) {
	t.Parallel()
	var f figures
	f.add([]int{7, 1, -1, 4})
	f.add([]int{-1})
	for i, want := range []float64{25, 37.5, 37.5} {
		if got := f.recall(i); math.Abs(got-want) > 1e-9 {
			t.Errorf("recall at %d is %v, want %v", depths[i], got, want)
		}
	}
	if got := f.mrr(); got != 25 {
		t.Errorf("MRR %v, want 25", got)
	}
}

func TestBM25RanksRareStemsFirstAndDropsStopWords(t *testing.T) {
	t.Parallel()
	b := newBM25([]string{
		"the boat and the sea", "she was painting boats at sunrise", "what did he do",
		"a sea, a sea",
	})
	if got := b.rank("What did she paint?", depth); !slices.Equal(got, []int{1}) {
		t.Errorf("got %v", got)
	}
	if got := b.rank("boat", depth); !slices.Equal(got, []int{0, 1}) { // the shorter text first
		t.Errorf("got %v", got)
	}
	if got := b.rank("what did he do", depth); got[0] != 2 { // nothing but stop words
		t.Errorf("got %v", got)
	}
}

func TestGridHasEveryCombination(t *testing.T) {
	t.Parallel()
	grid, err := parseGrid("words=0.6/0.8,speaker=0.1")
	if err != nil || len(grid) != 2 || grid[1].String() != "speaker=0.1,words=0.8" ||
		grid[1].settings() != "weights: {speaker: 0.1, words: 0.8}\n" {
		t.Errorf("got %v, %v", grid, err)
	}
	for _, bad := range []string{"words", "words=much", "=1"} {
		if _, err := parseGrid(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// The weights of a fold are those that are best without its conversation, even when others are better on it.
func TestCrossValidationChoosesWithoutTheConversation(t *testing.T) {
	t.Parallel()
	result := func(a, b float64) *outcome {
		return &outcome{byConversation: map[string]*figures{
			"a": {questions: 1, at: [3]float64{0, a, 0}},
			"b": {questions: 1, at: [3]float64{0, b, 0}},
		}}
	}
	folds, mean := crossValidate([]string{"a", "b"}, []*outcome{result(0.9, 0.2), result(0.5, 0.8)})
	if folds[0].best != 1 || folds[1].best != 0 {
		t.Errorf("folds %+v", folds)
	}
	if math.Abs(mean[1]-(50+20)/2.0) > 1e-9 {
		t.Errorf("mean %v", mean)
	}
}
