package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"conclave/pkg/keyring"
	"conclave/pkg/seal"
)

// secretCommand keeps credentials in the keyring of this machine. It does not go over the bus: nothing there can write.
func (a *app) secretCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "secret",
		Short: "Keep the credentials that tools and remote models need",
		Long: `Keeps credentials by name in a keyring of this machine: Secret Service, KWallet, pass, the kernel's, or encrypted files
in the data folder. Which one is the setting secrets.backend; with auto it is the first that is there, and from the first
credential on always the same one.

A credential goes from the keyring to the tool that needs it, sealed so that nothing in between can read it. No command
prints a value, and it is in no log, event, prompt or audit record. Nothing has to run for these commands.`,
		Example: `  conclave secret set brave_api_key          type or paste it; it is not shown
  conclave secret set brave_api_key < file   or pipe it
  conclave secret check
  conclave secret rm brave_api_key`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, v []string) error {
			hint := ""
			if len(v) > 0 { // which may be a value: it is not repeated
				if s := cmd.SuggestionsFor(v[0]); len(s) > 0 {
					hint = ": did you mean " + strings.Join(s, " or ") + "?"
				}
			}
			return usage("say what to do with credentials, set, rm, list-names or check%s: see %s --help", hint, cmd.CommandPath())
		},
		SuggestionsMinimumDistance: 2,
	}
	cmd.AddCommand(a.secretSetCommand(), a.secretRemoveCommand(), a.secretNamesCommand(), a.secretCheckCommand())
	return cmd
}

// unlocking is how long a keyring may take: it may ask for a password in a dialog of its own.
const unlocking = time.Minute

// ring opens the keyring that the actor reads from.
func (a *app) ring(ctx context.Context) (keyring.Ring, keyring.Info, error) {
	cfg, err := a.load(nil)
	if err != nil {
		return nil, keyring.Info{}, err
	}
	r, info, err := keyring.Open(ctx, cfg.Secrets.Ring(a.home.Data))
	return r, info, ringError(err)
}

// ringError gives an error of a keyring its exit code.
func ringError(err error) error {
	if errors.Is(err, keyring.ErrLocked) || errors.Is(err, keyring.ErrUnavailable) {
		return &failure{exitAbsent, err}
	}
	return err
}

// absent says that a credential is not there.
func (a *app) absent(name string) error {
	return fail(exitFailed, "there is no credential named "+name, a.program()+" secret list-names lists those there are")
}

// notOnTheLine is why a value is never an argument. The value itself is not repeated.
const notOnTheLine = "a value is not given on the command line, where every program of this machine can read it and your shell writes it down: type it when asked, or pipe it"

// secretNames checks the names of credentials, between least and most of them. What is wrong is not repeated: it may be a value.
func secretNames(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, v []string) error {
		switch {
		case len(v) < least:
			return usage("which credential? give its name, like brave_api_key: see %s --help", cmd.CommandPath())
		case most > 0 && len(v) > most:
			return usage("%s takes one name: %s", cmd.CommandPath(), notOnTheLine)
		}
		for _, name := range v {
			if strings.Contains(name, "=") {
				return usage("%s", notOnTheLine)
			}
			if err := keyring.CheckName(name); err != nil {
				return usage("%v: see %s --help", err, cmd.CommandPath())
			}
		}
		return nil
	}
}

// secretChange is what set and rm did.
type secretChange struct {
	Name    string `json:"name"`
	Done    string `json:"done"` // set, removed
	Backend string `json:"backend"`
}

func (a *app) secretSetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set <name>",
		Short: "Keep a credential under a name",
		Long: `Keeps a credential, in place of an earlier one of this name. On a terminal it asks for the value and does not show it;
otherwise it reads the value from stdin, without the line break at its end. A value has 1 byte to 16 KB; a terminal takes
no more than 4 KB in one line. It is never an argument.

Names have letters, digits, - and _. A running system finds the new value at the next use.`,
		Example: `  conclave secret set brave_api_key
  pass show brave | conclave secret set brave_api_key
  conclave secret set service_account < account.json`,
		Args: secretNames(1, 1),
		RunE: func(cmd *cobra.Command, v []string) error {
			if err := a.home.Make(); err != nil {
				return err
			}
			value, err := a.readSecret(cmd.Context(), v[0])
			if err != nil {
				return err
			}
			defer value.Wipe()
			ctx, cancel := context.WithTimeout(cmd.Context(), unlocking)
			defer cancel()
			r, info, err := a.ring(ctx)
			if err != nil {
				return err
			}
			if err := r.Set(ctx, v[0], value); err != nil {
				return ringError(err)
			}
			if a.json {
				return a.document(secretChange{v[0], "set", info.Backend})
			}
			a.say("%s is kept in %s", v[0], info.Backend)
			a.passedOver(a.stderr, info)
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	// What looks like a flag may be a value that begins with -, and the usual words would repeat it.
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, _ error) error {
		return usage("%s has no such flag: %s: see %s --help", cmd.CommandPath(), notOnTheLine, cmd.CommandPath())
	})
	return cmd
}

// readSecret reads a value from the user or from a pipe.
func (a *app) readSecret(ctx context.Context, name string) (keyring.Secret, error) {
	read := func() ([]byte, error) {
		b, err := io.ReadAll(io.LimitReader(a.stdin, seal.MaxValue+3)) // a line break more, and one byte too many
		return bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r")), err
	}
	if f, ok := a.stdin.(*os.File); ok && isTerminal(f) {
		state, err := term.GetState(int(f.Fd()))
		if err != nil {
			return keyring.Secret{}, fmt.Errorf("asking without showing: %w", err)
		}
		defer func() { // also when the user gives up: the terminal must not stay silent
			_ = term.Restore(int(f.Fd()), state)
			fmt.Fprintln(a.stderr)
		}()
		fmt.Fprintf(a.stderr, "value of %s (not shown): ", name)
		read = func() ([]byte, error) { return term.ReadPassword(int(f.Fd())) }
	}
	type result struct {
		value []byte
		err   error
	}
	done := make(chan result, 1) // whoever does not type ends with the process
	go func() {
		b, err := read()
		done <- result{b, err}
	}()
	select {
	case <-ctx.Done():
		return keyring.Secret{}, fail(exitFailed, "stopped", "nothing was kept")
	case r := <-done:
		value := seal.NewSecret(r.value)
		if r.err != nil && !errors.Is(r.err, io.EOF) {
			return keyring.Secret{}, fmt.Errorf("reading the value: %w", r.err)
		}
		switch err := value.Check(); {
		case errors.Is(err, seal.ErrEmpty):
			return keyring.Secret{}, fail(exitFailed, err.Error(), "nothing was kept; type the value, or pipe it")
		case err != nil:
			value.Wipe()
			return keyring.Secret{}, fail(exitFailed, err.Error(), "nothing was kept")
		}
		return value, nil
	}
}

func (a *app) secretRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "rm <name>",
		Short:   "Forget a credential",
		Long:    `Takes a credential out of the keyring. Ends with exit code 1 when there is none of this name.`,
		Example: `  conclave secret rm brave_api_key`,
		Args:    secretNames(1, 1),
		RunE: func(cmd *cobra.Command, v []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), unlocking)
			defer cancel()
			r, info, err := a.ring(ctx)
			if err != nil {
				return err
			}
			switch err := r.Remove(ctx, v[0]); {
			case errors.Is(err, keyring.ErrNotFound):
				return a.absent(v[0])
			case err != nil:
				return ringError(err)
			}
			if a.json {
				return a.document(secretChange{v[0], "removed", info.Backend})
			}
			a.say("%s is no longer in %s", v[0], info.Backend)
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
}

func (a *app) secretNamesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list-names",
		Short: "List the names of the credentials",
		Long:  `Lists the names of the credentials, one on a line; never a value. With --json it is one document with the keyring.`,
		Example: `  conclave secret list-names
  conclave secret list-names --json | jq -r '.names[]'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), unlocking)
			defer cancel()
			r, info, err := a.ring(ctx)
			if err != nil {
				return err
			}
			names, err := r.Names(ctx)
			if err != nil {
				return ringError(err)
			}
			if a.json {
				return a.document(struct {
					Backend string   `json:"backend"`
					Names   []string `json:"names"`
				}{info.Backend, append([]string{}, names...)})
			}
			if len(names) == 0 {
				a.say("no credentials yet: %s secret set keeps the first", a.program())
			}
			for _, n := range names {
				fmt.Fprintln(a.stdout, n)
			}
			return nil
		},
	}
}

// secretState is how it stands with one credential.
type secretState struct {
	Name   string `json:"name"`
	State  string `json:"state"` // present, missing, locked, unreadable
	Reason string `json:"reason,omitempty"`
}

func (a *app) secretCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check [names...]",
		Short: "Say which keyring is used, and whether credentials are there",
		Long: `Says which keyring is used and why, and reads the named credentials, or all of them, to see that they are there and can
be read. It never prints a value. Ends with exit code 1 when one is missing or cannot be read.`,
		Example: `  conclave secret check
  conclave secret check brave_api_key && conclave up
  conclave secret check --json | jq '.credentials[] | select(.state != "present")'`,
		Args: secretNames(0, 0),
		RunE: func(cmd *cobra.Command, v []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), unlocking)
			defer cancel()
			r, info, err := a.ring(ctx)
			if err != nil {
				return err
			}
			if len(v) == 0 {
				if v, err = r.Names(ctx); err != nil {
					return ringError(err)
				}
			}
			states := lookAt(ctx, r, v)
			wrong := slices.DeleteFunc(slices.Clone(states), func(s secretState) bool { return s.State == "present" })
			if a.json {
				err = a.document(struct {
					OK bool `json:"ok"`
					keyring.Info
					Credentials []secretState `json:"credentials"`
				}{len(wrong) == 0, info, states})
			} else {
				a.printSecrets(info, states)
			}
			if err == nil && len(wrong) > 0 {
				fix := "set it with " + a.program() + " secret set " + wrong[0].Name
				if wrong[0].State == "locked" {
					fix = "unlock the keyring"
				}
				err = fail(exitFailed, fmt.Sprintf("%d of %s cannot be used", len(wrong), count(len(states), "credential")), fix)
			}
			return err
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
}

// lookAt reads each credential and forgets it at once.
func lookAt(ctx context.Context, r keyring.Ring, names []string) []secretState {
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

func (a *app) printSecrets(info keyring.Info, states []secretState) {
	fmt.Fprintf(a.stdout, "%-10s %s (%s)\n", "keyring", info.Backend, info.Reason)
	a.passedOver(a.stdout, info)
	colours := map[string]string{"present": green}
	for _, s := range states {
		colour := or(colours[s.State], red)
		line := a.paint(a.stdout, colour, fmt.Sprintf("%-10s", s.State)) + " " + s.Name
		if s.Reason != "" {
			line += ": " + plain(s.Reason)
		}
		fmt.Fprintln(a.stdout, line)
	}
}

// passedOver says which keyrings were looked for before, and why they were not taken.
func (a *app) passedOver(w io.Writer, info keyring.Info) {
	for _, p := range info.Skipped {
		fmt.Fprintf(w, "%-10s not %s: %s\n", "", p.Backend, plain(p.Reason))
	}
}
