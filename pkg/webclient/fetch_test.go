package webclient_test

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"conclave/pkg/webclient"
)

// packed is s in a form of compression.
func packed(t testing.TB, how string, s []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser
	switch how {
	case "gzip":
		w = gzip.NewWriter(&b)
	case "zlib":
		w = zlib.NewWriter(&b)
	default:
		fw, err := flate.NewWriter(&b, flate.BestCompression)
		if err != nil {
			t.Fatal(err)
		}
		w = fw
	}
	if _, err := w.Write(s); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// What a server can send as a body, and what comes of it.
func TestBodies(t *testing.T) {
	page := []byte("<html><body><p>hello</p></body></html>")
	zeros := bytes.Repeat([]byte(" "), 3<<20)
	many := bytes.Repeat(packed(t, "gzip", bytes.Repeat([]byte(" "), 60<<10)), 60)
	for _, tt := range []struct {
		name, ctype, encoding string
		body                  []byte
		want                  string // the text
		err                   error
	}{
		{"HTML", "text/html; charset=utf-8", "", page, string(page), nil},
		{
			"XHTML", "application/xhtml+xml", "", []byte(`<?xml version="1.0"?><html/>`),
			`<?xml version="1.0"?><html/>`,
			nil,
		},
		{"text", "text/plain", "", []byte("hello"), "hello", nil},
		{"text that begins like HTML", "text/markdown", "", []byte("<div>x</div>"), "<div>x</div>", nil},
		{"JSON", "application/json", "", []byte(`{"a":1}`), `{"a":1}`, nil},
		{"XML", "application/xml", "", []byte(`<?xml version="1.0"?><a/>`), `<?xml version="1.0"?><a/>`, nil},
		{"empty", "text/plain", "", nil, "", nil},
		{"identity", "text/plain", "identity", []byte("x"), "x", nil},
		{"gzip", "text/html", "gzip", packed(t, "gzip", page), string(page), nil},
		{"gzip in capitals", "text/html", "GZIP", packed(t, "gzip", page), string(page), nil},
		{"x-gzip", "text/html", "x-gzip", packed(t, "gzip", page), string(page), nil},
		{"deflate with a header", "text/html", "deflate", packed(t, "zlib", page), string(page), nil},
		{"deflate without one", "text/html", "deflate", packed(t, "raw", page), string(page), nil},
		{"Latin 1", "text/plain; charset=iso-8859-1", "", []byte("caf\xe9"), "café", nil},
		{
			"the charset in the page", "text/html", "", []byte("<meta charset=windows-1251><p>\xcf\xf0\xe8"),
			"<meta charset=windows-1251><p>При", nil,
		},
		{"UTF-16 with its mark", "text/plain", "", []byte("\xff\xfeh\x00i\x00"), "hi", nil},
		{"UTF-8 with its mark", "text/plain", "", []byte("\xef\xbb\xbfhi"), "hi", nil},
		{"Japanese", "text/plain; charset=shift_jis", "", []byte("\x93\xfa\x96{"), "日本", nil},

		{"trick: a gzip bomb", "text/html", "gzip", packed(t, "gzip", zeros), "", webclient.ErrLarge},
		{"trick: a deflate bomb", "text/html", "deflate", packed(t, "raw", zeros), "", webclient.ErrLarge},
		{"trick: a zlib bomb", "text/html", "deflate", packed(t, "zlib", zeros), "", webclient.ErrLarge},
		{"trick: a bomb of many parts", "text/html", "gzip", many, "", webclient.ErrLarge},
		{
			"trick: a bomb in a bomb", "text/html", "gzip", packed(t, "gzip", packed(t, "gzip", zeros)), "",
			webclient.ErrType,
		},
		{
			"trick: packed twice and said so", "text/html", "gzip, gzip", packed(t, "gzip", packed(t, "gzip", page)),
			"",
			webclient.ErrEncoding,
		},
		{"trick: gzip and identity", "text/html", "identity, gzip", packed(t, "gzip", page), "", webclient.ErrEncoding},
		{"trick: packed and not said", "text/html", "", packed(t, "gzip", page), "", webclient.ErrType},
		{"trick: brotli that nobody asked for", "text/html", "br", []byte{
			0x0b, 0x02, 0x80, 'h', 'e', 'l', 'l', 'o',
			0x03,
		}, "", webclient.ErrEncoding},
		{"trick: zstd", "text/html", "zstd", []byte{0x28, 0xb5, 0x2f, 0xfd, 0}, "", webclient.ErrEncoding},
		{"trick: compress", "text/html", "compress", []byte{0x1f, 0x9d, 0x90}, "", webclient.ErrEncoding},
		{"trick: an encoding nobody knows", "text/html", "x-unknown", page, "", webclient.ErrEncoding},
		{"trick: gzip that is none", "text/html", "gzip", page, "", webclient.ErrEncoding},
		{"trick: gzip that breaks off", "text/html", "gzip", packed(t, "gzip", page)[:30], "", webclient.ErrBroken},
		{
			"trick: gzip with a wrong sum", "text/html", "gzip",
			append(packed(t, "gzip", page)[:len(packed(t, "gzip", page))-8], 1, 2, 3, 4, 0, 0, 0, 0), "",
			webclient.ErrEncoding,
		},
		{"trick: too long", "text/plain", "", bytes.Repeat([]byte("word "), 500<<10), "", webclient.ErrLarge},
		{
			"trick: a title of ten megabytes", "text/html", "gzip",
			packed(t, "gzip", []byte("<title>"+strings.Repeat("t", 10<<20))), "", webclient.ErrLarge,
		},

		{"trick: no type", "", "", page, "", webclient.ErrType},
		{"trick: a picture", "image/png", "", []byte("\x89PNG\r\n\x1a\n"), "", webclient.ErrType},
		{
			"trick: a picture that says HTML", "text/html", "", []byte("\x89PNG\r\n\x1a\n\x00\x00"), "",
			webclient.ErrType,
		},
		{"trick: a PDF that says text", "text/plain", "", []byte("%PDF-1.7 x"), "", webclient.ErrType},
		{
			"trick: a program that says text", "text/plain", "", []byte("\x7fELF\x02\x01\x01\x00\x00"), "",
			webclient.ErrType,
		},
		{"trick: an archive that says JSON", "application/json", "", []byte("PK\x03\x04"), "", webclient.ErrType},
		{"trick: HTML that says JSON", "application/json", "", page, "", webclient.ErrType},
		{"trick: HTML that says XML", "text/xml", "", page, "", webclient.ErrType},
		{"trick: HTML that says a picture", "image/svg+xml", "", page, "", webclient.ErrType},
		{"trick: a script", "text/javascript", "", []byte("alert(1)"), "", webclient.ErrType},
		{"trick: bytes", "application/octet-stream", "", page, "", webclient.ErrType},
		{"trick: several parts", "multipart/mixed; boundary=x", "", page, "", webclient.ErrType},
		{"trick: a type that is none", "text/html/plain", "", page, "", webclient.ErrType},
		{"trick: a film that says text", "text/plain", "", []byte("\x1a\x45\xdf\xa3"), "", webclient.ErrType},

		{
			"trick: a charset that hides tags", "text/html; charset=utf-7", "", []byte("+ADw-script+AD4-"),
			"+ADw-script+AD4-", nil,
		},
		{"trick: a charset nobody knows", "text/plain; charset=x-made-up", "", []byte("plain"), "plain", nil},
		{"trick: a charset that is replaced", "text/plain; charset=iso-2022-kr", "", []byte("words"), "\ufffd", nil},
		{
			"trick: bytes that are no UTF-8", "text/plain; charset=utf-8", "", []byte("a\xff\xc0b"), "a\ufffd\ufffdb",
			nil,
		},
		{
			"trick: JSON in another charset", "application/json; charset=utf-16", "", []byte("{\"a\":\"\xe9\"}"),
			"{\"a\":\"\ufffd\"}", nil,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, port := site(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header()["Content-Type"] = nil
				if tt.ctype != "" {
					w.Header().Set("Content-Type", tt.ctype)
				}
				if tt.encoding != "" {
					w.Header().Set("Content-Encoding", tt.encoding)
				}
				_, _ = w.Write(tt.body)
			})
			got, err := open(fast(port)).Get(t.Context(), s.URL)
			if !errors.Is(err, tt.err) || got.Body != tt.want || !utf8.ValidString(got.Body) {
				t.Errorf("got %.80q, %v; want %.80q, %v", got.Body, err, tt.want, tt.err)
			}
			if err != nil {
				told(t, err)
			}
		})
	}
}

// What a server can do instead of answering. Each ends within the limits, in fixed words.
func TestServersThatDoNotPlayAlong(t *testing.T) {
	raw := func(script func(net.Conn)) func(t *testing.T) string {
		return func(t *testing.T) string {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				conn, err := l.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
				_, _ = conn.Read(make([]byte, 4096))
				script(conn)
			}()
			t.Cleanup(func() { l.Close(); <-done })
			return "http://" + l.Addr().String() + "/"
		}
	}
	// untilGone writes s again and again, until the other side hangs up.
	untilGone := func(conn net.Conn, s string) {
		for {
			if _, err := io.WriteString(conn, s); err != nil {
				return
			}
		}
	}
	silent := func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }
	const head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
	for _, tt := range []struct {
		name   string
		server func(t *testing.T) string
		err    error
	}{
		{"no header ever", raw(silent), webclient.ErrTimeout},
		{
			"half a header", raw(func(c net.Conn) {
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-")
				silent(c)
			}),
			webclient.ErrTimeout,
		},
		{"an endless header", raw(func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nX: ")
			untilGone(c, strings.Repeat("a", 1<<10))
		}), webclient.ErrBroken},
		{"endless headers", raw(func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
			untilGone(c, "X-A: b\r\n")
		}), webclient.ErrBroken},
		{"endless early hints", raw(func(c net.Conn) {
			untilGone(c, "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
		}), webclient.ErrBroken},
		{"a body that never begins", raw(func(c net.Conn) {
			_, _ = io.WriteString(c, head+"Content-Length: 100\r\n\r\n")
			silent(c)
		}), webclient.ErrTimeout},
		{"a body that stops", raw(func(c net.Conn) {
			_, _ = io.WriteString(c, head+"Content-Length: 100\r\n\r\nabc")
			silent(c)
		}), webclient.ErrTimeout},
		{"a body that breaks off", raw(func(c net.Conn) {
			_, _ = io.WriteString(c, head+"Content-Length: 100\r\n\r\nabc")
		}), webclient.ErrBroken},
		{"an endless body", raw(func(c net.Conn) {
			_, _ = io.WriteString(c, head+"\r\n")
			untilGone(c, strings.Repeat("a", 1<<14))
		}), webclient.ErrLarge},
		{"endless chunks", raw(func(c net.Conn) {
			_, _ = io.WriteString(c, head+"Transfer-Encoding: chunked\r\n\r\n")
			untilGone(c, "400\r\n"+strings.Repeat("a", 1024)+"\r\n")
		}), webclient.ErrLarge},
		{"a length that is announced too large", raw(func(c net.Conn) {
			_, _ = io.WriteString(c, head+"Content-Length: 9999999999\r\n\r\n")
			silent(c)
		}), webclient.ErrLarge},
		{"two lengths", raw(func(c net.Conn) {
			_, _ = io.WriteString(c, head+"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab")
		}), webclient.ErrBroken},
		{"two types", raw(func(c net.Conn) {
			_, _ = io.WriteString(c, head+"Content-Type: text/html\r\nContent-Length: 1\r\n\r\na")
		}), webclient.ErrType},
		{"another protocol", raw(func(c net.Conn) {
			_, _ = io.WriteString(c, "SSH-2.0-OpenSSH_9.2\r\n")
		}), webclient.ErrBroken},
		{
			"a NATS server", raw(func(c net.Conn) { _, _ = io.WriteString(c, "INFO {\"server_id\":\"x\"}\r\n") }),
			webclient.ErrBroken,
		},
		{"nothing at all", raw(func(net.Conn) {}), webclient.ErrBroken},
		{"a switch of protocols", raw(func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n")
		}), webclient.Status(101)},
		{"nobody there", func(t *testing.T) string {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			l.Close()
			return "http://" + l.Addr().String() + "/"
		}, webclient.ErrConnect},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			url := tt.server(t)
			cfg := fast(portOf(t, url))
			cfg.Header, cfg.Idle, cfg.Total = time.Minute, time.Minute, 2*time.Minute
			if tt.err == webclient.ErrTimeout { // each phase ends by its own limit
				cfg.Header, cfg.Idle = 300*time.Millisecond, 300*time.Millisecond
			}
			_, err := open(cfg).Get(t.Context(), url)
			if !errors.Is(err, tt.err) {
				t.Errorf("error %v, want %v", err, tt.err)
			}
			told(t, err)
		})
	}
}

func portOf(t *testing.T, url string) int {
	t.Helper()
	a, err := net.ResolveTCPAddr("tcp", strings.Trim(strings.TrimPrefix(url, "http://"), "/"))
	if err != nil {
		t.Fatal(err)
	}
	return a.Port
}

// A body that trickles stays below the limit between two pieces, and ends at the one for all of it. So does a chain of
// redirects in which each is quick enough.
func TestCumulativeDeadline(t *testing.T) {
	gone := make(chan struct{})
	s, port := site(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, "a"); err != nil {
				break
			}
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
			case <-time.After(20 * time.Millisecond): // the pace of the trickle, not a wait for anything
			}
		}
		close(gone)
	})
	cfg := fast(port)
	cfg.Total = time.Second
	if _, err := open(cfg).Get(t.Context(), s.URL); !errors.Is(err, webclient.ErrTimeout) {
		t.Errorf("error %v", err)
	}
	<-gone // the connection is really closed

	// What the caller has left counts too.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := open(fast(port)).Get(ctx, s.URL); !errors.Is(err, webclient.ErrTimeout) {
		t.Errorf("a cancelled caller: %v", err)
	}
}

// What is sent: one polite user agent, and nothing that tells who asks or where they come from.
func TestWhatIsSent(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	t.Setenv("http_proxy", "http://127.0.0.1:1")
	got := make(chan *http.Request, 4)
	s, port := site(t, func(w http.ResponseWriter, r *http.Request) {
		got <- r
		http.SetCookie(w, &http.Cookie{Name: "track", Value: "1"})
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprint(w, "x")
	})
	c := open(fast(port))
	for range 2 {
		if _, err := c.Get(t.Context(), s.URL+"/a%2Fb?q=1&r=ä#part"); err != nil {
			t.Fatal(err)
		}
		r := <-got
		if r.RequestURI != "/a%2Fb?q=1&r=ä" && r.RequestURI != "/a%2Fb?q=1&r=%C3%A4" {
			t.Errorf("asked for %s", r.RequestURI)
		}
		want := map[string]string{
			"User-Agent":      "Conclave/test (+local assistant; reads one page at the user's request)",
			"Accept-Encoding": "gzip, deflate",
			"Accept":          r.Header.Get("Accept"), "Connection": "close",
		}
		for k := range r.Header {
			if r.Header.Get(k) != want[k] || want[k] == "" {
				t.Errorf("%s: %q", k, r.Header.Values(k))
			}
		}
	}
}

func TestStatus(t *testing.T) {
	for _, code := range []int{201, 204, 206, 300, 304, 400, 401, 403, 404, 407, 410, 418, 429, 451, 500, 503, 599} {
		s, port := site(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(code)
		})
		if _, err := open(fast(port)).Get(t.Context(), s.URL); !errors.Is(err, webclient.Status(code)) ||
			err.Error() != fmt.Sprint(code) {
			t.Errorf("%d: %v", code, err)
		}
	}
}

// Certificates count, and what came over https is not followed to http.
func TestSecure(t *testing.T) {
	plain, port := site(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprint(w, "plain")
	})
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/down" {
			http.Redirect(w, r, plain.URL, http.StatusFound)
			return
		}
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprint(w, "secure")
	}))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	secure := s.Listener.Addr().(*net.TCPAddr).Port
	trusting := webclient.NewForTests(fast(port, secure), webclient.TestNet{
		Allow: loopback, Roots: roots,
		Resolver: names(t, isInternalName),
	})

	if page, err := trusting.Get(t.Context(), s.URL); err != nil || page.Body != "secure" {
		t.Errorf("control: %+v, %v", page, err)
	}
	if _, err := trusting.Get(t.Context(), s.URL+"/down"); !errors.Is(err, webclient.ErrDowngrade) {
		t.Errorf("https to http: %v", err)
	}
	if _, err := open(fast(secure)).Get(t.Context(), s.URL); !errors.Is(err, webclient.ErrSecure) {
		t.Errorf("a certificate of nobody: %v", err)
	}
	if _, err := trusting.Get(t.Context(), fmt.Sprintf("https://loop.inside-names.com:%d/", secure)); !errors.Is(err,
		webclient.ErrSecure) {
		t.Errorf("a certificate of another: %v", err)
	}
	if _, err := trusting.Get(t.Context(), fmt.Sprintf("https://127.0.0.1:%d/", port)); !errors.Is(err,
		webclient.ErrSecure) {
		t.Errorf("no TLS at all: %v", err)
	}
	old := httptest.NewUnstartedServer(http.NotFoundHandler())
	old.TLS = &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
	old.Config.ErrorLog = s.Config.ErrorLog
	old.StartTLS()
	t.Cleanup(old.Close)
	if _, err := webclient.NewForTests(fast(old.Listener.Addr().(*net.TCPAddr).Port),
		webclient.TestNet{Allow: loopback, Roots: roots}).Get(t.Context(), old.URL); !errors.Is(err,
		webclient.ErrSecure) {
		t.Errorf("TLS of old: %v", err)
	}
}
