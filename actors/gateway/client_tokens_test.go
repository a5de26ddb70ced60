package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"image"
	"image/png"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/actors/gateway"
	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// listRegistry serves a list of principals.
type listRegistry struct {
	mu   sync.Mutex
	list []subjects.Principal
	down bool // it replies with an error
}

func (r *listRegistry) Name() string { return subjects.Registry }

func (r *listRegistry) Routes() []actor.Route {
	return []actor.Route{actor.Serve(subjects.PrincipalListService, func(context.Context, actor.Msg[subjects.Empty],
		actor.Out,
	) (subjects.PrincipalList, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.down {
			return subjects.PrincipalList{}, subjects.Faultf(subjects.CodeUnavailable, "no list")
		}
		return subjects.PrincipalList{Principals: r.list}, nil
	})}
}

func (r *listRegistry) set(list ...subjects.Principal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = list
}

// newClient returns a client and its token.
func newClient(name string, added time.Time) (p subjects.Principal, token string) {
	token = fmt.Sprintf("%064x", sha256.Sum256([]byte(name+added.String())))
	hash := sha256.Sum256([]byte(token))
	return subjects.Principal{
		Name: name, Kind: subjects.ClientPrincipal, TokenHash: hex.EncodeToString(hash[:]),
		Added: added,
	}, token
}

// setClients changes the list of the registry, and waits until the gateway has it: whether the last token of tokens has
// access.
func (w *fixture) setClients(r *listRegistry, token string, access bool, list ...subjects.Principal) {
	w.t.Helper()
	r.set(list...)
	w.announceClients()
	eventually(w.t, "the list is known", func() bool {
		status, _, _ := w.do("GET", "/v1/models", "", "Authorization", "Bearer "+token)
		return (status == http.StatusOK) == access
	})
}

func (w *fixture) announceClients() {
	w.t.Helper()
	if err := actor.Emit(w.t.Context(), w.out(subjects.Registry), subjects.PrincipalChanged,
		subjects.PrincipalNotice{}); err != nil {
		w.t.Fatal(err)
	}
}

// TestClientToken is the access of a client with a token of its own: questions and its own answers, as content that
// permits nothing, and nothing of the user. A revoked token ends running requests and the questions behind them.
func TestClientToken(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	registry := &listRegistry{}
	client, phoneToken := newClient("phone", time.Unix(1, 0))
	scope := gateway.ClientScope(client)
	startActor(t, b, registry)
	w := startGateway(t, b, setup{})
	asked := make(chan subjects.Query, 16)
	w.answerQuestions(func(q subjects.Query, out actor.Out) {
		asked <- q
		if q.Query != "wait" {
			emitStored(w, out, subjects.ResponseGeneration, reply(q, "hello"))
		}
	})
	phone := []string{"Authorization", "Bearer " + phoneToken}
	w.setClients(registry, phoneToken, true, client)

	status, _, body := w.do("POST", "/query", `{"query":"hi","session_id":"s1"}`, phone...)
	q := <-asked
	if status != http.StatusOK || q.Client != "phone" || q.ClientMemory || q.SessionID != scope+"s1" ||
		!strings.HasPrefix(q.QueryID, scope) {
		t.Fatalf("%d %s %+v", status, body, q)
	}
	// It gets the answer, and not the thinking, the calls and the events behind it, which may quote what is private.
	status, _, again := w.do("GET", "/queries/"+q.QueryID, "", phone...)
	if status != http.StatusOK {
		t.Errorf("its own answer: %d %s", status, again)
	}
	_, _, complete := w.do("GET", "/queries/"+q.QueryID, "")
	if !strings.Contains(complete, "let me see") || !strings.Contains(complete, "get_datetime") ||
		!strings.Contains(complete, "response.generation") {
		t.Errorf("the user gets %s", complete)
	}
	_, header, completed := w.do("POST", "/v1/chat/completions",
		`{"model":"assistant","messages":[{"role":"user","content":"hi"}]}`,
		append(phone, "X-Conclave-Session", q.SessionID)...)
	if got := <-asked; got.Client != "phone" || got.SessionID != scope+"s1" ||
		header.Get("X-Conclave-Session") != got.SessionID {
		t.Errorf("%+v", got)
	}
	for _, body := range []string{body, again, completed} {
		if !strings.Contains(body, "hello") || strings.Contains(body, "let me see") ||
			strings.Contains(body, "get_datetime") || strings.Contains(body, "response.generation") {
			t.Errorf("a client gets %s", body)
		}
	}
	if status, _, body := w.do("POST", "/query", `{"query":"hi","model":"big"}`,
		phone...); status != http.StatusForbidden {
		t.Errorf("a client chooses a model: %d %s", status, body)
	}
	// Everything of the user is denied, and so is a question of another.
	for _, route := range append(w.gw.Endpoints(), "PUT /sessions") {
		method, path, _ := strings.Cut(route, " ")
		switch route {
		case "GET /health", "POST /query", "GET /v1/models", "POST /v1/chat/completions", "POST /v1/responses",
			"POST /v1/embeddings", "GET /login", "POST /mcp", "GET /v1/models/{id}":
			continue
		}
		path = strings.NewReplacer("{id}", "abcdefgh", "{name}", "abcdefgh").Replace(path)
		if status, _, body := w.do(method, path, "", phone...); status != http.StatusForbidden {
			t.Errorf("%s: %d %s", route, status, body)
		}
	}

	// A path without a route, and another method of a route that it may use, are answered as for everybody.
	for _, tt := range []struct {
		method, path string
		status       int
		allow        string
	}{
		{"GET", "/nothing", http.StatusNotFound, ""},
		{"GET", "/v1/nothing", http.StatusNotFound, ""},
		{"GET", "/chat", http.StatusNotFound, ""},
		{"GET", "/mcp", http.StatusMethodNotAllowed, "POST"},
		{"DELETE", "/mcp", http.StatusMethodNotAllowed, "POST"},
		{"GET", "/query", http.StatusMethodNotAllowed, "POST"},
		{"GET", "/v1/models/assistant", http.StatusOK, ""},
		{"GET", "/v1/models/gpt", http.StatusNotFound, ""},
	} {
		status, header, body := w.do(tt.method, tt.path, "", append(phone, "Accept", "text/html")...)
		if status != tt.status || header.Get("Allow") != tt.allow {
			t.Errorf("%s %s: %d, Allow %q, %s", tt.method, tt.path, status, header.Get("Allow"), body)
		}
	}

	// Nor does the user ask in a session of a client, with its words. The list says whose session it is.
	w.storeConversations(subjects.Conversation{
		SessionID: q.SessionID,
		Turns:     []subjects.Turn{{QueryID: q.QueryID, Query: "hi", Answer: "hello"}},
	})
	if status, _, body := w.do("POST", "/query", `{"query":"hi","session_id":"`+q.SessionID+
		`"}`); status != http.StatusForbidden || !strings.Contains(body, "belongs to the client phone") {
		t.Errorf("a question of the user in it: %d %s", status, body)
	}
	for _, path := range []string{"/sessions", "/sessions/" + q.SessionID} {
		if _, _, body := w.do("GET", path, ""); !strings.Contains(body, `"client":"phone"`) {
			t.Errorf("%s: %s", path, body)
		}
	}

	// Revocation ends requests that run, and cancels every question without an answer, also one for which nobody waits.
	generator := w.Connect("generator")
	sub, err := generator.SubscribeSync("query.cancel.*")
	if err != nil || sub.SetPendingLimits(-1, -1) != nil {
		t.Fatal(err)
	}
	if err := bustest.ConfirmSubscriptions(t.Context(), generator); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the answered questions count no more", func() bool {
		return gateway.OpenQuestions(w.gw, scope) == 0
	})
	open := map[string]bool{}
	for range 2 {
		if status, _, body := w.do("POST", "/query?wait=0", `{"query":"wait"}`,
			phone...); status != http.StatusAccepted {
			t.Fatalf("%d %s", status, body)
		}
		open[(<-asked).QueryID] = true
	}
	running := make(chan string, 2)
	for _, request := range [][2]string{
		{"/query", `{"query":"wait"}`},
		{"/v1/chat/completions", `{"model":"assistant","stream":true,"messages":[{"role":"user","content":"wait"}]}`},
	} {
		go func() {
			status, _, body := w.do("POST", request[0], request[1], phone...)
			running <- fmt.Sprint(status, body)
		}()
		open[(<-asked).QueryID] = true
	}
	if status, _, body := w.do("POST", "/query?wait=0", `{"query":"wait"}`,
		phone...); status != http.StatusTooManyRequests {
		t.Errorf("a fifth question without an answer: %d %s", status, body)
	}
	w.setClients(registry, phoneToken, false)
	for range 2 {
		if got := <-running; !strings.HasPrefix(got, "401") && !strings.Contains(got, "invalid_api_key") {
			t.Errorf("a running request of a revoked token: %s", got)
		}
	}
	for len(open) > 0 {
		m, err := sub.NextMsg(testTimeout)
		if err != nil {
			t.Fatalf("not cancelled: %v, %v", open, err)
		}
		delete(open, m.Subject[strings.LastIndex(m.Subject, ".")+1:])
	}

	// A later client of the same name has no question of the earlier one.
	later, laterToken := newClient("phone", time.Unix(2, 0))
	w.setClients(registry, laterToken, true, later)
	if status, _, body := w.do("GET", "/queries/"+q.QueryID, "", "Authorization",
		"Bearer "+laterToken); status != http.StatusForbidden {
		t.Errorf("a question of an earlier client: %d %s", status, body)
	}
	// Without a reply of the registry nobody knows whether a client is revoked: after two attempts it has no access.
	registry.mu.Lock()
	registry.down = true
	registry.mu.Unlock()
	eventually(t, "the access has ended", func() bool {
		w.announceClients()
		status, _, _ := w.do("GET", "/v1/models", "", "Authorization", "Bearer "+laterToken)
		return status == http.StatusUnauthorized
	})
}

// TestClientLimits: a client takes no memory, no place and no storage of the user.
func TestClientLimits(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	registry := &listRegistry{}
	phone, phoneToken := newClient("phone", time.Unix(1, 0))
	camera, cameraToken := newClient("camera", time.Unix(1, 0))
	startActor(t, b, registry)
	w := startGateway(t, b, setup{Config: gateway.Config{MaxWaiting: 8}})
	w.answerQuestions(func(q subjects.Query, out actor.Out) {
		emitStored(w, out, subjects.ResponseGeneration, reply(q, "hello"))
	})
	w.setClients(registry, cameraToken, true, phone, camera)

	// open sends the head of a request and one byte of its body.
	open := func(path, length string) net.Conn {
		c, err := net.Dial("tcp", w.gw.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: "+
			"application/json\r\n%s\r\n\r\n{", path, phoneToken, length)
		return c
	}
	status := func(c net.Conn) int {
		_ = c.SetReadDeadline(time.Now().Add(testTimeout))
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	for _, path := range []string{"/query", "/mcp", "/v1/chat/completions", "/v1/responses", "/v1/embeddings"} {
		if got := status(open(path, "Content-Length: 30000000")); got != http.StatusRequestEntityTooLarge {
			t.Errorf("%s: a large body: %d", path, got)
		}
		if got := status(open(path, "Transfer-Encoding: chunked")); got != http.StatusLengthRequired {
			t.Errorf("%s: a body of unknown length: %d", path, got)
		}
	}
	var slow []net.Conn
	for i := range 8 {
		slow = append(slow, open([]string{"/mcp", "/v1/chat/completions"}[i%2], "Content-Length: 1000"))
	}
	eventually(t, "8 requests are in progress", func() bool { return len(gateway.ClientSlots(w.gw)) == 8 })
	if got := status(open("/mcp", "Content-Length: 1000")); got != http.StatusTooManyRequests {
		t.Errorf("a ninth request: %d", got)
	}
	if status, _, body := w.do("POST", "/query", `{"query":"hi"}`); status != http.StatusOK {
		t.Errorf("the user meanwhile: %d %s", status, body)
	}
	for _, c := range slow {
		c.Close()
	}
	eventually(t, "the requests have ended", func() bool { return len(gateway.ClientSlots(w.gw)) == 0 })

	// Images, schemas and what costs many model calls count.
	ask := func(token, path, body string) int {
		status, header, body := w.do("POST", path, body, "Authorization", "Bearer "+token)
		if status == http.StatusRequestEntityTooLarge && (header.Get("Retry-After") != "" ||
			!strings.Contains(body, "at most 60 KB")) {
			t.Errorf("%s: a retry of what never passes: %v %s", path, header, body)
		}
		return status
	}
	schema := func(levels, bytes int) string {
		return fmt.Sprintf(
			`{"model":"assistant","messages":[{"role":"user","content":"x"}],`+
				`"response_format":{"type":"json_schema","json_schema":{"schema":{"description":%q,`+
				`"items":%s%s}}}}`, strings.Repeat("x", bytes),
			strings.Repeat("[", levels), strings.Repeat("]", levels))
	}
	// Tools that a chat page repeats with each message count an eighth; nothing serves the model here.
	tools := fmt.Sprintf(
		`{"model":"assistant","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function",`+
			`"function":{"name":"x","description":%q}}]}`, strings.Repeat("x", 24<<10))
	for range 3 {
		if got := ask(phoneToken, "/v1/chat/completions", tools); got != http.StatusBadGateway {
			t.Errorf("a message with 24 KB of tools: %d", got)
		}
	}
	if got := ask(phoneToken, "/v1/chat/completions", schema(40, 1)); got != http.StatusBadRequest {
		t.Errorf("a deep schema: %d", got)
	}
	if got := ask(phoneToken, "/v1/chat/completions", schema(1, 62<<10)); got != http.StatusRequestEntityTooLarge {
		t.Errorf("a schema of 62 KB: %d", got)
	}
	if got := ask(phoneToken, "/query", fmt.Sprintf(`{"mode":"committee","query":%q}`,
		strings.Repeat("x", 16<<10))); got != http.StatusRequestEntityTooLarge {
		t.Errorf("a committee of 16 KB: %d", got)
	}
	if got := ask(phoneToken, "/v1/embeddings", fmt.Sprintf(`{"input":%q}`,
		strings.Repeat("x", 61<<10))); got != http.StatusRequestEntityTooLarge {
		t.Errorf("a text of 61 KB: %d", got)
	}
	picture := image.NewGray(image.Rect(0, 0, 800, 800))
	for i := range picture.Pix {
		picture.Pix[i] = byte(rand.Uint32())
	}
	var data bytes.Buffer
	if err := png.Encode(&data, picture); err != nil {
		t.Fatal(err)
	}
	message := fmt.Sprintf(
		`{"model":"assistant","messages":[{"role":"user","content":[{"type":"text","text":"?"},{"type":"image_url",`+
			`"image_url":{"url":"data:image/png;base64,%s"}}]}]}`, base64.StdEncoding.EncodeToString(data.Bytes()))
	if got := ask(cameraToken, "/v1/chat/completions", message); got != http.StatusOK {
		t.Errorf("an image: %d", got)
	}
	if got := ask(cameraToken, "/v1/chat/completions", message); got != http.StatusTooManyRequests {
		t.Errorf("a second image: %d", got)
	}
	// A search of the event log counts as a question.
	unknown := func() int {
		status, _, _ := w.do("GET", "/queries/"+gateway.ClientScope(camera)+"x", "", "Authorization",
			"Bearer "+cameraToken)
		return status
	}
	eventually(t, "searches are limited", func() bool { return unknown() == http.StatusTooManyRequests })
	if status, _, body := w.do("GET", "/queries/x", ""); status != http.StatusNotFound {
		t.Errorf("the user: %d %s", status, body)
	}
}

// TestMetricsToken: the token of a client that reads metrics serves for nothing else, not even for what every client
// may do.
func TestMetricsToken(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	registry := &listRegistry{}
	scraper, token := newClient("prometheus", time.Unix(1, 0))
	scraper.Allow = []string{subjects.ClientMetrics}
	registry.set(scraper)
	startActor(t, b, registry)
	w := startGateway(t, b, setup{})
	header := []string{"Authorization", "Bearer " + token}
	eventually(t, "the token reads metrics", func() bool {
		status, _, body := w.do("GET", "/metrics", "", header...)
		return status == http.StatusOK && strings.Contains(body, "conclave_")
	})
	for _, r := range [][3]string{
		{"GET", "/health", ""},
		{"GET", "/events", ""},
		{"GET", "/sessions", ""},
		{"GET", "/approvals", ""},
		{"GET", "/v1/models", ""},
		{"GET", "/openapi.yaml", ""},
		{"GET", "/memory/search?q=x", ""},
		{"POST", "/query", `{"query":"hi"}`},
		{"POST", "/v1/chat/completions", `{"model":"assistant","messages":[{"role":"user","content":"hi"}]}`},
		{"POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`},
		{"POST", "/approvals/q1", `{"approve":true}`},
		{"GET", "/mcp", ""},
	} {
		if status, _, body := w.do(r[0], r[1], r[2], header...); status != http.StatusForbidden {
			t.Errorf("%s %s: %d %s", r[0], r[1], status, body)
		}
	}
	other, otherToken := newClient("phone", time.Unix(1, 0))
	w.setClients(registry, otherToken, true, scraper, other)
	if status, _, _ := w.do("GET", "/metrics", "", "Authorization",
		"Bearer "+otherToken); status != http.StatusForbidden {
		t.Errorf("another client reads metrics: %d", status)
	}
}
