package ollama

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"conclave/pkg/model"
	"conclave/pkg/model/internal/remote"
)

// chatRequest is the body of /api/chat. Truncate and Shift are always false: a prompt that is too long must fail
// instead of losing its beginning.
type chatRequest struct {
	Model     string          `json:"model"`
	Messages  []chatMessage   `json:"messages"`
	Stream    bool            `json:"stream"`
	Tools     []chatTool      `json:"tools,omitempty"`
	Format    json.RawMessage `json:"format,omitempty"`
	Think     *bool           `json:"think,omitempty"`
	KeepAlive any             `json:"keep_alive,omitempty"`
	Truncate  bool            `json:"truncate"`
	Shift     bool            `json:"shift"`
	Options   chatOptions     `json:"options"`
}

type chatOptions struct {
	Window      int      `json:"num_ctx"`
	Predict     int      `json:"num_predict"`
	Temperature *float64 `json:"temperature,omitempty"`
	Seed        *int     `json:"seed,omitempty"`
	Stop        []string `json:"stop,omitempty"`
}

type chatMessage struct {
	Role     string     `json:"role"`
	Content  string     `json:"content"`
	Thinking string     `json:"thinking,omitempty"`
	Calls    []chatCall `json:"tool_calls,omitempty"`
	ToolName string     `json:"tool_name,omitempty"`
	CallID   string     `json:"tool_call_id,omitempty"`
	Images   [][]byte   `json:"images,omitempty"` // base64
}

// chatCall is a tool call in a request and in a reply.
type chatCall struct {
	ID       string `json:"id,omitempty"`
	Function struct {
		Index     int             `json:"index"`
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"function"`
}

type chatTool struct {
	Type     string     `json:"type"` // always "function"
	Function model.Tool `json:"function"`
}

// newChatRequest returns the body for r. Window, Predict and KeepAlive that r leaves out are those of the backend; a
// tool without parameters accepts an object without properties.
func (b *Backend) newChatRequest(r model.Request) chatRequest {
	q := chatRequest{
		Model: r.Model, Messages: make([]chatMessage, len(r.Messages)), Stream: r.Stream, Format: r.Format,
		Think:     r.Think,
		KeepAlive: b.keepAlive(r.Options.KeepAlive),
		Options: chatOptions{
			Window: r.Options.Window, Predict: r.Options.Predict, Temperature: r.Options.Temperature,
			Seed: r.Options.Seed, Stop: r.Options.Stop,
		},
	}
	q.Options.Window = cmp.Or(q.Options.Window, b.cfg.Window)
	q.Options.Predict = cmp.Or(q.Options.Predict, b.cfg.Predict)
	for i, m := range r.Messages {
		q.Messages[i] = chatMessage{
			Role: m.Role, Content: m.Content, Thinking: m.Thinking, Calls: encodeCalls(m.Calls), ToolName: m.ToolName,
			CallID: m.CallID,
		}
		for _, image := range m.Images {
			q.Messages[i].Images = append(q.Messages[i].Images, image.Data)
		}
	}
	for _, t := range r.Tools {
		if len(t.Parameters) == 0 {
			t.Parameters = json.RawMessage(`{"type":"object","properties":{}}`)
		}
		q.Tools = append(q.Tools, chatTool{"function", t})
	}
	return q
}

// keepAlive returns the value of keep_alive for a request, nil to leave it out. A number is sent as a number, because
// the server rejects the string "-1".
func (b *Backend) keepAlive(s string) any {
	s = cmp.Or(s, b.cfg.KeepAlive)
	if s == "" {
		return nil
	}
	if n, err := strconv.Atoi(s); err == nil {
		return n
	}
	return s
}

// encodeCalls converts the calls of an earlier reply. Arguments that are not a JSON object become an empty object, and
// bytes in them that are not UTF-8 become U+FFFD, because the server would reject this and every later request of the
// conversation.
func encodeCalls(calls []model.Call) []chatCall {
	var out []chatCall
	for i, c := range calls {
		call := chatCall{ID: c.ID}
		call.Function.Index, call.Function.Name = i, c.Name
		call.Function.Arguments, _ = remote.JSONObject(c.Arguments)
		out = append(out, call)
	}
	return out
}

// chatReply is a line of the reply to a chat.
type chatReply struct {
	Error      string      `json:"error"`
	Model      string      `json:"model"`
	RemoteHost string      `json:"remote_host"`
	Message    chatMessage `json:"message"`
	Done       bool        `json:"done"`
	Reason     string      `json:"done_reason"`
	Total      int64       `json:"total_duration"` // nanoseconds
	Load       int64       `json:"load_duration"`  // nanoseconds
	PromptEval int         `json:"prompt_eval_count"`
	Eval       int         `json:"eval_count"`
	PromptTime int64       `json:"prompt_eval_duration"` // nanoseconds, of the part that was not cached
	EvalTime   int64       `json:"eval_duration"`        // nanoseconds
}

// decodeChunk decodes a line of a reply, which must be a JSON object. failed is the error that the server reports in
// the line, "" if none. A chunk that is not the last has no Final except RemoteHost, which the caller must learn before
// it uses the text.
func decodeChunk(line []byte) (c model.Chunk, failed string, err error) {
	var r chatReply
	if err := json.Unmarshal(line, &r); err != nil {
		return c, "", err
	}
	if bytes.TrimSpace(line)[0] != '{' { // null is valid for encoding/json
		return c, "", errors.New("not a JSON object")
	}
	c = model.Chunk{
		Content: r.Message.Content, Thinking: r.Message.Thinking, Done: r.Done,
		Final: model.Final{RemoteHost: r.RemoteHost},
	}
	for _, call := range r.Message.Calls {
		args := call.Function.Arguments
		if len(args) == 0 || string(args) == "null" {
			args = json.RawMessage(`{}`)
		}
		c.Calls = append(c.Calls, model.Call{ID: call.ID, Name: call.Function.Name, Arguments: args})
	}
	if r.Done {
		c.Final = model.Final{
			Model: r.Model, Reason: r.Reason, PromptTokens: r.PromptEval, OutputTokens: r.Eval,
			Load: time.Duration(r.Load), Total: time.Duration(r.Total), RemoteHost: r.RemoteHost,
			PromptTime: time.Duration(r.PromptTime), OutputTime: time.Duration(r.EvalTime),
		}
	}
	return c, r.Error, nil
}
