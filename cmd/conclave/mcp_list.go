package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/pkg/bus"
	"conclave/pkg/client"
	"conclave/pkg/logfile"
	"conclave/pkg/strict"
	"conclave/subjects"
)

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
		Long: `Without a name it lists the servers of mcp.yaml, whether each was added, and whether it runs; it
starts none. With a name it starts that server once and lists its tools, resources and prompts.
Status of a server that was added:

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
			return cli.PrintTable(a, states, err, "no MCP servers: add one with "+a.Program()+" mcp add",
				term.Layout{Whole: true}, func(s mcpState) []string {
					if s.Reason != "" {
						s.Status += ": " + term.OneLine(s.Reason)
					}
					return []string{s.Server, s.Kind, s.State, fmt.Sprintf("%d tools", len(s.Tools)), s.Status}
				})
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

// describeServer returns the status of an added server of a running system, by the state of its tools, and the reason:
// what waits for the user, or the last error in the log when it is not connected.
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
		if r.Actor == principal && r.Level >= slog.LevelError && json.Unmarshal(r.Line, &line) == nil &&
			line.Err != "" {
			return mcpNotConnected, line.Err
		}
	}
	return mcpNotConnected, ""
}
