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

// TestPullTerminal looks at the line that is drawn over, and at a pull that is broken off.
func TestPullTerminal(t *testing.T) {
	t.Parallel()
	c := newFixture(t)
	if err := c.models(t.Cleanup); err != nil {
		t.Fatal(err)
	}
	p := c.installation(t)
	pull := p.onTerminal("model", "pull", "prometheus:7b")
	if code, err := pull.wait(); code != cli.ExitOK || err != nil {
		t.Fatalf("it ended with %d, %v: %s", code, err, pull.stdout)
	}
	got := pull.stdout.String()
	if !strings.HasPrefix(got, "\r\x1b[Kprometheus:7b: pulling manifest\r\x1b[Kprometheus:7b: pulling   0 %  0 B of "+
		"4 MB  [--------------------]\r\x1b[K") {
		t.Errorf("%q", got)
	}
	if !strings.HasSuffix(got, "\r\x1b[Kprometheus:7b is available\r\n") || strings.Count(got, "\n") != 1 {
		t.Errorf("it leaves something behind: %q", got)
	}

	endless := p.begin("conclave", "model", "pull", "endless")
	p.must(endless.stderr, "^endless: pulling manifest")
	if code, err := endless.end(os.Interrupt); code != cli.ExitFailed || err != nil ||
		!strings.Contains(endless.stderr.String(), "endless was not fetched: stopped: what was fetched is kept; pull "+
			"again to continue") {
		t.Errorf("broken off: %d, %v, %s", code, err, endless.stderr)
	}
}

// TestModelTest tests a model that does all that is asked, then one that knows nothing, on a whole system. Nothing of
// either stays in sessions and memory, and what the user has in memory stays.
func TestModelTest(t *testing.T) {
	t.Parallel()
	call := func(tool, argument, value string) scriptserver.Reply {
		return scriptserver.Reply{Calls: []scriptserver.Call{{
			Name: tool, Arguments: map[string]any{argument: value},
		}}}
	}
	server := modeltest.New(t, scriptserver.Script{
		"tools": {{Reply: scriptserver.Reply{Content: `{"tools":["get_datetime","search_memory"]}`}, Always: true}},
		"assistant": {
			{
				When:  scriptserver.When{LastContains: "capital of France"},
				Reply: scriptserver.Reply{Content: "It is Paris."},
			},
			{
				When:  scriptserver.When{LastContains: "time is it in Tokyo"},
				Reply: call("get_datetime", "timezone", "Asia/Tokyo"),
			},
			{
				When:  scriptserver.When{LastRole: "tool"},
				Reply: scriptserver.Reply{Content: "It is {{tool_result 0 | match [0-9]+:[0-9]+}}."},
			},
			{
				When:  scriptserver.When{LastContains: "mascot"},
				Reply: call("search_memory", "query", "mascot of the model test"),
			},
			{
				When:  scriptserver.When{LastRole: "tool"},
				Reply: scriptserver.Reply{Content: "It is called {{tool_result 0 | match Marabou}}."},
			},
			{Reply: scriptserver.Reply{Content: "I do not know."}, Always: true},
		},
	})
	p := newInstallation(t)
	for name, text := range map[string]string{
		"models.yaml": fmt.Sprintf("demo_model: never\nollama: {url: %q}\nroles: {assistant: assistant, tools: tools, "+
			"embeddings: nomic-embed-text}\nmodels: {assistant: {calls: native}}\n", server.URL),
		"memory.yaml": "model: false\n",
		"critic.yaml": "enabled: false\n",
	} {
		if err := os.WriteFile(filepath.Join(p.dir, "config", "conclave", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.up()
	p.run(cli.ExitOK, "conclave", "memory", "add", "My sister lives in Graz.")
	said := p.run(cli.ExitOK, "conclave", "model", "test")
	for _, want := range []string{
		`(?m)^ok    question   [0-9.]+ s, It is Paris\.$`, `(?m)^ok    tool call  [0-9.]+ s, It is [0-9]`,
		`(?m)^ok    recall     [0-9.]+ s, It is called Marabou\.$`, `(?m)^ok    speed      assistant: .* tokens/s$`,
	} {
		if !regexp.MustCompile(want).MatchString(said) {
			t.Errorf("want %s\n%s", want, said)
		}
	}
	said = p.run(cli.ExitFailed, "conclave", "model", "test", "assistant", "--json")
	for _, want := range []string{
		`"ok":false,"model":"assistant"`, `"level":"fail","text":"[0-9.]+ s, a wrong answer: I do not know\."`,
		`"name":"recall","level":"fail"`,
	} {
		if !regexp.MustCompile(want).MatchString(said) {
			t.Errorf("want %s\n%s", want, said)
		}
	}
	if list := p.run(cli.ExitOK, "conclave", "session", "list", "--json"); strings.TrimSpace(list) != "[]" {
		t.Errorf("sessions stay: %s", list)
	}
	if list := p.run(cli.ExitOK, "conclave", "memory", "list", "--json"); strings.Contains(list, "Marabou") ||
		strings.Contains(list, "France") || !strings.Contains(list, "Graz") {
		t.Errorf("memory has: %s", list)
	}
}
