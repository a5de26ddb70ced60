package gateway_test

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"conclave/actors/gateway"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/file"
)

const firefox = "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"

// logIn logs a browser with this User-Agent in and returns its cookie as a header.
func (w *fixture) logIn(userAgent string) string {
	w.t.Helper()
	status, h, body := send(w.t, anonymous(w.t), "GET", w.newLink(), "User-Agent", userAgent)
	if status != http.StatusSeeOther {
		w.t.Fatalf("login: %d %s", status, body)
	}
	cookie, _, _ := strings.Cut(h.Get("Set-Cookie"), ";")
	return cookie
}

// A login survives a restart on another port: stored without the cookie, of use to its browser only, and void with
// another token, a file that others can read and one that is damaged.
func TestLoginsSurviveRestart(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	with := setup{Config: gateway.Config{TokenFile: tokenFile(t, token+"\n", 0o600)}}
	cookie := startGateway(t, b, with).logIn(firefox)
	file := filepath.Join(filepath.Dir(with.TokenFile), "http.logins")
	stored, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	_, value, _ := strings.Cut(cookie, "=")
	if strings.Contains(string(stored), value) || strings.Contains(string(stored), token) {
		t.Error("the file has a secret")
	}
	good := []string{"Cookie", cookie, "User-Agent", firefox}
	for _, tt := range []struct {
		name    string
		header  []string
		token   string // "" = the same
		content string // of the file, "" = what was stored
		mode    os.FileMode
		want    int
	}{
		{name: "restarted", header: good, want: 200},
		{name: "an update of the browser", header: []string{
			"Cookie", cookie, "User-Agent", strings.ReplaceAll(firefox, "128.0", "129.0.1"),
		}, want: 200},
		{name: "another browser", header: []string{"Cookie", cookie, "User-Agent", "curl/8.5.0"}, want: 401},
		{name: "no browser", header: []string{"Cookie", cookie, "User-Agent", ""}, want: 401},
		{name: "another token", header: good, token: strings.Repeat("x", 64), want: 401},
		{name: "others can read it", header: good, mode: 0o644, want: 401},
		{name: "damaged", header: good, content: string(stored[:len(stored)/2]), want: 401},
		{name: "trick: a digest that is empty", header: good, content: changeLogin(t, stored, "digest", ""), want: 401},
		{
			name: "trick: the cookie in place of its digest", header: good,
			content: changeLogin(t, stored, "digest", value), want: 401,
		},
		{name: "trick: no login in the list", header: good, content: `{"cookie":"x","logins":[null]}`, want: 401},
		{name: "expired", header: good, content: changeLogin(t, stored, "expires", "2026-01-01T00:00:00Z"), want: 401},
	} {
		t.Run(tt.name, func(t *testing.T) {
			folder := t.TempDir()
			write := func(name, content string, mode os.FileMode) {
				if content == "" {
					content = map[string]string{"http.token": token + "\n", "http.logins": string(stored)}[name]
				}
				if err := os.WriteFile(filepath.Join(folder, name), []byte(content), mode); err != nil {
					t.Fatal(err)
				}
			}
			write("http.token", tt.token, 0o600)
			write("http.logins", tt.content, max(tt.mode, 0o600))
			w := startGateway(t, b, setup{Config: gateway.Config{TokenFile: filepath.Join(folder, "http.token")}})
			if status, _, body := send(t, anonymous(t), "GET", w.base+"/sessions", tt.header...); status != tt.want {
				t.Errorf("%d %s", status, body)
			}
			w.logIn(firefox) // works in any case
		})
	}
}

// changeLogin returns the stored logins with another value in each.
func changeLogin(t *testing.T, stored []byte, field, value string) string {
	t.Helper()
	var all map[string]any
	if err := json.Unmarshal(stored, &all); err != nil {
		t.Fatal(err)
	}
	for _, l := range all["logins"].([]any) {
		l.(map[string]any)[field] = value
	}
	out, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// The browsers that are logged in are listed and revoked one by one; requests in progress of a revoked one end. A
// browser that logs in again replaces its login.
func TestLoginsAreListedAndRevoked(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	with := setup{Config: gateway.Config{TokenFile: tokenFile(t, token+"\n", 0o600)}}
	w := startGateway(t, b, with)
	type list struct{ Logins []gateway.BrowserLogin }
	own := []string{"Cookie", w.logIn(firefox), "User-Agent", firefox}
	stolen := w.logIn("Chromium")
	if status, _, _ := send(t, anonymous(t), "GET", w.newLink(), own...); status != http.StatusSeeOther {
		t.Fatalf("a second login: %d", status)
	}
	if status, _, _ := send(t, anonymous(t), "GET", w.base+"/logins", own...); status != http.StatusUnauthorized {
		t.Errorf("the login that was replaced: %d", status)
	}
	own[1] = w.logIn(firefox)
	_, _, body := send(t, anonymous(t), "GET", w.base+"/logins", own...)
	got := read[list](t, body).Logins
	if len(got) != 3 || strings.Contains(body, "digest") {
		t.Fatalf("%s", body)
	}
	id := ""
	for _, l := range got {
		if l.Browser == "Chromium" {
			id = l.ID
		}
		if l.Current && l.Browser != firefox || l.Host != "127.0.0.1" || l.Expires.Before(l.Created) {
			t.Errorf("%+v", l)
		}
	}
	stream := w.follow("/events", "Cookie", stolen, "User-Agent", "Chromium", "Authorization", "none")
	if status, _, body := send(t, anonymous(t), "DELETE", w.base+"/logins/"+id, own...); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	stream.rest() // ends
	for name, g := range map[string]*fixture{"at once": w, "after a restart": startGateway(t, b, with)} {
		if status, _, _ := send(t, anonymous(t), "GET", g.base+"/sessions", "Cookie", stolen, "User-Agent",
			"Chromium"); status != http.StatusUnauthorized {
			t.Errorf("revoked, %s: %d", name, status)
		}
		if status, _, _ := send(t, anonymous(t), "GET", g.base+"/sessions", own...); status != http.StatusOK {
			t.Errorf("another one, %s: %d", name, status)
		}
	}
	for _, id := range []string{id, "nothing", "a.b"} {
		if status, _, body := send(t, anonymous(t), "DELETE", w.base+"/logins/"+id, own...); status != 404 &&
			status != 400 {
			t.Errorf("%s: %d %s", id, status, body)
		}
	}
}

// A login that is revoked at one of two gateways with the same token file is void at the other one too, whose requests
// with it end, and does not come back with a login there. A revocation that cannot be stored leaves nothing on the
// disk.
func TestRevocationHoldsEverywhere(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	with := setup{Config: gateway.Config{TokenFile: tokenFile(t, token+"\n", 0o600)}}
	w, other := startGateway(t, b, with), startGateway(t, b, with)
	own := []string{"Cookie", w.logIn(firefox), "User-Agent", firefox}
	revoke := func(browser string, want int) {
		t.Helper()
		_, _, body := send(t, anonymous(t), "GET", other.base+"/logins", own...)
		for _, l := range read[struct{ Logins []gateway.BrowserLogin }](t, body).Logins {
			if l.Browser == browser {
				if status, _, body := send(t, anonymous(t), "DELETE", w.base+"/logins/"+l.ID, own...); status != want {
					t.Errorf("%d %s", status, body)
				}
				return
			}
		}
		t.Errorf("%s is not listed: %s", browser, body)
	}
	check := func(name string, g *fixture, cookie, browser string, want int) {
		t.Helper()
		if status, _, body := send(t, anonymous(t), "GET", g.base+"/sessions", "Cookie", cookie, "User-Agent",
			browser); status != want {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
	stolen := w.logIn("Chromium")
	stream := other.follow("/events", "Cookie", stolen, "User-Agent", "Chromium", "Authorization", "none")
	revoke("Chromium", http.StatusOK)
	check("at the other gateway", other, stolen, "Chromium", http.StatusUnauthorized)
	stream.rest() // ends
	late := other.logIn("Safari")
	check("a login of the other gateway", w, late, "Safari", http.StatusOK)
	check("after a restart", startGateway(t, b, with), stolen, "Chromium", http.StatusUnauthorized)

	unlock, err := file.LockFolder(filepath.Dir(with.TokenFile), time.Second) // as a full disk, it stores nothing
	if err != nil {
		t.Fatal(err)
	}
	revoke("Safari", http.StatusInternalServerError)
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	check("not stored, at the other gateway", other, late, "Safari", http.StatusUnauthorized)
	check("not stored, after a restart", startGateway(t, b, with), late, "Safari", http.StatusUnauthorized)
	check("not stored, another login", w, own[1], firefox, http.StatusOK)
}

// A browser without a login sees how to get one, whatever it opens; a program gets JSON.
func TestLoginPage(t *testing.T) {
	t.Parallel()
	w := startGateway(t, bustest.Start(t), setup{Config: gateway.Config{Page: true}})
	const accept = "text/html,application/xhtml+xml,*/*;q=0.8"
	for _, path := range []string{"/", "/chat/abc", "/login?code=used", "/sessions", "/nothing"} {
		status, h, body := send(t, anonymous(t), "GET", w.base+path, "Accept", accept)
		if status != http.StatusUnauthorized || !strings.HasPrefix(h.Get("Content-Type"), "text/html") ||
			!strings.Contains(body, "conclave open") || strings.Contains(body, "<script") ||
			strings.Contains(h.Get("Content-Security-Policy"), "script") {
			t.Errorf("%s: %d %v %s", path, status, h, body)
		}
		status, h, body = send(t, anonymous(t), "GET", w.base+path, "Accept", "application/json")
		if status != http.StatusUnauthorized || !strings.Contains(body, `"code":"unauthorized"`) {
			t.Errorf("%s as a program: %d %v %s", path, status, h, body)
		}
	}
}

// TestUnusedConnectionsDelayNoStop: a browser opens connections in advance, and a stop does not wait for a request on
// them.
func TestUnusedConnectionsDelayNoStop(t *testing.T) {
	t.Parallel()
	w := startGateway(t, bustest.Start(t), setup{})
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(w.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	send(t, anonymous(t), "GET", w.base+"/health") // answered: the server has accepted conn before
	w.stop()
}
