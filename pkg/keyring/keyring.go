// Package keyring keeps credentials by name, in the keyring that the user's machine has: Secret Service, KWallet, pass,
// the kernel's, or encrypted files of our own. It is the only importer of the library that knows them all.
//
// The library blocks, for as long as a dialog waits for a password or a bus is silent. Here every call ends with its
// context. One that outlived it goes on behind the scenes, and the next call waits for it: the library does not bear two
// at once. What the library says of an error is not passed on, because parsers quote what they could not read.
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

	"conclave/pkg/keyring/internal/sessionbus"
	"conclave/pkg/seal"
	"conclave/subjects"
)

// The library is initialized by now, and has had what it looks for.
func init() { sessionbus.Restore() }

// Secret is a credential that cannot be printed.
type Secret = seal.Secret

// Errors of a keyring.
var (
	// ErrNotFound means that the keyring is open and holds no credential of this name.
	ErrNotFound = errors.New("there is no credential of this name")
	// ErrLocked means that the keyring is there, and its owner has to unlock it.
	ErrLocked = errors.New("the keyring is locked")
	// ErrUnavailable means that the keyring does not answer, or cannot be used here.
	ErrUnavailable = errors.New("the keyring is not available")
	// ErrDamaged means that what stands under this name is no credential, or another's.
	ErrDamaged = errors.New("the credential cannot be read")
	// ErrName means that a text cannot be the name of a credential.
	ErrName = errors.New("the name of a credential may hold letters, digits, - and _ only")
)

// Ring keeps credentials by name. Names are tokens, like brave_api_key; values have 1 byte to 16 KB and come back as they
// were given. It is safe for concurrent use.
type Ring interface {
	// Get reads a credential. The caller wipes it.
	Get(ctx context.Context, name string) (Secret, error)
	// Set keeps a credential, in place of an earlier one of this name.
	Set(ctx context.Context, name string, value Secret) error
	// Remove forgets a credential.
	Remove(ctx context.Context, name string) error
	// Names lists what there is, in order.
	Names(ctx context.Context) ([]string, error)
}

// CheckName reports whether name may name a credential. The error does not repeat it: a user may have typed the value
// in its place.
func CheckName(name string) error {
	if subjects.CheckToken(name) != nil {
		return ErrName
	}
	return nil
}

// ring is one keyring of the library.
type ring struct {
	cfg     Config
	backend string
	lib     lib.Keyring
	slot    chan struct{} // one call at a time
}

// Get implements [Ring].
func (r *ring) Get(ctx context.Context, name string) (Secret, error) {
	if err := CheckName(name); err != nil {
		return Secret{}, err
	}
	s, err := within(ctx, r.slot, Secret.Wipe, func() (Secret, error) {
		item, err := r.lib.Get(name)
		s := seal.NewSecret(item.Data)
		// A file that was given another's name, or an entry that somebody else put there, is not handed out.
		if err == nil && (item.Key != name || s.Check() != nil) {
			s.Wipe()
			return Secret{}, fmt.Errorf("%w: what stands under %s is not what was put there", ErrDamaged, name)
		}
		return s, err
	})
	if err != nil {
		return Secret{}, r.explain("reading "+name, err)
	}
	return s, nil
}

// Set implements [Ring].
func (r *ring) Set(ctx context.Context, name string, value Secret) error {
	if err := CheckName(name); err != nil {
		return err
	}
	if err := value.Check(); err != nil {
		return err
	}
	data := bytes.Clone(value.Reveal()) // the caller may wipe its own before the library is through
	_, err := within(ctx, r.slot, nil, func() (struct{}, error) {
		defer clear(data)
		item := lib.Item{Key: name, Data: data, Label: "Conclave: " + name}
		if r.backend == File {
			return struct{}{}, r.cfg.writeFile(item)
		}
		return struct{}{}, r.lib.Set(item)
	})
	if err != nil {
		return r.explain("keeping "+name, err)
	}
	return r.cfg.remember(r.backend)
}

// Remove implements [Ring].
func (r *ring) Remove(ctx context.Context, name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	names, err := r.Names(ctx) // not every keyring says that there was nothing to remove
	if err != nil {
		return err
	}
	if !slices.Contains(names, name) {
		return fmt.Errorf("%w: %s", ErrNotFound, name)
	}
	_, err = within(ctx, r.slot, nil, func() (struct{}, error) { return struct{}{}, r.lib.Remove(name) })
	return r.explain("removing "+name, err)
}

// Names implements [Ring]. What is no name of ours is another's and is passed over.
func (r *ring) Names(ctx context.Context) ([]string, error) {
	names, err := within(ctx, r.slot, nil, func() ([]string, error) {
		if r.backend == File { // the library takes a folder that it cannot read for an empty one
			if _, err := os.ReadDir(r.cfg.files()); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
		}
		return r.lib.Keys()
	})
	if err != nil {
		return nil, r.explain("listing the names", err)
	}
	names = slices.DeleteFunc(names, func(n string) bool { return CheckName(n) != nil })
	slices.Sort(names)
	return slices.Compact(names), nil
}

// explain makes one of our errors of the library's, with nothing in it that could be a part of a value.
func (r *ring) explain(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %s: %w", r.backend, doing, translate(r.backend, err))
}

// Config says which keyring, and where our own files are.
type Config struct {
	Backend string // one of [Backends]
	Dir     string // folder of the encrypted files, and of the note which keyring was chosen; absolute
	Key     string // file with the key of the encrypted files; absolute
	Service string // our name in keyrings that others use too; "" = conclave
}

// Names of the keyrings.
const (
	Auto          = "auto" // the first of [Order] that is there, and from the first credential on always the same
	SecretService = "secret-service"
	KWallet       = "kwallet"
	Pass          = "pass"
	File          = "file"
	KeyCtl        = "keyctl"
)

// Order is how [Auto] looks. What the desktop unlocks at login comes first, then pass where somebody has set it up, and
// the encrypted files last, which are always there. The kernel's keyring is not among them: it forgets everything when
// the machine is turned off, so nobody should have it without having asked for it.
var Order = []string{SecretService, KWallet, Pass, File}

// Backends are the values of [Config.Backend].
var Backends = append([]string{Auto}, append(slices.Clone(Order), KeyCtl)...)

// Check reports the first thing wrong with c.
func (c Config) Check() error {
	switch {
	case !slices.Contains(Backends, c.Backend):
		return fmt.Errorf("there is no keyring %q; choose from %s", c.Backend, strings.Join(Backends, ", "))
	case !filepath.IsAbs(c.Dir) || !filepath.IsAbs(c.Key):
		return errors.New("the folder and the key of the keyring must be absolute paths")
	}
	return nil
}

// UsesSessionBus reports whether a process with these arguments may talk to the desktop's session bus. It was decided
// before main began; this is for a test that holds it against the real commands.
func UsesSessionBus(args []string) bool { return sessionbus.Wanted(args) }

// EarlyFlags are the flags that the decision knows, and whether a value follows.
func EarlyFlags() map[string]bool { return sessionbus.Flags }
