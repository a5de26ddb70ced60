package gateway_test

import (
	"strings"
	"testing"

	"conclave/actors/gateway"
	"conclave/pkg/bus/bustest"
)

// testPageFiles: a browser gets the page for its addresses, a program the API; the policy of the page allows nothing
// from other hosts; only files of the page are served.
func testPageFiles(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{Config: gateway.Config{Page: true}})
	const browser = "text/html,application/xhtml+xml"
	for _, path := range []string{"/", "/chat", "/chat/s1", "/runs/q1", "/memory", "/approvals", "/tasks"} {
		status, h, body := w.do("GET", path, "", "Accept", browser)
		if status != 200 || !strings.Contains(body, `src="/page/js/app.js"`) ||
			!strings.Contains(h.Get("Content-Security-Policy"), "require-trusted-types-for 'script'") {
			t.Errorf("%s: %d %q %s", path, status, h.Get("Content-Security-Policy"), body)
		}
	}
	if status, h, body := w.do("GET", "/approvals", ""); !strings.Contains(h.Get("Content-Type"), "json") {
		t.Errorf("a program got %d %s", status, body)
	}
	if status, h, _ := w.do("GET", "/page/js/app.js", ""); status != 200 ||
		!strings.HasPrefix(h.Get("Content-Type"), "text/javascript") {
		t.Errorf("%d %v", status, h)
	}
	for _, path := range []string{
		"/page/", "/page/js", "/page/../gateway.go", "/page/%2e%2e/page.go",
		"/page/none.js",
	} {
		if status, _, body := w.do("GET", path, ""); status == 200 {
			t.Errorf("%s: %s", path, body)
		}
	}
}
