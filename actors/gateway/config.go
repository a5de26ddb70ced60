package gateway

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"conclave/pkg/local"
	"conclave/pkg/strict"
	"conclave/pkg/text"
)

// Config is the gateway's section of the configuration, in system.yaml under gateway. Its defaults are there.
type Config struct {
	Listen       string        `yaml:"listen"`        // host:port; port 0 takes a free one
	Page         bool          `yaml:"page"`          // serve the page to browsers besides the API
	Hosts        []string      `yaml:"hosts"`         // host names accepted besides localhost
	URL          string        `yaml:"url"`           // address of a proxy, for login links; "" = that of Listen
	TokenFile    string        `yaml:"token_file"`    // file with the bearer token, mode 0600; created when missing
	Socket       string        `yaml:"socket"`        // path of the Unix socket, mode 0600; "" = none
	QueryTimeout time.Duration `yaml:"query_timeout"` // longest wait of POST /query
	// how long POST /query waits for a grade after the answer; 0 = not at all
	GradeWait      time.Duration `yaml:"grade_wait"`
	ClientInterval time.Duration `yaml:"client_interval"` // average time between questions of one client
	// interval of heartbeats on an idle stream, and of those of the agent protocol
	Heartbeat time.Duration `yaml:"heartbeat"`

	// The limits are no settings, see [Defaults].
	MaxWaiting    int           `yaml:"-"` // questions that wait at once
	MaxStreams    int           `yaml:"-"` // open event streams
	WriteTimeout  time.Duration `yaml:"-"` // timeout of a write to a client that does not read
	HeaderTimeout time.Duration `yaml:"-"` // timeout of a client's request header
}

// Defaults are the limits of the gateway. They are no settings, because they protect it from clients that ask or
// connect without end, and are far above what a user with a few programs needs.
func Defaults() Config {
	return Config{MaxWaiting: 64, MaxStreams: 32, WriteTimeout: 10 * time.Second, HeaderTimeout: 5 * time.Second}
}

// Validate reports everything wrong with c.
func (c Config) Validate() error { return c.Problems().Err() }

// Problems returns everything wrong with c: a listen address that is neither loopback nor an IP address, one beyond
// loopback without a token file, relative paths, hosts that are not host names, a URL with more than scheme, host and
// port, and durations out of range. The token file is checked only when the gateway starts.
func (c Config) Problems() (out strict.Problems) {
	host, port, err := net.SplitHostPort(c.Listen)
	if n, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || strconv.FormatUint(n, 10) != port {
		out.Add("listen", "%q is not an address; write 127.0.0.1:8765", text.Clip(c.Listen, 60))
	} else if !local.IsLocalHost(host) {
		if _, err := netip.ParseAddr(host); err != nil {
			out.Add("listen", "%q is neither localhost nor an IP address; host names are not accepted, because DNS "+
				"decides their address", text.Clip(host, 60))
		}
		if c.TokenFile == "" {
			out.Add("listen", "%q can be reached from other machines; write 127.0.0.1:%s, or set token_file",
				text.Clip(c.Listen, 60), port)
		}
	}
	for name, path := range map[string]string{"token_file": c.TokenFile, "socket": c.Socket} {
		if path != "" && !filepath.IsAbs(path) {
			out.Add(name, "%q is not an absolute path", text.Clip(path, 60))
		}
	}
	for i, h := range c.Hosts {
		if !isHostName(h) {
			out.Add(fmt.Sprintf("hosts[%d]", i), "%q is not a host name; write it without scheme and port, like "+
				"conclave.example", text.Clip(h, 60))
		}
	}
	if u, err := url.Parse(c.URL); c.URL != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" ||
		u.Host == "" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "") {
		out.Add("url", "%q is not the address of a proxy; write it like https://conclave.example:8443",
			text.Clip(c.URL, 60))
	}
	out.CheckDuration("query_timeout", c.QueryTimeout, time.Millisecond, 24*time.Hour)
	out.CheckDuration("grade_wait", c.GradeWait, 0, time.Minute)
	out.CheckDuration("client_interval", c.ClientInterval, time.Millisecond, time.Hour)
	out.CheckDuration("heartbeat", c.Heartbeat, time.Millisecond, 10*time.Minute)
	return out
}

// isHostName reports whether h is an IP address, or 1 to 253 ASCII letters, digits, hyphens and dots without a dot at
// either end. A port makes it false.
func isHostName(h string) bool {
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
