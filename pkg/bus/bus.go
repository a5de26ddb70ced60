// Package bus runs or reaches the NATS server: it makes the keys, feeds the generated nats.conf to the embedded server,
// creates the streams and connects one role at a time. It is the only importer of nats-server.
package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"conclave/subjects"
)

// Prefixes under which an account without JetStream of its own reaches the API of a place.
const (
	CoreAPI  = "core.API"
	AuditAPI = "auditlog.API"
)

var (
	// ErrUnreachable means that no server answers at the address.
	ErrUnreachable = errors.New("no NATS server answers")
	// ErrKeyRejected means that the server does not know the key, or knows it for another account.
	ErrKeyRejected = errors.New("the server refuses the key")
)

// ConnError is something that went wrong on a connection without anyone asking: a denied subject, a slow consumer.
type ConnError struct {
	Role string
	Err  error
}

// IsDenied reports whether the server refused a subject.
func (t ConnError) IsDenied() bool { return errors.Is(t.Err, nats.ErrPermissionViolation) }

// Bus reaches one server, embedded or not, and connects roles to it. Each connection has exactly one role's key.
type Bus struct {
	URL    string  // where the server listens
	Keys   Keys    // seeds by role
	Server *Server // nil when the server is another process
	TCP    bool    // connect over TCP even when the server is embedded
	Log    *slog.Logger
	// OnConnError hears of everything the error handlers hear. Nil logs it.
	OnConnError func(ConnError)
}

// Dial connects a role. The error names the role and says what to do about it.
func (b *Bus) Dial(role string, more ...nats.Option) (*nats.Conn, error) {
	seed, err := b.Keys.Seed(role)
	if err != nil {
		return nil, fmt.Errorf("connecting %s: %w", role, err)
	}
	return b.connectRole(role, seed, more...)
}

func (b *Bus) connectRole(role string, seed nkeys.KeyPair, more ...nats.Option) (*nats.Conn, error) {
	pub, err := seed.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("connecting %s: %w", role, err)
	}
	opts := []nats.Option{
		nats.Name(role),
		nats.Nkey(pub, seed.Sign),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(50*time.Millisecond, 50*time.Millisecond),
		nats.Timeout(5 * time.Second),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.ReconnectBufSize(-1), // a publish while the link is down fails at once instead of pretending
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { b.reportConnError(role, err) }),
	}
	if p := inboxPrefix(role); p != "" {
		opts = append(opts, nats.CustomInboxPrefix(p))
	}
	if b.Server != nil && !b.TCP {
		opts = append(opts, nats.InProcessServer(b.Server))
	}
	nc, err := nats.Connect(b.URL, append(opts, more...)...)
	switch {
	case err == nil:
		return nc, nil
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), strings.Contains(err.Error(), "closed pipe"):
		return nil, fmt.Errorf("connecting %s: %w: its key file and the server's configuration do not belong together (%w)", role, ErrKeyRejected, err)
	default:
		return nil, fmt.Errorf("connecting %s to %s: %w (%w)", role, b.URL, ErrUnreachable, err)
	}
}

func (b *Bus) reportConnError(role string, err error) {
	if b.OnConnError != nil {
		b.OnConnError(ConnError{role, err})
		return
	}
	if b.Log != nil {
		b.Log.Warn("bus", "role", role, "err", err)
	}
}

// inboxPrefix is the inbox of a role that shares its account: "_INBOX.<role>", so that no neighbour can listen in.
func inboxPrefix(role string) string {
	for _, a := range subjects.Table().Accounts {
		for _, u := range a.Users {
			if u.Role == role && u.Isolated && slices.Contains(u.Sub, "_INBOX."+role+".>") {
				return "_INBOX." + role
			}
		}
	}
	return ""
}

// ConfirmSubscriptions flushes what was subscribed and reports what the server refused: only then is a listener there and permitted.
func ConfirmSubscriptions(ctx context.Context, nc *nats.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := nc.FlushWithContext(ctx); err != nil {
		return fmt.Errorf("flushing: %w", err)
	}
	if err := nc.LastError(); errors.Is(err, nats.ErrPermissionViolation) {
		return err
	}
	return nil
}

// CoreJetStream is JetStream as an account without streams of its own reaches it.
func CoreJetStream(nc *nats.Conn) (jetstream.JetStream, error) {
	return jetstream.NewWithAPIPrefix(nc, CoreAPI)
}

// DrainConn drains the connection and waits until it is closed. Drain alone returns at once with messages unhandled.
func DrainConn(ctx context.Context, nc *nats.Conn) error {
	closed := nc.StatusChanged(nats.CLOSED)
	if err := nc.Drain(); err != nil {
		nc.Close()
		if errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrConnectionReconnecting) {
			return nil
		}
		return fmt.Errorf("draining: %w", err)
	}
	select {
	case <-closed:
		return nil
	case <-ctx.Done():
		nc.Close()
		return ctx.Err()
	}
}
