package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"conclave/cmd/conclave/internal/cli"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// TestStoppedReadsChangeNothing flips one byte in a record header of a stopped system. The commands that read the audit
// log find it, read the other records, and change no file.
func TestStoppedReadsChangeNothing(t *testing.T) {
	t.Parallel()
	p := newInstallation(t)
	up := p.begin("conclave", "up")
	p.must(up.stdout, `"pid"`)
	p.run(cli.ExitOK, "conclave", "call", "get_datetime", `{"timezone":"UTC"}`)
	if code, err := up.end(os.Interrupt); code != cli.ExitOK || err != nil {
		t.Fatalf("it ended with %d, %v: %s", code, err, up.stderr)
	}
	read := func(verdict int) {
		t.Helper()
		before := bustest.HashTree(t, p.data)
		for _, c := range []struct {
			code int
			args string
		}{
			{verdict, "audit verify"},
			{verdict, "audit verify --json"},
			{cli.ExitOK, "audit tail"},
			{cli.ExitOK, "audit show broker/1"},
			{cli.ExitOK, "audit export -"},
		} {
			cmd := p.begin("conclave", strings.Fields(c.args)...)
			if code, err := cmd.wait(); code != c.code || err != nil || cmd.stdout.String() == "" ||
				!strings.Contains(cmd.stderr.String(), "without changing them") {
				t.Errorf("%s: exit code %d, %v\n%s%s", c.args, code, err, cmd.stdout, cmd.stderr)
			}
		}
		if _, err := p.begin("conclave", "doctor").wait(); err != nil {
			t.Error(err)
		}
		if bustest.HashTree(t, p.data) != before {
			t.Error("a command changed the data folder")
		}
	}
	read(cli.ExitOK)
	block := filepath.Join(bus.Home{Data: p.data}.AuditStreams(), subjects.Audit, "msgs", "1.blk")
	data, err := os.ReadFile(block)
	if err != nil {
		t.Fatal(err)
	}
	data[bytes.Index(data, []byte("audit.broker."))-22] ^= 0x40 // the length of the broker's first record
	if err := os.WriteFile(block, data, 0o600); err != nil {
		t.Fatal(err)
	}
	read(cli.ExitAudit)
}
