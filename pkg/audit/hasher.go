package audit

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"sync"

	"conclave/pkg/file"
)

const keySize = 32

// Hasher computes keyed hashes of parameters. A plain hash of a short input could be found by guessing the input.
type Hasher struct {
	key  []byte
	macs sync.Pool // of hash.Hash with the key, for reuse
}

// LoadHasher reads the key of 32 bytes from path, and creates it first if the file does not exist; its folder must
// exist. Concurrent callers get the same key. It denies a key file that is a link or not regular, has another size, or
// that other users may access.
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

// Hash returns the hex HMAC-SHA256 of params. A Hasher without a key returns "" rather than a hash that can be guessed.
func (h *Hasher) Hash(params []byte) string {
	if h == nil || len(h.key) != keySize {
		return ""
	}
	mac, ok := h.macs.Get().(hash.Hash)
	if !ok {
		mac = hmac.New(sha256.New, h.key)
	}
	defer h.macs.Put(mac)
	mac.Reset()
	mac.Write(params)
	var sum [sha256.Size]byte
	mac.Sum(sum[:0])
	return hexHash(sum)
}

// readKey reads a key file and denies what [LoadHasher] denies. The error wraps [fs.ErrNotExist] when there is none.
func readKey(path string) ([]byte, error) {
	key, err := file.ReadPrivate(path, 1<<10)
	switch {
	case err != nil:
		return nil, err
	case len(key) != keySize:
		return nil, fmt.Errorf("%s is not a key of %d bytes", path, keySize)
	}
	return key, nil
}

// createKey writes a random key to path; a path that exists is kept and no error. The key is durable when it returns.
func createKey(path string) error {
	key := make([]byte, keySize)
	_, _ = rand.Read(key) // never fails
	if err := file.Create(path, key); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
