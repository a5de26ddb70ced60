// Package remotetest is the security test suite of the backends that send a key, over real HTTP.
package remotetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"conclave/pkg/model"
)

// Key returns the key for a request.
type Key = func(context.Context) (string, error)

// Profile describes a backend under test.
type Profile struct {
	// New returns a backend for the server at url. limit bounds a response in bytes; 0 = the backend's default.
	New        func(t *testing.T, url string, key Key, limit int64) model.Backend
	Header     string // the header that carries the key
	Prefix     string // before the key in the header
	EmptyEvent string // an event of a stream without content
	HasEmbed   bool
}

const secret = "sk-live-Zk3v9QmT7xW2pL5nR8"

func fixedKey(context.Context) (string, error) { return secret, nil }

// Run runs all tests. It sets environment variables, so the calling test must not be parallel.
func Run(t *testing.T, p Profile) {
	t.Helper()
	t.Run("environment", p.testEnvironment)
	for name, run := range map[string]func(*testing.T){
		"redirect":           p.testRedirect,
		"key rotation":       p.testKeyRotation,
		"key error":          p.testKeyError,
		"invalid key":        p.testInvalidKey,
		"no key":             p.testNoKey,
		"echoed key":         p.testEchoedKey,
		"statuses":           p.testStatuses,
		"oversized response": p.testOversizedResponse,
		"invalid body":       p.testInvalidBody,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t)
		})
	}
}

// listOperations returns all requests that a backend can make, by name.
func (p Profile) listOperations(b model.Backend) map[string]func(context.Context) error {
	chat := func(stream bool) func(context.Context) error {
		return func(ctx context.Context) error {
			_, _, err := model.Collect(b.Chat(ctx, model.Request{
				Model: "some-model", Stream: stream, Messages: []model.Message{{Role: model.User, Content: "hello"}},
			}))
			return err
		}
	}
	all := map[string]func(context.Context) error{
		"chat":   chat(false),
		"stream": chat(true),
		"list":   func(ctx context.Context) error { _, err := b.List(ctx); return err },
		"show":   func(ctx context.Context) error { _, err := b.Show(ctx, "some-model"); return err },
	}
	if p.HasEmbed {
		all["embed"] = func(ctx context.Context) error {
			_, err := b.Embed(ctx, "some-model", []string{"x"})
			return err
		}
	}
	return all
}

// recorder is a server that records the requests it receives.
type recorder struct {
	*httptest.Server
	handler  atomic.Value // http.HandlerFunc
	mu       sync.Mutex
	received []*http.Request
	dumps    []string
}

func startRecorder(t *testing.T, answer http.HandlerFunc) *recorder {
	t.Helper()
	r := &recorder{}
	r.handler.Store(answer)
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		r.mu.Lock()
		r.received = append(r.received, q)
		r.dumps = append(r.dumps, fmt.Sprint(q.Method, q.URL, q.Header, string(body)))
		r.mu.Unlock()
		r.handler.Load().(http.HandlerFunc)(w, q)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *recorder) requests() ([]*http.Request, []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.received, r.dumps
}

func replyError(status int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, `{"type":"error","error":{"message":%q,"type":"some_error"}}`, text)
	}
}

// testEnvironment checks that keys in the environment are not sent and that addresses and proxies there are not used.
func (p Profile) testEnvironment(t *testing.T) {
	decoy := startRecorder(t, replyError(500, "decoy"))
	const planted = "planted-in-the-environment"
	for _, name := range []string{
		"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "GOOGLE_API_KEY", "GEMINI_API_KEY", "OPENAI_API_KEY",
		"GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION", "ANTHROPIC_PROFILE",
	} {
		t.Setenv(name, planted)
	}
	t.Setenv("ANTHROPIC_CUSTOM_HEADERS", "X-Planted: "+planted)
	t.Setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")
	for _, name := range []string{
		"ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL", "GOOGLE_VERTEX_BASE_URL", "OPENAI_BASE_URL",
		"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY",
	} {
		t.Setenv(name, decoy.URL)
	}
	for name, key := range map[string]Key{"with a key": fixedKey, "without": nil} {
		server := startRecorder(t, replyError(500, "no"))
		b := p.New(t, server.URL, key, 0)
		operations := p.listOperations(b)
		for _, request := range operations {
			if request(t.Context()) == nil {
				t.Error("no error")
			}
		}
		seen, raw := server.requests()
		if len(seen) != len(operations) {
			t.Errorf("%s: %d requests arrived for %d", name, len(seen), len(operations))
		}
		for i, q := range seen {
			if strings.Contains(raw[i], planted) {
				t.Errorf("%s: sent a value of the environment: %s", name, raw[i])
			}
			if got, want := q.Header.Get(p.Header), p.Prefix+secret; key != nil && got != want || key == nil &&
				got != "" {
				t.Errorf("%s: the key sent is %q", name, got)
			}
		}
	}
	if seen, _ := decoy.requests(); len(seen) > 0 {
		t.Errorf("%d requests went to the address in the environment", len(seen))
	}
}

// testRedirect checks that no redirect is followed.
func (p Profile) testRedirect(t *testing.T) {
	away := startRecorder(t, replyError(500, "away"))
	for _, status := range []int{301, 302, 303, 307, 308} {
		server := startRecorder(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, away.URL+r.URL.Path, status)
		})
		for name, request := range p.listOperations(p.New(t, server.URL, fixedKey, 0)) {
			err := request(t.Context())
			if !errors.Is(err, model.ErrUnreachable) || !strings.Contains(err.Error(), "redirect") {
				t.Errorf("%s, %d: error %v", name, status, err)
			}
			checkNoKey(t, err)
		}
	}
	if seen, _ := away.requests(); len(seen) > 0 {
		t.Errorf("%d requests followed", len(seen))
	}
}

// testKeyRotation checks that each request obtains the key anew.
func (p Profile) testKeyRotation(t *testing.T) {
	server := startRecorder(t, replyError(500, "no"))
	var n atomic.Int64
	key := func(context.Context) (string, error) { return fmt.Sprintf("key-number-%d", n.Add(1)), nil }
	b := p.New(t, server.URL, key, 0)
	for range 3 {
		_ = p.listOperations(b)["chat"](t.Context())
	}
	seen, _ := server.requests()
	if len(seen) != 3 {
		t.Fatalf("%d requests", len(seen))
	}
	for i, q := range seen {
		if want := fmt.Sprintf("%skey-number-%d", p.Prefix, i+1); q.Header.Get(p.Header) != want {
			t.Errorf("request %d has the key %q", i, q.Header.Get(p.Header))
		}
	}
}

func (p Profile) testKeyError(t *testing.T) {
	server := startRecorder(t, replyError(500, "no"))
	locked := errors.New("the keyring is locked")
	b := p.New(t, server.URL, func(context.Context) (string, error) { return "", locked }, 0)
	for name, request := range p.listOperations(b) {
		if err := request(t.Context()); !errors.Is(err, locked) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if seen, _ := server.requests(); len(seen) > 0 {
		t.Errorf("%d requests without the key", len(seen))
	}
}

// testInvalidKey checks that a key with a line break is neither sent nor part of an error.
func (p Profile) testInvalidKey(t *testing.T) {
	server := startRecorder(t, replyError(500, "no"))
	b := p.New(t, server.URL, func(context.Context) (string, error) { return secret + "\r\nX-More: 1", nil }, 0)
	for name, request := range p.listOperations(b) {
		err := request(t.Context())
		if err == nil {
			t.Errorf("%s: no error", name)
		}
		checkNoKey(t, err)
	}
	if seen, _ := server.requests(); len(seen) > 0 {
		t.Errorf("%d requests", len(seen))
	}
}

func (p Profile) testNoKey(t *testing.T) {
	server := startRecorder(t, replyError(500, "no"))
	for _, request := range p.listOperations(p.New(t, server.URL, nil, 0)) {
		_ = request(t.Context())
	}
	seen, _ := server.requests()
	for _, q := range seen {
		for _, h := range []string{"Authorization", "X-Api-Key", "X-Goog-Api-Key", "Cookie"} {
			if v := q.Header.Get(h); v != "" {
				t.Errorf("%s is %q", h, v)
			}
		}
	}
}

// testEchoedKey checks that errors do not contain a key that the server quotes, whole or in part.
func (p Profile) testEchoedKey(t *testing.T) {
	server := startRecorder(t, replyError(500, "no"))
	operations := p.listOperations(p.New(t, server.URL, fixedKey, 0))
	for _, text := range []string{
		"Incorrect API key provided: " + secret,
		"header was '" + p.Prefix + secret + "'",
		"key " + secret[:12] + "... is disabled",
		"key ending in " + secret[len(secret)-10:],
		strings.Repeat("x", 490) + secret, // at the truncation limit
	} {
		for _, status := range []int{400, 401, 404, 429, 500, 503} {
			server.handler.Store(replyError(status, text))
			for name, request := range operations {
				err := request(t.Context())
				if err == nil {
					t.Errorf("%s, %d: no error", name, status)
				}
				checkNoKey(t, err)
			}
		}
	}
	for name, body := range map[string]string{
		"as text": "key " + secret, "as JSON": `{"detail":"key ` + secret + `"}`,
		"as half JSON": `{"error":{"message":"` + secret,
	} {
		server.handler.Store(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, body)
		}))
		for _, request := range operations {
			err := request(t.Context())
			if !errors.Is(err, model.ErrUnauthorized) {
				t.Errorf("%s: error %v", name, err)
			}
			checkNoKey(t, err)
		}
	}
}

// checkNoKey fails the test if err or an error that it wraps contains eight consecutive bytes of the key.
func checkNoKey(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	for _, form := range []string{err.Error(), fmt.Sprintf("%+v", err), fmt.Sprintf("%#v", err)} {
		for i := 0; i+8 <= len(secret); i++ {
			if strings.Contains(form, secret[i:i+8]) {
				t.Fatalf("the error contains %q of the key: %s", secret[i:i+8], form)
			}
		}
	}
	switch w := err.(type) {
	case interface{ Unwrap() error }:
		checkNoKey(t, w.Unwrap())
	case interface{ Unwrap() []error }:
		for _, e := range w.Unwrap() {
			checkNoKey(t, e)
		}
	}
}

// testStatuses checks the sentinel error of each HTTP status, and that backends do not retry: the model queue does.
func (p Profile) testStatuses(t *testing.T) {
	server := startRecorder(t, replyError(500, "no"))
	operations := p.listOperations(p.New(t, server.URL, fixedKey, 0))
	for status, want := range map[int]error{
		401: model.ErrUnauthorized, 403: model.ErrUnauthorized, 404: model.ErrMissing, 413: model.ErrTooLong,
		429: model.ErrBusy, 503: model.ErrBusy, 529: model.ErrBusy, 502: model.ErrUnreachable,
		504: model.ErrUnreachable,
		408: nil, 409: nil, 500: nil, 418: nil,
	} {
		for kind, answer := range map[string]http.HandlerFunc{
			"protocol": replyError(status, "for some reason"),
			"page": func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/html")
				w.WriteHeader(status)
				_, _ = io.WriteString(w, "<html>for some reason</html>")
			},
			"nothing": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) },
		} {
			server.handler.Store(answer)
			before, _ := server.requests()
			for name, request := range operations {
				err := request(t.Context())
				if err == nil || want != nil && !errors.Is(err, want) {
					t.Errorf("%s, %d, %s: error %v, want %v", name, status, kind, err, want)
				}
				if err != nil && kind != "nothing" && !strings.Contains(err.Error(), "for some reason") {
					t.Errorf("%s, %d, %s: error %v does not quote the reason", name, status, kind, err)
				}
			}
			if seen, _ := server.requests(); len(seen)-len(before) != len(operations) {
				t.Errorf("%d, %s: %d requests for %d", status, kind, len(seen)-len(before), len(operations))
			}
		}
	}
}

// testOversizedResponse checks that an endless response fails at the limit and that the connection is closed.
func (p Profile) testOversizedResponse(t *testing.T) {
	for _, kind := range []string{"text/event-stream", "application/json"} {
		const limit = 256 << 10
		gone := make(chan struct{}, 1)
		server := startRecorder(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", kind)
			line := []byte(p.EmptyEvent)
			if kind == "application/json" {
				line = []byte(strings.Repeat(" ", 1000))
			}
			for r.Context().Err() == nil {
				if _, err := w.Write(line); err != nil {
					break
				}
			}
			gone <- struct{}{}
		})
		for name, request := range p.listOperations(p.New(t, server.URL, fixedKey, limit)) {
			if kind == "text/event-stream" && name != "stream" {
				continue
			}
			if err := request(t.Context()); !errors.Is(err, model.ErrMalformed) {
				t.Errorf("%s, %s: error %v", name, kind, err)
			}
			<-gone
		}
	}
}

// testInvalidBody checks that a body that violates the protocol is an error and does not panic.
func (p Profile) testInvalidBody(t *testing.T) {
	bodies := []string{
		"", "null", "[]", `"x"`, "1", "{}", "<html>", `{"data":1}`, "\xff\xfe",
		strings.Repeat("[", 10000),
	}
	server := startRecorder(t, replyError(500, "no"))
	operations := p.listOperations(p.New(t, server.URL, fixedKey, 0))
	for _, body := range bodies {
		for _, kind := range []string{"text/event-stream", "application/json", "text/html"} {
			for _, frame := range []string{"%s", "data: %s\n\n", "event: message_start\ndata: %s\n\n"} {
				server.handler.Store(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", kind)
					_, _ = fmt.Fprintf(w, frame, body)
				}))
				for name, request := range operations {
					// An empty list is valid.
					if err := request(t.Context()); err == nil && name != "list" {
						t.Errorf("%s: no error over %q as %s", name, fmt.Sprintf(frame, body), kind)
					}
				}
			}
		}
	}
}
