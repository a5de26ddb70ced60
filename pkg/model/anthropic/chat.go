package anthropic

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"unicode/utf8"

	sdk "github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/packages/param"

	"conclave/pkg/model"
	"conclave/pkg/model/internal/remote"
)

const (
	defaultTokens = 4096 // the service wants a limit
	leastBudget   = 1024 // of thinking; the service takes no less
	mostCalls     = 128  // in one reply
)

// Chat implements [model.Chat]. Errors wrap a sentinel of package model where one applies: see [convertError]. A stream
// without its last event is [model.ErrCut].
func (b *Backend) Chat(ctx context.Context, r model.Request) iter.Seq2[model.Chunk, error] {
	return func(yield func(model.Chunk, error) bool) {
		// When the caller stops iterating, the connection is closed, which cancels the request at the service.
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if err := b.runChat(ctx, r, yield); err != nil && !errors.Is(err, errStopped) {
			yield(model.Chunk{}, fmt.Errorf("chat: %w", err))
		}
	}
}

// errStopped means that the caller stopped iterating.
var errStopped = errors.New("stopped")

// runChat sends r and yields the chunks of the reply. errStopped = the caller stopped iterating; any other error was
// not yielded yet.
func (b *Backend) runChat(ctx context.Context, r model.Request, yield func(model.Chunk, error) bool) error {
	params, err := b.encodeRequest(ctx, r)
	if err != nil {
		return err
	}
	kctx, call, err := b.remote.BeginCall(ctx)
	if err != nil {
		return err
	}
	p := &reply{asked: remote.InfoOf(r), call: call, keep: &b.signed}
	p.final.Model, p.final.RemoteHost = r.Model, b.host()
	if r.Stream {
		return p.readStream(ctx, b.sdk.Messages.NewStreaming(kctx, params), yield)
	}
	var m *sdk.Message
	err = remote.RecoverPanic(func() (err error) {
		m, err = b.sdk.Messages.New(kctx, params)
		return err
	})
	if err != nil {
		return convertError(ctx, call, err, p.asked)
	}
	return p.readWhole(m, yield)
}

// encodeRequest converts r to the service's parameters. It rejects a format and tool parameters that are not JSON, and
// a conversation without any text or call. Without Predict the limit is defaultTokens; Temperature is left out while
// the model thinks. It may ask the service about the model: see hasAdaptiveThinking.
func (b *Backend) encodeRequest(ctx context.Context, r model.Request) (sdk.MessageNewParams, error) {
	out := sdk.MessageNewParams{Model: r.Model, MaxTokens: int64(r.Options.Predict), StopSequences: r.Options.Stop}
	if out.MaxTokens <= 0 {
		out.MaxTokens = defaultTokens
	}
	if err := b.setThinking(ctx, r, &out); err != nil {
		return out, err
	}
	thinks := out.Thinking.OfAdaptive != nil || out.Thinking.OfEnabled != nil
	if r.Options.Temperature != nil && !thinks {
		out.Temperature = sdk.Float(*r.Options.Temperature)
	}
	for _, t := range r.Tools {
		schema := bytes.TrimSpace(t.Parameters)
		if len(schema) == 0 {
			schema = []byte(`{"type":"object"}`)
		}
		if !json.Valid(schema) {
			return out, fmt.Errorf("the parameters of the tool %s are not JSON", t.Name)
		}
		tool := sdk.ToolParam{
			Name:        t.Name,
			InputSchema: param.Override[sdk.ToolInputSchemaParam](json.RawMessage(schema)),
		}
		if t.Description != "" {
			tool.Description = sdk.String(t.Description)
		}
		out.Tools = append(out.Tools, sdk.ToolUnionParam{OfTool: &tool})
	}
	if len(r.Format) > 0 {
		if !json.Valid(r.Format) {
			return out, errors.New("the format of the answer is not JSON")
		}
		out.OutputConfig.Format = param.Override[sdk.JSONOutputFormatParam](
			json.RawMessage(slices.Concat([]byte(`{"type":"json_schema","schema":`), r.Format, []byte(`}`))))
	}
	b.encodeConversation(r.Messages, thinks, &out)
	if len(out.Messages) == 0 {
		return out, errors.New("there is nothing to answer: every message is empty")
	}
	return out, nil
}

// setThinking enables or disables thinking in out; r.Think nil leaves it to the service. Newer models choose their own
// budget; older ones need a budget, half of MaxTokens, and the signed thinking of the current tool loop, without which
// thinking is disabled. MaxTokens grows where it does not exceed the smallest budget. The error is that of ctx.
func (b *Backend) setThinking(ctx context.Context, r model.Request, out *sdk.MessageNewParams) error {
	if r.Think == nil {
		return nil
	}
	off := sdk.NewThinkingConfigDisabledParam()
	out.Thinking.OfDisabled = &off
	if !*r.Think {
		return nil
	}
	adaptive, err := b.hasAdaptiveThinking(ctx, r.Model)
	switch {
	case err != nil:
		return err
	case adaptive:
		out.Thinking = sdk.ThinkingConfigParamUnion{OfAdaptive: &sdk.ThinkingConfigAdaptiveParam{
			Display: sdk.ThinkingConfigAdaptiveDisplaySummarized,
		}}
	case !b.lacksSignedThinking(r.Messages):
		if out.MaxTokens <= leastBudget {
			out.MaxTokens += leastBudget // the budget must be below the limit
		}
		out.Thinking = sdk.ThinkingConfigParamOfEnabled(max(leastBudget, out.MaxTokens/2))
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
func (b *Backend) encodeConversation(in []model.Message, thinks bool, out *sdk.MessageNewParams) {
	turns := remote.GroupTurns(in)
	inLoop := toolLoopStart(turns)
	for i, t := range turns {
		var blocks []sdk.ContentBlockParamUnion
		if thinks && i >= inLoop && len(t.Calls) > 0 {
			blocks = decodeThinking(b.signed.Get(t.Calls[0].ID))
		}
		if strings.TrimSpace(t.Content) != "" {
			if t.Role == model.System {
				out.System = append(out.System, sdk.TextBlockParam{Text: t.Content})
				continue
			}
			blocks = append(blocks, sdk.NewTextBlock(t.Content))
		}
		for _, image := range t.Images {
			blocks = append(blocks, sdk.NewImageBlockBase64(image.Type, base64.StdEncoding.EncodeToString(image.Data)))
		}
		for _, c := range t.Calls {
			blocks = append(blocks, sdk.NewToolUseBlock(c.Wire, argumentsOrEmpty(c.Arguments), c.Name))
		}
		if len(blocks) == 0 {
			continue
		}
		if t.Role != model.Assistant {
			out.Messages = append(out.Messages, sdk.NewUserMessage(blocks...))
			continue
		}
		out.Messages = append(out.Messages, sdk.NewAssistantMessage(blocks...))
		if len(t.Calls) > 0 {
			out.Messages = append(out.Messages, sdk.NewUserMessage(encodeResults(t.Calls)...))
		}
	}
}

// encodeResults converts the results of calls to blocks. A blank result has no content, because the service rejects
// blank texts.
func encodeResults(made []remote.CallResult) (blocks []sdk.ContentBlockParamUnion) {
	for _, c := range made {
		block := sdk.ToolResultBlockParam{ToolUseID: c.Wire}
		if strings.TrimSpace(c.Result) != "" {
			block.Content = []sdk.ToolResultBlockParamContentUnion{{OfText: &sdk.TextBlockParam{Text: c.Result}}}
		}
		blocks = append(blocks, sdk.ContentBlockParamUnion{OfToolResult: &block})
	}
	return blocks
}

// argumentsOrEmpty returns raw if it is a JSON object, with U+FFFD for bytes that are not UTF-8, and an empty object
// otherwise.
func argumentsOrEmpty(raw json.RawMessage) json.RawMessage {
	if raw = bytes.TrimSpace(raw); len(raw) == 0 || raw[0] != '{' || !json.Valid(raw) {
		return json.RawMessage("{}")
	}
	return bytes.ToValidUTF8(raw, []byte(string(utf8.RuneError)))
}
