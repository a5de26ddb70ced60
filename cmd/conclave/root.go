package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"conclave/config"
	"conclave/pkg/bus"
)

// app is what every command shares: the streams and the global flags.
type app struct {
	stdin  io.Reader
	stdout *sink
	stderr io.Writer
	began  time.Time

	home   bus.Home // from --data and --config, or the XDG folders
	server string
	json   bool
	level  string
}

func newApp(stdin io.Reader, stdout, stderr io.Writer) *app {
	return &app{stdin: stdin, stdout: &sink{w: stdout}, stderr: stderr, began: time.Now()}
}

// root is the command line.
func (a *app) root() *cobra.Command {
	up := a.upCommand()
	root := &cobra.Command{
		Use:   "conclave",
		Short: "A private assistant of small actors on a message bus",
		Long: `Conclave runs a society of small actors on a NATS bus, all of it on this machine. Every tool call passes a broker
that authorizes it, and every decision is in an audit that can be checked.

Without a command it does what "conclave up" does: starts everything and stays.

` + exitHelp,
		Example: `  conclave                                          start everything
  conclave ask 'What is the capital of France?'     ask the assistant
  conclave rate down 'it does not run in winter'    say what you think of the answer
  conclave call get_datetime '{"timezone":"UTC"}'   call a tool through the broker
  conclave approve                                  answer what an agent may not do unasked
  conclave tap                                      watch the bus
  conclave audit verify                             check the audit
  conclave doctor                                   what is wrong, and how to fix it`,
		Args:                       noArgs,
		RunE:                       up.RunE,
		SilenceErrors:              true,
		SilenceUsage:               true,
		SuggestionsMinimumDistance: 2,
		CompletionOptions:          cobra.CompletionOptions{DisableDefaultCmd: true},
		PersistentPreRunE:          func(*cobra.Command, []string) error { return a.settle() },
	}
	root.Flags().AddFlagSet(up.Flags())
	f := root.PersistentFlags()
	f.StringVar(&a.home.Data, "data", "", "data `folder`: keys, streams, audit (default $XDG_DATA_HOME/conclave)")
	f.StringVar(&a.home.Config, "config", "", "config `folder`: "+strings.Join(config.Files, ", ")+" (default $XDG_CONFIG_HOME/conclave)")
	f.StringVar(&a.server, "server", "", "`URL` of a NATS server, instead of the one that conclave up runs")
	f.BoolVar(&a.json, "json", false, "print data as JSON")
	f.StringVar(&a.level, "log-level", "", "debug, info, warn or error")
	root.AddCommand(up, a.askCommand(), a.rateCommand(), a.criticCommand(), a.sessionCommand(), a.approveCommand(), a.policyCommand(), a.modelCommand(), a.storyCommand(), a.actorCommand(), a.keysCommand(),
		a.provisionCommand(), a.callCommand(), a.tapCommand(), a.topCommand(), a.auditCommand(), a.secretCommand(), a.memoryCommand(), a.doctorCommand(), a.versionCommand(), a.completionCommand())
	root.SetHelpCommand(a.helpCommand(root))
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(badFlag)
	return root
}

// settle fills in the folders that no flag has named.
func (a *app) settle() error {
	if a.level != "" {
		if err := new(slog.Level).UnmarshalText([]byte(a.level)); err != nil {
			return usage("--log-level %q: use debug, info, warn or error", a.level)
		}
	}
	if a.home.Data == "" || a.home.Config == "" {
		home, err := bus.DefaultHome()
		if err != nil {
			return err
		}
		if a.home.Data == "" {
			a.home.Data = home.Data
		}
		if a.home.Config == "" {
			a.home.Config = home.Config
		}
	}
	// What is printed, and what a key file is called in a nats context, must hold in any folder.
	var err error
	if a.home.Data, err = filepath.Abs(a.home.Data); err != nil {
		return err
	}
	a.home.Config, err = filepath.Abs(a.home.Config)
	return err
}

// load reads the configuration and lays flags over it. An empty flag was not given.
func (a *app) load(flags map[string]string) (config.Config, error) {
	cfg, err := config.Load(a.home.Config)
	if err != nil {
		return cfg, err
	}
	set := map[string]string{}
	for path, v := range flags {
		if v != "" {
			set[path] = v
		}
	}
	if a.level != "" {
		set["system.log_level"] = a.level
	}
	return cfg, cfg.Apply(set)
}

// quiet is the logger of a command that comes and goes: only what a person should know, unless asked for more.
func (a *app) quiet() *slog.Logger {
	level := slog.LevelWarn
	if a.level != "" {
		_ = level.UnmarshalText([]byte(a.level))
	}
	return a.logger(level)
}

// bus reaches the server: the one named by --server, or the running one.
func (a *app) bus() (*bus.Bus, error) {
	url := a.server
	if url == "" {
		r, err := a.home.Running()
		if err != nil {
			return nil, err
		}
		url = r.URL
	}
	return &bus.Bus{URL: url, Keys: a.home.Keys(), Log: a.quiet()}, nil
}

// dial connects one role to the server.
func (a *app) dial(role string, opts ...nats.Option) (*nats.Conn, error) {
	b, err := a.bus()
	if err != nil {
		return nil, err
	}
	return b.Dial(role, opts...)
}

// alone refuses to start a server on a store that a stand-alone one uses: two servers on one store destroy it. It only
// listens to what a server says first. Signing its challenge would let whoever sits on that port pass our signature on.
func (a *app) alone() error {
	vars, err := readEnv(a.home.Env())
	if err != nil {
		return nil // none was ever prepared
	}
	address := vars["CONCLAVE_LISTEN"]
	conn, err := net.DialTimeout("tcp", address, 2*time.Second)
	if err != nil {
		return nil // nobody there
	}
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(2 * time.Second))
	greeting, err := bufio.NewReaderSize(conn, 64<<10).ReadSlice('\n')
	var info struct {
		Name string `json:"server_name"`
	}
	rest, ok := bytes.CutPrefix(greeting, []byte("INFO "))
	if err != nil || !ok || json.Unmarshal(rest, &info) != nil || info.Name != "conclave" {
		return nil // somebody else
	}
	return fail(exitFailed, "a stand-alone server at nats://"+address+" uses this data folder", "reach it with --server nats://"+address+", or stop it first")
}

// readEnv reads the file that conclave keys writes for a stand-alone server.
func readEnv(file string) (map[string]string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	vars := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if name, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(name, "#") {
			vars[name] = strings.Trim(v, `'"`)
		}
	}
	return vars, nil
}

// again is the global flags as they must be repeated for another command to reach the same system.
func (a *app) again() string {
	home, err := bus.DefaultHome()
	s := ""
	if err != nil || a.home.Data != home.Data {
		s += " --data " + shellQuote(a.home.Data)
	}
	if err != nil || a.home.Config != home.Config {
		s += " --config " + shellQuote(a.home.Config)
	}
	return s
}

// shellQuote makes one word of s for a POSIX shell.
func shellQuote(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:@%+,-") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// args turns cobra's complaint about positional arguments into a wrong call.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, v []string) error {
		if err := check(cmd, v); err != nil {
			return usage("%v: see %s --help", err, cmd.CommandPath())
		}
		return nil
	}
}

// noArgs refuses words after a command, and suggests the command that was perhaps meant.
func noArgs(cmd *cobra.Command, v []string) error {
	if len(v) == 0 {
		return nil
	}
	hint := ""
	if s := cmd.SuggestionsFor(v[0]); len(s) > 0 {
		hint = fmt.Sprintf(": did you mean %s?", strings.Join(s, " or "))
	}
	if !cmd.HasAvailableSubCommands() {
		return usage("%s takes no argument %q: see %s --help", cmd.CommandPath(), v[0], cmd.CommandPath())
	}
	return usage("there is no command %q%s: see %s --help", strings.TrimPrefix(cmd.CommandPath()+" "+v[0], "conclave "), hint, cmd.CommandPath())
}

// badFlag explains a flag that is not there, and suggests one.
func badFlag(cmd *cobra.Command, err error) error {
	hint := ""
	if _, name, ok := strings.Cut(err.Error(), "unknown flag: --"); ok {
		best := 3
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if d := distance(name, f.Name); d < best {
				best, hint = d, ": did you mean --"+f.Name+"?"
			}
		})
	}
	return usage("%v%s: see %s --help", err, hint, cmd.CommandPath())
}

// distance is how many letters must be added, taken out or changed to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}

// nearest is the candidate that name was perhaps meant to be, as words to append to an error.
func nearest(name string, candidates []string) string {
	best, hint := 3, ""
	for _, c := range candidates {
		if d := distance(name, c); d < best {
			best, hint = d, fmt.Sprintf(", did you mean %s?", c)
		}
	}
	return hint
}

// helpCommand is cobra's, except that an unknown topic is a wrong call.
func (a *app) helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:     "help [command]",
		Short:   "Explain a command",
		Example: "  conclave help audit verify",
		RunE: func(_ *cobra.Command, words []string) error {
			cmd, rest, err := root.Find(words)
			if err != nil || cmd == nil || len(rest) > 0 && cmd == root {
				return usage("there is no command %q: see conclave --help", strings.Join(words, " "))
			}
			return cmd.Help()
		},
	}
}

// completionCommand writes shell completions.
func (a *app) completionCommand() *cobra.Command {
	shells := []string{"bash", "zsh", "fish", "powershell"}
	return &cobra.Command{
		Use:   "completion bash|zsh|fish|powershell",
		Short: "Print a completion script for a shell",
		Example: `  conclave completion bash > ~/.local/share/bash-completion/completions/conclave
  conclave completion zsh > "${fpath[1]}/_conclave"
  conclave completion fish > ~/.config/fish/completions/conclave.fish`,
		ValidArgs: shells,
		Args:      args(cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs)),
		RunE: func(cmd *cobra.Command, v []string) error {
			root := cmd.Root()
			switch v[0] {
			case "bash":
				return root.GenBashCompletionV2(a.stdout, true)
			case "zsh":
				return root.GenZshCompletion(a.stdout)
			case "fish":
				return root.GenFishCompletion(a.stdout, true)
			}
			return root.GenPowerShellCompletionWithDesc(a.stdout)
		},
	}
}
