package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"conclave/actors/broker"
	"conclave/actors/mcp"
	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/config"
	"conclave/pkg/bus"
	"conclave/pkg/client"
	"conclave/pkg/file"
	"conclave/pkg/keyring"
	"conclave/pkg/logfile"
	"conclave/pkg/policy"
	"conclave/pkg/sandbox"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// mcpCommand is the parent of the commands about MCP servers.
func mcpCommand(a *cli.App) *cobra.Command {
	return cli.Group("mcp", "Use tools of MCP servers, and serve Conclave to MCP clients",
		`Tools of MCP servers are offered behind the broker as mcp_<server>_<tool>: every call is authorized and recorded like a call of any
other tool. A server that is a program runs in the sandbox, with the files and hosts that you allow and no others. Each server has an
account of its own, so that it can answer for its own tools only. What it writes is untrusted content.

"conclave mcp serve" is a server itself, for programs that start MCP servers.`,
		`  conclave mcp add time --agent assistant --read /opt/mcp --env PYTHONPATH=/opt/mcp -- python3 -m mcp_server_time
  conclave mcp add files --read /opt/mcp --write ~/notes -- node /opt/mcp/files.js ~/notes
  conclave mcp add issues --url https://mcp.example.org/mcp --header 'Authorization=Bearer ${secret:mcp_issues}'
  conclave mcp import ~/.config/Claude/claude_desktop_config.json
  conclave mcp list
  conclave mcp test files`,
		mcpAddCommand(a), mcpListCommand(a), mcpTestCommand(a), mcpRemoveCommand(a), mcpImportCommand(a), mcpServeCommand(a))
}

// mcpTestTimeout bounds a connection of the command line to a server.
const mcpTestTimeout = 2 * time.Minute

// mcpReport is what a server offers.
type mcpReport struct {
	Server    string         `json:"server"`
	Folder    string         `json:"folder,omitempty"`      // working folder of a program that was added
	TestRun   string         `json:"test_folder,omitempty"` // working folder of this run
	Info      string         `json:"info"`
	Tools     []mcpTool      `json:"tools"`
	Rejected  []mcp.Rejected `json:"rejected"`
	Resources []mcp.Item     `json:"resources"`
	Prompts   []mcp.Item     `json:"prompts"`
	Refused   []string       `json:"refused"` // requests of the server
	Result    string         `json:"result,omitempty"`
}

// mcpTool is a tool as it is mounted.
type mcpTool struct {
	Name        string `json:"name"`
	Tool        string `json:"tool"` // its name at the server
	Description string `json:"description"`
	Pin         string `json:"pin"` // hash of its definition
}

// connectMCP starts or reaches a server, runs f and ends it again. A program has a working folder of this run alone, which f gets: that of the
// running server is in use. Credentials are read from the keyring of this machine.
func connectMCP(ctx context.Context, a *cli.App, cfg config.Config, name string, server mcp.Server, f func(ctx context.Context, s *mcp.Session, folder string) error) (refused []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, mcpTestTimeout)
	defer cancel()
	o := cfg.MCPOptions(a.Home)
	o.Name, o.Server, o.Version = name, server, readBuild().Version
	folder := ""
	if server.Command != "" {
		kept := filepath.Join(o.Folder, name)
		if o.Folder, err = makeTestFolder(o.Folder + "-test"); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, removeTestFolder(o.Folder)) }()
		folder = filepath.Join(o.Folder, name)
		o.Server = moveServer(server, kept, folder)
	}
	said := make(chan string, 20)
	o.Refused = func(what string) {
		select {
		case said <- what:
		default:
		}
	}
	run := func(ctx context.Context) error {
		s, err := mcp.Connect(ctx, o)
		if err != nil {
			return cli.Fail(cli.ExitAbsent, err.Error(), "correct the command or the URL; settings that were stored before are in mcp.yaml")
		}
		defer s.Close()
		return f(ctx, s, folder)
	}
	if len(server.Secrets()) == 0 {
		err = run(ctx)
	} else {
		err = withKeyring(ctx, a, func(opened context.Context, r keyring.Ring, _ keyring.Info) error {
			o.Secret = func(ctx context.Context, secret string) (string, error) {
				v, err := r.Get(ctx, secret)
				if err != nil {
					return "", err
				}
				defer v.Wipe()
				return string(v.Reveal()), nil
			}
			return run(opened)
		})
	}
	for len(said) > 0 {
		refused = append(refused, <-said)
	}
	return refused, err
}

// makeTestFolder makes a new folder for one run in the folder at path, which it makes when it is missing.
func makeTestFolder(path string) (string, error) {
	if err := file.MakeFolder(path); err != nil {
		return "", fmt.Errorf("making the working folder: %w; set folder in mcp.yaml", err)
	}
	return os.MkdirTemp(path, "run-")
}

// removeTestFolder removes a folder of [makeTestFolder], and the one that it is in unless another run uses that.
func removeTestFolder(path string) error {
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("removing the working folder of this run: %w", err)
	}
	_ = os.Remove(filepath.Dir(path))
	return nil
}

// moveServer returns the settings of a program with another working folder where its environment and arguments name the kept one: a file in
// that folder is not visible in a run that has a folder of its own.
func moveServer(s mcp.Server, kept, folder string) mcp.Server {
	s.Env, s.Args = maps.Clone(s.Env), slices.Clone(s.Args)
	for name, v := range s.Env {
		s.Env[name] = movePath(v, kept, folder)
	}
	for i, v := range s.Args {
		s.Args[i] = movePath(v, kept, folder)
	}
	return s
}

// movePath replaces the path from, and paths below it, by to in v. It leaves paths that only begin or end alike.
func movePath(v, from, to string) string {
	isName := func(r rune) bool {
		return r == '.' || r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r)
	}
	var b strings.Builder
	for {
		before, after, ok := strings.Cut(v, from)
		b.WriteString(before)
		if !ok {
			return b.String()
		}
		next, _ := utf8.DecodeRuneInString(after)
		last, _ := utf8.DecodeLastRuneInString(b.String())
		if isName(next) || isName(last) || last == '/' {
			b.WriteString(from)
		} else {
			b.WriteString(to)
		}
		v = after
	}
}

// inspectMCP returns what a server offers.
func inspectMCP(ctx context.Context, a *cli.App, cfg config.Config, name string, server mcp.Server, also func(ctx context.Context, s *mcp.Session, r *mcpReport) error) (mcpReport, error) {
	r := mcpReport{Server: name, Tools: []mcpTool{}, Rejected: []mcp.Rejected{}, Resources: []mcp.Item{}, Prompts: []mcp.Item{}, Refused: []string{}}
	refused, err := connectMCP(ctx, a, cfg, name, server, func(ctx context.Context, s *mcp.Session, folder string) error {
		r.TestRun = folder
		listed, err := s.Tools(ctx)
		if err != nil {
			return fmt.Errorf("listing the tools of %s: %w", name, err)
		}
		defs, rejected := mcp.Define(name, listed)
		for _, d := range defs {
			r.Tools = append(r.Tools, mcpTool{d.Schema.Name, d.Tool, d.Schema.Description, broker.Pin(d.Schema)})
		}
		r.Info, r.Rejected = s.Info(), append(r.Rejected, rejected...)
		r.Resources, r.Prompts = append(r.Resources, s.Resources(ctx)...), append(r.Prompts, s.Prompts(ctx)...)
		if also != nil {
			return also(ctx, s, &r)
		}
		return nil
	})
	r.Refused = append(r.Refused, refused...)
	if server.Command != "" {
		r.Folder = filepath.Join(cfg.MCPOptions(a.Home).Folder, name)
	}
	return r, err
}

// mcpAddCommand adds a server, or accepts its tools anew.
func mcpAddCommand(a *cli.App) *cobra.Command {
	var s mcp.Server
	var env, headers, agents, tools, acts []string
	cmd := &cobra.Command{
		Use:   "add <server> [flags] [-- command args...]",
		Short: "Add an MCP server, or accept its new tools",
		Long: `Starts the server once, lists its tools, writes its settings to mcp.yaml and makes an account of its own for it. The running system
then starts it. Without a command and --url the settings that mcp.yaml has are used: that is how to add a server after an import or a
change by hand, and how to accept tools that it has got since. Flags then replace the settings of the same name.

The listed definition of a new tool is the accepted one: a server that announces another one when it runs waits for "conclave tool accept".

Without --agent you alone can call the tools of a new server, and those of a server that was added before keep the agents that they have; --agent
none withdraws them from all agents. Without --act each call of an agent asks you. A credential is never an argument: store it with "conclave secret
set mcp_<server>_<name>", and write ${secret:mcp_<server>_<name>} where its value belongs.`,
		Example: `  conclave mcp add time --act get_current_time=read --read /opt/mcp --env PYTHONPATH=/opt/mcp -- python3 -m mcp_server_time
  conclave mcp add issues --url https://mcp.example.org/mcp --header 'Authorization=Bearer ${secret:mcp_issues}'
  conclave mcp add files
  conclave mcp add files --agent none`,
		Args: cli.Args(cobra.MinimumNArgs(1)), ValidArgsFunction: completeServers(a),
		RunE: func(cmd *cobra.Command, v []string) error {
			if err := mcp.CheckName(v[0]); err != nil {
				return cli.Usage("%v", err)
			}
			var err error
			if s.Env, err = parsePairs("env", env); err != nil {
				return err
			}
			if s.Headers, err = parsePairs("header", headers); err != nil {
				return err
			}
			declared, err := parsePairs("act", acts)
			if err != nil {
				return err
			}
			if len(v) > 1 {
				s.Command, s.Args = v[1], v[2:]
			}
			if slices.Equal(agents, []string{"none"}) {
				agents = []string{}
			}
			return addServer(cmd.Context(), a, v[0], s, mcpChoice{agents, tools, declared})
		},
	}
	f := cmd.Flags()
	f.StringVar(&s.URL, "url", "", "`URL` of a server with streamable HTTP")
	f.StringArrayVar(&headers, "header", nil, "`name=value` of an HTTP header")
	f.StringArrayVar(&env, "env", nil, "`name=value` of a variable of the program")
	f.StringArrayVar(&s.Read, "read", nil, "absolute `path` of a file or folder that the program may read")
	f.StringArrayVar(&s.Write, "write", nil, "absolute `path` of a folder that the program may change")
	f.StringArrayVar(&s.Hosts, "host", nil, "`host` that the program may connect to over https")
	f.DurationVar(&s.Timeout, "timeout", 0, "longest `time` of a call")
	f.StringSliceVar(&agents, "agent", nil, "agent `types` that may call the tools, such as assistant; none for your own calls only (default: those that may call them already)")
	f.StringSliceVar(&tools, "tool", nil, "`names` of the tools to add, as the server calls them (default: all)")
	f.StringSliceVar(&acts, "act", nil, "`tool=act` that a tool performs, such as search=read; without it each call asks")
	return cmd
}

// mcpChoice is what the user chose about the tools of a server.
type mcpChoice struct {
	agents []string          // nil = those that the tools have, empty = none
	tools  []string          // empty = all
	acts   map[string]string // by the server's name of the tool
}

// parsePairs parses flags of the form name=value. A wrong one is not repeated: it may be a credential.
func parsePairs(flag string, pairs []string) (map[string]string, error) {
	var out map[string]string
	for _, p := range pairs {
		name, value, ok := strings.Cut(p, "=")
		if !ok || name == "" {
			return nil, cli.Usage("--%s: write name=value", flag)
		}
		if out == nil {
			out = map[string]string{}
		}
		out[name] = value
	}
	return out, nil
}

// downloaders are programs that download a server before they start it.
var downloaders = []string{"npx", "pnpx", "bunx", "uvx", "pipx"}

// addServer adds a server, or its new tools when it was added before.
func addServer(ctx context.Context, a *cli.App, name string, s mcp.Server, choice mcpChoice) error {
	cfg, err := a.LoadConfig(nil)
	if err != nil {
		return err
	}
	known, ok := cfg.MCP.Servers[name]
	switch isNew := s.Command != "" || s.URL != ""; {
	case !isNew && !ok:
		return cli.Usage("%s is not in mcp.yaml: give a command after --, or --url", name)
	case !isNew:
		s = changeServer(known, s)
	}
	if holdsCredential(s.URL) { // before anything that may quote it
		return cli.Usage("the url looks like it holds a credential: store it with conclave secret set mcp_%s_key, and send it with --header, as in --header 'Authorization=Bearer ${secret:mcp_%[1]s_key}'", name)
	}
	if err := s.Problems().Err(); err != nil {
		return cli.Usage("%v", err)
	}
	if program := filepath.Base(s.Command); slices.Contains(downloaders, program) && len(s.Hosts)+len(s.Read) == 0 {
		return cli.Usage("%s downloads the server, and its sandbox has no network: install the server to a folder and start it there with --read, or allow the registry with --host; see docs/mcp.md", program)
	}
	return a.WithClient(func(c *client.Client) error {
		all, err := c.Principals(ctx)
		if err != nil {
			return err
		}
		r, err := inspectMCP(ctx, a, cfg, name, s, nil)
		if err != nil {
			return err
		}
		p := subjects.Principal{Name: subjects.MCPPrincipal(name), Kind: subjects.ToolPrincipal, Declared: map[string]subjects.ToolDeclaration{}}
		before := slices.IndexFunc(all, func(o subjects.Principal) bool { return o.Name == p.Name })
		if before >= 0 {
			p.Keys = all[before].Keys
			maps.Copy(p.Declared, all[before].Declared)
		}
		if err := chooseTools(&p, r, choice); err != nil {
			return err
		}
		for _, t := range p.Tools {
			if err := checkDeclaration(cfg.Manifest, t, p.Declared[t]); err != nil {
				return err
			}
		}
		if before >= 0 {
			err = updatePrincipal(ctx, a, c, p)
		} else {
			_, err = makeKey(ctx, a, c, subjects.PrincipalAdd, p)
		}
		if err == nil && !reflect.DeepEqual(s, known) {
			err = config.SetMCPServer(a.Home, name, &s)
		}
		if err != nil {
			return err
		}
		r.TestRun = "" // it is gone
		return printAdded(a, r, s, p, cfg.Manifest)
	})
}

// printAdded prints what a server offers that was added as p, and who can call its tools, and what its user may have to do.
func printAdded(a *cli.App, r mcpReport, s mcp.Server, p subjects.Principal, m policy.Manifest) error {
	if a.JSON {
		return a.PrintJSON(r)
	}
	printReport(a, r)
	a.Say("added %s with %d tools, in an account of its own; it starts within a few seconds", r.Server, len(p.Tools))
	for _, dir := range s.Write {
		if ok, user := sandbox.CanWrite(dir); !ok {
			a.Say("its program runs as user %d, who cannot write to %s: chown %[1]d %[2]s", user, dir)
		}
	}
	if callers := describeCallers(p, m); callers != "" {
		a.Say("%s; you can call all; withdraw them with %s mcp add %s --agent none", callers, a.Program(), r.Server)
	} else {
		a.Say("you alone can call them: %s call %s '{...}'; give them to agents with --agent", a.Program(), p.Tools[0])
	}
	return nil
}

// describeCallers says which of the tools of p each agent type can call, by what is declared and by the manifest; "" when none can.
func describeCallers(p subjects.Principal, m policy.Manifest) string {
	var out []string
	for _, typ := range strict.SortedKeys(m.Types) {
		if typ == "operator" { // the user
			continue
		}
		var tools []string
		for _, t := range p.Tools {
			if slices.Contains(p.Declared[t].Agents, typ) || m.HasTool(typ, t) {
				tools = append(tools, t)
			}
		}
		switch len(tools) {
		case 0:
		case len(p.Tools):
			out = append(out, typ+" can call all of them")
		default:
			out = append(out, fmt.Sprintf("%s can call %d of them: %s", typ, len(tools), strings.Join(tools, ", ")))
		}
	}
	return strings.Join(out, "; ")
}

// changeServer returns the settings of a server with those that were given in place of its own.
func changeServer(s, given mcp.Server) mcp.Server {
	if given.Env != nil {
		s.Env = given.Env
	}
	if given.Headers != nil {
		s.Headers = given.Headers
	}
	if given.Read != nil {
		s.Read = given.Read
	}
	if given.Write != nil {
		s.Write = given.Write
	}
	if given.Hosts != nil {
		s.Hosts = given.Hosts
	}
	s.Timeout = cmp.Or(given.Timeout, s.Timeout)
	return s
}

// chooseTools sets the tools of p, and what the user declares about them, with the hashes of their definitions: the broker accepts what the
// user was shown, and not what the server announces when it is started next.
func chooseTools(p *subjects.Principal, r mcpReport, choice mcpChoice) error {
	known := map[string]bool{}
	for _, t := range r.Tools {
		known[t.Tool] = true
		if len(choice.tools) > 0 && !slices.Contains(choice.tools, t.Tool) {
			delete(p.Declared, t.Name)
			continue
		}
		p.Tools = append(p.Tools, t.Name)
		d := p.Declared[t.Name]
		if choice.agents != nil {
			d.Agents = choice.agents
		}
		if act, ok := choice.acts[t.Tool]; ok {
			d.Act = act
		}
		d.Pin = t.Pin
		p.Declared[t.Name] = d
	}
	for _, name := range slices.Concat(choice.tools, strict.SortedKeys(choice.acts)) {
		if !known[name] {
			return cli.Usage("%s has no tool %q that can be mounted; see %s", r.Server, name, "conclave mcp test "+r.Server)
		}
	}
	if len(p.Tools) == 0 {
		return cli.Fail(cli.ExitFailed, r.Server+" has no tool that can be mounted", "see conclave mcp test "+r.Server)
	}
	maps.DeleteFunc(p.Declared, func(tool string, _ subjects.ToolDeclaration) bool { return !slices.Contains(p.Tools, tool) })
	return nil
}

// printReport prints what a server offers.
func printReport(a *cli.App, r mcpReport) {
	fmt.Fprintf(a.Out, "%s: %s\n", r.Server, r.Info)
	var rows [][]string
	if r.Folder != "" {
		rows = append(rows, []string{"  folder", r.Folder})
	}
	if r.TestRun != "" {
		rows = append(rows, []string{"  test folder", r.TestRun, "of this run alone: empty at first, removed afterwards"})
	}
	for _, t := range r.Tools {
		description, _, _ := strings.Cut(t.Description, "\n")
		rows = append(rows, []string{"  tool", t.Name, term.Clip(description, 80)})
	}
	for _, t := range r.Rejected {
		rows = append(rows, []string{"  not mounted", t.Tool, t.Reason})
	}
	for _, i := range r.Resources {
		rows = append(rows, []string{"  resource", i.URI, term.Clip(i.Description, 80)})
	}
	for _, i := range r.Prompts {
		rows = append(rows, []string{"  prompt", i.Name, term.Clip(i.Description, 80)})
	}
	_ = term.Table(a.Out, rows, term.Layout{Whole: true})
	for _, what := range r.Refused {
		fmt.Fprintln(a.Out, "  refused: "+what)
	}
}

// mcpState is a row of the list.
type mcpState struct {
	Server string   `json:"server"`
	Kind   string   `json:"kind"`  // program or url
	State  string   `json:"state"` // added, not added or disabled
	Tools  []string `json:"tools"`
	Status string   `json:"status,omitempty"` // of a server that was added: one of those below
	Reason string   `json:"reason,omitempty"` // why it is not connected, or what waits for the user
}

// Statuses of a server that was added.
const (
	mcpConnected    = "connected"
	mcpWaiting      = "waits for you"
	mcpNotConnected = "not connected"
	mcpNotRunning   = "not running" // conclave does not run
)

// mcpListCommand lists the servers, or what one of them offers.
func mcpListCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "list [server]",
		Short: "List the MCP servers, or the tools, resources and prompts of one",
		Long: `Without a name it lists the servers of mcp.yaml, whether each was added, and whether it runs; it starts none. With a name it starts that server
once and lists its tools, resources and prompts. Status of a server that was added:

  connected      its tools can be called
  waits for you  the definition of a tool changed: it is not offered until you accept it with conclave tool accept
  not connected  with the last error in its log; it is retried
  not running    conclave does not run, so its servers do not either`,
		Example: "  conclave mcp list\n  conclave mcp list files",
		Args:    cli.Args(cobra.MaximumNArgs(1)), ValidArgsFunction: completeServers(a),
		RunE: func(cmd *cobra.Command, v []string) error {
			if len(v) == 1 {
				return testServer(cmd.Context(), a, v[0], "", "")
			}
			states, err := listServers(cmd.Context(), a)
			switch {
			case err != nil:
				return err
			case a.JSON:
				return a.PrintJSON(states)
			case len(states) == 0:
				a.Say("no MCP servers: add one with %s mcp add", a.Program())
				return nil
			}
			var rows [][]string
			for _, s := range states {
				row := []string{s.Server, s.Kind, s.State, fmt.Sprintf("%d tools", len(s.Tools)), s.Status}
				if s.Reason != "" {
					row[4] += ": " + term.OneLine(s.Reason)
				}
				rows = append(rows, row)
			}
			return term.Table(a.Out, rows, term.Layout{Whole: true})
		},
	}
}

// listServers returns the servers of mcp.yaml by name.
func listServers(ctx context.Context, a *cli.App) ([]mcpState, error) {
	cfg, err := a.LoadConfig(nil)
	if err != nil {
		return nil, err
	}
	added := map[string][]string{}
	principals, err := a.Home.ReadPrincipals()
	if err != nil {
		return nil, err
	}
	for _, p := range principals {
		added[p.Name] = p.Tools
	}
	states, runs := []mcpState{}, false
	for _, name := range strict.SortedKeys(cfg.MCP.Servers) {
		s := cfg.MCP.Servers[name]
		row := mcpState{Server: name, Kind: "program", State: "not added", Tools: []string{}}
		if s.URL != "" {
			row.Kind = "url"
		}
		if tools, ok := added[subjects.MCPPrincipal(name)]; ok {
			row.State, row.Tools = "added", tools
		}
		if s.Disabled {
			row.State = "disabled"
		}
		runs = runs || row.State == "added"
		states = append(states, row)
	}
	if !runs {
		return states, nil
	}
	var tools []subjects.ToolStatus
	err = a.WithClient(func(c *client.Client) error {
		tools, err = c.Tools(ctx, "")
		return err
	})
	off := errors.Is(err, bus.ErrNotRunning)
	if err != nil && !off {
		return nil, err
	}
	log, _ := logfile.Read(a.Home.Logs()) // without it the reasons are missing
	for i, s := range states {
		switch {
		case s.State != "added":
		case off:
			states[i].Status = mcpNotRunning
		default:
			states[i].Status, states[i].Reason = describeServer(subjects.MCPPrincipal(s.Server), tools, log)
		}
	}
	return states, nil
}

// describeServer returns the status of an added server of a running system, by the state of its tools, and the reason: what waits for the
// user, or the last error in the log when it is not connected.
func describeServer(principal string, tools []subjects.ToolStatus, log []logfile.Record) (status, reason string) {
	var changed []string
	connected := false
	for _, t := range tools {
		if t.Principal != principal {
			continue
		}
		connected = connected || t.Running
		switch {
		case t.State == subjects.ToolChanged:
			changed = append(changed, "the definition of "+t.Tool+" changed, see conclave tool accept "+t.Tool)
		case t.Rejected != "":
			changed = append(changed, "the definition of "+t.Tool+" was rejected, see conclave tool show "+t.Tool)
		}
	}
	switch {
	case connected && len(changed) > 0:
		return mcpWaiting, strings.Join(changed, "; ")
	case connected:
		return mcpConnected, ""
	}
	for _, r := range slices.Backward(log) {
		var line struct {
			Err string `json:"err"`
		}
		if r.Actor == principal && r.Level >= slog.LevelError && json.Unmarshal(r.Line, &line) == nil && line.Err != "" {
			return mcpNotConnected, line.Err
		}
	}
	return mcpNotConnected, ""
}

// mcpTestCommand starts a server and shows what it offers.
func mcpTestCommand(a *cli.App) *cobra.Command {
	var tool, args string
	cmd := &cobra.Command{
		Use:   "test <server>",
		Short: "Start an MCP server and show what it offers",
		Long: `Starts a server of mcp.yaml in the sandbox, or reaches its URL, and prints its tools, resources and prompts, the tools that cannot be
mounted with the reason, and the requests that it sent and that were refused. With --tool it also calls one tool, not through the broker: the
call is yours, and is not in the audit log.

A program runs in a folder of this run alone, which is empty at first and removed afterwards, and its environment and arguments name that folder in
place of the folder of the running server. Files of the running server are not in it: "conclave call mcp_<server>_<tool>" uses them.`,
		Example: `  conclave mcp test time
  conclave mcp test time --tool get_current_time --args '{"timezone":"UTC"}'`,
		Args: cli.Args(cobra.ExactArgs(1)), ValidArgsFunction: completeServers(a),
		RunE: func(cmd *cobra.Command, v []string) error { return testServer(cmd.Context(), a, v[0], tool, args) },
	}
	cmd.Flags().StringVar(&tool, "tool", "", "`name` of a tool to call, as the server calls it")
	cmd.Flags().StringVar(&args, "args", "{}", "arguments of the call, a `JSON` object")
	return cmd
}

// missingFile matches the texts by which programs say that a file is missing.
var missingFile = regexp.MustCompile(`(?i)\bENOENT\b|no such file`)

// testServer prints what a server offers, and calls a tool unless it is "".
func testServer(ctx context.Context, a *cli.App, name, tool, args string) error {
	if tool != "" && !json.Valid([]byte(args)) {
		return cli.Usage("--args: not a JSON object")
	}
	cfg, err := a.LoadConfig(nil)
	if err != nil {
		return err
	}
	s, ok := cfg.MCP.Servers[name]
	if !ok {
		return cli.Fail(cli.ExitAbsent, "mcp.yaml has no server "+name, "see "+a.Program()+" mcp list")
	}
	r, err := inspectMCP(ctx, a, cfg, name, s, func(ctx context.Context, s *mcp.Session, r *mcpReport) (err error) {
		if tool != "" {
			r.Result, err = s.Call(ctx, tool, json.RawMessage(args))
		}
		if err != nil && r.TestRun != "" && missingFile.MatchString(err.Error()) {
			mounted := tool
			for _, t := range r.Tools {
				if t.Tool == tool {
					mounted = t.Name
				}
			}
			return fmt.Errorf("%w; a test run has a folder of its own, which is empty at first: %s call %s uses that of the running server", err, a.Program(), mounted)
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case a.JSON:
		return a.PrintJSON(r)
	}
	printReport(a, r)
	if tool != "" {
		fmt.Fprintln(a.Out, r.Result)
	}
	return nil
}

// mcpRemoveCommand removes servers.
func mcpRemoveCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "remove <server>...",
		Aliases: []string{"rm"},
		Short:   "Remove MCP servers and their accounts",
		Long: `Removes a server from mcp.yaml, waits until it has stopped, revokes its account, so that its tools can no longer be called, and deletes its key.
Credentials stay in the keyring.`,
		Example: "  conclave mcp remove files",
		Args:    cli.Args(cobra.MinimumNArgs(1)), ValidArgsFunction: completeServers(a),
		RunE: func(cmd *cobra.Command, names []string) error {
			for _, name := range names {
				said, err := removeServer(cmd.Context(), a, name)
				if err != nil {
					return err
				}
				a.Say("%s", said)
			}
			return nil
		},
	}
}

// removeServer revokes the account of a server and removes its settings. It returns what was removed. A server that was not added has no
// account: its settings are removed also while conclave does not run.
func removeServer(ctx context.Context, a *cli.App, name string) (said string, err error) {
	cfg, err := a.LoadConfig(nil)
	if err != nil {
		return "", err
	}
	var principals []subjects.Principal
	err = a.WithClient(func(c *client.Client) error {
		principals, err = c.Principals(ctx)
		return err
	})
	if errors.Is(err, bus.ErrNotRunning) {
		principals, err = a.Home.ReadPrincipals()
	}
	if err != nil {
		return "", err
	}
	s, configured := cfg.MCP.Servers[name]
	at := slices.IndexFunc(principals, func(o subjects.Principal) bool { return o.Name == subjects.MCPPrincipal(name) })
	switch {
	case !configured && at < 0:
		return "", cli.Fail(cli.ExitAbsent, "there is no MCP server "+name, "see "+a.Program()+" mcp list")
	case at < 0:
		return "removed " + name + " from mcp.yaml; it was not added, so it had no account", config.SetMCPServer(a.Home, name, nil)
	}
	said = "removed the account of " + name + ", which is not in mcp.yaml"
	err = a.WithClient(func(c *client.Client) error {
		if configured {
			if err := config.SetMCPServer(a.Home, name, nil); err != nil { // the account goes nevertheless
				return errors.Join(err, revokePrincipal(ctx, a, c, subjects.MCPPrincipal(name)))
			}
			said = "removed " + name + " from mcp.yaml and its account"
			if !awaitStop(ctx, c, principals[at].Tools) {
				said += "; it did not stop in time, and can no longer connect"
			}
			if s.Command != "" {
				said += "; its working folder stays: " + filepath.Join(cfg.MCPOptions(a.Home).Folder, name)
			}
			if len(s.Secrets()) > 0 {
				said += "; its credentials stay in the keyring: " + strings.Join(s.Secrets(), ", ")
			}
		}
		return revokePrincipal(ctx, a, c, subjects.MCPPrincipal(name))
	})
	return said, err
}

// stopTimeout is how long a server may take to stop after its settings are gone.
const stopTimeout = 10 * time.Second

// awaitStop waits until none of the tools of a server is running, so that the server is not disconnected by the loss of its account. It
// returns after stopTimeout in any case, then with false.
func awaitStop(ctx context.Context, c *client.Client, tools []string) bool {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	for {
		list, err := c.Tools(ctx, "")
		if err == nil && !slices.ContainsFunc(list, func(s subjects.ToolStatus) bool { return s.Running && slices.Contains(tools, s.Tool) }) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// completeServers completes the names of configured servers.
func completeServers(a *cli.App) cli.Completion {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return strict.SortedKeys(a.Settings().MCP.Servers), cobra.ShellCompDirectiveNoFileComp
	}
}
