package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/ollama/ollama/api"

	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/pkg/model/ollama"
	"conclave/pkg/model/scriptserver"
)

const modelName = "bench"

// script asks for the tool four times, each time with other arguments, and then answers. It never runs out.
func script() scriptserver.Script {
	var all []scriptserver.Exchange
	for i := range iterations {
		all = append(all, scriptserver.Exchange{
			Always: true, When: scriptserver.When{Messages: 2 + 2*i, ToolsInclude: []string{"lookup"}},
			Reply: scriptserver.Reply{
				Calls: []scriptserver.Call{{Name: "lookup", Arguments: map[string]any{"step": i}}},
			},
		})
	}
	return scriptserver.Script{modelName: append(all, scriptserver.Exchange{
		Always: true, When: scriptserver.When{Messages: 2 + 2*iterations},
		Reply: scriptserver.Reply{Content: "The answer is 42, as looked up."},
	})}
}

// serve is the child, until its standard input closes: a server that says what the scripted one says, reply by reply,
// but has it ready. What is measured is the client, and reading a script takes longer than the rest of a request.
func serve() error {
	replies := map[bool][][]byte{}
	for _, stream := range []bool{false, true} {
		var err error
		if _, replies[stream], err = recorded(stream); err != nil {
			return err
		}
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			stream := !bytes.Contains(body, []byte(`"stream":false`))
			w.Header().Set("Content-Type", "application/x-ndjson")
			w.Write(replies[stream][bytes.Count(body, []byte(`"role":"tool"`))])
		}),
	}
	go server.Serve(ln)
	defer server.Close()
	fmt.Println("http://" + ln.Addr().String())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// startChild starts it in a process of its own, so that its allocations are not counted as ours.
func startChild() (address string, stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.Command(self, "-child")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return "", nil, fmt.Errorf("starting the scripted server: %w", err)
	}
	return strings.TrimSpace(line), func() { in.Close(); cmd.Wait() }, nil
}

// The tool, its result and the prompt, the same for everyone.
const (
	system   = "You are a helpful assistant. Use the tool lookup when you need a fact, once for each step, then answer."
	question = "What is the answer?"
	result   = "fact: forty-two"
)

var tool = model.Tool{
	Name: "lookup", Description: "looks up the fact of a step",
	Parameters: json.RawMessage(
		`{"type":"object","properties":{"step":{"type":"integer","description":"which step"}},"required":["step"],` +
			`"additionalProperties":false}`),
}

// agent is our loop with the given model.
func agent(chat model.Chat, stream bool) loop.Agent {
	ids := 0
	return loop.Agent{
		Chat: chat, Model: modelName, System: system, Tools: []model.Tool{tool}, Stream: stream,
		RunTool: func(context.Context, model.Call) loop.Result { return loop.Result{Text: result} },
		Options: model.Options{Window: 32768},
		Limits:  loop.Limits{Steps: iterations + 1},
		NewID:   func() string { ids++; return fmt.Sprint("id-", ids) },
	}
}

// turn runs one turn of it and makes sure that it was one.
func turn(ctx context.Context, a loop.Agent) error {
	s, err := loop.RunTurn(ctx, a,
		loop.Input{State: loop.State{Messages: []model.Message{{Role: model.User, Content: question}}}}, loop.Hooks{})
	if err != nil {
		return err
	}
	if s.Usage.Calls != modelCalls || len(s.Finished) != iterations || !strings.Contains(s.Answer, "42") {
		return fmt.Errorf("%d model calls, %d tool calls, answer %q, notes %v", s.Usage.Calls, len(s.Finished),
			s.Answer, s.Notes)
	}
	return nil
}

// overHTTP are the contenders on the wire: the floor and the loop, without and with streaming, and the official client.
func overHTTP(address string) ([]contender, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	backend, err := ollama.New(ollama.Config{URL: address})
	if err != nil {
		return nil, err
	}
	whole, _, err := recorded(false)
	if err != nil {
		return nil, err
	}
	streamed, _, err := recorded(true)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{}}
	official := api.NewClient(u, &http.Client{Transport: &http.Transport{}})
	return []contender{
		{"HTTP floor: the same bodies, read and dropped", func(ctx context.Context) error {
			return floor(ctx, client, address, whole)
		}},
		{"pkg/loop with our transport", func(ctx context.Context) error { return turn(ctx, agent(backend, false)) }},
		{"HTTP floor, streaming", func(ctx context.Context) error { return floor(ctx, client, address, streamed) }},
		{"pkg/loop with our transport, streaming", func(ctx context.Context) error {
			return turn(ctx, agent(backend, true))
		}},
		{"plain loop with the official Ollama client", func(ctx context.Context) error {
			return officially(ctx, official, false)
		}},
		{"the same, streaming", func(ctx context.Context) error { return officially(ctx, official, true) }},
	}, nil
}

// recorded are the bodies of the requests that a turn of ours makes, and what the scripted server says to each.
func recorded(stream bool) (bodies, replies [][]byte, err error) {
	s := scriptserver.Start(script())
	defer s.Close()
	b, err := ollama.New(ollama.Config{URL: s.URL})
	if err != nil {
		return nil, nil, err
	}
	if err := turn(context.Background(), agent(b, stream)); err != nil {
		return nil, nil, err
	}
	for _, r := range s.Requests() {
		bodies = append(bodies, r.Raw)
	}
	for _, body := range bodies {
		resp, err := http.Post(s.URL+"/api/chat", "application/json", bytes.NewReader(body))
		if err != nil {
			return nil, nil, err
		}
		reply, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			return nil, nil, err
		}
		replies = append(replies, reply)
	}
	return bodies, replies, s.Err()
}

// floor posts bodies and reads the replies.
func floor(ctx context.Context, c *http.Client, address string, bodies [][]byte) error {
	for _, b := range bodies {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, address+"/api/chat", bytes.NewReader(b))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := c.Do(req)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d: %w", resp.StatusCode, err)
		}
	}
	return nil
}

// officially is the plainest loop that one can write with the official client: no guard, no fallback, no validation.
func officially(ctx context.Context, c *api.Client, stream bool) error {
	var t api.Tool
	definition, err := json.Marshal(map[string]any{"type": "function", "function": map[string]any{
		"name":        tool.Name,
		"description": tool.Description, "parameters": tool.Parameters,
	}})
	if err != nil {
		return err
	}
	if err := json.Unmarshal(definition, &t); err != nil {
		return err
	}
	messages := []api.Message{{Role: "system", Content: system}, {Role: "user", Content: question}}
	for range modelCalls {
		var reply api.Message
		err := c.Chat(ctx, &api.ChatRequest{
			Model: modelName, Messages: messages, Tools: api.Tools{t}, Stream: &stream,
			Options: map[string]any{"num_ctx": 32768, "num_predict": 2048},
		}, func(r api.ChatResponse) error {
			reply.Role = r.Message.Role
			reply.Content += r.Message.Content
			reply.ToolCalls = append(reply.ToolCalls, r.Message.ToolCalls...)
			return nil
		})
		if err != nil {
			return err
		}
		if len(reply.ToolCalls) == 0 {
			if !strings.Contains(reply.Content, "42") {
				return fmt.Errorf("the answer is %q", reply.Content)
			}
			return nil
		}
		messages = append(messages, reply)
		for _, call := range reply.ToolCalls {
			messages = append(messages, api.Message{
				Role: "tool", Content: result, ToolName: call.Function.Name,
				ToolCallID: call.ID,
			})
		}
	}
	return errors.New("it did not answer")
}
