// Package ollama reaches an Ollama server through its native API.
//
// The transport is our own: small pooled buffers, connections that are used again, lines of any length up to a bound.
// Types come from Ollama's api package where they cost nothing. Chats have their own: api's would read every reply twice
// and turn arguments into values and back, which takes time and loses the order of keys below the first level.
//
// Requests go straight to the configured address: no proxy of the environment and no redirect sees a prompt. Bytes of a
// reply that are no UTF-8 arrive as U+FFFD, as JSON decoding has it.
package ollama

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"conclave/pkg/model"
	"conclave/pkg/text"
)

// DefaultURL is where Ollama listens unless told otherwise.
const DefaultURL = "http://127.0.0.1:11434"

// Config says where the server is and what goes for requests that do not say. The zero value is a server on this machine.
type Config struct {
	URL       string // "" = DefaultURL; host:port is enough
	Window    int    // num_ctx; 0 = 32768. Without it the server would take as little as 4096 and drop what is too much
	Predict   int    // num_predict; 0 = 4096. Without it a model can write for ever
	KeepAlive string // how long a model stays loaded: a duration, "-1" for ever, "" = the server's own
}

// Backend is an Ollama server. It is safe for concurrent use.
type Backend struct {
	cfg       Config
	url       string // to be shown
	transport *http.Transport
	chat      *http.Request // what requests are copied from
	embed     *http.Request
	show      *http.Request
	pull      *http.Request
	tags      *http.Request
	ps        *http.Request
	status    *http.Request
}

var _ model.Backend = (*Backend)(nil)

// New returns a backend. It does not ask whether the server is there.
func New(cfg Config) (*Backend, error) {
	if cfg.URL == "" {
		cfg.URL = DefaultURL
	}
	u, err := url.Parse(cfg.URL)
	switch {
	case err != nil:
		return nil, errors.New("the address of the Ollama server cannot be read; it looks like " + DefaultURL)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil:
		return nil, fmt.Errorf("the address %s of the Ollama server does not look like %s", u.Redacted(), DefaultURL)
	}
	if cfg.Window == 0 {
		cfg.Window = 32768
	}
	if cfg.Predict == 0 {
		cfg.Predict = 4096
	}
	b := &Backend{cfg: cfg, url: u.String(), transport: &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second,
		MaxIdleConnsPerHost: 64,
		IdleConnTimeout:     90 * time.Second,
		DisableCompression:  true,
	}}
	b.chat = b.prepare(http.MethodPost, u, "/api/chat")
	b.embed = b.prepare(http.MethodPost, u, "/api/embed")
	b.show = b.prepare(http.MethodPost, u, "/api/show")
	b.pull = b.prepare(http.MethodPost, u, "/api/pull")
	b.tags = b.prepare(http.MethodGet, u, "/api/tags")
	b.ps = b.prepare(http.MethodGet, u, "/api/ps")
	b.status = b.prepare(http.MethodGet, u, "/api/status")
	return b, nil
}

func (b *Backend) prepare(method string, u *url.URL, path string) *http.Request {
	h := http.Header{
		"Content-Type": {"application/json"},
		"Accept":       {"application/x-ndjson"},
		"User-Agent":   {"conclave"},
		// No value: it is not sent, and says that a request may be tried again when an idle connection turns out to be
		// closed. No request of ours does harm when the server sees it twice.
		"Idempotency-Key": nil,
	}
	at := &url.URL{Scheme: u.Scheme, Host: u.Host, Path: strings.TrimRight(u.Path, "/") + path}
	return &http.Request{
		Method: method, URL: at, Host: u.Host, Header: h, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
}

// URL returns the server's address, to be shown.
func (b *Backend) URL() string { return b.url }

// Close drops idle connections.
func (b *Backend) Close() { b.transport.CloseIdleConnections() }

// Chat implements [model.Chat].
func (b *Backend) Chat(ctx context.Context, r model.Request) iter.Seq2[model.Chunk, error] {
	return func(yield func(model.Chunk, error) bool) {
		resp, err := b.do(ctx, b.chat, r.Model, func(dst []byte) []byte { return b.appendChat(dst, r) })
		if err != nil {
			yield(model.Chunk{}, err)
			return
		}
		defer resp.Body.Close()
		lines := newLines(resp.Body)
		defer lines.free()
		for {
			line, err := lines.next()
			if err != nil {
				yield(model.Chunk{}, b.broken(ctx, err))
				return
			}
			c, err := b.chunk(line, r.Model)
			if err != nil {
				yield(model.Chunk{}, err)
				return
			}
			more := yield(c, nil)
			if c.Done {
				lines.drain(resp.Body)
			}
			if !more || c.Done {
				return
			}
		}
	}
}

// chunk reads a line.
func (b *Backend) chunk(line []byte, name string) (model.Chunk, error) {
	r, ok := decode(line, name)
	switch {
	case !ok:
		return model.Chunk{}, fmt.Errorf("%w: %s sent something that is no chat reply: %q", model.ErrMalformed, b.url, text.OneLine(string(line), mostSaid))
	case r.failed != "":
		return model.Chunk{}, b.fault(0, r.failed, name)
	}
	return r.chunk, nil
}
