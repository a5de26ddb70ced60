package gateway

import (
	"context"
	"net/http"

	"conclave/pkg/client"
)

// Bounds of one response with stored events.
const (
	defaultEventHistory = 1000
	maxEventHistory     = 5000
	historyBytes        = 16 << 20
)

// onHistory returns stored events, oldest first: the newest of the event log, or with the parameter query all that are
// stored of one question, whose search takes lookupTimeout at most. It includes the events of respondent B's answer.
// first is the sequence behind which the search began, last that of the newest event it saw, for the parameter after of
// /events.
func (g *Gateway) onHistory(ctx context.Context, r *http.Request) (any, error) {
	p := r.URL.Query()
	limit, err := parseNumber("limit", p.Get("limit"), defaultEventHistory, maxEventHistory)
	if err != nil {
		return nil, err
	}
	query := p.Get("query")
	if p.Has("query") {
		if err := checkID("query", query); err != nil {
			return nil, err
		}
	}
	log, err := g.client.EventStatus(ctx)
	if err != nil {
		return nil, err
	}
	first := max(log.First, 1) - 1
	if known, ok := g.questions.find(query); ok {
		first = max(first, known.since)
	} else if query == "" && log.Last > uint64(limit) {
		first = max(first, log.Last-uint64(limit))
	}
	events, last := []Event{}, first
	cur := &client.Cursor{Feed: g.events, At: first}
	for size := 0; cur.At < log.Last && len(events) < limit && size < historyBytes; {
		ev, ok, _, err := cur.Next(ctx)
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		last = ev.Seq
		if query == "" || ev.Query == query {
			events, size = append(events, newEvent(ev)), size+len(ev.Body)
		}
	}
	return object{{"events", events}, {"first", first}, {"last", last}}, nil
}
