// Package seal encrypts a credential to its receiver, so that the broker forwards a value that it cannot read. The
// receiver generates a curve key per process and answers for it under its own account; the secrets actor encrypts to a
// key that the receiver's account has confirmed.
//
// A sealed value does not authenticate its sender, whose key is generated per reply and discarded. That it came from
// the secrets actor is a fact of routing.
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
	// ErrKey means that a text is no public curve key that a value may be sealed to.
	ErrKey = errors.New("not a public curve key")
	// ErrSealed means that a sealed value cannot be opened: it was sealed to another key, or changed.
	ErrSealed = errors.New("the sealed credential cannot be opened with this key")
)

// Lengths in bytes: a public key as text, and what sealing adds to a value.
const (
	publicKeyLength = 56
	sealOverhead    = 64
)

// Key is the key pair of a receiver. It lives as long as the process that needs the credential.
type Key struct {
	pair   nkeys.KeyPair
	public string
}

// NewKey generates a key pair in memory. The caller must wipe it after use.
func NewKey() (*Key, error) {
	pair, err := nkeys.CreateCurveKeys()
	if err != nil {
		return nil, fmt.Errorf("generating a curve key: %w", err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("generating a curve key: %w", err)
	}
	return &Key{pair, public}, nil
}

// Public is the public key, which a request for a credential names as its receiver.
func (k *Key) Public() string { return k.public }

// Wipe erases the private key: values sealed to it cannot be opened any more.
func (k *Key) Wipe() { k.pair.Wipe() }

// Format implements [fmt.Formatter]: every verb prints the public key only.
func (k *Key) Format(f fmt.State, _ rune) { fmt.Fprint(f, k.public) }

// CheckKey rejects public unless it is the canonical text of a curve key (nkeys prefix X, 56 characters) that a value
// may be sealed to. Points of low order are rejected: anyone could open a value that is sealed to one. A rejection
// wraps [ErrKey].
func CheckKey(public string) error {
	if len(public) != publicKeyLength { // nkeys panics on longer ones
		return fmt.Errorf("%w: %d characters, not %d", ErrKey, len(public), publicKeyLength)
	}
	raw, err := nkeys.Decode(nkeys.PrefixByteCurve, []byte(public))
	if err != nil {
		return ErrKey
	}
	if again, err := nkeys.Encode(nkeys.PrefixByteCurve, raw); err != nil || string(again) != public {
		return fmt.Errorf("%w: not in canonical encoding", ErrKey)
	}
	point, err := ecdh.X25519().NewPublicKey(raw)
	if err != nil {
		return ErrKey
	}
	// With any private key, a point of low order yields the shared secret zero, which the standard library rejects.
	own, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return fmt.Errorf("checking a curve key: %w", err)
	}
	if _, err := own.ECDH(point); err != nil {
		return fmt.Errorf("%w: a point of low order, anyone could open a value sealed to it", ErrKey)
	}
	return nil
}

// Seal encrypts value to a public key. It rejects an empty or too long value, and a key that [CheckKey] rejects. The
// sender's key is generated here and wiped, so that not even the sender can open the result. value is not wiped.
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

// Open decrypts a value that was sealed to k. The error wraps [ErrSealed] for a value that was sealed to another key or
// altered, for an invalid sender's key, and for an empty or too long value. The sender is not authenticated. The caller
// must wipe the secret after use.
func Open(k *Key, v subjects.SecretValue) (Secret, error) {
	if len(v.Sealed) > MaxValue+sealOverhead {
		return Secret{}, fmt.Errorf("%w: too long", ErrSealed)
	}
	if err := CheckKey(v.From); err != nil {
		return Secret{}, fmt.Errorf("%w: the sender's key is %w", ErrSealed, err)
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
