// Package conformance is the test suite that every model backend must pass. It is separate from package scriptserver
// because it imports testing, which the program must not link.
package conformance

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/pkg/model"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/scriptserver"
)

// Profile describes a backend under test. The flags name what its protocol cannot express, and skip or relax the tests
// of that; the zero value is a protocol that can express everything, like Ollama's.
type Profile struct {
	// New returns a backend for the server at url.
	New func(t *testing.T, url string) model.Backend
	// Protocol is served in addition to Ollama's; nil = none.
	Protocol scriptserver.Protocol

	NoDurations  bool // replies do not report durations
	NoWindow     bool // requests have no option for the context window
	NoSeed       bool // requests have no option for a seed
	NoRemoteHost bool // replies do not report forwarding
	NoCapability bool // Show does not report capabilities
	NoKeepAlive  bool // requests have no option for keep_alive
	NoEmbed      bool // Embed returns ErrUnsupported
	NoPull       bool // Pull returns ErrUnsupported
}

// ModelName is the name of the model in all tests.
const ModelName = "suite:1b"

// Run runs all tests that the protocol of p can express.
func Run(t *testing.T, p Profile) {
	t.Helper()
	s := suite{p}
	for _, c := range append(s.replyTests(), []suiteTest{
		{"contract", s.testContract, false},
		{"answer", s.testAnswer, false},
		{"think option", s.testThinkOption, false},
		{"several calls", s.testThreeCalls(scriptserver.Quirks{}), false},
		{"calls in last chunk", s.testThreeCalls(scriptserver.Quirks{CallsLast: true}), false},
		{"calls in separate chunks", s.testThreeCalls(scriptserver.Quirks{CallsSplit: true}), false},
		{"conversation", s.testConversation, false},
		{"images", s.testImages, false},
		{"options", s.testOptions, false},
		{"format", s.testFormat, false},
		{"large prompt", s.testLargePrompt, false},
		{"special characters", s.testSpecialCharacters, false},
		{"invalid UTF-8", s.testInvalidUTF8, false},
		{"rejected requests", s.testRejectedRequests, false},
		{"busy", s.testBusy, false},
		{"invalid body", s.testInvalidBody, false},
		{"connection lost", s.testConnectionLost, false},
		{"stream without done", s.testStreamWithoutDone, false},
		{"cancel before reply", s.testCancelBeforeReply, false},
		{"cancel stream", s.testCancelStream, false},
		{"deadline", s.testDeadline, false},
		{"stop iterating", s.testStopIterating, false},
		{"unreachable", s.testUnreachable, false},
		{"model info", s.testModelInfo, p.NoCapability},
		{"missing model", s.testMissingModel, false},
		{"embeddings", s.testEmbeddings, p.NoEmbed},
		{"pull", s.testPull, p.NoPull},
	}...) {
		if c.skip {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t)
		})
	}
}

type suite struct{ p Profile }

// suiteTest is one test of the suite.
type suiteTest struct {
	name string
	run  func(*testing.T)
	skip bool
}

// replyTests are the tests of what a backend returns of one reply, streamed and not.
func (s suite) replyTests() []suiteTest {
	const size = 3 << 20
	ordered := `{"zebra":1,"ant":"2","mouse":[3,4],"bee":null,"yak":true}`
	return []suiteTest{
		{"thinking", s.expect(scriptserver.Reply{Thinking: "A fish, I think.", Content: "A fish."},
			func(m model.Message, _ model.Final) bool {
				return m.Thinking == "A fish, I think." && m.Content == "A fish."
			}), false},
		{"tool call", s.expect(scriptserver.Reply{Calls: []scriptserver.Call{
			{ID: "call_7", Name: "look", Arguments: map[string]any{"what": "the \"fish\" <é>\n"}},
		}}, func(m model.Message, _ model.Final) bool {
			var args map[string]string
			return len(m.Calls) == 1 && m.Calls[0].Name == "look" && m.Calls[0].ID == "call_7" &&
				json.Unmarshal(m.Calls[0].Arguments, &args) == nil && args["what"] == "the \"fish\" <é>\n"
		}), false},
		{"calls without ids", s.expect(scriptserver.Reply{
			Calls: []scriptserver.Call{{Name: "look"}, {Name: "look"}}, Quirks: scriptserver.Quirks{NoIDs: true},
		}, func(m model.Message, _ model.Final) bool { return len(m.Calls) == 2 && m.Calls[0].ID == "" }), false},
		{"argument key order", s.expect(scriptserver.Reply{Calls: []scriptserver.Call{{Name: "look", JSON: ordered}}},
			func(m model.Message, _ model.Final) bool {
				return strings.ReplaceAll(string(m.Calls[0].Arguments), " ", "") == ordered
			}), false},
		{"token counts", s.expect(scriptserver.Reply{Content: "a fish", Prompt: 321, Output: 45},
			func(_ model.Message, f model.Final) bool {
				return f.PromptTokens == 321 && f.OutputTokens == 45 && f.Reason != "" &&
					(s.p.NoDurations || f.Total > 0 && f.Load > 0)
			}), false},
		{"remote host", s.expect(scriptserver.Reply{
			Content: "hi", Quirks: scriptserver.Quirks{RemoteHost: "https://ollama.com:443"},
		}, func(_ model.Message, f model.Final) bool {
			return f.RemoteHost == "https://ollama.com:443"
		}), s.p.NoRemoteHost},
		{"output limit", s.expect(scriptserver.Reply{
			Content: strings.Repeat("word ", 600), Quirks: scriptserver.Quirks{Length: true},
		}, func(m model.Message, f model.Final) bool {
			return f.Reason == "length" && f.OutputTokens == 512 && len(strings.Fields(m.Content)) == 512
		}), false},
		// the loop detects a lost call by the tokens
		{"empty reply", s.expect(scriptserver.Reply{
			Calls: []scriptserver.Call{{Name: "look"}}, Quirks: scriptserver.Quirks{DropCall: true}, Output: 9,
		}, func(m model.Message, f model.Final) bool {
			return m.Content == "" && m.Thinking == "" && len(m.Calls) == 0 && f.OutputTokens == 9
		}), false},
		{"large reply", s.expect(scriptserver.Reply{
			Content: "fish and chips ", Quirks: scriptserver.Quirks{Bytes: size},
		}, func(m model.Message, _ model.Final) bool {
			return len(m.Content) == size && strings.Trim(m.Content, "fishandcp ") == ""
		}), false},
		{"error in stream", s.expectError(scriptserver.Reply{Content: "Let me ", Quirks: scriptserver.Quirks{
			ErrorLine: "error parsing tool call: raw='{', err=unexpected end of JSON input",
		}}, model.ErrMalformed), false},
	}
}

// expect returns the test that isRight accepts what the backend returns of a reply.
func (s suite) expect(reply scriptserver.Reply, isRight func(model.Message, model.Final) bool) func(*testing.T) {
	return func(t *testing.T) {
		s.runBothModes(t, reply, func(t *testing.T, m model.Message, f model.Final, err error) {
			requireNoError(t, err)
			if !isRight(m, f) {
				t.Errorf("got %.2000q, thinking %q, calls %+v, %+v", m.Content, m.Thinking, m.Calls, f)
			}
		})
	}
}

// expectError returns the test that a reply is the error want.
func (s suite) expectError(reply scriptserver.Reply, want error) func(*testing.T) {
	return func(t *testing.T) {
		s.runBothModes(t, reply, func(t *testing.T, _ model.Message, _ model.Final, err error) {
			requireError(t, err, want)
		})
	}
}

// startBackend starts a server with the exchanges as its script, and returns a backend for it.
func (s suite) startBackend(t *testing.T, exchanges ...scriptserver.Exchange) (model.Backend, *scriptserver.Server) {
	t.Helper()
	var opts []scriptserver.Option
	if s.p.Protocol != nil {
		opts = append(opts, scriptserver.WithProtocol(s.p.Protocol))
	}
	server := modeltest.New(t, scriptserver.Script{ModelName: exchanges}, opts...)
	return s.p.New(t, server.URL), server
}

// runBothModes requests the reply streamed and not streamed, each in a subtest, and passes the result to check.
func (s suite) runBothModes(t *testing.T, reply scriptserver.Reply, check func(*testing.T, model.Message, model.Final,
	error),
) {
	t.Helper()
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprintf("stream=%t", stream), func(t *testing.T) {
			t.Parallel()
			b, _ := s.startBackend(t, scriptserver.Exchange{Reply: reply})
			m, f, err := collectReply(t, b, newRequest(stream))
			check(t, m, f, err)
		})
	}
}

func newRequest(stream bool) model.Request {
	return model.Request{
		Model: ModelName, Stream: stream, Tools: []model.Tool{newTool("look", "what"), newTool("weigh", "what")},
		Messages: []model.Message{
			{Role: model.System, Content: "Be brief."},
			{Role: model.User, Content: "What is it?"},
		},
		Options: model.Options{Window: 4096, Predict: 512},
	}
}

func newTool(name, param string) model.Tool {
	return model.Tool{
		Name: name, Description: name + " at something",
		Parameters: json.RawMessage(`{"type":"object","properties":{"` + param +
			`":{"type":"string","description":"what to ` +
			name + ` at"}},"required":["` + param + `"]}`),
	}
}

// collectReply collects a reply and fails the test if the sequence of chunks violates the contract of [model.Chat].
func collectReply(t *testing.T, b model.Chat, r model.Request) (model.Message, model.Final, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var chunks []model.Chunk
	var failed error
	for c, err := range b.Chat(ctx, r) {
		if failed != nil {
			t.Fatal("chunk after an error")
		}
		if len(chunks) > 0 && chunks[len(chunks)-1].Done {
			t.Fatal("chunk after the last")
		}
		failed = err
		if err == nil {
			chunks = append(chunks, c)
		}
	}
	if failed == nil {
		switch {
		case len(chunks) == 0 || !chunks[len(chunks)-1].Done:
			t.Fatal("the reply ended without its last chunk and without an error")
		case !r.Stream && len(chunks) != 1:
			t.Fatalf("%d chunks of a reply that is not streamed", len(chunks))
		}
	}
	m, f, err := model.Collect(func(yield func(model.Chunk, error) bool) {
		for _, c := range chunks {
			if !yield(c, nil) {
				return
			}
		}
		if failed != nil {
			yield(model.Chunk{}, failed)
		}
	})
	return m, f, err
}

func requireNoError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// requireError checks that err wraps the sentinel error want and adds details.
func requireError(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want %v", err, want)
	}
	if err.Error() == want.Error() {
		t.Errorf("error %q has no details", err)
	}
}

func (s suite) testContract(t *testing.T) {
	b, _ := s.startBackend(t,
		scriptserver.Exchange{Always: true, Reply: scriptserver.Reply{Thinking: "hm", Content: "It is a suite."}})
	embedder := "nomic-embed-text"
	if s.p.NoEmbed {
		embedder = ""
	}
	RunContract(t, b, ModelName, embedder)
}

func (s suite) testAnswer(t *testing.T) {
	s.expect(scriptserver.Reply{Content: "It is a very small fish."}, func(m model.Message, f model.Final) bool {
		return m.Content == "It is a very small fish." && m.Role == model.Assistant && len(m.Calls) == 0 &&
			m.Thinking == "" && f.Model == ModelName
	})(t)
	b, _ := s.startBackend(t, scriptserver.Exchange{Reply: scriptserver.Reply{Content: "one two three four"}})
	chunks := 0
	for _, err := range b.Chat(t.Context(), newRequest(true)) {
		requireNoError(t, err)
		chunks++
	}
	if chunks < 4 {
		t.Errorf("four words were streamed in %d chunks", chunks)
	}
}

func (s suite) testThinkOption(t *testing.T) {
	b, server := s.startBackend(t, scriptserver.Exchange{Always: true, Reply: scriptserver.Reply{Content: "yes"}})
	yes, no := true, false
	for _, think := range []*bool{&yes, &no, nil} {
		r := newRequest(false)
		r.Think = think
		_, _, err := collectReply(t, b, r)
		requireNoError(t, err)
	}
	seen := server.Requests()
	if a := seen[0].Think; a == nil || !*a {
		t.Error("think true does not arrive")
	}
	if a := seen[1].Think; a == nil || *a {
		t.Error("think false does not arrive")
	}
	if seen[2].Think != nil {
		t.Error("think is set although the request does not set it")
	}
}

// testThreeCalls tests a reply with text and three calls.
func (s suite) testThreeCalls(q scriptserver.Quirks) func(*testing.T) {
	reply := scriptserver.Reply{Content: "Let me look twice.", Quirks: q, Calls: []scriptserver.Call{
		{Name: "look", Arguments: map[string]any{"what": "head"}},
		{Name: "look", Arguments: map[string]any{"what": "tail"}},
		{Name: "weigh"},
	}}
	return s.expect(reply, func(m model.Message, _ model.Final) bool {
		var got []string
		ids := make(map[string]bool)
		for _, c := range m.Calls {
			got = append(got, c.Name+strings.ReplaceAll(string(c.Arguments), " ", ""))
			ids[c.ID] = true
		}
		return slices.Equal(got, []string{`look{"what":"head"}`, `look{"what":"tail"}`, `weigh{}`}) && len(ids) == 3 &&
			m.Content == "Let me look twice."
	})
}

// testImages sends two images with a question: the server receives their bytes, in order, and the text.
func (s suite) testImages(t *testing.T) {
	b, server := s.startBackend(t, scriptserver.Exchange{Reply: scriptserver.Reply{Content: "A heron."}})
	r := newRequest(false)
	last := &r.Messages[len(r.Messages)-1]
	last.Images = []model.Image{
		{Type: "image/png", Data: []byte("\x89PNG first")},
		{Type: "image/jpeg", Data: []byte("\xff\xd8 second")},
	}
	m, _, err := collectReply(t, b, r)
	requireNoError(t, err)
	raw := string(server.Requests()[0].Raw)
	at := 0
	for _, i := range last.Images {
		n := strings.Index(raw[at:], base64.StdEncoding.EncodeToString(i.Data))
		if n < 0 {
			t.Fatalf("%s is not in the request, or not in order: %s", i.Data, raw)
		}
		at += n
	}
	if m.Content != "A heron." || !strings.Contains(raw, last.Content) {
		t.Errorf("answer %q to %s", m.Content, raw)
	}
}

// testConversation sends every field of a message and compares the messages that the server received.
func (s suite) testConversation(t *testing.T) {
	b, server := s.startBackend(t, scriptserver.Exchange{Reply: scriptserver.Reply{Content: "Three grams and " +
		"{{tool_result 1}}; you asked {{last_user}}"}})
	r := newRequest(false)
	r.Messages = append(
		r.Messages,
		model.Message{Role: model.Assistant, Content: "I look.", Calls: []model.Call{
			{ID: "call_1", Name: "look", Arguments: json.RawMessage(`{"what":"fish","at":"the tail"}`)},
			{ID: "call_2", Name: "weigh", Arguments: json.RawMessage(`{"what":"fish"}`)},
		}},
		model.Message{Role: model.ToolRole, Content: "a tail \"fin\"\n", ToolName: "look", CallID: "call_1"},
		model.Message{Role: model.ToolRole, Content: "3 g", ToolName: "weigh", CallID: "call_2"},
	)
	m, _, err := collectReply(t, b, r)
	requireNoError(t, err)
	if m.Content != "Three grams and 3 g; you asked What is it?" {
		t.Errorf("answer %q", m.Content)
	}
	seen := server.Requests()[0]
	if len(seen.Messages) != len(r.Messages) {
		t.Fatalf("%d messages arrived of %d: %+v", len(seen.Messages), len(r.Messages), seen.Messages)
	}
	for i, got := range seen.Messages {
		want := r.Messages[i]
		if got.Role != want.Role || got.Content != want.Content || got.ToolName != want.ToolName ||
			got.CallID != want.CallID {
			t.Errorf("message %d arrived as %+v, sent %+v", i, got, want)
		}
		s.checkCalls(t, got.Calls, want.Calls)
	}
	s.checkTools(t, seen.Tools, r.Tools)
}

func (s suite) checkCalls(t *testing.T, got, want []model.Call) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("calls arrived as %+v, sent %+v", got, want)
	}
	for i := range got {
		if got[i].Name != want[i].Name || got[i].ID != want[i].ID {
			t.Errorf("call arrived as %+v, sent %+v", got[i], want[i])
		}
		if string(got[i].Arguments) != string(want[i].Arguments) {
			t.Errorf("arguments arrived as %s, sent %s", got[i].Arguments, want[i].Arguments)
		}
	}
}

func (s suite) checkTools(t *testing.T, got, want []model.Tool) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("tools arrived as %+v", got)
	}
	for i := range got {
		if got[i].Name != want[i].Name || got[i].Description != want[i].Description ||
			!equalJSON(got[i].Parameters, want[i].Parameters) {
			t.Errorf("tool arrived as %+v, sent %+v", got[i], want[i])
		}
	}
}

func equalJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && fmt.Sprint(x) == fmt.Sprint(y)
}

func (s suite) testOptions(t *testing.T) {
	b, server := s.startBackend(t, scriptserver.Exchange{Reply: scriptserver.Reply{Content: "yes"}})
	r := newRequest(false)
	temperature, seed := 0.25, 42
	r.Options = model.Options{
		Window: 8192, Predict: 77, Temperature: &temperature, Seed: &seed, Stop: []string{"END"}, KeepAlive: "-1",
	}
	_, _, err := collectReply(t, b, r)
	requireNoError(t, err)
	o := server.Requests()[0].Options
	if o.Predict != 77 || o.Temperature == nil || math.Abs(*o.Temperature-0.25) > 1e-6 ||
		!slices.Equal(o.Stop, r.Options.Stop) {
		t.Errorf("options arrived as %+v", o)
	}
	if !s.p.NoWindow && o.Window != 8192 {
		t.Errorf("window arrived as %d", o.Window)
	}
	if !s.p.NoSeed && (o.Seed == nil || *o.Seed != 42) {
		t.Errorf("seed arrived as %v", o.Seed)
	}
	if !s.p.NoKeepAlive && o.KeepAlive != "-1" {
		t.Errorf("keep alive arrived as %q", o.KeepAlive)
	}
}

func (s suite) testFormat(t *testing.T) {
	b, server := s.startBackend(t, scriptserver.Exchange{Reply: scriptserver.Reply{Content: `{"grade":4}`}})
	r := newRequest(false)
	r.Tools = nil
	r.Format = json.RawMessage(`{"type":"object","properties":{"grade":{"type":"integer"}},"required":["grade"]}`)
	m, _, err := collectReply(t, b, r)
	requireNoError(t, err)
	if m.Content != `{"grade":4}` {
		t.Errorf("answer %q", m.Content)
	}
	if got := server.Requests()[0].Format; !equalJSON(got, r.Format) {
		t.Errorf("format arrived as %s", got)
	}
}

func (s suite) testLargePrompt(t *testing.T) {
	b, server := s.startBackend(t, scriptserver.Exchange{Reply: scriptserver.Reply{Content: "long"}})
	r := newRequest(false)
	r.Messages[1].Content = strings.Repeat("is it a \"fish\"?\n", 1<<17)
	_, _, err := collectReply(t, b, r)
	requireNoError(t, err)
	if got := server.Requests()[0].Messages[1].Content; got != r.Messages[1].Content {
		t.Errorf("%d bytes arrived of %d, or others", len(got), len(r.Messages[1].Content))
	}
}

const specialCharacters = "quote \" slash \\ tab \t line\n nul-ish \x01 é 日本 😀 \u2028 </script> & \u007f {{not us}} end"

func (s suite) testSpecialCharacters(t *testing.T) {
	b, server := s.startBackend(t,
		scriptserver.Exchange{Always: true, Reply: scriptserver.Reply{
			Content: "{{last_user}}",
			Quirks:  scriptserver.Quirks{ChunkRunes: 1},
		}})
	for _, stream := range []bool{true, false} {
		r := newRequest(stream)
		r.Messages[1].Content = specialCharacters
		m, _, err := collectReply(t, b, r)
		requireNoError(t, err)
		if m.Content != specialCharacters {
			t.Errorf("returned as %q", m.Content)
		}
	}
	if got := server.Requests()[0].Messages[1].Content; got != specialCharacters {
		t.Errorf("arrived as %q", got)
	}
}

// testInvalidUTF8 checks that invalid bytes do not fail the reply and arrive as U+FFFD: the bus requires UTF-8.
func (s suite) testInvalidUTF8(t *testing.T) {
	s.expect(scriptserver.Reply{Content: "fish", Quirks: scriptserver.Quirks{BadUTF8: true}},
		func(m model.Message, _ model.Final) bool { return m.Content == "fish\uFFFD\uFFFD" })(t)
	b, server := s.startBackend(t, scriptserver.Exchange{Reply: scriptserver.Reply{Content: "ok"}})
	r := newRequest(false)
	r.Messages[1].Content = "a\xffb"
	_, _, err := collectReply(t, b, r)
	requireNoError(t, err)
	if got := server.Requests()[0].Messages[1].Content; got != "a\uFFFDb" {
		t.Errorf("arrived as %q", got)
	}
}

func (s suite) testRejectedRequests(t *testing.T) {
	for _, c := range []struct {
		name   string
		quirks scriptserver.Quirks
		want   error
	}{
		{"tools", scriptserver.Quirks{RefuseTools: true}, model.ErrNoTools},
		{"thinking", scriptserver.Quirks{RefuseThink: true}, model.ErrNoThinking},
		{"too long", scriptserver.Quirks{TooLong: true}, model.ErrTooLong},
		{
			"key",
			scriptserver.Quirks{Status: http.StatusUnauthorized, ErrorLine: "unauthorized"},
			model.ErrUnauthorized,
		},
	} {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s stream=%t", c.name, stream), func(t *testing.T) {
				t.Parallel()
				b, _ := s.startBackend(t, scriptserver.Exchange{Reply: scriptserver.Reply{Quirks: c.quirks}})
				r := newRequest(stream)
				think := true
				r.Think = &think
				_, _, err := collectReply(t, b, r)
				requireError(t, err, c.want)
			})
		}
	}
}

func (s suite) testBusy(t *testing.T) {
	b, _ := s.startBackend(t,
		scriptserver.Exchange{Reply: scriptserver.Reply{Content: "now", Quirks: scriptserver.Quirks{Busy: 1}}})
	_, _, err := collectReply(t, b, newRequest(false))
	requireError(t, err, model.ErrBusy)
	m, _, err := collectReply(t, b, newRequest(false))
	requireNoError(t, err)
	if m.Content != "now" {
		t.Errorf("answer %q", m.Content)
	}
}

func (s suite) testInvalidBody(t *testing.T) {
	s.runBothModes(t, scriptserver.Reply{Content: "hi", Quirks: scriptserver.Quirks{Garbage: true}},
		func(t *testing.T, _ model.Message, _ model.Final, err error) {
			if !errors.Is(err, model.ErrMalformed) && !errors.Is(err, model.ErrCut) {
				t.Errorf("error %v", err)
			}
		})
}

func (s suite) testConnectionLost(t *testing.T) {
	reply := scriptserver.Reply{Content: "one two three", Quirks: scriptserver.Quirks{CutAfter: 2}}
	s.expectError(reply, model.ErrCut)(t)
	b, _ := s.startBackend(t, scriptserver.Exchange{Reply: reply})
	m, _, err := collectReply(t, b, newRequest(true))
	requireError(t, err, model.ErrCut)
	if m.Content != "one two" {
		t.Errorf("received %q before the connection was lost", m.Content)
	}
}

func (s suite) testStreamWithoutDone(t *testing.T) {
	b, _ := s.startBackend(t,
		scriptserver.Exchange{Reply: scriptserver.Reply{Content: "one two", Quirks: scriptserver.Quirks{NoDone: true}}})
	_, _, err := collectReply(t, b, newRequest(true))
	requireError(t, err, model.ErrCut)
}

// waitForDisconnect waits until the server has noticed that its client disconnected.
func waitForDisconnect(t *testing.T, server *scriptserver.Server) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		if c := server.Stats(); c.Cancelled == 1 && c.Running == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the server did not notice the disconnect: %+v", server.Stats())
		}
		time.Sleep(time.Millisecond)
	}
}

func (s suite) testCancelBeforeReply(t *testing.T) {
	for _, stream := range []bool{true, false} {
		b, server := s.startBackend(t,
			scriptserver.Exchange{Reply: scriptserver.Reply{Quirks: scriptserver.Quirks{Hang: true}}})
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			for server.Stats().Running == 0 && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			cancel()
		}()
		_, _, err := model.Collect(b.Chat(ctx, newRequest(stream)))
		cancel()
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		waitForDisconnect(t, server)
	}
}

func (s suite) testCancelStream(t *testing.T) {
	reply := scriptserver.Reply{Content: "one two three four", Quirks: scriptserver.Quirks{TokenDelay: 5 * time.Second}}
	b, server := s.startBackend(t, scriptserver.Exchange{Reply: reply})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var failed error
	for c, err := range b.Chat(ctx, newRequest(true)) {
		failed = err
		if c.Content != "" {
			cancel()
		}
	}
	if !errors.Is(failed, context.Canceled) {
		t.Errorf("error %v", failed)
	}
	waitForDisconnect(t, server)
}

func (s suite) testDeadline(t *testing.T) {
	b, server := s.startBackend(t,
		scriptserver.Exchange{Reply: scriptserver.Reply{Quirks: scriptserver.Quirks{Hang: true}}})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, _, err := model.Collect(b.Chat(ctx, newRequest(false)))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	if server.Stats().Started > 0 {
		waitForDisconnect(t, server)
	}
}

func (s suite) testStopIterating(t *testing.T) {
	reply := scriptserver.Reply{Content: "one two three four", Quirks: scriptserver.Quirks{TokenDelay: 5 * time.Second}}
	b, server := s.startBackend(t, scriptserver.Exchange{Reply: reply})
	for c, err := range b.Chat(t.Context(), newRequest(true)) {
		requireNoError(t, err)
		if c.Content != "" {
			break
		}
	}
	waitForDisconnect(t, server)
}

func (s suite) testUnreachable(t *testing.T) {
	server := modeltest.New(t, nil)
	server.Close()
	b := s.p.New(t, server.URL)
	_, _, err := collectReply(t, b, newRequest(false))
	requireError(t, err, model.ErrUnreachable)
	if !strings.Contains(err.Error(), strings.TrimPrefix(server.URL, "http://")) {
		t.Errorf("error %q does not name the server", err)
	}
	if _, err := b.List(t.Context()); !errors.Is(err, model.ErrUnreachable) && !errors.Is(err, model.ErrUnsupported) {
		t.Errorf("list: %v", err)
	}
}

func (s suite) testModelInfo(t *testing.T) {
	b, server := s.startBackend(t, scriptserver.Exchange{Always: true})
	server.SetModel(scriptserver.Model{
		Name: "plain:7b", Family: "fish", Parameters: "7B", Window: 2048, Size: 12345,
		Loaded: true,
	})
	server.SetModel(scriptserver.Model{
		Name: "seer:7b", Family: "fish", Window: 4096, Tools: true, Thinking: true,
		Vision: true,
	})
	all, err := b.List(t.Context())
	requireNoError(t, err)
	i := slices.IndexFunc(all, func(m model.Info) bool { return m.Name == "plain:7b" })
	if i < 0 || len(all) != len(server.Models()) {
		t.Fatalf("list %+v", all)
	}
	if m := all[i]; m.Size != 12345 || !m.Loaded || m.Family != "fish" || m.Parameters != "7B" {
		t.Errorf("plain:7b is %+v", m)
	}
	poor, err := b.Show(t.Context(), "plain:7b")
	requireNoError(t, err)
	if poor.Tools || poor.Thinking || poor.Vision || poor.Embedding || poor.Window != 2048 {
		t.Errorf("plain:7b is %+v", poor)
	}
	rich, err := b.Show(t.Context(), "seer:7b")
	requireNoError(t, err)
	if !rich.Tools || !rich.Thinking || !rich.Vision || rich.Embedding || rich.Window != 4096 {
		t.Errorf("seer:7b is %+v", rich)
	}
}

func (s suite) testMissingModel(t *testing.T) {
	b, _ := s.startBackend(t, scriptserver.Exchange{Always: true})
	for _, stream := range []bool{true, false} {
		r := newRequest(stream)
		r.Model = "absent:3b"
		_, _, err := collectReply(t, b, r)
		requireError(t, err, model.ErrMissing)
		if !strings.Contains(err.Error(), "absent:3b") {
			t.Errorf("error %q does not name the model", err)
		}
	}
	_, err := b.Show(t.Context(), "absent:3b")
	requireError(t, err, model.ErrMissing)
	if !s.p.NoEmbed {
		_, err := b.Embed(t.Context(), "absent:3b", []string{"x"})
		requireError(t, err, model.ErrMissing)
	}
}

func (s suite) testEmbeddings(t *testing.T) {
	b, server := s.startBackend(t)
	texts := []string{"search_query: " + specialCharacters, "", "a fish in the sea", "fish of the seas", "tax law"}
	v, err := b.Embed(t.Context(), "nomic-embed-text", texts)
	requireNoError(t, err)
	if len(v.Values) != len(texts) || len(v.Values[0]) != 768 {
		t.Fatalf("%d vectors", len(v.Values))
	}
	near, far := dotProduct(v.Values[2], v.Values[3]), dotProduct(v.Values[2], v.Values[4])
	if near < far+0.2 {
		t.Errorf("near %.2f, far %.2f: the vectors are not those of the texts", near, far)
	}
	if got := server.Requests()[0].Texts; !slices.Equal(got, texts) {
		t.Errorf("texts arrived as %q", got)
	}
}

func dotProduct(a, b []float32) float64 {
	var sum float64
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

func (s suite) testPull(t *testing.T) {
	b, _ := s.startBackend(t, scriptserver.Exchange{Always: true})
	var last model.Progress
	moved := false
	for p, err := range b.Pull(t.Context(), "fresh:1b") {
		requireNoError(t, err)
		moved = moved || p.Total > 0 && p.Completed == p.Total && p.Digest != ""
		last = p
	}
	if last.Status != "success" || !moved {
		t.Errorf("ended with %+v", last)
	}
	_, err := b.Show(t.Context(), "fresh:1b")
	requireNoError(t, err)
	var failed error
	for _, err := range b.Pull(t.Context(), "no-such-model") {
		failed = err
	}
	requireError(t, failed, model.ErrMissing)
	for range b.Pull(t.Context(), "other:1b") {
		break // must not hang or panic
	}
}

// RunContract runs the tests that need no script. name is a model that replies, embedder an embedding model; with
// embedder "" Embed must return [model.ErrUnsupported].
func RunContract(t *testing.T, b model.Backend, name, embedder string) {
	t.Helper()
	c := contract{b, name, embedder}
	for name, run := range map[string]func(*testing.T){
		"concurrent requests":    c.testConcurrentRequests,
		"repeated iteration":     c.testRepeatedIteration,
		"already cancelled":      c.testCancelledContext,
		"stop iterating at once": c.testStopIteratingAtOnce,
		"embed":                  c.testEmbed,
		"list and show":          c.testListAndShow,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t)
		})
	}
}

// contract holds the parameters of [RunContract].
type contract struct {
	backend        model.Backend
	name, embedder string
}

func (c contract) newRequest() model.Request {
	r := newRequest(true)
	r.Model, r.Tools = c.name, nil
	return r
}

func (c contract) testConcurrentRequests(t *testing.T) {
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			r := c.newRequest()
			r.Stream = i%2 == 0
			m, f, err := collectReply(t, c.backend, r)
			if err != nil || m.Content == "" || f.Model == "" {
				t.Errorf("got %+v, %+v, %v", m, f, err)
			}
		})
	}
	all.Wait()
}

func (c contract) testRepeatedIteration(t *testing.T) {
	r := c.newRequest()
	reply := c.backend.Chat(t.Context(), r)
	first, _, err := model.Collect(reply)
	requireNoError(t, err)
	second, _, err := model.Collect(reply)
	requireNoError(t, err)
	if first.Content != second.Content {
		t.Errorf("%q, then %q", first.Content, second.Content)
	}
}

func (c contract) testCancelledContext(t *testing.T) {
	r := c.newRequest()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := model.Collect(c.backend.Chat(ctx, r)); !errors.Is(err, context.Canceled) {
		t.Errorf("chat: %v", err)
	}
	if _, err := c.backend.Embed(ctx, c.embedder, []string{"x"}); !errors.Is(err, context.Canceled) &&
		c.embedder != "" {
		t.Errorf("embed: %v", err)
	}
}

func (c contract) testStopIteratingAtOnce(t *testing.T) {
	r := c.newRequest()
	for range c.backend.Chat(t.Context(), r) {
		break
	}
}

func (c contract) testEmbed(t *testing.T) {
	if c.embedder == "" {
		_, err := c.backend.Embed(t.Context(), c.name, []string{"x"})
		requireError(t, err, model.ErrUnsupported)
		return
	}
	none, err := c.backend.Embed(t.Context(), c.embedder, nil)
	requireNoError(t, err)
	if len(none.Values) != 0 {
		t.Errorf("%d vectors of no texts", len(none.Values))
	}
	v, err := c.backend.Embed(t.Context(), c.embedder, []string{"a fish", "a fish", "tax"})
	requireNoError(t, err)
	if len(v.Values) != 3 || v.Model == "" || !slices.Equal(v.Values[0], v.Values[1]) ||
		slices.Equal(v.Values[0], v.Values[2]) {
		t.Error("vectors are not those of the texts")
	}
}

func (c contract) testListAndShow(t *testing.T) {
	all, err := c.backend.List(t.Context())
	if errors.Is(err, model.ErrUnsupported) {
		return
	}
	requireNoError(t, err)
	if !slices.ContainsFunc(all, func(m model.Info) bool { return m.Name == c.name }) {
		t.Errorf("%s is not in the list %+v", c.name, all)
	}
	info, err := c.backend.Show(t.Context(), c.name)
	requireNoError(t, err)
	if info.Name != c.name {
		t.Errorf("show says %q", info.Name)
	}
}
