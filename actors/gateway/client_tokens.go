package gateway

import (
	"cmp"
	"context"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// clientTokens are the bearer tokens of run-time principals of the kind client: programs that ask, and may do nothing else.
// The registry has their hashes; a principal that it no longer lists has no access. The zero value knows none.
type clientTokens struct {
	changed chan struct{}

	mu     sync.Mutex
	access map[secretDigest]clientAccess
}

// clientAccess is the access of one token.
type clientAccess struct {
	name    string
	allow   []string      // see [subjects.Principal]
	revoked chan struct{} // closed when the token is revoked
}

// clientListInterval is the time between two readings of the list of principals: the message that it changed may be lost.
const clientListInterval = 30 * time.Second

// follow keeps the tokens as the registry has them until ctx ends. Without a reply the known tokens stay.
func (c *clientTokens) follow(ctx context.Context, out actor.Out) {
	for {
		c.readList(ctx, out)
		select {
		case <-ctx.Done():
			return
		case <-c.changed:
		case <-time.After(clientListInterval):
		}
	}
}

// readList reads the list of principals once.
func (c *clientTokens) readList(ctx context.Context, out actor.Out) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if list, err := actor.Ask(ctx, out, subjects.PrincipalListService, subjects.Empty{}); err == nil {
		c.set(list.Principals)
	}
}

// set replaces the tokens, and revokes those that are not in the list.
func (c *clientTokens) set(principals []subjects.Principal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := map[secretDigest]clientAccess{}
	for _, p := range principals {
		var d secretDigest
		if n, err := hex.Decode(d[:], []byte(p.TokenHash)); p.Kind != subjects.ClientPrincipal || len(p.TokenHash) != 2*len(d) || err != nil || n != len(d) {
			continue
		}
		if known, ok := c.access[d]; ok && known.name == p.Name && slices.Equal(known.allow, p.Allow) {
			now[d] = known
		} else {
			now[d] = clientAccess{p.Name, p.Allow, make(chan struct{})}
		}
	}
	for d, a := range c.access {
		if now[d].revoked != a.revoked {
			close(a.revoked)
		}
	}
	c.access = now
}

// find returns the access of the bearer token of r.
func (c *clientTokens) find(r *http.Request) (clientAccess, bool) {
	token, ok := bearerToken(r)
	if !ok {
		return clientAccess{}, false
	}
	digest := digestSecret(token)
	c.mu.Lock()
	defer c.mu.Unlock()
	a, ok := c.access[digest] // a digest reveals nothing by the time of its comparison
	return a, ok
}

// mayUse reports whether a client may use a tool of MCP beyond questions.
func (c *clientTokens) mayUse(name, tool string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.access {
		if a.name == name {
			return slices.Contains(a.allow, tool)
		}
	}
	return false
}

// onPrincipalChanged has the list of principals read again.
func (g *Gateway) onPrincipalChanged(context.Context, actor.Msg[subjects.PrincipalNotice], actor.Out) error {
	select {
	case g.tokens.changed <- struct{}{}:
	default: // it will be
	}
	return nil
}

// clientKey is the key of the client's name in the context of a request.
type clientKey struct{}

// clientOf returns the principal whose token a request has, "" for the user.
func clientOf(r *http.Request) string {
	name, _ := r.Context().Value(clientKey{}).(string)
	return name
}

// programOf returns the client of a question that comes over an interface for programs. With the user's own credential it is
// [subjects.APIClient]: programs put pages, files and the words of models into such a question, so that its text is not the user's.
func programOf(r *http.Request) string { return cmp.Or(clientOf(r), subjects.APIClient) }

// clientRoutes are the routes that clients may use. Handlers of these keep to the client's own sessions and questions.
var clientRoutes = map[string]bool{
	"GET /health": true, "POST /query": true, "GET /queries/{id}": true, "DELETE /queries/{id}": true,
	"GET /v1/models": true, "POST /v1/chat/completions": true, "POST /v1/embeddings": true, "POST /mcp": true,
}

// errClientRoute is the response to a client that uses a route of the user.
var errClientRoute = problemf(http.StatusForbidden, subjects.CodeDenied, "denied: a client may ask questions and read its own answers only")

// scopeQuestion turns a question into one of a client; "" is the user, whose question it does not change.
func (g *Gateway) scopeQuestion(name string, q *Question) {
	if name == "" {
		return
	}
	q.Client = name
	q.SessionID, q.QueryID = keepScope(name, cmp.Or(q.SessionID, g.out.NewID())), keepScope(name, cmp.Or(q.QueryID, g.out.NewID()))
}

// keepScope is [subjects.ScopeClientID] for an id that may have the scope already, because a client got it in a reply.
func keepScope(principal, id string) string {
	if strings.HasPrefix(id, subjects.ScopeClientID(principal, "")) {
		return id
	}
	return subjects.ScopeClientID(principal, id)
}

// checkOwnQuery denies a client the question of another.
func checkOwnQuery(r *http.Request, id string) error {
	if name := clientOf(r); name != "" && !strings.HasPrefix(id, subjects.ScopeClientID(name, "")) {
		return errClientRoute
	}
	return nil
}

// admitClient counts a question of a client against its limits and returns the function that ends it. For the user it does
// nothing.
func (g *Gateway) admitClient(name string, size int, now time.Time) (end func(), err error) {
	if name == "" {
		return func() {}, nil
	}
	if !g.clients.begin(name, size, now) {
		return nil, &problem{status: http.StatusTooManyRequests, Fault: subjects.Faultf(subjects.CodeLimit,
			"too many questions of %s: at most %d wait at once, and one of 1 KB every %v on average, up to %d KB after a pause; try again later", name, maxClientWaiting, clientInterval, clientBurst)}
	}
	return func() { g.clients.end(name) }, nil
}
