// Package remote is shared by the HTTP backends that need a key: a client that sends the key to one address only,
// follows no redirect and limits the response size, a reader of streamed replies, and errors that are actionable and
// never contain the key.
package remote

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
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
	Extra  map[string]string                     // further headers of each request
	Client *http.Client                          // its Transport is used; nil = a default one
	Limit  int64                                 // bytes of one response; 0 = [DefaultLimit]
}

// Client sends requests to one server. It does not store the key.
type Client struct {
	base *url.URL
	cfg  Config
	http *http.Client
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
	c := &Client{base: base, cfg: cfg, http: &http.Client{CheckRedirect: returnRedirect}}
	if cfg.Client != nil {
		c.http.Transport = cfg.Client.Transport
	}
	if c.http.Transport == nil {
		c.http.Transport = newTransport()
	}
	return c, nil
}

// returnRedirect makes a redirect the response, which [Client.Send] rejects: the key would be sent along.
func returnRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// URL returns the server's address without a trailing slash.
func (c *Client) URL() *url.URL { u := *c.base; return &u }

// Host returns host and port of the server, for messages.
func (c *Client) Host() string { return c.base.Host }

// RemoteHost returns the server's host name, or "" if it is this machine.
func (c *Client) RemoteHost() string {
	if local.IsLocalHost(c.base.Hostname()) {
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
