//go:build linux && (amd64 || arm64)

package sandbox

import (
	"os"
	"path/filepath"
	"testing"
)

// requireSandbox skips a test on a machine without bubblewrap, and fails it in CI.
func requireSandbox(t testing.TB) {
	t.Helper()
	if err := SelfTest(t.Context()); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
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
