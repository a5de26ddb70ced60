// Package client is the Go client of the bus: ask and follow a question, watch and read events, sessions, memory,
// approvals, feedback, models, policy and status. It has no terminal code and no flags; the command line, the gateway
// and the story harness build on it.
//
// A client acts with the account of its connection, and the server enforces what that account may do. Errors of an
// actor are a [*subjects.Fault]; [actor.IsReplyFault] tells a fault in a reply from one of the transport.
package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// Accounts whose events decide what became of an answer.
const (
	accountBroker = "broker"
	accountCritic = "critic"
	accountReward = "reward"
)

// Timeouts of single requests. A shorter deadline of the caller's context holds.
const (
	readTimeout   = 30 * time.Second // stored sessions
	brokerTimeout = 30 * time.Second
	memoryTimeout = time.Minute
	writeTimeout  = 110 * time.Second // below the two minutes after which the server no longer routes a reply
)

// IDPrefix is the shortest prefix that stands for an id: of a session, a query, an approval, a memory or an audit
// record. A shorter one would be a guess.
const IDPrefix = 6

// ErrNotFound means that no session, query, approval or memory has the id.
var ErrNotFound = errors.New("not found")

// ErrUnreadable means that a stored value is there and cannot be decoded.
var ErrUnreadable = errors.New("stored value cannot be decoded")

// AmbiguousError means that a prefix fits several ids.
type AmbiguousError struct {
	Prefix string
	Count  int
}

func (e *AmbiguousError) Error() string {
	return fmt.Sprintf("%d ids begin with %s", e.Count, e.Prefix)
}

// Client is a client of the bus. It is safe for concurrent use.
type Client struct {
	nc  *nats.Conn // nil for a client made by [Wrap]
	out actor.Out

	sessions sessionIndex
}

// New returns a client on a connection, which stays the caller's to close.
func New(nc *nats.Conn) (*Client, error) {
	out, err := actor.NewOut(nc)
	if err != nil {
		return nil, err
	}
	return &Client{nc: nc, out: out}, nil
}

// Wrap returns a client for an actor, which has an Out and no connection. [Client.Ask], [Client.Watch], [Client.Rate],
// [Client.WatchApprovals] and discovery need a connection and fail; everything else works.
func Wrap(out actor.Out) *Client { return &Client{out: out} }

// Out is how the client publishes and requests.
func (c *Client) Out() actor.Out { return c.out }

// ServerURL is the address of the server without credentials, "" without a connection.
func (c *Client) ServerURL() string {
	if c.nc == nil {
		return ""
	}
	return c.nc.ConnectedUrlRedacted()
}

var errNoConnection = errors.New("this client has no connection to subscribe on")

// subscribe delivers the messages of all subjects to one channel, in the order of arrival, and returns when the server
// has the subscriptions: nothing published afterwards is missed. A full channel loses messages. It fails without a
// connection and when the server denies a subject; then nothing stays subscribed. Otherwise unsubscribe must be called.
func (c *Client) subscribe(ctx context.Context, to chan *nats.Msg, subjects ...string) (unsubscribe func(), err error) {
	if c.nc == nil {
		return nil, errNoConnection
	}
	var subs []*nats.Subscription
	unsubscribe = func() {
		for _, s := range subs {
			_ = s.Unsubscribe() // fails only on a closed connection
		}
	}
	for _, subject := range subjects {
		sub, err := c.nc.ChanSubscribe(subject, to)
		if err != nil {
			unsubscribe()
			return nil, fmt.Errorf("subscribing: %w", explainLink(err))
		}
		subs = append(subs, sub)
	}
	if err := c.flush(ctx, subjects...); err != nil {
		unsubscribe()
		return nil, fmt.Errorf("subscribing: %w", explainLink(err))
	}
	return unsubscribe, nil
}

// IsLinkDown reports whether err means that the server is not reached.
func IsLinkDown(err error) bool {
	return slices.ContainsFunc([]error{
		context.DeadlineExceeded, nats.ErrTimeout, nats.ErrConnectionClosed, nats.ErrConnectionReconnecting,
		nats.ErrConnectionDraining, nats.ErrDisconnected,
	}, func(down error) bool { return errors.Is(err, down) })
}

// explainLink returns the fault of a server that is not reached, and any other err as it is.
func explainLink(err error) error {
	if IsLinkDown(err) {
		return subjects.Faultf(subjects.CodeUnavailable, "the connection to the server is down")
	}
	return err
}

// flush returns when the server has handled the new subscriptions to these subjects, at most ten seconds. It fails when
// the server denies one of them; a violation of something else on this connection, which it remembers, is not returned.
func (c *Client) flush(ctx context.Context, subscribed ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := c.nc.FlushWithContext(ctx); err != nil {
		return fmt.Errorf("flushing: %w", err)
	}
	err := c.nc.LastError()
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return nil
	}
	for _, subject := range subscribed {
		if strings.Contains(err.Error(), `Subscription to "`+subject+`"`) {
			return err
		}
	}
	return nil
}

// Publishing until stored: time for all attempts, for one, and the pause between two. A cut link is back after a
// quarter of a second.
const (
	storeTimeout   = 15 * time.Second
	attemptTimeout = 3 * time.Second
	retryPause     = 300 * time.Millisecond
)

// publishStored calls publish until it succeeds, at most [storeTimeout], and returns the last error. Every attempt has
// the same message id, so that a lost acknowledgement does not store it twice. The end of ctx does not interrupt an
// attempt, only further ones: whether the message is stored must be known. A fault and an error of the stream itself
// are not retried.
func (c *Client) publishStored(ctx context.Context, publish func(ctx context.Context, id string) error) error {
	id := c.out.NewID()
	work := context.WithoutCancel(ctx)
	for deadline := time.Now().Add(storeTimeout); ; {
		attempt, cancel := context.WithTimeout(work, attemptTimeout)
		err := publish(attempt, id)
		cancel()
		var fault *subjects.Fault
		var rejected *jetstream.APIError
		if err == nil || errors.As(err, &fault) || errors.As(err, &rejected) || errors.Is(err, actor.ErrChanged) ||
			time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(retryPause):
		}
	}
}

// request is [actor.Ask] with a timeout.
func request[Q, A any](ctx context.Context, c *Client, timeout time.Duration, s subjects.Service[Q, A],
	body Q,
) (A, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return actor.Ask(ctx, c.out, s, body)
}

// findID returns the one of ids that equals id or begins with it, if id has at least [IDPrefix] characters. None is
// [ErrNotFound], several are an [*AmbiguousError].
func findID(thing, id string, ids []string) (string, error) {
	if slices.Contains(ids, id) {
		return id, nil
	}
	ids = slices.DeleteFunc(ids, func(s string) bool { return len(id) < IDPrefix || !strings.HasPrefix(s, id) })
	switch len(ids) {
	case 0:
		return "", fmt.Errorf("%s %s: %w", thing, id, ErrNotFound)
	case 1:
		return ids[0], nil
	}
	return "", &AmbiguousError{id, len(ids)}
}

// MatchID returns the one of ids that equals typed or begins with it; a prefix may have any length. Several are an
// [*AmbiguousError]. When none fits, a typed text as long as an id is returned as it is, because a list may be cut off;
// a shorter one is [ErrNotFound].
func MatchID(typed string, ids []string) (string, error) {
	var found []string
	for _, id := range ids {
		if id == typed {
			return id, nil
		}
		if strings.HasPrefix(id, typed) {
			found = append(found, id)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return "", &AmbiguousError{typed, len(found)}
	case len(typed) < len(actor.NewID()):
		return "", ErrNotFound
	}
	return typed, nil
}
