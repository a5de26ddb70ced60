package machine

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/nats-io/nkeys"

	"conclave/pkg/strict"
)

// protocolName is the ALPN protocol by which the listener tells an enrolment from a leaf node.
const protocolName = "conclave-join"

const (
	protocolVersion = 1
	enrolTimeout    = 30 * time.Second // of a whole enrolment
	maxLine         = 16 << 10         // bytes of one message
)

// The messages of an enrolment, one JSON object per line, in this order. Each reply has either an error or its content.
type (
	enrolHello struct {
		Version int    `json:"version"`
		ID      string `json:"id"`
		Secret  string `json:"secret"`
	}
	enrolOffer struct {
		Error string `json:"error,omitempty"`
		Offer
	}
	enrolKeys struct {
		Keys map[string]string `json:"keys"` // public key by account
	}
	enrolDone struct {
		Error string `json:"error,omitempty"`
	}
)

// Offer is what the hub lets a machine run.
type Offer struct {
	Hub      string   `json:"hub"` // name of the hub, for the user
	Machine  string   `json:"machine"`
	Actors   []string `json:"actors"`
	Accounts []string `json:"accounts"` // each needs a key of its own
}

// Registrar admits machines on the hub.
type Registrar interface {
	// Offer returns what the invitation lets the machine run.
	Offer(inv Invitation) Offer
	// Admit gives the keys their accounts, on the record. The invitation was marked as used before.
	Admit(ctx context.Context, inv Invitation, keys map[string]string) error
}

// ErrRefused means that the hub refused to enrol this machine; the text is the hub's.
var ErrRefused = errors.New("the hub refused")

// ErrUnconfirmed means that the hub did not confirm: the machine may have been admitted.
var ErrUnconfirmed = errors.New("the connection ended before the hub confirmed: if conclave machines on the hub " +
	"lists this machine, get a new token with conclave machines rotate, else with conclave invite")

// Enrol presents a token to the hub. makeKeys creates a key for each account of the offer, stores the seeds and returns
// the public keys; an error of it ends the enrolment and leaves the invitation open. The hub's key is compared with the
// pin before the secret is sent: [bus.ErrPin].
func Enrol(ctx context.Context, t Token, makeKeys func(Offer) (map[string]string, error)) (Offer, error) {
	ctx, cancel := context.WithTimeout(ctx, enrolTimeout)
	defer cancel()
	cfg := t.Pin.ClientTLS()
	cfg.NextProtos = []string{protocolName}
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", t.Address)
	if err != nil {
		return Offer{}, fmt.Errorf("no hub answers at %s: %w: check that conclave up runs there and that this "+
			"machine may reach the address; conclave invite --address names another one", t.Address, err)
	}
	defer raw.Close()
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	defer stop()
	conn := tls.Client(raw, cfg)
	if err := conn.HandshakeContext(ctx); err != nil {
		return Offer{}, fmt.Errorf("connecting to %s: %w", t.Address, err)
	}
	if conn.ConnectionState().NegotiatedProtocol != protocolName {
		return Offer{}, fmt.Errorf("the server at %s enrols no machines", t.Address)
	}
	lines := bufio.NewReaderSize(conn, maxLine)
	if err := writeLine(conn,
		enrolHello{protocolVersion, t.ID, base64.RawURLEncoding.EncodeToString(t.Secret[:])}); err != nil {
		return Offer{}, fmt.Errorf("enrolling: %w", err)
	}
	var offer enrolOffer
	if err := readLine(lines, &offer); err != nil {
		return Offer{}, fmt.Errorf("enrolling: %w", err)
	}
	if offer.Error != "" {
		return Offer{}, fmt.Errorf("%w: %s", ErrRefused, offer.Error)
	}
	keys, err := makeKeys(offer.Offer)
	if err != nil {
		return Offer{}, err
	}
	if err := writeLine(conn, enrolKeys{keys}); err != nil {
		return Offer{}, fmt.Errorf("%w (%w)", ErrUnconfirmed, err)
	}
	var done enrolDone
	if err := readLine(lines, &done); err != nil {
		return Offer{}, fmt.Errorf("%w (%w)", ErrUnconfirmed, err)
	}
	if done.Error != "" {
		return Offer{}, fmt.Errorf("%w: %s", ErrRefused, done.Error)
	}
	return offer.Offer, nil
}

// serveEnrolment serves one enrolment on conn, which is past its handshake. The invitation is marked as used before the
// registrar admits the machine, so that a failure in between cannot be used twice. The error is for the log, and holds
// no secret.
func serveEnrolment(ctx context.Context, conn net.Conn, list *Invitations, r Registrar, now func() time.Time) error {
	lines := bufio.NewReaderSize(conn, maxLine)
	var hello enrolHello
	if err := readLine(lines, &hello); err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Now().Add(enrolTimeout))
	refuse := func(err error) error {
		_ = writeLine(conn, enrolDone{Error: err.Error()})
		return err
	}
	if hello.Version != protocolVersion {
		return refuse(fmt.Errorf("this hub enrols with version %d and the machine asks with %d: run the same build "+
			"of conclave on both", protocolVersion, hello.Version))
	}
	var s Secret
	b, err := base64.RawURLEncoding.Strict().DecodeString(hello.Secret)
	if err != nil || len(b) != len(s) {
		return refuse(ErrUnknownInvitation)
	}
	copy(s[:], b)
	inv, err := list.Check(hello.ID, s, now())
	if err != nil {
		return refuse(err)
	}
	offer := r.Offer(inv)
	if err := writeLine(conn, enrolOffer{Offer: offer}); err != nil {
		return err
	}
	var keys enrolKeys
	if err := readLine(lines, &keys); err != nil {
		return err
	}
	if err := checkKeys(keys.Keys, offer.Accounts); err != nil {
		return refuse(err)
	}
	if inv, err = list.Use(hello.ID, s, now()); err != nil {
		return refuse(err)
	}
	if err := r.Admit(ctx, inv, keys.Keys); err != nil {
		_ = writeLine(conn, enrolDone{Error: "admitting the machine failed, see the hub's log; the invitation is " +
			"used up: ask for a new one"})
		return err
	}
	return writeLine(conn, enrolDone{})
}

// checkKeys rejects keys that are not exactly one valid public user key for each account, all different.
func checkKeys(keys map[string]string, accounts []string) error {
	if !slices.Equal(slices.Sorted(maps.Keys(keys)), slices.Sorted(slices.Values(accounts))) {
		return errors.New("the machine must send one key for each of its accounts")
	}
	seen := map[string]bool{}
	for _, k := range keys {
		if !nkeys.IsValidPublicUserKey(k) || seen[k] {
			return errors.New("the machine sent an invalid key, or one key twice")
		}
		seen[k] = true
	}
	return nil
}

func writeLine(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// readLine reads one message; a line that is longer than the reader's buffer is an error.
func readLine(r *bufio.Reader, v any) error {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return fmt.Errorf("the other side ended the enrolment: %w", err)
	}
	if err := strict.DecodeJSON(line, v); err != nil {
		return errors.New("the other side sent a malformed message")
	}
	return nil
}
