package setup

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"conclave/pkg/model"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/scriptserver"
)

// TestSuggestFits: the suggested model is the largest that leaves room for its context.
func TestSuggestFits(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		free int64
		want string
	}{
		{0, ""},
		{1 << 30, ""},
		{3 << 30, "qwen2.5:1.5b-instruct"},
		{6 << 30, "gemma3:4b"},
		{7 << 30, "qwen2.5:7b-instruct"},
		{64 << 30, "gemma4:12b"},
	} {
		got := ""
		if c := suggest(tt.free); c != nil {
			got = c.Name
		}
		if got != tt.want {
			t.Errorf("%d bytes: %q, want %q", tt.free, got, tt.want)
		}
	}
}

func TestParseGPU(t *testing.T) {
	t.Parallel()
	if name, free := parseGPU("NVIDIA RTX 4090, 20000\nother, 1\n"); name != "NVIDIA RTX 4090" || free != 20000<<20 {
		t.Errorf("%q, %d", name, free)
	}
	for _, odd := range []string{"", "No devices were found", "x, y"} {
		if name, free := parseGPU(odd); name != "" || free != 0 {
			t.Errorf("%q: %q, %d", odd, name, free)
		}
	}
}

// TestFindAMD reads cards as the driver of AMD shows them, and leaves out what is not one.
func TestFindAMD(t *testing.T) {
	t.Parallel()
	const small, large, foreign, odd = "card0", "card1", "card2", "card3"
	for _, tt := range []struct {
		name  string
		cards map[string]string // vendor, total, used and name of the product
		want  string
		free  int64
	}{
		{"no card", nil, "", 0},
		{"one", map[string]string{small: "0x1002 8000 500 "}, "AMD GPU", 7500},
		{"its name", map[string]string{small: "0x1002 8000 500 W7900"}, "W7900", 7500},
		{"most free", map[string]string{small: "0x1002 8000 500 A", large: "0x1002 16000 9000 B"}, "A", 7500},
		{"another vendor", map[string]string{foreign: "0x8086 8000 500 Arc"}, "", 0},
		{"no memory", map[string]string{odd: "0x1002   "}, "", 0},
		{"no number", map[string]string{odd: "0x1002 much 0 "}, "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			sysfs := t.TempDir()
			for card, text := range tt.cards {
				device := filepath.Join(sysfs, "class/drm", card, "device")
				if err := os.MkdirAll(device, 0o700); err != nil {
					t.Fatal(err)
				}
				attributes := []string{"vendor", "mem_info_vram_total", "mem_info_vram_used", "product_name"}
				for i, value := range strings.Split(text, " ") {
					path := filepath.Join(device, attributes[i])
					if err := os.WriteFile(path, []byte(value+"\n"), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			if name, free := findAMD(sysfs); name != tt.want || free != tt.free {
				t.Errorf("%q, %d, want %q, %d", name, free, tt.want, tt.free)
			}
		})
	}
}

// TestLook finds an Ollama without models, offers one that fits, and prefers a model that is there.
func TestLook(t *testing.T) {
	t.Parallel()
	models := `{"models":[]}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api/tags":
			_, _ = w.Write([]byte(models))
		case "/api/show":
			_, _ = w.Write([]byte(`{"capabilities":["completion"],"details":{},"model_info":{}}`))
		default:
			_, _ = w.Write([]byte(`{"models":[]}`))
		}
	}))
	defer server.Close()
	cfg := Settings{OllamaURL: server.URL, Model: "gemma4:12b", Search: "none"}
	m := Look(t.Context(), cfg)
	if !m.Ollama || !m.Missing() || m.Has("gemma4:12b") || !m.SearchOK {
		t.Errorf("%+v", m)
	}
	m.Suggested = &Candidate{"gemma3:4b", 3 << 30}
	if s := m.Steps("conclave"); !strings.HasPrefix(s[0], "conclave setup --model auto (pulls gemma3:4b, 3 GB)") {
		t.Errorf("steps: %q", s)
	}
	models = `{"models":[{"name":"nomic-embed-text:latest","model":"nomic-embed-text:latest"}]}`
	if m = Look(t.Context(), cfg); !m.Missing() {
		t.Errorf("a model for vectors counts as one that answers: %+v", m)
	}
	models = `{"models":[{"name":"tiny:latest","model":"tiny:latest"}]}`
	m = Look(t.Context(), cfg)
	if m.Missing() || !m.Has("tiny") ||
		!strings.HasPrefix(m.Steps("conclave")[0], "conclave setup --model tiny:latest ") {
		t.Errorf("%+v: %q", m, m.Steps("conclave"))
	}
}

// TestBestInstalledModel: of the models that are there, the largest that can answer and fits is recommended.
func TestBestInstalledModel(t *testing.T) {
	t.Parallel()
	list := []model.Info{
		{Name: "smollm2:135m", Size: 270 << 20},
		{Name: "all-minilm", Size: 4 << 30},
		{Name: "qwen-coder:1.5b", Size: 1 << 30},
		{Name: "vectors", Size: 5 << 30, Embedding: true},
		{Name: "large:70b", Size: 40 << 30},
	}
	for free, want := range map[int64]string{8 << 30: "qwen-coder:1.5b", 0: "large:70b", 1 << 20: ""} {
		if got := chooseBest(list, free); got != want {
			t.Errorf("with %d bytes free: %q, want %q", free, got, want)
		}
	}
}

// TestOllamaElsewhere: where Ollama does not answer at the configured address, the first of the others that answers is
// found, and OLLAMA_HOST is looked at first, with what a server listens on as this machine.
func TestOllamaElsewhere(t *testing.T) {
	server := modeltest.New(t, scriptserver.Script{"small:1b": {}})
	s := Settings{
		OllamaURL: "http://127.0.0.1:1", Model: "gemma4:12b", Search: "none",
		Addresses: []string{"http://127.0.0.1:2", server.URL, "http://127.0.0.1:3"},
	}
	m := Look(t.Context(), s)
	if m.Ollama || m.Elsewhere != server.URL || !m.OnThisMachine() ||
		!strings.HasPrefix(m.Steps("conclave")[0], "conclave setup --ollama-url "+server.URL+" ") {
		t.Errorf("%+v: %q", m, m.Steps("conclave"))
	}
	if m.ListModels(t.Context(), m.Elsewhere); !m.Ollama || !m.Has("small:1b") {
		t.Errorf("%+v", m)
	}
	s.OllamaURL = server.URL
	if m := Look(t.Context(), s); m.Elsewhere != "" || m.OnThisMachine() {
		t.Errorf("it answers, and is looked for: %+v", m)
	}
	for host, want := range map[string]string{
		"": "http://127.0.0.1:11434", "0.0.0.0": "http://127.0.0.1:11434", "127.0.0.1:9": "http://127.0.0.1:9",
		"gpu-box": "http://gpu-box:11434", "https://gpu-box:8": "https://gpu-box:8",
		"::bad::": "http://127.0.0.1:11434",
	} {
		t.Setenv("OLLAMA_HOST", host)
		if got := CommonAddresses()[0]; got != want {
			t.Errorf("OLLAMA_HOST %q: %s, want %s", host, got, want)
		}
	}
	if (Machine{Elsewhere: "http://172.17.0.1:11434"}).OnThisMachine() {
		t.Error("the bridge of Docker counts as this machine")
	}
}

// TestModelTest: a model that answers and calls passes; one that does neither, and one that is not there, are said to.
func TestModelTest(t *testing.T) {
	t.Parallel()
	server := modeltest.New(t, scriptserver.Script{"small:1b": {}})
	good := TestModel(t.Context(), server.URL, "small:1b")
	if !good.Answers || !good.Calls || good.Problem != "" ||
		!strings.Contains(good.String(), "small:1b answers a question, calls a tool") {
		t.Errorf("%+v", good)
	}
	if missing := TestModel(t.Context(), server.URL, "other:1b"); missing.Problem == "" || missing.Answers ||
		!strings.Contains(missing.String(), "other:1b failed: ") {
		t.Errorf("%+v", missing)
	}
	slow := Test{Model: "m", PerSecond: 10}
	if s := slow.String(); s != "m answered a simple question wrongly, makes no right tool call: conclave model test "+
		"says more, writes 10 tokens per second: a usual answer takes about 20s" {
		t.Error(s)
	}
}
