package webclient_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"conclave/pkg/webclient"
)

// loopback is what tests open when a server of theirs is to be reached.
var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// fast is a client's settings for servers in the same process.
func fast(ports ...int) webclient.Config {
	return webclient.Config{
		Version: "test", Ports: ports, Every: time.Millisecond, Burst: 1000,
		Total: 30 * time.Second, Resolve: 20 * time.Second, Connect: 10 * time.Second, Handshake: 20 * time.Second,
		Header: 20 * time.Second, Idle: 20 * time.Second,
	}
}

// victim is a server on every address of this machine. It notices whoever connects, whatever is said then.
type victim struct {
	port  int
	conns atomic.Int64
}

func newVictim(t *testing.T) *victim {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	v := &victim{port: l.Addr().(*net.TCPAddr).Port}
	srv := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			_, _ = w.Write([]byte("the inside"))
		}),
		ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				v.conns.Add(1)
			}
		},
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { srv.Close(); <-done })
	return v
}

// dialed remembers each connection that passed all checks, and stops those that a test must not make.
type dialed struct {
	mu   sync.Mutex
	list []netip.AddrPort
	stop bool
}

func (d *dialed) hear(to netip.AddrPort) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.list = append(d.list, to)
	if d.stop {
		return errors.New("stopped by the test")
	}
	return nil
}

func (d *dialed) take() []netip.AddrPort {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := d.list
	d.list = nil
	return out
}

// names is a name server of our own: it answers each question for an address with what answer says.
func names(t *testing.T, answer func(host string) []netip.Addr) *net.Resolver {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			m.Response, m.Authoritative, m.RecursionAvailable, m.Additionals = true, true, true, nil
			h := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 0}
			for _, a := range answer(strings.TrimSuffix(q.Name.String(), ".")) {
				switch {
				case q.Type == dnsmessage.TypeA && a.Is4():
					m.Answers = append(m.Answers,
						dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: a.As4()}})
				case q.Type == dnsmessage.TypeAAAA && !a.Is4():
					m.Answers = append(m.Answers,
						dnsmessage.Resource{Header: h, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
				}
			}
			if out, err := m.Pack(); err == nil {
				_, _ = pc.WriteTo(out, from)
			}
		}
	}()
	t.Cleanup(func() { pc.Close(); <-done })
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", pc.LocalAddr().String())
	}}
}

// site is a server that a client of [open] reaches.
func site(t *testing.T, h http.HandlerFunc) (*httptest.Server, int) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s, s.Listener.Addr().(*net.TCPAddr).Port
}

// open is a client that reaches the servers of this machine.
func open(cfg webclient.Config) *webclient.Client {
	return webclient.NewForTests(cfg, webclient.TestNet{Allow: loopback})
}

// told fails when an error is more than a few fixed words.
func told(t *testing.T, err error) {
	t.Helper()
	var f webclient.Failure
	var s webclient.Status
	if !errors.As(err, &f) && !errors.As(err, &s) {
		t.Errorf("the error %T %v is not for a model", err, err)
		return
	}
	if errors.As(err, &f) && (strings.ContainsAny(err.Error(), "0123456789/") || len(err.Error()) > 60) {
		t.Errorf("the error tells too much: %v", err)
	}
}
