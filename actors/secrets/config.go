package secrets

import (
	"path/filepath"
	"slices"
	"strings"
	"time"

	"conclave/pkg/keyring"
	"conclave/pkg/strict"
	"conclave/pkg/text"
)

// Config is the section secrets of the configuration.
type Config struct {
	Backend string        `yaml:"backend"` // which keyring; see [keyring.Backends]
	Timeout time.Duration `yaml:"timeout"` // longest wait for the keyring

	AuditTimeout time.Duration // how long a request waits for its audit record; not in the file
	ToolKeys     []string      // names of the credentials of tools; not in the file
	ModelKeys    []string      // names of the credentials of the model actor; not in the file
}

// maxTimeout is below the reply timeout of secret.get in the table of edges.
const maxTimeout = 25 * time.Second

// Validate reports everything wrong with c.
func (c Config) Validate() error { return c.Problems().Err() }

// Problems lists everything wrong with c: an unknown backend, and a timeout outside 1 ms to maxTimeout.
func (c Config) Problems() (out strict.Problems) {
	if !slices.Contains(keyring.Backends, c.Backend) {
		out.Add("backend", "%q is not one of %s", text.Clip(c.Backend, 60), strings.Join(keyring.Backends, ", "))
	}
	out.CheckDuration("timeout", c.Timeout, time.Millisecond, maxTimeout)
	return out
}

// Ring returns the keyring of the installation in a data folder, the same for the actor and for conclave secret.
func (c Config) Ring(data string) keyring.Config {
	return keyring.Config{
		Backend: c.Backend, Dir: filepath.Join(data, "keyring"),
		Key: filepath.Join(data, "keys", "keyring.key"),
	}
}
