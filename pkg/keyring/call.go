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
	"github.com/godbus/dbus"
)

// errPanic is a panic of the library: a dialog that the user closed ends in one.
var errPanic = errors.New("the library gave up; a dialog may have been closed")

// errLate means that a call was given up when its context ended.
type errLate struct{ busy bool }

func (e errLate) Error() string {
	if e.busy {
		return "an earlier call still waits for it; it may be asking for your password in a dialog"
	}
	return "it did not answer in time; it may be asking for your password in a dialog"
}

// within runs call, which cannot be stopped, and gives up with the context. Only one runs at a time: slot is free again
// when the call has really ended. What comes too late goes to late.
func within[T any](ctx context.Context, slot chan struct{}, late func(T), call func() (T, error)) (T, error) {
	var none T
	if ctx.Err() != nil {
		return none, errLate{}
	}
	select {
	case slot <- struct{}{}:
	case <-ctx.Done():
		return none, errLate{busy: true}
	}
	type result struct {
		value T
		err   error
	}
	done := make(chan result)
	go func() {
		defer func() { <-slot }()
		var r result
		r.value, r.err = guarded(call)
		select {
		case done <- r:
		case <-ctx.Done(): // nobody waits any more
			if late != nil {
				late(r.value)
			}
		}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		return none, errLate{}
	}
}

// guarded keeps a panic of the library from ending this process. What it says is dropped: it may quote a value.
func guarded[T any](call func() (T, error)) (value T, err error) {
	defer func() {
		if recover() != nil {
			var none T
			value, err = none, errPanic
		}
	}()
	return call()
}

// translate makes one of our errors of what the library says. Only kinds of errors that cannot hold a part of a value
// keep their words.
func translate(backend string, err error) error {
	for _, ours := range []error{ErrNotFound, ErrLocked, ErrUnavailable, ErrDamaged} {
		if errors.Is(err, ours) {
			return err
		}
	}
	var (
		late   errLate
		bus    dbus.Error
		path   *fs.PathError
		errno  syscall.Errno
		exit   *exec.ExitError
		syntax *json.SyntaxError
		kind   *json.UnmarshalTypeError
	)
	switch {
	case errors.Is(err, lib.ErrKeyNotFound):
		return ErrNotFound
	case errors.As(err, &late), errors.Is(err, errPanic):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case errors.As(err, &bus):
		if strings.HasSuffix(bus.Name, ".IsLocked") {
			return fmt.Errorf("%w: unlock it, or log in to your desktop", ErrLocked)
		}
		return fmt.Errorf("%w: the session bus answers %s", ErrUnavailable, plainName(bus.Name))
	case errors.As(err, &exit):
		return fmt.Errorf("%w: pass ended with exit code %d; run pass show in a terminal once, so that gpg knows your passphrase", ErrLocked, exit.ExitCode())
	case errors.As(err, &syntax), errors.As(err, &kind):
		return fmt.Errorf("%w: it was not put there by conclave", ErrDamaged)
	case expired(err):
		return ErrNotFound
	case errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: the kernel's keyring is full", ErrUnavailable)
	case errors.As(err, &path), errors.As(err, &errno):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case backend == File: // the cipher says no
		return fmt.Errorf("%w: the file is damaged, or was made with another key", ErrDamaged)
	}
	return fmt.Errorf("%w: it failed in an unknown way (%T)", ErrUnavailable, err)
}

// plainName keeps the name of an error on the session bus, and nothing that is none.
func plainName(s string) string {
	if len(s) > 100 || strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._") != "" {
		return "an error"
	}
	return s
}
