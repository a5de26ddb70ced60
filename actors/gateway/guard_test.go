package gateway_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"conclave/actors/gateway"
	"conclave/pkg/bus/bustest"
)

func formatMillis(t time.Time) string { return strconv.FormatInt(t.UnixMilli(), 10) }

const token = "0123456789abcdef0123456789abcdef"

// tokenFile writes a token that only its owner may read.
func tokenFile(t testing.TB, content string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// raw sends bytes as they are and returns the status of the answer, 0 when the connection was just closed.
func (w *fixture) sendRaw(request string) (status int, head http.Header, body string) {
	w.t.Helper()
	conn, err := net.Dial("tcp", w.gw.Addr())
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(testTimeout)); err != nil {
		w.t.Fatal(err)
	}
	// It may answer and hang up before it has read all: that is an answer too.
	_, _ = io.WriteString(conn, request)
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, nil, ""
	}
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		return res.StatusCode, res.Header, "" // it has no end to be read to
	}
	defer res.Body.Close()
	data, _ := io.ReadAll(res.Body)
	return res.StatusCode, res.Header, string(data)
}

// Tricks, each beside the honest request that it is made from. An honest one has a control's name.
func TestForgedRequestsAreDenied(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	open := startGateway(t, b, setup{Config: gateway.Config{Hosts: []string{"conclave.example"}}})
	hasty := startGateway(t, b, setup{Config: gateway.Config{HeaderTimeout: 300 * time.Millisecond}})
	bare := func(path string, lines ...string) string {
		return "GET " + path + " HTTP/1.1\r\n" + strings.Join(append(lines, "Connection: close"), "\r\n") + "\r\n\r\n"
	}
	get := func(path string, lines ...string) string {
		return bare(path, append(lines, "Authorization: Bearer "+token)...)
	}
	post := func(path, body string, lines ...string) string {
		lines = append(lines, "Authorization: Bearer "+token, "Connection: close",
			fmt.Sprintf("Content-Length: %d", len(body)))
		return "POST " + path + " HTTP/1.1\r\n" + strings.Join(lines, "\r\n") + "\r\n\r\n" + body
	}
	const (
		host = "Host: 127.0.0.1"
		js   = "Content-Type: application/json"
		auth = "Authorization: Bearer " + token
		ask  = `{"query":"hi"}`
	)
	for _, tt := range []struct {
		name    string
		w       *fixture
		request string
		status  int // 0 = no answer, the connection is closed
	}{
		// Who is asked for: a page under a name that points here must not get in.
		{"control: loopback host", open, get("/sessions", host), 200},
		{"foreign host", open, get("/sessions", "Host: evil.example"), 403},
		{"control: host with port", open, get("/sessions", "Host: localhost:8765"), 200},
		{"foreign host with our port", open, get("/sessions", "Host: evil.example:8765"), 403},
		{"control: IPv6 loopback", open, get("/sessions", "Host: [::1]:8765"), 200},
		{"control: IPv6 loopback without port", open, get("/sessions", "Host: [::1]"), 200},
		{"IPv6 loopback with a zone", open, get("/sessions", "Host: [::1%25evil]"), 403},
		{"control: configured host, other case", open, get("/sessions", "Host: Conclave.Example"), 200},
		{"below the configured host", open, get("/sessions", "Host: a.conclave.example"), 403},
		{"loopback as the beginning of a name", open, get("/sessions", "Host: 127.0.0.1.evil.example"), 403},
		{"localhost as the beginning of a name", open, get("/sessions", "Host: localhost.evil.example"), 403},
		{"loopback behind an at sign", open, get("/sessions", "Host: evil.example@127.0.0.1"), 400},
		{"localhost with a dot", open, get("/sessions", "Host: localhost."), 403},
		{"an odd port", open, get("/sessions", "Host: localhost:80:90"), 403},
		{"an empty host", open, get("/sessions", "Host:"), 403},
		{"no host", open, get("/sessions", "X: y"), 400},
		{"two hosts", open, get("/sessions", host, "Host: evil.example"), 400},
		{"the address outranks the host", open, get("http://evil.example/sessions", host), 403},
		{"control: the address in full", open, get("http://localhost/sessions", "Host: evil.example"), 200},
		{"a forwarded host is nobody's word", open, get("/sessions", "Host: evil.example", "X-Forwarded-Host: "+
			"localhost"), 403},

		// Whose page asks.
		{"control: our own page", open, get("/sessions", host, "Origin: http://127.0.0.1", "Sec-Fetch-Site: "+
			"same-origin"), 200},
		{"control: typed by hand", open, get("/sessions", host, "Sec-Fetch-Site: none"), 200},
		{"another page's origin, reading", open, get("/sessions", host, "Origin: https://evil.example"), 403},
		{
			"another page's origin, writing", open,
			post("/query?wait=0", ask, host, js, "Origin: https://evil.example"),
			403,
		},
		{"control: writing", open, post("/query?wait=0", ask, host, js), 202},
		{"control: writing from our page", open, post("/query?wait=0", ask, host, js, "Origin: http://127.0.0.1",
			"Sec-Fetch-Site: same-origin"), 202},
		{"origin null", open, get("/sessions", host, "Origin: null"), 403},
		{
			"another port of this machine", open,
			get("/sessions", "Host: localhost:8765", "Origin: http://localhost:3000"), 403,
		},
		{
			"another port, as the browser says it", open,
			get("/sessions", "Host: localhost:8765", "Sec-Fetch-Site: same-site"), 403,
		},
		{
			"cross-site image", open, get("/sessions", host, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"),
			403,
		},
		{"cross-site stream", open, get("/events", host, "Sec-Fetch-Site: cross-site"), 403},
		{"two origins, the first ours", open, get("/sessions", host, "Origin: http://127.0.0.1",
			"Origin: https://evil.example"), 403},
		{
			"an origin with our host as its name", open,
			get("/sessions", host, "Origin: https://127.0.0.1@evil.example"),
			403,
		},
		{
			"preflight", open, "OPTIONS /query HTTP/1.1\r\n" + auth + "\r\n" + host +
				"\r\nOrigin: https://evil.example\r\nAccess-Control-Request-Method: POST\r\nConnection: close\r\n\r\n",
			403,
		},
		{"preflight without origin", open, "OPTIONS /query HTTP/1.1\r\n" + auth + "\r\n" + host +
			"\r\nConnection: close\r\n\r\n", 405},
		{"options of everything", open, "OPTIONS * HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", 403},

		// Requests that a form can send without asking first.
		{"text/plain", open, post("/query?wait=0", ask, host, "Content-Type: text/plain"), 415},
		{"no content type", open, post("/query?wait=0", ask, host), 415},
		{
			"a form", open, post("/query?wait=0", "query=hi", host, "Content-Type: application/x-www-form-urlencoded"),
			415,
		},
		{
			"JSON in another dress", open, post("/query?wait=0", ask, host, "Content-Type: text/plain; "+
				"application/json"),
			415,
		},
		{"two content types", open, post("/query?wait=0", ask, host, "Content-Type: text/plain", js), 415},
		{"compressed", open, post("/query?wait=0", ask, host, js, "Content-Encoding: gzip"), 415},
		{"control: charset", open, post("/query?wait=0", ask, host, js+"; charset=UTF-8"), 202},

		// The token.
		{"control: token", open, bare("/sessions", host, auth), 200},
		{"no token", open, bare("/sessions", host), 401},
		{"no token, health", open, bare("/health", host), 401},
		{"no token, nothing there", open, bare("/nothing", host), 401},
		{"wrong token", open, bare("/sessions", host, "Authorization: Bearer "+strings.Repeat("0", 32)), 401},
		{"beginning of the token", open, bare("/sessions", host, "Authorization: Bearer "+token[:31]), 401},
		{"token and more", open, bare("/sessions", host, auth+"0"), 401},
		{"token in the address", open, bare("/sessions?token="+token, host), 401},
		{"token in the address too", open, bare("/sessions?access_token="+token, host, auth), 400},
		{"token as user", open, bare("http://"+token+"@localhost/sessions", host), 401},
		{"token of another scheme", open, bare("/sessions", host, "Authorization: Basic "+token), 401},
		{"token without a scheme", open, bare("/sessions", host, "Authorization: "+token), 401},
		{"two tokens", open, bare("/sessions", host, auth, "Authorization: Bearer x"), 401},
		{"control: scheme in another case", open, bare("/sessions", host, "Authorization: bearer "+token), 200},
		{"token, but a foreign host", open, bare("/sessions", "Host: evil.example", auth), 403},
		{"a name instead of a token", open, bare("/sessions", host, "X-Forwarded-User: admin", "X-Forwarded-For: "+
			"127.0.0.1"), 401},

		// Sizes and times.
		{"huge body", open, post("/query?wait=0", `{"query":"`+strings.Repeat("x", 256<<10)+`"}`, host, js), 413},
		{
			"control: large body", open, post("/query?wait=0", `{"query":"`+strings.Repeat("x", 255<<10)+`"}`, host,
				js),
			202,
		},
		{"huge header", open, get("/sessions", host, "X: "+strings.Repeat("x", 64<<10)), 431},
		{"slow headers", hasty, "GET /sessions HTTP/1.1\r\n" + auth + "\r\n" + host + "\r\nX: ", 0},
		{"body with a get", open, "GET /sessions HTTP/1.1\r\n" + auth + "\r\n" + host + "\r\nContent-Length: " +
			"2\r\nConnection: close\r\n\r\n{}", 400},
		{"deep nesting", open, post("/query?wait=0", `{"query":`+strings.Repeat("[", 200)+strings.Repeat("]", 200)+`}`,
			host, js), 400},

		// Ids and paths.
		{"control: id", open, post("/query?wait=0", `{"query":"hi","session_id":"A-z_9"}`, host, js), 202},
		{"id with a dot", open, post("/query?wait=0", `{"query":"hi","session_id":"a.b"}`, host, js), 400},
		{"id with a wildcard", open, post("/query?wait=0", `{"query":"hi","query_id":"*"}`, host, js), 400},
		{"id that is everything", open, post("/query?wait=0", `{"query":"hi","query_id":">"}`, host, js), 400},
		{"id with a line end", open, post("/query?wait=0", `{"query":"hi","session_id":"a\r\nConclave-Query: b"}`, host,
			js), 400},
		{"id with a zero byte", open, post("/query?wait=0", `{"query":"hi","session_id":"a\u0000"}`, host, js), 400},
		{"id that is too long", open, post("/query?wait=0", `{"query":"hi","session_id":"`+strings.Repeat("a", 65)+`"}`,
			host, js), 400},
		{"id of look-alike letters", open, post("/query?wait=0", `{"query":"hi","session_id":"аdmin"}`, host, js), 400},
		{"cancel everything", open, "DELETE /queries/%3E HTTP/1.1\r\n" + auth + "\r\n" + host +
			"\r\nConnection: close\r\n\r\n", 400},
		{"control: cancel", open, "DELETE /queries/q1 HTTP/1.1\r\n" + auth + "\r\n" + host + "\r\nConnection: " +
			"close\r\n\r\n", 202},
		{"session with a slash", open, get("/sessions/a%2Fb", host), 400},
		{"session with a line end", open, get("/sessions/a%0d%0ab", host), 400},
		{"session that goes up", open, get("/sessions/%2e%2e", host), 400},
		{"path that goes up", open, get("/sessions/../../etc/passwd", host), 404},
		{"path with two slashes", open, get("//evil.example/sessions", host), 404},
		{"override of the method", open, get("/queries/q1", host, "X-HTTP-Method-Override: DELETE"), 404},

		// Places in the stream.
		{"control: place", open, get("/events", host, "Last-Event-ID: 0"), 200},
		{"place that is no number", open, get("/events", host, "Last-Event-ID: abc"), 400},
		{"place below zero", open, get("/events", host, "Last-Event-ID: -1"), 400},
		{"place with a sign", open, get("/events", host, "Last-Event-ID: +1"), 400},
		{"place beyond all numbers", open, get("/events", host, "Last-Event-ID: 99999999999999999999999"), 400},
		{"place at the end of all numbers", open, get("/events", host, "Last-Event-ID: 18446744073709551615"), 400},
		{
			"control: place after a store made anew", open, get("/events", host, "Last-Event-ID: 9223372036854775807"),
			200,
		},
		{"two places", open, get("/events", host, "Last-Event-ID: 1", "Last-Event-ID: 2"), 400},
		{"pattern with a blank", open, get("/events?subject=a%20b", host), 400},
		{"pattern of the API", open, get("/events?subject=$JS.API.>", host), 400},
		{"empty pattern", open, get("/events?subject=", host), 400},
		{"empty query", open, get("/events?query=", host), 400},
		{
			"head of a stream", open, "HEAD /events HTTP/1.1\r\n" + auth + "\r\n" + host +
				"\r\nConnection: close\r\n\r\n",
			405,
		},

		// Two requests in one.
		{"two lengths", open, "POST /query?wait=0 HTTP/1.1\r\n" + auth + "\r\n" + host + "\r\n" + js +
			"\r\nContent-Length: 14\r\nContent-Length: 15\r\n\r\n" + ask, 400},
		{"length with a sign", open, "POST /query?wait=0 HTTP/1.1\r\n" + auth + "\r\n" + host + "\r\n" + js +
			"\r\nContent-Length: +14\r\n\r\n" + ask, 400},
		{"odd transfer encoding", open, "POST /query?wait=0 HTTP/1.1\r\n" + auth + "\r\n" + host + "\r\n" + js +
			"\r\nTransfer-Encoding: xchunked\r\n\r\n" + ask, 501},
		{"blank before the colon", open, get("/sessions", "Host : 127.0.0.1", host), 400},
		{"a line end in a header", open, get("/sessions", host, "X: a\rHost: evil.example"), 400},
		{"not HTTP", open, "query.received hi\r\n\r\n", 400},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			status, header, body := tt.w.sendRaw(tt.request)
			if status != tt.status {
				t.Errorf("%d, want %d: %s", status, tt.status, clip(body))
			}
			for name := range header {
				if strings.HasPrefix(name, "Access-Control-") {
					t.Errorf("it says %s", name)
				}
			}
			if strings.Contains(body, token) {
				t.Error("it says the token")
			}
			if status == 200 && (header.Get("X-Content-Type-Options") != "nosniff" ||
				header.Get("Cache-Control") != "no-store" || header.Get("Content-Security-Policy") == "" ||
				header.Get("Cross-Origin-Resource-Policy") != "same-origin") {
				t.Errorf("headers %v", header)
			}
		})
	}
}

func clip(s string) string {
	if len(s) > 300 {
		return s[:300] + "..."
	}
	return s
}

// A token that others could know is none.
func TestTokenFile(t *testing.T) {
	t.Parallel()
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, path, says string
	}{
		{"not configured", "", "not set"},
		{"folder missing", filepath.Join(t.TempDir(), "none", "token"), "no such file"},
		{"others may read it", tokenFile(t, token, 0o644), "accessible to other users"},
		{"the group may read it", tokenFile(t, token, 0o640), "accessible to other users"},
		{"a FIFO", fifo, "regular file"},
		{"empty", tokenFile(t, "", 0o600), "32 to 1024"},
		{"too short", tokenFile(t, token[:31], 0o600), "32 to 1024"},
		{"two lines", tokenFile(t, token+"\n"+token, 0o600), "one line"},
		{"too long", tokenFile(t, strings.Repeat("x", 4096), 0o600), "32 to 1024"},
		{"a folder", t.TempDir(), "regular file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			g := gateway.New(defaultConfig(gateway.Config{TokenFile: tt.path}), nil)
			err := g.Start(t.Context(), nil)
			if err == nil || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), token) {
				t.Errorf("%v", err)
			}
			if err := g.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A body that comes slower than anyone writes ends the request, and nothing is asked.
func testBodyThatDoesNotCome(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{change: func(g *gateway.Gateway) { g.SetBodyTimeout(50 * time.Millisecond) }})
	for kind, want := range map[string]int{"application/json": 400, "text/plain": 415} {
		status, _, body := w.sendRaw("POST /query HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + token +
			"\r\nContent-Type: " + kind + "\r\nContent-Length: 14\r\n\r\n{")
		if status != want || want == 400 && !strings.Contains(body, "incomplete body") {
			t.Errorf("%s: %d %s", kind, status, body)
		}
	}
}
