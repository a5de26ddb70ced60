package gateway

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// clientTokens are the run-time principals of the kind client, programs that ask and may do nothing else, with their
// bearer tokens. The registry has the hashes of these; a principal that it no longer lists has no access. The zero
// value knows none.
type clientTokens struct {
	changed chan struct{} // the list is to be read again
	renewed chan struct{} // the list was read, and has other clients than before

	mu     sync.Mutex
	tokens map[secretDigest]*clientAccess
	names  map[string]*clientAccess
}

// clientAccess is the access of one client.
type clientAccess struct {
	name string
	// begins the ids of its sessions and questions; a later client of the same name has another one
	scope   string
	allow   []string      // see [subjects.Principal]
	revoked chan struct{} // closed when the client or its token is revoked
	isUser  bool          // the user's own credential on an interface for programs: no limits
}

// apiAccess is the access of programs with the user's own credential.
var apiAccess = &clientAccess{
	name: subjects.APIClient, scope: subjects.ScopeClientID(subjects.APIClient, ""),
	allow: subjects.ClientTools, isUser: true,
}

// newClientAccess returns the access of a principal.
func newClientAccess(p subjects.Principal) *clientAccess {
	generation := sha256.Sum256([]byte(p.Added.UTC().Format(time.RFC3339Nano)))
	return &clientAccess{
		name: p.Name, scope: subjects.ScopeClientID(p.Name, hex.EncodeToString(generation[:3])+"_"),
		allow: p.Allow, revoked: make(chan struct{}),
	}
}

// mayUse reports whether a client may use a tool of MCP beyond questions.
func (a *clientAccess) mayUse(tool string) bool { return slices.Contains(a.allow, tool) }

const (
	// clientListInterval is the time between two readings of the list of principals: the message that it changed may be
	// lost.
	clientListInterval = 30 * time.Second
	// maxListMisses is the number of readings without a reply after which no client has access.
	maxListMisses = 2
)

// follow keeps the tokens as the registry has them until ctx ends. After maxListMisses readings without a reply no
// client has access: it may have been revoked.
func (c *clientTokens) follow(ctx context.Context, out actor.Out) {
	for misses := 0; ; {
		if c.readList(ctx, out) {
			misses = 0
		} else if misses++; misses == maxListMisses {
			c.set(nil)
		}
		select {
		case <-ctx.Done():
			return
		case <-c.changed:
		case <-time.After(clientListInterval):
		}
	}
}

// readList reads the list of principals once. It reports false, and changes nothing, without a reply.
func (c *clientTokens) readList(ctx context.Context, out actor.Out) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	list, err := actor.Ask(ctx, out, subjects.PrincipalListService, subjects.Empty{})
	if err == nil {
		c.set(list.Principals)
	}
	return err == nil
}

// set replaces the clients, and revokes those that are not in the list.
func (c *clientTokens) set(principals []subjects.Principal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	tokens, names := map[secretDigest]*clientAccess{}, map[string]*clientAccess{}
	old := map[*clientAccess]secretDigest{}
	for d, a := range c.tokens {
		old[a] = d
	}
	for _, p := range principals {
		if p.Kind != subjects.ClientPrincipal {
			continue
		}
		var d secretDigest
		n, err := hex.Decode(d[:], []byte(p.TokenHash))
		hasToken := len(p.TokenHash) == 2*len(d) && err == nil && n == len(d)
		a := newClientAccess(p)
		if known := c.names[p.Name]; known != nil && known.scope == a.scope && slices.Equal(known.allow, a.allow) &&
			old[known] == d {
			a = known
		}
		names[p.Name] = a
		if hasToken {
			tokens[d] = a
		}
	}
	for name, a := range c.names {
		if names[name] != a {
			close(a.revoked)
		}
	}
	renewed := !maps.Equal(c.names, names)
	c.tokens, c.names = tokens, names
	if renewed {
		select {
		case c.renewed <- struct{}{}:
		default:
		}
	}
}

// listNames returns the names of the clients.
func (c *clientTokens) listNames() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.names))
}

// find returns the access of the bearer token of r, nil when it is of no client.
func (c *clientTokens) find(r *http.Request) *clientAccess {
	token, ok := bearerToken(r)
	if !ok {
		return nil
	}
	digest := digestSecret(token)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tokens[digest] // a digest reveals nothing by the time of its comparison
}

// findName returns the access of the account of a client. It reads the list when the name is not known yet.
func (c *clientTokens) findName(ctx context.Context, out actor.Out, name string) (*clientAccess, error) {
	for read := false; ; read = true {
		c.mu.Lock()
		a := c.names[name]
		c.mu.Unlock()
		switch {
		case a != nil:
			return a, nil
		case read:
			return nil, subjects.Faultf(subjects.CodeUnavailable, "the registry does not list the client %s, or does "+
				"not reply; check it with conclave principal list, and the registry with conclave doctor", name)
		}
		c.readList(ctx, out)
	}
}

// onPrincipalChanged has the list of principals read again.
func (g *Gateway) onPrincipalChanged(context.Context, actor.Msg[subjects.PrincipalNotice], actor.Out) error {
	select {
	case g.tokens.changed <- struct{}{}:
	default: // it will be
	}
	return nil
}

// clientKey is the key of the client's access in the context of a request.
type clientKey struct{}

// clientOf returns the client whose token a request has, nil for the user.
func clientOf(r *http.Request) *clientAccess {
	a, _ := r.Context().Value(clientKey{}).(*clientAccess)
	return a
}

// programOf returns the client of a request over an interface for programs. With the user's own credential it is
// apiAccess: programs put pages, files and the words of models into a question, so that its text is not the user's.
func programOf(r *http.Request) *clientAccess { return cmp.Or(clientOf(r), apiAccess) }

// clientRoutes are the routes that clients may use. Handlers of these keep to the client's own sessions and questions.
var clientRoutes = map[string]bool{
	"GET /health": true, "POST /query": true, "GET /queries/{id}": true, "DELETE /queries/{id}": true,
	"GET /v1/models": true, "GET /v1/models/{id}": true, "POST /v1/chat/completions": true, "POST /v1/responses": true,
	"POST /v1/embeddings": true, "POST /mcp": true,
}

// scraperRoutes are the routes of a client that reads metrics only.
var scraperRoutes = map[string]bool{"GET /metrics": true}

// isScraper reports whether a client reads metrics and does nothing else.
func (a *clientAccess) isScraper() bool { return a.mayUse(subjects.ClientMetrics) }

// mayUseRoute reports whether a client may use the route of a pattern.
func (a *clientAccess) mayUseRoute(pattern string) bool {
	if a.isScraper() {
		return scraperRoutes[pattern]
	}
	return clientRoutes[pattern] || pattern == "GET /audit" && a.mayUse("audit_status")
}

// errScraper is the response to a question of a client that reads metrics only.
var errScraper = deniedf("denied: this client may read metrics only")

// errClientRoute is the response to a client that uses a route of the user.
var errClientRoute = deniedf("denied: a client may ask questions and read its own answers only")

// scopeQuestion turns a question into one of a client; nil is the user, whose question it does not change.
func scopeQuestion(out actor.Out, a *clientAccess, q *Question) {
	if a != nil {
		q.Client, q.clientMemory = a.name, a.mayUse("search_memory")
		q.SessionID, q.QueryID = a.scopeID(q.SessionID, out), a.scopeID(q.QueryID, out)
	}
}

// scopeID returns an id as an id of the client's own, a new one for "". The id may have the scope already, because the
// client got it in a reply. A new one is shorter than elsewhere: with the scope it must be a token.
func (a *clientAccess) scopeID(id string, out actor.Out) string {
	if strings.HasPrefix(id, a.scope) {
		return id
	}
	if id == "" {
		id = out.NewID()
		id = id[:min(len(id), 24)]
	}
	return a.scope + id
}

// checkOwnQuery denies a client the question of another.
func checkOwnQuery(r *http.Request, id string) error {
	if a := clientOf(r); a != nil && !strings.HasPrefix(id, a.scope) {
		return errClientRoute
	}
	return nil
}
