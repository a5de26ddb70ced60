package ollama_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ollama/ollama/api"

	"conclave/pkg/model"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/modeltest/conformance"
	"conclave/pkg/model/ollama"
	"conclave/pkg/model/scriptserver"
)

func newBackend(t testing.TB, url string) *ollama.Backend {
	t.Helper()
	b, err := ollama.New(ollama.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, conformance.Profile{New: func(t *testing.T, url string) model.Backend {
		return newBackend(t, url)
	}})
}

func newScript(r scriptserver.Reply) scriptserver.Script {
	return scriptserver.Script{"*": {{Always: true, Reply: r}}}
}

func collectReply(t *testing.T, b model.Chat, r model.Request) (model.Message, model.Final, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return model.Collect(b.Chat(ctx, r))
}

func TestChatBodyIsDecodedByOllama(t *testing.T) {
	t.Parallel()
	yes, warm, seed := true, 0.7, 3
	r := model.Request{
		Model: "m:1b", Think: &yes, Stream: true, Format: json.RawMessage(`{"type":"object"}`),
		Options: model.Options{Temperature: &warm, Seed: &seed, Stop: []string{"a\"b"}, KeepAlive: "10m"},
		Messages: []model.Message{
			{Role: model.System, Content: "s"},
			{Role: model.Assistant, Thinking: "hm", Calls: []model.Call{
				{ID: "1", Name: "look", Arguments: json.RawMessage(`{"z":1,"a":{"y":2,"b":3}}`)},
				{Name: "none"},
				{Name: "broken", Arguments: json.RawMessage(`{"half":`)},
				{Name: "text", Arguments: json.RawMessage(`"not an object"`)},
			}},
			{Role: model.ToolRole, Content: "r", ToolName: "look", CallID: "1"},
		},
		Tools: []model.Tool{{Name: "look", Description: "d"}},
	}
	want := `{"model":"m:1b","messages":[{"role":"system","content":"s"},` +
		`{"role":"assistant","content":"","thinking":"hm","tool_calls":[` +
		`{"id":"1","function":{"index":0,"name":"look","arguments":{"z":1,"a":{"y":2,"b":3}}}},` +
		`{"function":{"index":1,"name":"none","arguments":{}}},` +
		`{"function":{"index":2,"name":"broken","arguments":{}}},` +
		`{"function":{"index":3,"name":"text","arguments":{}}}]},` +
		`{"role":"tool","content":"r","tool_name":"look","tool_call_id":"1"}],"stream":true,` +
		`"tools":[{"type":"function","function":{"name":"look","description":"d","parameters":{"type":"object",` +
		`"properties":{}}}}],` +
		`"format":{"type":"object"},"think":true,"keep_alive":"10m","truncate":false,"shift":false,` +
		`"options":{"num_ctx":32768,"num_predict":4096,"temperature":0.7,"seed":3,"stop":["a\"b"]}}`
	got := encodeBody(t, r)
	if string(got) != want {
		t.Errorf("sent\n%s\nwant\n%s", got, want)
	}
	var read api.ChatRequest
	if err := json.Unmarshal(got, &read); err != nil {
		t.Errorf("Ollama would not read it: %v", err)
	}
}

func TestConfigDefaultsAreSent(t *testing.T) {
	t.Parallel()
	server := modeltest.New(t, newScript(scriptserver.Reply{Content: "x"}))
	b, err := ollama.New(ollama.Config{URL: server.URL + "/", Window: 40000, Predict: 9, KeepAlive: "-1"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, _, err := collectReply(t, b, model.Request{Model: "m"}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Embed(t.Context(), "nomic-embed-text", []string{"x"}); err != nil {
		t.Fatal(err)
	}
	all := server.Requests()
	if o := all[0].Options; o.Window != 40000 || o.Predict != 9 || o.KeepAlive != "-1" {
		t.Errorf("options %+v", o)
	}
	if want := `{"model":"nomic-embed-text","input":["x"],"keep_alive":-1,"truncate":false}`; string(
		all[1].Raw) != want {
		t.Errorf("embed sent %s", all[1].Raw)
	}
}

func TestInvalidAddressIsRejectedWithoutPassword(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"": ollama.DefaultURL, "http://gpu-box:11434": "http://gpu-box:11434",
		"https://gpu-box/ollama": "https://gpu-box/ollama",
	} {
		b, err := ollama.New(ollama.Config{URL: in})
		if err != nil || b.URL() != want {
			t.Errorf("%q: %v, %v", in, b, err)
		}
	}
	for _, in := range []string{
		"ftp://x", "http://", "gpu-box:11434", "https://user:secret@gpu-box",
		"http://user:secret@\x7f", "http://a b",
	} {
		if b, err := ollama.New(ollama.Config{URL: in}); err == nil {
			t.Errorf("%q is accepted as %s", in, b.URL())
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("error %q contains the password", err)
		}
	}
}

// TestServerErrorsAreClassified uses messages from the server's sources and checks the sentinel error and the advice.
func TestServerErrorsAreClassified(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status int
		text   string
		want   error // nil = no sentinel error
		says   string
	}{
		{404, "model 'm:1b' not found", model.ErrMissing, "conclave model pull m:1b"},
		{404, `model "m:1b" not found, try pulling it first`, model.ErrMissing, "conclave model pull m:1b"},
		{400, "registry.ollama.ai/library/m:1b does not support tools", model.ErrNoTools, "m:1b"},
		{400, `"m:1b" does not support thinking`, model.ErrNoThinking, "m:1b"},
		{400, `"m:1b" does not support chat`, model.ErrUnsupported, "chat"},
		{400, "the input length exceeds the context length", model.ErrTooLong, "m:1b"},
		{503, "server busy, please try again.  maximum pending requests exceeded", model.ErrBusy, "try again"},
		{503, "", model.ErrBusy, "try again"},
		{429, "too many", model.ErrBusy, "try again"},
		{401, "unauthorized", model.ErrUnauthorized, "ollama signin"},
		{403, "ollama cloud is disabled: remote model is unavailable", model.ErrRemote, "cloud"},
		{500, "error parsing tool call: raw='{', err=unexpected end of JSON input", model.ErrMalformed, "raw"},
		{500, "failed to parse JSON: invalid character 'x'", model.ErrMalformed, "parse"},
		{500, "XML syntax error on line 3: unexpected EOF", model.ErrMalformed, "XML"},
		{500, "model requires more system memory (9.2 GiB) than is available (3.1 GiB)", nil, "memory"},
		{500, "llama runner process has terminated: exit status 2", nil, "terminated"},
		{400, "json: cannot unmarshal string into Go struct field", nil, "unmarshal"},
		{500, "bell \x07 and \x1b[31mred\nlines", nil, "bell and [31mred lines"},
		{500, strings.Repeat("long ", 1000), nil, "..."},
	} {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d %.30q stream=%t", c.status, c.text, stream), func(t *testing.T) {
				t.Parallel()
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					w.WriteHeader(c.status)
					_ = json.NewEncoder(w).Encode(map[string]string{"error": c.text})
				}))
				defer server.Close()
				_, _, err := collectReply(t, newBackend(t, server.URL), model.Request{Model: "m:1b", Stream: stream})
				if err == nil || c.want != nil && !errors.Is(err, c.want) {
					t.Fatalf("error %v, want %v", err, c.want)
				}
				if c.want == nil && classify(err) != nil {
					t.Fatalf("error %v is %v", err, classify(err))
				}
				if !strings.Contains(err.Error(), c.says) || len(err.Error()) > 600 {
					t.Errorf("error %q does not say %q", err, c.says)
				}
			})
		}
	}
}

func classify(err error) error {
	for _, k := range []error{
		model.ErrUnreachable, model.ErrMissing, model.ErrNoTools, model.ErrNoThinking, model.ErrTooLong, model.ErrBusy,
		model.ErrMalformed, model.ErrCut, model.ErrRemote, model.ErrUnsupported, model.ErrUnauthorized,
	} {
		if errors.Is(err, k) {
			return k
		}
	}
	return nil
}

func TestOtherServerIsUnreachable(t *testing.T) {
	t.Parallel()
	var elsewhere atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	for name, answer := range map[string]http.HandlerFunc{
		"HTML page": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "<html>nginx</html>", http.StatusNotFound)
		},
		"gateway": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		},
		"other JSON": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusTeapot)
			_, _ = w.Write([]byte(`[]`))
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(answer)
			defer server.Close()
			b := newBackend(t, server.URL)
			_, _, err := collectReply(t, b, model.Request{Model: "m"})
			if !errors.Is(err, model.ErrUnreachable) || !strings.Contains(err.Error(), server.URL) {
				t.Errorf("chat: %v", err)
			}
			if _, err := b.List(t.Context()); !errors.Is(err, model.ErrUnreachable) {
				t.Errorf("list: %v", err)
			}
		})
	}
	if elsewhere.Load() != 0 {
		t.Error("a redirect was followed")
	}
}

func TestRefusedConnectionAdvisesToStartOllama(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(nil)
	server.Close()
	_, _, err := collectReply(t, newBackend(t, server.URL), model.Request{Model: "m"})
	if !errors.Is(err, model.ErrUnreachable) || !strings.Contains(err.Error(), "ollama serve") {
		t.Errorf("error %v", err)
	}
}

func TestConnectionsAreReused(t *testing.T) {
	t.Parallel()
	var conns atomic.Int32
	inner := modeltest.New(t,
		newScript(scriptserver.Reply{Content: "one two three", Calls: []scriptserver.Call{{Name: "x"}}}))
	target, err := url.Parse(inner.URL)
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewUnstartedServer(httputil.NewSingleHostReverseProxy(target))
	front.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	front.Start()
	defer front.Close()
	b := newBackend(t, front.URL)
	for i := range 20 {
		if _, _, err := collectReply(t, b, model.Request{Model: "m", Stream: i%2 == 0}); err != nil {
			t.Fatal(err)
		}
	}
	if n := conns.Load(); n != 1 {
		t.Errorf("20 requests took %d connections", n)
	}
}

// A request after a restart of the server must not fail because of a stale idle connection.
func TestRequestOnClosedIdleConnectionIsRetried(t *testing.T) {
	t.Parallel()
	var served atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Error(err)
		}
		if served.Add(1) == 2 {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				conn.Close() // like a server that was just killed
			}
			return
		}
		_, _ = w.Write([]byte(`{"message":{"content":"hi"},"done":true}`))
	}))
	defer server.Close()
	b := newBackend(t, server.URL)
	for range 2 {
		if m, _, err := collectReply(t, b, model.Request{Model: "m"}); err != nil || m.Content != "hi" {
			t.Fatalf("got %+v, %v", m, err)
		}
	}
	if served.Load() != 3 {
		t.Errorf("%d requests", served.Load())
	}
}

func serveLines(t *testing.T, body string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestReplyLines(t *testing.T) {
	t.Parallel()
	const done = `{"message":{"content":""},"done":true,"done_reason":"stop"}`
	for _, c := range []struct {
		name, body string
		want       string
		fails      error
	}{
		{"no terminator at the end", `{"message":{"content":"a"}}` + "\n" + done, "a", nil},
		{"blank lines and spaces", "\r\n  " + `{"message":{"content":"a"}}` + "\r\n\n\n\t" + done + "\r\n", "a", nil},
		{
			"longer than the buffer", `{"message":{"content":"` + strings.Repeat("x", 1<<20) + `"}}` + "\n" + done,
			strings.Repeat("x", 1<<20), nil,
		},
		{
			"longer than the limit", `{"message":{"content":"` + strings.Repeat("x", 17<<20) + `"}}` + "\n" + done, "",
			model.ErrMalformed,
		},
		{"line after done", done + "\n" + `{"message":{"content":"late"}}` + "\n", "", nil},
		{"truncated line", `{"message":{"content":"a"}}` + "\n" + `{"message":{"con`, "a", model.ErrMalformed},
		{"empty body", "", "", model.ErrCut},
		{"an array", "[]\n", "", model.ErrMalformed},
		{"null message and calls", `{"message":null}` + "\n" +
			`{"message":{"tool_calls":null,"content":"b"},"done":true}`, "b", nil},
		{"wrong types", `{"message":{"content":7},"done":true}`, "", model.ErrMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m, _, err := collectReply(t, newBackend(t, serveLines(t, c.body)), model.Request{Model: "m", Stream: true})
			if !errors.Is(err, c.fails) || c.fails == nil && err != nil {
				t.Errorf("error %v, want %v", err, c.fails)
			}
			if m.Content != c.want {
				t.Errorf("content of %d bytes, want %d", len(m.Content), len(c.want))
			}
		})
	}
}

func TestOpenConnectionDoesNotDelayReply(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, `{"message":{"content":"hi"},"done":true}`+"\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer server.Close()
	m, _, err := collectReply(t, newBackend(t, server.URL), model.Request{Model: "m", Stream: true})
	if err != nil || m.Content != "hi" {
		t.Errorf("got %+v, %v", m, err)
	}
}

func TestLongTextIsNotTruncatedForEmbedding(t *testing.T) {
	t.Parallel()
	server := modeltest.New(t, nil)
	_, err := newBackend(t, server.URL).Embed(t.Context(), "nomic-embed-text", []string{strings.Repeat("word ", 20000)})
	if !errors.Is(err, model.ErrTooLong) {
		t.Errorf("error %v", err)
	}
}

// Requests of all sizes, some of them cancelled, must not mix up their bodies.
func TestConcurrentRequestsKeepTheirBodies(t *testing.T) {
	t.Parallel()
	server := modeltest.New(t, newScript(scriptserver.Reply{Content: "{{last_user}}"}))
	b := newBackend(t, server.URL)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 10 {
				text := strings.Repeat(fmt.Sprintf("<%d-%d>", i, j), 1+i*j*50)
				ctx, cancel := context.WithCancel(t.Context())
				if j%3 == 0 {
					cancel()
				}
				m, _, err := model.Collect(b.Chat(ctx, model.Request{
					Model: "m", Stream: j%2 == 0, Messages: []model.Message{{Role: model.User, Content: text}},
				}))
				cancel()
				if j%3 != 0 && (err != nil || m.Content != text) {
					t.Errorf("sent %d bytes, got %d other ones, %v", len(text), len(m.Content), err)
				}
			}
		})
	}
	all.Wait()
}
