package schematest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// schemaText matches the text of a JSON schema, in Go as in JSON, and a place where a request gets one.
var schemaText = regexp.MustCompile(`"type": ?"object"|\bFormat: +[a-z]`)

// unsent are the packages with schemas that no model gets from them, or that are those of another package.
var unsent = []string{
	"actors/gateway", // schemas of clients, prepared by the model actor as every other
	"pkg/jsonschema",
	"pkg/model",
	"pkg/tool/examples", // an example
}

// TestEveryPackage walks the tree: a package with a schema has a test that calls Check.
func TestEveryPackage(t *testing.T) {
	with, checked := map[string]bool{}, map[string]bool{}
	root := "../../../.."
	for _, top := range []string{"actors", "cmd", "config", "pkg", "subjects"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
				return err
			}
			text, err := os.ReadFile(path)
			folder, _ := filepath.Rel(root, filepath.Dir(path))
			if strings.HasSuffix(path, "_test.go") {
				checked[folder] = checked[folder] || strings.Contains(string(text), "schematest.Check(")
			} else {
				with[folder] = with[folder] || schemaText.Match(text)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	found := 0
	for folder, has := range with {
		if !has || slices.ContainsFunc(unsent, func(u string) bool {
			return folder == u || strings.HasPrefix(folder, u+"/")
		}) {
			continue
		}
		found++
		if !checked[folder] {
			t.Errorf("%s has a JSON schema and no test that calls schematest.Check with it", folder)
		}
	}
	if found < 5 {
		t.Errorf("found %d packages with schemas; the search does not work", found)
	}
}
