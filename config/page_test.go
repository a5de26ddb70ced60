package config_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"conclave/config"
)

// browserPage is a browser that is logged in at a running system with the demo model.
type browserPage struct {
	t   *testing.T
	ctx context.Context
	url string

	mu     sync.Mutex
	errors []string // of the console
}

// openPage starts the system and a browser, and logs in with a link. The tests of the page need Chromium: without
// CONCLAVE_BROWSER they are skipped, with it a missing browser is a failure.
func openPage(t *testing.T) *browserPage {
	t.Helper()
	if os.Getenv("CONCLAVE_BROWSER") == "" {
		t.Skip("tests of the page run with CONCLAVE_BROWSER=1 and need Chromium (Debian: apt-get install chromium)")
	}
	var browser string
	for _, name := range []string{"chromium", "chromium-headless-shell", "google-chrome"} {
		if p, err := exec.LookPath(name); err == nil && browser == "" {
			browser = p
		}
	}
	if browser == "" {
		t.Fatal("no Chromium on PATH (Debian: apt-get install chromium)")
	}
	address := make(chan string, 1)
	c := settings(t, "system.gateway.listen", "127.0.0.1:0").WithWiring(config.Wiring{OnListen: func(addr string) { address <- addr }})
	c.Models.Ollama.URL = "http://127.0.0.1:1" // nothing answers there, so the demo model does
	home := newHome(t)
	up(t, c, home, config.Actors...)
	p := &browserPage{t: t, url: "http://" + <-address}

	options := append([]chromedp.ExecAllocatorOption{}, chromedp.DefaultExecAllocatorOptions[:]...)
	options = append(options, chromedp.ExecPath(browser), chromedp.NoSandbox, chromedp.UserDataDir(filepath.Join(t.TempDir(), "profile")),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true), chromedp.Flag("disable-gpu", true))
	all, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel := chromedp.NewContext(all)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 2*testTimeout)
	t.Cleanup(cancel)
	p.ctx = ctx

	token, err := os.ReadFile(home.HTTPToken())
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+"/login/links", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+string(bytes.TrimSpace(token)))
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var link struct{ URL string }
	if err := json.NewDecoder(response.Body).Decode(&link); err != nil {
		t.Fatal(err)
	}
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
	p.do(chromedp.Navigate(link.URL), chromedp.WaitVisible(chromedp.CSS("#question")))
	return p
}

func (p *browserPage) do(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	if err := chromedp.Do(p.ctx, actions...); err != nil {
		p.t.Fatal(err)
	}
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

// waitFor waits until an expression is true.
func (p *browserPage) waitFor(expression string) {
	p.t.Helper()
	eval[bool](p, `(async () => { for (;;) { if (`+expression+`) return true; await new Promise(requestAnimationFrame); } })()`)
}

// text waits for an element and returns its text.
func (p *browserPage) text(selector string) string {
	p.t.Helper()
	p.waitFor(`document.querySelector(` + quoteJS(selector) + `)`)
	return eval[string](p, `document.querySelector(`+quoteJS(selector)+`).textContent`)
}

func quoteJS(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

// TestPage is the page in a real browser: a question with a tool call, its run, the sessions after a reload, memory, and no error
// in the console.
func TestPage(t *testing.T) {
	p := openPage(t)
	p.do(chromedp.SendKeys(chromedp.CSS("#question"), "What time is it in Tokyo?"), chromedp.KeyEvent(kb.Enter))
	p.waitFor(`document.querySelector(".turn .facts")`)
	if got := p.text(".turn .answer"); !strings.Contains(got, "get_datetime says") {
		t.Errorf("answer %q", got)
	}
	if got := p.text(".turn .tool summary"); !strings.Contains(got, "get_datetime") || !strings.Contains(got, "done") {
		t.Errorf("tool card %q", got)
	}
	if got := p.text(".turn .facts"); !strings.Contains(got, "nothing left this machine") {
		t.Errorf("facts %q", got)
	}
	p.waitFor(`document.querySelector(".sessions li a")`)
	chat := eval[string](p, `location.pathname`)
	if !strings.HasPrefix(chat, "/chat/") {
		t.Errorf("address %q", chat)
	}

	p.do(chromedp.Click(chromedp.CSS(".turn .facts a")), chromedp.WaitVisible(chromedp.CSS(".waterfall .span")))
	p.do(chromedp.Click(chromedp.CSS(".tabs button:last-child")), chromedp.WaitVisible(chromedp.CSS(".log-table")))
	if got := p.text(".log-table"); !strings.Contains(got, "tool.result.get_datetime") {
		t.Errorf("log %q", got)
	}

	// Everything is there again after a reload, from the stored conversation.
	p.do(chromedp.Navigate(p.url+chat), chromedp.WaitVisible(chromedp.CSS(".turn .markdown p")))
	if got := p.text(".turn .answer"); !strings.Contains(got, "get_datetime says") {
		t.Errorf("stored answer %q", got)
	}
	for _, view := range []string{"/runs", "/approvals", "/memory", "/tasks"} {
		p.do(chromedp.Navigate(p.url+view), chromedp.WaitVisible(chromedp.CSS("main .page h1")))
		p.waitFor(`!document.querySelector("main .page .failed")`)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.errors) > 0 {
		t.Errorf("console: %q", p.errors)
	}
}

// TestPageShowsHostileTextAsText: Markdown of a model becomes elements of a fixed list, without scripts, handlers, images, frames
// and foreign addresses.
func TestPageShowsHostileTextAsText(t *testing.T) {
	p := openPage(t)
	hostile := []string{
		"<script>document.title='x'</script>", "<img src=x onerror=alert(1)>", "![a](http://attacker.example/pixel.png)", "[a](javascript:alert(1))",
		"[a](data:text/html,<script>1</script>)", "[a](vbscript:x)", "<a href='javascript:1'>a</a>", "[a](https://user:password@evil.example/)",
		"```html\n<script>1</script>\n```", "`<b>`", "[x](<javascript:alert(1)>)", "<javascript:alert(1)>", "<iframe src=https://evil.example></iframe>", "<style>*{display:none}</style>",
		"| a | b |\n|---|---|\n| <img src=x> | ![](http://attacker.example/p) |", strings.Repeat("> ", 200) + "deep", strings.Repeat("- ", 300) + "deep", strings.Repeat("[", 3000), strings.Repeat("*a_", 3000),
		"safe\u202egnp.exe", "[аррӏе.com](https://xn--80ak6aa92e.com/)", "<svg onload=alert(1)>", "[a]( java\nscript:alert(1))", "https://evil.example/\"onmouseover=alert(1)", "| |\n|-|\n" + strings.Repeat("| x |\n", 5000),
	}
	b, _ := json.Marshal(hostile)
	wrong := eval[[]string](p, `(async () => {
		const { render } = await import("/page/js/markdown.js");
		const allowed = new Set(["P","A","SPAN","CODE","PRE","FIGURE","FIGCAPTION","BUTTON","UL","OL","LI","BLOCKQUOTE","TABLE","THEAD","TBODY","TR","TH","TD","DIV","BR","HR","STRONG","EM","S","H3","H4","H5","H6"]);
		const attributes = new Set(["href","target","rel","class","type","tabindex","role","aria-label","scope","start"]);
		const out = [];
		for (const text of `+string(b)+`) {
			const box = document.createElement("div");
			box.append(...render(text));
			document.body.append(box);
			for (const e of box.querySelectorAll("*")) {
				if (!allowed.has(e.tagName)) out.push(text.slice(0, 60) + " -> " + e.tagName);
				for (const a of e.attributes) if (!attributes.has(a.name)) out.push(text.slice(0, 60) + " -> " + a.name);
				if (e.href && !/^(https?|mailto):/.test(e.href)) out.push(text.slice(0, 60) + " -> " + e.href);
			}
			if (/[\u202a-\u202e]/.test(box.textContent)) out.push("bidi control");
			box.remove();
		}
		if (performance.getEntriesByType("resource").some((r) => !r.name.startsWith(location.origin))) out.push("a foreign host was contacted");
		if (document.title.startsWith("x")) out.push("a script ran");
		return out;
	})()`)
	if len(wrong) > 0 {
		t.Errorf("%q", wrong)
	}
	if host := eval[string](p, `(async () => { const { render } = await import("/page/js/markdown.js"); return render("[аррӏе](https://аррӏе.com/)")[0].textContent; })()`); !strings.Contains(host, "xn--") {
		t.Errorf("a look-alike host is shown as %q", host)
	}
}

// TestPageRendersManyTokens: five thousand token events are applied and drawn; the time is logged.
func TestPageRendersManyTokens(t *testing.T) {
	p := openPage(t)
	ms := eval[float64](p, `(async () => {
		const store = await import("/page/js/store.js");
		const time = new Date().toISOString();
		store.apply({ subject: "query.received", query: "many", session: "many", time, payload: { query: "Count" } });
		history.pushState(null, "", "/chat/many");
		dispatchEvent(new PopStateEvent("popstate"));
		const began = performance.now();
		for (let n = 0; n < 5000; n++) {
			store.apply({ subject: "response.delta.many", query: "many", session: "many", time, payload: { n, text: n % 40 ? "word" + n + " " : "\n\n- **item** " } });
			if (n % 50 === 0) await new Promise(requestAnimationFrame);
		}
		while (!document.querySelector(".answer")?.textContent.includes("word4999")) await new Promise(requestAnimationFrame);
		return performance.now() - began;
	})()`)
	t.Logf("5,000 token events in %.0f ms", ms)
}
