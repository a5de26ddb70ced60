package gateway_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"conclave/actors/gateway"
	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// retryProtocol is an interface for programs over which a question can be repeated.
type retryProtocol struct {
	name, path string
	body       func(question string) string
	header     []string
	conflict   int // the status of a key that was used for another question
}

var retryProtocols = []retryProtocol{
	{"completion", "/v1/chat/completions", func(q string) string {
		return fmt.Sprintf(`{"model":"assistant","messages":[{"role":"user","content":%q}]}`, q)
	}, nil, http.StatusUnprocessableEntity},
	{"streamed completion", "/v1/chat/completions", func(q string) string {
		return fmt.Sprintf(`{"model":"assistant","stream":true,"messages":[{"role":"user","content":%q}]}`, q)
	}, nil, http.StatusUnprocessableEntity},
	{"response", "/v1/responses", func(q string) string {
		return fmt.Sprintf(`{"model":"assistant","input":%q}`, q)
	}, nil, http.StatusUnprocessableEntity},
	{"mcp", "/mcp", func(q string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ask","arguments":`+
			`{"question":%q}}}`, q)
	}, []string{
		"Accept", "application/json, text/event-stream", "Mcp-Protocol-Version", "2025-03-26",
	}, http.StatusOK}, // an error of the tool
}

// TestRetryAsksOnce repeats questions with an Idempotency-Key over the interfaces for programs: a retry gets the answer
// of the first request, also while it is prepared, after its client disconnected and after a restart of the gateway.
// The key with another text is a conflict.
func TestRetryAsksOnce(t *testing.T) {
	t.Parallel()
	for _, p := range retryProtocols {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			testRetry(t, p)
		})
	}
}

func testRetry(t *testing.T, p retryProtocol) {
	b := bustest.Start(t)
	w := startGateway(t, b, setup{})
	asked, release := make(chan subjects.Query, 10), make(chan struct{})
	w.answerQuestions(func(q subjects.Query, out actor.Out) {
		asked <- q
		if q.Query == "slow" {
			<-release
		}
		emitStored(w, out, subjects.ResponseGeneration, reply(q, "to "+q.Query))
	})
	send := func(text, key string) (int, string) {
		status, _, body := w.do("POST", p.path, p.body(text), append(p.header, "Idempotency-Key", key)...)
		return status, body
	}
	expectAnswer := func(text, key string) {
		t.Helper()
		if status, body := send(text, key); status != http.StatusOK || !strings.Contains(body, "to "+text) {
			t.Errorf("%s: %d %s", text, status, body)
		}
	}
	expectAnswer("hi", "k1")
	<-asked
	expectAnswer("hi", "k1")
	if status, body := send("ho", "k1"); status != p.conflict || !strings.Contains(body, "another question") {
		t.Errorf("another text: %d %s", status, body)
	}
	if status, body := send("hi", strings.Repeat("k", 256)); !strings.Contains(body, "at most 255 characters") {
		t.Errorf("a key that is too long: %d %s", status, body)
	}
	// The first client disconnects: the answer is not stopped, and the next one gets it.
	ctx, disconnect := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		r, err := http.NewRequestWithContext(ctx, "POST", w.base+p.path, strings.NewReader(p.body("slow")))
		if err != nil {
			t.Error(err)
			return
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", "k2")
		for i := 0; i+1 < len(p.header); i += 2 {
			r.Header.Set(p.header[i], p.header[i+1])
		}
		if resp, err := w.client.Do(r); err == nil {
			<-ctx.Done()
			resp.Body.Close()
		}
	}()
	slow := <-asked
	second := make(chan struct{})
	go func() {
		defer close(second)
		expectAnswer("slow", "k2") // while another client waits
	}()
	disconnect()
	<-gone
	close(release)
	<-second
	expectAnswer("slow", "k2")
	w.stop()
	w = startGateway(t, b, setup{})
	expectAnswer("hi", "k1")
	expectAnswer("slow", "k2")
	if _, _, body := w.do("GET", "/events/history?query="+slow.QueryID, ""); strings.Contains(body, "query.cancel") ||
		!strings.Contains(body, "response.generation") {
		t.Errorf("events of the slow question: %s", body)
	}
	for len(asked) > 0 { // a question that is stored again has the ids of the first, and its respondent knows it
		if q := <-asked; q.QueryID != slow.QueryID || q.SessionID != slow.SessionID {
			t.Errorf("asked again: %+v, first %+v", q, slow)
		}
	}
}

// TestRetryOfAConversation repeats a request that continues a conversation: it stays in the session.
func TestRetryOfAConversation(t *testing.T) {
	t.Parallel()
	w := startGateway(t, bustest.Start(t), setup{})
	asked := make(chan subjects.Query, 10)
	w.answerQuestions(func(q subjects.Query, out actor.Out) {
		asked <- q
		emitStored(w, out, subjects.ResponseGeneration, reply(q, "answer"))
	})
	send := func(messages, key string) (session, query string) {
		t.Helper()
		status, h, body := w.do("POST", "/v1/chat/completions", `{"model":"assistant","messages":[`+messages+`]}`,
			"Idempotency-Key", key)
		if status != http.StatusOK || !strings.Contains(body, "answer") {
			t.Fatalf("%d %s", status, body)
		}
		return h.Get("X-Conclave-Session"), h.Get("X-Conclave-Query")
	}
	const first = `{"role":"user","content":"first"}`
	const second = first + `,{"role":"assistant","content":"answer"},{"role":"user","content":"second"}`
	session, _ := send(first, "k1")
	continued, query := send(second, "k2")
	again, same := send(second, "k2")
	if continued != session || again != session || same != query || len(asked) != 2 {
		t.Errorf("first in %s, second in %s, again in %s; %s and %s; asked %d times", session, continued, again,
			query, same, len(asked))
	}
}

// TestRetryOverMCPByMetadata gives the key in the metadata of a call, as a client of an SDK can.
func TestRetryOverMCPByMetadata(t *testing.T) {
	t.Parallel()
	w := startGateway(t, bustest.Start(t), setup{Config: gateway.Config{QueryTimeout: time.Minute}})
	asked := make(chan subjects.Query, 10)
	w.answerQuestions(func(q subjects.Query, out actor.Out) {
		asked <- q
		emitStored(w, out, subjects.ResponseGeneration, reply(q, "to "+q.Query))
	})
	s := w.connectMCP(t, token)
	for _, try := range []struct {
		key      any
		question string
		want     string
	}{
		{"k1", "hi", "to hi"},
		{"k1", "hi", "to hi"},
		{"k1", "ho", "another question"},
		{7, "hi", "one of at most 255 characters"},
	} {
		r, err := s.CallTool(t.Context(), &mcp.CallToolParams{
			Meta: mcp.Meta{"Idempotency-Key": try.key},
			Name: "ask", Arguments: map[string]any{"question": try.question},
		})
		if err != nil || !strings.Contains(r.Content[0].(*mcp.TextContent).Text, try.want) {
			t.Errorf("%+v: %+v %v", try, r, err)
		}
	}
	if len(asked) != 1 {
		t.Errorf("asked %d times", len(asked))
	}
}
