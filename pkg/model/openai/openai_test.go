package openai_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"conclave/pkg/model"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/openai"
	"conclave/pkg/model/scriptserver"
)

// serve answers every request with handler and returns a backend on it.
func serve(t *testing.T, handler http.HandlerFunc) *openai.Backend {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	b, err := openai.New(openai.Config{URL: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// sse answers with a stream.
func sse(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprint(w, body)
	}
}

func question() model.Request {
	return model.Request{
		Model: "m", Stream: true, Messages: []model.Message{{Role: model.User, Content: "hello"}},
		Tools: []model.Tool{{Name: "look", Parameters: json.RawMessage(`{"type":"object"}`)}},
	}
}

func eventReader(data ...string) string {
	var b strings.Builder
	for _, d := range data {
		b.WriteString("data: " + d + "\n\n")
	}
	return b.String()
}

func delta(d string) string { return `{"choices":[{"index":0,"delta":` + d + `}]}` }

const finish = `{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}`

func show(calls []model.Call) string {
	var out []string
	for _, c := range calls {
		out = append(out, c.ID+" "+c.Name+string(c.Arguments))
	}
	return strings.Join(out, "; ")
}

// TestCallsInFragments cuts the arguments of two calls at every place.
func TestCallsInFragments(t *testing.T) {
	t.Parallel()
	args := `{"z":"é \"quoted\" 日本","a":[1,{"b":null}]}`
	quote := func(s string) string { b, _ := json.Marshal(s); return string(b) }
	runes := []rune(args)
	b := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var req struct {
			Model string `json:"model"`
		}
		_ = json.NewDecoder(r.Body).Decode(&req)
		cut, _ := strconv.Atoi(req.Model)
		one, two := quote(string(runes[:cut])), quote(string(runes[cut:]))
		sse(eventReader(
			delta(`{"tool_calls":[{"index":0,"id":"c0","type":"function","function":{"name":"look","arguments":""}}]}`),
			delta(`{"tool_calls":[{"index":1,"id":"c1","type":"function","function":{"name":"weigh","arguments":`+one+
				`}}]}`),
			delta(`{"tool_calls":[{"index":0,"function":{"arguments":`+one+`}},{"index":1,"function":{"arguments":`+two+
				`}}]}`),
			delta(`{"tool_calls":[{"index":0,"function":{"arguments":`+two+`}}]}`),
			finish, "[DONE]",
		))(w, r)
	})
	for cut := range len(runes) + 1 {
		r := question()
		r.Model = strconv.Itoa(cut)
		m, _, err := model.Collect(b.Chat(t.Context(), r))
		if want := "c0 look" + args + "; c1 weigh" + args; err != nil || show(m.Calls) != want {
			t.Fatalf("cut at %d: %s, %v", cut, show(m.Calls), err)
		}
	}
}

// TestStreamInFragments cuts a whole stream at every byte.
func TestStreamInFragments(t *testing.T) {
	t.Parallel()
	body := ": hello\r\n\r\n" + eventReader(
		delta(`{"role":"assistant","content":null}`),
		delta(`{"reasoning_content":"hm 日"}`),
		delta(`{"content":"fish é"}`),
		delta(`{"tool_calls":[{"index":0,"id":"c0","function":{"name":"look","arguments":"{\"a\":"}}]}`),
		delta(`{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}`),
	) + "data:" + finish + "\r\n\r\n" + eventReader(`{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}`,
		"[DONE]")
	b := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var req struct {
			Model string `json:"model"`
		}
		_ = json.NewDecoder(r.Body).Decode(&req)
		cut, _ := strconv.Atoi(req.Model)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write([]byte(body[:cut]))
		w.(http.Flusher).Flush()
		_, _ = w.Write([]byte(body[cut:]))
	})
	for cut := range len(body) + 1 {
		r := question()
		r.Model = strconv.Itoa(cut)
		m, f, err := model.Collect(b.Chat(t.Context(), r))
		if err != nil || m.Content != "fish é" || m.Thinking != "hm 日" || show(m.Calls) != `c0 look{"a":1}` ||
			f.PromptTokens != 3 || f.OutputTokens != 4 || f.Reason != "tool_calls" {
			t.Fatalf("cut at %d: %+v, %+v, %v", cut, m, f, err)
		}
	}
}

// TestServers is what servers are known to send.
func TestServers(t *testing.T) {
	t.Parallel()
	call := func(s string) string { return delta(`{"tool_calls":[` + s + `]}`) }
	for _, c := range []struct {
		name, body      string
		text, calls, in string // content, calls, thinking
	}{
		{name: "no index", body: eventReader(
			call(`{"id":"a","function":{"name":"look","arguments":"{\"x\""}}`),
			call(`{"function":{"arguments":":1}"}}`),
			call(`{"id":"b","function":{"name":"look","arguments":"{}"}}`), finish, "[DONE]",
		), calls: `a look{"x":1}; b look{}`},
		{name: "neither index nor id", body: eventReader(
			call(`{"function":{"name":"look","arguments":"{}"}}`),
			call(`{"function":{"name":"look","arguments":"{}"}}`), finish, "[DONE]",
		), calls: ` look{};  look{}`},
		{name: "index 0 for every call", body: eventReader(
			call(`{"index":0,"id":"a","function":{"name":"look","arguments":"{}"}}`),
			call(`{"index":0,"id":"b","function":{"name":"weigh","arguments":"{}"}}`), finish, "[DONE]",
		), calls: `a look{}; b weigh{}`},
		{name: "indexes from seven on", body: eventReader(
			call(
				`{"index":7,"id":"a","function":{"name":"look","arguments":"{}"}},{"index":9,"id":"b",`+
					`"function":{"name":"look"}}`), finish, "[DONE]",
		), calls: `a look{}; b look{}`},
		{name: "the name with each fragment", body: eventReader(
			call(`{"index":0,"id":"a","function":{"name":"look","arguments":"{\"x\":"}}`),
			call(`{"index":0,"id":"a","function":{"name":"look","arguments":"2}"}}`), finish, "[DONE]",
		), calls: `a look{"x":2}`},
		{name: "the name in pieces", body: eventReader(
			call(`{"index":0,"id":"a","function":{"name":"lo"}}`),
			call(`{"index":0,"function":{"name":"ok","arguments":"{}"}}`), finish, "[DONE]",
		), calls: `a look{}`},
		{name: "arguments as an object", body: eventReader(
			call(`{"index":0,"id":"a","function":{"name":"look","arguments":{"b":1,"a":2}}}`), finish, "[DONE]",
		), calls: `a look{"b":1,"a":2}`},
		{
			name:  "arguments null",
			body:  eventReader(call(`{"index":0,"id":"a","function":{"name":"look","arguments":null}}`), finish),
			calls: `a look{}`,
		},
		{name: "no end mark", body: eventReader(delta(`{"content":"fish"}`),
			`{"choices":[{"delta":{},"finish_reason":"stop"}],"usage":null}`), text: "fish"},
		{name: "last event not closed", body: eventReader(delta(`{"content":"fish"}`)) + "data: [DONE]", text: "fish"},
		{name: "data over two lines", body: "data: {\"choices\":[\ndata: {\"delta\":{\"content\":\"fish\"}}]}\n\n" +
			eventReader("[DONE]"), text: "fish"},
		{name: "other fields", body: "id: 1\nretry: 5\nevent: message\n" + eventReader(delta(`{"content":"fish"}`),
			"[DONE]"), text: "fish"},
		{
			name: "reasoning", body: eventReader(delta(`{"reasoning":"hm"}`), delta(`{"content":"fish"}`), "[DONE]"),
			text: "fish", in: "hm",
		},
		{name: "both kinds of reasoning", body: eventReader(delta(`{"reasoning":"hm","reasoning_content":"hm"}`),
			"[DONE]"), in: "hm"},
		{
			name: "reasoning as an object", body: eventReader(delta(`{"reasoning":{"x":1},"content":"fish"}`),
				"[DONE]"),
			text: "fish",
		},
		{name: "a refusal", body: eventReader(delta(`{"refusal":"I will not."}`), "[DONE]"), text: "I will not."},
		{name: "a second choice", body: eventReader(
			`{"choices":[{"index":1,"delta":{"content":"no"}},{"index":0,"delta":{"content":"yes"}}]}`, "[DONE]",
		), text: "yes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m, _, err := model.Collect(serve(t, sse(c.body)).Chat(t.Context(), question()))
			if err != nil {
				t.Fatal(err)
			}
			if m.Content != c.text || m.Thinking != c.in || show(m.Calls) != c.calls {
				t.Errorf("got %+v", m)
			}
		})
	}
	t.Run("no stream although asked", func(t *testing.T) {
		t.Parallel()
		b := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprint(w, `{"model":"x","choices":[{"message":{"content":"fish"},"finish_reason":"stop"}]}`)
		})
		m, f, err := model.Collect(b.Chat(t.Context(), question()))
		if err != nil || m.Content != "fish" || f.Model != "x" {
			t.Errorf("got %+v, %+v, %v", m, f, err)
		}
	})
}

// TestBroken is what must end in an error, and in which.
func TestBroken(t *testing.T) {
	t.Parallel()
	call := func(s string) string { return delta(`{"tool_calls":[` + s + `]}`) }
	many := make([]string, 0, 131)
	for i := range 130 {
		many = append(many, call(fmt.Sprintf(`{"index":%d,"id":"c%d","function":{"name":"look","arguments":"{}"}}`, i,
			i)))
	}
	for _, c := range []struct {
		name, body string
		want       error
	}{
		{"arguments cut", eventReader(call(`{"index":0,"id":"a","function":{"name":"look","arguments":"{\"x\""}}`),
			finish, "[DONE]"), model.ErrMalformed},
		{"arguments no object", eventReader(call(`{"index":0,"id":"a","function":{"name":"look","arguments":"[1]"}}`),
			finish, "[DONE]"), model.ErrMalformed},
		{
			"no name", eventReader(call(`{"index":0,"id":"a","function":{"arguments":"{}"}}`), finish, "[DONE]"),
			model.ErrMalformed,
		},
		{"too many calls", eventReader(append(many, finish, "[DONE]")...), model.ErrMalformed},
		{"a line without end", "data: " + strings.Repeat("x", 5<<20), model.ErrMalformed},
		{"an event without end", strings.Repeat("data: "+strings.Repeat("x", 1<<20)+"\n", 5), model.ErrMalformed},
		{"not JSON", eventReader("fish", "[DONE]"), model.ErrMalformed},
		{"the end before the reason", eventReader(delta(`{"content":"fish"}`)), model.ErrCut},
		{"nothing", "", model.ErrCut},
		{"only comments", ": still here\n\n: still here\n\n", model.ErrCut},
		{
			"error: overloaded",
			eventReader(delta(`{"content":"f"}`), `{"error":{"message":"too many","type":"overloaded_error"}}`),
			model.ErrBusy,
		},
		{"error: code", eventReader(`{"error":{"message":"slow down","code":429}}`), model.ErrBusy},
		{"error: code as text", eventReader(`{"error":{"message":"who are you","code":"401"}}`), model.ErrUnauthorized},
		{
			"error: length", eventReader(`{"error":{"message":"too long","code":"context_length_exceeded"}}`),
			model.ErrTooLong,
		},
		{"error: plain text", eventReader(`{"error":"failed to parse tool call"}`), model.ErrMalformed},
		{"error: a line", "error: {\"code\":503,\"message\":\"Loading model\"}\n\n", model.ErrBusy},
		{"error: a line of text", "error: failed to parse it\n\n", model.ErrMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, _, err := model.Collect(serve(t, sse(c.body)).Chat(t.Context(), question()))
			if !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
		})
	}
}

// TestRefusedInWords: servers that say what is wrong in the text only.
func TestRefusedInWords(t *testing.T) {
	t.Parallel()
	think := true
	for text, want := range map[string]error{
		"This model's maximum context length is 4096 tokens. However, you requested 5000 tokens": model.ErrTooLong,
		"the request exceeds the available context size. try increasing the context size":        model.ErrTooLong,
		`"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set`: model.ErrNoTools,
		"tools param requires --jinja flag":                                                      model.ErrNoTools,
		"this model does not support thinking":                                                   model.ErrNoThinking,
		"could not find model":                                                                   model.ErrMissing,
	} {
		for _, status := range []int{400, 500} {
			b := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(status)
				_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": text}})
			})
			r := question()
			r.Think = &think
			if _, _, err := model.Collect(b.Chat(t.Context(), r)); !errors.Is(err, want) {
				t.Errorf("%q: error %v, want %v", text, err, want)
			}
		}
	}
}

// TestRequest looks at what is sent for what has no word in the protocol.
func TestRequest(t *testing.T) {
	t.Parallel()
	ask := func(t *testing.T, official bool, r model.Request) map[string]any {
		t.Helper()
		server := modeltest.New(t, scriptserver.Script{"m": {{Reply: scriptserver.Reply{Content: "ok"}}}},
			scriptserver.WithProtocol(scriptserver.OpenAI("")))
		b, err := openai.New(openai.Config{URL: server.URL + "/v1/", Official: official})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := model.Collect(b.Chat(t.Context(), r)); err != nil {
			t.Fatal(err)
		}
		var raw map[string]any
		if err := json.Unmarshal(server.Requests()[0].Raw, &raw); err != nil {
			t.Fatal(err)
		}
		return raw
	}
	yes, no := true, false
	r := question()
	r.Options.Predict, r.Think = 99, &yes
	raw := ask(t, false, r)
	if raw["max_tokens"] != 99.0 || raw["max_completion_tokens"] != nil || raw["reasoning_effort"] != nil ||
		fmt.Sprint(raw["chat_template_kwargs"]) != "map[enable_thinking:true]" {
		t.Errorf("others get %v", raw)
	}
	raw = ask(t, true, r)
	if raw["max_tokens"] != nil || raw["max_completion_tokens"] != 99.0 || raw["reasoning_effort"] != "medium" ||
		raw["chat_template_kwargs"] != nil {
		t.Errorf("OpenAI gets %v", raw)
	}
	r.Think = &no
	if raw = ask(t, true, r); raw["reasoning_effort"] != "none" {
		t.Errorf("OpenAI gets %v", raw)
	}
}

// TestHistory: thinking goes back with calls only, and what is missing between calls and results is made up for.
func TestHistory(t *testing.T) {
	t.Parallel()
	server := modeltest.New(t, scriptserver.Script{"m": {{Reply: scriptserver.Reply{Content: "ok"}}}},
		scriptserver.WithProtocol(scriptserver.OpenAI("")))
	b := openURL(t, server.URL)
	r := question()
	r.Messages = []model.Message{
		{Role: model.User, Content: "one"},
		{Role: model.Assistant, Content: "two", Thinking: "not for long"},
		{Role: model.User, Content: "three"},
		{
			Role: model.Assistant, Thinking: "look",
			Calls: []model.Call{{Name: "look"}, {Name: "weigh", Arguments: json.RawMessage(`{"b":1,"a":2}`)}},
		},
		{Role: model.ToolRole, ToolName: "weigh", Content: "3 g"},
		{Role: model.ToolRole, ToolName: "smell", Content: "nobody asked"},
	}
	if _, _, err := model.Collect(b.Chat(t.Context(), r)); err != nil {
		t.Fatal(err)
	}
	got := server.Requests()[0].Messages
	if len(got) != 7 || got[1].Thinking != "" || got[3].Thinking != "look" || got[3].Content != "" {
		t.Fatalf("arrived as %+v", got)
	}
	if show(got[3].Calls) != `call_1 look{}; call_2 weigh{"b":1,"a":2}` {
		t.Errorf("calls %s", show(got[3].Calls))
	}
	if got[4].CallID != "call_1" || got[4].Content != "[no result]" || got[5].CallID != "call_2" ||
		got[5].Content != "3 g" {
		t.Errorf("results %+v", got[4:6])
	}
	if got[6].Role != model.User || got[6].Content != "nobody asked" {
		t.Errorf("left over %+v", got[6])
	}
}

func openURL(t *testing.T, url string) *openai.Backend {
	t.Helper()
	b, err := openai.New(openai.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestTimesOfLlamaCpp uses a last event in the format of llama.cpp's server.
func TestTimesOfLlamaCpp(t *testing.T) {
	t.Parallel()
	b := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprint(w, eventReader(delta(`{"content":"fish"}`), finish,
			`{"choices":[],"usage":{"prompt_tokens":20,"completion_tokens":10},"timings":{"cache_n":12,"prompt_n":8,`+
				`"prompt_ms":250.5,"predicted_n":10,"predicted_ms":900}}`, "[DONE]"))
	})
	_, f, err := model.Collect(b.Chat(t.Context(), question()))
	if err != nil {
		t.Fatal(err)
	}
	if f.PromptTime != 250500*time.Microsecond || f.OutputTime != 900*time.Millisecond {
		t.Errorf("prompt %s, output %s", f.PromptTime, f.OutputTime)
	}
}

func TestModels(t *testing.T) {
	t.Parallel()
	paths := make(chan string, 3)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths <- r.URL.Path
		_, _ = fmt.Fprint(w, `{"data":[{"id":"llama","owned_by":"llamacpp","meta":{"n_ctx_train":8192,"size":77}},`+
			`{"id":"started with less","owned_by":"llamacpp","meta":{"n_ctx_train":32768,"n_ctx":8192,"size":77}},`+
			`{"id":"vllm","owned_by":"vllm","max_model_len":4096},{"id":""}]}`)
	}))
	t.Cleanup(s.Close)
	// The name leads to the test's server, as a server on another machine would be reached.
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network,
		_ string,
	) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, s.Listener.Addr().String())
	}}}
	t.Cleanup(client.CloseIdleConnections)
	b, err := openai.New(openai.Config{URL: "http://models.example:8080/api/v1", Client: client})
	if err != nil {
		t.Fatal(err)
	}
	all, err := b.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []model.Info{
		{Name: "llama", Size: 77, Family: "llamacpp", Window: 8192, Tools: true, Remote: "models.example"},
		{Name: "started with less", Size: 77, Family: "llamacpp", Window: 8192, Tools: true, Remote: "models.example"},
		{Name: "vllm", Family: "vllm", Window: 4096, Tools: true, Remote: "models.example"},
	}
	if !slices.Equal(all, want) {
		t.Errorf("list %+v", all)
	}
	if got, err := b.Show(t.Context(), "vllm"); err != nil || got != want[2] {
		t.Errorf("show %+v, %v", got, err)
	}
	for range 2 {
		if path := <-paths; path != "/api/v1/models" {
			t.Errorf("asked %s", path)
		}
	}
	if got, err := openURL(t, s.URL).Show(t.Context(), "llama"); err != nil || got.Remote != "" {
		t.Errorf("here: %+v, %v", got, err)
	}
	if path := <-paths; path != "/v1/models" {
		t.Errorf("asked %s", path)
	}
}

// TestVectors: what does not match the texts is refused; an order other than that of the texts is put right.
func TestVectors(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"data":[{"index":1,"embedding":[3]},{"index":0,"embedding":[1]}]}`:    "[[1] [3]]",
		`{"data":[{"index":0,"embedding":[1]}]}`:                                "",
		`{"data":[{"index":0,"embedding":[1]},{"index":0,"embedding":[1]}]}`:    "",
		`{"data":[{"index":0,"embedding":[1]},{"index":2,"embedding":[1]}]}`:    "",
		`{"data":[{"index":0,"embedding":[1]},{"index":-1,"embedding":[1]}]}`:   "",
		`{"data":[{"index":0,"embedding":[1]},{"index":1,"embedding":[]}]}`:     "",
		`{"data":[{"index":0,"embedding":[1]},{"index":1,"embedding":"QUJD"}]}`: "",
	} {
		b := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, body) })
		v, err := b.Embed(t.Context(), "e", []string{"a", "b"})
		if want == "" {
			if !errors.Is(err, model.ErrMalformed) {
				t.Errorf("%s: error %v", body, err)
			}
			continue
		}
		if err != nil || fmt.Sprint(v.Values) != want || v.Model != "e" {
			t.Errorf("%s: %+v, %v", body, v, err)
		}
	}
}

func TestPull(t *testing.T) {
	t.Parallel()
	n := 0
	for _, err := range openURL(t, "http://localhost:1").Pull(t.Context(), "m") {
		n++
		if !errors.Is(err, model.ErrUnsupported) {
			t.Errorf("error %v", err)
		}
	}
	if n != 1 {
		t.Errorf("%d pieces", n)
	}
}

// FuzzStream: whatever a server sends, the reply is well formed or an error.
func FuzzStream(f *testing.F) {
	f.Add(eventReader(delta(`{"content":"a"}`), finish, "[DONE]"))
	f.Add(eventReader(delta(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"look","arguments":"{}"}}]}`),
		finish))
	f.Add("error: x\n\ndata\n\ndata: null\n\ndata: {\"choices\":[{}]}\n\n")
	var body atomic.Value
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sse(body.Load().(string))(w, r)
	}))
	f.Cleanup(s.Close)
	b, err := openai.New(openai.Config{URL: s.URL})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, sent string) {
		body.Store(sent)
		done := false
		for c, err := range b.Chat(t.Context(), question()) {
			if done {
				t.Fatal("something came after the end")
			}
			done = c.Done || err != nil
			for _, call := range c.Calls {
				if call.Name == "" || !json.Valid(call.Arguments) || !strings.HasPrefix(string(call.Arguments), "{") {
					t.Fatalf("call %+v", call)
				}
			}
		}
		if !done {
			t.Fatal("it ended without an end")
		}
	})
}
