package policy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/idna"

	"conclave/pkg/text"
)

// EgressLayer denies URLs whose host the policy does not allow, for the user's own calls too. It judges the URL as
// written: the HTTP client must check the resolved address and each redirect again. The zero value allows no host.
type EgressLayer struct{ Fetch HostRules }

// HostRules list host patterns in the syntax of [parseHosts]. Deny takes precedence over Allow.
type HostRules struct{ Allow, Deny []string }

// Name implements [Layer].
func (EgressLayer) Name() string { return "egress" }

// Rules of the egress layer.
const (
	ruleNoDestination = "nowhere"     // the tool has the egress effect and declares no destination argument
	ruleBadHosts      = "bad_hosts"   // a host pattern of the policy is malformed
	ruleNoURL         = "no_address"  // the URL argument is undeclared, missing or not a string
	ruleBadURL        = "address"     // not an HTTP URL, or one that parsers interpret differently
	rulePort          = "port"        // the host is allowed, its port is not
	ruleIPLiteral     = "numeric"     // an IP address that is not listed
	RuleHost          = "host"        // the host matches no allow pattern
	ruleDeniedHost    = "denied_host" // the host matches a deny pattern
)

// egressRules are the rules that may be monitor-only, see [monitorRules].
var egressRules = []string{ruleNoDestination, rulePort, ruleIPLiteral, RuleHost, ruleDeniedHost}

// AllowListRules are the denials by the allow list, which a full override lifts: host, port and IP address.
var AllowListRules = []string{RuleHost, rulePort, ruleIPLiteral}

// Judge denies a tool that sends data out and declares no destination argument, a fetch tool whose URL argument is
// undeclared, missing or not a string or list of strings, and a call in which [EgressLayer.judgeURL] denies one URL. An
// invalid host pattern in the policy denies every URL. It never asks. A full override lifts the allow list, not the
// deny list. It passes a tool about each call of which [riskLayer] asks.
func (l EgressLayer) Judge(_ context.Context, c Call) Verdict {
	t := c.Tool
	if t.AskEach {
		return Pass()
	}
	url := t.Args.With(RoleURL)
	if t.Has(Egress) && t.Args.With(RoleQuery) == "" && url == "" && t.Args.With(RoleDestination) == "" {
		return Deny(ruleNoDestination, t.Name+" sends data out and declares no destination argument; declare a "+
			"destination, query or url among the arguments in the tool's facts")
	}
	if !t.Has(Fetch) && url == "" {
		return Pass()
	}
	if url == "" {
		return Deny(ruleNoURL, t.Name+" fetches pages and declares no URL argument; declare url in the tool's facts")
	}
	args, v := parseArgs(c)
	if args == nil {
		return v
	}
	given := args.Member(url)
	if given == nil {
		return Deny(ruleNoURL, fmt.Sprintf("the argument %q is missing; set it to the URL of a page", url))
	}
	addresses, ok := given.Strings()
	if !ok || len(addresses) == 0 {
		return Deny(ruleNoURL, fmt.Sprintf("the argument %q is not a URL", url), "https://...")
	}
	allow, err := parseHosts(l.Fetch.Allow)
	deny, err2 := parseHosts(l.Fetch.Deny)
	if err := errors.Join(err, err2); err != nil {
		return Deny(ruleBadHosts, fmt.Sprintf("the policy has an invalid host pattern, so every URL is denied: %v",
			err))
	}
	for _, a := range addresses {
		if v := l.judgeURL(c, a, allow, deny); v.kind != verdictPass {
			return v
		}
	}
	return Pass()
}

// judgeURL denies a URL that is malformed or ambiguous, whose host matches deny, or whose host and port match nothing
// in allow. IP addresses pass only when listed; ports other than 80 and 443 only when listed with the host. A full
// override of the call c replaces allow, so that every host and port passes; it never replaces deny. An empty allow
// passes nothing without it. c is used for its override alone.
func (l EgressLayer) judgeURL(c Call, address string, allow, deny []hostPattern) Verdict {
	at, err := parseURL(address)
	if err != nil {
		return Deny(ruleBadURL, fmt.Sprintf("the URL %s is rejected: %v", text.OneLine(address, 60), err),
			"http and https URLs")
	}
	if slices.ContainsFunc(deny, func(h hostPattern) bool {
		return h.matchAll && (h.port == 0 || h.port == at.port) || h.matches(at)
	}) {
		return Deny(ruleDeniedHost, "the policy denies the host "+text.OneLine(at.host, 60))
	}
	if c.HasFullOverride() {
		return Pass()
	}
	listed := slices.ContainsFunc(allow, func(h hostPattern) bool { return h.port == at.port && h.matches(at) })
	named := slices.ContainsFunc(allow, func(h hostPattern) bool { return h.port == 0 && h.matches(at) })
	switch {
	case listed, named && (at.port == 80 || at.port == 443):
		return Pass()
	case named:
		return Deny(rulePort, fmt.Sprintf("port %d of %s is not allowed by the policy", at.port,
			text.OneLine(at.host, 60)), "80", "443")
	case at.ip.IsValid():
		return Deny(ruleIPLiteral, fmt.Sprintf("%s is an IP address; the policy must list IP addresses one by one to "+
			"allow them", at.host), l.Fetch.Allow...)
	}
	return Deny(RuleHost, fmt.Sprintf("the host %s is not allowed by the policy", text.OneLine(at.host, 60)),
		l.Fetch.Allow...)
}

// CheckURL returns the reason why a URL may not be fetched, nil when it may. A client that follows redirects must call
// it for each one. It knows no override. Denials by the rules in monitorOnly are ignored; all others, a malformed URL
// above all, are enforced. An invalid host pattern in h denies every URL.
func (h HostRules) CheckURL(address string, monitorOnly ...string) error {
	if slices.Contains(monitorOnly, ruleDeniedHost) {
		h.Deny = nil // so that the rules after it are still evaluated
	}
	allow, err := parseHosts(h.Allow)
	deny, err2 := parseHosts(h.Deny)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	if v := (EgressLayer{Fetch: h}).judgeURL(Call{}, address, allow, deny); v.kind != verdictPass &&
		!slices.Contains(monitorOnly, v.rule) {
		return errors.New(v.reason)
	}
	return nil
}

// hostPattern matches one host, or several by a wildcard. The zero value matches none.
type hostPattern struct {
	matchAll   bool       // "*": every name with a dot, no IP address; in a deny list every host
	subdomains bool       // every subdomain of name, not name itself
	name       string     // in lower case
	ip         netip.Addr // instead of name
	port       int        // 0 = 80 and 443 in an allow list, every port in a deny list
}

// matches reports whether a is at this host, and at its port when the pattern has one. For "*" it applies the meaning
// of an allow list: no IP address and no name without a dot.
func (h hostPattern) matches(a endpoint) bool {
	switch {
	case h.port != 0 && h.port != a.port:
		return false
	case h.matchAll:
		return !a.ip.IsValid() && strings.Contains(a.host, ".")
	case h.ip.IsValid() || a.ip.IsValid():
		return h.ip.IsValid() && h.ip == a.ip
	case h.name == "":
		return false
	case h.subdomains:
		return strings.HasSuffix(a.host, "."+h.name)
	}
	return a.host == h.name
}

// parseHosts parses host patterns: example.org is that host alone, *.example.org every subdomain and not example.org
// itself, * every name with a dot, or every host in a deny list. An IP address stands for itself; IPv6 needs brackets
// before a port. A port after a colon allows that port instead of 80 and 443, or denies that port alone. One malformed
// pattern rejects the whole list. An empty list matches no host.
func parseHosts(in []string) ([]hostPattern, error) {
	out := make([]hostPattern, 0, len(in))
	for _, s := range in {
		h, err := parseHostPattern(s)
		if err != nil {
			return nil, fmt.Errorf("%q is not a host pattern: %w; write example.org, *.example.org, * or an IP "+
				"address, with :port for another port", text.OneLine(s, 60), err)
		}
		out = append(out, h)
	}
	return out, nil
}

// parseHostPattern parses one pattern of [parseHosts]. It rejects schemes, paths, user names, inner wildcards, zones,
// subdomains of an IP address, ports outside of 1 to 65535, and every name that [parseHostname] rejects.
func parseHostPattern(s string) (h hostPattern, err error) {
	if ip, err := netip.ParseAddr(s); err == nil && ip.Zone() == "" {
		return hostPattern{ip: ip.Unmap()}, nil
	}
	name, port, hasPort := s, "", false
	if i := strings.LastIndexByte(s, ':'); i > strings.LastIndexByte(s, ']') {
		name, port, hasPort = s[:i], s[i+1:], true
	}
	if hasPort {
		if h.port, err = parsePort(port); err != nil {
			return hostPattern{}, err
		}
	}
	if name == "*" {
		h.matchAll = true
		return h, nil
	}
	below, sub := strings.CutPrefix(name, "*.")
	h.subdomains = sub
	h.name, h.ip, err = parseHostname(below)
	if err == nil && sub && h.ip.IsValid() {
		err = errors.New("an IP address has no subdomains")
	}
	return h, err
}

// endpoint is the host and port of a URL.
type endpoint struct {
	host string     // in lower case, without a final dot
	ip   netip.Addr // valid when host is an IP address
	port int
}

// maxURLBytes is the longest URL that is accepted, in bytes.
const maxURLBytes = 2000

// parseURL returns the endpoint of a URL and is the SSRF gate of the egress layer: it rejects every URL in which two
// parsers could find different hosts (user info, escapes, backslashes, spaces, invisible characters), every scheme but
// http and https, and URLs over maxURLBytes. Without a port it returns that of the scheme. It does not resolve names.
func parseURL(raw string) (endpoint, error) {
	if len(raw) > maxURLBytes {
		return endpoint{}, fmt.Errorf("it is longer than %d bytes", maxURLBytes)
	}
	if strings.ContainsFunc(raw, func(r rune) bool { return r == '\\' || r == ' ' || !text.IsVisible(r) }) {
		return endpoint{}, errors.New("it contains spaces, backslashes or invisible characters")
	}
	u, err := url.Parse(raw)
	if err != nil || u.Opaque != "" || u.Scheme != "http" && u.Scheme != "https" {
		return endpoint{}, errors.New("it does not start with http:// or https:// and a host")
	}
	_, rest, _ := strings.Cut(raw, "://")
	authority := rest
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority = rest[:i]
	}
	if u.User != nil || strings.ContainsAny(authority, "@%") {
		return endpoint{}, errors.New("it contains a user name, a password or an escape in its host")
	}
	if u.Host != authority {
		return endpoint{}, errors.New("its host is ambiguous")
	}
	at := endpoint{port: 80}
	if u.Scheme == "https" {
		at.port = 443
	}
	name := u.Host
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, ']') {
		if at.port, err = parsePort(name[i+1:]); err != nil {
			return endpoint{}, err
		}
		name = name[:i]
	}
	at.host, at.ip, err = parseHostname(name)
	return at, err
}

// parsePort parses a decimal port from 1 to 65535. It rejects signs and leading zeros.
func parsePort(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > 65535 || strconv.Itoa(n) != s {
		return 0, errors.New("its port is not a number from 1 to 65535")
	}
	return n, nil
}

// parseHostname returns the canonical form of a host: a lower-case ASCII name and the zero Addr, or an IP address as
// text and as Addr. IPv6 must be in brackets. It rejects empty names, names over 253 bytes, characters other than
// letters, digits and hyphens after IDNA, and IPv4 addresses in any but dotted decimal form, because resolvers read
// 127.1, 0x7f000001 and 2130706433 as the same address.
func parseHostname(s string) (string, netip.Addr, error) {
	none := netip.Addr{}
	if inner, ok := strings.CutPrefix(s, "["); ok {
		ip, err := netip.ParseAddr(strings.TrimSuffix(inner, "]"))
		if err != nil || !ip.Is6() || ip.Zone() != "" || !strings.HasSuffix(inner, "]") {
			return "", none, errors.New("the text in brackets is not an IPv6 address")
		}
		ip = ip.Unmap()
		return ip.String(), ip, nil
	}
	// IDNA maps full-width letters, circled digits and other full stops to ASCII, as the HTTP client does.
	name, err := idna.Lookup.ToASCII(strings.TrimSuffix(s, "."))
	if err != nil || name == "" || len(name) > 253 {
		return "", none, errors.New("its host is not a valid name")
	}
	name = strings.ToLower(name)
	labels := strings.Split(name, ".")
	for _, l := range labels {
		if !isHostLabel(l) {
			return "", none, errors.New("its host contains characters other than letters, digits and hyphens")
		}
	}
	last := labels[len(labels)-1]
	if last[0] >= '0' && last[0] <= '9' { // no top-level domain starts with a digit, and 0x7f is a number
		ip, err := netip.ParseAddr(name)
		if err != nil || !ip.Is4() || ip.String() != name {
			return "", none, errors.New("its host is an IP address in a non-standard notation")
		}
		return name, ip, nil
	}
	return name, none, nil
}

// isHostLabel reports whether l is a valid label of a host name. l must be in lower case.
func isHostLabel(l string) bool {
	if l == "" || len(l) > 63 || l[0] == '-' || l[len(l)-1] == '-' {
		return false
	}
	return !strings.ContainsFunc(l, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-'
	})
}
