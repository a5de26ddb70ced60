package acceptance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"conclave/config"
)

// TestOpenWebUI runs Open WebUI, unchanged, with the token of a client against the whole system with the demo model:
// over its HTTP API and in its page. CONCLAVE_OPENWEBUI is a Python environment that has it, see the step openwebui of
// .ci/run.
func TestOpenWebUI(t *testing.T) {
	folder := os.Getenv("CONCLAVE_OPENWEBUI")
	if folder == "" {
		t.Skip("Open WebUI is tested with .ci/run openwebui, which installs it")
	}
	browser := findBrowser(t)
	address := make(chan string, 1)
	c := settings(t, "system.gateway.listen", "127.0.0.1:0").WithWiring(config.Wiring{OnListen: func(addr string) {
		address <- addr
	}})
	c.Models.Ollama.URL = "http://127.0.0.1:1" // nothing answers there, so the demo model does
	home := newHome(t)
	r := up(t, c, home, config.Actors...)
	user := dialClient(t, r.Bus, "user")
	w := startOpenWebUI(t, folder, "http://"+<-address, addClient(t, home, user, "openwebui"))

	t.Run("api", func(t *testing.T) {
		var models struct{ Data []struct{ ID string } }
		w.call(t, "/api/models", nil, &models)
		names := ""
		for _, m := range models.Data {
			names += m.ID + " "
		}
		if names != "assistant committee orchestrator " {
			t.Errorf("models %s", names)
		}
		// not the first words of the page: chats that begin alike are not continued
		messages := []map[string]string{{"role": "user", "content": "What time is it in Lisbon?"}}
		stream := w.call(t, "/api/chat/completions", map[string]any{
			"model": "assistant", "stream": true,
			"messages": messages,
		}, nil)
		if !strings.Contains(stream, "Europe/Lisbon") || !strings.Contains(stream, "[DONE]") {
			t.Errorf("streamed answer %s", stream)
		}
		for _, task := range []string{"title", "tags", "follow_up"} {
			if got := w.call(t, "/api/v1/tasks/"+task+"/completions",
				map[string]any{"model": "committee", "messages": messages}, nil); !strings.Contains(got, `"content"`) {
				t.Errorf("%s: %s", task, got)
			}
		}
	})

	p := newTab(t, launchBrowser(t, browser), w.url)
	p.do(chromedp.Navigate(w.url), chromedp.WaitVisible(chromedp.CSS("#chat-input")))
	p.waitFor(`document.querySelector("[role=dialog]")`) // the release notes, once for a new user
	p.do(chromedp.KeyEvent("\u001b"))
	p.waitFor(`!document.querySelector("[role=dialog]")`)
	for _, zone := range []string{"Asia/Tokyo", "Europe/Lisbon"} {
		p.do(chromedp.SendKeys(chromedp.CSS("#chat-input"), "What time is it in "+filepath.Base(zone)+"?\r"))
		p.waitFor(`document.body.innerText.includes(` + quoteJS(zone) +
			`) && !document.querySelector("#message-input-container button[aria-label=Stop]")`)
	}
	picture := filepath.Join(folder, "chat.webp")
	p.takePicture(picture)
	t.Log("picture of the page:", picture)

	// The chat of the page is one session with both questions; titles, tags and follow-up questions began none.
	sessions, _, err := user.Sessions(t.Context(), math.MaxInt, nil)
	if err != nil {
		t.Fatal(err)
	}
	both := 0
	for _, s := range sessions {
		if !strings.HasPrefix(s.ID, "client_openwebui_") || !strings.HasPrefix(s.Question, "What time is it") {
			t.Errorf("session %+v", s)
		}
		if s.Turns == 2 {
			both++
		}
	}
	if len(sessions) != 2 || both != 1 {
		t.Errorf("sessions %+v, want that of the API and that of the page", sessions)
	}
}

// openWebUI is a running Open WebUI.
type openWebUI struct{ url, token string }

// startOpenWebUI starts the Open WebUI of folder with the gateway at base as its only model server.
func startOpenWebUI(t *testing.T, folder, base, key string) *openWebUI {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	ln.Close() // the program cannot choose a free one itself
	dir := t.TempDir()
	command := exec.CommandContext(t.Context(), filepath.Join(folder, "bin", "open-webui"), "serve", "--host",
		"127.0.0.1", "--port", port)
	command.Dir = dir
	command.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "DATA_DIR=" + dir, "WEBUI_SECRET_KEY=" + strings.Repeat("k", 40),
		"WEBUI_AUTH=False",
		"OPENAI_API_BASE_URL=" + base + "/v1", "OPENAI_API_KEY=" + key, "ENABLE_OLLAMA_API=False",
		"RAG_EMBEDDING_ENGINE=openai",
		`DEFAULT_MODEL_METADATA={"capabilities":{"builtin_tools":false}}`,
		"OFFLINE_MODE=True", "HF_HUB_OFFLINE=1", "ANONYMIZED_TELEMETRY=False", "DO_NOT_TRACK=true",
		"SCARF_NO_ANALYTICS=true",
	}
	var log bytes.Buffer
	command.Stdout, command.Stderr = &log, &log
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	command.WaitDelay = 20 * time.Second
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	t.Cleanup(func() {
		_ = command.Cancel()
		<-ended
		if t.Failed() {
			t.Logf("%s", log.Bytes())
		}
	})
	w := &openWebUI{url: "http://127.0.0.1:" + port}
	for end := time.Now().Add(3 * testTimeout); ; <-time.After(200 * time.Millisecond) {
		res, err := http.Get(w.url + "/health")
		if err == nil {
			res.Body.Close()
			break
		}
		if len(ended) > 0 || time.Now().After(end) {
			t.Fatalf("Open WebUI does not answer: %v", err)
		}
	}
	var login struct{ Token string }
	w.call(t, "/api/v1/auths/signin", map[string]string{"email": "", "password": ""}, &login)
	w.token = login.Token
	return w
}

// call sends a request, a POST when it has a body, decodes the reply into out unless it is nil, and returns it as text.
func (w *openWebUI) call(t *testing.T, path string, body, out any) string {
	t.Helper()
	method, sent := http.MethodGet, io.Reader(nil)
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		method, sent = http.MethodPost, bytes.NewReader(data)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, w.url+path, sent)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+w.token)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", res.Status, text)
	}
	if err == nil && out != nil {
		err = json.Unmarshal(text, out)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return string(text)
}
