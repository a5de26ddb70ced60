package main

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"conclave/actors/model"
	"conclave/config"
)

// Whether SearXNG can be searched is found out without a search: the request has no question in it.
func TestDoctorSearXNG(t *testing.T) {
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
		{"JSON is off", http.StatusForbidden, "text/html", "does not answer in JSON", "search.formats: [html, json]", ""},
		{"a page for people", http.StatusOK, "text/html", "does not answer in JSON", "search.formats: [html, json]", ""},
		{"a limiter", http.StatusTooManyRequests, "text/html", "lets nobody ask so often", "server.limiter: false", ""},
		{"somebody else", http.StatusNotFound, "text/plain", "is no SearXNG (status 404)", "searxng.url", ""},
		{"somebody else's refusal", http.StatusBadRequest, "text/plain", "is no SearXNG (status 400)", "searxng.url", ""},
		{"it leads elsewhere", http.StatusFound, "text/html", "is no SearXNG (status 302)", "searxng.url", "http://127.0.0.1:1/elsewhere"},
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
			l := askSearXNG(t.Context(), srv.URL+"/below", patience)
			switch {
			case tt.what == "" && l != nil:
				t.Errorf("%+v", l)
			case tt.what != "" && (l == nil || !strings.Contains(l.what, tt.what) || !strings.Contains(l.what, srv.URL+"/below") || !strings.Contains(l.fix, tt.fix)):
				t.Errorf("%+v", l)
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
	for name, at := range map[string]string{"nobody": "http://127.0.0.1:1", "silent": "http://" + silent.Addr().String()} {
		if l := askSearXNG(t.Context(), at, 50*time.Millisecond); l == nil || !strings.Contains(l.what, "does not answer at "+at) || !strings.Contains(l.fix, "provider: none") {
			t.Errorf("%s: %+v", name, l)
		}
	}
}

// What waits for the user is told by the doctor, and when it cannot be known, that is.
func TestDoctorApprovals(t *testing.T) {
	t.Parallel()
	c := newCrew(t)
	a := newApp(nil, io.Discard, io.Discard)
	a.home.Data = c.b.Dir
	look := func() check {
		t.Helper()
		x := examination{app: a}
		x.approvals(t.Context())
		if len(x.checks) != 1 {
			t.Fatalf("%+v", x.checks)
		}
		return x.checks[0]
	}
	if got := look(); got.Level != levelFail || !strings.Contains(got.Text, "no responder") {
		t.Errorf("without a broker: %+v", got)
	}
	k := newClerk(c)
	if got := look(); got.Level != levelOK {
		t.Errorf("nothing waits: %+v", got)
	}
	k.pose(open("0123456789abcdef0123456789abcdef"))
	if got := look(); got.Level != levelWarn || got.Text != "1 call waits for your answer" || !strings.Contains(got.Fix, "conclave approve") {
		t.Errorf("one waits: %+v", got)
	}
	k.pose(open("0123457777777777"))
	if got := look(); got.Text != "2 calls wait for your answer" {
		t.Errorf("two wait: %+v", got)
	}
	// The banner says the same in one line.
	_, _, waiting := answering(t.Context(), &config.Instance{Bus: c.b.Bus})
	cfg, err := config.Load("")
	if err != nil {
		t.Fatal(err)
	}
	cfg.WebSearch.Provider = "none"
	if got := a.lacks(t.Context(), cfg, waiting); len(got) != 1 || got[0].what != "2 calls wait for your answer" || !strings.HasPrefix(got[0].fix, "conclave approve") {
		t.Errorf("the banner: %+v", got)
	}
	if got := a.lacks(t.Context(), cfg, 0); len(got) != 0 {
		t.Errorf("the banner of a system that lacks nothing: %+v", got)
	}
}

// Whether an Ollama on this machine may use its cloud is said where it can be known.
func TestDoctorCloud(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, answer, level, text, fix string
	}{
		{"off", `{"cloud":{"disabled":true,"source":"env"}}`, levelOK, "is off", ""},
		{"on", `{"cloud":{"disabled":false,"source":"none"}}`, levelWarn, "is on", "OLLAMA_NO_CLOUD=1"},
		{"older", "", levelOK, "not known", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if tt.answer == "" {
					http.NotFound(w, r)
					return
				}
				_, _ = io.WriteString(w, tt.answer)
			}))
			defer srv.Close()
			var x examination
			x.cloud(t.Context(), model.Server{URL: srv.URL})
			if len(x.checks) != 1 {
				t.Fatalf("got %+v", x.checks)
			}
			if c := x.checks[0]; c.Level != tt.level || !strings.Contains(c.Text, tt.text) || !strings.Contains(c.Text, "allow_remote") || !strings.Contains(c.Fix, tt.fix) {
				t.Errorf("got %+v", c)
			}
		})
	}
	var x examination
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for _, url := range []string{gone.URL, "http://ollama.example:11434"} {
		if x.cloud(t.Context(), model.Server{URL: url}); len(x.checks) != 0 {
			t.Errorf("%s: %+v", url, x.checks)
		}
	}
}
