package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// Discovery has no last reply: it ends when no further one comes within quietTime, and when none comes at all within
// firstReply.
const (
	firstReply = time.Second
	quietTime  = 200 * time.Millisecond
)

// Ping returns the running instances of an actor, of all actors for "". Empty without an error means that none answered. It
// takes [quietTime] after the last reply, or [firstReply] when there is none.
func (c *Client) Ping(ctx context.Context, actor string) ([]micro.Ping, error) {
	subject := "$SRV.PING"
	if actor != "" {
		subject += "." + actor
	}
	return gather[micro.Ping](ctx, c.nc, subject)
}

// Stats returns the figures of all actors.
func (c *Client) Stats(ctx context.Context) ([]micro.Stats, error) {
	return gather[micro.Stats](ctx, c.nc, "$SRV.STATS")
}

// decodePing decodes a reply to a ping, and reports false for anything else.
func decodePing(data []byte) (p micro.Ping, ok bool) {
	return p, json.Unmarshal(data, &p) == nil
}

// gather sends a request of the micro protocol and returns every reply that decodes, in the order of arrival; others are
// skipped. It ends when no reply has come for [quietTime], or none at all for [firstReply]; no reply is not an error. When ctx
// ends, its error comes with the replies so far. It fails without a connection.
func gather[T any](ctx context.Context, nc *nats.Conn, subject string) ([]T, error) {
	if nc == nil {
		return nil, errNoConnection
	}
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return nil, fmt.Errorf("requesting %s: %w", subject, err)
	}
	defer sub.Unsubscribe()
	if err := nc.PublishRequest(subject, inbox, nil); err != nil {
		return nil, fmt.Errorf("requesting %s: %w", subject, err)
	}
	var out []T
	for wait := firstReply; ; wait = quietTime {
		next, cancel := context.WithTimeout(ctx, wait)
		m, err := sub.NextMsgWithContext(next)
		cancel()
		switch {
		case ctx.Err() != nil:
			return out, ctx.Err()
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrNoResponders):
			return out, nil
		case err != nil:
			return out, fmt.Errorf("requesting %s: %w", subject, err)
		}
		var v T
		if len(m.Data) > 0 && json.Unmarshal(m.Data, &v) == nil {
			out = append(out, v)
		}
	}
}
