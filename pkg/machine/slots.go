package machine

import (
	"net"
	"net/netip"
	"sync"
)

// slots bound connections, all together and for each host, so that one host cannot take them all.
type slots struct {
	max, perHost int

	mu    sync.Mutex
	held  int
	hosts map[netip.Prefix]int
}

func newSlots(most, perHost int) *slots {
	return &slots{max: most, perHost: perHost, hosts: map[netip.Prefix]int{}}
}

// acquire takes a slot for a connection and reports whether there was one. release must be called once for it.
func (s *slots) acquire(c net.Conn) (release func(), ok bool) {
	host := hostOf(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held >= s.max || s.hosts[host] >= s.perHost {
		return nil, false
	}
	s.held++
	s.hosts[host]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.held--
		if s.hosts[host]--; s.hosts[host] == 0 {
			delete(s.hosts, host)
		}
	}, true
}

// hostOf returns the address of the other side, for IPv6 its /64: a host has as many of those addresses as it likes.
func hostOf(c net.Conn) netip.Prefix {
	at, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return netip.Prefix{}
	}
	ip, bits := at.Addr().Unmap().WithZone(""), 32
	if ip.Is6() {
		bits = 64
	}
	host, _ := ip.Prefix(bits)
	return host
}
