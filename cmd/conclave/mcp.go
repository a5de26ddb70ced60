package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

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
	"conclave/pkg/strict"
	"conclave/subjects"
)

// mcpCommand is the parent of the commands about MCP servers.
func mcpCommand(a *cli.App) *cobra.Command {
	return cli.Group("mcp", "Use tools of MCP servers, and serve Conclave to MCP clients",
		`Tools of MCP servers are offered behind the broker as mcp_<server>_<tool>: every call is authorized
and recorded like a call of any other tool. A server that is a program runs in the sandbox, with the
files and hosts that you allow and no others. Each server has an account of its own, so that it can
answer for its own tools only. What it writes is untrusted content.

"conclave mcp serve" is a server itself, for programs that start MCP servers.`,
		`  conclave mcp add time --agent assistant --read /opt/mcp --env PYTHONPATH=/opt/mcp -- \
    python3 -m mcp_server_time
  conclave mcp add files --read /opt/mcp --write ~/notes -- node /opt/mcp/files.js ~/notes
  conclave mcp add issues --url https://mcp.example.org/mcp --header 'Authorization=Bearer ${secret:mcp_issues}'
  conclave mcp import ~/.config/Claude/claude_desktop_config.json
  conclave mcp list
  conclave mcp test files`,
		mcpAddCommand(a), mcpListCommand(a), mcpTestCommand(a), mcpRemoveCommand(a), mcpImportCommand(a),
		mcpServeCommand(a))
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

// connectMCP starts or reaches a server, runs f and ends it again. A program has a working folder of this run alone,
// which f gets: that of the running server is in use. Credentials are read from the keyring of this machine.
func connectMCP(ctx context.Context, a *cli.App, cfg config.Config, name string, server mcp.Server,
	f func(ctx context.Context, s *mcp.Session, folder string) error,
) (refused []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, mcpTestTimeout)
	defer cancel()
	o := cfg.MCPOptions(a.Home)
	o.Name, o.Server, o.Version = name, server, readBuild().Version
	folder := ""
	if server.Command != "" {
		kept := filepath.Join(o.Folder, name)
		runs := o.Folder + "-test"
		if err = file.MakeFolder(runs); err == nil {
			o.Folder, err = os.MkdirTemp(runs, "run-")
		}
		if err != nil {
			return nil, fmt.Errorf("making the working folder: %w; set folder in mcp.yaml", err)
		}
		defer func() {
			err = errors.Join(err, os.RemoveAll(o.Folder))
			_ = os.Remove(runs) // unless another run uses it
		}()
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
			return cli.Fail(cli.ExitAbsent, err.Error(), "correct the command or the URL; settings that were stored "+
				"before are in mcp.yaml")
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

// moveServer returns the settings of a program with another working folder where its environment and arguments name the
// kept one: a file in that folder is not visible in a run that has a folder of its own.
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
	path := regexp.MustCompile(`(^|[^\pL\p{Nd}._/-])` + regexp.QuoteMeta(from) + `($|[^\pL\p{Nd}._-])`)
	with := "${1}" + strings.ReplaceAll(to, "$", "$$") + "${2}"
	return path.ReplaceAllString(path.ReplaceAllString(v, with), with) // two paths may share what is between them
}

// inspectMCP returns what a server offers.
func inspectMCP(ctx context.Context, a *cli.App, cfg config.Config, name string, server mcp.Server,
	also func(ctx context.Context, s *mcp.Session, r *mcpReport) error,
) (mcpReport, error) {
	r := mcpReport{
		Server: name, Tools: []mcpTool{}, Rejected: []mcp.Rejected{}, Resources: []mcp.Item{},
		Prompts: []mcp.Item{}, Refused: []string{},
	}
	refused, err := connectMCP(ctx, a, cfg, name, server,
		func(ctx context.Context, s *mcp.Session, folder string) error {
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

// printReport prints what a server offers.
func printReport(a *cli.App, r mcpReport) {
	fmt.Fprintf(a.Out, "%s: %s\n", r.Server, r.Info)
	var rows [][]string
	if r.Folder != "" {
		rows = append(rows, []string{"  folder", r.Folder})
	}
	if r.TestRun != "" {
		rows = append(rows, []string{"  test folder", r.TestRun, "of this run alone: empty at first, removed " +
			"afterwards"})
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
	term.Table(a.Out, rows, term.Layout{Whole: true})
	for _, what := range r.Refused {
		fmt.Fprintln(a.Out, "  refused: "+what)
	}
}

// mcpTestCommand starts a server and shows what it offers.
func mcpTestCommand(a *cli.App) *cobra.Command {
	var tool, args string
	cmd := &cobra.Command{
		Use:   "test <server>",
		Short: "Start an MCP server and show what it offers",
		Long: `Starts a server of mcp.yaml in the sandbox, or reaches its URL, and prints its tools, resources and
prompts, the tools that cannot be mounted with the reason, and the requests that it sent and that
were refused. With --tool it also calls one tool, not through the broker: the call is yours, and is
not in the audit log.

A program runs in a folder of this run alone, which is empty at first and removed afterwards, and
its environment and arguments name that folder in place of the folder of the running server. Files
of the running server are not in it: "conclave call mcp_<server>_<tool>" uses them.`,
		Example: `  conclave mcp test time
  conclave mcp test time --tool get_current_time --args '{"timezone":"UTC"}'`,
		Args: cli.Args(cobra.ExactArgs(1)), ValidArgsFunction: completeServers(a),
		RunE: func(cmd *cobra.Command, v []string) error {
			var object map[string]json.RawMessage
			if tool == "" && cmd.Flags().Changed("args") {
				return cli.Usage("--args are the arguments of a tool: name it with --tool")
			}
			if err := json.Unmarshal([]byte(args), &object); err != nil || object == nil {
				return cli.Usage(`--args is not a JSON object such as '{"timezone":"UTC"}', in quotes for the shell`)
			}
			return testServer(cmd.Context(), a, v[0], tool, args)
		},
	}
	cmd.Flags().StringVar(&tool, "tool", "", "`name` of a tool to call, as the server calls it")
	cmd.Flags().StringVar(&args, "args", "{}", "arguments of the call, a `JSON` object")
	return cmd
}

// missingFile matches the texts by which programs say that a file is missing.
var missingFile = regexp.MustCompile(`(?i)\bENOENT\b|no such file`)

// testServer prints what a server offers, and calls a tool unless it is "", with args, a JSON object. A tool that the
// server does not list is not called.
func testServer(ctx context.Context, a *cli.App, name, tool, args string) error {
	cfg, err := a.LoadConfig(nil)
	if err != nil {
		return err
	}
	s, ok := cfg.MCP.Servers[name]
	if !ok {
		return cli.Fail(cli.ExitFailed, "mcp.yaml has no server "+name, "see "+a.Program()+" mcp list")
	}
	r, err := inspectMCP(ctx, a, cfg, name, s, func(ctx context.Context, s *mcp.Session, r *mcpReport) (err error) {
		if tool != "" {
			if err := checkListed(tool, r); err != nil {
				return err
			}
			r.Result, err = s.Call(ctx, tool, json.RawMessage(args))
		}
		if err != nil && r.TestRun != "" && missingFile.MatchString(err.Error()) {
			mounted := tool
			for _, t := range r.Tools {
				if t.Tool == tool {
					mounted = t.Name
				}
			}
			return fmt.Errorf("%w; a test run has a folder of its own, which is empty at first: %s call %s uses that "+
				"of the running server", err, a.Program(), mounted)
		}
		return err
	})
	return a.Print(r, err, func() {
		printReport(a, r)
		if tool != "" {
			fmt.Fprintln(a.Out, r.Result)
		}
	})
}

// checkListed rejects a tool that the server of r does not list, mounted or not.
func checkListed(tool string, r *mcpReport) error {
	var names []string
	for _, t := range r.Tools {
		names = append(names, t.Tool)
	}
	for _, t := range r.Rejected {
		names = append(names, t.Tool)
	}
	if slices.Contains(names, tool) {
		return nil
	}
	return cli.Usage("%s has no tool %q%s: choose from %s", r.Server, tool, cli.Nearest(tool, names),
		strings.Join(names, ", "))
}

// mcpRemoveCommand removes servers.
func mcpRemoveCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "remove <server>...",
		Aliases: []string{"rm"},
		Short:   "Remove MCP servers and their accounts",
		Long: `Removes a server from mcp.yaml, waits until it has stopped, revokes its account, so that its tools
can no longer be called, and deletes its key. Credentials stay in the keyring.`,
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

// removeServer revokes the account of a server and removes its settings. It returns what was removed. A server that was
// not added has no account: its settings are removed also while conclave does not run.
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
		return "", cli.Fail(cli.ExitFailed, "there is no MCP server "+name, "see "+a.Program()+" mcp list")
	case at < 0:
		return "removed " + name + " from mcp.yaml; it was not added, so it had no account",
			config.SetMCPServer(a.Home, name, nil)
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

// awaitStop waits until none of the tools of a server is running, so that the server is not disconnected by the loss of
// its account. It returns after stopTimeout in any case, then with false.
func awaitStop(ctx context.Context, c *client.Client, tools []string) bool {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	for {
		list, err := c.Tools(ctx, "")
		if err == nil && !slices.ContainsFunc(list, func(s subjects.ToolStatus) bool {
			return s.Running && slices.Contains(tools, s.Tool)
		}) {
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
		return strict.SortedKeys(a.NamingConfig().MCP.Servers), cobra.ShellCompDirectiveNoFileComp
	}
}
