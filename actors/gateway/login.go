package gateway

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"
)

// loginPath is the only path that needs no credential: it exchanges a login code for the cookie of a browser login.
const loginPath = "/login"

// LoginLink is the reply of POST /login/links.
type LoginLink struct {
	URL     string    `json:"url"` // valid once
	Expires time.Time `json:"expires"`
}

// onLogin exchanges the one-time code of a login link for a cookie and redirects to /. A code that is missing, unknown,
// used or expired is 401, and so is a browser whose cookie would not be accepted: the reply does not tell whether a
// code is valid. That browser does not use the code up, nor does a method other than GET.
func (g *Gateway) onLogin(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		return problemf(http.StatusMethodNotAllowed, codeMethod, "method not allowed; use GET")
	}
	p := r.URL.Query()
	var cookie *http.Cookie
	ok := g.isOwnBrowser(r)
	if ok {
		cookie, ok = g.credentials.redeemCode(p.Get("code"), r)
	}
	if !ok {
		return problemf(http.StatusUnauthorized, codeUnauthorized, "this login link was used already, has expired, "+
			"or was opened by another user or on another machine. conclave open prints a new one, for "+
			"a browser on the machine and of the user that runs conclave, or through a proxy with TLS whose name is "+
			"in gateway.hosts; programs on other machines send the bearer token")
	}
	http.SetCookie(w, cookie)
	w.Header().Set("Location", "/")
	w.WriteHeader(http.StatusSeeOther)
	return nil
}

// onRoot tells a browser that it is logged in.
func (g *Gateway) onRoot(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintf(w, "Conclave %s. You are logged in.\n\nThe HTTP API is described in /openapi.yaml; /health shows the "+
		"state, /events the events.\n", g.Version)
	return nil
}

// requireDirect denies requests that have only a cookie: a page in the browser must not create credentials.
func (g *Gateway) requireDirect(r *http.Request) error {
	if isFromSocket(r) || g.credentials.hasToken(r) {
		return nil
	}
	return deniedf("not allowed with a cookie; use conclave open, the token or the Unix socket")
}

// onNewLink returns a login link with a new code.
func (g *Gateway) onNewLink(_ context.Context, r *http.Request) (any, error) {
	if err := g.requireDirect(r); err != nil {
		return nil, err
	}
	code, expires := g.credentials.newCode()
	return LoginLink{g.loginURL(code), expires.UTC()}, nil
}

// onNewToken replaces the token and revokes every browser login and login code. Requests in progress with a revoked
// credential end, except this one.
func (g *Gateway) onNewToken(_ context.Context, r *http.Request) (any, error) {
	if err := g.requireDirect(r); err != nil {
		return nil, err
	}
	return object{{"replaced", true}}, g.credentials.replaceToken()
}

// loginURL is the link for a browser: at the configured URL of a proxy, or else on this machine. A gateway on every
// address is named by its loopback address.
func (g *Gateway) loginURL(code string) string {
	query := url.Values{"code": {code}}.Encode()
	if g.cfg.URL != "" {
		return g.cfg.URL + loginPath + "?" + query
	}
	host := g.Addr()
	if a, err := netip.ParseAddrPort(host); err == nil && a.Addr().IsUnspecified() {
		loopback := "127.0.0.1"
		if a.Addr().Is6() {
			loopback = "::1"
		}
		host = net.JoinHostPort(loopback, fmt.Sprint(a.Port()))
	}
	u := url.URL{Scheme: "http", Host: host, Path: loginPath, RawQuery: query}
	return u.String()
}
