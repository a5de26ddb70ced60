package gateway

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// isOwnBrowser reports whether a request may authorize itself with a cookie. Browsers send a cookie to every port of a
// host, and over a network in clear text, so another user can receive it. It is accepted from a process of this user or
// of root on this machine, over any of its addresses, and for a name in gateway.hosts: such requests come through a
// proxy, which the user has set up for other machines. Systems other than Linux do not tell the owner of a connection;
// there every process of this machine passes.
func (g *Gateway) isOwnBrowser(r *http.Request) bool {
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if err != nil || local == nil {
		return false
	}
	server, err := netip.ParseAddrPort(local.String())
	switch {
	case err != nil:
		return false
	case g.isConfiguredHost(r.Host):
		return true
	case !isThisMachine(remote.Addr(), server.Addr()):
		return false
	case runtime.GOOS != "linux":
		return true
	}
	uid, ok := findSocketOwner(remote, server)
	return ok && (uid == 0 || uid == os.Geteuid())
}

// isThisMachine reports whether a client address belongs to this machine: loopback, the address that it connected to,
// or another one of an interface. An address in doubt does not.
func isThisMachine(client, server netip.Addr) bool {
	client = client.Unmap().WithZone("")
	if client.IsLoopback() || client == server.Unmap().WithZone("") {
		return true
	}
	own, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(own, func(a net.Addr) bool {
		prefix, err := netip.ParsePrefix(a.String())
		return err == nil && prefix.Addr().Unmap().WithZone("") == client
	})
}

// findSocketOwner returns the user id of the process that has the established TCP connection from local to remote on
// this machine. It is false for a connection that is not found or that its process has closed: the kernel names root as
// owner then.
func findSocketOwner(local, remote netip.AddrPort) (uid int, ok bool) {
	for file, format := range map[string]func(netip.AddrPort) string{
		"/proc/net/tcp":  formatSocket4,
		"/proc/net/tcp6": formatSocket6,
	} {
		f, err := os.Open(file)
		if err != nil {
			continue
		}
		defer f.Close()
		from, to := format(local), format(remote)
		const established = "01"
		for lines := bufio.NewScanner(f); lines.Scan(); {
			// sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode
			v := strings.Fields(lines.Text())
			if len(v) < 10 || v[1] != from || v[2] != to || v[3] != established || v[9] == "0" {
				continue
			}
			if uid, err = strconv.Atoi(v[7]); err == nil {
				return uid, true
			}
		}
	}
	return 0, false
}

// formatSocket4 formats an address as /proc/net/tcp does: the words of the address in the byte order of the machine.
func formatSocket4(a netip.AddrPort) string {
	if !a.Addr().Unmap().Is4() {
		return ""
	}
	ip := a.Addr().Unmap().As4()
	return fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(ip[:]), a.Port())
}

// formatSocket6 formats an address as /proc/net/tcp6 does, an IPv4 address in its mapped form.
func formatSocket6(a netip.AddrPort) string {
	ip, s := a.Addr().As16(), ""
	for i := 0; i < len(ip); i += 4 {
		s += fmt.Sprintf("%08X", binary.NativeEndian.Uint32(ip[i:]))
	}
	return fmt.Sprintf("%s:%04X", s, a.Port())
}
