package policy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// layerTables maps the name of each layer to the test with its table.
var layerTables = map[string]string{
	"override": "TestOverrideLayer", "manifest": "TestManifestLayer", "lineage": "TestLineageLayer",
	"arguments": "TestArgumentsLayer",
	"paths":     "TestPathsLayer", "egress": "TestEgressLayer", "flow": "TestFlowLayer", "limits": "TestLimitsLayer",
	"approval": "TestRiskLayer",
}

// TestHalfOfTableRowsAreTricks checks that every layer of the chain has a table, that its rows have distinct names, and
// that at least half of them are attempts to evade the layer, named "trick: ...".
func TestHalfOfTableRowsAreTricks(t *testing.T) {
	tables := parseTableRows(t)
	for _, l := range (Manifest{}).Chain(Env{}) {
		rows := tables[layerTables[l.Name()]]
		if len(rows) == 0 {
			t.Errorf("layer %s has no table", l.Name())
			continue
		}
		tricks, seen := 0, map[string]bool{}
		for _, name := range rows {
			if seen[name] {
				t.Errorf("layer %s: two rows are named %q", l.Name(), name)
			}
			seen[name] = true
			if strings.HasPrefix(name, "trick: ") {
				tricks++
			}
		}
		if 2*tricks < len(rows) {
			t.Errorf("layer %s: %d of %d rows are tricks, want at least half", l.Name(), tricks, len(rows))
		}
	}
}

// parseTableRows returns the names of the table rows of each test function of this package: the string literals of the
// field name, or of the first field, in the elements of a slice of structs.
func parseTableRows(t *testing.T) map[string][]string {
	t.Helper()
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][]string{}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				table, ok := n.(*ast.CompositeLit)
				if !ok {
					return true
				}
				if list, ok := table.Type.(*ast.ArrayType); ok {
					if _, ok := list.Elt.(*ast.StructType); ok {
						for _, row := range table.Elts {
							rows[fn.Name.Name] = append(rows[fn.Name.Name], rowName(row))
						}
					}
				}
				return true
			})
		}
	}
	return rows
}

// rowName returns the name of a table row, "" when it has none.
func rowName(row ast.Expr) string {
	lit, ok := row.(*ast.CompositeLit)
	if !ok || len(lit.Elts) == 0 {
		return ""
	}
	value := lit.Elts[0]
	if field, ok := value.(*ast.KeyValueExpr); ok {
		if key, ok := field.Key.(*ast.Ident); !ok || key.Name != "name" {
			return ""
		}
		value = field.Value
	}
	text, ok := value.(*ast.BasicLit)
	if !ok {
		return ""
	}
	name, err := strconv.Unquote(text.Value)
	if err != nil {
		return ""
	}
	return name
}
