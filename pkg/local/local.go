// Package local decides whether a host counts as this machine. It is a security decision: a listener on this machine, a
// Host header that names it and a model server on it need no further permission, so every caller uses this one rule,
// and a host in doubt does not count.
package local

import (
	"net/netip"
	"strings"
)

// IsLocalHost reports whether host can only be this machine: localhost in any case, or a loopback IP address, also one
// mapped into IPv6. It denies every other name, because a resolver outside this program decides what it means, and it
// denies "", the unspecified address, short and octal forms of IPv4, and a zone, a port or brackets. The caller must
// pass the host alone.
func IsLocalHost(host string) bool {
	if strings.ToLower(host) == "localhost" { // not EqualFold, which folds U+017F to s
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Zone() == "" && ip.Unmap().IsLoopback()
}
