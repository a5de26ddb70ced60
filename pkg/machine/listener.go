package machine

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Limits of connections from the network, before the sender has proved anything. One host has at most half of the
// slots.
const (
	helloTimeout = 5 * time.Second // to receive the first TLS message, and the first line of an enrolment
	maxHello     = 32 << 10        // bytes of it
	maxWaiting   = 64              // connections without a complete first message
	maxEnrolling = 32              // enrolments at once
	maxForwarded = 512             // connections to the leaf nodes
	deadAfter    = 4 * time.Second // a peer that acknowledges nothing for this long is disconnected
)

// Listener is the only port of the hub that other machines reach. It reads the first TLS message of a connection: one
// with the protocol "conclave-join" is an enrolment, any other one is forwarded, unread, to the leaf nodes of the NATS
// server, which accept only keys of machines that joined.
type Listener struct {
	cfg ListenerConfig
	l   net.Listener

	waiting, enrolling, forwarded *slots

	mu      sync.Mutex
	closed  bool
	conns   map[net.Conn]struct{}
	remotes map[int]string // address of the machine by local port of the connection to the leaf nodes
	running sync.WaitGroup
	stop    context.CancelFunc
}

// ListenerConfig configures a listener; all fields but OnRefuse are needed.
type ListenerConfig struct {
	Certificate tls.Certificate
	LeafAddress func() string // host:port of the leaf nodes; "" = down
	Invitations *Invitations
	Registrar   Registrar
	OnRefuse    func(error) // called when a machine was not enrolled; may be nil
	Now         func() time.Time
}

// Listen listens on host:port until Close.
func Listen(address string, cfg ListenerConfig) (*Listener, error) {
	if cfg.OnRefuse == nil {
		cfg.OnRefuse = func(error) {}
	}
	tcp, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening for machines: %w: choose another address with machines.listen in system.yaml",
			err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &Listener{
		cfg: cfg, l: tcp, stop: cancel, conns: map[net.Conn]struct{}{}, remotes: map[int]string{},
		waiting: newSlots(maxWaiting, maxWaiting/2), enrolling: newSlots(maxEnrolling, maxEnrolling/2),
		forwarded: newSlots(maxForwarded, maxForwarded/2),
	}
	l.running.Go(func() { l.accept(ctx) })
	return l, nil
}

// Addr returns the address that it listens on.
func (l *Listener) Addr() string { return l.l.Addr().String() }

// Remote returns the address of the machine whose connection to the leaf nodes has this local port, "" for none.
func (l *Listener) Remote(port int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.remotes[port]
}

// Close closes the port and all connections, and returns when nothing runs any more.
func (l *Listener) Close() {
	l.stop()
	l.l.Close()
	l.mu.Lock()
	l.closed = true
	for c := range l.conns {
		c.Close()
	}
	l.mu.Unlock()
	l.running.Wait()
}

// accept serves each connection until the port is closed. A new one without a slot of waiting is closed at once.
func (l *Listener) accept(ctx context.Context) {
	for {
		conn, err := l.l.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			select { // out of file descriptors, for example
			case <-ctx.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		received, ok := l.waiting.acquire(conn)
		if !ok || !l.track(conn) {
			conn.Close()
			continue
		}
		l.running.Go(func() {
			defer l.release(conn)
			l.serve(ctx, conn, received)
		})
	}
}

// track registers a connection so that Close closes it, and reports whether the listener is open.
func (l *Listener) track(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.conns[c] = struct{}{}
	return true
}

func (l *Listener) release(c net.Conn) {
	c.Close()
	l.mu.Lock()
	delete(l.conns, c)
	l.mu.Unlock()
}

// serve reads the first message, calls received and hands the connection on.
func (l *Listener) serve(ctx context.Context, conn net.Conn, received func()) {
	_ = conn.SetDeadline(time.Now().Add(helloTimeout))
	protocols, hello, err := readClientHello(ctx, conn)
	received()
	if err != nil { // a scanner, or a client without TLS
		return
	}
	if slices.Contains(protocols, protocolName) {
		l.enrol(ctx, &replayedConn{conn, io.MultiReader(bytes.NewReader(hello), conn)})
		return
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return
	}
	l.forward(conn, hello)
}

// enrol completes the handshake and serves the enrolment. A refusal is reported without anything that the machine sent.
func (l *Listener) enrol(ctx context.Context, conn net.Conn) {
	release, ok := l.enrolling.acquire(conn)
	if !ok {
		return
	}
	defer release()
	_ = conn.SetDeadline(time.Now().Add(helloTimeout)) // serveEnrolment extends it after the first line
	secure := tls.Server(conn,
		&tls.Config{
			MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{l.cfg.Certificate},
			NextProtos: []string{protocolName},
		})
	if err := secure.HandshakeContext(ctx); err != nil {
		return
	}
	defer secure.Close()
	if err := serveEnrolment(ctx, secure, l.cfg.Invitations, l.cfg.Registrar, l.cfg.Now); err != nil {
		l.cfg.OnRefuse(fmt.Errorf("a machine at %s was not enrolled: %w", conn.RemoteAddr(), err))
	}
}

// forward copies the bytes of a leaf node in both directions until one side ends. The machine's side is disconnected
// when it acknowledges nothing for deadAfter: the NATS server would notice only after its own pings.
func (l *Listener) forward(conn net.Conn, hello []byte) {
	address := l.cfg.LeafAddress()
	release, ok := l.forwarded.acquire(conn)
	if !ok {
		return
	}
	defer release()
	if address == "" {
		return
	}
	limitSilence(conn)
	up, err := net.DialTimeout("tcp", address, helloTimeout)
	if err != nil {
		return
	}
	if !l.track(up) {
		up.Close()
		return
	}
	defer l.release(up)
	port := up.LocalAddr().(*net.TCPAddr).Port
	l.mu.Lock()
	l.remotes[port] = conn.RemoteAddr().String()
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.remotes, port)
		l.mu.Unlock()
	}()
	if _, err := up.Write(hello); err != nil {
		return
	}
	var both sync.WaitGroup
	pipe := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		to.Close()
		from.Close()
	}
	both.Go(func() { pipe(up, conn) })
	pipe(conn, up)
	both.Wait()
}

// tcpUserTimeout is the socket option of Linux for the longest time that sent data may stay unacknowledged.
const tcpUserTimeout = 0x12

// limitSilence has the kernel close a connection whose peer acknowledges nothing for deadAfter, idle or not. Without it
// a cut cable is noticed after minutes.
func limitSilence(conn net.Conn) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: deadAfter / 2, Interval: time.Second, Count: 2})
	if raw, err := tcp.SyscallConn(); err == nil && runtime.GOOS == "linux" {
		_ = raw.Control(func(fd uintptr) {
			_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(deadAfter.Milliseconds()))
		})
	}
}

var errHelloRead = errors.New("first message read")

// readClientHello reads the first TLS message, and returns the protocols that it offers and all bytes that were read.
func readClientHello(ctx context.Context, conn net.Conn) (protocols []string, read []byte, err error) {
	rec := &recordingConn{Conn: conn}
	err = tls.Server(rec, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		protocols = slices.Clone(h.SupportedProtos)
		return nil, errHelloRead
	}}).HandshakeContext(ctx)
	if errors.Is(err, errHelloRead) {
		err = nil
	}
	return protocols, rec.read.Bytes(), err
}

// recordingConn keeps what is read, at most maxHello bytes, and sends nothing.
type recordingConn struct {
	net.Conn
	read bytes.Buffer
}

func (c *recordingConn) Read(p []byte) (int, error) {
	if c.read.Len() >= maxHello {
		return 0, errors.New("first message too long")
	}
	n, err := c.Conn.Read(p[:min(len(p), maxHello-c.read.Len())])
	c.read.Write(p[:n])
	return n, err
}

// Write discards p: the alert of the handshake that [readClientHello] gives up must not reach the other side.
func (c *recordingConn) Write(p []byte) (int, error) { return len(p), nil }

// Close does nothing: the connection is used after the handshake was given up.
func (c *recordingConn) Close() error { return nil }

// replayedConn is a connection whose first bytes were read already.
type replayedConn struct {
	net.Conn
	r io.Reader
}

func (c *replayedConn) Read(p []byte) (int, error) { return c.r.Read(p) }
