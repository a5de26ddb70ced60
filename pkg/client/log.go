package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// Names of the JetStream API as accounts without streams of their own reach it.
const (
	coreAPI  = "core.API"
	auditAPI = "auditlog.API"
	// EventLog is the stream of stored events.
	EventLog = "EVENTS"
)

// IsNearlyFull reports whether 80 % of the capacity are used.
func (s StreamStatus) IsNearlyFull() bool { return s.Max > 0 && s.Bytes >= s.Max/5*4 }

// StreamStatus is the state of a stream. Max is its capacity in bytes, 0 or less for none.
type StreamStatus struct {
	Messages uint64
	Bytes    int64
	Max      int64
	First    uint64 // sequence of the first message
	Last     uint64
}

// EventStatus returns the state of the event log.
func (c *Client) EventStatus(ctx context.Context) (StreamStatus, error) {
	return c.streamStatus(ctx, coreAPI, EventLog)
}

// EventQuotas returns the state of the streams by which events enter the log, by name: each holds those of the last day
// and rejects more when it is full. Only the account "user" may read them.
func (c *Client) EventQuotas(ctx context.Context) (map[string]StreamStatus, error) {
	out := map[string]StreamStatus{}
	for _, st := range subjects.Table().Streams {
		if !strings.HasPrefix(st.Name, subjects.EventStream("")) {
			continue
		}
		s, err := c.streamStatus(ctx, coreAPI, st.Name)
		if err != nil {
			return nil, err
		}
		out[st.Name] = s
	}
	return out, nil
}

// AuditStatus returns the state of the audit log by writer: each has a stream of its own. Only the auditor's account
// may read it.
func (c *Client) AuditStatus(ctx context.Context) (map[string]StreamStatus, error) {
	out := map[string]StreamStatus{}
	for _, w := range subjects.AuditWriters {
		s, err := c.streamStatus(ctx, auditAPI, subjects.AuditStream(w))
		if err != nil {
			return nil, err
		}
		out[w] = s
	}
	return out, nil
}

// streamStatus reads size and sequences of a stream, with the errors of [Client.streamInfo].
func (c *Client) streamStatus(ctx context.Context, api, stream string) (StreamStatus, error) {
	info, err := c.streamInfo(ctx, api, stream)
	s := info.State
	return StreamStatus{s.Msgs, int64(s.Bytes), info.Config.MaxBytes, s.FirstSeq, s.LastSeq}, err
}

// streamInfo reads the description of a stream; api is the prefix under which the account reaches the JetStream API. A
// missing stream is an error that wraps [*jetstream.APIError].
func (c *Client) streamInfo(ctx context.Context, api, stream string) (jetstream.StreamInfo, error) {
	var reply struct {
		jetstream.StreamInfo
		Error *jetstream.APIError `json:"error"`
	}
	err := actor.RequestAPI(ctx, c.out, api+".STREAM.INFO."+stream, struct{}{}, &reply)
	if err == nil && reply.Error != nil {
		err = fmt.Errorf("reading the state of stream %s: %w", stream, reply.Error)
	}
	return reply.StreamInfo, err
}

// Event reads the event at a sequence. It reports false when the log has none there.
func (c *Client) Event(ctx context.Context, seq uint64) (Event, bool, error) {
	return c.readEvent(ctx, map[string]any{"seq": seq})
}

// EventFrom reads the first event at or after a sequence whose stored subject, from.<account>.<subject>, matches
// stored, which may have wildcards. It reports false when there is none yet; it does not wait.
func (c *Client) EventFrom(ctx context.Context, seq uint64, stored string) (Event, bool, error) {
	return c.readEvent(ctx, map[string]any{"seq": seq, "next_by_subj": stored})
}

// readEvent reads one event of the log; which is the body of a STREAM.MSG.GET request. It reports false, without an
// error, when no event matches. Headers that cannot be decoded are treated as missing, so the event may lack its ids.
func (c *Client) readEvent(ctx context.Context, which map[string]any) (Event, bool, error) {
	m, err := actor.ReadStored(ctx, c.out, EventLog, which)
	if err != nil || m == nil {
		return Event{}, false, err
	}
	e := Event{Stream: EventLog, Seq: m.Seq, Time: m.Time}
	e.Subject, e.From = splitStored(m.Subject)
	h := nats.Header{}
	if len(m.Headers) > 0 {
		if parsed, err := nats.DecodeHeadersMsg(m.Headers); err == nil {
			h = parsed
		}
	}
	e.fill(h, m.Data)
	return e, true, nil
}

// EventsFrom iterates over the events of a stored subject, which may have wildcards, from a sequence to the present end
// of the log; it does not wait for more. An error is yielded last and ends it. Each event is one request.
func (c *Client) EventsFrom(ctx context.Context, seq uint64, stored string) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for {
			e, ok, err := c.EventFrom(ctx, seq, stored)
			if err != nil {
				yield(e, err)
				return
			}
			if !ok || !yield(e, nil) {
				return
			}
			seq = e.Seq + 1
		}
	}
}

// AnswerPlace returns where the event log has the first answer to a query that the user saw. It reports false when the
// reward actor, which keeps the index, has read none, and for a query that is no valid token.
func (c *Client) AnswerPlace(ctx context.Context, query string) (at subjects.AnswerPlace, ok bool, err error) {
	if subjects.CheckToken(query) != nil {
		return at, false, nil
	}
	data, _, err := c.out.Store(subjects.AnswerBucket).Get(ctx, subjects.AnswerKey(query))
	if errors.Is(err, actor.ErrNotFound) {
		return at, false, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &at)
	}
	return at, err == nil, err
}

// Numbers of sequences that are searched at once on the way back: at first, since most searches end soon, and at most.
const (
	firstStride = 16
	backStride  = 2048
)

// EventsBack iterates over the events of a stored subject from the newest to the oldest, as the log was at the start.
// An error is yielded last and ends it. Events are read in strides of up to [backStride] sequences, so a rare subject
// takes many requests.
func (c *Client) EventsBack(ctx context.Context, stored string) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		log, err := c.EventStatus(ctx)
		if err != nil {
			yield(Event{}, err)
			return
		}
		stride := uint64(firstStride)
		for end := log.Last + 1; end > log.First; stride = min(2*stride, backStride) {
			begin := max(log.First, end-min(stride, end))
			var found []Event
			for e, err := range c.EventsFrom(ctx, begin, stored) {
				if err != nil {
					yield(e, err)
					return
				}
				if e.Seq >= end {
					break
				}
				found = append(found, e)
			}
			for _, e := range slices.Backward(found) {
				if !yield(e, nil) {
					return
				}
			}
			end = begin
		}
	}
}
