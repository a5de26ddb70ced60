package config_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The rules of the system, kept by a test: who may import whom, who may print, what every actor folder holds. Each rule
// is a function over a [source], so that a made-up source can show that the rule bites.

// source is one Go file as the rules see it.
type source struct {
	path    string // from the module's root, with slashes
	imports []string
	prints  []string // calls that write to standard output or error
	doc     string   // package comment
}

func (s source) dir() string { return path.Dir(s.path) }

func (s source) test() bool { return strings.HasSuffix(s.path, "_test.go") }

// room is the top-level folder of a path: "subjects", "pkg" ...
func room(p string) string {
	top, _, _ := strings.Cut(p, "/")
	return top
}

// within reports whether p is the folder or below it.
func within(p, folder string) bool { return p == folder || strings.HasPrefix(p, folder+"/") }

const module = "conclave"

// floors are the rooms from the ground up: each may import itself and what is below.
var floors = []string{"subjects", "pkg", "actors", "config", "cmd"}

// anywhere are the rooms that may import everything.
var anywhere = []string{"bench", "stories"}

// direction keeps subjects <- pkg <- actors <- config <- cmd.
func direction(s source) (out []string) {
	from := slices.Index(floors, room(s.path))
	if from < 0 {
		if !slices.Contains(anywhere, room(s.path)) {
			out = append(out, fmt.Sprintf("%s: Go code in a room the system does not know", s.path))
		}
		return out
	}
	for _, imp := range s.imports {
		rel, ours := strings.CutPrefix(imp, module+"/")
		if !ours {
			continue
		}
		if to := slices.Index(floors, room(rel)); to < 0 || to > from {
			out = append(out, fmt.Sprintf("%s imports %s: the direction is %s", s.path, imp, strings.Join(floors, " <- ")))
		}
	}
	return out
}

// rejectUnknownFiles keeps actors apart, in their tests too: they meet on the bus only.
func rejectUnknownFiles(s source) (out []string) {
	if room(s.path) != "actors" {
		return nil
	}
	own := strings.Split(s.path, "/")[1]
	for _, imp := range s.imports {
		rel, ours := strings.CutPrefix(imp, module+"/actors/")
		if ours && room(rel) != own {
			out = append(out, fmt.Sprintf("%s imports the actor %s", s.path, room(rel)))
		}
	}
	return out
}

// owned says which folder a library is kept behind: nobody else imports it.
var owned = map[string]string{
	"github.com/nats-io/nats-server/":  "pkg/bus",
	"github.com/99designs/keyring":     "pkg/keyring",
	"github.com/godbus/dbus":           "pkg/keyring",
	"codeberg.org/readeck/":            "pkg/webclient",
	"github.com/JohannesKaufmann/html": "pkg/webclient",
	"github.com/duckdb/":               "actors/memory/store",
}

// oneOwner keeps libraries behind their owners.
func oneOwner(s source) (out []string) {
	if room(s.path) == "bench" {
		return nil
	}
	for _, imp := range s.imports {
		for library, owner := range owned {
			if strings.HasPrefix(imp, library) && !within(s.dir(), owner) {
				out = append(out, fmt.Sprintf("%s imports %s: only %s does", s.path, imp, owner))
			}
		}
	}
	return out
}

// plainSubjects keeps subjects on the standard library. Its tests may use test libraries.
func plainSubjects(s source) (out []string) {
	if room(s.path) != "subjects" || s.test() {
		return nil
	}
	for _, imp := range s.imports {
		first, _, _ := strings.Cut(imp, "/")
		if strings.Contains(first, ".") || (first == module && !within(imp, module+"/subjects")) {
			out = append(out, fmt.Sprintf("%s imports %s: subjects knows the standard library only", s.path, imp))
		}
	}
	return out
}

// quiet keeps printing to the commands: elsewhere errors are returned and the runtime logs.
func quiet(s source) (out []string) {
	if room(s.path) == "cmd" || room(s.path) == "bench" || s.dir() == "subjects/generate" {
		return nil
	}
	for _, p := range s.prints {
		out = append(out, fmt.Sprintf("%s prints: %s", s.path, p))
	}
	return out
}

// furnished asks of each actor folder its two files and a package comment that says what the actor hears or says.
func furnished(all []source) (out []string) {
	folders := map[string][]source{}
	for _, s := range all {
		if p := strings.Split(s.path, "/"); p[0] == "actors" && len(p) == 3 {
			folders[p[1]] = append(folders[p[1]], s)
		}
	}
	for actor, files := range folders {
		for _, want := range []string{actor + ".go", actor + "_test.go"} {
			if !slices.ContainsFunc(files, func(s source) bool { return path.Base(s.path) == want }) {
				out = append(out, fmt.Sprintf("actors/%s has no %s", actor, want))
			}
		}
		if !slices.ContainsFunc(files, func(s source) bool {
			doc := strings.Join(strings.Fields(s.doc), " ")
			return !s.test() && (strings.Contains(doc, "listens on") || strings.Contains(doc, "speaks on"))
		}) {
			out = append(out, fmt.Sprintf("actors/%s: the package comment says neither what it listens on nor what it speaks on", actor))
		}
	}
	slices.Sort(out)
	return out
}

// rules by name.
var rules = map[string]func(source) []string{
	"direction":     direction,
	"strangers":     rejectUnknownFiles,
	"oneOwner":      oneOwner,
	"plainSubjects": plainSubjects,
	"quiet":         quiet,
}

func TestHouse(t *testing.T) {
	all := readHouse(t)
	for name, rule := range rules {
		t.Run(name, func(t *testing.T) {
			for _, s := range all {
				for _, wrong := range rule(s) {
					t.Error(wrong)
				}
			}
		})
	}
	t.Run("furnished", func(t *testing.T) {
		for _, wrong := range furnished(all) {
			t.Error(wrong)
		}
	})
}

// TestRulesBite shows each rule something it must report and something it must leave alone.
func TestRulesBite(t *testing.T) {
	const server = "github.com/nats-io/nats-server/v2/server"
	for _, tt := range []struct {
		rule, path, imp string
		wrong           bool
	}{
		{"direction", "subjects/a.go", "conclave/pkg/bus", true},
		{"direction", "pkg/policy/a.go", "conclave/actors/broker", true},
		{"direction", "pkg/policy/a_test.go", "conclave/config", true},
		{"direction", "actors/broker/a.go", "conclave/config", true},
		{"direction", "config/a.go", "conclave/cmd/conclave", true},
		{"direction", "cmd/conclave/a.go", "conclave/bench", true},
		{"direction", "internal/a.go", "fmt", true},
		{"direction", "a.go", "fmt", true},
		{"direction", "pkg/policy/a.go", "conclave/subjects", false},
		{"direction", "pkg/bus/a.go", "conclave/pkg/audit", false},
		{"direction", "cmd/conclave/a.go", "conclave/config", false},
		{"direction", "bench/a.go", "conclave/cmd/conclave", false},
		{"direction", "stories/a_test.go", "conclave/config", false},
		{"direction", "subjects/a.go", "conclavery/cmd", false},

		{"strangers", "actors/broker/a.go", "conclave/actors/tools", true},
		{"strangers", "actors/broker/a_test.go", "conclave/actors/tools", true},
		{"strangers", "actors/broker/deep/a.go", "conclave/actors/tools/deep", true},
		{"strangers", "actors/tool/a.go", "conclave/actors/tools", true},
		{"strangers", "actors/broker/a_test.go", "conclave/actors/broker", false},
		{"strangers", "config/a.go", "conclave/actors/tools", false},

		{"oneOwner", "actors/broker/a_test.go", server, true},
		{"oneOwner", "pkg/business/a.go", server, true},
		{"oneOwner", "cmd/conclave/a.go", server, true},
		{"oneOwner", "pkg/bus/a.go", server, false},
		{"oneOwner", "pkg/bus/bustest/a.go", server, false},
		{"oneOwner", "bench/a.go", server, false},
		{"oneOwner", "pkg/actor/a.go", "github.com/nats-io/nats.go", false},
		{"oneOwner", "actors/secrets/a.go", "github.com/99designs/keyring", true},
		{"oneOwner", "pkg/keyring/dbus/a.go", "github.com/godbus/dbus", false},
		{"oneOwner", "actors/tools/a.go", "codeberg.org/readeck/go-readability", true},

		{"plainSubjects", "subjects/a.go", "github.com/nats-io/nats.go", true},
		{"plainSubjects", "subjects/generate/main.go", "golang.org/x/tools/imports", true},
		{"plainSubjects", "subjects/a.go", "conclave/pkg/bus", true},
		{"plainSubjects", "subjects/a.go", "encoding/json", false},
		{"plainSubjects", "subjects/generate/main.go", "conclave/subjects", false},
		{"plainSubjects", "subjects/a_test.go", "pgregory.net/rapid", false},
	} {
		got := rules[tt.rule](source{path: tt.path, imports: []string{"fmt", tt.imp}})
		if (len(got) > 0) != tt.wrong {
			t.Errorf("%s: %s importing %s: %v", tt.rule, tt.path, tt.imp, got)
		}
	}
}

func TestQuietBites(t *testing.T) {
	const loud = `package a
import ( "fmt"; f "fmt"; "os"; other "example.org/fmt" )
func a() {
	fmt.Println("1"); f.Printf("2"); fmt.Print("3"); println("4"); print("5"); fmt.Fprintln(os.Stdout, "6")
}
func b() { fmt.Fprintln(w, "no"); other.Println("no"); _ = fmt.Sprint("no"); x.Print("no") }
func ExampleA() { fmt.Println("a test reads it") }
`
	s, err := parseSource("pkg/a/a.go", loud)
	if err != nil {
		t.Fatal(err)
	}
	if got := quiet(s); len(got) != 7 {
		t.Errorf("%d calls found, want 6 and the example: %v", len(got), got)
	}
	if s, err = parseSource("pkg/a/a_test.go", loud); err != nil || len(quiet(s)) != 5 {
		t.Errorf("in a test: %v, %v, want the example and the sixth left alone", quiet(s), err)
	}
	for _, p := range []string{"cmd/conclave/a.go", "subjects/generate/main.go", "bench/a.go"} {
		if s, err = parseSource(p, loud); err != nil || len(quiet(s)) != 0 {
			t.Errorf("%s: %v, %v", p, quiet(s), err)
		}
	}
	if s, err = parseSource("subjects/generator.go", loud); err != nil || len(quiet(s)) == 0 {
		t.Errorf("subjects itself may print: %v", err)
	}
}

func TestFurnishedBites(t *testing.T) {
	good := []source{
		{path: "actors/critic/critic.go", doc: "Package critic grades.\nIt listens\non response.generation."},
		{path: "actors/critic/critic_test.go"},
		{path: "actors/critic/rubric/rubric.go"},
		{path: "pkg/bus/bus.go"},
	}
	if got := furnished(good); got != nil {
		t.Errorf("a proper actor: %v", got)
	}
	for name, bad := range map[string][]source{
		"no main file": {{path: "actors/critic/grade.go", doc: "It speaks on x."}, {path: "actors/critic/critic_test.go"}},
		"no test":      {{path: "actors/critic/critic.go", doc: "It speaks on x."}, {path: "actors/critic/grade_test.go"}},
		"mute comment": {{path: "actors/critic/critic.go", doc: "Package critic grades."}, {path: "actors/critic/critic_test.go"}},
		"comment only in the test": {
			{path: "actors/critic/critic.go"},
			{path: "actors/critic/critic_test.go", doc: "It listens on x."},
		},
	} {
		if got := furnished(bad); len(got) != 1 {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// readHouse parses every Go file of the module, whatever its build tags.
func readHouse(t *testing.T) []source {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	if mod, err := os.ReadFile(filepath.Join(root, "go.mod")); err != nil || !strings.HasPrefix(string(mod), "module "+module+"\n") {
		t.Fatalf("%s is not the root of module %s: %v", root, module, err)
	}
	var all []source
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && p != root && (name == "testdata" || name == "vendor" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(name) != ".go":
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		s, err := parseSource(filepath.ToSlash(rel), string(text))
		all = append(all, s)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 10 {
		t.Fatalf("only %d files found: the walk is broken", len(all))
	}
	return all
}

// parseSource reads what the rules ask about one file.
func parseSource(name, text string) (source, error) {
	s := source{path: name}
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return s, err
	}
	s.doc = f.Doc.Text()
	pkgs := map[string]string{} // local name -> path, for fmt and os
	for _, imp := range f.Imports {
		p, err := strconv.Unquote(imp.Path.Value)
		if err != nil {
			return s, err
		}
		s.imports = append(s.imports, p)
		local := path.Base(p)
		if imp.Name != nil {
			local = imp.Name.Name
		}
		if p == "fmt" || p == "os" {
			pkgs[local] = p
		}
	}
	// member is the "fmt.Println" of an expression, whatever fmt is called here.
	member := func(e ast.Expr) string {
		if sel, ok := e.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && pkgs[x.Name] != "" {
				return pkgs[x.Name] + "." + sel.Sel.Name
			}
		}
		return ""
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if fn, ok := n.(*ast.FuncDecl); ok && s.test() && strings.HasPrefix(fn.Name.Name, "Example") {
			return false // go test compares what an example prints
		}
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		what := member(call.Fun)
		if id, ok := call.Fun.(*ast.Ident); ok && (id.Name == "print" || id.Name == "println") {
			what = id.Name
		}
		loud := what == "print" || what == "println" || strings.HasPrefix(what, "fmt.Print")
		if strings.HasPrefix(what, "fmt.Fprint") && len(call.Args) > 0 && !s.test() { // a test may talk to its parent process
			to := member(call.Args[0])
			loud = to == "os.Stdout" || to == "os.Stderr"
		}
		if loud {
			s.prints = append(s.prints, fmt.Sprintf("%s on line %d", what, set.Position(call.Pos()).Line))
		}
		return true
	})
	return s, nil
}
