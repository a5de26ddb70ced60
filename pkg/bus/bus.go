// Package bus embeds or connects to the NATS server: it creates the keys, starts the embedded server with the generated
// nats.conf, creates the streams and connects roles. It is the only importer of nats-server.
package bus

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// API prefixes under which an account without its own JetStream reaches that of CORE and of AUDIT.
const (
	CoreAPI  = "core.API"
	AuditAPI = "auditlog.API"
)

var (
	// ErrUnreachable means that no NATS server answers at the address.
	ErrUnreachable = errors.New("no NATS server answers")
	// ErrKeyRejected means that the server does not know the key.
	ErrKeyRejected = errors.New("key rejected by the server")
	// ErrTooManyConns means that the role's account, or the server, has as many connections as it may have.
	ErrTooManyConns = errors.New("too many connections")
)

// ConnError is an asynchronous error of a connection: a denied subject, a slow consumer.
type ConnError struct {
	Role string
	Err  error
}

// IsDenied reports whether the server denied a subject.
func (t ConnError) IsDenied() bool { return errors.Is(t.Err, nats.ErrPermissionViolation) }

// Bus connects roles to one server, embedded or in another process, or to a cluster. Each connection has the key of
// exactly one role.
type Bus struct {
	URL string // where the server listens; several of a cluster with commas between them
	// file of the authority that servers at tls:// URLs must have; "" or a missing file = those of this machine
	CA     string
	Keys   Keys    // seeds by role
	Server *Server // nil when the server is another process
	TCP    bool    // connect over TCP even when the server is embedded
	Log    *slog.Logger
	// OnConnError receives the asynchronous errors of all connections; nil logs them.
	OnConnError func(ConnError)
}

// Dial connects a role with the key from its file. The error names the role.
func (b *Bus) Dial(role string, more ...nats.Option) (*nats.Conn, error) {
	seed, err := b.Keys.Seed(role)
	if err != nil {
		return nil, fmt.Errorf("connecting %s: %w", role, err)
	}
	return b.connectRole(role, seed, more...)
}

// connectRole connects a role with the given key, in process when b has a server and TCP is not set. The error wraps
// [ErrKeyRejected], [ErrTooManyConns] or [ErrUnreachable]; the first attempt is not repeated. Once connected it
// reconnects forever, and a publish while disconnected fails at once. more overrides the options. The caller must not
// wipe seed while connected.
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
		nats.Timeout(10 * time.Second), // a model may use the whole processor
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.ReconnectBufSize(-1), // a publish while disconnected fails at once instead of being buffered
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { b.reportConnError(role, err) }),
	}
	url := b.URL
	if b.Server != nil && !b.TCP {
		url, opts = strings.ReplaceAll(url, "tls://", "nats://"), append(opts, nats.InProcessServer(b.Server))
	} else if _, err := os.Stat(b.CA); err == nil && strings.Contains(url, "tls://") {
		opts = append(opts, nats.RootCAs(b.CA))
	}
	nc, err := nats.Connect(url, append(opts, more...)...)
	switch {
	case err == nil:
		return nc, nil
	case strings.Contains(err.Error(), "closed pipe"): // in process the server may close before its reason is read
		return nil, fmt.Errorf("connecting %s: %w: its key file does not match the configuration of the server, or "+
			"its account has as many connections as it may have (%w)",
			role, ErrKeyRejected, err)
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired):
		return nil, fmt.Errorf("connecting %s: %w: its key file does not match the configuration of the server (%w)",
			role, ErrKeyRejected, err)
	case errors.Is(err, nats.ErrMaxAccountConnectionsExceeded), errors.Is(err, nats.ErrMaxConnectionsExceeded):
		return nil, fmt.Errorf("connecting %s: %w: close other clients of it, or restart conclave (%w)", role,
			ErrTooManyConns, err)
	default:
		return nil, fmt.Errorf("connecting %s to %s: %w (%w)", role, b.URL, ErrUnreachable, err)
	}
}

// reportConnError passes an asynchronous error of a connection, such as a denied subject, to OnConnError, or logs it
// without one.
func (b *Bus) reportConnError(role string, err error) {
	if b.OnConnError != nil {
		b.OnConnError(ConnError{role, err})
		return
	}
	if b.Log != nil {
		b.Log.Warn("bus", "role", role, "err", err)
	}
}
