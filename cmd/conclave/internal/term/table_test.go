package term

import (
	"slices"
	"strings"
	"testing"

	"conclave/cmd/conclave/internal/term/termtest"
)

// A table gets narrower with its terminal: columns are left out, then the last one is clipped. A pipe gets all of it.
func TestTableFitsTerminal(t *testing.T) {
	t.Parallel()
	rows := [][]string{
		{"ID", "STATE", "NAME", "QUESTION"},
		{"1", "ready", "漢字漢字", "What is the capital of France, and since when?"},
		{"2", "ready", "👨\u200d👩\u200d👧", "می\u200cخواهم"},
	}
	layout := Layout{Drop: []string{"STATE", "missing", "NAME"}}
	for _, tt := range []struct {
		columns int
		want    []string
	}{
		{0, []string{
			"ID  STATE  NAME      QUESTION", "1   ready  漢字漢字  What is the capital of France, and since when?",
			"2   ready  👨\u200d👩\u200d👧        می\u200cخواهم",
		}},
		{40, []string{
			"ID  STATE  NAME      QUESTION", "1   ready  漢字漢字  What is the capi...",
			"2   ready  👨\u200d👩\u200d👧        می\u200cخواهم",
		}},
		{30, []string{"ID  NAME      QUESTION", "1   漢字漢字  What is the c...", "2   👨\u200d👩\u200d👧        " +
			"می\u200cخواهم"}},
		{20, []string{"ID  QUESTION", "1   What is the c...", "2   می\u200cخواهم"}},
		{10, []string{"ID  QUESTI", "1   What i", "2   می\u200cخواه"}},
	} {
		got := tableLines(rows, layout, tt.columns)
		if !slices.Equal(got, tt.want) {
			t.Errorf("%d columns:\n%s\nwant\n%s", tt.columns, strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
		}
		for _, l := range got {
			if tt.columns > 0 && Width(l) > tt.columns {
				t.Errorf("%d columns: %q is %d wide", tt.columns, l, Width(l))
			}
		}
	}
	whole := tableLines(rows, Layout{Whole: true}, 20)
	if !strings.Contains(whole[1], "since when?") {
		t.Errorf("a decision was clipped: %q", whole)
	}
	coloured := tableLines([][]string{{"\x1b[32mpass\x1b[0m", "a", strings.Repeat("x", 50)}}, Layout{}, 30)
	if Width(coloured[0]) != 30 || !strings.HasPrefix(coloured[0], "\x1b[32mpass\x1b[0m  a  xx") {
		t.Errorf("with colours: %q", coloured)
	}
	if got := cutWidth("\x1b[32mabcdef\x1b[0m", 3); got != "\x1b[32mabc\x1b[0m" {
		t.Errorf("a colour without an end: %q", got)
	}

	master, slave := termtest.OpenSize(t, 30, 10)
	Table(slave, rows, layout)
	if got := termtest.ReadAll(t, master, slave); !strings.HasPrefix(got, "ID  NAME      QUESTION\n1   漢字漢字  What is "+
		"the c...\n") {
		t.Errorf("on a terminal: %q", got)
	}
}
