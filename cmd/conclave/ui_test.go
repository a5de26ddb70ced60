package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"syscall"
	"testing"

	"conclave/cmd/conclave/internal/cli"
)

func TestRun(t *testing.T) {
	var out, talk bytes.Buffer
	if code := run([]string{"version", "--json"}, nil, &out, &talk); code != cli.ExitOK || !json.Valid(out.Bytes()) ||
		talk.Len() > 0 {
		t.Errorf("%d, %s, %s", code, &out, &talk)
	}
	if code := run([]string{"nothing"}, nil, &out, &talk); code != cli.ExitUsage ||
		strings.Count(talk.String(), "\n") != 1 {
		t.Errorf("%d, %s", code, &talk)
	}
	// A reader that has gone is no failure; a disk that is full is.
	if code := run([]string{"version"}, nil, broken{syscall.EPIPE}, &talk); code != cli.ExitOK {
		t.Errorf("a broken pipe ends with %d", code)
	}
	if code := run([]string{"version"}, nil, broken{syscall.ENOSPC}, &talk); code != cli.ExitFailed {
		t.Errorf("a full disk ends with %d", code)
	}
}

type broken struct{ err error }

func (b broken) Write([]byte) (int, error) { return 0, b.err }
