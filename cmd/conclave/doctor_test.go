package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"conclave/actors/model"
)

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
