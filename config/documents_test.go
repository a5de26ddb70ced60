package config_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"conclave/subjects"
)

// TestDocumentsNameWhatExists: a test, fuzz target, story or folder that the documentation cites is there.
func TestDocumentsNameWhatExists(t *testing.T) {
	t.Parallel()
	root := ".."
	documents, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(documents) == 0 {
		t.Fatalf("no documents: %v", err)
	}
	for _, name := range []string{"README.md", "SECURITY.md", "CONTRIBUTING.md"} {
		documents = append(documents, filepath.Join(root, name))
	}
	declared := declaredTests(t, root)
	cited := regexp.MustCompile("`([^`\n]+)`")
	checked := 0
	for _, document := range documents {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range cited.FindAllStringSubmatch(string(text), -1) {
			name := m[1]
			switch {
			case testName.MatchString(name):
				checked++
				if !declared[name] {
					t.Errorf("%s cites %s, which does not exist", document, name)
				}
			case folderName.MatchString(name) && !strings.ContainsAny(name, "*<> "):
				checked++
				if !fileExists(filepath.Join(root, name)) {
					t.Errorf("%s cites %s, which does not exist", document, name)
				}
			}
		}
	}
	if checked < 50 {
		t.Errorf("only %d citations found: the search is broken", checked)
	}
}

var (
	testName   = regexp.MustCompile(`^(Test|Fuzz|Benchmark)[A-Z]\w*$`)
	folderName = regexp.MustCompile(`^(actors|pkg|stories|config|acceptance|subjects|docs|cmd|bench)/`)
)

// declaredTests returns the names of all test functions below root.
func declaredTests(t *testing.T, root string) map[string]bool {
	t.Helper()
	declaration := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)`)
	names := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range declaration.FindAllStringSubmatch(string(source), -1) {
			names[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatalf("listing tests: %v", err)
	}
	return names
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TestEveryKeyIsDocumented: the table of keys in SECURITY.md has every account of the bus, and no other.
func TestEveryKeyIsDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "SECURITY.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n### What a key can do\n")
	table, _, _ = strings.Cut(table, "\nInvariants")
	named := map[string]bool{}
	for line := range strings.Lines(table) {
		account, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(account, -1) {
			named[m[1]] = true
		}
	}
	used := map[string]bool{}
	for _, a := range subjects.Table().Accounts {
		name := a.Name
		switch {
		case strings.HasPrefix(name, subjects.ToolRole("")):
			name = subjects.ToolRole("<name>")
		case strings.HasSuffix(name, "_in"):
			name = "<actor>_in"
		}
		used[name] = true
		if !named[name] {
			t.Errorf("%s is not in the table", a.Name)
		}
	}
	for name := range named {
		if !used[name] {
			t.Errorf("%s is in the table and no account", name)
		}
	}
}

// TestDocumentsListEverything requires that the source tree in CONTRIBUTING.md has every actor and package,
// docs/README.md every page of the documentation, and docs/settings.md every settings file.
func TestDocumentsListEverything(t *testing.T) {
	t.Parallel()
	for pattern, document := range map[string]string{
		"actors/*": "CONTRIBUTING.md", "pkg/*": "CONTRIBUTING.md", "docs/*.md": "docs/README.md",
		"config/*.yaml": "docs/settings.md",
	} {
		text, err := os.ReadFile(filepath.Join("..", document))
		if err != nil {
			t.Fatal(err)
		}
		found, err := filepath.Glob(filepath.Join("..", pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		_, tree, _ := strings.Cut(string(text), "## Source tree")
		for _, path := range found {
			name := filepath.Base(path)
			in, want := tree, "  "+name+"/"
			switch filepath.Ext(name) {
			case ".md":
				in, want = string(text), "("+name+")"
			case ".yaml":
				in, want = string(text), "`"+name+"`"
			}
			if !strings.Contains(in, want) && name != filepath.Base(document) {
				t.Errorf("%s does not name %s", document, path)
			}
		}
	}
}

// TestLinksLeadSomewhere: every link between documents names a file that is there, and a heading of it.
func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	var documents []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/decisions/*.md", "bench/*.md"} {
		found, err := filepath.Glob(filepath.Join("..", pattern))
		if err != nil {
			t.Fatal(err)
		}
		documents = append(documents, found...)
	}
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	checked := 0
	for _, document := range documents {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			checked++
			file, anchor, _ := strings.Cut(m[1], "#")
			path := filepath.Join(filepath.Dir(document), file)
			if file == "" {
				path = document
			}
			if !fileExists(path) {
				t.Errorf("%s links %s, which does not exist", document, m[1])
				continue
			}
			if anchor != "" && !hasHeading(t, path, anchor) {
				t.Errorf("%s links %s, which has no such heading", document, m[1])
			}
		}
	}
	if checked < 200 {
		t.Errorf("only %d links found: the search is broken", checked)
	}
}

// hasHeading reports whether a document has a heading with this anchor.
func hasHeading(t *testing.T, document, anchor string) bool {
	t.Helper()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	dropped := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for line := range strings.Lines(string(text)) {
		title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " ")
		if !ok || !strings.HasPrefix(line, "#") {
			continue
		}
		title = dropped.ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), "")
		if strings.ReplaceAll(title, " ", "-") == anchor {
			return true
		}
	}
	return false
}
