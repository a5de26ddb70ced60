package gateway

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"conclave/pkg/local"
	"conclave/pkg/text"
)

// guardRequests wraps every route. It denies requests for a foreign Host (DNS rebinding) and requests from pages of
// other sites with 403, then requests without a credential with 401, also for paths that do not exist; the connection
// is closed then. Only loginPath needs no credential: the code in its query string is one. A request ends with
// errRevoked when its credential is revoked. It also sets the security headers and the read timeout of the body.
func (g *Gateway) guardRequests(next http.Handler) http.Handler {
	cross := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action "+
			"'none'")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if r.ContentLength != 0 { // the server reads the body even when the handler does not
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(g.bodyTimeout))
		}
		var err error
		var revoked <-chan struct{}
		// A token narrows the rights of the socket, so a token that is not valid has none.
		authorized := r.URL.Path == loginPath || isFromSocket(r) && r.Header["Authorization"] == nil
		if !authorized {
			revoked, authorized = g.credentials.authorize(r, g.isOwnBrowser)
		}
		var client *clientAccess
		if !authorized {
			if client = g.tokens.find(r); client != nil {
				revoked, authorized = client.revoked, true
			}
		}
		switch {
		case !g.isOwnHost(r.Host):
			err = deniedf("host %q denied; use localhost, or add the name to gateway.hosts", text.Clip(r.Host, 60))
		case isCrossSite(r) || cross.Check(r) != nil:
			err = deniedf("cross-site request denied")
		case !authorized:
			err = errUnauthorized
		}
		if err != nil {
			h.Set("Connection", "close") // further requests on this connection are not read
			g.writeProblem(w, r, err)
			return
		}
		ctx, cancel := withRevocation(context.WithValue(r.Context(), clientKey{}, client), revoked)
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// errUnauthorized is the response to a request without a valid credential. It names no path: other users of the machine
// read it.
var errUnauthorized = problemf(http.StatusUnauthorized, codeUnauthorized, "no valid credential; in a browser, open "+
	"the link that conclave open prints; "+
	"in a program, send the header Authorization: Bearer with the token of a client, whose file conclave principal "+
	"add NAME --kind client prints; "+
	"for requests of your own, with the token of the file http.token in the data folder, or use the Unix socket "+
	"http.sock there")

// errRevoked is the cause of a request whose credential was revoked while it ran.
var errRevoked = errors.New("the credential of this request was revoked")

// withRevocation returns a context that ends with ctx, and with the cause errRevoked when revoked is closed; a nil
// channel never is. The caller must call cancel.
func withRevocation(ctx context.Context, revoked <-chan struct{}) (context.Context, context.CancelFunc) {
	if revoked == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-revoked:
			cancel(errRevoked)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// isOwnHost reports whether a Host header, with or without a port, names this gateway: localhost, a loopback address, a
// name in gateway.hosts or the IP address it listens on. It is the gate against DNS rebinding: a foreign name that
// resolves to this machine is not accepted, nor is the unspecified address. The port must be a number but is not
// compared.
func (g *Gateway) isOwnHost(host string) bool {
	name := trimPort(host)
	if !isHostName(name) {
		return false
	}
	if local.IsLocalHost(name) || g.isConfiguredHost(host) {
		return true
	}
	// The listen address needs no entry in gateway.hosts.
	own, _, err := net.SplitHostPort(g.cfg.Listen)
	if err != nil {
		return false
	}
	a, err := netip.ParseAddr(name)
	b, err2 := netip.ParseAddr(own)
	return err == nil && err2 == nil && a == b && !a.IsUnspecified()
}

// isConfiguredHost reports whether a Host header names one of gateway.hosts.
func (g *Gateway) isConfiguredHost(host string) bool {
	name := trimPort(host)
	return slices.ContainsFunc(g.cfg.Hosts, func(h string) bool { return strings.EqualFold(h, name) })
}

// trimPort returns the host of a Host header, "" when its port is not a number.
func trimPort(host string) string {
	if h, port, err := net.SplitHostPort(host); err == nil {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || strconv.FormatUint(n, 10) != port {
			return ""
		}
		return h
	}
	if len(host) > 2 && host[0] == '[' && host[len(host)-1] == ']' {
		return host[1 : len(host)-1]
	}
	return host
}

// isCrossSite reports whether Sec-Fetch-Site or Origin name another site, for every method: the response to a GET is
// data too. Another port of this machine is another site, and so is an Origin that is malformed or "null". Without both
// headers, as from clients that are not browsers, it is false.
func isCrossSite(r *http.Request) bool {
	for _, v := range r.Header.Values("Sec-Fetch-Site") {
		if v != "same-origin" && v != "none" {
			return true
		}
	}
	for _, v := range r.Header.Values("Origin") {
		u, err := url.Parse(v)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.Path != "" ||
			u.RawQuery != "" ||
			u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
			return true
		}
	}
	return false
}
