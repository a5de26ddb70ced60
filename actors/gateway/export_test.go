package gateway

import (
	"time"

	"conclave/subjects"
)

// KeepFew makes the gateway keep only so many events in memory, so that readers fall behind.
func (g *Gateway) KeepFew(n int) { g.events.maxEvents = n }

// Grow runs pieces of an answer and then the answer itself through what query.ask says.
func Grow(say func(string), answer string, pieces ...subjects.Delta) error {
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

// Waiting is the places that questions take.
func Waiting(g *Gateway) chan struct{} { return g.slots.waiting }

// Streams is the places that streams of events take.
func Streams(g *Gateway) chan struct{} { return g.slots.streams }

// SetBodyTimeout sets how long a body may take to come.
func (g *Gateway) SetBodyTimeout(d time.Duration) { g.bodyTimeout = d }

// SetOutcomeTimeout sets how long feedback waits for what becomes of it.
func (g *Gateway) SetOutcomeTimeout(d time.Duration) { g.outcomeTimeout = d }

// IsOfRespondentB is hidden.
func IsOfRespondentB(ev Event) bool { return isOfRespondentB(ev) }

// Behind reports whether the critic is not waited for.
func Behind(g *Gateway) bool { return g.criticLate.Load() }

// FallBehind makes the gateway believe that the critic is behind.
func (g *Gateway) FallBehind() { g.criticLate.Store(true) }

// End is the last event that the gateway has read.
func End(g *Gateway) uint64 {
	_, end := g.events.bounds()
	return end
}

// ExpireLogins makes every login code and browser login expire.
func ExpireLogins(g *Gateway) {
	g.credentials.mu.Lock()
	defer g.credentials.mu.Unlock()
	for _, list := range [][]timedSecret{g.credentials.codes, g.credentials.logins} {
		for i := range list {
			list[i].expires = time.Now()
		}
	}
}
