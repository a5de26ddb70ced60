package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"conclave/actors/gateway"
	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/config"
	"conclave/pkg/audit"
	"conclave/pkg/backup"
	"conclave/pkg/bus"
	"conclave/pkg/damage"
	"conclave/subjects"
)

// Free space that the disk of the streams should have, and must have.
const (
	warnFreeSpace = 1 << 30
	minFreeSpace  = 64 << 20
)

// earliestNow has passed for sure: a clock before it is wrong.
var earliestNow = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// checkClock fails when the clock is before the release of this software.
func (x *examination) checkClock() {
	now := time.Now()
	if now.Before(earliestNow) {
		x.fail("clock", "set the clock; deadlines and the times of the audit log depend on it", "the clock says %s",
			now.Format(time.DateTime))
		return
	}
	x.ok("clock", "%s", now.Format(time.RFC3339))
}

// neverStarted reports whether there is no data folder yet.
func (x *examination) neverStarted() bool {
	_, err := os.Stat(x.Home.Data)
	return errors.Is(err, fs.ErrNotExist)
}

// checkFolders fails when other users can access the data folder or a folder in it, or can write to the config folder.
// Missing folders are created when needed; a missing data folder is a warning.
func (x *examination) checkFolders() {
	if x.neverStarted() {
		x.warn("folders", "conclave up creates it", "%s does not exist yet", x.Home.Data)
		return
	}
	before := len(x.checks)
	for _, d := range []string{
		x.Home.Data, x.Home.Config, x.Home.Keys().Dir, x.Home.Store(), x.Home.Heads(),
		x.Home.Sealed(),
	} {
		info, err := os.Stat(d)
		switch {
		case errors.Is(err, fs.ErrNotExist): // created when needed
		case err != nil:
			x.fail("folders", "make it readable for you", "%v", err)
		case !info.IsDir():
			x.fail("folders", "move it away", "%s is not a folder", d)
		case info.Mode().Perm()&0o077 != 0 && d != x.Home.Config:
			x.fail("folders", "chmod 700 "+term.ShellQuote(d), "%s is accessible to other users (%o)", d,
				info.Mode().Perm())
		case info.Mode().Perm()&0o022 != 0: // other users may read settings, not change them
			x.fail("folders", "chmod 700 "+term.ShellQuote(d), "%s is writable for other users (%o)", d,
				info.Mode().Perm())
		}
	}
	if len(x.checks) == before {
		x.ok("folders", "%s is accessible to you only", x.Home.Data)
	}
}

// checkKeys fails when the key of a lasting role cannot be read or is accessible to other users, and warns of missing
// keys, which conclave up creates. Before the first start it reports nothing.
func (x *examination) checkKeys() {
	if x.neverStarted() {
		return
	}
	lasting, _ := subjects.Table().Roles()
	var missing []string
	before := len(x.checks)
	for _, r := range lasting {
		_, err := x.Home.Keys().Public(r)
		switch {
		case errors.Is(err, bus.ErrMissingKey):
			missing = append(missing, r)
		case err != nil:
			x.fail("keys", "chmod 600 "+term.ShellQuote(x.Home.Keys().Path(r))+", or restore it from a backup", "%v",
				err)
		}
	}
	switch {
	case len(missing) > 0:
		x.warn("keys", "conclave up creates new ones", "%d of %d are missing: %s", len(missing), len(lasting),
			strings.Join(missing, ", "))
	case len(x.checks) == before:
		x.ok("keys", "%d in %s, accessible to you only", len(lasting), x.Home.Keys().Dir)
	}
}

// checkHTTP fails when other users can use the credentials of HTTP: a token file or Unix socket with another owner or
// mode. A missing token is created at the next start; without a socket the gateway does not run. Before the first start
// it reports nothing.
func (x *examination) checkHTTP(ctx context.Context, cfg config.Config) {
	if x.neverStarted() {
		return
	}
	gw := cfg.GatewayConfig(x.Home)
	switch err := gateway.CheckTokenFile(gw.TokenFile); {
	case errors.Is(err, fs.ErrNotExist):
		x.warn("http", "conclave up creates it", "there is no token file %s yet", gw.TokenFile)
		return
	case err != nil:
		x.fail("http", "rm "+term.ShellQuote(gw.TokenFile)+", then restart conclave up", "%v", err)
		return
	}
	info, err := os.Lstat(gw.Socket)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		x.ok("http", "the token is accessible to you only; the gateway is not running")
	case err != nil:
		x.fail("http", "make it accessible for you", "%v", err)
	case info.Mode().Type() != fs.ModeSocket || info.Mode().Perm()&0o077 != 0:
		x.fail("http", "restart conclave up", "%s is not a socket of mode 600 but %s", gw.Socket, info.Mode())
	default:
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		if err := x.RequestHTTP(ctx, cfg.GatewayConfig(x.Home).Socket, http.MethodGet, "/health", nil); err != nil {
			x.warn("http", "restart conclave up", "%v", err)
			return
		}
		x.ok("http", "answers on %s; the token and the socket are accessible to you only", gw.Socket)
	}
}

// checkEnvironment fails when the environment file of a stand-alone server lacks a variable or has another key than the
// key folder. Without the file the server is embedded, which is fine. Missing keys have their own check.
func (x *examination) checkEnvironment() {
	vars, err := cli.ReadEnv(x.Home.Env())
	if errors.Is(err, fs.ErrNotExist) {
		x.ok("nats.conf", "embedded; a stand-alone server needs conclave keys")
		return
	}
	if err != nil {
		x.fail("nats.conf", "make it readable for you", "%v", err)
		return
	}
	const fix = "write it again with conclave keys, then restart nats-server"
	for _, name := range subjects.Table().EnvVars() {
		if vars[name] == "" {
			x.fail("nats.conf", fix, "%s has no value for $%s", x.Home.Env(), name)
			return
		}
	}
	lasting, _ := subjects.Table().Roles()
	for _, r := range lasting {
		if key, err := x.Home.Keys().Public(r); err == nil && vars[subjects.KeyEnvVar(r)] != key {
			x.fail("nats.conf", fix, "%s has a different key for %s than the key folder", x.Home.Env(), r)
			return
		}
	}
	x.ok("nats.conf", "%s has every variable", x.Home.Env())
}

// checkDisk fails below [minFreeSpace] on the disk of the store and warns below [warnFreeSpace]: without space no audit
// record is stored, and every tool call is denied.
func (x *examination) checkDisk() {
	dir := x.Home.Store()
	for { // before the first start: the folder that exists
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	free, err := bus.FreeBytes(dir)
	text := fmt.Sprintf("%s free on the disk of %s", term.Bytes(free), x.Home.Store())
	switch {
	case err != nil:
		x.fail("disk", "check that the folder is accessible", "%s: %v", dir, err)
	case free < minFreeSpace:
		x.fail("disk", "free some space; without it every tool call is denied", "only %s", text)
	case free < warnFreeSpace:
		x.warn("disk", "free some space soon", "%s", text)
	default:
		x.ok("disk", "%s", text)
	}
}

// checkDamage fails for each damage of the data folder that the user has not accepted.
func (x *examination) checkDamage() {
	reports, err := damage.Read(x.Home.Data)
	if err != nil {
		x.fail("data", damage.Remedy, "%v", err)
	}
	for _, r := range reports {
		x.fail("data", damage.Remedy, "found %s: %s", r.Found.Local().Format(time.DateTime), r)
	}
	if err == nil && len(reports) == 0 {
		x.ok("data", "no start has found damage")
	}
}

// checkBackups warns when scheduled backups are off or the running system makes none, and when the newest is older than
// twice their interval. Before the first start it reports nothing.
func (x *examination) checkBackups(cfg config.Config) {
	if x.neverStarted() {
		return
	}
	folder, every := cfg.BackupFolder(x.Home), cfg.System.Backup.Every
	made, err := backup.ListScheduled(folder)
	running, rerr := x.Home.ReadRunning()
	switch {
	case rerr == nil && !slices.Contains(running.Actors, "broker"):
		x.warn("backup", "run conclave backup on a schedule of your own; it copies this data folder only",
			"conclave up --bus-only makes no scheduled backups")
	case err != nil:
		x.fail("backup", "make it readable for you", "%v", err)
	case every == 0:
		x.warn("backup", "set backup.every in system.yaml, or run conclave backup", "scheduled backups are off")
	case len(made) == 0:
		x.ok("backup", "none yet in %s: conclave up makes one after ten minutes; if it does not, see conclave logs",
			folder)
	case time.Since(made[0].Time) > 2*every:
		x.warn("backup", "conclave logs says why, if it runs", "the newest of %s is of %s: %s",
			term.Count(len(made), "backup"), made[0].Time.Local().Format(time.DateTime), made[0].Path)
	default:
		x.ok("backup", "%s, the newest of %s: %s", term.Count(len(made), "backup"),
			made[0].Time.Local().Format(time.DateTime), made[0].Path)
	}
}

// checkAnchors fails when the anchors of the audit log cannot be read, and warns when there are none yet. It does not
// verify the log. Before the first start it reports nothing.
func (x *examination) checkAnchors() {
	if x.neverStarted() {
		return
	}
	heads, err := audit.ReadHeads(x.Home.Heads())
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && len(heads) == 0:
		x.warn("anchors", "conclave up opens the audit log", "the audit log has no anchors yet")
	case err != nil:
		x.fail("anchors", "restore "+x.Home.Heads()+" from a backup", "%v", err)
	default:
		x.ok("anchors", "the last record of %s of the audit log is kept in a file; conclave audit verify compares them",
			term.Count(len(heads), "writer"))
	}
}

// checkNATSTool warns when the nats command line tool, which is optional, is not on PATH.
func (x *examination) checkNATSTool() {
	path, err := exec.LookPath("nats")
	if err != nil {
		x.warn("nats tool", "go install github.com/nats-io/natscli/nats@latest", "not on PATH")
		return
	}
	x.ok("nats tool", "%s", path)
}

// checkContexts warns about the first context of the nats tool that is missing or points to another server than url.
func (x *examination) checkContexts(url string) {
	config, err := x.Home.NATSConfig()
	if err != nil {
		x.warn("contexts", "set HOME", "%v", err)
		return
	}
	for _, name := range []string{"conclave", "conclave-audit"} {
		file := filepath.Join(config, "nats", "context", name+".json")
		var c struct {
			URL string `json:"url"`
		}
		data, err := os.ReadFile(file)
		if err != nil || json.Unmarshal(data, &c) != nil {
			x.warn("contexts", "conclave up writes it", "%s is missing or cannot be read", file)
			return
		}
		if c.URL != url {
			x.warn("contexts", "conclave up writes it again at its next start", "%s points to %s, the server is at %s",
				file, c.URL, url)
			return
		}
	}
	x.ok("contexts", "conclave and conclave-audit point to %s", url)
}
