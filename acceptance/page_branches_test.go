package acceptance

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestPageBranches edits an earlier question: the conversation continues from there, the first version stays as a
// branch that can be switched to, after a reload and in a second tab too, and the model gets only the branch that is
// shown.
func TestPageBranches(t *testing.T) {
	s, p := openScriptedPage(t)
	ask := func(p *browserPage, question string) {
		p.t.Helper()
		n := eval[float64](p, `document.querySelectorAll(".turn .facts").length`)
		p.typeQuestion(question)
		p.waitFor(`document.querySelectorAll(".turn .facts").length === ` + strconv.Itoa(int(n)+1))
	}
	p.open("/chat")
	ask(p, "My sister Ada lives in Lisbon.")
	ask(p, "Which city do I like most?")
	session := strings.TrimPrefix(eval[string](p, `location.pathname`), "/chat/")
	second := openTab(t, p.ctx, p.url, p.url+"/chat/"+session)
	second.waitFor(`document.querySelectorAll(".turn").length === 2`)
	p.front()

	const questions = `[...document.querySelectorAll(".turn .user")].map((e) => e.textContent.trim()).join(" | ")`
	edit := func(words string) {
		t.Helper()
		eval[bool](p, `(document.querySelectorAll('.turn [aria-label="Edit the question"]')[0].click(), true)`)
		p.waitFor(`document.querySelector("#edit")`)
		eval[bool](p, `(async () => { const e = document.querySelector("#edit"); e.value = `+quoteJS(words)+
			`; e.dispatchEvent(new Event("input", { bubbles: true })); await new Promise(requestAnimationFrame);
				await new Promise(requestAnimationFrame); e.form.requestSubmit(); return true; })()`)
	}
	edit("Ada used to live in Bremen.")
	p.waitFor(questions + ` === "Ada used to live in Bremen." && document.querySelector(".turn .facts")`)
	p.waitFor(`document.querySelector(".versions")?.textContent.includes("2/2")`)

	// A reload, and the other tab.
	p.open("/chat/" + session)
	p.waitFor(questions +
		` === "Ada used to live in Bremen." && document.querySelector(".versions")?.textContent.includes("2/2")`)
	second.front()
	second.waitFor(questions +
		` === "Ada used to live in Bremen." && document.querySelector(".versions")?.textContent.includes("2/2")`)
	var context struct{ Messages []struct{ Content string } }
	s.call(t.Context(), http.MethodGet, "/sessions/"+session+"/context", nil, &context)
	for _, m := range context.Messages {
		if strings.Contains(m.Content, "Lisbon") {
			t.Errorf("the model gets the other branch: %q", m.Content)
		}
	}
	// The other tab switches back, and the first one follows.
	second.click(`[aria-label="Previous version"]`)
	const first = questions +
		` === "My sister Ada lives in Lisbon. | Which city do I like most?"
			&& document.querySelector(".versions")?.textContent.includes("1/2")`
	second.waitFor(first)
	p.front()
	p.waitFor(first)
	ask(p, "Which city do I like most?")
	p.click(`[aria-label="Next version"]`)
	p.waitFor(questions + ` === "Ada used to live in Bremen."`)
	p.click(`[aria-label="Previous version"]`)
	p.waitFor(`document.querySelectorAll(".turn").length === 3`)
	t.Run("axe", func(t *testing.T) {
		p.t = t
		p.checkAccess("/chat/" + session)
	})
	p.t = t
	p.checkQuiet()
	second.checkQuiet()
}

// TestBranchedConversation branches a conversation over HTTP on the bus, under the real grants: the model gets the
// turns before the edited question only, the branch can be switched back to, and the event log and the audit log keep
// the records of both.
func TestBranchedConversation(t *testing.T) {
	t.Parallel()
	s := startPageSystem(t)
	ask := func(session, question string) (query string) {
		t.Helper()
		var got struct {
			ID      string `json:"query_id"`
			Session string `json:"session_id"`
		}
		s.call(t.Context(), http.MethodPost, "/query", map[string]string{"query": question, "session_id": session},
			&got)
		return got.ID
	}
	questions := func() (out string) {
		var got struct {
			Conversation []struct{ Query string }
			Branches     []struct{ ID, After string }
		}
		s.call(t.Context(), http.MethodGet, "/sessions/s1", nil, &got)
		for _, turn := range got.Conversation {
			out += turn.Query + " "
		}
		for _, b := range got.Branches {
			out += "[" + b.ID + " after " + b.After + "] "
		}
		return strings.TrimSpace(out)
	}
	context := func() string {
		var got json.RawMessage
		s.call(t.Context(), http.MethodGet, "/sessions/s1/context", nil, &got)
		return string(got)
	}
	first := ask("s1", "My sister Ada lives in Lisbon.")
	second := ask("s1", "My brother Tom works at Siemens and Ada likes surfing.")
	s.call(t.Context(), http.MethodPost, "/sessions/s1/branch", map[string]string{"before": second}, nil)
	if got := context(); !strings.Contains(got, "Lisbon") || strings.Contains(got, "Siemens") {
		t.Errorf("context: %s", got)
	}
	third := ask("s1", "Ada used to live in Bremen.")
	if got, want := questions(), "My sister Ada lives in Lisbon. Ada used to live in Bremen. ["+second+" after "+first+
		"]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	s.call(t.Context(), http.MethodPost, "/sessions/s1/branch", map[string]string{"to": second}, nil)
	if got, want := questions(), "My sister Ada lives in Lisbon. My brother Tom works at Siemens and Ada likes "+
		"surfing. ["+third+" after "+first+"]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := context(); !strings.Contains(got, "Siemens") || strings.Contains(got, "Bremen") {
		t.Errorf("context after the switch: %s", got)
	}
	for _, query := range []string{first, second, third} { // no record is removed
		var got struct{ Events []struct{ Subject string } }
		s.call(t.Context(), http.MethodGet, "/events/history?query="+query, nil, &got)
		if !slices.ContainsFunc(got.Events, func(e struct{ Subject string }) bool {
			return e.Subject == "response.generation"
		}) {
			t.Errorf("the answer to %s is gone: %v", query, got.Events)
		}
	}
	for _, body := range []string{
		`{"before":"none"}`, `{"to":"` + first + `"}`, `{}`, `{"before":"a","to":"b"}`,
		`{"before":"a.>"}`,
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/sessions/s1/branch",
			strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+s.token)
		r.Header.Set("Content-Type", "application/json")
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %s", body, response.Status)
		}
	}
}
