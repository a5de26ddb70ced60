package main

import (
	"io"
	"os"
	"strings"
	"testing"

	"conclave/cmd/conclave/internal/cli"
)

// TestReadmeListsCommands requires that the table of commands in the README names every command.
func TestReadmeListsCommands(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(readme), "| command | purpose |")
	table, _, _ = strings.Cut(table, "\n\n")
	for _, c := range rootCommand(cli.New(strings.NewReader(""), io.Discard, io.Discard)).Commands() {
		if !c.Hidden && c.Name() != "help" && !strings.Contains(table, "`"+c.Name()+"`") {
			t.Errorf("README.md does not name conclave %s", c.Name())
		}
	}
}
