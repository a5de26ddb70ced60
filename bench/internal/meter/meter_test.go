package meter

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestMeterCountsTokensOfBothProtocols(t *testing.T) {
	replies := map[string]string{
		"/api/chat": `{"model":"m","message":{"content":"he"},"done":false}` + "\n" +
			`{"model":"m","message":{"content":""},"done":true,"prompt_eval_count":12,"eval_count":3,` +
			`"prompt_eval_duration":5000000}` + "\n",
		"/v1/chat/completions": "data: {\"model\":\"m\",\"choices\":[{\"delta\":{\"content\":\"he\"}}]}\n\n" +
			"data: {\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":12," +
			"\"completion_tokens\":3}}\n\ndata: [DONE]\n\n",
		"/api/tags": `{"models":[]}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, replies[r.URL.Path])
	}))
	defer server.Close()
	m, err := Start(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for path, want := range replies {
		resp, err := http.Post(m.URL+path, "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(got) != want {
			t.Fatalf("%s was changed to %q, %v", path, got, err)
		}
	}
	calls := m.Take()
	if len(calls) != 2 {
		t.Fatalf("%d calls recorded, want 2 without /api/tags: %+v", len(calls), calls)
	}
	for _, c := range calls {
		if c.Prompt != 12 || c.Output != 3 || c.First == 0 || c.Cut || c.Model != "m" {
			t.Errorf("recorded %+v", c)
		}
	}
	if more := m.Take(); len(more) != 0 {
		t.Errorf("calls taken twice: %+v", more)
	}
}
