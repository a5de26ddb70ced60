package acceptance

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"conclave/config"
	"conclave/pkg/damage"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/scriptserver"
	"conclave/subjects"
)

// pageChecks are checks as conclave doctor makes them, for the page.
func pageChecks(context.Context) []subjects.DoctorCheck {
	return []subjects.DoctorCheck{
		{Name: "clock", Level: "ok", Text: "2026-11-16 20:14, in step with the files"},
		{Name: "folders", Level: "ok", Text: "yours alone"},
		{
			Name: "sandbox", Level: "warn", Text: "bubblewrap is not installed: run_code and run_shell are not offered",
			Fix: "apt-get install bubblewrap",
		},
		{
			Name: "disk", Level: "fail", Text: "200 MB are free, and the audit log may grow by 1 GB",
			Fix: "free 1 GB on the disk of the data folder",
		},
		{Name: "actors", Level: "ok", Text: "answers from broker, critic, gateway, generator, memory, model"},
	}
}

// TestPageFirstModel is the first run in a browser, with an Ollama that has no model that answers: the page offers to
// fetch the model of the settings, shows a progress bar, also after a reload, and the model replaces the demo model.
func TestPageFirstModel(t *testing.T) {
	browser := findBrowser(t)
	release := make(chan struct{})
	server := modeltest.New(t, scriptserver.Script{}, scriptserver.WithPullHold(release))
	address := make(chan string, 1)
	c := settings(t, "system.gateway.listen", "127.0.0.1:0").WithWiring(config.Wiring{OnListen: func(addr string) {
		address <- addr
	}})
	c.Models.Ollama.URL = server.URL
	name := c.Models.Roles[subjects.RoleAssistant]
	home := newHome(t)
	up(t, c, home, config.Actors...)
	s := &pageSystem{t: t, url: "http://" + <-address, token: readToken(t, home)}
	p := startBrowser(t, browser, s.url, s.loginLink(t.Context()))
	p.open("/chat")
	p.click(".welcome .first-run a")
	const fetch = `[...document.querySelectorAll("main button")].find((b) => b.textContent.trim() === `
	p.waitFor(fetch + quoteJS("Fetch "+name) + `)`)
	eval[bool](p, `(`+fetch+quoteJS("Fetch "+name)+`).click(), true)`)
	half := `document.querySelector(".pull progress")?.position === 0.5
		&& document.querySelector(".pull").textContent.includes("2 MB of 4 MB")`
	p.waitFor(half)
	p.open("/models")
	p.waitFor(half)
	if eval[bool](p, `Boolean(`+fetch+quoteJS("Fetch "+name)+`))`) {
		t.Error("the model is offered while it is fetched")
	}
	t.Run("axe", func(t *testing.T) {
		p.t = t
		p.checkAccess("/models")
	})
	p.t = t
	close(release)
	p.waitFor(
		`document.querySelector(".pull")?.textContent.includes("done after")
			&& [...document.querySelectorAll("[aria-label=Models] th[scope=row]")]
				.some((e) => e.textContent.startsWith(` + quoteJS(name) + `))`)
	p.waitFor(
		`[...document.querySelectorAll("[aria-label=Roles] tr")].some((r) => r.textContent.startsWith("assistant")
			&& r.cells[1].textContent.trim() === ` + quoteJS(name) + `)`)
	p.open("/chat")
	p.waitFor(`document.querySelector(".welcome") && !document.querySelector(".first-run")`)
	p.checkQuiet()
}

// visit opens a view and waits until it has drawn what selector names.
func (p *browserPage) visit(path, selector string) {
	p.t.Helper()
	p.do(chromedp.Navigate(p.url + path))
	p.waitFor(`document.querySelector(` + quoteJS(selector) + `)`)
}

// TestPageOperations is the views for looking after the system in a real browser: a setting that is changed and one
// that is refused, the figures of the actors, models, machines, doctor and the context of a session.
func TestPageOperations(t *testing.T) {
	p := openPage(t)
	p.do(chromedp.SendKeys(chromedp.CSS("#question"), "What time is it in Tokyo?"), chromedp.KeyEvent(kb.Enter))
	p.waitFor(`document.querySelector(".turn .facts") && location.pathname.startsWith("/chat/")`)
	session := strings.TrimPrefix(eval[string](p, `location.pathname`), "/chat/")

	p.visit("/agents", ".ops tbody tr")
	for _, name := range []string{"generator", "critic", "memory", "broker", "web_search"} {
		p.waitFor(`[...document.querySelectorAll(".ops th a")].some((a) => a.textContent === ` + quoteJS(name) + `)`)
	}
	p.visit("/agents/critic", ".figures")

	p.visit("/agents/generator/settings", ".settings tbody tr")
	set := func(value string) {
		eval[bool](p, `(async () => { const i = document.getElementById("set-generator.steps"); i.value = `+
			quoteJS(value)+
			`; i.dispatchEvent(new Event("input", {bubbles: true})); await new Promise(requestAnimationFrame);
				await new Promise(requestAnimationFrame); i.form.requestSubmit(); return true; })()`)
	}
	set("-3")
	if got := p.text(".settings .failed"); !strings.Contains(got, "steps") {
		t.Errorf("an invalid value: %q", got)
	}
	set("7")
	p.waitFor(`document.querySelector(".notice")?.textContent.includes("generator.steps is 7")`)
	p.waitFor(
		`[...document.querySelectorAll(".settings tr")].find((r) => r.textContent.trim().startsWith("steps"))
			?.textContent.includes("generator.yaml:")`)
	if locked := p.text(".locked"); !strings.Contains(locked, "system_prompt") {
		t.Errorf("locked settings: %q", locked)
	}
	p.visit("/agents/broker/settings", ".locked table")
	if got := eval[float64](p, `document.querySelectorAll(".field").length`); got != 0 {
		t.Errorf("%v settings of the broker can be changed", got)
	}

	// Ten settings with where each comes from, a search over all, and the rest behind "Advanced".
	p.visit("/settings", ".settings tbody tr")
	titles := eval[[]string](p, `[...document.querySelectorAll(".settings th[scope=row]")]
		.map((e) => [...e.childNodes].find((n) => n.nodeType === 3 && n.data.trim()).data.trim())`)
	if !slices.Equal(titles, []string{
		"Model", "Search", "Language", "Folders", "Approvals", "Critic", "Memory", "Appearance", "Phone", "Backup",
	}) {
		t.Errorf("the settings are %q", titles)
	}
	row := `[...document.querySelectorAll(".settings tr")].find((r) => r.textContent.trim().startsWith(`
	got := eval[string](p, row+`"Folders")).textContent`)
	if !strings.Contains(got, "~/calendar/, ~/notes/") ||
		!strings.Contains(got, "manifest.yaml") {
		t.Errorf("folders: %q", got)
	}
	eval[bool](p, `((s) => { s.value = "dark"; return s.dispatchEvent(new Event("change")); })(
		document.querySelector("#set-theme"))`)
	p.waitFor(`document.documentElement.dataset.theme === "dark"`)
	eval[bool](p, `((s) => { s.value = "system"; return s.dispatchEvent(new Event("change")); })(
		document.querySelector("#set-theme"))`)
	eval[bool](p, `((s) => { s.value = "false"; return s.dispatchEvent(new Event("change")); })(
		document.getElementById("set-critic.enabled"))`)
	p.click(".settings .field .primary")
	p.waitFor(row + `"Critic"))?.textContent.includes("in force until a restart: on")`)
	p.do(chromedp.SendKeys(chromedp.CSS("#find-setting"), "generator.steps"))
	p.waitFor(row + `"generator.steps"))?.textContent.includes("generator.yaml:")`)
	p.visit("/settings", ".settings tbody tr")
	p.do(chromedp.SendKeys(chromedp.CSS("#find-setting"), "no such setting"))
	p.waitFor(`document.querySelector("main").textContent.includes("No setting has these words")`)

	p.visit("/models", ".ops tbody tr")
	p.visit("/machines", ".empty-state")
	p.visit("/doctor", ".ops tbody tr")
	if got := p.text(".ops tbody tr"); !strings.Contains(got, "disk") || !strings.Contains(got, "free 1 GB") {
		t.Errorf("the first check is %q", got)
	}
	p.visit("/context/"+session, ".message")
	if got := p.text("main"); !strings.Contains(got, "Tokyo") || !strings.Contains(got, "Nothing is truncated") {
		t.Errorf("context %q", got)
	}
	t.Run("axe", func(t *testing.T) {
		p.t = t
		p.checkAccess("/agents", "/agents/critic", "/agents/generator", "/agents/generator/settings",
			"/agents/broker/settings", "/settings", "/models", "/machines", "/doctor", "/context/"+session)
	})
	p.t = t
	p.mu.Lock() // the browser reports the rejected value itself
	p.errors = slices.DeleteFunc(p.errors, func(e string) bool { return strings.Contains(e, "status of 400") })
	p.mu.Unlock()
	p.checkQuiet()
}

// TestPageShowsDamage: damage of the data folder is a banner, and what comes back too, until it is accepted.
func TestPageShowsDamage(t *testing.T) {
	browser := findBrowser(t)
	address := make(chan string, 1)
	c := settings(t, "system.gateway.listen", "127.0.0.1:0").WithWiring(config.Wiring{OnListen: func(addr string) {
		address <- addr
	}})
	home := newHome(t)
	up(t, c, home, config.Actors...)
	s := &pageSystem{t: t, url: "http://" + <-address, token: readToken(t, home)}
	if err := damage.Add(home.Data, damage.Report{
		Text: "stream QUERIES: messages 3 to 4, the last ones, are missing", Restored: "1 messages came back",
	}); err != nil {
		t.Fatal(err)
	}
	p := startBrowser(t, browser, s.url, s.loginLink(t.Context()))
	p.open("/chat")
	const banner = `[...document.querySelectorAll(".banner")].some((e) =>
		e.textContent.startsWith("Data. stream QUERIES: messages 3 to 4") &&
		e.textContent.includes("1 messages came back") &&
		[...e.querySelectorAll("code")].some((c) => c.textContent.startsWith("conclave doctor")))`
	p.waitFor(banner)
	if _, err := damage.Accept(home.Data); err != nil {
		t.Fatal(err)
	}
	p.open("/chat")
	p.waitFor(`document.querySelector("main") && !(` + banner + `)`)
}
