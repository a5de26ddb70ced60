package main

import (
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/term/termtest"
	"conclave/pkg/programtest"
)

// readDocument returns a file of the documentation by its path from the root of the repository.
func readDocument(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// blocks returns the code blocks of a document in this language, without their fences.
func blocks(document, language string) (all []string) {
	for _, m := range regexp.MustCompile("(?sm)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(document, -1) {
		all = append(all, m[1])
	}
	return all
}

// TestCommandsAreDocumented requires that the table of docs/commands.md names every command.
func TestCommandsAreDocumented(t *testing.T) {
	t.Parallel()
	_, table, _ := strings.Cut(readDocument(t, "docs/commands.md"), "| command | purpose |")
	table, _, _ = strings.Cut(table, "\n\n")
	for _, c := range rootCommand(cli.New(strings.NewReader(""), io.Discard, io.Discard)).Commands() {
		if !c.Hidden && c.Name() != "help" && !strings.Contains(table, "`"+c.Name()+"`") {
			t.Errorf("docs/commands.md does not name conclave %s", c.Name())
		}
	}
}

// TestReadmeIsShort: at most 150 lines and 100 columns.
func TestReadmeIsShort(t *testing.T) {
	t.Parallel()
	lines := strings.Split(strings.TrimSuffix(readDocument(t, "README.md"), "\n"), "\n")
	if len(lines) > 150 {
		t.Errorf("README.md has %d lines", len(lines))
	}
	for i, line := range lines {
		if n := utf8.RuneCountInString(line); n > 100 {
			t.Errorf("README.md:%d has %d columns", i+1, n)
		}
	}
}

// readmeCommands are the commands of the README outside of its session, and what runs each as written.
var readmeCommands = map[string]string{
	"go run ./cmd/conclave": ".ci/bare",
	"go test ./...":         ".ci/run test",
	"go build -o ~/.local/bin/conclave ./cmd/conclave": ".ci/bare",
	"conclave setup":                      "TestReadmeSession",
	"conclave tool add hello --lang none": "TestReadmeTool",
	"cd hello && python3 -m venv .venv && .venv/bin/pip install nats-py nkeys && .venv/bin/python tool.py": "" +
		"TestReadmeTool",
	`conclave ask 'hello {"name":"Ada"}'`: "TestReadmeTool",
}

// TestReadmeCommandsAreRun: every command of the README is one that a check runs as written.
func TestReadmeCommandsAreRun(t *testing.T) {
	t.Parallel()
	left := maps.Clone(readmeCommands)
	for _, block := range blocks(readDocument(t, "README.md"), "sh") {
		for line := range strings.Lines(block) {
			command := withoutComment(line)
			if readmeCommands[command] == "" {
				t.Errorf("nothing runs %q", command)
			}
			delete(left, command)
		}
	}
	for command := range left {
		t.Errorf("README.md does not have %q", command)
	}
}

// withoutComment returns the command of a line, and [commentOf] what stands behind it.
func withoutComment(line string) string {
	command, _, _ := strings.Cut(line, "  #")
	return strings.TrimSpace(command)
}

func commentOf(line string) string {
	_, comment, _ := strings.Cut(line, "  # ")
	return strings.TrimSpace(comment)
}

// TestReadmeSession runs the two minutes of the README as written, on a terminal, with the demo model: every line that
// it shows comes in this order, but for ids, times, paths and counts.
func TestReadmeSession(t *testing.T) {
	t.Parallel()
	sessions := blocks(readDocument(t, "README.md"), "console")
	if len(sessions) != 1 {
		t.Fatalf("the README has %d sessions", len(sessions))
	}
	p := newInstallation(t)
	p.must(p.begin("conclave", "up").stdout, `"ready_ms"`)
	p.shell("conclave setup")
	approvals := 0
	for _, part := range strings.Split("\n"+sessions[0], "\n$ ")[1:] {
		command, want, _ := strings.Cut(part, "\n")
		screen := normalizeOutput(toolLine.ReplaceAllString(p.shell(command), ""))
		approvals += strings.Count(want, " to allow")
		at := 0
		for line := range strings.Lines(want) {
			line = normalizeOutput(line)
			i := strings.Index(screen[at:], line)
			if i < 0 {
				t.Fatalf("%s does not print %q:\n%s", command, line, screen)
			}
			at += i + len(line)
		}
	}
	if approvals == 0 {
		t.Error("the README shows no approval")
	}
}

// toolLine is a line about a tool or the model, which the README leaves out. It comes when the broker or the model
// actor reports, maybe between two words of the answer.
var toolLine = regexp.MustCompile(`(?m)^(tool \S+( \{.*|: done in .*)|note: .*)$`)

// normalizeOutput returns a text without what differs between two runs, and with single blanks.
func normalizeOutput(s string) string {
	for _, r := range []struct{ pattern, with string }{
		{`\d{4}-\d{2}-\d{2}T[\d:]+\S* \(\w+, week \d+`, "TIME ("},
		{`\b[0-9a-f]{4}\b|\b[0-9a-f]{24,}\b`, "ID"},
		{`\d+ (records|messages|chains|record|message|chain)`, "N"},
		{`broker/\d+`, "broker/N"},
		{`(/[\w.-]+)+/notes/`, "~/notes/"},
	} {
		s = regexp.MustCompile(r.pattern).ReplaceAllString(s, r.with)
	}
	return strings.Join(strings.Fields(s), " ")
}

// promptToAllow is what a terminal shows when a call waits for the user, or a question for a yes.
var promptToAllow = regexp.MustCompile(`type ([0-9a-f]{4}) to allow[^:]*:$|\[(y)/N\]$`)

// anyPrompt finds all of them.
var anyPrompt = regexp.MustCompile(` to allow|\[y/N\]`)

// shell runs a line with bash on a terminal of 200 columns, approves each call that waits, says yes to each question,
// and returns what the terminal shows at its end. The exit code must be 0.
func (p *installation) shell(line string) string {
	p.t.Helper()
	c := p.beginShell(line)
	select {
	case <-c.ended:
	case <-time.After(longTimeout):
		p.t.Fatalf("%s does not end:\n%s", line, c.screen)
	}
	if c.err != nil {
		p.t.Fatalf("%s: %v\n%s", line, c.err, c.screen)
	}
	return c.screen.String()
}

// longTimeout is how long a line may run that installs packages.
const longTimeout = 3 * time.Minute

// shellProcess is a line that runs on a terminal.
type shellProcess struct {
	screen *termtest.Screen
	ended  chan struct{} // closed when it has
	err    error
}

// beginShell starts a line with bash on a terminal, in the folder of the installation. It is killed with the test.
func (p *installation) beginShell(line string) *shellProcess {
	p.t.Helper()
	master, slave := termtest.OpenSize(p.t, 200, 30)
	cmd := exec.Command("bash", "-c", line)
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = p.dir, p.env, slave, slave, slave
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	slave.Close()
	c := &shellProcess{screen: termtest.NewScreen(200, 30), ended: make(chan struct{})}
	go func() {
		defer close(c.ended)
		buffer := make([]byte, 4096)
		answered := 0 // prompts
		for {
			n, err := master.Read(buffer)
			_, _ = c.screen.Write(buffer[:n])
			shown := strings.TrimRight(c.screen.String(), "▌\n ")
			if m := promptToAllow.FindStringSubmatch(shown); m != nil &&
				len(anyPrompt.FindAllString(shown, -1)) > answered {
				answered++ // as fast as a user can read: what is typed before is not an answer
				time.AfterFunc(2*term.TooFast, func() { _, _ = io.WriteString(master, m[1]+m[2]+"\r") })
			}
			if err != nil { // the terminal has no other end any more
				c.err = cmd.Wait()
				return
			}
		}
	}()
	p.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-c.ended
	})
	return c
}

// awaitScreen waits until a running line shows a text.
func (p *installation) awaitScreen(c *shellProcess, text string) {
	p.t.Helper()
	late := time.After(longTimeout)
	for {
		changed := c.screen.Changed()
		if strings.Contains(c.screen.String(), text) {
			return
		}
		select {
		case <-changed:
		case <-c.ended:
			p.t.Fatalf("it ended without %q: %v\n%s", text, c.err, c.screen)
		case <-late:
			p.t.Fatalf("it does not show %q:\n%s", text, c.screen)
		}
	}
}

// newClientInstallation is an installation that runs, for lines that install packages of Python and JavaScript. It
// skips the test where .ci/run clients does not run it.
func newClientInstallation(t *testing.T) *installation {
	t.Helper()
	if os.Getenv("CONCLAVE_CLIENTS") == "" {
		t.Skip("lines that install packages are tested with .ci/run clients")
	}
	programtest.Require(t, "apt-get install python3-venv", "python3")
	programtest.Require(t, "apt-get install npm", "npm")
	p := newInstallation(t)
	for _, v := range os.Environ() {
		if strings.HasPrefix(v, "PIP_") || strings.HasPrefix(strings.ToLower(v), "npm_") {
			p.env = append(p.env, v)
		}
	}
	if home, err := os.UserHomeDir(); err == nil {
		p.env = append(p.env, "NPM_CONFIG_USERCONFIG="+filepath.Join(home, ".npmrc"))
	}
	p.must(p.begin("conclave", "up").stdout, `"ready_ms"`)
	return p
}

// writeFile writes a file into the folder of the installation.
func (p *installation) writeFile(name, text string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// TestReadmeTool runs the tool of the README with its commands as written: the call of the assistant asks the user.
func TestReadmeTool(t *testing.T) {
	t.Parallel()
	p := newClientInstallation(t)
	readme := readDocument(t, "README.md")
	all := blocks(readme, "sh")
	lines := strings.Split(all[len(all)-1], "\n")
	p.shell(lines[0])
	p.writeFile("hello/tool.py", blocks(readme, "python")[0])
	p.beginShell(lines[1])
	p.shell(`until conclave tool show hello 2>/dev/null | grep -q 'Greets'; do sleep 0.2; done`)
	if screen := p.shell(lines[2]); !strings.Contains(screen, "allow hello?") ||
		!strings.Contains(screen, "hello says: Hello, Ada") {
		t.Error(screen)
	}
}

// TestToolsPageCommands runs the commands of docs/tools.md as written, but those with the command nats.
func TestToolsPageCommands(t *testing.T) {
	t.Parallel()
	p := newClientInstallation(t)
	document := readDocument(t, "docs/tools.md")
	all := blocks(document, "")
	if len(all) != 4 {
		t.Fatalf("docs/tools.md has %d blocks of commands", len(all))
	}
	c := p.beginShell("set -e\n" + all[0])
	p.awaitScreen(c, "serving word_count at nats://")
	p.shell(`until conclave tool list | grep -q '^word_count *ready '; do sleep 0.2; done`)
	asked := ""
	for line := range strings.Lines(all[1]) {
		screen := p.shell(line)
		if strings.HasPrefix(line, "conclave ask") {
			asked = screen
		} else if want := normalizeOutput(commentOf(line)); !strings.Contains(normalizeOutput(screen), want) {
			t.Errorf("%s does not print %q:\n%s", line, want, screen)
		}
	}
	if !strings.Contains(asked, "allow word_count?") || !strings.Contains(asked, "6 words, 18 characters") {
		t.Errorf("asked: %s", asked)
	}
	for line := range strings.Lines(all[2]) {
		p.shell(line)
	}
	for _, line := range []string{
		"conclave tool show word_count", "conclave tool set word_count --agents none",
		`conclave policy explain word_count '{"text":"x"}' --as operator`, "conclave tool remove send_mail",
	} {
		p.shell(line)
	}
	line, _, _ := strings.Cut(all[3], "\n")
	p.shell(line)
	p.writeFile("hello/tool.mjs", blocks(document, "js")[0])
	p.shell("cd hello && npm install @nats-io/transport-node")
	p.beginShell("cd hello && node tool.mjs")
	p.shell(`until conclave tool list | grep -q '^hello *ready '; do sleep 0.2; done`)
	if screen := p.shell(`conclave tool test hello '{"name":"Ada"}'`); !strings.Contains(screen, "Hello, Ada") {
		t.Error(screen)
	}
}

// TestToolsPageNATSCommands runs the tool of docs/tools.md that needs the command nats alone, as written.
func TestToolsPageNATSCommands(t *testing.T) {
	t.Parallel()
	p := newClientInstallation(t)
	programtest.Require(t, programtest.InstallNATS, "nats")
	programtest.Require(t, "apt-get install jq", "jq")
	all := blocks(readDocument(t, "docs/tools.md"), "")
	p.beginShell(all[len(all)-1] + "wait")
	p.shell(`until conclave tool test hello '{}' | grep -q '^hello'; do sleep 0.2; done`)
}
