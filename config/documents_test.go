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

// TestReadmeListsEverything requires that the README names every actor, every package, every settings file and every
// page of the documentation.
func TestReadmeListsEverything(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile(filepath.Join("..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, tree, ok := strings.Cut(string(readme), "## Source tree")
	if !ok {
		t.Fatal("no source tree")
	}
	for pattern, in := range map[string]string{
		"actors/*": tree, "pkg/*": tree, "docs/*.md": string(readme),
		"config/*.yaml": string(readme),
	} {
		found, err := filepath.Glob(filepath.Join("..", pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		for _, path := range found {
			name := filepath.Base(path)
			want := "  " + name + "/"
			switch filepath.Ext(name) {
			case ".md":
				want = "(docs/" + name + ")"
			case ".yaml":
				want = "`" + name + "`"
			}
			if !strings.Contains(in, want) {
				t.Errorf("README.md does not name %s", path)
			}
		}
	}
}
