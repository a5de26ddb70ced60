// Package userconfig reads the configuration of the user for a command. It is apart from cli, so that
// cli does not import config.
package userconfig

import (
	"slices"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/config"
	"conclave/subjects"
)

// Load reads the configuration and applies flags to it, by path of the setting, and --log-level. An empty value means
// that the flag was not given. Invalid files are errors, invalid flags usage errors; missing files are the shipped
// ones. flags may be nil.
func Load(a *cli.App, flags map[string]string) (config.Config, error) {
	cfg, err := config.Load(a.Home.Config)
	if err != nil {
		return cfg, err
	}
	set := map[string]string{}
	for path, v := range flags {
		if v != "" {
			set[path] = v
		}
	}
	if a.Level != "" {
		set["system.log_level"] = a.Level
	}
	if err := cfg.Apply(set); err != nil { // the files are valid
		return cfg, &cli.Failure{Code: cli.ExitUsage, Err: err}
	}
	return cfg, nil
}

// LoadNames is the configuration for naming things, such as tools in help and completions: the shipped one when the
// user's cannot be read. It must not decide how the system runs.
func LoadNames(a *cli.App) config.Config {
	cfg, err := Load(a, nil)
	if err != nil {
		cfg, _ = config.Load("")
	}
	return cfg
}

// ToolNames are the tools that a configuration switches on.
func ToolNames(cfg config.Config) (out []string) {
	for _, t := range cfg.Tools() {
		out = append(out, t.Name())
	}
	return out
}

// CompleteTools completes the names of tools.
func CompleteTools(a *cli.App) cli.Completion {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return ToolNames(LoadNames(a)), cobra.ShellCompDirectiveNoFileComp
	}
}

// EnabledActors are the actors that a configuration wants: all of this build, and respondent B only where it is
// enabled.
func EnabledActors(cfg config.Config) []string {
	return slices.DeleteFunc(slices.Clone(config.Actors), func(n string) bool {
		return n == subjects.RespondentB && !cfg.Generator.RespondentB.Enabled
	})
}
