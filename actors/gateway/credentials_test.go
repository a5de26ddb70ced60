package gateway_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"conclave/actors/gateway"
	"conclave/pkg/bus/bustest"
)

// anonymous returns a client without a credential and with a cookie jar, as a browser has one. It does not follow
// redirects.
func anonymous(t testing.TB) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{
		Transport: tr, Jar: jar, Timeout: testTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// send sends a request without a body.
func send(t testing.TB, c *http.Client, method, url string, header ...string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(data)
}

// socketClient returns a client of the gateway's Unix socket.
func (w *fixture) socketClient() *http.Client {
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return gateway.DialSocket(ctx, w.cfg.Socket)
	}}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: testTimeout}
}

// newLink requests a login link over the Unix socket.
func (w *fixture) newLink() string {
	w.t.Helper()
	status, _, body := send(w.t, w.socketClient(), "POST", "http://localhost/login/links")
	if status != http.StatusOK {
		w.t.Fatalf("new link: %d %s", status, body)
	}
	return read[gateway.LoginLink](w.t, body).URL
}

// Every route is denied without a credential, and with a wrong one, before anything else is looked at. The routes are
// those of the route table, so a new route is tested too.
func TestEveryRouteNeedsCredential(t *testing.T) {
	t.Parallel()
	w := startGateway(t, bustest.Start(t), setup{})
	parameter := regexp.MustCompile(`\{[a-z]+\}`)
	login, err := anonymous(t).Get(w.newLink())
	if err != nil || len(login.Cookies()) != 1 {
		t.Fatalf("login: %v, %v", login, err)
	}
	login.Body.Close()
	cookie := login.Cookies()[0].Name
	routes := append(w.gw.Endpoints(), "GET /nothing", "POST /", "GET //health", "GET /login/../health", "HEAD /events",
		"GET /LOGIN", "GET /login/")
	for _, route := range routes {
		method, path, _ := strings.Cut(route, " ")
		path = parameter.ReplaceAllString(path, "abcdefgh")
		for name, header := range map[string][]string{
			"no credential":    nil,
			"wrong token":      {"Authorization", "Bearer " + strings.Repeat("0", 64)},
			"empty token":      {"Authorization", "Bearer "},
			"wrong cookie":     {"Cookie", cookie + "=" + strings.Repeat("0", 64)},
			"empty cookie":     {"Cookie", cookie + "="},
			"token as cookie":  {"Cookie", cookie + "=" + token},
			"loopback claimed": {"X-Forwarded-For", "127.0.0.1"},
		} {
			status, h, body := send(t, anonymous(t), method, w.base+path, header...)
			if status != http.StatusUnauthorized || h.Get("WWW-Authenticate") == "" {
				t.Errorf("%s, %s: %d %s", route, name, status, body)
				continue
			}
			if strings.Contains(body, token) || strings.Contains(body, filepath.Dir(w.cfg.TokenFile)) {
				t.Errorf("%s, %s: the response reveals %s", route, name, body)
			}
			if method == http.MethodHead {
				continue
			}
			if path != "/login" && !strings.Contains(body, "conclave principal add NAME --kind client") {
				t.Errorf("%s, %s: the response does not say how a program gets a token of its own: %s", route, name,
					body)
			}
			if !strings.Contains(body, "conclave open") || !strings.Contains(body, `"code":"unauthorized"`) &&
				!strings.Contains(body, `"code":"invalid_api_key"`) {
				t.Errorf("%s, %s: %s", route, name, body)
			}
		}
	}
}

// A login link works once, sets a cookie that scripts cannot read and other sites do not send, and the cookie
// authorizes requests, event streams too.
func TestLoginLinkSetsCookieOnce(t *testing.T) {
	t.Parallel()
	w := startGateway(t, bustest.Start(t), setup{})
	link, browser := w.newLink(), anonymous(t)
	if strings.Contains(link, token) || !strings.HasPrefix(link, w.base+"/login?code=") {
		t.Errorf("link %s", link)
	}
	if status, h, _ := send(t, browser, "HEAD", link); status != http.StatusMethodNotAllowed ||
		h.Get("Set-Cookie") != "" {
		t.Errorf("HEAD: %d %v", status, h)
	}
	if status, h, _ := send(t, browser, "GET", link, "Sec-Fetch-Site", "cross-site"); status != http.StatusForbidden ||
		h.Get("Set-Cookie") != "" {
		t.Errorf("from another site: %d %v", status, h)
	}
	status, h, body := send(t, browser, "GET", link, "Sec-Fetch-Site", "none")
	if status != http.StatusSeeOther || h.Get("Location") != "/" {
		t.Fatalf("login: %d %v %s", status, h, body)
	}
	for _, want := range []string{"HttpOnly", "SameSite=Strict", "Path=/"} {
		if !strings.Contains(h.Get("Set-Cookie"), want) {
			t.Errorf("no %s in %q", want, h.Get("Set-Cookie"))
		}
	}
	if strings.Contains(h.Get("Set-Cookie"), token) {
		t.Error("the cookie contains the token")
	}
	for _, path := range []string{"/", "/health", "/sessions"} {
		if status, _, body := send(t, browser, "GET", w.base+path); status != http.StatusOK {
			t.Errorf("%s with the cookie: %d %s", path, status, body)
		}
	}
	if status, _, _ := send(t, browser, "GET", w.base+"/sessions", "Origin",
		"http://127.0.0.1:1"); status != http.StatusForbidden {
		t.Errorf("another origin with the cookie: %d", status)
	}
	for _, path := range []string{"/login/links", "/login/token"} {
		if status, _, body := send(t, browser, "POST", w.base+path); status != http.StatusForbidden {
			t.Errorf("%s with a cookie: %d %s", path, status, body)
		}
	}
	// Anybody can publish a model outside of Ollama's library; a stolen browser login must not bring one here.
	for path, want := range map[string]int{
		"/models/evil.example%2Fns%2Fmodel:latest/pull": 403,
		"/models/publisher%2Fmodel/pull":                403, "/models/gemma4:12b/pull": 202,
	} {
		if status, _, body := send(t, browser, "POST", w.base+path); status != want {
			t.Errorf("%s with a cookie: %d %s", path, status, body)
		}
	}
	if status, h, body := send(t, anonymous(t), "GET", link); status != http.StatusUnauthorized ||
		h.Get("Set-Cookie") != "" || !strings.Contains(body, "conclave open") {
		t.Errorf("second use: %d %v %s", status, h, body)
	}
}

// A cookie is accepted over IPv6 too, and for a configured host, which a proxy of another user may serve, if the
// browser logged in there.
func TestCookieOverIPv6AndForConfiguredHost(t *testing.T) {
	t.Parallel()
	w := startGateway(t, bustest.Start(t),
		setup{Config: gateway.Config{Listen: "[::1]:0", Hosts: []string{"conclave.example"}}})
	// get requests a URL by the name host, "" = that of the URL.
	get := func(url, host string, cookies ...*http.Cookie) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		for _, c := range cookies {
			req.AddCookie(c)
		}
		res, err := anonymous(t).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res
	}
	for _, host := range []string{"", "conclave.example", "conclave.example:8443"} {
		login := get(w.newLink(), host).Cookies()
		if len(login) != 1 {
			t.Fatalf("host %q: %d cookies", host, len(login))
		}
		if res := get(w.base+"/sessions", host, login...); res.StatusCode != http.StatusOK {
			t.Errorf("host %q: %d", host, res.StatusCode)
		}
		other := map[string]string{"": "conclave.example"}[host]
		if res := get(w.base+"/sessions", other, login...); res.StatusCode != http.StatusUnauthorized {
			t.Errorf("host %q, used for %q: %d", host, other, res.StatusCode)
		}
	}
}

// A login link names the proxy that is configured, and works through it.
func TestLoginLinkNamesProxy(t *testing.T) {
	t.Parallel()
	w := startGateway(t, bustest.Start(t),
		setup{Config: gateway.Config{Hosts: []string{"conclave.example"}, URL: "https://conclave.example:8443"}})
	code, ok := strings.CutPrefix(w.newLink(), "https://conclave.example:8443/login?code=")
	if !ok || code == "" {
		t.Fatalf("the link does not name the proxy")
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.base+"/login?code="+code, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "conclave.example:8443"
	res, err := anonymous(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusSeeOther || len(res.Cookies()) != 1 || !res.Cookies()[0].Secure {
		t.Errorf("login through the proxy: %d, %d cookies", res.StatusCode, len(res.Cookies()))
	}
}

// Login codes and browser logins are bounded: the oldest stops working.
func TestOldestLoginCodeIsDropped(t *testing.T) {
	t.Parallel()
	w := startGateway(t, bustest.Start(t), setup{})
	first, second := w.newLink(), w.newLink()
	for range 15 {
		w.newLink()
	}
	if status, _, _ := send(t, anonymous(t), "GET", first); status != http.StatusUnauthorized {
		t.Errorf("the oldest of 17 links: %d", status)
	}
	if status, _, _ := send(t, anonymous(t), "GET", second); status != http.StatusSeeOther {
		t.Errorf("the second of 17 links: %d", status)
	}
}

// An expired login code and an expired cookie are denied.
func TestExpiredLoginIsDenied(t *testing.T) {
	t.Parallel()
	w := startGateway(t, bustest.Start(t), setup{})
	link, browser := w.newLink(), anonymous(t)
	if status, _, _ := send(t, browser, "GET", w.newLink()); status != http.StatusSeeOther {
		t.Fatalf("login: %d", status)
	}
	gateway.ExpireLogins(w.gw)
	if status, _, _ := send(t, anonymous(t), "GET", link); status != http.StatusUnauthorized {
		t.Errorf("expired code: %d", status)
	}
	if status, _, _ := send(t, browser, "GET", w.base+"/sessions"); status != http.StatusUnauthorized {
		t.Errorf("expired cookie: %d", status)
	}
}

// A new token revokes the old one, login links, cookies, and requests that are in progress with them. The Unix socket
// stays.
func TestNewTokenRevokesEverything(t *testing.T) {
	t.Parallel()
	w := startGateway(t, bustest.Start(t), setup{})
	local := w.socketClient()
	link, browser := w.newLink(), anonymous(t)
	if status, _, _ := send(t, browser, "GET", w.newLink()); status != http.StatusSeeOther {
		t.Fatalf("login: %d", status)
	}
	stream := w.follow("/events")
	if status, _, body := send(t, local, "POST", "http://localhost/login/token"); status != http.StatusOK ||
		strings.Contains(body, token) {
		t.Fatalf("%d %s", status, body)
	}
	stream.rest() // ends
	for name, status := range map[string]func() int{
		"old token":  func() int { s, _, _ := w.do("GET", "/sessions", ""); return s },
		"old cookie": func() int { s, _, _ := send(t, browser, "GET", w.base+"/sessions"); return s },
		"old link":   func() int { s, _, _ := send(t, anonymous(t), "GET", link); return s },
	} {
		if got := status(); got != http.StatusUnauthorized {
			t.Errorf("%s: %d", name, got)
		}
	}
	info, err := os.Stat(w.cfg.TokenFile)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", info, err)
	}
	data, err := os.ReadFile(w.cfg.TokenFile)
	if err != nil || len(strings.TrimSpace(string(data))) != 64 {
		t.Fatalf("%d bytes, %v", len(data), err)
	}
	if status, _, _ := w.do("GET", "/sessions", "", "Authorization",
		"Bearer "+strings.TrimSpace(string(data))); status != http.StatusOK {
		t.Errorf("new token: %d", status)
	}
	if status, _, _ := send(t, local, "GET", "http://localhost/sessions"); status != http.StatusOK {
		t.Errorf("socket: %d", status)
	}
}

// TestTokenNarrowsTheSocket: over the Unix socket a token has the rights that it has over TCP, and an invalid one has
// none.
func TestTokenNarrowsTheSocket(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	registry := &listRegistry{}
	phone, token := newClient("phone", time.Unix(1, 0))
	registry.set(phone)
	startActor(t, b, registry)
	dir := t.TempDir()
	w := startGateway(t, b,
		setup{Config: gateway.Config{
			TokenFile: filepath.Join(dir, "http.token"),
			Socket:    filepath.Join(dir, "http.sock"),
		}})
	local := w.socketClient()
	get := func(path, token string) int {
		status, _, _ := send(t, local, "GET", "http://localhost"+path, "Authorization", token)
		return status
	}
	eventually(t, "the token of a client", func() bool { return get("/health", "Bearer "+token) == http.StatusOK })
	for _, tt := range []struct {
		token string
		want  int
	}{
		{"Bearer " + token, http.StatusForbidden},
		{"Bearer " + token[1:], http.StatusUnauthorized},
		{"Bearer ", http.StatusUnauthorized},
		{"Basic eDp5", http.StatusUnauthorized},
	} {
		if got := get("/sessions", tt.token); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.token, got, tt.want)
		}
	}
}

// The first start creates the token, later ones keep it. The Unix socket needs no token, keeps the browser protections,
// and has mode 0600; its path may be longer than a socket address.
func TestSocketNeedsNoToken(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	folder := filepath.Join(t.TempDir(), strings.Repeat("long", 40))
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	cfg := gateway.Config{TokenFile: filepath.Join(folder, "http.token"), Socket: filepath.Join(folder, "http.sock")}
	w := startGateway(t, b, setup{Config: cfg})
	for file, mode := range map[string]os.FileMode{cfg.TokenFile: 0o600, cfg.Socket: 0o600 | os.ModeSocket} {
		if info, err := os.Stat(file); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v %v, want %v", file, info, err, mode)
		}
	}
	created, err := os.ReadFile(cfg.TokenFile)
	if err != nil {
		t.Fatal(err)
	}
	local := w.socketClient()
	if status, _, body := send(t, local, "GET", "http://localhost/sessions"); status != http.StatusOK {
		t.Errorf("%d %s", status, body)
	}
	if status, _, _ := send(t, local, "GET", "http://evil.example/sessions"); status != http.StatusForbidden {
		t.Errorf("foreign host over the socket: %d", status)
	}
	second := startGateway(t, b, setup{Config: cfg}) // serves TCP only
	second.stop()
	if status, _, body := send(t, local, "GET", "http://localhost/sessions"); status != http.StatusOK {
		t.Errorf("after a second gateway: %d %s", status, body)
	}
	w.stop()
	if entries, err := os.ReadDir(folder); err != nil || len(entries) != 1 || entries[0].Name() != "http.token" {
		t.Errorf("left behind: %v %v", entries, err)
	}
	stale, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	stale.(*net.UnixListener).SetUnlinkOnClose(false)
	stale.Close()
	cfg.Socket = stale.Addr().String() // as a killed gateway leaves it
	w = startGateway(t, b, setup{Config: cfg})
	if status, _, body := send(t, w.socketClient(), "GET", "http://localhost/sessions"); status != http.StatusOK {
		t.Errorf("over a stale socket: %d %s", status, body)
	}
	if kept, err := os.ReadFile(cfg.TokenFile); err != nil || !bytes.Equal(kept, created) {
		t.Error("the second start changed the token")
	}
}

// otherUser is the environment variable with which the test binary runs as another user: "address token-file socket
// cookie".
const otherUser = "CONCLAVE_TEST_OTHER_USER"

// attackAsOtherUser tries what another user of the machine can try, and writes a line for each attempt.
func attackAsOtherUser(w io.Writer, targets []string) {
	address, file, socket, cookie := targets[0], targets[1], targets[2], targets[3]
	client := &http.Client{Timeout: testTimeout}
	for _, r := range [][2]string{
		{"GET", "/health"},
		{"GET", "/memory/export"},
		{"POST", "/approvals/abcdefgh"},
		{"GET", "/events"},
		{"GET", "/sessions"},
	} {
		req, err := http.NewRequest(r[0], "http://"+address+r[1], strings.NewReader(""))
		if err != nil {
			fmt.Fprintln(w, err)
			continue
		}
		if r[1] == "/sessions" {
			req.Header.Set("Cookie", cookie)
		}
		res, err := client.Do(req)
		if err != nil {
			fmt.Fprintln(w, r[0], r[1], err)
			continue
		}
		res.Body.Close()
		fmt.Fprintln(w, r[0], r[1], res.StatusCode)
	}
	_, err := os.ReadFile(file)
	fmt.Fprintln(w, "token file:", errors.Is(err, fs.ErrPermission), err)
	conn, err := gateway.DialSocket(context.Background(), socket)
	if err == nil {
		conn.Close()
	}
	fmt.Fprintln(w, "socket:", errors.Is(err, fs.ErrPermission), err)
}

// A cookie authorizes a browser of this machine only, whatever address it connects to, unless the request names a
// configured host. A client on another machine can neither use a cookie nor log in; its login link stays valid, and the
// reply is that to a wrong code.
func TestCookieIsNotAcceptedFromOtherMachines(t *testing.T) {
	t.Parallel()
	w := startGateway(t, bustest.Start(t), setup{Config: gateway.Config{Hosts: []string{"conclave.example"}}})
	wrongStatus, _, wrongBody := send(t, anonymous(t), "GET", w.base+"/login?code=wrong")
	for _, tt := range []struct {
		name, remote, host string
		want               bool
	}{
		{"another machine", "203.0.113.9:40000", "", false},
		{"another machine over IPv6", "[2001:db8::9]:40000", "", false},
		{"another machine through a proxy", "203.0.113.9:40000", "conclave.example", true},
		{"this machine, a connection that does not exist", "127.0.0.1:1", "", false},
		{"this machine by its LAN address, a connection that does not exist", "198.51.100.1:1", "", false},
		{"no address", "", "", false},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr, r.Host = tt.remote, cmp.Or(tt.host, "198.51.100.1:8765")
		local := &net.TCPAddr{IP: net.ParseIP("198.51.100.1"), Port: 8765}
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(local)))
		if got := gateway.IsOwnBrowser(w.gw, r); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
		for _, valid := range []bool{true, false} {
			if status, body := gateway.Login(w.gw, r, valid); !tt.want && (status != wrongStatus || body != wrongBody) {
				t.Errorf("%s: login with a code that is valid (%t): %d %s, with a wrong one on this machine: %d %s",
					tt.name, valid, status, body, wrongStatus, wrongBody)
			}
		}
	}
}

// A process of another user is refused over TCP, also with a cookie that the browser sent to its port, cannot connect
// to the Unix socket and cannot read the token, even when the folder of both is open to everyone. The same holds on a
// LAN address.
func TestOtherUserIsRefused(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can start a process of another user; run the test as root, as CI does")
	}
	t.Run("loopback", func(t *testing.T) { refuseOtherUser(t, "127.0.0.1:0") })
	own, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range own {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() && ip.IP.To4() != nil {
			t.Run("LAN address", func(t *testing.T) { refuseOtherUser(t, net.JoinHostPort(ip.IP.String(), "0")) })
			return
		}
	}
	t.Log("this machine has no LAN address; TestCookieIsNotAcceptedFromOtherMachines covers the rule")
}

// refuseOtherUser starts a gateway on an address and attacks it as another user, who has a valid cookie.
func refuseOtherUser(t *testing.T, listen string) {
	folder, err := os.MkdirTemp("/tmp", "conclave-other-user-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	w := startGateway(t, bustest.Start(t),
		setup{Config: gateway.Config{
			Listen: listen, TokenFile: filepath.Join(folder, "http.token"),
			Socket: filepath.Join(folder, "http.sock"),
		}})
	login, err := anonymous(t).Get(w.newLink())
	if err != nil || len(login.Cookies()) != 1 {
		t.Fatalf("login: %v %v", login, err)
	}
	login.Body.Close()
	cookie := login.Cookies()[0].Name + "=" + login.Cookies()[0].Value
	if status, _, body := send(t, anonymous(t), "GET", w.base+"/sessions", "Cookie", cookie); status != http.StatusOK {
		t.Fatalf("the cookie: %d %s", status, body)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(folder, "program") // the folder of the test binary is closed to others
	if err := os.Link(self, program); err != nil {
		data, err := os.ReadFile(self)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(program, data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*testTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program)
	cmd.Dir, cmd.Env = folder, []string{otherUser + "=" +
		strings.Join([]string{w.gw.Addr(), w.cfg.TokenFile, w.cfg.Socket, cookie}, " ")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []string{
		"GET /health 401", "GET /memory/export 401", "POST /approvals/abcdefgh 401",
		"GET /events 401", "GET /sessions 401", "token file: true", "socket: true",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	t.Logf("%s", out)
}
