//go:build searxng

// A real metasearch engine instead of a server that speaks like one. Run it with
//
//	apt-get install --no-install-recommends searx
//	go test -tags searxng -run TestRealSearXNG -v ./actors/tools
//
// The test starts Debian's searx (the elder sister of SearXNG, with the same API) on a free port, with one engine: its
// json_engine, pointed at a small server of the test, so nothing leaves the machine. Against a SearXNG that runs
// elsewhere, with engines of its own and search.formats: [html, json] in its settings.yml:
//
//	CONCLAVE_SEARXNG_URL=http://localhost:8888 go test -tags searxng -run TestRealSearXNG -v ./actors/tools
package tools_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"conclave/actors/tools"
	"conclave/subjects"
)

// settings are the least that searx starts with when it has no defaults of its own.
const settings = `general: {debug: false, instance_name: test, contact_url: false, enable_stats: false}
brand: {git_url: "", git_branch: "", issue_url: "", docs_url: "", public_instances: "", wiki_url: "", twitter_url: ""}
search: {safe_search: 0, autocomplete: "", default_lang: "", ban_time_on_fail: 5, max_ban_time_on_fail: 120,
    prefer_configured_language: false, formats: [html, json]}
server: {port: %d, bind_address: 127.0.0.1, secret_key: only-for-this-test, base_url: false,
    image_proxy: false, http_protocol_version: "1.0", method: GET, default_http_headers: {}}
ui: {autofocus: true, archive_today: false, static_path: /usr/share/python3-searx/static,
    templates_path: /usr/share/python3-searx/templates, default_theme: oscar, default_locale: "",
    theme_args: {oscar_style: logicodev}}
outgoing: {request_timeout: 3.0, useragent_suffix: "", pool_connections: 10, pool_maxsize: 10}
checker: {off_when_debug: true}
locales: {en: English}
doi_resolvers: {doi.org: "https://doi.org/"}
default_doi_resolver: doi.org
engines:
  - {name: notes, engine: json_engine, search_url: "%s/find?q={query}", results_query: hits,
      url_query: address, title_query: name, content_query: words, shortcut: nt, categories: general,
      timeout: 3.0, enable_http: true}
`

// searx starts the engine and returns its address.
func searx(t *testing.T, index string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	file := filepath.Join(t.TempDir(), "settings.yml")
	if err := os.WriteFile(file, fmt.Appendf(nil, settings, port, index), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "searx-run")
	cmd.Dir = filepath.Dir(file)
	cmd.Env = append(os.Environ(), "SEARX_SETTINGS_PATH="+file, "PYTHONUNBUFFERED=1")
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = nil
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v; see the top of this file", err)
	}
	up := make(chan bool, 1)
	done := make(chan struct{})
	var lines []string
	go func() {
		defer close(done)
		for s := bufio.NewScanner(said); s.Scan(); {
			lines = append(lines, s.Text())
			if strings.Contains(s.Text(), "Running on") {
				up <- true
			}
		}
		up <- false
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(strings.Join(lines, "\n"))
		}
	})
	select {
	case ok := <-up:
		if !ok {
			t.Fatal("searx ended before it listened")
		}
	case <-time.After(time.Minute):
		t.Fatal("searx does not start")
	}
	return fmt.Sprintf("http://127.0.0.1:%d", port)
}

func TestRealSearXNG(t *testing.T) {
	at := os.Getenv("CONCLAVE_SEARXNG_URL")
	if at != "" {
		got := providerSearch(t, tools.WebSearch{Provider: "searxng", Results: 5, SearXNG: tools.SearXNG{URL: at}}, "",
			"nats messaging", "")
		if got.Error != nil || len(got.Links) == 0 || !strings.Contains(got.Result, got.Links[0]) {
			t.Fatalf("got %+v", got)
		}
		t.Logf("%s\n%v", got.Result, got.Links)
		return
	}
	asked := make(chan string, 10)
	index := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.FormValue("q")
		asked <- q
		type hit struct {
			Address string `json:"address"`
			Name    string `json:"name"`
			Words   string `json:"words"`
		}
		hits := []hit{}
		if strings.Contains(q, "harbour") {
			hits = []hit{
				{"https://example.org/harbour", "The harbour", "Boats & wind, <b>all</b> week."},
				{"https://example.org/boats?x=1", "Boats", "What floats."},
			}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"hits": hits})
	}))
	t.Cleanup(index.Close)
	cfg := tools.WebSearch{
		Provider: "searxng", Results: 5, Language: "en",
		SearXNG: tools.SearXNG{URL: searx(t, index.URL)},
	}

	got := providerSearch(t, cfg, "", "harbour !wp :de ä&format=html", "")
	if got.Error != nil || len(got.Links) != 2 || !strings.Contains(got.Result, "The harbour\n") ||
		!strings.Contains(got.Result, "https://example.org/boats?x=1") {
		t.Fatalf("got %+v, %v", got, got.Error)
	}
	if q := <-asked; q != "harbour wp de ä&format=html" {
		t.Errorf("the engine was asked for %q", q)
	}
	t.Logf("\n%s", got.Result)

	if none := providerSearch(t, cfg, "", "nothing of that kind", ""); none.Error == nil ||
		none.Error.Code != subjects.CodeTool || none.Error.Text != "no results" {
		t.Errorf("nothing found: %+v", none)
	}
	index.Close()
	if down := providerSearch(t, cfg, "", "harbour", ""); down.Error == nil ||
		!strings.Contains(down.Error.Text, "no engine of SearXNG answered") {
		t.Errorf("its engine is down: %+v %v", down, down.Error)
	}
}
