// Package seal carries a credential to the one who needs it, through hands that must not read it. The receiver makes a
// key for one run and names its public half; the secrets actor seals the value to it with nkeys curve keys; the broker
// passes on what it cannot open.
//
// A sealed value says nothing about who sealed it: the sender's key is made for one answer and thrown away. That it came
// from the secrets actor is a fact of routing, as everywhere on this bus.
package seal

import (
	"crypto/ecdh"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/nats-io/nkeys"

	"conclave/subjects"
)

// Errors of sealing.
var (
	// ErrKey means that a text is not the public curve key that a value could be sealed to.
	ErrKey = errors.New("not a public curve key")
	// ErrSealed means that a sealed value cannot be opened: it is another's, or was changed on its way.
	ErrSealed = errors.New("the sealed credential cannot be opened with this key")
)

// publicLen is how long a public key is as text, overhead what sealing adds to a value.
const (
	publicKeyLength = 56
	sealOverhead    = 64
)

// Key is the private half of a receiver. It lives as long as the run that needs the credential.
type Key struct {
	pair   nkeys.KeyPair
	public string
}

// NewKey makes a key.
func NewKey() (*Key, error) {
	pair, err := nkeys.CreateCurveKeys()
	if err != nil {
		return nil, fmt.Errorf("making a curve key: %w", err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("making a curve key: %w", err)
	}
	return &Key{pair, public}, nil
}

// Public is the half that others may know: what a request for a credential names as its receiver.
func (k *Key) Public() string { return k.public }

// Wipe makes the key useless. What was sealed to it stays closed.
func (k *Key) Wipe() { k.pair.Wipe() }

// Format implements [fmt.Formatter]: only the public half is ever shown.
func (k *Key) Format(f fmt.State, _ rune) { fmt.Fprint(f, k.public) }

// CheckKey reports whether public is a key that a value may be sealed to. Points of low order are refused: with one of
// them as receiver, everybody could open what was sealed.
func CheckKey(public string) error {
	if len(public) != publicKeyLength { // nkeys itself panics on what is longer
		return fmt.Errorf("%w: %d characters, not %d", ErrKey, len(public), publicKeyLength)
	}
	raw, err := nkeys.Decode(nkeys.PrefixByteCurve, []byte(public))
	if err != nil {
		return ErrKey
	}
	if again, err := nkeys.Encode(nkeys.PrefixByteCurve, raw); err != nil || string(again) != public {
		return fmt.Errorf("%w: written in an unusual way", ErrKey)
	}
	point, err := ecdh.X25519().NewPublicKey(raw)
	if err != nil {
		return ErrKey
	}
	// Whatever the private half: a point of low order ends in zero, and the standard library refuses to go on.
	own, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return fmt.Errorf("checking a curve key: %w", err)
	}
	if _, err := own.ECDH(point); err != nil {
		return fmt.Errorf("%w: everybody could open what is sealed to it", ErrKey)
	}
	return nil
}

// Seal closes value to the holder of the key with this public half. The sender's own key is made here and forgotten
// here, so that nobody can open the answer later, the sender neither.
func Seal(value Secret, public string) (subjects.SecretValue, error) {
	if err := value.Check(); err != nil {
		return subjects.SecretValue{}, err
	}
	if err := CheckKey(public); err != nil {
		return subjects.SecretValue{}, err
	}
	from, err := NewKey()
	if err != nil {
		return subjects.SecretValue{}, err
	}
	defer from.Wipe()
	sealed, err := from.pair.Seal(value.Reveal(), public)
	if err != nil {
		return subjects.SecretValue{}, fmt.Errorf("sealing a credential: %w", err)
	}
	return subjects.SecretValue{Sealed: sealed, From: from.public}, nil
}

// Open opens what was sealed to k. The caller wipes the secret when it has been used.
func Open(k *Key, v subjects.SecretValue) (Secret, error) {
	if len(v.Sealed) > MaxValue+sealOverhead {
		return Secret{}, fmt.Errorf("%w: it is too long", ErrSealed)
	}
	if err := CheckKey(v.From); err != nil {
		return Secret{}, fmt.Errorf("%w: its sender is %w", ErrSealed, err)
	}
	value, err := k.pair.Open(v.Sealed, v.From)
	if err != nil {
		return Secret{}, ErrSealed
	}
	s := NewSecret(value)
	if err := s.Check(); err != nil {
		s.Wipe()
		return Secret{}, fmt.Errorf("%w: %w", ErrSealed, err)
	}
	return s, nil
}
