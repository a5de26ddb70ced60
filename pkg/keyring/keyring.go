// Package keyring stores credentials by name in a keyring of the user's machine: Secret Service, KWallet, pass, the
// kernel's keyring, or encrypted files. It is the only importer of 99designs/keyring, which implements these backends.
//
// The library blocks for as long as a dialog waits for a password or a bus is silent. Here every call ends with its
// context; a call of the library that outlives it is abandoned, and the next call waits until it has ended, because the
// library is not safe for concurrent use. Error texts of the library are not passed on: its parsers quote their input.
//
// The session bus is dialed when a backend of the desktop is opened, with a timeout, and never when a process starts:
// package dbus beside this one replaces the D-Bus module of the library for that.
package keyring

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	lib "github.com/99designs/keyring"

	"conclave/pkg/seal"
	"conclave/subjects"
)

// Secret is a credential that cannot be printed.
type Secret = seal.Secret

// Errors of a keyring.
var (
	// ErrNotFound means that the keyring is open and holds no credential of this name.
	ErrNotFound = errors.New("credential not found")
	// ErrLocked means that the keyring exists, and the user has to unlock it.
	ErrLocked = errors.New("the keyring is locked")
	// ErrUnavailable means that the keyring does not answer, or cannot be used on this machine.
	ErrUnavailable = errors.New("the keyring is not available")
	// ErrDamaged means that the entry of this name is not a credential, or belongs to another name.
	ErrDamaged = errors.New("the credential cannot be read")
	// ErrName means that a text is not a valid credential name.
	ErrName = errors.New("the name of a credential may hold letters, digits, - and _ only")
)

// Ring stores credentials by name. Names are tokens, like brave_api_key; values have 1 byte to 16 KB and are returned
// byte for byte. It is safe for concurrent use.
type Ring interface {
	// Get reads a credential. The caller wipes it.
	Get(ctx context.Context, name string) (Secret, error)
	// Set stores a copy of value, and replaces an earlier credential of this name.
	Set(ctx context.Context, name string, value Secret) error
	// Remove deletes a credential. It fails with [ErrNotFound] if there is none.
	Remove(ctx context.Context, name string) error
	// Names lists the names of the credentials, sorted.
	Names(ctx context.Context) ([]string, error)
}

// CheckName returns [ErrName] unless name is a valid credential name. The error does not quote name: a user may have
// typed the value in its place.
func CheckName(name string) error {
	if subjects.CheckToken(name) != nil {
		return ErrName
	}
	return nil
}

// ring is the [Ring] of one backend of the library.
type ring struct {
	cfg     Config
	backend string
	lib     lib.Keyring
	slot    chan struct{} // see callLibrary
}

// callBackend runs call like [callLibrary], for the backends of the desktop after reconnecting a lost session bus.
func callBackend[T any](ctx context.Context, r *ring, discard func(T), call func() (T, error)) (T, error) {
	if r.backend == SecretService || r.backend == KWallet {
		if err := connectSessionBus(ctx); err != nil {
			return *new(T), err
		}
	}
	return callLibrary(ctx, r.slot, discard, call)
}

// Get implements [Ring]. It rejects an invalid name, and with [ErrDamaged] an entry that is empty, too long, or of
// another name.
func (r *ring) Get(ctx context.Context, name string) (Secret, error) {
	if err := CheckName(name); err != nil {
		return Secret{}, err
	}
	s, err := callBackend(ctx, r, Secret.Wipe, func() (Secret, error) {
		item, err := r.lib.Get(name)
		s := seal.NewSecret(item.Data)
		// An entry that was renamed, or written by another program, is not returned.
		if err == nil && (item.Key != name || s.Check() != nil) {
			s.Wipe()
			return Secret{}, fmt.Errorf("%w: the entry %s was not written by conclave", ErrDamaged, name)
		}
		return s, err
	})
	if err != nil {
		return Secret{}, r.wrapError("reading "+name, err)
	}
	return s, nil
}

// Set implements [Ring]. It rejects an invalid name and an empty or too long value. The backend becomes the chosen one
// of [Auto]; when only noting that fails, the credential is stored nevertheless. A Set that timed out may still take
// effect.
func (r *ring) Set(ctx context.Context, name string, value Secret) error {
	if err := CheckName(name); err != nil {
		return err
	}
	if err := value.Check(); err != nil {
		return err
	}
	data := bytes.Clone(value.Reveal()) // the caller may wipe value while an abandoned call still runs
	_, err := callBackend(ctx, r, nil, func() (struct{}, error) {
		defer clear(data)
		item := lib.Item{Key: name, Data: data, Label: "Conclave: " + name}
		if r.backend == File {
			return struct{}{}, r.cfg.writeFile(item)
		}
		return struct{}{}, r.lib.Set(item)
	})
	if err != nil {
		return r.wrapError("storing "+name, err)
	}
	return r.cfg.writeChosen(r.backend)
}

// Remove implements [Ring]. It rejects an invalid name, and lists the names first: not every backend reports that there
// was nothing to remove.
func (r *ring) Remove(ctx context.Context, name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	names, err := r.Names(ctx) // not every backend reports that there was nothing to remove
	if err != nil {
		return err
	}
	if !slices.Contains(names, name) {
		return fmt.Errorf("%w: %s", ErrNotFound, name)
	}
	_, err = callBackend(ctx, r, nil, func() (struct{}, error) { return struct{}{}, r.lib.Remove(name) })
	return r.wrapError("removing "+name, err)
}

// Names implements [Ring]. Entries whose name is not valid belong to other programs and are left out. No credential is
// read, and a missing folder of encrypted files is an empty keyring.
func (r *ring) Names(ctx context.Context) ([]string, error) {
	names, err := callBackend(ctx, r, nil, func() ([]string, error) {
		if r.backend == File { // the library treats an unreadable folder as an empty one
			if _, err := os.ReadDir(r.cfg.filesDir()); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
		}
		return r.lib.Keys()
	})
	if err != nil {
		return nil, r.wrapError("listing the names", err)
	}
	names = slices.DeleteFunc(names, func(n string) bool { return CheckName(n) != nil })
	slices.Sort(names)
	return slices.Compact(names), nil
}

// wrapError translates an error of the library and adds the backend and the operation; nil stays nil. The result quotes
// no part of a value.
func (r *ring) wrapError(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %s: %w", r.backend, doing, translateError(r.backend, err))
}

// Config selects a backend and the paths of the encrypted files.
type Config struct {
	Backend string // one of [Backends]
	Dir     string // folder of the encrypted files and of the note of the chosen backend; absolute
	Key     string // file with the key of the encrypted files; absolute
	Service string // name of this application in keyrings that it shares with others; "" = conclave
}

// Names of the backends.
const (
	Auto          = "auto" // the first of [Order] that is available; once a credential was stored, always its backend
	SecretService = "secret-service"
	KWallet       = "kwallet"
	Pass          = "pass"
	File          = "file"
	KeyCtl        = "keyctl"
)

// Order is the order in which [Auto] tries the backends: those that the desktop unlocks at login, then pass if it is
// set up, and last the encrypted files, which are always available. [KeyCtl] is not in it: the kernel's keyring is lost
// at shutdown, so it must be chosen explicitly.
var Order = []string{SecretService, KWallet, Pass, File}

// Backends are the values of [Config.Backend].
var Backends = append([]string{Auto}, append(slices.Clone(Order), KeyCtl)...)

// Validate rejects an unknown backend, and a folder or key file that is not an absolute path.
func (c Config) Validate() error {
	switch {
	case !slices.Contains(Backends, c.Backend):
		return fmt.Errorf("unknown keyring backend %q; choose from %s", c.Backend, strings.Join(Backends, ", "))
	case !filepath.IsAbs(c.Dir) || !filepath.IsAbs(c.Key):
		return errors.New("the folder and the key file of the keyring must be absolute paths")
	}
	return nil
}
