package conversation

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/subjects"
)

// The number of turns, of past query ids and of bytes is bounded.
func TestBounds(t *testing.T) {
	t.Parallel()
	c := subjects.Conversation{SessionID: "s", Turns: []subjects.Turn{}}
	for i := range 300 {
		before := len(c.Turns)
		next, data, err := add(c, subjects.Turn{QueryID: fmt.Sprint("q", i), Query: "why", Answer: "because"},
			50)
		if err != nil || len(c.Turns) != before || len(data) > maxBytes {
			t.Fatal(err, len(c.Turns), len(data))
		}
		c = next
	}
	if len(c.Turns) != 50 || c.Dropped != 250 || c.Turns[0].QueryID != "q250" || len(c.Past) != maxPast ||
		!c.Answered("q249") || !c.Answered("q299") || c.Answered("q49") {
		t.Errorf("%d turns, %d dropped, %d past", len(c.Turns), c.Dropped, len(c.Past))
	}
	big := strings.Repeat("é<", 60<<10)
	for i := range 8 {
		var err error
		var data []byte
		c, data, err = add(c, subjects.Turn{QueryID: fmt.Sprint("b", i), Query: "why", Answer: big}, 50)
		if err != nil || len(data) > maxBytes {
			t.Fatal(err, len(data))
		}
	}
	if n := len(c.Turns); n < 2 || n > 10 || c.Turns[n-1].Answer != big {
		t.Errorf("%d turns", len(c.Turns))
	}
	huge := subjects.Turn{
		QueryID: "h", Query: strings.Repeat("\x02", 120<<10), Answer: strings.Repeat("x", 500<<10),
		Messages: []subjects.Message{{Role: "tool", Content: strings.Repeat("y", 800<<10)}},
	}
	c, data, err := add(c, huge, 50)
	if err != nil || len(data) > maxBytes || len(c.Turns) != 1 || c.Turns[0].Messages != nil ||
		len(c.Turns[0].Answer) < 1000 {
		t.Errorf("%v, %d bytes, %+v", err, len(data), len(c.Turns))
	}
}

// archived reads the archived turns of a conversation, by query id.
func archived(t *testing.T, store actor.Store, c subjects.Conversation) (queries []string) {
	t.Helper()
	for n := range c.Archived {
		data, _, err := store.Get(t.Context(), c.ArchivedTurnKey(n))
		if err != nil {
			t.Fatal(err)
		}
		var turn subjects.Turn
		if err := json.Unmarshal(data, &turn); err != nil {
			t.Fatal(err)
		}
		queries = append(queries, turn.QueryID)
	}
	return queries
}

// TestNothingIsLost: turns that leave a conversation, by their number, a summary or their size, are in the archive in
// order, each once, also when a process ends between the archive and the conversation and when another one writes
// first.
func TestNothingIsLost(t *testing.T) {
	t.Parallel()
	rec := &actortest.Recorder{}
	store := rec.Out().Store("state_generator")
	c, rev, err := Read(t.Context(), store, "s1")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	big := strings.Repeat("x", 200<<10)
	for n := range 300 {
		turn := subjects.Turn{QueryID: fmt.Sprint("q", n), Query: fmt.Sprint("question ", n), Answer: "yes"}
		if n%40 > 35 {
			turn.Answer = big // four of them do not fit
		}
		switch n % 7 {
		case 0: // what a process leaves that ends before the conversation is written
			if err := archive(t.Context(), store, c, min(3, len(c.Turns))); err != nil {
				t.Fatal(err)
			}
		case 3: // another one writes first
			other, at, err := Read(t.Context(), store, "s1")
			if err != nil {
				t.Fatal(err)
			}
			_, _, _, err = Append(t.Context(), store, other, at, func() subjects.Turn {
				return subjects.Turn{QueryID: fmt.Sprint("other", n)}
			}, 50)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, fmt.Sprint("other", n))
		}
		want = append(want, turn.QueryID)
		if c, rev, _, err = Append(t.Context(), store, c, rev, func() subjects.Turn { return turn }, 50); err != nil {
			t.Fatal(err)
		}
		if n%60 == 59 { // a summary
			half := len(c.Turns) / 2
			next := RemoveOldest(c, half)
			next.Summarized += half
			if rev, err = Replace(t.Context(), store, c, rev, next); err != nil {
				t.Fatal(err)
			}
			c = next
		}
	}
	got := archived(t, store, c)
	for _, turn := range c.Turns {
		got = append(got, turn.QueryID)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	if c.First != "question 0" || c.Archived != c.Summarized+c.Dropped || len(c.Turns) > 50 {
		t.Errorf("first %q, %d archived of %d and %d, %d turns", c.First, c.Archived, c.Summarized, c.Dropped,
			len(c.Turns))
	}
	if err := EraseArchive(t.Context(), store, "s1", EveryDeletion); err != nil {
		t.Fatal(err)
	}
	for n := range c.Archived {
		if data, _, err := store.Get(t.Context(), c.ArchivedTurnKey(n)); err == nil && len(data) > 0 {
			t.Fatalf("turn %d is there after the deletion: %s", n, data)
		}
	}
}

// TestDeletionEndsStaleWriters: a writer that read a conversation before the user deleted it leaves none of its turns
// in the archive, and changes none of the turns that were archived since.
func TestDeletionEndsStaleWriters(t *testing.T) {
	t.Parallel()
	rec := &actortest.Recorder{}
	store := rec.Out().Store("state_generator")
	add := func(c subjects.Conversation, rev uint64, query string) (subjects.Conversation, uint64) {
		t.Helper()
		c, rev, _, err := Append(t.Context(), store, c, rev, func() subjects.Turn {
			return subjects.Turn{QueryID: query, Answer: "answer " + query}
		}, 2)
		if err != nil {
			t.Fatal(err)
		}
		return c, rev
	}
	c, rev, err := Read(t.Context(), store, "s1")
	if err != nil {
		t.Fatal(err)
	}
	for _, query := range []string{"a", "b", "c", "d"} {
		c, rev = add(c, rev, query)
	}
	stale, staleRev := c, rev
	data, err := Erase(c, time.Now())
	if err == nil {
		_, err = store.Put(t.Context(), subjects.ConversationKey("s1"), data, rev)
	}
	if err == nil {
		err = EraseArchive(t.Context(), store, "s1", EveryDeletion)
	}
	if err != nil {
		t.Fatal(err)
	}
	// A summary, which ends, and a turn, which is repeated.
	summarize := func() error {
		_, err := Replace(t.Context(), store, stale, staleRev, RemoveOldest(stale, 2))
		return err
	}
	if err := summarize(); !errors.Is(err, actor.ErrChanged) {
		t.Errorf("a stale summary: %v", err)
	}
	if c, rev = add(stale, staleRev, "e"); c.Deletions != 1 || len(c.Turns) != 1 || c.Deleted {
		t.Errorf("a turn after the deletion: %+v", c)
	}
	for _, query := range []string{"f", "g", "h"} {
		c, rev = add(c, rev, query)
	}
	if err := summarize(); !errors.Is(err, actor.ErrChanged) {
		t.Errorf("a stale summary after later turns: %v", err)
	}
	if got := archived(t, store, c); !slices.Equal(got, []string{"e", "f"}) {
		t.Errorf("the archive has %q", got)
	}
	keys, err := store.Keys(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		data, _, err := store.Get(t.Context(), key)
		for _, deleted := range "abcd" {
			if err == nil && strings.Contains(string(data), "answer "+string(deleted)) {
				t.Errorf("%s is there after the deletion: %s", key, data)
			}
		}
	}
}

// Concurrent writers are retried: the turn is added once to what the last of them stored, until they win every attempt.
func TestAppendAgainstOthers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		others int
		code   string
	}{{0, ""}, {7, ""}, {8, subjects.CodeBusy}} {
		rec := &actortest.Recorder{}
		store := rec.Out().Store("state_generator")
		c, rev, err := Read(t.Context(), store, "s1")
		if err != nil || rev != 0 || c.SessionID != "s1" {
			t.Fatal(err, rev, c)
		}
		n := 0
		next := func() subjects.Turn {
			if n++; n <= tt.others { // another writer is first
				there, at, err := Read(t.Context(), store, "s1")
				if err == nil {
					_, _, _, err = Append(t.Context(), store, there, at, func() subjects.Turn {
						return subjects.Turn{QueryID: fmt.Sprint("other", n)}
					}, 50)
				}
				if err != nil {
					t.Error(err)
				}
			}
			return subjects.Turn{QueryID: "q1", Answer: "yes"}
		}
		c, rev, size, err := Append(t.Context(), store, c, rev, next, 50)
		if actortest.Code(err) != tt.code {
			t.Fatal(err)
		}
		if tt.code != "" {
			continue
		}
		if len(c.Turns) != tt.others+1 || c.Turns[tt.others].QueryID != "q1" || size == 0 {
			t.Errorf("%d others: %+v, %d bytes", tt.others, c, size)
		}
		_, again, size, err := Append(t.Context(), store, c, rev, next, 50)
		if err != nil || size != 0 || again != rev {
			t.Errorf("added twice: %v", err)
		}
	}
}

// A conversation that cannot be decoded is not taken for an empty one, and a deleted one keeps its query ids.
func TestReadAndErase(t *testing.T) {
	t.Parallel()
	store := (&actortest.Recorder{}).Out().Store("state_generator")
	rev, err := store.Put(t.Context(), subjects.ConversationKey("s1"), []byte("no JSON"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := Read(t.Context(), store, "s1"); err == nil {
		t.Error("read")
	}
	data, err := Erase(subjects.Conversation{
		SessionID: "s1", Past: []string{"a"}, Turns: []subjects.Turn{{QueryID: "c", Answer: "secret"}},
		Branches: []subjects.Branch{{Turns: []subjects.Turn{{QueryID: "b", Query: "secret"}}}}, Summary: "secret",
	}, time.Unix(0, 0))
	if err == nil {
		_, err = store.Put(t.Context(), subjects.ConversationKey("s1"), data, rev)
	}
	c, _, rerr := Read(t.Context(), store, "s1")
	if err != nil || rerr != nil || !c.Deleted || !slices.Equal(c.Past, []string{"a", "b", "c"}) ||
		strings.Contains(string(data), "secret") {
		t.Errorf("%v %v %s", err, rerr, data)
	}
}
