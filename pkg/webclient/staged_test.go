package webclient_test

import (
	"errors"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"conclave/pkg/webclient"
)

// A web of one's own leads to its servers under the names given, and nowhere else: each row that is refused says how it
// tried. The victim listens on every address of this machine and must not notice any of them.
func TestStaged(t *testing.T) {
	t.Parallel()
	v := newVictim(t)
	port := strconv.Itoa(v.port)
	srv, at := site(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/out":
			http.Redirect(w, r, "http://127.0.0.1:"+port+"/", http.StatusFound)
		case "/elsewhere":
			http.Redirect(w, r, "http://other.example.org/", http.StatusFound)
		case "/on":
			http.Redirect(w, r, "http://two.example.org/page", http.StatusFound)
		default:
			w.Header().Set("Content-Type", "text/plain")
			_, _ = w.Write([]byte("a page of " + r.Host))
		}
	})
	here := netip.MustParseAddrPort(strings.TrimPrefix(srv.URL, "http://"))
	hosts := map[string]netip.AddrPort{
		"one.example.org": here, "two.example.org": here, "127.0.0.1": here,
		"away.example.org": netip.MustParseAddrPort("203.0.113.7:" + strconv.Itoa(at)),
	}
	c := webclient.NewStaged(fast(v.port, at), hosts)
	hosts["late.example.org"] = here // whoever made it cannot open it further
	for _, tt := range []struct {
		name, url, body string
		err             error
	}{
		{"a page", "http://one.example.org/page", "a page of one.example.org", nil},
		{"another host", "http://two.example.org/page", "a page of two.example.org", nil},
		{"its name in capitals", "http://ONE.example.org/page", "a page of one.example.org", nil},
		{"another port is the same server", "http://one.example.org:" + port + "/page", "a page of one.example.org:" +
			port, nil},
		{"a redirect within", "http://one.example.org/on", "a page of two.example.org", nil},
		{"trick: a name that nobody gave", "http://other.example.org/", "", webclient.ErrName},
		{"trick: a name that is really there", "http://example.org/", "", webclient.ErrName},
		{"trick: a name below one that was given", "http://x.one.example.org/", "", webclient.ErrName},
		{"trick: a name that was given too late", "http://late.example.org/", "", webclient.ErrName},
		{"trick: the server's own address", srv.URL, "", webclient.ErrForbidden},
		{"trick: another server of this machine", "http://127.0.0.1:" + port + "/", "", webclient.ErrForbidden},
		{"trick: this machine by its name", "http://localhost:" + port + "/", "", webclient.ErrForbidden},
		{"trick: a public address as a number", "http://93.184.216.34/", "", webclient.ErrName},
		{"trick: a server that is not on this machine", "http://away.example.org/", "", webclient.ErrForbidden},
		{"trick: a redirect to this machine", "http://one.example.org/out", "", webclient.ErrLocation},
		{"trick: a redirect to a stranger", "http://one.example.org/elsewhere", "", webclient.ErrName},
	} {
		t.Run(tt.name, func(t *testing.T) {
			page, err := c.Get(t.Context(), tt.url)
			if !errors.Is(err, tt.err) || page.Body != tt.body {
				t.Errorf("%q, error %v, want %q and %v", page.Body, err, tt.body, tt.err)
			}
		})
	}
	if n := v.conns.Load(); n > 0 {
		t.Errorf("%d connections to a server outside", n)
	}
}
