package loop_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/ollama"
	"conclave/pkg/model/scriptserver"
)

var tools = []model.Tool{{
	Name: "web_search", Description: "Search the web.",
	Parameters: json.RawMessage(
		`{"type":"object","properties":{"query":{"type":"string"},"limit":{"type":"integer"}},"required":["query"]}`),
}}

// startServer starts a scripted server and an agent on it.
func startServer(t *testing.T, stream bool, exchanges ...scriptserver.Exchange) (loop.Agent, *scriptserver.Server) {
	t.Helper()
	server := modeltest.New(t, scriptserver.Script{"m": exchanges})
	backend, err := ollama.New(ollama.Config{URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(backend.Close)
	think := true
	return loop.Agent{
		Chat: backend, Model: "m", System: "You help.", Tools: tools, Stream: stream, Think: &think,
		Options: model.Options{Window: 8192},
		RunTool: func(_ context.Context, c model.Call) loop.Result {
			return loop.Result{Text: "the result of " + string(c.Arguments)}
		},
	}, server
}

// TestServerQuirks has a row per quirk of real servers, streamed and not.
func TestServerQuirks(t *testing.T) {
	t.Parallel()
	call := []scriptserver.Call{{Name: "web_search", JSON: `{"query":"tea","limit":2}`}}
	looks := func(q scriptserver.Quirks) scriptserver.Exchange {
		return scriptserver.Exchange{Reply: scriptserver.Reply{Thinking: "needs data", Calls: call, Quirks: q}}
	}
	answers := scriptserver.Exchange{
		When:  scriptserver.When{LastRole: "tool"},
		Reply: scriptserver.Reply{Content: "Found: {{tool_result 0}}"},
	}
	const found = `Found: the result of {"query":"tea","limit":2}`
	plain := scriptserver.Exchange{Reply: scriptserver.Reply{Content: "Yes."}}
	tests := []struct {
		name   string
		script []scriptserver.Exchange
		answer string
		layer  string
		notes  []string
	}{
		{"native", []scriptserver.Exchange{looks(scriptserver.Quirks{}), answers}, found, loop.LayerNative, nil},
		{
			"calls in the last chunk",
			[]scriptserver.Exchange{looks(scriptserver.Quirks{CallsLast: true}), answers},
			found, loop.LayerNative, nil,
		},
		{
			"calls split",
			[]scriptserver.Exchange{looks(scriptserver.Quirks{CallsSplit: true}), answers},
			found,
			loop.LayerNative, nil,
		},
		{
			"no ids",
			[]scriptserver.Exchange{looks(scriptserver.Quirks{NoIDs: true}), answers},
			found, loop.LayerNative,
			nil,
		},
		{
			"think tags",
			[]scriptserver.Exchange{looks(scriptserver.Quirks{ThinkTags: true}), answers},
			found,
			loop.LayerNative, nil,
		},
		{
			"as JSON",
			[]scriptserver.Exchange{looks(scriptserver.Quirks{CallsAs: "json"}), answers},
			found,
			loop.LayerJSON,
			[]string{loop.NoteRecovered},
		},
		{"as JSON, rune by rune", []scriptserver.Exchange{
			looks(scriptserver.Quirks{CallsAs: "json", ChunkRunes: 1}),
			answers,
		}, found, loop.LayerJSON, []string{loop.NoteRecovered}},
		{
			"fenced",
			[]scriptserver.Exchange{looks(scriptserver.Quirks{CallsAs: "fenced"}), answers},
			found,
			loop.LayerJSON,
			[]string{loop.NoteRecovered},
		},
		{
			"as XML",
			[]scriptserver.Exchange{looks(scriptserver.Quirks{CallsAs: "xml"}), answers},
			found, loop.LayerXML,
			[]string{loop.NoteRecovered},
		},
		{
			"as text",
			[]scriptserver.Exchange{looks(scriptserver.Quirks{CallsAs: "text"}), answers},
			found,
			loop.LayerText,
			[]string{loop.NoteRecovered},
		},
		{
			"as text with think tags",
			[]scriptserver.Exchange{looks(scriptserver.Quirks{CallsAs: "text", ThinkTags: true}), answers},
			found,
			loop.LayerText,
			[]string{loop.NoteRecovered},
		},
		{"dropped call", []scriptserver.Exchange{
			{Reply: scriptserver.Reply{Quirks: scriptserver.Quirks{DropCall: true}}},
			{
				When:  scriptserver.When{LastRole: "user", LastContains: "could not be read"},
				Reply: scriptserver.Reply{Calls: call},
			},
			answers,
		}, found, loop.LayerNative, []string{loop.NoteRetried}},
		{"error line", []scriptserver.Exchange{
			{Reply: scriptserver.Reply{
				Content: "Well, ",
				Quirks:  scriptserver.Quirks{ErrorLine: "error parsing tool call: raw='{'"},
			}},
			plain,
		}, "Yes.", "", []string{loop.NoteRetried}},
		{
			"no done",
			[]scriptserver.Exchange{
				{Reply: scriptserver.Reply{Content: "Ye", Quirks: scriptserver.Quirks{NoDone: true}}}, plain,
			},
			"Yes.", "",
			[]string{loop.NoteRetried},
		},
		{
			"connection lost",
			[]scriptserver.Exchange{
				{Reply: scriptserver.Reply{Content: "Yes and no.", Quirks: scriptserver.Quirks{CutAfter: 1}}}, plain,
			},
			"Yes.", "",
			[]string{loop.NoteRetried},
		},
		{
			"length",
			[]scriptserver.Exchange{
				{Reply: scriptserver.Reply{Content: "Y", Quirks: scriptserver.Quirks{Length: true}}}, plain,
			},
			"Yes.", "",
			[]string{loop.NoteMoreTokens},
		},
		{
			"busy",
			[]scriptserver.Exchange{{Reply: scriptserver.Reply{Content: "Yes.", Quirks: scriptserver.Quirks{Busy: 1}}}},
			"Yes.", "", nil,
		},
		{
			"refuses thinking",
			[]scriptserver.Exchange{
				{Reply: scriptserver.Reply{Content: "Yes.", Quirks: scriptserver.Quirks{RefuseThink: true}}},
			},
			"Yes.", "",
			[]string{loop.NoteNoThinking},
		},
		{"refuses tools", []scriptserver.Exchange{
			{Reply: scriptserver.Reply{Calls: call, Quirks: scriptserver.Quirks{RefuseTools: true, CallsAs: "xml"}}},
			{When: scriptserver.When{
				NoTools: true, LastRole: "user", LastContains: "the result of",
				System: "<tool_call>",
			}, Reply: scriptserver.Reply{Content: "Found."}},
		}, "Found.", loop.LayerXML, []string{loop.NoteNoTools, loop.NoteRecovered}},
		{
			"too long once",
			[]scriptserver.Exchange{{Reply: scriptserver.Reply{Quirks: scriptserver.Quirks{TooLong: true}}}, plain},
			"Yes.", "", nil,
		},
		{
			"think tags in an answer",
			[]scriptserver.Exchange{
				{Reply: scriptserver.Reply{
					Thinking: "hm", Content: "Yes.",
					Quirks: scriptserver.Quirks{ThinkTags: true},
				}},
			},
			"Yes.", "", nil,
		},
	}
	for _, tt := range tests {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/stream=%v", tt.name, stream), func(t *testing.T) {
				t.Parallel()
				a, server := startServer(t, stream, tt.script...)
				var tokens strings.Builder
				s, err := loop.RunTurn(t.Context(), a, question("what about tea?"), loop.Hooks{
					Token: func(_ int, text string) { tokens.WriteString(text) },
				})
				if err != nil || s.Answer != tt.answer || s.Partial {
					t.Fatalf("answer %q (partial %v), error %v, notes %v", s.Answer, s.Partial, err, s.Notes)
				}
				var codes []string
				for _, n := range s.Notes {
					codes = append(codes, n.Code)
				}
				if !slices.Equal(codes, tt.notes) {
					t.Errorf("notes %v, want %q", s.Notes, tt.notes)
				}
				if tt.layer != "" && (len(s.Finished) != 1 || s.Finished[0].Layer != tt.layer ||
					string(s.Finished[0].Call.Arguments) != `{"query":"tea","limit":2}`) {
					t.Errorf("done %+v, want layer %q", s.Finished, tt.layer)
				}
				if !strings.HasSuffix(tokens.String(), tt.answer) || strings.Contains(tokens.String(), "think>") ||
					strings.Contains(tokens.String(), `"query":"tea"}`) {
					t.Errorf("tokens %q", tokens.String())
				}
				if left := server.Engine.Unused(); len(left) > 0 {
					t.Errorf("not asked for: %v", left)
				}
			})
		}
	}
}

func question(q string) loop.Input {
	return loop.Input{State: loop.State{Messages: []model.Message{{Role: model.User, Content: q}}}}
}

// Results go back in the order of the calls, with names and ids, and the thinking goes with them.
func TestResultsAreSentInOrder(t *testing.T) {
	t.Parallel()
	a, server := startServer(t, true,
		scriptserver.Exchange{Reply: scriptserver.Reply{Thinking: "two of them", Calls: []scriptserver.Call{
			{Name: "web_search", JSON: `{"limit":"2","query":"a"}`}, {Name: "web_search", JSON: `{"query":"b"}`},
		}}}, scriptserver.Exchange{Reply: scriptserver.Reply{Content: "{{tool_result 0}} and {{tool_result 1}}"}})
	s, err := loop.RunTurn(t.Context(), a, question("both?"), loop.Hooks{})
	want := `the result of {"limit":2,"query":"a"} and the result of {"query":"b"}`
	if err != nil || s.Answer != want {
		t.Fatalf("answer %q, error %v", s.Answer, err)
	}
	requests := server.Requests()
	if len(requests) != 2 {
		t.Fatalf("%d requests", len(requests))
	}
	ms := requests[1].Messages
	if len(ms) != 5 || ms[2].Thinking != "two of them" ||
		string(ms[2].Calls[0].Arguments) != `{"limit":2,"query":"a"}` {
		t.Errorf("messages %+v", ms)
	}
	for i, c := range ms[2].Calls {
		if m := ms[3+i]; m.Role != model.ToolRole || m.ToolName != "web_search" || m.CallID != c.ID || c.ID == "" {
			t.Errorf("result %d: %+v", i, m)
		}
	}
	if o := requests[0].Options; o.Window != 8192 || o.Predict != 2048 {
		t.Errorf("options %+v", o)
	}
}

// A stop ends the request at the server and keeps the text so far.
func TestStopReachesTheServer(t *testing.T) {
	t.Parallel()
	a, server := startServer(t, true, scriptserver.Exchange{Reply: scriptserver.Reply{
		Content: strings.Repeat("word ", 1000), Quirks: scriptserver.Quirks{TokenDelay: 50 * time.Millisecond},
	}})
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	stop := errors.New("stopped")
	s, err := loop.RunTurn(ctx, a, question("q"), loop.Hooks{Token: func(int, string) { cancel(stop) }})
	if !errors.Is(err, stop) || !s.Partial || !strings.HasPrefix(s.Answer, "word") ||
		s.Notes[0].Code != loop.NoteStopped {
		t.Errorf("error %v, state %+v", err, s)
	}
	for end := time.Now().Add(time.Minute); server.Stats().Cancelled == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the server still works on it")
		}
	}
}

// A reply beyond the byte limit ends the request.
func TestOversizedReplyEndsTheRequest(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{true, false} {
		a, _ := startServer(t, stream,
			scriptserver.Exchange{Reply: scriptserver.Reply{
				Content: "word", // one word, so that it does not repeat itself
				Quirks:  scriptserver.Quirks{Bytes: 200_000},
			}})
		a.Limits.ReplyBytes = 10_000
		s, err := loop.RunTurn(t.Context(), a, question("q"), loop.Hooks{})
		if err != nil || !s.Partial || len(s.Answer) > 10_000 || len(s.Answer) < 9_900 ||
			s.Notes[0].Code != loop.NoteCut {
			t.Errorf("stream %v: %d bytes, error %v, notes %v", stream, len(s.Answer), err, s.Notes)
		}
	}
}

func TestTruncatingServerIsNoted(t *testing.T) {
	t.Parallel()
	a, _ := startServer(t, true,
		scriptserver.Exchange{Reply: scriptserver.Reply{Content: "Yes.", Quirks: scriptserver.Quirks{Truncate: 300}}})
	s, err := loop.RunTurn(t.Context(), a, question(strings.Repeat("a long question ", 300)), loop.Hooks{})
	if err != nil || len(s.Notes) != 1 || s.Notes[0].Code != loop.NoteTruncated || s.Usage.Counted != 300 {
		t.Errorf("error %v, notes %v, usage %+v", err, s.Notes, s.Usage)
	}
}

func TestUnreachableServerFails(t *testing.T) {
	t.Parallel()
	a, server := startServer(t, true)
	server.Close()
	s, err := loop.RunTurn(t.Context(), a, question("q"), loop.Hooks{})
	if !errors.Is(err, model.ErrUnreachable) || s.Final {
		t.Errorf("error %v, state %+v", err, s)
	}
}
