// Package meter is a reverse proxy in front of a model server that records every model call: tokens, and the time until
// the first one. It speaks the native protocol of Ollama and the OpenAI one, and changes nothing in either direction.
package meter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Call is one model call. Tokens are as the server counts them, 0 when it does not say or the call was cut off.
type Call struct {
	Path   string
	Model  string
	Began  time.Time
	First  time.Duration // until the first text, thinking or tool call; 0 = none came
	Total  time.Duration
	Prompt int // all tokens of the prompt, those of the server's prompt cache included
	Output int // tokens
	// reading the prompt, as the server measured it: next to nothing for a cached one; 0 = not reported
	PromptTime time.Duration
	Load       time.Duration // loading the model, as the server measured it
	Cut        bool          // ended before the last chunk

	asked    []byte // the body of the request, for a transcript
	answered *strings.Builder
}

// Meter is the proxy. It listens on a free loopback port.
type Meter struct {
	URL string
	// Transcript, set before the first call, gets the body of each request and the text of its response. nil = none.
	Transcript io.Writer

	server *http.Server

	mu    sync.Mutex
	calls []Call
	open  int       // calls that have begun and not ended
	ended time.Time // of the last call
}

// Start starts a proxy for the server at target. The caller must close it.
func Start(target string) (*Meter, error) {
	to, err := url.Parse(target)
	if err != nil || to.Host == "" {
		return nil, fmt.Errorf("the address of the model server %q is not a URL", target)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("starting the proxy: %w", err)
	}
	m := &Meter{URL: "http://" + ln.Addr().String(), ended: time.Now()}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		FlushInterval: -1, // each chunk at once
		Transport:     transport{m},
		ErrorLog:      log.New(io.Discard, "", 0), // a client that cancels is no error
	}
	m.server = &http.Server{Handler: proxy, ReadHeaderTimeout: time.Minute}
	go func() { _ = m.server.Serve(ln) }()
	return m, nil
}

// Close stops the proxy and cuts off open calls.
func (m *Meter) Close() { _ = m.server.Close() }

// Take returns the calls that ended since the last Take, in the order in which they ended. It does not wait for open
// ones.
func (m *Meter) Take() []Call {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := m.calls
	m.calls = nil
	return out
}

// Quiet returns how long no call has been open, since the start when there was none; 0 while one is.
func (m *Meter) Quiet() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open > 0 {
		return 0
	}
	return time.Since(m.ended)
}

// begin and end count an open call.
func (m *Meter) begin() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open++
}

func (m *Meter) end(c *Call) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open--
	m.ended = time.Now()
	m.calls = append(m.calls, *c)
	if m.Transcript != nil && len(c.asked) > 0 {
		fmt.Fprintf(m.Transcript, "%s %s %d ms\n%s\n=> %s\n\n", c.Began.Format(time.TimeOnly), c.Path,
			c.Total.Milliseconds(), c.asked, c.answered.String())
	}
}

// inference are the paths of model calls; all others pass unrecorded.
var inference = map[string]bool{
	"/api/chat": true, "/api/generate": true, "/api/embed": true,
	"/v1/chat/completions": true, "/v1/embeddings": true,
}

// transport records the responses of model calls.
type transport struct{ meter *Meter }

// RoundTrip implements [http.RoundTripper]. A request that was cancelled before its response is a call that was cut
// off.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if !inference[r.URL.Path] {
		return http.DefaultTransport.RoundTrip(r)
	}
	began := time.Now()
	var asked []byte
	if t.meter.Transcript != nil && strings.HasSuffix(r.URL.Path, "/chat") {
		var err error
		if asked, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		r.Body = io.NopCloser(bytes.NewReader(asked))
	}
	t.meter.begin()
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.meter.end(&Call{Path: r.URL.Path, Began: began, Total: time.Since(began), Cut: true})
		return resp, err
	}
	resp.Body = &recorder{ReadCloser: resp.Body, done: t.meter.end, call: Call{
		Path: r.URL.Path, Began: began, asked: asked, answered: &strings.Builder{},
	}}
	return resp, nil
}

// recorder reads the lines of a response body as they pass.
type recorder struct {
	io.ReadCloser
	call Call
	line []byte
	last bool        // the chunk with the counts was seen
	done func(*Call) // nil = recorded
}

// Read implements [io.Reader].
func (r *recorder) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.line = append(r.line, p[:n]...)
	for {
		i := bytes.IndexByte(r.line, '\n')
		if i < 0 {
			break
		}
		r.read(r.line[:i])
		r.line = r.line[i+1:]
	}
	if err == io.EOF {
		r.read(r.line)
		r.line = nil
		r.finish() // before the client sees the end
	}
	return n, err
}

// Close implements [io.Closer].
func (r *recorder) Close() error {
	r.finish()
	return r.ReadCloser.Close()
}

// finish adds the call to the record, once.
func (r *recorder) finish() {
	if r.done != nil {
		r.call.Total, r.call.Cut = time.Since(r.call.Began), !r.last
		r.done(&r.call)
		r.done = nil
	}
}

// chunk has the fields of both protocols.
type chunk struct {
	Model   string `json:"model"`
	Message piece  `json:"message"`
	Choices []struct {
		Delta   piece `json:"delta"`
		Message piece `json:"message"`
	} `json:"choices"`
	Done         bool          `json:"done"`
	Prompt       int           `json:"prompt_eval_count"`
	Output       int           `json:"eval_count"`
	PromptTime   time.Duration `json:"prompt_eval_duration"`
	LoadDuration time.Duration `json:"load_duration"`
	Usage        *struct {
		Prompt int `json:"prompt_tokens"`
		Output int `json:"completion_tokens"`
	} `json:"usage"`
	Embeddings json.RawMessage `json:"embeddings"`
}

type piece struct {
	Content  string            `json:"content"`
	Thinking string            `json:"thinking"`
	Calls    []json.RawMessage `json:"tool_calls"`
}

func (p piece) empty() bool { return p.Content == "" && p.Thinking == "" && len(p.Calls) == 0 }

// read takes the figures from a line. Lines that are no JSON, such as the end of an SSE stream, have none.
func (r *recorder) read(line []byte) {
	text := strings.TrimSpace(strings.TrimPrefix(string(line), "data: "))
	var c chunk
	if json.Unmarshal([]byte(text), &c) != nil {
		return
	}
	r.call.answered.WriteString(c.Message.Content)
	some := !c.Message.empty()
	for _, x := range c.Choices {
		some = some || !x.Delta.empty() || !x.Message.empty()
	}
	if some && r.call.First == 0 {
		r.call.First = time.Since(r.call.Began)
	}
	if c.Model != "" {
		r.call.Model = c.Model
	}
	switch {
	case c.Usage != nil:
		r.call.Prompt, r.call.Output, r.last = c.Usage.Prompt, c.Usage.Output, true
	case c.Done || c.Embeddings != nil:
		r.call.Prompt, r.call.Output, r.call.PromptTime, r.call.Load, r.last = c.Prompt, c.Output, c.PromptTime,
			c.LoadDuration, true
	}
}
