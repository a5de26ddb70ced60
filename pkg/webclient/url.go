package webclient

import (
	"cmp"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/idna"

	"conclave/pkg/text"
)

// MaxURL is the longest URL that is accepted, in bytes.
const MaxURL = 2000

// parseURL parses the URL of a page strictly into the one form that is checked, fetched and shown: scheme and host in
// lower case, no default port, no fragment. It is part of the SSRF gate and rejects whatever two parsers could read
// differently: more than MaxURL bytes, credentials, escapes or zones in the host, backslashes, blanks and invisible
// characters, IPv4 in any but the dotted form, single-label and internal names, labels of mixed scripts. ports are
// allowed besides 80 and 443.
//
// permitted decides about numeric addresses; names are checked when they are dialed. The error repeats nothing of the
// URL.
func parseURL(raw string, ports []int, permitted func(netip.Addr) bool) (*url.URL, error) {
	isAmbiguous := func(r rune) bool { return r == '\\' || r == ' ' || !text.IsVisible(r) }
	if raw == "" || len(raw) > MaxURL || !utf8.ValidString(raw) || strings.ContainsFunc(raw, isAmbiguous) {
		return nil, ErrAddress
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
	if authority := rawAuthority(raw); strings.ContainsAny(authority, "@%") || authority == "" {
		return nil, ErrAddress
	}
	host, port, err := parseHostPort(u, permitted)
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
	if port != 0 && port != defaultPorts[u.Scheme] {
		u.Host += ":" + strconv.Itoa(port)
	}
	u.Fragment, u.RawFragment = "", ""
	u.Path = cmp.Or(u.Path, "/")
	return u, nil
}

// rawAuthority returns the part between "://" and the path, query or fragment as written, "" without "://".
func rawAuthority(raw string) string {
	_, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return ""
	}
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		rest = rest[:i]
	}
	return rest
}

// defaultPorts are the ports of a scheme that a URL leaves out.
var defaultPorts = map[string]int{"http": 80, "https": 443}

// parseHostPort returns the canonical host, IPv6 without brackets, and the port, 0 when none is written. It rejects
// malformed ports and hosts, and denies numeric addresses that permitted denies.
func parseHostPort(u *url.URL, permitted func(netip.Addr) bool) (host string, port int, err error) {
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
	host, err = parseHostName(name, permitted)
	return host, port, err
}

// parseHostName returns the canonical form of a name or IPv4 address: lower-case ASCII without a final dot. It denies
// single-label and internal names and addresses that permitted denies with [ErrForbidden]. It rejects invalid labels,
// labels of mixed scripts, and IPv4 in any but the dotted decimal form, because resolvers accept others.
func parseHostName(name string, permitted func(netip.Addr) bool) (string, error) {
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
		if !hostLabel.MatchString(l) {
			return "", ErrAddress
		}
	}
	// A host whose last part is a number is an IPv4 address to every resolver; only the one plain spelling counts.
	if last := labels[len(labels)-1]; numericLabel.MatchString(last) {
		a, err := netip.ParseAddr(ascii)
		if err != nil || !a.Is4() || a.String() != ascii {
			return "", ErrAddress
		}
		if !permitted(a) {
			return "", ErrForbidden
		}
		return ascii, nil
	}
	if len(labels) < 2 || isInternalName(ascii) {
		return "", ErrForbidden
	}
	if mixesScripts(ascii) {
		return "", ErrAddress
	}
	return ascii, nil
}

var (
	// hostLabel matches a valid label of a host: 1 to 63 lower-case letters, digits and inner hyphens.
	hostLabel = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$`)
	// numericLabel matches a number in any base that a resolver may accept: digits, or hexadecimal after 0x.
	numericLabel = regexp.MustCompile(`^(?:0x[0-9a-f]*|[0-9]*)$`)
)

// internalDomains are top-level domains of local networks or without public hosts. They are not resolved: the query
// alone would tell the resolver.
var internalDomains = []string{
	"localhost", "local", "localdomain", "internal", "intranet", "private", "corp", "home",
	"lan", "arpa", "invalid", "test", "example", "onion", "alt",
}

func isInternalName(host string) bool {
	return slices.Contains(internalDomains, host[strings.LastIndexByte(host, '.')+1:])
}

// mixesScripts reports whether a label of host mixes Latin with look-alike letters, so that it reads as another name.
// It is true for a host that cannot be decoded. A label in one script only is not mixed.
func mixesScripts(host string) bool {
	shown, err := idna.ToUnicode(host)
	if err != nil {
		return true
	}
	for l := range strings.SplitSeq(shown, ".") {
		var latin, alike bool
		for _, r := range l {
			latin = latin || unicode.Is(unicode.Latin, r)
			alike = alike || unicode.In(r, unicode.Cyrillic, unicode.Greek, unicode.Armenian, unicode.Cherokee,
				unicode.Coptic, unicode.Lisu)
		}
		if latin && alike {
			return true
		}
	}
	return false
}
