package config

import (
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"conclave/actors/gateway"
	"conclave/pkg/bus"
	"conclave/pkg/local"
	"conclave/pkg/strict"
	"conclave/pkg/telemetry"
)

// System is the section of the bus, the disk, the log and the limits of every actor. Its defaults are in the shipped
// system.yaml.
type System struct {
	Listen      string      `yaml:"listen"`       // host:port of the embedded server; port 0 takes a free one
	AllowRemote bool        `yaml:"allow_remote"` // allow an address beyond loopback
	Sync        string      `yaml:"sync"`         // "always", or the interval of syncs to disk
	AuditMax    strict.Size `yaml:"audit_max"`
	EventMax    strict.Size `yaml:"event_max"`
	Replicas    int         `yaml:"replicas"` // of each stream: 0 = 3 in a cluster and 1 otherwise, 1 or 3
	AuditHead   AuditHead   `yaml:"audit_head"`
	Backup      Backups     `yaml:"backup"`
	LogLevel    string      `yaml:"log_level"` // debug, info, warn, error
	LogMax      strict.Size `yaml:"log_max"`   // of the log file and its predecessor each; 0 = none
	Telemetry   Telemetry   `yaml:"telemetry"`
	Machines    Machines    `yaml:"machines"`
	Actor       Actor       `yaml:"actor"`
	Broker      Broker      `yaml:"broker"`

	Gateway gateway.Config `yaml:"gateway"`
}

// Telemetry is where spans go.
type Telemetry struct {
	OTLP    string `yaml:"otlp"`    // address of a collector, "" = none
	Content bool   `yaml:"content"` // spans and debug records may hold what users and models wrote
}

// Machines is how other machines reach this one.
type Machines struct {
	Listen string `yaml:"listen"` // host:port, or "off"
	Cert   string `yaml:"cert"`   // PEM file of a certificate of the user's own; "" = one made by conclave
	Key    string `yaml:"key"`    // PEM file of its key
}

// AuditHead is where the head of the audit log is kept outside the data folder.
type AuditHead struct {
	Keyring bool   `yaml:"keyring"` // in the system keyring, where there is one
	File    string `yaml:"file"`    // absolute path of a file, "" = none
}

// Backups are the backups that the running system makes by itself.
type Backups struct {
	Every  time.Duration `yaml:"every"`  // 0 = none
	Keep   int           `yaml:"keep"`   // how many; older ones are deleted
	Folder string        `yaml:"folder"` // absolute path, "" = see [Config.BackupFolder]
}

// Broker is the settings of the broker for results and tool selection.
type Broker struct {
	ShowResult strict.Size `yaml:"show_result"` // size of a result for an agent; the rest is parked
	// of the model that selects tools or reads pages; 0 = no model is used
	ModelTimeout time.Duration `yaml:"model_timeout"`
	// discoveries, dry runs and spawn requests of one account per second
	QuestionRate int `yaml:"question_rate"`
}

// Actor is the limits that every actor runs under.
type Actor struct {
	AuditTimeout time.Duration `yaml:"audit_timeout"` // for the acknowledgement of an audit record
	Drain        time.Duration `yaml:"drain"`         // time to finish running messages
}

// logLevels are the values of log_level.
var logLevels = map[string]slog.Level{
	"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn,
	"error": slog.LevelError,
}

// Level returns the log level, info for an unknown name.
func (s System) Level() slog.Level { return logLevels[s.LogLevel] }

// Bounds of the streams. maxStore is the limit of their accounts.
const (
	minStore strict.Size = 1 << 20
	maxStore strict.Size = 512 << 30
)

// Validate returns all errors of s.
func (s System) Validate() error { return s.Problems().Err() }

// Problems returns all errors of s: invalid listen addresses, sync, log level and audit_head.file, and sizes, numbers
// and durations out of range, with those of the gateway.
func (s System) Problems() (out strict.Problems) {
	if text := checkListenAddress(s.Listen, s.AllowRemote); text != "" {
		out.Add("listen", "%s", text)
	}
	if d, err := strict.ParseDuration(s.Sync); s.Sync != "always" && (err != nil || d == 0) {
		out.Add("sync", `%q is neither "always" nor a duration; write always or 10s`, s.Sync)
	}
	for _, f := range []struct {
		path string
		size strict.Size
	}{{"audit_max", s.AuditMax}, {"event_max", s.EventMax}} {
		if f.size < minStore || f.size > maxStore {
			out.Add(f.path, "%s is not between %s and %s", f.size, minStore, maxStore)
		}
	}
	if n := s.Replicas; n != 0 && n != 1 && n != bus.ClusterServers {
		out.Add("replicas", "%d is not 0, 1 or %d", n, bus.ClusterServers)
	}
	if f := s.AuditHead.File; f != "" && !filepath.IsAbs(f) {
		out.Add("audit_head.file", "%q is not an absolute path", f)
	}
	if f := s.Backup.Folder; f != "" && !filepath.IsAbs(f) {
		out.Add("backup.folder", "%q is not an absolute path", f)
	}
	if s.Backup.Every != 0 {
		out.CheckDuration("backup.every", s.Backup.Every, time.Minute, 365*24*time.Hour)
	}
	out.CheckInt("backup.keep", s.Backup.Keep, 1, 1000)
	if m := s.Machines; m.Listen != "off" {
		if text := checkListenAddress(m.Listen, true); text != "" {
			out.Add("machines.listen", `%s; or "off"`, text)
		}
	}
	for name, f := range map[string]string{"cert": s.Machines.Cert, "key": s.Machines.Key} {
		switch {
		case (s.Machines.Cert == "") != (s.Machines.Key == ""):
			out.Add("machines."+name, "a certificate of your own needs both cert and key")
		case f != "" && !filepath.IsAbs(f):
			out.Add("machines."+name, "%q is not an absolute path", f)
		}
	}
	if n := s.Broker.ShowResult; n < 1<<10 || n > 128<<10 {
		out.Add("broker.show_result", "%s is not between 1KB and 128KB", n)
	}
	out.CheckInt("broker.question_rate", s.Broker.QuestionRate, 1, 10_000)
	out.CheckDuration("broker.model_timeout", s.Broker.ModelTimeout, 0, time.Minute)
	if _, ok := logLevels[s.LogLevel]; !ok {
		out.Add("log_level", "invalid level %q; use debug, info, warn or error", s.LogLevel)
	}
	if n := s.LogMax; n != 0 && (n < 64<<10 || n > 1<<30) {
		out.Add("log_max", "%s is neither 0 nor between 64KB and 1GB", n)
	}
	if e := s.Telemetry.OTLP; e != "" {
		if _, err := telemetry.ParseEndpoint(e); err != nil {
			out.Add("telemetry.otlp", "%q is %v", e, err)
		}
	}
	out.CheckDuration("actor.audit_timeout", s.Actor.AuditTimeout, time.Millisecond, 24*time.Hour)
	out.CheckDuration("actor.drain", s.Actor.Drain, time.Millisecond, 24*time.Hour)
	for _, p := range s.Gateway.Problems() {
		out.Add("gateway."+p.Path, "%s", p.Text)
	}
	return out
}

// checkListenAddress returns the error of a listen address host:port, "" when it is valid. Without remote it rejects
// every address beyond loopback and every name but localhost, because a name is resolved elsewhere.
func checkListenAddress(listen string, remote bool) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Sprintf("%q is not an address; write 127.0.0.1:4222", listen)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || strconv.FormatUint(n, 10) != port {
		return fmt.Sprintf("%q is not a port between 0 and 65535", port)
	}
	if remote || local.IsLocalHost(host) {
		return ""
	}
	return fmt.Sprintf("%q can be reached from other machines; write 127.0.0.1:%s, or set allow_remote: true", listen,
		port)
}
