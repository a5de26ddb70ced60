package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
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
		Long: `Conclave is a local assistant: small actors on a NATS bus, all on this machine. A broker authorizes
every tool call, and every decision is in an audit log that can be verified.

Without a command it runs "conclave up": it starts everything and runs until Ctrl-C.
"conclave help all" lists every command, also those that are seldom needed.

` + cli.ExitHelp,
		Example: `  conclave                                          start everything
  conclave chat                                     talk with the assistant
  conclave ask 'What is the capital of France?'     ask the assistant
  conclave rate down 'it does not run in winter'    rate the answer
  conclave call get_datetime '{"timezone":"UTC"}'   call a tool through the broker
  conclave approve                                  decide calls that need your approval
  conclave tap                                      watch the bus
  conclave audit verify                             verify the audit log
  conclave setup                                    see what this machine has, and prepare it
  conclave doctor                                   check the installation`,
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
		sessionCommand(a), approveCommand(a), policyCommand(a), modelCommand(a), actorCommand(a),
		keysCommand(a), provisionCommand(a), inviteCommand(a), joinCommand(a),
		machinesCommand(a), principalCommand(a), toolCommand(a), mcpCommand(a), callCommand(a), scheduleCommand(a),
		tapCommand(a), logsCommand(a), topCommand(a), healthCommand(a), auditCommand(a),
		backupCommand(a), restoreCommand(a), secretCommand(a), memoryCommand(a), setupCommand(a), serviceCommand(a),
		doctorCommand(a), versionCommand(a), completionCommand(a), manCommand(a))
	setHelp(root)
	root.SetIn(a.In)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	root.SetFlagErrorFunc(cli.BadFlag)
	return root
}

// firstPage are the commands that the help of root lists.
var firstPage = []string{
	"up", "open", "chat", "ask", "task", "schedule", "approve", "session", "memory", "model", "tool", "mcp", "secret",
	"setup", "doctor", "help",
}

// setHelp lets the help of root list the commands of [firstPage], and adds the command help.
func setHelp(root *cobra.Command) {
	print := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, words []string) {
		for _, c := range root.Commands() {
			c.Hidden = c.Hidden || cmd == root && !slices.Contains(firstPage, c.Name())
		}
		print(cmd, words)
	})
	root.SetHelpCommand(helpCommand(root, func() { print(root, nil) }))
}

// helpCommand is cobra's help command, except that an unknown topic is a usage error. Without words it explains root,
// and with "all" printAll does.
func helpCommand(root *cobra.Command, printAll func()) *cobra.Command {
	return &cobra.Command{
		Use:     "help [command | all]",
		Short:   "Explain a command, or list all of them",
		Example: "  conclave help all\n  conclave help audit verify",
		RunE: func(_ *cobra.Command, words []string) error {
			if slices.Equal(words, []string{"all"}) {
				printAll()
				return nil
			}
			cmd, rest, err := root.Find(words)
			if err != nil || cmd == nil || len(rest) > 0 && cmd == root {
				return cli.Usage("unknown command %q: see conclave --help", strings.Join(words, " "))
			}
			return cmd.Help()
		},
	}
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
			if err := doc.GenManTree(root, &doc.GenManHeader{Title: "CONCLAVE", Section: "1", Source: "conclave " +
				b.Version, Manual: "Conclave", Date: &date}, v[0]); err != nil {
				return err
			}
			a.Say("wrote the manual pages to %s", v[0])
			return nil
		},
	}
}
