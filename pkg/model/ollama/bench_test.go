package ollama_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/pkg/model"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/scriptserver"
)

const cannedCall = `{"model":"gemma4:12b","created_at":"2026-01-02T03:04:05.678901234Z",` +
	`"message":{"role":"assistant",` +
	`"content":"","thinking":"The user asks for news. I should search the web for this week's news.",` +
	`"tool_calls":[{"id":"call_abc12345",` +
	`"function":{"index":0,"name":"web_search","arguments":{"query":"AI news this week","count":5}}}]},"done":true,` +
	`"done_reason":"stop","total_duration":2412345678,"load_duration":51234567,"prompt_eval_count":1423,` +
	`"prompt_eval_duration":312345678,"eval_count":61,"eval_duration":1923456789}`

func benchRequest() model.Request {
	think := true
	return model.Request{
		Model: "gemma4:12b", Think: &think, Options: model.Options{Window: 32768, Predict: 2048, KeepAlive: "-1"},
		Messages: []model.Message{
			{Role: model.System, Content: strings.Repeat("You are a careful assistant. ", 60)},
			{Role: model.User, Content: "What major AI news broke this week?"},
		},
		Tools: []model.Tool{{
			Name: "web_search", Description: "Search the web for current facts.",
			Parameters: json.RawMessage(
				`{"type":"object","properties":{"query":{"type":"string"},"count":{"type":"integer"}},` +
					`"required":["query"]}`),
		}},
	}
}

// TestAllocations bounds the allocations of a chat, those of net/http included.
func TestAllocations(t *testing.T) {
	chat := newBackend(t, modeltest.Canned(t, cannedCall))
	r := benchRequest()
	n := testing.AllocsPerRun(200, func() {
		if _, _, err := model.Collect(chat.Chat(t.Context(), r)); err != nil {
			t.Fatal(err)
		}
	})
	if n > 120 { // about 90 without the race detector
		t.Errorf("a chat takes %.0f allocations", n)
	}
}

// BenchmarkChat is one chat with a tool call, not streamed. Compare with BenchmarkFloor.
func BenchmarkChat(b *testing.B) {
	chat := newBackend(b, modeltest.Canned(b, cannedCall))
	r := benchRequest()
	b.ReportAllocs()
	for b.Loop() {
		m, _, err := model.Collect(chat.Chat(b.Context(), r))
		if err != nil || len(m.Calls) != 1 {
			b.Fatal(m, err)
		}
	}
}

// BenchmarkFloor posts the same bytes with bare net/http and reads the reply whole.
func BenchmarkFloor(b *testing.B) {
	url := modeltest.Canned(b, cannedCall)
	body := encodeBody(b, benchRequest())
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4}}
	defer client.CloseIdleConnections()
	b.ReportAllocs()
	for b.Loop() {
		postBody(b, client, url, body)
	}
}

func postBody(b *testing.B, client *http.Client, url string, body []byte) {
	resp, err := client.Post(url+"/api/chat", "application/json", bytes.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadAll(resp.Body); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkRatio alternates between the two, so that a busy machine slows both down, and compares the medians.
func BenchmarkRatio(b *testing.B) {
	url := modeltest.Canned(b, cannedCall)
	chat, r, body := newBackend(b, url), benchRequest(), encodeBody(b, benchRequest())
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4}}
	defer client.CloseIdleConnections()
	var ours, bare []time.Duration
	for b.Loop() {
		begin := time.Now()
		if _, _, err := model.Collect(chat.Chat(b.Context(), r)); err != nil {
			b.Fatal(err)
		}
		middle := time.Now()
		postBody(b, client, url, body)
		ours, bare = append(ours, middle.Sub(begin)), append(bare, time.Since(middle))
	}
	slices.Sort(ours)
	slices.Sort(bare)
	b.ReportMetric(float64(ours[len(ours)/2])/float64(bare[len(bare)/2]), "x-floor")
}

// BenchmarkStream reads a reply of a thousand tokens.
func BenchmarkStream(b *testing.B) {
	token :=
		`{"model":"gemma4:12b","created_at":"2026-01-02T03:04:05.678901234Z","message":{"role":"assistant",` +
			`"content":" word"},"done":false}` + "\n"
	chat := newBackend(b, modeltest.Canned(b, strings.Repeat(token, 1000)+cannedCall))
	r := benchRequest()
	r.Stream = true
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		for _, err := range chat.Chat(b.Context(), r) {
			if err != nil {
				b.Fatal(err)
			}
			n++
		}
		if n != 1001 {
			b.Fatal(n)
		}
	}
}

// encodeBody returns the body that the backend sends for r.
func encodeBody(t testing.TB, r model.Request) []byte {
	t.Helper()
	server := modeltest.New(t, scriptserver.Script{"*": {{Always: true}}})
	if _, _, err := model.Collect(newBackend(t, server.URL).Chat(t.Context(), r)); err != nil {
		t.Fatal(err)
	}
	return server.Requests()[0].Raw
}
