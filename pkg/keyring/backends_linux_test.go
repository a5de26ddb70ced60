package keyring_test

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"conclave/pkg/keyring"
)

// The kernel's keyring passes the suite where the kernel permits it; elsewhere the error names the kernel.
func TestKernelKeyring(t *testing.T) {
	t.Parallel()
	cfg := newConfig(t, keyring.KeyCtl)
	cfg.Service = "conclave-test-" + strings.ToLower(rand.Text())
	if _, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_USER_KEYRING, true); err != nil {
		_, _, err := keyring.Open(t.Context(), cfg)
		if !errors.Is(err, keyring.ErrUnavailable) || !strings.Contains(err.Error(), "kernel") {
			t.Errorf("where the kernel forbids it: %v", err)
		}
		return
	}
	t.Cleanup(func() {
		id, err := unix.KeyctlSearch(unix.KEY_SPEC_USER_KEYRING, "keyring", cfg.Service, 0)
		if err == nil {
			_, err = unix.KeyctlInt(unix.KEYCTL_UNLINK, id, unix.KEY_SPEC_USER_KEYRING, 0, 0)
		}
		if err != nil {
			t.Error(err)
		}
	})
	r, _ := open(t, cfg)
	testRing(t, r, func() keyring.Ring { r, _ := open(t, cfg); return r })
}

// fakePass is pass without gpg: the same commands on the same files, unencrypted.
const fakePass = `#!/bin/sh
set -e
command=$1
for name; do :; done
file=$PASSWORD_STORE_DIR/$name.gpg
case $command in
show) [ -z "$(cat "$PASSWORD_STORE_DIR/locked" 2>/dev/null)" ] || exit 2; cat "$file" ;;
insert) mkdir -p "$(dirname "$file")"; cat > "$file" ;;
rm) rm "$file" ;;
*) exit 1 ;;
esac
`

func TestPassBackend(t *testing.T) {
	bin, store := t.TempDir(), t.TempDir()
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("PASSWORD_STORE_DIR", store)
	cfg := newConfig(t, keyring.Pass)
	checkUnavailable := func(text string) {
		t.Helper()
		if _, _, err := keyring.Open(t.Context(), cfg); !errors.Is(err, keyring.ErrUnavailable) ||
			!strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want %q", err, text)
		}
	}
	t.Setenv("PATH", bin)
	checkUnavailable("not installed")
	must(t, os.WriteFile(filepath.Join(bin, "pass"), []byte(fakePass), 0o700))
	checkUnavailable("pass init")
	t.Setenv("PATH", bin+":/usr/bin:/bin")
	write(t, filepath.Join(store, ".gpg-id"), []byte("me\n"))
	// Auto prefers it to the files.
	auto := cfg
	auto.Backend = keyring.Auto
	r, info := open(t, auto)
	if info.Backend != keyring.Pass {
		t.Fatalf("%+v", info)
	}
	testRing(t, r, func() keyring.Ring { r, _ := open(t, cfg); return r })

	write(t, filepath.Join(store, "locked"), []byte("yes"))
	if _, err := r.Get(t.Context(), "bytes"); !errors.Is(err, keyring.ErrLocked) ||
		!strings.Contains(err.Error(), "gpg") {
		t.Errorf("when gpg does not open it: %v", err)
	}
	must(t, os.Remove(filepath.Join(store, "locked")))
	// The error for an entry written by hand quotes nothing of it.
	write(t, filepath.Join(store, "conclave", "hand.gpg"), []byte(canary+"\n"))
	if _, err := r.Get(t.Context(), "hand"); !errors.Is(err, keyring.ErrDamaged) ||
		strings.Contains(err.Error(), "'c'") {
		t.Errorf("by hand: %v", err)
	}
}
