package config_test

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// Most columns of a line, a tab as four.
const (
	maxCodeColumns  = 120 // Go and shell
	maxProseColumns = 100 // Markdown, and comments in YAML
)

// checkLines reports the lines of a file that are too wide. Not checked are
//   - values in YAML: a flow sequence, a command and an address have no place to break;
//   - tables and code in Markdown: a row and a command are one line;
//   - Markdown below actors and pkg: these are prompts and descriptions of tools, where a line break would be part of
//     what the model reads;
//   - a word without a blank, such as an address.
func checkLines(name, text string) (wrong []string) {
	limit, isProse := 0, false
	switch top := topFolder(name); path.Ext(name) {
	case ".go", ".sh":
		limit = maxCodeColumns
	case ".md":
		if top != "actors" && top != "pkg" {
			limit, isProse = maxProseColumns, true
		}
	case ".yaml", ".yml":
		limit = maxProseColumns
	default:
		if top == ".ci" {
			limit = maxCodeColumns
		}
	}
	isCode := false
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		if isProse && strings.HasPrefix(trimmed, "```") {
			isCode = !isCode
		}
		columns := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    "))
		switch {
		case limit == 0 || columns <= limit || !strings.Contains(trimmed, " "):
		case isProse && (isCode || strings.HasPrefix(trimmed, "|") || strings.HasPrefix(line, "    ")):
		case strings.HasSuffix(path.Ext(name), "ml") && !strings.Contains(" "+line, " # "):
		default:
			wrong = append(wrong, fmt.Sprintf("%s:%d has %d columns, at most %d", name, i+1, columns, limit))
		}
	}
	return wrong
}

// TestLinesAreNotTooWide checks every text file of the module and of bench.
func TestLinesAreNotTooWide(t *testing.T) {
	t.Parallel()
	checked := 0
	err := fs.WalkDir(os.DirFS(".."), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && name != "." && name != ".ci", d.IsDir() &&
			d.Name() == "dist":
			return fs.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		text, err := os.ReadFile(filepath.Join("..", name))
		checked++
		for _, wrong := range checkLines(name, string(text)) {
			t.Error(wrong)
		}
		return err
	})
	if err != nil || checked < 500 {
		t.Fatalf("%d files checked: %v", checked, err)
	}
}

func TestLineCheckReportsViolations(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("word ", 19) + "words" // 100 columns
	for _, tt := range []struct {
		name, text string
		wrong      int
	}{
		{"pkg/a.go", "// " + long + strings.Repeat("x", 17), 0},
		{"pkg/a.go", "// " + long + strings.Repeat("x", 18), 1},
		{"pkg/a.go", "\t\t\t\t\t// " + long, 1},
		{"pkg/a.go", "//" + strings.Repeat("ä", 110), 0},
		{".ci/run", long + " and " + long, 1},
		{"docs/a.md", long, 0},
		{"docs/a.md", long + "x", 1},
		{"docs/a.md", "| " + long + " |\n    " + long + "\n```\n" + long + "x\n```", 0},
		{"docs/a.md", "<https://" + strings.Repeat("x", 100) + ">", 0},
		{"actors/tools/a.md", long + "x", 0},
		{"config/a.yaml", "a: b # " + long, 1},
		{"config/a.yaml", "a: [" + long + "]", 0},
		{"acceptance/a.jsonl", long + long, 0},
	} {
		if got := checkLines(tt.name, tt.text); len(got) != tt.wrong {
			t.Errorf("%s %q: %v", tt.name, tt.text, got)
		}
	}
}
