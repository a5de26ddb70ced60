package acceptance

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"conclave/pkg/bus/bustest"
)

// TestPage is the page in a real browser: a question with a tool call, its run, the sessions after a reload, memory,
// and no error in the console.
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

	p.click(".turn .facts a")
	p.waitFor(`document.querySelector(".waterfall .span")?.checkVisibility()`)
	p.click(".tabs button:last-child")
	p.waitFor(`document.querySelector(".log-table")?.checkVisibility()`)
	if got := p.text(".log-table"); !strings.Contains(got, "tool.result.get_datetime") {
		t.Errorf("log %q", got)
	}

	// Everything is there again after a reload, from the stored conversation.
	p.do(chromedp.Navigate(p.url+chat), chromedp.WaitVisible(chromedp.CSS(".turn .markdown p")))
	if got := p.text(".turn .answer"); !strings.Contains(got, "get_datetime says") {
		t.Errorf("stored answer %q", got)
	}
	for _, view := range []string{
		"/runs", "/approvals", "/tasks", "/memory", "/memory/graph", "/bus", "/decisions",
		"/deliberations",
	} {
		p.do(chromedp.Navigate(p.url+view), chromedp.WaitVisible(chromedp.CSS("main .page h1")))
		if got := eval[string](p,
			`[...document.querySelectorAll("main .page .failed")].map((e) => e.textContent).join()`); got != "" {
			t.Errorf("%s: %s", view, got)
		}
	}
	p.checkQuiet()
}

// TestPageShowsHostileTextAsText: Markdown of a model becomes elements of a fixed list, without scripts, handlers,
// images, frames and foreign addresses.
func TestPageShowsHostileTextAsText(t *testing.T) {
	p := openPage(t)
	hostile := []string{
		"<script>document.title='x'</script>", "<img src=x onerror=alert(1)>",
		"![a](http://attacker.example/pixel.png)", "[a](javascript:alert(1))",
		"[a](data:text/html,<script>1</script>)", "[a](vbscript:x)", "<a href='javascript:1'>a</a>",
		"[a](https://user:password@evil.example/)",
		"```html\n<script>1</script>\n```", "`<b>`", "[x](<javascript:alert(1)>)", "<javascript:alert(1)>",
		"<iframe src=https://evil.example></iframe>", "<style>*{display:none}</style>",
		"| a | b |\n|---|---|\n| <img src=x> | ![](http://attacker.example/p) |", strings.Repeat("> ", 200) + "deep",
		strings.Repeat("- ", 300) + "deep", strings.Repeat("[", 3000), strings.Repeat("*a_", 3000),
		"$$\\href{javascript:alert(1)}{x}$$", "$\\text{<img src=x onerror=alert(1)>}$", `\(\frac{<b>}{2}\)`,
		"$$" + strings.Repeat("{", 900) + "x" + strings.Repeat("}", 900) + "$$",
		"$$" + strings.Repeat(`\frac`, 300) + "$$",
		`$$\begin{matrix} \style{color:red}{a} & b \end{matrix}$$`, `\[ \mathbb{<script>} \]`,
		"```js\nlet a = '</span><script>1</script>' // <img src=x>\n```", "```constructor\nx\n```",
		"```python\n" + strings.Repeat("\"", 40000) + "\n```", "```mermaid\nclick A href \"javascript:alert(1)\"\n```",
		"```yaml\n" + strings.Repeat("- ", 20000) + "\n```", "```c\n" + strings.Repeat("/*", 20000) + "\n```",
		"safe\u202egnp.exe", "[аррӏе.com](https://xn--80ak6aa92e.com/)", "<svg onload=alert(1)>",
		"[a]( java\nscript:alert(1))", "https://evil.example/\"onmouseover=alert(1)", "| |\n|-|\n" +
			strings.Repeat("| x |\n", 5000),
	}
	b, _ := json.Marshal(hostile)
	wrong := eval[[]string](p, `(async () => {
		const { render } = await import("/page/js/markdown.js");
		const allowed = new Set(("P A SPAN CODE PRE FIGURE FIGCAPTION BUTTON UL OL LI BLOCKQUOTE TABLE " +
			"THEAD TBODY TR TH TD DIV BR HR STRONG EM S H3 H4 H5 H6 math mrow mi mn mo mtext mspace mfrac msqrt " +
			"mroot msub msup msubsup munder mover munderover mtable mtr mtd").split(" "));
		const attributes = new Set(("href target rel class type tabindex role aria-label scope start display alttext " +
			"width linethickness accent stretchy mathvariant").split(" "));
		const out = [];
		await Promise.all([import("/page/js/math.js"), import("/page/js/highlight.js")]);
		const fence = String.fromCharCode(96).repeat(3);
		render("$x$\n\n" + fence + "js\n1\n" + fence); // loads both, so that what follows is drawn at once
		await new Promise((r) => setTimeout(r, 100));
		const began = performance.now();
		for (const text of `+string(b)+`) {
			const box = document.createElement("div");
			box.append(...render(text));
			document.body.append(box);
			for (const e of box.querySelectorAll("*")) {
				if (!allowed.has(e.tagName)) out.push(text.slice(0, 60) + " -> " + e.tagName);
				for (const a of e.attributes) if (!attributes.has(a.name)) 
					out.push(text.slice(0, 60) + " -> " + a.name);
				if (e.href && (!/^(https?|mailto):/.test(e.href) || e.href.includes("@evil")))
					out.push(text.slice(0, 60) + " -> " + e.href);
			}
			if (/[\u202a-\u202e]/.test(box.textContent)) out.push("bidi control");
			box.remove();
		}
		if (performance.now() - began > 10000) out.push("rendering took " + (performance.now() - began) + " ms");
		if (performance.getEntriesByType("resource").some((r) => !r.name.startsWith(location.origin)))
			out.push("a foreign host was contacted");
		if (document.title.startsWith("x")) out.push("a script ran");
		return out;
	})()`)
	if len(wrong) > 0 {
		t.Errorf("%q", wrong)
	}
	host := eval[string](p, `(async () => {
		const { render } = await import("/page/js/markdown.js");
		return render("[аррӏе](https://аррӏе.com/)")[0].textContent;
	})()`)
	if !strings.Contains(host, "xn--") {
		t.Errorf("a look-alike host is shown as %q", host)
	}
	t.Run("formulas and colours", func(t *testing.T) { testFormulasAndColours(t, p) })
	t.Run("links", func(t *testing.T) { testLinksShowTheirHost(t, p) })
	t.Run("long lines", func(t *testing.T) { testLongLinesAreRendered(t, p) })
	t.Run("approvals", func(t *testing.T) { testApprovalsWait(t, p) })
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
			store.apply({ subject: "response.delta.many", query: "many", session: "many", time, 
				payload: { n, text: n % 40 ? "word" + n + " " : "\n\n- **item** " } });
			if (n % 50 === 0) await scheduler.yield();
		}
		while (!document.querySelector(".answer")?.textContent.includes("word4999"))
			await new Promise(requestAnimationFrame);
		return performance.now() - began;
	})()`)
	t.Logf("5,000 token events in %.0f ms", ms)
	// The log follows its end; who scrolls up stays there, and a button leads back to the growing end.
	p.waitFor(`document.querySelector("#log").scrollTop > 1000`)
	eval[bool](p, `(document.querySelector("#log").scrollTop = 0, true)`)
	p.waitFor(`document.querySelector(".jump button")?.textContent === "The answer that is written"`)
	p.click(".jump button")
	p.waitFor(`!document.querySelector(".jump") && document.activeElement.id === "question"`)
	p.waitFor(`((log) => log.scrollTop > 1000 && log.scrollHeight - log.scrollTop - log.clientHeight < 80)(
		document.querySelector("#log"))`)
	if ms > 5*1000 {
		t.Errorf("5,000 token events took %.0f ms, five times the target", ms)
	}
}

// TestPageScreens drives each screen of one system with scripted models: streaming, stop, queue, ratings, approvals,
// runs that look the same after a reload, a cut event stream, two tabs, hostile output, and accessibility in light,
// dark and phone width.
func TestPageScreens(t *testing.T) {
	s, p := openScriptedPage(t)
	var search, denied, task, committee string

	t.Run("answer", func(t *testing.T) {
		p.t = t
		search = p.ask("Search the web for news about NATS.")
		p.waitFor(`document.querySelector(".turn .critic .grade")`)
		for selector, want := range map[string]string{
			".turn .answer table": "Atomic batch publish", ".turn .answer .code": "Nats-Batch-Id",
			".turn .thinking summary": "Thought", ".turn .tool summary": "web_search",
			".turn .tool .label": "untrusted", ".turn .critic .pop": "Current, sourced",
			".turn .facts": "web_search left this machine",
		} {
			if got := p.text(selector); !strings.Contains(got, want) {
				t.Errorf("%s is %q, want %q", selector, got, want)
			}
		}
		p.click(`[aria-label="4 stars"]`)
		p.waitFor(`document.querySelectorAll(".stars .on").length === 4`)
		var answer struct{ Reward struct{ Stars int } }
		s.call(t.Context(), http.MethodGet, "/queries/"+search, nil, &answer)
		if answer.Reward.Stars != 4 {
			t.Errorf("stored rating %+v", answer.Reward)
		}
	})

	t.Run("run after a reload", func(t *testing.T) {
		p.t = t
		p.open("/runs/" + search)
		const spans = `[...document.querySelectorAll(".waterfall g.span")].map((e) =>
			e.getAttribute("aria-label")).sort().join("\n")`
		p.waitFor(`document.querySelector(".waterfall g.span.critic") && document.querySelector(".waterfall .first")`)
		before := eval[string](p, spans)
		if !strings.Contains(before, "model call 2, generator") || !strings.Contains(before, "web_search, web_search") {
			t.Errorf("spans:\n%s", before)
		}
		p.open("/runs/" + search)
		p.waitFor(`document.querySelector(".waterfall g.span.critic") && document.querySelector(".waterfall .first")`)
		if after := eval[string](p, spans); after != before {
			t.Errorf("before the reload:\n%s\nafter:\n%s", before, after)
		}
		p.click(".waterfall g.span.tool")
		if got := p.text(".event .code"); !strings.Contains(got, "TOOL_RESULT: UNTRUSTED") {
			t.Errorf("payload %q", got)
		}
		p.click(`[role="tab"]:nth-child(2)`)
		if got := p.text(".tree"); !strings.Contains(got, "broker: web_search allowed") {
			t.Errorf("tree %q", got)
		}
		p.click(`[role="tab"]:nth-child(3)`)
		if got := p.text(".log-table"); !strings.Contains(got, "critique.result") {
			t.Errorf("log %q", got)
		}
	})

	t.Run("stop, queue and two tabs", func(t *testing.T) {
		p.t = t
		p.ask("Count slowly to forty.")
		p.waitFor(`document.querySelector(".answer")?.textContent.includes("three")`)
		session := eval[string](p, `location.pathname`)
		other := openTab(t, p.ctx, s.url, s.url+session)
		other.waitFor(`document.querySelector(".turn .progress")`)
		other.typeQuestion("What time is it in Tokyo?")
		p.front()
		p.waitFor(`document.querySelector("main").textContent.includes("queued behind 1 question")`)
		p.do(chromedp.KeyEvent(kb.Escape))
		for _, tab := range []*browserPage{p, other} {
			tab.front()
			tab.waitFor(
				`document.querySelector(".turn").textContent.includes("You stopped this answer")
					&& document.querySelectorAll(".turn .facts").length === 2`)
			if got := eval[string](tab, `document.querySelector(".turn .answer").textContent`); !strings.Contains(got,
				"three") || strings.Contains(got, "forty") {
				t.Errorf("stopped answer %q", got)
			}
		}
		other.checkQuiet()
	})

	t.Run("steer", func(t *testing.T) {
		p.t = t
		p.ask("Count slowly to forty.")
		p.waitFor(`document.querySelector(".answer")?.textContent.includes("three")`)
		if got := p.text(".sessions li.open"); !strings.Contains(got, "Count slowly") {
			t.Errorf("the session of a first question that runs is listed as %q", got)
		}
		p.do(chromedp.SendKeys(chromedp.CSS("#question"), "What time is it in Tokyo?"))
		p.click(".steer")
		p.waitFor(
			`document.querySelector(".turn").textContent.includes("You stopped this answer")
				&& document.querySelectorAll(".turn .facts").length === 2`)
		if got := eval[string](p, `document.querySelector(".turn .answer").textContent`); strings.Contains(got,
			"forty") {
			t.Errorf("stopped answer %q", got)
		}
	})

	t.Run("closed tab", func(t *testing.T) {
		p.t = t
		other := openTab(t, p.ctx, s.url, s.url+"/chat")
		id := other.ask("Which city do I like most?")
		if err := chromedp.Cancel(other.ctx); err != nil {
			t.Fatal(err)
		}
		p.open("/runs/" + id)
		p.waitFor(`document.querySelector(".facts .state.good")`)
	})

	t.Run("approval", func(t *testing.T) {
		p.t = t
		denied = p.ask("Read the soup recipe at http://cook.example.org/soup for me.")
		p.waitFor(
			`document.querySelector(".turn .approval .actions")?.getBoundingClientRect().bottom
				<= document.querySelector("#log").getBoundingClientRect().bottom`)
		p.open("/approvals")
		p.waitFor(`document.activeElement?.textContent === "Deny"`)
		got := p.text(".approval")
		for _, want := range []string{
			"collect.xn--exmple-4nf.net", "U+0430", "likes%20onion%20soup",
			"http://cook.example.org/soup", "None of it covers this call", "Layer flow, rule fetch",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("the approval does not show %q: %s", want, got)
			}
		}
		for selector, want := range map[string]string{
			".approval .host-name": "collect.xn--exmple-4nf.net",
			".approval pre":        "note=likes%20onion%20soup",
		} {
			if got := p.text(selector); !strings.Contains(got, want) {
				t.Errorf("%s shows %q, want %q", selector, got, want)
			}
		}
		p.do(chromedp.KeyEvent(kb.Enter))
		p.waitFor(`document.querySelector(".empty-state")`)
		p.open("/runs/" + denied)
		p.waitFor(`document.querySelector(".waterfall g.span.wait") && document.querySelector(".facts .state.good")`)
		p.open("/decisions")
		p.waitFor(`document.querySelector("main").textContent.includes("denied by you")`)
	})

	t.Run("pasted text", func(t *testing.T) { testPastesAreUntrusted(t, s, p) })
	t.Run("client", func(t *testing.T) { testClientsAreLabelled(t, s, p) })

	t.Run("committee and task", func(t *testing.T) {
		p.t = t
		p.open("/chat")
		eval[bool](p,
			`(() => { const m = document.querySelector("#mode"); m.value = "committee";
				m.dispatchEvent(new Event("change")); return true; })()`)
		p.typeQuestion("Should I move to Lisbon, closer to Ada?")
		p.waitFor(`document.querySelector(".turn .facts")`)
		committee = eval[string](p, `document.querySelector(".turn[data-query]").dataset.query`)
		p.open("/deliberations/" + committee)
		if got := p.text("main .page"); !strings.Contains(got, "before they know whether she stays") ||
			!strings.Contains(got, "Visit her for a month") {
			t.Errorf("deliberation %q", got)
		}
		var asked struct {
			ID string `json:"query_id"`
		}
		s.call(t.Context(), http.MethodPost, "/query", map[string]string{"query": "Find out how many people live in " +
			"Oslo and Bergen, and say which city is larger.", "mode": "task"}, &asked)
		task = asked.ID
		p.open("/tasks/" + task)
		p.click(".dag .node")
		if got := p.text(".panel"); !strings.Contains(got, "Oslo has 700,000 inhabitants") {
			t.Errorf("subtask %q", got)
		}
	})

	t.Run("sessions, memory and palette", func(t *testing.T) {
		p.t = t
		p.open("/chat")
		menu := func(row, entry string) {
			t.Helper()
			p.click(`.sessions ` + row + ` [aria-label^="More about the session"]`)
			p.waitFor(`document.querySelector("#session-menu:popover-open button")`)
			eval[bool](p, `([...document.querySelectorAll("#session-menu button")]
				.find((b) => b.textContent === `+quoteJS(entry)+`).click(), true)`)
		}
		menu("li", "Rename")
		p.do(chromedp.WaitVisible(chromedp.CSS("#ask-value")), chromedp.SetValue(chromedp.CSS("#ask-value"),
			"Renamed by the test"))
		p.click("#ask .primary")
		p.waitFor(`document.querySelector(".sessions")?.textContent.includes("Renamed by the test")`)
		p.click(`.sessions li:last-child [aria-label^="Pin the session"]`)
		p.waitFor(`document.querySelector(".sessions li .pinned")`)
		p.open("/chat")
		p.waitFor(`document.querySelector(".sessions li:first-child .pinned")`)
		menu("li:first-child", "Archive")
		p.waitFor(`document.querySelector(".away summary")?.textContent === "1 archived session"
			&& document.querySelector(".away li .pinned")`)
		menu(".away li", "Back to the list")
		p.waitFor(`!document.querySelector(".away") && document.querySelector(".sessions li:first-child .pinned")`)
		if got := eval[string](p, `(async () => (await fetch([...document.querySelectorAll("#session-menu a")]
			.find((a) => a.href.endsWith("format=md")).href)).text())()`); !strings.HasPrefix(got, "# ") ||
			!strings.Contains(got, "## Question") {
			t.Errorf("the file is %q", got)
		}
		s.call(t.Context(), http.MethodPost, "/memory", map[string]string{"text": "My cat is called Whiskers."}, nil)
		p.open("/memory")
		p.do(chromedp.SendKeys(chromedp.CSS("#memory-text"), "name of the cat\r"))
		p.waitFor(
			`document.querySelector(".entries th:nth-child(9)") && document.querySelector(".entries tbody a")
				?.textContent.includes("Whiskers")`)
		p.click(".fold")
		if got := p.text(".reasons"); !strings.Contains(got, "words") && !strings.Contains(got, "corpus") {
			t.Errorf("reasons %q", got)
		}
		p.open("/chat")
		eval[bool](p,
			`document.dispatchEvent(new KeyboardEvent("keydown", { key: "k", ctrlKey: true, bubbles: true,
				cancelable: true }))||true`)
		p.do(chromedp.WaitVisible(chromedp.CSS("#palette-text")), chromedp.SendKeys(chromedp.CSS("#palette-text"),
			"decis\r"))
		p.waitFor(`location.pathname === "/decisions"`)
	})

	t.Run("hostile output", func(t *testing.T) {
		p.t = t
		p.ask("Print something hostile.")
		p.waitFor(`document.querySelector(".turn .facts")`)
		wrong := eval[[]string](p,
			`[...document.querySelectorAll(".answer *")].filter((e) =>
				/^(SCRIPT|IMG|IFRAME|STYLE|SVG|OBJECT|EMBED|LINK|FORM|INPUT)$/.test(e.tagName)
				|| [...e.attributes].some((a) => a.name.startsWith("on") || a.name === "style"
				|| a.name === "src") || e.href?.startsWith("javascript:")).map((e) => e.outerHTML)`)
		if len(wrong) > 0 || strings.Contains(eval[string](p, `document.title`), "owned") {
			t.Errorf("hostile output became %q", wrong)
		}
		if got := p.text(".answer"); !strings.Contains(got, "<script>") || strings.ContainsRune(got, 0x202e) {
			t.Errorf("the answer is shown as %q", got)
		}
	})

	t.Run("axe", func(t *testing.T) {
		p.t = t
		p.checkAccess("/chat", chatOf(s, t, search), "/runs", "/runs/"+search, "/runs/"+denied, "/approvals", "/tasks",
			"/tasks/"+task, "/memory", "/memory/graph", "/bus", "/decisions", "/deliberations/"+committee)
	})
	p.t = t
	p.checkQuiet()
}

// chatOf returns the address of the session of a question.
func chatOf(s *pageSystem, t *testing.T, query string) string {
	t.Helper()
	var answer struct {
		Session string `json:"session_id"`
	}
	s.call(t.Context(), http.MethodGet, "/queries/"+query, nil, &answer)
	return "/chat/" + answer.Session
}

// TestPageReconnects: the event stream is cut while an answer is made; the page says so and shows the answer when it is
// back.
func TestPageReconnects(t *testing.T) {
	browser := findBrowser(t)
	s := startPageSystem(t)
	network := bustest.StartLink(t, strings.TrimPrefix(s.url, "http://"))
	link := strings.Replace(s.loginLink(t.Context()), s.url, "http://"+network.Addr(), 1)
	p := startBrowser(t, browser, "http://"+network.Addr(), link)
	id := p.ask("Which city do I like most?")
	p.waitFor(`document.querySelector(".turn .critic")`)
	chat := eval[string](p, `location.pathname`)
	network.Cut()
	p.waitFor(`document.querySelector(".banner")?.textContent.includes("Reconnecting")`)
	s.call(t.Context(), http.MethodPost, "/query", map[string]string{
		"query":      "Are you sure?",
		"session_id": strings.TrimPrefix(chat, "/chat/"),
	}, nil)
	network.Heal()
	p.waitFor(
		`document.querySelectorAll(".turn .facts").length === 2
			&& document.querySelector("main").textContent.includes("Are you sure?")
			&& !document.querySelector(".banner")`)
	if got := eval[int](p, `document.querySelectorAll('.turn[data-query="`+id+`"]').length`); got != 1 {
		t.Errorf("the first answer is shown %d times", got)
	}
}

// TestPageStoryS8: the page shows the critic's grade of an answer, and memory the annotated entry.
func TestPageStoryS8(t *testing.T) {
	_, p := openScriptedPage(t)
	p.ask("Which city do I like most?")
	p.waitFor(`document.querySelector(".turn .critic .grade")`)
	if got := p.text(".turn .critic .pop"); !strings.Contains(got, "5 of 5") ||
		!strings.Contains(got, "Right, short and to the point.") {
		t.Errorf("critic %q", got)
	}
	p.click(`.turn .critic .pop a[href^="/memory/"]`)
	p.waitFor(`location.pathname.startsWith("/memory/") && document.querySelector(".pairs")`)
	// Memory adds the grade a moment after the critic published it.
	p.waitFor(`document.querySelector(".pairs")?.textContent.includes("Right, short")`)
	if got := p.text(".pairs"); !strings.Contains(got, "Right, short and to the point.") ||
		!strings.Contains(got, "answer") {
		t.Errorf("memory shows %q", got)
	}
	p.checkQuiet()
}

// TestPageSize measures what the page transfers, when it paints first, and a session of 2,000 messages.
func TestPageSize(t *testing.T) {
	_, p := openScriptedPage(t)
	p.open("/chat")
	bytes := eval[float64](p,
		`performance.getEntriesByType("resource").filter((r) => r.name.includes("/page/"))
			.reduce((n, r) => n + r.transferSize, performance.getEntriesByType("navigation")[0].transferSize)`)
	paint := eval[float64](p,
		`new Promise((done) => new PerformanceObserver((l) => done(l.getEntries()[0].startTime)).observe({
			type: "paint", buffered: true }))`)
	t.Logf("the page transfers %.0f kB and paints after %.0f ms", bytes/1000, paint)
	if bytes > 200_000 {
		t.Errorf("the page transfers %.0f bytes, at most 200,000", bytes)
	}
	if paint > 5*300 {
		t.Errorf("first paint after %.0f ms, five times the target", paint)
	}
	var turns []string
	for i := range 1000 {
		turns = append(turns,
			fmt.Sprintf(
				`{"query_id":"q%d","query":"Question %d","model":"m","time":"2026-01-01T00:00:00Z",`+
					`"answer":"Answer **%d** with some text, a list\n\n- one\n- two"}`, i, i, i))
	}
	times := eval[[]float64](p, `(async () => {
		const store = await import("/page/js/store.js");
		const frame = () => new Promise((r) => requestAnimationFrame(r));
		store.state.sessions = [{ session_id: "long", title: "Long", updated: new Date().toISOString() }];
		store.state.conversations.set("long", { conversation: [`+strings.Join(turns, ",")+`] });
		history.pushState(null, "", "/chat/long");
		const began = performance.now();
		store.changed();
		dispatchEvent(new PopStateEvent("popstate"));
		while (document.querySelectorAll(".turn").length < 1000) await frame();
		await frame();
		const drawn = performance.now() - began;
		const log = document.querySelector("#log");
		let slowest = 0;
		for (let i = 0; i < 40; i++) {
			const before = performance.now();
			log.scrollTop = (log.scrollHeight * i) / 40;
			store.changed();
			await frame();
			await frame();
			slowest = Math.max(slowest, performance.now() - before);
		}
		return [drawn, slowest, log.scrollHeight];
	})()`)
	t.Logf("2,000 messages are drawn in %.0f ms; the slowest of 40 jumps takes %.0f ms; height %.0f", times[0],
		times[1], times[2])
	if times[2] < 50_000 || times[1] > 2000 {
		t.Errorf("height and slowest scroll: %v", times)
	}
}

// TestPageSaysWhatLeft: the line below an answer follows the broker's results, and what they do not say may have left.
func TestPageSaysWhatLeft(t *testing.T) {
	p := openPage(t)
	for i, tt := range []struct{ name, results, usage, want string }{
		{
			"none", `[{"tool":"forecast","egress":"none"}]`, `{"model_calls":1,"hosts":"this machine"}`,
			"nothing left this machine",
		},
		{
			"sent", `[{"tool":"get_datetime","egress":"sent","destinations":["box"]}]`,
			`{"model_calls":1,"hosts":"this machine"}`, "get_datetime left this machine",
		},
		{
			"trick: a known name without a fact", `[{"tool":"get_datetime"}]`,
			`{"model_calls":1,"hosts":"this machine"}`,
			"get_datetime may have left this machine",
		},
		{
			"trick: an unknown value", `[{"tool":"fs_read","egress":"nothing"}]`,
			`{"model_calls":1,"hosts":"this machine"}`, "fs_read may have left this machine",
		},
		{
			"both", `[{"tool":"a","egress":"sent"},{"tool":"b","egress":"unknown"}]`,
			`{"model_calls":1,"hosts":"this machine"}`, "a left; b may have left this machine",
		},
		{
			"remote model", `[]`, `{"model_calls":1,"hosts":"this machine, api.example.org"}`,
			"the prompt (to api.example.org) left this machine",
		},
		{"model of an unknown host", `[]`, `{"model_calls":1}`, "the prompt may have left this machine"},
	} {
		got := eval[string](p, fmt.Sprintf(`(async () => {
			const store = await import("/page/js/store.js");
			const time = new Date().toISOString(), query = "left%d", session = query;
			store.apply({ subject: "query.received", query, session, time, payload: { query: "?" } });
			%s.forEach((r, n) => store.apply({ subject: "tool.result." + r.tool, from: "broker", query, session,
				time, payload: { call_id: "c" + n, query_id: query, result: "x", ...r } }));
			store.apply({ subject: "response.generation", from: "generator", query, session, time, payload: {
				session_id: session, query_id: query, query: "?", answer: "done", tool_calls: [],
				respondent_id: "generator", usage: %s } });
			history.pushState(null, "", "/chat/" + session);
			dispatchEvent(new PopStateEvent("popstate"));
			const facts = () => document.querySelector(".facts a[href='/runs/" + query + "']")?.closest(".facts")
				.querySelector(".sent, .local");
			for (let n = 0; n < 600 && !facts(); n++) await new Promise(requestAnimationFrame);
			return facts()?.textContent ?? document.body.innerText;
		})()`, i, tt.results, tt.usage))
		if !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestPageShowsRecall: the recall that the runtime made is shown with its state and content, also when the page has
// only the answer, when nothing was found, and when it failed.
func TestPageShowsRecall(t *testing.T) {
	p := openPage(t)
	for i, tt := range []struct{ name, call, want string }{
		{"found", `{"result":"- Monday, you said: I like Lisbon"}`, "Recalled what you said.*done.*I like Lisbon"},
		{"nothing", `{"result":""}`, "Recalled nothing.*done"},
		{
			"failed", `{"error":{"code":"unavailable","text":"memory does not answer"}}`,
			"Recalled nothing.*failed.*memory does not answer",
		},
	} {
		got := eval[string](p, fmt.Sprintf(`(async () => {
			const store = await import("/page/js/store.js");
			const time = new Date().toISOString(), query = "recalled%d", session = query;
			const call = { call_id: "c", tool: "search_memory", args: { query: "?" }, layer: "recall", ...%s };
			store.apply({ subject: "query.received", query, session, time, payload: { query: "?" } });
			const payload = {
				session_id: session, query_id: query, query: "?", answer: "done", tool_calls: [call],
				respondent_id: "generator",
			};
			store.apply({ subject: "response.generation", from: "generator", query, session, time, payload });
			history.pushState(null, "", "/chat/" + session);
			dispatchEvent(new PopStateEvent("popstate"));
			const card = () => document.querySelector(".turn[data-query='" + query + "'] .memory-card");
			for (let n = 0; n < 600 && !card(); n++) await new Promise(requestAnimationFrame);
			return card()?.textContent.replace(/\s+/g, " ") ?? document.body.innerText;
		})()`, i, tt.call))
		if !regexp.MustCompile(tt.want).MatchString(got) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestPageListsFollowChanges: the lists of memory and of tasks show an entry, its end, and a task with its later state
// without a reload.
func TestPageListsFollowChanges(t *testing.T) {
	s, p := openScriptedPage(t)
	const unchanged = `window.opened === location.pathname`
	open := func(path, loaded string) {
		p.open(path)
		p.waitFor(loaded)
		eval[bool](p, `(window.opened = location.pathname) !== ""`) // lost by a reload
	}
	open("/memory", `document.querySelector(".empty-state, .entries")`)
	s.call(t.Context(), http.MethodPost, "/memory", map[string]string{"text": "My cat is called Whiskers."}, nil)
	p.waitFor(unchanged + ` && document.querySelector(".entries tbody")?.textContent.includes("Whiskers")`)
	var list struct{ Entries []struct{ ID string } }
	s.call(t.Context(), http.MethodGet, "/memory", nil, &list)
	s.call(t.Context(), http.MethodDelete, "/memory/"+list.Entries[0].ID, nil, nil)
	p.waitFor(unchanged + ` && !document.querySelector("main").textContent.includes("Whiskers")`)
	remember := func(n int) {
		s.call(t.Context(), http.MethodPost, "/memory", map[string]string{
			"text": fmt.Sprintf("Box %d in the cellar is labelled %s.", n, strings.Repeat(string(rune('A'+n)), n+1)),
		}, nil)
	}
	const rows = `document.querySelectorAll(".entries tbody tr").length`
	for n := range 51 {
		remember(n)
	}
	open("/memory", rows+` === 50`)
	eval[bool](p, `([...document.querySelectorAll("main button")].find((b) => b.textContent === "More").click(), true)`)
	p.waitFor(rows + ` === 51`)
	remember(51)
	p.waitFor(unchanged + ` && ` + rows +
		` >= 51 && document.querySelector(".entries tbody").textContent.includes("Box 51")`)

	open("/agents/generator/settings", `document.querySelector(".settings input")`)
	s.call(t.Context(), http.MethodPut, "/settings/generator.steps", map[string]string{"value": "7"}, nil)
	p.waitFor(unchanged + ` && document.getElementById("set-generator.steps")?.value === "7"`)

	open("/approvals", `document.querySelector(".empty-state")`)
	s.call(t.Context(), http.MethodPost, "/query?wait=0", map[string]string{
		"query": "Read the soup recipe at http://cook.example.org/soup for me.",
	}, nil)
	p.waitFor(unchanged + ` && document.querySelector(".approval")`)
	id := eval[string](p, `document.querySelector(".approval").dataset.approval`)
	s.call(t.Context(), http.MethodPost, "/approvals/"+id, map[string]bool{"approve": false}, nil)
	p.waitFor(unchanged + ` && document.querySelector("table[class=wide] .state.bad")?.textContent === "denied"`)

	open("/tasks", `document.querySelector(".empty-state")`)
	s.call(t.Context(), http.MethodPost, "/query?wait=0", map[string]string{
		"query": "Find out how many people live in Oslo and Bergen, and say which city is larger.", "mode": "task",
	}, nil)
	p.waitFor(unchanged + ` && document.querySelector("main").textContent.includes("Oslo")`)
	p.waitFor(unchanged + ` && document.querySelector("main .state")?.textContent.includes("answered")`)
	p.checkQuiet()
}
