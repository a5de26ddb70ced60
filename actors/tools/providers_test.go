package tools_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"conclave/actors/tools"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/seal"
	"conclave/subjects"
)

// canary is the credential of these tests.
const canary = "key/with+odd=signs-4711"

// callTool runs one call of a tool as the broker would, with the credentials that its facts name.
func callTool(t *testing.T, x *tools.Tool, args any, mode string) subjects.ToolResult {
	t.Helper()
	raw, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	order := subjects.ToolOrder{CallID: "c1", QueryID: "q1", Args: raw, Mode: mode, Pages: true}
	for _, name := range x.Facts().Secrets {
		v, err := seal.Seal(seal.NewSecret([]byte(canary)), key(t, x))
		if err != nil {
			t.Fatal(err)
		}
		order.Sealed = map[string]subjects.SecretValue{name: v}
	}
	return run(t, x, order)
}

// key is what the tool announces to seal to.
func key(t *testing.T, x *tools.Tool) string {
	t.Helper()
	meta := x.Describe()
	return meta["key"]
}

func run(t *testing.T, x *tools.Tool, order subjects.ToolOrder) subjects.ToolResult {
	t.Helper()
	at := time.Date(2026, 11, 13, 9, 0, 0, 0, time.UTC)
	reply, err := (&actortest.Recorder{Time: at}).Deliver(t, x, actortest.Message{
		Subject: "tool.request." + x.Name(), Deadline: at.Add(20 * time.Second), Body: order,
	})
	if err != nil {
		t.Fatal(err)
	}
	var got subjects.ToolResult
	if err := json.Unmarshal([]byte(reply), &got); err != nil {
		t.Fatal(err)
	}
	return got
}

// searchTool is web_search under c, with its provider at another address.
func searchTool(t *testing.T, c tools.WebSearch, at string) *tools.Tool {
	t.Helper()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, x := range tools.ConfiguredAt(tools.Config{WebSearch: c}, at) {
		if x.Name() == "web_search" {
			return x
		}
	}
	t.Fatal("web_search is not there")
	return nil
}

func providerSearch(t *testing.T, c tools.WebSearch, at, query, mode string) subjects.ToolResult {
	t.Helper()
	return callTool(t, searchTool(t, c, at), map[string]string{"query": query}, mode)
}

// spoken is how each provider is asked and answers.
var spoken = map[string]struct {
	cfg    tools.WebSearch
	name   string                              // in failures
	absent string                              // the failure when nobody is there
	check  func(t *testing.T, r *http.Request) // of the request
	found  string                              // an answer with two pages
	none   string                              // an answer without any
}{
	"searxng": {
		cfg: tools.WebSearch{
			Provider: "searxng", Results: 5, Language: "de", Safe: "strict",
			SearXNG: tools.SearXNG{URL: "http://localhost:8888"},
		},
		name:   "SearXNG",
		absent: "search failed: SearXNG does not answer at ",
		check: func(t *testing.T, r *http.Request) {
			if r.Method != "GET" || r.URL.Path != "/search" || r.FormValue("q") != "wind & boats" ||
				r.FormValue("format") != "json" || r.FormValue("language") != "de" || r.FormValue("safesearch") != "2" {
				t.Errorf("asked %s %s", r.Method, r.URL)
			}
		},
		found: `{"query":"wind","number_of_results":0,"results":[
			{"url":"https://example.org/a","title":"A & B","content":"first","engine":"x",
	"parsed_url":["https","example.org","/a","","",""],"engines":["x"],"positions":[1],"score":1.0,
	"category":"general","publishedDate":null},
			{"url":"https://example.org/b","title":"B","content":null,"thumbnail":null}],
			"answers":[],"corrections":[],"infoboxes":[],"suggestions":["x"],"unresponsive_engines":[["y","timeout"]]}`,
		none: `{"query":"wind","results":[],"answers":[],"unresponsive_engines":[]}`,
	},
	"brave": {
		cfg: tools.WebSearch{
			Provider: "brave", Results: 5, Language: "de",
			Brave: tools.Keyed{Key: "{{secret brave_api_key}}"},
		},
		name:   "Brave",
		absent: "search failed: Brave cannot be reached",
		check: func(t *testing.T, r *http.Request) {
			if r.Method != "GET" || r.URL.Path != "/res/v1/web/search" || r.FormValue("q") != "wind & boats" ||
				r.FormValue("count") != "5" || r.FormValue("search_lang") != "de" ||
				r.FormValue("safesearch") != "moderate" {
				t.Errorf("asked %s %s", r.Method, r.URL)
			}
			if r.Header.Get("X-Subscription-Token") != canary {
				t.Error("the key is not in its header")
			}
		},
		found: `{"type":"search","query":{"original":"wind"},"mixed":{"main":[]},"web":{"type":"search","results":[
			{"type":"search_result","title":"A &amp; B","url":"https://example.org/a","description":"first",
	"page_age":"2026-01-01","meta_url":{"hostname":"example.org"}},
			{"title":"B","url":"https://example.org/b"}],"family_friendly":true}}`,
		none: `{"type":"search","query":{"original":"wind"}}`,
	},
	"tavily": {
		cfg:    tools.WebSearch{Provider: "tavily", Results: 5, Tavily: tools.Keyed{Key: "{{secret tavily_api_key}}"}},
		name:   "Tavily",
		absent: "search failed: Tavily cannot be reached",
		check: func(t *testing.T, r *http.Request) {
			var body struct {
				Query      string `json:"query"`
				MaxResults int    `json:"max_results"`
			}
			err := json.NewDecoder(r.Body).Decode(&body)
			if r.Method != "POST" || r.URL.String() != "/search" || err != nil || body.Query != "wind & boats" ||
				body.MaxResults != 5 || r.Header.Get("Content-Type") != "application/json" {
				t.Errorf("asked %s %s %+v %v", r.Method, r.URL, body, err)
			}
			if r.Header.Get("Authorization") != "Bearer "+canary {
				t.Error("the key is not in its header")
			}
		},
		found: `{"query":"wind","answer":null,"images":[],"follow_up_questions":null,"results":[
			{"title":"A & B","url":"https://example.org/a","content":"first","score":0.9,"raw_content":null},
			{"title":"B","url":"https://example.org/b","content":"","score":0.5}],
	"response_time":1.2,"request_id":"x"}`,
		none: `{"query":"wind","results":[],"response_time":1.2}`,
	},
}

// Each provider is asked as it documents, and its answer becomes the same listing.
func TestProviders(t *testing.T) {
	for name, p := range spoken {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				p.check(t, r)
				if c := r.Header.Get("Cookie") + r.Header.Get("Referer"); c != "" {
					t.Errorf("sent %q", c)
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, p.found)
			}))
			t.Cleanup(s.Close)
			got := providerSearch(t, p.cfg, s.URL, " wind &\n boats", "")
			want := "Today is Friday, 13 November 2026.\n\n1. A & B\n   first\n   https://example.org/a\n\n2. B\n   " +
				"https://example.org/b"
			if got.Error != nil || got.Result != want ||
				strings.Join(got.Links, " ") != "https://example.org/a https://example.org/b" {
				t.Errorf("got %v\n%s\n%v", got.Error, got.Result, got.Links)
			}
		})
	}
}

// What each provider can answer instead, and the few words that a model reads of it. No answer brings the key along.
func TestProviderFailures(t *testing.T) {
	const key, busy, other = "search failed: the provider does not accept the key", "search failed: too many requests",
		"search failed: the provider does not accept the query; try other words"
	const formats = "search failed: SearXNG does not answer in JSON; set search.formats: [html, json] in its " +
		"settings.yml"
	echo := `{"error":"` + canary + `","detail":{"error":"` + canary + `"}}`
	for _, tt := range []struct {
		name   string
		status int
		body   string
		want   string            // for all; %s is the provider
		but    map[string]string // for some
	}{
		{"401", 401, echo, key, map[string]string{"searxng": "search failed: SearXNG asks for a login, which is not " +
			"supported"}},
		{"403", 403, echo, key, map[string]string{"searxng": formats}},
		{"422", 422, `{"error":{"code":"VALIDATION"},"type":"ErrorResponse"}`, other, nil},
		{
			"422 for the key", 422,
			`{"type":"ErrorResponse","error":{"id":"x","status":422,"code":"SUBSCRIPTION_TOKEN_INVALID","detail":"x"}}`,
			other,
			map[string]string{"brave": key},
		},
		{"400", 400, echo, other, nil},
		{"402", 402, echo, "search failed: the plan of the provider's key is used up", nil},
		{"432", 432, echo, "search failed: the plan of the provider's key is used up", nil},
		{"429", 429, echo, busy, nil},
		{"500", 500, echo, "search failed: %s answers 500", nil},
		{"503 with a page", 503, "<html>" + canary, "search failed: %s answers 503", nil},
		{"204", 204, "", "search failed: %s answers 204", nil},
		{
			"HTML", 200, "<!DOCTYPE html><html><body>results</body></html>",
			"search failed: the answer of %s cannot be read",
			map[string]string{"searxng": formats},
		},
		{"nothing", 200, "", "search failed: the answer of %s cannot be read", nil},
		{"half", 200, `{"results":[{"title":"x"`, "search failed: the answer of %s cannot be read", nil},
		{"a list", 200, `[]`, "search failed: the answer of %s cannot be read", nil},
		{"two answers", 200, `{}{}`, "search failed: the answer of %s cannot be read", nil},
		{
			"results that are none", 200, `{"results":"x","web":"x"}`, "search failed: the answer of %s cannot be read",
			nil,
		},
		{"null", 200, `null`, "no results", nil},
		{"huge", 200, `{"results":[],"pad":"` + strings.Repeat("x", 2<<20) + `"}`, "search failed: the answer of %s " +
			"is too large", nil},
		{"deep", 200, strings.Repeat("[", 100000), "search failed: the answer of %s cannot be read", nil},
	} {
		for name, p := range spoken {
			t.Run(tt.name+"/"+name, func(t *testing.T) {
				s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.WriteHeader(tt.status)
					_, _ = io.WriteString(w, tt.body)
				}))
				t.Cleanup(s.Close)
				want := strings.ReplaceAll(tt.want, "%s", p.name)
				if b, ok := tt.but[name]; ok {
					want = b
				}
				got := providerSearch(t, p.cfg, s.URL, "wind", "")
				if got.Error == nil || got.Error.Code != subjects.CodeTool || got.Error.Text != want ||
					got.Result != "" || len(got.Links) > 0 {
					t.Errorf("got %+v (%v), want %q", got, got.Error, want)
				}
				if all := fmt.Sprint(got, got.Error); strings.Contains(all, canary) {
					t.Error("the key is in the answer")
				}
			})
		}
	}
}

func TestProviderWithoutResults(t *testing.T) {
	for name, p := range spoken {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, p.none)
		}))
		t.Cleanup(s.Close)
		if got := providerSearch(t, p.cfg, s.URL, "wind", ""); got.Error == nil || got.Error.Text != "no results" {
			t.Errorf("%s: %+v", name, got)
		}
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"results":[],"unresponsive_engines":[["google","Suspended: CAPTCHA"]]}`)
	}))
	t.Cleanup(s.Close)
	if got := providerSearch(t, spoken["searxng"].cfg, s.URL, "wind", ""); got.Error == nil ||
		got.Error.Text != "search failed: no engine of SearXNG answered; try later" {
		t.Errorf("all engines down: %+v", got.Error)
	}
}

// A provider that is not there, that says nothing, and that sends the key elsewhere.
func TestProviderUnreachable(t *testing.T) {
	var elsewhere atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	t.Cleanup(other.Close)
	t.Setenv("HTTP_PROXY", other.URL)
	t.Setenv("http_proxy", other.URL)
	for name, p := range spoken {
		gone := httptest.NewServer(http.NotFoundHandler())
		gone.Close()
		got := providerSearch(t, p.cfg, gone.URL, "wind", "")
		if got.Error == nil || !strings.HasPrefix(got.Error.Text, p.absent) {
			t.Errorf("%s is not there: %v", name, got.Error)
		}
		if name == "searxng" && got.Error.Text != "search failed: SearXNG does not answer at "+gone.URL+
			"; start it or set provider in web_search.yaml" {
			t.Errorf("how to start it: %v", got.Error)
		}

		sent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL+"/x", http.StatusTemporaryRedirect)
		}))
		t.Cleanup(sent.Close)
		if got := providerSearch(t, p.cfg, sent.URL, "wind", ""); got.Error == nil ||
			got.Error.Text != "search failed: "+p.name+" redirects elsewhere, which is not followed" {
			t.Errorf("%s redirects: %v", name, got.Error)
		}
	}
	if n := elsewhere.Load(); n > 0 {
		t.Errorf("%d requests went elsewhere", n)
	}
}

func TestProviderTimeout(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // else the server does not notice that the caller left
		<-r.Context().Done()
	}))
	t.Cleanup(s.Close)
	at := time.Date(2026, 11, 13, 9, 0, 0, 0, time.UTC)
	for name, p := range spoken {
		x := searchTool(t, p.cfg, s.URL)
		order := subjects.ToolOrder{CallID: "c", Args: json.RawMessage(asked)}
		for _, n := range x.Facts().Secrets {
			v, err := seal.Seal(seal.NewSecret([]byte(canary)), key(t, x))
			if err != nil {
				t.Fatal(err)
			}
			order.Sealed = map[string]subjects.SecretValue{n: v}
		}
		reply, err := (&actortest.Recorder{Time: at}).Deliver(t, x,
			actortest.Message{
				Subject: "tool.request.web_search", Deadline: at.Add(200 * time.Millisecond),
				Body: order,
			})
		if err != nil || !strings.Contains(reply, "search failed: timeout") {
			t.Errorf("%s: %s, %v", name, reply, err)
		}
	}
}

// A model that asks twice does not make the provider work twice; another query does.
func TestSearchCache(t *testing.T) {
	var hits atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hits.Add(1) == 1 {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, spoken["searxng"].found)
	}))
	t.Cleanup(s.Close)
	x := searchTool(t, spoken["searxng"].cfg, s.URL)
	for i, want := range []int64{1, 2, 2, 2} { // a failure is not kept
		got := callTool(t, x, map[string]string{"query": "wind"}, "")
		if hits.Load() != want || (got.Error != nil) != (i == 0) {
			t.Errorf("call %d: %d requests, want %d (%v)", i, hits.Load(), want, got.Error)
		}
	}
	if callTool(t, x, map[string]string{"query": "boats"}, ""); hits.Load() != 3 {
		t.Errorf("%d requests after another query", hits.Load())
	}
}

// What SearXNG would obey in a query is not sent.
func TestSearchOperatorsAreStripped(t *testing.T) {
	for in, want := range map[string]string{
		"wind boats":             "wind boats",
		"!!g wind":               "g wind",
		"!command rm":            "command rm",
		":de !wp ?x <3 wind":     "de wp x 3 wind",
		"a!b c:d 5<6":            "a!b c:d 5<6",
		"!?:<":                   "",
		"site:example.org \"x\"": "site:example.org \"x\"",
	} {
		if got := tools.StripSearchOperators(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

// FuzzProviderAnswer: whatever a provider answers, the result is a listing or a short failure.
func FuzzProviderAnswer(f *testing.F) {
	for _, p := range spoken {
		f.Add(p.found)
		f.Add(p.none)
	}
	f.Add(`{"results":[{"url":"https://x.org/\n2. y","title":"\u202e","content":"[TOOL_RESULT]"}]}`)
	var body atomic.Value
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, body.Load().(string))
	}))
	f.Cleanup(s.Close)
	f.Fuzz(func(t *testing.T, answer string) {
		body.Store(answer)
		got := providerSearch(t, spoken["searxng"].cfg, s.URL, "wind", "")
		switch {
		case got.Error != nil && (got.Result != "" || len(got.Error.Text) > 200):
			t.Fatalf("%q became %+v", answer, got)
		case got.Error == nil && (len(got.Links) == 0 || len(got.Links) > 5 ||
			strings.Count(got.Result, "\n\n") != len(got.Links)):
			t.Fatalf("%q became %q with %d links", answer, got.Result, len(got.Links))
		}
	})
}
