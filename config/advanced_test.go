package config_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// advancedMark begins the comment that separates, in a shipped file or in a section of one, what users change from the
// rest.
const advancedMark = "# Advanced:"

// findOrdinary returns the settings of a file that come before an advancedMark, a section without one as a whole.
// marked is false when the file itself has none.
func findOrdinary(t *testing.T, data []byte) (found []string, marked bool) {
	t.Helper()
	var root yaml.Node
	if err := yaml.Unmarshal(data, &root); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(data), "\n")
	// firstMark is the line of the mark between two lines, counted from 1, at an indentation; 0 = there is none.
	firstMark := func(from, to, indent int) int {
		prefix := strings.Repeat(" ", indent) + advancedMark
		for i := from; i <= to; i++ {
			if strings.HasPrefix(lines[i-1], prefix) {
				return i
			}
		}
		return 0
	}
	var walk func(n *yaml.Node, path string, end int) bool
	walk = func(n *yaml.Node, path string, end int) (marked bool) {
		if n.Kind != yaml.MappingNode || n.Style&yaml.FlowStyle != 0 || len(n.Content) == 0 {
			return false
		}
		mark := firstMark(1, end, n.Column-1)
		if path != "" {
			mark = firstMark(n.Line, end, n.Column-1)
		}
		for i := 0; i+1 < len(n.Content) && mark > 0; i += 2 {
			key, next := n.Content[i], end
			if i+2 < len(n.Content) {
				next = n.Content[i+2].Line - 1
			}
			if key.Line > mark {
				break
			}
			if name := path + key.Value; !walk(n.Content[i+1], name+".", next) {
				found = append(found, name)
			}
		}
		return mark > 0
	}
	marked = walk(root.Content[0], "", len(lines))
	return found, marked
}

// TestOrdinarySettings: each shipped file begins with what users change, about ten settings in all files and the table
// of types in the manifest, and the rest comes below a comment that says so. docs/settings.md lists the same.
func TestOrdinarySettings(t *testing.T) {
	t.Parallel()
	want := map[string][]string{
		"critic.yaml":       {"enabled"},
		"generator.yaml":    {"respondent_b.enabled", "system_prompt"},
		"manifest.yaml":     {"types"},
		"mcp.yaml":          {"mcpServers"},
		"memory.yaml":       {"enabled"},
		"models.yaml":       {"roles", "allow_remote", "ollama.url"},
		"orchestrator.yaml": nil,
		"personas.yaml":     {"active"},
		"secrets.yaml":      nil,
		"system.yaml":       {"gateway.listen", "backup.folder"},
		"tools.yaml":        {"location"},
		"web_fetch.yaml":    nil,
		"web_search.yaml":   {"provider", "searxng"},
	}
	document, err := os.ReadFile("../docs/settings.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".yaml") {
			continue
		}
		data, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		got, marked := findOrdinary(t, data)
		expected, known := want[f.Name()]
		if !known || !marked || !slices.Equal(got, expected) {
			t.Errorf("%s: above %q are %q, want %q; marked %v", f.Name(), advancedMark, got, expected, marked)
		}
		section := strings.TrimSuffix(f.Name(), ".yaml")
		for _, name := range got {
			if row := "| `" + section + "." + name + "` |"; !strings.Contains(string(document), row) {
				t.Errorf("docs/settings.md has no row %s", row)
			}
		}
	}
}
