package tools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"conclave/pkg/sandbox"
	"conclave/pkg/text"
)

// egressProxy is an HTTP proxy on a Unix socket, for a program in the sandbox, which has no network. It connects to the hosts and ports
// of the registries and to nothing else: CONNECT for those of https, GET and HEAD for those of http. It does not follow redirects, so
// their target is checked like every other request.
type egressProxy struct {
	socket string // in a folder of its own, which only the user of programs can open

	tunnels map[string]bool // host:port of https registries
	plain   map[string]bool // host:port of http registries
	web     *http.Transport
	server  *http.Server
	left    atomic.Int64 // bytes, of both directions

	mu     sync.Mutex
	hosts  []string // requested, with the outcome
	closed bool
	conns  []net.Conn
}

const (
	egressDialTimeout = 10 * time.Second
	// egressIdle bounds the time without a byte in either direction of a connection.
	egressIdle = 30 * time.Second
	// maxEgressHosts bounds the hosts that a result lists.
	maxEgressHosts = 20
)

var errEgressLimit = errors.New("the limit of transferred bytes is exceeded")

// startEgress starts a proxy to the registries, which transfers at most limit bytes. The caller closes it.
func startEgress(registries []string, limit int64) (*egressProxy, error) {
	p := &egressProxy{tunnels: map[string]bool{}, plain: map[string]bool{}}
	p.left.Store(limit)
	for _, r := range registries {
		u, err := parseRegistry(r)
		if err != nil {
			return nil, fmt.Errorf("a registry %w", err)
		}
		address := strings.ToLower(dialAddress(u))
		if u.Scheme == "https" {
			p.tunnels[address] = true
		} else {
			p.plain[address] = true
		}
	}
	dir, err := os.MkdirTemp("", "egress")
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, err
	}
	p.socket = filepath.Join(dir, "proxy")
	l, err := net.Listen("unix", p.socket)
	if err == nil {
		if err = errors.Join(sandbox.GiveToPrograms(dir), sandbox.GiveToPrograms(p.socket)); err != nil {
			l.Close()
		}
	}
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	p.web = &http.Transport{Proxy: nil, DialContext: p.dial, DisableCompression: true, DisableKeepAlives: true, ResponseHeaderTimeout: egressIdle, MaxResponseHeaderBytes: 64 << 10}
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: egressIdle, MaxHeaderBytes: 64 << 10}
	go p.server.Serve(l)
	return p, nil
}

// parseRegistry parses the base URL of a package index. Without encryption it must be on this machine.
func parseRegistry(raw string) (*url.URL, error) {
	u, err := parseEndpoint(raw)
	if err != nil {
		return nil, err
	}
	if ip := net.ParseIP(u.Hostname()); u.Scheme == "http" && u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, errors.New("is not encrypted and not on this machine; use https")
	}
	return u, nil
}

// close ends all connections and removes the socket.
func (p *egressProxy) close() {
	p.server.Close()
	p.mu.Lock()
	p.closed = true
	for _, c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	os.RemoveAll(filepath.Dir(p.socket))
}

// ServeHTTP answers one request of the program.
func (p *egressProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodConnect && p.tunnels[strings.ToLower(r.RequestURI)]:
		p.record(r.RequestURI, "allowed")
		p.tunnel(w, r)
	case (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.URL.Scheme == "http" && r.URL.User == nil && r.ContentLength == 0 &&
		p.plain[strings.ToLower(dialAddress(r.URL))]:
		p.record(dialAddress(r.URL), "allowed")
		p.forward(w, r)
	default:
		target := r.URL.Host
		if target == "" {
			target = r.RequestURI
		}
		p.record(target, "denied")
		w.Header().Set("Connection", "close") // a body is not waited for
		http.Error(w, "not a registry of tools.yaml", http.StatusForbidden)
	}
}

// forward sends a plain request to its host.
func (p *egressProxy) forward(w http.ResponseWriter, r *http.Request) {
	out := r.Clone(r.Context())
	out.RequestURI, out.Host = "", r.URL.Host
	for _, h := range []string{"Connection", "Proxy-Connection", "Proxy-Authorization", "Keep-Alive", "Te", "Upgrade"} {
		out.Header.Del(h)
	}
	resp, err := p.web.RoundTrip(out)
	if err != nil {
		http.Error(w, "the registry does not answer", http.StatusBadGateway)
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
func (p *egressProxy) tunnel(w http.ResponseWriter, r *http.Request) {
	up, err := p.dial(r.Context(), "tcp", r.RequestURI)
	if err != nil {
		http.Error(w, "the registry does not answer", http.StatusBadGateway)
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
func (p *egressProxy) dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: egressDialTimeout}
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
	p.conns = append(p.conns, c)
	return &egressConn{c, p}, nil
}

// record adds a host to the list of the result, once per outcome.
func (p *egressProxy) record(host, outcome string) {
	line := fmt.Sprintf("%s %q", outcome, text.OneLine(host, 100))
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.hosts) < maxEgressHosts && !slices.Contains(p.hosts, line) {
		p.hosts = append(p.hosts, line)
	}
}

// describe lists the hosts that the program requested.
func (p *egressProxy) describe() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.hosts) == 0 {
		return "no host was requested"
	}
	return "hosts: " + strings.Join(p.hosts, ", ")
}

// egressConn is a connection to a registry that counts its bytes.
type egressConn struct {
	net.Conn
	proxy *egressProxy
}

func (c *egressConn) Read(b []byte) (int, error) {
	c.SetDeadline(time.Now().Add(egressIdle))
	n, err := c.Conn.Read(b)
	if c.proxy.left.Add(int64(-n)) < 0 {
		return 0, errEgressLimit
	}
	return n, err
}

func (c *egressConn) Write(b []byte) (int, error) {
	if c.proxy.left.Add(int64(-len(b))) < 0 {
		return 0, errEgressLimit
	}
	return c.Conn.Write(b)
}
