package subjects

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// rule lists the violations in a layout.
type rule func(l Layout) []string

// TestTableKeepsItsRules checks the table against its rules. Each rule must first detect layouts that break it.
func TestTableKeepsItsRules(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		rule   rule
		breaks map[string]func(l *Layout)
	}{
		{"no chaining", checkNoChaining, map[string]func(l *Layout){
			"a request under an exported name": addEdge(Edge{
				Callers: []string{"broker"}, Kind: ServiceImport,
				Owner: "tool_run_shell", Remote: "tool.request.>", Local: "agent.generator.tool.request.>",
			}),
			"a watch under an exported name": addEdge(Edge{
				Callers: []string{"generator"}, Kind: StreamImport,
				Owner: Core, Remote: "live.x", Local: "response.delta.*",
			}),
			"discovery under its own name": addEdge(Edge{
				Callers: []string{"gateway"}, Kind: ServiceImport,
				Owner: "model", Remote: "$SRV.>",
			}),
		}},
		{"stream accounts have no clients", checkStreamAccounts, map[string]func(l *Layout){
			"a reader inside":  func(l *Layout) { addUser(l, Audit, User{Role: "reader", Sub: []string{"_INBOX.>"}}) },
			"an actor's store": func(l *Layout) { findAccount(l, "memory").Store = "enabled" },
			"a stream outside": func(l *Layout) { l.Streams[1].Account = "generator" },
		}},
		{"one owner per name", checkOneOwnerPerName, map[string]func(l *Layout){
			"the same name twice": addEdge(Edge{
				Callers: []string{"generator"}, Kind: ServiceImport, Owner: "critic",
				Remote: "broker.discover",
			}),
			"two of one name": addEdge(Edge{
				Callers: []string{"user"}, Kind: ServiceImport,
				Owner: "tool_run_shell", Remote: "$SRV.*.broker",
			}),
			"a name inside a name": addEdge(Edge{
				Callers: []string{"committee"}, Kind: ServiceImport, Owner: "broker",
				Remote: "model.chat.x",
			}),
		}},
		{"every named account exists", checkAccountsExist, map[string]func(l *Layout){
			"an unknown owner": addEdge(Edge{
				Callers: []string{"user"}, Kind: ServiceImport, Owner: "nobody",
				Remote: "x",
			}),
			"an unknown caller": addEdge(Edge{
				Callers: []string{"nobody"}, Kind: ServiceImport, Owner: "broker",
				Remote: "x",
			}),
			"no caller":  addEdge(Edge{Kind: ServiceImport, Owner: "broker", Remote: "x"}),
			"no kind":    addEdge(Edge{Callers: []string{"user"}, Owner: "broker", Remote: "x"}),
			"no subject": addEdge(Edge{Callers: []string{"user"}, Kind: ServiceImport, Owner: "broker"}),
			"oneself": addEdge(Edge{
				Callers: []string{"broker"}, Kind: ServiceImport, Owner: "broker",
				Remote: "x",
			}),
			"a puller of none": func(l *Layout) {
				l.Consumers = append(l.Consumers, Consumer{Actor: "nobody", Stream: "EVENTS", Name: "x"})
			},
			"a pull of nothing": func(l *Layout) {
				l.Consumers = append(l.Consumers, Consumer{Actor: "memory", Stream: "NOTHING", Name: "x"})
			},
		}},
		{"one owner per bucket", checkBucketOwners, map[string]func(l *Layout){
			"two writers": addEdge(Edge{
				Callers: []string{"critic"}, Kind: ServiceImport, Owner: Core,
				Remote: "$KV.spawns.x", Local: "core.API.$KV.spawns.x",
			}),
			"no owner":        func(l *Layout) { findBucket(l, "ledger").Owner = "" },
			"another's name":  func(l *Layout) { findBucket(l, "ledger").Owner = "generator" },
			"shared keys":     func(l *Layout) { findBucket(l, "ledger").Subjects = []string{"$KV.>"} },
			"two of one name": func(l *Layout) { l.Streams = append(l.Streams, *findBucket(l, "ledger")) },
		}},
		{"audit records enter by one subject", checkAuditAccess, map[string]func(l *Layout){
			"without a name": addEdge(Edge{
				Callers: []string{"broker"}, Kind: ServiceImport, Owner: Audit,
				Remote: "audit.broker.x", Local: "audit.x.y",
			}),
			"a wider way": addEdge(Edge{
				Callers: []string{"broker"}, Kind: ServiceImport, Owner: Audit,
				Remote: "audit.<who>.>", Local: "audit.>",
			}),
			"the auditor appends": addEdge(Edge{
				Callers: []string{"auditor"}, Kind: ServiceImport, Owner: Audit,
				Remote: "audit.<who>.*", Local: "audit.*",
			}),
			"a direct get": addEdge(Edge{
				Callers: []string{"auditor"}, Kind: ServiceImport, Owner: Audit,
				Remote: "$JS.API.DIRECT.GET.AUDIT",
			}),
			"a writer who may read": addEdge(Edge{
				Callers: []string{"broker"}, Kind: ServiceImport, Owner: Audit,
				Remote: "$JS.API.STREAM.MSG.GET.AUDIT", Local: "auditlog.API.STREAM.MSG.GET.AUDIT",
			}),
			"into the broker's stream": addEdge(Edge{
				Callers: []string{"model"}, Kind: ServiceImport, Owner: Audit,
				Remote: "audit.<who>.*", Local: "audit.*",
			}),
			"a model actor reads":  addEdge(auditReadEdges("model_gpu-box")[0]),
			"boot writes anything": func(l *Layout) { findAccount(l, Audit).Users[0].Pub = []string{"audit.*.*"} },
		}},
		{"no account administers streams", checkNoStreamAdmin, map[string]func(l *Layout){
			"create":            addEdge(jetStreamEdge("broker", "STREAM.CREATE.X", false, "")),
			"update":            addEdge(jetStreamEdge("broker", "STREAM.UPDATE.EVENTS", false, "")),
			"delete":            addEdge(jetStreamEdge("broker", "STREAM.DELETE.EVENTS", false, "")),
			"purge":             addEdge(jetStreamEdge("broker", "STREAM.PURGE.KV_ledger", false, "")),
			"consumer":          addEdge(jetStreamEdge("memory_in", "CONSUMER.CREATE.EVENTS.>", false, "")),
			"old consumer":      addEdge(jetStreamEdge("memory_in", "CONSUMER.DURABLE.CREATE.EVENTS.x", false, "")),
			"delete a consumer": addEdge(jetStreamEdge("memory_in", "CONSUMER.DELETE.EVENTS.memory", false, "")),
			"delete a message":  addEdge(jetStreamEdge("user", "STREAM.MSG.DELETE.EVENTS", false, "")),
			"snapshot":          addEdge(jetStreamEdge("user", "STREAM.SNAPSHOT.EVENTS", false, "")),
			"restore":           addEdge(jetStreamEdge("user", "STREAM.RESTORE.EVENTS", false, "")),
			"by a wildcard":     addEdge(jetStreamEdge("user", "STREAM.*.EVENTS", false, "")),
			"everything":        addEdge(jetStreamEdge("user", ">", true, "")),
			"purge an account": func(l *Layout) {
				findAccount(l, Sys).Users[0].Pub = []string{"$JS.API.ACCOUNT.PURGE.*"}
			},
			"end of a server": func(l *Layout) {
				findAccount(l, Sys).Users[0].Pub = []string{"$SYS.REQ.SERVER.*.LDM"}
			},
			"all of the server": func(l *Layout) { findAccount(l, Sys).Users[0].Pub = []string{"$SYS.REQ.>"} },
		}},
		{"a puller only pulls", checkPullers, map[string]func(l *Layout){
			"speaks": addEdge(Edge{
				Callers: []string{"memory_in"}, Kind: ServiceImport, Owner: Core,
				Remote: "from.<who>.x", Local: "x",
			}),
			"another consumer": addEdge(jetStreamEdge("memory_in", "CONSUMER.MSG.NEXT.EVENTS.critic", true, "")),
			"reads":            addEdge(jetStreamEdge("memory_in", "STREAM.MSG.GET.EVENTS", false, "")),
			"listens": addEdge(Edge{
				Callers: []string{"memory_in"}, Kind: StreamImport, Owner: Core,
				Remote: "live.x", Local: "x",
			}),
			"serves": addEdge(Edge{
				Callers: []string{"user"}, Kind: ServiceImport, Owner: "memory_in",
				Remote: "x",
			}),
			"a free key": func(l *Layout) {
				findAccount(l, "memory_in").Users[0].Pub = []string{"memory.stored"}
			},
			"the actor pulls": addEdge(jetStreamEdge("memory", "CONSUMER.MSG.NEXT.EVENTS.memory", true, "")),
		}},
		{"one key per account", checkOneKey, map[string]func(l *Layout){
			"a second key": func(l *Layout) { addUser(l, "memory", User{Role: "memory2"}) },
			"tools together": func(l *Layout) {
				addUser(l, ToolRole(Tools[0]), User{Role: "tool_x", Isolated: true})
			},
			"a guest of a tool":     func(l *Layout) { addUser(l, "weather", User{Role: "guest", Key: exampleKey(9)}) },
			"a client at a machine": func(l *Layout) { findAccount(l, "generator").Users[1].Leaf = false },
		}},
		{"control subjects belong to the user", checkUserOnly, map[string]func(l *Layout){
			"memory decides": addEdge(Edge{
				Callers: []string{"memory"}, Kind: ServiceImport, Owner: "broker",
				Remote: "ctl.<who>.approval.decision.*", Local: "approval.decision.*",
			}),
			"without the name": addEdge(Edge{
				Callers: []string{"user"}, Kind: ServiceImport, Owner: "broker",
				Remote: "ctl.user.x", Local: "x",
			}),
			"a question by one": addEdge(Edge{
				Callers: []string{"router"}, Kind: ServiceImport, Owner: Core,
				Remote: "query.received",
			}),
		}},
		{"the author is written by the server", checkAuthors, map[string]func(l *Layout){
			"an event without": addEdge(Edge{
				Callers: []string{"critic"}, Kind: ServiceImport, Owner: Core,
				Remote: "from.critic.x", Local: "x",
			}),
			"a call without": addEdge(Edge{
				Callers: []string{"critic"}, Kind: ServiceImport, Owner: "broker",
				Remote: "agent.critic.tool.request.>", Local: "tool.request.>",
			}),
			"twice": addEdge(Edge{
				Callers: []string{"critic"}, Kind: ServiceImport, Owner: Core,
				Remote: "from.<who>.<who>.x", Local: "x",
			}),
			"in the wrong place": addEdge(Edge{
				Callers: []string{"critic"}, Kind: ServiceImport, Owner: Core,
				Remote: "from.x.<who>", Local: "x",
			}),
		}},
		{"every live subject has a publisher", checkLiveSubjects, map[string]func(l *Layout){
			"no writer": addEdge(Edge{
				Callers: UserAccounts, Kind: StreamImport, Owner: Core, Remote: "live.weather",
				Local: "weather",
			}),
			"no echo": func(l *Layout) {
				l.Streams[slices.IndexFunc(l.Streams, func(s Stream) bool {
					return s.Name == "EVENTS"
				})].RepublishFrom = ""
			},
			"wrong name": addEdge(Edge{
				Callers: UserAccounts, Kind: StreamImport, Owner: Core,
				Remote: "live.critique.result", Local: "response.generation",
			}),
		}},
		{"roles and accounts are unique tokens", checkUniqueNames, map[string]func(l *Layout){
			"the same role": func(l *Layout) { addUser(l, "memory", User{Role: "critic"}) },
			"a dot":         func(l *Layout) { addUser(l, "memory", User{Role: "a.b"}) },
			"empty":         func(l *Layout) { addUser(l, "memory", User{}) },
			"the same name": func(l *Layout) {
				l.Accounts = append(l.Accounts, Account{Name: "memory", Users: []User{{Role: "x"}}})
			},
			"no key": func(l *Layout) { l.Accounts = append(l.Accounts, Account{Name: "ghost"}) },
		}},
		{"a run-time principal has the edges of its kind", checkPrincipals, map[string]func(l *Layout){
			"a client calls a tool": addEdge(Edge{
				Callers: []string{"phone"}, Kind: ServiceImport,
				Owner: "broker", Remote: "agent.<who>.tool.request.>", Local: "tool.request.>",
			}),
			"a client approves": addEdge(Edge{
				Callers: []string{"phone"}, Kind: ServiceImport,
				Owner: "gateway", Remote: "client.<who>.agents.reply.*", Local: "agents.reply.<who>.*",
			}),
			"a client prompts for another": addEdge(Edge{
				Callers: []string{"phone"}, Kind: ServiceImport,
				Owner: "gateway", Remote: "client.<who>.agents.prompt.*.*", Local: "agents.prompt.*.user.*",
			}),
			"a client serves": addEdge(Edge{
				Callers: []string{"broker"}, Kind: ServiceImport,
				Owner: "phone", Remote: "x",
			}),
			"a tool asks": addEdge(Edge{
				Callers: []string{"weather"}, Kind: ServiceImport,
				Owner: "gateway", Remote: askRemote, Local: "query.ask",
			}),
			"a tool is called directly": addEdge(Edge{
				Callers: []string{"generator"}, Kind: ServiceImport,
				Owner: "weather", Remote: "tool.request.forecast",
			}),
			"a machine's tool calls": addEdge(Edge{
				Callers: []string{"tools_gpu-box"}, Kind: ServiceImport,
				Owner: "broker", Remote: "agent.<who>.tool.request.>", Local: "tool.request.>",
			}),
			"a machine's model reads audit": addEdge(auditReadEdges("model_gpu-box")[0]),
			"a witness appends": addEdge(Edge{
				Callers: []string{"witness_gpu-box"}, Kind: ServiceImport,
				Owner: Core, Remote: "from.<who>.x", Local: "x",
			}),
			"a tool as a leaf node":         func(l *Layout) { findAccount(l, "weather").Users[0].Leaf = true },
			"a machine as a client":         func(l *Layout) { findAccount(l, "model_gpu-box").Users[0].Leaf = false },
			"a leaf node with a variable":   func(l *Layout) { findAccount(l, "generator").Users[1].Key = "" },
			"more leaf nodes than machines": func(l *Layout) { findAccount(l, "generator").MaxLeafs = 2 },
		}},
	} {
		if !slices.ContainsFunc(rules, func(r namedRule) bool { return r.name == tt.name }) {
			t.Errorf("%s is not among the rules of Check", tt.name)
		}
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for what, spoil := range tt.breaks {
				l := copyTable(t)
				spoil(&l)
				if len(tt.rule(l)) == 0 {
					t.Errorf("the rule does not see: %s", what)
				}
			}
			for _, wrong := range append(tt.rule(Table()), tt.rule(copyTable(t))...) {
				t.Error(wrong)
			}
		})
	}
}

var exampleLayout = sync.OnceValues(func() (Layout, error) { return Table().With(examplePrincipals()) })

// copyTable returns a table with run-time principals that a test may change.
func copyTable(t *testing.T) Layout {
	t.Helper()
	l, err := exampleLayout()
	if err != nil {
		t.Fatal(err)
	}
	l.Accounts, l.Edges = slices.Clone(l.Accounts), slices.Clip(l.Edges)
	l.Streams, l.Consumers = slices.Clone(l.Streams), slices.Clone(l.Consumers)
	for i := range l.Accounts {
		l.Accounts[i].Users = slices.Clone(l.Accounts[i].Users)
	}
	return l
}

func addEdge(e Edge) func(l *Layout) { return func(l *Layout) { l.Edges = append(l.Edges, e) } }

func findAccount(l *Layout, name string) *Account {
	return &l.Accounts[slices.IndexFunc(l.Accounts, func(a Account) bool { return a.Name == name })]
}

func addUser(l *Layout, name string, u User) {
	a := findAccount(l, name)
	a.Users = append(a.Users, u)
}

func findBucket(l *Layout, name string) *Stream {
	return &l.Streams[slices.IndexFunc(l.Streams, func(s Stream) bool { return s.Bucket == name })]
}

// findUnreachable lists specs without a publisher, without a subscriber, or with an unknown stream.
func findUnreachable(l Layout, specs []Spec) (wrong []string) {
	var say, hear []string
	for _, e := range l.Edges {
		for _, w := range e.Callers {
			remote, local := e.Resolve(w)
			if e.Kind == ServiceImport {
				say, hear = append(say, local), append(hear, remote)
			} else {
				say, hear = append(say, remote), append(hear, local)
			}
		}
	}
	for _, p := range l.Consumers { // a stream may rename what it stores
		hear = append(hear, p.Filter...)
	}
	for _, s := range specs {
		if s.Unserved != "" {
			wrong = append(wrong, checkUnserved(l, s)...)
			continue
		}
		if !slices.ContainsFunc(say, func(x string) bool { return Overlap(x, s.Name) }) {
			wrong = append(wrong, "no publisher of "+s.Name)
		}
		if !slices.ContainsFunc(hear, func(x string) bool { return Overlap(x, s.Subscription()) }) {
			wrong = append(wrong, "no subscriber of "+s.Subscription())
		}
		if s.Stream != "" && !slices.ContainsFunc(l.Streams, func(st Stream) bool { return st.Name == s.Stream }) {
			wrong = append(wrong, fmt.Sprintf("%s is stored in %s, which does not exist", s.Name, s.Stream))
		}
		if s.Doc == "" {
			wrong = append(wrong, s.Name+" has no documentation")
		}
	}
	return wrong
}

// checkUnserved: a subject that no actor serves leads from the user to the router, which rejects it, and nowhere else.
func checkUnserved(l Layout, s Spec) (wrong []string) {
	rejected := false
	for _, e := range l.Edges {
		for _, w := range e.Callers {
			remote, local := e.Resolve(w)
			if !Overlap(local, s.Name) {
				continue
			}
			if e.Kind != ServiceImport || w != "user" || e.Owner != Router || remote != "ctl.user.unserved."+s.Name {
				wrong = append(wrong, fmt.Sprintf("%s reaches %s of %s as %s, which no actor serves", w, remote,
					e.Owner, local))
			}
			rejected = true
		}
	}
	if !rejected {
		wrong = append(wrong, "no actor rejects "+s.Name)
	}
	return wrong
}

// TestSpecsReachable shows that the list of subjects and the table of edges agree.
func TestSpecsReachable(t *testing.T) {
	t.Parallel()
	for _, s := range []Spec{
		{Name: "weather.report", Doc: "x"},
		{
			Name: "response.generation", Received: "nowhere",
			Doc: "x",
		},
		{Name: "response.generation", Stream: "NOTHING", Doc: "x"},
		{Name: "response.generation"},
		{Name: "response.generation", Unserved: "x", Doc: "x"},
		{Name: "weather.report", Unserved: "x", Doc: "x"},
	} {
		if len(findUnreachable(Table(), []Spec{s})) == 0 {
			t.Errorf("the rule does not see %+v", s)
		}
	}
	machine := Principal{Name: "gpu-box", Kind: MachinePrincipal, Actors: MachineActors(), Keys: map[string]string{}}
	for i, a := range machine.Accounts() {
		machine.Keys[a] = "U" + strings.Repeat(string(rune('A'+i)), 55)
	}
	withMachine, err := Table().With([]Principal{machine}) // some subjects exist only between the hub and a machine
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range findUnreachable(withMachine, AllSpecs()) {
		t.Error(wrong)
	}
	seen := map[string]bool{}
	for _, s := range AllSpecs() {
		if seen[s.Name] {
			t.Errorf("%s is listed twice", s.Name)
		}
		seen[s.Name] = true
	}
}

// findUnlisted lists the topics of a source file that its AllSpecs does not list.
func findUnlisted(t *testing.T, name string, src any) (out []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), name, src, 0)
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Name.Name == "AllSpecs" {
			ast.Inspect(fn, func(n ast.Node) bool {
				if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "Spec" {
					if x, ok := sel.X.(*ast.Ident); ok {
						listed[x.Name] = true
					}
				}
				return true
			})
		}
	}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.VAR {
			continue
		}
		for _, s := range g.Specs {
			for _, n := range s.(*ast.ValueSpec).Names {
				if !listed[n.Name] {
					out = append(out, n.Name)
				}
			}
		}
	}
	return out
}

// TestEveryTopicListed shows that no topic is missing from AllSpecs, and so from the documentation and the rules.
func TestEveryTopicListed(t *testing.T) {
	t.Parallel()
	broken := "package subjects\nvar (\n\tA = Topic[Query]{}\n\tB = Topic[Query]{}\n)\nfunc AllSpecs() []Spec { " +
		"return []Spec{A.Spec} }\n"
	if got := findUnlisted(t, "broken.go", broken); !slices.Equal(got, []string{"B"}) {
		t.Errorf("the rule sees %v in a list without B", got)
	}
	if got := findUnlisted(t, "topics.go", nil); len(got) > 0 {
		t.Errorf("not in AllSpecs: %v", got)
	}
}

// findForeignImports lists imports of a source file that are not of the standard library.
func findForeignImports(t *testing.T, name string, src any) (out []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range f.Imports {
		path, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(path, "/")
		if strings.Contains(first, ".") || first == "conclave" && path != "conclave/subjects" {
			out = append(out, path)
		}
	}
	return out
}

// TestStandardLibraryOnly shows that the package imports nothing but the standard library; its examples import itself.
func TestStandardLibraryOnly(t *testing.T) {
	t.Parallel()
	if got := findForeignImports(t, "broken.go", "package subjects\nimport "+
		"(\n\t\"fmt\"\n\t\"conclave/pkg/bus\"\n\t\"github.com/nats-io/nats.go\"\n)\n"); len(got) != 2 {
		t.Errorf("the rule sees only %v", got)
	}
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, f := range files {
		if got := findForeignImports(t, f, nil); len(got) > 0 {
			t.Errorf("%s imports %v", f, got)
		}
	}
}

// TestRoles shows that each key is either lasting or of boot, and that every variable of nats.conf has a name for it.
func TestRoles(t *testing.T) {
	t.Parallel()
	l := Table()
	lasting, boot := l.Roles()
	if !slices.Equal(boot, []string{"audit_prov", "core_prov"}) {
		t.Errorf("boot roles: %v", boot)
	}
	for _, r := range append(slices.Clone(lasting), boot...) {
		if !slices.Contains(l.EnvVars(), KeyEnvVar(r)) || !strings.Contains(l.Conf(), "$"+KeyEnvVar(r)) {
			t.Errorf("%s has no variable in nats.conf", r)
		}
	}
	if l.AccountOf("nobody") != "" || l.AccountOf("tool_run_shell") != "tool_run_shell" {
		t.Error("AccountOf is wrong")
	}
	for zone, tools := range Zones {
		for _, tool := range tools {
			if ZoneOf(tool) != zone {
				t.Errorf("%s is in %s, not in %s", tool, ZoneOf(tool), zone)
			}
		}
	}
	if ZoneOf("nothing") != "" {
		t.Error("a tool without a server has a zone")
	}
}

// TestRequestsNameTheirServer: for every request that an actor serves the table says which one.
func TestRequestsNameTheirServer(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]Spec{
		"model": ModelChat.Spec, "broker": ToolRequestService.Spec, "memory": MemoryQueryService.Spec,
		"registry": DoctorService.Spec, "generator": SessionChangeService.Spec,
		"committee": SessionChangeCommittee.Spec, "": ResponseGeneration.Spec,
	} {
		if got := want.Server(); got != name {
			t.Errorf("%s is served by %q, want %q", want.Name, got, name)
		}
	}
}
