package schematest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// schemaText matches the text of a JSON schema, in Go as in JSON.
var schemaText = regexp.MustCompile(`"type": ?"object"`)

// unsent are the packages with schemas that no model gets from them, or that are those of another package.
var unsent = []string{
	"actors/gateway", // schemas of clients, prepared by the model actor as every other
	"pkg/jsonschema",
	"pkg/model",
	"pkg/tool/examples", // an example
}

// toolList matches the schemas of all tools of a package.
var toolList = regexp.MustCompile(`\b(Tools\(\)|Known\()`)

// toolBody matches the declaration of a tool.
var toolBody = regexp.MustCompile(`ToolSchema|\bnewTool\(`)

// TestEveryPackage walks the tree: each declaration with a schema is named in a test that calls Check, or is a tool's,
// and the test checks all tools.
func TestEveryPackage(t *testing.T) {
	schemas, checks := map[string][]schemaDecl{}, map[string]string{}
	root := "../../../.."
	for _, top := range []string{"actors", "cmd", "config", "pkg", "subjects"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
				return err
			}
			text, err := os.ReadFile(path)
			folder, _ := filepath.Rel(root, filepath.Dir(path))
			switch {
			case strings.HasSuffix(path, "_test.go") && strings.Contains(string(text), "schematest.Check("):
				checks[folder] += string(text)
			case !strings.HasSuffix(path, "_test.go") && schemaText.Match(text):
				schemas[folder] = append(schemas[folder], findSchemas(t, path, string(text))...)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	found := 0
	for folder, list := range schemas {
		if slices.ContainsFunc(unsent, func(u string) bool { return folder == u || strings.HasPrefix(folder, u+"/") }) {
			continue
		}
		for _, s := range list {
			found++
			if s.isTool && toolList.MatchString(checks[folder]) {
				continue
			}
			if !regexp.MustCompile(`\b` + s.name + `\b`).MatchString(checks[folder]) {
				t.Errorf("%s: %s has a JSON schema, and no test calls schematest.Check with it", folder, s.name)
			}
		}
	}
	if found < 15 {
		t.Errorf("found %d schemas; the search does not work", found)
	}
}

// schemaDecl is a declaration with the text of a schema.
type schemaDecl struct {
	name   string
	isTool bool
}

// findSchemas lists the functions, constants and variables of a file that have a schema.
func findSchemas(t *testing.T, path, text string) (out []schemaDecl) {
	t.Helper()
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, path, text, 0)
	if err != nil {
		t.Fatal(err)
	}
	add := func(name string, n ast.Node) {
		body := text[files.Position(n.Pos()).Offset:files.Position(n.End()).Offset]
		if schemaText.MatchString(body) {
			out = append(out, schemaDecl{name, toolBody.MatchString(body)})
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			add(d.Name.Name, d)
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if v, ok := s.(*ast.ValueSpec); ok {
					add(v.Names[0].Name, v)
				}
			}
		}
	}
	return out
}
