package webclient

import (
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/idna"

	"conclave/pkg/text"
)

// MaxURL is the longest address that is read, in bytes.
const MaxURL = 2000

// Parse reads the address of a page once, strictly, into the one form that is checked, asked for and shown: scheme and
// host in small letters, no default port, no fragment. What two readers could read differently is refused. ports are
// allowed besides 80 and 443.
//
// The error is for a model or a person: it repeats nothing of what was read.
func Parse(raw string, ports ...int) (*url.URL, error) { return parse(raw, ports, Public) }

// parse is Parse with another opinion on addresses that are written as numbers.
func parse(raw string, ports []int, permitted func(netip.Addr) bool) (*url.URL, error) {
	if raw == "" || len(raw) > MaxURL || !utf8.ValidString(raw) {
		return nil, ErrAddress
	}
	for _, r := range raw {
		// Other spaces, controls, text that runs backwards and characters that are not seen.
		if r == '\\' || r == ' ' || !text.IsVisible(r) {
			return nil, ErrAddress
		}
	}
	u, err := url.Parse(raw)
	if err != nil || u.Opaque != "" || u.User != nil {
		return nil, ErrAddress
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return nil, ErrScheme
	}
	// What stands between // and the path is read by others in other ways: userinfo, escapes and zones are refused as
	// written, whatever url.Parse made of them.
	if authority := authorityOf(raw); strings.ContainsAny(authority, "@%") || authority == "" {
		return nil, ErrAddress
	}
	host, port, err := splitHost(u, permitted)
	if err != nil {
		return nil, err
	}
	if port != 0 && port != 80 && port != 443 && !slices.Contains(ports, port) {
		return nil, ErrPort
	}
	u.Host = host
	if strings.Contains(host, ":") {
		u.Host = "[" + host + "]"
	}
	if port != 0 && port != defaultPort(u.Scheme) {
		u.Host += ":" + strconv.Itoa(port)
	}
	u.Fragment, u.RawFragment = "", ""
	if u.Path == "" {
		u.Path = "/"
	}
	return u, nil
}

// authorityOf is what stands between the scheme and the path as written.
func authorityOf(raw string) string {
	_, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return ""
	}
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		rest = rest[:i]
	}
	return rest
}

func defaultPort(scheme string) int {
	if scheme == "https" {
		return 443
	}
	return 80
}

// splitHost is the host in its one form, and the port, 0 when none is written.
func splitHost(u *url.URL, permitted func(netip.Addr) bool) (host string, port int, err error) {
	if p := u.Port(); p != "" {
		port, err = strconv.Atoi(p)
		if err != nil || port < 1 || port > 65535 || strconv.Itoa(port) != p {
			return "", 0, ErrPort
		}
	} else if strings.HasSuffix(u.Host, ":") {
		return "", 0, ErrPort
	}
	name := u.Hostname()
	if strings.HasPrefix(u.Host, "[") {
		a, err := netip.ParseAddr(name)
		if err != nil || !a.Is6() || a.Zone() != "" {
			return "", 0, ErrAddress
		}
		if !permitted(a) {
			return "", 0, ErrForbidden
		}
		return a.String(), port, nil
	}
	host, err = hostName(name, permitted)
	return host, port, err
}

// hostName is the one form of a name or of an IPv4 address.
func hostName(name string, permitted func(netip.Addr) bool) (string, error) {
	if name == "" || strings.Contains(name, ":") {
		return "", ErrAddress
	}
	// Lookup's mapping turns full-width digits, circled letters and foreign dots into plain ones, so that what follows
	// sees what a resolver would.
	ascii, err := idna.Lookup.ToASCII(strings.TrimSuffix(name, "."))
	if err != nil || ascii == "" || len(ascii) > 253 {
		return "", ErrAddress
	}
	ascii = strings.ToLower(ascii)
	labels := strings.Split(ascii, ".")
	for _, l := range labels {
		if !label(l) {
			return "", ErrAddress
		}
	}
	// A host whose last part is a number is an IPv4 address to every resolver; only the one plain spelling counts.
	if last := labels[len(labels)-1]; numeric(last) {
		a, err := netip.ParseAddr(ascii)
		if err != nil || !a.Is4() || a.String() != ascii {
			return "", ErrAddress
		}
		if !permitted(a) {
			return "", ErrForbidden
		}
		return ascii, nil
	}
	if len(labels) < 2 || inside(ascii) {
		return "", ErrForbidden
	}
	if mixed(ascii) {
		return "", ErrAddress
	}
	return ascii, nil
}

// label reports whether l may stand between the dots of a host: letters, digits, hyphens inside.
func label(l string) bool {
	if l == "" || len(l) > 63 || l[0] == '-' || l[len(l)-1] == '-' {
		return false
	}
	for i := range len(l) {
		if c := l[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// numeric reports whether l is a number in any base that a resolver may know.
func numeric(l string) bool {
	digits := strings.TrimPrefix(l, "0x")
	for i := range len(digits) {
		c := digits[i]
		if c >= '0' && c <= '9' || len(digits) < len(l) && c >= 'a' && c <= 'f' {
			continue
		}
		return false
	}
	return true
}

// insideNames end names that mean something in this network or nothing at all. They are not even looked up: the question
// alone would tell the resolver.
var insideNames = []string{"localhost", "local", "localdomain", "internal", "intranet", "private", "corp", "home", "lan", "arpa", "invalid", "test", "example", "onion", "alt"}

func inside(host string) bool {
	return slices.Contains(insideNames, host[strings.LastIndexByte(host, '.')+1:])
}

// mixed reports whether a part of host mixes Latin with letters that look like it, so that a name reads as another's.
func mixed(host string) bool {
	shown, err := idna.ToUnicode(host)
	if err != nil {
		return true
	}
	for l := range strings.SplitSeq(shown, ".") {
		var latin, alike bool
		for _, r := range l {
			latin = latin || unicode.Is(unicode.Latin, r)
			alike = alike || unicode.In(r, unicode.Cyrillic, unicode.Greek, unicode.Armenian, unicode.Cherokee, unicode.Coptic, unicode.Lisu)
		}
		if latin && alike {
			return true
		}
	}
	return false
}
