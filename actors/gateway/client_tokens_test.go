package gateway_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"sync"
	"testing"

	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// listRegistry serves a list of principals.
type listRegistry struct {
	mu   sync.Mutex
	list []subjects.Principal
}

func (r *listRegistry) Name() string { return subjects.Registry }

func (r *listRegistry) Routes() []actor.Route {
	return []actor.Route{actor.Serve(subjects.PrincipalListService, func(context.Context, actor.Msg[subjects.Empty], actor.Out) (subjects.PrincipalList, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return subjects.PrincipalList{Principals: r.list}, nil
	})}
}

func (r *listRegistry) set(list ...subjects.Principal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = list
}

// TestClientToken is the access of a client with a token of its own: questions and its own answers, as content that permits
// nothing, and nothing of the user. A revoked token ends running requests.
func TestClientToken(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	registry := &listRegistry{}
	phoneToken := strings.Repeat("p", 64)
	hash := sha256.Sum256([]byte(phoneToken))
	registry.set(subjects.Principal{Name: "phone", Kind: subjects.ClientPrincipal, TokenHash: hex.EncodeToString(hash[:])})
	startActor(t, b, registry)
	w := startGateway(t, b, setup{})
	asked := make(chan subjects.Query, 4)
	w.answerQuestions(func(q subjects.Query, out actor.Out) {
		asked <- q
		if q.Query != "wait" {
			emitStored(w, out, subjects.ResponseGeneration, reply(q, "hello"))
		}
	})
	phone := []string{"Authorization", "Bearer " + phoneToken}
	eventually(t, "the token is known", func() bool {
		status, _, _ := w.do("GET", "/v1/models", "", phone...)
		return status == http.StatusOK
	})

	status, _, body := w.do("POST", "/query", `{"query":"hi","session_id":"s1"}`, phone...)
	q := <-asked
	if status != http.StatusOK || q.Client != "phone" || q.SessionID != "client_phone_s1" || !strings.HasPrefix(q.QueryID, "client_phone_") {
		t.Fatalf("%d %s %+v", status, body, q)
	}
	if status, _, body := w.do("GET", "/queries/"+q.QueryID, "", phone...); status != http.StatusOK {
		t.Errorf("its own answer: %d %s", status, body)
	}
	_, header, _ := w.do("POST", "/v1/chat/completions", `{"model":"assistant","messages":[{"role":"user","content":"hi"}]}`, append(phone, "X-Conclave-Session", q.SessionID)...)
	if got := <-asked; got.Client != "phone" || got.SessionID != "client_phone_s1" || header.Get("X-Conclave-Session") != got.SessionID {
		t.Errorf("%+v", got)
	}
	// Everything of the user is denied, and so is a question of another.
	for _, route := range append(w.gw.Endpoints(), "GET /chat", "GET /nothing") {
		method, path, _ := strings.Cut(route, " ")
		switch route {
		case "GET /health", "POST /query", "GET /v1/models", "POST /v1/chat/completions", "POST /v1/embeddings", "GET /login", "POST /mcp", "GET /mcp", "DELETE /mcp":
			continue
		}
		path = strings.NewReplacer("{id}", "abcdefgh", "{name}", "abcdefgh").Replace(path)
		if status, _, body := w.do(method, path, "", phone...); status != http.StatusForbidden {
			t.Errorf("%s: %d %s", route, status, body)
		}
	}

	// Nor does the user ask in a session of a client, with its words. The list says whose session it is.
	w.storeConversations(subjects.Conversation{SessionID: q.SessionID, Turns: []subjects.Turn{{QueryID: q.QueryID, Query: "hi", Answer: "hello"}}})
	if status, _, body := w.do("POST", "/query", `{"query":"hi","session_id":"client_phone_s1"}`); status != http.StatusForbidden || !strings.Contains(body, "belongs to the client phone") {
		t.Errorf("a question of the user in it: %d %s", status, body)
	}
	if _, _, body := w.do("GET", "/sessions", ""); !strings.Contains(body, `"client":"phone"`) {
		t.Errorf("the list of sessions: %s", body)
	}
	if _, _, body := w.do("GET", "/sessions/"+q.SessionID, ""); !strings.Contains(body, `"client":"phone"`) {
		t.Errorf("the session: %s", body)
	}

	running := make(chan int, 1)
	go func() {
		status, _, _ := w.do("POST", "/query", `{"query":"wait"}`, phone...)
		running <- status
	}()
	<-asked
	registry.set()
	if err := actor.Emit(t.Context(), w.out(subjects.Registry), subjects.PrincipalChanged, subjects.PrincipalNotice{}); err != nil {
		t.Fatal(err)
	}
	if status := <-running; status != http.StatusUnauthorized {
		t.Errorf("a running request of a revoked token: %d", status)
	}
	if status, _, _ := w.do("GET", "/v1/models", "", phone...); status != http.StatusUnauthorized {
		t.Errorf("a revoked token: %d", status)
	}
}
