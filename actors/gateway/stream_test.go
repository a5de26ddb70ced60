package gateway_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/actors/gateway"
	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// sse is a client of /events.
type sse struct {
	t      testing.TB
	res    *http.Response
	cancel context.CancelFunc
	r      *bufio.Reader
	last   string // last id
}

// message is one event as a browser would dispatch it.
type message struct {
	id, event, raw string
	data           gateway.Event
}

// String keeps failures short.
func (m message) String() string {
	raw := m.raw
	if len(raw) > 200 {
		raw = raw[:200] + "..."
	}
	return fmt.Sprintf("id %s event %q %s", m.id, m.event, raw)
}

// follow opens a stream and returns when it is open.
func (w *fixture) follow(path string, header ...string) *sse {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, "GET", w.base+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	client := &http.Client{Transport: w.client.Transport} // no limit on the whole
	res, err := client.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { res.Body.Close() })
	if res.StatusCode != 200 || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		data, _ := io.ReadAll(res.Body)
		w.t.Fatalf("GET %s: %d %s", path, res.StatusCode, data)
	}
	return &sse{t: w.t, res: res, cancel: cancel, r: bufio.NewReader(res.Body)}
}

// read returns the next event with data; comments and bare ids only move the place.
func (s *sse) read() (message, error) {
	m := message{id: s.last}
	for {
		line, err := s.r.ReadString('\n')
		if err != nil {
			return m, err
		}
		line = strings.TrimSuffix(line, "\n")
		field, value, _ := strings.Cut(line, ": ")
		switch {
		case line == "" && m.raw != "":
			s.last = m.id
			return m, nil
		case line == "":
			s.last, m = m.id, message{id: m.id}
		case field == "id":
			m.id = value
		case field == "event":
			m.event = value
		case field == "data":
			m.raw += value
		}
	}
}

// next is read for one who is sure that there is one.
func (s *sse) next() message {
	s.t.Helper()
	timer := time.AfterFunc(testTimeout, s.cancel)
	defer timer.Stop()
	m, err := s.read()
	if err != nil {
		s.t.Fatalf("no further event: %v", err)
	}
	if m.event != "lost" {
		m.data = read[gateway.Event](s.t, m.raw)
	}
	return m
}

// rest is everything up to the end.
func (s *sse) rest() string {
	s.t.Helper()
	timer := time.AfterFunc(testTimeout, s.cancel)
	defer timer.Stop()
	data, err := io.ReadAll(s.r)
	if err != nil {
		s.t.Errorf("the stream broke off: %v", err)
	}
	return string(data)
}

func (s *sse) close() {
	s.cancel()
	s.res.Body.Close()
}

// say stores n events of the generator.
func (w *fixture) emitStates(out actor.Out, from, n int) {
	w.t.Helper()
	for i := range n {
		emitStored(w, out, withTokens(w.t, subjects.AgentStateEvent, "generator"),
			subjects.AgentState{To: strconv.Itoa(from + i)})
	}
}

// However often a client is cut off, and whoever speaks meanwhile, it sees every event once and in order. With so few
// events kept in memory its readers go back and forth between memory and stream.
func TestEventsNoneMissingNoneTwice(t *testing.T) {
	t.Parallel()
	w := startGateway(t, bustest.Start(t), setup{change: func(g *gateway.Gateway) { g.SetMaxEvents(4) }})
	const speakers, each = 3, 40
	var talking sync.WaitGroup
	for i, role := range []string{"generator", "critic", "gateway"} {
		out := w.out(role)
		talking.Go(func() {
			for n := range each {
				switch role {
				case "generator":
					w.emitStates(out, n, 1)
				case "critic":
					emitStored(w, out, subjects.CritiqueResult, subjects.Critique{Score: i})
				default:
					emitStored(w, out, subjects.UserFeedback, subjects.Feedback{QueryID: "q", Stars: 1})
				}
			}
		})
	}
	var clients sync.WaitGroup
	for c := range 3 {
		clients.Go(func() {
			var seen uint64
			for round := 0; seen < speakers*each; round++ {
				header, path := []string{"Last-Event-ID", strconv.FormatUint(seen, 10)}, "/events"
				if (c+round)%2 == 0 {
					header, path = nil, fmt.Sprintf("/events?after=%d", seen)
				}
				s := w.follow(path, header...)
				for range 10 + 13*c { // then it is cut off
					if seen == speakers*each {
						break
					}
					m := s.next()
					if m.data.Seq != seen+1 || m.id != strconv.FormatUint(m.data.Seq, 10) {
						t.Errorf("client %d saw %d (id %s) after %d", c, m.data.Seq, m.id, seen)
						s.close()
						return
					}
					seen = m.data.Seq
				}
				s.close()
			}
		})
	}
	clients.Wait()
	talking.Wait()
}

// TestEvents is about what a stream of events shows.
func TestEvents(t *testing.T) {
	t.Parallel()
	runOnBus(t, []busTest{
		{"EventsFilters", testEventsFilters},
		{"EventsLive", testEventsLive},
		{"EventsThatAreGone", testEventsThatAreGone},
		{"EventsShowQuestionsOnce", testEventsShowQuestionsOnce},
		{"EventsShowWhoSaidIt", testEventsShowWhoSaidIt}, // last: a dead letter follows it
	})
}

// A question that the gateway publishes reaches it a second time as a live copy; clients see it once.
func testEventsShowQuestionsOnce(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	s := w.follow("/events?session=s-once")
	const questions = 5
	for range questions {
		if status, _, body := w.do("POST", "/query", `{"query":"hello","session_id":"s-once"}`, "Prefer",
			"respond-async"); status != 202 {
			t.Fatalf("%d %s", status, body)
		}
	}
	seen := map[string]int{}
	for range questions {
		m := s.next()
		seen[m.data.Subject+" "+m.data.Query]++
	}
	emitStored(w, w.out("generator").WithIDs("s-once", "q1"), withTokens(t, subjects.AgentStateEvent, "generator"),
		subjects.AgentState{To: "GENERATING"})
	if last := s.next(); len(seen) != questions || last.data.Subject != "agent.state.generator" {
		t.Errorf("%d questions were shown as %v, then %s", questions, seen, last)
	}
}

func testEventsShowWhoSaidIt(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	s := w.follow("/events")
	// Whatever a message says of itself, its author is the account it came from.
	nc := w.Connect("generator")
	if err := nc.Publish("response.generation",
		[]byte(`{"query_id":"q1","session_id":"s1","from":"user","answer":"x"}`)); err != nil {
		t.Fatal(err)
	}
	ev := s.next().data
	if ev.From != "generator" || ev.Subject != "response.generation" || ev.Query != "q1" || ev.Session != "s1" ||
		ev.Seq != w.first+1 || ev.Time.IsZero() {
		t.Errorf("%+v", ev)
	}
	// What is not JSON is shown as text; the gateway's own dead letter about the live copy follows.
	if err := w.Connect("user").Publish("user.feedback", []byte("nice \xff\n\ndata: forged")); err != nil {
		t.Fatal(err)
	}
	if ev := s.next().data; ev.From != "user" || string(ev.Payload) != `"nice `+"\uFFFD"+`\n\ndata: forged"` {
		t.Errorf("%+v %s", ev, ev.Payload)
	}
}

func testEventsFilters(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{
		Config: gateway.Config{Heartbeat: 10 * time.Millisecond},
		change: func(g *gateway.Gateway) { g.SetMaxEvents(2) },
	})
	out, critic := w.out("generator"), w.out("critic")
	for i := range 4 {
		about := out.WithIDs(fmt.Sprintf("s%d", i%2), fmt.Sprintf("q%d", i))
		emitStored(w, about, withTokens(t, subjects.AgentStateEvent, "generator"),
			subjects.AgentState{To: "GENERATING"})
		emitStored(w, critic.WithIDs(fmt.Sprintf("s%d", i%2), fmt.Sprintf("q%d", i)), subjects.CritiqueResult,
			subjects.Critique{Score: i})
	}
	for _, tt := range []struct {
		filter string
		want   []uint64
	}{
		{"", []uint64{1, 2, 3, 4, 5, 6, 7, 8}},
		{"&query=q1", []uint64{3, 4}},
		{"&session=s1", []uint64{3, 4, 7, 8}},
		{"&subject=critique.result", []uint64{2, 4, 6, 8}},
		{"&subject=agent.>", []uint64{1, 3, 5, 7}},
		{"&subject=agent.*.generator&session=s0", []uint64{1, 5}},
	} {
		s := w.follow(fmt.Sprintf("/events?after=%d%s", w.first, tt.filter))
		for _, seq := range tt.want {
			if got := s.next().data.Seq; got != w.first+seq {
				t.Errorf("%q: %d, want %d after %d", tt.filter, got, seq, w.first)
			}
		}
		s.close()
	}
	// A sign of life takes the place along, past what was not wanted: who comes back does not read it all again.
	s := w.follow(fmt.Sprintf("/events?after=%d&query=q0", w.first))
	s.next()
	s.next()
	place, last := "", fmt.Sprintf("id: %d", w.first+8)
	for place != last {
		line, err := s.r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(line, "id: ") {
			place = strings.TrimSpace(line)
		}
	}
}

// Questions and tokens come live: without an id, and tokens only when asked for.
func testEventsLive(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	at := func(n uint64) string { return strconv.FormatUint(w.first+n, 10) }
	plain, full := w.follow("/events?after="+at(0)), w.follow("/events?after="+at(0)+"&deltas=1&session=s1")
	user, out := w.out("user"), w.out("generator").WithIDs("s1", "q1")
	emitStored(w, user.WithIDs("s1", "q1"), subjects.QueryReceived, subjects.Query{Query: "hi"})
	for _, s := range []*sse{plain, full} {
		if m := s.next(); m.data.Subject != "query.received" || m.data.Seq != 0 || m.id != at(0) ||
			m.data.Query != "q1" {
			t.Error(m)
		}
	}
	emitStored(w, out, withTokens(t, subjects.ResponseThinking, "q1"), subjects.Delta{QueryID: "q1", Text: "hm"})
	if m := full.next(); m.event != "delta" || m.data.Subject != "response.thinking.q1" || m.data.Query != "q1" ||
		m.data.Seq != 0 {
		t.Error(m)
	}
	emitStored(w, out, subjects.AnswerDialog, subjects.Dialog{QueryID: "q1"})
	for _, s := range []*sse{plain, full} {
		if m := s.next(); m.data.Subject != "answer.dialog" || m.data.Seq != w.first+1 || m.id != at(1) {
			t.Error(m)
		}
	}
}

func testEventsThatAreGone(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	w.emitStates(w.out("generator"), 0, 3)
	s := w.follow("/events", "Last-Event-ID", "900")
	if m := s.next(); m.event != "lost" ||
		m.raw != fmt.Sprintf(
			`{"from":%d,"to":900,"why":"the event log was created anew; the stream continues with new events"}`,
			w.first+4) || m.id != strconv.FormatUint(w.first+3, 10) {
		t.Error(m)
	}
	w.emitStates(w.out("generator"), 3, 1)
	if m := s.next(); m.data.Seq != w.first+4 {
		t.Error(m)
	}
}

// What no longer fits is the oldest, and whoever was there is told what was lost.
func TestEventsOlderThanWhatIsKept(t *testing.T) {
	t.Parallel()
	w := startGateway(t, bustest.Start(t, func(c *bus.ServerConfig) {
		c.EventMax = 256 << 10
	}), setup{change: func(g *gateway.Gateway) { g.SetMaxEvents(1) }})
	out := w.out("generator")
	for i := range 8 {
		emitStored(w, out, subjects.AnswerDialog,
			subjects.Dialog{QueryID: strconv.Itoa(i), Answer: strings.Repeat("x", 70<<10)})
	}
	eventually(t, "the gateway has read them", func() bool { return gateway.LastEvent(w.gw) == 8 })
	s := w.follow("/events?after=1")
	m := s.next()
	lost := read[struct{ From, To uint64 }](t, m.raw)
	if m.event != "lost" || lost.From != 2 || lost.To < 4 {
		t.Fatalf("%s %s", m.event, m.raw)
	}
	for seq := lost.To + 1; seq <= 8; seq++ {
		if got := s.next().data.Seq; got != seq {
			t.Errorf("%d, want %d", got, seq)
		}
	}
	// All there are is no loss.
	if m := w.follow("/events?after=0").next(); m.event != "" || m.data.Seq != lost.To+1 {
		t.Error(m)
	}
}

// A client that does not read is cut off and its place given to another, who goes on from where it was.
func TestEventsClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	w := startGateway(t, bustest.Start(t), setup{Config: gateway.Config{MaxStreams: 1, WriteTimeout: 3 * time.Second}})
	conn, err := net.Dial("tcp", w.gw.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "GET /events?after=0 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", token)
	if line, err := bufio.NewReaderSize(conn, 16).ReadString('\n'); err != nil || line != "HTTP/1.1 200 OK\r\n" {
		t.Fatalf("%q %v", line, err)
	}
	if status, header, body := w.do("GET", "/events", ""); status != 429 || header.Get("Retry-After") == "" {
		t.Errorf("a second stream: %d %s", status, body)
	}
	out := w.out("generator")
	for i := range 6 { // more than the system keeps for a reader who does not read
		emitStored(w, out, subjects.AnswerDialog,
			subjects.Dialog{QueryID: strconv.Itoa(i), Answer: strings.Repeat("x", 700<<10)})
	}
	eventually(t, "the place is free", func() bool { return len(gateway.StreamSlots(w.gw)) == 0 })
	s := w.follow("/events?after=3")
	for seq := uint64(4); seq <= 6; seq++ {
		if got := s.next().data; got.Seq != seq || len(got.Payload) < 700<<10 {
			t.Errorf("%d with %d bytes, want %d", got.Seq, len(got.Payload), seq)
		}
	}
}
