package gateway

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"conclave/pkg/local"
	"conclave/pkg/text"
	"conclave/subjects"
)

// guardRequests wraps every route. It denies requests for a foreign Host (DNS rebinding) and requests from pages of other
// sites with 403, and, when a token is configured, requests without it with 401; the connection is closed then. Headers can
// only get a request denied; none gives an identity. It also sets the security headers and the read timeout of the body.
func (g *Gateway) guardRequests(next http.Handler) http.Handler {
	cross := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if r.ContentLength != 0 { // the server reads the body even when the handler does not
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(g.bodyTimeout))
		}
		var err error
		switch {
		case !g.isOwnHost(r.Host):
			err = problemf(http.StatusForbidden, subjects.CodeDenied, "host %q denied; use localhost, or add the name to gateway.hosts", text.Clip(r.Host, 60))
		case isCrossSite(r) || cross.Check(r) != nil:
			err = problemf(http.StatusForbidden, subjects.CodeDenied, "cross-site request denied")
		case g.token != nil && !g.token.matches(r):
			h.Set("WWW-Authenticate", `Bearer realm="conclave"`)
			err = problemf(http.StatusUnauthorized, codeUnauthorized, "send the header Authorization: Bearer <token>, with the token from gateway.token_file")
		}
		if err != nil {
			h.Set("Connection", "close") // further requests on this connection are not read
			g.writeProblem(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isOwnHost reports whether a Host header, with or without a port, names this gateway: localhost, a loopback address, a name
// in gateway.hosts or the IP address it listens on. It is the gate against DNS rebinding: a foreign name that resolves to
// this machine is not accepted, nor is the unspecified address. The port must be a number but is not compared.
func (g *Gateway) isOwnHost(host string) bool {
	name := host
	if h, port, err := net.SplitHostPort(host); err == nil {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || strconv.FormatUint(n, 10) != port {
			return false
		}
		name = h
	} else if len(host) > 2 && host[0] == '[' && host[len(host)-1] == ']' {
		name = host[1 : len(host)-1]
	}
	if !isHostName(name) {
		return false
	}
	if local.IsLocalHost(name) || slices.ContainsFunc(g.cfg.Hosts, func(h string) bool { return strings.EqualFold(h, name) }) {
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

// isCrossSite reports whether Sec-Fetch-Site or Origin name another site, for every method: the response to a GET is data
// too. Another port of this machine is another site, and so is an Origin that is malformed or "null". Without both headers,
// as from clients that are no browsers, it is false.
func isCrossSite(r *http.Request) bool {
	for _, v := range r.Header.Values("Sec-Fetch-Site") {
		if v != "same-origin" && v != "none" {
			return true
		}
	}
	for _, v := range r.Header.Values("Origin") {
		u, err := url.Parse(v)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.Path != "" || u.RawQuery != "" ||
			u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
			return true
		}
	}
	return false
}

// tokenDigest is the SHA-256 of the bearer token. The token itself is not kept.
type tokenDigest [sha256.Size]byte

// Length limits of a token, in characters.
const (
	minToken = 32
	maxToken = 1024
)

// readTokenFile reads the bearer token from path and returns its digest. It rejects a file that is not regular or that group
// or others can access, and a token that is not minToken to maxToken visible ASCII characters; space around it is ignored.
func readTokenFile(path string) (*tokenDigest, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading gateway.token_file: %w; create it with: (umask 077; openssl rand -hex 32 > %s)", err, path)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("reading gateway.token_file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("reading gateway.token_file: %s is not a regular file", path)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("reading gateway.token_file: %s is readable by others; run: chmod 600 %s", path, path)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxToken+3))
	if err != nil {
		return nil, fmt.Errorf("reading gateway.token_file: %w", err)
	}
	token := strings.TrimSpace(string(data))
	invalid := strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' })
	if len(token) < minToken || len(token) > maxToken || invalid {
		return nil, fmt.Errorf("reading gateway.token_file: %s must contain one line of %d to %d visible ASCII characters", path, minToken, maxToken)
	}
	s := tokenDigest(sha256.Sum256([]byte(token)))
	return &s, nil
}

// matches reports whether r has the token in its one Authorization header, with the scheme Bearer; several headers are false.
// Tokens in URLs are not accepted: URLs end up in histories and logs. The comparison takes constant time.
func (s *tokenDigest) matches(r *http.Request) bool {
	values := r.Header.Values("Authorization")
	if len(values) != 1 {
		return false
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	sum := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(sum[:], s[:]) == 1 && ok && strings.EqualFold(scheme, "Bearer")
}
