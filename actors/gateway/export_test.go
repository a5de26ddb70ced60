package gateway

import (
	"context"
	"net/http"
	"net/http/httptest"
	"time"

	"conclave/pkg/client"
	"conclave/subjects"
)

// ClientScope returns the beginning of the ids of a client.
func ClientScope(p subjects.Principal) string { return newClientAccess(p).scope }

// OpenQuestions returns the number of questions of a client without an answer.
func OpenQuestions(g *Gateway, scope string) int {
	g.clients.mu.Lock()
	defer g.clients.mu.Unlock()
	return g.clients.use(scope).waiting
}

// StoreTimeout returns how long storing a question is repeated.
func StoreTimeout(g *Gateway) time.Duration {
	ctx, cancel := g.withStoreTimeout(context.Background())
	defer cancel()
	end, _ := ctx.Deadline()
	return time.Until(end)
}

// SetMaxEvents sets the number of events in memory.
func (g *Gateway) SetMaxEvents(n int) { g.events.MaxEvents = n }

// SetSessionsTimeout sets how long the start waits for the list of sessions.
func (g *Gateway) SetSessionsTimeout(d time.Duration) { g.sessionsTimeout = d }

// StreamAnswer passes tokens and then the answer to the stream of query.ask.
func StreamAnswer(say func(string), answer string, pieces ...subjects.Delta) error {
	t := &answerStream{emit: func(_, _ int, text string) error { say(text); return nil }}
	for _, p := range pieces {
		if err := t.add(p); err != nil {
			return err
		}
	}
	return t.finish(answer)
}

// Endpoints lists the routes as "METHOD /path".
func (g *Gateway) Endpoints() (out []string) {
	for _, r := range g.routes() {
		out = append(out, r.method+" "+r.path)
	}
	return out
}

// OpenAPI is the description of the API.
func OpenAPI() []byte { return openAPI }

// WaitingSlots are the slots of waiting questions.
func WaitingSlots(g *Gateway) chan struct{} { return g.slots.waiting }

// ClientSlots are the slots of the requests of clients.
func ClientSlots(g *Gateway) chan struct{} { return g.slots.clients }

// StreamSlots are the slots of event streams.
func StreamSlots(g *Gateway) chan struct{} { return g.slots.streams }

// SetBodyTimeout sets the timeout of a request body.
func (g *Gateway) SetBodyTimeout(d time.Duration) { g.bodyTimeout = d }

// SetOutcomeTimeout sets how long feedback waits for its reward.
func (g *Gateway) SetOutcomeTimeout(d time.Duration) { g.outcomeTimeout = d }

// SetModelTimes sets how long a request for the state of the model may take, and how long that is cached.
func (g *Gateway) SetModelTimes(timeout, cached time.Duration) {
	g.modelTimeout, g.modelCacheTime = timeout, cached
}

// IsOfRespondentB calls isOfRespondentB.
func IsOfRespondentB(ev Event) bool {
	return isOfRespondentB(client.Event{Subject: ev.Subject, From: ev.From, Body: ev.Payload})
}

// CriticLate reports whether answers do not wait for a grade.
func CriticLate(g *Gateway) bool { return g.criticLate.Load() }

// SetCriticLate makes the gateway believe that the critic is behind.
func (g *Gateway) SetCriticLate() { g.criticLate.Store(true) }

// LastEvent is the sequence of the last event that the gateway has read.
func LastEvent(g *Gateway) uint64 {
	_, end := g.events.Bounds()
	return end
}

// ExpireLogins makes every login code and browser login expire.
func ExpireLogins(g *Gateway) {
	g.credentials.mu.Lock()
	defer g.credentials.mu.Unlock()
	for i := range g.credentials.codes {
		g.credentials.codes[i].expires = time.Now()
	}
	for _, l := range g.credentials.logins {
		l.Expires = time.Now()
	}
}

// IsOwnBrowser calls isOwnBrowser.
func IsOwnBrowser(g *Gateway, r *http.Request) bool { return g.isOwnBrowser(r) }

// Login returns status and body of a login by the client of r, with a new code or with a wrong one. A refused login
// must not use a valid code up.
func Login(g *Gateway, r *http.Request, valid bool) (status int, body string) {
	code, _ := g.credentials.newCode()
	r = r.Clone(r.Context())
	r.URL.RawQuery = "code=" + code
	if !valid {
		r.URL.RawQuery = "code=wrong"
	}
	w := httptest.NewRecorder()
	if err := g.onLogin(w, r); err != nil {
		g.writeProblem(w, r, err)
		if _, ok := g.credentials.redeemCode(code, r); !ok {
			return http.StatusGone, ""
		}
	}
	return w.Code, w.Body.String()
}

// NewTitleWriter returns the function that writes the next title.
func NewTitleWriter(g *Gateway) func(ctx context.Context) error {
	w := titleWriter{tried: map[string]bool{}}
	return func(ctx context.Context) error { return w.writeNext(ctx, g) }
}
