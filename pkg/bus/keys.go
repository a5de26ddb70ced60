package bus

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/nats-io/nkeys"

	"conclave/pkg/file"
)

// Keys is the folder of seeds, one file per role, readable by the owner only. A process reads only the files of the
// roles that it runs.
type Keys struct{ Dir string }

// ErrMissingKey means that a role has no key file yet.
var ErrMissingKey = errors.New("no key file")

// concurrentKeys is how many keys are written at once.
const concurrentKeys = 8

// Ensure creates the missing keys of roles and returns how many. It writes several at once, because each file is
// flushed to disk, and the flushes of concurrent writes are merged. It sets the mode of the key folder to 0700. It
// never rewrites an existing file, not even a damaged one, which [Keys.Seed] rejects later.
func (k Keys) Ensure(roles []string) (made int, err error) {
	if err := os.MkdirAll(k.Dir, 0o700); err != nil {
		return 0, fmt.Errorf("making the key folder: %w", err)
	}
	if err := os.Chmod(k.Dir, 0o700); err != nil {
		return 0, fmt.Errorf("restricting the key folder: %w", err)
	}
	var missing []string
	for _, r := range roles {
		switch _, err := os.Stat(k.Path(r)); {
		case errors.Is(err, fs.ErrNotExist):
			missing = append(missing, r)
		case err != nil:
			return 0, fmt.Errorf("looking for the key of %s: %w", r, err)
		}
	}
	errs, slots := make([]error, len(missing)), make(chan struct{}, concurrentKeys)
	var writers sync.WaitGroup
	for i, r := range missing {
		slots <- struct{}{}
		writers.Go(func() {
			errs[i] = k.createKey(r)
			<-slots
		})
	}
	writers.Wait()
	for _, err := range errs {
		if err == nil {
			made++
		}
	}
	return made, errors.Join(errs...)
}

// createKey creates the key of a role; an existing file is kept and no error, so that concurrent first starts share one
// complete seed. role must be a plain file name.
func (k Keys) createKey(role string) error {
	kp, err := nkeys.CreateUser()
	if err != nil {
		return fmt.Errorf("making the key of %s: %w", role, err)
	}
	defer kp.Wipe()
	seed, err := kp.Seed()
	if err != nil {
		return fmt.Errorf("making the key of %s: %w", role, err)
	}
	defer clear(seed)
	if err := file.Create(k.Path(role), append(bytes.Clone(seed), '\n')); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("writing the key of %s: %w", role, err)
	}
	return nil
}

// StagedKey is a new key of a role that is not yet in its place. The caller must call Discard.
type StagedKey struct {
	Public string
	tmp    string
	path   string
}

// Stage makes a new key for a role beside its key file, readable by the owner only. [StagedKey.Commit] puts it there.
// role must be a plain file name.
func (k Keys) Stage(role string) (StagedKey, error) {
	staged := Keys{k.Dir}
	name := "." + role + ".new-" + strconv.Itoa(os.Getpid())
	s := StagedKey{tmp: staged.Path(name), path: k.Path(role)}
	_ = os.Remove(s.tmp) // of an earlier process with this id
	if _, err := staged.Ensure([]string{name}); err != nil {
		return s, err
	}
	var err error
	s.Public, err = staged.Public(name)
	return s, err
}

// Commit replaces the key file of the role and returns its path.
func (s StagedKey) Commit() (string, error) {
	if err := os.Rename(s.tmp, s.path); err != nil {
		return s.path, err
	}
	return s.path, file.Sync(filepath.Dir(s.path))
}

// Discard removes a key that was not committed.
func (s StagedKey) Discard() { _ = os.Remove(s.tmp) }

// Remove deletes the key file of a role; without one it does nothing.
func (k Keys) Remove(role string) error {
	if err := os.Remove(k.Path(role)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Seed reads the key of a role. It denies a file that the group or other users may access, and rejects a damaged one.
// The error wraps [ErrMissingKey] when there is none. The caller may wipe the key after use.
func (k Keys) Seed(role string) (nkeys.KeyPair, error) {
	p := k.Path(role)
	info, err := os.Stat(p)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w %s: start conclave once on this machine, or copy the key here", ErrMissingKey, p)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the key of %s: %w", role, err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("key file %s is readable by other users (mode %o): run chmod 600 on it", p,
			info.Mode().Perm())
	}
	seed, err := os.ReadFile(p)
	if err != nil {
		return nil, fmt.Errorf("reading the key of %s: %w", role, err)
	}
	defer clear(seed)
	kp, err := nkeys.FromSeed(bytes.TrimSpace(seed))
	if err != nil {
		return nil, fmt.Errorf("key file %s is damaged: %w", p, err)
	}
	return kp, nil
}

// Public returns the public key of a role.
func (k Keys) Public(role string) (string, error) {
	kp, err := k.Seed(role)
	if err != nil {
		return "", err
	}
	defer kp.Wipe()
	return kp.PublicKey()
}

// Path returns the key file of a role.
func (k Keys) Path(role string) string { return filepath.Join(k.Dir, role+".nk") }
