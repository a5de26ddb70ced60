package modeltest

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"conclave/pkg/model"
	"conclave/pkg/model/scriptserver"
)

// Adaptive is the family of models that choose their own thinking budget, as Anthropic's newer ones do. The others
// require a budget, and the signed thinking of their tool loop in the next request.
const Adaptive = "adaptive"

// Anthropic serves Anthropic's protocol below /anthropic. Requests must carry key; "" accepts every request.
func Anthropic(key string) scriptserver.Protocol {
	return func(s *scriptserver.Server, mux *http.ServeMux) {
		f := anthropicProtocol{s, key}
		mux.HandleFunc("GET /anthropic/v1/models", scriptserver.Guard(f.checkKey, f.listModels))
		mux.HandleFunc("GET /anthropic/v1/models/{name...}", scriptserver.Guard(f.checkKey, f.showModel))
		mux.HandleFunc("POST /anthropic/v1/messages", scriptserver.Guard(f.checkKey, f.serveChat))
	}
}

type anthropicProtocol struct {
	*scriptserver.Server
	key string
}

func (f anthropicProtocol) checkKey(w http.ResponseWriter, r *http.Request) bool {
	if r.Header.Get("Anthropic-Version") == "" {
		writeAnthropicError(w, http.StatusBadRequest, "invalid_request_error", "anthropic-version: header is required")
		return false
	}
	text, ok := scriptserver.CheckKey(f.key, r.Header.Get("X-Api-Key"))
	if !ok {
		writeAnthropicError(w, http.StatusUnauthorized, "authentication_error", text)
	}
	return ok
}

func writeAnthropicError(w http.ResponseWriter, status int, kind, text string) {
	scriptserver.WriteJSON(w, status, object{
		"type": "error", "error": object{"type": kind, "message": text},
		"request_id": "req_1",
	})
}

func (f anthropicProtocol) describe(m scriptserver.Model) object {
	can := func(b bool) object { return object{"supported": b} }
	return object{
		"type": "model", "id": m.Name, "display_name": m.Name, "created_at": "2026-01-01T00:00:00Z", "line": m.Family,
		"max_input_tokens": m.Window, "max_tokens": 64000,
		"capabilities": object{
			"image_input": can(m.Vision),
			"thinking": object{"supported": m.Thinking, "types": object{
				"adaptive": can(m.Thinking && m.Family == Adaptive), "enabled": can(m.Thinking && m.Family != Adaptive),
			}},
		},
	}
}

// listModels returns pages of two models.
func (f anthropicProtocol) listModels(w http.ResponseWriter, r *http.Request) {
	var list []scriptserver.Model
	after, reached := r.URL.Query().Get("after_id"), false
	for _, m := range f.Models() {
		if m.Embedding {
			continue
		}
		if after == "" || reached {
			list = append(list, m)
		}
		reached = reached || m.Name == after
	}
	page := list[:min(2, len(list))]
	out := object{"data": []object{}, "has_more": len(list) > len(page), "first_id": nil, "last_id": nil}
	data := []object{}
	for _, m := range page {
		data = append(data, f.describe(m))
		out["last_id"] = m.Name
	}
	out["data"] = data
	scriptserver.WriteJSON(w, http.StatusOK, out)
}

func (f anthropicProtocol) showModel(w http.ResponseWriter, r *http.Request) {
	m, ok := f.Lookup(r.PathValue("name"))
	if !ok || m.Embedding {
		writeAnthropicError(w, http.StatusNotFound, "not_found_error", "model: "+r.PathValue("name"))
		return
	}
	scriptserver.WriteJSON(w, http.StatusOK, f.describe(m))
}

type anthropicBlock struct {
	Type      string `json:"type"`
	Text      string `json:"text"`
	Thinking  string `json:"thinking"`
	Signature string `json:"signature"`
	Source    struct {
		Type string `json:"media_type"`
		Data []byte `json:"data"` // base64
	} `json:"source"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"`
	Content   json.RawMessage `json:"content"`
}

type anthropicRequest struct {
	Model     string           `json:"model"`
	MaxTokens int              `json:"max_tokens"`
	System    []anthropicBlock `json:"system"`
	Messages  []struct {
		Role    string           `json:"role"`
		Content []anthropicBlock `json:"content"`
	} `json:"messages"`
	Tools []struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Schema      json.RawMessage `json:"input_schema"`
	} `json:"tools"`
	Thinking *struct {
		Type   string `json:"type"`
		Budget int    `json:"budget_tokens"`
	} `json:"thinking"`
	Output struct {
		Format struct {
			Type   string          `json:"type"`
			Schema json.RawMessage `json:"schema"`
		} `json:"format"`
	} `json:"output_config"`
	Temperature *float64 `json:"temperature"`
	Stop        []string `json:"stop_sequences"`
	Stream      bool     `json:"stream"`
}

func (f anthropicProtocol) serveChat(w http.ResponseWriter, r *http.Request) {
	var req anthropicRequest
	raw, ok := scriptserver.DecodeBody(w, r, &req)
	if !ok {
		return
	}
	m, _ := f.Lookup(req.Model)
	seen, err := req.decode(m)
	f.ServeDecoded(w, r, raw, seen, err, &anthropicEncoder{})
}

// signThinking returns the signature of a thinking block.
func signThinking(thinking string) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte("signed "+thinking)))
}

// decode converts a request. It rejects whatever the service rejects.
func (req anthropicRequest) decode(m scriptserver.Model) (scriptserver.Request, error) {
	out := scriptserver.Request{Request: model.Request{
		Model: req.Model, Stream: req.Stream, Format: req.Output.Format.Schema,
		Options: model.Options{Predict: req.MaxTokens, Temperature: req.Temperature, Stop: req.Stop},
	}}
	if req.MaxTokens <= 0 {
		return out, errors.New("max_tokens: field required")
	}
	for _, b := range req.System {
		out.Messages = append(out.Messages, model.Message{Role: model.System, Content: b.Text})
	}
	for _, t := range req.Tools {
		var schema struct {
			Type string `json:"type"`
		}
		if json.Unmarshal(t.Schema, &schema) != nil || schema.Type != "object" {
			return out, fmt.Errorf("tools: the input_schema of %s is not one of an object", t.Name)
		}
		out.Tools = append(out.Tools, model.Tool{Name: t.Name, Description: t.Description, Parameters: t.Schema})
	}
	if err := req.decodeThinking(m, &out); err != nil {
		return out, err
	}
	return out, req.decodeMessages(&out)
}

func (req anthropicRequest) decodeThinking(m scriptserver.Model, out *scriptserver.Request) error {
	if req.Thinking == nil {
		return nil
	}
	on := req.Thinking.Type != "disabled"
	out.Think = &on
	switch {
	case !on:
		return nil
	case req.Temperature != nil:
		return errors.New("`temperature` may only be set to 1 when thinking is enabled")
	case req.Thinking.Type == "adaptive" && m.Family != Adaptive, req.Thinking.Type == "enabled" &&
		m.Family == Adaptive:
		return fmt.Errorf("thinking.type %q is not one that the model takes", req.Thinking.Type)
	case req.Thinking.Type == "enabled" && (req.Thinking.Budget < 1024 || req.Thinking.Budget >= req.MaxTokens):
		return errors.New("thinking.budget_tokens: at least 1024 and less than max_tokens")
	}
	// With a budget, the last assistant message must begin with its thinking.
	for i := len(req.Messages) - 1; i >= 0 && req.Thinking.Type == "enabled"; i-- {
		w := req.Messages[i]
		if w.Role == model.User && len(w.Content) > 0 && w.Content[0].Type != "tool_result" {
			break
		}
		if w.Role == model.Assistant && len(w.Content) > 0 && !strings.HasSuffix(w.Content[0].Type, "thinking") {
			return fmt.Errorf("messages.%d.content.0.type: expected `thinking`, found `%s`", i, w.Content[0].Type)
		}
	}
	return nil
}

func (req anthropicRequest) decodeMessages(out *scriptserver.Request) error {
	names := map[string]string{}
	var open []string // calls without a result, in order
	for i, w := range req.Messages {
		if len(w.Content) == 0 || (w.Role != model.User && w.Role != model.Assistant) {
			return fmt.Errorf("messages.%d: a message has a role and content", i)
		}
		msg := model.Message{Role: w.Role}
		results := 0
		for _, b := range w.Content {
			switch b.Type {
			case "text":
				if strings.TrimSpace(b.Text) == "" {
					return fmt.Errorf("messages.%d: text content blocks must contain non-whitespace text", i)
				}
				if len(open) > 0 {
					return fmt.Errorf("messages.%d: `tool_use` %s has no `tool_result` immediately after", i, open[0])
				}
				msg.Content += b.Text
			case "image":
				msg.Images = append(msg.Images, model.Image{
					Type: b.Source.Type, Size: len(b.Source.Data),
					Data: b.Source.Data,
				})
			case "thinking":
				if b.Signature != signThinking(b.Thinking) {
					return fmt.Errorf("messages.%d: Invalid `signature` in `thinking` block", i)
				}
				msg.Thinking += b.Thinking
			case "tool_use":
				if _, known := names[b.ID]; known || b.ID == "" || len(b.Input) == 0 || b.Input[0] != '{' {
					return fmt.Errorf("messages.%d: `tool_use` ids must be unique and input an object", i)
				}
				names[b.ID] = b.Name
				open = append(open, b.ID)
				msg.Calls = append(msg.Calls, model.Call{ID: b.ID, Name: b.Name, Arguments: b.Input})
			case "tool_result":
				if len(open) == 0 || open[0] != b.ToolUseID {
					return fmt.Errorf("messages.%d: unexpected `tool_use_id` found in `tool_result` blocks: %s", i,
						b.ToolUseID)
				}
				open = open[1:]
				results++
				out.Messages = append(out.Messages, model.Message{
					Role: model.ToolRole, Content: b.resultText(), ToolName: names[b.ToolUseID], CallID: b.ToolUseID,
				})
			default:
				return fmt.Errorf("messages.%d: a block of the type %q", i, b.Type)
			}
		}
		if w.Role == model.User && len(open) > 0 {
			return fmt.Errorf("messages.%d: the call %s has no result", i, open[0])
		}
		if results == 0 || msg.Content != "" {
			out.Messages = append(out.Messages, msg)
		}
	}
	return nil
}

// resultText returns the text of a tool_result.
func (b anthropicBlock) resultText() string {
	var text string
	if json.Unmarshal(b.Content, &text) == nil {
		return text
	}
	var blocks []anthropicBlock
	_ = json.Unmarshal(b.Content, &blocks)
	for _, c := range blocks {
		text += c.Text
	}
	return text
}

// anthropicEncoder writes answers as Anthropic does, in content blocks with start, deltas and stop.
type anthropicEncoder struct {
	open     string // type of the open block
	index    int
	calls    int
	thinking strings.Builder
}

func (f *anthropicEncoder) EncodeRefusal(w http.ResponseWriter, a *scriptserver.Answer) {
	status, kind, text := a.Status, "invalid_request_error", a.Text
	switch a.Refusal {
	case scriptserver.RefusedBusy:
		status, kind, text = 529, "overloaded_error", "Overloaded"
	case scriptserver.RefusedLength:
		text = a.TextOr("prompt is too long: 210000 tokens > 200000 maximum")
	case scriptserver.RefusedMissing:
		kind, text = "not_found_error", "model: "+a.Model
	case scriptserver.RefusedStatus, scriptserver.RefusedMismatch:
		kind = "api_error"
	}
	writeAnthropicError(w, status, kind, text)
}

func (f *anthropicEncoder) message(a *scriptserver.Answer) object {
	return object{
		"id": "msg_1", "type": "message", "role": "assistant", "model": a.Model, "content": []object{},
		"stop_reason": nil, "stop_sequence": nil, "usage": object{"input_tokens": a.Prompt, "output_tokens": 1},
	}
}

func (f *anthropicEncoder) EncodeReply(w http.ResponseWriter, a *scriptserver.Answer) {
	p := a.Join()
	content := []object{}
	if p.Thinking != "" {
		content = append(content, object{
			"type": "thinking", "thinking": p.Thinking,
			"signature": signThinking(p.Thinking),
		})
	}
	if p.Content != "" {
		content = append(content, object{"type": "text", "text": p.Content})
	}
	for _, c := range p.Calls {
		content = append(content, object{"type": "tool_use", "id": c.ID, "name": c.Name, "input": c.Arguments})
	}
	f.calls = len(p.Calls)
	m := f.message(a)
	m["content"], m["stop_reason"] = content, f.stopReason(a)
	m["usage"] = object{"input_tokens": a.Prompt, "output_tokens": a.Output}
	scriptserver.WriteJSON(w, http.StatusOK, m)
}

func (f *anthropicEncoder) stopReason(a *scriptserver.Answer) string {
	switch {
	case a.Reason == "length":
		return "max_tokens"
	case f.calls > 0:
		return "tool_use"
	}
	return "end_turn"
}

func (f *anthropicEncoder) BeginStream(w http.ResponseWriter, a *scriptserver.Answer) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	f.writeEvent(w, "message_start", object{"message": f.message(a)})
	f.writeEvent(w, "ping", object{})
}

func (f *anthropicEncoder) writeEvent(w io.Writer, kind string, v object) {
	v["type"] = kind
	_, _ = fmt.Fprintf(w, "event: %s\ndata: %s\n\n", kind, scriptserver.MustEncode(v))
}

// openBlock opens a block of this type unless one is open.
func (f *anthropicEncoder) openBlock(w io.Writer, kind string, start object) {
	if f.open == kind && kind != "tool_use" {
		return
	}
	f.closeBlock(w)
	f.open = kind
	start["type"] = kind
	f.writeEvent(w, "content_block_start", object{"index": f.index, "content_block": start})
}

func (f *anthropicEncoder) writeDelta(w io.Writer, kind, field, text string) {
	f.writeEvent(w, "content_block_delta", object{"index": f.index, "delta": object{"type": kind, field: text}})
}

func (f *anthropicEncoder) closeBlock(w io.Writer) {
	if f.open == "" {
		return
	}
	if f.open == "thinking" {
		f.writeDelta(w, "signature_delta", "signature", signThinking(f.thinking.String()))
		f.thinking.Reset()
	}
	f.writeEvent(w, "content_block_stop", object{"index": f.index})
	f.index++
	f.open = ""
}

func (f *anthropicEncoder) EncodeChunk(w io.Writer, _ *scriptserver.Answer, p scriptserver.Chunk) {
	if p.Thinking != "" {
		f.openBlock(w, "thinking", object{"thinking": "", "signature": ""})
		f.thinking.WriteString(p.Thinking)
		f.writeDelta(w, "thinking_delta", "thinking", p.Thinking)
	}
	if p.Content != "" {
		f.openBlock(w, "text", object{"text": ""})
		f.writeDelta(w, "text_delta", "text", p.Content)
	}
	for _, c := range p.Calls {
		f.openBlock(w, "tool_use", object{"id": c.ID, "name": c.Name, "input": object{}})
		f.writeDelta(w, "input_json_delta", "partial_json", "")
		for _, part := range scriptserver.SplitBytes(string(c.Arguments), 5) {
			f.writeDelta(w, "input_json_delta", "partial_json", part)
		}
		f.calls++
	}
}

func (f *anthropicEncoder) EndStream(w io.Writer, a *scriptserver.Answer) {
	f.EncodeChunk(w, a, a.Last)
	f.closeBlock(w)
	f.writeEvent(w, "message_delta", object{
		"delta": object{"stop_reason": f.stopReason(a), "stop_sequence": nil},
		"usage": object{"output_tokens": a.Output},
	})
	f.writeEvent(w, "message_stop", object{})
}

func (f *anthropicEncoder) EncodeError(w io.Writer, _ *scriptserver.Answer, text string) {
	f.writeEvent(w, "error", object{"error": object{"type": "api_error", "message": text}})
}

func (f *anthropicEncoder) WriteRaw(w io.Writer, b []byte) {
	_, _ = fmt.Fprintf(w, "event: content_block_delta\ndata: %s\n\n", b)
}
