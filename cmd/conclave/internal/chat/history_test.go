package chat

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"conclave/cmd/conclave/internal/cli"
	"conclave/pkg/bus"
)

// TestHistoryOfTwoConversations: inputs of two conversations at once are both kept, and a long file is cut.
func TestHistoryOfTwoConversations(t *testing.T) {
	t.Parallel()
	app := &cli.App{Home: bus.Home{Data: t.TempDir()}}
	first, second := openHistory(app), openHistory(app)
	first.add("one")
	second.add("two")
	first.add("three")
	if got := openHistory(app).entries; !slices.Equal(got, []string{"one", "two", "three"}) {
		t.Errorf("kept %q", got)
	}
	for i := range 2 * maxHistory {
		first.add(fmt.Sprint("line ", i))
	}
	last := fmt.Sprint("line ", 2*maxHistory-1)
	if got := openHistory(app).entries; len(got) > maxHistory || got[len(got)-1] != last {
		t.Errorf("%d entries, the last %q", len(got), got[len(got)-1])
	}
	if data, err := os.ReadFile(first.file); err != nil || strings.Count(string(data), "\n") > maxHistory {
		t.Errorf("the file has %d lines, %v", strings.Count(string(data), "\n"), err)
	}
}
