package acceptance

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// TestPageRestarts: the server is restarted ten times under an open page, once while it writes: the page is connected
// and logged in again, the draft is there, the conversation is shown once, and nothing is said that is not so.
func TestPageRestarts(t *testing.T) {
	browser := findBrowser(t)
	s := startPageSystem(t)
	network := bustest.StartLink(t, strings.TrimPrefix(s.url, "http://"))
	link := strings.Replace(s.loginLink(t.Context()), s.url, "http://"+network.Addr(), 1)
	p := startBrowser(t, browser, "http://"+network.Addr(), link)
	p.ask("What time is it in Tokyo?")
	p.waitFor(`document.querySelector(".turn .facts")`)
	const draft = "And what about the number 7? nobody knows"
	p.do(chromedp.SendKeys(chromedp.CSS("#question"), draft))
	// untrue collects what the page must never say while it waits for the server.
	eval[bool](p, `(() => {
		window.untrue = [];
		new MutationObserver(() => {
			const text = document.body.innerText;
			for (const wrong of ["HTTP 4", "not logged in", "logged out", "no session of this address",
				"No run yet", "Your sessions appear here", "Loading the conversation", "one two three four one"])
				if (text.includes(wrong) && !window.untrue.includes(wrong)) window.untrue.push(wrong);
			for (const e of document.querySelectorAll(".notice.error"))
				if (!window.untrue.includes(e.textContent)) window.untrue.push(e.textContent);
		}).observe(document.body, { childList: true, subtree: true, characterData: true });
		return true;
	})()`)
	var slowest time.Duration
	for n := range 10 {
		if n == 8 {
			s.call(t.Context(), http.MethodPost, "/query?wait=0", map[string]string{
				"query": "Count to ten.", "session_id": eval[string](p, `location.pathname.split("/")[2]`),
			}, nil)
			p.waitFor(`[...document.querySelectorAll(".turn .answer")].at(-1).textContent.includes("four")`)
		}
		s.stop()
		p.waitFor(`document.querySelector(".banner")?.textContent.includes("Reconnecting")`)
		s.start()
		network.Redirect(strings.TrimPrefix(s.url, "http://"))
		back := time.Now()
		p.waitFor(`document.querySelector(".status.open") && !document.querySelector(".banner")`)
		slowest = max(slowest, time.Since(back))
		if got := eval[string](p, `document.querySelector("#question").value`); got != draft {
			t.Errorf("restart %d: the draft is %q", n, got)
		}
	}
	t.Logf("connected again within %s", slowest.Round(time.Millisecond))
	if slowest > 5*2*time.Second {
		t.Errorf("connected again after %s, five times the target", slowest)
	}
	p.waitFor(`document.querySelectorAll(".turn .facts").length === 2
		&& document.querySelector("main").textContent.includes("nine ten")`)
	if got := eval[[]string](p, `window.untrue`); len(got) > 0 {
		t.Errorf("the page said %q", got)
	}
	if got := eval[int](p, `document.querySelectorAll(".turn").length`); got != 2 {
		t.Errorf("%d turns are shown", got)
	}
	p.do(chromedp.KeyEvent(kb.Enter)) // the box has the focus still
	p.waitFor(`document.querySelectorAll(".turn").length === 3 && document.querySelector("#question").value === ""`)
}

// TestPageLogins: a browser that logs in is listed and can be logged out; an open page then says how to get in and goes
// on when it is logged in again, with the draft.
func TestPageLogins(t *testing.T) {
	s, p := openScriptedPage(t)
	p.open("/chat")
	p.do(chromedp.SendKeys(chromedp.CSS("#question"), "not sent yet"))
	p.visit("/machines", "[aria-label=Browsers] tbody tr")
	if got := p.text("[aria-label=Browsers] tbody"); !strings.Contains(got, "on Linux") ||
		!strings.Contains(got, "this browser") {
		t.Errorf("logins: %q", got)
	}
	p.open("/chat")
	var list struct {
		Logins []struct{ ID string }
	}
	s.call(t.Context(), http.MethodGet, "/logins", nil, &list)
	s.call(t.Context(), http.MethodDelete, "/logins/"+list.Logins[0].ID, nil, nil)
	p.waitFor(`document.querySelector("main h1")?.textContent === "You are logged out"`)
	other := newTab(t, p.ctx, s.url)
	other.do(chromedp.Navigate(s.url + "/chat"))
	if got := other.text("main"); !strings.Contains(got, "conclave open") {
		t.Errorf("a new tab shows %q", got)
	}
	other.do(chromedp.Navigate(s.loginLink(t.Context())), chromedp.WaitVisible(chromedp.CSS("#main")))
	p.waitFor(`document.querySelector(".status.open") && document.querySelector("#question")?.value === "not sent yet"`)
}

// TestPageKeepsWhatIsTyped: a chat takes what is typed from the first moment on, wherever the focus is; single letters
// are shortcuts elsewhere only. A draft is kept for each session, also across a reload.
func TestPageKeepsWhatIsTyped(t *testing.T) {
	p := openPage(t)
	const text = "now, can n go? r c /chat ?"
	p.do(chromedp.Navigate(p.url+"/chat"), chromedp.WaitVisible(chromedp.CSS("#question")), chromedp.KeyEvent(text))
	check := func(what, want string) {
		t.Helper()
		if got := eval[string](p, `document.querySelector("#question").value`); got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	check("on the fresh page", text)
	p.open("/chat")
	check("after a reload", text)
	for what, focus := range map[string]string{
		"on a link": `.rail a[href="/tasks"]`, "on a button": `.foot button`, "on the messages": "#log",
	} {
		eval[bool](p, `(document.querySelector(`+quoteJS(focus)+`).focus(), true)`)
		p.do(chromedp.KeyEvent("n"))
		if got := eval[string](p, `document.activeElement.id + location.pathname`); got != "question/chat" {
			t.Errorf("%s: the focus is on %s", what, got)
		}
	}
	check("after letters elsewhere", text+"nnn")
	eval[bool](p, `(document.querySelector("#question").select(), true)`)
	p.typeQuestion("What time is it in Tokyo?")
	p.waitFor(`document.querySelector(".turn .facts")`)
	session := eval[string](p, `location.pathname`)
	p.do(chromedp.KeyEvent("in this session"))
	check("typed in the session", "in this session")
	p.open("/chat")
	check("a new session", "")
	p.do(chromedp.KeyEvent("in a new one"))
	check("typed there", "in a new one")
	p.open(session)
	check("the first session", "in this session")
	p.open("/runs")
	p.do(chromedp.KeyEvent("n"))
	p.waitFor(`location.pathname === "/chat" && document.querySelector("#question")?.value.startsWith("in a new one")`)
}

// TestPageSaysWhatIsSo: addresses of nothing are said to be so, times are those of what they name, and every state has
// its one word.
func TestPageSaysWhatIsSo(t *testing.T) {
	p := openPage(t)
	for path, want := range map[string]string{
		"/chat/nothing": "There is no session of this address", "/runs/nothing": "There is no question with this id",
		"/deliberations/nothing": "No deliberation of a question with this id",
	} {
		p.open(path)
		p.waitFor(`document.querySelector("main").textContent.includes(` + quoteJS(want) + `)`)
		if got := p.text("main"); strings.Contains(got, "90 days") || strings.Contains(got, "Loading") {
			t.Errorf("%s: %q", path, got)
		}
	}
	const apply = `const store = await import("/page/js/store.js");
		const began = Date.now() - 60000;
		const apply = (query, after, subject, payload) => store.apply({ query, session: "s-" + query, subject,
			time: new Date(began + after * 1000).toISOString(), payload });
		const show = async (path) => {
			history.pushState(null, "", path);
			dispatchEvent(new PopStateEvent("popstate"));
			for (let n = 0; n < 3; n++) await new Promise(requestAnimationFrame);
		};`
	// What the banner says of the model is not repeated below each answer.
	p.ask("What is the capital of France?")
	p.waitFor(`document.querySelector(".turn .facts")`)
	if got := eval[string](p, `(async () => {
		const said = (await (await fetch("/health")).json()).model.notice;
		return document.querySelector(".banner")?.textContent.includes(said)
			+ " " + (document.querySelector(".turn .notes")?.textContent ?? "");
	})()`); got != "true " {
		t.Errorf("banner, and notes of the answer: %q", got)
	}
	// An approval that waits is not thinking.
	if got := eval[string](p, `(async () => {`+apply+`
		apply("thought", 0, "query.received", { query: "?" });
		apply("thought", 1, "response.thinking.thought", { text: "hm", step: 0 });
		apply("thought", 3, "response.thinking.thought", { text: "so", step: 0 });
		apply("thought", 4, "tool.request.web_fetch", { call_id: "c1", tool: "web_fetch", args: {} });
		apply("thought", 5, "approval.request.a1", { id: "a1", call_id: "c1", query_id: "thought", tool: "web_fetch" });
		apply("thought", 30, "response.thinking.thought", { text: "then", step: 1 });
		apply("thought", 32, "response.delta.thought", { text: "Yes", step: 1, n: 0 });
		await show("/chat/s-thought");
		return document.querySelector(".thinking summary").textContent;
	})()`); !strings.Contains(got, "Thought for 5.0 s") {
		t.Errorf("the thinking is %q", got)
	}
	// Pieces of an answer that begins again after a restart do not continue those from before.
	if got := eval[string](p, `(async () => {`+apply+`
		apply("again", 0, "query.received", { query: "?" });
		const say = (...words) => words.forEach((text, n) => apply("again", 1, "response.delta.again", { n, text }));
		say("one ", "two ", "three ");
		say("one ", "two ");
		return store.run("again").text;
	})()`); got != "one two " {
		t.Errorf("an answer that begins again is %q", got)
	}
	want := map[string]string{
		"answered": "answered", "failed": "failed", "stopped": "stopped", "waiting": "waiting for you",
		"running": "running",
	}
	got := eval[map[string]string](p, `(async () => {`+apply+`
		const answer = (more) => ({ answer: "x", respondent_id: "generator", tool_calls: [], ...more });
		for (const q of ["answered", "failed", "stopped", "waiting", "running"])
			apply(q, 0, "query.received", { query: "?" });
		apply("answered", 1, "response.generation", answer({ partial: true }));
		apply("failed", 1, "response.generation", answer({ error: { code: "internal", text: "no" } }));
		apply("stopped", 1, "response.generation", answer({ partial: true, notes: [{ code: "stopped", text: "" }] }));
		store.state.approvals.set("a2", { id: "a2", query_id: "waiting", expires: new Date(Date.now() + 1e6) });
		await show("/runs");
		const out = {};
		for (const a of document.querySelectorAll("main td a"))
			out[a.getAttribute("href").slice(6)] = a.closest("tr").querySelector(".state").textContent;
		return out;
	})()`)
	for id, word := range want {
		if got[id] != word {
			t.Errorf("%s is %q, want %q", id, got[id], word)
		}
	}
	// Before the events are read a view claims nothing about them.
	for _, path := range []string{"/runs", "/bus", "/decisions", "/deliberations"} {
		got := eval[string](p, `(async () => {`+apply+`
			store.state.loading.add("events");
			store.state.runs.clear();
			store.state.log = [];
			await show(`+quoteJS(path)+`);
			return document.querySelector("main .page").textContent;
		})()`)
		if !strings.Contains(got, "Loading.") || strings.Contains(got, "yet") || strings.Contains(got, "0 ") {
			t.Errorf("%s while it loads: %q", path, got)
		}
	}
	t.Run("waiting", func(t *testing.T) { testWaitingIsSaid(t, p) })
}

// TestPageFirstLook: the first screen shows its first words on a phone and promises nothing that is not so; a question
// that was asked before the page was opened, and waits for the user, has its text and its state everywhere.
func TestPageFirstLook(t *testing.T) {
	s, p := openScriptedPage(t)
	p.show(360, 640, "light")
	p.visit("/chat", ".welcome")
	if got := eval[float64](p, `document.querySelector(".welcome h2").getBoundingClientRect().top
		- document.querySelector("#log").getBoundingClientRect().top`); got < 0 {
		t.Errorf("the first words are %.0f px above the screen", -got)
	}
	for _, wrong := range []string{"stays on this machine", "could send or change something"} {
		if got := p.text(".welcome"); strings.Contains(got, wrong) {
			t.Errorf("the page says %q", got)
		}
	}
	p.show(1280, 800, "light")
	var soup struct {
		Session string `json:"session_id"`
	}
	s.call(t.Context(), http.MethodPost, "/query?wait=0", map[string]string{"query": "Read the soup recipe at " +
		"http://cook.example.org/soup for me."}, &soup)
	p.visit("/approvals", ".approval")
	for path, where := range map[string]string{"/runs": "main tbody tr", "/chat/" + soup.Session: ".turn .user"} {
		p.visit(path, where)
		p.waitFor(`document.querySelector(` + quoteJS(where) + `).textContent.includes("Read the soup recipe")`)
	}
	p.waitFor(`document.querySelector(".sessions li .title [role=img]")?.ariaLabel === "waiting for you"`)
	if got := p.text("main .turn"); !strings.Contains(got, "waiting for you") {
		t.Errorf("the chat shows %q", got)
	}
	p.checkQuiet()
}

// TestPageFits: on a phone the pictures are as wide as the screen, words in tables are not broken, and what belongs
// together stands together; nothing moves while the page loads.
func TestPageFits(t *testing.T) {
	s, p := openScriptedPage(t)
	s.call(t.Context(), http.MethodPost, "/memory", map[string]string{"text": "My cat is called Whiskers."}, nil)
	search := p.ask("Search the web for news about NATS.")
	p.waitFor(`document.querySelector(".turn .critic .grade")`)
	var asked struct {
		ID string `json:"query_id"`
	}
	s.call(t.Context(), http.MethodPost, "/query", map[string]string{"query": "Find out how many people live in " +
		"Oslo and Bergen, and say which city is larger.", "mode": "task"}, &asked)
	if moved := eval[float64](p, `new Promise((done) => {
		new PerformanceObserver((l) => done(l.getEntries().reduce((n, e) => n + (e.hadRecentInput ? 0 : e.value), 0)))
			.observe({ type: "layout-shift", buffered: true });
		setTimeout(() => done(0), 500);
	})`); moved > 0.1 {
		t.Errorf("the page moved by %.3f while it loaded", moved)
	}
	for _, width := range []int64{360, 1280} {
		p.show(width, 800, "light")
		for path, ready := range map[string]string{
			"/bus": ".busmap", "/tasks/" + asked.ID: ".dag", "/runs/" + search: ".legend",
			"/decisions": ".wide tbody tr", "/agents": ".actors tbody tr", "/runs": ".wide tbody tr",
			"/memory": ".wide tbody tr", "/memory/graph": ".empty-state",
		} {
			p.visit(path, ready)
			if path == "/memory/graph" {
				eval[bool](p, scriptedGraph)
				p.waitFor(`document.querySelector(".graph .name")`)
			}
			for _, wrong := range eval[[]string](p, `(async () => {
				for (let n = 0; n < 3; n++) await new Promise(requestAnimationFrame);
				const out = [];
				if (document.documentElement.scrollWidth > innerWidth) out.push("the page is wider than the screen");
				for (const e of document.querySelectorAll(".busmap, .graph, .dag"))
					if (innerWidth < 720 && e.scrollWidth > e.clientWidth + 1) out.push(e.className + " is cut off");
				for (const e of document.querySelectorAll(".legend span")) {
					const [k, range] = [e.querySelector(".k"), document.createRange()];
					range.selectNodeContents(e.lastChild);
					const [a, b] = [k.getBoundingClientRect(), range.getBoundingClientRect()];
					if (!e.textContent || b.left - a.right > 12 || b.left < a.right || b.bottom < a.top)
						out.push("apart from its swatch: " + e.textContent);
				}
				const walk = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
				for (let node; (node = walk.nextNode()); ) {
					if (!node.parentElement.closest("td, th") || node.parentElement.closest(".sr, code")) continue;
					for (const word of node.data.matchAll(/[\p{L}_]{2,24}/gu)) {
						const range = document.createRange();
						range.setStart(node, word.index);
						range.setEnd(node, word.index + word[0].length);
						const lines = new Set([...range.getClientRects()].map((r) => r.top));
						if (lines.size > 1) out.push("broken: " + word[0]);
					}
				}
				return out;
			})()`) {
				t.Errorf("%s at %d px: %s", path, width, wrong)
			}
		}
	}
	p.show(1280, 800, "light")
	if got := eval[float64](p, `(async () => {
		const store = await import("/page/js/store.js");
		const time = new Date().toISOString();
		store.apply({ subject: "query.received", query: "n", session: "n", time, payload: { query: "?" } });
		store.apply({ subject: "response.generation", query: "n", session: "n", time, payload: { answer: "x",
			respondent_id: "generator", tool_calls: [], notes: [{ code: "x", text: "a note" }] } });
		history.pushState(null, "", "/chat/n");
		dispatchEvent(new PopStateEvent("popstate"));
		while (!document.querySelector(".notes")) await new Promise(requestAnimationFrame);
		const style = getComputedStyle(document.querySelector(".notes"));
		return parseFloat(style.paddingLeft) / parseFloat(style.fontSize);
	})()`); got < 1.3 {
		t.Errorf("the bullets of notes have %.2f em, and are cut off by the turn", got)
	}
}

// TestPageLongSession: of a session with 2,000 turns the latest are shown at once, and all of them by scrolling up, in
// order and without a jump; a line marks where the part begins that the model gets.
func TestPageLongSession(t *testing.T) {
	const turns, latest = 2000, 50
	s, p := openScriptedPage(t)
	nc, err := s.instance.Bus.Dial(subjects.Generator)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	out, err := actor.NewOut(nc)
	if err != nil {
		t.Fatal(err)
	}
	put := func(key string, value any) {
		t.Helper()
		data, err := json.Marshal(value)
		if err == nil {
			_, err = out.Store(subjects.StateBucket(subjects.Generator)).Put(t.Context(), key, data, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := subjects.Conversation{
		Archived: turns - latest, Dropped: turns - latest, First: "Question 0", Began: began,
		Updated: began.Add(turns * time.Minute),
	}
	for n := range turns {
		turn := subjects.Turn{
			QueryID: fmt.Sprintf("q%d", n), Query: fmt.Sprintf("Question %d", n), Model: "m",
			Answer: fmt.Sprintf("Answer **%d** with some text, a list\n\n- one\n- two", n),
			Time:   began.Add(time.Duration(n) * time.Minute),
		}
		if n < turns-latest {
			put(subjects.Conversation{SessionID: "long"}.ArchivedTurnKey(n), turn)
		} else {
			c.Turns = append(c.Turns, turn)
		}
	}
	put(subjects.ConversationKey("long"), c)

	p.do(chromedp.Navigate(p.url+"/chat/long"), chromedp.WaitVisible(chromedp.CSS(".turn")))
	p.waitFor(`document.querySelectorAll(".turn").length >= ` + fmt.Sprint(latest))
	paint := eval[float64](p, `performance.now()`)
	t.Logf("the latest of %d turns are shown %.0f ms after the navigation", turns, paint)
	if paint > 5*1000 {
		t.Errorf("shown after %.0f ms, five times the target", paint)
	}
	p.waitFor(`document.querySelector(".sessions li.open")?.textContent.includes("Question 0")`)
	p.waitFor(`document.querySelector(".window-mark")`)
	begin := eval[string](p, `document.querySelector(".window-mark").nextElementSibling.textContent`)
	if !strings.Contains(begin, fmt.Sprintf("Question %d", turns-latest)) {
		t.Errorf("the window begins with %q", begin)
	}
	jump := eval[float64](p, `(async () => {
		const log = document.querySelector("#log");
		const frames = async (n) => { while (n--) await new Promise(requestAnimationFrame); };
		let jump = 0;
		while (document.querySelectorAll(".turn").length < `+fmt.Sprint(turns)+`) {
			const before = document.querySelectorAll(".turn").length;
			log.scrollTop = 0;
			const first = document.querySelector(".turn");
			const top = first.getBoundingClientRect().top;
			while (document.querySelectorAll(".turn").length === before) await frames(1);
			if (before > 300) continue;
			await frames(15);
			jump = Math.max(jump, Math.abs(first.getBoundingClientRect().top - top));
		}
		return jump;
	})()`)
	if jump > 120 {
		t.Errorf("what is read moves by %.0f pixels when earlier turns come", jump)
	}
	if got := eval[string](p, `[...document.querySelectorAll(".turn .user")].map((e) => e.textContent)
		.every((text, n) => text === "Question " + n) + " " + document.querySelectorAll(".window-mark").length`); got !=
		"true 1" {
		t.Errorf("in order, and marks: %s", got)
	}
	// A further question archives the oldest turn of the window, which stays on the page.
	p.typeQuestion("What time is it in Tokyo?")
	p.waitFor(`document.querySelectorAll(".turn").length === ` + fmt.Sprint(turns+1) +
		` && document.querySelector(".window-mark")?.nextElementSibling.textContent.includes("Question ` +
		fmt.Sprint(turns-latest+1) + `")`)
	if got := eval[string](p, `[...document.querySelectorAll(".turn .user")].slice(0, -1).map((e) => e.textContent)
		.every((text, n) => text === "Question " + n) + ""`); got != "true" {
		t.Errorf("in order after a further question: %s", got)
	}
	// A search finds what was said in an archived turn, and leads to it.
	p.do(chromedp.SendKeys(chromedp.CSS(".sessions input"), "answer 1203"))
	p.waitFor(`document.querySelector(".sessions .found .excerpt")?.textContent.includes("Answer **1203**")`)
	p.open(eval[string](p, `document.querySelector(".sessions .found a").getAttribute("href")`))
	p.waitFor(`(() => {
		const turn = document.querySelector(".turn.wanted");
		const log = document.querySelector("#log").getBoundingClientRect();
		return turn?.textContent.includes("Question 1203") && turn.getBoundingClientRect().top >= log.top - 20
			&& turn.getBoundingClientRect().top < log.bottom;
	})()`)
	p.do(chromedp.SendKeys(chromedp.CSS(".sessions input"), "nobody said this"))
	p.waitFor(`document.querySelector(".found-head").textContent.includes("Nobody said these words")`)
	p.checkQuiet()
}

// TestPageModelChoice: the composer lists the models that can answer with where they are, and the chosen one answers
// the next question, also after a reload; a task has models of its own.
func TestPageModelChoice(t *testing.T) {
	_, p := openScriptedPage(t)
	p.open("/chat")
	p.waitFor(`document.querySelector("#model")?.options.length > 2`)
	list := eval[[]string](p, `[...document.querySelector("#model").options].map((o) => o.textContent)`)
	if !strings.HasPrefix(list[0], "scripted-12b") || !strings.Contains(strings.Join(list, ";"), "summaries") ||
		strings.Contains(strings.Join(list, ";"), "nomic-embed-text") {
		t.Errorf("the models are %q", list)
	}
	choose := func(name string) {
		t.Helper()
		eval[bool](p, `((m) => { m.value = `+quoteJS(name)+`; return m.dispatchEvent(new Event("change")); })(
			document.querySelector("#model"))`)
	}
	choose("other")
	p.open("/chat")
	p.waitFor(`document.querySelector("#model")?.value === "other"`)
	p.typeQuestion("Who are you?")
	p.waitFor(`document.querySelector(".turn .facts")?.textContent.includes("other")`)
	if got := p.text(".turn .answer"); !strings.Contains(got, "I am the other one.") {
		t.Errorf("answered by another model: %q", got)
	}
	choose("")
	p.typeQuestion("What time is it in Tokyo?")
	p.waitFor(`[...document.querySelectorAll(".turn .facts")].at(-1).textContent.includes("scripted-12b")`)
	eval[bool](p, `((m) => { m.value = "task"; return m.dispatchEvent(new Event("change")); })(
		document.querySelector("#mode"))`)
	p.waitFor(`document.querySelector("#model").disabled`)
	p.show(360, 800, "light")
	if got := eval[float64](p, `new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() =>
		done(Math.abs(document.querySelector(".send").getBoundingClientRect().bottom
			- document.querySelector("#mode").getBoundingClientRect().bottom)))))`); got > 8 {
		t.Errorf("on a phone the button to send is %.0f px apart from its line", got)
	}
	p.show(1280, 800, "light")
	t.Run("axe", func(t *testing.T) {
		p.t = t
		p.checkAccess("/chat")
	})
	p.t = t
	p.checkQuiet()
}
