package gateway

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"conclave/pkg/text"
)

// responseRequest is the body of POST /v1/responses, as far as it is used. Fields that would change what the reply is
// are rejected when they are set; sampling parameters, store, metadata and unknown fields are ignored.
type responseRequest struct {
	Model        string            `json:"model"`
	Input        responseInput     `json:"input"`
	Instructions string            `json:"instructions"`
	Previous     string            `json:"previous_response_id"`
	Stream       bool              `json:"stream"`
	Background   bool              `json:"background"`
	Conversation json.RawMessage   `json:"conversation"`
	Prompt       json.RawMessage   `json:"prompt"`
	Tools        []json.RawMessage `json:"tools"`
	Text         struct {
		Format responseFormat `json:"format"`
	} `json:"text"`
}

// responseInput is the input of a response: a text, or messages.
type responseInput []completionMessage

// UnmarshalJSON implements [json.Unmarshaler]. It rejects items that are not messages.
func (in *responseInput) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*in = responseInput{{Role: "user", Content: messageContent{text: one}}}
		return nil
	}
	var items []struct {
		Type string `json:"type"`
		completionMessage
	}
	if err := json.Unmarshal(data, &items); err != nil {
		return fmt.Errorf("input: %w", err)
	}
	for _, i := range items {
		if i.Type != "" && i.Type != "message" {
			return fmt.Errorf("input item %q is not supported; send messages", text.Clip(i.Type, 40))
		}
		*in = append(*in, i.completionMessage)
	}
	return nil
}

// onResponse answers POST /v1/responses, with text only: a question to the respondent that the model names, as in
// [Gateway.onCompletion]. previous_response_id continues the session of that response.
func (g *Gateway) onResponse(w http.ResponseWriter, r *http.Request) error {
	var in responseRequest
	if err := g.readLenient(w, r, maxCompletionBody, &in); err != nil {
		return err
	}
	if err := in.checkSupported(); err != nil {
		return err
	}
	q := completionRequest{
		Model: in.Model, Messages: in.Input, Stream: in.Stream,
		session:  r.Header.Get(headerSession),
		response: &responseState{instructions: in.Instructions, previous: in.Previous},
	}
	if in.Previous != "" {
		id := strings.TrimPrefix(in.Previous, responsePrefix)
		if q.session = g.conversations.find(digestResponse(programOf(r).scope, id), false); q.session == "" {
			return problemf(http.StatusNotFound, "previous_response_not_found", "previous_response_id: there is no "+
				"response %q of this client, or it is too old; send the conversation as input",
				text.Clip(in.Previous, 80))
		}
	}
	if in.Instructions != "" {
		q.Messages = append([]completionMessage{{Role: "developer", Content: messageContent{text: in.Instructions}}},
			q.Messages...)
	}
	return g.complete(w, r, q)
}

// checkSupported rejects a request whose reply would not be what the client asks for.
func (in responseRequest) checkSupported() error {
	said := 0
	for _, m := range in.Input {
		if m.Role == "user" || m.Role == "assistant" {
			said++
		}
	}
	name := ""
	switch {
	case len(in.Tools) > 0:
		name = "tools"
	case in.Text.Format.Type != "" && in.Text.Format.Type != "text":
		name = "text.format"
	case in.Background:
		name = "background"
	case len(in.Conversation) > 0 && string(in.Conversation) != "null":
		name = "conversation"
	case len(in.Prompt) > 0 && string(in.Prompt) != "null":
		name = "prompt"
	case in.Previous != "" && said != 1:
		return unsupportedf("input: with previous_response_id, send one message")
	default:
		return nil
	}
	return unsupportedf("%s is not supported by /v1/responses; tools and schemas are for /v1/chat/completions", name)
}

// responsePrefix precedes the id of the question in the id of a response.
const responsePrefix = "resp_"

// digestResponse is the key of a response in a conversationIndex: the id of its question, for the client of scope.
func digestResponse(scope, id string) [32]byte {
	return sha256.Sum256([]byte(scope + "\nresponse " + id))
}

// responseState is the state of a reply in the form of /v1/responses.
type responseState struct {
	instructions, previous string
	events                 int // written so far
	text                   strings.Builder
}

// responsePart is the text of a message.
type responsePart struct {
	Type        string `json:"type"`
	Text        string `json:"text"`
	Annotations []any  `json:"annotations"`
}

// responseMessage is the one item of a response.
type responseMessage struct {
	Type    string         `json:"type"`
	ID      string         `json:"id"`
	Status  string         `json:"status"`
	Role    string         `json:"role"`
	Content []responsePart `json:"content"`
}

func newResponsePart(t string) responsePart { return responsePart{"output_text", t, []any{}} }

// newMessage returns the message of the response; one that is in progress has no content yet.
func (o *completionWriter) newMessage(status, t string) responseMessage {
	m := responseMessage{
		"message", "msg_" + strings.TrimPrefix(o.head.ID, responsePrefix), status, "assistant",
		[]responsePart{},
	}
	if status != "in_progress" {
		m.Content = append(m.Content, newResponsePart(t))
	}
	return m
}

// newResponse returns the response object. reason is why the text is incomplete, "" when it is complete.
func (o *completionWriter) newResponse(status, reason string, output []responseMessage,
	usage *completionUsage,
) map[string]any {
	body := map[string]any{
		"id": o.head.ID, "object": "response", "created_at": o.head.Created, "model": o.head.Model, "status": status,
		"output": output,
		"error":  nil, "incomplete_details": nil, "instructions": nil, "previous_response_id": nil, "usage": nil,
		"metadata": map[string]string{}, "parallel_tool_calls": false, "temperature": nil, "top_p": nil,
		"tool_choice": "auto", "tools": []any{},
	}
	if reason != "" {
		body["incomplete_details"] = map[string]string{"reason": reason}
	}
	if o.response.instructions != "" {
		body["instructions"] = o.response.instructions
	}
	if o.response.previous != "" {
		body["previous_response_id"] = o.response.previous
	}
	if usage != nil {
		body["usage"] = map[string]any{
			"input_tokens": usage.Prompt, "output_tokens": usage.Completion, "total_tokens": usage.Total,
			"input_tokens_details":  map[string]int{"cached_tokens": 0},
			"output_tokens_details": map[string]int{"reasoning_tokens": 0},
		}
	}
	return body
}

// writeEvent writes one event of a streamed response.
func (o *completionWriter) writeEvent(kind string, fields map[string]any) error {
	fields["type"], fields["sequence_number"] = kind, o.response.events
	o.response.events++
	data, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	return o.write([]byte("event: " + kind + "\ndata: " + string(data) + "\n\n"))
}

// writeResponseText writes a piece of the text, after the events that precede the first one.
func (o *completionWriter) writeResponseText(t string) error {
	if o.response.events == 0 {
		for _, kind := range []string{"response.created", "response.in_progress"} {
			_ = o.writeEvent(kind,
				map[string]any{"response": o.newResponse("in_progress", "", []responseMessage{}, nil)})
		}
		_ = o.writeEvent("response.output_item.added",
			map[string]any{"output_index": 0, "item": o.newMessage("in_progress", "")})
		_ = o.writePartEvent("response.content_part.added", "part", newResponsePart(""))
	}
	if t == "" {
		return nil
	}
	o.response.text.WriteString(t)
	return o.writePartEvent("response.output_text.delta", "delta", t)
}

// writePartEvent writes an event about the text of the message.
func (o *completionWriter) writePartEvent(kind, field string, value any) error {
	fields := map[string]any{
		"item_id": o.newMessage("in_progress", "").ID, "output_index": 0, "content_index": 0,
		field: value,
	}
	if strings.Contains(kind, "output_text") {
		fields["logprobs"] = []any{}
	}
	return o.writeEvent(kind, fields)
}

// responseStatus returns the status of a response whose text ended for the given reason of a completion, and the reason
// when it is incomplete.
func responseStatus(finish string) (status, reason string) {
	if finish == "length" {
		return "incomplete", "max_output_tokens"
	}
	return "completed", ""
}

// writeResponseEnd writes the events that end a streamed response.
func (o *completionWriter) writeResponseEnd(finish string, usage *completionUsage) {
	status, reason := responseStatus(finish)
	t := o.response.text.String()
	message := o.newMessage(status, t)
	_ = o.writePartEvent("response.output_text.done", "text", t)
	_ = o.writePartEvent("response.content_part.done", "part", newResponsePart(t))
	_ = o.writeEvent("response.output_item.done", map[string]any{"output_index": 0, "item": message})
	_ = o.writeEvent("response."+status,
		map[string]any{"response": o.newResponse(status, reason, []responseMessage{message}, usage)})
}

// writeResponseFailure ends a streamed response with an error.
func (o *completionWriter) writeResponseFailure(p openAIError) {
	body := o.newResponse("failed", "", []responseMessage{}, nil)
	body["error"] = map[string]string{"code": p.Error.Code, "message": p.Error.Message}
	_ = o.writeEvent("response.failed", map[string]any{"response": body})
}
