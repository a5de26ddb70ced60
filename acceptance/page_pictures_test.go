package acceptance

import (
	"cmp"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// TestPagePictures makes the pictures of docs/page.md in the folder that CONCLAVE_PICTURES names, from a run of the
// system with scripted models. It checks nothing: the developer who changes a screen looks at them.
func TestPagePictures(t *testing.T) {
	folder := os.Getenv("CONCLAVE_PICTURES")
	if folder == "" {
		t.Skip("pictures are made with CONCLAVE_PICTURES=<folder>, CONCLAVE_BROWSER=1 and Chromium")
	}
	s, p := openScriptedPage(t)
	ids := map[string]string{}
	for _, q := range []struct{ name, query, mode string }{
		{"lisbon", "Remember that my favourite city is Lisbon.", ""},
		{"ada", "My sister Ada lives in Lisbon.", ""},
		{"bremen", "Ada used to live in Bremen.", ""},
		{"tom", "My brother Tom works at Siemens and Ada likes surfing.", ""},
		{"nats", "Search the web for news about NATS.", ""},
		{"city", "Which city do I like most?", ""},
		{"committee", "Should I move to Lisbon, closer to Ada?", "committee"},
		{"task", "Find out how many people live in Oslo and Bergen, and say which city is larger.", "task"},
	} {
		var got struct {
			ID string `json:"query_id"`
		}
		s.call(t.Context(), http.MethodPost, "/query?grade_wait=20s",
			map[string]string{"query": q.query, "mode": q.mode}, &got)
		ids[q.name] = got.ID
	}
	edited := strings.TrimPrefix(chatOf(s, t, ids["bremen"]), "/chat/")
	s.call(t.Context(), http.MethodPost, "/sessions/"+edited+"/branch", map[string]string{"before": ids["bremen"]}, nil)
	s.call(t.Context(), http.MethodPost, "/query?grade_wait=20s", map[string]string{"query": "Which city do I like " +
		"most?", "session_id": edited}, nil)
	var soup struct {
		ID      string `json:"query_id"`
		Session string `json:"session_id"`
	}
	s.call(t.Context(), http.MethodPost, "/query?wait=0", map[string]string{"query": "Read the soup recipe at " +
		"http://cook.example.org/soup for me."}, &soup)
	p.open("/approvals")
	p.waitFor(`document.querySelector(".approval")`)

	search := `(() => { const i = document.querySelector("#memory-text"); i.value = "favourite city";
		i.dispatchEvent(new Event("input", { bubbles: true })); i.form.requestSubmit(); return true; })()`
	p.takePictures(folder, []picture{
		{name: "welcome", path: "/chat", wait: ".welcome"},
		{name: "chat", path: chatOf(s, t, ids["nats"]), wait: ".critic"},
		{
			name: "recall", path: chatOf(s, t, ids["city"]), wait: ".critic",
			run: `(document.querySelectorAll(".turn .memory-card, .turn .thinking").forEach((d) =>
				(d.open = true)), true)`,
		},
		{
			name: "drawer", path: chatOf(s, t, ids["nats"]), wait: ".critic",
			click: `[aria-label="Show the run beside the chat"]`, after: `localStorage.setItem("drawer", "closed")`,
		},
		{name: "branches", path: "/chat/" + edited, wait: ".versions"},
		{
			name: "context", path: "/context/" + strings.TrimPrefix(chatOf(s, t, ids["nats"]), "/chat/"),
			wait: ".message",
		},
		{name: "runs", path: "/runs", wait: "tbody tr"},
		{name: "run", path: "/runs/" + ids["nats"], wait: ".waterfall .first"},
		{name: "run-task", path: "/runs/" + ids["task"], wait: ".waterfall .span"},
		{name: "approval", path: "/approvals", height: 900, wait: ".approval"},
		{name: "tasks", path: "/tasks", wait: "tbody tr"},
		{name: "task", path: "/tasks/" + ids["task"], wait: ".dag", click: ".dag .node"},
		{
			name: "memory", path: "/memory", wait: ".entries", run: search, loaded: ".entries th:nth-child(9)",
			click: ".fold",
		},
		{name: "graph", path: "/memory/graph", wait: ".empty-state", run: scriptedGraph, loaded: ".graph"},
		{name: "bus", path: "/bus", wait: ".busmap"},
		{name: "decisions", path: "/decisions", wait: "table"},
		{
			name: "deliberation", path: "/deliberations/" + ids["committee"], wait: ".persona",
			run: `(document.querySelectorAll(".persona")[2].open = true)`,
		},
		{name: "agents", path: "/agents", wait: ".ops tbody tr"},
		{name: "agent", path: "/agents/critic", wait: ".figures"},
		{name: "settings", path: "/settings", wait: ".settings tbody tr"},
		{name: "models", path: "/models", wait: ".ops tbody tr"},
		{name: "machines", path: "/machines", wait: ".empty-state"},
		{name: "doctor", path: "/doctor", wait: ".ops tbody tr"},
	})
	p.open("/approvals")
	p.waitFor(`document.querySelector(".approval")`)
	s.call(t.Context(), http.MethodPost, "/approvals/"+eval[string](p, `document.querySelector(".approval").dataset.
		approval`), map[string]bool{"approve": false}, nil)
	p.takePictures(folder, []picture{{
		name: "first", path: "/chat/" + soup.Session, wait: ".critic",
		click: `[aria-label="Show the run beside the chat"]`, after: `localStorage.setItem("drawer", "closed")`,
	}})
}

// scriptedGraph gives the page the relations that a model would have read from the questions of the pictures, and opens
// the graph: the scripted models read none.
const scriptedGraph = `(() => {
	const relation = (subject, predicate, object, tense) => ({ id: subject + predicate + object, entry_id: "e",
		subject, predicate, object, tense, trust: "trusted", said: new Date().toISOString() });
	const relations = [relation("Ada", "is sister of", "the user", "is"), relation("Ada", "lives in", "Lisbon", "is"),
		relation("Ada", "lives in", "Bremen", "was"), relation("Ada", "likes", "surfing", "is"),
		relation("Tom", "is brother of", "the user", "is"), relation("Tom", "works at", "Siemens", "is"),
		relation("the user", "has favourite city", "Lisbon", "is")];
	const fetch = window.fetch;
	window.fetch = (address, options) => !String(address).startsWith("/memory/graph") ? fetch(address, options) :
		Promise.resolve(new Response(JSON.stringify({ relations }),
			{ headers: { "Content-Type": "application/json" } }));
	document.querySelector("main a[href='/memory/graph']").click();
	return true;
})()`

// picture is one view for the documentation: the address, what it must show first, and what is done before the pictures
// are taken.
type picture struct {
	name, path string
	height     int64  // of the wide pictures; 0 is 760
	wait       string // selector that must match
	run        string // expression that is evaluated then
	loaded     string // selector that must match then
	click      string // selector of an element that is clicked then
	after      string // expression that is evaluated after the pictures
}

// takePictures writes each view in light, dark and phone width into folder, as <name>.webp, <name>-dark.webp and
// <name>-phone.webp.
func (p *browserPage) takePictures(folder string, pictures []picture) {
	p.t.Helper()
	for _, view := range pictures {
		p.show(1200, cmp.Or(view.height, 760), "light")
		p.open(view.path)
		p.waitFor(`document.querySelector(` + quoteJS(view.wait) + `)`)
		if view.run != "" {
			eval[bool](p, view.run)
		}
		if view.loaded != "" {
			p.waitFor(`document.querySelector(` + quoteJS(view.loaded) + `)`)
		}
		if view.click != "" {
			p.click(view.click)
		}
		for _, look := range []struct {
			suffix, scheme string
			width, height  int64
		}{
			{"", "light", 1200, cmp.Or(view.height, 760)},
			{"-dark", "dark", 1200, cmp.Or(view.height, 760)},
			{"-phone", "light", 360, 740},
		} {
			p.show(look.width, look.height, look.scheme)
			// what the view loads after its first drawing
			eval[bool](p, `new Promise((r) => setTimeout(() => r(true), 400))`)
			p.takePicture(filepath.Join(folder, view.name+look.suffix+".webp"))
		}
		if view.after != "" {
			eval[bool](p, `(`+view.after+`, true)`)
		}
	}
}

// takePicture writes what the tab shows to a WebP file.
func (p *browserPage) takePicture(file string) {
	p.t.Helper()
	quality := int64(70)
	got, err := chromedp.Call(p.ctx, page.CaptureScreenshot,
		page.CaptureScreenshotParams{Format: page.CaptureScreenshotFormatWebp, Quality: &quality})
	if err == nil {
		err = os.WriteFile(file, got.Data, 0o644)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}
