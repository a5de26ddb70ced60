package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"conclave/subjects"
)

// forever is how long a stream of events may stay open: until one of both ends it.
const forever = 1<<63 - 1

// wanted is what a client wants to see.
type wanted struct {
	query, session, subject string
	deltas                  bool
	respondentB             bool // what belongs to respondent B's answer too
	after                   uint64
	resume                  bool // from after on, and not from now
}

// of reports whether an event is among it.
func (f wanted) of(ev Event) bool {
	if ev.ofRespondentB && !f.respondentB {
		return false
	}
	if f.query != "" && ev.Query != f.query || f.session != "" && ev.Session != f.session {
		return false
	}
	if f.subject == "" {
		return true
	}
	_, ok := subjects.Match(f.subject, ev.Subject)
	return ok
}

// ofLive is the same for what is not kept. Tokens come only to those who ask for them.
func (f wanted) ofLive(ev Event) bool {
	return (f.deltas || !strings.HasPrefix(ev.Subject, "response.")) && f.of(ev)
}

// readWanted reads what a client wants to see. A browser that reconnects says in Last-Event-ID where it was; what stands
// in the address is older.
func readWanted(r *http.Request) (wanted, error) {
	p, err := parseParams(r, "query", "session", "subject", "after", "deltas", "respondent_b")
	if err != nil {
		return wanted{}, err
	}
	f := wanted{query: p.Get("query"), session: p.Get("session"), subject: p.Get("subject")}
	for name, id := range map[string]string{"query": f.query, "session": f.session} {
		if p.Has(name) {
			if err := checkID(name, id); err != nil {
				return f, err
			}
		}
	}
	if p.Has("subject") && !isPattern(f.subject) {
		return f, problemf(http.StatusBadRequest, subjects.CodeMalformed, `subject: tokens joined by dots, * for any one, > at the end for any more, like tool.request.>`)
	}
	for name, to := range map[string]*bool{"deltas": &f.deltas, "respondent_b": &f.respondentB} {
		switch p.Get(name) {
		case "", "0":
		case "1":
			*to = true
		default:
			return f, problemf(http.StatusBadRequest, subjects.CodeMalformed, "%s is 0 or 1", name)
		}
	}
	places := r.Header.Values("Last-Event-ID")
	if len(places) == 0 && p.Has("after") {
		places = []string{p.Get("after")}
	}
	if len(places) == 0 || len(places) == 1 && places[0] == "" && !p.Has("after") {
		return f, nil
	}
	f.after, err = strconv.ParseUint(places[0], 10, 63)
	if err != nil || len(places) > 1 {
		return f, problemf(http.StatusBadRequest, subjects.CodeMalformed, "Last-Event-ID or after: the number of an event, 0 for all there are")
	}
	f.resume = true
	return f, nil
}

// isPattern reports whether s may stand for subjects.
func isPattern(s string) bool {
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

// onEvents streams events as they are stored. Each has its place in EVENTS as its id, and a client that was away goes on
// from there: what it missed comes first. There is no queue per client. One that reads slowly falls behind and reads
// from the stream; one that does not read at all is cut off, and can come back.
func (g *Gateway) onEvents(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		return problemf(http.StatusMethodNotAllowed, codeMethod, "a stream has no head; ask with GET")
	}
	f, err := readWanted(r)
	if err != nil {
		return err
	}
	leave, err := acquireSlot(g.slots.streams, "streams of events are open")
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := g.withTimeout(r.Context(), forever)
	defer cancel()
	hear := g.live.subscribe(f.ofLive)
	defer g.live.unsubscribe(hear)
	s := &stream{w: w, rc: http.NewResponseController(w), timeout: g.cfg.WriteTimeout, cur: g.events.cursorAtEnd(), want: f}
	if f.resume {
		log, err := g.client.EventStatus(ctx)
		if err != nil {
			return err
		}
		start, _ := g.events.bounds()
		s.resume(min(log.First, start+1), log.Last)
	}
	s.begin()
	beat := time.NewTicker(g.cfg.Heartbeat)
	defer beat.Stop()
	for s.err == nil && ctx.Err() == nil {
		if len(beat.C) > 0 { // also in a long replay of which nothing is wanted
			<-beat.C
			s.beat()
		}
		ev, ok, more, err := s.cur.next(ctx)
		switch {
		case ok:
			s.event(ev)
			continue
		case err != nil: // the link is down: try again, and keep the client
			select {
			case <-time.After(pollInterval):
			case <-ctx.Done():
			}
			continue
		}
		s.flush()
		select {
		case <-more:
		case l := <-hear.events:
			s.live(l)
		case <-beat.C:
			s.beat()
		case <-ctx.Done():
		}
	}
	s.bye()
	return nil
}

// stream writes one client's events.
type stream struct {
	w       http.ResponseWriter
	rc      *http.ResponseController
	timeout time.Duration
	cur     *cursor
	want    wanted
	lost    string // what to say first
	err     error  // the client is gone
	buf     bytes.Buffer
}

// resume puts the cursor where the client was. What is kept nowhere any more is told as lost, and so is a place that
// it never had: the store was made anew.
func (s *stream) resume(first, last uint64) {
	switch after := s.want.after; {
	case after > last:
		s.lost = lost(last+1, after, "the events were stored anew since then; this goes on from now")
		s.cur.at = last
	case after > 0 && after+1 < first:
		s.lost = lost(after+1, first-1, tooOld)
		s.cur.at = first - 1
	default:
		s.cur.at = after
	}
	s.cur.pattern = s.want.subject
}

// tooOld is why events are lost to one who was away for long.
const tooOld = "these are older than what is kept"

// lost tells of events that cannot be told any more.
func lost(from, to uint64, why string) string {
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

// begin answers, and gives the client its place at once: it may have to come back before the first event.
func (s *stream) begin() {
	h := s.w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("X-Accel-Buffering", "no")
	s.w.WriteHeader(http.StatusOK)
	s.say("retry: 1000\nid: %d\n: events as they are stored\n\n%s", s.cur.at, s.lost)
	s.flush()
}

// event writes one event that is kept, and before it what is missing since the last. One who began with all there are
// misses nothing.
func (s *stream) event(ev Event) {
	if n := s.cur.missing; n > 0 && ev.Seq > n+1 {
		s.say("%s", lost(ev.Seq-n, ev.Seq-1, tooOld))
	}
	if !s.want.of(ev) {
		return
	}
	data, err := json.Marshal(ev)
	if err != nil {
		return
	}
	s.say("id: %d\ndata: %s\n\n", ev.Seq, data)
}

// live writes what is not kept. It has no id: the client's place stays where it was.
func (s *stream) live(l liveEvent) {
	data, err := json.Marshal(l.Event)
	if err != nil {
		return
	}
	if l.delta != nil {
		s.say("event: delta\ndata: %s\n\n", data)
	} else {
		s.say("data: %s\n\n", data)
	}
	s.flush()
}

// beat is a sign of life. It takes the client's place along, past what it did not want to see.
func (s *stream) beat() {
	s.say("id: %d\n: still here\n\n", s.cur.at)
	s.flush()
}

// bye ends the stream so that the client knows to come back.
func (s *stream) bye() {
	s.say("id: %d\n: the gateway ends this stream; come back with the last id\n\n", s.cur.at)
	s.flush()
}

// flushAt is how much is gathered before it is written.
const flushAt = 32 << 10

func (s *stream) say(format string, a ...any) {
	fmt.Fprintf(&s.buf, format, a...)
	if s.buf.Len() >= flushAt {
		s.flush()
	}
}

// flush writes what was gathered. A client that does not take it in time is gone.
func (s *stream) flush() {
	if s.err != nil || s.buf.Len() == 0 {
		return
	}
	if s.err = s.rc.SetWriteDeadline(time.Now().Add(s.timeout)); s.err != nil {
		return
	}
	if _, s.err = s.w.Write(s.buf.Bytes()); s.err == nil {
		s.err = s.rc.Flush()
	}
	s.buf.Reset()
}
