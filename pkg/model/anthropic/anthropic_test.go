package anthropic_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"conclave/pkg/model"
	"conclave/pkg/model/anthropic"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/scriptserver"
)

func ptr[T any](v T) *T { return &v }

// serve answers every request with handler and returns a backend on it.
func serve(t *testing.T, handler http.HandlerFunc) model.Backend {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return modeltest.MustOpen(t)(anthropic.New(anthropic.Config{URL: s.URL}))
}

func sse(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprint(w, body)
	}
}

// events writes events whose names are the types in their data.
func events(data ...string) string {
	var b strings.Builder
	for _, d := range data {
		var e struct {
			Type string `json:"type"`
		}
		_ = json.Unmarshal([]byte(d), &e)
		fmt.Fprintf(&b, "event: %s\ndata: %s\n\n", e.Type, d)
	}
	return b.String()
}

func start(index int, block string) string {
	return fmt.Sprintf(`{"type":"content_block_start","index":%d,"content_block":%s}`, index, block)
}

func grow(index int, delta string) string {
	return fmt.Sprintf(`{"type":"content_block_delta","index":%d,"delta":%s}`, index, delta)
}

func part(index int, args string) string {
	quoted, _ := json.Marshal(args)
	return grow(index, `{"type":"input_json_delta","partial_json":`+string(quoted)+`}`)
}

func stop(index int) string { return fmt.Sprintf(`{"type":"content_block_stop","index":%d}`, index) }

const (
	begin = `{"type":"message_start","message":{"id":"m","type":"message","role":"assistant","model":"m-2",` +
		`"content":[],` +
		`"usage":{"input_tokens":3,"cache_read_input_tokens":4,"cache_creation_input_tokens":5,"output_tokens":1}}}`
	end = `{"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},` +
		`"usage":{"output_tokens":9}}`
	over = `{"type":"message_stop"}`
)

func question() model.Request {
	return model.Request{
		Model: "m", Stream: true, Messages: []model.Message{{Role: model.User, Content: "hello"}},
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

// TestCallsInFragments cuts the arguments of two calls at every place; their blocks grow side by side.
func TestCallsInFragments(t *testing.T) {
	t.Parallel()
	args := []rune(`{"z":"é \"quoted\" 日本","a":[1,{"b":null}]}`)
	b := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var req struct {
			Model string `json:"model"`
		}
		_ = json.NewDecoder(r.Body).Decode(&req)
		cut, _ := strconv.Atoi(req.Model)
		one, two := string(args[:cut]), string(args[cut:])
		sse(events(
			begin, start(0, `{"type":"tool_use","id":"a","name":"look","input":{}}`), part(0, one),
			start(1, `{"type":"tool_use","id":"b","name":"weigh","input":{}}`), part(1, ""), part(1, one), part(0, two),
			stop(0), part(1, two), stop(1),
			end, over,
		))(w, r)
	})
	for cut := range len(args) + 1 {
		r := question()
		r.Model = strconv.Itoa(cut)
		m, f, err := model.Collect(b.Chat(t.Context(), r))
		if want := "a look" + string(args) + "; b weigh" + string(args); err != nil || show(m.Calls) != want {
			t.Fatalf("cut at %d: %s, %v", cut, show(m.Calls), err)
		}
		if f.Model != "m-2" || f.PromptTokens != 12 || f.OutputTokens != 9 || f.Reason != "stop" ||
			f.RemoteHost != "127.0.0.1" {
			t.Fatalf("final %+v", f)
		}
	}
}

// TestBroken is what must end in an error, and in which.
func TestBroken(t *testing.T) {
	t.Parallel()
	fault := func(kind, text string) string {
		return fmt.Sprintf(`{"type":"error","error":{"type":%q,"message":%q}}`, kind, text)
	}
	call := start(0, `{"type":"tool_use","id":"a","name":"look","input":{}}`)
	many := []string{begin}
	for i := range 130 {
		many = append(many, start(i, `{"type":"tool_use","id":"a`+strconv.Itoa(i)+`","name":"look","input":{}}`),
			stop(i))
	}
	for _, c := range []struct {
		name, body string
		want       error
	}{
		{"overloaded", events(begin, fault("overloaded_error", "Overloaded")), model.ErrBusy},
		{"too many", events(begin, fault("rate_limit_error", "slow down")), model.ErrBusy},
		{"key", events(fault("authentication_error", "invalid x-api-key")), model.ErrUnauthorized},
		{"permission", events(fault("permission_error", "no")), model.ErrUnauthorized},
		{"missing", events(fault("not_found_error", "model: m")), model.ErrMissing},
		{"timeout", events(fault("timeout_error", "too slow")), model.ErrUnreachable},
		{
			"too long", events(fault("invalid_request_error", "prompt is too long: 3 tokens > 2 maximum")),
			model.ErrTooLong,
		},
		{"arguments cut", events(begin, call, part(0, `{"a"`), stop(0), end, over), model.ErrMalformed},
		{"arguments no object", events(begin, call, part(0, `[1]`), stop(0), end, over), model.ErrMalformed},
		{
			"no name", events(begin, start(0, `{"type":"tool_use","id":"a","input":{}}`), stop(0), end, over),
			model.ErrMalformed,
		},
		{"too many calls", events(append(many, end, over)...), model.ErrMalformed},
		{"a block that was not begun", events(begin, part(3, "x")), model.ErrMalformed},
		{"the end of a block that was not begun", events(begin, stop(3)), model.ErrMalformed},
		{"no end", events(begin, call, stop(0), end), model.ErrCut},
		{"nothing", "", model.ErrCut},
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

// script starts a service with the models of the script.
func script(t *testing.T, s scriptserver.Script, opts ...scriptserver.Option) (model.Backend, *scriptserver.Server) {
	t.Helper()
	server := modeltest.New(t, s, append(opts, scriptserver.WithProtocol(modeltest.Anthropic(secret)))...)
	return open(t, server.URL), server
}

func chat(t *testing.T, b model.Backend, r model.Request) model.Message {
	t.Helper()
	m, _, err := model.Collect(b.Chat(t.Context(), r))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestThinkingLoop goes through a tool loop with thinking. The service checks the signatures, and that they are there.
func TestThinkingLoop(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{true, false} {
		b, server := script(t, scriptserver.Script{"m": {
			{Reply: scriptserver.Reply{
				Thinking: "I should look.", Content: "Looking.",
				Calls: []scriptserver.Call{{Name: "look"}, {Name: "look"}},
			}},
			{Reply: scriptserver.Reply{Thinking: "Once more.", Calls: []scriptserver.Call{{Name: "look"}}}},
			{Always: true, Reply: scriptserver.Reply{Thinking: "Clear.", Content: "A fish."}},
		}})
		r := question()
		r.Stream, r.Think, r.Options.Predict = stream, ptr(true), 4000
		for range 2 {
			m := chat(t, b, r)
			r.Messages = append(r.Messages, m)
			for _, c := range m.Calls {
				r.Messages = append(r.Messages, model.Message{
					Role: model.ToolRole, CallID: c.ID, ToolName: c.Name,
					Content: "fins",
				})
			}
		}
		if m := chat(t, b, r); m.Thinking != "Clear." || m.Content != "A fish." {
			t.Errorf("answer %+v", m)
		}
		last := server.Requests()[2]
		if last.Think == nil || !*last.Think || last.Messages[1].Thinking != "I should look." ||
			last.Messages[4].Thinking != "Once more." {
			t.Errorf("arrived as %+v", last.Messages)
		}
		// In the next turn the thinking of this one is left out.
		r.Messages = append(r.Messages, model.Message{Role: model.Assistant, Content: "A fish."},
			model.Message{Role: model.User, Content: "Sure?"})
		chat(t, b, r)
		if got := server.Requests()[3]; got.Messages[1].Thinking != "" || !*got.Think {
			t.Errorf("arrived as %+v", got.Messages)
		}
	}
}

// TestThinkingLost: who comes into a tool loop without the signatures does not think, rather than be refused.
func TestThinkingLost(t *testing.T) {
	t.Parallel()
	always := []scriptserver.Exchange{{Always: true, Reply: scriptserver.Reply{Content: "A fish."}}}
	b, server := script(t, scriptserver.Script{"old": always, "new": always},
		scriptserver.WithModels(scriptserver.Model{
			Name: "new", Family: modeltest.Adaptive, Tools: true,
			Thinking: true,
		}))
	for _, name := range []string{"old", "new"} {
		r := question()
		r.Model, r.Think, r.Options.Temperature = name, ptr(true), ptr(0.5)
		r.Messages = append(r.Messages,
			model.Message{
				Role: model.Assistant, Thinking: "of somebody else",
				Calls: []model.Call{{ID: "x", Name: "look"}},
			},
			model.Message{Role: model.ToolRole, CallID: "x", Content: "fins"})
		chat(t, b, r)
		got := server.Requests()[len(server.Requests())-1]
		if adaptive := name == "new"; *got.Think != adaptive {
			t.Errorf("%s: think arrives as %t", name, *got.Think)
		}
		if kept := got.Options.Temperature != nil; kept != (name == "old") {
			t.Errorf("%s: temperature arrives as %v", name, got.Options.Temperature)
		}
		if got.Messages[1].Thinking != "" {
			t.Errorf("%s: thinking without a signature was sent", name)
		}
	}
}

// TestThinkingBudget: it is below the limit, and the limit is what was asked for unless that leaves no room.
func TestThinkingBudget(t *testing.T) {
	t.Parallel()
	b, server := script(t, scriptserver.Script{"m": {{Always: true, Reply: scriptserver.Reply{Content: "A fish."}}}})
	for _, c := range []struct{ predict, limit, budget int }{
		{0, 4096, 2048},
		{8000, 8000, 4000},
		{1025, 1025, 1024},
		{1024, 2048, 1024},
		{10, 1034, 1024},
	} {
		r := question()
		r.Think, r.Options.Predict = ptr(true), c.predict
		chat(t, b, r)
		var raw struct {
			Max      int `json:"max_tokens"`
			Thinking struct {
				Budget int `json:"budget_tokens"`
			} `json:"thinking"`
		}
		_ = json.Unmarshal(server.Requests()[len(server.Requests())-1].Raw, &raw)
		if raw.Max != c.limit || raw.Thinking.Budget != c.budget {
			t.Errorf("predict %d: limit %d, budget %d", c.predict, raw.Max, raw.Thinking.Budget)
		}
	}
}

// TestHiddenThinking: what the service does not show goes back as it came.
func TestHiddenThinking(t *testing.T) {
	t.Parallel()
	bodies := make(chan string, 2)
	b := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w.WriteHeader(http.StatusNotFound) // older gateways have no list
			return
		}
		var raw json.RawMessage
		_ = json.NewDecoder(r.Body).Decode(&raw)
		bodies <- string(raw)
		sse(events(
			begin, start(0, `{"type":"redacted_thinking","data":"c2VjcmV0"}`), stop(0),
			start(1, `{"type":"thinking","thinking":"shown","signature":""}`),
			grow(1, `{"type":"signature_delta","signature":"s1"}`), stop(1),
			start(2, `{"type":"thinking","thinking":"","signature":"s2"}`), stop(2),
			start(3, `{"type":"tool_use","id":"a","name":"look","input":{}}`), stop(3), end, over,
		))(w, r)
	})
	r := question()
	r.Think = ptr(true)
	m := chat(t, b, r)
	if m.Thinking != "shown" || show(m.Calls) != "a look{}" {
		t.Fatalf("got %+v", m)
	}
	r.Messages = append(r.Messages, m, model.Message{Role: model.ToolRole, CallID: "a", Content: "fins"})
	chat(t, b, r)
	<-bodies
	if second := <-bodies; !strings.Contains(second,
		`{"type":"redacted_thinking","data":"c2VjcmV0"},{"type":"thinking","thinking":"shown","signature":"s1"},`+
			`{"type":"thinking","thinking":"","signature":"s2"},`) {
		t.Errorf("sent %s", second)
	}
}

// TestHistory: results are gathered in the order of the calls, and what the service would refuse is put right.
func TestHistory(t *testing.T) {
	t.Parallel()
	b, server := script(t, scriptserver.Script{"m": {{Reply: scriptserver.Reply{Content: "ok"}}}})
	r := question()
	r.Messages = []model.Message{
		{Role: model.System, Content: "One."},
		{Role: model.System, Content: "Two."},
		{Role: model.User, Content: "hello"},
		{Role: model.Assistant, Content: " \n"},
		{Role: model.User, Content: "still there?"},
		{Role: model.Assistant, Content: "yes", Thinking: "not sent", Calls: []model.Call{
			{ID: "a b", Name: "look", Arguments: json.RawMessage(`{"z":1,"a":2}`)},
			{Name: "weigh"},
			{ID: "c", Name: "look", Arguments: json.RawMessage(`"x"`)},
		}},
		{Role: model.ToolRole, CallID: "c", Content: ""},
		{Role: model.ToolRole, CallID: "a b", Content: "fins"},
	}
	chat(t, b, r)
	got := server.Requests()[0].Messages
	var seen []string
	for _, m := range got {
		seen = append(seen, m.Role+":"+m.Content+":"+m.CallID+":"+m.Thinking+show(m.Calls))
	}
	want := []string{
		"system:One.::", "system:Two.::", "user:hello::", "user:still there?::",
		`assistant:yes::call_1 look{"z":1,"a":2}; call_2 weigh{}; c look{}`,
		"tool:fins:call_1:", "tool:[no result]:call_2:", "tool::c:",
	}
	if !slices.Equal(seen, want) {
		t.Errorf("arrived as\n%s\nwant\n%s", strings.Join(seen, "\n"), strings.Join(want, "\n"))
	}
	r.Messages = r.Messages[:2]
	if _, _, err := model.Collect(b.Chat(t.Context(), r)); err == nil || len(server.Requests()) != 1 {
		t.Errorf("nothing to answer: %v, %d requests", err, len(server.Requests()))
	}
}

func TestModels(t *testing.T) {
	t.Parallel()
	all := []scriptserver.Model{
		{Name: "a", Family: "opus", Window: 200000, Tools: true, Thinking: true, Vision: true},
		{Name: "b", Family: "haiku", Window: 1000, Tools: true},
		{Name: "c"},
		{Name: "d"},
		{Name: "e"},
	}
	b, _ := script(t, nil, scriptserver.WithModels(all...))
	got, err := b.List(t.Context())
	if err != nil || len(got) != len(all) { // three pages
		t.Fatalf("list %+v, %v", got, err)
	}
	want := model.Info{
		Name: "a", Family: "opus", Window: 200000, Tools: true, Thinking: true, Vision: true,
		Remote: "127.0.0.1",
	}
	if got[0] != want {
		t.Errorf("list begins with %+v", got[0])
	}
	if info, err := b.Show(t.Context(), "a"); err != nil || info != want {
		t.Errorf("show %+v, %v", info, err)
	}
	for _, name := range []string{"zz", "", ".", "..", "../messages", "a/../b"} {
		if info, err := b.Show(t.Context(), name); !errors.Is(err, model.ErrMissing) {
			t.Errorf("show %q: %+v, %v", name, info, err)
		}
	}
}

func TestUnsupported(t *testing.T) {
	t.Parallel()
	b := open(t, "http://localhost:1")
	if _, err := b.Embed(t.Context(), "m", []string{"x"}); !errors.Is(err, model.ErrUnsupported) {
		t.Errorf("embed: %v", err)
	}
	for _, err := range b.Pull(t.Context(), "m") {
		if !errors.Is(err, model.ErrUnsupported) {
			t.Errorf("pull: %v", err)
		}
	}
}
