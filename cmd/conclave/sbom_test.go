package main

import (
	"os"
	"runtime/debug"
	"strings"
	"testing"
)

// TestSBOMListsModules checks that every recorded module is listed once with its checksum, a replaced one by its
// replacement, and that the version of the page's script is the one that its file names.
func TestSBOMListsModules(t *testing.T) {
	t.Parallel()
	doc := newSBOM(build{Version: "v1.2.3", Go: "go1.26.8"}, []*debug.Module{
		{Path: "example.org/a", Version: "v1.0.0", Sum: "h1:a"},
		{Path: "example.org/b", Version: "v1.0.0", Replace: &debug.Module{
			Path: "example.org/c", Version: "v2.0.0",
			Sum: "h1:c",
		}},
	})
	var found []string
	for _, c := range doc.Components {
		line := c.PackageURL
		for _, p := range c.Properties {
			line += " " + p.Value
		}
		found = append(found, line)
	}
	want := "pkg:golang/std@1.26.8, pkg:npm/lit-html@3.3.3, pkg:golang/example.org/a@v1.0.0 h1:a, " +
		"pkg:golang/example.org/c@v2.0.0 h1:c"
	if got := strings.Join(found, ", "); got != want {
		t.Errorf("components %s, want %s", got, want)
	}
	if p := doc.Metadata.Component.PackageURL; p != "pkg:golang/conclave@v1.2.3" {
		t.Errorf("program %s", p)
	}
	script, err := os.ReadFile("../../actors/gateway/page/js/lit-html.js")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(script), `"3.3.3"`) {
		t.Error("lit-html.js is another version than the SBOM says")
	}
}
