package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"conclave/cmd/conclave/internal/cli"
	"conclave/pkg/bus"
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

// TestSetupOfARunningSystem: a running system starts anew with the settings that setup changed, in the same process,
// and with Ollama its answers are the model's. A system that cannot is said to need a restart.
func TestSetupOfARunningSystem(t *testing.T) {
	t.Parallel()
	server := modeltest.New(t, scriptserver.Script{"gemma4:12b": {
		{Always: true, Reply: scriptserver.Reply{Content: "I am a model."}},
	}})
	p := newInstallation(t)
	models := filepath.Join(p.dir, "config", "conclave", "models.yaml")
	if err := os.WriteFile(models, []byte("ollama: {url: \"http://127.0.0.1:1\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	setup := func() string {
		t.Helper()
		c := p.begin("conclave", "setup", "--ollama-url", server.URL)
		if code, err := c.wait(); err != nil || code != cli.ExitOK {
			t.Fatalf("%d, %v: %s", code, err, c.stderr)
		}
		return c.stderr.String()
	}
	home := bus.Home{Data: p.data}
	if err := os.MkdirAll(p.data, 0o700); err != nil {
		t.Fatal(err)
	}
	unlock, err := home.Lock()
	if err != nil {
		t.Fatal(err)
	}
	if err := home.WriteRunning(bus.Running{URL: "nats://127.0.0.1:1"}); err != nil {
		t.Fatal(err)
	}
	if said := setup(); !strings.Contains(said, "restart it to use these") {
		t.Errorf("a system that cannot start anew: %s", said)
	}
	unlock()
	if err := os.WriteFile(models, []byte("ollama: {url: \"http://127.0.0.1:1\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if said := setup(); strings.Contains(said, "restart") || strings.Contains(said, "anew") {
		t.Errorf("nothing runs: %s", said)
	}
	if err := os.WriteFile(models, []byte("ollama: {url: \"http://127.0.0.1:1\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	up := p.begin("conclave", "up")
	p.must(up.stdout, `"ready_ms"`)
	if said := p.run(cli.ExitOK, "conclave", "ask", "What is the capital of Peru?"); !strings.Contains(said, "Lima") {
		t.Errorf("the demo model says %s", said)
	}
	if said := setup(); !strings.Contains(said, "conclave has started anew with these settings") {
		t.Errorf("a system runs: %s", said)
	}
	if said := setup(); strings.Contains(said, "anew") {
		t.Errorf("no setting changed: %s", said)
	}
	if said := p.run(cli.ExitOK, "conclave", "ask", "What is the capital of Peru?"); !strings.Contains(said,
		"I am a model.") {
		t.Errorf("after setup: %s", said)
	}
	if code, err := up.end(os.Interrupt); code != cli.ExitOK || err != nil {
		t.Errorf("it ended with %d, %v: %s", code, err, up.stderr)
	}
}

// TestSetupAsks: on a terminal setup offers what the machine lacks. After a yes the model that Ollama has is the
// assistant's, was tested with a question and a tool call, and searches go to Wikipedia.
func TestSetupAsks(t *testing.T) {
	t.Parallel()
	server := modeltest.New(t, scriptserver.Script{"small:1b": {}})
	p := newInstallation(t)
	settings := filepath.Join(p.dir, "config", "conclave")
	if err := os.WriteFile(filepath.Join(settings, "models.yaml"), fmt.Appendf(nil, "ollama: {url: %q}\n", server.URL),
		0o600); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(p.dir, "bin") // the services of the developer stay as they are
	if err := os.Mkdir(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "systemctl"), []byte("#!/bin/sh\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	p.env = append(p.env, "PATH="+bin+":"+os.Getenv("PATH"))
	screen := p.shell("conclave setup")
	for _, want := range []string{
		"Use small:1b, which Ollama has? [y/N] y", "Search Wikipedia when a model searches the web?",
		"small:1b answers a question, calls a tool",
	} {
		if !strings.Contains(screen, want) {
			t.Errorf("setup does not say %q:\n%s", want, screen)
		}
	}
	for file, want := range map[string]string{"models.yaml": `assistant: "small:1b"`, "web_search.yaml": "wikipedia"} {
		text, err := os.ReadFile(filepath.Join(settings, file))
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %s, %v", file, text, err)
		}
	}
}
