package genai_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"conclave/pkg/model"
	"conclave/pkg/model/genai"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/scriptserver"
)

func ptr[T any](v T) *T { return &v }

// serve answers every request with handler and returns a backend on it.
func serve(t *testing.T, handler http.HandlerFunc) model.Backend {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return modeltest.MustOpen(t)(genai.New(genai.Config{URL: s.URL}))
}

// answer sends the same as a stream or in one piece, as asked.
func answer(chunks ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, ":streamGenerateContent") {
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprint(w, chunks[0])
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for _, c := range chunks {
			_, _ = fmt.Fprintf(w, "data: %s\r\n\r\n", c)
			w.(http.Flusher).Flush()
		}
	}
}

func question(stream bool) model.Request {
	return model.Request{
		Model: "m", Stream: stream, Messages: []model.Message{{Role: model.User, Content: "hello"}},
		Tools: []model.Tool{{Name: "look", Parameters: json.RawMessage(`{"type":"object"}`)}},
	}
}

func show(calls []model.Call) string {
	var out []string
	for _, c := range calls {
		out = append(out, c.ID+" "+c.Name+string(c.Arguments))
	}
	return strings.Join(out, "; ")
}

func candidate(parts, more string) string {
	return `{"candidates":[{"content":{"role":"model","parts":[` + parts + `]}` + more + `}],"modelVersion":"m-2",` +
		`"usageMetadata":{"promptTokenCount":10,"toolUsePromptTokenCount":1,"candidatesTokenCount":5,` +
		`"thoughtsTokenCount":7}}`
}

func TestReply(t *testing.T) {
	t.Parallel()
	whole := candidate(
		`{"text":"hm","thought":true},{"text":"fi"},{"text":"sh"},{"functionCall":{"id":"1","name":"look",`+
			`"args":{"b":"<é>","a":[1]}}},`+
			`{"functionCall":{"name":"look"}},{"executableCode":{"code":"x"}}`, `,"finishReason":"STOP"`)
	for _, stream := range []bool{true, false} {
		m, f, err := model.Collect(serve(t, answer(whole)).Chat(t.Context(), question(stream)))
		if err != nil || m.Content != "fish" || m.Thinking != "hm" ||
			show(m.Calls) != `1 look{"b":"<é>","a":[1]};  look{}` {
			t.Errorf("stream %t: %+v, %v", stream, m, err)
		}
		if f.Model != "m-2" || f.PromptTokens != 11 || f.OutputTokens != 12 || f.Reason != "stop" ||
			f.RemoteHost != "127.0.0.1" {
			t.Errorf("stream %t: %+v", stream, f)
		}
	}
}

// TestBroken is what must end in an error, and in which.
func TestBroken(t *testing.T) {
	t.Parallel()
	fault := func(code int, text, status string) string {
		return fmt.Sprintf(`{"error":{"code":%d,"message":%q,"status":%q}}`, code, text, status)
	}
	many := strings.TrimSuffix(strings.Repeat(`{"functionCall":{"name":"look"}},`, 130), ",")
	for _, c := range []struct {
		name   string
		chunks []string
		want   error
	}{
		{"overloaded", []string{candidate(`{"text":"f"}`, ""), fault(503, "overloaded", "UNAVAILABLE")}, model.ErrBusy},
		{
			"quota",
			[]string{candidate(`{"text":"f"}`, ""), fault(429, "slow down", "RESOURCE_EXHAUSTED")},
			model.ErrBusy,
		},
		{
			"key",
			[]string{fault(400, "API key not valid. Please pass a valid API key.", "INVALID_ARGUMENT")},
			model.ErrUnauthorized,
		},
		{"too long", []string{fault(400, "The input token count (9) exceeds the maximum number of tokens allowed (8).",
			"INVALID_ARGUMENT")}, model.ErrTooLong},
		{
			"malformed call",
			[]string{candidate("", `,"finishReason":"MALFORMED_FUNCTION_CALL","finishMessage":"Malformed"`)},
			model.ErrMalformed,
		},
		{
			"call of an unknown tool",
			[]string{candidate("", `,"finishReason":"UNEXPECTED_TOOL_CALL"`)},
			model.ErrMalformed,
		},
		{"no name", []string{candidate(`{"functionCall":{"args":{}}}`, `,"finishReason":"STOP"`)}, model.ErrMalformed},
		{"too many calls", []string{candidate(many, `,"finishReason":"STOP"`)}, model.ErrMalformed},
		{"no reason", []string{candidate(`{"text":"f"}`, "")}, model.ErrCut},
		{"not JSON", []string{"fish"}, model.ErrMalformed},
		{"candidates are a text", []string{`{"candidates":"x"}`}, model.ErrMalformed},
		{"candidates are numbers", []string{`{"candidates":[1,2]}`}, model.ErrMalformed},
		{"content is a list", []string{`{"candidates":[{"content":[]}]}`}, model.ErrMalformed},
		{"parts are a text", []string{`{"candidates":[{"content":{"parts":"x"}}]}`}, model.ErrMalformed},
		{"a part is a number", []string{`{"candidates":[{"content":{"parts":[1]}}]}`}, model.ErrMalformed},
		{
			"arguments are a list",
			[]string{candidate(`{"functionCall":{"name":"look","args":[1]}}`, `,"finishReason":"STOP"`)},
			model.ErrMalformed,
		},
		{"counts are texts", []string{`{"usageMetadata":{"promptTokenCount":"many"}}`}, model.ErrMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, _, err := model.Collect(serve(t, answer(c.chunks...)).Chat(t.Context(), question(true)))
			if !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
			if len(c.chunks) > 1 || strings.HasPrefix(c.chunks[0], `{"error"`) {
				return // one piece, with status 200, is not how the service refuses
			}
			if _, _, err := model.Collect(serve(t, answer(c.chunks...)).Chat(t.Context(), question(false))); !errors.Is(
				err, c.want) {
				t.Errorf("in one piece: error %v, want %v", err, c.want)
			}
		})
	}
}

// TestBlocked: a prompt that the service refuses is an error that says so; an answer that it stops tells its reason.
func TestBlocked(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{true, false} {
		b := serve(t, answer(`{"promptFeedback":{"blockReason":"SAFETY"},"modelVersion":"m"}`))
		if _, _, err := model.Collect(b.Chat(t.Context(), question(stream))); err == nil ||
			!strings.Contains(err.Error(), "SAFETY") {
			t.Errorf("stream %t: error %v", stream, err)
		}
		b = serve(t, answer(candidate(`{"text":"f"}`, `,"finishReason":"RECITATION"`)))
		if m, f, err := model.Collect(b.Chat(t.Context(), question(stream))); err != nil || f.Reason != "recitation" ||
			m.Content != "f" {
			t.Errorf("stream %t: %+v, %+v, %v", stream, m, f, err)
		}
	}
}

func script(t *testing.T, s scriptserver.Script, opts ...scriptserver.Option) (model.Backend, *scriptserver.Server) {
	t.Helper()
	server := modeltest.New(t, s, append(opts, scriptserver.WithProtocol(modeltest.GenAI(secret)))...)
	return open(t, server.URL), server
}

// TestSignatures goes through a tool loop with a model that wants its signatures back, and comes into one without them.
func TestSignatures(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{true, false} {
		b, server := script(t, scriptserver.Script{"gemini-3-pro": {
			{Reply: scriptserver.Reply{Calls: []scriptserver.Call{{Name: "look"}, {Name: "look"}}}},
			{Always: true, Reply: scriptserver.Reply{Content: "A fish."}},
		}})
		r := question(stream)
		r.Model = "gemini-3-pro"
		m, _, err := model.Collect(b.Chat(t.Context(), r))
		if err != nil || len(m.Calls) != 2 {
			t.Fatal(m, err)
		}
		r.Messages = append(r.Messages, m)
		for _, c := range m.Calls {
			r.Messages = append(r.Messages, model.Message{
				Role: model.ToolRole, CallID: c.ID, ToolName: c.Name,
				Content: "fins",
			})
		}
		for name, b := range map[string]model.Backend{
			"c2lnbmVk": b,
			"c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I=": open(t, server.URL),
		} {
			if m, _, err := model.Collect(b.Chat(t.Context(), r)); err != nil || m.Content != "A fish." {
				t.Errorf("%+v, %v", m, err)
			}
			raw := string(server.Requests()[len(server.Requests())-1].Raw)
			if strings.Count(raw, "thoughtSignature") != 1 || !strings.Contains(raw, name) {
				t.Errorf("sent %s", raw)
			}
		}
	}
}

// TestThinking: what each generation of models is told.
func TestThinking(t *testing.T) {
	t.Parallel()
	b, server := script(t,
		scriptserver.Script{scriptserver.AnyModel: {{Always: true, Reply: scriptserver.Reply{Content: "ok"}}}})
	for _, c := range []struct {
		name  string
		think *bool
		want  string
	}{
		{"gemini-2.5-flash", ptr(true), `{"includeThoughts":true}`},
		{"gemini-2.5-flash", ptr(false), `{"thinkingBudget":0}`},
		{"gemini-2.5-flash", nil, ``},
		{"gemini-2.5-pro", ptr(false), `{"thinkingBudget":128}`},
		{"models/gemini-2.5-pro", ptr(false), `{"thinkingBudget":128}`},
		{"gemini-2.0-flash", ptr(false), ``},
		{"gemini-1.5-pro", ptr(false), ``},
		{"gemini-3-pro", ptr(false), `{"thinkingLevel":"LOW"}`},
		{"gemini-3-pro", ptr(true), `{"includeThoughts":true}`},
		{"other", ptr(false), `{"thinkingBudget":0}`},
	} {
		r := question(false)
		r.Model, r.Think = c.name, c.think
		if _, _, err := model.Collect(b.Chat(t.Context(), r)); err != nil {
			t.Fatal(err)
		}
		var raw struct {
			Config struct {
				Thinking json.RawMessage `json:"thinkingConfig"`
			} `json:"generationConfig"`
		}
		_ = json.Unmarshal(server.Requests()[len(server.Requests())-1].Raw, &raw)
		if string(raw.Config.Thinking) != c.want {
			t.Errorf("%s: %s, want %s", c.name, raw.Config.Thinking, c.want)
		}
	}
}

// TestNames: a name that would lead to another path is no model, and nothing is sent.
func TestNames(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	b := serve(t, func(w http.ResponseWriter, _ *http.Request) { n.Add(1); w.WriteHeader(http.StatusTeapot) })
	for _, name := range []string{
		"../x", "a/../../b", "a..b", "a?b", "a&b", "a#b", "/a", "a//b", "a%2e%2e", "a b",
		"a\nb", "http://x", "",
	} {
		r := question(false)
		r.Model = name
		_, _, chat := model.Collect(b.Chat(t.Context(), r))
		_, show := b.Show(t.Context(), name)
		for _, err := range []error{chat, show} {
			if !errors.Is(err, model.ErrMissing) {
				t.Errorf("%q: error %v", name, err)
			}
		}
		if _, err := b.Embed(t.Context(), name, []string{"x"}); err == nil {
			t.Errorf("%q: embedded", name)
		}
	}
	if n.Load() > 0 {
		t.Errorf("%d requests", n.Load())
	}
}

// TestHistory: results are gathered in the order of the calls.
func TestHistory(t *testing.T) {
	t.Parallel()
	b, server := script(t, scriptserver.Script{"m": {{Reply: scriptserver.Reply{Content: "ok"}}}})
	r := question(false)
	r.Messages = []model.Message{
		{Role: model.System, Content: "One. "},
		{Role: model.System, Content: "Two."},
		{Role: model.User, Content: "hello"},
		{Role: model.Assistant, Content: ""},
		{Role: model.Assistant, Content: "yes", Thinking: "not sent", Calls: []model.Call{
			{Name: "look", Arguments: json.RawMessage(`{"a":2}`)}, {ID: "b", Name: "weigh"},
		}},
		{Role: model.ToolRole, CallID: "b", Content: "3 g"},
	}
	if _, _, err := model.Collect(b.Chat(t.Context(), r)); err != nil {
		t.Fatal(err)
	}
	var seen []string
	for _, m := range server.Requests()[0].Messages {
		seen = append(seen, m.Role+":"+m.Content+":"+m.CallID+":"+m.Thinking+show(m.Calls))
	}
	want := []string{
		"system:One. Two.::", "user:hello::", `assistant:yes:: look{"a":2}; b weigh{}`, "tool:[no result]::",
		"tool:3 g:b:",
	}
	if !slices.Equal(seen, want) {
		t.Errorf("arrived as\n%s\nwant\n%s", strings.Join(seen, "\n"), strings.Join(want, "\n"))
	}
}

func TestModels(t *testing.T) {
	t.Parallel()
	all := []scriptserver.Model{
		{Name: "a", Window: 1000, Tools: true, Thinking: true},
		{Name: "b"},
		{Name: "c"},
		{Name: "d"},
	}
	b, server := script(t, nil, scriptserver.WithModels(all...))
	got, err := b.List(t.Context())
	if err != nil || len(got) != len(server.Models()) { // three pages
		t.Fatalf("list %+v, %v", got, err)
	}
	want := model.Info{Name: "a", Window: 1000, Tools: true, Thinking: true, Remote: "127.0.0.1"}
	if got[0] != want {
		t.Errorf("list begins with %+v", got[0])
	}
	for _, name := range []string{"a", "models/a"} {
		if info, err := b.Show(t.Context(), name); err != nil || info != want {
			t.Errorf("show %+v, %v", info, err)
		}
	}
	if info, err := b.Show(t.Context(), "nomic-embed-text"); err != nil || !info.Embedding || info.Tools {
		t.Errorf("show %+v, %v", info, err)
	}
	// A list without end is given up.
	var n atomic.Int64
	endless := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		n.Add(1)
		_, _ = fmt.Fprint(w, `{"models":[],"nextPageToken":"more"}`)
	})
	if _, err := endless.List(t.Context()); err != nil || n.Load() > 25 {
		t.Errorf("%v after %d requests", err, n.Load())
	}
}

func TestVectors(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		`{}`, `{"embeddings":[{"values":[1]}]}`, `{"embeddings":[{"values":[1]},{}]}`,
		`{"embeddings":[{"values":[1]},{"values":[]}]}`,
	} {
		b := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, body) })
		if v, err := b.Embed(t.Context(), "e", []string{"a", "b"}); !errors.Is(err, model.ErrMalformed) {
			t.Errorf("%s: %+v, %v", body, v, err)
		}
	}
}

func TestPull(t *testing.T) {
	t.Parallel()
	for _, err := range open(t, "http://localhost:1").Pull(t.Context(), "m") {
		if !errors.Is(err, model.ErrUnsupported) {
			t.Errorf("error %v", err)
		}
	}
}
