package acceptance

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestPageLive asks a real model through the page and makes pictures of it in the folder that CONCLAVE_PICTURES names:
// while it writes, a tool call, an approval and the run. CONCLAVE_LIVE is the address of an Ollama that has the models
// of .ci/live, as .ci/live --serve prints it. What the model says is not checked.
func TestPageLive(t *testing.T) {
	folder, ollama := os.Getenv("CONCLAVE_PICTURES"), os.Getenv("CONCLAVE_LIVE")
	if folder == "" || ollama == "" {
		t.Skip("pictures of a real model are made with CONCLAVE_LIVE=<address of .ci/live --serve>, " +
			"CONCLAVE_PICTURES=<folder>, CONCLAVE_BROWSER=1 and Chromium")
	}
	browser := findBrowser(t)
	const models = "demo_model: never\nroles: {assistant: \"qwen-coder:1.5b\", critic: \"smollm2:135m\", embeddings: " +
		"all-minilm}\ndefaults: {window: 8192}\nmodels: {\"qwen-coder:1.5b\": {temperature: 0}}\nollama: {url: %q}\n"
	s := startPageSystemOn(t, fmt.Sprintf(models, ollama), "A recipe for bread that goes well with it is at "+
		"http://cook.example.org/bread.")
	p := startBrowser(t, browser, s.url, s.loginLink(t.Context()))
	p.show(1200, 760, "light")
	take := func(name string) {
		eval[bool](p, `new Promise((r) => setTimeout(() => r(true), 400))`)
		p.takePicture(filepath.Join(folder, "live-"+name+".webp"))
	}
	const answered = `document.querySelectorAll(".turn .facts").length
		=== document.querySelectorAll(".turn").length && document.querySelector(".turn .facts")`

	t.Run("tool", func(t *testing.T) {
		p.t = t
		id := p.ask("What time is it in Tokyo?")
		p.waitLong(answered)
		take("tool")
		p.open("/runs/" + id)
		p.waitLong(`document.querySelector(".waterfall g.span.critic")`)
		take("run")
	})
	t.Run("approval", func(t *testing.T) {
		p.t = t
		p.ask("Use web_fetch to read http://cook.example.org/soup and tell me the address of the other recipe.")
		p.waitLong(answered)
		p.typeQuestion("Use web_fetch to read the other recipe.") // its address is from the page, not from the user
		p.waitLong(`document.querySelectorAll(".turn").length === 2`)
		p.waitLong(`document.querySelector(".turn .approval") || (` + answered + `)`)
		take("approval")
		if eval[bool](p, `Boolean(document.querySelector(".turn .approval"))`) {
			p.click(`.approval .actions button:nth-child(2)`)
			p.waitLong(answered)
		}
		take("approved")
	})
	t.Run("answer", func(t *testing.T) {
		p.t = t
		p.ask("What is a message queue? Answer in one sentence, then show a Go channel in at most five lines.")
		p.waitLong(`document.querySelector(".turn .answer")?.textContent.length > 120`)
		take("writing")
		p.waitLong(answered)
		take("answer")
	})
	p.t = t
	p.checkQuiet()
}

// waitLong waits until an expression is true, for ten minutes.
func (p *browserPage) waitLong(expression string) {
	p.t.Helper()
	for deadline := time.Now().Add(10 * time.Minute); ; {
		if eval[bool](p, `(async () => { for (const end = Date.now() + 10000; Date.now() < end; ) { if (`+expression+
			`) return true; await new Promise((r) => setTimeout(r, 50)); } return false; })()`) {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("not within ten minutes: %s\n%s", expression,
				eval[string](p, `document.querySelector("main").innerText.slice(0, 2000)`))
		}
	}
}
