package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"conclave/cmd/conclave/internal/cli"
	"conclave/pkg/bus"
	"conclave/pkg/programtest"
)

// A question on a full disk is answered within two seconds with the cause and the fix. The disk is a small tmpfs over
// the store, which only the command sees, in a mount namespace of its own.
func TestAskReportsFullDisk(t *testing.T) {
	t.Parallel()
	p := newFixture(t).installation(t)
	store := bus.Home{Data: p.data}.Store()
	if err := os.MkdirAll(store, 0o700); err != nil {
		t.Fatal(err)
	}
	namespace := "-m"
	if os.Geteuid() != 0 {
		namespace = "-rm"
	}
	begin := time.Now()
	c := p.begin("unshare", namespace, "sh", "-c",
		`mount -t tmpfs -o size=1m none "$0" || exit 99; exec conclave ask capital of France?`, store)
	code, err := c.wait()
	if err != nil {
		t.Fatal(err)
	}
	if code == 99 || strings.Contains(c.stderr.String(), "unshare:") {
		programtest.SkipIf(t, fmt.Errorf("needs a mount namespace: allow unprivileged user namespaces, or run as "+
			"root: %s",
			c.stderr))
	}
	if code != cli.ExitFailed || !strings.Contains(c.stderr.String(), "is full (") ||
		!strings.Contains(c.stderr.String(), "free some space, then ask again") {
		t.Errorf("%d: %s", code, c.stderr)
	}
	t.Logf("told after %s", time.Since(begin).Round(time.Millisecond))
}
