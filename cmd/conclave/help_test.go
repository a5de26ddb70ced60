package main

import (
	"io"
	"slices"
	"strings"
	"testing"

	"conclave/cmd/conclave/internal/cli"
)

// TestHelpNamesEveryCommandOnce requires that the groups of the help have every command once, and that the first page
// has at most 16.
func TestHelpNamesEveryCommandOnce(t *testing.T) {
	t.Parallel()
	var listed []string
	daily := 0
	for _, g := range helpGroups {
		listed = slices.Concat(listed, g.daily, g.other)
		daily += len(g.daily)
	}
	var there []string
	for _, c := range rootCommand(cli.New(strings.NewReader(""), io.Discard, io.Discard)).Commands() {
		if !c.Hidden {
			there = append(there, c.Name())
		}
	}
	if !slices.Contains(there, "help") { // cobra adds it when it runs
		there = append(there, "help")
	}
	slices.Sort(listed)
	slices.Sort(there)
	if !slices.Equal(listed, there) {
		t.Errorf("the help lists\n%q, the commands are\n%q", listed, there)
	}
	if daily > 16 {
		t.Errorf("the first page has %d commands", daily)
	}
}
