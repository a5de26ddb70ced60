package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"conclave/pkg/client"
	"conclave/subjects"
)

// noTimeout is the timeout of an event stream: it stays open until the client or the gateway closes it.
const noTimeout = 1<<63 - 1

// eventFilter selects the events of one stream.
type eventFilter struct {
	query, session, subject string
	deltas                  bool
	respondentB             bool // include the events of respondent B's answer
	after                   uint64
	resume                  bool // start behind after, not at the end of the event log
}

// matches reports whether the filter selects a stored event. An empty query, session or subject selects every one;
// events of respondent B are selected only with respondentB.
func (f eventFilter) matches(ev client.Event) bool {
	if f.query != "" && ev.Query != f.query || f.session != "" && ev.Session != f.session {
		return false
	}
	if _, ok := subjects.Match(f.subject, ev.Subject); f.subject != "" && !ok {
		return false
	}
	return f.respondentB || !isOfRespondentB(ev)
}

// matchesLive reports whether the filter selects an event that is not stored. Deltas must be requested.
func (f eventFilter) matchesLive(ev client.Event) bool {
	return (f.deltas || !strings.HasPrefix(ev.Subject, "response.")) && f.matches(ev)
}

// parseEventFilter reads the filter from the parameters. Last-Event-ID has precedence over the parameter after: a
// browser that reconnects sends the header with the original URL. It rejects invalid ids and subjects, flags other than
// 0 and 1, and a position that is not a number. Without a position, resume is false: the stream begins with new events.
func parseEventFilter(r *http.Request) (eventFilter, error) {
	p := r.URL.Query()
	f := eventFilter{query: p.Get("query"), session: p.Get("session"), subject: p.Get("subject")}
	for name, id := range map[string]string{"query": f.query, "session": f.session} {
		if p.Has(name) {
			if err := checkID(name, id); err != nil {
				return f, err
			}
		}
	}
	if p.Has("subject") && !isSubjectPattern(f.subject) {
		return f, malformedf("invalid subject: tokens joined by dots, * for one token, > at the end for the rest, " +
			"like tool.request.>")
	}
	for name, to := range map[string]*bool{"deltas": &f.deltas, "respondent_b": &f.respondentB} {
		if err := checkFlag(name, p.Get(name)); err != nil {
			return f, err
		}
		*to = p.Get(name) == "1"
	}
	positions := r.Header.Values("Last-Event-ID")
	if len(positions) == 0 && p.Has("after") {
		positions = []string{p.Get("after")}
	}
	if len(positions) == 0 || len(positions) == 1 && positions[0] == "" && !p.Has("after") {
		return f, nil
	}
	var err error
	f.after, err = strconv.ParseUint(positions[0], 10, 63)
	if err != nil || len(positions) > 1 {
		return f, malformedf("invalid Last-Event-ID or after: use the sequence number of an event, or 0 for all " +
			"stored events")
	}
	f.resume = true
	return f, nil
}

// isSubjectPattern reports whether s is a subject, where a token may be * and the last one >. "" and a subject longer
// than [subjects.MaxSubject] are none.
func isSubjectPattern(s string) bool {
	if len(s) > subjects.MaxSubject {
		return false
	}
	tokens := strings.Split(s, ".")
	for i, t := range tokens {
		if t == "*" || t == ">" && i == len(tokens)-1 {
			continue
		}
		if subjects.CheckToken(t) != nil {
			return false
		}
	}
	return true
}

// onEvents streams stored events as server-sent events until the client or the gateway closes. The id of an event is
// its sequence in the stream EVENTS, so a client that reconnects resumes after its last id. There is no queue per
// client: a slow client reads from the event log, and a client that stops reading is disconnected by the write timeout.
// Live events have no id and may be lost. Beyond MaxStreams open streams it is rejected with 429.
func (g *Gateway) onEvents(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		return problemf(http.StatusMethodNotAllowed, codeMethod, "method not allowed; use GET")
	}
	f, err := parseEventFilter(r)
	if err != nil {
		return err
	}
	leave, err := acquireSlot(g.slots.streams, "event streams are open")
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := g.withTimeout(r.Context(), noTimeout)
	defer cancel()
	live := g.live.subscribe(f.matchesLive)
	defer g.live.unsubscribe(live)
	s := &eventWriter{
		sseWriter: sseWriter{w: w, timeout: g.cfg.WriteTimeout}, cursor: g.events.OpenCursor(ctx),
		filter: f,
	}
	defer s.cursor.Close()
	if f.resume {
		log, err := g.client.EventStatus(ctx)
		if err != nil {
			return err
		}
		start, _ := g.events.Bounds()
		s.resumeAt(min(log.First, start+1), log.Last)
	}
	s.writeHeader()
	heartbeat := time.NewTicker(g.cfg.Heartbeat)
	defer heartbeat.Stop()
	for s.err == nil && ctx.Err() == nil {
		if len(heartbeat.C) > 0 { // also during a long replay without a matching event
			<-heartbeat.C
			s.writeHeartbeat()
		}
		ev, ok, more, _ := s.cursor.Next(ctx) // while the bus is not reachable it keeps the client and tries again
		if ok {
			s.writeEvent(ev)
			continue
		}
		s.flush()
		select {
		case <-more:
		case l := <-live.events:
			s.writeLive(l)
		case <-heartbeat.C:
			s.writeHeartbeat()
		case <-ctx.Done():
		}
	}
	s.writeEnd()
	return nil
}

// sseWriter writes a response of server-sent events.
type sseWriter struct {
	w       http.ResponseWriter
	timeout time.Duration // of a write
	begun   bool
	err     error // of a write: the client is gone
}

// send sends bytes at once, after the header when they are the first. A write that fails or exceeds the timeout sets
// s.err; after that nothing is sent.
func (s *sseWriter) send(data []byte) error {
	if !s.begun {
		s.begun = true
		h := s.w.Header()
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("X-Accel-Buffering", "no")
		s.w.WriteHeader(http.StatusOK)
	}
	if s.err != nil {
		return s.err
	}
	rc := http.NewResponseController(s.w)
	if s.err = rc.SetWriteDeadline(time.Now().Add(s.timeout)); s.err == nil {
		if _, s.err = s.w.Write(data); s.err == nil {
			s.err = rc.Flush()
		}
	}
	return s.err
}

// eventWriter writes the events of one client.
type eventWriter struct {
	sseWriter
	cursor     *client.Cursor
	filter     eventFilter
	lostNotice string // written before the first event, "" when nothing is lost
	buf        bytes.Buffer
}

// resumeAt moves the cursor behind the client's last event. first and last are the bounds of the event log. Events that
// are no longer stored are reported as lost, and so is a sequence beyond last: the event log was created anew.
func (s *eventWriter) resumeAt(first, last uint64) {
	switch after := s.filter.after; {
	case after > last:
		s.lostNotice = formatLost(last+1, after, "the event log was created anew; the stream continues with new events")
		s.cursor.At = last
	case after > 0 && after+1 < first:
		s.lostNotice = formatLost(after+1, first-1, tooOld)
		s.cursor.At = first - 1
	default:
		s.cursor.At = after
	}
	s.cursor.Pattern = s.filter.subject
}

// tooOld is the reason of events that were dropped from the event log.
const tooOld = "older than the oldest stored event"

// formatLost returns the server-sent event "lost" for the sequences from to to, inclusive.
func formatLost(from, to uint64, why string) string {
	data, err := json.Marshal(struct {
		From uint64 `json:"from"`
		To   uint64 `json:"to"`
		Why  string `json:"why"`
	}{from, to, why})
	if err != nil {
		return ""
	}
	return fmt.Sprintf("event: lost\ndata: %s\n\n", data)
}

// writeHeader starts the response and sends the current id, so that a client can resume even before the first event.
func (s *eventWriter) writeHeader() {
	s.writef("retry: 1000\nid: %d\n: events as they are stored\n\n%s", s.cursor.At, s.lostNotice)
	s.flush()
}

// writeEvent buffers a stored event if the filter selects it. A gap in the event log before it is reported as lost
// first, also for an event that is not selected. A stream that began at 0 has no gap.
func (s *eventWriter) writeEvent(ev client.Event) {
	if n := s.cursor.Missing; n > 0 && ev.Seq > n+1 {
		s.writef("%s", formatLost(ev.Seq-n, ev.Seq-1, tooOld))
	}
	if !s.filter.matches(ev) {
		return
	}
	data, err := json.Marshal(newEvent(ev))
	if err != nil {
		return
	}
	s.writef("id: %d\ndata: %s\n\n", ev.Seq, data)
}

// writeLive writes and flushes an event that is not stored: a token as "delta", a question without a name. It has no
// id, so the client's position stays.
func (s *eventWriter) writeLive(l liveEvent) {
	data, err := json.Marshal(newEvent(l.Event))
	if err != nil {
		return
	}
	if l.delta != nil {
		s.writef("event: delta\ndata: %s\n\n", data)
	} else {
		s.writef("data: %s\n\n", data)
	}
	s.flush()
}

// writeHeartbeat writes a comment with the current id, which moves the client's position past filtered events.
func (s *eventWriter) writeHeartbeat() {
	s.writef("id: %d\n: heartbeat\n\n", s.cursor.At)
	s.flush()
}

// writeEnd writes the last id and a comment before the gateway closes the stream.
func (s *eventWriter) writeEnd() {
	s.writef("id: %d\n: the gateway closes this stream; reconnect with the last id\n\n", s.cursor.At)
	s.flush()
}

// flushAt is the buffered size in bytes at which the buffer is written.
const flushAt = 32 << 10

// writef formats into the buffer.
func (s *eventWriter) writef(format string, a ...any) {
	fmt.Fprintf(&s.buf, format, a...)
	if s.buf.Len() >= flushAt {
		s.flush()
	}
}

// flush sends the buffer to the client and empties it. An error ends the stream.
func (s *eventWriter) flush() {
	if s.buf.Len() > 0 {
		_ = s.send(s.buf.Bytes())
		s.buf.Reset()
	}
}
