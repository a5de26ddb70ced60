package remote

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"conclave/pkg/model"
)

const key = "sk-live-Zk3v9QmT7xW2pL5nR8+/="

func TestAddresses(t *testing.T) {
	t.Parallel()
	for address, ok := range map[string]bool{
		"http://localhost:8080": true, "https://models.example/v1/": true, "http://[::1]:1": true,
		"": false, "localhost:8080": false, "ftp://x": false, "http://": false, "/v1": false, "http://x:y": false,
		"http://user:hunter2222@x": false, "http://hunter2222@x": false, "http://x/?key=hunter2222": false,
		"http://x/#hunter2222":          false,
		"http://user:hunter2222@x:port": false, "http://x\x7f/hunter2222": false,
	} {
		_, err := New(Config{URL: address})
		if (err == nil) != ok {
			t.Errorf("%q: error %v", address, err)
		}
		if err != nil && strings.Contains(err.Error(), "hunter") {
			t.Errorf("%q: the error tells: %v", address, err)
		}
	}
}

// TestProxy: neither this machine nor a plain connection is reached through what the environment names.
func TestProxy(t *testing.T) {
	t.Parallel()
	through := &url.URL{Scheme: "http", Host: "proxy.example"}
	environment := func(*http.Request) (*url.URL, error) { return through, nil }
	for address, want := range map[string]*url.URL{
		"https://models.example/": through, "http://models.example/": nil, "https://localhost/": nil,
		"http://127.0.0.1:1/": nil, "https://[::1]/": nil,
	} {
		got, err := selectProxy(httptest.NewRequest(http.MethodGet, address, nil), environment)
		if err != nil || got != want {
			t.Errorf("%s goes through %v, %v", address, got, err)
		}
	}
}

// TestElsewhere: a path cannot change the address to which the key goes.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	hits := make(chan *http.Request, 10)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { hits <- r }))
	t.Cleanup(s.Close)
	c, err := New(Config{URL: "http://models.example", Header: "Authorization"})
	if err != nil {
		t.Fatal(err)
	}
	host := strings.TrimPrefix(s.URL, "http://")
	for _, path := range []string{"@" + host, "@" + host + "/v1"} {
		if _, _, err := c.Send(t.Context(), path, nil, RequestInfo{}); err == nil {
			t.Errorf("%s: no error", path)
		}
	}
	if len(hits) > 0 {
		t.Error("something arrived")
	}
}

func TestClean(t *testing.T) {
	t.Parallel()
	call := &Call{client: &Client{}, key: key}
	for in, want := range map[string]string{
		"fish":                           "fish",
		"key " + key + " is bad":         "key [key] is bad",
		"key " + key[:10] + "*** is bad": "key [key]*** is bad",
		"q=" + url.QueryEscape(key):      "q=[key][key]", // the plain part, then the escaped
		"b=" + base64.StdEncoding.EncodeToString([]byte(key)): "b=[key]",
		key + key:               "[key][key]",
		"two\nlines\t\x00 here": "two lines here",
		"bad \xff\xfe":          "bad ?",
	} {
		if got := call.Redact(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
	if got := call.Redact(strings.Repeat("é", 5000)); len(got) > maxMessageBytes+3 || !strings.HasSuffix(got, "é...") {
		t.Errorf("%d bytes, ending in %q", len(got), got[len(got)-6:])
	}
	if got := (&Call{client: &Client{}, key: "abc"}).Redact("say abc twice: abc"); got != "say [key] twice: [key]" {
		t.Errorf("a short key: %q", got)
	}
	if got := (&Call{client: &Client{}}).Redact("fish"); got != "fish" {
		t.Errorf("no key: %q", got)
	}
}

// FuzzClean: no eight letters in a row of the key survive, wherever they stand.
func FuzzClean(f *testing.F) {
	f.Add("x", "y")
	f.Add(strings.Repeat("x", maxMessageBytes-10), "")
	f.Fuzz(func(t *testing.T, before, after string) {
		call := &Call{client: &Client{}, key: key}
		for _, quoted := range []string{key, key[3:15], key[:8]} {
			got := call.Redact(before + quoted + after)
			for i := 0; i+minKeyPiece <= len(key); i++ {
				if strings.Contains(got, key[i:i+minKeyPiece]) {
					t.Fatalf("%q holds %q", got, key[i:i+minKeyPiece])
				}
			}
		}
	})
}

func TestMessage(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"error":{"message":"no","type":"bad","code":"x_y"}}`: "no bad x_y",
		`{"error":{"message":"no","code":400}}`:                "no",
		`{"error":"no"}`:                                       "no",
		`{"message":"no"}`:                                     "no",
		`{"detail":"no"}`:                                      "no",
		`{"detail":[{"msg":"no"}]}`:                            `{"detail":[{"msg":"no"}]}`,
		`<html>no</html>`:                                      `<html>no</html>`,
		`{"error":null}`:                                       `{"error":null}`,
		``:                                                     ``,
		`{"error":{"status":"UNAVAILABLE","message":"no"}}`: "no UNAVAILABLE",
	} {
		if got := strings.Join(strings.Fields(ErrorMessage([]byte(in))), " "); got != want {
			t.Errorf("%s became %q, want %q", in, got, want)
		}
	}
}

// TestRefusedDepends: texts count only for what was asked, and a status of success is none of ours.
func TestRefusedDepends(t *testing.T) {
	t.Parallel()
	client := &Client{base: &url.URL{Host: "h"}}
	for _, c := range []struct {
		status int
		text   string
		asked  RequestInfo
		want   error
	}{
		{400, "does not support tools", RequestInfo{Tools: true}, model.ErrNoTools},
		{400, "does not support tools", RequestInfo{}, nil},
		{400, "does not support thinking", RequestInfo{Think: true}, model.ErrNoThinking},
		{400, "does not support thinking", RequestInfo{Tools: true}, nil},
		{500, "failed to parse", RequestInfo{}, model.ErrMalformed},
		{400, "failed to parse", RequestInfo{}, nil},
		{400, "API key not valid", RequestInfo{}, model.ErrUnauthorized},
	} {
		err := (&Call{client: client, info: c.asked}).StatusError(c.status, c.text)
		for _, e := range []error{model.ErrNoTools, model.ErrNoThinking, model.ErrMalformed, model.ErrUnauthorized} {
			if errors.Is(err, e) != (e == c.want) {
				t.Errorf("%+v: error %v", c, err)
			}
		}
	}
}

// TestJSONObject: what neither a service nor the bus accepts does not pass as it came.
func TestJSONObject(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                       "{}",
		" \n":                    "{}",
		"null":                   "{}",
		" {\"b\":1, \"a\":2}\n":  "{\"b\":1, \"a\":2}",
		"{\"a\":\"x\xff\xfey\"}": "{\"a\":\"x\uFFFDy\"}",
		"[1]":                    "",
		"\"x\"":                  "",
		"{\"a\"":                 "",
		"{} {}":                  "",
	} {
		got, ok := JSONObject([]byte(in))
		if ok != (want != "") || string(got) != cmp.Or(want, "{}") {
			t.Errorf("%q became %s, %t", in, got, ok)
		}
	}
}

func TestKeep(t *testing.T) {
	t.Parallel()
	var k SignatureCache
	k.Put("", []byte("x"))
	k.Put("big", make([]byte, maxCacheBytes))
	if k.Get("") != nil || k.Get("big") != nil || k.Get("unknown") != nil {
		t.Error("kept what it should not")
	}
	const size = 100 << 10
	for i := range 100 {
		k.Put(fmt.Sprint(i), make([]byte, size))
	}
	if k.Get("99") == nil || k.Get("0") != nil {
		t.Error("it should forget the oldest")
	}
	if k.size > maxCacheBytes || len(k.values) != len(k.order) || len(k.values) > maxCacheBytes/size {
		t.Errorf("%d bytes in %d entries", k.size, len(k.values))
	}
}

func TestTurns(t *testing.T) {
	t.Parallel()
	a := func(calls ...model.Call) model.Message { return model.Message{Role: model.Assistant, Calls: calls} }
	r := func(id, name, text string) model.Message {
		return model.Message{Role: model.ToolRole, CallID: id, ToolName: name, Content: text}
	}
	c := func(id, name string) model.Call { return model.Call{ID: id, Name: name} }
	for _, x := range []struct {
		name string
		in   []model.Message
		want string
	}{
		{"in order", []model.Message{a(c("1", "x"), c("2", "y")), r("1", "x", "A"), r("2", "y", "B")}, "1=A 2=B|"},
		{"out of order", []model.Message{a(c("1", "x"), c("2", "y")), r("2", "y", "B"), r("1", "x", "A")}, "1=A 2=B|"},
		{"by name", []model.Message{a(c("", "x"), c("", "y")), r("", "y", "B"), r("", "x", "A")}, "call_1=A call_2=B|"},
		{"by order", []model.Message{a(c("", "x"), c("", "y")), r("", "", "A"), r("", "", "B")}, "call_1=A call_2=B|"},
		{
			"one name twice",
			[]model.Message{a(c("", "x"), c("", "x")), r("", "x", "A"), r("", "x", "B")},
			"call_1=A call_2=B|",
		},
		{"missing", []model.Message{a(c("1", "x"), c("2", "y")), r("2", "y", "B")}, "1=[no result] 2=B|"},
		{
			"one id twice",
			[]model.Message{a(c("1", "x")), r("1", "x", "A"), a(c("1", "x")), r("1", "x", "B")},
			"1=A|call_2=B|",
		},
		{"id that is none", []model.Message{a(c("a b", "x")), r("a b", "x", "A")}, "call_1=A|"},
		{
			"made id taken",
			[]model.Message{a(c("call_2", "x"), c("", "x")), r("call_2", "", "A"), r("", "x", "B")},
			"call_2=A call_3=B|",
		},
		{"of another call", []model.Message{a(c("1", "x")), r("9", "x", "?")}, "1=[no result]|tool:?|"},
		{"too many", []model.Message{a(c("1", "x")), r("1", "x", "A"), r("1", "x", "B")}, "1=A|tool:B|"},
		{"without a call", []model.Message{r("1", "x", "A")}, "tool:A|"},
		{"nothing", nil, ""},
	} {
		var b strings.Builder
		for _, turn := range GroupTurns(x.in) {
			if len(turn.Calls) == 0 {
				fmt.Fprintf(&b, "%s:%s", turn.Role, turn.Content)
			}
			for i, m := range turn.Calls {
				fmt.Fprintf(&b, "%s%s=%s", strings.Repeat(" ", min(i, 1)), m.Wire, m.Result)
			}
			b.WriteByte('|')
		}
		if b.String() != x.want {
			t.Errorf("%s: %s, want %s", x.name, b.String(), x.want)
		}
	}
}
