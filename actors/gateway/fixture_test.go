package gateway_test

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"conclave/actors/gateway"
	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

func TestMain(m *testing.M) {
	if targets := os.Getenv(otherUser); targets != "" {
		attackAsOtherUser(os.Stdout, strings.Fields(targets))
		return
	}
	bustest.AllowParallel(8)
	goleak.VerifyTestMain(m)
}

// testTimeout bounds every wait of a test.
const testTimeout = time.Minute

// fixture is a NATS server under the real grants, and a gateway on it.
type fixture struct {
	*bustest.Bus
	t       testing.TB
	gw      *gateway.Gateway
	nc      *nats.Conn // the gateway's
	actor   *actor.Supervised
	base    string
	first   uint64 // last event before the gateway started
	cfg     gateway.Config
	client  *http.Client // sends the token
	stopped sync.Once
}

// authorizing adds the bearer token to requests that have no Authorization header.
type authorizing struct {
	*http.Transport
	token string
}

func (a authorizing) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header["Authorization"] == nil {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+a.token)
	}
	return a.Transport.RoundTrip(r)
}

// setup configures a gateway.
type setup struct {
	gateway.Config
	drain  time.Duration // 0 = long enough
	change func(*gateway.Gateway)
}

// defaultConfig fills in what c leaves out; the port is a free one.
func defaultConfig(c gateway.Config) gateway.Config {
	return gateway.Config{
		Listen: cmp.Or(c.Listen, "127.0.0.1:0"), Page: c.Page, Hosts: c.Hosts, URL: c.URL, TokenFile: c.TokenFile,
		Socket: c.Socket, GradeWait: c.GradeWait,
		QueryTimeout: cmp.Or(c.QueryTimeout, 10*time.Minute), MaxWaiting: cmp.Or(c.MaxWaiting, 64),
		MaxStreams:     cmp.Or(c.MaxStreams, 32),
		ClientInterval: cmp.Or(c.ClientInterval, 20*time.Second), Heartbeat: cmp.Or(c.Heartbeat, 15*time.Second),
		WriteTimeout: cmp.Or(c.WriteTimeout, 10*time.Second), HeaderTimeout: cmp.Or(c.HeaderTimeout, 5*time.Second),
	}
}

// startGateway starts a gateway on a free port of b, on which other gateways may have run before.
func startGateway(t testing.TB, b *bustest.Bus, with setup) *fixture {
	t.Helper()
	cfg := defaultConfig(with.Config)
	if cfg.TokenFile == "" {
		cfg.TokenFile = tokenFile(t, token+"\n", 0o600)
	}
	if cfg.Socket == "" {
		cfg.Socket = filepath.Join(t.TempDir(), "http.sock")
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	if with.drain == 0 {
		with.drain = testTimeout
	}
	w := &fixture{Bus: b, t: t, cfg: cfg}
	tr := &http.Transport{DisableCompression: true}
	w.client = &http.Client{
		Transport: authorizing{tr, token}, Timeout: testTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	t.Cleanup(tr.CloseIdleConnections)
	var err error
	w.actor, err = actor.Supervise(t.Context(),
		actor.Spec{Name: "gateway", Make: func(_ context.Context, nc *nats.Conn) (actor.Actor, error) {
			w.nc = nc
			w.gw = gateway.New(cfg, nc)
			w.gw.SetBodyTimeout(testTimeout)
			if with.change != nil {
				with.change(w.gw)
			}
			return w.gw, nil
		}}, w.Dial, actor.Config{DrainTimeout: with.drain})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.stop() })
	w.base, w.first = "http://"+w.gw.Addr(), gateway.LastEvent(w.gw)
	return w
}

func (w *fixture) stop() {
	w.stopped.Do(func() {
		if err := w.actor.Stop(); err != nil {
			w.t.Errorf("stopping: %v", err)
		}
	})
}

// out publishes with the key of a role.
func (w *fixture) out(role string) actor.Out {
	w.t.Helper()
	return w.Out(role)
}

// emitStored publishes an event until it is stored.
func emitStored[T any](w *fixture, out actor.Out, topic subjects.Topic[T], body T) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	if err := actor.Emit(ctx, out, topic, body); err != nil {
		w.t.Error(err)
	}
	w.AwaitEvents() // so that events of several authors stay in order
}

func withTokens[T any](t testing.TB, topic subjects.Topic[T], tokens ...string) subjects.Topic[T] {
	t.Helper()
	full, err := topic.With(tokens...)
	if err != nil {
		t.Fatal(err)
	}
	return full
}

// answerQuestions calls answer for each question, with the Out of the generator and the ids of the question.
func (w *fixture) answerQuestions(answer func(q subjects.Query, out actor.Out)) {
	w.t.Helper()
	out := w.out("generator")
	nc := w.Connect("user")
	// A running answer finishes before its connection closes.
	var at sync.Mutex
	over := false
	w.t.Cleanup(func() {
		at.Lock()
		defer at.Unlock()
		over = true
	})
	if _, err := nc.Subscribe("query.received", func(m *nats.Msg) {
		at.Lock()
		defer at.Unlock()
		if over {
			return
		}
		var q subjects.Query
		if err := json.Unmarshal(m.Data, &q); err != nil {
			w.t.Errorf("question %q: %v", m.Data, err)
			return
		}
		answer(q, out.WithIDs(q.SessionID, q.QueryID))
	}); err != nil {
		w.t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		w.t.Fatal(err)
	}
}

// reply is a complete answer to a question.
func reply(q subjects.Query, text string) subjects.Response {
	return subjects.Response{
		SessionID: q.SessionID, QueryID: q.QueryID, Query: q.Query, Answer: text, Thinking: "let me see",
		GeneratorID: "g", RespondentID: "generator", Model: "m",
		ToolCalls: []subjects.ToolCall{{Tool: "get_datetime", Args: json.RawMessage(`{}`), Result: "noon"}},
		Usage:     subjects.Usage{PromptTokens: 3},
	}
}

// do sends one request. body "" sends none.
func (w *fixture) do(method, path, body string, header ...string) (int, http.Header, string) {
	w.t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(context.Background(), method, w.base+path, r)
	if err != nil {
		w.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
			continue
		}
		req.Header.Set(header[i], header[i+1])
	}
	res, err := w.client.Do(req)
	if err != nil {
		w.t.Errorf("%s %s: %v", method, path, err)
		return 0, nil, ""
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Errorf("%s %s: %v", method, path, err)
	}
	return res.StatusCode, res.Header, string(data)
}

// problemBody is the body of an error response.
type problemBody struct {
	QueryID   string         `json:"query_id"`
	SessionID string         `json:"session_id"`
	State     string         `json:"state"`
	Later     map[string]any `json:"later"`
	Error     subjects.Fault `json:"error"`
}

func read[T any](t testing.TB, body string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatalf("%v in %q", err, body)
	}
	return v
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(testTimeout); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("timeout: %s", what)
}

// busTest is a test on a bus that other tests use before and after it.
type busTest struct {
	name string
	run  func(t *testing.T, b *bustest.Bus)
}

// runOnBus runs tests one after the other on one bus, which takes longer to start than they take.
func runOnBus(t *testing.T, tests []busTest) {
	b := bustest.Start(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { tt.run(t, b) })
	}
}

// startActor runs an actor until the test ends.
func startActor(t *testing.T, b *bustest.Bus, a actor.Actor) {
	t.Helper()
	s, err := actor.Supervise(t.Context(),
		actor.Spec{Name: a.Name(), Make: func(context.Context, *nats.Conn) (actor.Actor, error) {
			return a, nil
		}}, b.Dial, actor.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop() })
}

// requestLog records the requests to an actor.
type requestLog struct {
	mu       sync.Mutex
	requests []string
}

func (l *requestLog) record(request string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests = append(l.requests, request)
}

// take returns the requests since the last call, joined, except those that begin with ignored.
func (l *requestLog) take(ignored string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	requests := l.requests
	l.requests = nil
	return strings.Join(slices.DeleteFunc(requests, func(r string) bool {
		return ignored != "" && strings.HasPrefix(r, ignored)
	}), "; ")
}

// storeConversations stores sessions as the generator does.
func (w *fixture) storeConversations(conversations ...subjects.Conversation) {
	w.t.Helper()
	store := w.out("generator").Store("state_generator")
	for _, c := range conversations {
		data, err := json.Marshal(c)
		if err != nil {
			w.t.Fatal(err)
		}
		if _, err := store.Put(w.t.Context(), subjects.ConversationKey(c.SessionID), data, 0); err != nil {
			w.t.Fatal(err)
		}
	}
}

// forgedHeaders are headers with which every request is denied, and none with which it is not.
var forgedHeaders = []struct {
	name   string
	header []string
	status int
}{
	{"trick: a page of another site", []string{"Origin", "https://evil.example"}, 403},
	{"trick: a page of another port", []string{"Sec-Fetch-Site", "same-site"}, 403},
	{"trick: a foreign name of this machine", []string{"Host", "evil.example"}, 403},
	{"no token", []string{"Authorization", ""}, 401},
	{"trick: another token", []string{"Authorization", "Bearer " + strings.Repeat("l", 40)}, 401},
	{"the token", nil, 200},
}
