package audit

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

func TestHasher(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.key")
	h, err := LoadHasher(path)
	must(t, err)
	again, err := LoadHasher(path)
	must(t, err)
	one := h.Hash([]byte(`{"q":1}`))
	if len(one) != 64 || one != again.Hash([]byte(`{"q":1}`)) || one == h.Hash([]byte(`{"q":2}`)) {
		t.Fatalf("hash %q", one)
	}
	other, err := LoadHasher(filepath.Join(t.TempDir(), "audit.key"))
	must(t, err)
	if one == other.Hash([]byte(`{"q":1}`)) || one == Hash([]byte(`{"q":1}`)) {
		t.Fatal("the key does not matter")
	}
	info, err := os.Stat(path)
	must(t, err)
	if info.Mode().Perm() != 0o600 || info.Size() != keySize {
		t.Fatalf("%o, %d bytes", info.Mode().Perm(), info.Size())
	}
	if got := (&Hasher{}).Hash([]byte("x")) + (*Hasher)(nil).Hash([]byte("x")); got != "" {
		t.Fatalf("without a key it says %q", got)
	}
}

func TestConcurrentLoadHasherSharesOneKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.key")
	const n = 16
	var (
		wg     sync.WaitGroup
		hashes [n]string
	)
	for i := range n {
		wg.Go(func() {
			h, err := LoadHasher(path)
			if err != nil {
				t.Error(err)
			}
			hashes[i] = h.Hash([]byte("x"))
		})
	}
	wg.Wait()
	for _, h := range hashes {
		if h != hashes[0] {
			t.Fatal("two keys")
		}
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Fatalf("left behind: %v, %v", entries, err)
	}
}

func TestLoadHasherRejectsUnsafeKeyFile(t *testing.T) {
	key := bytes.Repeat([]byte{7}, keySize)
	for _, tc := range []struct {
		name string
		make func(path string) error
	}{
		{"readable by the group", func(p string) error { return writeMode(p, key, 0o640) }},
		{"readable by all", func(p string) error { return writeMode(p, key, 0o604) }},
		{"empty", func(p string) error { return writeMode(p, nil, 0o600) }},
		{"too short", func(p string) error { return writeMode(p, key[1:], 0o600) }},
		{"too long", func(p string) error { return writeMode(p, append(key, 1), 0o600) }},
		{"folder", func(p string) error { return os.Mkdir(p, 0o700) }},
		{"symlink", func(p string) error { return os.Symlink("/dev/zero", p) }},
		{"no folder for it", func(p string) error { return os.Remove(filepath.Dir(p)) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "sub", "audit.key")
			must(t, os.Mkdir(filepath.Dir(path), 0o700))
			must(t, tc.make(path))
			if _, err := LoadHasher(path); err == nil {
				t.Fatal("accepted")
			}
		})
	}
}

func writeMode(path string, data []byte, mode os.FileMode) error {
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}
