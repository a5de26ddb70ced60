package conversation

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

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
