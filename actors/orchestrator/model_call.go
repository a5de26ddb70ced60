package orchestrator

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/pkg/model/wire"
)

// jsonRequest is a model call whose reply is JSON under a schema; a nil schema is plain text.
type jsonRequest struct {
	role     string
	hint     string
	messages []model.Message
	schema   json.RawMessage
	predict  int // output tokens; 0 = as configured
}

// askJSON makes one model call without thinking and returns its text. It retries when the server is busy, the reply was
// cut off, or the model actor is not running. It fails with errNoTokens when the session's token budget is used up.
func (t *task) askJSON(ctx context.Context, r jsonRequest) (string, error) {
	cfg := t.o.cfg
	left := t.tokensLeft()
	if left == 0 {
		return "", errNoTokens
	}
	role := t.o.models.Role(ctx, t.Out, r.role)
	q := model.Request{Messages: r.messages, Format: r.schema, Options: model.Options{
		Window:  role.Window,
		Predict: cmp.Or(r.predict, cfg.Predict), Temperature: new(float64),
	}}
	if left > 0 {
		q.Options.Predict = min(q.Options.Predict, left)
	}
	if role.Thinking {
		q.Think = new(bool)
	}
	chat := wire.Client{Out: t.Out, Role: r.role, Hint: r.hint, Timeout: cfg.FirstToken + cfg.CallTimeout}
	for backoff := 250 * time.Millisecond; ; backoff *= 2 {
		reply, err := t.readReply(ctx, chat, q)
		last := 2 * time.Second
		if errors.Is(err, model.ErrAway) { // the model actor restarts
			last = 8 * time.Second
		}
		if err == nil || backoff > last || !errors.Is(err, model.ErrBusy) && !errors.Is(err, model.ErrCut) &&
			!errors.Is(err, model.ErrUnreachable) || !loop.Sleep(ctx, backoff) {
			return reply, err
		}
	}
}

// readReply reads a whole reply and adds its tokens to the task's sum.
func (t *task) readReply(ctx context.Context, chat model.Chat, q model.Request) (string, error) {
	var b strings.Builder
	for c, err := range chat.Chat(ctx, q) {
		if err != nil {
			return "", err
		}
		if b.Len() < maxReply {
			b.WriteString(c.Content)
		}
		if c.Done {
			u := loop.Usage{Calls: 1, Prompt: c.Final.PromptTokens, Output: c.Final.OutputTokens}
			if u.Prompt == 0 {
				u.Prompt = loop.Estimate("", nil, q.Messages)
			}
			if u.Output == 0 {
				u.Output = loop.Estimate(b.String(), nil, nil)
			}
			t.addUsage(u)
		}
	}
	return strings.TrimSpace(b.String()), nil
}

// isModelError reports whether an error is one of a model server.
func isModelError(err error) bool {
	return errors.As(err, new(*loop.TimeoutError)) || model.IsAny(err, model.ErrUnreachable, model.ErrMissing,
		model.ErrTooLong, model.ErrBusy, model.ErrMalformed, model.ErrCut, model.ErrRemote, model.ErrUnsupported,
		model.ErrUnauthorized, model.ErrNoVision)
}
