package loop

import (
	"os/exec"
	"strings"
	"testing"
)

// The loop knows no bus and no HTTP, not even through what it imports.
func TestImports(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		dep := strings.TrimSpace(line)
		allowed := !strings.HasPrefix(dep, "conclave/") || dep == "conclave/pkg/loop" || dep == "conclave/pkg/model"
		if !allowed || dep == "net/http" || dep == "net" || strings.Contains(dep, "nats") {
			t.Errorf("the loop imports %s", dep)
		}
	}
}
