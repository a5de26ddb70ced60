package memory

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// TestAccessIsRevokedAfterItsOperation: an access needs an acknowledged audit record, and is unusable after its
// operation.
func TestAccessIsRevokedAfterItsOperation(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	for name, p := range map[string]*actor.Permit{"nil": nil, "zero": {}} {
		if db, err := w.m.grantAccess(p); err == nil || db != nil {
			t.Errorf("a %s permit gives access", name)
		}
	}
	leaked, err := audited(t.Context(), w.m, w.rec.Out(), act{caller: "user", action: subjects.ActionMemoryRead},
		func(ctx context.Context, db *access) (*access, error) {
			_, err := db.Stats(ctx)
			return db, err
		})
	if err != nil || leaked == nil || leaked.Store != nil {
		t.Errorf("after its act the access is %+v, %v", leaked, err)
	}
}

// TestStoreUseWithoutAuditIsDenied: only maintenance uses the store directly. A function that serves a caller takes an
// access.
func TestStoreUseWithoutAuditIsDenied(t *testing.T) {
	t.Parallel()
	upkeep := []string{
		"Close", "switchIndex", "grantAccess", "reportStatus", // life cycle and counts
		// whether an answer is stored already; nothing of it is shown
		"onResponse",
		"refreshIndex",                  // the index after a write
		"backfillBatch", "storeVectors", // missing vectors
		"refineBatch", // which entries wait for a model; the change is audited
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var used []string
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "unaudited" &&
					!slices.Contains(used, f.Name.Name) {
					used = append(used, f.Name.Name)
				}
				return true
			})
		}
	}
	for _, name := range used {
		if !slices.Contains(upkeep, name) {
			t.Errorf("%s uses the database without the audit gate", name)
		}
	}
	for _, name := range upkeep {
		if !slices.Contains(used, name) {
			t.Errorf("%s no longer uses it: take it off the list", name)
		}
	}
}
