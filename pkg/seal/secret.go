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
	// ErrEmpty means that a credential has no bytes.
	ErrEmpty = errors.New("the credential is empty")
	// ErrTooLong means that a credential has more than [MaxValue] bytes.
	ErrTooLong = fmt.Errorf("the credential is longer than %d bytes", MaxValue)
)

// redacted is the text of every [Secret].
const redacted = "[secret]"

// Secret is a credential that cannot be printed: fmt, slog, JSON, YAML and msgpack all yield "[secret]". For a Secret
// in an unexported field fmt does not call the methods below and prints what it reaches through pointers; it cannot
// look into a function, so the bytes are behind one. That also prevents comparison of two secrets with ==.
//
// A Secret does not protect against a process of the same user, which can read this process's memory, and libraries may
// have made copies that [Secret.Wipe] does not erase.
type Secret struct{ value func() *[]byte }

// NewSecret takes ownership of value: the caller must not use it any more.
func NewSecret(value []byte) Secret { return Secret{func() *[]byte { return &value }} }

// Reveal returns the value itself, not a copy: [Secret.Wipe] erases it. The caller must keep it out of every log,
// error, event and environment.
func (s Secret) Reveal() []byte {
	if s.value == nil {
		return nil
	}
	return *s.value()
}

// Check rejects an empty value, also a wiped one, with [ErrEmpty], and one of more than [MaxValue] bytes with
// [ErrTooLong].
func (s Secret) Check() error {
	switch n := len(s.Reveal()); {
	case n == 0:
		return ErrEmpty
	case n > MaxValue:
		return ErrTooLong
	}
	return nil
}

// Wipe erases the value, in every copy of s.
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

// MarshalText implements [encoding.TextMarshaler]; msgpack and YAML call it too.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// LogValue implements [slog.LogValuer].
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }
