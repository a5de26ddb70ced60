package memory

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"conclave/actors/memory/store"
	"conclave/subjects"
)

// letters makes a word of its own of a number: numbers themselves would be compared as such.
func letters(n int) string {
	b := []byte("qaaaa")
	for i := len(b) - 1; n > 0; i-- {
		b[i] += byte(n % 26)
		n /= 26
	}
	return string(b)
}

// TestConcurrentOperations: entries are stored, graded, edited, recalled and forgotten concurrently while embedding
// fails at times and the model changes. Acknowledged entries are found, forgotten ones are never seen again.
func TestConcurrentOperations(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	var calls atomic.Int64
	var steady atomic.Bool // it stumbles no more
	one1, two2 := wordEmbedder("words-1", 64), wordEmbedder("words-2", 32)
	w.setEmbedder(func(texts []string) (subjects.EmbedReply, error) {
		switch n := calls.Add(1); {
		case n%9 == 0 && !steady.Load():
			return subjects.EmbedReply{}, errors.New("it stumbles")
		case n < 60:
			return one1(texts)
		}
		return two2(texts)
	})
	if err := w.m.Start(t.Context(), w.rec.Out()); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	gone := map[string]bool{}
	// recalls asks for some words, and reports what was seen that was forgotten before it was asked.
	recalls := func(query string, fresh bool) []string {
		mu.Lock()
		before := maps.Clone(gone)
		mu.Unlock()
		replies, err := deliver[subjects.MemoryReply](w, "ctl.user.memory.query", "", "",
			subjects.MemoryQuery{Query: query, Fresh: fresh})
		if err != nil {
			t.Errorf("recalling %s: %v", query, err)
			return nil
		}
		for _, r := range replies {
			for _, h := range r.Hits {
				if before[h.Entry.ID] {
					t.Errorf("%s was forgotten and is shown in %s, cached %t", h.Entry.ID, r.Stage, r.Cached)
				}
			}
		}
		var ids []string
		for _, h := range last(replies).Hits {
			ids = append(ids, h.Entry.ID)
		}
		return ids
	}
	const workers, rounds = 3, 4
	var kept [workers][]string // query ids
	var busy, rest sync.WaitGroup
	beats := make(chan struct{}, workers*rounds)
	rest.Go(func() { // somebody who asks the same again and again, with the cache
		for range beats {
			recalls("parcel", false)
		}
	})
	for worker := range workers {
		busy.Go(func() {
			for round := range rounds {
				n := 1000*worker + 10*round
				query := fmt.Sprintf("q-%d", n)
				beats <- struct{}{}
				a, b, c := letters(n), letters(n+1), letters(n+2)
				if err := w.deliverAnswer("generator", subjects.Response{
					SessionID: "s1", QueryID: query,
					Query: "Parcel " + a + "?", Answer: "Parcel " + a + " holds " + b +
						".", Labels: trusted(),
				}); err != nil {
					t.Errorf("storing %s: %v", query, err)
					return
				}
				id := deriveID(subjects.KindEngram, query, "generator")
				found := func(word string) {
					if got := recalls("parcel "+word, round%2 == 0); !slices.Contains(got, id) {
						t.Errorf("%s was stored, and %s recalls %v", id, word, got)
					}
				}
				found(a)
				if err := w.critique(uint64(n+1), subjects.Critique{
					QueryID: query, RespondentID: "generator",
					Score: 1 + round%5,
				}); err != nil {
					t.Error(err)
				}
				if _,
					err := w.admin(subjects.MemoryAdminRequest{
					Op: "edit", IDs: []string{id},
					Edit: &subjects.MemoryEdit{
						Name:        new("Parcel " + c),
						Description: new("Parcel " + c + " holds " + b + "."),
					},
				}); err != nil {
					t.Errorf("changing %s: %v", id, err)
				}
				found(c)
				if round%2 == 1 {
					kept[worker] = append(kept[worker], query)
					continue
				}
				if done, err := w.admin(subjects.MemoryAdminRequest{Op: "forget", IDs: []string{id}}); err != nil ||
					done.Changed != 1 {
					t.Errorf("forgetting %s: %+v, %v", id, done, err)
				}
				mu.Lock()
				gone[id] = true
				mu.Unlock()
				for _, word := range []string{a, b, c} {
					if got := recalls("parcel "+word, false); slices.Contains(got, id) {
						t.Errorf("%s was forgotten, and %s recalls %v", id, word, got)
					}
				}
				// Its event comes once more.
				if err := w.deliverAnswer("generator", subjects.Response{
					SessionID: "s1", QueryID: query,
					Query: "Parcel " + a + "?", Answer: "Parcel " + a + " holds " + b +
						".", Labels: trusted(),
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	busy.Wait()
	close(beats)
	rest.Wait()
	// After a restart it is the same. Without a vector a recall needs the words, which are ready a little later.
	steady.Store(true)
	w.restart()
	for worker, queries := range kept {
		for i, query := range queries {
			id, state, err := w.db.FindAnswer(t.Context(), query, "generator")
			if err != nil || state != store.Stored || w.entry(id).Grades.Critic == 0 ||
				!strings.HasPrefix(w.entry(id).Name, "Parcel q") {
				t.Errorf("%s is %q, %v", query, state, err)
			}
			if n := 1000*worker + 10*(2*i+1); !slices.Contains(w.recallIDs("parcel "+letters(n+2)), id) {
				t.Errorf("%s is not recalled", id)
			}
		}
	}
	if want := workers * (rounds / 2); w.count() != want {
		t.Errorf("%d entries, want %d", w.count(), want)
	}
}
