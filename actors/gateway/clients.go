package gateway

import (
	"errors"
	"net/http"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/client"
	"conclave/subjects"
)

// Limits of the clients, so that none takes the places, the memory or the storage of the user.
const (
	maxClientBody     = 1 << 20 // bytes of a request
	maxClientRequests = 8       // requests of a client in progress, also while their body is read
	maxClientWaiting  = 4       // questions of a client without an answer
	clientBurst       = 60      // cost of the questions at once after a pause
	// of the images of all clients in clientImageTime: of the store of images, the larger part is the user's
	clientImageBytes = 16 << 20
	clientImageTime  = 24 * time.Hour
)

// clientLimits count what clients use, by scope.
type clientLimits struct {
	mu      sync.Mutex
	clients map[string]*clientUse
	images  time.Time // when the images so far would have been sent at the average rate
}

// clientUse is what one client uses.
type clientUse struct {
	requests, waiting int
	due               time.Time // when its questions so far would have been asked at the average rate
}

// use returns the use of a client. l.mu must be held.
func (l *clientLimits) use(scope string) *clientUse {
	if l.clients == nil {
		l.clients = map[string]*clientUse{}
	}
	if l.clients[scope] == nil {
		l.clients[scope] = &clientUse{}
	}
	return l.clients[scope]
}

// enter counts a request of a client until leave is called. It reports false, and counts nothing, when the client has
// too many.
func (l *clientLimits) enter(scope string) (leave func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.use(scope)
	if c.requests >= maxClientRequests {
		return nil, false
	}
	c.requests++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		c.requests--
	}, true
}

// begin counts a question of a client at the time now, with its cost and the bytes of its images. interval is the
// average time between questions of cost 1. It reports false, and counts nothing, when a limit is reached. After true
// the caller must call end.
func (l *clientLimits) begin(scope string, cost, images int, interval time.Duration, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.use(scope)
	due, okDue := addCost(c.due, now, time.Duration(cost)*interval, clientBurst*interval)
	sent, okSent := addCost(l.images, now, clientImageTime/clientImageBytes*time.Duration(images), clientImageTime)
	if c.waiting >= maxClientWaiting || !okDue || !okSent {
		return false
	}
	c.waiting++
	c.due, l.images = due, sent
	return true
}

// end ends a question that begin admitted.
func (l *clientLimits) end(scope string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.use(scope).waiting--
}

// addCost returns the time at which a use of the duration cost is paid off, and whether that is within burst.
func addCost(due, now time.Time, cost, burst time.Duration) (time.Time, bool) {
	if due.Before(now) {
		due = now
	}
	due = due.Add(cost)
	return due, due.Sub(now) <= burst
}

// modeCosts are the costs of a question by its mode: a committee and a task call models many times.
var modeCosts = map[string]int{"": 1, "assistant": 1, "committee": 4, "task": 8}

// factCost is the cost of a fact for memory, in questions: it stays.
const factCost = 4

// countCost returns the cost of a text with images, in bytes: 1, and 1 more for each KB of text and each 16 KB of
// images.
func countCost(text, images int) int { return 1 + text>>10 + images>>14 }

// cost returns the cost of a question, and the bytes of its images.
func (q Question) cost() (cost, images int) {
	n := len(q.Query) + len(q.Reference)
	for _, a := range q.Attachments {
		n, images = n+len(a.Text)+len(a.Name), images+a.Size
	}
	return countCost(n, images) * max(modeCosts[q.Mode], 1), images
}

// admitRequest counts a request of a client against its limits before its body is read, and returns the function that
// ends it. It requires the length of the body, and at most maxClientBody.
func (g *Gateway) admitRequest(a *clientAccess, r *http.Request) (leave func(), err error) {
	switch {
	case r.ContentLength < 0:
		return nil, problemf(http.StatusLengthRequired, subjects.CodeMalformed, "send the header Content-Length; a "+
			"chunked body is not accepted from a client")
	case r.ContentLength > maxClientBody:
		return nil, tooLargef("body too large; at most %d KB from a client", maxClientBody>>10)
	}
	left, ok := g.clients.enter(a.scope)
	if !ok {
		return nil, problemf(http.StatusTooManyRequests, subjects.CodeLimit, "%d requests of %s are in progress "+
			"already; retry when one of them is finished", maxClientRequests, a.name)
	}
	release, err := acquireSlot(g.slots.clients, "requests of clients are in progress")
	if err != nil {
		left()
		return nil, err
	}
	return func() {
		release()
		left()
	}, nil
}

// acquireWaiting takes a slot for a question of the user. A request of a client has one of the clients' slots already.
func (g *Gateway) acquireWaiting(r *http.Request) (release func(), err error) {
	if clientOf(r) != nil {
		return func() {}, nil
	}
	return acquireSlot(g.slots.waiting, "questions are waiting")
}

// place is the admission of a client's question. nil is that of the user, who has no limits.
type place struct {
	g        *Gateway
	client   *clientAccess
	followed bool
}

// admit counts a question of a client against its limits. The caller must call leave. For the user, a nil client, it
// returns nil.
func (g *Gateway) admit(out actor.Out, client *clientAccess, cost, images int) (*place, error) {
	if client == nil || client.isUser {
		return nil, nil
	}
	if client.isScraper() { // over the bus; its routes of HTTP have no questions
		return nil, errScraper
	}
	if cost > clientBurst { // no pause is long enough
		return nil, tooLargef("too large for %s: it counts as %d KB, at most %d KB; a committee counts %d times, a "+
			"task %d times", client.name, cost, clientBurst, modeCosts["committee"], modeCosts["task"])
	}
	if !g.clients.begin(client.scope, cost, images, g.cfg.ClientInterval, out.Now()) {
		return nil, problemf(http.StatusTooManyRequests, subjects.CodeLimit,
			"too many questions of %s: at most %d without an answer at once, and one of 1 KB every %v on average, up "+
				"to %d KB after a pause; a committee counts as %d, a task as %d, and images of all clients are "+
				"limited to %d MB a day; retry after a pause",
			client.name, maxClientWaiting, g.cfg.ClientInterval, clientBurst, modeCosts["committee"], modeCosts["task"],
			clientImageBytes>>20)
	}
	return &place{g: g, client: client}, nil
}

// leave ends the admission, unless the question is followed.
func (p *place) leave() {
	if p != nil && !p.followed {
		p.g.clients.end(p.client.scope)
	}
}

// follow keeps the place until the question has its outcome, however long its client waits for it, and cancels the
// question when the client is revoked. cur must be opened before the question was stored.
func (p *place) follow(cur *client.Cursor, q question) {
	p.followed = true
	p.g.serving.Go(func() {
		defer p.g.clients.end(p.client.scope)
		defer cur.Close()
		ctx, cancel := withRevocation(p.g.life, p.client.revoked)
		defer cancel()
		if _, err := awaitOutcome(ctx, cur, q, nil, sink{}); errors.Is(err, errRevoked) {
			p.g.cancelQuestion(ctx, q, "the client was revoked")
		}
	})
}
