package acceptance

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestPageAddsToMemory: a text is added as the user's own or as somebody else's, which a long paste is unless the user
// says otherwise, and an export is imported as untrusted.
func TestPageAddsToMemory(t *testing.T) {
	_, p := openScriptedPage(t)
	open := func() {
		t.Helper()
		p.visit("/memory", "main .actions button")
		p.click("main .actions button")
		p.waitFor(`document.activeElement.id === "memory-add"`)
	}
	open()
	p.do(chromedp.SendKeys(chromedp.CSS("#memory-add"), "My bicycle is green."))
	p.click(".editor .primary")
	entry := `[...document.querySelectorAll(".entries tbody tr")].find((r) => r.textContent.includes(`
	p.waitFor(entry + `"bicycle"))`)
	if eval[bool](p, entry+`"bicycle")).className.includes("untrusted")`) {
		t.Error("the user's own words are untrusted")
	}
	open()
	eval[bool](p, `(() => {
		const data = new DataTransfer();
		data.setData("text/plain", "The ferry\nleaves at noon");
		const box = document.querySelector("#memory-add");
		box.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
		box.value = "The ferry leaves at noon.";
		return box.dispatchEvent(new Event("input"));
	})()`)
	p.waitFor(`document.querySelector(".editor input[type=checkbox]").checked`)
	p.click(".editor .primary")
	p.waitFor(entry + `"ferry"))?.className.includes("untrusted")`)
	export := eval[string](p, `(async () => (await fetch("/memory/export")).text())()`)
	file := filepath.Join(t.TempDir(), "memory.jsonl")
	text := strings.ReplaceAll(strings.ReplaceAll(export, "bicycle", "scooter"), `"id":"`, `"id":"x`)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p.do(chromedp.SetUploadFiles(chromedp.CSS(`input[accept=".jsonl,.ndjson"]`), []string{file}))
	p.waitFor(`document.querySelector(".notice")?.textContent.includes("2 entries read")`)
	p.waitFor(entry + `"scooter"))?.className.includes("untrusted")`)
	t.Run("axe", func(t *testing.T) {
		p.t = t
		p.checkAccess("/memory", "/agents")
		p.visit("/memory", "main .actions button")
		p.click("main .actions button")
		p.waitFor(`document.querySelector("#memory-add")`)
		p.checkShown("the form")
	})
	p.t = t
	p.checkQuiet()
}
