package chat

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/cmd/conclave/internal/cli"
	"conclave/pkg/bus"
	"conclave/pkg/file"
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

// TestHistoryIsLocked: while another conversation has the lock, no input is added and the file is not replaced by a
// shorter one.
func TestHistoryIsLocked(t *testing.T) {
	t.Parallel()
	app := &cli.App{Home: bus.Home{Data: t.TempDir()}}
	h := openHistory(app)
	unlock, err := file.LockFolder(app.Home.Data, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.save("one"); !errors.Is(err, file.ErrLocked) {
		t.Errorf("saved beside another conversation: %v", err)
	}
	long := []byte(strings.Repeat("\"x\"\n", 2*maxHistory+1))
	if err := os.WriteFile(h.file, long, 0o600); err != nil {
		t.Fatal(err)
	}
	openHistory(app)
	if data, err := os.ReadFile(h.file); err != nil || len(data) != len(long) {
		t.Errorf("%d of %d bytes left beside another conversation, %v", len(data), len(long), err)
	}
	if err := os.Remove(h.file); err != nil {
		t.Fatal(err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	if err := h.save("two"); err != nil || !slices.Equal(openHistory(app).entries, []string{"two"}) {
		t.Errorf("kept %v, %v", openHistory(app).entries, err)
	}
}
