package webclient

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"syscall"
)

// maxDialAttempts is how many addresses of one host are dialed.
const maxDialAttempts = 4

// dial resolves a host once, denies it when any of its addresses is denied, and connects only to the addresses that
// were checked, at most maxDialAttempts of them. A name that resolves differently the second time (DNS rebinding) is
// never resolved a second time. address is host:port.
func (c *Client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, ErrAddress
	}
	addrs, err := c.resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: c.cfg.Connect, Control: c.checkSocket, KeepAlive: -1, FallbackDelay: -1}
	d.SetMultipathTCP(false)
	for _, a := range addrs[:min(len(addrs), maxDialAttempts)] {
		var conn net.Conn
		conn, err = d.DialContext(ctx, network, net.JoinHostPort(a.String(), port))
		if err == nil || ctx.Err() != nil {
			return conn, err
		}
	}
	return nil, err
}

// resolve returns the checked addresses of host, a name or a numeric address, within Config.Resolve. One denied address
// denies the host with [ErrForbidden]: an honest site has none. A name without addresses is [ErrName].
func (c *Client) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		if !c.isPermitted(a) {
			return nil, ErrForbidden
		}
		return []netip.Addr{a.Unmap()}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Resolve)
	defer cancel()
	// With the dot at its end the name is whole: no search domain of this machine is put behind it.
	addrs, err := c.resolver.LookupNetIP(ctx, "ip", host+".")
	if err != nil {
		return nil, err
	}
	for i, a := range addrs {
		if !c.isPermitted(a) {
			return nil, ErrForbidden
		}
		addrs[i] = a.Unmap()
	}
	if len(addrs) == 0 {
		return nil, ErrName
	}
	return slices.Compact(addrs), nil
}

// checkSocket is called between socket and connect with the address that the kernel gets. It is the check that counts:
// it sees no names, and denies non-public addresses, this machine's own and the endpoints of Conclave.
func (c *Client) checkSocket(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return ErrForbidden
	}
	to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	if !c.isPermitted(to.Addr()) || slices.Contains(c.cfg.Own, to) {
		return ErrForbidden
	}
	if c.testNet.Dialing != nil {
		return c.testNet.Dialing(to)
	}
	return nil
}

// isPermitted reports whether a page may be fetched from a: a public address that is not one of this machine's. Tests
// can allow more.
func (c *Client) isPermitted(a netip.Addr) bool {
	a = a.Unmap()
	for _, p := range c.testNet.Allow {
		if p.Contains(a) {
			return true
		}
	}
	return IsPublicAddr(a) && !isLocalAddr(a)
}

// isLocalAddr reports whether a is an address of this machine. It reports true when the interfaces cannot be read.
func isLocalAddr(a netip.Addr) bool {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return true
	}
	for _, x := range addrs {
		if p, ok := x.(*net.IPNet); ok {
			if own, ok := netip.AddrFromSlice(p.IP); ok && own.Unmap() == a {
				return true
			}
		}
	}
	return false
}
