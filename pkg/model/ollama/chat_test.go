package ollama

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ollama/ollama/api"

	"conclave/pkg/model"
)

func TestDecodeChunk(t *testing.T) {
	t.Parallel()
	got, failed, err := decodeChunk([]byte(` {"model":"m","remote_host":"h","created_at":"2026",
	"message":{"role":"assistant","content":"a\n\"\u00e9\ud83d\ude00\/","thinking":"t",
		"tool_calls":[{"id":"1","function":{"index":0,"name":"f","arguments": {"z": 1, "a": [true,null,-1.5e+3]}}},
		{"function":{"name":"g"}},{"function":{"name":"h","arguments":null}}]},
		"done":true,"done_reason":"length","total_duration":7,"load_duration":6,"prompt_eval_count":5,
		"eval_count":4,"other":{"a":[{}]}} `))
	if err != nil || failed != "" {
		t.Fatal(failed, err)
	}
	want := model.Chunk{
		Content: "a\n\"é😀/", Thinking: "t", Done: true,
		Calls: []model.Call{
			{ID: "1", Name: "f", Arguments: json.RawMessage(`{"z": 1, "a": [true,null,-1.5e+3]}`)},
			{Name: "g", Arguments: json.RawMessage(`{}`)},
			{Name: "h", Arguments: json.RawMessage(`{}`)},
		},
		Final: model.Final{
			Model: "m", Reason: "length", PromptTokens: 5, OutputTokens: 4, Total: 7 * time.Nanosecond, Load: 6,
			RemoteHost: "h",
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// The remote host is known from the first chunk on; the rest of Final only belongs to the last.
func TestDecodeChunkBeforeTheLastHasOnlyTheRemoteHost(t *testing.T) {
	t.Parallel()
	got, _, err := decodeChunk([]byte(`{"model":"m","remote_host":"h","message":{"content":"a"},"eval_count":4}`))
	if want := (model.Chunk{Content: "a", Final: model.Final{RemoteHost: "h"}}); err != nil ||
		!reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

func TestDecodeChunkRejectsInvalidLines(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		``, `{`, `{}{}`, `{} x`, `[]`, `"x"`, `null`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{,}`, `{"a":01}`, `{"a":-}`,
		`{"a":1.}`, `{"a":1e}`,
		`{"a":tru}`, `{"a":"\x"}`, `{"a":"\u12g4"}`, `{"a":"\u12`, `{"a":"` + "\x01" + `"}`, `{"done":1}`,
		`{"eval_count":"3"}`,
		`{"eval_count":1.5}`, `{"eval_count":99999999999999999999}`, `{"message":[]}`, `{"message":{"tool_calls":{}}}`,
		`{'a':1}`,
		`{"a":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `}`, `{"a":"\`,
	} {
		if c, _, err := decodeChunk([]byte(s)); err == nil {
			t.Errorf("%.60q is decoded as %+v", s, c)
		}
	}
}

// FuzzDecode checks that an accepted line is a JSON object, that all arguments are JSON, and that texts are valid
// UTF-8.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{"message":{"content":"a\u00e9\ud800x"},"done":true}`, `{"error":"x"}`,
		`{"message":{"tool_calls":[{"id":"a","function":{"arguments":{}}}]}}`,
		"{\"message\":{\"content\":\"\xff\xfe\"}}", `{"eval_count":-0}`, `{"a":[1,2,{"b":null}]}`,
		`{"message":{"tool_calls":[null]}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		c, failed, err := decodeChunk(line)
		if err != nil {
			return
		}
		var object map[string]any
		if err := json.Unmarshal(line, &object); err != nil || object == nil {
			t.Fatalf("%q is not a JSON object: %v", line, err)
		}
		for _, call := range c.Calls {
			if !json.Valid(call.Arguments) {
				t.Fatalf("arguments %q", call.Arguments)
			}
		}
		for _, s := range []string{c.Content, c.Thinking, failed} {
			if strings.ToValidUTF8(s, "") != s {
				t.Fatalf("%q is not UTF-8", s)
			}
		}
	})
}

// FuzzChatRequest checks that any text and any arguments give a body that Ollama's own types decode, with the same
// text.
func FuzzChatRequest(f *testing.F) {
	for _, s := range []string{
		"", "plain", "q\"b\\s/\n\r\t\b\f<&>", "\x00\x1f\x7f\x80\xff", "é日本😀\u2028", "\xed\xa0\x80", `{"z":1,"a":{}}`,
		`{"half":`, `[]`, `{},"x":{}`, "{\"\xff\":{}}",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		body, err := encodeJSON(b.newChatRequest(model.Request{Model: s, Messages: []model.Message{
			{Role: model.Assistant, Content: s, Calls: []model.Call{{Name: s, Arguments: json.RawMessage(s)}}},
		}}))
		if err != nil {
			t.Fatal(err)
		}
		var got api.ChatRequest
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatalf("Ollama rejects %s: %v", body, err)
		}
		want := string([]rune(s)) // invalid bytes are U+FFFD
		if m := got.Messages[0]; got.Model != want || m.Content != want || len(m.ToolCalls) != 1 ||
			m.ToolCalls[0].Function.Name != want {
			t.Errorf("%q arrives as %+v", s, got)
		}
	})
}
