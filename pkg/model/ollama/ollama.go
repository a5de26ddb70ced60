// Package ollama is the model backend for an Ollama server, over its native API.
//
// It has types of its own. Those of Ollama's api package bring 17 packages, and decode the arguments of tool calls into
// maps, which loses the order of nested keys, on which prompt caches depend. The tests compare the two.
//
// Requests go only to the configured address: proxy variables of the environment are ignored and redirects are not
// followed, so that no prompt reaches another host. Invalid UTF-8 in a reply becomes U+FFFD.
package ollama

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"conclave/pkg/model"
	"conclave/pkg/text"
)

// DefaultURL is the default address of an Ollama server.
const DefaultURL = "http://127.0.0.1:11434"

// Config holds the address of the server and the defaults for requests. The zero value is a server on this machine.
type Config struct {
	URL       string // "" = [DefaultURL]
	Window    int    // num_ctx; 0 = 32768. Without num_ctx the server may use 4096 and silently drop the rest
	Predict   int    // num_predict; 0 = 4096. Without num_predict a model can generate without end
	KeepAlive string // how long a model stays loaded: a duration, "-1" = for ever, "" = the server's default
}

// Backend is a client of an Ollama server. It is safe for concurrent use.
type Backend struct {
	cfg       Config
	base      string // scheme, host and path, to which the paths of the API are appended
	url       string // for messages
	transport *http.Transport
}

var (
	_ model.Backend    = (*Backend)(nil)
	_ model.LoadLister = (*Backend)(nil)
)

// New returns a backend without connecting to the server. It rejects a URL that is not http or https, has no host, or
// contains credentials.
func New(cfg Config) (*Backend, error) {
	cfg.URL = cmp.Or(cfg.URL, DefaultURL)
	u, err := url.Parse(cfg.URL)
	switch {
	case err != nil: // the error would quote the URL, and with it a password
		return nil, errors.New("invalid address of the Ollama server; it must look like " + DefaultURL)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil:
		return nil, fmt.Errorf("invalid address %s of the Ollama server; it must look like %s", u.Redacted(),
			DefaultURL)
	}
	cfg.Window = cmp.Or(cfg.Window, 32768)
	cfg.Predict = cmp.Or(cfg.Predict, 4096)
	base := url.URL{Scheme: u.Scheme, Host: u.Host, Path: strings.TrimRight(u.Path, "/")}
	return &Backend{cfg: cfg, base: base.String(), url: u.String(), transport: &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second,
		MaxIdleConnsPerHost: 64,
		IdleConnTimeout:     90 * time.Second,
		DisableCompression:  true,
	}}, nil
}

// URL returns the server's address for messages.
func (b *Backend) URL() string { return b.url }

// Close closes idle connections.
func (b *Backend) Close() { b.transport.CloseIdleConnections() }

// Chat implements [model.Chat]. Requests that the server rejects and replies that break off are classified as sentinel
// errors of package model: see [Backend.serverError] and [Backend.readError].
func (b *Backend) Chat(ctx context.Context, r model.Request) iter.Seq2[model.Chunk, error] {
	return func(yield func(model.Chunk, error) bool) {
		resp, err := b.post(ctx, "/api/chat", r.Model, b.newChatRequest(r))
		if err != nil {
			yield(model.Chunk{}, err)
			return
		}
		defer resp.Body.Close()
		lines := newLineReader(resp.Body)
		for {
			line, err := lines.readLine()
			if err != nil {
				yield(model.Chunk{}, b.readError(ctx, err))
				return
			}
			c, err := b.parseChunk(line, r.Model)
			if err != nil {
				yield(model.Chunk{}, err)
				return
			}
			more := yield(c, nil)
			if c.Done && !lines.ended.ended {
				drainBody(resp.Body)
			}
			if !more || c.Done {
				return
			}
		}
	}
}

// parseChunk decodes a line of a chat reply. A line with an error of the server becomes that error; one that is not a
// JSON object is [model.ErrMalformed]. name is the requested model.
func (b *Backend) parseChunk(line []byte, name string) (model.Chunk, error) {
	c, failed, err := decodeChunk(line)
	switch {
	case err != nil:
		return model.Chunk{}, fmt.Errorf("%w: %s sent a line that is not a chat reply: %q", model.ErrMalformed, b.url,
			text.OneLine(string(line), maxQuotedBytes))
	case failed != "":
		return model.Chunk{}, b.serverError(0, failed, name)
	}
	return c, nil
}

// drainBody reads the end of a reply, so that its connection can be reused. The connection is closed instead when the
// server sends more than 64 KB after the last chunk or does not end the reply within 250 ms.
func drainBody(body io.ReadCloser) {
	late := time.AfterFunc(250*time.Millisecond, func() { _ = body.Close() })
	defer late.Stop()
	_, _ = io.CopyN(io.Discard, body, 64<<10)
}
