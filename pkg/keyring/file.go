package keyring

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	lib "github.com/99designs/keyring"
)

// The encrypted files are the library's: one per credential, called by its name, AES-GCM under a key that it derives from
// a passphrase with 8192 rounds of PBKDF2. That is far too little for a passphrase that a user can remember, and nobody
// could type one anyway when the system starts by itself. So the passphrase is 32 random bytes from a file that only its
// owner may read, for which the rounds do not matter.
//
// What it protects against: a copy of the folder without the key, in a backup or on a lost disk. What it does not protect
// against: somebody who runs programs as the same person, and a copy of both. The names of the credentials stand open.
//
// The library writes over the old file in place; a crash in between would leave neither value. So it writes into a folder
// aside, and the file is moved from there.

// keySize of the random key.
const keySize = 32

// files is the folder of the encrypted files.
func (c Config) files() string { return filepath.Join(c.Dir, "file") }

// readyFiles makes the folder and looks at what is there already.
func (c Config) readyFiles() error {
	if err := os.MkdirAll(c.files(), 0o700); err != nil {
		return fmt.Errorf("%w: making the folder of the encrypted files: %w", ErrUnavailable, err)
	}
	for _, dir := range []string{c.Dir, c.files()} {
		info, err := os.Stat(dir)
		if err != nil {
			return fmt.Errorf("%w: looking at the folder of the encrypted files: %w", ErrUnavailable, err)
		}
		if info.Mode().Perm()&0o077 != 0 {
			return fmt.Errorf("%w: others may look into %s (mode %o); run chmod 700 on it", ErrUnavailable, dir, info.Mode().Perm())
		}
	}
	_, err := c.readKey()
	if errors.Is(err, errNoKey) {
		return c.keyless()
	}
	return err
}

// errNoKey means that the key was not made yet, or is gone.
var errNoKey = fmt.Errorf("%w: the key of the encrypted files is not there", ErrUnavailable)

// keyless reports an error when there are files that the missing key belongs to: a new one could not read them.
func (c Config) keyless() error {
	entries, err := os.ReadDir(c.files())
	if err != nil {
		return fmt.Errorf("%w: looking into the folder of the encrypted files: %w", ErrUnavailable, err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("%w: put %s back from a backup, or remove %s and set the credentials anew", errNoKey, c.Key, c.files())
	}
	return nil
}

// readKey reads the key, and refuses one that others may read too.
func (c Config) readKey() (string, error) {
	// A link could lead to a file of others, a pipe would wait for ever.
	f, err := os.OpenFile(c.Key, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return "", errNoKey
	}
	if err != nil {
		return "", fmt.Errorf("%w: reading the key of the encrypted files: %w", ErrUnavailable, err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: reading the key of the encrypted files: %w", ErrUnavailable, err)
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%w: %s is not a regular file", ErrUnavailable, c.Key)
	case info.Mode().Perm()&0o077 != 0:
		return "", fmt.Errorf("%w: %s may be read by others (mode %o); run chmod 600 on it, and set the credentials anew if somebody has", ErrUnavailable, c.Key, info.Mode().Perm())
	}
	key, err := io.ReadAll(io.LimitReader(f, keySize+1))
	defer clear(key)
	if err != nil {
		return "", fmt.Errorf("%w: reading the key of the encrypted files: %w", ErrUnavailable, err)
	}
	if len(key) != keySize {
		return "", fmt.Errorf("%w: %s does not hold a key of %d bytes; put it back from a backup", ErrUnavailable, c.Key, keySize)
	}
	return base64.RawURLEncoding.EncodeToString(key), nil
}

// makeKey makes the key if it is not there. Of two first uses at once one wins, and both go on with its key.
func (c Config) makeKey() error {
	if _, err := c.readKey(); !errors.Is(err, errNoKey) {
		return err
	}
	if err := c.keyless(); err != nil {
		return err
	}
	key := make([]byte, keySize)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	defer clear(key)
	if err := os.MkdirAll(filepath.Dir(c.Key), 0o700); err != nil {
		return err
	}
	err := wholeFile(filepath.Dir(c.Key), key, func(aside string) error { return os.Link(aside, c.Key) })
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("making the key of the encrypted files: %w", err)
	}
	return nil
}

// passphrase is what the library asks for.
func (c Config) passphrase(string) (string, error) { return c.readKey() }

// writeFile keeps a credential: the new file or the old one, never half of either.
func (c Config) writeFile(item lib.Item) error {
	if err := c.readyFiles(); err != nil {
		return err
	}
	if err := c.makeKey(); err != nil {
		return err
	}
	aside, err := os.MkdirTemp(c.Dir, ".new-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(aside)
	staging, err := lib.Open(lib.Config{AllowedBackends: []lib.BackendType{lib.FileBackend}, FileDir: aside, FilePasswordFunc: c.passphrase})
	if err != nil {
		return err
	}
	if err := staging.Set(item); err != nil {
		return err
	}
	written := filepath.Join(aside, item.Key)
	if err := syncPath(written); err != nil {
		return err
	}
	if err := os.Rename(written, filepath.Join(c.files(), item.Key)); err != nil {
		return err
	}
	return syncPath(c.files())
}

// replaceFile writes a small file in one step.
func replaceFile(path string, data []byte) error {
	return wholeFile(filepath.Dir(path), data, func(aside string) error { return os.Rename(aside, path) })
}

// wholeFile writes data aside in dir, readable by its owner alone, and lets place put it where it belongs.
func wholeFile(dir string, data []byte, place func(aside string) error) error {
	tmp, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, werr := tmp.Write(data)
	if err := errors.Join(werr, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	if err := place(tmp.Name()); err != nil {
		return err
	}
	return syncPath(dir)
}

// syncPath brings a file or a folder to the disk itself.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
