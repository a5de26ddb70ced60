// Package remote is shared by the HTTP backends that need a key: a transport that sends the key to one address only,
// follows no redirect and limits the response size, and errors that are actionable and never contain the key.
package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"conclave/pkg/local"
)

// DefaultLimit is the default maximum size of a response in bytes.
const DefaultLimit = 32 << 20

// Config configures a [Client].
type Config struct {
	URL    string                                // address of the server
	Key    func(context.Context) (string, error) // called once per request; nil = no key
	Header string                                // the header that carries the key
	Prefix string                                // before the key: "Bearer "
	Client *http.Client                          // its Transport is used; nil = a default one
	Limit  int64                                 // bytes of one response; 0 = [DefaultLimit]
}

// Client sends requests to one server. It does not store the key.
type Client struct {
	base  *url.URL
	cfg   Config
	http  *http.Client
	local bool
}

// New returns a client for cfg without connecting. It rejects URLs that are not http or https or have no host, and
// those with user info, query or fragment, which could hold a key.
func New(cfg Config) (*Client, error) {
	base, err := url.Parse(cfg.URL)
	if err != nil {
		// The parse error quotes the URL, which may contain a password.
		return nil, errors.New("invalid model server URL: write it as http://host:port")
	}
	switch {
	case base.User != nil || base.RawQuery != "" || base.Fragment != "":
		return nil, errors.New("model server URL has user info, a query or a fragment: store keys in the keyring " +
			"instead")
	case base.Scheme != "http" && base.Scheme != "https", base.Hostname() == "":
		return nil, errors.New("incomplete model server URL: write it as http://host:port")
	}
	if cfg.Limit <= 0 {
		cfg.Limit = DefaultLimit
	}
	base.Path = strings.TrimRight(base.Path, "/")
	c := &Client{base: base, cfg: cfg, local: local.IsLocalHost(base.Hostname())}
	var next http.RoundTripper
	if cfg.Client != nil {
		next = cfg.Client.Transport
	}
	if next == nil {
		next = newTransport()
	}
	c.http = &http.Client{Transport: &keyTransport{client: c, next: next}, CheckRedirect: refuseRedirect}
	return c, nil
}

// HTTP returns the HTTP client. It rejects requests whose context does not carry a [Call] of this client.
func (c *Client) HTTP() *http.Client { return c.http }

// URL returns the server's address without a trailing slash.
func (c *Client) URL() *url.URL { u := *c.base; return &u }

// Host returns host and port of the server, for messages.
func (c *Client) Host() string { return c.base.Host }

// RemoteHost returns the server's host name, or "" if it is this machine.
func (c *Client) RemoteHost() string {
	if c.local {
		return ""
	}
	return c.base.Hostname()
}

// newTransport returns the default transport with limits added. It sets no response timeout: loading a model takes
// long, and the caller's context limits the request.
func newTransport() http.RoundTripper {
	return &http.Transport{
		Proxy: func(r *http.Request) (*url.URL, error) {
			return selectProxy(r, http.ProxyFromEnvironment)
		},
		DialContext:            (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:    10 * time.Second,
		ForceAttemptHTTP2:      true,
		MaxIdleConnsPerHost:    8,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: 256 << 10,
		DisableCompression:     true, // the size limit counts bytes on the wire
	}
}

// selectProxy uses the environment's proxy for https to other machines only: on plain http the proxy would see key and
// prompt.
func selectProxy(r *http.Request, environment func(*http.Request) (*url.URL, error)) (*url.URL, error) {
	if r.URL.Scheme != "https" || local.IsLocalHost(r.URL.Hostname()) {
		return nil, nil
	}
	return environment(r)
}

var (
	errRedirect = errors.New("it responded with a redirect, which is not followed because the key would be " +
		"sent along")
	errForeignAddress = errors.New("request to a foreign address rejected")
	errTooBig         = errors.New("response exceeds the size limit")
)

func refuseRedirect(*http.Request, []*http.Request) error { return errRedirect }

// Call is one request: its key, and the error that ended its response early.
type Call struct {
	client     *Client
	key        string
	hideErrors bool

	mu      sync.Mutex
	readErr error // ended the response body early
	status  int   // of the response; 0 = none began
}

type callKey struct{}

// BeginCall obtains the key and returns the context to send one request with. The key is added by the transport, so
// that no client library in between holds it. It fails when the key cannot be obtained or has a line break or NUL; an
// empty key is not sent.
func (c *Client) BeginCall(ctx context.Context) (context.Context, *Call, error) {
	call := &Call{client: c}
	if c.cfg.Key != nil {
		key, err := c.cfg.Key(ctx)
		if err != nil {
			return nil, nil, fmt.Errorf("getting the key of %s: %w", c.Host(), err)
		}
		if strings.ContainsAny(key, "\r\n\x00") {
			return nil, nil, fmt.Errorf("the key of %s contains a line break: set it again", c.Host())
		}
		call.key = key
	}
	return context.WithValue(ctx, callKey{}, call), call, nil
}

// HideReadErrors makes an interrupted response look complete to the reader; [Call.ReadError] still returns the error.
// It is for client libraries that would log it.
func (c *Call) HideReadErrors() { c.hideErrors = true }

// ReadError returns the error that ended the response early, or nil.
func (c *Call) ReadError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.readErr
}

// Status returns the HTTP status, or 0 if no response arrived.
func (c *Call) Status() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

// keyTransport rejects foreign addresses, strips identifying headers and adds the key.
type keyTransport struct {
	client *Client
	next   http.RoundTripper
}

// credentialHeaders are removed from every request, because client libraries fill them from the environment.
var credentialHeaders = []string{
	"Authorization", "X-Api-Key", "X-Goog-Api-Key", "Api-Key", "Proxy-Authorization",
	"Cookie",
}

// RoundTrip implements [http.RoundTripper]. It rejects a request whose context has no [Call] of this client or that
// goes to another scheme, host or port, and a redirect as the response. It replaces credential headers by the key of
// the call, and limits the size of the response.
func (g *keyTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	call, _ := r.Context().Value(callKey{}).(*Call)
	if call == nil || call.client != g.client || r.URL.Scheme != g.client.base.Scheme ||
		r.URL.Host != g.client.base.Host {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, errForeignAddress
	}
	out := r.Clone(r.Context())
	out.Host = ""
	for _, h := range credentialHeaders {
		out.Header.Del(h)
	}
	for h := range out.Header {
		if strings.HasPrefix(h, "X-Stainless-") || h == "X-Goog-Api-Client" {
			delete(out.Header, h) // they describe this machine to the service
		}
	}
	out.Header.Set("User-Agent", "conclave")
	if call.key != "" {
		out.Header.Set(g.client.cfg.Header, g.client.cfg.Prefix+call.key)
	}
	resp, err := g.next.RoundTrip(out)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 && resp.StatusCode < 400 {
		_ = resp.Body.Close()
		return nil, errRedirect
	}
	call.mu.Lock()
	call.status = resp.StatusCode
	call.mu.Unlock()
	resp.Request = r // not the clone with the key, which a library could print
	resp.Body = &limitedBody{call: call, rc: resp.Body, left: g.client.cfg.Limit}
	return resp, nil
}

// limitedBody limits a response and records the error that ended it.
type limitedBody struct {
	call *Call
	rc   io.ReadCloser
	left int64
}

// Read implements [io.Reader]. A response longer than the limit ends with errTooBig; with hidden errors every error is
// [io.EOF].
func (b *limitedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		// Reading one more byte distinguishes a response of exactly the limit from a longer one.
		var one [1]byte
		n, err := b.rc.Read(one[:])
		if n > 0 {
			err = errTooBig
		}
		return 0, b.recordError(err)
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.rc.Read(p)
	b.left -= int64(n)
	return n, b.recordError(err)
}

// recordError records the first error other than [io.EOF] for [Call.ReadError] and returns err, or [io.EOF] when errors
// are hidden.
func (b *limitedBody) recordError(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	b.call.mu.Lock()
	defer b.call.mu.Unlock()
	if b.call.readErr == nil {
		b.call.readErr = err
	}
	if b.call.hideErrors {
		return io.EOF
	}
	return err
}

// Close implements [io.Closer].
func (b *limitedBody) Close() error {
	err := b.rc.Close()
	if b.call.hideErrors {
		return nil
	}
	return err
}
