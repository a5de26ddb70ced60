package webclient

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"strings"
)

// NewStaged returns a client for stories that reaches only the loopback servers in hosts, by name and whatever the
// port. It asks no name server and denies numeric addresses and servers off this machine. A test ensures that only the
// story harness calls it, outside of tests.
func NewStaged(cfg Config, hosts map[string]netip.AddrPort) *Client {
	c := New(cfg)
	own := maps.Clone(hosts)
	c.transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, ErrAddress
		}
		to, ok := own[strings.ToLower(host)]
		if _, err := netip.ParseAddr(host); err == nil || !ok {
			return nil, ErrName
		}
		if !to.Addr().Unmap().IsLoopback() {
			return nil, ErrForbidden
		}
		d := net.Dialer{Timeout: c.cfg.Connect}
		return d.DialContext(ctx, network, to.String())
	}
	return c
}
