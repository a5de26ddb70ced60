// Package machine lets another machine join the hub: invitations, the enrolment over TLS, and the listener in front of
// the leaf nodes of the NATS server.
package machine

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net"
	"strconv"
	"strings"

	"conclave/pkg/bus"
	"conclave/pkg/strict"
)

// tokenPrefix is the format version of a token.
const tokenPrefix = "conclave1."

// maxToken bounds the text of a token, in bytes.
const maxToken = 4 << 10

// Token is an invitation as the user carries it to the other machine: where the hub listens, by which key it is
// recognized, and the secret that may be used once. The hub stores only a hash of the secret.
type Token struct {
	Address string  // host:port
	Pin     bus.Pin // of the hub's TLS key
	ID      string  // of the invitation
	Secret  Secret
}

// tokenBody is the encoded form of a token.
type tokenBody struct {
	Address string `json:"address"`
	Pin     string `json:"pin"`
	ID      string `json:"id"`
	Secret  string `json:"secret"`
}

// Secret is the secret of an invitation: 32 random bytes. It does not print itself.
type Secret [32]byte

// String hides the secret from logs and errors.
func (Secret) String() string { return "(hidden)" }

// GoString hides the secret too.
func (Secret) GoString() string { return "(hidden)" }

// Hash is what the hub stores. A secret of 256 random bits needs no slow hash.
func (s Secret) Hash() string {
	sum := sha256.Sum256(s[:])
	return hex.EncodeToString(sum[:])
}

// NewSecret returns a random id and secret for an invitation.
func NewSecret() (id string, s Secret, err error) {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", s, err
	}
	_, err = rand.Read(s[:])
	return hex.EncodeToString(b[:]), s, err
}

// Encode returns the text form, conclave1.<base64url of JSON>. It holds the secret.
func (t Token) Encode() (string, error) {
	b, err := json.Marshal(tokenBody{
		t.Address, t.Pin.String(), t.ID,
		base64.RawURLEncoding.EncodeToString(t.Secret[:]),
	})
	if err != nil {
		return "", err
	}
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(b), nil
}

// ErrToken means that a text is not a token; it holds nothing of the text.
var ErrToken = errors.New("this is not a token of conclave invite: copy all of it, from conclave1. to its end")

// ParseToken is the inverse of [Token.Encode]. It rejects every other text with [ErrToken].
func ParseToken(s string) (Token, error) {
	s = strings.Join(strings.Fields(s), "") // a terminal may have broken the line
	rest, ok := strings.CutPrefix(s, tokenPrefix)
	if !ok || len(s) > maxToken {
		return Token{}, ErrToken
	}
	text, err := base64.RawURLEncoding.Strict().DecodeString(rest)
	if err != nil {
		return Token{}, ErrToken
	}
	var b tokenBody
	if err := strict.DecodeJSON(text, &b); err != nil {
		return Token{}, ErrToken
	}
	t := Token{Address: b.Address, ID: b.ID}
	secret, err := base64.RawURLEncoding.Strict().DecodeString(b.Secret)
	if err != nil || len(secret) != len(t.Secret) {
		return Token{}, ErrToken
	}
	copy(t.Secret[:], secret)
	if t.Pin, err = bus.ParsePin(b.Pin); err != nil || !validID(b.ID) || CheckAddress(b.Address) != nil {
		return Token{}, ErrToken
	}
	return t, nil
}

// validID reports whether s has the form of [NewSecret].
func validID(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 8 && s == strings.ToLower(s)
}

// CheckAddress rejects an address that is not host:port with a host that another machine can use.
func CheckAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	n, perr := strconv.ParseUint(port, 10, 16)
	if err != nil || perr != nil || n == 0 || host == "" || strings.ContainsAny(host, " /\\@\"'\n\r\t") {
		return errors.New("write host:port, for example 192.168.1.10:7422")
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return errors.New(host + " is not the address of a machine: write the one under which the other machine " +
			"reaches this one")
	}
	return nil
}
