package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"conclave/bench/internal/instance"
)

// fact is the body of POST /memory.
type fact struct {
	Text         string `json:"text"`
	Conversation string `json:"conversation,omitempty"`
	Position     int    `json:"position,omitempty"`
	Speaker      string `json:"speaker,omitempty"`
	Happened     string `json:"happened,omitempty"`
}

// newFact is a turn as a client stores it: with fields of what is known of it, or as one plain text.
func newFact(t turn, form string) fact {
	if form == formText {
		return fact{Text: t.plain()}
	}
	return fact{
		Text: t.text, Conversation: "conv-" + t.conv, Position: t.position, Speaker: t.speaker,
		Happened: t.happened.Format(time.RFC3339),
	}
}

// storage is what became of the turns.
type storage struct {
	entries map[string][]int // turns by the id of the entry that has their text
	actions map[string]int   // what memory did, by number
	took    time.Duration
}

// storeTurns stores every turn in order, one at a time, as a chat goes.
func storeTurns(ctx context.Context, s *instance.System, d *dataset, form string) (*storage, error) {
	out := &storage{entries: map[string][]int{}, actions: map[string]int{}}
	began := time.Now()
	for i, t := range d.turns {
		var reply struct{ ID, Action, Other string }
		if err := s.Request(ctx, http.MethodPost, "/memory", newFact(t, form), &reply); err != nil {
			return nil, fmt.Errorf("storing %s of conversation %s: %w", t.id, t.conv, err)
		}
		id := reply.ID
		if reply.Action == "merged" && reply.Other != "" {
			id = reply.Other
		}
		out.actions[reply.Action]++
		out.entries[id] = append(out.entries[id], i)
	}
	out.took = time.Since(began)
	return out, nil
}

// waitEmbedded waits until every entry has its vectors, at most ten minutes.
func waitEmbedded(ctx context.Context, s *instance.System) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	for {
		var status struct {
			Unembedded int    `json:"unembedded"`
			Problem    string `json:"embedding_problem"`
		}
		if err := s.Request(ctx, http.MethodGet, "/memory/status", nil, &status); err != nil {
			return err
		}
		switch {
		case status.Unembedded == 0:
			return nil
		case status.Problem != "":
			return fmt.Errorf("%d entries have no vectors: %s", status.Unembedded, status.Problem)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d entries have no vectors: %w", status.Unembedded, ctx.Err())
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// search asks memory for a question and returns the positions of the turns found.
func search(ctx context.Context, s *instance.System, stored *storage, question string) (map[int]int, error) {
	var reply struct {
		Hits []struct {
			Entry struct {
				ID string `json:"id"`
			} `json:"entry"`
		} `json:"hits"`
	}
	path := fmt.Sprintf("/memory/search?max=%d&q=%s", depth, url.QueryEscape(question))
	if err := s.Request(ctx, http.MethodGet, path, nil, &reply); err != nil {
		return nil, err
	}
	found := map[int]int{}
	for at, h := range reply.Hits {
		for _, i := range stored.entries[h.Entry.ID] {
			found[i] = at
		}
	}
	return found, nil
}
