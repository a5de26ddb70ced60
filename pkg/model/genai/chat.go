package genai

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"

	sdk "google.golang.org/genai"

	"conclave/pkg/model"
	"conclave/pkg/model/internal/remote"
)

const maxCalls = 128 // in one reply

// Chat implements [model.Chat]. Errors wrap a sentinel of package model where one applies: see [convertError]. A reply
// without a finish reason is [model.ErrCut].
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
	contents, config, err := b.encodeRequest(r)
	if err != nil {
		return err
	}
	kctx, call, err := b.beginCall(ctx, r.Model)
	if err != nil {
		return err
	}
	p := &reply{asked: remote.InfoOf(r), call: call, keep: &b.signed}
	p.final.Model, p.final.RemoteHost = r.Model, b.host()
	if r.Stream {
		return p.readStream(ctx, b.sdk.GenerateContentStream(kctx, r.Model, contents, config), yield)
	}
	var got *sdk.GenerateContentResponse
	err = remote.RecoverPanic(func() (err error) {
		got, err = b.sdk.GenerateContent(kctx, r.Model, contents, config)
		return err
	})
	if err = addReadError(call, err); err != nil {
		return convertError(ctx, call, err, p.asked)
	}
	out, err := p.readChunk(got)
	if err != nil {
		return err
	}
	return p.yieldFinal(ctx, out, yield)
}

// encodeRequest converts r to the service's parameters. It rejects a format and tool parameters that are not JSON
// objects, and a conversation without any text or call. A seed that does not fit 32 bits is left out.
func (b *Backend) encodeRequest(r model.Request) ([]*sdk.Content, *sdk.GenerateContentConfig, error) {
	no := false
	config := &sdk.GenerateContentConfig{
		MaxOutputTokens:       int32(min(max(r.Options.Predict, 0), math.MaxInt32)),
		StopSequences:         r.Options.Stop,
		ThinkingConfig:        thinkingConfig(r),
		AutomaticContinuation: &no, // it would send, and bill, further requests by itself
	}
	if t := r.Options.Temperature; t != nil {
		config.Temperature = sdk.Ptr(float32(*t))
	}
	if s := r.Options.Seed; s != nil && *s >= math.MinInt32 && *s <= math.MaxInt32 {
		config.Seed = sdk.Ptr(int32(*s))
	}
	if len(r.Format) > 0 {
		schema, err := decodeObject(r.Format)
		if err != nil {
			return nil, nil, fmt.Errorf("the format of the answer: %w", err)
		}
		config.ResponseMIMEType, config.ResponseJsonSchema = "application/json", schema
	}
	var tools []*sdk.FunctionDeclaration
	for _, t := range r.Tools {
		schema, err := decodeObject(t.Parameters)
		if err != nil {
			return nil, nil, fmt.Errorf("the parameters of the tool %s: %w", t.Name, err)
		}
		d := &sdk.FunctionDeclaration{Name: t.Name, Description: t.Description}
		if len(schema) > 0 {
			d.ParametersJsonSchema = schema
		}
		tools = append(tools, d)
	}
	if len(tools) > 0 {
		config.Tools = []*sdk.Tool{{FunctionDeclarations: tools}}
	}
	contents := b.encodeConversation(r, config)
	if len(contents) == 0 {
		return nil, nil, errors.New("there is nothing to answer: every message is empty")
	}
	return contents, config, nil
}

// decodeObject decodes a JSON object; empty input is an empty object, null a nil one. Anything else is an error.
func decodeObject(raw json.RawMessage) (map[string]any, error) {
	out := map[string]any{}
	if len(bytes.TrimSpace(raw)) == 0 {
		return out, nil
	}
	if json.Unmarshal(raw, &out) != nil {
		return nil, errors.New("not a JSON object")
	}
	return out, nil
}

// modelGeneration returns the major version digit of a Gemini model, which decides the thinking parameters: versions 1
// and 2 have budgets at most, later ones levels and signatures. Unknown names count as new.
func modelGeneration(name string) (n byte, rest string) {
	rest, ok := strings.CutPrefix(strings.TrimPrefix(name, "models/"), "gemini-")
	if !ok || rest == "" {
		return '9', ""
	}
	return rest[0], rest
}

// thinkingConfig enables or disables thinking; nil = leave it to the service, when r does not say or the model never
// thinks. Models that cannot disable it get the lowest level or budget.
func thinkingConfig(r model.Request) *sdk.ThinkingConfig {
	if r.Think == nil {
		return nil
	}
	if *r.Think {
		return &sdk.ThinkingConfig{IncludeThoughts: true}
	}
	n, rest := modelGeneration(r.Model)
	switch {
	case strings.HasPrefix(rest, "2.5-pro"):
		return &sdk.ThinkingConfig{ThinkingBudget: sdk.Ptr[int32](128)} // the least it takes
	case n <= '2' && !strings.HasPrefix(rest, "2.5"):
		return nil // they never think, and reject the parameter
	case n >= '3' && rest != "":
		return &sdk.ThinkingConfig{ThinkingLevel: sdk.ThinkingLevelLow}
	}
	return &sdk.ThinkingConfig{ThinkingBudget: sdk.Ptr[int32](0)}
}

// unsigned is the signature that Google documents for calls that were never signed.
const unsigned = "skip_thought_signature_validator"

// encodeConversation converts the conversation: system text into config, tool results into the user message after the
// calls. Empty messages are left out, and arguments that are not a JSON object are sent as none. A first call without a
// cached signature gets the [unsigned] mark for models that want one.
func (b *Backend) encodeConversation(r model.Request, config *sdk.GenerateContentConfig) (out []*sdk.Content) {
	signs, _ := modelGeneration(r.Model)
	for _, t := range remote.GroupTurns(r.Messages) {
		var parts []*sdk.Part
		if t.Content != "" {
			parts = append(parts, &sdk.Part{Text: t.Content})
		}
		if t.Role == model.System {
			if len(parts) > 0 {
				if config.SystemInstruction == nil {
					config.SystemInstruction = &sdk.Content{}
				}
				config.SystemInstruction.Parts = append(config.SystemInstruction.Parts, parts...)
			}
			continue
		}
		for _, image := range t.Images {
			parts = append(parts, &sdk.Part{InlineData: &sdk.Blob{MIMEType: image.Type, Data: image.Data}})
		}
		for i, c := range t.Calls {
			part := &sdk.Part{FunctionCall: &sdk.FunctionCall{Name: c.Name}, ThoughtSignature: b.signed.Get(c.ID)}
			part.FunctionCall.Args, _ = decodeObject(c.Arguments) // what is no object was never run
			if c.ID != "" {
				part.FunctionCall.ID = c.Wire
			}
			if i == 0 && part.ThoughtSignature == nil && signs >= '3' {
				part.ThoughtSignature = []byte(unsigned)
			}
			parts = append(parts, part)
		}
		if len(parts) == 0 {
			continue
		}
		role := sdk.RoleUser
		if t.Role == model.Assistant {
			role = sdk.RoleModel
		}
		out = append(out, &sdk.Content{Role: string(role), Parts: parts})
		if len(t.Calls) > 0 {
			out = append(out, &sdk.Content{Role: string(sdk.RoleUser), Parts: encodeResults(t.Calls)})
		}
	}
	return out
}

// encodeResults converts the results of calls to parts. An id is sent only if the model gave one.
func encodeResults(made []remote.CallResult) (parts []*sdk.Part) {
	for _, c := range made {
		f := &sdk.FunctionResponse{Name: c.Name, Response: map[string]any{"output": c.Result}}
		if c.ID != "" {
			f.ID = c.Wire
		}
		parts = append(parts, &sdk.Part{FunctionResponse: f})
	}
	return parts
}

// reply assembles one reply.
type reply struct {
	asked remote.RequestInfo
	call  *remote.Call
	keep  *remote.SignatureCache

	final model.Final
	calls int
}

// readStream reads chunks to the end of the stream and yields what is in them, then the last chunk. A panic of the
// library is an error. errStopped = the caller stopped iterating.
func (p *reply) readStream(
	ctx context.Context, in iter.Seq2[*sdk.GenerateContentResponse, error], yield func(model.Chunk, error) bool,
) error {
	// Pulled, so that a panic of the library can be told from one of the caller.
	next, stop := iter.Pull2(in)
	defer stop()
	for {
		var got *sdk.GenerateContentResponse
		more := false
		err := remote.RecoverPanic(func() (err error) {
			got, err, more = next()
			return err
		})
		switch {
		case err != nil:
			return convertError(ctx, p.call, err, p.asked)
		case !more:
			return p.yieldFinal(ctx, model.Chunk{}, yield)
		}
		c, err := p.readChunk(got)
		if err != nil {
			return err
		}
		if (c.Content != "" || c.Thinking != "" || len(c.Calls) > 0) && !yield(c, nil) {
			return errStopped
		}
	}
}

// readChunk processes one chunk and returns the content, thinking and calls in it; it may be empty. It fails when the
// service blocks the prompt, when a call is invalid or could not be read, and for nil.
func (p *reply) readChunk(got *sdk.GenerateContentResponse) (out model.Chunk, err error) {
	if got == nil {
		return out, p.call.ProtocolError("answers with nothing")
	}
	if got.ModelVersion != "" {
		p.final.Model = got.ModelVersion
	}
	if u := got.UsageMetadata; u != nil {
		p.final.PromptTokens = int(max(u.PromptTokenCount, 0) + max(u.ToolUsePromptTokenCount, 0))
		p.final.OutputTokens = int(max(u.CandidatesTokenCount, 0) + max(u.ThoughtsTokenCount, 0))
	}
	if len(got.Candidates) == 0 || got.Candidates[0] == nil {
		if f := got.PromptFeedback; f != nil && f.BlockReason != "" {
			why := p.call.Redact(string(f.BlockReason) + " " + f.BlockReasonMessage)
			return out, fmt.Errorf("%s refuses to answer this: %s", p.final.Model, why)
		}
		return out, nil // the counts may come alone
	}
	first := got.Candidates[0]
	if first.Content != nil {
		for _, part := range first.Content.Parts {
			if err := p.readPart(part, &out); err != nil {
				return out, err
			}
		}
	}
	switch first.FinishReason {
	case "", sdk.FinishReasonUnspecified:
	case sdk.FinishReasonStop:
		p.final.Reason = "stop"
	case sdk.FinishReasonMaxTokens:
		p.final.Reason = "length"
	case sdk.FinishReasonMalformedFunctionCall, sdk.FinishReasonUnexpectedToolCall:
		return out, p.call.ProtocolError("could not read the call that the model made: " +
			p.call.Redact(first.FinishMessage))
	default:
		p.final.Reason = strings.ToLower(p.call.Redact(string(first.FinishReason)))
	}
	return out, nil
}

// readPart adds one part of a chunk to out and caches the signature of a call. It rejects more than maxCalls calls in a
// reply, and calls without a name.
func (p *reply) readPart(part *sdk.Part, out *model.Chunk) error {
	switch {
	case part == nil:
	case part.FunctionCall != nil:
		f := part.FunctionCall
		switch p.calls++; {
		case p.calls > maxCalls:
			return p.call.ProtocolError(fmt.Sprintf("makes more than %d calls at once", maxCalls))
		case f.Name == "":
			return p.call.ProtocolError("sends a call without a name")
		}
		args, err := encodeArguments(f.Args)
		if err != nil {
			return p.call.ProtocolError("sends a call whose arguments are not a JSON object")
		}
		p.keep.Put(f.ID, part.ThoughtSignature)
		out.Calls = append(out.Calls, model.Call{ID: f.ID, Name: f.Name, Arguments: args})
	case part.Thought:
		out.Thinking += part.Text
	default:
		out.Content += part.Text
	}
	return nil
}

// encodeArguments returns arguments as a JSON object with sorted keys, {} for none.
func encodeArguments(args map[string]any) (json.RawMessage, error) {
	if len(args) == 0 {
		return json.RawMessage("{}"), nil
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(args); err != nil {
		return nil, err
	}
	return bytes.TrimRight(buf.Bytes(), "\n"), nil
}

// yieldFinal yields the last chunk. A reply without a finish reason was cut off and is an error.
func (p *reply) yieldFinal(ctx context.Context, last model.Chunk, yield func(model.Chunk, error) bool) error {
	if p.call.ReadError() != nil || p.final.Reason == "" {
		return p.call.TransportError(ctx, nil)
	}
	last.Done, last.Final = true, p.final
	yield(last, nil)
	return nil
}
