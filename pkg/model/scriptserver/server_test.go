package scriptserver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/scriptserver"
)

// modelScript is what a client may see in a line of a reply.
type modelScript struct {
	Error      string `json:"error"`
	RemoteHost string `json:"remote_host"`
	Message    struct {
		Role, Content, Thinking string
		ToolCalls               []struct {
			ID       string
			Function struct {
				Name      string
				Arguments json.RawMessage
			}
		} `json:"tool_calls"`
	}
	Done       bool
	DoneReason string `json:"done_reason"`
	Prompt     int    `json:"prompt_eval_count"`
	Eval       int    `json:"eval_count"`
}

const question = `{"model":"m","messages":[{"role":"user","content":"hi"}],"options":{"num_predict":3}%s}`

// post sends a chat as bare bytes and returns the reply as bare bytes: what is on the wire is what is tested here.
func post(t *testing.T, url, more string) (status int, body []byte, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return postTo(ctx, url+"/api/chat", fmt.Sprintf(question, more))
}

func postTo(ctx context.Context, url, text string) (status int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(text))
	if err != nil {
		return 0, nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	return resp.StatusCode, body, err
}

func lines(t *testing.T, body []byte) (all []modelScript) {
	t.Helper()
	for raw := range bytes.Lines(body) {
		var l modelScript
		if err := json.Unmarshal(raw, &l); err != nil {
			t.Fatalf("%q: %v", raw, err)
		}
		all = append(all, l)
	}
	return all
}

func calls(ls []modelScript) (perLine []int) {
	for _, l := range ls {
		perLine = append(perLine, len(l.Message.ToolCalls))
	}
	return perLine
}

var twoCalls = []scriptserver.Call{{Name: "a", Arguments: map[string]any{"x": 1}}, {Name: "b"}}

// TestQuirks shows each of them on the wire, streamed.
func TestQuirks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		reply scriptserver.Reply
		more  string // fields of the request
		check func(t *testing.T, status int, body []byte, err error)
	}{
		{
			"none",
			scriptserver.Reply{Content: "a b", Thinking: "c d", Calls: twoCalls},
			"",
			func(t *testing.T, status int, body []byte, err error) {
				ls := lines(t, body)
				if status != 200 || err != nil || len(ls) != 6 || fmt.Sprint(calls(ls)) != "[0 0 0 0 2 0]" {
					t.Fatalf("%d %s", status, body)
				}
				if ls[0].Message.Thinking != "c" || ls[3].Message.Content != " b" || !ls[5].Done ||
					ls[5].DoneReason != "stop" || ls[4].Done {
					t.Errorf("%s", body)
				}
				if id := ls[4].Message.ToolCalls[0].ID; id == "" || id == ls[4].Message.ToolCalls[1].ID {
					t.Errorf("ids: %s", body)
				}
			},
		},
		{
			"calls last",
			scriptserver.Reply{Content: "a", Calls: twoCalls, Quirks: scriptserver.Quirks{CallsLast: true}},
			"", func(t *testing.T, _ int, body []byte, _ error) {
				ls := lines(t, body)
				if fmt.Sprint(calls(ls)) != "[0 2]" || !ls[1].Done || ls[1].DoneReason != "stop" {
					t.Errorf("%s", body)
				}
			},
		},
		{"calls split", scriptserver.Reply{
			Content: "x y z", Calls: twoCalls,
			Quirks: scriptserver.Quirks{CallsSplit: true},
		}, "", func(t *testing.T, _ int, body []byte, _ error) {
			if ls := lines(t, body); fmt.Sprint(calls(ls)) != "[1 0 1 0 0 0]" || ls[1].Message.Content != "x" {
				t.Errorf("%s", body)
			}
		}},
		{
			"no ids",
			scriptserver.Reply{Calls: twoCalls, Quirks: scriptserver.Quirks{NoIDs: true}},
			"",
			func(t *testing.T, _ int, body []byte, _ error) {
				if bytes.Contains(body, []byte(`"id"`)) {
					t.Errorf("%s", body)
				}
			},
		},
		{
			"drop call",
			scriptserver.Reply{Calls: twoCalls, Quirks: scriptserver.Quirks{DropCall: true}},
			"",
			func(t *testing.T, status int, body []byte, _ error) {
				ls := lines(t, body)
				if status != 200 || len(ls) != 1 || !ls[0].Done || ls[0].Eval == 0 ||
					len(ls[0].Message.ToolCalls) != 0 {
					t.Errorf("%s", body)
				}
			},
		},
		{
			"error line",
			scriptserver.Reply{Content: "a b", Quirks: scriptserver.Quirks{ErrorLine: "boom"}},
			"",
			func(t *testing.T, status int, body []byte, _ error) {
				ls := lines(t, body)
				if status != 200 || len(ls) != 3 || ls[2].Error != "boom" || ls[2].Done {
					t.Errorf("%d %s", status, body)
				}
			},
		},
		{
			"error line, not streamed",
			scriptserver.Reply{Quirks: scriptserver.Quirks{ErrorLine: "boom"}},
			`,"stream":false`, func(t *testing.T, status int, body []byte, _ error) {
				if status != 500 || string(body) != `{"error":"boom"}` {
					t.Errorf("%d %s", status, body)
				}
			},
		},
		{
			"status",
			scriptserver.Reply{Quirks: scriptserver.Quirks{Status: 418, ErrorLine: "tea"}},
			"",
			func(t *testing.T, status int, body []byte, _ error) {
				if status != 418 || string(body) != `{"error":"tea"}` {
					t.Errorf("%d %s", status, body)
				}
			},
		},
		{
			"think tags",
			scriptserver.Reply{Thinking: "hm", Content: "a", Quirks: scriptserver.Quirks{ThinkTags: true}},
			`,"stream":false`, func(t *testing.T, _ int, body []byte, _ error) {
				if l := lines(t, body)[0]; l.Message.Content != "<think>hm</think>a" || l.Message.Thinking != "" {
					t.Errorf("%s", body)
				}
			},
		},
		{
			"calls as json", asText("json"), `,"stream":false`,
			wantContent("Now.\n" + `{"name": "a", "arguments": {"x":1}}`),
		},
		{
			"calls as fenced", asText("fenced"), `,"stream":false`,
			wantContent("Now.\n```json\n" + `{"name": "a", "arguments": {"x":1}}` + "\n```"),
		},
		{
			"calls as xml", asText("xml"), `,"stream":false`,
			wantContent("Now.\n<tool_call>\n" + `{"name": "a", "arguments": {"x":1}}` + "\n</tool_call>"),
		},
		{"calls as text", asText("text"), `,"stream":false`, wantContent("Now.\n" + `a {"x":1}`)},
		{
			"length",
			scriptserver.Reply{Content: "a b c d e", Quirks: scriptserver.Quirks{Length: true}},
			`,"stream":false`, func(t *testing.T, _ int, body []byte, _ error) {
				if l := lines(t, body)[0]; l.DoneReason != "length" || l.Eval != 3 || l.Message.Content != "a b c" {
					t.Errorf("%s", body)
				}
			},
		},
		{
			"cut",
			scriptserver.Reply{Content: "a b c", Quirks: scriptserver.Quirks{CutAfter: 2}},
			"",
			func(t *testing.T, _ int, body []byte, err error) {
				if ls := lines(t, body); len(ls) != 2 || !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("%s, %v", body, err)
				}
			},
		},
		{
			"cut at once",
			scriptserver.Reply{Content: "a", Quirks: scriptserver.Quirks{CutAfter: -1}},
			"",
			func(t *testing.T, status int, _ []byte, err error) {
				if status != 0 || !errors.Is(err, io.EOF) {
					t.Errorf("%d %v", status, err)
				}
			},
		},
		{
			"cut, not streamed",
			scriptserver.Reply{Content: "a b c", Quirks: scriptserver.Quirks{CutAfter: 1}},
			`,"stream":false`, func(t *testing.T, _ int, body []byte, err error) {
				if len(body) == 0 || json.Valid(body) || !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("%s, %v", body, err)
				}
			},
		},
		{
			"no done",
			scriptserver.Reply{Content: "a", Quirks: scriptserver.Quirks{NoDone: true}},
			"",
			func(t *testing.T, _ int, body []byte, err error) {
				if ls := lines(t, body); len(ls) != 1 || ls[0].Done || err != nil {
					t.Errorf("%s, %v", body, err)
				}
			},
		},
		{"busy", scriptserver.Reply{Quirks: scriptserver.Quirks{Busy: 1}}, "", wantStatus(503, "busy")},
		{
			"refuse think",
			scriptserver.Reply{Quirks: scriptserver.Quirks{RefuseThink: true}},
			`,"think":true`,
			wantStatus(400, "does not support thinking"),
		},
		{
			"refuse think, not asked for",
			scriptserver.Reply{Content: "a", Quirks: scriptserver.Quirks{RefuseThink: true}},
			`,"think":false`,
			wantStatus(200, `"a"`),
		},
		{
			"refuse tools",
			scriptserver.Reply{Quirks: scriptserver.Quirks{RefuseTools: true}},
			`,"tools":[{"type":"function","function":{"name":"x"}}]`, wantStatus(400, "does not support tools"),
		},
		{
			"too long",
			scriptserver.Reply{Quirks: scriptserver.Quirks{TooLong: true}},
			"",
			wantStatus(400, "exceeds the context length"),
		},
		{
			"truncate",
			scriptserver.Reply{Content: "a", Quirks: scriptserver.Quirks{Truncate: 17}},
			"",
			wantStatus(200, `"prompt_eval_count":17,`),
		},
		{
			"remote host",
			scriptserver.Reply{Content: "a", Quirks: scriptserver.Quirks{RemoteHost: "https://far"}},
			"",
			wantStatus(200, `"remote_host":"https://far"`),
		},
		{
			"garbage",
			scriptserver.Reply{Content: "a", Quirks: scriptserver.Quirks{Garbage: true}},
			"",
			func(t *testing.T, status int, body []byte, _ error) {
				if status != 200 || len(body) == 0 || json.Valid(body) {
					t.Errorf("%d %s", status, body)
				}
			},
		},
		{
			"bad UTF-8",
			scriptserver.Reply{Content: "a", Quirks: scriptserver.Quirks{BadUTF8: true}},
			"",
			wantStatus(200, "a\xff\xfe"),
		},
		{
			"bytes",
			scriptserver.Reply{Content: "é", Quirks: scriptserver.Quirks{Bytes: 10001}},
			`,"stream":false`,
			wantContent(strings.Repeat("é", 5000)),
		},
		{
			"runes per chunk",
			scriptserver.Reply{Content: "aébc", Quirks: scriptserver.Quirks{ChunkRunes: 2}},
			"",
			func(t *testing.T, _ int, body []byte, _ error) {
				if ls := lines(t, body); len(ls) != 3 || ls[0].Message.Content != "aé" ||
					ls[1].Message.Content != "bc" {
					t.Errorf("%s", body)
				}
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := modeltest.New(t, scriptserver.Script{"m": {{Reply: c.reply}}})
			status, body, err := post(t, s.URL, c.more)
			c.check(t, status, body, err)
		})
	}
}

func asText(form string) scriptserver.Reply {
	return scriptserver.Reply{Content: "Now.", Calls: twoCalls[:1], Quirks: scriptserver.Quirks{CallsAs: form}}
}

func wantContent(want string) func(*testing.T, int, []byte, error) {
	return func(t *testing.T, _ int, body []byte, _ error) {
		t.Helper()
		if l := lines(t, body)[0]; l.Message.Content != want || len(l.Message.ToolCalls) != 0 {
			t.Errorf("%q, want %q", l.Message.Content, want)
		}
	}
}

func wantStatus(want int, text string) func(*testing.T, int, []byte, error) {
	return func(t *testing.T, status int, body []byte, _ error) {
		t.Helper()
		if status != want || !bytes.Contains(body, []byte(text)) {
			t.Errorf("%d %s, want %d with %q", status, body, want, text)
		}
	}
}

func TestDelays(t *testing.T) {
	t.Parallel()
	s := modeltest.New(t,
		scriptserver.Script{"m": {{Reply: scriptserver.Reply{Content: "a b c", Quirks: scriptserver.Quirks{
			FirstDelay: 40 * time.Millisecond, TokenDelay: 20 * time.Millisecond,
		}}}}})
	begin := time.Now()
	_, body, err := post(t, s.URL, "")
	if err != nil || len(lines(t, body)) != 4 {
		t.Fatalf("%s, %v", body, err)
	}
	if d := time.Since(begin); d < 100*time.Millisecond {
		t.Errorf("took %s, want at least 100 ms", d)
	}
}

func TestCloseEndsHangingRequests(t *testing.T) {
	t.Parallel()
	s := modeltest.New(t,
		scriptserver.Script{"m": {{Reply: scriptserver.Reply{Quirks: scriptserver.Quirks{Hang: true}}}}})
	done := make(chan error)
	go func() {
		_, _, err := post(t, s.URL, "")
		done <- err
	}()
	until(t, func() bool { return s.Stats().Running == 1 })
	s.Close()
	if err := <-done; err == nil {
		t.Error("a request that hangs was answered")
	}
}

// until polls a condition.
func until(t *testing.T, met func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !met(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not come to that")
		}
	}
}

func TestSlots(t *testing.T) {
	t.Parallel()
	s := modeltest.New(t, scriptserver.Script{"m": {{Always: true, Reply: scriptserver.Reply{Content: "a"}}}},
		scriptserver.WithSlots(2, 30*time.Millisecond, 4))
	var mu sync.Mutex
	got := make(map[int]int)
	var all sync.WaitGroup
	begin := time.Now()
	for range 10 {
		all.Go(func() {
			status, _, err := post(t, s.URL, "")
			mu.Lock()
			defer mu.Unlock()
			got[status]++
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	// Two run and four wait; whoever comes when one of them is done finds room.
	c := s.Stats()
	if got[200] < 6 || got[200]+got[503] != 10 || c.Parallel > 2 || c.Busy != got[503] || c.Finished != got[200] {
		t.Errorf("%v, %+v", got, c)
	}
	if d := time.Since(begin); d < 90*time.Millisecond {
		t.Errorf("six chats in two slots of 30 ms took %s", d)
	}
}

func TestWaitingClientMayDisconnect(t *testing.T) {
	t.Parallel()
	s := modeltest.New(t, scriptserver.Script{"m": {
		{Reply: scriptserver.Reply{Quirks: scriptserver.Quirks{Hang: true}}},
		{Always: true, Reply: scriptserver.Reply{Content: "a"}},
	}}, scriptserver.WithSlots(1, 0, 1))
	first, stopFirst := context.WithCancel(t.Context())
	second, stopSecond := context.WithCancel(t.Context())
	body := fmt.Sprintf(question, "")
	var all sync.WaitGroup
	defer all.Wait()
	defer stopFirst()
	defer stopSecond()
	all.Go(func() { _, _, _ = postTo(first, s.URL+"/api/chat", body) })
	until(t, func() bool { return s.Stats().Running == 1 })
	all.Go(func() { _, _, _ = postTo(second, s.URL+"/api/chat", body) })
	until(t, func() bool { return len(s.Requests()) == 2 })
	stopSecond()
	until(t, func() bool { return s.Stats().Cancelled == 1 })
	stopFirst()
	until(t, func() bool { return s.Stats().Cancelled == 2 })
	if status, _, err := post(t, s.URL, ""); status != 200 || err != nil {
		t.Errorf("%d, %v", status, err)
	}
}

func TestMismatchIsReported(t *testing.T) {
	t.Parallel()
	s := modeltest.New(t, scriptserver.Script{"m": {{When: scriptserver.When{LastContains: "bye"}}}})
	status, body, err := post(t, s.URL, "")
	if status != 500 || err != nil || !bytes.Contains(body, []byte(`exchange 0 wants \"bye\" in the last message`)) {
		t.Errorf("%d %s, %v", status, body, err)
	}
	if err := s.Err(); err == nil || !strings.Contains(err.Error(), `from user: "hi"`) {
		t.Errorf("error %v", err)
	}
	if left := s.Engine.Unused(); len(left) != 1 || left[0] != (scriptserver.Place{Model: "m"}) {
		t.Errorf("unused %v", left)
	}
}

// fakeTB records what a test would be told.
type fakeTB struct {
	cleanup []func()
	errors  []string
}

func (f *fakeTB) Helper()                      {}
func (f *fakeTB) Cleanup(c func())             { f.cleanup = append(f.cleanup, c) }
func (f *fakeTB) Errorf(s string, args ...any) { f.errors = append(f.errors, fmt.Sprintf(s, args...)) }
func (f *fakeTB) Fatalf(s string, args ...any) { panic(fmt.Sprintf(s, args...)) }

func TestUnreadMismatchFailsTheTest(t *testing.T) {
	t.Parallel()
	for _, errRead := range []bool{false, true} {
		tb := &fakeTB{}
		s := modeltest.New(tb, scriptserver.Script{"m": nil})
		if status, _, err := post(t, s.URL, ""); status != 500 || err != nil {
			t.Fatal(status, err)
		}
		if errRead && s.Err() == nil {
			t.Error("no error")
		}
		for _, c := range tb.cleanup {
			c()
		}
		if failed := len(tb.errors) == 1; failed == errRead {
			t.Errorf("errRead %t: %q", errRead, tb.errors)
		}
	}
}

func get(t *testing.T, method, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestOllamaEndpoints(t *testing.T) {
	t.Parallel()
	s := modeltest.New(t, scriptserver.Script{"m": nil}, scriptserver.WithModels(
		scriptserver.Model{Name: "poor:1b", Family: "p", Window: 512, Loaded: true},
		scriptserver.Model{Name: "cloudy", RemoteHost: "https://far"},
	))
	for _, c := range []struct{ method, path, want string }{
		{"HEAD", "/", ""},
		{"GET", "/", "Ollama is running"},
		{"GET", "/api/version", `"version"`},
		{"GET", "/api/tags", `"remote_host":"https://far"`},
		{"GET", "/api/tags", `"name":"m:latest"`},
		{"GET", "/api/ps", `"name":"poor:1b"`},
	} {
		if status, body := get(t, c.method, s.URL+c.path); status != 200 || !strings.Contains(body, c.want) {
			t.Errorf("%s %s: %d %s", c.method, c.path, status, body)
		}
	}
	for _, c := range []struct {
		path, body string
		status     int
		want       string
	}{
		{"/api/show", `{"model":"poor:1b"}`, 200, `"capabilities":["completion"]`},
		{"/api/show", `{"model":"poor:1b"}`, 200, `"p.context_length":512`},
		{"/api/show", `{"model":"m"}`, 200, `"capabilities":["completion","tools","thinking"]`},
		{"/api/show", `{"model":"none"}`, 404, "not found"},
		{"/api/chat", `{"model":"none","messages":[]}`, 404, "not found"},
		{"/api/chat", `{"model":"nomic-embed-text","messages":[]}`, 400, "does not support chat"},
		{"/api/chat", `{"model":"poor:1b","messages":[],"think":true}`, 400, "does not support thinking"},
		{
			"/api/chat", `{"model":"poor:1b","messages":[],"tools":[{"type":"function","function":{"name":"x"}}]}`, 400,
			"does not support tools",
		},
		{"/api/chat", `{"model":`, 400, "error"},
		{
			"/api/chat",
			`{"model":"m","messages":[{"role":"assistant","tool_calls":[{"function":{"name":"x",` +
				`"arguments":"text"}}]}]}`, 400, "error",
		},
		{"/api/embed", `{"model":"m","input":"x"}`, 501, "does not support embeddings"},
		{"/api/embed", `{"model":"none","input":"x"}`, 404, "not found"},
		{"/api/embed", `{"model":"nomic-embed-text","input":[1]}`, 400, "invalid input"},
		{"/api/pull", `{"model":"new"}`, 200, `"status":"success"`},
		{"/api/pull", `{"model":"no-such"}`, 200, `"error":"pull model manifest`},
		{"/api/show", `{"model":"new"}`, 200, "capabilities"},
	} {
		status, body, err := postTo(t.Context(), s.URL+c.path, c.body)
		if status != c.status || err != nil || !strings.Contains(string(body), c.want) {
			t.Errorf("%s %s: %d %s, %v", c.path, c.body, status, body, err)
		}
	}
}

// TestCheckGrammar has schemas at the limits of what servers turn into a grammar.
func TestCheckGrammar(t *testing.T) {
	t.Parallel()
	nested := func(depth int) string {
		return strings.Repeat(`{"type":"array","items":`, depth) + `{"type":"string"}` + strings.Repeat("}", depth)
	}
	lists := func(outer, inner, length int) string {
		return fmt.Sprintf(`{"type":"array","maxItems":%d,"items":{"type":"array","maxItems":%d,"items":`+
			`{"type":"string","maxLength":%d}}}`, outer, inner, length)
	}
	for name, tt := range map[string]struct {
		schema string
		fails  bool
	}{
		"a repetition":             {`{"type":"string","maxLength":2000}`, false},
		"a large repetition":       {`{"type":"string","maxLength":2001}`, true},
		"nested repetitions":       {lists(20, 10, 10), false},
		"large nested repetitions": {lists(20, 10, 11), true},
		"repetitions side by side": {
			`{"type":"object","properties":{"a":` + lists(20, 10, 10) + `,"b":` + lists(20, 10, 10) + `}}`, false,
		},
		"nested schemas":            {nested(19), false},
		"more nested schemas":       {nested(20), true},
		"trick: exchanged bounds":   {`{"type":"array","minItems":3,"maxItems":2,"items":{"type":"string"}}`, true},
		"trick: a minimum is large": {`{"type":"array","minItems":2001,"items":{"type":"string"}}`, true},
	} {
		if err := scriptserver.CheckGrammar([]byte(tt.schema)); (err != nil) != tt.fails {
			t.Errorf("%s: %v", name, err)
		}
	}
}
