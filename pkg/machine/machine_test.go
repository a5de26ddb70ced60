package machine_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/machine"
)

// registrar records the machines that it admits.
type registrar struct {
	mu       sync.Mutex
	admitted []string
	fail     error
}

func (r *registrar) Offer(inv machine.Invitation) machine.Offer {
	return machine.Offer{
		Hub: "hub", Machine: inv.Machine, Actors: inv.Actors,
		Accounts: []string{"tools_" + inv.Machine, "witness_" + inv.Machine},
	}
}

func (r *registrar) Admit(_ context.Context, inv machine.Invitation, _ map[string]string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.admitted = append(r.admitted, inv.Machine)
	return r.fail
}

func (r *registrar) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.admitted)
}

// hub is a listener with a certificate of its own.
type hub struct {
	*machine.Listener
	*registrar
	list *machine.Invitations
	pin  bus.Pin
	t    *testing.T
	mu   sync.Mutex
	now  time.Time
}

// newHub starts a listener that forwards to the leaf nodes at leaf.
func newHub(t *testing.T, leaf func() string) *hub {
	t.Helper()
	c, err := bus.EnsureCertificate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := c.Load()
	if err != nil {
		t.Fatal(err)
	}
	h := &hub{registrar: &registrar{}, t: t, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	if h.pin, err = bus.PinOf(pair); err != nil {
		t.Fatal(err)
	}
	if h.list, err = machine.OpenInvitations(filepath.Join(t.TempDir(), "invitations.json")); err != nil {
		t.Fatal(err)
	}
	if h.Listener, err = machine.Listen("127.0.0.1:0", machine.ListenerConfig{
		Certificate: pair, LeafAddress: leaf,
		Invitations: h.list, Registrar: h, Now: h.clock,
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

func (h *hub) clock() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

func (h *hub) advance(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = h.now.Add(d)
}

// invite returns a token of an hour for a machine.
func (h *hub) invite(name string) machine.Token {
	h.t.Helper()
	id, secret, err := machine.NewSecret()
	if err != nil {
		h.t.Fatal(err)
	}
	inv := machine.Invitation{
		ID: id, Hash: secret.Hash(), Machine: name, Actors: []string{"get_datetime", "witness"},
		Expires: h.clock().Add(time.Hour),
	}
	if err := h.list.Add(inv, h.clock()); err != nil {
		h.t.Fatal(err)
	}
	return machine.Token{Address: h.Addr(), Pin: h.pin, ID: id, Secret: secret}
}

// newKeys makes a public key for each account.
func newKeys(o machine.Offer) (map[string]string, error) {
	keys := map[string]string{}
	for _, a := range o.Accounts {
		kp, err := nkeys.CreateUser()
		if err != nil {
			return nil, err
		}
		if keys[a], err = kp.PublicKey(); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

// A token survives its text form, and no other text is one.
func TestTokenText(t *testing.T) {
	t.Parallel()
	h := newHub(t, func() string { return "" })
	token := h.invite("gpu-box")
	text, err := token.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, copied := range []string{text, " " + text + "\n", text[:30] + "\n  " + text[30:]} {
		if got, err := machine.ParseToken(copied); err != nil || got != token {
			t.Errorf("%v, %v", got, err)
		}
	}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if s := fmt.Sprintf(format, token); strings.Count(s, "(hidden)") != 1 {
			t.Errorf("%s prints the secret", format)
		}
	}
	for name, bad := range map[string]string{
		"empty": "", "cut off": text[:len(text)-5], "another version": "conclave9." +
			strings.TrimPrefix(text, "conclave1."),
		"not base64": "conclave1.%%%", "another object": "conclave1.e30", "long": text + strings.Repeat("A", 5000),
	} {
		if _, err := machine.ParseToken(bad); !errors.Is(err, machine.ErrToken) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add("conclave1.e30")
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		token, err := machine.ParseToken(s)
		if err != nil {
			return
		}
		text, err := token.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if again, err := machine.ParseToken(text); err != nil || again != token {
			t.Errorf("%q: %v", s, err)
		}
	})
}

// An invitation is used once, also by many machines at once and over a restart of the hub; the file has no secret.
func TestInvitationIsUsedOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "invitations.json")
	list, err := machine.OpenInvitations(path)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	id, secret, err := machine.NewSecret()
	if err != nil {
		t.Fatal(err)
	}
	if err := list.Add(machine.Invitation{
		ID: id, Hash: secret.Hash(), Machine: "gpu-box", Actors: []string{"model"},
		Expires: now.Add(time.Hour),
	}, now); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	if list, err = machine.OpenInvitations(path); err != nil {
		t.Fatal(err)
	}
	var wrong machine.Secret
	if _, err := list.Use(id, wrong, now); !errors.Is(err, machine.ErrUnknownInvitation) {
		t.Errorf("a wrong secret: %v", err)
	}
	if _, err := list.Use(id, secret, now.Add(time.Hour)); !errors.Is(err, machine.ErrExpired) {
		t.Errorf("expired: %v", err)
	}
	results := make(chan error, 16)
	for range cap(results) {
		go func() { _, err := list.Use(id, secret, now); results <- err }()
	}
	used := 0
	for range cap(results) {
		switch err := <-results; {
		case err == nil:
			used++
		case !errors.Is(err, machine.ErrUsed):
			t.Error(err)
		}
	}
	if used != 1 {
		t.Errorf("used %d times", used)
	}
	if list, err = machine.OpenInvitations(path); err != nil {
		t.Fatal(err)
	}
	if _, err := list.Check(id, secret, now); !errors.Is(err, machine.ErrUsed) {
		t.Errorf("after a restart: %v", err)
	}
	if len(list.Open(now)) != 0 {
		t.Error("it is still open")
	}
	if !list.NeedListener(now) || list.NeedListener(now.Add(time.Minute)) {
		t.Error("the port is not open for the rest of the enrolment, or for ever")
	}
}

// Each way to join without the right to is refused, and admits nobody; the right one works once.
func TestEnrolment(t *testing.T) {
	t.Parallel()
	h := newHub(t, func() string { return "" })
	enrol := func(token machine.Token, keys func(machine.Offer) (map[string]string, error)) error {
		t.Helper()
		before := h.count()
		_, err := machine.Enrol(t.Context(), token, keys)
		if err != nil && h.count() != before {
			t.Errorf("%v, and the machine was admitted", err)
		}
		return err
	}
	refused := func(name string, err error, text string) {
		t.Helper()
		if !errors.Is(err, machine.ErrRefused) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %q", name, err, text)
		}
	}

	good := h.invite("gpu-box")
	wrongSecret, otherID, wrongPin := good, good, good
	wrongSecret.Secret[3] ^= 1
	otherID.ID = "0011223344556677"
	wrongPin.Pin[0] ^= 1
	refused("wrong secret", enrol(wrongSecret, newKeys), "does not know this invitation")
	refused("unknown id", enrol(otherID, newKeys), "does not know this invitation")
	if err := enrol(wrongPin, newKeys); !errors.Is(err, bus.ErrPin) {
		t.Errorf("wrong pin: %v", err)
	}
	refused("no keys", enrol(good, func(machine.Offer) (map[string]string, error) {
		return nil, nil
	}), "one key for each of its accounts")
	refused("an account more", enrol(good, func(o machine.Offer) (map[string]string, error) {
		o.Accounts = append(slices.Clone(o.Accounts), "broker")
		return newKeys(o)
	}), "one key for each of its accounts")
	refused("one key twice", enrol(good, func(o machine.Offer) (map[string]string, error) {
		keys, err := newKeys(o)
		keys[o.Accounts[0]] = keys[o.Accounts[1]]
		return keys, err
	}), "invalid key")
	refused("no public key", enrol(good, func(o machine.Offer) (map[string]string, error) {
		keys, err := newKeys(o)
		keys[o.Accounts[0]] = `" } permissions: { publish: ">`
		return keys, err
	}), "invalid key")
	if err := enrol(good, newKeys); err != nil {
		t.Fatalf("the right token: %v", err)
	}
	refused("replay", enrol(good, newKeys), "used already")

	late := h.invite("late")
	h.advance(time.Hour)
	refused("expired", enrol(late, newKeys), "expired")

	failing := h.invite("unlucky")
	h.fail = errors.New("disk full")
	if _, err := machine.Enrol(t.Context(), failing, newKeys); !errors.Is(err, machine.ErrRefused) ||
		!strings.Contains(err.Error(), "used up") {
		t.Errorf("a failure of the hub: %v", err)
	}
	h.fail = nil
	refused("after a failure of the hub", enrol(failing, newKeys), "used already")
}

// A man in the middle without the hub's key learns nothing: the machine sends its secret only to the pinned key.
func TestManInTheMiddleGetsNoSecret(t *testing.T) {
	t.Parallel()
	h := newHub(t, func() string { return "" })
	token := h.invite("gpu-box")
	c, err := bus.EnsureCertificate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := c.Load()
	if err != nil {
		t.Fatal(err)
	}
	middle, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{pair},
		NextProtos:   []string{"conclave-join"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer middle.Close()
	heard := make(chan string, 1)
	go func() {
		conn, err := middle.Accept()
		if err != nil {
			heard <- ""
			return
		}
		defer conn.Close()
		line, _ := bufio.NewReader(conn).ReadString('\n')
		heard <- line
	}()
	token.Address = middle.Addr().String()
	if _, err := machine.Enrol(t.Context(), token, newKeys); !errors.Is(err, bus.ErrPin) {
		t.Errorf("%v", err)
	}
	if line := <-heard; line != "" {
		t.Error("the machine sent something to another key")
	}
	if h.count() != 0 {
		t.Error("admitted")
	}
}

// The listener forwards everything but enrolments to the leaf nodes, whose TLS ends in the NATS server, and clients
// that send nothing or no TLS take nobody's place.
func TestListenerForwardsToLeafNodes(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	h := newHub(t, b.Server.LeafAddress)
	for range 20 { // silent clients
		conn, err := net.Dial("tcp", h.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	plain, err := net.Dial("tcp", h.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if _, err := plain.Write([]byte("CONNECT {}\r\nPING\r\n")); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(plain).ReadString('\n'); err == nil {
		t.Errorf("a client without TLS was answered: %q", line)
	}

	own, err := bus.EnsureCertificate(filepath.Join(b.Dir, "tls"))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := own.Load()
	if err != nil {
		t.Fatal(err)
	}
	pin, err := bus.PinOf(pair)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", h.Addr(), pin.ClientTLS())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.HasPrefix(line, "INFO ") {
		t.Errorf("%q, %v", line, err)
	}
	h.Close()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the connection survives the listener")
	}
}

// One host cannot keep others from enrolling by holding connections open.
func TestOneHostCannotBlockEnrolment(t *testing.T) {
	t.Parallel()
	h := newHub(t, func() string { return "" })
	cfg := h.pin.ClientTLS()
	cfg.NextProtos = []string{"conclave-join"}
	other := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	held := 0
	for range 40 {
		raw, err := other.DialContext(t.Context(), "tcp", h.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		if tls.Client(raw, cfg).HandshakeContext(t.Context()) == nil {
			held++ // and says nothing
		}
	}
	if held == 0 {
		t.Error("no enrolment is held")
	}
	if _, err := machine.Join(t.Context(), bus.Home{Data: t.TempDir()}, h.invite("gpu-box"), false,
		h.clock()); err != nil {
		t.Error(err)
	}
}
