package gateway

import (
	"encoding/json"
	"errors"
	"time"

	"conclave/pkg/client"
)

// Event is one event of the API.
type Event struct {
	Seq     uint64          `json:"seq,omitempty"`  // in the event log; 0 = not stored there
	Subject string          `json:"subject"`        // without the author
	From    string          `json:"from,omitempty"` // the author's account, as the server wrote it; "" = unknown
	Time    time.Time       `json:"time"`
	Query   string          `json:"query,omitempty"`
	Session string          `json:"session,omitempty"`
	Payload json.RawMessage `json:"payload"`
}

// newEvent returns an event as the API has it.
func newEvent(e client.Event) Event {
	return Event{
		Seq: e.Seq, Subject: e.Subject, From: e.From, Time: e.Time, Query: e.Query, Session: e.Session,
		Payload: e.Body,
	}
}

// LogEntry is an event of an answer, with the seconds since the first one.
type LogEntry struct {
	Event
	Seconds float64 `json:"t"`
}

// errNone means that the event log has no such event yet.
var errNone = errors.New("no event there")
