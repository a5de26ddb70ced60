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

// EgressLayer lets tools fetch only from hosts that the policy allows, whoever calls. It judges the address as written;
// what a name leads to, and where a page sends on, is looked at when the connection is made. The zero value allows no
// host.
type EgressLayer struct{ Fetch HostRules }

// HostRules say which hosts may be asked, as [parseHosts] reads them. What Deny names is refused whatever Allow says.
type HostRules struct{ Allow, Deny []string }

// Name implements [Layer].
func (EgressLayer) Name() string { return "egress" }

// Rules of the egress layer.
const (
	ruleNowhere    = "nowhere"     // the tool sends something out, and nothing says where to
	ruleBadHosts   = "bad_hosts"   // a host in the policy cannot be read
	ruleNoAddress  = "no_address"  // there is no address to judge
	ruleAddress    = "address"     // not an address of a page, or one that readers take in different ways
	rulePort       = "port"        // a port that is not listed with its host
	ruleNumeric    = "numeric"     // a number instead of a name, which is not listed
	RuleHost       = "host"        // the host is not among the allowed ones
	ruleDeniedHost = "denied_host" // the host is refused by name
)

// egressRules are the rules that can be watched instead of enforced, see [monitorRules].
var egressRules = []string{ruleNowhere, rulePort, ruleNumeric, RuleHost, ruleDeniedHost}

// Judge implements [Layer].
func (l EgressLayer) Judge(_ context.Context, c Call) Verdict {
	t := c.Tool
	if t.Has(Egress) && t.Query == "" && t.URL == "" && len(t.Sinks) == 0 {
		return Deny(ruleNowhere, t.Name+" sends something out, and none of its arguments is declared as what says where to; its facts have to name one")
	}
	if !t.Has(Fetch) && t.URL == "" {
		return Pass()
	}
	if t.URL == "" {
		return Deny(ruleNoAddress, t.Name+" fetches pages, and none of its arguments is declared as the address; its facts have to name one")
	}
	args, v := parseArgs(c)
	if args == nil {
		return v
	}
	given := args.Member(t.URL)
	if given == nil {
		return Deny(ruleNoAddress, fmt.Sprintf("the argument %q is missing; give it the address of a page", t.URL))
	}
	addresses, ok := given.Strings()
	if !ok || len(addresses) == 0 {
		return Deny(ruleNoAddress, fmt.Sprintf("the argument %q is not an address", t.URL), "https://...")
	}
	allow, err := parseHosts(l.Fetch.Allow)
	deny, err2 := parseHosts(l.Fetch.Deny)
	if err := errors.Join(err, err2); err != nil {
		return Deny(ruleBadHosts, fmt.Sprintf("the policy names a host that cannot be read, so nothing is fetched: %v", err))
	}
	for _, a := range addresses {
		if v := l.judgeURL(c, a, allow, deny); v.kind != verdictPass {
			return v
		}
	}
	return Pass()
}

// judgeURL judges one address.
func (l EgressLayer) judgeURL(c Call, address string, allow, deny []hostPattern) Verdict {
	at, err := parseURL(address)
	if err != nil {
		return Deny(ruleAddress, fmt.Sprintf("%s is not fetched: %v", text.OneLine(address, 60), err), "http and https addresses of pages")
	}
	if slices.ContainsFunc(deny, func(h hostPattern) bool { return h.matchAll && (h.port == 0 || h.port == at.port) || h.matches(at) }) {
		return Deny(ruleDeniedHost, "the policy refuses the host "+text.OneLine(at.host, 60))
	}
	if c.hasFullOverride() {
		return Pass()
	}
	listed := slices.ContainsFunc(allow, func(h hostPattern) bool { return h.port == at.port && h.matches(at) })
	named := slices.ContainsFunc(allow, func(h hostPattern) bool { return h.port == 0 && h.matches(at) })
	switch {
	case listed, named && (at.port == 80 || at.port == 443):
		return Pass()
	case named:
		return Deny(rulePort, fmt.Sprintf("port %d of %s is not allowed by the policy", at.port, text.OneLine(at.host, 60)), "80", "443")
	case at.ip.IsValid():
		return Deny(ruleNumeric, fmt.Sprintf("%s is a number and not a name; numbers are fetched only when the policy lists them", at.host), l.Fetch.Allow...)
	}
	return Deny(RuleHost, fmt.Sprintf("the host %s is not allowed by the policy", text.OneLine(at.host, 60)), l.Fetch.Allow...)
}

// CheckURL reports why an address may not be fetched, nil when it may. Whoever follows redirects asks at each. The watched
// rules are not enforced here either; the others are.
func (h HostRules) CheckURL(address string, watched ...string) error {
	if slices.Contains(watched, ruleDeniedHost) {
		h.Deny = nil // so that what comes after it is looked at
	}
	allow, err := parseHosts(h.Allow)
	deny, err2 := parseHosts(h.Deny)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	if v := (EgressLayer{Fetch: h}).judgeURL(Call{}, address, allow, deny); v.kind != verdictPass && !slices.Contains(watched, v.rule) {
		return errors.New(v.reason)
	}
	return nil
}

// hostPattern is one host of a policy, or several by a star. The zero value matches none.
type hostPattern struct {
	matchAll   bool       // every name of the open net: not numbers, and not names without a dot. When denied: everything
	subdomains bool       // everything below name, not name itself
	name       string     // in small letters
	ip         netip.Addr // instead of name
	port       int        // 0 = any when denied; 80 and 443 when allowed
}

// matches reports whether an address is at this host. A host that names a port is at no other.
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

// parseHosts reads the hosts of a policy: example.org is that host alone, *.example.org is everything below it and not
// itself, * is every name with a dot in it, or everything when it is denied. A number is written as it is, one of six with brackets when a port follows.
// A port behind a colon allows that port instead of 80 and 443, or denies that port alone.
func parseHosts(in []string) ([]hostPattern, error) {
	out := make([]hostPattern, 0, len(in))
	for _, s := range in {
		h, err := parseHostPattern(s)
		if err != nil {
			return nil, fmt.Errorf("%q is no host: %w; write example.org, *.example.org, * or a number, with :port if need be", text.OneLine(s, 60), err)
		}
		out = append(out, h)
	}
	return out, nil
}

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
		err = errors.New("there is nothing below a number")
	}
	return h, err
}

// endpoint is where a page is asked for.
type endpoint struct {
	host string     // in small letters, without a final dot
	ip   netip.Addr // valid when host is a number
	port int
}

// maxURLBytes is the longest address that is judged, in bytes.
const maxURLBytes = 2000

// parseURL reads an address as strictly as the client does that asks for it: what two readers could take for
// different hosts is an error.
func parseURL(raw string) (endpoint, error) {
	if len(raw) > maxURLBytes {
		return endpoint{}, fmt.Errorf("it is longer than %d bytes", maxURLBytes)
	}
	if strings.ContainsFunc(raw, func(r rune) bool { return r == '\\' || r == ' ' || !text.IsVisible(r) }) {
		return endpoint{}, errors.New("it holds blanks, backslashes or characters that are not seen")
	}
	u, err := url.Parse(raw)
	if err != nil || u.Opaque != "" || u.Scheme != "http" && u.Scheme != "https" {
		return endpoint{}, errors.New("it does not begin with http:// or https:// and a host")
	}
	_, rest, _ := strings.Cut(raw, "://")
	authority := rest
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority = rest[:i]
	}
	if u.User != nil || strings.ContainsAny(authority, "@%") {
		return endpoint{}, errors.New("it holds a name, a password or an escape before its host")
	}
	if u.Host != authority {
		return endpoint{}, errors.New("its host can be read in two ways")
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

func parsePort(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > 65535 || strconv.Itoa(n) != s {
		return 0, errors.New("its port is not a number from 1 to 65535")
	}
	return n, nil
}

// parseHostname is the one form of a name or number. A number counts in its one plain spelling only: resolvers take 127.1,
// 0x7f000001 and 2130706433 for the same machine.
func parseHostname(s string) (string, netip.Addr, error) {
	no := netip.Addr{}
	if inner, ok := strings.CutPrefix(s, "["); ok {
		ip, err := netip.ParseAddr(strings.TrimSuffix(inner, "]"))
		if err != nil || !ip.Is6() || ip.Zone() != "" || !strings.HasSuffix(inner, "]") {
			return "", no, errors.New("what stands in brackets is not a number of IPv6")
		}
		ip = ip.Unmap()
		return ip.String(), ip, nil
	}
	// The mapping turns full-width letters, circled digits and foreign dots into plain ones, as the client does.
	name, err := idna.Lookup.ToASCII(strings.TrimSuffix(s, "."))
	if err != nil || name == "" || len(name) > 253 {
		return "", no, errors.New("its host is not a name")
	}
	name = strings.ToLower(name)
	labels := strings.Split(name, ".")
	for _, l := range labels {
		if !isHostLabel(l) {
			return "", no, errors.New("its host is not a name of letters, digits and hyphens")
		}
	}
	last := labels[len(labels)-1]
	if last[0] >= '0' && last[0] <= '9' { // no name of the net ends so, and 0x7f is a number too
		ip, err := netip.ParseAddr(name)
		if err != nil || !ip.Is4() || ip.String() != name {
			return "", no, errors.New("its host is a number in an unusual spelling")
		}
		return name, ip, nil
	}
	return name, no, nil
}

// isHostLabel reports whether l may stand between the dots of a host.
func isHostLabel(l string) bool {
	if l == "" || len(l) > 63 || l[0] == '-' || l[len(l)-1] == '-' {
		return false
	}
	return !strings.ContainsFunc(l, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-'
	})
}
