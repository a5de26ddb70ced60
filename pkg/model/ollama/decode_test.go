package ollama

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"conclave/pkg/model"
)

func TestDecode(t *testing.T) {
	t.Parallel()
	r, ok := decode([]byte(` {"model":"m","remote_host":"h","created_at":"2026","message":{"role":"assistant","content":"a\n\"\u00e9\ud83d\ude00\/","thinking":"t",
		"tool_calls":[{"id":"1","function":{"index":0,"name":"f","arguments": {"z": 1, "a": [true,null,-1.5e+3]}}},{"function":{"name":"g"}},{"function":{"name":"h","arguments":null}}]},
		"done":true,"done_reason":"length","total_duration":7,"load_duration":6,"prompt_eval_count":5,"eval_count":4,"other":{"a":[{}]}} `), "x")
	if !ok {
		t.Fatal("not read")
	}
	want := model.Chunk{
		Content: "a\n\"é😀/", Thinking: "t", Done: true,
		Calls: []model.Call{
			{ID: "1", Name: "f", Arguments: json.RawMessage(`{"z": 1, "a": [true,null,-1.5e+3]}`)},
			{Name: "g", Arguments: json.RawMessage(`{}`)},
			{Name: "h", Arguments: json.RawMessage(`{}`)},
		},
		Final: model.Final{
			Model: "m", Reason: "length", PromptTokens: 5, OutputTokens: 4, Total: 7 * time.Nanosecond, Load: 6, RemoteHost: "h",
		},
	}
	if !reflect.DeepEqual(r.chunk, want) {
		t.Errorf("got  %+v\nwant %+v", r.chunk, want)
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		``, `{`, `{}{}`, `{} x`, `[]`, `"x"`, `null`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{,}`, `{"a":01}`, `{"a":-}`, `{"a":1.}`, `{"a":1e}`,
		`{"a":tru}`, `{"a":"\x"}`, `{"a":"\u12g4"}`, `{"a":"\u12`, `{"a":"` + "\x01" + `"}`, `{"done":1}`, `{"eval_count":"3"}`,
		`{"eval_count":1.5}`, `{"eval_count":99999999999999999999}`, `{"message":[]}`, `{"message":{"tool_calls":{}}}`, `{'a':1}`,
		`{"a":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`, `{"a":"\`,
	} {
		if r, ok := decode([]byte(s), "m"); ok {
			t.Errorf("%.60q is read as %+v", s, r)
		}
	}
}

// FuzzDecode gives it anything: what it reads must be JSON, and say what encoding/json says.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{"message":{"content":"a\u00e9\ud800x"},"done":true}`, `{"error":"x"}`, `{"message":{"tool_calls":[{"id":"a","function":{"arguments":{}}}]}}`,
		"{\"message\":{\"content\":\"\xff\xfe\"}}", `{"eval_count":-0}`, `{"a":[1,2,{"b":null}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		r, ok := decode(line, "m")
		if !ok {
			return
		}
		if !json.Valid(line) {
			t.Fatalf("%q is no JSON", line)
		}
		for _, c := range r.chunk.Calls {
			if !json.Valid(c.Arguments) {
				t.Fatalf("arguments %q", c.Arguments)
			}
		}
		// A map keeps keys apart by their letters, as decode does; a struct would not.
		var top map[string]any
		if err := json.Unmarshal(line, &top); err != nil {
			t.Fatal(err)
		}
		message, _ := top["message"].(map[string]any)
		if want, _ := message["content"].(string); strings.Count(string(line), "message") == 1 &&
			strings.Count(string(line), "content") == 1 && !strings.Contains(string(line), `\u00`) && r.chunk.Content != want {
			t.Fatalf("content %q, want %q", r.chunk.Content, want)
		}
	})
}

// FuzzStrings sends a text through both of our directions, and through encoding/json.
func FuzzStrings(f *testing.F) {
	for _, s := range []string{
		"", "plain ascii text of more than eight letters", "q\"b\\s/\n\r\t\b\f", "\x00\x1f\x7f\x80\xff", "é日本😀\u2028", "12345678\"", "1234567\xff8",
		"\xed\xa0\x80", "ABCDEFGH\x01", "        \\       ",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ours := appendString(nil, s)
		var got string
		if err := json.Unmarshal(ours, &got); err != nil {
			t.Fatalf("%q is no JSON: %v", ours, err)
		}
		theirs, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var want string
		if err := json.Unmarshal(theirs, &want); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%q is written as %q, which is %q", s, ours, got)
		}
		for _, written := range [][]byte{ours, theirs} {
			sc := scanner{b: written}
			if read := sc.text(""); sc.bad || read != want {
				t.Errorf("%q is read as %q, want %q", written, read, want)
			}
		}
	})
}
