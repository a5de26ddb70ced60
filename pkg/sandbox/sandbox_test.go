//go:build linux && (amd64 || arm64)

package sandbox

import (
	"os"
	"path/filepath"
	"testing"

	"conclave/pkg/programtest"
)

// requireSandbox skips a test on a machine without bubblewrap, and fails it in CI.
func requireSandbox(t testing.TB) {
	t.Helper()
	programtest.SkipIf(t, SelfTest(t.Context()))
}

// newWorkFolder returns a working folder that the sandbox's user can reach when the test runs as root.
func newWorkFolder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sb") // a short path: the addresses of Unix sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
