package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/config"
)

// rootCommand assembles all commands and the global flags, which it writes into a. Without a command it runs conclave
// up, so it has the flags of up as well. Folders are resolved before each command runs.
func rootCommand(a *cli.App) *cobra.Command {
	up := upCommand(a)
	version := false
	root := &cobra.Command{
		Use:   "conclave",
		Short: "A private assistant of small actors on a message bus",
		Long: `Conclave is a local, private assistant. A broker authorizes every tool call, and an audit log that
you can verify records it. Without a command it runs "conclave up".`,
		Example: `  conclave                                        start everything, until Ctrl-C
  conclave setup                                  get a model that fits this machine
  conclave chat                                   talk with the assistant
  conclave ask 'What is the capital of France?'   ask one question
  conclave approve                                decide the calls that wait for you
  conclave audit verify                           verify the record of all calls
  conclave doctor                                 find out what is wrong, with the fix`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, v []string) error {
			if version {
				return printVersion(a)
			}
			if err := showWelcome(cmd.Context(), a); err != nil {
				return err
			}
			return up.RunE(cmd, v)
		},
		SilenceErrors:              true,
		SilenceUsage:               true,
		SuggestionsMinimumDistance: 2,
		CompletionOptions:          cobra.CompletionOptions{DisableDefaultCmd: true},
		PersistentPreRunE:          func(*cobra.Command, []string) error { return a.ResolveFolders() },
	}
	root.Flags().AddFlagSet(up.Flags())
	root.Flags().BoolVar(&version, "version", false, "print the version and exit")
	f := root.PersistentFlags()
	f.StringVar(&a.Home.Data, "data", "", "data `folder`: keys, streams, audit log (default $XDG_DATA_HOME/conclave)")
	f.StringVar(&a.Home.Config, "config", "", "config `folder`: "+strings.Join(config.Files, ", ")+
		" (default $XDG_CONFIG_HOME/conclave)")
	f.StringVar(&a.Server, "server", "", "`URL` of a NATS server, or of several of a cluster with commas between "+
		"them (default: the one of conclave up)")
	f.BoolVar(&a.JSON, "json", false, "print JSON")
	f.StringVar(&a.Level, "log-level", "", "debug, info, warn or error")
	root.AddCommand(up, openCommand(a), chatCommand(a), askCommand(a), taskCommand(a), rateCommand(a), criticCommand(a),
		sessionCommand(a), approveCommand(a), policyCommand(a), undoCommand(a), changesCommand(a),
		modelCommand(a), actorCommand(a),
		keysCommand(a), provisionCommand(a), inviteCommand(a), joinCommand(a),
		machinesCommand(a), principalCommand(a), toolCommand(a), mcpCommand(a), callCommand(a), scheduleCommand(a),
		tapCommand(a), logsCommand(a), topCommand(a), healthCommand(a), auditCommand(a),
		backupCommand(a), restoreCommand(a), secretCommand(a), memoryCommand(a), setupCommand(a), serviceCommand(a),
		doctorCommand(a), versionCommand(a), completionCommand(a), manCommand(a))
	setHelp(a, root)
	root.SetIn(a.In)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	root.SetFlagErrorFunc(cli.BadFlag)
	return root
}

// completionCommand prints a completion script for bash, zsh, fish or powershell; another shell is a usage error.
func completionCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish|powershell",
		Short: "Print a completion script for a shell",
		Example: `  conclave completion bash > ~/.local/share/bash-completion/completions/conclave
  conclave completion zsh > "${fpath[1]}/_conclave"
  conclave completion fish > ~/.config/fish/completions/conclave.fish`,
		ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
		Args:      cli.Args(cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs)),
		RunE: func(cmd *cobra.Command, v []string) error {
			root := cmd.Root()
			switch v[0] {
			case "bash":
				return root.GenBashCompletionV2(a.Out, true)
			case "zsh":
				return root.GenZshCompletion(a.Out)
			case "fish":
				return root.GenFishCompletion(a.Out, true)
			}
			return root.GenPowerShellCompletionWithDesc(a.Out)
		},
	}
}

// build describes this program.
type build struct {
	Version    string `json:"version"`
	Revision   string `json:"revision,omitempty"`
	Time       string `json:"time,omitempty"`
	Modified   bool   `json:"modified,omitempty"`
	Go         string `json:"go"`
	Platform   string `json:"platform"`
	NATSServer string `json:"nats_server"`
	NATSClient string `json:"nats_client"`
}

// readBuild returns what the Go toolchain recorded in the binary. Fields that it did not record are empty; the version
// is "(devel)".
func readBuild() build {
	b := build{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		switch m.Path {
		case "github.com/nats-io/nats-server/v2":
			b.NATSServer = m.Version
		case "github.com/nats-io/nats.go":
			b.NATSClient = m.Version
		}
	}
	return b
}

// versionCommand prints the version of the build and of its NATS libraries. It needs no running system.
func versionCommand(a *cli.App) *cobra.Command {
	bill := false
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  conclave version --json\n  conclave version --sbom >conclave.cdx.json",
		Args:    cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if bill {
				return printSBOM(a)
			}
			return printVersion(a)
		},
	}
	cmd.Flags().BoolVar(&bill, "sbom", false, "print the modules of this binary as a software bill of materials "+
		"(CycloneDX JSON)")
	return cmd
}

// printVersion prints the version of the build, with --json as a document.
func printVersion(a *cli.App) error {
	b := readBuild()
	source := ""
	if b.Revision != "" {
		source = " " + term.ShortID(b.Revision) + " " + b.Time
	}
	if b.Modified {
		source += " (modified)"
	}
	return a.Print(b, nil, func() {
		fmt.Fprintf(a.Out, "conclave %s%s\n%s %s, nats-server %s, nats.go %s\n", b.Version, source, b.Go, b.Platform,
			b.NATSServer, b.NATSClient)
	})
}

// manCommand writes a manual page for each command.
func manCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "man <folder>",
		Short: "Write manual pages into a folder",
		Long: "Writes a manual page for each command into a folder, which is created. They have the date of the " +
			"source, not of the day.",
		Example: `  conclave man ~/.local/share/man/man1
  man conclave-ask`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, v []string) error {
			if err := os.MkdirAll(v[0], 0o755); err != nil {
				return err
			}
			b := readBuild()
			date, err := time.Parse(time.RFC3339, b.Time)
			if err != nil {
				date = time.Unix(0, 0).UTC()
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			root.Long += "\n\n" + cli.ExitHelp
			if err := doc.GenManTree(root, &doc.GenManHeader{Title: "CONCLAVE", Section: "1", Source: "conclave " +
				b.Version, Manual: "Conclave", Date: &date}, v[0]); err != nil {
				return err
			}
			a.Say("wrote the manual pages to %s", v[0])
			return nil
		},
	}
}
