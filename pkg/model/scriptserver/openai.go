package scriptserver

import (
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"conclave/pkg/model"
)

// OpenAI speaks OpenAI's protocol below /v1, as llama.cpp and vLLM do. With a key, requests must carry it.
func OpenAI(key string) Protocol {
	return func(s *Server, mux *http.ServeMux) {
		f := openaiProtocol{s, key}
		mux.HandleFunc("GET /v1/models", Guard(f.checkKey, f.listModels))
		mux.HandleFunc("POST /v1/embeddings", Guard(f.checkKey, f.serveEmbed))
		mux.HandleFunc("POST /v1/chat/completions", Guard(f.checkKey, f.serveChat))
	}
}

type openaiProtocol struct {
	*Server
	key string
}

// CheckKey compares the key of a request with the expected one; key "" accepts every request. The error text quotes the
// key, as careless servers do.
func CheckKey(key, carried string) (string, bool) {
	if key == "" || subtle.ConstantTimeCompare([]byte(key), []byte(carried)) == 1 {
		return "", true
	}
	return fmt.Sprintf("Incorrect API key provided: %s. You can find your API key in your settings.", carried), false
}

// Guard calls handle for the requests that check accepts. check replies to the others.
func Guard(check func(http.ResponseWriter, *http.Request) bool, handle http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if check(w, r) {
			handle(w, r)
		}
	}
}

// checkKey reports whether the request carries the key. If not, it writes HTTP 401.
func (f openaiProtocol) checkKey(w http.ResponseWriter, r *http.Request) bool {
	text, ok := CheckKey(f.key, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
	if !ok {
		writeOpenAIError(w, http.StatusUnauthorized, "invalid_request_error", "invalid_api_key", text)
	}
	return ok
}

func writeOpenAIError(w http.ResponseWriter, status int, kind, code, text string) {
	WriteJSON(w, status,
		map[string]any{"error": map[string]any{"message": text, "type": kind, "param": nil, "code": code}})
}

// listModels serves GET /v1/models, with the window and size as llama.cpp reports them.
func (f openaiProtocol) listModels(w http.ResponseWriter, _ *http.Request) {
	type entry struct {
		ID     string         `json:"id"`
		Object string         `json:"object"`
		Owner  string         `json:"owned_by"`
		Meta   map[string]any `json:"meta"`
	}
	list := []entry{}
	for _, m := range f.Models() {
		list = append(list, entry{m.Name, "model", m.Family, map[string]any{"n_ctx_train": m.Window, "size": m.Size}})
	}
	WriteJSON(w, http.StatusOK, map[string]any{"object": "list", "data": list})
}

// serveEmbed serves POST /v1/embeddings. It rejects input that is not text (400), and what [Server.EmbedTexts] refuses.
// The vectors are sent in reverse order, with their index.
func (f openaiProtocol) serveEmbed(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Model string `json:"model"`
		Input any    `json:"input"`
	}
	raw, ok := DecodeBody(w, r, &req)
	if !ok {
		return
	}
	texts, err := embedInputs(req.Input)
	if err != nil {
		writeOpenAIError(w, http.StatusBadRequest, "invalid_request_error", "", err.Error())
		return
	}
	vectors, tokens, ok := f.EmbedTexts(w, r, raw, req.Model, texts, false, &openaiEncoder{})
	if !ok {
		return
	}
	type entry struct {
		Object    string    `json:"object"`
		Index     int       `json:"index"`
		Embedding []float32 `json:"embedding"`
	}
	data := make([]entry, len(vectors))
	for i, v := range vectors {
		// In reverse order, so that clients must use the index.
		data[len(data)-1-i] = entry{"embedding", i, v}
	}
	WriteJSON(w, http.StatusOK, map[string]any{
		"object": "list", "model": req.Model, "data": data, "usage": map[string]int{
			"prompt_tokens": tokens,
			"total_tokens":  tokens,
		},
	})
}

// openaiRequest is the body of a chat request.
type openaiRequest struct {
	Model    string `json:"model"`
	Messages []struct {
		Role      string          `json:"role"`
		Content   json.RawMessage `json:"content"` // a text, a list of parts, or null
		Reasoning string          `json:"reasoning_content"`
		Calls     []struct {
			ID       string `json:"id"`
			Type     string `json:"type"`
			Function struct {
				Name      string `json:"name"`
				Arguments string `json:"arguments"`
			} `json:"function"`
		} `json:"tool_calls"`
		CallID string `json:"tool_call_id"`
	} `json:"messages"`
	Tools []struct {
		Type     string     `json:"type"`
		Function model.Tool `json:"function"`
	} `json:"tools"`
	Format *struct {
		Type   string `json:"type"`
		Schema struct {
			Name   string          `json:"name"`
			Schema json.RawMessage `json:"schema"`
		} `json:"json_schema"`
	} `json:"response_format"`
	Temperature *float64        `json:"temperature"`
	Seed        *int            `json:"seed"`
	Stop        []string        `json:"stop"`
	MaxTokens   int             `json:"max_tokens"`
	MaxOfficial int             `json:"max_completion_tokens"`
	Effort      string          `json:"reasoning_effort"`
	Template    map[string]bool `json:"chat_template_kwargs"`
	Stream      bool            `json:"stream"`
	StreamWith  *struct {
		Usage bool `json:"include_usage"`
	} `json:"stream_options"`
}

// serveChat serves POST /v1/chat/completions. It rejects a body that is not JSON (400); a request that decode rejects
// is also a mismatch with the script.
func (f openaiProtocol) serveChat(w http.ResponseWriter, r *http.Request) {
	var req openaiRequest
	raw, ok := DecodeBody(w, r, &req)
	if !ok {
		return
	}
	seen, err := req.decode()
	f.ServeDecoded(w, r, raw, seen, err, &openaiEncoder{
		usage: req.StreamWith != nil && req.StreamWith.Usage, id: "chatcmpl-1",
		made: time.Now().Unix(),
	})
}

// decode converts a request. It rejects whatever the strictest servers reject: tools and formats without a name or of
// another type, a message with neither content nor calls, calls without id, type or JSON arguments, a result without
// its call, and a message before all results.
func (req openaiRequest) decode() (Request, error) {
	out := Request{Request: model.Request{Model: req.Model, Stream: req.Stream, Options: model.Options{
		Predict: max(req.MaxTokens, req.MaxOfficial), Temperature: req.Temperature, Seed: req.Seed, Stop: req.Stop,
	}}}
	if think, ok := req.Template["enable_thinking"]; ok {
		out.Think = &think
	} else if req.Effort != "" {
		think := req.Effort != "none"
		out.Think = &think
	}
	for _, t := range req.Tools {
		if t.Type != "function" || t.Function.Name == "" {
			return out, errors.New("a tool is not a function with a name")
		}
		out.Tools = append(out.Tools, t.Function)
	}
	if req.Format != nil {
		if req.Format.Type != "json_schema" || req.Format.Schema.Name == "" {
			return out, errors.New("response_format is not a json_schema with a name")
		}
		out.Format = req.Format.Schema.Schema
	}
	open := map[string]string{} // names of the calls without a result, by id
	for i, m := range req.Messages {
		msg := model.Message{Role: m.Role, Thinking: m.Reasoning, CallID: m.CallID}
		if len(m.Content) == 0 || string(m.Content) == "null" {
			if len(m.Calls) == 0 {
				return out, fmt.Errorf("message %d has neither content nor calls", i)
			}
		} else if err := decodeParts(m.Content, &msg); err != nil {
			return out, fmt.Errorf("message %d: %w", i, err)
		}
		if m.Role == model.ToolRole {
			name, ok := open[m.CallID]
			if !ok {
				return out, fmt.Errorf("message %d is the result of a call %q that was not made", i, m.CallID)
			}
			delete(open, m.CallID)
			msg.ToolName = name
		} else if len(open) > 0 {
			return out, fmt.Errorf("message %d comes before the results of all calls", i)
		}
		for _, c := range m.Calls {
			if c.ID == "" || c.Type != "function" || !json.Valid([]byte(c.Function.Arguments)) {
				return out, fmt.Errorf("message %d has a call without id, type or JSON arguments", i)
			}
			open[c.ID] = c.Function.Name
			msg.Calls = append(msg.Calls, model.Call{
				ID: c.ID, Name: c.Function.Name,
				Arguments: json.RawMessage(c.Function.Arguments),
			})
		}
		out.Messages = append(out.Messages, msg)
	}
	return out, nil
}

// openaiEncoder writes answers in OpenAI's protocol, with the arguments of calls in fragments.
type openaiEncoder struct {
	usage bool
	id    string
	made  int64
	calls int
}

// EncodeRefusal implements [Encoder], with error types and texts of llama.cpp and OpenAI. Quirks.ErrorLine is the text
// where the script sets it, except for a busy server and a missing model.
func (f *openaiEncoder) EncodeRefusal(w http.ResponseWriter, a *Answer) {
	text, kind, code := a.Text, "invalid_request_error", ""
	switch a.Refusal {
	case RefusedBusy:
		kind, text = "unavailable_error", "Loading model"
	case RefusedLength:
		kind, code = "exceed_context_size_error", "context_length_exceeded"
		text = a.TextOr("request (200000 tokens) exceeds the available context size (131072 tokens), try increasing it")
	case RefusedMissing:
		code, text = "model_not_found", fmt.Sprintf("The model `%s` does not exist or you do not have access to it.",
			a.Model)
	case RefusedTools:
		if a.Quirks.ErrorLine == "" {
			kind, text = "server_error", "tools param requires --jinja flag"
		}
	case RefusedStatus, RefusedMismatch:
		kind = "server_error"
	}
	writeOpenAIError(w, a.Status, kind, code, text)
}

type object = map[string]any

// EncodeReply implements [Encoder]. The content is null beside calls without text.
func (f *openaiEncoder) EncodeReply(w http.ResponseWriter, a *Answer) {
	p := a.Join()
	message := object{"role": "assistant", "content": p.Content}
	if p.Thinking != "" {
		message["reasoning_content"] = p.Thinking
	}
	if len(p.Calls) > 0 {
		if p.Content == "" {
			message["content"] = nil
		}
		var calls []object
		for _, c := range p.Calls {
			calls = append(calls, f.toolCall(c, string(c.Arguments)))
		}
		message["tool_calls"] = calls
	}
	f.calls += len(p.Calls)
	WriteJSON(w, http.StatusOK, object{
		"id": f.id, "object": "chat.completion", "created": f.made, "model": a.Model,
		"choices": []object{{"index": 0, "message": message, "finish_reason": f.finishReason(a)}},
		"usage":   f.tokenUsage(a),
	})
}

func (f *openaiEncoder) toolCall(c model.Call, args string) object {
	out := object{"type": "function", "function": object{"name": c.Name, "arguments": args}}
	if c.ID != "" {
		out["id"] = c.ID
	}
	return out
}

func (f *openaiEncoder) finishReason(a *Answer) string {
	if f.calls > 0 && a.Reason == "stop" {
		return "tool_calls"
	}
	return a.Reason
}

func (f *openaiEncoder) tokenUsage(a *Answer) object {
	return object{"prompt_tokens": a.Prompt, "completion_tokens": a.Output, "total_tokens": a.Prompt + a.Output}
}

func (f *openaiEncoder) BeginStream(w http.ResponseWriter, a *Answer) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	_, _ = io.WriteString(w, ": a comment, as proxies send them to keep the line open\n\n")
	f.writeDelta(w, a, object{"role": "assistant", "content": nil}, nil)
}

func (f *openaiEncoder) writeDelta(w io.Writer, a *Answer, delta object, reason any) {
	f.WriteRaw(w, MustEncode(object{
		"id": f.id, "object": "chat.completion.chunk", "created": f.made, "model": a.Model,
		"choices": []object{{"index": 0, "delta": delta, "finish_reason": reason}},
	}))
}

// EncodeChunk implements [Encoder]. A call is sent in fragments: first its id and name, then its arguments in pieces of
// about five bytes.
func (f *openaiEncoder) EncodeChunk(w io.Writer, a *Answer, p Chunk) {
	if p.Thinking != "" {
		f.writeDelta(w, a, object{"reasoning_content": p.Thinking}, nil)
	}
	if p.Content != "" {
		f.writeDelta(w, a, object{"content": p.Content}, nil)
	}
	for _, c := range p.Calls {
		first := f.toolCall(c, "")
		first["index"] = f.calls
		f.writeDelta(w, a, object{"tool_calls": []object{first}}, nil)
		for _, part := range SplitBytes(string(c.Arguments), 5) {
			f.writeDelta(w, a,
				object{"tool_calls": []object{{"index": f.calls, "function": object{"arguments": part}}}}, nil)
		}
		f.calls++
	}
}

// SplitBytes splits s into parts of about n bytes, at least one part, never within a rune. n must be positive.
func SplitBytes(s string, n int) (out []string) {
	for len(s) > n {
		end := n
		for !utf8.RuneStart(s[end]) {
			end++
			if end == len(s) {
				return append(out, s)
			}
		}
		out, s = append(out, s[:end]), s[end:]
	}
	return append(out, s)
}

// EndStream implements [Encoder]. The token counts are sent only if the request asked for them.
func (f *openaiEncoder) EndStream(w io.Writer, a *Answer) {
	f.EncodeChunk(w, a, a.Last)
	f.writeDelta(w, a, object{}, f.finishReason(a))
	if f.usage {
		f.WriteRaw(w, MustEncode(object{
			"id": f.id, "object": "chat.completion.chunk", "created": f.made, "model": a.Model,
			"choices": []object{}, "usage": f.tokenUsage(a),
		}))
	}
	f.WriteRaw(w, []byte("[DONE]"))
}

func (f *openaiEncoder) EncodeError(w io.Writer, _ *Answer, text string) {
	f.WriteRaw(w, MustEncode(object{"error": object{"message": text, "type": "server_error", "code": 500}}))
}

func (f *openaiEncoder) WriteRaw(w io.Writer, b []byte) { _, _ = fmt.Fprintf(w, "data: %s\n\n", b) }

// decodeParts decodes the content of a message: a text, or a list of texts and images as data URLs.
func decodeParts(raw json.RawMessage, into *model.Message) error {
	if json.Unmarshal(raw, &into.Content) == nil {
		return nil
	}
	var parts []struct {
		Type  string `json:"type"`
		Text  string `json:"text"`
		Image struct {
			URL string `json:"url"`
		} `json:"image_url"`
	}
	if err := json.Unmarshal(raw, &parts); err != nil {
		return err
	}
	for _, p := range parts {
		switch p.Type {
		case "text":
			into.Content += p.Text
		case "image_url":
			kind, encoded, ok := strings.Cut(strings.TrimPrefix(p.Image.URL, "data:"), ";base64,")
			data, err := base64.StdEncoding.DecodeString(encoded)
			if !ok || err != nil {
				return errors.New("an image is not a data URL")
			}
			into.Images = append(into.Images, model.Image{Type: kind, Size: len(data), Data: data})
		default:
			return fmt.Errorf("unknown part %q", p.Type)
		}
	}
	return nil
}
