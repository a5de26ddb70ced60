package acceptance

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"conclave/config"
	"conclave/pkg/programtest"
)

// browserPage is a tab of a browser that is logged in at a running system.
type browserPage struct {
	t   *testing.T
	ctx context.Context
	url string

	mu       sync.Mutex
	errors   []string // of the console
	requests []string // addresses that the tab requested
}

// findBrowser returns the path of Chromium. The tests of the page need it, and are skipped without CONCLAVE_BROWSER.
func findBrowser(t *testing.T) string {
	t.Helper()
	if os.Getenv("CONCLAVE_BROWSER") == "" {
		t.Skip("tests of the page run with CONCLAVE_BROWSER=1 and need Chromium (Debian: apt-get install chromium)")
	}
	return programtest.Require(t, "apt-get install chromium", "chromium", "chromium-headless-shell", "google-chrome")
}

// openPage starts the system with the demo model and a browser, and logs in with a link.
func openPage(t *testing.T) *browserPage {
	t.Helper()
	browser := findBrowser(t)
	address := make(chan string, 1)
	c := settings(t, "system.gateway.listen", "127.0.0.1:0").WithWiring(config.Wiring{OnListen: func(addr string) {
		address <- addr
	}, Doctor: pageChecks})
	c.Models.Ollama.URL = "http://127.0.0.1:1" // nothing answers there, so the demo model does
	home := newHome(t)
	up(t, c, home, config.Actors...)
	s := &pageSystem{t: t, url: "http://" + <-address, token: readToken(t, home)}
	return startBrowser(t, browser, s.url, s.loginLink(t.Context()))
}

// openScriptedPage starts the system with the scripted models and a browser, and logs in with a link.
func openScriptedPage(t *testing.T) (*pageSystem, *browserPage) {
	t.Helper()
	browser := findBrowser(t)
	s := startPageSystem(t)
	return s, startBrowser(t, browser, s.url, s.loginLink(t.Context()))
}

// startBrowser starts a browser with one tab at the login link.
func startBrowser(t *testing.T, browser, url, link string) *browserPage {
	t.Helper()
	return openTab(t, launchBrowser(t, browser), url, link)
}

// launchBrowser starts a browser and returns the context for its tabs. It can resolve no name: a request to another
// host fails.
func launchBrowser(t *testing.T, browser string) context.Context {
	t.Helper()
	options := append([]chromedp.ExecAllocatorOption{}, chromedp.DefaultExecAllocatorOptions[:]...)
	options = append(options, chromedp.ExecPath(browser), chromedp.NoSandbox,
		chromedp.UserDataDir(filepath.Join(t.TempDir(), "profile")),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true), chromedp.Flag("disable-gpu", true),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"), chromedp.Flag("lang", "en-GB"))
	all, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	return all
}

// openTab opens a tab of the browser of parent at an address of the page and waits until the page is there.
func openTab(t *testing.T, parent context.Context, url, address string) *browserPage {
	t.Helper()
	p := newTab(t, parent, url)
	p.do(chromedp.Navigate(address), chromedp.WaitVisible(chromedp.CSS("#main")))
	return p
}

// newTab opens an empty tab of the browser of parent, and records its requests and what it writes to the console.
func newTab(t *testing.T, parent context.Context, url string) *browserPage {
	t.Helper()
	ctx, cancel := chromedp.NewContext(parent)
	t.Cleanup(cancel)
	timeout := 4 * testTimeout
	if os.Getenv("CONCLAVE_LIVE") != "" {
		timeout = time.Hour
	}
	ctx, cancel = context.WithTimeout(ctx, timeout)
	t.Cleanup(cancel)
	p := &browserPage{t: t, ctx: ctx, url: url}
	p.do(chromedp.EmulateViewport(1280, 800))
	messages := chromedp.Console(ctx)
	go func() {
		for m, err := range messages {
			if err != nil {
				return
			}
			p.mu.Lock()
			p.errors = append(p.errors, m.String())
			p.mu.Unlock()
		}
	}()
	requests := chromedp.Events(ctx, network.RequestWillBeSent)
	go func() {
		for ev, err := range requests {
			if err != nil {
				return
			}
			p.mu.Lock()
			p.requests = append(p.requests, ev.Request.URL)
			p.mu.Unlock()
		}
	}()
	return p
}

// checkQuiet reports messages of the console and requests to other hosts.
func (p *browserPage) checkQuiet() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.errors) > 0 {
		p.t.Errorf("console: %q", p.errors)
	}
	if len(p.requests) == 0 {
		p.t.Error("no request was recorded")
	}
	for _, address := range p.requests {
		if !strings.HasPrefix(address, p.url+"/") && !strings.HasPrefix(address, "blob:"+p.url) {
			p.t.Errorf("the page requested %s", address)
		}
	}
}

func (p *browserPage) do(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	if err := chromedp.Do(p.ctx, actions...); err != nil {
		p.t.Fatal(err)
	}
}

// open opens an address of the page and waits until it is drawn.
func (p *browserPage) open(path string) {
	p.t.Helper()
	p.do(chromedp.Navigate(p.url+path), chromedp.WaitReady(chromedp.CSS("main h1")))
	p.waitFor(`document.querySelector(".status.open")`)
}

// show sets the width of the tab, and the colour scheme, light or dark.
func (p *browserPage) show(width, height int64, scheme string) {
	p.t.Helper()
	p.do(chromedp.EmulateViewport(width, height))
	if _, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia,
		emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{
				{Name: "prefers-color-scheme", Value: scheme},
				{Name: "prefers-reduced-motion", Value: "reduce"},
			},
		}); err != nil {
		p.t.Fatal(err)
	}
}

// front shows the tab: the browser draws no other.
func (p *browserPage) front() {
	p.t.Helper()
	if _, err := chromedp.Call(p.ctx, page.BringToFront, cdp.Empty{}); err != nil {
		p.t.Fatal(err)
	}
}

// ask types a question into an empty chat, sends it, and returns its query id.
func (p *browserPage) ask(question string) string {
	p.t.Helper()
	p.open("/chat")
	p.typeQuestion(question)
	p.waitFor(`document.querySelector(".turn[data-query]")`)
	return eval[string](p, `document.querySelector(".turn[data-query]").dataset.query`)
}

func (p *browserPage) typeQuestion(question string) {
	p.t.Helper()
	p.do(chromedp.SendKeys(chromedp.CSS("#question"), question+"\r"))
}

// eval runs an expression in the page and waits for the promise that it returns.
func eval[T any](p *browserPage, expression string) T {
	p.t.Helper()
	v, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		p.t.Fatal(err)
	}
	return v
}

// waitFor waits until an expression is true, for a minute.
func (p *browserPage) waitFor(expression string) {
	p.t.Helper()
	if !eval[bool](p, `(async () => { for (const end = Date.now() + 60000; Date.now() < end; ) { if (`+expression+
		`) return true; await new Promise((r) => setTimeout(r, 20)); } return false; })()`) {
		p.t.Fatalf("not within a minute: %s\n%s", expression,
			eval[string](p, `document.querySelector("main").innerText.slice(0, 2000)`))
	}
}

// text waits for an element and returns its text.
func (p *browserPage) text(selector string) string {
	p.t.Helper()
	p.waitFor(`document.querySelector(` + quoteJS(selector) + `)`)
	return eval[string](p, `document.querySelector(`+quoteJS(selector)+`).textContent`)
}

// click clicks the first element of a selector, wherever it is on the page.
func (p *browserPage) click(selector string) {
	p.t.Helper()
	p.waitFor(`document.querySelector(` + quoteJS(selector) + `)`)
	eval[bool](p, `(document.querySelector(`+quoteJS(selector)+
		`).dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true, view: window })), true)`)
}

func quoteJS(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

// readAxe returns the script of axe-core, which is not a part of the project.
func readAxe(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("CONCLAVE_AXE")
	if dir == "" {
		t.Skip("accessibility is tested with CONCLAVE_AXE=<folder of axe-core> (npm install axe-core)")
	}
	b, err := os.ReadFile(filepath.Join(dir, "axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// checkAccess checks views, with everything unfolded, with axe-core in light, dark and phone width.
func (p *browserPage) checkAccess(paths ...string) {
	p.t.Helper()
	readAxe(p.t) // skips the test without it
	for _, path := range paths {
		p.open(path)
		p.waitFor(`!/Loading|Checking/.test(document.querySelector("main")?.textContent)`)
		eval[bool](p, `(document.querySelectorAll("main details").forEach((d) => (d.open = true)), true)`)
		p.checkShown(path)
	}
}

// checkShown checks what the page shows, and calls it name, as checkAccess does.
func (p *browserPage) checkShown(name string) {
	p.t.Helper()
	eval[bool](p, readAxe(p.t)+";true")
	for _, look := range []struct {
		width  int64
		scheme string
	}{{1280, "light"}, {1280, "dark"}, {360, "light"}} {
		p.show(look.width, 800, look.scheme)
		// the view draws itself again for the width
		eval[bool](p, `new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(() => r(true))))`)
		for _, f := range eval[[]string](p, `axe.run().then((r) => r.violations.map((v) =>
			v.id + ": " + v.nodes.map((n) => n.html).join(" ").slice(0, 400)))`) {
			p.t.Errorf("%s, %d px, %s: %s", name, look.width, look.scheme, f)
		}
	}
	p.show(1280, 800, "light")
}
