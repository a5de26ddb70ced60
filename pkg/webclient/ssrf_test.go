package webclient_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"conclave/pkg/webclient"
)

// form is one spelling of an address that must not be reached. {p} is the port of the server that would notice.
type form struct{ class, name, url string }

// inner4 and inner6 are addresses that no page lives at: the first and the last of each range, and those that clouds
// use.
var (
	inner4 = []string{
		"0.0.0.0", "0.255.255.255", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.127.255.255", "100.100.100.200",
		"127.0.0.1", "127.0.0.2",
		"127.255.255.254", "168.63.129.16", "169.254.0.1", "169.254.169.254", "169.254.170.2", "169.254.255.255",
		"172.16.0.1", "172.31.255.255",
		"192.0.0.1", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.0.1", "192.168.255.255", "198.18.0.1",
		"198.19.255.255", "198.51.100.1",
		"203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
	}
	inner6 = []string{
		"::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:7f00:1",
		"::ffff:0:127.0.0.1",
		"64:ff9b::7f00:1", "64:ff9b::169.254.169.254", "64:ff9b:1::1", "100::1", "2001::1",
		"2001:0:53aa:64c:0:0:80ff:fffe", "2001:10::1",
		"2001:db8::1", "2002:7f00:1::", "2002:a9fe:a9fe::", "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fdff::1",
		"fe80::1", "febf::1",
		"fec0::1", "ff02::1", "ff0e::1", "4000::1", "2600::5efe:7f00:1", "2600::200:5efe:a00:1",
	}
)

// forms are all of them.
func forms() (out []form) {
	add := func(class string, rows ...[2]string) {
		for _, r := range rows {
			out = append(out, form{class, r[0], r[1]})
		}
	}
	for _, a := range inner4 {
		add("an inner IPv4 address", [2]string{a, "http://" + a + ":{p}/"},
			[2]string{a + " without a port", "http://" + a + "/"})
		add("a name that leads inside", [2]string{a, "http://" + strings.ReplaceAll(a, ".", "-") +
			".v4.inside-names.com:{p}/"})
	}
	for _, a := range inner6 {
		add("an inner IPv6 address", [2]string{a, "http://[" + a + "]:{p}/"})
		add("a name that leads inside", [2]string{a, "https://" + hex6(a) + ".v6.inside-names.com/"})
	}
	add(
		"another spelling of loopback",
		[2]string{"two parts", "http://127.1:{p}/"},
		[2]string{"three parts", "http://127.0.1:{p}/"},
		[2]string{"zero", "http://0:{p}/"},
		[2]string{"two zeros", "http://0.0:{p}/"},
		[2]string{"one number", "http://2130706433:{p}/"},
		[2]string{"one number in hex", "http://0x7f000001:{p}/"},
		[2]string{"one number in large hex", "http://0X7F000001:{p}/"},
		[2]string{"one number in octal", "http://017700000001:{p}/"},
		[2]string{"octal", "http://0177.0.0.1:{p}/"},
		[2]string{"octal with more zeros", "http://00000177.0.0.1:{p}/"},
		[2]string{"hex", "http://0x7f.0.0.1:{p}/"},
		[2]string{"hex and short", "http://0x7f.1:{p}/"},
		[2]string{"hex at the end", "http://127.0.0.0x1:{p}/"},
		[2]string{"octal at the end", "http://127.0.0.01:{p}/"},
		[2]string{"three digits each", "http://127.000.000.001:{p}/"},
		[2]string{"a mix of bases", "http://0x7f.0.000.1:{p}/"},
		[2]string{"empty hex", "http://0x:{p}/"},
		[2]string{"beyond 32 bits", "http://6425673729:{p}/"},
		[2]string{"beyond 8 bits", "http://383.0.0.1:{p}/"},
		[2]string{"five parts", "http://127.0.0.1.0:{p}/"},
		[2]string{"a dot at the end", "http://127.0.0.1.:{p}/"},
		[2]string{"two dots at the end", "http://127.0.0.1..:{p}/"},
		[2]string{"a dot at the beginning", "http://.127.0.0.1:{p}/"},
		[2]string{"a sign", "http://+127.0.0.1:{p}/"},
		[2]string{"escaped digits", "http://%31%32%37.0.0.1:{p}/"},
		[2]string{"escaped dots", "http://127%2e0%2e0%2e1:{p}/"},
		[2]string{"escaped twice", "http://127%252e0%252e0%252e1:{p}/"},
		[2]string{"circled digits", "http://①②⑦.⓪.⓪.①:{p}/"},
		[2]string{"full-width digits", "http://１２７.０.０.１:{p}/"},
		[2]string{"full-width dots", "http://127．0．0．1:{p}/"},
		[2]string{"ideographic dots", "http://127。0。0。1:{p}/"},
		[2]string{"half-width dots", "http://127｡0｡0｡1:{p}/"},
		[2]string{"superscript digits", "http://¹²⁷.0.0.1:{p}/"},
		[2]string{"bold digits", "http://𝟏𝟐𝟕.𝟎.𝟎.𝟏:{p}/"},
		[2]string{"Arabic digits", "http://١٢٧.٠.٠.١:{p}/"},
		[2]string{"a joiner between", "http://127.0.0\u200d.1:{p}/"},
		[2]string{"no width between", "http://127.0.0.\u200b1:{p}/"},
		[2]string{"a soft hyphen between", "http://127.0.0.\u00ad1:{p}/"},
		[2]string{"the metadata address as a number", "http://2852039166/latest/"},
		[2]string{"the metadata address in hex", "http://0xa9fea9fe/latest/"},
		[2]string{"the metadata address in octal parts", "http://0251.0376.0251.0376/latest/"},
		[2]string{"the metadata address, short", "http://169.254.43518/latest/"},
	)
	add(
		"another spelling of IPv6",
		[2]string{"long", "http://[0:0:0:0:0:0:0:1]:{p}/"},
		[2]string{"longest", "http://[0000:0000:0000:0000:0000:0000:0000:0001]:{p}/"},
		[2]string{"a zone", "http://[::1%25lo]:{p}/"},
		[2]string{"a zone, not escaped", "http://[::1%lo]:{p}/"},
		[2]string{"a zone of link-local", "http://[fe80::1%25eth0]:{p}/"},
		[2]string{"no brackets", "http://::1:{p}/"},
		[2]string{"one bracket", "http://[::1:{p}/"},
		[2]string{"two brackets", "http://[[::1]]:{p}/"},
		[2]string{"IPv4 in brackets", "http://[127.0.0.1]:{p}/"},
		[2]string{"IPv4 inside, in hex", "http://[::ffff:7f00:0001]:{p}/"},
		[2]string{"IPv4 inside, long", "http://[0:0:0:0:0:ffff:127.0.0.1]:{p}/"},
		[2]string{"IPv4 inside, octal", "http://[::ffff:0177.0.0.1]:{p}/"},
		[2]string{"a name in brackets", "http://[localhost]:{p}/"},
		[2]string{"behind the brackets", "http://[::1].inside-names.com:{p}/"},
		[2]string{"a future version", "http://[v1.::1]:{p}/"},
		[2]string{"escaped brackets", "http://%5b::1%5d:{p}/"},
	)
	add(
		"two readers",
		[2]string{"a name before", "http://example.com@127.0.0.1:{p}/"},
		[2]string{"a name and a password", "http://user:secret@127.0.0.1:{p}/"},
		[2]string{"an empty name", "http://@127.0.0.1:{p}/"},
		[2]string{"an empty password", "http://:@127.0.0.1:{p}/"},
		[2]string{"two names", "http://a@b@127.0.0.1:{p}/"},
		[2]string{"an escaped @", "http://example.com%40127.0.0.1:{p}/"},
		[2]string{"a host in the name", "http://127.0.0.1:{p}@example.com/"},
		[2]string{"an escaped slash in the name", "http://example.com%2f@127.0.0.1:{p}/"},
		[2]string{"a backslash", "http://example.com\\@127.0.0.1:{p}/"},
		[2]string{"backslashes for slashes", "http:\\\\127.0.0.1:{p}\\"},
		[2]string{"a backslash at the end", "http://127.0.0.1:{p}\\.example.com/"},
		[2]string{"three slashes", "http:///127.0.0.1:{p}/"},
		[2]string{"four slashes", "http:////127.0.0.1:{p}/"},
		[2]string{"one slash", "http:/127.0.0.1:{p}/"},
		[2]string{"no slash", "http:127.0.0.1:{p}/"},
		[2]string{"no scheme", "//127.0.0.1:{p}/"},
		[2]string{"a host only", "127.0.0.1:{p}/"},
		[2]string{"a fragment before", "http://127.0.0.1:{p}#@example.com/"},
		[2]string{"a question before", "http://127.0.0.1:{p}?@example.com/"},
		[2]string{"a semicolon", "http://127.0.0.1;example.com:{p}/"},
		[2]string{"a comma", "http://127.0.0.1,example.com:{p}/"},
		[2]string{"a space before", " http://127.0.0.1:{p}/"},
		[2]string{"a space behind", "http://127.0.0.1:{p}/ "},
		[2]string{"a space in the host", "http://127.0.0.1 .example.com:{p}/"},
		[2]string{"a no-break space", "http://127.0.0.1\u00a0:{p}/"},
		[2]string{"a tab", "http://127.0.\t0.1:{p}/"},
		[2]string{"a line break", "http://127.0.0.1:{p}/\r\nHost: example.com"},
		[2]string{"a line break in the host", "http://127.0.0.1\n:{p}/"},
		[2]string{"an escaped line break in the host", "http://127.0.0.1%0d%0a:{p}/"},
		[2]string{"a zero byte", "http://127.0.0.1\x00.example.com:{p}/"},
		[2]string{"an escaped zero byte", "http://127.0.0.1%00.example.com:{p}/"},
		[2]string{"a delete", "http://127.0.0.1\x7f:{p}/"},
		[2]string{"bytes that are no text", "http://127.0.0.1\xff:{p}/"},
		[2]string{"text that runs backwards", "http://\u202e127.0.0.1:{p}/"},
		[2]string{"a mark of byte order", "\ufeffhttp://127.0.0.1:{p}/"},
		[2]string{"no host", "http://:{p}/"},
		[2]string{"nothing", ""},
		[2]string{"endless", "http://127.0.0.1:{p}/" + strings.Repeat("a", 3000)},
	)
	add(
		"a name of the inside",
		[2]string{"localhost", "http://localhost:{p}/"},
		[2]string{"in capitals", "http://LOCALHOST:{p}/"},
		[2]string{"with a dot", "http://localhost.:{p}/"},
		[2]string{"below it", "http://x.localhost:{p}/"},
		[2]string{"localdomain", "http://localhost.localdomain:{p}/"},
		[2]string{"ip6-localhost", "http://ip6-localhost:{p}/"},
		[2]string{"full-width letters", "http://ｌｏｃａｌｈｏｓｔ:{p}/"},
		[2]string{"circled letters", "http://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ:{p}/"},
		[2]string{"a long s", "http://localhoſt:{p}/"},
		[2]string{"a host of the network", "http://router/"},
		[2]string{"a printer", "http://printer.local/"},
		[2]string{"metadata", "http://metadata.google.internal/"},
		[2]string{"metadata, short", "http://metadata/"},
		[2]string{"a home network", "http://nas.home.arpa/"},
		[2]string{"a reverse name", "http://1.0.0.127.in-addr.arpa/"},
		[2]string{"an onion", "http://abcdefghijklmnop.onion/"},
		[2]string{"a service of a cluster", "http://kubernetes.default.svc.cluster.local/"},
		[2]string{"an underscore", "http://_dmarc.inside-names.com/"},
		[2]string{"a hyphen at the end", "http://inside-.inside-names.com/"},
		[2]string{"an empty part", "http://a..inside-names.com/"},
		[2]string{"a part too long", "http://" + strings.Repeat("a", 64) + ".com/"},
		[2]string{"letters of two scripts", "http://раyраl.com/"},
		[2]string{"letters of two scripts, encoded", "http://xn--pypal-4ve.com/"},
		[2]string{"broken encoding", "http://xn--a.com/"},
	)
	add(
		"a name that leads inside",
		[2]string{"one of two", "http://mixed.inside-names.com:{p}/"},
		[2]string{"one of two families", "http://mixed6.inside-names.com:{p}/"},
		[2]string{"in capitals", "http://LOOP.inside-names.COM:{p}/"},
		[2]string{"with a dot", "http://loop.inside-names.com.:{p}/"},
	)
	for _, s := range []string{
		"file:///etc/passwd", "file://127.0.0.1:{p}/", "ftp://127.0.0.1:{p}/", "gopher://127.0.0.1:{p}/_GET",
		"dict://127.0.0.1:{p}/d", "ldap://127.0.0.1:{p}/",
		"tftp://127.0.0.1:{p}/", "ws://127.0.0.1:{p}/", "wss://127.0.0.1:{p}/", "nats://127.0.0.1:{p}",
		"jar:http://127.0.0.1:{p}/!/", "view-source:http://127.0.0.1:{p}/",
		"data:text/html,x", "javascript:alert(1)", "blob:http://127.0.0.1:{p}/x", "unix:///run/docker.sock",
		"http+unix://%2frun%2fdocker.sock/", "url:http://127.0.0.1:{p}/",
		"about:blank", "h\u0442tp://127.0.0.1:{p}/",
	} {
		add("another scheme", [2]string{strings.NewReplacer("/", "_", "{p}", "").Replace(s), s})
	}
	for _, p := range []string{
		"22", "25", "4222", "6379", "8222", "8765", "11434", "0", "65536", "-1", "0080", "80a",
		"", "８０", "99999999999999999999", "{p}{p}",
	} {
		add("another port", [2]string{"port " + p, "http://public.inside-names.com:" + p + "/"})
	}
	return out
}

func hex6(a string) string { return fmt.Sprintf("%x", netip.MustParseAddr(a).As16()) }

// isInternalName is the name server of the forms: their own names lead to inner addresses, and public to a public one.
func isInternalName(host string) []netip.Addr {
	host = strings.ToLower(host)
	at := func(list ...string) (out []netip.Addr) {
		for _, a := range list {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	label, rest, _ := strings.Cut(host, ".")
	switch rest {
	case "v4.inside-names.com":
		return at(strings.ReplaceAll(label, "-", "."))
	case "v6.inside-names.com":
		for _, a := range inner6 {
			if hex6(a) == label {
				return at(a)
			}
		}
	case "inside-names.com":
		switch label {
		case "mixed":
			return at("93.184.215.14", "127.0.0.1")
		case "mixed6":
			return at("93.184.215.14", "::1")
		case "public":
			return at("93.184.215.14")
		}
	}
	return at("127.0.0.1") // whatever else got as far as a question
}

// No form reaches this machine, none passes the last check before the connection, and no error tells why in other than
// fixed words.
func TestNoFormReachesTheInside(t *testing.T) {
	v := newVictim(t)
	d := &dialed{stop: true}
	c := webclient.NewForTests(fast(v.port), webclient.TestNet{Resolver: names(t, isInternalName), Dialing: d.hear})
	all := forms()
	seen := map[string]bool{}
	for _, f := range all {
		t.Run(f.class+"/"+f.name, func(t *testing.T) {
			url := strings.ReplaceAll(f.url, "{p}", strconv.Itoa(v.port))
			page, err := c.Get(t.Context(), url)
			if err == nil {
				t.Fatalf("%q was fetched: %+v", url, page)
			}
			told(t, err)
			if errors.Is(err, webclient.ErrTimeout) {
				t.Errorf("%q ran into a timeout instead of a refusal", url)
			}
			if to := d.take(); len(to) > 0 {
				t.Errorf("%q passed the last check to %v", url, to)
			}
			if n := v.conns.Load(); n > 0 {
				t.Fatalf("%q connected", url)
			}
		})
		if key := f.class + "/" + f.name; seen[key] {
			t.Errorf("two rows %s", key)
		} else {
			seen[key] = true
		}
	}
	if len(all) < 315 { // the README says so
		t.Errorf("%d forms, want 315", len(all))
	}
	t.Logf("%d forms, %d connections", len(all), v.conns.Load())

	// The same server, name server and hook do notice: a client that is opened gets there, by address and by name.
	opened := webclient.NewForTests(fast(v.port), webclient.TestNet{
		Resolver: names(t, isInternalName), Allow: loopback,
		Dialing: (&dialed{}).hear,
	})
	for i, url := range []string{
		"http://127.0.0.1:%d/", "http://127-0-0-2.v4.inside-names.com:%d/",
		"http://loop.inside-names.com.:%d/x",
	} {
		page, err := opened.Get(t.Context(), fmt.Sprintf(url, v.port))
		if err != nil || page.Body != "the inside" || v.conns.Load() != int64(i+1) {
			t.Errorf("control %s: %+v, %v, %d connections", url, page, err, v.conns.Load())
		}
	}
	// And a public name passes every check, up to the connection that the hook stops.
	if _, err := c.Get(t.Context(), "http://public.inside-names.com/"); err == nil {
		t.Error("the hook did not stop a connection to the network")
	}
	if to := d.take(); len(to) != 1 || to[0].String() != "93.184.215.14:80" {
		t.Errorf("a public name was connected at %v", to)
	}
}

// Our own endpoints are refused even where their address is allowed.
func TestOwnEndpoints(t *testing.T) {
	v := newVictim(t)
	cfg := fast(v.port)
	cfg.Own = []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(v.port))}
	c := open(cfg)
	for _, url := range []string{"http://127.0.0.1:%d/", "http://[::ffff:127.0.0.1]:%d/"} {
		if _, err := c.Get(t.Context(), fmt.Sprintf(url, v.port)); !errors.Is(err, webclient.ErrForbidden) ||
			v.conns.Load() != 0 {
			t.Errorf("%s: %v, %d connections", url, err, v.conns.Load())
		}
	}
	if _, err := c.Get(t.Context(), fmt.Sprintf("http://127.0.0.2:%d/", v.port)); err != nil {
		t.Errorf("control: %v", err)
	}
}

// A name that answers with a public address first and with an inner one from then on never leads inside: it is asked
// once a connection, and each answer is checked.
func TestRebinding(t *testing.T) {
	v := newVictim(t)
	for _, tt := range []struct{ name, first, then string }{
		{"IPv4", "93.184.215.14", "127.0.0.1"},
		{"IPv6", "2606:2800:21f:cb07::1", "::1"},
		{"to another family", "93.184.215.14", "::1"},
		{"to IPv4 inside IPv6", "93.184.215.14", "::ffff:127.0.0.1"},
		{"to metadata", "93.184.215.14", "169.254.169.254"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			first, then := netip.MustParseAddr(tt.first), netip.MustParseAddr(tt.then)
			asked := map[string]int{}
			d := &dialed{stop: true}
			r := names(t, func(host string) []netip.Addr {
				// Both questions of a lookup, A and AAAA, belong together: the server changes its mind after them.
				if asked[host]++; asked[host] <= 2 {
					return []netip.Addr{first}
				}
				return []netip.Addr{then}
			})
			c := webclient.NewForTests(fast(v.port), webclient.TestNet{Resolver: r, Dialing: d.hear})
			url := fmt.Sprintf("http://rebind.inside-names.com:%d/", v.port)
			_, err := c.Get(t.Context(), url)
			if to := d.take(); len(to) != 1 || to[0].Addr() != first {
				t.Fatalf("the first time it was connected to %v (%v), want %s alone", to, err, first)
			}
			for range 3 {
				if _, err := c.Get(t.Context(), url); !errors.Is(err, webclient.ErrForbidden) {
					t.Errorf("after it changed its mind: %v", err)
				}
			}
			if to := d.take(); len(to) > 0 || v.conns.Load() > 0 {
				t.Errorf("connected to %v, %d connections", to, v.conns.Load())
			}
		})
	}
}

// A redirect is read and checked like the first address.
func TestRedirects(t *testing.T) {
	v := newVictim(t)
	for _, tt := range []struct {
		name, location string
		err            error // nil = it is followed
	}{
		{"to a page of its own", "/page", nil},
		{"relative", "page", nil},
		{"without a scheme", "//127.0.0.1:{s}/page", nil},
		{"whole", "http://127.0.0.1:{s}/page", nil},
		{"with a fragment", "/page#x", nil},
		{"twice", "/again?n=2", nil},
		{"three times", "/again?n=3", nil},

		{"trick: four times", "/again?n=4", webclient.ErrRedirects},
		{"trick: a loop", "/start?to=/loop", webclient.ErrRedirects},
		{"trick: to itself", "/loop", webclient.ErrRedirects},
		{"trick: to the inside", "http://127.0.0.2:{p}/", webclient.ErrLocation},
		{"trick: to the inside without a scheme", "//127.0.0.2:{p}/", webclient.ErrLocation},
		{"trick: to the inside as a number", "http://2130706434:{p}/", webclient.ErrLocation},
		{"trick: to a name that leads inside", "http://127-0-0-2.v4.inside-names.com:{p}/", webclient.ErrForbidden},
		{
			"trick: to a name that leads inside, without a scheme", "//127-0-0-2.v4.inside-names.com:{p}/",
			webclient.ErrForbidden,
		},
		{"trick: to metadata", "http://169.254.169.254/latest/meta-data/", webclient.ErrLocation},
		{"trick: to IPv6 loopback", "http://[::1]:{p}/", webclient.ErrLocation},
		{"trick: with a name", "http://a@127.0.0.1:{s}/page", webclient.ErrLocation},
		{"trick: with a name, without a scheme", "//a@127.0.0.1:{s}/page", webclient.ErrLocation},
		{"trick: to a file", "file:///etc/passwd", webclient.ErrLocation},
		{"trick: to data", "data:text/plain,x", webclient.ErrLocation},
		{"trick: to a script", "javascript:alert(1)", webclient.ErrLocation},
		{"trick: to another scheme", "gopher://127.0.0.1:{s}/", webclient.ErrLocation},
		{"trick: to another port", "http://127.0.0.1:1/", webclient.ErrLocation},
		{"trick: with backslashes", "\\\\127.0.0.2:{p}\\", webclient.ErrLocation},
		{"trick: slash and backslash", "/\\127.0.0.2:{p}/", webclient.ErrLocation},
		{"trick: with a blank", "/page x", webclient.ErrLocation},
		{"trick: endless", "/" + strings.Repeat("a", 3000), webclient.ErrLocation},
		{"trick: nowhere", "", webclient.ErrLocation},
		{"trick: two places", "two", webclient.ErrLocation},
		{"trick: bytes that are no text", "http://127.0.0.1\xff:{s}/", webclient.ErrLocation},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var to string
			s, port := site(t, func(w http.ResponseWriter, r *http.Request) {
				if ref := r.Referer(); ref != "" {
					t.Errorf("referrer %q", ref)
				}
				switch r.URL.Path {
				case "/start":
					at := to
					if next := r.FormValue("to"); next != "" {
						at = next
					}
					if at == "two" {
						w.Header().Add("Location", "/page")
						at = "/page"
					}
					if at != "" {
						w.Header().Add("Location", at)
					}
					w.WriteHeader(http.StatusFound)
				case "/loop":
					http.Redirect(w, r, "/loop", http.StatusMovedPermanently)
				case "/again":
					if n, _ := strconv.Atoi(r.FormValue("n")); n > 1 {
						http.Redirect(w, r, "/again?n="+strconv.Itoa(n-1), http.StatusTemporaryRedirect)
						return
					}
					fallthrough
				default:
					w.Header().Set("Content-Type", "text/plain")
					fmt.Fprint(w, "here")
				}
			})
			to = strings.NewReplacer("{p}", strconv.Itoa(v.port), "{s}", strconv.Itoa(port)).Replace(tt.location)
			d := &dialed{}
			c := webclient.NewForTests(fast(port, v.port), webclient.TestNet{
				Resolver: names(t, isInternalName), Dialing: d.hear,
				Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")},
			})
			page, err := c.Get(t.Context(), s.URL+"/start")
			switch {
			case tt.err == nil && (err != nil || page.Body != "here" || !strings.HasPrefix(page.URL, s.URL) ||
				strings.HasSuffix(page.URL, "/start")):
				t.Errorf("got %+v, %v", page, err)
			case tt.err != nil && !errors.Is(err, tt.err):
				t.Errorf("error %v, want %v", err, tt.err)
			}
			for _, a := range d.take() {
				if int(a.Port()) != port {
					t.Errorf("connected to %v", a)
				}
			}
			if v.conns.Load() > 0 {
				t.Error("the inside was reached")
			}
		})
	}
}
