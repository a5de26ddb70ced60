package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"conclave/cmd/conclave/internal/cli"
	"conclave/pkg/programtest"
)

// TestNATSCommandLine runs the lines of docs/nats.md with the command line client of NATS: a
// question with and without stream, questions as plain messages, the calls of a question, and what the server shows.
// What the user may not do is refused.
func TestNATSCommandLine(t *testing.T) {
	t.Parallel()
	if os.Getenv("CONCLAVE_CLIENTS") == "" {
		t.Skip("the client of NATS is tested with .ci/run clients, where it is installed")
	}
	programtest.Require(t, programtest.InstallNATS, "nats")
	p := newInstallation(t)
	up := p.begin("conclave", "up", "--listen", "127.0.0.1:0", "--api-port", "0")
	p.must(up.stdout, `"ready_ms"`)
	calls := p.begin("nats", "--context", "conclave", "sub", "tool.>", "--count", "2")
	p.must(calls.stderr, "Subscribing on")

	want := map[string]string{
		"req query.ask": "get_datetime says", "micro ls": "broker", "stream ls": "QUERIES",
		"stream info": "Allows Msg Delete: false",
	}
	lines := regexp.MustCompile(`(?m)^nats --context [^#\n]+`).FindAllString(readDocument(t, "docs/nats.md"), -1)
	if len(lines) < 10 {
		t.Fatalf("docs/nats.md has only the lines %q", lines)
	}
	for _, line := range lines {
		if strings.Contains(line, " sub ") {
			continue
		}
		out := p.run(cli.ExitOK, "bash", "-c", line)
		for command, text := range want {
			if strings.Contains(line, command) && !strings.Contains(out, text) {
				t.Errorf("%s does not print %q:\n%s", line, text, out)
			}
		}
	}
	if code, err := calls.wait(); err != nil || code != cli.ExitOK ||
		!strings.Contains(calls.stdout.String(), "tool.request.get_datetime") {
		t.Errorf("the calls: exit code %d, %v\n%s", code, err, calls.stdout)
	}
	for _, line := range []string{
		"nats --context conclave pub --jetstream audit.broker.x '{}'",
		"nats --context conclave-audit stream purge AUDIT --force",
		"nats --context conclave-audit stream rm AUDIT --force",
		"nats --context conclave stream rm QUERIES --force",
		"nats --context conclave kv put approvals x y",
	} {
		p.run(cli.ExitFailed, "bash", "-c", line+" --timeout 1s")
	}
	for _, line := range []string{"nats --context conclave stream info QUERIES", "nats --context conclave-audit " +
		"stream info AUDIT"} {
		if out := p.run(cli.ExitOK, "bash", "-c", line); !regexp.MustCompile(`Messages: [1-9]`).MatchString(out) {
			t.Errorf("%s has no messages left:\n%s", line, out)
		}
	}
	p.run(cli.ExitOK, "conclave", "audit", "verify")
}
