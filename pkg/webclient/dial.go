package webclient

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"syscall"
)

// maxTries is how many addresses of one host are tried.
const maxTries = 4

// dial resolves a host once, refuses it when one of its addresses is refused, and connects to the very addresses that
// were checked: a name that answers differently the second time is never asked a second time.
func (c *Client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, ErrAddress
	}
	addrs, err := c.resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: c.cfg.Connect, Control: c.control, KeepAlive: -1, FallbackDelay: -1}
	d.SetMultipathTCP(false)
	for _, a := range addrs[:min(len(addrs), maxTries)] {
		var conn net.Conn
		conn, err = d.DialContext(ctx, network, net.JoinHostPort(a.String(), port))
		if err == nil || ctx.Err() != nil {
			return conn, err
		}
	}
	return nil, err
}

// resolve is the checked addresses of host. One address that is refused refuses the host: an honest site has none.
func (c *Client) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		if !c.permitted(a) {
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
		if !c.permitted(a) {
			return nil, ErrForbidden
		}
		addrs[i] = a.Unmap()
	}
	if len(addrs) == 0 {
		return nil, ErrName
	}
	return slices.Compact(addrs), nil
}

// control is asked between the socket and the connection, with the address that the kernel will be given. It is the lock
// that counts: it sees no names, only where the bytes would go.
func (c *Client) control(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return ErrForbidden
	}
	to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	if !c.permitted(to.Addr()) || slices.Contains(c.cfg.Own, to) {
		return ErrForbidden
	}
	if c.test.Dialing != nil {
		return c.test.Dialing(to)
	}
	return nil
}

// permitted reports whether a page may be fetched from a: a public address that is not one of this machine's.
func (c *Client) permitted(a netip.Addr) bool {
	a = a.Unmap()
	for _, p := range c.test.Allow {
		if p.Contains(a) {
			return true
		}
	}
	return Public(a) && !ours(a)
}

// ours reports whether a is an address of this machine. A machine that cannot tell has all of them.
func ours(a netip.Addr) bool {
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
