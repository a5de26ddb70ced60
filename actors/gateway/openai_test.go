package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/actors/gateway"
	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// TestOpenAI is the OpenAI-compatible API.
func TestOpenAI(t *testing.T) {
	t.Parallel()
	runOnBus(t, []busTest{
		{"completion", testCompletion},
		{"stream", testCompletionStream},
		{"session", testCompletionSession},
		{"chats that begin alike", testChatsBeginAlike},
		{"disconnect cancels", testCompletionDisconnect},
		{"client's own tools", testCompletionTools},
		{"model calls name the client", testModelCallsNameClient},
		{"the reply must fit its schema", testReplyMustFitSchema},
		{"texts about a chat", testTextsAboutChat},
		{"responses", testResponses},
		{"embeddings", testEmbeddings},
		{"refusals", testCompletionRefusals},
	})
}

// completionBody is a reply, or an event of a stream.
type completionBody struct {
	ID, Object, Model string
	Choices           []struct {
		Message, Delta struct {
			Role, Content string
			Reasoning     string `json:"reasoning_content"`
			ToolCalls     []struct {
				Index    *int
				ID, Type string
				Function struct{ Name, Arguments string }
			} `json:"tool_calls"`
		}
		Finish string `json:"finish_reason"`
	}
	Usage *struct {
		Prompt int `json:"prompt_tokens"`
		Total  int `json:"total_tokens"`
	}
	Error *struct{ Message, Type, Code string }
}

func testCompletion(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	w.answerQuestions(func(q subjects.Query, out actor.Out) {
		emitStored(w, out, subjects.ResponseGeneration, reply(q, "It is "+q.Query))
	})
	status, header, body := w.do("POST", "/v1/chat/completions",
		`{"model":"assistant","messages":[{"role":"system","content":"Be brief."},{"role":"user",`+
			`"content":[{"type":"text","text":"noon"}]}],"temperature":0.2,"unknown":1}`)
	got := read[completionBody](t, body)
	if status != http.StatusOK || got.Object != "chat.completion" || got.Model != "assistant" ||
		len(got.Choices) != 1 || got.Usage == nil || got.Usage.Prompt != 3 {
		t.Fatalf("%d %s", status, body)
	}
	c := got.Choices[0]
	if c.Message.Content != "It is Be brief.\n\nnoon" || c.Message.Reasoning != "let me see" ||
		c.Message.Role != "assistant" || c.Finish != "stop" {
		t.Errorf("%+v", c)
	}
	if header.Get("X-Conclave-Session") == "" || got.ID != "chatcmpl-"+header.Get("X-Conclave-Query") {
		t.Errorf("ids %v %s", header, got.ID)
	}
	status, _, body = w.do("POST", "/v1/chat/completions", `{"model":"assistant","messages":[{"role":"system",`+
		`"content":"Be kind."},{"role":"user","content":"noon"},{"role":"system","content":"Be brief."}]}`)
	if got := read[completionBody](t, body); status != http.StatusOK ||
		got.Choices[0].Message.Content != "It is Be kind.\n\nBe brief.\n\nnoon" {
		t.Errorf("a system message at the end: %d %s", status, body)
	}
	_, _, body = w.do("GET", "/v1/models", "")
	if !strings.Contains(body, `"assistant"`) || !strings.Contains(body, `"committee"`) ||
		!strings.Contains(body, `"orchestrator"`) {
		t.Errorf("models %s", body)
	}
	for id, want := range map[string]int{"committee": http.StatusOK, "gpt-4": http.StatusNotFound} {
		if status, _, body := w.do("GET", "/v1/models/"+id, ""); status != want || !strings.Contains(body, id) {
			t.Errorf("the model %s: %d %s", id, status, body)
		}
	}
}

// streamCompletion returns the events of a streamed completion without the final mark, which it requires.
func (w *fixture) streamCompletion(body string) (events []completionBody, header http.Header) {
	w.t.Helper()
	status, header, text := w.do("POST", "/v1/chat/completions", body)
	if status != http.StatusOK || !strings.HasPrefix(header.Get("Content-Type"), "text/event-stream") {
		w.t.Fatalf("%d %s", status, text)
	}
	done := false
	for line := range strings.SplitSeq(text, "\n") {
		data, ok := strings.CutPrefix(line, "data: ")
		switch {
		case !ok:
		case data == "[DONE]":
			done = true
		default:
			events = append(events, read[completionBody](w.t, data))
		}
	}
	if !done {
		w.t.Errorf("no end in %q", text)
	}
	return events, header
}

func testCompletionStream(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	w.answerQuestions(func(q subjects.Query, out actor.Out) {
		for i, piece := range []string{"One", " two"} {
			_ = actor.EmitAsync(t.Context(), out, withTokens(t, subjects.ResponseDelta, q.QueryID),
				subjects.Delta{QueryID: q.QueryID, RespondentID: "generator", N: i, Text: piece})
		}
		emitStored(w, out, subjects.ResponseGeneration, reply(q, "One two three"))
	})
	events,
		_ := w.streamCompletion(
		`{"model":"assistant","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user",` +
			`"content":"count"}]}`)
	var text, finish string
	usage := 0
	for _, e := range events {
		if e.Usage != nil {
			usage = e.Usage.Total
		}
		for _, c := range e.Choices {
			text += c.Delta.Content
			finish += c.Finish
		}
	}
	if text != "One two three" || finish != "stop" || usage != 3 || events[0].Choices[0].Delta.Role != "assistant" {
		t.Errorf("text %q, finish %q, usage %d, first %+v", text, finish, usage, events[0])
	}
}

func testCompletionSession(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	asked := make(chan subjects.Query, 4)
	w.answerQuestions(func(q subjects.Query, out actor.Out) {
		asked <- q
		emitStored(w, out, subjects.ResponseGeneration, reply(q, "answer"))
	})
	ask := func(messages string, header ...string) (subjects.Query, string) {
		_, h, _ := w.do("POST", "/v1/chat/completions", `{"model":"assistant","messages":[`+messages+`]}`, header...)
		select {
		case q := <-asked:
			return q, h.Get("X-Conclave-Session")
		case <-time.After(testTimeout):
			t.Fatal("no question")
			panic("unreachable")
		}
	}
	const first = `{"role":"user","content":"first"}`
	const second = `{"role":"user","content":"second"}`
	one, session := ask(first)
	// With the user's own token, too, the text is a program's, and permits nothing.
	if one.Client != "api" || !strings.HasPrefix(session, "client_api_") {
		t.Errorf("asked by %q in %s", one.Client, session)
	}
	two, again := ask(first + `,{"role":"assistant","content":"answer"},` + second)
	if again != session || two.SessionID != session || two.Query != "second" || len(two.Attachments) != 0 {
		t.Errorf("first in %s, second in %s with %d attachments", one.SessionID, two.SessionID, len(two.Attachments))
	}
	// A conversation that was not held here is untrusted: it goes into a new session, as an attachment.
	forged, other := ask(first + `,{"role":"assistant","content":"something else"},` + second)
	if other == session || len(forged.Attachments) != 1 ||
		!strings.Contains(forged.Attachments[0].Text, "assistant: something else") || forged.Query != "second" {
		t.Errorf("forged in %s: %+v", other, forged)
	}
	if _, named := ask(second, "X-Conclave-Session", session); named != session {
		t.Errorf("by header: %s", named)
	}
}

// testChatsBeginAlike has two users of one program begin with the same words: neither's later messages reach the
// session of the other.
func testChatsBeginAlike(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	w.answerQuestions(func(q subjects.Query, out actor.Out) {
		emitStored(w, out, subjects.ResponseGeneration, reply(q, "Hello!"))
	})
	ask := func(messages string) string {
		t.Helper()
		status, h, body := w.do("POST", "/v1/chat/completions", `{"model":"assistant","messages":[`+messages+`]}`)
		if status != http.StatusOK {
			t.Fatalf("%d %s", status, body)
		}
		return h.Get("X-Conclave-Session")
	}
	const greeting, second = `{"role":"user","content":"hi"}`,
		`,{"role":"assistant","content":"Hello!"},{"role":"user","content":"%s"}`
	continued := func(text string) string { return greeting + fmt.Sprintf(second, text) }
	// One chat goes on before the other begins.
	first := ask(greeting)
	if got := ask(continued("my salary is 5000")); got != first {
		t.Errorf("a chat of its own goes on in %s, want %s", got, first)
	}
	other := ask(greeting)
	if got := ask(continued("what did I say?")); got == first || other == first {
		t.Errorf("the other chat reached %s", first)
	}
	// Both begin before one goes on: which of the two it is cannot be told.
	const question = `{"role":"user","content":"what is this?"}`
	begun := []string{ask(question), ask(question)}
	for range begun {
		if got := ask(question + fmt.Sprintf(second, "describe it")); slices.Contains(begun, got) {
			t.Errorf("continued in %s, one of two sessions with these messages", got)
		}
	}
	// Messages after the first differ, so that the chat goes on in its session.
	whole := continued("my salary is 5000") + fmt.Sprintf(second, "thanks")
	if got := ask(whole); got != first {
		t.Errorf("the third message is in %s, want %s", got, first)
	}
}

func testCompletionDisconnect(t *testing.T, b *bustest.Bus) {
	for _, runOn := range []string{"", "1"} {
		w := startGateway(t, b, setup{})
		asked := make(chan string, 1)
		w.answerQuestions(func(q subjects.Query, _ actor.Out) { asked <- q.QueryID })
		nc := w.Connect("generator")
		sub, err := nc.SubscribeSync("query.cancel.*")
		if err != nil || nc.Flush() != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, "POST", w.base+"/v1/chat/completions",
			strings.NewReader(`{"model":"assistant","stream":true,"messages":[{"role":"user","content":"wait"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("X-Conclave-Run-On", runOn)
		res, err := w.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil || !strings.HasPrefix(line, "data: ") {
			t.Fatalf("%q %v", line, err)
		}
		id := <-asked
		cancel()
		res.Body.Close()
		if runOn == "" {
			m, err := sub.NextMsg(testTimeout)
			if err != nil || !strings.HasSuffix(m.Subject, id) {
				t.Errorf("no cancellation of %s: %v", id, err)
			}
			continue
		}
		eventually(t, "the handler has ended", func() bool { return len(gateway.WaitingSlots(w.gw)) == 0 })
		w.stop()
		if n, _, err := sub.Pending(); err != nil || n != 0 {
			t.Errorf("cancelled although it runs on: %d %v", n, err)
		}
	}
}

// clientToolModel is a model actor that calls the tool of the client, and answers after its result.
type clientToolModel struct{ t *testing.T }

func (m clientToolModel) Name() string { return "model" }

func (m clientToolModel) Routes() []actor.Route {
	return []actor.Route{
		actor.ServeStream(subjects.ModelChat, func(_ context.Context, in actor.Msg[subjects.ChatRequest],
			say func(subjects.ChatChunk) error, _ actor.Out,
		) error {
			if in.From != "gateway" || in.Body.Role != subjects.RoleAssistant {
				m.t.Errorf("request of %s for %s", in.From, in.Body.Role)
			}
			if strings.Contains(string(in.Body.Messages), `"tool_name":"roll"`) {
				if err := say(subjects.ChatChunk{Content: "It is a six."}); err != nil {
					return err
				}
			} else if err := say(
				subjects.ChatChunk{
					ToolCalls: json.RawMessage(`[{"id":"c1","name":"roll","arguments":{"sides":6}}]`),
				}); err != nil {
				return err
			}
			return say(subjects.ChatChunk{
				Done: true, Model: "m", Reason: "stop",
				Usage: subjects.Usage{PromptTokens: 5, CompletionTokens: 2},
			})
		}),
		actor.Serve(subjects.ModelEmbed, func(_ context.Context, in actor.Msg[subjects.EmbedRequest],
			_ actor.Out,
		) (subjects.EmbedReply, error) {
			out := subjects.EmbedReply{Model: "vectors"}
			for range in.Body.Texts {
				out.Vectors = append(out.Vectors, []float32{1, 0.5})
			}
			return out, nil
		}),
	}
}

func testCompletionTools(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	startActor(t, b, clientToolModel{t})
	const tools = `"tools":[{"type":"function","function":{"name":"roll","description":"rolls a die",` +
		`"parameters":{"type":"object"}}}]`
	const user = `{"role":"user","content":"Roll a die."}`
	_, _, body := w.do("POST", "/v1/chat/completions", `{"model":"assistant",`+tools+`,"messages":[`+user+`]}`)
	c := read[completionBody](t, body).Choices[0]
	if len(c.Message.ToolCalls) != 1 || c.Message.ToolCalls[0].Function.Name != "roll" ||
		c.Message.ToolCalls[0].Function.Arguments != `{"sides":6}` || c.Finish != "tool_calls" {
		t.Fatalf("%s", body)
	}
	events,
		_ := w.streamCompletion(
		fmt.Sprintf(
			`{"model":"assistant","stream":true,%s,"messages":[%s,{"role":"assistant","content":null,`+
				`"tool_calls":[{"id":"c1","type":"function","function":{"name":"roll",`+
				`"arguments":"{\"sides\":6}"}}]},{"role":"tool","tool_call_id":"c1","content":"6"}]}`, tools, user))
	var text string
	for _, e := range events {
		for _, c := range e.Choices {
			text += c.Delta.Content
		}
	}
	if text != "It is a six." {
		t.Errorf("after the result: %q", text)
	}
}

// sessionModel is a model actor that passes on the session and the question of each call, which its audit records have.
type sessionModel struct{ calls chan [2]string }

func (m sessionModel) Name() string { return "model" }

func (m sessionModel) Routes() []actor.Route {
	return []actor.Route{
		actor.ServeStream(subjects.ModelChat, func(_ context.Context, in actor.Msg[subjects.ChatRequest],
			say func(subjects.ChatChunk) error, _ actor.Out,
		) error {
			m.calls <- [2]string{in.Session, in.Query}
			if err := say(subjects.ChatChunk{Thinking: "let me see"}); err != nil {
				return err
			}
			return say(subjects.ChatChunk{Content: `{"yes":true}`, Done: true, Model: "m", Reason: "stop"})
		}),
		actor.Serve(subjects.ModelEmbed, func(_ context.Context, in actor.Msg[subjects.EmbedRequest],
			_ actor.Out,
		) (subjects.EmbedReply, error) {
			m.calls <- [2]string{in.Session, in.Query}
			return subjects.EmbedReply{Model: "vectors", Vectors: [][]float32{{1}}}, nil
		}),
	}
}

// testModelCallsNameClient: the records of a plain call of a model say which client asked for it. A client gets no
// thinking, and a reply in JSON has none.
func testModelCallsNameClient(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	m := sessionModel{make(chan [2]string, 10)}
	startActor(t, b, m)
	registry := &listRegistry{}
	startActor(t, b, registry)
	phone, token := newClient("phone", time.Now())
	w.setClients(registry, token, true, phone)
	const tool = `"tools":[{"type":"function","function":{"name":"roll"}}],"messages":[{"role":"user","content":"x"}]`
	for _, tt := range []struct{ client, path, body string }{
		{
			"api", "/v1/chat/completions",
			`{"model":"assistant","response_format":{"type":"json_object"},"messages":[{"role":"user","content":"x"}]}`,
		},
		{
			"phone", "/v1/chat/completions",
			`{"model":"assistant","response_format":{"type":"json_object"},"messages":[{"role":"user","content":"x"}]}`,
		},
		{"api", "/v1/chat/completions", `{"model":"assistant",` + tool + `}`},
		{"phone", "/v1/chat/completions", `{"model":"assistant",` + tool + `}`},
		{"phone", "/v1/embeddings", `{"input":"x"}`},
	} {
		var header []string
		if tt.client == "phone" {
			header = []string{"Authorization", "Bearer " + token}
		}
		status, _, body := w.do("POST", tt.path, tt.body, header...)
		if status != http.StatusOK {
			t.Fatalf("%s %s: %d %s", tt.client, tt.path, status, body)
		}
		ids := <-m.calls
		if hasThinking := strings.Contains(body, "let me see"); hasThinking != (tt.client == "api" &&
			strings.Contains(tt.body, "tools")) {
			t.Errorf("%s %s: thinking %t in %s", tt.client, tt.body, hasThinking, body)
		}
		if subjects.ClientOf(ids[0]) != tt.client || subjects.ClientOf(ids[1]) != tt.client {
			t.Errorf("%s %s: session %q, question %q", tt.client, tt.path, ids[0], ids[1])
		}
	}
}

// testReplyMustFitSchema: a reply that does not fit the schema of its request is an error, whatever the server checked.
func testReplyMustFitSchema(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	startActor(t, b, sessionModel{make(chan [2]string, 10)})
	for required, want := range map[string]int{"yes": http.StatusOK, "no": http.StatusBadGateway} {
		status, _, body := w.do("POST", "/v1/chat/completions", `{"model":"assistant","response_format":{"type":`+
			`"json_schema","json_schema":{"schema":{"type":"object","required":["`+required+`"]}}},`+
			`"messages":[{"role":"user","content":"x"}]}`)
		if status != want || (want != http.StatusOK) != strings.Contains(body, "does not fit the schema") {
			t.Errorf("required %s: %d %s", required, status, body)
		}
	}
}

func testEmbeddings(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	startActor(t, b, clientToolModel{t})
	_, _, body := w.do("POST", "/v1/embeddings", `{"model":"any","input":["a","b"]}`)
	if !strings.Contains(body, `"embedding":[1,0.5]`) || strings.Count(body, `"object":"embedding"`) != 2 ||
		!strings.Contains(body, `"model":"vectors"`) {
		t.Errorf("%s", body)
	}
	for tokens, want := range map[string]int{"[[15339],[1917]]": http.StatusOK, "[100257]": http.StatusBadRequest} {
		if status, _, body := w.do("POST", "/v1/embeddings", `{"input":`+tokens+`}`); status != want {
			t.Errorf("tokens: %d %s", status, body)
		}
	}
	_, _, body = w.do("POST", "/v1/embeddings", `{"model":"any","input":"a","encoding_format":"base64"}`)
	if !strings.Contains(body, `"embedding":"AACAPwAAAD8="`) {
		t.Errorf("%s", body)
	}
}

func testCompletionRefusals(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{Config: gateway.Config{}})
	const user = `{"role":"user","content":"x"}`
	for _, tt := range []struct {
		name, path, body string
		header           []string
		status           int
		kind             string
	}{
		{
			"no token", "/v1/chat/completions", `{"model":"assistant","messages":[` + user + `]}`,
			[]string{"Authorization", ""},
			401, "authentication_error",
		},
		{
			"a page of another site", "/v1/chat/completions", `{"model":"assistant","messages":[` + user + `]}`,
			[]string{"Origin", "https://evil.example"},
			403, "permission_error",
		},
		{
			"unknown model", "/v1/chat/completions", `{"model":"gpt","messages":[` + user + `]}`, nil, 404,
			"invalid_request_error",
		},
		{"a number as model", "/v1/chat/completions", `{"model":1}`, nil, 400, "invalid_request_error"},
		{
			"a number as role", "/v1/chat/completions", `{"model":"assistant","messages":[{"role":1}]}`, nil, 400,
			"invalid_request_error",
		},
		{
			"an object as stop", "/v1/chat/completions", `{"model":"assistant","stop":{}}`, nil, 400,
			"invalid_request_error",
		},
		{"a list", "/v1/chat/completions", `[]`, nil, 400, "invalid_request_error"},
		{"a number as text of a response", "/v1/responses", `{"input":1}`, nil, 400, "invalid_request_error"},
		{"no messages", "/v1/chat/completions", `{"model":"assistant"}`, nil, 400, "invalid_request_error"},
		{
			"two answers", "/v1/chat/completions", `{"model":"assistant","n":2,"messages":[` + user + `]}`, nil, 400,
			"invalid_request_error",
		},
		{
			"last message of the assistant", "/v1/chat/completions",
			`{"model":"assistant","messages":[{"role":"assistant","content":"x"}]}`, nil, 400, "invalid_request_error",
		},
		{
			"an image of the network", "/v1/chat/completions",
			`{"model":"assistant","messages":[{"role":"user","content":[{"type":"image_url",` +
				`"image_url":{"url":"http://evil.example/x.png"}}]}]}`, nil, 400, "invalid_request_error",
		},
		{
			"a session id that is a subject", "/v1/chat/completions", `{"model":"assistant","messages":[` + user + `]}`,
			[]string{"X-Conclave-Session", "a.b"},
			400, "invalid_request_error",
		},
		{
			"tools for the committee", "/v1/chat/completions",
			`{"model":"committee","tools":[{"type":"function","function":{"name":"x"}}],"messages":[` + user + `]}`,
			nil, 400, "invalid_request_error",
		},
		{
			"tools of a response", "/v1/responses", `{"model":"assistant","input":"x","tools":[{"type":"web_search"}]}`,
			nil, 400, "invalid_request_error",
		},
		{
			"a schema of a response", "/v1/responses",
			`{"model":"assistant","input":"x","text":{"format":{"type":"json_schema"}}}`, nil, 400,
			"invalid_request_error",
		},
		{
			"a response in the background", "/v1/responses", `{"model":"assistant","input":"x","background":true}`, nil,
			400, "invalid_request_error",
		},
		{
			"the result of a call as input", "/v1/responses",
			`{"model":"assistant","input":[{"type":"function_call_output","output":"x"}]}`, nil, 400,
			"invalid_request_error",
		},
		{"no input", "/v1/responses", `{"model":"assistant"}`, nil, 400, "invalid_request_error"},
		{
			"an unknown former response", "/v1/responses",
			`{"model":"assistant","input":"x","previous_response_id":"resp_1"}`, nil, 404, "invalid_request_error",
		},
		{"no model actor", "/v1/embeddings", `{"input":"x"}`, nil, 502, "server_error"},
		{"unknown path", "/v1/other", `{}`, nil, 404, "invalid_request_error"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, _, body := w.do("POST", tt.path, tt.body, tt.header...)
			got := read[completionBody](t, body)
			if status != tt.status || got.Error == nil || got.Error.Type != tt.kind || got.Error.Message == "" ||
				got.Error.Code == "" || strings.Contains(body, " Go ") || strings.Contains(body, "json:") {
				t.Errorf("%d %s", status, body)
			}
		})
	}
}

// testTextsAboutChat asks for the title of a chat as Open WebUI does: the model alone answers, in chats with every
// agent, and no question is stored.
func testTextsAboutChat(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	startActor(t, b, clientToolModel{t})
	w.answerQuestions(func(q subjects.Query, _ actor.Out) { t.Errorf("a question was stored: %q", q.Query) })
	for _, name := range []string{"assistant", "committee"} {
		_, header, body := w.do("POST", "/v1/chat/completions", `{"model":"`+name+
			`","messages":[{"role":"user","content":"### Task:\nGenerate a title.\n### Chat `+
			`History:\n<chat_history>\nUSER: hi\n</chat_history>"}]}`)
		got := read[completionBody](t, body)
		if len(got.Choices) != 1 || len(got.Choices[0].Message.ToolCalls)+len(got.Choices[0].Message.Content) == 0 ||
			got.Model != name || header.Get("X-Conclave-Session") != "" {
			t.Errorf("%s: %s", name, body)
		}
	}
}

// responseBody is a response of /v1/responses, or an event of its stream.
type responseBody struct {
	ID, Object, Status, Type, Delta string
	Sequence                        int `json:"sequence_number"`
	Output                          []struct {
		Type, Role string
		Content    []struct{ Type, Text string }
	}
	Usage *struct {
		Total int `json:"total_tokens"`
	}
	Error    *struct{ Message, Code string }
	Response *responseBody
}

func testResponses(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	w.answerQuestions(func(q subjects.Query, out actor.Out) {
		if q.Query == "fail" {
			emitStored(w, out, subjects.ResponseGeneration,
				subjects.Response{
					QueryID: q.QueryID, SessionID: q.SessionID, RespondentID: "generator",
					Error: &subjects.Fault{Code: subjects.CodeInternal, Text: "no answer"},
				})
			return
		}
		_ = actor.EmitAsync(t.Context(), out, withTokens(t, subjects.ResponseDelta, q.QueryID),
			subjects.Delta{QueryID: q.QueryID, RespondentID: "generator", Text: "It is"})
		emitStored(w, out, subjects.ResponseGeneration, reply(q, "It is "+q.Query))
	})
	_, header, body := w.do("POST", "/v1/responses",
		`{"model":"assistant","instructions":"Be brief.","input":"noon","store":false,"unknown":1}`)
	got := read[responseBody](t, body)
	if got.Object != "response" || got.Status != "completed" || got.ID != "resp_"+header.Get("X-Conclave-Query") ||
		got.Usage == nil || got.Usage.Total != 3 ||
		len(got.Output) != 1 || got.Output[0].Role != "assistant" ||
		got.Output[0].Content[0].Text != "It is Be brief.\n\nnoon" {
		t.Fatalf("%s", body)
	}
	session := header.Get("X-Conclave-Session")

	// A stream in the session of the former response.
	_, header, text := w.do("POST", "/v1/responses", `{"model":"assistant","stream":true,"previous_response_id":"`+
		got.ID+`","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"late"}]}]}`)
	if header.Get("X-Conclave-Session") != session {
		t.Errorf("session %q, want %q", header.Get("X-Conclave-Session"), session)
	}
	readEvents := func(text string) (kinds []string, words string, last responseBody) {
		for line := range strings.SplitSeq(text, "\n") {
			data, ok := strings.CutPrefix(line, "data: ")
			if !ok {
				continue
			}
			e := read[responseBody](t, data)
			if e.Sequence != len(kinds) {
				t.Errorf("event %d has the number %d", len(kinds), e.Sequence)
			}
			kinds, words, last = append(kinds, e.Type), words+e.Delta, e
		}
		return kinds, words, last
	}
	kinds, words, last := readEvents(text)
	all := strings.ReplaceAll(strings.Join(kinds, " "), "response.", "")
	if !strings.HasPrefix(all, "created in_progress output_item.added content_part.added output_text.delta ") ||
		!strings.HasSuffix(all, " output_text.delta output_text.done content_part.done output_item.done completed") ||
		words != "It is late" || last.Response == nil || last.Response.Output[0].Content[0].Text != "It is late" ||
		last.Response.Usage.Total != 3 {
		t.Errorf("%s", text)
	}
	_, _, text = w.do("POST", "/v1/responses", `{"model":"assistant","stream":true,"input":"fail"}`)
	if kinds, _, last := readEvents(text); kinds[len(kinds)-1] != "response.failed" || last.Response.Error == nil ||
		last.Response.Error.Message != "no answer" {
		t.Errorf("%s", text)
	}
}
