package acceptance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/vmihailenco/msgpack/v5"

	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/client"
	"conclave/subjects"
)

// maxFloodRSS is the memory that the process may use after any flood, in bytes.
const maxFloodRSS = 600 << 20

// TestChaosFlood floods the system with the key of one compromised role after another: events, dead letters, states,
// questions, turns and audit records, each for half a second, 20 s in the long form. After each the events of the user
// are still stored, the process uses less than 600 MB, and tool calls go on.
func TestChaosFlood(t *testing.T) {
	period, flags := 500*time.Millisecond, "system.event_max=96MB system.audit_max=96MB"
	if full() {
		period, flags = 20*time.Second, ""
	}
	v := newKilledProcess(t, "broker,tools")
	v.flags = flags
	v.start()
	v.waitUntilReady()
	f := newFlood(t, v)

	large := make([]byte, 700<<10)
	for _, tt := range []struct {
		name    string
		role    string
		subject func(i int) string
		body    []byte
	}{
		{"dead letters", "reward", fixed("dead.reward"), make([]byte, 4<<10)},
		{"large dead letters", "critic", fixed("dead.critic"), large},
		{"grades", "critic", fixed("critique.result"), large},
		{"answers", "respondent_b", fixed("response.generation"), large},
		{"states under ever new subjects", "generator", numbered("agent.state.generator.x%d"), make([]byte, 8<<10)},
		{"memory events", "memory", fixed("memory.stored"), large},
		{"cancellations under ever new subjects", "gateway", numbered("query.cancel.x%d"), large},
		{"questions", "gateway", fixed("query.received"), large},
		{"turns", "router", numbered("query.session.x%d"), large},
		{"audit records of the model actor", "model", numbered("audit.x%d"), make([]byte, 200<<10)},
		{"audit records of memory", "memory", fixed("audit.x"), make([]byte, 200<<10)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sent := f.publish(t, tt.role, period, tt.subject, tt.body)
			f.check(t, sent)
		})
	}
	t.Run("discovery requests of an agent", func(t *testing.T) {
		before := f.auditBytes(t)
		sent := f.request(t, "committee", "broker.discover", period)
		f.check(t, sent)
		// Records of repeated refusals are limited per period, so that a longer flood stores more of them.
		if grown := f.auditBytes(t) - before; grown > 64<<10+int64(period/time.Second)*4<<10 {
			t.Errorf("the audit log grew by %d KB", grown>>10)
		}
	})
}

func fixed(subject string) func(int) string { return func(int) string { return subject } }

func numbered(format string) func(int) string {
	return func(i int) string { return fmt.Sprintf(format, i) }
}

// flood is a system with events of the user, and clients that check on it.
type flood struct {
	process *killedProcess
	user    *client.Client
	caller  busCaller
	events  []uint64 // sequences of the user's events
}

// newFlood stores events of the user and answers for them, and connects the clients.
func newFlood(t *testing.T, v *killedProcess) *flood {
	t.Helper()
	f := &flood{process: v, caller: dialOperator(t, v.dialBus())}
	user := f.dial(t, "user")
	var err error
	if f.user, err = client.New(user); err != nil {
		t.Fatal(err)
	}
	const n = 20
	generator := f.dial(t, "generator")
	for i := range n {
		for subject, nc := range map[string]*nats.Conn{"user.feedback": user, "answer.dialog": generator} {
			if _, err := nc.Request(subject, fmt.Appendf(nil, `{"query_id":"q%d"}`, i), testTimeout); err != nil {
				t.Fatal(err)
			}
		}
	}
	for deadline := time.Now().Add(testTimeout); len(f.events) < 2*n; {
		f.events = nil
		for e, err := range f.user.EventsFrom(t.Context(), 1, "from.*.>") {
			if err != nil {
				t.Fatal(err)
			}
			f.events = append(f.events, e.Seq)
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d events stored, want %d", len(f.events), 2*n)
		}
	}
	return f
}

func (f *flood) dial(t *testing.T, role string) *nats.Conn {
	t.Helper()
	return bustest.Dial(t, f.process.dialBus(), role)
}

// publish publishes body as fast as it can for a period, without waiting for acknowledgements, and returns the bytes
// sent.
func (f *flood) publish(t *testing.T, role string, period time.Duration, subject func(i int) string,
	body []byte,
) (sent int) {
	t.Helper()
	nc := bustest.Dial(t, f.process.dialBus(), role, nats.NoReconnect())
	defer nc.Close()
	m := nats.NewMsg("")
	m.Data, m.Reply = body, nats.NewInbox()
	for i, end := 0, time.Now().Add(period); time.Now().Before(end); i++ {
		m.Subject = subject(i)
		if nc.PublishMsg(m) != nil { // disconnected: that ends the flood too
			break
		}
		sent += len(body)
	}
	_ = nc.FlushTimeout(testTimeout)
	return sent
}

// request sends well-formed requests for a period, many at a time, and returns the bytes sent.
func (f *flood) request(t *testing.T, role, subject string, period time.Duration) (sent int) {
	t.Helper()
	body, err := msgpack.Marshal(map[string]string{"task": strings.Repeat("x", 1000)})
	if err != nil {
		t.Fatal(err)
	}
	nc := f.dial(t, role)
	m := nats.NewMsg(subject)
	m.Data, m.Reply = body, nats.NewInbox()
	m.Header.Set(subjects.HeaderType, subjects.TypeMsgpack)
	m.Header.Set(subjects.HeaderDeadline, strconv.FormatInt(time.Now().Add(time.Minute).UnixMilli(), 10))
	for end := time.Now().Add(period); time.Now().Before(end); {
		for range 16 { // fewer than the broker queues: each is handled
			if err := nc.PublishMsg(m); err != nil {
				t.Fatal(err)
			}
			sent += len(body)
		}
		if err := nc.FlushTimeout(testTimeout); err != nil {
			t.Fatal(err)
		}
	}
	return sent
}

// auditBytes returns the size of the broker's part of the audit log.
func (f *flood) auditBytes(t *testing.T) int64 {
	t.Helper()
	status, err := dialClient(t, f.process.dialBus(), "auditor").AuditStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return status["broker"].Bytes
}

// check fails the test when an event of the user is gone, the memory is over the limit, or a tool call fails.
func (f *flood) check(t *testing.T, sent int) {
	t.Helper()
	for _, seq := range f.events {
		if _, ok, err := f.user.Event(t.Context(), seq); err != nil || !ok {
			t.Errorf("event %d of the user is gone: %v", seq, err)
			break
		}
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if res := f.caller.callTool(ctx, "get_datetime", actor.NewID(), utc); res.Error != nil {
		t.Errorf("a tool call failed: %v", res.Error)
	}
	took := time.Since(start)
	rss := processRSS(t, f.process.cmd.Process.Pid)
	if rss > maxFloodRSS && !underRace {
		t.Errorf("the process uses %d MB", rss>>20)
	}
	t.Logf("%d MB sent, RSS %d MB, a call took %s", sent>>20, rss>>20, took.Round(time.Millisecond))
}

// processRSS returns the resident memory of a process in bytes.
func processRSS(t *testing.T, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

// TestConnectionsOfOneAccountLeaveRoomForOthers: a tool's key opens connections until it is refused. The user, the
// auditor and the broker still connect, and the refusal names the reason.
func TestConnectionsOfOneAccountLeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	r := up(t, settings(t), home, "broker", "tools")
	remote := &bus.Bus{URL: r.Bus.URL, Keys: home.Keys(), OnConnError: func(bus.ConnError) {}}
	opened := 0
	var refused error
	for range 1100 {
		nc, err := remote.Dial(subjects.ToolRole("get_datetime"), nats.NoReconnect())
		if err != nil {
			refused = err
			break
		}
		defer nc.Close()
		opened++
	}
	t.Logf("the key of one tool opened %d connections, then: %v", opened, refused)
	if opened > 100 || !errors.Is(refused, bus.ErrTooManyConns) {
		t.Errorf("opened %d connections, then %v", opened, refused)
	}
	for _, role := range []string{"user", "auditor", "broker", "operator"} {
		nc, err := remote.Dial(role)
		if err != nil {
			t.Errorf("%s is refused: %v", role, err)
			continue
		}
		nc.Close()
	}
	calls(t, r.Bus, 3)
}
