package config_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The structure of the module as rules: which package may import which, which may print, what an actor folder contains.
// Each rule is a function over a [source], so that a made-up source can show that it reports violations.

// source is what the rules need to know of a Go file.
type source struct {
	path    string // from the module's root, with slashes
	imports []string
	prints  []string // calls that write to standard output or error
	skips   []string // calls of a test that look for a program, or skip it for a reason that a command cannot change
	sends   []string // names and subjects of the services of tools and secrets
	doc     string   // package comment
}

func (s source) dir() string { return path.Dir(s.path) }

func (s source) test() bool { return strings.HasSuffix(s.path, "_test.go") }

// testing reports whether the file is a test or in a folder for tests only.
func (s source) testing() bool { return s.test() || strings.Contains(s.dir()+"/", "test/") }

// topFolder returns the top-level folder of a path: "subjects", "pkg" ...
func topFolder(p string) string {
	top, _, _ := strings.Cut(p, "/")
	return top
}

// within reports whether p is the folder or below it.
func within(p, folder string) bool { return p == folder || strings.HasPrefix(p, folder+"/") }

const module = "conclave"

// layers are the top-level folders, lowest first: each may import itself and the ones before it.
var layers = []string{"subjects", "pkg", "actors", "config", "acceptance", "stories", "cmd"}

// unrestricted are the folders that may import every package.
var unrestricted = []string{"bench"}

// importDirection reports imports against the order of [layers].
func importDirection(s source) (out []string) {
	from := slices.Index(layers, topFolder(s.path))
	if from < 0 {
		if !slices.Contains(unrestricted, topFolder(s.path)) {
			out = append(out, fmt.Sprintf("%s: Go code outside the known folders", s.path))
		}
		return out
	}
	for _, imp := range s.imports {
		rel, ours := strings.CutPrefix(imp, module+"/")
		if !ours {
			continue
		}
		if to := slices.Index(layers, topFolder(rel)); to < 0 || to > from {
			out = append(out, fmt.Sprintf("%s imports %s: the importDirection is %s", s.path, imp,
				strings.Join(layers, " <- ")))
		}
	}
	return out
}

// actorIsolation reports imports between actors, in tests too: actors communicate over the bus.
func actorIsolation(s source) (out []string) {
	if topFolder(s.path) != "actors" {
		return nil
	}
	own := strings.Split(s.path, "/")[1]
	for _, imp := range s.imports {
		rel, ours := strings.CutPrefix(imp, module+"/actors/")
		if ours && topFolder(rel) != own {
			out = append(out, fmt.Sprintf("%s imports the actor %s", s.path, topFolder(rel)))
		}
	}
	return out
}

// libraryOwners maps a library to the only folder that may import it.
var libraryOwners = map[string]string{
	"github.com/nats-io/nats-server/":  "pkg/bus",
	"github.com/99designs/keyring":     "pkg/keyring",
	"github.com/godbus/dbus":           "pkg/keyring",
	"codeberg.org/readeck/":            "pkg/webclient",
	"github.com/JohannesKaufmann/html": "pkg/webclient",
	"github.com/duckdb/":               "actors/memory/store",
}

// libraryOwner reports imports of a library outside its folder.
func libraryOwner(s source) (out []string) {
	if topFolder(s.path) == "bench" {
		return nil
	}
	for _, imp := range s.imports {
		for library, owner := range libraryOwners {
			if strings.HasPrefix(imp, library) && !within(s.dir(), owner) {
				out = append(out, fmt.Sprintf("%s imports %s: only %s does", s.path, imp, owner))
			}
		}
	}
	return out
}

// subjectsImports reports imports of subjects beyond the standard library. Its tests may use test libraries.
func subjectsImports(s source) (out []string) {
	if topFolder(s.path) != "subjects" || s.test() {
		return nil
	}
	for _, imp := range s.imports {
		first, _, _ := strings.Cut(imp, "/")
		if strings.Contains(first, ".") || (first == module && !within(imp, module+"/subjects")) {
			out = append(out, fmt.Sprintf("%s imports %s: subjects may import the standard library only", s.path, imp))
		}
	}
	return out
}

// noPrinting reports printing outside the commands: other packages return errors, and the runtime logs.
func noPrinting(s source) (out []string) {
	if topFolder(s.path) == "cmd" || topFolder(s.path) == "bench" || s.dir() == "subjects/generate" {
		return nil
	}
	for _, p := range s.prints {
		out = append(out, fmt.Sprintf("%s prints: %s", s.path, p))
	}
	return out
}

// optionalPrograms reports tests that decide on their own what becomes of them without a program: programtest does. A
// test may skip itself where the reason names what runs it.
func optionalPrograms(s source) (out []string) {
	if !s.testing() || s.dir() == "pkg/programtest" {
		return nil
	}
	for _, p := range s.skips {
		out = append(out, fmt.Sprintf("%s: %s: use programtest.Require or SkipIf", s.path, p))
	}
	return out
}

// skipReasons are in the reasons of tests that run with another command or another user.
var skipReasons = []string{"CONCLAVE_", ".ci/run ", "task ", "root", "race detector"}

// isOwnSkip reports whether a call skips a test without one of skipReasons. A call without arguments on rt discards a
// case of a property test.
func isOwnSkip(call *ast.CallExpr) bool {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, sel.Sel.Name) {
		return false
	}
	if x, ok := sel.X.(*ast.Ident); ok && x.Name == "rt" && len(call.Args) == 0 {
		return false
	}
	named := false
	for _, a := range call.Args {
		ast.Inspect(a, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			named = named || ok && slices.ContainsFunc(skipReasons, func(r string) bool {
				return strings.Contains(lit.Value, r)
			})
			return true
		})
	}
	return !named
}

// actorFolders reports actor folders without their two files, or without a package comment that names the subjects.
func actorFolders(all []source) (out []string) {
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
			return !s.test() &&
				slices.ContainsFunc([]string{"listens on", "consumes", "speaks on", "publishes", "serves"},
					func(verb string) bool { return strings.Contains(doc, verb) })
		}) {
			out = append(out, fmt.Sprintf("actors/%s: the package comment does not say what it consumes, publishes "+
				"or serves", actor))
		}
	}
	slices.Sort(out)
	return out
}

// brokerStages reports the services of tools and secrets in the broker outside its stages: only a call that is
// permitted and on record reaches them.
func brokerStages(s source) (out []string) {
	if !within(s.dir(), "actors/broker") || within(s.dir(), "actors/broker/internal/stage") || s.testing() {
		return nil
	}
	for _, p := range s.sends {
		out = append(out, fmt.Sprintf("%s names %s: only actors/broker/internal/stage does", s.path, p))
	}
	return out
}

// rules by name.
var rules = map[string]func(source) []string{
	"importDirection":  importDirection,
	"actorIsolation":   actorIsolation,
	"libraryOwner":     libraryOwner,
	"subjectsImports":  subjectsImports,
	"noPrinting":       noPrinting,
	"optionalPrograms": optionalPrograms,
	"brokerStages":     brokerStages,
}

func TestStructure(t *testing.T) {
	all := readSources(t)
	for name, rule := range rules {
		t.Run(name, func(t *testing.T) {
			for _, s := range all {
				for _, wrong := range rule(s) {
					t.Error(wrong)
				}
			}
		})
	}
	t.Run("actorFolders", func(t *testing.T) {
		for _, wrong := range actorFolders(all) {
			t.Error(wrong)
		}
	})
}

// TestRulesReportViolations gives each rule a violation and an allowed import.
func TestRulesReportViolations(t *testing.T) {
	const server = "github.com/nats-io/nats-server/v2/server"
	for _, tt := range []struct {
		rule, path, imp string
		wrong           bool
	}{
		{"importDirection", "subjects/a.go", "conclave/pkg/bus", true},
		{"importDirection", "pkg/policy/a.go", "conclave/actors/broker", true},
		{"importDirection", "pkg/policy/a_test.go", "conclave/config", true},
		{"importDirection", "actors/broker/a.go", "conclave/config", true},
		{"importDirection", "config/a.go", "conclave/cmd/conclave", true},
		{"importDirection", "cmd/conclave/a.go", "conclave/bench", true},
		{"importDirection", "internal/a.go", "fmt", true},
		{"importDirection", "a.go", "fmt", true},
		{"importDirection", "pkg/policy/a.go", "conclave/subjects", false},
		{"importDirection", "pkg/bus/a.go", "conclave/pkg/audit", false},
		{"importDirection", "cmd/conclave/a.go", "conclave/config", false},
		{"importDirection", "bench/a.go", "conclave/cmd/conclave", false},
		{"importDirection", "acceptance/a_test.go", "conclave/config", false},
		{"importDirection", "acceptance/a_test.go", "conclave/stories/harness", true},
		{"importDirection", "config/a_test.go", "conclave/acceptance", true},
		{"importDirection", "stories/a_test.go", "conclave/config", false},
		{"importDirection", "stories/harness/a.go", "conclave/config", false},
		{"importDirection", "stories/harness/a.go", "conclave/cmd/conclave", true},
		{"importDirection", "config/a.go", "conclave/stories/harness", true},
		{"importDirection", "cmd/conclave/a.go", "conclave/stories/harness", false},
		{"importDirection", "pkg/auditlog/a.go", "conclave/actors/broker", true},
		{"importDirection", "subjects/a.go", "conclavery/cmd", false},

		{"actorIsolation", "actors/broker/a.go", "conclave/actors/tools", true},
		{"actorIsolation", "actors/broker/a_test.go", "conclave/actors/tools", true},
		{"actorIsolation", "actors/broker/deep/a.go", "conclave/actors/tools/deep", true},
		{"actorIsolation", "actors/tool/a.go", "conclave/actors/tools", true},
		{"actorIsolation", "actors/broker/a_test.go", "conclave/actors/broker", false},
		{"actorIsolation", "config/a.go", "conclave/actors/tools", false},
		{"actorIsolation", "actors/broker/replay/a.go", "conclave/actors/broker", false},
		{"actorIsolation", "actors/broker/replay/a.go", "conclave/actors/tools", true},

		{"libraryOwner", "actors/broker/a_test.go", server, true},
		{"libraryOwner", "pkg/business/a.go", server, true},
		{"libraryOwner", "cmd/conclave/a.go", server, true},
		{"libraryOwner", "pkg/bus/a.go", server, false},
		{"libraryOwner", "pkg/bus/bustest/a.go", server, false},
		{"libraryOwner", "bench/a.go", server, false},
		{"libraryOwner", "pkg/actor/a.go", "github.com/nats-io/nats.go", false},
		{"libraryOwner", "actors/secrets/a.go", "github.com/99designs/keyring", true},
		{"libraryOwner", "pkg/keyring/dbus/a.go", "github.com/godbus/dbus", false},
		{"libraryOwner", "actors/tools/a.go", "codeberg.org/readeck/go-readability", true},

		{"subjectsImports", "subjects/a.go", "github.com/nats-io/nats.go", true},
		{"subjectsImports", "subjects/generate/main.go", "golang.org/x/tools/imports", true},
		{"subjectsImports", "subjects/a.go", "conclave/pkg/bus", true},
		{"subjectsImports", "subjects/a.go", "encoding/json", false},
		{"subjectsImports", "subjects/generate/main.go", "conclave/subjects", false},
		{"subjectsImports", "subjects/a_test.go", "pgregory.net/rapid", false},
	} {
		got := rules[tt.rule](source{path: tt.path, imports: []string{"fmt", tt.imp}})
		if (len(got) > 0) != tt.wrong {
			t.Errorf("%s: %s importing %s: %v", tt.rule, tt.path, tt.imp, got)
		}
	}
}

func TestPrintRuleReportsViolations(t *testing.T) {
	const printing = `package a
import ( "fmt"; f "fmt"; "os"; other "example.org/fmt" )
func a() {
	fmt.Println("1"); f.Printf("2"); fmt.Print("3"); println("4"); print("5"); fmt.Fprintln(os.Stdout, "6")
}
func b() { fmt.Fprintln(w, "no"); other.Println("no"); _ = fmt.Sprint("no"); x.Print("no") }
func ExampleA() { fmt.Println("a test reads it") }
`
	s, err := parseSource("pkg/a/a.go", printing)
	if err != nil {
		t.Fatal(err)
	}
	if got := noPrinting(s); len(got) != 7 {
		t.Errorf("%d calls found, want 6 and the example: %v", len(got), got)
	}
	if s, err = parseSource("pkg/a/a_test.go", printing); err != nil || len(noPrinting(s)) != 5 {
		t.Errorf("in a test: %v, %v, want the example and the sixth left alone", noPrinting(s), err)
	}
	for _, p := range []string{"cmd/conclave/a.go", "subjects/generate/main.go", "bench/a.go"} {
		if s, err = parseSource(p, printing); err != nil || len(noPrinting(s)) != 0 {
			t.Errorf("%s: %v, %v", p, noPrinting(s), err)
		}
	}
	if s, err = parseSource("subjects/generator.go", printing); err != nil || len(noPrinting(s)) == 0 {
		t.Errorf("subjects itself may print: %v", err)
	}
}

func TestProgramRuleReportsViolations(t *testing.T) {
	const skipping = `package a
import ( "os/exec"; e "os/exec"; other "example.org/os/exec" )
func a() {
	exec.LookPath("1"); e.LookPath("2"); t.Skip(err); t.Skip("4"); h.t.Skipf("%v", 5); t.SkipNow()
}
func b() {
	other.LookPath("no"); exec.Command("no"); rt.Skip(); t.Skip("set CONCLAVE_CHAOS=1")
	t.Skip("it is tested " + "with .ci/run clients"); t.Skipf("needs root: %v", err)
}
`
	for path, want := range map[string]int{
		"pkg/a/a_test.go": 6, "pkg/bus/bustest/hosts/a.go": 6, "pkg/a/a.go": 0, "pkg/programtest/a.go": 0,
	} {
		s, err := parseSource(path, skipping)
		if err != nil || len(optionalPrograms(s)) != want {
			t.Errorf("%s: %v, %v, want %d", path, optionalPrograms(s), err, want)
		}
	}
}

func TestStageRuleReportsViolations(t *testing.T) {
	const sending = `package broker
import . "conclave/subjects"
import other "conclave/subjects"
var a = ToolCallService
var b = other.SecretGetService
var c = "agent.tool.call.tools.send"
var d = "secret.get"
var e = "a tool called" // ToolCallService
`
	for name, want := range map[string]int{
		"actors/broker/a.go": 4, "actors/broker/replay/a.go": 4, "actors/broker/internal/a.go": 4,
		"actors/broker/a_test.go": 0, "actors/broker/internal/stage/a.go": 0, "actors/secrets/a.go": 0,
	} {
		s, err := parseSource(name, sending)
		if got := brokerStages(s); err != nil || len(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestActorFolderRuleReportsViolations(t *testing.T) {
	good := []source{
		{path: "actors/critic/critic.go", doc: "Package critic grades.\nIt listens\non response.generation."},
		{path: "actors/critic/critic_test.go"},
		{path: "actors/critic/rubric/rubric.go"},
		{path: "pkg/bus/bus.go"},
	}
	if got := actorFolders(good); got != nil {
		t.Errorf("a complete actor folder: %v", got)
	}
	for name, bad := range map[string][]source{
		"no main file": {
			{path: "actors/critic/grade.go", doc: "It speaks on x."},
			{path: "actors/critic/critic_test.go"},
		},
		"no test": {
			{path: "actors/critic/critic.go", doc: "It speaks on x."},
			{path: "actors/critic/grade_test.go"},
		},
		"comment without subjects": {
			{path: "actors/critic/critic.go", doc: "Package critic grades."},
			{path: "actors/critic/critic_test.go"},
		},
		"comment only in the test": {
			{path: "actors/critic/critic.go"},
			{path: "actors/critic/critic_test.go", doc: "It listens on x."},
		},
	} {
		if got := actorFolders(bad); len(got) != 1 {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestBinaryHasNoTestPackages lists the dependencies of the binary. A folder of this module whose name ends in "test"
// is for tests only, and so are the runner of stories and its model server.
func TestBinaryHasNoTestPackages(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "conclave/cmd/conclave").Output()
	if err != nil {
		t.Fatalf("listing the dependencies of the binary: %v", err)
	}
	packages := strings.Fields(string(out))
	if !slices.Contains(packages, "conclave/config") {
		t.Fatalf("the binary does not depend on config: %d packages", len(packages))
	}
	for _, p := range packages {
		own, ours := strings.CutPrefix(p, module+"/")
		if ours && (strings.Contains(own+"/", "test/") || topFolder(own) == "stories" ||
			slices.Contains([]string{"pkg/story", "pkg/model/scriptserver"}, own)) {
			t.Errorf("the binary contains %s", p)
		}
	}
}

// readSources parses every Go file of the module, regardless of build tags.
func readSources(t *testing.T) []source {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	if mod, err := os.ReadFile(filepath.Join(root, "go.mod")); err != nil ||
		!strings.HasPrefix(string(mod), "module "+module+"\n") {
		t.Fatalf("%s is not the root of module %s: %v", root, module, err)
	}
	var all []source
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && p != root && (name == "testdata" || name == "vendor" || strings.HasPrefix(name, ".") ||
			strings.HasPrefix(name, "_")):
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

// isExample reports whether a function is an example, or a method of a type that is named after one.
func isExample(fn *ast.FuncDecl) bool {
	if fn.Recv == nil {
		return strings.HasPrefix(fn.Name.Name, "Example")
	}
	receiver, ok := fn.Recv.List[0].Type.(*ast.Ident)
	return ok && strings.HasPrefix(receiver.Name, "example")
}

// parseSource extracts what the rules need from one file.
func parseSource(name, text string) (source, error) {
	s := source{path: name}
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return s, err
	}
	s.doc = f.Doc.Text()
	pkgs := map[string]string{} // local name -> path, for fmt, os and os/exec
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
		if p == "fmt" || p == "os" || p == "os/exec" {
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
		if fn, ok := n.(*ast.FuncDecl); ok && s.test() && isExample(fn) {
			return false // go test compares the output of an example
		}
		if id, ok := n.(*ast.Ident); ok && slices.Contains([]string{"ToolCallService", "SecretGetService"}, id.Name) {
			s.sends = append(s.sends, id.Name)
		}
		if lit, ok := n.(*ast.BasicLit); ok && (strings.Contains(lit.Value, "tool.call.") ||
			strings.Contains(lit.Value, "secret.get")) {
			s.sends = append(s.sends, lit.Value)
		}
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		what := member(call.Fun)
		if what == "os/exec.LookPath" || isOwnSkip(call) {
			s.skips = append(s.skips, fmt.Sprintf("line %d looks for a program or skips",
				set.Position(call.Pos()).Line))
		}
		if id, ok := call.Fun.(*ast.Ident); ok && (id.Name == "print" || id.Name == "println") {
			what = id.Name
		}
		printing := what == "print" || what == "println" || strings.HasPrefix(what, "fmt.Print")
		// a test may write to its parent process
		if strings.HasPrefix(what, "fmt.Fprint") && len(call.Args) > 0 && !s.test() {
			to := member(call.Args[0])
			printing = to == "os.Stdout" || to == "os.Stderr"
		}
		if printing {
			s.prints = append(s.prints, fmt.Sprintf("%s on line %d", what, set.Position(call.Pos()).Line))
		}
		return true
	})
	return s, nil
}
