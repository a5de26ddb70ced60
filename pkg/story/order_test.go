package story

import (
	"testing"
	"time"
)

// Events of different authors that are stored within a moment count in either order; those of one author, or further
// apart, do not.
func TestOrderBetweenAuthorsIsNotExact(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	event := func(subject, from string, after time.Duration) Event {
		return Event{Subject: subject, From: from, Time: begun.Add(after)}
	}
	for _, tt := range []struct {
		name   string
		events []Event
		want   []string
		fails  bool
	}{
		{"another author a moment earlier", []Event{
			event("b", "reward", 0), event("a", "broker", time.Millisecond),
			event("c", "broker", time.Second),
		}, []string{"a", "b", "c"}, false},
		{
			"another author long before",
			[]Event{event("b", "reward", 0), event("a", "broker", time.Second)},
			[]string{"a", "b"},
			true,
		},
		{
			"the same author",
			[]Event{event("b", "broker", 0), event("a", "broker", time.Millisecond)},
			[]string{"a", "b"},
			true,
		},
		{
			"one event for two",
			[]Event{event("b", "reward", 0), event("a", "broker", time.Millisecond)},
			[]string{"a", "b", "b"},
			true,
		},
	} {
		c := checker{story: &Story{}, events: tt.events}
		want := make([]EventPattern, len(tt.want))
		for i, w := range tt.want {
			if err := want[i].UnmarshalText([]byte(w)); err != nil {
				t.Fatal(err)
			}
		}
		if c.checkOrder(want); (len(c.failures) > 0) != tt.fails {
			t.Errorf("%s: failures %v", tt.name, c.failures)
		}
	}
}
