// Package wire reaches the model actor over the bus: [Client] is the client side, and the Encode and Decode functions
// convert requests, chunks and errors for both sides. No other package knows the encoding.
package wire

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/model"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// Client sends requests to the model actor in a role. It implements [model.Chat] and [model.Embedder].
type Client struct {
	Out     actor.Out
	Role    string        // assistant, critic, ...; the actor selects the model for it
	Hint    string        // simple, reasoning, code; "" = none
	Timeout time.Duration // of one call, unless the context has an earlier deadline; 0 = 2 minutes
	// Background is that of [subjects.ChatRequest].
	Background bool

	Task string // of embeddings: query or document; "" = none
	// OnDone, if set, is called with the last chunk of a complete reply, which names the model that replied: possibly
	// the built-in demo model, or another one than requested.
	OnDone func(subjects.ChatChunk)
}

const defaultTimeout = 2 * time.Minute

// Chat implements [model.Chat]. Faults of the model actor are sentinel errors of package model: see [DecodeError]. A
// stream that ends without its last chunk is [model.ErrCut]. One call takes at most c.Timeout.
func (c Client) Chat(ctx context.Context, r model.Request) iter.Seq2[model.Chunk, error] {
	return func(yield func(model.Chunk, error) bool) {
		ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.Timeout, defaultTimeout))
		defer cancel()
		q, err := EncodeRequest(r)
		if err != nil {
			yield(model.Chunk{}, err)
			return
		}
		q.Role, q.Hint, q.Background = c.Role, c.Hint, c.Background
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
			yield(model.Chunk{}, fmt.Errorf("%w: the model actor ended the stream without the last chunk",
				model.ErrCut))
		}
	}
}

// Embed implements [model.Embedder]. It sends the texts in batches, all within one timeout. It fails with
// [model.ErrMalformed] when a batch does not have one vector per text, and when the batches were embedded by different
// models, because their vectors are not comparable. Texts that the model rejects are in Failed. PromptTokens is always
// 0.
func (c Client) Embed(ctx context.Context, name string, texts []string) (model.Vectors, error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.Timeout, defaultTimeout))
	defer cancel()
	v := model.Vectors{Model: name, Values: make([][]float32, 0, len(texts))}
	for first := 0; first < len(texts); {
		batch := texts[first : first+CountBatchTexts(texts[first:])]
		a, err := actor.Ask(ctx, c.Out, subjects.ModelEmbed, subjects.EmbedRequest{
			Model: name, Texts: batch,
			Task: c.Task,
		})
		switch {
		case err != nil:
			return model.Vectors{}, DecodeError(err)
		case len(a.Vectors) != len(batch):
			return model.Vectors{}, fmt.Errorf("%w: %d vectors for %d texts", model.ErrMalformed, len(a.Vectors),
				len(batch))
		case first > 0 && a.Model != v.Model:
			return model.Vectors{}, fmt.Errorf("%w: the vectors of %s and %s are not comparable", model.ErrMalformed,
				v.Model, a.Model)
		}
		v.Model, v.Values = a.Model, append(v.Values, a.Vectors...)
		for _, f := range a.Failed {
			if v.Failed == nil {
				v.Failed = map[int]error{}
			}
			v.Failed[first+f.Index] = errors.New(f.Reason)
		}
		first += len(batch)
	}
	return v, nil
}

// Limits of one embedding request. The reply must fit a message: 32 vectors of 4096 numbers do.
const (
	maxBatchTexts = 32
	maxBatchBytes = 512 << 10
)

// CountBatchTexts returns how many of the texts fit one request: at most maxBatchTexts and maxBatchBytes, but at least
// one, however long. texts must not be empty.
func CountBatchTexts(texts []string) int {
	n, size := 0, 0
	for _, t := range texts {
		if size += len(t); n == maxBatchTexts || n > 0 && size > maxBatchBytes {
			break
		}
		n++
	}
	return n
}

// EncodeRequest returns the message for r. The caller must set Role and Hint. It fails when the arguments of a call or
// the parameters of a tool are not JSON.
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

// DecodeRequest is the inverse of [EncodeRequest]. It rejects unknown fields, trailing data, a format that is not JSON
// and a request without messages with a fault of code [subjects.CodeMalformed].
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
		if err := strict.DecodeValue(part.raw, part.to); err != nil {
			return r, subjects.Faultf(subjects.CodeMalformed, "invalid %s", part.name)
		}
	}
	if len(q.Format) > 0 && !json.Valid(q.Format) { // it is inserted into other JSON unchanged
		return r, subjects.Faultf(subjects.CodeMalformed, "invalid format")
	}
	if len(r.Messages) == 0 {
		return r, subjects.Faultf(subjects.CodeMalformed, "no messages")
	}
	return r, nil
}

// EncodeChunk returns the message for c. It fails when the arguments of a call are not JSON. Final is encoded only when
// c is Done, and without Load.
func EncodeChunk(c model.Chunk) (subjects.ChatChunk, error) {
	p := subjects.ChatChunk{Content: c.Content, Thinking: c.Thinking, Done: c.Done, Notice: c.Notice}
	if c.Reading != nil {
		p.Reading = EncodeReading(*c.Reading)
	}
	if len(c.Calls) > 0 {
		var err error
		if p.ToolCalls, err = json.Marshal(c.Calls); err != nil {
			return p, fmt.Errorf("encoding calls: %w", err)
		}
	}
	if c.Done {
		p.Model, p.Reason, p.Remote = c.Final.Model, c.Final.Reason, c.Final.RemoteHost
		p.Usage = subjects.Usage{
			PromptTokens: c.Final.PromptTokens, CompletionTokens: c.Final.OutputTokens,
			Millis: c.Final.Total.Milliseconds(),
		}
	}
	return p, nil
}

// EncodeReading returns the message for r.
func EncodeReading(r model.Reading) *subjects.PromptReading {
	return &subjects.PromptReading{Tokens: r.Tokens, Millis: r.Expected.Milliseconds(), Whole: r.Whole}
}

// DecodeChunk is the inverse of [EncodeChunk]. Tool calls that cannot be decoded are [model.ErrMalformed].
func DecodeChunk(p subjects.ChatChunk) (model.Chunk, error) {
	c := model.Chunk{Content: p.Content, Thinking: p.Thinking, Done: p.Done}
	c.Final.Model, c.Final.RemoteHost = p.Model, p.Remote
	if p.Reading != nil {
		c.Reading = &model.Reading{
			Tokens:   p.Reading.Tokens,
			Expected: time.Duration(p.Reading.Millis) * time.Millisecond, Whole: p.Reading.Whole,
		}
	}
	if !p.Done { // that of the last chunk is for OnDone
		c.Notice = p.Notice
	}
	if len(p.ToolCalls) > 0 {
		if err := strict.DecodeValue(p.ToolCalls, &c.Calls); err != nil {
			return c, fmt.Errorf("%w: invalid tool calls from the model actor", model.ErrMalformed)
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

// errorCodes pairs the sentinel errors of package model with their codes on the bus.
var errorCodes = []struct {
	err  error
	code string
}{
	{model.ErrUnreachable, subjects.CodeModelUnreachable},
	{model.ErrMissing, subjects.CodeModelMissing},
	{model.ErrNoTools, subjects.CodeModelNoTools},
	{model.ErrNoThinking, subjects.CodeModelNoThinking},
	{model.ErrNoVision, subjects.CodeModelNoVision},
	{model.ErrTooLong, subjects.CodeModelTooLong},
	{model.ErrBusy, subjects.CodeBusy},
	{model.ErrMalformed, subjects.CodeModelMalformed},
	{model.ErrCut, subjects.CodeModelCut},
	{model.ErrRunner, subjects.CodeModelRunner},
	{model.ErrRemote, subjects.CodeModelRemote},
	{model.ErrUnsupported, subjects.CodeUnsupported},
	{model.ErrUnauthorized, subjects.CodeModelKey},
	{model.ErrSwap, subjects.CodeModelSwap},
}

// EncodeError returns the fault for an error that wraps a sentinel error of package model, nil for any other error. The
// text is sent unchanged: backends guarantee that their errors contain no secret.
func EncodeError(err error) *subjects.Fault {
	for _, c := range errorCodes {
		if errors.Is(err, c.err) {
			return subjects.Faultf(c.code, "%v", err)
		}
	}
	return nil
}

// DecodeError is the inverse of [EncodeError]: it returns an error that wraps both the sentinel error and the fault. A
// request that no model actor received is [model.ErrAway]. Other errors, nil included, are returned unchanged.
func DecodeError(err error) error {
	f, ok := errors.AsType[*subjects.Fault](err)
	if !ok || f == nil {
		return err
	}
	for _, c := range errorCodes {
		if f.Code == c.code {
			return modelError{f, c.err}
		}
	}
	if f.Code == subjects.CodeUnavailable && !actor.IsReplyFault(err) {
		return modelError{&subjects.Fault{Code: subjects.CodeModelUnreachable, Text: "the model actor is not " +
			"running; see conclave top"}, model.ErrAway}
	}
	return err
}

// modelError is a fault from the bus together with the sentinel error that it stands for.
type modelError struct {
	fault    *subjects.Fault
	sentinel error
}

func (e modelError) Error() string { return e.fault.Text }

func (e modelError) Unwrap() []error { return []error{e.sentinel, e.fault} }
