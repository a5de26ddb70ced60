package main

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"conclave/actors/mcp"
	"conclave/cmd/conclave/internal/cli"
	"conclave/config"
	"conclave/pkg/client"
	"conclave/pkg/policy"
	"conclave/pkg/sandbox"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// mcpAddCommand adds a server, or accepts its tools anew.
func mcpAddCommand(a *cli.App) *cobra.Command {
	var s mcp.Server
	var env, headers, agents, tools, acts []string
	cmd := &cobra.Command{
		Use:   "add <server> [flags] [-- command args...]",
		Short: "Add an MCP server, or accept its new tools",
		Long: `Starts the server once, lists its tools, writes its settings to mcp.yaml and makes an account of its
own for it. The running system then starts it. Without a command and --url the settings that
mcp.yaml has are used: that is how to add a server after an import or a change by hand, and how to
accept tools that it has got since. Flags then replace the settings of the same name.

The listed definition of a new tool is the accepted one: a server that announces another one when it
runs waits for "conclave tool accept".

Without --agent you alone can call the tools of a new server, and those of a server that was added
before keep the agents that they have; --agent none withdraws them from all agents. Without --act
each call of an agent asks you. A credential is never an argument: store it with "conclave secret
set mcp_<server>_<name>", and write ${secret:mcp_<server>_<name>} where its value belongs, or
${secretfile:mcp_<server>_<name>} in --env for the path of a file with it, if the program reads one:
it is then not in the environment.`,
		Example: `  conclave mcp add time --act get_current_time=read --read /opt/mcp --env PYTHONPATH=/opt/mcp -- \
    python3 -m mcp_server_time
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
	f.StringSliceVar(&agents, "agent", nil, "agent `types` that may call the tools, such as assistant; none for your "+
		"own calls only (default: those that may call them already)")
	f.StringSliceVar(&tools, "tool", nil, "`names` of the tools to add, as the server calls them (default: all)")
	f.StringSliceVar(&acts, "act", nil,
		"`tool=act` that a tool performs, such as search=read; without it each call asks")
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
		return cli.Usage("the url looks like it holds a credential: store it with conclave secret set mcp_%s_key, "+
			"and send it with --header, as in --header 'Authorization=Bearer ${secret:mcp_%[1]s_key}'", name)
	}
	if err := s.Problems().Err(); err != nil {
		return cli.Usage("%v", err)
	}
	if program := filepath.Base(s.Command); slices.Contains(downloaders, program) && len(s.Hosts)+len(s.Read) == 0 {
		return cli.Usage("%s downloads the server, and its sandbox has no network: install the server to a folder "+
			"and start it there with --read, or allow the registry with --host; see docs/mcp.md", program)
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
		p := subjects.Principal{
			Name: subjects.MCPPrincipal(name), Kind: subjects.ToolPrincipal,
			Declared: map[string]subjects.ToolDeclaration{},
		}
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

// printAdded prints what a server offers that was added as p, and who can call its tools, and what its user may have to
// do.
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

// describeCallers says which of the tools of p each agent type can call, by what is declared and by the manifest; ""
// when none can.
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
	to, from := reflect.ValueOf(&s).Elem(), reflect.ValueOf(given)
	for i := range from.NumField() {
		if !from.Field(i).IsZero() {
			to.Field(i).Set(from.Field(i))
		}
	}
	return s
}

// chooseTools sets the tools of p, and what the user declares about them, with the hashes of their definitions: the
// broker accepts what the user was shown, and not what the server announces when it is started next.
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
			return cli.Usage("%s has no tool %q that can be mounted; see %s", r.Server, name, "conclave mcp test "+
				r.Server)
		}
	}
	if len(p.Tools) == 0 {
		return cli.Fail(cli.ExitFailed, r.Server+" has no tool that can be mounted", "see conclave mcp test "+r.Server)
	}
	maps.DeleteFunc(p.Declared, func(tool string, _ subjects.ToolDeclaration) bool {
		return !slices.Contains(p.Tools, tool)
	})
	return nil
}
