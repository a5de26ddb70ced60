package main

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/pkg/client"
	"conclave/pkg/policy"
	"conclave/pkg/tool"
	"conclave/subjects"
)

// declareFlags are the flags by which the user says what a tool does.
type declareFlags struct {
	act                    string
	effects, agents, about []string
	args                   map[string]string
}

// add adds the flags to a command.
func (f *declareFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.act, "act", "", "what it does: "+strings.Join(policy.ActNames, ", ")+" (default: undeclared, "+
		"each call asks you)")
	flags.StringSliceVar(&f.effects, "effects", nil, "more `effects` than those of the act; none for no others "+
		"(default: reads_private, reads_untrusted)")
	flags.StringToStringVar(&f.args, "args", nil, "what its arguments are for, as `name=role`: "+
		strings.Join(policy.RoleNames, ", ")+"; an argument without a role is a sink, which only you may choose")
	flags.StringSliceVar(&f.about, "about", nil, "`words` by which you name what it reads")
	flags.StringSliceVar(&f.agents, "agents", nil, "agent `types` that may call it; none for your own calls only "+
		"(default: the assistant)")
	cli.CompleteFlags(cmd, map[string]cli.Completion{
		"act":     cli.Words(policy.ActNames...),
		"effects": cli.Words(append([]string{"none"}, policy.EffectNames...)...),
	})
}

// declaration returns what the flags declare about a tool. It rejects what [checkDeclaration] rejects.
func (f *declareFlags) declaration(cmd *cobra.Command, a *cli.App, name string) (subjects.ToolDeclaration, error) {
	manifest := a.NamingConfig().Manifest
	d := subjects.ToolDeclaration{Agents: f.agents, Act: f.act, Args: f.args, About: f.about}
	switch {
	case !cmd.Flags().Changed("agents"):
		d.Agents = []string{manifest.Accounts[subjects.Generator]}
	case slices.Equal(f.agents, []string{"none"}):
		d.Agents = nil
	}
	switch {
	case slices.Equal(f.effects, []string{"none"}):
		d.Effects = []string{}
	case cmd.Flags().Changed("effects"):
		d.Effects = f.effects
	}
	return d, checkDeclaration(manifest, name, d)
}

// keepDeclared returns d, of [declareFlags.declaration], with the parts of known that no flag is about: the agents, and
// what the tool does. Withdrawing a tool does not forget its act, and a new act does not hand the tool to agents.
func keepDeclared(cmd *cobra.Command, d, known subjects.ToolDeclaration) subjects.ToolDeclaration {
	if !cmd.Flags().Changed("agents") {
		d.Agents = known.Agents
	}
	if !slices.ContainsFunc([]string{"act", "effects", "args", "about"}, cmd.Flags().Changed) {
		d.Act, d.Effects, d.Args, d.About = known.Act, known.Effects, known.Args, known.About
	}
	d.Pin = known.Pin // set by conclave mcp add
	return d
}

// checkDeclaration rejects what the registry would reject about a tool, and agent types that the manifest does not
// have.
func checkDeclaration(manifest policy.Manifest, tool string, d subjects.ToolDeclaration) error {
	for _, t := range d.Agents {
		if _, ok := manifest.Types[t]; !ok {
			return cli.Usage("the manifest has no agent type %q; types: %s", t,
				strings.Join(slices.Sorted(maps.Keys(manifest.Types)), ", "))
		}
	}
	if _, err := policy.ParseDeclaration(tool, tool, d); err != nil {
		return cli.Usage("%v", err)
	}
	return nil
}

// toolReport is what conclave tool add made.
type toolReport struct {
	Tool      string `json:"tool"`
	Principal string `json:"principal"`
	Key       string `json:"key"`
	Folder    string `json:"folder,omitempty"`
}

// toolAddCommand adds a tool with a principal of its own, and writes a working example.
func toolAddCommand(a *cli.App) *cobra.Command {
	var flags declareFlags
	var lang, dir string
	cmd := &cobra.Command{
		Use:   "add <name>",
		Short: "Add a tool of your own, with a working example",
		Long: `Adds a tool: an account with a key of its own, what you say about it, and a folder with a working
example that connects, announces itself and answers calls. It takes effect at once. Only the path of
the key is printed, never the key.

Without --act Conclave does not know what the tool does, and each call of an agent asks you.
docs/tools.md explains the contract, acts, effects and arguments.`,
		Example: `  conclave tool add word_count && cd word_count
  python3 -m venv .venv && .venv/bin/pip install nats-py nkeys && .venv/bin/python tool.py
  conclave tool add house_light --lang go --act control --args room=destination,state='on | off'
  conclave tool add ledger --lang none --act read --effects reads_private --agents assistant,researcher`,
		Args: cli.Args(cobra.ExactArgs(1)), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, v []string) error {
			name := v[0]
			d, err := flags.declaration(cmd, a, name)
			if err != nil {
				return err
			}
			p := subjects.Principal{
				Name: strings.ReplaceAll(name, "_", "-"), Kind: subjects.ToolPrincipal, Tools: []string{name},
				Declared: map[string]subjects.ToolDeclaration{name: d},
			}
			if err := p.CheckRights(); err != nil {
				return cli.Usage("%v", err)
			}
			if lang != "none" && !slices.Contains(tool.Languages, lang) {
				return cli.Usage("--lang %q: give %s or none", lang, strings.Join(tool.Languages, ", "))
			}
			if dir == "" {
				dir = name
			}
			check := tool.CheckFolder
			if lang == "none" {
				lang, check = "", tool.CheckSettings
			}
			if err := check(dir); err != nil {
				return cli.Usage("--dir: %v", err)
			}
			return addTool(cmd.Context(), a, p, name, lang, dir)
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&lang, "lang", "python", "`language` of the example: python, go, shell, or none for "+
		"conclave.json alone")
	cmd.Flags().StringVar(&dir, "dir", "", "`folder` of the example or of conclave.json (default: the name of the "+
		"tool)")
	cli.CompleteFlags(cmd,
		map[string]cli.Completion{"lang": cli.Words(append(slices.Clone(tool.Languages), "none")...)})
	return cmd
}

// addTool adds the principal of a tool and writes the example in a language, "" for the settings alone.
func addTool(ctx context.Context, a *cli.App, p subjects.Principal, name, lang, dir string) error {
	b, err := a.Bus()
	if err != nil {
		return err
	}
	key, err := connectAndMakeKey(ctx, a, subjects.PrincipalAdd, p)
	if err != nil {
		return err
	}
	report := toolReport{Tool: name, Principal: p.Name, Key: key.Key}
	s := tool.Settings{Server: b.URL, Key: key.Key, Principal: p.Name}
	if strings.Contains(b.URL, "tls://") {
		s.CA = b.CA
	}
	if err := tool.WriteExample(dir, lang, name, s); err != nil {
		return fmt.Errorf("%s is added, but its folder is not written: %w; remove it with %s tool remove %s, and add "+
			"it again", name, err, a.Program(), name)
	}
	if report.Folder, err = filepath.Abs(dir); err != nil {
		return err
	}
	next := "connect your program with the settings in " + filepath.Join(dir, "conclave.json") + ", see docs/tools.md"
	if lang != "" {
		next = "start it with: cd " + dir + " && " + tool.StartCommand[lang]
		if needs := tool.Needs[lang]; needs != "" {
			next += "\n" + needs
		}
	}
	err = a.PrintText(report, "added "+name+", key in "+key.Key+"\n"+next)
	if p.Declared[name].Act == "" && !a.JSON {
		a.Say("each call of an agent will ask you; say what the tool does with %s tool set %s --act", a.Program(), name)
	}
	return err
}

// toolSetCommand changes what is declared about a tool.
func toolSetCommand(a *cli.App) *cobra.Command {
	var flags declareFlags
	cmd := &cobra.Command{
		Use:   "set <tool>",
		Short: "Change what you said about a tool",
		Long: `Replaces who may call a tool with --agents, and what it does with --act, --effects, --args and
--about. Of these four those that are not given have their default again; with none of them what the
tool does stays as it is, and without --agents its agents stay. It takes effect at once, and the
tool keeps its key and its accepted definition.`,
		Example: "  conclave tool set word_count --act read --effects none\n  conclave tool set word_count --agents " +
			"none",
		Args: cli.Args(cobra.ExactArgs(1)), ValidArgsFunction: cli.FirstArg(completeAddedTools(a)),
		RunE: func(cmd *cobra.Command, v []string) error {
			d, err := flags.declaration(cmd, a, v[0])
			if err != nil {
				return err
			}
			return a.WithClient(func(c *client.Client) error {
				p, err := findToolPrincipal(cmd.Context(), a, c, v[0])
				if err != nil {
					return err
				}
				p.Declared = maps.Clone(p.Declared)
				if p.Declared == nil {
					p.Declared = map[string]subjects.ToolDeclaration{}
				}
				if known, ok := p.Declared[v[0]]; ok {
					d = keepDeclared(cmd, d, known)
				}
				p.Declared[v[0]] = d
				if err := changePrincipal(cmd.Context(), a, c, subjects.PrincipalUpdate, p); err != nil {
					return err
				}
				return a.PrintText(principalReport{Name: v[0], Action: subjects.PrincipalUpdate}, "set "+v[0])
			})
		},
	}
	flags.add(cmd)
	return cmd
}
