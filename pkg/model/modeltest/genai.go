package modeltest

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"conclave/pkg/model"
	"conclave/pkg/model/scriptserver"
)

// GenAI serves the protocol of Google's GenAI API below /genai. Requests must carry key; "" accepts every request.
// Models whose name begins with gemini-3 sign their calls and require the signatures in the next request.
func GenAI(key string) scriptserver.Protocol {
	return func(s *scriptserver.Server, mux *http.ServeMux) {
		f := genaiProtocol{s, key}
		mux.HandleFunc("GET /genai/v1beta/models", scriptserver.Guard(f.checkKey, f.listModels))
		mux.HandleFunc("GET /genai/v1beta/models/{name...}", scriptserver.Guard(f.checkKey, f.showModel))
		mux.HandleFunc("POST /genai/v1beta/models/{action...}", scriptserver.Guard(f.checkKey, f.dispatch))
	}
}

type genaiProtocol struct {
	*scriptserver.Server
	key string
}

// genaiStates are the status names by HTTP status.
var genaiStates = map[int]string{
	400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
	429: "RESOURCE_EXHAUSTED",
	500: "INTERNAL", 501: "UNIMPLEMENTED", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}

func genaiError(status int, text string) object {
	return object{"error": object{"code": status, "message": text, "status": genaiStates[status]}}
}

func writeGenAIError(w http.ResponseWriter, status int, text string) {
	scriptserver.WriteJSON(w, status, genaiError(status, text))
}

// checkKey rejects a wrong key with HTTP 400, as the service does.
func (f genaiProtocol) checkKey(w http.ResponseWriter, r *http.Request) bool {
	text, ok := scriptserver.CheckKey(f.key, r.Header.Get("X-Goog-Api-Key"))
	if !ok {
		writeGenAIError(w, http.StatusBadRequest, "API key not valid. Please pass a valid API key. "+text)
	}
	return ok
}

func (f genaiProtocol) describe(m scriptserver.Model) object {
	methods := []string{"generateContent", "countTokens"}
	if m.Embedding {
		methods = []string{"embedContent"}
	}
	return object{
		"name": "models/" + m.Name, "displayName": m.Name, "version": "1", "inputTokenLimit": m.Window,
		"outputTokenLimit": 65536, "supportedGenerationMethods": methods, "thinking": m.Thinking,
	}
}

// listModels returns pages of two models.
func (f genaiProtocol) listModels(w http.ResponseWriter, r *http.Request) {
	all := f.Models()
	from, _ := strconv.Atoi(r.URL.Query().Get("pageToken"))
	from = min(max(from, 0), len(all))
	to := min(from+2, len(all))
	list := []object{}
	for _, m := range all[from:to] {
		list = append(list, f.describe(m))
	}
	out := object{"models": list}
	if to < len(all) {
		out["nextPageToken"] = strconv.Itoa(to)
	}
	scriptserver.WriteJSON(w, http.StatusOK, out)
}

func genaiMissing(name string) string {
	return fmt.Sprintf("models/%s is not found for API version v1beta, or is not supported for generateContent.", name)
}

func (f genaiProtocol) showModel(w http.ResponseWriter, r *http.Request) {
	m, ok := f.Lookup(r.PathValue("name"))
	if !ok {
		writeGenAIError(w, http.StatusNotFound, genaiMissing(r.PathValue("name")))
		return
	}
	scriptserver.WriteJSON(w, http.StatusOK, f.describe(m))
}

func (f genaiProtocol) dispatch(w http.ResponseWriter, r *http.Request) {
	path := r.PathValue("action")
	at := max(0, strings.LastIndexByte(path, ':'))
	name, action := path[:at], strings.TrimPrefix(path[at:], ":")
	switch action {
	case "batchEmbedContents":
		f.serveEmbed(w, r, name)
	case "generateContent":
		f.serveChat(w, r, name, false)
	case "streamGenerateContent":
		f.serveChat(w, r, name, true)
	default:
		writeGenAIError(w, http.StatusNotFound, "no such method")
	}
}

type genaiContent struct {
	Role  string      `json:"role"`
	Parts []genaiPart `json:"parts"`
}

type genaiPart struct {
	Text      string `json:"text"`
	Thought   bool   `json:"thought"`
	Signature []byte `json:"thoughtSignature"`
	Inline    *struct {
		Type string `json:"mimeType"`
		Data []byte `json:"data"` // base64
	} `json:"inlineData"`
	Call *struct {
		ID   string          `json:"id"`
		Name string          `json:"name"`
		Args json.RawMessage `json:"args"`
	} `json:"functionCall"`
	Response *struct {
		ID       string `json:"id"`
		Name     string `json:"name"`
		Response struct {
			Output string `json:"output"`
		} `json:"response"`
	} `json:"functionResponse"`
}

func (c genaiContent) text() (s string) {
	for _, p := range c.Parts {
		s += p.Text
	}
	return s
}

func (f genaiProtocol) serveEmbed(w http.ResponseWriter, r *http.Request, name string) {
	var req struct {
		Requests []struct {
			Content genaiContent `json:"content"`
		} `json:"requests"`
	}
	raw, ok := scriptserver.DecodeBody(w, r, &req)
	if !ok {
		return
	}
	var texts []string
	for _, q := range req.Requests {
		texts = append(texts, q.Content.text())
	}
	vectors, _, ok := f.EmbedTexts(w, r, raw, name, texts, false, &genaiEncoder{})
	if !ok {
		return
	}
	var out []object
	for _, v := range vectors {
		out = append(out, object{"values": v})
	}
	scriptserver.WriteJSON(w, http.StatusOK, object{"embeddings": out})
}

type genaiRequest struct {
	System   *genaiContent  `json:"systemInstruction"`
	Contents []genaiContent `json:"contents"`
	Tools    []struct {
		Functions []struct {
			Name        string          `json:"name"`
			Description string          `json:"description"`
			Schema      json.RawMessage `json:"parametersJsonSchema"`
		} `json:"functionDeclarations"`
	} `json:"tools"`
	Config struct {
		Temperature *float64        `json:"temperature"`
		MaxTokens   int             `json:"maxOutputTokens"`
		Stop        []string        `json:"stopSequences"`
		Seed        *int            `json:"seed"`
		MIME        string          `json:"responseMimeType"`
		Schema      json.RawMessage `json:"responseJsonSchema"`
		Thinking    *struct {
			Include bool   `json:"includeThoughts"`
			Budget  *int   `json:"thinkingBudget"`
			Level   string `json:"thinkingLevel"`
		} `json:"thinkingConfig"`
	} `json:"generationConfig"`
}

func (f genaiProtocol) serveChat(w http.ResponseWriter, r *http.Request, name string, stream bool) {
	var req genaiRequest
	raw, ok := scriptserver.DecodeBody(w, r, &req)
	if !ok {
		return
	}
	form := &genaiEncoder{signs: strings.HasPrefix(name, "gemini-3")}
	seen, err := req.decode(name, form.signs)
	seen.Stream = stream
	if err == nil && stream && r.URL.Query().Get("alt") != "sse" {
		err = errors.New("a stream that is not asked for as server-sent events")
	}
	f.ServeDecoded(w, r, raw, seen, err, form)
}

// decode converts a request. It rejects whatever the service rejects.
func (req genaiRequest) decode(name string, signs bool) (scriptserver.Request, error) {
	c := req.Config
	out := scriptserver.Request{Request: model.Request{Model: name, Format: c.Schema, Options: model.Options{
		Predict: c.MaxTokens, Temperature: c.Temperature, Seed: c.Seed, Stop: c.Stop,
	}}}
	if len(c.Schema) > 0 && c.MIME != "application/json" {
		return out, errors.New("a schema of the answer wants the type application/json")
	}
	if t := c.Thinking; t != nil {
		out.Think = &t.Include
	}
	for _, t := range req.Tools {
		for _, d := range t.Functions {
			out.Tools = append(out.Tools, model.Tool{Name: d.Name, Description: d.Description, Parameters: d.Schema})
		}
	}
	if req.System != nil {
		out.Messages = append(out.Messages, model.Message{Role: model.System, Content: req.System.text()})
	}
	if len(req.Contents) == 0 {
		return out, errors.New("contents is not specified")
	}
	var open []model.Call // without a result, in order
	for i, w := range req.Contents {
		var err error
		if open, err = w.decode(i, open, signs, &out); err != nil {
			return out, err
		}
	}
	return out, nil
}

func (c genaiContent) decode(i int, open []model.Call, signs bool, out *scriptserver.Request) ([]model.Call, error) {
	if len(c.Parts) == 0 || (c.Role != "user" && c.Role != "model") {
		return nil, fmt.Errorf("contents[%d]: a role, user or model, and parts are required", i)
	}
	msg := model.Message{Role: model.User}
	if c.Role == "model" {
		msg.Role = model.Assistant
	}
	answered := 0
	for _, p := range c.Parts {
		switch {
		case p.Call != nil:
			call := model.Call{ID: p.Call.ID, Name: p.Call.Name, Arguments: p.Call.Args}
			if len(call.Arguments) == 0 {
				call.Arguments = json.RawMessage("{}")
			}
			signed := string(p.Signature) == signCall(call.ID) ||
				string(p.Signature) == "skip_thought_signature_validator"
			if signs && !signed && len(msg.Calls) == 0 {
				return nil, fmt.Errorf("contents[%d]: Function call is missing a thought_signature in functionCall "+
					"parts", i)
			}
			msg.Calls = append(msg.Calls, call)
		case p.Response != nil:
			if answered >= len(open) || open[answered].Name != p.Response.Name || open[answered].ID != p.Response.ID {
				return nil, fmt.Errorf("contents[%d]: a functionResponse for %s that no functionCall asked for", i,
					p.Response.Name)
			}
			answered++
			out.Messages = append(out.Messages, model.Message{
				Role: model.ToolRole, Content: p.Response.Response.Output, ToolName: p.Response.Name,
				CallID: p.Response.ID,
			})
		case p.Thought:
			return nil, fmt.Errorf("contents[%d]: a thought", i)
		case p.Inline != nil:
			msg.Images = append(msg.Images, model.Image{
				Type: p.Inline.Type, Size: len(p.Inline.Data),
				Data: p.Inline.Data,
			})
		case p.Text == "":
			return nil, fmt.Errorf("contents[%d]: a part without data", i)
		default:
			msg.Content += p.Text
		}
	}
	if answered != len(open) {
		return nil, fmt.Errorf("contents[%d]: the number of function response parts must be that of the function "+
			"call parts", i)
	}
	if msg.Content != "" || len(msg.Calls) > 0 {
		out.Messages = append(out.Messages, msg)
	}
	return msg.Calls, nil
}

func signCall(id string) string { return "signed " + id }

// genaiEncoder writes answers as the service does, as complete responses with further parts.
type genaiEncoder struct {
	signs bool
	calls int
}

func (f *genaiEncoder) EncodeRefusal(w http.ResponseWriter, a *scriptserver.Answer) {
	text := a.Text
	switch a.Refusal {
	case scriptserver.RefusedBusy:
		text = "The model is overloaded. Please try again later."
	case scriptserver.RefusedLength:
		text = a.TextOr("The input token count (1100000) exceeds the maximum number of tokens allowed (1048576).")
	case scriptserver.RefusedMissing:
		text = genaiMissing(a.Model)
	case scriptserver.RefusedTools:
		text = a.TextOr("Function calling is not enabled for models/" + a.Model)
	case scriptserver.RefusedThinking:
		text = a.TextOr("Thinking is not supported for this model.")
	}
	writeGenAIError(w, a.Status, text)
}

func (f *genaiEncoder) parts(p scriptserver.Chunk) []object {
	parts := []object{}
	if p.Thinking != "" {
		parts = append(parts, object{"text": p.Thinking, "thought": true})
	}
	if p.Content != "" {
		parts = append(parts, object{"text": p.Content})
	}
	for _, c := range p.Calls {
		call := object{"name": c.Name, "args": c.Arguments}
		if c.ID != "" {
			call["id"] = c.ID
		}
		part := object{"functionCall": call}
		if f.signs && f.calls == 0 {
			part["thoughtSignature"] = base64.StdEncoding.EncodeToString([]byte(signCall(c.ID)))
		}
		f.calls++
		parts = append(parts, part)
	}
	return parts
}

func (f *genaiEncoder) response(a *scriptserver.Answer, p scriptserver.Chunk) object {
	candidate := object{"index": 0, "content": object{"role": "model", "parts": f.parts(p)}}
	return object{"candidates": []object{candidate}, "modelVersion": a.Model, "responseId": "r1"}
}

func (f *genaiEncoder) finalResponse(a *scriptserver.Answer, p scriptserver.Chunk) object {
	r := f.response(a, p)
	reason := "STOP"
	if a.Reason == "length" {
		reason = "MAX_TOKENS"
	}
	r["candidates"].([]object)[0]["finishReason"] = reason
	r["usageMetadata"] = object{
		"promptTokenCount": a.Prompt, "candidatesTokenCount": a.Output, "totalTokenCount": a.Prompt + a.Output,
	}
	return r
}

func (f *genaiEncoder) EncodeReply(w http.ResponseWriter, a *scriptserver.Answer) {
	scriptserver.WriteJSON(w, http.StatusOK, f.finalResponse(a, a.Join()))
}

func (f *genaiEncoder) BeginStream(w http.ResponseWriter, _ *scriptserver.Answer) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
}

func (f *genaiEncoder) EncodeChunk(w io.Writer, a *scriptserver.Answer, p scriptserver.Chunk) {
	f.WriteRaw(w, scriptserver.MustEncode(f.response(a, p)))
}

func (f *genaiEncoder) EndStream(w io.Writer, a *scriptserver.Answer) {
	f.WriteRaw(w, scriptserver.MustEncode(f.finalResponse(a, a.Last)))
}

func (f *genaiEncoder) EncodeError(w io.Writer, _ *scriptserver.Answer, text string) {
	f.WriteRaw(w, scriptserver.MustEncode(genaiError(500, text)))
}

func (f *genaiEncoder) WriteRaw(w io.Writer, b []byte) { _, _ = fmt.Fprintf(w, "data: %s\r\n\r\n", b) }
