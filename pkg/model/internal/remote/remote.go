// Package remote is what the backends that speak HTTP with a key have in common: a transport that sends the key to one
// address only, follows no redirect and reads a bounded number of bytes, and errors that a user can act on and that
// never hold the key.
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

// DefaultLimit is how many bytes of one response are read when nothing else is said.
const DefaultLimit = 32 << 20

// Config is what a [Client] needs to know.
type Config struct {
	URL    string                                // where the server is
	Key    func(context.Context) (string, error) // asked once per request; nil = the server wants none
	Header string                                // the header that carries the key
	Prefix string                                // before the key: "Bearer "
	Client *http.Client                          // its Transport is used; nil = one of our own
	Limit  int64                                 // bytes of one response; 0 = [DefaultLimit]
}

// Client holds what all requests to one server share. It keeps no key.
type Client struct {
	base  *url.URL
	cfg   Config
	http  *http.Client
	local bool
}

// New returns a client for cfg. It asks nobody anything yet.
func New(cfg Config) (*Client, error) {
	base, err := url.Parse(cfg.URL)
	if err != nil {
		// The parser's own error quotes the address, and an address may hold a password.
		return nil, errors.New("the address of the model server cannot be read: write it as http://host:port")
	}
	switch {
	case base.User != nil || base.RawQuery != "" || base.Fragment != "":
		return nil, errors.New("the address of the model server holds more than scheme, host and path: keys belong into the keyring")
	case base.Scheme != "http" && base.Scheme != "https", base.Hostname() == "":
		return nil, errors.New("the address of the model server is incomplete: write it as http://host:port")
	}
	if cfg.Limit <= 0 {
		cfg.Limit = DefaultLimit
	}
	base.Path = strings.TrimRight(base.Path, "/")
	c := &Client{base: base, cfg: cfg, local: local.Host(base.Hostname())}
	var next http.RoundTripper
	if cfg.Client != nil {
		next = cfg.Client.Transport
	}
	if next == nil {
		next = transport()
	}
	c.http = &http.Client{Transport: &guard{client: c, next: next}, CheckRedirect: refuseRedirect}
	return c, nil
}

// HTTP is the client to send with. It sends only what carries the context of a [Call].
func (c *Client) HTTP() *http.Client { return c.http }

// URL is the server's address, without a slash at its end.
func (c *Client) URL() *url.URL { u := *c.base; return &u }

// Host names the server, for messages.
func (c *Client) Host() string { return c.base.Host }

// Away is the server's host when that is another machine, and "" when it is this one.
func (c *Client) Away() string {
	if c.local {
		return ""
	}
	return c.base.Hostname()
}

// transport is like the standard one, with bounds where that has none. How long an answer may take is the caller's
// context to say: a model may have to be loaded first.
func transport() http.RoundTripper {
	return &http.Transport{
		Proxy:                  func(r *http.Request) (*url.URL, error) { return proxy(r, http.ProxyFromEnvironment) },
		DialContext:            (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:    10 * time.Second,
		ForceAttemptHTTP2:      true,
		MaxIdleConnsPerHost:    8,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: 256 << 10,
		DisableCompression:     true, // a stream gains nothing by it, and a bound on bytes should mean the bytes sent
	}
}

// proxy asks the environment only for what leaves this machine, and only where a proxy sees neither key nor prompt.
func proxy(r *http.Request, environment func(*http.Request) (*url.URL, error)) (*url.URL, error) {
	if r.URL.Scheme != "https" || local.Host(r.URL.Hostname()) {
		return nil, nil
	}
	return environment(r)
}

var (
	errRedirect  = errors.New("it answers with a redirect, which is not followed because the key would go along")
	errElsewhere = errors.New("the request was meant for another address")
	errTooBig    = errors.New("the response is larger than allowed")
)

func refuseRedirect(*http.Request, []*http.Request) error { return errRedirect }

// Call is one request: the key that was asked for it, and what went wrong while its response was read.
type Call struct {
	client *Client
	key    string
	soft   bool

	mu     sync.Mutex
	read   error // what ended the body early
	status int   // of the response; 0 = none began
}

type callKey struct{}

// Begin asks for the key. The context it returns is the one to send with; the key is set on the way out, so that no
// library between here and the wire holds it.
func (c *Client) Begin(ctx context.Context) (context.Context, *Call, error) {
	call := &Call{client: c}
	if c.cfg.Key != nil {
		key, err := c.cfg.Key(ctx)
		if err != nil {
			return nil, nil, fmt.Errorf("asking for the key of %s: %w", c.Host(), err)
		}
		if strings.ContainsAny(key, "\r\n\x00") {
			return nil, nil, fmt.Errorf("the key of %s has a line break in it: set it again", c.Host())
		}
		call.key = key
	}
	return context.WithValue(ctx, callKey{}, call), call, nil
}

// Quiet makes a response that breaks off look like one that ends. [Call.Broken] still tells. It is for libraries that
// would write the error to the log.
func (c *Call) Quiet() { c.soft = true }

// Broken is what ended the response early; nil when it ended well.
func (c *Call) Broken() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.read
}

// Status is that of the response; 0 when none began.
func (c *Call) Status() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

// guard is the last step before the wire.
type guard struct {
	client *Client
	next   http.RoundTripper
}

// secrets are headers that a library may have filled from wherever it looked.
var secrets = []string{"Authorization", "X-Api-Key", "X-Goog-Api-Key", "Api-Key", "Proxy-Authorization", "Cookie"}

// RoundTrip implements [http.RoundTripper].
func (g *guard) RoundTrip(r *http.Request) (*http.Response, error) {
	call, _ := r.Context().Value(callKey{}).(*Call)
	if call == nil || call.client != g.client || r.URL.Scheme != g.client.base.Scheme || r.URL.Host != g.client.base.Host {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, errElsewhere
	}
	out := r.Clone(r.Context())
	out.Host = ""
	for _, h := range secrets {
		out.Header.Del(h)
	}
	for h := range out.Header {
		if strings.HasPrefix(h, "X-Stainless-") || h == "X-Goog-Api-Client" {
			delete(out.Header, h) // they tell the service about this machine, which it need not know
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
	resp.Request = r // not the one with the key: a library may print it
	resp.Body = &body{call: call, rc: resp.Body, left: g.client.cfg.Limit}
	return resp, nil
}

// body bounds a response and remembers how it ended.
type body struct {
	call *Call
	rc   io.ReadCloser
	left int64
}

// Read implements [io.Reader].
func (b *body) Read(p []byte) (int, error) {
	if b.left <= 0 {
		// One more byte tells a response of exactly the limit from a longer one.
		var one [1]byte
		n, err := b.rc.Read(one[:])
		if n > 0 {
			err = errTooBig
		}
		return 0, b.end(err)
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.rc.Read(p)
	b.left -= int64(n)
	return n, b.end(err)
}

func (b *body) end(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	b.call.mu.Lock()
	defer b.call.mu.Unlock()
	if b.call.read == nil {
		b.call.read = err
	}
	if b.call.soft {
		return io.EOF
	}
	return err
}

// Close implements [io.Closer].
func (b *body) Close() error {
	err := b.rc.Close()
	if b.call.soft {
		return nil
	}
	return err
}
