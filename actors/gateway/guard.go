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

// guard stands before every route. A page of another site that a browser runs beside us must not be able to ask
// anything, nor to read anything, and beyond loopback nobody without the token. Nothing a client says in a header makes
// it anybody: a header can only get a request refused.
func (g *Gateway) guard(next http.Handler) http.Handler {
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
		if r.ContentLength != 0 { // whoever answers, the server waits for the body: not for ever
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(g.bodyTimeout))
		}
		var err error
		switch {
		case !g.ourHost(r.Host):
			err = problemf(http.StatusForbidden, subjects.CodeDenied, "this is not %q; ask for localhost, or add the name to gateway.hosts", text.Clip(r.Host, 60))
		case foreign(r) || cross.Check(r) != nil:
			err = problemf(http.StatusForbidden, subjects.CodeDenied, "a page of another site may not ask this")
		case g.token != nil && !g.token.in(r):
			h.Set("WWW-Authenticate", `Bearer realm="conclave"`)
			err = problemf(http.StatusUnauthorized, codeUnauthorized, "send the header Authorization: Bearer <token>, with the token from gateway.token_file")
		}
		if err != nil {
			h.Set("Connection", "close") // what else is on this connection is not looked at
			g.fail(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// ourHost reports whether a Host header names us. A name that somebody else's DNS points at this machine does not.
func (g *Gateway) ourHost(host string) bool {
	name := host
	if h, port, err := net.SplitHostPort(host); err == nil {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || strconv.FormatUint(n, 10) != port {
			return false
		}
		name = h
	} else if len(host) > 2 && host[0] == '[' && host[len(host)-1] == ']' {
		name = host[1 : len(host)-1]
	}
	if !hostName(name) {
		return false
	}
	if local.IsLocalHost(name) || slices.ContainsFunc(g.cfg.Hosts, func(h string) bool { return strings.EqualFold(h, name) }) {
		return true
	}
	// The very address it listens on needs no name.
	own, _, err := net.SplitHostPort(g.cfg.Listen)
	if err != nil {
		return false
	}
	a, err := netip.ParseAddr(name)
	b, err2 := netip.ParseAddr(own)
	return err == nil && err2 == nil && a == b && !a.IsUnspecified()
}

// foreign reports whether a browser says that the request comes from a page that is not ours, whatever the method:
// answers to a GET are data too. Another port of this machine is another site.
func foreign(r *http.Request) bool {
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

// secret is the digest of the token: the token itself is not kept.
type secret [sha256.Size]byte

// Bounds of a token, in characters.
const (
	minToken = 32
	maxToken = 1024
)

// readSecret reads the token's file. Nobody else may be able to read it.
func readSecret(path string) (*secret, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading gateway.token_file: %w; make it with: (umask 077; openssl rand -hex 32 > %s)", err, path)
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
		return nil, fmt.Errorf("reading gateway.token_file: others may read %s; run: chmod 600 %s", path, path)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxToken+3))
	if err != nil {
		return nil, fmt.Errorf("reading gateway.token_file: %w", err)
	}
	token := strings.TrimSpace(string(data))
	odd := strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' })
	if len(token) < minToken || len(token) > maxToken || odd {
		return nil, fmt.Errorf("reading gateway.token_file: %s must hold one line of %d to %d visible ASCII characters", path, minToken, maxToken)
	}
	s := secret(sha256.Sum256([]byte(token)))
	return &s, nil
}

// in reports whether the request carries the token, in its one place: a token in an address ends up in histories and
// logs. How long it takes to say no does not depend on how much was right.
func (s *secret) in(r *http.Request) bool {
	values := r.Header.Values("Authorization")
	if len(values) != 1 {
		return false
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	sum := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(sum[:], s[:]) == 1 && ok && strings.EqualFold(scheme, "Bearer")
}
