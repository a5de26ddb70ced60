package acceptance

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// TestPageApprovesTogether: the twenty calls of one model reply wait together on one card, each with its arguments and
// a box; ticked calls are approved, each by its own decision, and the others denied.
func TestPageApprovesTogether(t *testing.T) {
	s, p := openScriptedPage(t)
	p.show(360, 800, "light")
	p.ask("Please report twenty facts of http://cook.example.org/soup.")
	p.waitFor(`document.querySelectorAll(".turn .approval.group [data-approval]").length === 20`)
	p.open("/approvals")
	p.waitFor(`document.querySelectorAll(".approval.group [data-approval] input:checked").length === 20`)
	p.waitFor(`document.activeElement?.textContent === "Deny all 20"`)
	if eval[bool](p, `document.documentElement.scrollWidth > innerWidth`) {
		t.Error("the page is wider than a phone")
	}
	shown := eval[[]string](p,
		`[...document.querySelectorAll(".approval.group [data-approval] pre")].map((e) =>
			/in\?n=\d+/.exec(e.textContent)[0])`)
	if sorted := slices.Sorted(slices.Values(shown)); len(slices.Compact(sorted)) != 20 {
		t.Errorf("the cards show %q", shown)
	}
	if got := p.text(".approval.group legend"); got != "Run these 20 calls of web_fetch?" {
		t.Errorf("it asks %q", got)
	}
	const approve = `[...document.querySelectorAll(".approval.group .actions button")][1]`
	p.do(chromedp.Focus(chromedp.CSS(".approval.group [data-approval]:nth-child(3) input")), chromedp.KeyEvent(" "))
	p.do(chromedp.Focus(chromedp.CSS(".approval.group [data-approval]:nth-child(7) input")), chromedp.KeyEvent(" "))
	p.waitFor(approve + `.textContent === "Approve 18, deny 2" && !` + approve + `.disabled`)
	eval[bool](p, `(`+approve+`.focus(), true)`)
	p.do(chromedp.KeyEvent(kb.Enter))
	p.waitFor(`document.querySelector(".empty-state")`)
	var list struct {
		Approvals []struct {
			State string
			Args  struct{ URL string }
		}
	}
	s.call(t.Context(), http.MethodGet, "/approvals?all=1", nil, &list)
	decided := map[string]int{}
	for _, a := range list.Approvals {
		decided[a.State]++
		isUnticked := strings.HasSuffix(a.Args.URL, shown[2]) || strings.HasSuffix(a.Args.URL, shown[6])
		if (a.State == "denied") != isUnticked {
			t.Errorf("%s is %s", a.Args.URL, a.State)
		}
	}
	if decided["approved"] != 18 || decided["denied"] != 2 {
		t.Errorf("decided: %v", decided)
	}
	testOnlyShownIsDecided(t, p)
	testShownHolds(t, p)
}

// testOnlyShownIsDecided: a click decides the calls that were on the card when it was made, and approves none that was
// not readable for a while or is not shown.
func testOnlyShownIsDecided(t *testing.T, p *browserPage) {
	p.open("/approvals")
	eval[bool](p, `(async () => {
		window.store = await import("/page/js/store.js");
		await store.ready;
		const all = new Map(); // a list that is still on its way replaces nothing
		Object.defineProperty(store.state, "approvals", { get: () => all, set: () => {} });
		window.posts = [];
		const send = fetch;
		window.fetch = (path, options) => {
			if (!String(path).startsWith("/approvals")) return send(path, options);
			if (options?.method !== "POST") return new Promise(() => {});
			posts.push(path.split("/").pop() + " " + JSON.parse(options.body).approve);
			return Promise.resolve(new Response("{}", { headers: { "Content-Type": "application/json" } }));
		};
		window.pose = (n) => store.state.approvals.set("a" + n, { id: "a" + n, session_id: "s", query_id: "q",
			caller: "generator", tool: "send_mail", args_text: '{"to":"p' + n + '@example.org"}', layer: "flow",
			rule: "act", reason: "reason " + n, asked: new Date(1e12 + n).toISOString(),
			expires: new Date(Date.now() + 6e5).toISOString() });
		window.button = (n) => [...document.querySelectorAll(".approval.group .actions button")][n];
		pose(1);
		pose(2);
		store.changed();
		return true;
	})()`)
	p.waitFor(`button(1)?.textContent === "Approve 2"`)
	if !eval[bool](p, `button(1).disabled`) {
		t.Error("the calls can be approved at once")
	}
	p.waitFor(`!button(1).disabled`)
	// The third call comes after the card was shown: a click on the old card does not decide it.
	if got := eval[[]string](p, `(async () => {
		pose(3);
		button(1).click();
		store.changed();
		while (store.state.approvals.size > 1) await new Promise(requestAnimationFrame);
		return posts;
	})()`); !slices.Equal(got, []string{"a1 true", "a2 true"}) {
		t.Errorf("decided %q", got)
	}
	eval[bool](p, `(pose(4), store.changed(), true)`)
	p.waitFor(`button(1) && !button(1).disabled`)
	if got := eval[bool](p, `(async () => {
		pose(5);
		store.changed();
		while (button(1).textContent !== "Approve 3") await new Promise(requestAnimationFrame);
		button(1).click();
		return button(1).disabled && posts.length === 2;
	})()`); !got {
		t.Error("a call was approved as soon as it was shown")
	}
	// What is not shown is counted and not decided.
	eval[bool](p, `(() => { for (let n = 6; n < 30; n++) pose(n); store.changed(); return true; })()`)
	p.waitFor(`button(1).textContent === "Approve 20" && !button(1).disabled`)
	if got := p.text(".approval.group"); !strings.Contains(got, "7 calls more wait and are not shown") ||
		!strings.Contains(got, "p22@example.org") || strings.Contains(got, "p23@example.org") {
		t.Errorf("the card shows %q", got)
	}
	eval[bool](p, `(button(1).click(), true)`)
	p.waitFor(`button(0)?.textContent === "Deny all 7"`)
	if got := eval[[]string](p, `posts.slice(2)`); len(got) != 20 || got[19] != "a22 true" {
		t.Errorf("decided %q", got)
	}
}

// testShownHolds: what a card shows holds for each of its calls, and a call cannot be approved before its arguments
// have been shown for a while, or when its box shows something else. It follows testOnlyShownIsDecided.
func testShownHolds(t *testing.T, p *browserPage) {
	t.Helper()
	eval[bool](p, `(() => {
		window.frames = async (n) => { while (n--) await new Promise(requestAnimationFrame); };
		store.state.approvals.clear();
		pose(40);
		pose(41);
		store.state.approvals.get("a41").reason = "reason 40"; // shown once
		store.changed();
		return true;
	})()`)
	p.waitFor(`button(1)?.textContent === "Approve 2" && !button(1).disabled`)
	if got := eval[int](p, `document.querySelectorAll(".approval.group li details").length`); got != 2 {
		t.Errorf("%d of 2 calls have details", got)
	}
	if got := eval[string](p, `(async () => {
		const before = posts.length;
		const box = document.querySelector("li[data-approval=a40] input");
		box.checked = false; // as a browser that restores a form
		button(1).click();
		await frames(10);
		return (posts.length - before) + " decided, ticked " + box.checked + ", waits " + button(1).disabled;
	})()`); got != "0 decided, ticked true, waits true" {
		t.Errorf("a box that shows something else: %s", got)
	}
	if !eval[bool](p, `(async () => {
		pose(42);
		delete store.state.approvals.get("a42").args_text;
		store.changed();
		await new Promise((done) => setTimeout(done, 1500));
		pose(42);
		store.changed();
		while (!document.querySelector("li[data-approval=a42] pre")) await frames(1);
		return button(1).disabled;
	})()`) {
		t.Error("a call can be approved as soon as its arguments are shown")
	}
	eval[bool](p, `(() => {
		pose(43);
		store.state.approvals.get("a43").taint = [{ tool: "web_fetch", from: "https://x.example/", time: new Date() }];
		pose(44);
		store.state.approvals.get("a44").grants = [{ clause: "Send it", acts: ["send"] }];
		store.changed();
		return true;
	})()`)
	p.waitFor(`document.querySelectorAll(".approval:not(.group)").length === 2`)
	p.waitFor(`button(1).textContent === "Approve 3"`)
}
