package keyring

import (
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

	"conclave/pkg/keyring/internal/sessionbus"
)

// Info says which keyring was chosen and why.
type Info struct {
	Backend string    `json:"backend"`
	Why     string    `json:"why"`
	Passed  []Attempt `json:"passed,omitempty"` // what came before it and was not there
}

// Attempt is a keyring that could not be used.
type Attempt struct {
	Backend string `json:"backend"`
	Reason  string `json:"reason"`
}

// opening bounds an [Open] whose context has no deadline.
const opening = 10 * time.Second

// Open opens the keyring of cfg. It asks nobody for a password yet, except KWallet. With [Auto] a keyring that is silent
// takes half of the time that is left, so that the last one is reached.
func Open(ctx context.Context, cfg Config) (Ring, Info, error) {
	if err := cfg.Check(); err != nil {
		return nil, Info{}, err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, opening)
		defer cancel()
	}
	info, err := Look(cfg)
	if err != nil {
		return nil, info, err
	}
	if info.Backend != Auto {
		r, err := cfg.open(ctx, info.Backend)
		if err != nil {
			return nil, info, fmt.Errorf("%s (%s): %w", info.Backend, info.Why, err)
		}
		return r, info, nil
	}
	for _, backend := range Order {
		deadline, _ := ctx.Deadline()
		half, cancel := context.WithTimeout(ctx, time.Until(deadline)/2)
		r, err := cfg.open(half, backend)
		cancel()
		if err == nil {
			info.Backend, info.Why = backend, "the first that is there"
			return r, info, nil
		}
		info.Passed = append(info.Passed, Attempt{backend, reason(err)})
	}
	last := info.Passed[len(info.Passed)-1]
	return nil, info, fmt.Errorf("%w, not even encrypted files: %s", ErrUnavailable, last.Reason)
}

// Look says which keyring [Open] would open, without touching one: [Auto] when that is not decided yet.
func Look(cfg Config) (Info, error) {
	if cfg.Backend != Auto {
		return Info{Backend: cfg.Backend, Why: "it is set"}, nil
	}
	chosen, err := cfg.remembered()
	if err != nil {
		return Info{}, err
	}
	if chosen != "" {
		return Info{Backend: chosen, Why: "credentials were put there before"}, nil
	}
	return Info{Backend: Auto, Why: "the first credential decides"}, nil
}

// open opens one keyring.
func (c Config) open(ctx context.Context, backend string) (*ring, error) {
	if what := c.missing(backend); what != "" {
		return nil, fmt.Errorf("%w: %s", ErrUnavailable, what)
	}
	service := c.Service
	if service == "" {
		service = "conclave"
	}
	// The rights of keys in the kernel: all for whoever holds them and for the same user, none for others.
	const ours = 0x3f3f0000
	r := &ring{cfg: c, backend: backend, slot: make(chan struct{}, 1)}
	opened, err := within(ctx, r.slot, nil, func() (lib.Keyring, error) {
		return lib.Open(lib.Config{
			AllowedBackends: []lib.BackendType{lib.BackendType(backend)}, ServiceName: service,
			FileDir: c.files(), FilePasswordFunc: c.passphrase,
			KeyCtlScope: "user", KeyCtlPerm: ours, PassPrefix: service, KWalletAppID: service, KWalletFolder: service,
		})
	})
	if errors.Is(err, lib.ErrNoAvailImpl) {
		return nil, fmt.Errorf("%w: %s", ErrUnavailable, refused[backend])
	}
	if err != nil {
		return nil, translate(backend, err)
	}
	r.lib = opened
	return r, nil
}

// refused is what it means that the library could not open a keyring that it knows. It does not say more.
var refused = map[string]string{
	SecretService: "the session bus is there, but no Secret Service answers on it",
	KWallet:       "the session bus is there, but no KWallet (kwalletd5) answers on it",
	Pass:          "pass cannot be run",
	KeyCtl:        "the kernel does not let this process use its keyring; containers often forbid it",
	File:          "the encrypted files cannot be opened",
}

// missing says what a keyring lacks on this machine, "" when it can be tried.
func (c Config) missing(backend string) string {
	known := slices.Contains(lib.AvailableBackends(), lib.BackendType(backend))
	switch {
	case !known && (backend == SecretService || backend == KWallet):
		if why := sessionbus.Found().Why; why != "" {
			return why
		}
		return "it is turned off, or the session bus went away at the start"
	case !known:
		return "this system has none"
	case backend == Pass:
		return missingPass()
	case backend == File:
		if err := c.readyFiles(); err != nil {
			return reason(err)
		}
	}
	return ""
}

// reason is what an error says beside that the keyring is not available.
func reason(err error) string { return strings.TrimPrefix(err.Error(), ErrUnavailable.Error()+": ") }

// missingPass says what pass lacks: the program, or a store that somebody has set up.
func missingPass() string {
	if _, err := exec.LookPath("pass"); err != nil {
		return "the program pass is not installed"
	}
	store := os.Getenv("PASSWORD_STORE_DIR")
	if store == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "there is no home folder"
		}
		store = filepath.Join(home, ".password-store")
	}
	if _, err := os.Stat(filepath.Join(store, ".gpg-id")); err != nil {
		return "pass has no store yet; run pass init"
	}
	return ""
}

// chosen is the note which keyring has our credentials. Without it a start without a desktop would look for them in the
// files, find nothing, and say that there is no credential.
func (c Config) chosen() string { return filepath.Join(c.Dir, "backend") }

func (c Config) remembered() (string, error) {
	text, err := os.ReadFile(c.chosen())
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("%w: reading which keyring was chosen: %w", ErrUnavailable, err)
	}
	name := strings.TrimSpace(string(text))
	if name == Auto || !slices.Contains(Backends, name) {
		return "", fmt.Errorf("%w: %s names no keyring; write one of %s into it", ErrUnavailable, c.chosen(), strings.Join(Backends[1:], ", "))
	}
	return name, nil
}

func (c Config) remember(backend string) error {
	if before, err := c.remembered(); err == nil && before == backend {
		return nil
	}
	err := os.MkdirAll(c.Dir, 0o700)
	if err == nil {
		err = replaceFile(c.chosen(), []byte(backend+"\n"))
	}
	if err != nil {
		return fmt.Errorf("the credential is kept, but not the note that it is in %s: %w", backend, err)
	}
	return nil
}
