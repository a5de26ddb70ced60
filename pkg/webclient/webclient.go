// Package webclient fetches single web pages that the user asked for. It is a gate against SSRF: a URL that leads into
// this machine or its network is denied, however it is spelled and whatever it resolves or redirects to.
//
// It keeps no cookies, sends no credentials and no referrer, and ignores robots.txt: it reads one page at the user's
// request, as a browser would, and limits its rate per host. Errors are a few fixed words (see [Failure]), so that a
// model learns nothing about the network from them.
package webclient

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"
)

// MaxRedirects is how many redirects are followed.
const MaxRedirects = 3

// Config bounds a client. A zero field gets the default in its comment, and nothing is cached.
type Config struct {
	Version string           // for the user agent
	Ports   []int            // allowed besides 80 and 443
	Own     []netip.AddrPort // our own endpoints, refused even where their address is not

	Total     time.Duration // one fetch with all its redirects and waits; 20 s
	Resolve   time.Duration // a name; 5 s
	Connect   time.Duration // one address; 4 s
	Handshake time.Duration // TLS; 5 s
	Header    time.Duration // until the answer begins; 10 s
	Idle      time.Duration // between two pieces of the body; 5 s

	Compressed   int64 // bytes over the wire; 2 MiB
	Decompressed int64 // bytes of a page; 4 MiB
	Ratio        int64 // of the two; 100

	Every      time.Duration // one request to a host; 1 s
	Burst      int           // so many at once before that; 3
	CacheBytes int           // 16 MiB
	CacheTTL   time.Duration // how long a page is kept; 0 = not at all

	Now func() time.Time // for the pace and the cache; time.Now
}

// withDefaults returns c with the defaults for limits, pace and clock that are not set. CacheTTL stays: 0 turns the
// cache off.
func (c Config) withDefaults() Config {
	c.Total, c.Resolve = cmp.Or(c.Total, 20*time.Second), cmp.Or(c.Resolve, 5*time.Second)
	c.Connect, c.Handshake = cmp.Or(c.Connect, 4*time.Second), cmp.Or(c.Handshake, 5*time.Second)
	c.Header, c.Idle = cmp.Or(c.Header, 10*time.Second), cmp.Or(c.Idle, 5*time.Second)
	c.Compressed, c.Decompressed = cmp.Or(c.Compressed, 2<<20), cmp.Or(c.Decompressed, 4<<20)
	c.Ratio, c.CacheBytes = cmp.Or(c.Ratio, 100), cmp.Or(c.CacheBytes, 16<<20)
	c.Every, c.Burst = cmp.Or(c.Every, time.Second), cmp.Or(c.Burst, 3)
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// maxHeaders is the limit of response headers, in bytes.
const maxHeaders = 64 << 10

// Page is a fetched page.
type Page struct {
	URL  string // where it was found in the end
	Type string // how to read it: [HTML], [Text] and so on
	Body string // UTF-8
}

// Client fetches pages. It is safe for concurrent use.
type Client struct {
	cfg       Config
	testNet   TestNet
	resolver  *net.Resolver
	transport *http.Transport // no http.Client: that would read redirects its own way
	pace      *Pace
	cache     *Cache[Page]
}

// New returns a client that reaches public addresses only.
func New(cfg Config) *Client { return NewForTests(cfg, TestNet{}) }

// TestNet relaxes a client for tests, whose servers are on this machine.
type TestNet struct {
	Allow    []netip.Prefix             // addresses that are reached although the rules refuse them
	Resolver *net.Resolver              // another name server; nil = the machine's
	Roots    *x509.CertPool             // whose certificates count; nil = the machine's
	Dialing  func(netip.AddrPort) error // hears of each connection that passed all checks; an error stops it
}

// NewForTests is New with the exceptions of open, of which the zero value has none. A test ensures that only tests call
// it.
func NewForTests(cfg Config, open TestNet) *Client {
	cfg = cfg.withDefaults()
	c := &Client{
		cfg: cfg, testNet: open, resolver: cmp.Or(open.Resolver, net.DefaultResolver),
		pace: NewPace(cfg.Every, cfg.Burst), cache: NewCache[Page](cfg.CacheBytes, cfg.CacheTTL),
	}
	c.transport = &http.Transport{
		Proxy:                  nil, // a proxy would connect where we cannot look
		DialContext:            c.dial,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: open.Roots},
		TLSHandshakeTimeout:    cfg.Handshake,
		ResponseHeaderTimeout:  cfg.Header,
		MaxResponseHeaderBytes: maxHeaders,
		DisableCompression:     true, // we unpack, with limits
		DisableKeepAlives:      true, // each fetch is checked and connected anew
	}
	return c
}

// Get fetches one page. The error is a [Failure] or a [Status].
func (c *Client) Get(ctx context.Context, raw string) (Page, error) {
	return c.GetWithin(ctx, raw, nil)
}

// GetWithin is Get with a caller's check: within denies further URLs by an error, also after each redirect; nil denies
// none. It takes at most Config.Total and follows MaxRedirects redirects, none twice. Errors are a Failure or Status.
func (c *Client) GetWithin(ctx context.Context, raw string, within func(address string) error) (Page, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Total)
	defer cancel()
	u, err := c.parseURL(raw)
	if err != nil {
		return Page{}, err
	}
	seen := map[string]bool{}
	for range MaxRedirects + 1 {
		if seen[u.String()] {
			return Page{}, ErrRedirects
		}
		seen[u.String()] = true
		if within != nil && within(u.String()) != nil {
			return Page{}, ErrForbidden
		}
		page, next, err := c.fetchOnce(ctx, u)
		if err != nil || next == nil {
			return page, failureOf(ctx, err)
		}
		u = next
	}
	return Page{}, ErrRedirects
}

func (c *Client) parseURL(raw string) (*url.URL, error) {
	return parseURL(raw, c.cfg.Ports, c.isPermitted)
}

// fetchOnce requests one URL without following redirects, or returns it from the cache. It returns the page, or the
// next URL of a redirect. Any status but 200 and redirects is a [Status] error. A page with Cache-Control: no-store is
// not cached.
func (c *Client) fetchOnce(ctx context.Context, u *url.URL) (Page, *url.URL, error) {
	key := u.String()
	if page, ok := c.cache.Get(key, c.cfg.Now()); ok {
		return page, nil, nil
	}
	if err := c.pace.Wait(ctx, u.Hostname(), c.cfg.Now()); err != nil {
		return Page{}, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req := (&http.Request{
		Method: http.MethodGet, URL: u, Host: u.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{
			"User-Agent": {fmt.Sprintf("Conclave/%s (+local assistant; reads one page at the user's request)",
				c.cfg.Version)},
			"Accept": {"text/html, application/xhtml+xml, text/plain;q=0.9, text/markdown;q=0.9, " +
				"application/json;q=0.8, application/xml;q=0.8"},
			"Accept-Encoding": {"gzip, deflate"},
		},
	}).WithContext(ctx)
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		return Page{}, nil, failureOf(ctx, err)
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect,
		http.StatusPermanentRedirect:
		next, err := c.resolveRedirect(u, resp.Header)
		return Page{}, next, err
	case http.StatusOK:
	default:
		return Page{}, nil, Status(resp.StatusCode)
	}
	page, err := c.readPage(resp, cancel)
	if err != nil {
		return Page{}, nil, failureOf(ctx, err)
	}
	page.URL = key
	if !strings.Contains(strings.ToLower(resp.Header.Get("Cache-Control")), "no-store") {
		c.cache.Put(key, page, len(page.Body), c.cfg.Now())
	}
	return page, nil, nil
}

// resolveRedirect returns the target of a redirect after the same parsing and checks as the first URL. A missing or
// repeated Location, and one that fails a check, is [ErrLocation]; a downgrade from https to http is [ErrDowngrade].
func (c *Client) resolveRedirect(from *url.URL, h http.Header) (*url.URL, error) {
	to := h.Values("Location")
	if len(to) != 1 || len(to[0]) > MaxURL || strings.ContainsAny(to[0], "\\ \t") {
		return nil, ErrLocation
	}
	ref, err := url.Parse(to[0])
	if err != nil {
		return nil, ErrLocation
	}
	whole := to[0]
	if !ref.IsAbs() {
		// What names no scheme is joined to the address it came from, and then read like any other.
		whole = from.ResolveReference(ref).String()
	}
	next, err := c.parseURL(whole)
	switch {
	case err != nil:
		return nil, ErrLocation
	case from.Scheme == "https" && next.Scheme != "https":
		return nil, ErrDowngrade
	}
	return next, nil
}

// readPage reads the body within the limits. stop cancels the request when no data arrives for Config.Idle. It rejects
// types that are not text, and bodies that do not look like their type.
func (c *Client) readPage(resp *http.Response, stop context.CancelFunc) (Page, error) {
	k, full, err := contentKind(resp.Header)
	if err != nil {
		return Page{}, err
	}
	if resp.ContentLength > c.cfg.Compressed {
		return Page{}, ErrLarge
	}
	silence := time.AfterFunc(c.cfg.Idle, stop)
	defer silence.Stop()
	in := &meteredReader{r: resp.Body, limit: c.cfg.Compressed, onData: func() { silence.Reset(c.cfg.Idle) }}
	body, err := readBody(resp.Header.Values("Content-Encoding"), in, c.cfg.Decompressed, c.cfg.Ratio)
	if err != nil {
		return Page{}, err
	}
	if !matchesSniffed(k, body) {
		return Page{}, ErrType
	}
	return Page{Type: k, Body: decodeCharset(k, full, body)}, nil
}
