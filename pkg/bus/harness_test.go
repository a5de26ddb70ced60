package bus_test

import (
	"bufio"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/datatest"
	"conclave/subjects"
)

// testTimeout is the wait for messages that must arrive.
const testTimeout = time.Minute

func TestMain(m *testing.M) {
	bustest.AllowParallel(4)
	m.Run()
}

// startBus runs a provisioned server that stops with the test.
func startBus(t testing.TB) *bus.Bus {
	t.Helper()
	b := startUnprovisioned(t, datatest.Dir(t))
	if err := b.Server.Provision(t.Context(), []byte("genesis")); err != nil {
		t.Fatal(err)
	}
	b.TCP = true
	return b
}

// received is one message as a subscriber received it.
type received struct {
	role, subject, reply, header, body string
}

func (m received) String() string { return m.role + " " + m.subject }

// rawClient is a hand-written NATS client. It sends what the client library rejects, such as a subject with a wildcard
// or a reserved header, and after a flush it has received everything the server sent before.
type rawClient struct {
	role string
	conn net.Conn
	sids int

	writeMu  sync.Mutex // guards the writer
	w        *bufio.Writer
	mu       sync.Mutex // guards messages and errs
	messages []received
	errs     []string
	pongs    chan struct{}
	closed   chan struct{}
	arrivals chan struct{} // signals a message; may be nil
}

// dialRaw connects over TCP. seed nil connects without a key; arrivals is signalled for every message.
func dialRaw(url, role string, seed nkeys.KeyPair, arrivals chan struct{}) (*rawClient, error) {
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "nats://"))
	if err != nil {
		return nil, err
	}
	p := &rawClient{
		role: role, conn: conn, w: bufio.NewWriter(conn), arrivals: arrivals,
		pongs: make(chan struct{}, 64), closed: make(chan struct{}),
	}
	r := bufio.NewReaderSize(conn, 64<<10)
	line, err := r.ReadString('\n')
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	var info struct {
		Nonce string `json:"nonce"`
	}
	if err := json.Unmarshal([]byte(strings.TrimPrefix(line, "INFO ")), &info); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	connect := map[string]any{
		"verbose": false, "pedantic": false, "headers": true, "protocol": 1, "lang": "raw",
		"version": "0", "name": role,
	}
	if seed != nil {
		pub, err := seed.PublicKey()
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		sig, err := seed.Sign([]byte(info.Nonce))
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		connect["nkey"], connect["sig"] = pub, base64.RawURLEncoding.EncodeToString(sig)
	}
	h, err := json.Marshal(connect)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	go p.read(r)
	p.write("CONNECT " + string(h) + "\r\n")
	if err := p.flush(); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *rawClient) close() {
	p.conn.Close()
	<-p.closed
}

// write buffers s until the next ping. It ignores errors: a closed connection shows at the pong.
func (p *rawClient) write(s string) {
	p.writeMu.Lock()
	defer p.writeMu.Unlock()
	_, _ = p.w.WriteString(s)
}

// pub publishes; with a head, as HPUB. Nothing is checked.
func (p *rawClient) pub(subject, reply, head, body string) {
	if reply != "" {
		reply = " " + reply
	}
	if head == "" {
		p.write(fmt.Sprintf("PUB %s%s %d\r\n%s\r\n", subject, reply, len(body), body))
		return
	}
	head = "NATS/1.0\r\n" + head + "\r\n\r\n"
	p.write(fmt.Sprintf("HPUB %s%s %d %d\r\n%s%s\r\n", subject, reply, len(head), len(head)+len(body), head, body))
}

func (p *rawClient) sub(subject string) {
	p.sids++
	p.write(fmt.Sprintf("SUB %s %d\r\n", subject, p.sids))
}

// flush returns when the server has handled everything written before, and everything it sent before is in messages.
func (p *rawClient) flush() error {
	p.ping()
	return p.pong()
}

func (p *rawClient) ping() {
	p.write("PING\r\n")
	p.writeMu.Lock()
	defer p.writeMu.Unlock()
	_ = p.w.Flush()
}

func (p *rawClient) pong() error {
	late := time.NewTimer(testTimeout)
	defer late.Stop()
	select {
	case <-p.pongs:
		return nil
	case <-p.closed:
		return fmt.Errorf("%s: the server closed the connection: %v", p.role, p.takeErrors())
	case <-late.C:
		return fmt.Errorf("%s: no answer to a ping", p.role)
	}
}

// takeErrors returns and forgets the -ERR lines so far.
func (p *rawClient) takeErrors() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.errs
	p.errs = nil
	return e
}

// takeMessages returns and forgets the messages so far.
func (p *rawClient) takeMessages() []received {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.messages
	p.messages = nil
	return h
}

func (p *rawClient) read(r *bufio.Reader) {
	defer close(p.closed)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		line = strings.TrimRight(line, "\r\n")
		op, rest, _ := strings.Cut(line, " ")
		switch op {
		case "PING": // answered at once: a sweep may take longer than the server waits
			p.writeMu.Lock()
			_, _ = p.w.WriteString("PONG\r\n")
			_ = p.w.Flush()
			p.writeMu.Unlock()
		case "PONG":
			p.pongs <- struct{}{}
		case "-ERR":
			p.mu.Lock()
			p.errs = append(p.errs, rest)
			p.mu.Unlock()
		case "MSG", "HMSG":
			f := strings.Split(rest, " ") // not Fields: a subject may hold what Unicode calls a space
			m := received{role: p.role, subject: f[0]}
			sizes := 1
			if op == "HMSG" {
				sizes = 2
			}
			if len(f) == 3+sizes {
				m.reply = f[2]
			}
			total, err := strconv.Atoi(f[len(f)-1])
			if err != nil {
				return
			}
			buf := make([]byte, total+2)
			if _, err := io.ReadFull(r, buf); err != nil {
				return
			}
			buf = buf[:total]
			if op == "HMSG" {
				n, err := strconv.Atoi(f[len(f)-2])
				if err != nil || n > total {
					return
				}
				m.header, buf = string(buf[:n]), buf[n:]
			}
			m.body = string(buf)
			p.mu.Lock()
			p.messages = append(p.messages, m)
			p.mu.Unlock()
			select {
			case p.arrivals <- struct{}{}:
			default:
			}
		}
	}
}

// harness is a server with the real permissions and a naive client for every role. Each client subscribes to everything
// it may, and replies to every request; the broker calls every tool that is requested. So what is denied here is denied
// by the bus alone.
//
// The clients have no goroutines: they handle messages inside runUntilIdle.
type harness struct {
	t            testing.TB // of the row that runs
	parent       testing.TB // of the harness
	b            *bus.Bus
	table        subjects.Layout
	roles        []string
	clients      map[string]*rawClient
	publishers   map[string]*rawClient // connections for publishing, by role
	pubs         map[string][]string   // subjects that the table lets a role publish
	received     []received            // messages since the last reset, in order
	pendingCalls map[string]string     // the broker's pending calls: its inbox -> reply subject
	passive      map[string]bool       // roles that receive and do not reply
	lastInbox    int
	lastStates   map[string]streamState // as of the last addedMessages
	arrivals     chan struct{}          // signals a message at any client
	user         *nats.Conn             // reads EVENTS for the checks
	audit        *nats.Conn             // reads AUDIT
	sys          *nats.Conn             // reads the state of every stream
}

// checkInbox marks the traffic of the checks themselves.
const checkInbox = "_INBOX.check"

// newHarness starts the server and the clients of all roles, those of run-time principals included, but the absent
// ones.
func newHarness(t testing.TB, absent ...string) *harness {
	t.Helper()
	h := &harness{
		t: t, parent: t, b: startBus(t), clients: map[string]*rawClient{},
		publishers: map[string]*rawClient{}, arrivals: make(chan struct{}, 1), pubs: map[string][]string{},
		pendingCalls: map[string]string{}, passive: map[string]bool{},
	}
	principals := addPrincipals(t, h.b, runTimePrincipals()...)
	var err error
	if h.table, err = subjects.Table().With(principals); err != nil {
		t.Fatal(err)
	}
	for _, a := range h.table.Accounts {
		for _, u := range a.Users {
			if u.Boot {
				continue
			}
			pub, sub := allowedSubjects(h.table, a, u)
			h.pubs[u.Role] = pub
			if slices.Contains(absent, u.Role) {
				continue
			}
			p := h.dial(u.Role)
			for _, s := range sub {
				p.sub(s)
			}
			h.clients[u.Role] = p
			h.roles = append(h.roles, u.Role)
		}
	}
	for _, r := range h.roles {
		p := h.clients[r]
		h.flush(p)
		if e := p.takeErrors(); len(e) > 0 {
			t.Fatalf("%s may not subscribe as the table allows: %v", r, e)
		}
	}
	conn := func(role string) *nats.Conn {
		return bustest.Dial(t, h.b, role, nats.CustomInboxPrefix(checkInbox))
	}
	h.user, h.audit, h.sys = conn("user"), conn("auditor"), conn("sys")
	return h
}

// allowedSubjects derives from the table what a user may publish and subscribe to. It shares no code with the renderer
// of nats.conf, so that the two check each other.
func allowedSubjects(l subjects.Layout, a subjects.Account, u subjects.User) (pub, sub []string) {
	pub, sub = slices.Clone(u.Pub), slices.Clone(u.Sub)
	if u.Isolated {
		return pub, sub
	}
	if slices.Contains(sub, ">") {
		sub = []string{">"} // the others would deliver twice
	} else {
		sub = append(sub, "_INBOX.>")
	}
	if a.Serves {
		pub = append(pub, "_R_.>")
	}
	for _, e := range l.Edges {
		if !slices.Contains(e.Callers, a.Name) {
			continue
		}
		_, local := e.Resolve(a.Name)
		names := e.Permission
		if names == nil {
			names = []string{local}
		}
		if e.Kind == subjects.ServiceImport {
			pub = append(pub, names...)
		} else if !slices.Contains(sub, ">") {
			sub = append(sub, names...)
		}
	}
	slices.Sort(pub)
	slices.Sort(sub)
	return slices.Compact(pub), slices.Compact(sub)
}

func (h *harness) dial(role string) *rawClient {
	h.t.Helper()
	seed, err := h.b.Keys.Seed(role)
	if err != nil {
		h.t.Fatal(err)
	}
	p, err := dialRaw(h.b.URL, role, seed, h.arrivals)
	if err != nil {
		h.t.Fatal(err)
	}
	h.parent.Cleanup(p.close)
	return p
}

func (h *harness) flush(p *rawClient) {
	h.t.Helper()
	if err := p.flush(); err != nil {
		h.t.Fatal(err)
	}
}

// mayPublish reports whether the table lets a role publish a subject.
func (h *harness) mayPublish(role, subject string) bool {
	return slices.ContainsFunc(h.pubs[role], func(p string) bool { _, ok := subjects.Match(p, subject); return ok })
}

// isForeign reports whether b is of another account than a.
func (h *harness) isForeign(a, b string) bool {
	return a != b && h.table.AccountOf(a) != h.table.AccountOf(b)
}

// publication is one message published by one role.
type publication struct {
	role, subject, reply, header, body string
}

// inbox as a reply means the role's own inbox.
const inbox = "<inbox>"

// publisher is the connection over which a role speaks; it listens to nothing.
func (h *harness) publisher(role string) *rawClient {
	h.t.Helper()
	if h.publishers[role] == nil {
		h.publishers[role] = h.dial(role)
	}
	return h.publishers[role]
}

// publish says a and returns what the server refused.
func (h *harness) publish(a publication) []string {
	h.t.Helper()
	return h.publishOn(h.publisher(a.role), a)
}

func (h *harness) publishOn(p *rawClient, a publication) []string {
	h.t.Helper()
	if a.reply == inbox {
		h.lastInbox++
		a.reply = "_INBOX." + a.role + "." + strconv.Itoa(h.lastInbox)
	}
	p.pub(a.subject, a.reply, a.header, cmp.Or(a.body, "{}"))
	h.flush(p)
	return p.takeErrors()
}

// runUntilIdle lets all clients receive and reply until a whole round brings no message.
func (h *harness) runUntilIdle() {
	h.t.Helper()
	for range 500 {
		quiet := true
		for _, r := range h.roles {
			h.clients[r].ping()
		}
		for _, r := range h.roles {
			p := h.clients[r]
			if err := p.pong(); err != nil {
				h.t.Fatal(err)
			}
			for _, m := range p.takeMessages() {
				if strings.HasPrefix(m.subject, checkInbox) ||
					(r == "user" && strings.HasPrefix(m.subject, "core.API.")) {
					continue // the checks themselves, and what the user's own ">" hears of itself
				}
				quiet = false
				h.received = append(h.received, m)
				h.handleMessage(p, m)
			}
		}
		if quiet {
			return
		}
	}
	h.t.Fatalf("messages do not end; last received: %v", h.received[max(0, len(h.received)-5):])
}

// brokerCalls is where the naive broker receives the replies of the tools that it called.
const brokerCalls = "_INBOX.broker.call."

// handleMessage replies to m as a naive actor does.
func (h *harness) handleMessage(p *rawClient, m received) {
	if h.passive[p.role] {
		return
	}
	if to, ok := h.pendingCalls[m.subject]; ok && p.role == "broker" {
		delete(h.pendingCalls, m.subject)
		if to != "" {
			p.pub(to, "", "", m.body)
		}
		return
	}
	if t, ok := subjects.Match("agent.*.tool.request.>", m.subject); ok && p.role == "broker" {
		tool := t[1]
		if zone := subjects.ZoneOf(tool); zone != "" {
			h.lastInbox++
			back := brokerCalls + strconv.Itoa(h.lastInbox)
			h.pendingCalls[back] = m.reply
			p.pub("tool.call."+zone+"."+tool, back, "", m.body)
			return
		}
		if !strings.ContainsAny(tool, " \t\r\n\x00") {
			p.pub("tool.call.tools."+tool, "", "", m.body) // naive to the end
		}
	}
	if m.reply == "" || strings.HasPrefix(m.subject, "_INBOX.") {
		return
	}
	for _, e := range h.table.Edges {
		if e.Kind != subjects.ServiceImport || e.Owner != h.table.AccountOf(p.role) {
			continue
		}
		if _, ok := subjects.Match(strings.ReplaceAll(e.Remote, "<who>", "*"), m.subject); ok {
			p.pub(m.reply, "", "", "answer of "+p.role)
			return
		}
	}
}

// awaitReceived settles until each of what was heard, written "role pattern", and fails the test when it does not come.
func (h *harness) awaitReceived(what ...string) {
	h.t.Helper()
	end, before := time.Now().Add(testTimeout), len(h.received)
	for {
		h.runUntilIdle()
		if len(h.received) > before { // it is slow, and not stuck
			end, before = time.Now().Add(testTimeout), len(h.received)
		}
		missing := slices.DeleteFunc(slices.Clone(what), func(w string) bool {
			return slices.ContainsFunc(h.received, func(m received) bool { return matchesExpectation(w, m) })
		})
		if len(missing) == 0 {
			return
		}
		if time.Now().After(end) {
			h.t.Fatalf("never received: %q; received: %v", missing, h.received)
		}
		h.waitArrival(100 * time.Millisecond)
	}
}

// waitArrival returns when a message arrives, or after d.
func (h *harness) waitArrival(d time.Duration) {
	select {
	case <-h.arrivals:
	case <-time.After(d):
	}
}

// matchesExpectation reports whether m is what w says: "role pattern".
func matchesExpectation(w string, m received) bool {
	role, pattern, _ := strings.Cut(w, " ")
	if role != m.role {
		return false
	}
	_, ok := subjects.Match(pattern, m.subject)
	return ok
}

// streamState is what one stream looks like from outside.
type streamState struct {
	Msgs, First, Last uint64
	Consumers         int
	Config            string
	Subjects          map[string]uint64 // how many of each; EVENTS and AUDIT only
}

// forgetReceived forgets the messages so far, those included that are on their way from the streams of the authors.
func (h *harness) forgetReceived() {
	h.t.Helper()
	h.streamStates()
	h.runUntilIdle()
	h.received = nil
}

// isEventIntake reports whether events enter EVENTS by this stream.
func isEventIntake(stream string) bool { return strings.HasPrefix(stream, "EVENTS_") }

// streamStates returns the state of every stream but those by which events enter EVENTS, once EVENTS has all their
// messages.
func (h *harness) streamStates() map[string]streamState {
	h.t.Helper()
	for end := time.Now().Add(testTimeout); ; {
		out := h.readStates()
		var entered uint64
		for name, s := range out {
			if isEventIntake(name) {
				entered += s.Last
				delete(out, name)
			}
		}
		for subject, n := range out["EVENTS"].Subjects {
			if strings.HasPrefix(subject, "from.broker.tool.") { // the copies of calls enter EVENTS at once
				entered += n
			}
		}
		if out["EVENTS"].Last == entered {
			return out
		}
		if time.Now().After(end) {
			h.t.Fatalf("EVENTS has %d of %d messages", out["EVENTS"].Last, entered)
		}
		<-time.After(time.Millisecond)
	}
}

// readStates asks the monitoring account for every stream.
func (h *harness) readStates() map[string]streamState {
	h.t.Helper()
	m, err := h.sys.Request("$SYS.REQ.SERVER.PING.JSZ", []byte(`{"accounts":true,"streams":true,"config":true}`),
		testTimeout)
	if err != nil {
		h.t.Fatal(err)
	}
	var r struct {
		Data struct {
			Accounts []struct {
				Streams []struct {
					Name   string          `json:"name"`
					Config json.RawMessage `json:"config"`
					State  struct {
						Msgs      uint64 `json:"messages"`
						First     uint64 `json:"first_seq"`
						Last      uint64 `json:"last_seq"`
						Consumers int    `json:"consumer_count"`
					} `json:"state"`
				} `json:"stream_detail"`
			} `json:"account_details"`
		} `json:"data"`
	}
	if err := json.Unmarshal(m.Data, &r); err != nil {
		h.t.Fatal(err)
	}
	out := map[string]streamState{}
	for _, a := range r.Data.Accounts {
		for _, s := range a.Streams {
			out[s.Name] = streamState{
				s.State.Msgs, s.State.First, s.State.Last, s.State.Consumers, string(s.Config),
				h.storedSubjects(s.Name),
			}
		}
	}
	if len(out) != len(h.table.Streams) {
		h.t.Fatalf("%d streams, want %d", len(out), len(h.table.Streams))
	}
	return out
}

// storedSubjects counts the subjects of EVENTS, as the user, or of AUDIT, as the auditor. The subjects come from the
// stream itself, not from a header. Nobody may read the other streams that way.
func (h *harness) storedSubjects(stream string) map[string]uint64 {
	h.t.Helper()
	var nc *nats.Conn
	api := bus.CoreAPI
	switch stream {
	case "EVENTS":
		nc = h.user
	case subjects.Audit:
		nc, api = h.audit, bus.AuditAPI
	default:
		return nil
	}
	m, err := nc.Request(api+".STREAM.INFO."+stream, []byte(`{"subjects_filter":">"}`), testTimeout)
	if err != nil {
		h.t.Fatal(err)
	}
	var r struct {
		State struct {
			Subjects map[string]uint64 `json:"subjects"`
		} `json:"state"`
		Error json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &r); err != nil || r.Error != nil {
		h.t.Fatalf("reading %s: %v %s", stream, err, r.Error)
	}
	return r.State.Subjects
}

// addedMessages says what was added to the streams, "EVENTS from.x.y" or "KV_x", and fails the test for what went
// missing or was changed. A bucket named in shrinks may lose old values.
func (h *harness) addedMessages(before map[string]streamState, shrinks ...string) (added []string) {
	h.t.Helper()
	h.lastStates = h.streamStates()
	for name, s := range h.lastStates {
		was := before[name]
		if s.Config != was.Config {
			h.t.Errorf("the settings of %s changed:\n%s\n%s", name, was.Config, s.Config)
		}
		if s.Consumers != was.Consumers {
			h.t.Errorf("%s had %d consumers and has %d", name, was.Consumers, s.Consumers)
		}
		if s.Last < was.Last || (s.Msgs < was.Msgs && !slices.Contains(shrinks, name)) {
			h.t.Errorf("%s lost messages: %d up to %d, was %d up to %d", name, s.Msgs, s.Last, was.Msgs, was.Last)
		}
		if s.Subjects == nil && was.Subjects == nil {
			added = append(added, slices.Repeat([]string{name}, int(s.Last-min(s.Last, was.Last)))...)
			continue
		}
		for subject, n := range s.Subjects {
			if n < was.Subjects[subject] {
				h.t.Errorf("%s lost messages of %s", name, subject)
				continue
			}
			added = append(added, slices.Repeat([]string{name + " " + subject}, int(n-was.Subjects[subject]))...)
		}
	}
	slices.Sort(added)
	return added
}

// unexpectedReceivers lists the messages that roles other than the publisher received and that are not expected,
// deduped.
func (h *harness) unexpectedReceivers(as string, log []received, expected ...string) (out []string) {
	for _, m := range log {
		if !h.isForeign(as, m.role) || strings.HasPrefix(m.subject, brokerCalls) ||
			slices.ContainsFunc(expected, func(w string) bool { return matchesExpectation(w, m) }) {
			continue
		}
		if s := m.String(); !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}
