package view

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"conclave/subjects"
)

// TestChanges: changes and undos are shown with their differences, their untrusted source and the reason of a refusal,
// and nothing of them steers the terminal.
func TestChanges(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	Changes(&out, subjects.ChangeList{Changes: []subjects.Change{{
		ID: "3f9c01d2aa", Time: at, Tool: "notes_add", Sources: []string{"https://evil.example\x1b[8m"},
		Files: []subjects.ChangeFile{
			{Path: "/home/me/a\x1b[2J.md", Kind: subjects.FileChanged, Diff: "+new\u202e\n-old\n"},
			{Path: "/home/me/b.md", Kind: subjects.FileCreated, Undone: "u1"},
		},
	}}, More: true}, at.Add(2*time.Hour))
	Undo(&out, subjects.UndoReply{
		Files:    []subjects.UndoFile{{Path: "/home/me/c.md", Diff: "-x"}, {Path: "/home/me/d.md", Same: true}},
		Refusals: []subjects.UndoRefusal{{Path: "/home/me/e.md", Text: "e.md was changed since\x07"}},
	}, false)
	got := out.String()
	for _, want := range []string{
		"3f9c01d2  notes_add 2h ago", "changed /home/me/a", "    +new", "    -old", "created /home/me/b.md, undone",
		"after reading https://evil.example", "there are older ones", "    -x", "d.md is as it was already",
		"not restored: e.md was changed since",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in:\n%s", want, got)
		}
	}
	if strings.ContainsAny(got, "\x1b\x07\u202e") {
		t.Errorf("trick: it steers the terminal: %q", got)
	}
}
