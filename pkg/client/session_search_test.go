package client_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"conclave/subjects"
)

// TestSearchSessions: all turns are searched, archived ones and those of the committee too, and none of a deleted
// session; case and accents do not matter, and every word must be in one turn.
func TestSearchSessions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	assistant, committee := f.sessionWriter(subjects.Generator), f.sessionWriter(subjects.Committee)
	at := func(n int) time.Time { return indexTime.Add(time.Duration(n) * time.Minute) }
	long := strings.Repeat("much text before it ", 20)
	assistant.put(subjects.Conversation{SessionID: "old"}.ArchivedTurnKey(0), subjects.Turn{
		QueryID: "q0", Query: "Where is the Café Zürich?", Answer: long + "It is in Barcelona.", Time: at(0),
	})
	assistant.put(subjects.ConversationKey("old"), subjects.Conversation{
		Archived: 1, Dropped: 1, Updated: at(1), First: "Where is the Café Zürich?",
		Turns: []subjects.Turn{{QueryID: "q1", Query: "And now?", Answer: "The tram.", Time: at(1)}},
	})
	committee.put(subjects.ConversationKey("said"), subjects.Conversation{Updated: at(2), Turns: []subjects.Turn{
		{QueryID: "q2", Query: "Barcelona or Lisbon?", Answer: "Lisbon.", Time: at(2)},
		{QueryID: "q3", Query: "Why?", Answer: "Barcelona has no tram 28.", Time: at(3)},
	}})
	assistant.put(subjects.ConversationKey("gone"), subjects.Conversation{Deleted: true, Updated: at(4)})
	for _, tt := range []struct{ words, want string }{
		{"cafe zurich", "old/q0/1"},
		{"BARCELONA", "said/q3/2 old/q0/1"},
		{"barcelona tram", "said/q3/1"},
		{"cafe tram", ""},
		{"  ", ""},
		{"nothing", ""},
	} {
		found, left, err := f.c.SearchSessions(t.Context(), tt.words, 10)
		var got []string
		for _, m := range found {
			got = append(got, fmt.Sprintf("%s/%s/%d", m.ID, m.Latest.QueryID, m.Found))
			if len(m.Excerpt) > 200 || !strings.Contains(m.Excerpt, "arcelona") && tt.words != "cafe zurich" {
				t.Errorf("%q: the excerpt is %q", tt.words, m.Excerpt)
			}
		}
		if strings.Join(got, " ") != tt.want || left != 0 || err != nil {
			t.Errorf("%q: %v, %d left, %v, want %s", tt.words, got, left, err, tt.want)
		}
	}
	assistant.put(subjects.ConversationKey("damaged"), "damaged")
	if found, left, err := f.c.SearchSessions(t.Context(), "tram", 10); len(found) != 2 || left != 1 || err != nil {
		t.Errorf("beside a damaged session: %d found, %d left, %v", len(found), left, err)
	}
	for n := range 30 {
		assistant.put(subjects.ConversationKey(fmt.Sprint("more", n)), subjects.Conversation{
			Updated: at(10), Turns: []subjects.Turn{{QueryID: "q", Query: "tram", Time: at(10)}},
		})
	}
	if found, left, err := f.c.SearchSessions(t.Context(), "tram", 10); len(found) < 10 || len(found) > 20 ||
		len(found)+left != 33 || err != nil {
		t.Errorf("more than wanted: %d found, %d left, %v", len(found), left, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := f.c.SearchSessions(ended, "tram", 10); err == nil {
		t.Error("a search that ended lists nothing and is no error")
	}
}
