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

	"conclave/pkg/local"
	"conclave/pkg/strict"
	"conclave/pkg/text"
)

// Config is the gateway's section of the configuration, in system.yaml under gateway. Its defaults stand there as shipped.
type Config struct {
	Listen        string        `yaml:"listen"`         // host:port; port 0 takes a free one
	Hosts         []string      `yaml:"hosts"`          // names beside localhost under which it may be asked for
	TokenFile     string        `yaml:"token_file"`     // file with the bearer token, 0600; needed beyond loopback
	QueryTimeout  time.Duration `yaml:"query_timeout"`  // longest wait of POST /query
	GradeWait     time.Duration `yaml:"grade_wait"`     // how long POST /query waits for a grade after the answer; 0 = not at all
	MaxWaiting    int           `yaml:"max_waiting"`    // questions that wait at once
	MaxStreams    int           `yaml:"max_streams"`    // open streams of events
	Heartbeat     time.Duration `yaml:"heartbeat"`      // between signs of life on a silent stream
	WriteTimeout  time.Duration `yaml:"write_timeout"`  // how long a client may leave what it asked for unread
	HeaderTimeout time.Duration `yaml:"header_timeout"` // how long a client may take to say what it wants
}

// Validate reports everything wrong with c.
func (c Config) Validate() error { return c.Problems().Err() }

// Problems is everything wrong with c. Whether the token file is fit is seen at the start, when it is read.
func (c Config) Problems() (out strict.Problems) {
	host, port, err := net.SplitHostPort(c.Listen)
	if n, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || strconv.FormatUint(n, 10) != port {
		out.Add("listen", "%q is not an address; write 127.0.0.1:8765", text.Clip(c.Listen, 60))
	} else if !local.IsLocalHost(host) {
		if _, err := netip.ParseAddr(host); err != nil {
			out.Add("listen", "%q is neither localhost nor an IP address; what a name means is decided elsewhere", text.Clip(host, 60))
		}
		if c.TokenFile == "" {
			out.Add("listen", "%q can be reached from other machines; write 127.0.0.1:%s, or set token_file", text.Clip(c.Listen, 60), port)
		}
	}
	for i, h := range c.Hosts {
		if !hostName(h) {
			out.Add(fmt.Sprintf("hosts[%d]", i), "%q is not the name of a host; write it without scheme and port, like conclave.example", text.Clip(h, 60))
		}
	}
	for _, d := range []struct {
		path        string
		d, min, max time.Duration
	}{
		{"query_timeout", c.QueryTimeout, time.Millisecond, 24 * time.Hour},
		{"grade_wait", c.GradeWait, 0, time.Minute},
		{"heartbeat", c.Heartbeat, time.Millisecond, 10 * time.Minute},
		{"write_timeout", c.WriteTimeout, time.Millisecond, 10 * time.Minute},
		{"header_timeout", c.HeaderTimeout, time.Millisecond, time.Minute},
	} {
		if d.d < d.min || d.d > d.max {
			out.Add(d.path, "%s is not between %s and %s", strict.FormatDuration(d.d), strict.FormatDuration(d.min), strict.FormatDuration(d.max))
		}
	}
	for _, n := range []struct {
		path string
		n    int
	}{{"max_waiting", c.MaxWaiting}, {"max_streams", c.MaxStreams}} {
		if n.n < 1 || n.n > 4096 {
			out.Add(n.path, "%d is not between 1 and 4096", n.n)
		}
	}
	return out
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
