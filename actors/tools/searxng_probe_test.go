package tools

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestProbeSearXNG probes without a search: the request has no query.
func TestProbeSearXNG(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		status   int
		kind     string // of the answer
		what     string // "" = it can be searched
		fix      string
		redirect string
	}{
		{"JSON is on", http.StatusBadRequest, "application/json", "", "", ""},
		{"one that answers nothing with nothing", http.StatusOK, "application/json; charset=utf-8", "", "", ""},
		{
			"JSON is off", http.StatusForbidden, "text/html", "does not answer in JSON", "search.formats: [html, json]",
			"",
		},
		{
			"a page for people", http.StatusOK, "text/html", "does not answer in JSON", "search.formats: [html, json]",
			"",
		},
		{"a limiter", http.StatusTooManyRequests, "text/html", "limits the request rate", "server.limiter: false", ""},
		{"another server", http.StatusNotFound, "text/plain", "is not a SearXNG (status 404)", "searxng.url", ""},
		{
			"refusal of another server", http.StatusBadRequest, "text/plain", "is not a SearXNG (status 400)",
			"searxng.url",
			"",
		},
		{
			"it leads elsewhere", http.StatusFound, "text/html", "is not a SearXNG (status 302)", "searxng.url",
			"http://127.0.0.1:1/elsewhere",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Value
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked.Store(r.Method + " " + r.URL.String())
				w.Header().Set("Content-Type", tt.kind)
				if tt.redirect != "" {
					w.Header().Set("Location", tt.redirect)
				}
				w.WriteHeader(tt.status)
			}))
			defer srv.Close()
			what, fix := ProbeSearXNG(t.Context(), srv.URL+"/below", 20*time.Second)
			switch {
			case tt.what == "" && what != "":
				t.Errorf("%s: %s", what, fix)
			case tt.what != "" && (!strings.Contains(what, tt.what) || !strings.Contains(what, srv.URL+"/below") ||
				!strings.Contains(fix, tt.fix)):
				t.Errorf("%s: %s", what, fix)
			}
			if got := asked.Load(); got != "GET /below/search?format=json" {
				t.Errorf("it was asked %v", got)
			}
		})
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close() // takes connections and never answers
	for name, at := range map[string]string{"no server": "http://127.0.0.1:1", "silent": "http://" +
		silent.Addr().String()} {
		if what, fix := ProbeSearXNG(t.Context(), at, 50*time.Millisecond); what != "no SearXNG answers at "+at ||
			!strings.Contains(fix, "provider: none") {
			t.Errorf("%s: %s: %s", name, what, fix)
		}
	}
}
