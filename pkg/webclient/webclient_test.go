package webclient_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"conclave/pkg/webclient"
)

func TestPublic(t *testing.T) {
	for _, list := range [][]string{inner4, inner6} {
		for _, s := range list {
			if a := netip.MustParseAddr(s); webclient.IsPublicAddr(a) {
				t.Errorf("%s is taken for public", s)
			}
		}
	}
	for _, s := range inner4 {
		if webclient.IsPublicAddr(netip.AddrFrom16(netip.MustParseAddr(s).As16())) {
			t.Errorf("%s inside IPv6 is taken for public", s)
		}
	}
	if webclient.IsPublicAddr(netip.Addr{}) || webclient.IsPublicAddr(netip.MustParseAddr("2606:4700::1%eth0")) {
		t.Error("no address, or one with a zone, is taken for public")
	}
	for _, s := range []string{
		"1.1.1.1", "9.255.255.255", "11.0.0.0", "93.184.215.14", "100.63.255.255", "100.128.0.0", "126.255.255.255",
		"128.0.0.0", "169.253.255.255", "169.255.0.0",
		"172.15.255.255", "172.32.0.0", "192.0.1.0", "192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0",
		"223.255.255.255",
		"2606:4700::1111", "2001:200::1", "2001:4860:4860::8888", "2a00::1", "3ffe::1",
	} {
		if !webclient.IsPublicAddr(netip.MustParseAddr(s)) {
			t.Errorf("%s is refused", s)
		}
	}
}

func TestParse(t *testing.T) {
	for _, tt := range []struct{ name, raw, want string }{
		{"plain", "https://example.com/a/b?c=d", "https://example.com/a/b?c=d"},
		{"capitals", "HTTPS://Example.COM/Path", "https://example.com/Path"},
		{"no path", "http://example.com", "http://example.com/"},
		{"only a question", "http://example.com?x=1", "http://example.com/?x=1"},
		{"the default port", "https://example.com:443/", "https://example.com/"},
		{"the other's default port", "http://example.com:443/", "http://example.com:443/"},
		{"a port that is allowed", "http://example.com:8080/", "http://example.com:8080/"},
		{"a fragment", "https://example.com/#part", "https://example.com/"},
		{"a dot at the end of the host", "https://example.com./", "https://example.com/"},
		{"an umlaut", "https://bücher.example.com/ü", "https://xn--bcher-kva.example.com/%C3%BC"},
		{"encoded already", "https://xn--bcher-kva.com/", "https://xn--bcher-kva.com/"},
		{"another script", "https://пример.com/", "https://xn--e1afmkfd.com/"},
		{"public IPv4", "http://1.1.1.1/", "http://1.1.1.1/"},
		{"public IPv6", "http://[2606:4700:0::1111]/", "http://[2606:4700::1111]/"},
		{"public IPv4 inside IPv6", "http://[::ffff:1.1.1.1]/", "http://[::ffff:1.1.1.1]/"},
		{"an escaped slash", "https://example.com/a%2fb", "https://example.com/a%2fb"},
		{"an @ in the path", "https://example.com/@name", "https://example.com/@name"},
		{"a host in the question", "https://example.com/?u=http://a@b", "https://example.com/?u=http://a@b"},
		{"a name that begins with a digit", "https://1password.com/", "https://1password.com/"},
		{"a name of digits below a word", "https://123.com/", "https://123.com/"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u, err := webclient.ParseURL(tt.raw, 8080)
			if err != nil || u.String() != tt.want {
				t.Errorf("got %v, %v; want %s", u, err, tt.want)
			}
		})
	}
}

// What can be known to lead inside without a name server is refused without asking one: the question alone would tell.
func TestParseRefuses(t *testing.T) {
	for _, f := range forms() {
		u, err := webclient.ParseURL(strings.ReplaceAll(f.url, "{p}", "8080"), 8080)
		if asked := f.class == "a name that leads inside"; asked != (err == nil) {
			t.Errorf("%s/%s: %q is read as %v, %v", f.class, f.name, f.url, u, err)
		}
	}
}

// FuzzParse: what is accepted is in its one form, names a place that a page may live at, and holds nothing that another
// reader could read differently.
func FuzzParse(f *testing.F) {
	for _, x := range forms() {
		f.Add(strings.ReplaceAll(x.url, "{p}", "80"))
	}
	f.Add("https://bücher.example.com:443/ü?a=b#c")
	f.Fuzz(func(t *testing.T, raw string) {
		u, err := webclient.ParseURL(raw)
		if err != nil {
			told(t, err)
			return
		}
		again, err := webclient.ParseURL(u.String())
		if len(u.String()) <= webclient.MaxURL && (err != nil || again.String() != u.String()) {
			t.Fatalf("%q is read as %q, and that as %v, %v", raw, u, again, err)
		}
		if u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.Opaque != "" || u.Fragment != "" ||
			u.Host == "" || strings.ContainsAny(u.String(), "\\ \t\r\n\x00") {
			t.Fatalf("%q became %q", raw, u)
		}
		if p := u.Port(); p != "" && p != "80" && p != "443" {
			t.Fatalf("%q leads to port %s", raw, p)
		}
		host := u.Hostname()
		if a, err := netip.ParseAddr(host); err == nil && !webclient.IsPublicAddr(a) {
			t.Fatalf("%q leads to %s", raw, a)
		}
		if strings.Trim(host, "abcdefghijklmnopqrstuvwxyz0123456789-.:") != "" {
			t.Fatalf("%q has the host %q", raw, host)
		}
	})
}

// Pages are kept for a while under the address where they were found, unless they ask not to be.
func TestCache(t *testing.T) {
	var hits atomic.Int64
	s, port := site(t, func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		switch r.URL.Path {
		case "/moved":
			http.Redirect(w, r, "/page", http.StatusFound)
			return
		case "/private":
			w.Header().Set("Cache-Control", "private, No-Store")
		case "/missing":
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprint(w, "x")
	})
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	cfg := fast(port)
	cfg.CacheTTL, cfg.Now = time.Minute, func() time.Time { return now }
	c := open(cfg)
	for _, tt := range []struct {
		name, path string
		later      time.Duration
		hits       int64 // in all
	}{
		{"the first time", "/page", 0, 1},
		{"again", "/page", 0, 1},
		{"with a fragment", "/page#x", 0, 1},
		{"by way of a redirect", "/moved", 0, 2},
		{"another question", "/page?x", 0, 3},
		{"just before its time", "/page", time.Minute - 1, 3},
		{"after its time", "/page", 1, 4},
		{"asked not to", "/private", 0, 5},
		{"asked not to, again", "/private", 0, 6},
		{"an error", "/missing", 0, 7},
		{"an error again", "/missing", 0, 8},
	} {
		now = now.Add(tt.later)
		page, err := c.Get(t.Context(), s.URL+tt.path)
		if n := hits.Load(); n != tt.hits || err == nil && page.Body != "x" {
			t.Errorf("%s: %d requests, want %d (%+v, %v)", tt.name, n, tt.hits, page, err)
		}
	}
	off := open(fast(port))
	for range 2 {
		if _, err := off.Get(t.Context(), s.URL+"/page"); err != nil {
			t.Fatal(err)
		}
	}
	if hits.Load() != 10 {
		t.Error("a client without a cache keeps pages")
	}
}

func TestCacheBounds(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := webclient.NewCache[int](1000, time.Minute)
	for i := range 100 {
		c.Put(fmt.Sprintf("%03d", i), i, 97, at)
		if _, ok := c.Get("000", at); !ok {
			t.Fatalf("what is used was dropped after %d", i)
		}
		if c.Bytes() > 1000 {
			t.Fatalf("%d bytes", c.Bytes())
		}
	}
	if _, ok := c.Get("050", at); ok {
		t.Error("what is not used is still there")
	}
	if v, ok := c.Get("099", at); !ok || v != 99 {
		t.Error("the newest is gone")
	}
	c.Put("huge", 1, 900, at)
	if _, ok := c.Get("huge", at); ok {
		t.Error("one value took the whole cache")
	}
	c.Put("099", 7, 10, at)
	if v, _ := c.Get("099", at); v != 7 || c.Bytes() > 1000 {
		t.Error("a value is not replaced")
	}
}

func TestPace(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	p := webclient.NewPace(time.Second, 3)
	for i, want := range []time.Duration{0, 0, 0, time.Second, 2 * time.Second} {
		if got, ok := p.Reserve("a", at, time.Minute); got != want || !ok {
			t.Errorf("turn %d after %s, want %s", i, got, want)
		}
	}
	if got, ok := p.Reserve("b", at, 0); got != 0 || !ok {
		t.Error("one host waits for another")
	}
	if _, ok := p.Reserve("a", at, 2*time.Second); ok {
		t.Error("a turn that comes too late was taken")
	}
	if got, _ := p.Reserve("a", at.Add(3*time.Second), time.Minute); got != 0 {
		t.Errorf("after three seconds it waits %s", got)
	}
	if got, _ := p.Reserve("a", at.Add(time.Hour), 0); got != 0 {
		t.Error("an hour later it still waits")
	}
	// However many hosts there are, few are remembered.
	for i := range 5000 {
		p.Reserve(fmt.Sprint("host", i), at.Add(time.Hour), time.Minute)
	}
	if got, ok := p.Reserve("host4999", at.Add(time.Hour), time.Minute); got != 0 || !ok {
		t.Error("the newest host has no turn")
	}
}

// A client that has no time for the host's next turn says so, and does not knock.
func TestTooFast(t *testing.T) {
	var hits atomic.Int64
	s, port := site(t, func(w http.ResponseWriter, _ *http.Request) {
		hits.Add(1)
		w.Header().Set("Content-Type", "text/plain")
	})
	cfg := fast(port)
	cfg.Every, cfg.Burst = time.Hour, 2
	c := open(cfg)
	for range 2 {
		if _, err := c.Get(t.Context(), s.URL); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Get(t.Context(), s.URL); !errors.Is(err, webclient.ErrBusy) || hits.Load() != 2 {
		t.Errorf("error %v, %d requests", err, hits.Load())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := webclient.NewPace(time.Second, 1).Wait(ctx, "x", time.Time{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled wait: %v", err)
	}
}

// Nothing but tests opens a client, and nothing but the stage of stories makes one with a web of its own.
func TestOnlyTestsOpenAClient(t *testing.T) {
	root := filepath.Join("..", "..")
	looked, staged := 0, 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		looked++
		text, err := os.ReadFile(path)
		if err != nil || filepath.Base(filepath.Dir(path)) == "webclient" {
			return err
		}
		if strings.Contains(string(text), "NewForTests") {
			t.Errorf("%s opens a client for tests", path)
		}
		if strings.Contains(string(text), "NewStaged") {
			staged++
			if path != filepath.Join(root, "stories", "harness", "harness.go") {
				t.Errorf("%s makes a client with a web of its own", path)
			}
		}
		return nil
	})
	if err != nil || looked < 50 || staged != 1 {
		t.Errorf("%d files, %d of them with a web of their own, %v", looked, staged, err)
	}
}

// What the policy refuses is refused at each hop: a page that is allowed cannot lead to one that is not.
func TestGetWithin(t *testing.T) {
	t.Parallel()
	var hits atomic.Int64
	s, port := site(t, func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		if r.URL.Path == "/start" {
			http.Redirect(w, r, "/refused", http.StatusFound)
			return
		}
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprint(w, "here")
	})
	c := open(fast(port))
	within := func(address string) error {
		if strings.HasSuffix(address, "/refused") {
			return errors.New("not there")
		}
		return nil
	}
	if page, err := c.GetWithin(t.Context(), s.URL+"/fine", within); err != nil || page.Body != "here" {
		t.Errorf("%+v, %v", page, err)
	}
	for _, path := range []string{"/refused", "/start"} {
		if _, err := c.GetWithin(t.Context(), s.URL+path, within); !errors.Is(err, webclient.ErrForbidden) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if hits.Load() != 2 {
		t.Errorf("asked %d times", hits.Load())
	}
}
