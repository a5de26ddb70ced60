package genai

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"

	"conclave/pkg/model"
	"conclave/pkg/model/internal/remote"
)

// request is the body of POST generateContent and streamGenerateContent.
type request struct {
	System   *content  `json:"systemInstruction,omitempty"`
	Contents []content `json:"contents"`
	Tools    []tools   `json:"tools,omitempty"`
	Config   config    `json:"generationConfig"`
}

type tools struct {
	Functions []function `json:"functionDeclarations"`
}

type function struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parametersJsonSchema,omitempty"`
}

type config struct {
	MaxTokens   int             `json:"maxOutputTokens,omitempty"`
	Stop        []string        `json:"stopSequences,omitempty"`
	Temperature *float64        `json:"temperature,omitempty"`
	Seed        *int            `json:"seed,omitempty"`
	MIME        string          `json:"responseMimeType,omitempty"`
	Schema      json.RawMessage `json:"responseJsonSchema,omitempty"`
	Thinking    json.RawMessage `json:"thinkingConfig,omitempty"`
}

// content is a message of a conversation or of a reply.
type content struct {
	Role  string `json:"role,omitempty"` // user or model
	Parts []part `json:"parts"`
}

// part has one of text, image, call and result.
type part struct {
	Text      string  `json:"text,omitempty"`
	Thought   bool    `json:"thought,omitempty"` // Text is thinking
	Image     *image  `json:"inlineData,omitempty"`
	Call      *call   `json:"functionCall,omitempty"`
	Result    *result `json:"functionResponse,omitempty"`
	Signature []byte  `json:"thoughtSignature,omitempty"` // of the thinking before the call
}

type image struct {
	Type string `json:"mimeType"`
	Data []byte `json:"data"`
}

type call struct {
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"args,omitempty"`
}

type result struct {
	ID       string `json:"id,omitempty"`
	Name     string `json:"name"`
	Response struct {
		Output string `json:"output"`
	} `json:"response"`
}

// Chat implements [model.Chat]: see [remote.Client.Chat]. A reply without a finish reason is [model.ErrCut].
func (b *Backend) Chat(ctx context.Context, r model.Request) iter.Seq2[model.Chunk, error] {
	return b.remote.Chat(ctx, r, b.encodeRequest, func(c *remote.Call) remote.Reply {
		return &reply{call: c, keep: &b.signed, final: model.Final{Model: r.Model, RemoteHost: b.host()}}
	})
}

// encodeRequest returns the path and the body for r. It rejects a name that is not safe in a path, a format and tool
// parameters that are not JSON objects, and a conversation without any text or call. A seed that does not fit 32 bits
// is left out.
func (b *Backend) encodeRequest(_ context.Context, r model.Request) (string, any, error) {
	resource, err := resourceName(r.Model)
	if err != nil {
		return "", nil, err
	}
	out := request{Config: config{
		MaxTokens: min(max(r.Options.Predict, 0), math.MaxInt32), Stop: r.Options.Stop,
		Temperature: r.Options.Temperature, Thinking: thinkingConfig(r),
	}}
	if s := r.Options.Seed; s != nil && *s >= math.MinInt32 && *s <= math.MaxInt32 {
		out.Config.Seed = s
	}
	if len(r.Format) > 0 {
		schema, ok := remote.JSONObject(r.Format)
		if !ok {
			return "", nil, errors.New("the format of the answer is not a JSON object")
		}
		out.Config.MIME, out.Config.Schema = "application/json", schema
	}
	var functions []function
	for _, t := range r.Tools {
		f := function{Name: t.Name, Description: t.Description}
		schema, ok := remote.JSONObject(t.Parameters)
		if !ok {
			return "", nil, fmt.Errorf("the parameters of the tool %s are not a JSON object", t.Name)
		}
		if string(schema) != "{}" {
			f.Parameters = schema
		}
		functions = append(functions, f)
	}
	if len(functions) > 0 {
		out.Tools = []tools{{functions}}
	}
	b.encodeConversation(r, &out)
	if len(out.Contents) == 0 {
		return "", nil, errors.New("there is nothing to answer: every message is empty")
	}
	if r.Stream {
		return root + resource + ":streamGenerateContent?alt=sse", out, nil
	}
	return root + resource + ":generateContent", out, nil
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
func thinkingConfig(r model.Request) json.RawMessage {
	if r.Think == nil {
		return nil
	}
	if *r.Think {
		return json.RawMessage(`{"includeThoughts":true}`)
	}
	n, rest := modelGeneration(r.Model)
	switch {
	case strings.HasPrefix(rest, "2.5-pro"):
		return json.RawMessage(`{"thinkingBudget":128}`) // the least it takes
	case n <= '2' && !strings.HasPrefix(rest, "2.5"):
		return nil // they never think, and reject the parameter
	case n >= '3' && rest != "":
		return json.RawMessage(`{"thinkingLevel":"LOW"}`)
	}
	return json.RawMessage(`{"thinkingBudget":0}`)
}

// unsigned is the signature that Google documents for calls that were never signed.
const unsigned = "skip_thought_signature_validator"

// encodeConversation adds the conversation to out: system text separately, tool results in the user message after the
// calls. Empty messages are left out, and arguments that are not a JSON object are sent as none. A first call without a
// cached signature gets the [unsigned] mark for models that want one.
func (b *Backend) encodeConversation(r model.Request, out *request) {
	signs, _ := modelGeneration(r.Model)
	for _, t := range remote.GroupTurns(r.Messages) {
		var parts []part
		if t.Content != "" {
			parts = append(parts, part{Text: t.Content})
		}
		if t.Role == model.System {
			if len(parts) > 0 {
				if out.System == nil {
					out.System = &content{}
				}
				out.System.Parts = append(out.System.Parts, parts...)
			}
			continue
		}
		for _, i := range t.Images {
			parts = append(parts, part{Image: &image{i.Type, i.Data}})
		}
		var results []part
		for i, c := range t.Calls {
			args, _ := remote.JSONObject(c.Arguments) // a call with other arguments was never run
			made, answer := &call{Name: c.Name, Arguments: args}, &result{Name: c.Name}
			if c.ID != "" { // an id is sent only if the model gave one
				made.ID, answer.ID = c.Wire, c.Wire
			}
			answer.Response.Output = c.Result
			p := part{Call: made, Signature: b.signed.Get(c.ID)}
			if i == 0 && p.Signature == nil && signs >= '3' {
				p.Signature = []byte(unsigned)
			}
			parts, results = append(parts, p), append(results, part{Result: answer})
		}
		if len(parts) == 0 {
			continue
		}
		role := "user"
		if t.Role == model.Assistant {
			role = "model"
		}
		out.Contents = append(out.Contents, content{role, parts})
		if len(results) > 0 {
			out.Contents = append(out.Contents, content{"user", results})
		}
	}
}

// response is a whole reply or a chunk of a stream.
type response struct {
	Model      string `json:"modelVersion"`
	Candidates []struct {
		Content content `json:"content"`
		Reason  string  `json:"finishReason"`
		Message string  `json:"finishMessage"`
	} `json:"candidates"`
	Feedback struct {
		Reason  string `json:"blockReason"`
		Message string `json:"blockReasonMessage"`
	} `json:"promptFeedback"`
	Usage *struct {
		Prompt   int `json:"promptTokenCount"`
		Tools    int `json:"toolUsePromptTokenCount"`
		Output   int `json:"candidatesTokenCount"`
		Thoughts int `json:"thoughtsTokenCount"`
	} `json:"usageMetadata"`
	Error json.RawMessage `json:"error"`
}

// reply implements [remote.Reply].
type reply struct {
	call  *remote.Call
	keep  *remote.SignatureCache
	final model.Final
	calls int
}

// ReadEvent implements [remote.Reply]. It fails when the service reports an error or blocks the prompt, and when a call
// is invalid or could not be read.
func (p *reply) ReadEvent(data []byte) (out model.Chunk, err error) {
	var got response
	if json.Unmarshal(data, &got) != nil {
		return out, p.call.ProtocolError("sends something that does not follow its protocol")
	}
	if err := p.call.EventError(got.Error); err != nil {
		return out, err
	}
	if got.Model != "" {
		p.final.Model = got.Model
	}
	if u := got.Usage; u != nil {
		p.final.PromptTokens = max(u.Prompt, 0) + max(u.Tools, 0)
		p.final.OutputTokens = max(u.Output, 0) + max(u.Thoughts, 0)
	}
	if len(got.Candidates) == 0 {
		if f := got.Feedback; f.Reason != "" {
			return out, fmt.Errorf("%s refuses to answer this: %s", p.final.Model,
				p.call.Redact(f.Reason+" "+f.Message))
		}
		return out, nil // the counts may come alone
	}
	first := got.Candidates[0]
	for _, part := range first.Content.Parts {
		if err := p.readPart(part, &out); err != nil {
			return out, err
		}
	}
	switch first.Reason {
	case "", "FINISH_REASON_UNSPECIFIED":
	case "STOP":
		p.final.Reason = "stop"
	case "MAX_TOKENS":
		p.final.Reason = "length"
	case "MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL":
		return out, p.call.ProtocolError("could not read the call that the model made: " +
			p.call.Redact(first.Message))
	default:
		p.final.Reason = strings.ToLower(p.call.Redact(first.Reason))
	}
	return out, nil
}

// readPart adds one part of a chunk to out and caches the signature of a call. It rejects an invalid call.
func (p *reply) readPart(in part, out *model.Chunk) error {
	switch {
	case in.Call != nil:
		p.calls++
		c, err := p.call.DecodeToolCall(p.calls, in.Call.ID, in.Call.Name, in.Call.Arguments)
		if err != nil {
			return err
		}
		p.keep.Put(c.ID, in.Signature)
		out.Calls = append(out.Calls, c)
	case in.Thought:
		out.Thinking += in.Text
	default:
		out.Content += in.Text
	}
	return nil
}

// EndStream implements [remote.Reply]. A stream that ends without a finish reason was cut off.
func (p *reply) EndStream() (model.Chunk, error) {
	return model.Chunk{Done: p.final.Reason != "", Final: p.final}, nil
}

// ReadWhole implements [remote.Reply].
func (p *reply) ReadWhole(data []byte) (model.Chunk, error) {
	out, err := p.ReadEvent(data)
	out.Done, out.Final = p.final.Reason != "", p.final
	return out, err
}
