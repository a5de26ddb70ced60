package ollama_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/ollama/ollama/api"

	"conclave/pkg/model"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/scriptserver"
)

func TestCloudStatus(t *testing.T) {
	t.Parallel()
	status := func(disabled bool) string {
		text, err := json.Marshal(api.StatusResponse{Cloud: api.CloudStatus{Disabled: disabled, Source: "env"}})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, tt := range []struct {
		name   string
		status int
		text   string
		on     bool
		err    error
	}{
		{"off", 200, status(true), false, nil},
		{"on", 200, status(false), true, nil},
		{"not reported", 200, `{"cloud":{}}`, false, model.ErrUnsupported},
		{"not JSON", 200, "<html>", false, model.ErrUnsupported},
		{"server error", 500, status(true), false, model.ErrUnsupported},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet || r.URL.Path != "/api/status" {
					t.Errorf("asked for %s %s", r.Method, r.URL)
				}
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.text)
			}))
			defer srv.Close()
			if on, err := newBackend(t, srv.URL).IsCloudEnabled(t.Context()); on != tt.on || !errors.Is(err, tt.err) {
				t.Errorf("%v, %v", on, err)
			}
		})
	}
	srv := modeltest.New(t, scriptserver.Script{}) // like an older server, it has no /api/status
	b := newBackend(t, srv.URL)
	if _, err := b.IsCloudEnabled(t.Context()); !errors.Is(err, model.ErrUnsupported) {
		t.Errorf("an older server: %v", err)
	}
	srv.Close()
	if _, err := b.IsCloudEnabled(t.Context()); !errors.Is(err, model.ErrUnreachable) && !errors.Is(err, model.ErrCut) {
		t.Errorf("no server: %v", err)
	}
}
