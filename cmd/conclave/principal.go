package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/pkg/client"
	"conclave/pkg/file"
	"conclave/subjects"
)

// principalCommand is the parent of the commands about accounts that are added while conclave runs.
func principalCommand(a *cli.App) *cobra.Command {
	return cli.Group("principal", "Add, list, revoke and rotate accounts of your own tools and clients",
		`A principal is an account on the bus with a key of its own: a program of yours that serves tools, or
one that asks questions. It is added to the running system without a restart, and has no rights
beyond those of its kind:

  tool    announces and serves the named tools to the broker. Agents may call them as far as the
          manifest allows.
  client  asks questions with query.ask or the agent protocol, or over HTTP with a token of its own,
          in sessions of its own. What it writes counts as untrusted content: it permits nothing.

Machines are added with conclave invite. Every change is in the audit log.`,
		`  conclave principal add phone --kind client
  conclave principal list`,
		principalAddCommand(a), principalListCommand(a), principalRevokeCommand(a), principalRotateCommand(a))
}

// principalReport is what a command changed. The seed is never printed.
type principalReport struct {
	Name   string `json:"name"`
	Action string `json:"action"`
	Key    string `json:"key,omitempty"` // path of the file with the seed
	Public string `json:"public,omitempty"`
	Token  string `json:"token,omitempty"` // path of the file with the HTTP token of a client
}

// principalAddCommand adds a tool or a client.
func principalAddCommand(a *cli.App) *cobra.Command {
	var kind string
	var tools, allow []string
	cmd := &cobra.Command{
		Use:   "add <name> --kind tool|client",
		Short: "Add an account with a key of its own",
		Long: `Adds a principal and writes its key to a file of the key folder. Only the path is printed, never the
key. Give the file to the program that connects, for example as --nkey of the nats command line. A
client also gets a file with a token for HTTP: programs send it as the API key, see docs/clients.md.

A tool is offered to agents when it has announced itself and the manifest gives it to their type.`,
		Example: `  conclave principal add weather --kind tool --tools forecast,tides
  conclave principal add phone --kind client
  conclave principal add prometheus --kind client --allow metrics`,
		Args: cli.Args(cobra.ExactArgs(1)), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, v []string) error {
			p := subjects.Principal{Name: v[0], Kind: subjects.PrincipalKind(kind), Tools: tools, Allow: allow}
			switch {
			case p.Kind != subjects.ToolPrincipal && p.Kind != subjects.ClientPrincipal:
				return cli.Usage("--kind %q: give tool or client; a machine is added with conclave invite", kind)
			case p.Kind == subjects.ToolPrincipal && len(tools) == 0:
				return cli.Usage("a tool needs --tools with the names of the tools that it serves")
			}
			return changeKey(cmd.Context(), a, subjects.PrincipalAdd, p)
		},
	}
	cmd.Flags().StringVar(&kind, "kind", "", "`kind` of the principal: tool or client")
	cmd.Flags().StringSliceVar(&tools, "tools", nil, "`names` of the tools that it serves, separated by commas")
	cmd.Flags().StringSliceVar(&allow, "allow", nil, "`tools` of MCP that a client may use beyond questions: "+
		"search_memory, add_memory, audit_status; or metrics alone, for one that reads metrics and cannot ask")
	cli.CompleteFlags(cmd,
		map[string]cli.Completion{"kind": cli.Words(string(subjects.ToolPrincipal), string(subjects.ClientPrincipal))})
	return cmd
}

// principalListCommand lists the run-time principals.
func principalListCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the accounts that were added",
		Long: `Lists the principals that were added: name, kind, tools or actors, and when. With --json it prints
one array, with the public keys.`,
		Example: `  conclave principal list --json | jq -r '.[].name'`,
		Args:    cli.NoArgs,
		RunE: a.Read(func(ctx context.Context, c *client.Client, _ []string) error {
			all, err := c.Principals(ctx)
			return cli.PrintTable(a, all, err, "no principals were added: add one with "+a.Program()+" principal add",
				term.Layout{}, func(p subjects.Principal) []string {
					return []string{
						p.Name, string(p.Kind), p.Added.Local().Format("2006-01-02 15:04"),
						strings.Join(append(p.Tools, p.Actors...), ","),
					}
				})
		}),
	}
}

// principalRevokeCommand revokes principals.
func principalRevokeCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "revoke <name>...",
		Short: "Remove accounts and close their connections",
		Long: `Removes principals. Their connections are closed before the command returns, and their key files are
deleted.`,
		Example: "  conclave principal revoke weather",
		Args:    cli.Args(cobra.MinimumNArgs(1)), ValidArgsFunction: completeNames(a),
		RunE: a.ChangeEach(func(ctx context.Context, c *client.Client, name string) (any, string, error) {
			return principalReport{Name: name, Action: subjects.PrincipalRevoke}, "revoked " + name,
				revokePrincipal(ctx, a, c, name)
		}),
	}
}

// revokePrincipal revokes a principal and deletes its key files.
func revokePrincipal(ctx context.Context, a *cli.App, c *client.Client, name string) error {
	err := changePrincipal(ctx, a, c, subjects.PrincipalRevoke, subjects.Principal{Name: name})
	if err != nil {
		return err
	}
	if err := errors.Join(a.Home.Keys().Remove(name), removeToken(a, name)); err != nil {
		return fmt.Errorf("%s is revoked, but its key file is left: %w", name, err)
	}
	return nil
}

// principalRotateCommand gives a principal a new key.
func principalRotateCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "rotate <name>",
		Short: "Replace the key of an account",
		Long: `Makes a new key for a principal and writes it over the old one. Connections with the old key are
closed before the command returns.`,
		Example: "  conclave principal rotate weather",
		Args:    cli.Args(cobra.ExactArgs(1)), ValidArgsFunction: completeNames(a),
		RunE: func(cmd *cobra.Command, v []string) error {
			return changeKey(cmd.Context(), a, subjects.PrincipalRotate, subjects.Principal{Name: v[0]})
		},
	}
}

// changeKey makes a new key for p, has it added or rotated, and prints where the key is.
func changeKey(ctx context.Context, a *cli.App, action string, p subjects.Principal) error {
	report, err := connectAndMakeKey(ctx, a, action, p)
	if err != nil {
		return err
	}
	text := map[string]string{subjects.PrincipalAdd: "added ", subjects.PrincipalRotate: "rotated "}[action] + p.Name +
		", key in " + report.Key
	if report.Token != "" {
		text += ", HTTP token in " + report.Token
	}
	return a.PrintText(report, text)
}

// connectAndMakeKey is [makeKey] with a connection of its own. It rejects a name that no principal can have before it
// connects.
func connectAndMakeKey(ctx context.Context, a *cli.App, action string, p subjects.Principal) (report principalReport,
	err error,
) {
	if err := p.CheckName(); err != nil {
		return report, principalError(a, err)
	}
	err = a.WithClient(func(c *client.Client) (err error) {
		report, err = makeKey(ctx, a, c, action, p)
		return err
	})
	return report, err
}

// makeKey makes a new key for p, has it added or rotated, and then puts it in the key folder. The seed does not leave
// this process before the change holds, and an old key stays until then.
func makeKey(ctx context.Context, a *cli.App, c *client.Client, action string,
	p subjects.Principal,
) (report principalReport, err error) {
	key, err := a.Home.Keys().Stage(p.Name)
	if err != nil {
		return report, err
	}
	defer key.Discard()
	p.Keys = map[string]string{p.Name: key.Public}
	token := ""
	kind := p.Kind
	if kind == "" { // a rotation has the name only
		known, err := findPrincipal(ctx, c, isNamed(p.Name))
		if err != nil {
			return report, err
		}
		if known != nil {
			kind = known.Kind
		}
	}
	if kind == subjects.ClientPrincipal {
		secret := make([]byte, 32)
		_, _ = rand.Read(secret) // never fails
		token = hex.EncodeToString(secret)
		hash := sha256.Sum256([]byte(token))
		p.TokenHash = hex.EncodeToString(hash[:])
	}
	if err := changePrincipal(ctx, a, c, action, p); err != nil {
		return report, err
	}
	path, err := key.Commit()
	if err != nil {
		return report, fmt.Errorf("%s is added, but its key is not stored: %w; run %s principal rotate %s", p.Name, err,
			a.Program(), p.Name)
	}
	report = principalReport{Name: p.Name, Action: action, Key: path, Public: key.Public}
	if token != "" {
		report.Token, err = tokenPath(a, p.Name)
		if err == nil {
			err = file.Replace(report.Token, []byte(token+"\n"))
		}
		if err != nil {
			return report, fmt.Errorf("%s is added, but its token is not stored: %w; run %s principal rotate %s",
				p.Name, err, a.Program(), p.Name)
		}
	}
	return report, nil
}

// updatePrincipal replaces what is stored about p. It makes a new key when the key folder does not have the key of p,
// as after a change whose key could not be stored.
func updatePrincipal(ctx context.Context, a *cli.App, c *client.Client, p subjects.Principal) error {
	if err := changePrincipal(ctx, a, c, subjects.PrincipalUpdate, p); err != nil {
		return err
	}
	if public, err := a.Home.Keys().Public(p.Name); err == nil && public == p.Keys[p.Name] {
		return nil
	}
	_, err := makeKey(ctx, a, c, subjects.PrincipalRotate, subjects.Principal{Name: p.Name})
	return err
}

// findPrincipal returns the first run-time principal that fits, nil when none does.
func findPrincipal(ctx context.Context, c *client.Client, fits func(subjects.Principal) bool) (*subjects.Principal,
	error,
) {
	all, err := c.Principals(ctx)
	if at := slices.IndexFunc(all, fits); at >= 0 {
		return &all[at], err
	}
	return nil, err
}

// isNamed fits the principal with a name.
func isNamed(name string) func(subjects.Principal) bool {
	return func(p subjects.Principal) bool { return p.Name == name }
}

// tokenPath is the path of the file with the HTTP token of a client. It rejects a name that no client can have, such as
// one with a folder in it.
func tokenPath(a *cli.App, name string) (string, error) {
	if subjects.CheckToken(name) != nil {
		return "", cli.Usage("%q is not the name of a client", term.Clip(name, 40))
	}
	return filepath.Join(a.Home.Keys().Dir, name+".token"), nil
}

// removeToken deletes the token of a principal; without one it does nothing.
func removeToken(a *cli.App, name string) error {
	path, err := tokenPath(a, name)
	if err == nil {
		err = os.Remove(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// changePrincipal has a principal added, updated, rotated or revoked.
func changePrincipal(ctx context.Context, a *cli.App, c *client.Client, action string, p subjects.Principal) error {
	return principalError(a, c.ChangePrincipal(ctx, subjects.PrincipalChange{Action: action, Principal: p}))
}

// principalError returns the error of a rejected change, with what to do; nil for nil.
func principalError(a *cli.App, err error) error {
	var f *subjects.Fault
	switch {
	case err == nil:
		return nil
	case errors.Is(err, subjects.ErrPrincipal):
		return cli.Usage("%v", err)
	case errors.As(err, &f) && f.Code == subjects.CodeMalformed:
		return cli.Fail(cli.ExitFailed, f.Text, "see "+a.Program()+" principal list")
	}
	return fmt.Errorf("changing the principals: %w", err)
}

// completeNames completes the names of run-time principals.
func completeNames(a *cli.App) cli.Completion {
	return completePrincipals(a, func(p subjects.Principal) []string { return []string{p.Name} })
}

// completePrincipals completes the words by which the user names run-time principals.
func completePrincipals(a *cli.App, words func(subjects.Principal) []string) cli.Completion {
	return a.CompleteFrom(func(ctx context.Context, c *client.Client) (out []string, err error) {
		all, err := c.Principals(ctx)
		for _, p := range all {
			out = append(out, words(p)...)
		}
		return out, err
	})
}
