package keyring

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	lib "github.com/99designs/keyring"

	"conclave/pkg/file"
)

// The encrypted files are the library's: one per credential, named after it, AES-GCM under a key that it derives from a
// passphrase with 8192 rounds of PBKDF2. That is far too few for a passphrase that a user can remember, and nobody can
// type one when the system starts by itself. So the passphrase is 32 random bytes from a file that only its owner may
// read, for which the rounds do not matter.
//
// They protect against a copy of the folder without the key, in a backup or on a lost disk. They do not protect against
// programs that run as the same user, nor against a copy of both. The names of the credentials are not encrypted.
//
// The library overwrites a file in place; a crash in between would lose both values. So it writes into a temporary
// folder, and the file is renamed from there.

// keySize is the length of the random key in bytes.
const keySize = 32

// filesDir is the folder of the encrypted files.
func (c Config) filesDir() string { return filepath.Join(c.Dir, "file") }

// prepareFiles creates the folder of the encrypted files. It denies folders and a key that other users may access, a
// key that is invalid, and files without their key. The key itself is not created: see ensureKey. The error wraps
// [ErrUnavailable].
func (c Config) prepareFiles() error {
	if err := os.MkdirAll(c.filesDir(), 0o700); err != nil {
		return fmt.Errorf("%w: creating the folder of the encrypted files: %w", ErrUnavailable, err)
	}
	for _, dir := range []string{c.Dir, c.filesDir()} {
		info, err := os.Stat(dir)
		if err != nil {
			return fmt.Errorf("%w: checking the folder of the encrypted files: %w", ErrUnavailable, err)
		}
		if info.Mode().Perm()&0o077 != 0 {
			return fmt.Errorf("%w: other users may read %s (mode %o); run chmod 700 on it", ErrUnavailable, dir,
				info.Mode().Perm())
		}
	}
	_, err := c.readKey()
	if errors.Is(err, errNoKey) {
		return c.checkNoFiles()
	}
	return err
}

// errNoKey means that the key was not created yet, or was removed.
var errNoKey = fmt.Errorf("%w: the key of the encrypted files is missing", ErrUnavailable)

// checkNoFiles returns an error that wraps errNoKey when there are encrypted files. It is called when the key is
// missing: a new key could not read them.
func (c Config) checkNoFiles() error {
	entries, err := os.ReadDir(c.filesDir())
	if err != nil {
		return fmt.Errorf("%w: reading the folder of the encrypted files: %w", ErrUnavailable, err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("%w: put %s back from a backup, or remove %s and set the credentials again", errNoKey, c.Key,
			c.filesDir())
	}
	return nil
}

// readKey returns the key, encoded as text. It denies a file that other users may access, a link, anything but a
// regular file and another size than keySize, with [ErrUnavailable], and returns [errNoKey] if there is none.
func (c Config) readKey() (string, error) {
	key, err := file.ReadPrivate(c.Key, 1<<10)
	defer clear(key)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", errNoKey
	case errors.Is(err, file.ErrShared):
		return "", fmt.Errorf("%w: %w, and set the credentials again if somebody has read it", ErrUnavailable, err)
	case err != nil:
		return "", fmt.Errorf("%w: reading the key of the encrypted files: %w", ErrUnavailable, err)
	case len(key) != keySize:
		return "", fmt.Errorf("%w: %s does not hold a key of %d bytes; put it back from a backup", ErrUnavailable,
			c.Key, keySize)
	}
	return base64.RawURLEncoding.EncodeToString(key), nil
}

// ensureKey creates the key if it is missing; two processes that do so at once use the same key. It never replaces a
// key, and denies a new one while there are encrypted files, which it could not read.
func (c Config) ensureKey() error {
	if _, err := c.readKey(); !errors.Is(err, errNoKey) {
		return err
	}
	if err := c.checkNoFiles(); err != nil {
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
	err := file.Create(c.Key, key)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("creating the key of the encrypted files: %w", err)
	}
	return nil
}

// passphrase returns the key to the library, which calls it with a prompt.
func (c Config) passphrase(string) (string, error) { return c.readKey() }

// writeFile stores a credential in its encrypted file atomically: after a crash there is the old file or the new one,
// and the new one is on disk when writeFile returns. It fails as prepareFiles and ensureKey do. item.Key must be a
// valid name.
func (c Config) writeFile(item lib.Item) error {
	if err := c.prepareFiles(); err != nil {
		return err
	}
	if err := c.ensureKey(); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(c.Dir, ".new-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	staging, err := lib.Open(lib.Config{
		AllowedBackends: []lib.BackendType{lib.FileBackend}, FileDir: tmp,
		FilePasswordFunc: c.passphrase,
	})
	if err != nil {
		return err
	}
	if err := staging.Set(item); err != nil {
		return err
	}
	written := filepath.Join(tmp, item.Key)
	if err := file.Sync(written); err != nil {
		return err
	}
	if err := os.Rename(written, filepath.Join(c.filesDir(), item.Key)); err != nil {
		return err
	}
	return file.Sync(c.filesDir())
}
