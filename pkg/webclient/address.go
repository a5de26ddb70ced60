package webclient

import (
	"net/netip"

	"conclave/pkg/local"
)

// deniedPrefixes are the addresses that the SSRF gate denies: this machine, its networks, tunnels, documentation
// ranges, and addresses that embed another address, because they lead to that one.
var deniedPrefixes = mustParsePrefixes(
	"0.0.0.0/8",        // this network; Linux connects it to loopback
	"10.0.0.0/8",       // private
	"100.64.0.0/10",    // shared by carriers; metadata of some clouds
	"127.0.0.0/8",      // loopback
	"168.63.129.16/32", // the host of a virtual machine in one cloud: public by its number only
	"169.254.0.0/16",   // link-local; metadata of most clouds
	"172.16.0.0/12",    // private
	"192.0.0.0/24",     // protocol assignments; metadata of one cloud
	"192.0.2.0/24",     // documents
	"192.88.99.0/24",   // relays of 6to4
	"192.168.0.0/16",   // private
	"198.18.0.0/15",    // benchmarks
	"198.51.100.0/24",  // documents
	"203.0.113.0/24",   // documents
	"224.0.0.0/4",      // multicast
	"240.0.0.0/4",      // reserved, and broadcast
	"::/96",            // unspecified, loopback, and IPv4 inside IPv6 as it once was
	"::ffff:0:0/96",    // IPv4 inside IPv6; unmapped before the check, so this is the second lock
	"::ffff:0:0:0/96",  // IPv4, translated
	"64:ff9b::/96",     // IPv4 behind a translator
	"64:ff9b:1::/48",   // the same, private
	"100::/64",         // discard
	"2001::/23",        // protocol assignments, Teredo
	"2001:db8::/32",    // documents
	"2002::/16",        // 6to4: IPv4 inside
	"3fff::/20",        // documents
	"5f00::/16",        // segment routing
	"fc00::/7",         // private
	"fe80::/10",        // link-local
	"fec0::/10",        // site-local, as it once was
	"ff00::/8",         // multicast
)

// globalUnicast is the part of IPv6 that is routed publicly. Addresses outside of it are denied without an entry above.
var globalUnicast = netip.MustParsePrefix("2000::/3")

func mustParsePrefixes(list ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(list))
	for i, s := range list {
		out[i] = netip.MustParsePrefix(s)
	}
	return out
}

// IsPublicAddr reports whether a is a public address. It is the SSRF gate: it denies invalid and zoned addresses,
// everything in deniedPrefixes, ISATAP addresses that embed a local IPv4 address, and IPv6 outside of global unicast.
func IsPublicAddr(a netip.Addr) bool {
	if !a.IsValid() || a.Zone() != "" {
		return false
	}
	a = a.Unmap()
	for _, p := range deniedPrefixes {
		if p.Contains(a) {
			return false
		}
	}
	if a.Is4() {
		return true
	}
	// An interface id of 0:5efe or 200:5efe carries an IPv4 address of the local site.
	b := a.As16()
	if (b[8] == 0 || b[8] == 2) && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe {
		return false
	}
	return globalUnicast.Contains(a)
}

// IsAddrOf reports whether a host that the user wrote may lead to the address a: a name to public addresses only, a
// name of this machine to loopback, and an address that is written as a number to itself.
func IsAddrOf(host string, a netip.Addr) bool {
	a = a.Unmap()
	written, err := netip.ParseAddr(host)
	switch {
	case err == nil:
		return written.Unmap() == a
	case local.IsLocalHost(host):
		return a.IsLoopback()
	}
	return IsPublicAddr(a)
}
