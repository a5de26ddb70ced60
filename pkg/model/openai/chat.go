package openai

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

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

// message is a message on the wire. Content is a text, a list of parts when there are images, or null beside tool
// calls, because some servers reject an empty string there.
type message struct {
	Role      string `json:"role"`
	Content   any    `json:"content"`
	Reasoning string `json:"reasoning_content,omitempty"`
	Calls     []call `json:"tool_calls,omitempty"`
	CallID    string `json:"tool_call_id,omitempty"`
}

// part is a text or an image of a message.
type part struct {
	Type  string    `json:"type"` // text or image_url
	Text  string    `json:"text,omitempty"`
	Image *imageURL `json:"image_url,omitempty"`
}

type imageURL struct {
	URL string `json:"url"` // a data URL: nothing is fetched
}

// encodeParts returns the content of a message with images.
func encodeParts(m model.Message) (out []part) {
	if m.Content != "" {
		out = append(out, part{Type: "text", Text: m.Content})
	}
	for _, i := range m.Images {
		out = append(out,
			part{
				Type:  "image_url",
				Image: &imageURL{"data:" + i.Type + ";base64," + base64.StdEncoding.EncodeToString(i.Data)},
			})
	}
	return out
}

type call struct {
	ID       string   `json:"id"`
	Type     string   `json:"type"`
	Function function `json:"function"`
}

// function holds its arguments as a string of JSON, as the protocol requires.
type function struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// usage is the server's token count.
type usage struct {
	Prompt int `json:"prompt_tokens"`
	Output int `json:"completion_tokens"`
}

// timings are llama.cpp's own measurements in milliseconds.
type timings struct {
	Prompt float64 `json:"prompt_ms"` // of the part that was not cached
	Output float64 `json:"predicted_ms"`
}

// millis is a duration of n milliseconds; 0 for a negative number and one that is too large to be a time.
func millis(n float64) time.Duration {
	if d := time.Duration(n * float64(time.Millisecond)); n > 0 && d < 24*time.Hour {
		return max(d, 0)
	}
	return 0
}

// encodeRequest returns the path and the body for r. It rejects tool parameters and formats that are not JSON.
func (b *Backend) encodeRequest(_ context.Context, r model.Request) (string, any, error) {
	out := request{
		Model: r.Model, Messages: encodeMessages(r.Messages), Temperature: r.Options.Temperature,
		Seed: r.Options.Seed, Stop: r.Options.Stop, Stream: r.Stream,
	}
	if b.cfg.Official {
		out.MaxOfficial = r.Options.Predict
	} else {
		out.MaxTokens = r.Options.Predict
	}
	if r.Think != nil {
		b.setThinking(&out, *r.Think)
	}
	if r.Stream {
		out.StreamWith = &streamOptions{Usage: true}
	}
	for _, t := range r.Tools {
		if len(t.Parameters) > 0 && !json.Valid(t.Parameters) {
			return "", nil, fmt.Errorf("the parameters of the tool %s are not JSON", t.Name)
		}
		out.Tools = append(out.Tools, tool{"function", definition{t.Name, t.Description, t.Parameters}})
	}
	if len(r.Format) > 0 {
		if !json.Valid(r.Format) {
			return "", nil, errors.New("the format of the answer is not JSON")
		}
		out.Format = &format{Type: "json_schema"}
		out.Format.Schema.Name, out.Format.Schema.Schema = "answer", r.Format
	}
	return b.root + "/chat/completions", out, nil
}

// setThinking turns thinking on or off: by reasoning_effort for the official service, by a variable of the chat
// template for other servers, which may ignore it.
func (b *Backend) setThinking(out *request, think bool) {
	if !b.cfg.Official {
		out.Template = map[string]bool{"enable_thinking": think}
		return
	}
	out.Effort = "none"
	if think {
		out.Effort = "medium"
	}
}

// encodeMessages converts a conversation to the protocol's messages. Each call is followed by its result; a result
// without its call becomes a user message. Thinking is sent only with calls.
func encodeMessages(in []model.Message) []message {
	out := make([]message, 0, len(in))
	for _, t := range remote.GroupTurns(in) {
		w := message{Role: t.Role, Content: t.Content}
		if len(t.Images) > 0 {
			w.Content = encodeParts(t.Message)
		}
		if t.Role == model.ToolRole {
			// A result without its call: the protocol accepts it only as a user message.
			w.Role = model.User
		}
		if len(t.Calls) > 0 {
			// Thinking is sent back with tool calls only, that is, inside one tool loop.
			w.Reasoning = t.Thinking
			if t.Content == "" {
				w.Content = nil
			}
		}
		for _, c := range t.Calls {
			args, _ := remote.JSONObject(c.Arguments) // a call with other arguments was never run
			w.Calls = append(w.Calls, call{c.Wire, "function", function{c.Name, string(args)}})
		}
		out = append(out, w)
		for _, c := range t.Calls {
			out = append(out, message{Role: model.ToolRole, Content: c.Result, CallID: c.Wire})
		}
	}
	return out
}

// Chat implements [model.Chat]: see [remote.Client.Chat].
func (b *Backend) Chat(ctx context.Context, r model.Request) iter.Seq2[model.Chunk, error] {
	return b.remote.Chat(ctx, r, b.encodeRequest, func(call *remote.Call) remote.Reply {
		return &reply{call: call, final: model.Final{Model: r.Model, RemoteHost: b.remote.RemoteHost()}}
	})
}

// reply implements [remote.Reply].
type reply struct {
	call   *remote.Call
	calls  callAssembler
	final  model.Final
	choice bool // at least one choice arrived
}

// event is a chunk of a stream (with a delta) or a complete reply (with a message).
type event struct {
	Model   string `json:"model"`
	Choices []struct {
		Index   int    `json:"index"`
		Delta   *piece `json:"delta"`
		Message *piece `json:"message"`
		Reason  string `json:"finish_reason"`
	} `json:"choices"`
	Usage   *usage          `json:"usage"`
	Timings *timings        `json:"timings"`
	Error   json.RawMessage `json:"error"`
}

type piece struct {
	Content   lenient    `json:"content"`
	Thinking  lenient    `json:"reasoning_content"` // llama.cpp, DeepSeek, older vLLM
	Reasoning lenient    `json:"reasoning"`         // newer vLLM, LM Studio
	Calls     []fragment `json:"tool_calls"`
	Refusal   lenient    `json:"refusal"`
}

// lenient is a string field that some servers send as another type, which is then ignored.
type lenient string

// UnmarshalJSON implements [json.Unmarshaler].
func (l *lenient) UnmarshalJSON(data []byte) error {
	var s string
	if json.Unmarshal(data, &s) == nil {
		*l = lenient(s)
	}
	return nil
}

// ReadEvent implements [remote.Reply]. A refusal counts as content; calls are collected until the end, which is [DONE].
// It fails for invalid JSON and an error object. Choices other than the first are ignored.
func (p *reply) ReadEvent(data []byte) (model.Chunk, error) {
	if string(data) == "[DONE]" {
		return p.finalChunk()
	}
	return p.readChoice(data)
}

// EndStream implements [remote.Reply]. A stream that ends after a finish_reason is complete, because not every server
// sends [DONE].
func (p *reply) EndStream() (model.Chunk, error) {
	if p.final.Reason == "" {
		return model.Chunk{}, nil
	}
	return p.finalChunk()
}

// ReadWhole implements [remote.Reply]. It rejects a reply without a choice.
func (p *reply) ReadWhole(data []byte) (model.Chunk, error) {
	c, err := p.readChoice(data)
	if err != nil {
		return c, err
	}
	if !p.choice {
		return c, p.call.ProtocolError("responded without a choice")
	}
	last, err := p.finalChunk()
	last.Content, last.Thinking = c.Content, c.Thinking
	return last, err
}

// readChoice processes an event or a whole reply and returns the content and thinking in it.
func (p *reply) readChoice(data []byte) (model.Chunk, error) {
	var e event
	if json.Unmarshal(data, &e) != nil {
		return model.Chunk{}, p.call.ProtocolError("sent unexpected JSON")
	}
	if err := p.call.EventError(e.Error); err != nil {
		return model.Chunk{}, err
	}
	p.final.Model = firstNonBlank(e.Model, p.final.Model)
	if e.Usage != nil {
		p.final.PromptTokens, p.final.OutputTokens = max(e.Usage.Prompt, 0), max(e.Usage.Output, 0)
	}
	if e.Timings != nil {
		p.final.PromptTime, p.final.OutputTime = millis(e.Timings.Prompt), millis(e.Timings.Output)
	}
	var out model.Chunk
	for _, c := range e.Choices {
		if c.Index != 0 {
			continue // only one choice was requested
		}
		p.choice = true
		p.final.Reason = firstNonBlank(c.Reason, p.final.Reason)
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
			p.calls.addFragment(f)
		}
	}
	return out, nil
}

// finalChunk returns the last chunk with the collected calls. It rejects invalid calls.
func (p *reply) finalChunk() (model.Chunk, error) {
	calls, err := p.calls.finish(p.call)
	if err != nil {
		return model.Chunk{}, err
	}
	return model.Chunk{Calls: calls, Done: true, Final: p.final}, nil
}
