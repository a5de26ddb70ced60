package keyring

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	lib "github.com/99designs/keyring"

	"conclave/pkg/file"
)

// Info names the backend that was chosen and the reason.
type Info struct {
	Backend string    `json:"backend"`
	Reason  string    `json:"why"`
	Skipped []Attempt `json:"passed,omitempty"` // backends that come before it in [Order] and were unavailable
}

// Attempt is a backend that was unavailable.
type Attempt struct {
	Backend string `json:"backend"`
	Reason  string `json:"reason"`
}

// openTimeout bounds an [Open] whose context has no deadline.
const openTimeout = 10 * time.Second

// Open opens the keyring of cfg. Only KWallet asks for a password at this point. [Auto] opens the backend that holds
// credentials already, and no other; while there is none, the first of [Order] that is available, each within half of
// the time left before the deadline of ctx (without one, 10 s), so that a silent one leaves time for the last one. The
// [Info] is filled in as far as known when Open fails.
func Open(ctx context.Context, cfg Config) (Ring, Info, error) {
	if err := cfg.Validate(); err != nil {
		return nil, Info{}, err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, openTimeout)
		defer cancel()
	}
	info, err := Inspect(cfg)
	if err != nil {
		return nil, info, err
	}
	if info.Backend != Auto {
		r, err := cfg.openBackend(ctx, info.Backend)
		if err != nil {
			return nil, info, fmt.Errorf("%s (%s): %w", info.Backend, info.Reason, err)
		}
		return r, info, nil
	}
	for _, backend := range Order {
		deadline, _ := ctx.Deadline()
		half, cancel := context.WithTimeout(ctx, time.Until(deadline)/2)
		r, err := cfg.openBackend(half, backend)
		cancel()
		if err == nil {
			info.Backend, info.Reason = backend, "the first that is available"
			return r, info, nil
		}
		info.Skipped = append(info.Skipped, Attempt{backend, trimUnavailable(err)})
	}
	last := info.Skipped[len(info.Skipped)-1]
	return nil, info, fmt.Errorf("%w, not even encrypted files: %s", ErrUnavailable, last.Reason)
}

// Inspect returns the backend that [Open] would open, without accessing it. The backend is [Auto] as long as none is
// configured and no credential was stored. It fails when the note of the chosen backend is unreadable or names no
// backend.
func Inspect(cfg Config) (Info, error) {
	if cfg.Backend != Auto {
		return Info{Backend: cfg.Backend, Reason: "set in the configuration"}, nil
	}
	chosen, err := cfg.readChosen()
	if err != nil {
		return Info{}, err
	}
	if chosen != "" {
		return Info{Backend: chosen, Reason: "credentials were stored there before"}, nil
	}
	return Info{Backend: Auto, Reason: "chosen when the first credential is stored"}, nil
}

// openBackend opens one backend, which must not be [Auto], until ctx ends. The error wraps one of the errors of this
// package and says what is missing.
func (c Config) openBackend(ctx context.Context, backend string) (*ring, error) {
	if err := c.checkBackend(ctx, backend); err != nil {
		return nil, err
	}
	service := cmp.Or(c.Service, "conclave")
	// Permissions of keys in the kernel: all for the possessor and for the same user, none for others.
	const keyPermissions = 0x3f3f0000
	r := &ring{cfg: c, backend: backend, slot: make(chan struct{}, 1)}
	opened, err := callLibrary(ctx, r.slot, nil, func() (lib.Keyring, error) {
		return lib.Open(lib.Config{
			AllowedBackends: []lib.BackendType{lib.BackendType(backend)}, ServiceName: service,
			FileDir: c.filesDir(), FilePasswordFunc: c.passphrase,
			KeyCtlScope: "user", KeyCtlPerm: keyPermissions, PassPrefix: service, KWalletAppID: service,
			KWalletFolder: service,
		})
	})
	if errors.Is(err, lib.ErrNoAvailImpl) {
		return nil, fmt.Errorf("%w: %s", ErrUnavailable, openFailures[backend])
	}
	if err != nil {
		return nil, translateError(backend, err)
	}
	r.lib = opened
	return r, nil
}

// openFailures is the likely reason, by backend, when the library fails to open it: its own error has none.
var openFailures = map[string]string{
	SecretService: "no Secret Service answers on the session bus",
	KWallet:       "no KWallet (kwalletd5) answers on the session bus",
	Pass:          "pass cannot be run",
	KeyCtl:        "the kernel does not let this process use its keyring; containers often forbid it",
	File:          "the encrypted files cannot be opened",
}

// checkBackend returns an error that wraps [ErrUnavailable] when something that backend needs is missing on this
// machine. For the backends of the desktop it connects to the session bus; for [File] it creates the folder.
func (c Config) checkBackend(ctx context.Context, backend string) error {
	known := slices.Contains(lib.AvailableBackends(), lib.BackendType(backend))
	switch {
	case !known && backend == KWallet:
		return fmt.Errorf("%w: it is turned off (DISABLE_KWALLET), or this system has none", ErrUnavailable)
	case !known:
		return fmt.Errorf("%w: this system has none", ErrUnavailable)
	case backend == SecretService || backend == KWallet:
		return connectSessionBus(ctx)
	case backend == Pass:
		return checkPass()
	case backend == File:
		return c.prepareFiles()
	}
	return nil
}

// trimUnavailable returns the text of err without the text of [ErrUnavailable] at its start.
func trimUnavailable(err error) string {
	return strings.TrimPrefix(err.Error(), ErrUnavailable.Error()+": ")
}

// checkPass returns an error that wraps [ErrUnavailable] unless pass is installed and has a store, in
// PASSWORD_STORE_DIR or ~/.password-store. It runs no program.
func checkPass() error {
	if _, err := exec.LookPath("pass"); err != nil {
		return fmt.Errorf("%w: the program pass is not installed", ErrUnavailable)
	}
	store := os.Getenv("PASSWORD_STORE_DIR")
	if store == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return fmt.Errorf("%w: there is no home folder", ErrUnavailable)
		}
		store = filepath.Join(home, ".password-store")
	}
	if _, err := os.Stat(filepath.Join(store, ".gpg-id")); err != nil {
		return fmt.Errorf("%w: pass has no store yet; run pass init", ErrUnavailable)
	}
	return nil
}

// chosenFile is the path of the note of the backend that holds the credentials. Without the note, a start without a
// desktop would look for them in the encrypted files, and report that there are none.
func (c Config) chosenFile() string { return filepath.Join(c.Dir, "backend") }

// readChosen reads the backend that was noted with [Config.writeChosen], "" if there is no note. It rejects a note that
// names no backend: with another keyring, stored credentials would seem lost.
func (c Config) readChosen() (string, error) {
	text, err := os.ReadFile(c.chosenFile())
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("%w: reading the chosen backend: %w", ErrUnavailable, err)
	}
	name := strings.TrimSpace(string(text))
	if name == Auto || !slices.Contains(Backends, name) {
		return "", fmt.Errorf("%w: %s names no keyring; write one of %s into it", ErrUnavailable, c.chosenFile(),
			strings.Join(Backends[1:], ", "))
	}
	return name, nil
}

// writeChosen notes that backend holds the credentials, for the next [Inspect], in place of an earlier or unreadable
// note. It is called after a credential is stored, and its error says so.
func (c Config) writeChosen(backend string) error {
	if before, err := c.readChosen(); err == nil && before == backend {
		return nil
	}
	err := os.MkdirAll(c.Dir, 0o700)
	if err == nil {
		err = file.Replace(c.chosenFile(), []byte(backend+"\n"))
	}
	if err != nil {
		return fmt.Errorf("the credential is stored, but not the note that it is in %s: %w", backend, err)
	}
	return nil
}
