package anthropic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"conclave/pkg/model"
	"conclave/pkg/model/internal/remote"
)

const (
	defaultTokens = 4096 // the service wants a limit
	leastBudget   = 1024 // of thinking; the service takes no less
)

// request is the body of POST /v1/messages.
type request struct {
	Model       string    `json:"model"`
	MaxTokens   int       `json:"max_tokens"`
	System      []block   `json:"system,omitempty"`
	Messages    []message `json:"messages"`
	Tools       []tool    `json:"tools,omitempty"`
	Thinking    *thinking `json:"thinking,omitempty"`
	Temperature *float64  `json:"temperature,omitempty"`
	Stop        []string  `json:"stop_sequences,omitempty"`
	Output      *output   `json:"output_config,omitempty"`
	Stream      bool      `json:"stream,omitempty"`
}

type message struct {
	Role    string  `json:"role"`
	Content []block `json:"content"`
}

type tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"input_schema"`
}

type thinking struct {
	Type    string `json:"type"` // disabled, enabled or adaptive
	Budget  int    `json:"budget_tokens,omitempty"`
	Display string `json:"display,omitempty"`
}

type output struct {
	Format struct {
		Type   string          `json:"type"`
		Schema json.RawMessage `json:"schema"`
	} `json:"format"`
}

// block is a content block of a request or a reply. Its Type says which other fields it has.
type block struct {
	Type string `json:"type"`
	// text
	Text string `json:"text,omitempty"`
	// thinking: a pointer, because it is sent back even when it is empty
	Thinking  *string `json:"thinking,omitempty"`
	Signature string  `json:"signature,omitempty"`
	// redacted_thinking
	Data string `json:"data,omitempty"`
	// image
	Source *source `json:"source,omitempty"`
	// tool_use
	ID    string          `json:"id,omitempty"`
	Name  string          `json:"name,omitempty"`
	Input json.RawMessage `json:"input,omitempty"`
	// tool_result
	CallID  string  `json:"tool_use_id,omitempty"`
	Content []block `json:"content,omitempty"`
}

type source struct {
	Type  string `json:"type"` // base64
	Media string `json:"media_type"`
	Data  []byte `json:"data"`
}

// Chat implements [model.Chat]: see [remote.Client.Chat]. A stream without its last event is [model.ErrCut].
func (b *Backend) Chat(ctx context.Context, r model.Request) iter.Seq2[model.Chunk, error] {
	return b.remote.Chat(ctx, r, b.encodeRequest, func(c *remote.Call) remote.Reply {
		return &reply{
			call: c, keep: &b.signed, open: map[int]*openBlock{},
			final: model.Final{Model: r.Model, RemoteHost: b.host()},
		}
	})
}

// encodeRequest returns the path and the body for r. It rejects a format and tool parameters that are not JSON objects,
// and a conversation without any text or call. Without Predict the limit is defaultTokens; Temperature is left out
// while the model thinks. It may ask the service about the model: see hasAdaptiveThinking.
func (b *Backend) encodeRequest(ctx context.Context, r model.Request) (string, any, error) {
	out := request{Model: r.Model, MaxTokens: r.Options.Predict, Stop: r.Options.Stop, Stream: r.Stream}
	if out.MaxTokens <= 0 {
		out.MaxTokens = defaultTokens
	}
	if err := b.setThinking(ctx, r, &out); err != nil {
		return "", nil, err
	}
	thinks := out.Thinking != nil && out.Thinking.Type != "disabled"
	if !thinks {
		out.Temperature = r.Options.Temperature
	}
	for _, t := range r.Tools {
		schema, ok := remote.JSONObject(t.Parameters)
		switch {
		case !ok:
			return "", nil, fmt.Errorf("the parameters of the tool %s are not a JSON object", t.Name)
		case string(schema) == "{}":
			schema = json.RawMessage(`{"type":"object"}`)
		}
		out.Tools = append(out.Tools, tool{t.Name, t.Description, schema})
	}
	if len(r.Format) > 0 {
		schema, ok := remote.JSONObject(r.Format)
		if !ok {
			return "", nil, errors.New("the format of the answer is not a JSON object")
		}
		out.Output = &output{}
		out.Output.Format.Type, out.Output.Format.Schema = "json_schema", schema
	}
	b.encodeConversation(r.Messages, thinks, &out)
	if len(out.Messages) == 0 {
		return "", nil, errors.New("there is nothing to answer: every message is empty")
	}
	return "/v1/messages", out, nil
}

// setThinking enables or disables thinking in out; r.Think nil leaves it to the service. Newer models choose their own
// budget; older ones need a budget, half of MaxTokens, and the signed thinking of the current tool loop, without which
// thinking is disabled. MaxTokens grows where it does not exceed the smallest budget. The error is that of ctx.
func (b *Backend) setThinking(ctx context.Context, r model.Request, out *request) error {
	if r.Think == nil {
		return nil
	}
	out.Thinking = &thinking{Type: "disabled"}
	if !*r.Think {
		return nil
	}
	adaptive, err := b.hasAdaptiveThinking(ctx, r.Model)
	switch {
	case err != nil:
		return err
	case adaptive:
		out.Thinking = &thinking{Type: "adaptive", Display: "summarized"}
	case !b.lacksSignedThinking(r.Messages):
		if out.MaxTokens <= leastBudget {
			out.MaxTokens += leastBudget // the budget must be below the limit
		}
		out.Thinking = &thinking{Type: "enabled", Budget: max(leastBudget, out.MaxTokens/2)}
	}
	return nil
}

// hasAdaptiveThinking reports whether the model chooses its own thinking budget. It asks the service once per model; if
// the answer is unknown, it reports false and asks again next time. It fails only when ctx ends.
func (b *Backend) hasAdaptiveThinking(ctx context.Context, name string) (bool, error) {
	b.mu.Lock()
	known, ok := b.adaptive[name]
	b.mu.Unlock()
	if ok {
		return known, nil
	}
	m, err := b.fetchModel(ctx, name)
	if err != nil {
		if ctx.Err() != nil {
			return false, err
		}
		return false, nil // the request itself will show what is wrong
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.adaptive) >= 1000 {
		clear(b.adaptive)
	}
	b.adaptive[name] = m.Capabilities.Thinking.Types.Adaptive.Supported
	return b.adaptive[name], nil
}

// toolLoopStart returns the index of the first turn after the last user message.
func toolLoopStart(in []remote.Turn) int {
	for i, t := range slices.Backward(in) {
		if t.Role == model.User {
			return i + 1
		}
	}
	return 0
}

// lacksSignedThinking reports whether the current tool loop has calls whose signed thinking is not cached.
func (b *Backend) lacksSignedThinking(in []model.Message) bool {
	turns := remote.GroupTurns(in)
	return slices.ContainsFunc(turns[toolLoopStart(turns):], func(t remote.Turn) bool {
		return len(t.Calls) > 0 && b.signed.Get(t.Calls[0].ID) == nil
	})
}

// encodeConversation adds the conversation to out: system text separately, tool results in the user message after the
// calls. Blank texts are omitted, because the service rejects them. thinks says that thinking is on: then the signed
// thinking of the current tool loop is sent with its calls.
func (b *Backend) encodeConversation(in []model.Message, thinks bool, out *request) {
	turns := remote.GroupTurns(in)
	inLoop := toolLoopStart(turns)
	for i, t := range turns {
		var blocks, results []block
		if thinks && i >= inLoop && len(t.Calls) > 0 {
			_ = json.Unmarshal(b.signed.Get(t.Calls[0].ID), &blocks) // none: see setThinking
		}
		if strings.TrimSpace(t.Content) != "" {
			text := block{Type: "text", Text: t.Content}
			if t.Role == model.System {
				out.System = append(out.System, text)
				continue
			}
			blocks = append(blocks, text)
		}
		for _, i := range t.Images {
			blocks = append(blocks, block{Type: "image", Source: &source{"base64", i.Type, i.Data}})
		}
		for _, c := range t.Calls {
			args, _ := remote.JSONObject(c.Arguments) // a call with other arguments was never run
			blocks = append(blocks, block{Type: "tool_use", ID: c.Wire, Name: c.Name, Input: args})
			result := block{Type: "tool_result", CallID: c.Wire}
			if strings.TrimSpace(c.Result) != "" {
				result.Content = []block{{Type: "text", Text: c.Result}}
			}
			results = append(results, result)
		}
		if len(blocks) == 0 {
			continue
		}
		role := model.User
		if t.Role == model.Assistant {
			role = model.Assistant
		}
		out.Messages = append(out.Messages, message{role, blocks})
		if len(results) > 0 {
			out.Messages = append(out.Messages, message{model.User, results})
		}
	}
}
