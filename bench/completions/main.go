// Command completions measures what POST /v1/chat/completions adds to a model server: the time of a whole reply and the
// time to the first token of a streamed one, through a conclave in a process of its own with the settings as shipped,
// against the same model server asked directly, all in one run and interleaved. Only ratios mean anything.
//
// Run it from the folder bench: go run ./completions
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"conclave/bench/internal/instance"
	"conclave/pkg/model/scriptserver"
)

var (
	n        = flag.Int("n", 200, "requests of each kind for each duration of a model call")
	each     = flag.String("each", "0s,100ms", "durations of one model call until its first token, separated by commas")
	conclave = flag.String("conclave", "", "path of conclave; built from the module above when empty")
)

// warmUp is the number of requests of each kind that are not counted.
const warmUp = 5

// modelName is the model of the scripted server.
const modelName = "bench"

// answer is the reply of the model to every request.
const answer = "Paris is the capital of France, and it has been for most of the time since the tenth century."

func main() {
	flag.Parse()
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "completions:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	program := *conclave
	if program == "" {
		built, remove, err := instance.Build(ctx)
		if err != nil {
			return err
		}
		defer remove()
		program = built
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		fmt.Printf("load at the start %s; %d requests of each kind\n\n", strings.Join(strings.Fields(string(load))[:3],
			" "), *n)
	}
	fmt.Print("| model call | request | whole reply p50 | p95 | to direct | first token p50 | p95 | to direct " +
		"|\n|---|---|---|---|---|---|---|---|\n")
	for _, t := range strings.Split(*each, ",") {
		d, err := time.ParseDuration(t)
		if err != nil {
			return err
		}
		if err := measure(ctx, program, d); err != nil {
			return err
		}
	}
	return nil
}

// kind is one way to ask.
type kind struct {
	name   string
	url    string
	token  string
	tools  bool // the request has a tool of the client, so that it is a plain call of the model
	whole  []time.Duration
	stream []time.Duration
}

// measure prints the rows for model calls that take d until the first token.
func measure(ctx context.Context, program string, d time.Duration) error {
	reply := scriptserver.Reply{Content: answer, Quirks: scriptserver.Quirks{FirstDelay: d}}
	server := scriptserver.Start(scriptserver.Script{modelName: {{Always: true, Reply: reply}}})
	defer server.Close()
	in, err := instance.Create(program, map[string]string{"models.yaml": fmt.Sprintf("roles: {assistant: "+
		"%s}\nollama: {url: %q}\n", modelName, server.URL)})
	if err != nil {
		return err
	}
	defer in.Remove()
	system, err := in.Start(ctx)
	if err != nil {
		return err
	}
	defer system.Stop()
	kinds := []*kind{
		{name: "model server, direct", url: server.URL + "/api/chat", tools: true},
		{
			name: "`/v1`, a call of the model (`tools` in the request)", url: system.API + "/v1/chat/completions",
			token: system.Token, tools: true,
		},
		{name: "`/v1`, a question to the assistant", url: system.API + "/v1/chat/completions", token: system.Token},
	}
	for i := range *n + warmUp {
		for _, k := range kinds {
			for _, stream := range []bool{false, true} {
				took, err := k.ask(ctx, fmt.Sprintf("What is the capital of France? (%d, %t)", i, stream), stream)
				if err != nil {
					return fmt.Errorf("%s: %w", k.name, err)
				}
				switch {
				case i < warmUp:
				case stream:
					k.stream = append(k.stream, took)
				default:
					k.whole = append(k.whole, took)
				}
			}
		}
	}
	for _, k := range kinds {
		fmt.Printf("| %s | %s | %s | %s | %.2f | %s | %s | %.2f |\n", d, k.name,
			ms(percentile(k.whole, 50)), ms(percentile(k.whole, 95)), ratio(k.whole, kinds[0].whole),
			ms(percentile(k.stream, 50)), ms(percentile(k.stream, 95)), ratio(k.stream, kinds[0].stream))
	}
	return nil
}

func percentile(all []time.Duration, p int) time.Duration {
	all = slices.Sorted(slices.Values(all))
	return all[min(len(all)*p/100, len(all)-1)]
}

func ratio(a, b []time.Duration) float64 {
	return float64(percentile(a, 50)) / float64(percentile(b, 50))
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d.Microseconds())/1000) }

// ask sends one request and returns the time until its whole reply, or with stream until its first token. Every
// question begins a conversation of its own.
func (k *kind) ask(ctx context.Context, question string, stream bool) (time.Duration, error) {
	name := modelName
	if k.token != "" {
		name = "assistant"
	}
	body := map[string]any{
		"model": name, "stream": stream,
		"messages": []map[string]string{{"role": "user", "content": question}},
	}
	if k.tools {
		body["tools"] = []any{map[string]any{"type": "function", "function": map[string]any{
			"name":        "lookup",
			"description": "looks up a fact", "parameters": map[string]any{
				"type":       "object",
				"properties": map[string]any{},
			},
		}}}
	}
	data, err := json.Marshal(body)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, k.url, bytes.NewReader(data))
	if err != nil {
		return 0, err
	}
	r.Header.Set("Content-Type", "application/json")
	if k.token != "" {
		r.Header.Set("Authorization", "Bearer "+k.token)
	}
	began := time.Now()
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 1000))
		return 0, fmt.Errorf("%s: %s", res.Status, text)
	}
	if !stream {
		text, err := io.ReadAll(res.Body)
		took := time.Since(began)
		if err == nil && !bytes.Contains(text, []byte(answer)) {
			err = fmt.Errorf("unexpected reply: %.300s", text)
		}
		return took, err
	}
	var took time.Duration
	var whole strings.Builder
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		text := readToken(strings.TrimPrefix(lines.Text(), "data: "))
		if text != "" && took == 0 {
			took = time.Since(began)
		}
		whole.WriteString(text)
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	if strings.TrimSpace(whole.String()) != answer {
		return 0, errors.New("unexpected reply: " + whole.String())
	}
	return took, nil
}

// readToken returns the text in one line of a stream, of Ollama or of OpenAI's protocol; "" when it has none.
func readToken(line string) string {
	var in struct {
		Message struct {
			Content string `json:"content"`
		} `json:"message"`
		Choices []struct {
			Delta struct {
				Content string `json:"content"`
			} `json:"delta"`
		} `json:"choices"`
	}
	if json.Unmarshal([]byte(line), &in) != nil {
		return ""
	}
	if len(in.Choices) > 0 {
		return in.Choices[0].Delta.Content
	}
	return in.Message.Content
}
