package audit

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

const keySize = 32

// Hasher turns parameters into a keyed hash. A plain hash of a short input could be guessed; this one needs the key.
type Hasher struct{ key []byte }

// LoadHasher reads the key from path and makes one first if there is none. Whoever comes first makes the key;
// everybody else reads that one. A key that others may read is refused.
func LoadHasher(path string) (*Hasher, error) {
	key, err := readKey(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err = createKey(path); err == nil {
			key, err = readKey(path)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("load audit key: %w", err)
	}
	return &Hasher{key: key}, nil
}

// Hash returns the hex HMAC-SHA256 of params. Without a key it returns nothing rather than a hash that can be guessed.
func (h *Hasher) Hash(params []byte) string {
	if h == nil || len(h.key) != keySize {
		return ""
	}
	mac := hmac.New(sha256.New, h.key)
	mac.Write(params)
	return hex.EncodeToString(mac.Sum(nil))
}

func readKey(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s can be read by others: chmod 600 %s", path, path)
	}
	key, err := io.ReadAll(io.LimitReader(f, keySize+1))
	if err != nil {
		return nil, err
	}
	if len(key) != keySize {
		return nil, fmt.Errorf("%s does not hold a key of %d bytes", path, keySize)
	}
	return key, nil
}

// createKey writes the key aside and links it into place: the name never shows half a key, and a second maker loses.
func createKey(path string) error {
	key := make([]byte, keySize)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".key-*") // O_EXCL, 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(key)
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	if err := os.Link(tmp.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(filepath.Dir(path))
}
