package seal

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
)

// MaxValue is the longest credential, in bytes.
const MaxValue = 16 << 10

// Errors of values.
var (
	// ErrEmpty means that a credential without a single byte was to be kept or sent.
	ErrEmpty = errors.New("the credential is empty")
	// ErrTooLong means that a credential has more than [MaxValue] bytes.
	ErrTooLong = fmt.Errorf("the credential is longer than %d bytes", MaxValue)
)

// redacted is what a [Secret] says of itself, whoever asks.
const redacted = "[secret]"

// Secret is a credential that cannot be printed: every way in which Go turns a value into text says "[secret]". Where the
// methods below are not asked, as in a struct that has a Secret in an unexported field, fmt walks through pointers and
// prints what it finds; it cannot look into a function, so the bytes stand behind one. It also keeps two secrets from
// being compared with ==.
//
// A Secret is no vault. Whoever runs as the same person can read the memory of this process, and libraries on the way may
// have made copies that [Secret.Wipe] does not reach.
type Secret struct{ value func() *[]byte }

// NewSecret takes over value: the caller must not use it any more.
func NewSecret(value []byte) Secret { return Secret{func() *[]byte { return &value }} }

// Reveal is the value itself, not a copy: it is gone after [Secret.Wipe]. Nothing that is revealed may reach a log, an
// error, an event or an environment.
func (s Secret) Reveal() []byte {
	if s.value == nil {
		return nil
	}
	return *s.value()
}

// Check reports whether the value may be kept: one byte to [MaxValue].
func (s Secret) Check() error {
	switch n := len(s.Reveal()); {
	case n == 0:
		return ErrEmpty
	case n > MaxValue:
		return ErrTooLong
	}
	return nil
}

// Wipe overwrites the value, in every copy of s.
func (s Secret) Wipe() {
	if s.value != nil {
		value := s.value()
		clear(*value)
		*value = nil
	}
}

// String implements [fmt.Stringer].
func (Secret) String() string { return redacted }

// GoString implements [fmt.GoStringer].
func (Secret) GoString() string { return redacted }

// Format implements [fmt.Formatter]: no verb shows the value.
func (Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// MarshalJSON implements [encoding/json.Marshaler].
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalText implements [encoding.TextMarshaler]; msgpack and YAML ask for it too.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// LogValue implements [slog.LogValuer].
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }
