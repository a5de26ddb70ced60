package main

import (
	"bytes"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"conclave/cmd/conclave/internal/cli"
	"conclave/pkg/audit"
	"conclave/pkg/bus"
	"conclave/subjects"
)

// TestBrokenConnectionIsNoSuccess runs commands against a server that hangs up after its greeting. The client's write
// then fails with EPIPE, which must not be taken for a reader of stdout that has gone.
func TestBrokenConnectionIsNoSuccess(t *testing.T) {
	t.Parallel()
	home := bus.Home{Data: t.TempDir(), Config: t.TempDir()}
	lasting, _ := subjects.Table().Roles()
	if _, err := home.Keys().Ensure(lasting); err != nil {
		t.Fatal(err)
	}
	url := hangUpServer(t)
	for _, command := range []string{
		"audit verify", "audit tail", "audit show broker/1", "audit export " + filepath.Join(t.TempDir(), "out"),
		"call get_datetime", "approve", "approve abcdefgh --yes",
		"session list", "memory list", "policy explain get_datetime", "tap", "rate up",
	} {
		var out, talk bytes.Buffer
		args := append(strings.Fields(command), "--data", home.Data, "--config", home.Config, "--server", url)
		if code := run(args, strings.NewReader(""), &out, &talk); code == cli.ExitOK || talk.Len() == 0 {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q", command, code, &out, &talk)
		}
	}
}

// hangUpServer greets each client like a NATS server and closes the connection. A write of the client after that is
// answered with a reset, and in this state of the connection the kernel reports it as EPIPE.
func hangUpServer(t *testing.T) (url string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_,
				_ = c.Write(
				[]byte(`INFO {"server_id":"x","version":"2.15.2","headers":true,"max_payload":1048576,"nonce":"abc"}` +
					"\r\n"))
			c.Close()
		}
	}()
	return "nats://" + l.Addr().String()
}

// TestVerifyWithoutVerdictFails: audit verify must not succeed when its verdict reached nobody.
func TestVerifyWithoutVerdictFails(t *testing.T) {
	t.Parallel()
	for _, asJSON := range []bool{false, true} {
		var out, talk bytes.Buffer
		a := cli.New(nil, &out, &talk)
		a.JSON = asJSON
		if code := a.Finish(printAuditReport(a, audit.Report{OK: true}, "the audit log", nil,
			nil)); code != cli.ExitOK || out.Len() == 0 {
			t.Errorf("json %t: exit code %d, %s%s", asJSON, code, &out, &talk)
		}
		a = cli.New(nil, broken{syscall.EPIPE}, &talk)
		a.JSON = asJSON
		if code := a.Finish(printAuditReport(a, audit.Report{OK: true}, "the audit log", nil,
			nil)); code != cli.ExitFailed || !strings.Contains(talk.String(), "printing the verdict") {
			t.Errorf("json %t, without a reader of stdout: exit code %d, stderr %q", asJSON, code, &talk)
		}
	}
}

// TestDenialOutranksGoneReader: a command that was denied does not succeed because nobody reads its output.
func TestDenialOutranksGoneReader(t *testing.T) {
	t.Parallel()
	var talk bytes.Buffer
	a := cli.New(nil, broken{syscall.EPIPE}, &talk)
	a.JSON = true
	denied := subjects.ToolResult{Tool: "run_shell", Error: subjects.Faultf(subjects.CodeDenied, "not allowed")}
	if code := a.Finish(printResult(a, denied)); code != cli.ExitDenied {
		t.Errorf("exit code %d, stderr %q", code, &talk)
	}
}
