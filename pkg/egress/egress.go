// Package egress has the proxy through which a program in the sandbox, which has no network, reaches the hosts that it
// may.
package egress

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"conclave/pkg/sandbox"
	"conclave/pkg/text"
)

// Proxy is an HTTP proxy on a Unix socket, for a program in the sandbox. It connects to the hosts and ports of its
// settings and to nothing else: CONNECT for tunnels, GET and HEAD for plain ones. It does not follow redirects, so
// their target is checked like every other request.
type Proxy struct {
	Socket string // in a folder of its own, which only the user of programs can open

	remove  func() // removes the folder of the socket
	tunnels map[string]bool
	plain   map[string]bool
	check   func(host string, a netip.Addr) error
	web     *http.Transport
	server  *http.Server
	limit   int64
	window  time.Duration
	idle    time.Duration

	mu     sync.Mutex
	hosts  []string // requested, with the outcome
	closed bool
	conns  map[net.Conn]bool
	since  time.Time // begin of the window
	used   int64     // bytes in the window, of both directions
}

const (
	dialTimeout = 10 * time.Second
	// idleTimeout is the default of [Settings].Idle.
	idleTimeout = 30 * time.Second
	// maxHosts bounds the hosts that are listed.
	maxHosts = 20
)

var errLimit = errors.New("the limit of transferred bytes is exceeded")

// Settings are what a proxy connects to.
type Settings struct {
	Tunnels []string // host:port, for CONNECT
	Plain   []string // host:port, for GET and HEAD of http
	Limit   int64    // bytes of both directions
	// Window is the time to which Limit applies, again and again; 0 = the life of the proxy.
	Window time.Duration
	// Idle bounds the time without a byte from the host; 0 = 30 s.
	Idle time.Duration
	// Check denies an address that a host resolves to, before the connection; nil = none.
	Check func(host string, a netip.Addr) error
}

// Start starts a proxy. The caller closes it.
func Start(c Settings) (*Proxy, error) {
	p := &Proxy{
		tunnels: map[string]bool{}, plain: map[string]bool{}, check: c.Check, limit: c.Limit, window: c.Window,
		idle:  cmp.Or(c.Idle, idleTimeout),
		conns: map[net.Conn]bool{}, since: time.Now(),
	}
	for _, a := range c.Tunnels {
		p.tunnels[strings.ToLower(a)] = true
	}
	for _, a := range c.Plain {
		p.plain[strings.ToLower(a)] = true
	}
	dir, remove, err := sandbox.MakeTemp()
	if err != nil {
		return nil, err
	}
	p.remove = remove
	p.Socket = filepath.Join(dir, "proxy")
	l, err := net.Listen("unix", p.Socket)
	if err == nil {
		if err = errors.Join(sandbox.GiveToPrograms(dir), sandbox.GiveToPrograms(p.Socket)); err != nil {
			l.Close()
		}
	}
	if err != nil {
		remove()
		return nil, err
	}
	p.web = &http.Transport{
		Proxy: nil, DialContext: p.dial, DisableCompression: true, DisableKeepAlives: true,
		ResponseHeaderTimeout: idleTimeout, MaxResponseHeaderBytes: 64 << 10,
	}
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: idleTimeout, MaxHeaderBytes: 64 << 10}
	go p.server.Serve(l)
	return p, nil
}

// Close ends all connections and removes the socket.
func (p *Proxy) Close() {
	p.server.Close()
	p.mu.Lock()
	p.closed = true
	for c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	p.remove()
}

// ServeHTTP answers one request of the program.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodConnect && p.tunnels[strings.ToLower(r.RequestURI)]:
		p.record(r.RequestURI, "allowed")
		p.tunnel(w, r)
	case (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.URL.Scheme == "http" && r.URL.User == nil &&
		r.ContentLength == 0 &&
		p.plain[strings.ToLower(targetOf(r.URL))]:
		p.record(targetOf(r.URL), "allowed")
		p.forward(w, r)
	default:
		p.record(cmp.Or(r.URL.Host, r.RequestURI), "denied")
		w.Header().Set("Connection", "close") // a body is not waited for
		http.Error(w, "this host is not allowed", http.StatusForbidden)
	}
}

// targetOf returns host and port of a plain URL.
func targetOf(u *url.URL) string { return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "80")) }

// forward sends a plain request to its host.
func (p *Proxy) forward(w http.ResponseWriter, r *http.Request) {
	out := r.Clone(r.Context())
	out.RequestURI, out.Host = "", r.URL.Host
	for _, h := range []string{"Connection", "Proxy-Connection", "Proxy-Authorization", "Keep-Alive", "Te", "Upgrade"} {
		out.Header.Del(h)
	}
	resp, err := p.web.RoundTrip(out)
	if err != nil {
		http.Error(w, "the host does not answer", http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	for name, values := range resp.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(resp.StatusCode)
	if _, err := io.Copy(w, resp.Body); err != nil {
		panic(http.ErrAbortHandler) // the program must not take a part for the whole
	}
}

// tunnel connects the program with a host, byte by byte.
func (p *Proxy) tunnel(w http.ResponseWriter, r *http.Request) {
	up, err := p.dial(r.Context(), "tcp", r.RequestURI)
	if err != nil {
		http.Error(w, "the host does not answer", http.StatusBadGateway)
		return
	}
	defer up.Close()
	h, ok := w.(http.Hijacker)
	if !ok {
		return
	}
	down, buffered, err := h.Hijack()
	if err != nil {
		return
	}
	defer down.Close()
	if _, err := io.WriteString(down, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	go func() {
		io.Copy(up, buffered) // ends with either connection
		up.Close()
	}()
	io.Copy(down, up)
}

// dial connects to an address that ServeHTTP has allowed.
func (p *Proxy) dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout, Control: func(_, to string, _ syscall.RawConn) error {
		return p.checkAddress(address, to)
	}}
	c, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		c.Close()
		return nil, net.ErrClosed
	}
	p.conns[c] = true
	return &countedConn{c, p}, nil
}

// checkAddress denies the address to, which the host of address resolves to.
func (p *Proxy) checkAddress(address, to string) error {
	if p.check == nil {
		return nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	a, err := netip.ParseAddrPort(to)
	if err != nil {
		return err
	}
	return p.check(host, a.Addr().Unmap())
}

// record adds a host to the list of the result, once per outcome.
func (p *Proxy) record(host, outcome string) {
	line := fmt.Sprintf("%s %q", outcome, text.OneLine(host, 100))
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.hosts) < maxHosts && !slices.Contains(p.hosts, line) {
		p.hosts = append(p.hosts, line)
	}
}

// Describe lists the hosts that the program requested.
func (p *Proxy) Describe() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.hosts) == 0 {
		return "no host was requested"
	}
	return "hosts: " + strings.Join(p.hosts, ", ")
}

// countedConn is a connection that counts its bytes.
type countedConn struct {
	net.Conn
	proxy *Proxy
}

func (c *countedConn) Read(b []byte) (int, error) {
	c.SetDeadline(time.Now().Add(c.proxy.idle))
	n, err := c.Conn.Read(b)
	if !c.proxy.count(n) {
		return 0, errLimit
	}
	return n, err
}

func (c *countedConn) Write(b []byte) (int, error) {
	if !c.proxy.count(len(b)) {
		return 0, errLimit
	}
	return c.Conn.Write(b)
}

func (c *countedConn) Close() error {
	c.proxy.mu.Lock()
	delete(c.proxy.conns, c.Conn)
	c.proxy.mu.Unlock()
	return c.Conn.Close()
}

// count adds n transferred bytes and reports whether they are within the limit.
func (p *Proxy) count(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.window > 0 && now.Sub(p.since) >= p.window {
		p.since, p.used = now, 0
	}
	p.used += int64(n)
	return p.used <= p.limit
}
