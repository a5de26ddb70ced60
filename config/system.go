package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"conclave/actors/gateway"
)

// System is the machine's own section: the bus, the disk, the log and the limits of every actor. Its defaults stand in
// the shipped system.yaml and nowhere else.
type System struct {
	Listen      string `yaml:"listen"`       // host:port of the embedded server; port 0 takes a free one
	AllowRemote bool   `yaml:"allow_remote"` // listen may leave loopback
	Sync        string `yaml:"sync"`         // "always", or how soon what is acknowledged is on the disk itself
	AuditMax    Size   `yaml:"audit_max"`
	EventMax    Size   `yaml:"event_max"`
	LogLevel    string `yaml:"log_level"` // debug, info, warn, error
	Actor       Actor  `yaml:"actor"`

	Gateway gateway.Config `yaml:"gateway"`
}

// Actor is the limits that every actor runs under.
type Actor struct {
	Concurrency  int      `yaml:"concurrency"`   // messages handled at once
	Mailbox      int      `yaml:"mailbox"`       // messages that wait
	CallTimeout  Duration `yaml:"call_timeout"`  // longest run of a tool that names no time of its own
	AuditTimeout Duration `yaml:"audit_timeout"` // longest wait for the audit to store a record
	Drain        Duration `yaml:"drain"`         // to finish what was begun
	Restarts     Restarts `yaml:"restarts"`
}

// Restarts is a restart budget: at most Intensity restarts within Period, then the actor stays down.
type Restarts struct {
	Intensity int      `yaml:"intensity"`
	Period    Duration `yaml:"period"`
}

// logLevels are the names a person may write.
var logLevels = map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}

// Level is the log level, info when it is none of the four names.
func (s System) Level() slog.Level { return logLevels[s.LogLevel] }

// Bounds of the streams. The accounts that hold them have no more room than maxStore.
const (
	minStore = 1 << 20
	maxStore = 512 << 30
)

// problem is one field whose value cannot be.
type problem struct{ path, text string }

func (p problem) Error() string { return p.path + ": " + p.text }

// Validate reports everything wrong with s.
func (s System) Validate() error {
	var errs []error
	for _, p := range s.problems() {
		errs = append(errs, p)
	}
	return errors.Join(errs...)
}

func (s System) problems() []problem {
	var out []problem
	add := func(path, format string, a ...any) { out = append(out, problem{path, fmt.Sprintf(format, a...)}) }

	if text := checkListen(s.Listen, s.AllowRemote); text != "" {
		add("listen", "%s", text)
	}
	if s.Sync != "always" {
		var d Duration
		if err := d.UnmarshalText([]byte(s.Sync)); err != nil || d <= 0 {
			add("sync", `%q is neither "always" nor a duration; write always or 10s`, s.Sync)
		}
	}
	for _, f := range []struct {
		path string
		size Size
	}{{"audit_max", s.AuditMax}, {"event_max", s.EventMax}} {
		if f.size < minStore || f.size > maxStore {
			add(f.path, "%s is not between %s and %s", f.size, Size(minStore), Size(maxStore))
		}
	}
	if _, ok := logLevels[s.LogLevel]; !ok {
		add("log_level", "%q is none of debug, info, warn, error", s.LogLevel)
	}
	for _, f := range []struct {
		path        string
		n, min, max int
	}{
		{"actor.concurrency", s.Actor.Concurrency, 1, 1 << 16},
		{"actor.mailbox", s.Actor.Mailbox, 1, 1 << 20},
		{"actor.restarts.intensity", s.Actor.Restarts.Intensity, 1, 1000},
	} {
		if f.n < f.min || f.n > f.max {
			add(f.path, "%d is not between %d and %d", f.n, f.min, f.max)
		}
	}
	for _, f := range []struct {
		path string
		d    Duration
	}{
		{"actor.call_timeout", s.Actor.CallTimeout},
		{"actor.audit_timeout", s.Actor.AuditTimeout},
		{"actor.drain", s.Actor.Drain},
		{"actor.restarts.period", s.Actor.Restarts.Period},
	} {
		if f.d < Duration(time.Millisecond) || f.d > Duration(24*time.Hour) {
			add(f.path, "%s is not between 1ms and 24h", f.d)
		}
	}
	for _, p := range problemsOf(s.Gateway.Validate()) {
		add("gateway."+p.path, "%s", p.text)
	}
	return out
}

// checkListen says what is wrong with an address to listen on, "" when nothing is. A name other than localhost is
// refused on loopback, because what it means is decided elsewhere.
func checkListen(listen string, remote bool) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Sprintf("%q is not an address; write 127.0.0.1:4222", listen)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || strconv.FormatUint(n, 10) != port {
		return fmt.Sprintf("%q is not a port between 0 and 65535", port)
	}
	if remote || host == "localhost" {
		return ""
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsLoopback() {
		return ""
	}
	return fmt.Sprintf("%q can be reached from other machines; write 127.0.0.1:%s, or set allow_remote: true", listen, port)
}

// Duration is a length of time as people write it: 250ms, 10s, 1m30s. It has no sign.
type Duration time.Duration

// UnmarshalText implements [encoding.TextUnmarshaler].
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil || v < 0 || strings.HasPrefix(string(text), "-") {
		return fmt.Errorf("%s is not a duration; write 60s or 10m", shorten(text))
	}
	*d = Duration(v)
	return nil
}

// Std is d as the standard library has it.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String is the shortest form: 1m, not 1m0s.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// Size is a number of bytes as people write it: 512MB, 1GB. Each unit is 1024 of the one before.
type Size int64

// units from small to large.
var units = []string{"B", "KB", "MB", "GB", "TB"}

// UnmarshalText implements [encoding.TextUnmarshaler]. The unit is asked for: a bare number is too easily a wrong one.
func (s *Size) UnmarshalText(text []byte) error {
	in := string(text)
	digits := strings.TrimRight(in, "BKMGT")
	for i, unit := range units {
		if in != digits+unit {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 63)
		if shift := 10 * i; err == nil && n == n<<shift>>shift && int64(n<<shift) >= 0 {
			*s = Size(n << shift)
			return nil
		}
	}
	return fmt.Errorf("%s is not a size; write 512MB or 1GB", shorten(text))
}

// String is the size in the largest unit that is exact.
func (s Size) String() string {
	i := 0
	for s != 0 && s%1024 == 0 && i+1 < len(units) {
		s, i = s/1024, i+1
	}
	return strconv.FormatInt(int64(s), 10) + units[i]
}

// shorten keeps an error about a long value short, and plain when the value is.
func shorten(text []byte) string {
	s := string(text)
	if len(s) > 40 {
		s = s[:40] + "..."
	}
	if q := strconv.Quote(s); s == "" || q != `"`+s+`"` {
		return q
	}
	return s
}
