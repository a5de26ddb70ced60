package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"conclave/cmd/conclave/internal/cli"
	"conclave/pkg/bus"
)

// TestJunkInAuditLog: an actor writes three bytes that are no record. The records of all writers stay readable, the
// message is shown as bad, doctor and verify name it, and a backup can be restored with it.
func TestJunkInAuditLog(t *testing.T) {
	t.Parallel()
	p := newInstallation(t)
	up := p.begin("conclave", "up")
	p.must(up.stdout, `"pid"`)
	p.run(cli.ExitOK, "conclave", "call", "get_datetime", `{"timezone":"UTC"}`)
	home := bus.Home{Data: p.data}
	running, err := home.ReadRunning()
	if err != nil {
		t.Fatal(err)
	}
	nc, err := home.Connect(running.URL, slog.New(slog.DiscardHandler)).Dial("memory")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := bus.NewAuditLog(nc).Append(t.Context(), "junk", "1", []byte("abc")); err != nil {
		t.Fatal(err)
	}
	p.run(cli.ExitOK, "conclave", "call", "get_datetime", `{"timezone":"UTC"}`)
	folder := t.TempDir()
	archive, restored := filepath.Join(folder, "b.tar"), filepath.Join(folder, "data")
	bad := "memory/1"
	expect := func(code int, stdout bool, want []string, args ...string) {
		t.Helper()
		c := p.begin("conclave", args...)
		got, err := c.wait()
		text := c.stderr.String()
		if stdout {
			text = c.stdout.String()
		}
		if got != code || err != nil {
			t.Errorf("%s: exit code %d, %v\n%s%s", strings.Join(args, " "), got, err, c.stdout, c.stderr)
		}
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%s: no %q in\n%s", strings.Join(args, " "), w, text)
			}
		}
	}
	unread := "the message of 3 bytes cannot be read"
	read := func(flags ...string) {
		t.Helper()
		with := func(args ...string) []string { return append(args, flags...) }
		expect(cli.ExitOK, true, []string{"bad", unread, "get_datetime"}, with("audit", "tail")...)
		expect(cli.ExitOK, true, []string{`"bad":"` + unread}, with("audit", "tail", "--json")...)
		expect(cli.ExitOK, true, []string{"get_datetime"}, with("audit", "tail", "--tool", "get_datetime")...)
		expect(cli.ExitOK, true, []string{unread}, with("audit", "show", bad)...)
		expect(cli.ExitOK, true, []string{"genesis"}, with("audit", "show", "genesis")...)
		expect(cli.ExitAudit, true, []string{"bad message " + bad}, with("audit", "verify")...)
	}
	read()
	expect(cli.ExitOK, true, []string{"warn  records    1 message of the audit log cannot be read"},
		"doctor")
	expect(cli.ExitOK, false, nil, "backup", archive)
	if code, err := up.end(os.Interrupt); code != cli.ExitOK || err != nil {
		t.Fatalf("it ended with %d, %v: %s", code, err, up.stderr)
	}
	expect(cli.ExitOK, false, []string{"The audit log has 1 message that cannot be read", bad}, "restore", archive,
		"--data", restored, "--config", filepath.Join(folder, "config"))
	read("--data", restored)
}
