package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/pkg/keyring"
	"conclave/pkg/seal"
)

// secretCommand is the parent of the commands that manage credentials in the keyring of this machine. They do not use
// the bus: no account there can write credentials. An unknown subcommand is rejected without repeating it, because it
// may be a value.
func secretCommand(a *cli.App) *cobra.Command {
	cmd := cli.Group("secret", "Manage the credentials of tools and remote models",
		`Stores credentials by name in a keyring of this machine: Secret Service, KWallet, pass, the
kernel's, or encrypted files in the data folder. The setting secrets.backend chooses the keyring;
auto uses the first that is available, and stays with it once a credential is stored.

A credential goes from the keyring to the tool that needs it, sealed so that nothing in between can
read it. No command prints a value, and it is in no log, event, prompt or audit record. These
commands work while conclave is stopped.`,
		`  conclave secret set brave_api_key          type or paste it; it is not shown
  conclave secret set brave_api_key < file   or pipe it
  conclave secret check
  conclave secret rm brave_api_key`,
		secretSetCommand(a), secretRemoveCommand(a), secretNamesCommand(a), secretCheckCommand(a))
	group := cmd.RunE
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, v []string) error {
		if len(v) == 0 {
			return group(cmd, v)
		}
		hint := "" // the argument may be a value and is not repeated
		if s := cmd.SuggestionsFor(v[0]); len(s) > 0 {
			hint = " (did you mean " + strings.Join(s, " or ") + "?)"
		}
		return cli.Usage("unknown subcommand%s: use set, rm, list-names or check: see %s --help", hint,
			cmd.CommandPath())
	}
	return cmd
}

// keyringTimeout bounds access to a keyring, which may ask for a password in a dialog.
const keyringTimeout = time.Minute

// withKeyring opens the keyring that the secrets actor reads, which may ask for a password, and runs f with it; both
// have [keyringTimeout]. A locked or missing keyring is exit code 4.
func withKeyring(ctx context.Context, a *cli.App,
	f func(ctx context.Context, r keyring.Ring, info keyring.Info) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, keyringTimeout)
	defer cancel()
	cfg, err := a.LoadConfig(nil)
	if err != nil {
		return err
	}
	r, info, err := keyring.Open(ctx, cfg.Secrets.Ring(a.Home.Data))
	if err == nil {
		err = f(ctx, r, info)
	}
	var failure *cli.Failure
	if !errors.As(err, &failure) && (errors.Is(err, keyring.ErrLocked) || errors.Is(err, keyring.ErrUnavailable)) {
		return &cli.Failure{Code: cli.ExitAbsent, Err: err}
	}
	return err
}

// noValueArgument explains why a value is never an argument. The value itself is not repeated.
const noValueArgument = "a value is not an argument, because other programs can read the command line and the shell " +
	"stores it: type it when asked, or pipe it"

// checkSecretNames returns a check that rejects fewer names than least, more than most (0 = any number), and invalid
// names. A wrong name is not repeated in the error: it may be a value.
func checkSecretNames(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, v []string) error {
		switch {
		case len(v) < least:
			return cli.Usage("give the name of a credential, such as brave_api_key: see %s --help", cmd.CommandPath())
		case most > 0 && len(v) > most:
			return cli.Usage("%s takes one name: %s", cmd.CommandPath(), noValueArgument)
		}
		for _, name := range v {
			if strings.Contains(name, "=") {
				return cli.Usage("%s", noValueArgument)
			}
			if err := keyring.CheckName(name); err != nil {
				return cli.Usage("%v: see %s --help", err, cmd.CommandPath())
			}
		}
		return nil
	}
}

// secretChange is the result of set and rm.
type secretChange struct {
	Name    string `json:"name"`
	Done    string `json:"done"` // set, removed
	Backend string `json:"backend"`
}

// secretSetCommand stores a credential that is typed or piped. A value on the command line is rejected and not repeated
// in the error.
func secretSetCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set <name>",
		Short: "Store a credential",
		Long: `Stores a credential under a name, and replaces an earlier one. On a terminal it asks for the value
and does not show it; otherwise it reads the value from stdin, without the line break at its end. A
value has 1 byte to 16 KB; a terminal accepts at most 4 KB in one line. It cannot be given as an
argument, because other programs can read the command line.

Names consist of letters, digits, - and _. A running system uses the new value the next time it
needs the credential.`,
		Example: `  conclave secret set brave_api_key
  pass show brave | conclave secret set brave_api_key
  conclave secret set service_account < account.json`,
		Args: checkSecretNames(1, 1),
		RunE: func(cmd *cobra.Command, v []string) error {
			if err := a.Home.CreateFolders(); err != nil {
				return err
			}
			value, err := readSecret(cmd.Context(), a, v[0])
			if err != nil {
				return err
			}
			defer value.Wipe()
			return withKeyring(cmd.Context(), a, func(ctx context.Context, r keyring.Ring, info keyring.Info) error {
				return a.Print(secretChange{v[0], "set", info.Backend}, r.Set(ctx, v[0], value), func() {
					a.Say("%s is stored in %s", v[0], info.Backend)
					printSkippedKeyrings(a.Err, info)
				})
			})
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	// An unknown flag may be a value that begins with -, and the usual error would repeat it.
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, _ error) error {
		return cli.Usage("%s has no such flag: %s: see %s --help", cmd.CommandPath(), noValueArgument,
			cmd.CommandPath())
	})
	return cmd
}

// readSecret reads a value from the terminal without echo, or from a pipe. It rejects an empty value and one above
// [seal.MaxValue]; an interrupt is an error. The caller wipes the value.
func readSecret(ctx context.Context, a *cli.App, name string) (keyring.Secret, error) {
	data, err := a.ReadHidden(ctx, seal.MaxValue, fmt.Sprintf("value of %s (not shown): ", name))
	value := seal.NewSecret(data)
	if err != nil {
		value.Wipe()
		if errors.Is(err, term.ErrStopped) {
			return keyring.Secret{}, cli.Fail(cli.ExitFailed, "stopped", "nothing was stored")
		}
		return keyring.Secret{}, fmt.Errorf("reading the value: %w", err)
	}
	switch err := value.Check(); {
	case errors.Is(err, seal.ErrEmpty):
		return keyring.Secret{}, cli.Fail(cli.ExitFailed, err.Error(), "nothing was stored; type the value, or pipe it")
	case err != nil:
		value.Wipe()
		return keyring.Secret{}, cli.Fail(cli.ExitFailed, err.Error(), "nothing was stored")
	}
	return value, nil
}

// secretRemoveCommand deletes a credential. A name that is not stored is exit code 1.
func secretRemoveCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "rm <name>",
		Short:   "Delete a credential",
		Long:    `Deletes a credential from the keyring. The exit code is 1 when there is none with this name.`,
		Example: `  conclave secret rm brave_api_key`,
		Args:    checkSecretNames(1, 1),
		RunE: func(cmd *cobra.Command, v []string) error {
			return withKeyring(cmd.Context(), a, func(ctx context.Context, r keyring.Ring, info keyring.Info) error {
				err := r.Remove(ctx, v[0])
				if errors.Is(err, keyring.ErrNotFound) {
					err = cli.Fail(cli.ExitFailed, "there is no credential "+v[0], "list them with "+a.Program()+
						" secret list-names")
				}
				return a.Print(secretChange{v[0], "removed", info.Backend}, err,
					a.Saying("%s is deleted from %s", v[0], info.Backend))
			})
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
}

// secretNamesCommand lists the names of the credentials and never a value. No credentials are no error.
func secretNamesCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "list-names",
		Short: "List the names of the credentials",
		Long: `Lists the names of the credentials, one per line, never a value. With --json it prints one document
with the keyring.`,
		Example: `  conclave secret list-names
  conclave secret list-names --json | jq -r '.names[]'`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withKeyring(cmd.Context(), a, func(ctx context.Context, r keyring.Ring, info keyring.Info) error {
				names, err := r.Names(ctx)
				all := append([]string{}, names...)
				return a.Print(map[string]any{"backend": info.Backend, "names": all}, err, func() {
					if len(names) == 0 {
						a.Say("no credentials yet: store one with %s secret set", a.Program())
					}
					for _, n := range names {
						fmt.Fprintln(a.Out, n)
					}
				})
			})
		},
	}
}

// secretState is the state of one credential.
type secretState struct {
	Name   string `json:"name"`
	State  string `json:"state"` // present, missing, locked, unreadable
	Reason string `json:"reason,omitempty"`
}

// secretCheckCommand reads the named credentials, or all, to check that they can be used; their values are discarded.
func secretCheckCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "check [names...]",
		Short: "Check the keyring and the credentials",
		Long: `Shows which keyring is used and why, and reads the named credentials, or all, to check that they can
be read. It never prints a value. The exit code is 1 when one is missing or cannot be read.`,
		Example: `  conclave secret check
  conclave secret check brave_api_key && conclave up
  conclave secret check --json | jq '.credentials[] | select(.state != "present")'`,
		Args: checkSecretNames(0, 0),
		RunE: func(cmd *cobra.Command, names []string) error {
			return withKeyring(cmd.Context(), a, func(ctx context.Context, r keyring.Ring, info keyring.Info) error {
				return checkSecrets(ctx, a, r, info, names)
			})
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
}

// checkSecrets reads the named credentials, all without names, and prints their state. It is an error when one is
// missing, locked or unreadable.
func checkSecrets(ctx context.Context, a *cli.App, r keyring.Ring, info keyring.Info, names []string) (err error) {
	if len(names) == 0 {
		if names, err = r.Names(ctx); err != nil {
			return err
		}
	}
	states := readSecretStates(ctx, r, names)
	bad := slices.DeleteFunc(slices.Clone(states), func(s secretState) bool { return s.State == "present" })
	err = a.Print(struct {
		OK bool `json:"ok"`
		keyring.Info
		Credentials []secretState `json:"credentials"`
	}{len(bad) == 0, info, states}, nil, func() { printSecretStates(a.Out, info, states) })
	if len(bad) == 0 {
		return err
	}
	fix := "store it with " + a.Program() + " secret set " + bad[0].Name
	if bad[0].State == "locked" {
		fix = "unlock the keyring"
	}
	return cli.Fail(cli.ExitFailed, fmt.Sprintf("%d of %s cannot be used", len(bad),
		term.Count(len(states), "credential")), fix)
}

// readSecretStates reads each credential, wipes it at once, and returns the states in the order of names, never nil.
// Errors are in the states.
func readSecretStates(ctx context.Context, r keyring.Ring, names []string) []secretState {
	states := []secretState{}
	for _, name := range names {
		s := secretState{Name: name, State: "present"}
		value, err := r.Get(ctx, name)
		value.Wipe()
		switch {
		case err == nil:
		case errors.Is(err, keyring.ErrNotFound):
			s.State = "missing"
		case errors.Is(err, keyring.ErrLocked):
			s.State, s.Reason = "locked", err.Error()
		default:
			s.State, s.Reason = "unreadable", err.Error()
		}
		states = append(states, s)
	}
	return states
}

// printSecretStates prints the keyring, the ones that were skipped, and the state of each credential.
func printSecretStates(w io.Writer, info keyring.Info, states []secretState) {
	fmt.Fprintf(w, "%-10s %s (%s)\n", "keyring", info.Backend, info.Reason)
	printSkippedKeyrings(w, info)
	colours := map[string]string{"present": term.Green}
	for _, s := range states {
		line := term.Paint(w, cmp.Or(colours[s.State], term.Red), fmt.Sprintf("%-10s", s.State)) + " " + s.Name
		if s.Reason != "" {
			line += ": " + term.Plain(s.Reason)
		}
		fmt.Fprintln(w, line)
	}
}

// printSkippedKeyrings prints the keyrings that were tried before, and why they are not used.
func printSkippedKeyrings(w io.Writer, info keyring.Info) {
	for _, p := range info.Skipped {
		fmt.Fprintf(w, "%-10s not %s: %s\n", "", p.Backend, term.Plain(p.Reason))
	}
}
