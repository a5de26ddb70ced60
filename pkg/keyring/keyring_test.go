package keyring_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/pkg/keyring"
	"conclave/pkg/seal"
)

// testTimeout bounds the calls of a test.
const testTimeout = time.Minute

// canary is a value that must not appear in a file or an error.
const canary = "canary-51c0de-in-the-ring"

// newConfig returns a configuration with folders of its own.
func newConfig(t *testing.T, backend string) keyring.Config {
	t.Helper()
	dir := t.TempDir()
	return keyring.Config{
		Backend: backend, Dir: filepath.Join(dir, "keyring"),
		Key: filepath.Join(dir, "keys", "keyring.key"),
	}
}

func open(t *testing.T, cfg keyring.Config) (keyring.Ring, keyring.Info) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	r, info, err := keyring.Open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r, info
}

func secret(s string) keyring.Secret { return seal.NewSecret([]byte(s)) }

// testRing is the conformance suite of every backend. reopen opens the same keyring again, as another process would.
func testRing(t *testing.T, r keyring.Ring, reopen func() keyring.Ring) {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	wantNames := func(want ...string) {
		t.Helper()
		got, err := r.Names(ctx)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("names %v, %v, want %v", got, err, want)
		}
	}
	wantValue := func(r keyring.Ring, name string, want []byte) {
		t.Helper()
		got, err := r.Get(ctx, name)
		if err != nil || !bytes.Equal(got.Reveal(), want) {
			t.Errorf("%s is %q, %v, want %q", name, got.Reveal(), err, want)
		}
	}
	wantNames()
	if _, err := r.Get(ctx, "brave_api_key"); !errors.Is(err, keyring.ErrNotFound) {
		t.Errorf("an empty ring: %v", err)
	}
	if err := r.Remove(ctx, "brave_api_key"); !errors.Is(err, keyring.ErrNotFound) {
		t.Errorf("removing what is not there: %v", err)
	}

	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	values := map[string][]byte{
		"a": {'x'}, "line": []byte("one line\n"), "Mixed-Case_9": []byte(canary), "bytes": all,
		"long": bytes.Repeat([]byte("k"), 4096), strings.Repeat("n", 60): []byte("long name"),
		"quote": []byte(`"}\` + "\x00"),
	}
	for name, v := range values {
		own := seal.NewSecret(bytes.Clone(v))
		if err := r.Set(ctx, name, own); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		own.Wipe() // the ring must have a copy
	}
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	slices.Sort(names)
	wantNames(names...)
	for name, v := range values {
		wantValue(r, name, v)
		wantValue(reopen(), name, v)
	}

	if err := r.Set(ctx, "a", secret("second")); err != nil {
		t.Fatal(err)
	}
	wantValue(r, "a", []byte("second"))
	wantNames(names...)
	if err := r.Remove(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Get(ctx, "a"); !errors.Is(err, keyring.ErrNotFound) {
		t.Errorf("removed: %v", err)
	}

	for name, bad := range map[string]string{
		"empty": "", "a dot": "a.b", "a blank": "a b", "trick: a way up": "../a", "trick: a way down": "a/b",
		"trick: absolute": "/etc/passwd",
		"trick: an end":   "a\x00", "trick: a wildcard": "*", "trick: an escape": "%2e%2e", "trick: an option": "a\n-f",
		"trick: too long": strings.Repeat("x", 300), "trick: a value": "key=" + canary,
	} {
		_, getErr := r.Get(ctx, bad)
		for what, err := range map[string]error{
			"get": getErr, "set": r.Set(ctx, bad, secret(canary)),
			"remove": r.Remove(ctx, bad),
		} {
			if !errors.Is(err, keyring.ErrName) || strings.Contains(err.Error(), canary) {
				t.Errorf("%s of %s: %v", what, name, err)
			}
		}
	}
	for name, tt := range map[string]struct {
		value keyring.Secret
		want  error
	}{
		"empty": {secret(""), seal.ErrEmpty}, "zero": {keyring.Secret{}, seal.ErrEmpty},
		"too long": {seal.NewSecret(make([]byte, seal.MaxValue+1)), seal.ErrTooLong},
	} {
		if err := r.Set(ctx, "a", tt.value); !errors.Is(err, tt.want) {
			t.Errorf("a value that is %s: %v", name, err)
		}
	}

	// Concurrent writes: each value is stored whole.
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			name := fmt.Sprintf("many-%d", i%3)
			if err := r.Set(ctx, name, secret("value of "+name)); err != nil {
				t.Error(err)
			}
			if got, err := r.Get(ctx, name); err != nil || string(got.Reveal()) != "value of "+name {
				t.Errorf("%s: %q, %v", name, got.Reveal(), err)
			}
		})
	}
	wg.Wait()

	gone, stop := context.WithCancel(ctx)
	stop()
	if _, err := r.Get(gone, "bytes"); !errors.Is(err, keyring.ErrUnavailable) {
		t.Errorf("with a context that ended: %v", err)
	}
	if _, err := r.Names(gone); !errors.Is(err, keyring.ErrUnavailable) {
		t.Errorf("with a context that ended: %v", err)
	}
}

func TestFileBackend(t *testing.T) {
	t.Parallel()
	cfg := newConfig(t, keyring.File)
	r, info := open(t, cfg)
	if info.Backend != keyring.File || info.Reason == "" {
		t.Errorf("%+v", info)
	}
	testRing(t, r, func() keyring.Ring { r, _ := open(t, cfg); return r })
	if err := r.Set(t.Context(), "largest", seal.NewSecret(make([]byte, seal.MaxValue))); err != nil {
		t.Error(err)
	}
	checkFilesPrivate(t, filepath.Dir(cfg.Dir))
}

func TestLazyRing(t *testing.T) {
	t.Parallel()
	cfg := newConfig(t, keyring.Auto)
	testRing(t, keyring.OpenLazily(cfg), func() keyring.Ring { return keyring.OpenLazily(cfg) })
}

// checkFilesPrivate fails if other users may read a file below dir, or if a file contains a value.
func checkFilesPrivate(t *testing.T, dir string) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if p != dir && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %o", p, info.Mode().Perm())
		}
		if d.IsDir() {
			if strings.HasPrefix(d.Name(), ".new-") {
				t.Errorf("%s is left", p)
			}
			return nil
		}
		files++
		data, err := os.ReadFile(p)
		if bytes.Contains(data, []byte(canary)) || bytes.Contains(data, []byte("value of many")) {
			t.Errorf("%s can be read without the key", p)
		}
		return err
	})
	if err != nil || files < 3 {
		t.Errorf("%d files, %v", files, err)
	}
}

// Damaged or manipulated files are refused, and no error quotes the value.
func TestManipulatedFilesAreRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, cfg keyring.Config, file string)
		want error
		open bool // opening fails already
		text string
	}{
		{"as it was", func(*testing.T, keyring.Config, string) {}, nil, false, ""},
		{"the file is gone", func(t *testing.T, _ keyring.Config, f string) {
			must(t, os.Remove(f))
		}, keyring.ErrNotFound, false, ""},
		{"the file is cut", func(t *testing.T, _ keyring.Config, f string) {
			must(t, os.Truncate(f, 40))
		}, keyring.ErrDamaged, false, "damaged"},
		{"the file is empty", func(t *testing.T, _ keyring.Config, f string) {
			must(t, os.Truncate(f, 0))
		}, keyring.ErrDamaged, false, ""},
		{"the key is gone", func(t *testing.T, c keyring.Config, _ string) {
			must(t, os.Remove(c.Key))
		}, keyring.ErrUnavailable, true, "backup"},
		{"the key is short", func(t *testing.T, c keyring.Config, _ string) {
			must(t, os.Truncate(c.Key, 31))
		}, keyring.ErrUnavailable, true, "32 bytes"},
		{"another key", func(t *testing.T, c keyring.Config, _ string) {
			write(t, c.Key, bytes.Repeat([]byte{7}, 32))
		}, keyring.ErrDamaged, false, "another key"},
		{"trick: one bit changed", func(t *testing.T, _ keyring.Config, f string) {
			data, err := os.ReadFile(f)
			must(t, err)
			data[len(data)-30] ^= 1
			write(t, f, data)
		}, keyring.ErrDamaged, false, ""},
		{"trick: another's file under this name", func(t *testing.T, _ keyring.Config, f string) {
			must(t, os.Rename(filepath.Join(filepath.Dir(f), "other"), f))
		}, keyring.ErrDamaged, false, "not written by conclave"},
		{"trick: the value in the open", func(t *testing.T, _ keyring.Config, f string) {
			write(t, f, []byte(`{"Key":"token","Data":"`+canary+`"}`))
		}, keyring.ErrDamaged, false, ""},
		{"trick: a token without encryption", func(t *testing.T, _ keyring.Config, f string) {
			write(t, f, []byte("eyJhbGciOiJub25lIn0.eyJLZXkiOiJ0b2tlbiIsIkRhdGEiOiJlQT09In0."))
		}, keyring.ErrDamaged, false, ""},
		{"trick: a folder in place of the file", func(t *testing.T, _ keyring.Config, f string) {
			must(t, os.Remove(f))
			must(t, os.Mkdir(f, 0o700))
		}, keyring.ErrUnavailable, false, ""},
		{"trick: a key that others may read", func(t *testing.T, c keyring.Config, _ string) {
			must(t, os.Chmod(c.Key, 0o644))
		}, keyring.ErrUnavailable, true, "chmod 600"},
		{"trick: a key that is a link", func(t *testing.T, c keyring.Config, _ string) {
			must(t, os.Rename(c.Key, c.Key+".real"))
			must(t, os.Symlink(c.Key+".real", c.Key))
		}, keyring.ErrUnavailable, true, ""},
		{"trick: a folder that others may look into", func(t *testing.T, c keyring.Config, _ string) {
			must(t, os.Chmod(c.Dir, 0o755))
		}, keyring.ErrUnavailable, true, "chmod 700"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := newConfig(t, keyring.File)
			r, _ := open(t, cfg)
			for _, name := range []string{"token", "other"} {
				must(t, r.Set(t.Context(), name, secret(canary)))
			}
			tt.do(t, cfg, filepath.Join(cfg.Dir, "file", "token"))
			r, _, err := keyring.Open(t.Context(), cfg)
			if (err != nil) != tt.open {
				t.Fatalf("opening: %v", err)
			}
			if err == nil {
				var got keyring.Secret
				got, err = r.Get(t.Context(), "token")
				if tt.want != nil && got.Reveal() != nil {
					t.Errorf("it returns %q", got.Reveal())
				}
			}
			if tt.want == nil && err != nil || tt.want != nil &&
				(!errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text)) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "canary") {
				t.Errorf("the error quotes it: %v", err)
			}
		})
	}
}

// A credential that cannot be written is refused, and the earlier value stays.
func TestFailedWriteKeepsEarlierValue(t *testing.T) {
	t.Parallel()
	cfg := newConfig(t, keyring.File)
	r, _ := open(t, cfg)
	must(t, r.Set(t.Context(), "token", secret("first")))
	// No temporary folder can be created: there is a file in place of the folder.
	must(t, os.Rename(cfg.Dir, cfg.Dir+".away"))
	write(t, cfg.Dir, nil)
	if err := r.Set(t.Context(), "token", secret(canary)); !errors.Is(err, keyring.ErrUnavailable) ||
		strings.Contains(err.Error(), canary) {
		t.Errorf("kept without a folder: %v", err)
	}
	must(t, os.Remove(cfg.Dir))
	must(t, os.Rename(cfg.Dir+".away", cfg.Dir))
	if got, err := r.Get(t.Context(), "token"); err != nil || string(got.Reveal()) != "first" {
		t.Errorf("%q, %v", got.Reveal(), err)
	}
}

// With auto the first stored credential chooses the backend; when that backend is unavailable later, no other is
// opened.
func TestAutoKeepsChosenBackend(t *testing.T) {
	t.Parallel()
	cfg := newConfig(t, keyring.Auto)
	if info, err := keyring.Inspect(cfg); err != nil || info.Backend != keyring.Auto {
		t.Fatalf("%+v, %v", info, err)
	}
	r, info := open(t, cfg)
	if info.Backend != keyring.File || len(info.Skipped) != 3 {
		t.Fatalf("%+v", info)
	}
	for _, p := range info.Skipped {
		if p.Reason == "" || strings.Contains(p.Reason, keyring.ErrUnavailable.Error()) {
			t.Errorf("%s is skipped because of %q", p.Backend, p.Reason)
		}
	}
	must(t, r.Set(t.Context(), "token", secret(canary)))
	if info, err := keyring.Inspect(cfg); err != nil || info.Backend != keyring.File {
		t.Errorf("%+v, %v", info, err)
	}

	// A lazy ring follows a backend that another process chooses.
	running := keyring.OpenLazily(cfg)
	if _, err := running.Get(t.Context(), "token"); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(cfg.Dir, "backend"), []byte(keyring.SecretService+"\n"))
	_, err := running.Get(t.Context(), "token")
	if !errors.Is(err, keyring.ErrUnavailable) || !strings.Contains(err.Error(), keyring.SecretService) ||
		!strings.Contains(err.Error(), "stored there before") {
		t.Errorf("with credentials elsewhere: %v", err)
	}
	if _, _, err := keyring.Open(t.Context(), cfg); !errors.Is(err, keyring.ErrUnavailable) {
		t.Errorf("opened another: %v", err)
	}
	write(t, filepath.Join(cfg.Dir, "backend"), []byte("../../etc\n"))
	if _, _, err := keyring.Open(t.Context(), cfg); !errors.Is(err, keyring.ErrUnavailable) ||
		!strings.Contains(err.Error(), "names no keyring") {
		t.Errorf("a note that names none: %v", err)
	}
	cfg.Backend = keyring.File // set explicitly: the note does not matter
	if _, _, err := keyring.Open(t.Context(), cfg); err != nil {
		t.Error(err)
	}
}

func TestInvalidConfigIsRefused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*keyring.Config){
		"no backend":        func(c *keyring.Config) { c.Backend = "" },
		"an unknown one":    func(c *keyring.Config) { c.Backend = "wincred" },
		"no folder":         func(c *keyring.Config) { c.Dir = "" },
		"a relative folder": func(c *keyring.Config) { c.Dir = "keyring" },
		"no key":            func(c *keyring.Config) { c.Key = "" },
		"trick: a tilde":    func(c *keyring.Config) { c.Dir = "~/keyring" },
	} {
		cfg := newConfig(t, keyring.File)
		change(&cfg)
		if _, _, err := keyring.Open(t.Context(), cfg); err == nil {
			t.Errorf("%s: it opens", name)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	must(t, os.WriteFile(path, data, 0o600))
}
