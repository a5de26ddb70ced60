package scriptserver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/ollama/ollama/api"
	capability "github.com/ollama/ollama/types/model"

	"conclave/pkg/model"
)

// registerOllama serves Ollama's protocol. Requests must be what Ollama's own types accept, and answers are written by
// them.
func registerOllama(s *Server, mux *http.ServeMux) {
	running := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "Ollama is running") }
	mux.HandleFunc("GET /{$}", running) // HEAD too
	mux.HandleFunc("GET /api/version", func(w http.ResponseWriter, _ *http.Request) {
		WriteJSON(w, http.StatusOK, map[string]string{"version": "0.17.4"})
	})
	mux.HandleFunc("GET /api/tags", s.listModels)
	mux.HandleFunc("GET /api/ps", s.listLoaded)
	mux.HandleFunc("POST /api/show", s.showModel)
	mux.HandleFunc("POST /api/pull", s.pullModel)
	mux.HandleFunc("POST /api/embed", s.serveEmbed)
	mux.HandleFunc("POST /api/chat", s.serveChat)
}

func WriteJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(MustEncode(v))
}

// MustEncode encodes a value that is known to be encodable.
func MustEncode(v any) []byte {
	b, err := encodeJSON(v)
	if err != nil {
		panic(err) // net/http turns it into a cut connection
	}
	return b
}

func writeError(w http.ResponseWriter, status int, text string) {
	WriteJSON(w, status, map[string]string{"error": text})
}

// DecodeBody decodes the JSON body of a request, at most maxBody bytes, into the value that into points to, and returns
// the body. When it cannot, it writes HTTP 400 and returns false: the caller writes nothing more.
func DecodeBody(w http.ResponseWriter, r *http.Request, into any) ([]byte, bool) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		err = json.Unmarshal(raw, into)
	}
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return nil, false
	}
	return raw, true
}

// taggedName returns a model name with its tag, as Ollama reports it.
func taggedName(name string) string {
	if strings.Contains(name, ":") {
		return name
	}
	return name + ":latest"
}

func (m Model) details() api.ModelDetails {
	return api.ModelDetails{Format: "gguf", Family: m.Family, ParameterSize: m.Parameters, QuantizationLevel: "Q4_K_M"}
}

// listModels serves GET /api/tags: all models of the server.
func (s *Server) listModels(w http.ResponseWriter, _ *http.Request) {
	list := api.ListResponse{Models: []api.ListModelResponse{}}
	for _, m := range s.Models() {
		list.Models = append(list.Models, api.ListModelResponse{
			Name: taggedName(m.Name), Model: taggedName(m.Name), Size: m.Size, Digest: m.Digest,
			RemoteHost: m.RemoteHost, Details: m.details(),
		})
	}
	WriteJSON(w, http.StatusOK, list)
}

// listLoaded serves GET /api/ps: the models with Loaded set.
func (s *Server) listLoaded(w http.ResponseWriter, _ *http.Request) {
	list := api.ProcessResponse{Models: []api.ProcessModelResponse{}}
	for _, m := range s.Models() {
		if m.Loaded {
			list.Models = append(list.Models, api.ProcessModelResponse{
				Name: taggedName(m.Name), Model: taggedName(m.Name), Size: m.Size, Details: m.details(),
				SizeVRAM: m.Size, ContextLength: m.Window, ExpiresAt: time.Now().Add(5 * time.Minute),
			})
		}
	}
	WriteJSON(w, http.StatusOK, list)
}

// showModel serves POST /api/show. An unknown model is HTTP 404.
func (s *Server) showModel(w http.ResponseWriter, r *http.Request) {
	var req api.ShowRequest
	if _, ok := DecodeBody(w, r, &req); !ok {
		return
	}
	m, ok := s.Lookup(req.Model)
	if !ok {
		writeError(w, http.StatusNotFound, fmt.Sprintf("model '%s' not found", req.Model))
		return
	}
	var caps []capability.Capability
	for _, c := range []struct {
		has  bool
		name capability.Capability
	}{
		{!m.Embedding, capability.CapabilityCompletion},
		{m.Embedding, capability.CapabilityEmbedding},
		{m.Tools, capability.CapabilityTools},
		{m.Thinking, capability.CapabilityThinking},
		{m.Vision, capability.CapabilityVision},
	} {
		if c.has {
			caps = append(caps, c.name)
		}
	}
	info := map[string]any{"general.architecture": m.Family}
	if m.Window > 0 {
		info[m.Family+".context_length"] = m.Window
	}
	WriteJSON(w, http.StatusOK, api.ShowResponse{
		Details: m.details(), ModelInfo: info, Capabilities: caps, RemoteHost: m.RemoteHost,
	})
}

// pullModel simulates the download of two layers and adds the model. A name that begins with "no-such" is not found.
func (s *Server) pullModel(w http.ResponseWriter, r *http.Request) {
	var req api.PullRequest
	if _, ok := DecodeBody(w, r, &req); !ok {
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	line := func(v any) {
		_, _ = w.Write(append(MustEncode(v), '\n'))
		_ = http.NewResponseController(w).Flush()
	}
	line(api.ProgressResponse{Status: "pulling manifest"})
	if strings.HasPrefix(req.Model, "no-such") {
		line(map[string]string{"error": "pull model manifest: file does not exist"})
		return
	}
	for i, size := range []int64{4 << 20, 1 << 10} {
		digest := fmt.Sprintf("sha256:%064d", i+1)
		for step := range int64(3) {
			line(api.ProgressResponse{
				Status: "pulling " + digest[7:19], Digest: digest, Total: size, Completed: size * step / 2,
			})
			if i == 0 && step == 1 && s.pullHold != nil {
				select {
				case <-s.pullHold:
				case <-r.Context().Done():
					return
				}
			}
		}
	}
	line(api.ProgressResponse{Status: "verifying sha256 digest"})
	line(api.ProgressResponse{Status: "success"})
	if _, ok := s.Lookup(req.Model); !ok {
		s.SetModel(Model{Name: req.Model, Family: "scripted", Parameters: "12B", Window: 8192, Size: 4<<20 + 1<<10})
	}
}

// serveEmbed serves POST /api/embed and records the request. It rejects input that is not text (400), an unknown model
// (404), one without embeddings (501), and, with truncate false, a text longer than the window (400).
func (s *Server) serveEmbed(w http.ResponseWriter, r *http.Request) {
	var req api.EmbedRequest
	raw, ok := DecodeBody(w, r, &req)
	if !ok {
		return
	}
	texts, err := embedInputs(req.Input)
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	truncate := req.Truncate == nil || *req.Truncate
	if vectors, tokens, ok := s.EmbedTexts(w, r, raw, req.Model, texts, truncate, &ollamaEncoder{}); ok {
		WriteJSON(w, http.StatusOK, api.EmbedResponse{Model: req.Model, Embeddings: vectors, PromptEvalCount: tokens})
	}
}

// embedInputs returns the texts of an embedding request: a string or a list of strings. Anything else is an error.
func embedInputs(v any) ([]string, error) {
	switch v := v.(type) {
	case string:
		return []string{v}, nil
	case []any:
		var texts []string
		for _, x := range v {
			text, ok := x.(string)
			if !ok {
				return nil, fmt.Errorf("invalid input type")
			}
			texts = append(texts, text)
		}
		return texts, nil
	}
	return nil, fmt.Errorf("invalid input type")
}

// serveChat serves POST /api/chat. A request that Ollama would not decode is HTTP 400 and not matched with the script.
func (s *Server) serveChat(w http.ResponseWriter, r *http.Request) {
	var req api.ChatRequest // decoded with Ollama's types, so that it rejects what Ollama rejects
	raw, ok := DecodeBody(w, r, &req)
	if !ok {
		return
	}
	seen, err := decodeChat(req, raw)
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	s.ServeDecoded(w, r, raw, seen, nil, &ollamaEncoder{begun: time.Now()})
}

// decodeChat converts a chat request. It decodes raw again for data that Ollama's types lose: the order of keys and
// unknown parts of schemas.
func decodeChat(req api.ChatRequest, raw []byte) (Request, error) {
	var own struct {
		Messages []struct {
			ToolCalls []struct {
				Function struct {
					Arguments json.RawMessage `json:"arguments"`
				} `json:"function"`
			} `json:"tool_calls"`
		} `json:"messages"`
		Tools []struct {
			Function model.Tool `json:"function"`
		} `json:"tools"`
		Options struct {
			NumCtx      int      `json:"num_ctx"`
			NumPredict  int      `json:"num_predict"`
			Temperature *float64 `json:"temperature"`
			Seed        *int     `json:"seed"`
			Stop        []string `json:"stop"`
		} `json:"options"`
		KeepAlive json.RawMessage `json:"keep_alive"`
	}
	if err := json.Unmarshal(raw, &own); err != nil {
		return Request{}, err
	}
	seen := Request{Request: model.Request{
		Model: req.Model, Format: req.Format, Stream: req.Stream == nil || *req.Stream,
		Options: model.Options{
			Window: own.Options.NumCtx, Predict: own.Options.NumPredict, Temperature: own.Options.Temperature,
			Seed: own.Options.Seed, Stop: own.Options.Stop, KeepAlive: strings.Trim(string(own.KeepAlive), `"`),
		},
	}}
	if req.Think != nil {
		think := req.Think.Bool()
		seen.Think = &think
	}
	for i, m := range req.Messages {
		msg := model.Message{
			Role: m.Role, Content: m.Content, Thinking: m.Thinking, ToolName: m.ToolName, CallID: m.ToolCallID,
		}
		for _, data := range m.Images {
			msg.Images = append(msg.Images, model.Image{Size: len(data), Data: data})
		}
		for j, c := range m.ToolCalls {
			args := own.Messages[i].ToolCalls[j].Function.Arguments
			msg.Calls = append(msg.Calls, model.Call{ID: c.ID, Name: c.Function.Name, Arguments: args})
		}
		seen.Messages = append(seen.Messages, msg)
	}
	for _, t := range own.Tools {
		seen.Tools = append(seen.Tools, t.Function)
	}
	return seen, nil
}

// ollamaEncoder writes answers as Ollama does, one JSON object per line.
type ollamaEncoder struct{ begun time.Time }

func (f *ollamaEncoder) EncodeRefusal(w http.ResponseWriter, a *Answer) {
	writeError(w, a.Status, a.Text)
}

func (f *ollamaEncoder) EncodeReply(w http.ResponseWriter, a *Answer) {
	WriteJSON(w, http.StatusOK, f.finalResponse(a, a.Join()))
}

func (f *ollamaEncoder) BeginStream(w http.ResponseWriter, _ *Answer) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
}

func (f *ollamaEncoder) EncodeChunk(w io.Writer, a *Answer, p Chunk) {
	f.writeLine(w, f.response(a, p))
}

func (f *ollamaEncoder) EndStream(w io.Writer, a *Answer) { f.writeLine(w, f.finalResponse(a, a.Last)) }

func (f *ollamaEncoder) EncodeError(w io.Writer, _ *Answer, text string) {
	f.writeLine(w, map[string]string{"error": text})
}

func (f *ollamaEncoder) WriteRaw(w io.Writer, b []byte) { _, _ = w.Write(append(bytes.Clone(b), '\n')) }

func (f *ollamaEncoder) writeLine(w io.Writer, v any) { f.WriteRaw(w, MustEncode(v)) }

// response is a chunk in Ollama's form, not the last. It panics when the arguments of a call are not a JSON object.
func (f *ollamaEncoder) response(a *Answer, p Chunk) api.ChatResponse {
	r := api.ChatResponse{
		Model: a.Model, CreatedAt: time.Now().UTC(), RemoteHost: a.Quirks.RemoteHost,
		Message: api.Message{Role: model.Assistant, Content: p.Content, Thinking: p.Thinking},
	}
	for i, c := range p.Calls {
		call := api.ToolCall{ID: c.ID, Function: api.ToolCallFunction{Index: i, Name: c.Name}}
		if err := json.Unmarshal(c.Arguments, &call.Function.Arguments); err != nil {
			panic(err) // the engine has validated them
		}
		r.Message.ToolCalls = append(r.Message.ToolCalls, call)
	}
	return r
}

// finalResponse is the last chunk: p with the reason, the token counts and invented durations.
func (f *ollamaEncoder) finalResponse(a *Answer, p Chunk) api.ChatResponse {
	r := f.response(a, p)
	total := time.Since(f.begun)
	r.Done, r.DoneReason = true, a.Reason
	r.Metrics = api.Metrics{
		TotalDuration: total, LoadDuration: total / 8, PromptEvalCount: a.Prompt, PromptEvalDuration: total / 4,
		EvalCount: a.Output, EvalDuration: total / 2,
	}
	return r
}
