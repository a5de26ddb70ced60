package client_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/client"
	"conclave/subjects"
)

// countingOut counts the requests of a client.
type countingOut struct {
	actor.Out
	requests *atomic.Int64
}

func (o countingOut) Request(ctx context.Context, spec subjects.Spec, body []byte) ([]byte, string, error) {
	o.requests.Add(1)
	return o.Out.Request(ctx, spec, body)
}

// sessionWriter writes the state of sessions as the generator or the committee does.
type sessionWriter struct {
	t     *testing.T
	store actor.Store
}

func (f *fixture) sessionWriter(account string) sessionWriter {
	return sessionWriter{f.t, f.as(account).Store(subjects.StateBucket(account))}
}

func (w sessionWriter) put(key string, value any) {
	w.t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		w.t.Fatal(err)
	}
	_, rev, _ := w.store.Get(w.t.Context(), key)
	if _, err := w.store.Put(w.t.Context(), key, data, rev); err != nil {
		w.t.Fatal(err)
	}
}

var indexTime = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// conversation stores one turn per question, a minute apart from minute on.
func (w sessionWriter) conversation(id string, minute int, questions ...string) {
	w.t.Helper()
	c := subjects.Conversation{SessionID: id, Turns: []subjects.Turn{}}
	for i, q := range questions {
		c.Updated = indexTime.Add(time.Duration(minute+i) * time.Minute)
		c.Turns = append(c.Turns, subjects.Turn{
			QueryID: fmt.Sprintf("%s-q%d", id, i), Query: q, Answer: "a",
			Time: c.Updated,
		})
	}
	w.put(subjects.ConversationKey(id), c)
}

// describe returns a list as "id turns question" with marks.
func describe(list []client.SessionSummary) string {
	var out []string
	for _, s := range list {
		line := fmt.Sprintf("%s %d %s", s.ID, s.Turns, s.Question)
		if s.Running {
			line += " (running)"
		}
		out = append(out, line)
	}
	return strings.Join(out, "; ")
}

func (f *fixture) checkSessions(c *client.Client, when, want string) {
	f.t.Helper()
	list, _, err := c.Sessions(f.t.Context(), 500, nil)
	if got := describe(list); err != nil || got != want {
		f.t.Errorf("%s: %s, %v; want %s", when, got, err, want)
	}
}

// A later list reads the conversations that changed, and no others.
func TestSessionListReadsChangesOnly(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const sessions = 300
	w := f.sessionWriter(subjects.Generator)
	for i := range sessions {
		w.conversation(fmt.Sprintf("s%03d", i), i, "first?")
	}
	var requests atomic.Int64
	for _, account := range subjects.UserAccounts {
		c := client.Wrap(countingOut{f.as(account), &requests})
		if list, _, err := c.Sessions(t.Context(), 500, nil); err != nil || len(list) != sessions {
			t.Fatalf("%s: %d sessions, %v", account, len(list), err)
		}
		if n := requests.Swap(0); n < sessions {
			t.Errorf("%s: the first list made %d requests: they are not counted", account, n)
		}
		for range 3 {
			if _, _, err := c.Sessions(t.Context(), 500, nil); err != nil {
				t.Fatal(err)
			}
		}
		unchanged := requests.Swap(0) / 3
		w.conversation("s007", 500, "changed?")
		list, _, err := c.Sessions(t.Context(), 500, nil)
		if n := requests.Swap(0); err != nil || unchanged > 10 || n != unchanged+1 || list[0].Question != "changed?" {
			t.Errorf("%s: %d requests without a change, %d with one; first %+v, %v", account, unchanged, n, list[0],
				err)
		}
		w.conversation("s007", 7, "first?")
	}
}

// A list of a few sessions reads those that were used last, complete, and counts the others.
func TestSessionListReadsTheLatest(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	assistant, committee := f.sessionWriter(subjects.Generator), f.sessionWriter(subjects.Committee)
	committee.conversation("old", 0, "first?")
	for i := range 3 {
		assistant.conversation(fmt.Sprintf("early%d", i), 0, "early?")
	}
	const writes = 4000 // more than two strides, of sessions that were used again
	data := []byte(`{"turns":[{"query":"late?"}],"updated":"2026-03-05T05:06:07Z"}`)
	for account, key := range map[string]string{subjects.Generator: "late", subjects.Committee: "said"} {
		store, rev := f.as(account).Store(subjects.StateBucket(account)), uint64(0)
		for range writes {
			var err error
			if rev, err = store.Put(t.Context(), subjects.ConversationKey(key), data, rev); err != nil {
				t.Fatal(err)
			}
		}
	}
	assistant.conversation("old", 5000, "second?")
	for _, tt := range []struct {
		n, unread int
		want      string
	}{
		{1, 3, "old 2 first?; late 1 late?; said 1 late?"},
		{100, 0, "old 2 first?; late 1 late?; said 1 late?; early0 1 early?; early1 1 early?; early2 1 early?"},
	} {
		c := client.Wrap(f.as("gateway"))
		list, unread, err := c.Sessions(t.Context(), tt.n, nil)
		if got := describe(list); err != nil || got != tt.want || unread != tt.unread {
			t.Errorf("%d: %s, %d unread, %v", tt.n, got, unread, err)
		}
	}
}

func TestSessionListFollowsChanges(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	assistant, committee := f.sessionWriter(subjects.Generator), f.sessionWriter(subjects.Committee)
	second, err := client.New(f.bus.Connect("user"))
	if err != nil {
		t.Fatal(err)
	}
	check := func(when, want string) {
		t.Helper()
		f.checkSessions(f.c, when, want)
		f.checkSessions(second, when+", another client", want)
		f.checkSessions(client.Wrap(f.as("gateway")), when+", after a restart", want)
	}
	check("empty", "")
	assistant.conversation("a", 1, "one?")
	committee.conversation("b", 2, "two?")
	check("one each", "b 1 two?; a 1 one?")
	committee.conversation("a", 0, "before?", "between?", "after?")
	check("turns of both", "a 4 before?; b 1 two?")
	assistant.conversation("a", 1, "one?", "more?", "last?", "very last?")
	check("more turns", "a 7 before?; b 1 two?")

	assistant.put(subjects.ConversationKey("a"), subjects.Conversation{
		SessionID: "a", Deleted: true,
		Past: []string{"a-q0"}, Turns: []subjects.Turn{},
	})
	check("deleted by the generator", "a 3 before?; b 1 two?")
	committee.put(subjects.ConversationKey("a"), subjects.Conversation{
		SessionID: "a", Deleted: true,
		Turns: []subjects.Turn{},
	})
	check("deleted by both", "b 1 two?")
	assistant.conversation("a", 9, "new?")
	check("used again", "a 1 new?; b 1 two?")
}

func TestSessionListShowsRunningQuestions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	assistant, committee := f.sessionWriter(subjects.Generator), f.sessionWriter(subjects.Committee)
	turn := func(session, query, text string) {
		t.Helper()
		assistant.put(subjects.TurnPrefix+"."+session, map[string]any{
			"query_id": query, "query": text,
			"stage": "working",
		})
	}
	last := func(want string) {
		t.Helper()
		if id, err := f.c.LastSession(t.Context()); cmp.Or(id, "none") != want {
			t.Errorf("last session %q, %v; want %s", id, err, want)
		}
	}
	turn("a", "a-q0", "one?")
	f.checkSessions(f.c, "the first question runs", "a 0 one? (running)")
	last("none") // there is nothing to continue or to show yet
	assistant.conversation("a", 1, "one?")
	f.checkSessions(f.c, "answered", "a 1 one?")
	turn("a", "a-q1", "two?")
	assistant.conversation("a", 1, "one?") // a grade of the first answer
	f.checkSessions(f.c, "the second question runs", "a 1 one? (running)")
	last("a")
	assistant.conversation("a", 1, "one?", "two?")
	f.checkSessions(f.c, "both answered", "a 2 one?")

	record := map[string]any{"session_id": "c", "query_id": "c-q0"}
	committee.put(subjects.TurnPrefix+".c-q0", record)
	f.checkSessions(f.c, "the committee deliberates", "c 0  (running); a 2 one?")
	committee.conversation("c", 0, "should I?")
	f.checkSessions(f.c, "it answered", "a 2 one?; c 1 should I?")
	record["finished"] = true
	committee.put(subjects.TurnPrefix+".c-q0", record)
	f.checkSessions(f.c, "it finished", "a 2 one?; c 1 should I?")

	turn("a", "a-q2", "three?")
	turn("phone.x", "p-q0", "of a client?") // not a token: no session has this id
	assistant.put(subjects.TurnPrefix+".a", map[string]any{})
	assistant.put(subjects.ConversationKey("a"), subjects.Conversation{
		Deleted: true, Turns: []subjects.Turn{},
		Past: []string{"a-q0", "a-q1"},
	})
	f.checkSessions(f.c, "deleted", "c 1 should I?")
	f.checkSessions(client.Wrap(f.as("gateway")), "after a restart", "c 1 should I?")
}

// TestArchivedTurnsArePaged: the turns of a session that are no longer in its conversation come page by page, those of
// the assistant and of the committee by time, each once; what cannot be read is counted.
func TestArchivedTurnsArePaged(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	parts := []sessionWriter{f.sessionWriter(subjects.Generator), f.sessionWriter(subjects.Committee)}
	var want []string
	counts := []int{0, 0}
	parted := []subjects.Conversation{{SessionID: "s", Deletions: 2}, {SessionID: "s"}}
	archive := func(part int) {
		n := len(want)
		id := fmt.Sprint("q", n)
		want = append(want, id)
		parts[part].put(parted[part].ArchivedTurnKey(counts[part]), subjects.Turn{
			QueryID: id, Query: id, Time: indexTime.Add(time.Duration(n) * time.Minute),
		})
		counts[part]++
	}
	for n := range 23 {
		archive(min(n%5, 4) / 4)
	}
	last := subjects.Turn{QueryID: "last", Time: indexTime.Add(time.Hour)}
	for i, w := range parts {
		w.put(subjects.ConversationKey("s"), subjects.Conversation{
			Turns: []subjects.Turn{last}[:1-i], Archived: counts[i], Dropped: counts[i] + 2, First: "q0",
			Began: indexTime, Deletions: parted[i].Deletions,
		})
	}
	for _, account := range subjects.UserAccounts {
		c := client.Wrap(f.as(account))
		for _, size := range []int{1, 4, 23, 100} {
			var got []string
			before := ""
			for pages := 0; ; pages++ {
				page, err := c.ArchivedTurns(t.Context(), "s", before, size)
				if err != nil || len(page.Turns) > size || page.Lost != 0 || pages > len(want) {
					t.Fatalf("%s, page %d of %d: %+v, %v", account, pages, size, page, err)
				}
				ids := []string{}
				for _, turn := range page.Turns {
					ids = append(ids, turn.QueryID)
				}
				got = append(ids, got...)
				if before = page.Before; before == "" {
					break
				}
			}
			if strings.Join(got, " ") != strings.Join(want, " ") {
				t.Errorf("%s, pages of %d: %q, want %q", account, size, got, want)
			}
		}
		whole, lost, err := c.WholeSession(t.Context(), "s")
		if err != nil || len(whole.Turns) != len(want)+1 || lost != 4 || whole.Turns[len(want)].QueryID != "last" {
			t.Errorf("%s: %d turns, %d lost, %v", account, len(whole.Turns), lost, err)
		}
	}
	f.checkSessions(f.c, "the title is the first question", "s 28 q0")
	for _, before := range []string{"x", "-1-0", "1", "99-0", "0-99", "1-1 ", "01-1"} {
		if _, err := f.c.ArchivedTurns(t.Context(), "s", before, 5); !errors.Is(err, client.ErrPage) {
			t.Errorf("before %q: %v", before, err)
		}
	}
	for _, id := range []string{"nothing", "a.b", ""} {
		if _, err := f.c.ArchivedTurns(t.Context(), id, "", 5); !errors.Is(err, client.ErrNotFound) {
			t.Errorf("session %q: %v", id, err)
		}
	}
	for n := range 7 { // too many bytes for one page
		parts[n%2].put(subjects.Conversation{SessionID: "big"}.ArchivedTurnKey(n/2), subjects.Turn{
			Query: fmt.Sprint(n), Answer: strings.Repeat("x", 900<<10),
			Time: indexTime.Add(time.Duration(n) * time.Minute),
		})
	}
	parts[0].put(subjects.ConversationKey("big"), subjects.Conversation{Archived: 4})
	parts[1].put(subjects.ConversationKey("big"), subjects.Conversation{Archived: 3})
	got := ""
	for before := "4-3"; before != ""; {
		page, err := f.c.ArchivedTurns(t.Context(), "big", before, 100)
		if err != nil || len(page.Turns) == 0 {
			t.Fatalf("%d turns, %v", len(page.Turns), err)
		}
		text := "| "
		for _, turn := range page.Turns {
			text += turn.Query + " "
		}
		got, before = text+got, page.Before
	}
	if strings.ReplaceAll(got, "| ", "") != "0 1 2 3 4 5 6 " || strings.Count(got, "|") < 2 {
		t.Errorf("large turns come as %s", got)
	}
	parts[0].put(parted[0].ArchivedTurnKey(3), "damaged")
	if page, err := f.c.ArchivedTurns(t.Context(), "s", "", 100); err != nil || page.Lost != 1 ||
		len(page.Turns) != len(want)-1 || page.Before != "" {
		t.Errorf("%d turns, %d lost, %v", len(page.Turns), page.Lost, err)
	}
}
