package gateway

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"net/http"

	"conclave/pkg/actor"
	"conclave/pkg/jsonschema"
	"conclave/pkg/model"
	"conclave/pkg/model/wire"
	"conclave/pkg/text"
	"conclave/subjects"
)

// completeByModel sends the conversation of a request to the assistant's model and writes its reply. Calls of the
// client's tools go back to the client: nothing is run here, so there is nothing to authorize.
func (g *Gateway) completeByModel(w http.ResponseWriter, r *http.Request, in completionRequest) error {
	q, err := newModelRequest(in)
	if err != nil {
		return err
	}
	p, err := g.admit(g.out, clientOf(r), countCost(in.size(), 0), 0)
	if err != nil {
		return err
	}
	defer p.leave()
	ctx, cancel := g.withTimeout(r.Context(), g.cfg.QueryTimeout)
	defer cancel()
	asked, id := g.newModelCall(r)
	out := g.newCompletionWriter(w, in, id)
	stop := out.keepAlive(ctx)
	defer stop()
	chat := wire.Client{Out: asked, Role: subjects.RoleAssistant, Timeout: g.cfg.QueryTimeout}
	showThinking := clientOf(r) == nil && len(q.Format) == 0 // a client gets none, and JSON is the whole reply
	var whole completionText                                 // apart from its content
	var content string
	var final model.Final
	for chunk, err := range chat.Chat(ctx, q) {
		if err != nil {
			if r.Context().Err() != nil {
				return nil // the client is gone; the call is cancelled
			}
			return out.fail(explainModelError(err))
		}
		if !showThinking {
			chunk.Thinking = ""
		}
		part := g.newDelta(chunk, len(whole.ToolCalls))
		content, whole.Reasoning, whole.ToolCalls = content+chunk.Content, whole.Reasoning+
			chunk.Thinking, append(whole.ToolCalls, part.ToolCalls...)
		if part.Content != nil || part.Reasoning != "" || len(part.ToolCalls) > 0 {
			if err := out.writeDelta(part); err != nil {
				return nil
			}
		}
		final = chunk.Final
	}
	reason := "stop"
	switch {
	case len(whole.ToolCalls) > 0:
		reason = "tool_calls"
	case final.Reason == "length":
		reason = "length"
	}
	if err := checkReply(q.Format, content); err != nil && reason == "stop" {
		return out.fail(err)
	}
	usage := newUsage(final.PromptTokens, final.OutputTokens)
	if in.Stream {
		return out.writeEnd(reason, usage)
	}
	if content != "" || len(whole.ToolCalls) == 0 {
		whole.Content = &content
	}
	for i := range whole.ToolCalls {
		whole.ToolCalls[i].Index = nil // in a stream only
	}
	return out.writeWhole(whole, reason, usage)
}

// newModelCall returns an Out and an id for a plain call of a model: session and question name the client in the
// records of the call.
func (g *Gateway) newModelCall(r *http.Request) (out actor.Out, id string) {
	caller := programOf(r)
	id = caller.scopeID("", g.out)
	return g.out.WithIDs(caller.scope+"model", id), id
}

// newDelta returns a chunk of a model's reply as part of a stream. calls is the number of tool calls in earlier chunks.
// A call without an id gets one.
func (g *Gateway) newDelta(chunk model.Chunk, calls int) completionText {
	part := completionText{Reasoning: chunk.Thinking}
	if chunk.Content != "" {
		part.Content = &chunk.Content
	}
	for i, c := range chunk.Calls {
		n := calls + i
		call := completionCall{Index: &n, ID: c.ID, Type: "function"}
		if call.ID == "" {
			call.ID = "call_" + g.out.NewID()
		}
		call.Function.Name, call.Function.Arguments = c.Name, string(c.Arguments)
		part.ToolCalls = append(part.ToolCalls, call)
	}
	return part
}

// size returns the bytes in a request that a model reads. Those that a client repeats in each request, its tools and
// the messages before the last, count an eighth: the model server has the same prompt in its cache.
func (q completionRequest) size() int {
	repeated, last := 0, 0
	for _, m := range q.Messages {
		repeated += last
		last = len(m.Content.text)
		for _, c := range m.ToolCalls {
			last += len(c.Function.Name) + len(c.Function.Arguments)
		}
	}
	for _, t := range q.Tools {
		repeated += len(t.Function.Name) + len(t.Function.Description) + len(t.Function.Parameters)
	}
	if q.ResponseFormat != nil {
		last += len(q.ResponseFormat.JSONSchema.Schema)
	}
	return last + repeated/8
}

// Bounds of a JSON schema: model servers compile it to a grammar.
const (
	maxSchema      = 64 << 10
	maxSchemaDepth = 32
)

// checkSchema rejects a schema that is too large or nested too deeply. name is used in the error.
func checkSchema(name string, schema json.RawMessage) error {
	depth, deepest, inText := 0, 0, false
	for i := 0; i < len(schema); i++ {
		switch c := schema[i]; {
		case inText && c == '\\':
			i++
		case c == '"':
			inText = !inText
		case inText:
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	if len(schema) > maxSchema || deepest > maxSchemaDepth {
		return problemf(http.StatusBadRequest, subjects.CodeTooLarge, "%s: a schema of at most %d KB and %d levels",
			name, maxSchema>>10, maxSchemaDepth)
	}
	return nil
}

// checkReply reports a reply that does not fit the schema of its request: servers hold only a part of a schema while
// they generate. A schema that cannot be compiled here, or none, is not checked.
func checkReply(schema json.RawMessage, reply string) error {
	s, err := jsonschema.Compile(schema)
	if len(schema) == 0 || err != nil {
		return nil
	}
	if err := s.ValidateJSON([]byte(reply)); err != nil {
		return problemf(http.StatusBadGateway, subjects.CodeModelMalformed, "the model's reply does not fit the "+
			"schema of response_format: %s; try again, or ask for less", text.OneLine(err.Error(), 300))
	}
	return nil
}

// explainModelError returns the problem of a model call.
func explainModelError(err error) error {
	var f *subjects.Fault
	if errors.As(err, &f) && statusOf[f.Code] == 0 {
		return &problem{status: http.StatusBadGateway, Fault: f}
	}
	return err
}

// newModelRequest translates a request. It rejects unknown roles, arguments that are no JSON, schemas that are too
// large, and images, which belong to a session.
func newModelRequest(in completionRequest) (q model.Request, err error) {
	q = model.Request{
		Stream: in.Stream,
		Options: model.Options{
			Predict: max(in.MaxTokens, in.MaxCompletion, 0), Temperature: in.Temperature,
			Seed: in.Seed, Stop: in.Stop,
		},
	}
	if q.Messages, err = newModelMessages(in.Messages); err != nil {
		return q, err
	}
	if string(in.ToolChoice) != `"none"` {
		if q.Tools, err = newModelTools(in.Tools); err != nil {
			return q, err
		}
	}
	if f := in.ResponseFormat; f != nil && len(q.Tools) == 0 {
		switch f.Type {
		case "", "text":
		case "json_schema":
			if err := checkSchema("response_format", f.JSONSchema.Schema); err != nil {
				return q, err
			}
			q.Format = f.JSONSchema.Schema
		case "json_object":
			q.Format = json.RawMessage(`{"type":"object"}`)
		default:
			return q, unsupportedf("response_format: unknown type %q", text.Clip(f.Type, 40))
		}
	}
	return q, nil
}

// newModelMessages translates the messages of a request.
func newModelMessages(in []completionMessage) (messages []model.Message, err error) {
	names := map[string]string{} // of calls, by id
	for _, m := range in {
		if len(m.Content.images) > 0 {
			return nil, unsupportedf("images and tools cannot be in one request")
		}
		out := model.Message{Role: m.Role, Content: m.Content.text}
		switch m.Role {
		case "developer":
			out.Role = model.System
		case model.System, model.User:
		case model.Assistant:
			for _, c := range m.ToolCalls {
				arguments := json.RawMessage(c.Function.Arguments)
				if len(arguments) == 0 {
					arguments = json.RawMessage("{}")
				}
				if !json.Valid(arguments) {
					return nil, malformedf("tool_calls: the arguments of %s are not JSON",
						text.Clip(c.Function.Name, 60))
				}
				names[c.ID] = c.Function.Name
				out.Calls = append(out.Calls, model.Call{ID: c.ID, Name: c.Function.Name, Arguments: arguments})
			}
		case model.ToolRole:
			out.CallID, out.ToolName = m.CallID, names[m.CallID]
		default:
			return nil, malformedf("messages: unknown role %q", text.Clip(m.Role, 40))
		}
		messages = append(messages, out)
	}
	return messages, nil
}

// newModelTools translates the tools of a request.
func newModelTools(in []completionTool) (tools []model.Tool, err error) {
	for _, t := range in {
		if t.Type != "function" || t.Function.Name == "" {
			return nil, unsupportedf("tools: each has the type function and a name")
		}
		parameters := t.Function.Parameters
		if err := checkSchema("tools", parameters); err != nil {
			return nil, err
		}
		if len(parameters) == 0 {
			parameters = json.RawMessage(`{"type":"object","properties":{}}`)
		}
		tools = append(tools, model.Tool{
			Name: t.Function.Name, Description: t.Function.Description,
			Parameters: parameters,
		})
	}
	return tools, nil
}

// Bounds of a request for embeddings: its bytes, its texts, and the bytes that each counts besides its length.
const (
	maxEmbedBody  = 8 << 20
	maxEmbedTexts = 512
	embedCost     = 64
)

// onEmbeddings answers POST /v1/embeddings with the vectors of the model of the role embeddings, whatever model the
// client names: vectors of different models are not comparable, and the reply names the model.
func (g *Gateway) onEmbeddings(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		Input  json.RawMessage `json:"input"`
		Format string          `json:"encoding_format"`
	}
	if err := g.readLenient(w, r, maxEmbedBody, &in); err != nil {
		return err
	}
	input, err := decodeInput(in.Input)
	if err != nil {
		return err
	}
	if len(input) == 0 || len(input) > maxEmbedTexts {
		return malformedf("input: a text, or 1 to %d texts", maxEmbedTexts)
	}
	if in.Format != "" && in.Format != "float" && in.Format != "base64" {
		return unsupportedf("encoding_format is float or base64")
	}
	release, err := g.acquireWaiting(r)
	if err != nil {
		return err
	}
	defer release()
	size := 0
	for _, t := range input {
		size += len(t) + embedCost
	}
	p, err := g.admit(g.out, clientOf(r), countCost(size, 0), 0)
	if err != nil {
		return err
	}
	defer p.leave()
	ctx, cancel := g.withTimeout(r.Context(), g.cfg.QueryTimeout)
	defer cancel()
	asked, _ := g.newModelCall(r)
	vectors, err := wire.Client{Out: asked, Role: subjects.RoleEmbeddings, Timeout: g.cfg.QueryTimeout}.Embed(ctx, "",
		input)
	if err != nil {
		return explainModelError(err)
	}
	for i, err := range vectors.Failed {
		return problemf(http.StatusBadRequest, subjects.CodeModelTooLong, "input %d: %v", i, err)
	}
	type entry struct {
		Object    string `json:"object"`
		Index     int    `json:"index"`
		Embedding any    `json:"embedding"`
	}
	reply := struct {
		Object string           `json:"object"`
		Data   []entry          `json:"data"`
		Model  string           `json:"model"`
		Usage  *completionUsage `json:"usage"`
	}{"list", []entry{}, vectors.Model, newUsage(vectors.PromptTokens, 0)}
	for i, v := range vectors.Values {
		e := entry{"embedding", i, v}
		if in.Format == "base64" {
			e.Embedding = encodeVector(v)
		}
		reply.Data = append(reply.Data, e)
	}
	g.writeJSON(w, http.StatusOK, reply)
	return nil
}

// encodeVector returns little-endian 32-bit numbers in base64, as OpenAI's clients ask for.
func encodeVector(v []float32) string {
	data := make([]byte, 0, 4*len(v))
	for _, x := range v {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(x))
	}
	return base64.StdEncoding.EncodeToString(data)
}
