package main

import (
	"slices"

	"conclave/config"
	"conclave/subjects"
)

// staff are the actors that the settings want: all of this build, and the second respondent only where it is switched on.
func staff(cfg config.Config) []string {
	return slices.DeleteFunc(slices.Clone(config.Actors), func(n string) bool {
		return n == subjects.RespondentB && !cfg.Generator.RespondentB.Enabled
	})
}

// expected are the names that discovery should find: the staff, with every tool in the place of "tools". Without a gateway
// the system is headless, and that is nothing to mend.
func expected(cfg config.Config) []string {
	out := slices.DeleteFunc(staff(cfg), func(n string) bool { return n == "tools" || n == "gateway" })
	return append(out, toolNames(cfg)...)
}
