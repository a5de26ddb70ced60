package webclient_test

import (
	"net/netip"
	"testing"

	"conclave/pkg/webclient"
)

func TestIsAddrOf(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		what, host, address string
		want                bool
	}{
		{"a name, public", "example.org", "93.184.216.34", true},
		{"a name, private", "example.org", "10.0.0.1", false},
		{"a name, loopback", "example.org", "127.0.0.1", false},
		{"a name, metadata of a cloud", "example.org", "169.254.169.254", false},
		{"a name, private and mapped into IPv6", "example.org", "::ffff:10.0.0.1", false},
		{"localhost, loopback", "localhost", "::1", true},
		{"localhost, another machine", "localhost", "93.184.216.34", false},
		{"a number, itself", "192.168.1.7", "192.168.1.7", true},
		{"a number, itself mapped into IPv6", "192.168.1.7", "::ffff:192.168.1.7", true},
		{"a number, another one", "192.168.1.7", "93.184.216.34", false},
	} {
		if got := webclient.IsAddrOf(tt.host, netip.MustParseAddr(tt.address)); got != tt.want {
			t.Errorf("%s: %s for %s: got %v", tt.what, tt.address, tt.host, got)
		}
	}
}
