package main

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"conclave/cmd/conclave/internal/cli"
	"conclave/pkg/logfile"
)

// TestLogsControlNoTerminal prints a record with text of others: neither form has characters that a terminal obeys or
// hides, and the JSON is the same value.
func TestLogsControlNoTerminal(t *testing.T) {
	t.Parallel()
	const hostile = "\u009b2J\u009d0;title\u009c\u202egpj.exe\u200b"
	line, err := json.Marshal(map[string]string{"time": "2026-11-17T10:00:00Z", "level": "WARN", "msg": "failed: " +
		hostile, "error": hostile})
	if err != nil {
		t.Fatal(err)
	}
	for _, asJSON := range []bool{false, true} {
		var out bytes.Buffer
		a := cli.New(nil, &out, io.Discard)
		a.JSON = asJSON
		if err := printRecord(a, logfile.Record{Text: "failed: " + hostile, Line: line}); err != nil {
			t.Fatal(err)
		}
		if strings.ContainsAny(out.String(), "\u009b\u009d\u009c\u202e\u200b\x1b") {
			t.Errorf("json %v: %q", asJSON, out.String())
		}
		var fields map[string]string
		if asJSON && (json.Unmarshal(out.Bytes(), &fields) != nil || fields["error"] != hostile) {
			t.Errorf("another value: %q", out.String())
		}
	}
}
