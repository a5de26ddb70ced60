package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"conclave/pkg/attachment"
	"conclave/pkg/strict"
	"conclave/pkg/text"
	"conclave/subjects"
)

// The OpenAI-compatible API below /v1. Its models are the respondents; errors have OpenAI's shape. Requests are decoded
// leniently, because clients send more fields than any one server knows.

// respondentModels are the models of the API, each with the mode of a question.
var respondentModels = map[string]string{"assistant": "assistant", "committee": "committee", "orchestrator": "task"}

// Headers of the API, besides OpenAI's.
const (
	headerSession = "X-Conclave-Session" // of a request: the session to continue; of a response: that of the answer
	headerQuery   = "X-Conclave-Query"   // of a response: the id of the question
	headerRunOn   = "X-Conclave-Run-On"  // 1 = a client that disconnects does not stop the answer
)

// maxCompletionBody bounds a request for a completion, which repeats the whole conversation and may have images.
const maxCompletionBody = 32 << 20

// completionRequest is the body of POST /v1/chat/completions, as far as it is used. Sampling parameters apply to a
// plain model call only: the assistant has its own.
type completionRequest struct {
	Model         string              `json:"model"`
	Messages      []completionMessage `json:"messages"`
	Stream        bool                `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	Tools          []completionTool `json:"tools"`
	ToolChoice     json.RawMessage  `json:"tool_choice"`
	ResponseFormat *responseFormat  `json:"response_format"`
	N              *int             `json:"n"`
	MaxTokens      int              `json:"max_tokens"`
	MaxCompletion  int              `json:"max_completion_tokens"`
	Temperature    *float64         `json:"temperature"`
	Seed           *int             `json:"seed"`
	Stop           textList         `json:"stop"`

	session  string         // to continue; "" = found by the messages
	response *responseState // set for /v1/responses
}

// textList is one text or several, in JSON a string or a list of strings.
type textList []string

// UnmarshalJSON implements [json.Unmarshaler].
func (s *textList) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		if one != "" {
			*s = textList{one}
		}
		return nil
	}
	if json.Unmarshal(data, (*[]string)(s)) != nil {
		return errors.New("a text or a list of texts is expected")
	}
	return nil
}

// completionMessage is a message of the conversation.
type completionMessage struct {
	Role      string           `json:"role"`
	Content   messageContent   `json:"content"`
	ToolCalls []completionCall `json:"tool_calls,omitempty"`
	CallID    string           `json:"tool_call_id,omitempty"`
	Name      string           `json:"name,omitempty"`
}

// messageContent is the text of a message and its images as data URLs. In JSON it is a text, null, or a list of parts.
type messageContent struct {
	text   string
	images []string
}

// MarshalJSON implements [json.Marshaler], for the digest of a request.
func (c messageContent) MarshalJSON() ([]byte, error) {
	return json.Marshal(append([]string{c.text}, c.images...))
}

// UnmarshalJSON implements [json.Unmarshaler]. It rejects parts that are neither texts nor images.
func (c *messageContent) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return nil
	}
	if json.Unmarshal(data, &c.text) == nil {
		return nil
	}
	var parts []struct {
		Type     string   `json:"type"`
		Text     string   `json:"text"`
		ImageURL imageURL `json:"image_url"`
	}
	if err := json.Unmarshal(data, &parts); err != nil {
		return errors.New("content is a text or a list of parts")
	}
	var texts []string
	for _, p := range parts {
		switch p.Type {
		case "text", "input_text", "output_text":
			texts = append(texts, p.Text)
		case "image_url", "input_image":
			c.images = append(c.images, string(p.ImageURL))
		default:
			return fmt.Errorf("content part %q is not supported; send text or image_url", text.Clip(p.Type, 40))
		}
	}
	c.text = strings.Join(texts, "\n")
	return nil
}

// imageURL is the URL of an image: an object with the field url, or in /v1/responses a text.
type imageURL string

// UnmarshalJSON implements [json.Unmarshaler].
func (u *imageURL) UnmarshalJSON(data []byte) error {
	var object struct {
		URL string `json:"url"`
	}
	if json.Unmarshal(data, (*string)(u)) == nil {
		return nil
	}
	err := json.Unmarshal(data, &object)
	*u = imageURL(object.URL)
	return err
}

// completionTool is a tool of the client.
type completionTool struct {
	Type     string `json:"type"`
	Function struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
	} `json:"function"`
}

// completionCall is a call of a client's tool.
type completionCall struct {
	Index    *int   `json:"index,omitempty"` // in a stream only
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"` // JSON
	} `json:"function"`
}

// responseFormat is the form of the answer that a client asks for.
type responseFormat struct {
	Type       string `json:"type"`
	JSONSchema struct {
		Schema json.RawMessage `json:"schema"`
	} `json:"json_schema"`
}

// completion is the body of a reply, or of one event of a stream.
type completion struct {
	ID      string             `json:"id"`
	Object  string             `json:"object"`
	Created int64              `json:"created"`
	Model   string             `json:"model"`
	Choices []completionChoice `json:"choices"`
	Usage   *completionUsage   `json:"usage,omitempty"`
}

// completionChoice has the whole message of a reply, or a part of it in a stream.
type completionChoice struct {
	Index   int             `json:"index"`
	Message *completionText `json:"message,omitempty"`
	Delta   *completionText `json:"delta,omitempty"`
	Finish  *string         `json:"finish_reason"`
}

// completionText is text of the model.
type completionText struct {
	Role      string           `json:"role,omitempty"`
	Content   *string          `json:"content,omitempty"`
	Reasoning string           `json:"reasoning_content,omitempty"`
	ToolCalls []completionCall `json:"tool_calls,omitempty"`
}

// completionUsage counts tokens.
type completionUsage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

func newUsage(prompt, completed int) *completionUsage {
	return &completionUsage{prompt, completed, prompt + completed}
}

// isOpenAIPath reports whether errors of a request have OpenAI's shape.
func isOpenAIPath(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/v1/") }

// openAIError is an error response in OpenAI's shape.
type openAIError struct {
	Error struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    string  `json:"code"`
	} `json:"error"`
}

// toOpenAI returns a problem in OpenAI's shape.
func (p *problem) toOpenAI() (out openAIError) {
	out.Error.Message, out.Error.Code = p.Fault.Text, p.Fault.Code
	switch {
	case p.status == http.StatusUnauthorized:
		out.Error.Type, out.Error.Code = "authentication_error", "invalid_api_key"
	case p.status == http.StatusForbidden:
		out.Error.Type = "permission_error"
	case p.status == http.StatusTooManyRequests:
		out.Error.Type = "rate_limit_error"
	case p.status < http.StatusInternalServerError:
		out.Error.Type = "invalid_request_error"
	default:
		out.Error.Type = "server_error"
	}
	return out
}

// modelEntry is a model in OpenAI's form.
type modelEntry struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

// onModelNames lists the models of the API: who answers.
func (g *Gateway) onModelNames(w http.ResponseWriter, _ *http.Request) error {
	list := struct {
		Object string       `json:"object"`
		Data   []modelEntry `json:"data"`
	}{Object: "list"}
	for _, a := range protocolAgents {
		list.Data = append(list.Data, modelEntry{a.name, "model", 0, "conclave"})
	}
	g.writeJSON(w, http.StatusOK, list)
	return nil
}

// onModelName returns one model of the API.
func (g *Gateway) onModelName(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("id")
	if _, known := respondentModels[name]; !known {
		return noModel(name)
	}
	g.writeJSON(w, http.StatusOK, modelEntry{name, "model", 0, "conclave"})
	return nil
}

// noModel is the problem of a model that the API does not have.
func noModel(name string) error {
	return problemf(http.StatusNotFound, "model_not_found", "there is no model %q; the models are assistant, "+
		"committee and orchestrator", text.Clip(name, 60))
}

// readLenient decodes a JSON body of at most limit bytes and ignores unknown fields.
func (g *Gateway) readLenient(w http.ResponseWriter, r *http.Request, limit int64, into any) error {
	data, err := g.readLimited(w, r, limit, subjects.TypeJSON)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return malformedf("%v", strict.ExplainJSON(err))
	}
	return nil
}

// onCompletion answers POST /v1/chat/completions. A request with tools of the client, with results of them, or with a
// schema for the answer, and one for a text about a chat, is a plain call of the assistant's model, which has neither
// the assistant's tools nor memory; every other request is a question to the respondent that the model names.
func (g *Gateway) onCompletion(w http.ResponseWriter, r *http.Request) error {
	var in completionRequest
	if err := g.readLenient(w, r, maxCompletionBody, &in); err != nil {
		return err
	}
	in.session = r.Header.Get(headerSession)
	return g.complete(w, r, in)
}

// complete answers a request that was read.
func (g *Gateway) complete(w http.ResponseWriter, r *http.Request, in completionRequest) error {
	mode, known := respondentModels[in.Model]
	switch {
	case !known:
		return noModel(in.Model)
	case len(in.Messages) == 0:
		return malformedf("messages: send at least one")
	case in.isPlain() && in.Model != "assistant":
		return unsupportedf("tools and response_format are for the model assistant")
	case in.N != nil && *in.N != 1:
		return unsupportedf("n: one answer at a time")
	}
	release, err := g.acquireWaiting(r)
	if err != nil {
		return err
	}
	defer release()
	if in.isPlain() || in.isAboutChat() {
		return g.completeByModel(w, r, in)
	}
	return g.completeByRespondent(w, r, in, mode)
}

// isPlain reports whether the request is for a model alone.
func (q completionRequest) isPlain() bool {
	if len(q.Tools) > 0 || q.ResponseFormat != nil && q.ResponseFormat.Type != "" && q.ResponseFormat.Type != "text" {
		return true
	}
	for _, m := range q.Messages {
		if m.Role == "tool" || len(m.ToolCalls) > 0 {
			return true
		}
	}
	return false
}

// isAboutChat reports whether the request asks for a title, tags or follow-up questions of a chat, in the form in which
// Open WebUI asks for them after an answer: the chat itself is quoted in one message. Such a request must not begin a
// session or enter memory.
func (q completionRequest) isAboutChat() bool {
	if len(q.Messages) != 1 || q.response != nil {
		return false
	}
	t := q.Messages[0].Content.text
	return q.Messages[0].Role == "user" && strings.HasPrefix(t, "### Task:") && strings.Contains(t, "<chat_history>")
}

// decodeImages returns the images of a message as attachments with their contents. It accepts data URLs only: nothing
// is fetched for a client.
func decodeImages(ctx context.Context, urls []string) (list []subjects.Attachment, contents [][]byte, err error) {
	for i, u := range urls {
		head, encoded, ok := strings.Cut(u, ",")
		if !ok || !strings.HasPrefix(head, "data:image/") || !strings.HasSuffix(head, ";base64") {
			return nil, nil, unsupportedf("image_url: send the image as a data URL (data:image/png;base64,...); " +
				"nothing is loaded from the network")
		}
		data, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			return nil, nil, malformedf("image_url: the image is not base64")
		}
		f, err := attachment.Decode(ctx, subjects.AttachmentOther, fmt.Sprintf("image %d", i+1), data)
		if err != nil || f.Image == nil {
			return nil, nil, malformedf("image_url: image %d cannot be read: %v", i+1, err)
		}
		list, contents = append(list, f.Attachment), append(contents, f.Image)
	}
	return list, contents, nil
}

// conversationIndex finds the session of a conversation that a client repeats: OpenAI's API has no sessions. It keeps
// the latest conversations in memory; an unknown one begins a new session. The zero value is ready.
//
// Several chats of one client can begin with the same messages, and their users may differ. So a session is continued
// only by the first request after its last answer, and messages that were said in two sessions continue neither.
type conversationIndex struct {
	mu    sync.Mutex
	known recentMap[[32]byte, *knownConversation]
}

// knownConversation is the state of a session after an answer.
type knownConversation struct {
	session   string
	continued bool // the session has more messages by now
	ambiguous bool // another session has the same messages
}

// maxConversations is the number of conversations that are kept; the oldest are dropped.
const maxConversations = 4096

// digestConversation identifies what a client, by its scope, and the assistant said.
func digestConversation(scope string, messages []completionMessage) (out [32]byte) {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n", scope)
	for _, m := range messages {
		if m.Role == "user" || m.Role == "assistant" {
			t := strings.TrimSpace(m.Content.text)
			fmt.Fprintf(h, "%s %d %s\n", m.Role, len(t), t)
		}
	}
	h.Sum(out[:0])
	return out
}

// add records the session of a conversation.
func (x *conversationIndex) add(key [32]byte, session string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if c := x.known.values[key]; c != nil {
		c.ambiguous = c.ambiguous || c.session != session
		return
	}
	x.known.put(key, &knownConversation{session: session}, maxConversations)
}

// find returns the session of a conversation, "" when it is not known. With take, for a request that continues the
// conversation, no other request with the same messages gets the session.
func (x *conversationIndex) find(key [32]byte, take bool) string {
	x.mu.Lock()
	defer x.mu.Unlock()
	c := x.known.values[key]
	if c == nil || c.ambiguous || take && c.continued {
		return ""
	}
	c.continued = c.continued || take
	return c.session
}

// putBack undoes a find with take for a request whose question was not stored.
func (x *conversationIndex) putBack(key [32]byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if c := x.known.values[key]; c != nil {
		c.continued = false
	}
}
