package loop

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// The loop imports neither the bus nor HTTP, directly or indirectly.
func TestImports(t *testing.T) {
	t.Parallel()
	allowed := []string{
		"conclave/pkg/loop", "conclave/pkg/model", "conclave/pkg/jsonschema", "conclave/pkg/strict",
		"conclave/pkg/text",
	}
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		dep := strings.TrimSpace(line)
		if strings.HasPrefix(dep, "conclave/") && !slices.Contains(allowed, dep) || dep == "net/http" || dep == "net" ||
			strings.Contains(dep, "nats") {
			t.Errorf("the loop imports %s", dep)
		}
	}
}
