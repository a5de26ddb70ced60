package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Discovery is answered by whoever is there, and nobody says when that was all: it ends when all has been quiet.
const (
	firstWait = time.Second
	quietTime = 200 * time.Millisecond
)

// gather asks by the micro protocol and returns every answer.
func gather[T any](ctx context.Context, nc *nats.Conn, subject string) ([]T, error) {
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return nil, fmt.Errorf("asking %s: %w", subject, err)
	}
	defer sub.Unsubscribe()
	if err := nc.PublishRequest(subject, inbox, nil); err != nil {
		return nil, fmt.Errorf("asking %s: %w", subject, err)
	}
	var out []T
	for wait := firstWait; ; wait = quietTime {
		next, cancel := context.WithTimeout(ctx, wait)
		m, err := sub.NextMsgWithContext(next)
		cancel()
		switch {
		case ctx.Err() != nil:
			return out, ctx.Err()
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrNoResponders):
			return out, nil
		case err != nil:
			return out, fmt.Errorf("asking %s: %w", subject, err)
		}
		var v T
		if len(m.Data) > 0 && json.Unmarshal(m.Data, &v) == nil {
			out = append(out, v)
		}
	}
}

// streamInfo is what a stream says of itself.
type streamInfo struct {
	Config struct {
		MaxBytes int64 `json:"max_bytes"`
	} `json:"config"`
	State struct {
		Messages uint64 `json:"messages"`
		Bytes    int64  `json:"bytes"`
		First    uint64 `json:"first_seq"`
		Last     uint64 `json:"last_seq"`
	} `json:"state"`
	Error *jetstream.APIError `json:"error"`
}

// api asks a place's JetStream.
func api(ctx context.Context, nc *nats.Conn, subject string, body, into any) error {
	var data []byte
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	m, err := nc.RequestWithContext(ctx, subject, data)
	if err != nil {
		return fmt.Errorf("asking %s: %w", subject, err)
	}
	return json.Unmarshal(m.Data, into)
}

// stream asks for one stream's state.
func stream(ctx context.Context, nc *nats.Conn, prefix, name string) (streamInfo, error) {
	var info streamInfo
	if err := api(ctx, nc, prefix+".STREAM.INFO."+name, nil, &info); err != nil {
		return info, err
	}
	if info.Error != nil {
		return info, fmt.Errorf("looking at stream %s: %w", name, info.Error)
	}
	return info, nil
}
