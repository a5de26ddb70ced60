package cli

import (
	"maps"

	"github.com/spf13/cobra"

	"conclave/config"
)

// LoadConfig reads the configuration and applies flags to it, by path of the setting, and --log-level. An empty value
// means that the flag was not given. Invalid files are errors, invalid flags usage errors; missing files are the
// shipped ones. flags may be nil.
func (a *App) LoadConfig(flags map[string]string) (config.Config, error) {
	cfg, err := config.Load(a.Home.Config)
	if err != nil {
		return cfg, err
	}
	set := map[string]string{"system.log_level": a.Level}
	maps.Copy(set, flags)
	maps.DeleteFunc(set, func(_, v string) bool { return v == "" })
	if err := cfg.Apply(set); err != nil { // the files are valid
		return cfg, &Failure{ExitUsage, err}
	}
	return cfg, nil
}

// NamingConfig is the configuration for naming things, such as tools in help and completions: the shipped one when the
// user's cannot be read. It must not decide how the system runs.
func (a *App) NamingConfig() config.Config {
	cfg, err := a.LoadConfig(nil)
	if err != nil {
		cfg, _ = config.Load("")
	}
	return cfg
}

// CompleteTools completes the names of tools.
func (a *App) CompleteTools() Completion {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return a.NamingConfig().ToolNames(), cobra.ShellCompDirectiveNoFileComp
	}
}
