// Package local decides whether a host is this machine. What is sent to this machine is private, so there is one rule
// for all who ask.
package local

import (
	"net/netip"
	"strings"
)

// IsLocalHost reports whether host, without a port, can only be this machine: localhost or a loopback address. Any other name is
// not, because what it means is decided elsewhere; nor is an address with a zone.
func IsLocalHost(host string) bool {
	if strings.ToLower(host) == "localhost" { // not EqualFold: to that a long s is an s
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Zone() == "" && ip.Unmap().IsLoopback()
}
