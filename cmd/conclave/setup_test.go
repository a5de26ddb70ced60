package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"conclave/cmd/conclave/internal/cli"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/scriptserver"
)

// TestFirstStartPullsModel starts conclave for the first time on a terminal, with an Ollama that has no model that
// answers: it offers one that fits, pulls it after a yes with a progress bar, makes it the assistant's and starts.
func TestFirstStartPullsModel(t *testing.T) {
	t.Parallel()
	server := modeltest.New(t, scriptserver.Script{})
	p := newInstallation(t)
	models := filepath.Join(p.dir, "config", "conclave", "models.yaml")
	if err := os.WriteFile(models, fmt.Appendf(nil, "ollama: {url: %q}\n", server.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	up, keyboard := p.onKeyboard()
	taken := make(chan string, 1)
	go func() {
		l, err := up.stdout.wait("is available")
		if err != nil {
			t.Error(err)
		}
		taken <- l
	}()
	types(t, keyboard, "y", taken)
	p.must(up.stdout, `nats --context conclave micro ls`)
	said := up.stdout.String()
	offer := regexp.MustCompile(`Pull (\S+) \([0-9.]+ GB\) now\? \[y/N\]`).FindStringSubmatch(said)
	if offer == nil || !strings.Contains(said, "This is the first start here.") {
		t.Fatalf("no offer:\n%s", said)
	}
	name := offer[1]
	if !regexp.MustCompile(regexp.QuoteMeta(name) + `: pulling +\d+ %  .* of 4 MB  \[#*-*\]`).MatchString(said) {
		t.Errorf("no progress bar:\n%s", said)
	}
	if _, ok := server.Lookup(name); !ok {
		t.Errorf("%s was not pulled", name)
	}
	if text, err := os.ReadFile(models); err != nil || !strings.Contains(string(text), "assistant: "+name) &&
		name != "gemma4:12b" {
		t.Errorf("models.yaml: %s, %v", text, err)
	}
	if code, err := up.end(os.Interrupt); code != cli.ExitOK || err != nil {
		t.Errorf("it ended with %d, %v: %s", code, err, up.stdout)
	}
}
