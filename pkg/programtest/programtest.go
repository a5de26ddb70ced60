// Package programtest decides what becomes of a test on a machine without an optional program: it is skipped with the
// reason and how to install the program, and fails where CI=true, as CI installs all of them. A rule in config forbids
// other ways to skip such a test.
package programtest

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// InstallNATS installs the command line client of NATS.
const InstallNATS = "go install github.com/nats-io/natscli/nats@latest"

// Require returns the path of the first of names that is installed, in PATH unless the name has a slash. install is the
// command that installs one of them. Without any, see [SkipIf].
func Require(t testing.TB, install string, names ...string) string {
	t.Helper()
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	SkipIf(t, fmt.Errorf("%s is missing: %s", strings.Join(names, ", "), install))
	return ""
}

// SkipIf skips the test when err is not nil, or fails it when CI=true. err says why an optional program cannot be used
// and how to change that.
func SkipIf(t testing.TB, err error) {
	t.Helper()
	switch {
	case err == nil:
	case os.Getenv("CI") == "true":
		t.Fatalf("CI must be able to run this test: %v", err)
	default:
		t.Skipf("%v; then run go test -run '^%s$' again", err, t.Name())
	}
}
