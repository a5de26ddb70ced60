package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/pkg/actor/actortest"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// A log that fails right behind the event that ends the question: that event is not read a second time.
func TestFinalFaultIsKeptWhenTheLogFailsAfterIt(t *testing.T) {
	t.Parallel()
	letter, err := json.Marshal(subjects.DeadLetter{
		Actor: "router", Subject: "query.received",
		Code: subjects.CodeMalformed, Reason: "the question is empty",
	})
	if err != nil {
		t.Fatal(err)
	}
	fails := true
	rec := &actortest.Recorder{Reply: func(_ string, body []byte) (any, error) {
		switch {
		case strings.Contains(string(body), `"seq":1`):
			return map[string]any{"message": map[string]any{
				"seq": 1, "subject": "from.router.dead.router", "hdrs": []byte("NATS/1.0\r\n" + subjects.HeaderQuery +
					": q1\r\n\r\n"), "data": letter, "time": time.Now(),
			}}, nil
		case fails:
			return nil, errors.New("the link is cut")
		}
		return map[string]any{"message": map[string]any{
			"seq": 2, "subject": "from.router.dead.router",
			"data": []byte("{}"), "time": time.Now(),
		}}, nil
	}}
	feed := NewFeed() // whose reader is ahead of the cursor by more than memory holds
	feed.client, feed.start, feed.end = Wrap(rec.Out()), 2, 2
	q := &Query{ID: "q1", events: &Cursor{Feed: feed}, updates: make(chan Update), closed: make(chan struct{})}
	end := &ending{}
	q.readEvents(t.Context(), end)
	fails = false
	q.readEvents(t.Context(), end)
	if end.failure == nil || !strings.Contains(end.failure.Text, "the question is empty") || end.giveUp == nil {
		t.Errorf("the failure is %+v", end.failure)
	}
}

func TestRatingWithoutSubscriptionsCanBeClosed(t *testing.T) {
	t.Parallel()
	(&Rating{}).Close()
}

// A subject that the server denies leaves no subscription behind, and does not spoil later ones of the same connection.
func TestDeniedWatchLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	b.ExpectViolations(2)
	nc := b.Connect("generator")
	c, err := New(nc)
	if err != nil {
		t.Fatal(err)
	}
	before := nc.NumSubscriptions()
	for range 2 {
		if w, err := c.Watch(t.Context(), "audit.>", 0); err == nil {
			w.Close()
			t.Fatal("a generator can watch the audit log")
		}
	}
	if after := nc.NumSubscriptions(); after != before {
		t.Errorf("%d subscriptions, %d before", after, before)
	}
	w, err := c.Watch(t.Context(), "critique.result", 0)
	if err != nil {
		t.Fatalf("a permitted subject after a denied one: %v", err)
	}
	w.Close()
}

// An entry that was deleted together with the one that superseded it, in an earlier batch, is not missing.
func TestForgettingManyCountsSupersededEntriesOnce(t *testing.T) {
	t.Parallel()
	ids := make([]string, 0, 2*forgetBatch)
	for i := range 2 * forgetBatch {
		ids = append(ids, fmt.Sprintf("entry%032d", i))
	}
	stored := map[string]bool{}
	for _, id := range ids {
		stored[id] = true
	}
	rec := &actortest.Recorder{Reply: func(_ string, body []byte) (any, error) {
		var q subjects.MemoryAdminRequest
		if err := json.Unmarshal(body, &q); err != nil || len(q.IDs) == 0 || len(q.IDs) > 500 {
			return nil, subjects.Faultf(subjects.CodeMalformed, "%d ids, %v", len(q.IDs), err)
		}
		var r subjects.MemoryAdminReply
		for _, id := range q.IDs {
			if !stored[id] {
				r.Missing = append(r.Missing, id)
				continue
			}
			// it superseded one of the next batch
			for _, gone := range []string{id, ids[(slices.Index(ids, id)+forgetBatch)%len(ids)]} {
				if stored[gone] {
					delete(stored, gone)
					r.Entries = append(r.Entries, subjects.MemoryEntry{ID: gone})
				}
			}
		}
		if len(r.Entries) == 0 {
			return nil, subjects.Faultf(subjects.CodeMalformed, "there is no entry %s", q.IDs[0])
		}
		return r, nil
	}}
	forgotten, missing, err := Wrap(rec.Out()).ForgetMemories(t.Context(), ids)
	if err != nil || len(forgotten) != len(ids) || len(missing) != 0 {
		t.Errorf("%d forgotten, %d missing, %v", len(forgotten), len(missing), err)
	}
}
