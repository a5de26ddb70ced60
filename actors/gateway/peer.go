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
	"strconv"
	"strings"
)

// isOwnBrowser reports whether a request may authorize itself with a cookie. Browsers send a cookie to every port of a host, so
// a server of another local user can receive it: over loopback a cookie is accepted only from a process of this user or of root.
// Requests for a name in gateway.hosts come through a proxy and are not checked, nor are other systems than Linux.
func (g *Gateway) isOwnBrowser(r *http.Request) bool {
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	switch {
	case err != nil || local == nil:
		return false
	case !remote.Addr().Unmap().IsLoopback() || g.isConfiguredHost(r.Host) || runtime.GOOS != "linux":
		return true
	}
	server, err := netip.ParseAddrPort(local.String())
	if err != nil {
		return false
	}
	uid, ok := findSocketOwner(remote, server)
	return ok && (uid == 0 || uid == os.Geteuid())
}

// findSocketOwner returns the user id of the process that has the established TCP connection from local to remote on this
// machine. It is false for a connection that is not found or that its process has closed: the kernel names root as owner then.
func findSocketOwner(local, remote netip.AddrPort) (uid int, ok bool) {
	for file, format := range map[string]func(netip.AddrPort) string{"/proc/net/tcp": formatSocket4, "/proc/net/tcp6": formatSocket6} {
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
