// Package wire is a model that is reached over the bus: it turns requests into messages to the model actor and back, for
// those who ask and for the actor that answers. Nothing else knows how a model's words look on the bus.
package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/model"
	"conclave/subjects"
)

// Client asks the model actor in a role. It implements [model.Chat] and [model.Embedder].
type Client struct {
	Out     actor.Out
	Role    string        // assistant, critic, ...: which model answers is the actor's choice
	Hint    string        // simple, reasoning, code; "" = none
	Timeout time.Duration // of one call, when the context has no earlier deadline; 0 = 2 m
	// OnDone is told who answered, when a reply is complete: a stand-in, or another model than asked for.
	OnDone func(subjects.ChatChunk)
}

// Chat implements [model.Chat].
func (c Client) Chat(ctx context.Context, r model.Request) iter.Seq2[model.Chunk, error] {
	return func(yield func(model.Chunk, error) bool) {
		ctx, cancel := context.WithTimeout(ctx, c.callTimeout())
		defer cancel()
		q, err := EncodeRequest(r)
		if err != nil {
			yield(model.Chunk{}, err)
			return
		}
		q.Role, q.Hint = c.Role, c.Hint
		done := false
		for piece, err := range actor.AskStream(ctx, c.Out, subjects.ModelChat, q) {
			if err != nil {
				yield(model.Chunk{}, DecodeError(err))
				return
			}
			chunk, err := DecodeChunk(piece)
			if err != nil {
				yield(model.Chunk{}, err)
				return
			}
			if done = chunk.Done; done && c.OnDone != nil {
				c.OnDone(piece)
			}
			if !yield(chunk, nil) {
				return
			}
		}
		if !done {
			yield(model.Chunk{}, fmt.Errorf("%w: the model actor ended it early", model.ErrCut))
		}
	}
}

// Embed implements [model.Embedder]. Many texts go in several requests, all within the one time limit.
func (c Client) Embed(ctx context.Context, name string, texts []string) (model.Vectors, error) {
	ctx, cancel := context.WithTimeout(ctx, c.callTimeout())
	defer cancel()
	v := model.Vectors{Model: name, Values: make([][]float32, 0, len(texts))}
	for first := 0; first < len(texts); {
		batch := texts[first : first+countBatchTexts(texts[first:])]
		a, err := actor.Ask(ctx, c.Out, subjects.ModelEmbed, subjects.EmbedRequest{Model: name, Texts: batch})
		switch {
		case err != nil:
			return model.Vectors{}, DecodeError(err)
		case len(a.Vectors) != len(batch):
			return model.Vectors{}, fmt.Errorf("%w: %d vectors for %d texts", model.ErrMalformed, len(a.Vectors), len(batch))
		case first > 0 && a.Model != v.Model:
			return model.Vectors{}, fmt.Errorf("%w: %s made the first vectors and %s the next; they do not compare", model.ErrMalformed, v.Model, a.Model)
		}
		v.Model, v.Values = a.Model, append(v.Values, a.Vectors...)
		first += len(batch)
	}
	return v, nil
}

// Bounds of one request for vectors. The vectors of so many texts, each of 4096 numbers, still fit a message.
const (
	maxBatchTexts = 32
	maxBatchBytes = 512 << 10
)

// countBatchTexts is how many of the texts go into one request, at least one.
func countBatchTexts(texts []string) int {
	n, size := 0, 0
	for _, t := range texts {
		if size += len(t); n == maxBatchTexts || n > 0 && size > maxBatchBytes {
			break
		}
		n++
	}
	return n
}

func (c Client) callTimeout() time.Duration {
	if c.Timeout > 0 {
		return c.Timeout
	}
	return 2 * time.Minute
}

// EncodeRequest is a request as it is said on the bus. Role and hint are the caller's to add.
func EncodeRequest(r model.Request) (subjects.ChatRequest, error) {
	q := subjects.ChatRequest{Model: r.Model, Format: r.Format, Think: r.Think, Stream: r.Stream}
	var err error
	if q.Messages, err = json.Marshal(r.Messages); err != nil {
		return q, fmt.Errorf("encoding messages: %w", err)
	}
	if q.Options, err = json.Marshal(r.Options); err != nil {
		return q, fmt.Errorf("encoding options: %w", err)
	}
	if len(r.Tools) > 0 {
		if q.Tools, err = json.Marshal(r.Tools); err != nil {
			return q, fmt.Errorf("encoding tools: %w", err)
		}
	}
	return q, nil
}

// DecodeRequest reads it back, strictly.
func DecodeRequest(q subjects.ChatRequest) (model.Request, error) {
	r := model.Request{Model: q.Model, Format: q.Format, Think: q.Think, Stream: q.Stream}
	for _, part := range []struct {
		name string
		raw  json.RawMessage
		to   any
	}{{"messages", q.Messages, &r.Messages}, {"tools", q.Tools, &r.Tools}, {"options", q.Options, &r.Options}} {
		if len(part.raw) == 0 {
			continue
		}
		if err := decodeStrict(part.raw, part.to); err != nil {
			return r, subjects.Faultf(subjects.CodeMalformed, "%s could not be read", part.name)
		}
	}
	if len(q.Format) > 0 && !json.Valid(q.Format) { // it goes into other JSON as it is
		return r, subjects.Faultf(subjects.CodeMalformed, "the format could not be read")
	}
	if len(r.Messages) == 0 {
		return r, subjects.Faultf(subjects.CodeMalformed, "there are no messages")
	}
	return r, nil
}

// EncodeChunk is a chunk as it is said on the bus.
func EncodeChunk(c model.Chunk) (subjects.ChatChunk, error) {
	p := subjects.ChatChunk{Content: c.Content, Thinking: c.Thinking, Done: c.Done}
	if len(c.Calls) > 0 {
		var err error
		if p.ToolCalls, err = json.Marshal(c.Calls); err != nil {
			return p, fmt.Errorf("encoding calls: %w", err)
		}
	}
	if c.Done {
		p.Model, p.Reason, p.Remote = c.Final.Model, c.Final.Reason, c.Final.RemoteHost
		p.Usage = subjects.Usage{PromptTokens: c.Final.PromptTokens, CompletionTokens: c.Final.OutputTokens, Millis: c.Final.Total.Milliseconds()}
	}
	return p, nil
}

// DecodeChunk reads it back.
func DecodeChunk(p subjects.ChatChunk) (model.Chunk, error) {
	c := model.Chunk{Content: p.Content, Thinking: p.Thinking, Done: p.Done}
	if len(p.ToolCalls) > 0 {
		if err := decodeStrict(p.ToolCalls, &c.Calls); err != nil {
			return c, fmt.Errorf("%w: calls from the model actor", model.ErrMalformed)
		}
	}
	if p.Done {
		c.Final = model.Final{
			Model: p.Model, Reason: p.Reason, RemoteHost: p.Remote, PromptTokens: p.Usage.PromptTokens,
			OutputTokens: p.Usage.CompletionTokens, Total: time.Duration(p.Usage.Millis) * time.Millisecond,
		}
	}
	return c, nil
}

// errorCodes pairs what can go wrong with a model with its code on the bus.
var errorCodes = []struct {
	err  error
	code string
}{
	{model.ErrUnreachable, subjects.CodeModelUnreachable},
	{model.ErrMissing, subjects.CodeModelMissing},
	{model.ErrNoTools, subjects.CodeModelNoTools},
	{model.ErrNoThinking, subjects.CodeModelNoThinking},
	{model.ErrTooLong, subjects.CodeModelTooLong},
	{model.ErrBusy, subjects.CodeBusy},
	{model.ErrMalformed, subjects.CodeModelMalformed},
	{model.ErrCut, subjects.CodeModelCut},
	{model.ErrRemote, subjects.CodeModelRemote},
	{model.ErrUnsupported, subjects.CodeUnsupported},
	{model.ErrUnauthorized, subjects.CodeModelKey},
}

// EncodeError is an error of a model as it travels on the bus, nil when it is none of a model's. Texts of backends are written
// for people and hold no secret.
func EncodeError(err error) *subjects.Fault {
	for _, c := range errorCodes {
		if errors.Is(err, c.err) {
			return subjects.Faultf(c.code, "%v", err)
		}
	}
	return nil
}

// DecodeError is a fault from the bus as the error of a model that it was. Other errors stay what they are, except that nobody
// there to answer is a model that cannot be reached.
func DecodeError(err error) error {
	var f *subjects.Fault
	if !errors.As(err, &f) || f == nil {
		return err
	}
	for _, c := range errorCodes {
		if f.Code == c.code {
			return modelError{f, c.err}
		}
	}
	if f.Code == subjects.CodeUnavailable && !actor.IsReplyFault(err) {
		return modelError{&subjects.Fault{Code: subjects.CodeModelUnreachable, Text: "the model actor is not there; is it running? see conclave top"}, model.ErrUnreachable}
	}
	return err
}

// modelError is both: what the bus said, and which error of a model it is.
type modelError struct {
	fault    *subjects.Fault
	sentinel error
}

func (e modelError) Error() string { return e.fault.Text }

func (e modelError) Unwrap() []error { return []error{e.sentinel, e.fault} }

// decodeStrict reads JSON that one of us wrote: no unknown fields, nothing after it.
func decodeStrict(raw json.RawMessage, to any) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(to); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows")
	}
	return nil
}
