package gateway_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"conclave/actors/gateway"
	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// connectMCP connects a client of the SDK with a token.
func (w *fixture) connectMCP(t *testing.T, token string) *mcp.ClientSession {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	s, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(),
		&mcp.StreamableClientTransport{
			Endpoint:   w.base + "/mcp",
			HTTPClient: &http.Client{Transport: authorizing{transport, token}}, DisableStandaloneSSE: true,
		}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// sessionMemory is a memory that tells the sessions of its writes and searches, which its audit records have.
type sessionMemory struct {
	memoryStub
	sessions, searches chan string
}

func (m *sessionMemory) Routes() []actor.Route {
	return []actor.Route{
		actor.ServeStream(subjects.MemoryQueryService, func(_ context.Context, in actor.Msg[subjects.MemoryQuery],
			say func(subjects.MemoryReply) error, _ actor.Out,
		) error {
			m.searches <- in.Session
			e := storedEntries[0] // as memory returns it: the text is in the segment alone
			e.Name, e.Corpus = "", ""
			return say(subjects.MemoryReply{
				Stage: "corpus", Done: true,
				Hits: []subjects.MemoryHit{{Entry: e, Segment: "Anna lives in Bremen.", Similarity: 0.8}},
			})
		}),
		actor.Serve(subjects.MemoryWriteService, func(_ context.Context, in actor.Msg[subjects.MemoryWriteRequest],
			_ actor.Out,
		) (subjects.MemoryWriteReply, error) {
			m.sessions <- in.Session
			return subjects.MemoryWriteReply{Results: []subjects.MemoryWriteResult{{ID: "f1", Action: "stored"}}}, nil
		}),
	}
}

// testDocumentedCall runs the example of docs/clients.md with the token of a client.
func (w *fixture) testDocumentedCall(t *testing.T, token string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/clients.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(page), "curl -s http://127.0.0.1:8765/mcp ")
	example, _, _ = strings.Cut(example, "```")
	body := regexp.MustCompile(`(?s)-d '(.*)'`).FindStringSubmatch(example)
	if body == nil {
		t.Fatal("docs/clients.md has no example of /mcp")
	}
	headers := []string{"Authorization", "Bearer " + token}
	for _, h := range regexp.MustCompile(`-H '([^:]+): ([^']+)'`).FindAllStringSubmatch(example, -1) {
		headers = append(headers, h[1:]...)
	}
	if status, _, got := w.do("POST", "/mcp", body[1], headers...); status != http.StatusOK ||
		!strings.Contains(got, "hello") || strings.Contains(got, `"isError":true`) {
		t.Errorf("%d %s", status, got)
	}
}

// TestMCP is the server of the Model Context Protocol: the user's tools, those of a client, and a question of each.
func TestMCP(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	registry := &listRegistry{}
	editor := strings.Repeat("e", 64)
	hash := sha256.Sum256([]byte(editor))
	notes, notesToken := newClient("notes", time.Unix(1, 0))
	notes.Allow = subjects.ClientTools
	editorClient := subjects.Principal{
		Name: "editor", Kind: subjects.ClientPrincipal,
		TokenHash: hex.EncodeToString(hash[:]), Allow: []string{"search_memory"},
	}
	registry.set(editorClient, notes)
	startActor(t, b, registry)
	memory := &sessionMemory{sessions: make(chan string, 100), searches: make(chan string, 100)}
	startActor(t, b, memory)
	w := startGateway(t, b, setup{})
	asked := make(chan subjects.Query, 4)
	w.answerQuestions(func(q subjects.Query, out actor.Out) {
		asked <- q
		emitStored(w, out, subjects.ResponseGeneration, reply(q, "hello"))
	})
	eventually(t, "the token is known", func() bool {
		status, _, _ := w.do("GET", "/v1/models", "", "Authorization", "Bearer "+editor)
		return status == http.StatusOK
	})
	w.testDocumentedCall(t, editor)
	if q := <-asked; q.Client != "editor" || q.Query != "What time is it in Tokyo?" {
		t.Errorf("%+v", q)
	}
	for _, tt := range []struct {
		token, client string
		tools         []string
	}{
		{token, "api", []string{
			"add_memory", "approvals_status", "ask", "audit_status", "list_sessions",
			"search_memory",
		}},
		{editor, "editor", []string{"ask", "list_sessions", "search_memory"}},
	} {
		s := w.connectMCP(t, tt.token)
		list, err := s.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, tool := range list.Tools {
			names = append(names, tool.Name)
		}
		if slices.Sort(names); !slices.Equal(names, tt.tools) {
			t.Errorf("%q has %v", tt.client, names)
		}
		r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "ask", Arguments: map[string]any{"question": "hi"}})
		if err != nil || r.IsError || !strings.Contains(r.Content[0].(*mcp.TextContent).Text, "hello") {
			t.Fatalf("%+v %v", r, err)
		}
		if q := <-asked; q.Client != tt.client || q.Query != "hi" || !q.ClientMemory {
			t.Errorf("%+v", q)
		}
		r, err = s.CallTool(t.Context(),
			&mcp.CallToolParams{Name: "search_memory", Arguments: map[string]any{"query": "Anna"}})
		if err != nil || r.IsError {
			t.Fatalf("%+v %v", r, err)
		}
		if session := <-memory.searches; subjects.ClientOf(session) != tt.client {
			t.Errorf("%q searched in the session %q", tt.client, session)
		}
	}
	// A client lists its own sessions, also after the user's were read.
	own := gateway.ClientScope(editorClient) + "x"
	w.storeConversations(subjects.Conversation{SessionID: "mine"}, subjects.Conversation{SessionID: own},
		subjects.Conversation{SessionID: gateway.ClientScope(notes) + "y"})
	for token, want := range map[string][]string{
		token: {"mine", own, gateway.ClientScope(notes) + "y"}, editor: {own},
		notesToken: {gateway.ClientScope(notes) + "y"},
	} {
		r, err := w.connectMCP(t, token).CallTool(t.Context(), &mcp.CallToolParams{Name: "list_sessions"})
		if err != nil || r.IsError {
			t.Fatalf("%+v %v", r, err)
		}
		list := read[struct {
			Sessions []gateway.Session `json:"sessions"`
		}](t, r.Content[0].(*mcp.TextContent).Text).Sessions
		var ids []string
		for _, s := range list {
			ids = append(ids, s.ID)
		}
		if slices.Sort(ids); !slices.Equal(ids, slices.Sorted(slices.Values(want))) {
			t.Errorf("list_sessions: %v, want %v", ids, want)
		}
	}
	// The state of the audit log is the head that the auditor published last.
	const head = "00112233445566ff-4+model.6-7267e43921f63ea778e275bd6d0ee34ef9440eeffddddab6f4f74672888e6262"
	s := w.connectMCP(t, notesToken)
	status := func() *mcp.CallToolResult {
		r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "audit_status"})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if err := actor.Emit(t.Context(), b.Out("auditor"), subjects.AuditLogHeadEvent,
		subjects.AuditLogHead{Head: head}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the event log has the head", func() bool {
		_, _, body := w.do("GET", "/audit", "", "Authorization", "Bearer "+notesToken)
		return strings.Contains(body, head)
	})
	if code, _, body := w.do("GET", "/audit", "", "Authorization", "Bearer "+notesToken); code != http.StatusOK {
		t.Errorf("GET /audit of a client with the permission: %d %s", code, body)
	} else {
		describe(t).checkResponse(t, "GET", "/audit", code, body)
		if s := read[gateway.AuditStatus](t, body); s.Head != head || s.Messages != 10 || s.Kept.IsZero() {
			t.Errorf("GET /audit: %s", body)
		}
	}
	for who, want := range map[string]int{
		token: http.StatusOK, editor: http.StatusForbidden,
		"nobody": http.StatusUnauthorized,
	} {
		if code, _, body := w.do("GET", "/audit", "", "Authorization", "Bearer "+who); code != want {
			t.Errorf("GET /audit: %d %s, want %d", code, body, want)
		}
	}
	if r := status(); r.IsError || !strings.Contains(r.Content[0].(*mcp.TextContent).Text, `"`+head+`"`) ||
		!strings.Contains(r.Content[0].(*mcp.TextContent).Text, `"messages":10`) {
		t.Errorf("audit_status: %+v", r.Content[0])
	}
	if r, err := w.connectMCP(t, editor).CallTool(t.Context(), &mcp.CallToolParams{Name: "audit_status"}); err == nil &&
		!r.IsError {
		t.Errorf("audit_status of a client without it: %+v", r)
	}
	// What a client has not is not there.
	if r, err := w.connectMCP(t, editor).CallTool(t.Context(),
		&mcp.CallToolParams{Name: "add_memory", Arguments: map[string]any{"text": "x"}}); err == nil && !r.IsError {
		t.Errorf("add_memory of a client without it: %+v", r)
	}
	// In a protocol whose requests have no deadline, too, a tool has one. Each call counts, and the fact names its
	// client.
	call := func(body string) (int, string) {
		status, _, got := w.do("POST", "/mcp", body, "Authorization", "Bearer "+notesToken, "Accept",
			"application/json, text/event-stream", "Mcp-Protocol-Version", "2025-03-26")
		return status, got
	}
	const search = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search_memory",` +
		`"arguments":{"query":"x"}}}`
	const add = `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"add_memory",` +
		`"arguments":{"text":"The library closes at six."}}}`
	if status, body := call(search); status != http.StatusOK || !strings.Contains(body, "Anna") {
		t.Errorf("search_memory: %d %s", status, body)
	}
	if status, body := call("[" + add + "," + add + "]"); status != http.StatusBadRequest || len(memory.sessions) != 0 {
		t.Errorf("a batch: %d %s, %d facts", status, body, len(memory.sessions))
	}
	stored := 0
	for _, body := call(add); !strings.Contains(body, "too many questions of notes"); _, body = call(add) {
		if session := <-memory.sessions; session != gateway.ClientScope(notes)+"memory" {
			t.Fatalf("stored in the session %q: %s", session, body)
		}
		stored++
	}
	if stored == 0 || stored > 50 {
		t.Errorf("%d facts were stored", stored)
	}
	if status, _, body := w.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, "Authorization",
		"Bearer "+strings.Repeat("x", 64)); status != http.StatusUnauthorized {
		t.Errorf("no token: %d %s", status, body)
	}
}
