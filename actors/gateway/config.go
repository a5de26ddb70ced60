package gateway

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Config is the gateway's section of the configuration. The zero value is useful: loopback, no token.
type Config struct {
	Listen        string   `yaml:"listen"`         // host:port; port 0 takes a free one. "" = 127.0.0.1:8765
	Hosts         []string `yaml:"hosts"`          // names beside localhost under which it may be asked for
	TokenFile     string   `yaml:"token_file"`     // file with the bearer token, 0600; needed beyond loopback
	QueryTimeout  Duration `yaml:"query_timeout"`  // longest wait of POST /query; 0 = 10m
	Trail         Duration `yaml:"trail"`          // how long POST /query waits for a grade after the answer; 0 = not at all
	MaxWaiting    int      `yaml:"max_waiting"`    // questions that wait at once; 0 = 64
	MaxStreams    int      `yaml:"max_streams"`    // open streams of events; 0 = 32
	Heartbeat     Duration `yaml:"heartbeat"`      // between signs of life on a silent stream; 0 = 15s
	WriteTimeout  Duration `yaml:"write_timeout"`  // how long a client may leave what it asked for unread; 0 = 10s
	HeaderTimeout Duration `yaml:"header_timeout"` // how long a client may take to say what it wants; 0 = 5s
}

func (c Config) withDefaults() Config {
	if c.Listen == "" {
		c.Listen = "127.0.0.1:8765"
	}
	for _, d := range []struct {
		at  *Duration
		def time.Duration
	}{
		{&c.QueryTimeout, 10 * time.Minute},
		{&c.Heartbeat, 15 * time.Second},
		{&c.WriteTimeout, 10 * time.Second},
		{&c.HeaderTimeout, 5 * time.Second},
	} {
		if *d.at == 0 {
			*d.at = Duration(d.def)
		}
	}
	if c.MaxWaiting == 0 {
		c.MaxWaiting = 64
	}
	if c.MaxStreams == 0 {
		c.MaxStreams = 32
	}
	return c
}

// Validate reports everything wrong with c. Whether the token file is fit is seen at the start, when it is read.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	add := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }

	host, port, err := net.SplitHostPort(c.Listen)
	if n, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || strconv.FormatUint(n, 10) != port {
		add("listen: %q is not an address; write 127.0.0.1:8765", clip(c.Listen))
	} else if !loopback(host) {
		if _, err := netip.ParseAddr(host); err != nil {
			add("listen: %q is neither localhost nor an IP address; what a name means is decided elsewhere", clip(host))
		}
		if c.TokenFile == "" {
			add("listen: %q can be reached from other machines; write 127.0.0.1:%s, or set token_file", clip(c.Listen), port)
		}
	}
	for _, h := range c.Hosts {
		if !hostName(h) {
			add("hosts: %q is not the name of a host; write it without scheme and port, like conclave.example", clip(h))
		}
	}
	for _, d := range []struct {
		path     string
		d        Duration
		min, max time.Duration
	}{
		{"query_timeout", c.QueryTimeout, time.Millisecond, 24 * time.Hour},
		{"trail", c.Trail, 0, time.Minute},
		{"heartbeat", c.Heartbeat, time.Millisecond, 10 * time.Minute},
		{"write_timeout", c.WriteTimeout, time.Millisecond, 10 * time.Minute},
		{"header_timeout", c.HeaderTimeout, time.Millisecond, time.Minute},
	} {
		if d.d.Std() < d.min || d.d.Std() > d.max {
			add("%s: %s is not between %s and %s", d.path, d.d.Std(), d.min, d.max)
		}
	}
	for _, n := range []struct {
		path string
		n    int
	}{{"max_waiting", c.MaxWaiting}, {"max_streams", c.MaxStreams}} {
		if n.n < 1 || n.n > 4096 {
			add("%s: %d is not between 1 and 4096", n.path, n.n)
		}
	}
	return errors.Join(errs...)
}

// loopback reports whether a host can only be this machine. A name other than localhost is decided elsewhere.
func loopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback() && ip.Zone() == ""
}

// hostName reports whether h is a name or an address as it stands in a Host header, without a port.
func hostName(h string) bool {
	if _, err := netip.ParseAddr(h); err == nil {
		return true
	}
	if h == "" || len(h) > 253 || h[0] == '.' || h[len(h)-1] == '.' {
		return false
	}
	return !strings.ContainsFunc(h, func(r rune) bool {
		return r != '-' && r != '.' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
}

func portTaken(err error) bool { return errors.Is(err, syscall.EADDRINUSE) }

func notAllowed(err error) bool { return errors.Is(err, syscall.EACCES) }

// Duration is a length of time as people write it: 250ms, 10s, 1m30s. It has no sign.
type Duration time.Duration

// UnmarshalText implements [encoding.TextUnmarshaler].
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil || v < 0 {
		return fmt.Errorf("%q is not a duration; write 60s or 10m", clip(string(text)))
	}
	*d = Duration(v)
	return nil
}

// Std is d as the standard library has it.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// clip keeps what somebody else wrote short when it is shown.
func clip(s string) string {
	if len(s) > 60 {
		return s[:60] + "..."
	}
	return s
}
