package config_test

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestPagePictures makes the pictures of docs/page.md in the folder that CONCLAVE_PICTURES names, from a run of the system with
// scripted models. It checks nothing: the developer who changes a screen looks at them.
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
		s.call(t.Context(), http.MethodPost, "/query?grade_wait=20s", map[string]string{"query": q.query, "mode": q.mode}, &got)
		ids[q.name] = got.ID
	}
	var soup struct {
		ID      string `json:"query_id"`
		Session string `json:"session_id"`
	}
	s.call(t.Context(), http.MethodPost, "/query?wait=0", map[string]string{"query": "Read the soup recipe at http://cook.example.org/soup for me."}, &soup)
	p.open("/approvals")
	p.waitFor(`document.querySelector(".approval")`)

	search := `(() => { const i = document.querySelector("#memory-text"); i.value = "favourite city"; i.dispatchEvent(new Event("input", { bubbles: true })); i.form.requestSubmit(); return true; })()`
	for _, picture := range []struct {
		name, path    string
		width, height int64
		scheme        string
		wait, click   string
		run           string
	}{
		{name: "chat", path: chatOf(s, t, ids["nats"]), wait: ".critic"},
		{name: "chat-dark", path: chatOf(s, t, ids["city"]), scheme: "dark", wait: ".critic", run: `(document.querySelectorAll(".turn details").forEach((d) => (d.open = true)), true)`},
		{name: "chat-phone", path: chatOf(s, t, ids["nats"]), width: 360, height: 740, wait: ".critic"},
		{name: "approval", path: "/approvals", height: 860, wait: ".approval"},
		{name: "approval-phone", path: "/approvals", width: 360, height: 740, scheme: "dark", wait: ".approval"},
		{name: "memory", path: "/memory", height: 640, wait: ".entries", run: search, click: ".fold"},
		{name: "graph", path: "/memory/graph", height: 640, wait: ".graph"},
		{name: "task", path: "/tasks/" + ids["task"], height: 640, wait: ".dag", click: ".dag .node"},
		{name: "deliberation", path: "/deliberations/" + ids["committee"], height: 720, wait: ".persona", run: `(document.querySelectorAll(".persona")[2].open = true)`},
		{name: "bus", path: "/bus", height: 640, scheme: "dark", wait: ".busmap"},
		{name: "decisions", path: "/decisions", height: 560, wait: "table"},
		{name: "run", path: "/runs/" + ids["nats"], height: 640, wait: ".waterfall .first"},
		{name: "run-task", path: "/runs/" + ids["task"], height: 640, scheme: "dark", wait: ".waterfall .span"},
		{name: "drawer", path: chatOf(s, t, ids["nats"]), width: 1400, height: 760, wait: ".critic", click: `[aria-label="Show the run beside the chat"]`},
	} {
		width, height, scheme := picture.width, picture.height, picture.scheme
		if width == 0 {
			width = 1200
		}
		if height == 0 {
			height = 760
		}
		if scheme == "" {
			scheme = "light"
		}
		p.show(width, height, scheme)
		p.open(picture.path)
		p.waitFor(`document.querySelector(` + quoteJS(picture.wait) + `)`)
		if picture.run != "" {
			eval[bool](p, picture.run)
		}
		if picture.name == "memory" {
			p.waitFor(`document.querySelector(".entries th:nth-child(9)")`)
		}
		if picture.click != "" {
			p.click(picture.click)
		}
		eval[bool](p, `new Promise((r) => setTimeout(() => r(true), 400))`) // what the view loads after its first drawing
		png, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, picture.name+".png"), png, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
