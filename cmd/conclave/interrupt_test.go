package main

import (
	"context"
	"io"
	"testing"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
)

// A command that changes something must not succeed when it was interrupted: nothing says that the change was made.
func TestInterruptedChangeIsAnError(t *testing.T) {
	t.Parallel()
	p := newFixture(t).installation(t)
	stopped, stop := context.WithCancel(t.Context())
	stop()
	for _, tt := range []struct {
		name    string
		command func(*cli.App) *cobra.Command
		args    []string
		fails   bool
	}{
		{"session override", sessionOverrideCommand, []string{"s1", "ALL"}, true},
		{"session override --show", sessionOverrideCommand, []string{"s1", "--show"}, false},
		{"rate", rateCommand, []string{"up", "--query", "0123456789abcdef0123456789abcdef"}, true},
		{"rate of a session", rateCommand, []string{"up", "--session", "s1"}, true},
	} {
		a := cli.New(nil, io.Discard, io.Discard)
		a.Home.Data, a.Home.Config = p.data, p.data
		cmd := tt.command(a)
		cmd.SetArgs(tt.args)
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		if err := cmd.ExecuteContext(stopped); (err != nil) != tt.fails {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
