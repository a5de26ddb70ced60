package tool

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"conclave/pkg/programtest"
)

// TestShellExampleNamesMissingCommands: without nats or jq the example in Bash ends at once and says once for each what
// to install.
func TestShellExampleNamesMissingCommands(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ present, missing []string }{
		"neither": {nil, []string{"nats", "jq"}},
		"no nats": {[]string{"jq"}, []string{"nats"}},
		"no jq":   {[]string{"nats"}, []string{"jq"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, bin := filepath.Join(t.TempDir(), "dice"), t.TempDir()
			if err := WriteExample(dir, "shell", "dice", Settings{
				Server: "nats://127.0.0.1:1", Key: "/nowhere",
				Principal: "dice",
			}); err != nil {
				t.Fatal(err)
			}
			bash := linkCommand(t, bin, "bash")
			linkCommand(t, bin, "dirname")
			linkCommand(t, bin, "cat")
			for _, c := range tt.present { // never run: the check comes first
				if err := os.WriteFile(filepath.Join(bin, c), []byte("#!/bin/sh\necho ran >&2\n"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.Command(bash, filepath.Join(dir, "tool.sh"))
			cmd.Env = []string{"PATH=" + bin}
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Errorf("%v, want exit code 1", err)
			}
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			if len(lines) != len(tt.missing) {
				t.Fatalf("%q, want a line for each of %q", out, tt.missing)
			}
			for i, c := range tt.missing {
				if !strings.HasPrefix(lines[i], "tool.sh: the command "+c+" is missing; install ") {
					t.Errorf("%s: %q", c, lines[i])
				}
			}
		})
	}
}

// linkCommand links a command of this machine into a folder and returns the path of the link.
func linkCommand(t *testing.T, bin, name string) string {
	t.Helper()
	path := programtest.Require(t, "apt-get install bash coreutils", name)
	link := filepath.Join(bin, name)
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	return link
}
