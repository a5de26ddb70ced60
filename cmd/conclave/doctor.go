package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/doctor"
	"conclave/cmd/conclave/internal/term"
	"conclave/config"
	"conclave/pkg/damage"
)

// doctorCommand checks the installation and prints a line for each check. It changes nothing but the list of damage,
// with --accept-damage. A failed check is exit code 1, a warning is not.
func doctorCommand(a *cli.App) *cobra.Command {
	var verbose, acceptDamage bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the installation, with a fix for each problem",
		Long: `Checks folders, keys, the credentials of HTTP, configuration, manifest, keyring, disk, the running
system with its streams, actors and audit log, models, memory, waiting approvals, and the nats tool
with its contexts. It asks your SearXNG server, without a search, whether its API can be used, and a
local Ollama whether its cloud is on. It opens no keyring but the encrypted files, of which it reads
only the names. It prints one line for each check: ok, warn or fail, and the fix. It changes
nothing, except that --accept-damage empties the list of damage.

A start that finds damaged or lost data keeps the damaged files, takes back what the scheduled
backups and the event log still have, and reports the damage and what came back here, in the log, in
/health and in the page. --accept-damage prints these reports and ends them.

With --verbose it also lists every setting and its origin. The exit code is 1 if a check failed.`,
		Example: `  conclave doctor
  conclave doctor --verbose
  conclave doctor --json | jq '.checks[] | select(.level != "ok")'`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if acceptDamage {
				accepted, err := damage.Accept(a.Home.Data)
				if err != nil {
					return err
				}
				for _, r := range accepted {
					a.Say("accepted: %s", r)
				}
			}
			cfg, err := config.Load(a.Home.Config)
			checks := doctor.Run(cmd.Context(), a, cfg, err)
			var settings []config.Setting
			if verbose && err == nil {
				settings = cfg.Explain()
			}
			failed := doctor.CountFailed(checks)
			err = a.Print(struct {
				OK       bool             `json:"ok"`
				Checks   []doctor.Check   `json:"checks"`
				Settings []config.Setting `json:"settings,omitempty"`
			}{failed == 0, checks, settings}, nil, func() {
				doctor.Print(a.Out, checks)
				printSettings(a, settings)
			})
			if failed > 0 {
				return cli.Fail(cli.ExitFailed, fmt.Sprintf("%d of %d checks failed", failed, len(checks)),
					"apply the fixes above")
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&verbose, "verbose", false, "also list every setting and its origin")
	cmd.Flags().BoolVar(&acceptDamage, "accept-damage", false, "accept the reported loss of data: it is not reported "+
		"any more")
	return cmd
}

// printSettings prints every setting with its value and origin, after an empty line; none print nothing. Settings
// contain no credentials.
func printSettings(a *cli.App, settings []config.Setting) {
	if len(settings) > 0 {
		fmt.Fprintln(a.Out)
	}
	for _, s := range settings {
		fmt.Fprintf(a.Out, "%-44s %-40s %s\n", s.Key, term.Plain(s.Value), term.Paint(a.Out, term.Dim, s.Origin))
	}
}
