package harness

import (
	"context"
	"fmt"
	"slices"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/client"
	"conclave/pkg/story"
	"conclave/subjects"
)

// connect connects as the user and starts to receive events, until [Harness.Close] closes the connection.
func (h *Harness) connect(ctx context.Context) (err error) {
	if h.nc, err = h.instance.Bus.Dial("user"); err != nil {
		return err
	}
	if h.user, err = client.New(h.nc); err != nil {
		return err
	}
	watch, err := h.user.Watch(ctx, ">", 0)
	if err != nil {
		return err
	}
	h.watching.Go(func() {
		for e, err := range watch.Events(context.WithoutCancel(ctx)) { // ends when the connection closes
			if err != nil {
				return
			}
			h.onEvent(e)
		}
	})
	return nil
}

// toStoryEvent converts an event. Its sequence counts only in the event log.
func toStoryEvent(e client.Event) story.Event {
	out := story.Event{Seq: e.Seq, Time: e.Time, Subject: e.Subject, Session: e.Session, Query: e.Query, Body: e.Body}
	if e.Stream != client.EventLog {
		out.Seq = 0
	}
	return out
}

// onEvent passes an event on to the subscribers. The stored copy of a question that [Harness.Ask] waits for is recorded
// first.
func (h *Harness) onEvent(live client.Event) {
	e := toStoryEvent(live)
	h.mu.Lock()
	isQuestion := slices.ContainsFunc(subjects.VisibleRespondents, func(who string) bool {
		topic, ok := subjects.QuestionTopic(who)
		return ok && topic.Name == e.Subject
	})
	if confirmed := h.unconfirmed[e.Query]; confirmed != nil && isQuestion && live.Stream != "" {
		h.questions = append(h.questions, e)
		delete(h.unconfirmed, e.Query)
		close(confirmed)
	}
	h.mu.Unlock()
	h.publish(e)
}

// publish passes an event on to the subscribers. One whose buffer is full misses it; the event log has every stored
// one.
func (h *Harness) publish(e story.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, subscriber := range h.subscribers {
		select {
		case subscriber <- e:
		default:
		}
	}
}

// Subscribe implements [story.System]. The channel holds 4096 events; further ones are lost while it is full.
func (h *Harness) Subscribe(ctx context.Context) (<-chan story.Event, error) {
	events := make(chan story.Event, 4096)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.subscribers = append(h.subscribers, events)
	context.AfterFunc(ctx, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.subscribers = slices.DeleteFunc(h.subscribers, func(x chan story.Event) bool { return x == events })
		close(events)
	})
	return events, nil
}

// confirmTimeout is the longest wait for the stored copy of a question.
const confirmTimeout = 10 * time.Second

// StoreImages implements [story.System].
func (h *Harness) StoreImages(ctx context.Context, session string, images [][]byte) error {
	return h.user.StoreImages(ctx, session, images)
}

// Ask implements [story.System]. It returns when the stored copy of the question has arrived, so that its position
// among the events is known, and fails after confirmTimeout. q needs a query id that was not used before.
func (h *Harness) Ask(ctx context.Context, respondent string, q subjects.Query) error {
	topic, ok := subjects.QuestionTopic(respondent)
	if !ok {
		return fmt.Errorf("%s answers no questions", respondent)
	}
	confirmed := make(chan struct{})
	h.mu.Lock()
	h.unconfirmed[q.QueryID] = confirmed
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	if err := actor.Emit(ctx, h.user.Out(), topic, q); err != nil {
		return err
	}
	select {
	case <-confirmed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the stored copy of the question: %w", ctx.Err())
	}
}

// ReadEvents implements [story.System]. It reads the event log with the user's account. The questions of [Harness.Ask]
// are always among the events, whatever after is: they are stored in another stream, with other sequences.
func (h *Harness) ReadEvents(ctx context.Context, after uint64) ([]story.Event, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	next := uint64(1)
	if n := len(h.stored); n > 0 {
		next = h.stored[n-1].Seq + 1
	}
	for stored, err := range h.user.EventsFrom(ctx, next, "from.>") {
		if err != nil {
			return nil, fmt.Errorf("reading the event log: %w", err)
		}
		e := toStoryEvent(stored)
		e.From = stored.From
		h.stored = append(h.stored, e)
	}
	var out []story.Event
	for _, e := range h.stored {
		if e.Seq > after {
			out = append(out, e)
		}
	}
	out = append(out, h.questions...)
	// One server stamps all times, and a question is stored before any event that follows from it.
	slices.SortStableFunc(out, func(a, b story.Event) int { return a.Time.Compare(b.Time) })
	return out, nil
}
