package actor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/subjects"
)

// Discovery has no last reply: it ends when no further one arrives within quietTime, and when none arrives at all
// within firstReplyTimeout. maxInstances bounds the replies under one name.
const (
	firstReplyTimeout = time.Second
	quietTime         = 200 * time.Millisecond
	maxInstances      = 64
)

// maxDirectoryRequests bounds the requests that the directory answers at once per verb; it ignores others.
const maxDirectoryRequests = 16

// Discover sends a request of the micro protocol to each actor of the table on the subject that subjectOf returns for
// it ("" leaves it out), and calls found with each reply, in the order of arrival. The table grants each name to one
// key, so a reply under another name than the requested one is skipped, as is a malformed one. It returns at once when
// no actor is running, otherwise quietTime after the last reply. No reply is not an error.
func Discover(ctx context.Context, nc *nats.Conn, subjectOf func(subjects.Discoverable) string,
	found func(name string, data []byte),
) error {
	inbox := nc.NewInbox()
	replies := make(chan *nats.Msg, 256)
	sub, err := nc.ChanSubscribe(inbox+".*", replies)
	if err != nil {
		return fmt.Errorf("subscribing to discovery replies: %w", err)
	}
	defer sub.Unsubscribe()
	waiting := map[string]bool{}
	for _, d := range subjects.Table().Discoverables() {
		subject := subjectOf(d)
		if subject == "" {
			continue
		}
		// A reply subject for each name: the replies of one actor cannot arrive as those of another.
		if err := nc.PublishRequest(subject, inbox+"."+d.Name, nil); err != nil {
			return fmt.Errorf("requesting %s: %w", subject, err)
		}
		waiting[d.Name] = true
	}
	count := map[string]int{}
	timeout := time.NewTimer(firstReplyTimeout)
	defer timeout.Stop()
	for len(waiting) > 0 || len(count) > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timeout.C:
			return nil
		case m := <-replies:
			name := strings.TrimPrefix(m.Subject, inbox+".")
			delete(waiting, name)
			var reply struct {
				Name string `json:"name"`
			}
			if len(m.Data) == 0 || json.Unmarshal(m.Data, &reply) != nil || reply.Name != name ||
				count[name] >= maxInstances {
				continue
			}
			count[name]++
			found(name, m.Data)
			timeout.Reset(quietTime)
		}
	}
	return nil
}

// DiscoverAll is [Discover] of every actor but the caller, which must be the directory: see [subjects.Directory].
func DiscoverAll(ctx context.Context, out Out, verb string, found func(data []byte)) error {
	c, ok := out.(*connOut)
	if !ok || c.account != subjects.Directory {
		return errors.New("only the directory discovers all actors")
	}
	return discoverOthers(ctx, c.nc, subjects.Directory, verb, found)
}

// discoverOthers is [Discover] by the directory of every actor but itself.
func discoverOthers(ctx context.Context, nc *nats.Conn, own, verb string, found func(data []byte)) error {
	return Discover(ctx, nc, func(d subjects.Discoverable) string {
		if d.Name == own {
			return ""
		}
		return "disco." + d.Account + "." + verb + "." + d.Name
	}, func(_ string, data []byte) { found(data) })
}

// serveDirectory answers discovery requests for all actors but this one. One instance answers each; replies are
// forwarded as they arrive, and without any the caller gets none.
func (r *running) serveDirectory(verb string) error {
	slots := make(chan struct{}, maxDirectoryRequests)
	sub, err := r.nc.QueueSubscribe("$SRV."+verb, r.actor.Name(), func(m *nats.Msg) {
		select {
		case slots <- struct{}{}:
		default:
			return
		}
		r.pulls.Go(func() {
			defer func() { <-slots }()
			err := discoverOthers(r.ctx, r.nc, r.actor.Name(), verb, func(data []byte) { _ = m.Respond(data) })
			if err != nil && !errors.Is(err, context.Canceled) {
				r.cfg.Log.Warn("discovery failed", "actor", r.actor.Name(), "err", err)
			}
		})
	})
	if err != nil {
		return fmt.Errorf("subscribing to $SRV.%s: %w", verb, err)
	}
	r.subs = append(r.subs, sub)
	return nil
}
