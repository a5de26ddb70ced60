package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"conclave/pkg/model"
	"conclave/pkg/model/internal/remote"
)

// request is the body of POST /chat/completions.
type request struct {
	Model       string          `json:"model"`
	Messages    []message       `json:"messages"`
	Tools       []tool          `json:"tools,omitempty"`
	Format      *format         `json:"response_format,omitempty"`
	Temperature *float64        `json:"temperature,omitempty"`
	Seed        *int            `json:"seed,omitempty"`
	Stop        []string        `json:"stop,omitempty"`
	MaxTokens   int             `json:"max_tokens,omitempty"`
	MaxOfficial int             `json:"max_completion_tokens,omitempty"`
	Effort      string          `json:"reasoning_effort,omitempty"`
	Template    map[string]bool `json:"chat_template_kwargs,omitempty"`
	Stream      bool            `json:"stream"`
	StreamWith  *streamOptions  `json:"stream_options,omitempty"`
}

type streamOptions struct {
	Usage bool `json:"include_usage"`
}

type format struct {
	Type   string `json:"type"`
	Schema struct {
		Name   string          `json:"name"`
		Schema json.RawMessage `json:"schema"`
	} `json:"json_schema"`
}

type tool struct {
	Type     string     `json:"type"`
	Function definition `json:"function"`
}

type definition struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"`
}

// message as it is sent. Content is null beside calls: some servers refuse an empty text there.
type message struct {
	Role      string  `json:"role"`
	Content   *string `json:"content"`
	Reasoning string  `json:"reasoning_content,omitempty"`
	Calls     []call  `json:"tool_calls,omitempty"`
	CallID    string  `json:"tool_call_id,omitempty"`
}

type call struct {
	ID       string   `json:"id"`
	Type     string   `json:"type"`
	Function function `json:"function"`
}

// function has its arguments as a text that holds JSON: that is how the protocol wants them.
type function struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// usage as servers count it.
type usage struct {
	Prompt int `json:"prompt_tokens"`
	Output int `json:"completion_tokens"`
}

// write turns a request into the protocol's words.
func (b *Backend) write(r model.Request) ([]byte, error) {
	out := request{
		Model: r.Model, Temperature: r.Options.Temperature, Seed: r.Options.Seed, Stop: r.Options.Stop, Stream: r.Stream,
	}
	if b.cfg.Official {
		out.MaxOfficial = r.Options.Predict
	} else {
		out.MaxTokens = r.Options.Predict
	}
	if r.Think != nil {
		b.think(&out, *r.Think)
	}
	if r.Stream {
		out.StreamWith = &streamOptions{Usage: true}
	}
	for _, t := range r.Tools {
		if !blankOrJSON(t.Parameters) {
			return nil, fmt.Errorf("the parameters of the tool %s are not JSON", t.Name)
		}
		out.Tools = append(out.Tools, tool{"function", definition{t.Name, t.Description, t.Parameters}})
	}
	if len(r.Format) > 0 {
		if !json.Valid(r.Format) {
			return nil, errors.New("the format of the answer is not JSON")
		}
		out.Format = &format{Type: "json_schema"}
		out.Format.Schema.Name, out.Format.Schema.Schema = "answer", r.Format
	}
	out.Messages = messages(r.Messages)
	return encode(out)
}

func (b *Backend) think(out *request, think bool) {
	if !b.cfg.Official {
		out.Template = map[string]bool{"enable_thinking": think}
		return
	}
	out.Effort = "none"
	if think {
		out.Effort = "medium"
	}
}

func blankOrJSON(raw json.RawMessage) bool { return len(raw) == 0 || json.Valid(raw) }

// messages turns a conversation into the protocol's words.
func messages(in []model.Message) []message {
	out := make([]message, 0, len(in))
	for _, t := range remote.Turns(in) {
		w := message{Role: t.Role, Content: &t.Content}
		if t.Role == model.ToolRole {
			// A result whose call is gone: the protocol has no place for it but among what the user says.
			w.Role = model.User
		}
		if len(t.Made) > 0 {
			// Thinking goes back with calls only: that is inside one tool loop.
			w.Reasoning = t.Thinking
			if t.Content == "" {
				w.Content = nil
			}
		}
		for _, c := range t.Made {
			w.Calls = append(w.Calls, call{c.Wire, "function", function{c.Name, arguments(c.Arguments)}})
		}
		out = append(out, w)
		for _, c := range t.Made {
			out = append(out, message{Role: model.ToolRole, Content: &c.Result, CallID: c.Wire})
		}
	}
	return out
}

func arguments(raw json.RawMessage) string {
	if len(bytes.TrimSpace(raw)) == 0 {
		return "{}"
	}
	return string(raw)
}

// Chat implements [model.Chat].
func (b *Backend) Chat(ctx context.Context, r model.Request) iter.Seq2[model.Chunk, error] {
	return func(yield func(model.Chunk, error) bool) {
		// Whoever breaks off ends the request: the connection is closed, and the server notices.
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		in, err := b.write(r)
		if err != nil {
			yield(model.Chunk{}, fmt.Errorf("chat: %w", err))
			return
		}
		resp, call, err := b.remote.Send(ctx, http.MethodPost, b.root+"/chat/completions", in, remote.Of(r))
		if err != nil {
			yield(model.Chunk{}, fmt.Errorf("chat: %w", err))
			return
		}
		defer resp.Body.Close()
		p := &reply{asked: remote.Of(r), call: call, away: b.remote.Away()}
		if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind == "text/event-stream" {
			err = p.stream(ctx, resp.Body, yield)
		} else {
			err = p.whole(ctx, resp.Body, yield)
		}
		if err != nil && !errors.Is(err, errStopped) {
			yield(model.Chunk{}, fmt.Errorf("chat: %w", err))
		}
	}
}

// errStopped says that nobody listens any more.
var errStopped = errors.New("stopped")

// whole reads a reply that comes in one piece.
func (p *reply) whole(ctx context.Context, body io.Reader, yield func(model.Chunk, error) bool) error {
	data, err := io.ReadAll(body)
	if err != nil {
		return p.call.Failed(ctx, err)
	}
	c, err := p.read(data)
	if err != nil {
		return err
	}
	if !p.choice {
		return p.call.Unreadable("answers without a choice")
	}
	last, err := p.end()
	if err != nil {
		return err
	}
	last.Content, last.Thinking = c.Content, c.Thinking
	yield(last, nil)
	return nil
}

// reply is one reply in the making.
type reply struct {
	asked remote.Asked
	call  *remote.Call
	away  string

	calls  calls
	final  model.Final
	choice bool // the server chose at least one answer
}

// event is a chunk of a stream, or a whole reply: the one has a delta, the other a message, and both say the same.
type event struct {
	Model   string `json:"model"`
	Choices []struct {
		Index   int    `json:"index"`
		Delta   *piece `json:"delta"`
		Message *piece `json:"message"`
		Reason  string `json:"finish_reason"`
	} `json:"choices"`
	Usage *usage          `json:"usage"`
	Error json.RawMessage `json:"error"`
}

type piece struct {
	Content   lenient    `json:"content"`
	Thinking  lenient    `json:"reasoning_content"` // llama.cpp, DeepSeek, older vLLM
	Reasoning lenient    `json:"reasoning"`         // newer vLLM, LM Studio
	Calls     []fragment `json:"tool_calls"`
	Refusal   lenient    `json:"refusal"`
}

// lenient is a text that some servers send as something else, which then counts as none.
type lenient string

// UnmarshalJSON implements [json.Unmarshaler].
func (l *lenient) UnmarshalJSON(data []byte) error {
	var s string
	if json.Unmarshal(data, &s) == nil {
		*l = lenient(s)
	}
	return nil
}

// read takes in one event and returns what of it can be shown at once.
func (p *reply) read(data []byte) (model.Chunk, error) {
	var e event
	if json.Unmarshal(data, &e) != nil {
		return model.Chunk{}, p.call.Unreadable("sends something that is not the JSON expected")
	}
	if len(e.Error) > 0 && string(e.Error) != "null" {
		return model.Chunk{}, p.call.Refused(status(e.Error), remote.Message(data), p.asked)
	}
	p.final.Model = or(e.Model, p.final.Model)
	if e.Usage != nil {
		p.final.PromptTokens, p.final.OutputTokens = max(e.Usage.Prompt, 0), max(e.Usage.Output, 0)
	}
	var out model.Chunk
	for _, c := range e.Choices {
		if c.Index != 0 {
			continue // one answer was asked for
		}
		p.choice = true
		p.final.Reason = or(c.Reason, p.final.Reason)
		w := c.Delta
		if w == nil {
			w = c.Message
		}
		if w == nil {
			continue
		}
		out.Content += string(w.Content) + string(w.Refusal)
		if out.Thinking += string(w.Thinking); w.Thinking == "" {
			out.Thinking += string(w.Reasoning)
		}
		for _, f := range w.Calls {
			if err := p.calls.add(f); err != nil {
				return model.Chunk{}, p.call.Unreadable(err.Error())
			}
		}
	}
	return out, nil
}

// status is the one that an error names, where it names one: in mid-stream there is no other.
func status(raw json.RawMessage) int {
	var e struct {
		Code json.RawMessage `json:"code"`
		Type string          `json:"type"`
	}
	if json.Unmarshal(raw, &e) != nil {
		return http.StatusInternalServerError
	}
	if n, err := strconv.Atoi(strings.Trim(string(e.Code), `"`)); err == nil && n >= 400 && n < 600 {
		return n
	}
	switch e.Type {
	case "rate_limit_error", "rate_limit_exceeded", "overloaded_error", "unavailable_error":
		return http.StatusServiceUnavailable
	case "authentication_error", "permission_error":
		return http.StatusUnauthorized
	}
	return http.StatusInternalServerError
}

// end is the last chunk.
func (p *reply) end() (model.Chunk, error) {
	whole, err := p.calls.whole()
	if err != nil {
		return model.Chunk{}, p.call.Unreadable(err.Error())
	}
	p.final.Model = or(p.final.Model, p.asked.Model)
	p.final.RemoteHost = p.away
	return model.Chunk{Calls: whole, Done: true, Final: p.final}, nil
}
