package bus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"conclave/subjects"
)

// Home is the pair of folders of an installation: its data and its configuration.
type Home struct {
	Data   string
	Config string
}

// DefaultHome returns the folders "conclave" of the XDG base directory specification, without creating them. It fails
// when the user has no home folder and a variable is unset.
func DefaultHome() (Home, error) {
	data, err := xdgFolder("XDG_DATA_HOME", ".local/share")
	if err != nil {
		return Home{}, err
	}
	config, err := xdgFolder("XDG_CONFIG_HOME", ".config")
	if err != nil {
		return Home{}, err
	}
	return Home{Data: filepath.Join(data, "conclave"), Config: filepath.Join(config, "conclave")}, nil
}

// DefaultState returns the folder "conclave" of $XDG_STATE_HOME, without creating it.
func DefaultState() (string, error) {
	state, err := xdgFolder("XDG_STATE_HOME", ".local/state")
	return filepath.Join(state, "conclave"), err
}

// xdgFolder returns the folder of an XDG variable, or fallback below the home folder when it is unset or not absolute.
func xdgFolder(variable, fallback string) (string, error) {
	if d := os.Getenv(variable); filepath.IsAbs(d) {
		return d, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("finding your home folder: %w; set %s", err, variable)
	}
	return filepath.Join(home, fallback), nil
}

// Keys is the folder of seeds.
func (h Home) Keys() Keys { return Keys{filepath.Join(h.Data, "keys")} }

// Store is the folder of the streams.
func (h Home) Store() string { return filepath.Join(h.Data, "jetstream") }

// Heads is the folder of the audit anchors. It is outside the store, so that damage to the stream shows.
func (h Home) Heads() string { return filepath.Join(h.Data, "audit", "heads") }

// Sealed is the folder of sealed audit logs.
func (h Home) Sealed() string { return filepath.Join(h.Data, "audit", "sealed") }

// Damaged is the folder of the damaged files of the current audit log, one folder for each start that found damage.
func (h Home) Damaged() string { return filepath.Join(h.Data, "audit", "damaged") }

// Pending is the file of the genesis record of the next audit log. It is written before the stream is created, so that
// a crash in between cannot leave a log with an unknown genesis.
func (h Home) Pending() string { return filepath.Join(h.Data, "audit", "genesis.next") }

// AuditStreams is where the server keeps the audit streams, a folder each.
func (h Home) AuditStreams() string {
	return filepath.Join(h.Store(), "jetstream", subjects.Audit, "streams")
}

// HashKey is the file of the key of params_hash in audit records.
func (h Home) HashKey() string { return filepath.Join(h.Data, "keys", "params.key") }

// BackupKey is the file of the key by which the installation knows the backups that it made by itself.
func (h Home) BackupKey() string { return filepath.Join(h.Data, "keys", "backup.key") }

// ModelSpeeds is the file with what was measured of models on this machine: speeds, which of them stay loaded together,
// and the self-tests of their tool calls.
func (h Home) ModelSpeeds() string { return filepath.Join(h.Data, "model-speeds.json") }

// HTTPToken is the file of the bearer token of HTTP.
func (h Home) HTTPToken() string { return filepath.Join(h.Data, "http.token") }

// HTTPSocket is the Unix socket of HTTP.
func (h Home) HTTPSocket() string { return filepath.Join(h.Data, "http.sock") }

// Logs is the folder of the log files.
func (h Home) Logs() string { return filepath.Join(h.Data, "logs") }

// BackupSocket is the Unix socket on which the running system takes part in a backup.
func (h Home) BackupSocket() string { return filepath.Join(h.Data, "backup.sock") }

// Env is the file with the variables of nats.conf for a stand-alone nats-server.
func (h Home) Env() string { return filepath.Join(h.Data, "nats.env") }

// MCP is the default folder of the working folders of MCP servers. It is not in the data folder, which no program may
// see, but beside it, so that each installation has one of its own. As root it is in /var/lib, with a name made of the
// path of the data folder: programs run as another user, who cannot reach a folder below /root.
func (h Home) MCP() string {
	data := h.Data
	if real, err := filepath.EvalSymlinks(data); err == nil { // the sandbox accepts no symlink
		data = real
	}
	if os.Geteuid() != 0 {
		return data + "-mcp"
	}
	sum := sha256.Sum256([]byte(data))
	return filepath.Join("/var/lib/conclave-mcp", filepath.Base(data)+"-"+hex.EncodeToString(sum[:8]))
}

// ErrFolderWritable means that other users may write to the data or configuration folder.
var ErrFolderWritable = errors.New("folder writable by other users")

// CreateFolders creates the folders with mode 0700; existing ones keep theirs. It writes nothing to the data of a newer
// build, see [ErrNewerData]. It denies, with [ErrFolderWritable], data and configuration folders that the group or
// other users may write: they could replace keys, anchors or the policy.
func (h Home) CreateFolders() error {
	if _, err := h.ReadVersion(); err != nil {
		return err
	}
	for _, d := range []string{h.Data, h.Config, h.Keys().Dir, h.Heads(), h.Sealed()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return fmt.Errorf("making %s: %w", d, err)
		}
	}
	for _, d := range []string{h.Data, h.Config} {
		info, err := os.Stat(d)
		if err != nil {
			return fmt.Errorf("looking at %s: %w", d, err)
		}
		if info.Mode().Perm()&0o022 != 0 {
			return fmt.Errorf("%w: %s has mode %o; run chmod 700 on it and check its files", ErrFolderWritable, d,
				info.Mode().Perm())
		}
	}
	return nil
}

// Running is the content of the run file, by which commands find the running system.
type Running struct {
	PID      int      `json:"pid"`
	URL      string   `json:"url"`
	Actors   []string `json:"actors"`             // that the process was started with; others may run elsewhere
	Restarts bool     `json:"restarts,omitempty"` // the process starts anew at [RestartSignal]
}

// RestartSignal has a process stop in order and start anew, with the settings as they are then.
const RestartSignal = syscall.SIGUSR1

// ErrInUse means that another conclave runs on the same data folder.
var ErrInUse = errors.New("another conclave is running on this data folder")

// Lock locks the data folder, without waiting, until unlock is called; ErrInUse means that another process holds it.
// Two servers on one store would destroy it. unlock also removes the run file. The folder must exist.
func (h Home) Lock() (unlock func(), err error) {
	f, err := os.OpenFile(h.lockFilePath(), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking %s: %w", h.Data, err)
	}
	if err := h.flock(f, syscall.LOCK_EX); err != nil {
		return nil, err
	}
	return func() {
		_ = os.Remove(h.runFilePath())
		unlockFile(f)
	}, nil
}

// LockForReading keeps a server from starting on the data folder until unlock is called, and writes nothing. ErrInUse
// means that one runs. Several processes may hold it. A folder without a lock file has never had a server and is not
// locked.
func (h Home) LockForReading() (unlock func(), err error) {
	f, err := os.Open(h.lockFilePath())
	if errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("locking %s: %w", h.Data, err)
	}
	if err := h.flock(f, syscall.LOCK_SH); err != nil {
		return nil, err
	}
	return func() { unlockFile(f) }, nil
}

// flock locks f, the lock file, without waiting; ErrInUse means that another process holds it. After an error f is
// closed.
func (h Home) flock(f *os.File, how int) error {
	err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
	if err == nil {
		return nil
	}
	f.Close()
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return fmt.Errorf("locking %s: %w", h.Data, err)
	}
	r, rerr := h.ReadRunning()
	if rerr != nil {
		return fmt.Errorf("%w: %s", ErrInUse, h.Data)
	}
	return fmt.Errorf("%w: process %d at %s; stop it, or use another --data folder", ErrInUse, r.PID, r.URL)
}

// unlockFile unlocks and closes f. Closing alone is not enough: a child process between fork and exec holds a copy of
// the descriptor.
func unlockFile(f *os.File) {
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN)
	f.Close()
}

func (h Home) lockFilePath() string { return filepath.Join(h.Data, "lock") }

// WriteRunning writes the run file with r and the id of this process. The caller must hold the lock, whose unlock
// removes the file.
func (h Home) WriteRunning(r Running) error {
	r.PID = os.Getpid()
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.WriteFile(h.runFilePath(), append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("writing %s: %w", h.runFilePath(), err)
	}
	return nil
}

// ErrNotRunning means that no system runs on this data folder.
var ErrNotRunning = errors.New("conclave is not running")

// ReadRunning reads the run file. The error wraps [ErrNotRunning] when there is none or no process has its id; a
// process that reuses the id of a killed one is not detected.
func (h Home) ReadRunning() (Running, error) {
	var r Running
	b, err := os.ReadFile(h.runFilePath())
	if errors.Is(err, fs.ErrNotExist) {
		return r, fmt.Errorf("%w on %s: start it with conclave up, or name a server with --server", ErrNotRunning,
			h.Data)
	}
	if err != nil {
		return r, fmt.Errorf("reading %s: %w", h.runFilePath(), err)
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("reading %s: %w", h.runFilePath(), err)
	}
	// A killed process leaves its run file behind.
	if err := syscall.Kill(r.PID, 0); errors.Is(err, syscall.ESRCH) {
		return r, fmt.Errorf("%w on %s (process %d is gone): start it with conclave up", ErrNotRunning, h.Data, r.PID)
	}
	return r, nil
}

// ErrNoRestart means that the running system must be restarted by hand.
var ErrNoRestart = errors.New("conclave cannot restart itself")

// Restart has the running system start anew, and returns when its successor has begun to. [ErrNotRunning] means that
// none runs, [ErrNoRestart] that the process does not know how, or did not do it before ctx ended.
func (h Home) Restart(ctx context.Context) error {
	r, err := h.ReadRunning()
	if err != nil {
		return err
	}
	// The holder of the lock wrote the run file: no other process gets the signal.
	switch unlock, err := h.LockForReading(); {
	case err == nil:
		unlock()
		return ErrNotRunning
	case !errors.Is(err, ErrInUse):
		return err
	case !r.Restarts:
		return ErrNoRestart
	}
	before, err := os.Stat(h.runFilePath())
	if err != nil {
		return fmt.Errorf("reading %s: %w", h.runFilePath(), err)
	}
	if err := syscall.Kill(r.PID, RestartSignal); err != nil {
		return fmt.Errorf("%w: %w", ErrNoRestart, err)
	}
	for tick := time.NewTicker(50 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return fmt.Errorf("%w: %w", ErrNoRestart, ctx.Err())
		case <-tick.C:
		}
		if now, err := os.Stat(h.runFilePath()); err == nil && !now.ModTime().Equal(before.ModTime()) {
			tick.Stop()
			return nil
		}
	}
}

func (h Home) runFilePath() string { return filepath.Join(h.Data, "run.json") }

// DefaultLeafPort is the port of the leaf nodes of a stand-alone server, on loopback.
const DefaultLeafPort = "7423"

// WriteEnv writes the variables of nats.conf for a stand-alone nats-server: public keys, address and store, nothing
// secret. It fails unless the keys of all roles, the provisioners included, exist. Values are quoted for nats.conf and
// for the shell.
func (h Home) WriteEnv(cfg ServerConfig) error {
	cfg = cfg.withDefaults()
	if err := cfg.Certificate.ensure(); err != nil {
		return err
	}
	// a stand-alone server needs a port that is known
	if host, port, _ := net.SplitHostPort(cfg.LeafListen); port == "-1" {
		cfg.LeafListen = net.JoinHostPort(host, DefaultLeafPort)
	}
	return h.writeEnv(h.Env(), cfg)
}

// writeEnv writes the variables of nats.conf to a file.
func (h Home) writeEnv(file string, cfg ServerConfig) error {
	lasting, boot := subjects.Table().Roles()
	public := map[string]string{}
	for _, r := range append(lasting, boot...) {
		p, err := h.Keys().Public(r)
		if err != nil {
			return err
		}
		public[r] = p
	}
	vars := cfg.Vars(public)
	var b strings.Builder
	b.WriteString("# Public keys, address and store for nats.conf; nothing secret. Use: set -a; . " +
		strconv.Quote(file) + "; set +a\n")
	for _, name := range subjects.Table().EnvVars() {
		b.WriteString(name + "='" + strings.ReplaceAll(vars[name], "'", `'\''`) + "'\n")
	}
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	return nil
}

// ErrOtherContext means that a nats context of our name is the user's own, or belongs to another installation.
var ErrOtherContext = errors.New("a nats context belongs to something else")

// NATSConfig returns the folder that the nats command line tool needs as XDG_CONFIG_HOME to find the contexts of h. It
// is the user's own for the default data folder, and otherwise the data folder: a temporary system leaves nothing in
// the user's home.
func (h Home) NATSConfig() (string, error) {
	usual, err := DefaultHome()
	if err != nil {
		return "", err
	}
	data, err := filepath.Abs(h.Data)
	if err != nil || data != usual.Data {
		return data, err
	}
	return xdgFolder("XDG_CONFIG_HOME", ".config")
}

// checkContext returns [ErrOtherContext] unless a context file is missing, or is one of ours, by its description, for
// this key or for one that no longer exists.
func checkContext(file, description, key string) error {
	var c struct {
		Description string `json:"description"`
		NKey        string `json:"nkey"`
	}
	b, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil || json.Unmarshal(b, &c) != nil || c.Description != description || c.NKey == "":
		return fmt.Errorf("%w: conclave did not write %s; rename that context, or start with another XDG_CONFIG_HOME",
			ErrOtherContext, file)
	}
	if _, err := os.Stat(c.NKey); err == nil && c.NKey != key {
		return fmt.Errorf("%w: %s uses the key %s of another installation; to keep both, start this one with another "+
			"XDG_CONFIG_HOME", ErrOtherContext, file, c.NKey)
	}
	return nil
}

// WriteContexts writes two contexts for the nats command line tool, "conclave" for the user and "conclave-audit" to
// read the audit log, below the folder config (see [Home.NATSConfig]), and returns their folder. ca is the authority of
// the servers at tls:// URLs. It selects the first only if none is selected. When one of that name is the user's own or
// another installation's, both are kept: the error is [ErrOtherContext].
func WriteContexts(config string, keys Keys, url, ca string) (folder string, err error) {
	folder = filepath.Join(config, "nats", "context")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", fmt.Errorf("making %s: %w", folder, err)
	}
	contexts := []struct{ name, text, role, prefix string }{
		{"conclave", "Conclave, as its user", "user", CoreAPI},
		{"conclave-audit", "Conclave's audit, read only", "auditor", AuditAPI},
	}
	for _, c := range contexts { // all of them before the first is written
		if err := checkContext(filepath.Join(folder, c.name+".json"), c.text, keys.Path(c.role)); err != nil {
			return "", err
		}
	}
	for _, c := range contexts {
		fields := map[string]string{
			"description": c.text, "url": url, "nkey": keys.Path(c.role), "jetstream_api_prefix": c.prefix,
			"inbox_prefix": subjects.CLIInboxPrefix,
		}
		if strings.Contains(url, "tls://") {
			fields["ca"] = ca
		}
		b, err := json.MarshalIndent(fields, "", "  ")
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(folder, c.name+".json"), append(b, '\n'), 0o600); err != nil {
			return "", fmt.Errorf("writing the nats context: %w", err)
		}
	}
	selected := filepath.Join(config, "nats", "context.txt")
	if _, err := os.Stat(selected); errors.Is(err, fs.ErrNotExist) {
		if err := os.WriteFile(selected, []byte("conclave"), 0o600); err != nil {
			return "", fmt.Errorf("selecting the nats context: %w", err)
		}
	}
	return folder, nil
}
