package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"conclave/subjects"
)

// ServerName is the name of a single server. Those of a cluster have a number after it.
const ServerName = "conclave"

// ServerConfig configures the embedded server.
type ServerConfig struct {
	Name     string // of the server; "" = conclave. It differs between the servers of a cluster
	Listen   string // host:port on loopback; port 0 = a free one
	Store    string // folder of the streams
	Sync     string // "always", or the interval of syncs to disk, e.g. "10s"
	AuditMax int64  // bytes of the audit log; when full, calls are denied until it is rotated
	EventMax int64  // bytes of the events; when full, the oldest are dropped
	Replicas int    // of each stream; 0 = one, and in a cluster as many as it has servers

	LeafListen string               // host:port of the leaf nodes on loopback; port -1 = a free one
	Principals []subjects.Principal // added at run time, see [Home.ReadPrincipals]
	// of the leaf nodes; empty = the one in the folder "tls" beside Store, see [EnsureCertificate]
	Certificate Certificate
	// Repair is for a server that amends damaged data: it listens on no port, and full buckets take more until the next
	// start.
	Repair bool
}

// withDefaults returns c with defaults for empty fields: a free port of the loopback interface, a sync every 10 s, 1
// GiB each for audit log and events, the certificate beside the store. Store has none.
func (c ServerConfig) withDefaults() ServerConfig {
	if c.Name == "" {
		c.Name = ServerName
	}
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	if c.LeafListen == "" {
		c.LeafListen = "127.0.0.1:-1"
	}
	if c.Certificate == (Certificate{}) {
		dir := filepath.Join(filepath.Dir(c.Store), "tls")
		c.Certificate = Certificate{filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	}
	if c.Sync == "" {
		c.Sync = "10s"
	}
	if c.AuditMax == 0 {
		c.AuditMax = 1 << 30
	}
	if c.EventMax == 0 {
		c.EventMax = 1 << 30
	}
	return c
}

// Vars returns the variables of nats.conf, quoted for it; public holds the public keys by role. No value is secret.
func (c ServerConfig) Vars(public map[string]string) map[string]string {
	c = c.withDefaults()
	v := map[string]string{
		"CONCLAVE_NAME":        strconv.Quote(c.Name),
		"CONCLAVE_LISTEN":      strconv.Quote(c.Listen),
		"CONCLAVE_LEAF_LISTEN": strconv.Quote(c.LeafListen),
		"CONCLAVE_STORE":       strconv.Quote(c.Store),
		"CONCLAVE_SYNC":        strconv.Quote(c.Sync),
		"CONCLAVE_TLS_CERT":    strconv.Quote(c.Certificate.Cert),
		"CONCLAVE_TLS_KEY":     strconv.Quote(c.Certificate.Key),
	}
	for role, key := range public {
		v[subjects.KeyEnvVar(role)] = strconv.Quote(key)
	}
	return v
}

// Server is the embedded NATS server. It can be restarted under its clients, which reconnect.
type Server struct {
	cfg  ServerConfig
	vars map[string]string
	log  *slog.Logger

	serverLog *serverLog   // of the NATS server, also after a restart
	pause     sync.RWMutex // held while the server is paused, see Pause
	leaf      *leafServer  // of a machine that joined a hub; nil = a hub

	applying     sync.Mutex                            // held by Apply and Restart
	reloads      int64                                 // of the configuration, by Apply
	beforeReload func(*server.Server, *server.Options) // by tests; nil = none

	mu         sync.Mutex
	ns         *server.Server
	layout     subjects.Layout          // the table with the run-time principals of the last Apply that succeeded
	tried      []subjects.Layout        // of the calls of Apply that failed since: their keys may be connected
	principals []subjects.Principal     // those of layout
	editConf   func(conf string) string // by tests; nil = none
	bootKeys   map[string]nkeys.KeyPair
	stopped    bool // by Stop: it does not start again
}

// ErrPortTaken means that another process listens on the address.
var ErrPortTaken = errors.New("address already in use")

// StartServer starts the embedded server and returns when it accepts connections. The keys of the lasting roles must
// exist; those of the provisioners are created here, exist only in memory and are wiped by [Server.Provision]. A nil
// log discards the server's log. The error wraps [ErrPortTaken] when another process listens on the address.
func StartServer(cfg ServerConfig, keys Keys, log *slog.Logger) (*Server, error) {
	cfg = cfg.withDefaults()
	lasting, bootRoles := subjects.Table().Roles()
	public, boot := map[string]string{}, map[string]nkeys.KeyPair{}
	for _, r := range lasting {
		p, err := keys.Public(r)
		if err != nil {
			return nil, fmt.Errorf("starting the server: %w", err)
		}
		public[r] = p
	}
	for _, r := range bootRoles {
		kp, err := nkeys.CreateUser()
		if err != nil {
			return nil, fmt.Errorf("starting the server: %w", err)
		}
		if public[r], err = kp.PublicKey(); err != nil {
			return nil, fmt.Errorf("starting the server: %w", err)
		}
		boot[r] = kp
	}
	if err := os.MkdirAll(cfg.Store, 0o700); err != nil {
		return nil, fmt.Errorf("making the store: %w", err)
	}
	if err := cfg.Certificate.ensure(); err != nil {
		return nil, fmt.Errorf("starting the server: %w", err)
	}
	s := &Server{cfg: cfg, vars: cfg.Vars(public), log: log, serverLog: &serverLog{log: log}, bootKeys: boot}
	var err error
	if s.layout, err = s.mergeLayout(cfg.Principals); err != nil {
		return nil, fmt.Errorf("starting the server: %w", err)
	}
	s.principals = slices.Clone(cfg.Principals)
	if err := s.startServer(); err != nil {
		return nil, err
	}
	return s, nil
}

// startServer starts a new server on the same store and address, waits up to 10 s until it is ready, and makes it
// current. The port of the first start is kept. It returns errStopped after [Server.Stop]. The earlier server must be
// shut down.
func (s *Server) startServer() error {
	s.mu.Lock()
	layout := s.layout
	s.mu.Unlock()
	opts, err := s.serverOptions(layout, layout.Conf())
	if err != nil {
		return err
	}
	// The server only logs that a port is taken; check it first to return an error.
	if opts.Port > 0 {
		l, err := net.Listen("tcp", net.JoinHostPort(opts.Host, strconv.Itoa(opts.Port)))
		if err != nil {
			if errors.Is(err, syscall.EADDRINUSE) {
				return fmt.Errorf("starting the server on %s: %w", s.cfg.Listen, ErrPortTaken)
			}
			return fmt.Errorf("starting the server on %s: %w", s.cfg.Listen, err)
		}
		l.Close()
	}
	ns, err := server.NewServer(opts)
	if err != nil {
		return fmt.Errorf("starting the server: %w", err)
	}
	ns.SetLoggerV2(s.serverLog, false, false, false)
	ns.Start()
	if !ns.ReadyForConnections(10 * time.Second) {
		ns.Shutdown()
		return fmt.Errorf("starting the server on %s: not ready after 10 s", s.cfg.Listen)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped { // Stop was called meanwhile
		ns.Shutdown()
		return errStopped
	}
	if a, ok := ns.Addr().(*net.TCPAddr); ok { // keep the port over a restart: clients reconnect to it
		s.cfg.Listen = net.JoinHostPort(opts.Host, strconv.Itoa(a.Port))
		s.vars["CONCLAVE_LISTEN"] = strconv.Quote(s.cfg.Listen)
	}
	s.ns = ns
	return nil
}

var errStopped = errors.New("embedded server stopped")

// serverOptions parses conf, a nats.conf of a layout, with the variables defined before it. It fails when a variable
// has no value. The server installs no signal handlers, and does not log without s.log.
func (s *Server) serverOptions(l subjects.Layout, conf string) (*server.Options, error) {
	if s.leaf != nil {
		return s.leaf.options(s.log)
	}
	var b strings.Builder
	for _, name := range l.EnvVars() {
		v, ok := s.vars[name]
		if !ok {
			return nil, fmt.Errorf("starting the server: no value for $%s", name)
		}
		fmt.Fprintf(&b, "%s: %s\n", name, v)
	}
	s.mu.Lock()
	if s.editConf != nil {
		conf = s.editConf(conf)
	}
	s.mu.Unlock()
	b.WriteString(conf)
	opts := &server.Options{}
	if err := opts.ProcessConfigString(b.String()); err != nil {
		return nil, fmt.Errorf("reading the generated nats.conf: %w", err)
	}
	if opts.Port == 0 {
		opts.Port = server.RANDOM_PORT
	}
	if s.cfg.Repair {
		opts.DontListen, opts.Port, opts.LeafNode.Port = true, 0, 0
	}
	opts.NoSigs = true
	opts.NoLog = s.log == nil
	return opts, nil
}

// URL returns the TCP address for clients.
func (s *Server) URL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return "nats://" + s.cfg.Listen
}

// LeafAddress returns host:port of the leaf nodes, on loopback; "" while the server is down.
func (s *Server) LeafAddress() string {
	ns := s.current()
	if ns == nil {
		return ""
	}
	if v, err := ns.Varz(nil); err == nil && v.LeafNode.Port > 0 {
		return net.JoinHostPort(v.LeafNode.Host, strconv.Itoa(v.LeafNode.Port))
	}
	return ""
}

// current returns the running server, nil while it is down.
func (s *Server) current() *server.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ns
}

// InProcessConn implements [nats.InProcessConnProvider] on the current server, so that in-process clients reconnect
// after a restart. It fails while the server is down.
func (s *Server) InProcessConn() (net.Conn, error) {
	ns := s.current()
	if ns == nil {
		return nil, errors.New("embedded server down")
	}
	conn, err := ns.InProcessConn()
	if err != nil {
		return nil, err
	}
	return pausableConn{conn, &s.pause}, nil
}

// Counters returns how many subscriptions, connections and stored messages and bytes the server has; none while it is
// down.
func (s *Server) Counters() map[string]int64 {
	ns := s.current()
	if ns == nil {
		return nil
	}
	out := map[string]int64{"connections": int64(ns.NumClients()), "subscriptions": int64(ns.NumSubscriptions())}
	if js, err := ns.Jsz(nil); err == nil {
		out["consumers"], out["stored_messages"], out["stored_bytes"] = int64(js.Consumers), int64(js.Messages),
			int64(js.Bytes)
	}
	return out
}

// StreamSize is the size of a stream.
type StreamSize struct {
	Name            string
	Messages        uint64
	Bytes, MaxBytes int64 // MaxBytes is not positive for a stream without a limit
}

// StreamSizes lists the sizes of all streams, none while the server is down.
func (s *Server) StreamSizes() (out []StreamSize) {
	s.eachStream(func(_ string, st server.StreamDetail) {
		out = append(out, StreamSize{st.Name, st.State.Msgs, int64(st.State.Bytes), st.Config.MaxBytes})
	})
	return out
}

// eachStream calls f with each stream and its account, none while the server is down.
func (s *Server) eachStream(f func(account string, st server.StreamDetail)) {
	ns := s.current()
	if ns == nil {
		return
	}
	js, err := ns.Jsz(&server.JSzOptions{Accounts: true, Streams: true, Config: true})
	if err != nil {
		return
	}
	for _, a := range js.AccountDetails {
		for _, st := range a.Streams {
			f(a.Name, st)
		}
	}
}

// Restart stops the server and starts it again on the same store and port; acknowledged messages survive. It returns
// errStopped after [Server.Stop]. After another error the server is down, and Restart may be called again. It must not
// be called concurrently.
func (s *Server) Restart() error {
	s.applying.Lock()
	defer s.applying.Unlock()
	s.mu.Lock()
	ns := s.ns
	s.ns = nil
	down := s.stopped
	s.mu.Unlock()
	if down {
		return errStopped
	}
	if ns != nil {
		ns.Shutdown()
		ns.WaitForShutdown()
	}
	return s.startServer()
}

// Stop stops the server and waits until its files are closed; its context is ignored. It cannot be started again. A
// second call does nothing.
func (s *Server) Stop(context.Context) {
	s.mu.Lock()
	ns := s.ns
	s.ns, s.stopped = nil, true
	s.mu.Unlock()
	if ns != nil {
		ns.Shutdown()
		ns.WaitForShutdown()
	}
	s.serverLog.reportSuppressed()
}

// serverLog logs the messages of the NATS server: errors and warnings at their level, the rest as debug.
type serverLog struct {
	log *slog.Logger

	writeFailed atomic.Bool // a stream could not be written: the server stores nothing in it until it is restarted

	mu      sync.Mutex
	denials map[string]*denialBudget // by account
}

func (l *serverLog) write(level slog.Level, format string, v []any) {
	if l.log != nil {
		l.log.Log(context.Background(), level, fmt.Sprintf(format, v...), "actor", "nats")
	}
}

func (l *serverLog) Noticef(format string, v ...any) { l.write(slog.LevelDebug, format, v) }
func (l *serverLog) Warnf(format string, v ...any)   { l.write(slog.LevelWarn, format, v) }
func (l *serverLog) Fatalf(format string, v ...any)  { l.write(slog.LevelError, format, v) }

// violation matches the error of a denied subject, and captures account, operation and subject.
var violation = regexp.MustCompile(
	`"([\w-]+)/nkey:\w+".* - (Publish|Subscription) Violation - (?:Subject|Reply) ("[^"]*")`)

// failedWrite matches the errors of a stream whose disk was full, however shortly.
var failedWrite = regexp.MustCompile(`(?i)critical write error|failed to store a msg on stream .*no space left`)

// keyRejection matches the errors of both sides about a leaf node whose key the hub does not accept.
var keyRejection = regexp.MustCompile(`lid:\d+ - (authentication error|Leafnode Error 'Authorization Violation')`)

// leafNodes has the budget of the lines about rejected keys of leaf nodes.
const leafNodes = "leaf nodes"

// Errorf logs an error. A denied subject is one short line, at most maxDenialLines a minute and account: any client can
// cause as many as it likes, and gets the error itself. The others are debug messages, and their number is one line at
// the end of the minute.
func (l *serverLog) Errorf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	m := violation.FindStringSubmatch(text)
	switch {
	case m != nil:
		l.write(l.denialLevel(m[1]), "denied: %s may not %s %s",
			[]any{m[1], map[string]string{"Publish": "publish", "Subscription": "subscribe to"}[m[2]], m[3]})
	case keyRejection.MatchString(text): // a revoked machine repeats it every second
		l.write(l.denialLevel(leafNodes), "%s", []any{text})
	default:
		if failedWrite.MatchString(text) {
			l.writeFailed.Store(true)
		}
		l.write(slog.LevelError, format, v)
	}
}

// denialLevel is the level of a line about a denial: a warning while the budget of account permits one.
func (l *serverLog) denialLevel(account string) slog.Level {
	if l.admitDenial(account) {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

const (
	maxDenialLines    = 5   // lines about denied subjects per minute and account
	maxDenialAccounts = 100 // accounts with a budget of their own; further ones share one
	otherAccounts     = "other accounts"
)

// denialBudget is the budget of an account for lines about denied subjects. It lasts a minute from the first denial.
type denialBudget struct {
	lines      int
	suppressed int
	end        *time.Timer
}

// admitDenial reports whether the budget of account permits another line, and counts the denial.
func (l *serverLog) admitDenial(account string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.denials[account] == nil && len(l.denials) >= maxDenialAccounts {
		account = otherAccounts
	}
	b := l.denials[account]
	if b == nil {
		if l.denials == nil {
			l.denials = map[string]*denialBudget{}
		}
		b = &denialBudget{}
		b.end = time.AfterFunc(time.Minute, func() { l.endBudget(account, b) })
		l.denials[account] = b
	}
	if b.lines < maxDenialLines {
		b.lines++
		return true
	}
	b.suppressed++
	return false
}

// endBudget removes the budget b of account and logs the number of denials that it suppressed, unless b has ended
// already.
func (l *serverLog) endBudget(account string, b *denialBudget) {
	l.mu.Lock()
	current := l.denials[account] == b
	if current {
		delete(l.denials, account)
	}
	suppressed := b.suppressed
	l.mu.Unlock()
	if current && suppressed > 0 {
		l.write(slog.LevelWarn, "denied: %d more of %s within a minute, logged at debug level only",
			[]any{suppressed, account})
	}
}

// reportSuppressed ends the budgets of all accounts, for a server that stops before the end of the minute.
func (l *serverLog) reportSuppressed() {
	l.mu.Lock()
	budgets := maps.Clone(l.denials)
	l.mu.Unlock()
	for _, account := range slices.Sorted(maps.Keys(budgets)) {
		budgets[account].end.Stop()
		l.endBudget(account, budgets[account])
	}
}

func (l *serverLog) Debugf(format string, v ...any) { l.write(slog.LevelDebug, format, v) }
func (l *serverLog) Tracef(format string, v ...any) { l.write(slog.LevelDebug, format, v) }
