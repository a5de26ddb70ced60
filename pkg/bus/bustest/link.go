package bustest

import (
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// Link is a TCP proxy that stands for the network between two machines. A test cuts, freezes, delays and heals it. All
// methods may be called at any time.
type Link struct {
	target   string
	listener net.Listener
	running  sync.WaitGroup

	mu      sync.Mutex
	state   linkState
	changed chan struct{} // closed and replaced when the state changes
	conns   map[net.Conn]struct{}
	delay   time.Duration
	loss    float64
	random  *rand.Rand
}

type linkState int

const (
	linkUp linkState = iota
	linkFrozen
	linkCut
	linkClosed
)

// Sizes and times of a link.
const (
	linkSegment    = 1460                   // bytes that are delayed as one
	linkQueue      = 4096                   // segments on their way, in each direction
	retransmission = 200 * time.Millisecond // by which a lost segment is late: the least of Linux
)

// StartLink is [NewLink] on a free port of the loopback interface. It closes with the test.
func StartLink(t testing.TB, target string) *Link {
	t.Helper()
	l, err := NewLink("127.0.0.1:0", target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// NewLink listens on an address and forwards every connection to target. The caller closes it.
func NewLink(listen, target string) (*Link, error) {
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, err
	}
	l := &Link{target: target, listener: listener, changed: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	l.running.Go(l.accept)
	return l, nil
}

// Addr returns the address that it listens on.
func (l *Link) Addr() string { return l.listener.Addr().String() }

// Cut resets all connections, and new ones until Heal: what was on its way is lost, and both ends notice.
func (l *Link) Cut() { l.setState(linkCut) }

// Freeze stops all bytes in both directions until Heal and closes nothing, like an unplugged cable: neither end
// notices, and what was sent arrives after Heal. A connection that an end closes meanwhile stays open for the other
// end.
func (l *Link) Freeze() { l.setState(linkFrozen) }

// Heal ends a cut or a freeze.
func (l *Link) Heal() { l.setState(linkUp) }

// Close resets all connections and stops listening. It returns when nothing runs any more.
func (l *Link) Close() {
	l.setState(linkClosed)
	l.listener.Close()
	l.running.Wait()
}

// Redirect forwards the connections that are made from now on to another target.
func (l *Link) Redirect(target string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.target = target
}

// SetDelay delays every segment from now on by d in each direction.
func (l *Link) SetDelay(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay = d
}

// SetLoss loses segments from now on with a probability, chosen by seed. A proxy cannot take bytes out of a TCP
// connection: a lost segment and all that follow arrive later, by the least time of a retransmission.
func (l *Link) SetLoss(probability float64, seed uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loss, l.random = probability, rand.New(rand.NewPCG(seed, 0))
}

func (l *Link) setState(s linkState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == linkClosed {
		return
	}
	l.state = s
	close(l.changed)
	l.changed = make(chan struct{})
	if s == linkCut || s == linkClosed {
		for c := range l.conns {
			resetConn(c)
		}
		clear(l.conns)
	}
}

// resetConn closes a connection so that its other end gets an error and not the end of the stream.
func resetConn(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	c.Close()
}

// addConn registers a connection, which Cut and Close reset. It returns false when the link is cut or closed.
func (l *Link) addConn(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == linkCut || l.state == linkClosed {
		return false
	}
	l.conns[c] = struct{}{}
	return true
}

func (l *Link) removeConn(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
	c.Close()
}

// awaitThaw returns when the link is not frozen.
func (l *Link) awaitThaw() {
	for {
		l.mu.Lock()
		state, changed := l.state, l.changed
		l.mu.Unlock()
		if state != linkFrozen {
			return
		}
		<-changed
	}
}

// arrival returns when a segment that is sent now arrives.
func (l *Link) arrival() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := l.delay
	if l.loss > 0 && l.random.Float64() < l.loss {
		d += retransmission
	}
	return time.Now().Add(d)
}

func (l *Link) accept() {
	for {
		in, err := l.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		if !l.addConn(in) {
			resetConn(in)
			continue
		}
		l.running.Go(func() {
			defer l.removeConn(in)
			l.awaitThaw()
			l.mu.Lock()
			target := l.target
			l.mu.Unlock()
			out, err := net.Dial("tcp", target)
			if err != nil {
				return
			}
			if !l.addConn(out) {
				resetConn(out)
				return
			}
			defer l.removeConn(out)
			var both sync.WaitGroup
			both.Go(func() { l.forward(in, out) })
			both.Go(func() { l.forward(out, in) })
			both.Wait()
		})
	}
}

// forward passes bytes from one connection to the other until the first one ends, and then ends the second one.
func (l *Link) forward(from, to net.Conn) {
	type segment struct {
		data []byte
		due  time.Time
	}
	segments := make(chan segment, linkQueue)
	l.running.Go(func() {
		defer close(segments)
		for {
			data := make([]byte, linkSegment)
			n, err := from.Read(data)
			if n > 0 {
				segments <- segment{data[:n], l.arrival()}
			}
			if err != nil {
				return
			}
		}
	})
	broken := false
	for s := range segments { // also after an error: the reader must not block
		if broken {
			continue
		}
		time.Sleep(time.Until(s.due))
		l.awaitThaw()
		if _, err := to.Write(s.data); err != nil {
			broken = true
			resetConn(from) // ends the reader
		}
	}
	l.awaitThaw()
	if tcp, ok := to.(*net.TCPConn); ok && !broken {
		_ = tcp.CloseWrite() // fails only on a connection that is closed already
	}
}
