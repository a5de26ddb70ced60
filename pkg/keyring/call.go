package keyring

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strings"
	"syscall"

	lib "github.com/99designs/keyring"
	"github.com/godbus/dbus/v5"
)

// errPanic stands for a panic of the library, which panics when the user closes a dialog.
var errPanic = errors.New("the library panicked; a dialog may have been closed")

// timeoutError means that the context ended before a call of the library did. busy means that the call did not begin,
// because an earlier one was still running.
type timeoutError struct{ busy bool }

func (e timeoutError) Error() string {
	if e.busy {
		return "timeout: an earlier call is still running; it may be asking for your password in a dialog"
	}
	return "timeout: it may be asking for your password in a dialog"
}

// callLibrary runs call, which cannot be cancelled, and returns a [timeoutError] when ctx ends first, and [errPanic]
// when call panics. slot has capacity one and serializes calls: an abandoned call keeps it until it has really ended.
// discard, if not nil, gets the value of an abandoned call.
func callLibrary[T any](ctx context.Context, slot chan struct{}, discard func(T), call func() (T, error)) (T, error) {
	var zero T
	if ctx.Err() != nil {
		return zero, timeoutError{}
	}
	select {
	case slot <- struct{}{}:
	case <-ctx.Done():
		return zero, timeoutError{busy: true}
	}
	type result struct {
		value T
		err   error
	}
	done := make(chan result)
	go func() {
		defer func() { <-slot }()
		var r result
		r.value, r.err = recoverPanic(call)
		select {
		case done <- r:
		case <-ctx.Done(): // the caller has returned
			if discard != nil {
				discard(r.value)
			}
		}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		return zero, timeoutError{}
	}
}

// recoverPanic runs call and returns [errPanic] when it panics. The panic's own text is dropped: it may quote a
// credential.
func recoverPanic[T any](call func() (T, error)) (value T, err error) {
	defer func() {
		if recover() != nil {
			var zero T
			value, err = zero, errPanic
		}
	}()
	return call()
}

// translateError maps an error of the library, which must not be nil, to one of the errors of this package; an error
// that wraps [ErrNotFound], [ErrLocked], [ErrUnavailable] or [ErrDamaged] is returned unchanged. An unrecognized error
// is [ErrDamaged] for the backend [File], else [ErrUnavailable]. The library's own text is kept only for kinds of
// errors that cannot quote a credential.
func translateError(backend string, err error) error {
	for _, ours := range []error{ErrNotFound, ErrLocked, ErrUnavailable, ErrDamaged} {
		if errors.Is(err, ours) {
			return err
		}
	}
	var (
		timeout timeoutError
		bus     dbus.Error
		path    *fs.PathError
		errno   syscall.Errno
		exit    *exec.ExitError
		syntax  *json.SyntaxError
		kind    *json.UnmarshalTypeError
	)
	switch {
	case errors.Is(err, lib.ErrKeyNotFound):
		return ErrNotFound
	case errors.As(err, &timeout), errors.Is(err, errPanic):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case errors.As(err, &bus):
		if strings.HasSuffix(bus.Name, ".IsLocked") {
			return fmt.Errorf("%w: unlock it, or log in to your desktop", ErrLocked)
		}
		return fmt.Errorf("%w: the session bus answers %s", ErrUnavailable, sanitizeErrorName(bus.Name))
	case errors.As(err, &exit):
		return fmt.Errorf("%w: pass ended with exit code %d; run pass show in a terminal once, so that gpg knows "+
			"your passphrase", ErrLocked, exit.ExitCode())
	case errors.As(err, &syntax), errors.As(err, &kind):
		return fmt.Errorf("%w: it was not put there by conclave", ErrDamaged)
	case isExpiredKey(err):
		return ErrNotFound
	case errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: the kernel's keyring is full", ErrUnavailable)
	case errors.As(err, &path), errors.As(err, &errno):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case backend == File: // authenticated decryption failed
		return fmt.Errorf("%w: the file is damaged, or was made with another key", ErrDamaged)
	}
	return fmt.Errorf("%w: unknown error of type %T", ErrUnavailable, err)
}

// sanitizeErrorName returns name if it has the form of a D-Bus error name, else "an error".
func sanitizeErrorName(name string) string {
	if len(name) > 100 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._") != "" {
		return "an error"
	}
	return name
}
