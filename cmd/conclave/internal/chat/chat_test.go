package chat

import (
	"bytes"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/view"
	"conclave/pkg/client"
	"conclave/subjects"
)

// TestIdleDrawsNothing: a frame does not cause the next one, so that an idle conversation writes nothing to the
// terminal.
func TestIdleDrawsNothing(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	var out bytes.Buffer
	m := newModel(t.Context(), Options{App: cli.New(nil, &out, &out)})
	if _, cmd := m.Update(tea.KeyPressMsg{Code: 'a', Text: "a"}); out.Len() == 0 && cmd == nil {
		t.Error("a key is not drawn")
	}
	if _, cmd := m.Update(frameMsg{}); cmd != nil || m.scheduled {
		t.Error("a frame schedules another one")
	}
}

// TestHelpFits: nothing of /help is cut off at 80 columns.
func TestHelpFits(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	var out bytes.Buffer
	m := newModel(t.Context(), Options{App: cli.New(nil, &out, &out)}) // 80 columns, as it is no terminal
	m.showHelp("")
	if got := strings.Join(m.lines, "\n"); strings.Contains(got, "...") || !strings.Contains(got, "quit when nothing") {
		t.Errorf("cut off:\n%s", got)
	}
}

// TestNotesAboutTheModel: a note about the model is shown whole, once in a conversation; one about the answer each
// time.
func TestNotesAboutTheModel(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	var out bytes.Buffer
	m := newModel(t.Context(), Options{App: cli.New(nil, &out, &out)})
	why := strings.Repeat("Ollama does not answer at http://127.0.0.1:11434, ", 4) + "start it"
	for range 2 {
		m.turn = &turn{Transcript: view.NewTranscript(m, m.modelNotes)}
		for _, n := range []subjects.Note{{Code: subjects.NoteModel, Text: why}, {Code: "clipped", Text: "cut"}} {
			m.turn.Show(client.Note{Note: n})
		}
		m.turn.PrintNotes()
	}
	got := strings.Join(m.lines, " ")
	if strings.Count(got, why) != 1 || strings.Count(got, "note: cut") != 2 {
		t.Errorf("notes: %q", m.lines)
	}
}

// TestModeReport: y approves only where the terminal's first report, soon after the start, says that it marks pastes.
func TestModeReport(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	for _, tt := range []struct {
		name    string
		reports []tea.ModeReportMsg
		before  tea.Msg // the first report
		want    bool
	}{
		{"no report", nil, nil, false},
		{"set", []tea.ModeReportMsg{{Mode: ansi.ModeBracketedPaste, Value: ansi.ModeSet}}, nil, true},
		{"not known", []tea.ModeReportMsg{{Mode: ansi.ModeBracketedPaste, Value: ansi.ModeNotRecognized}}, nil, false},
		{"reset", []tea.ModeReportMsg{{Mode: ansi.ModeBracketedPaste, Value: ansi.ModeReset}}, nil, false},
		{"another mode", []tea.ModeReportMsg{{Mode: ansi.ModeSynchronizedOutput, Value: ansi.ModeSet}}, nil, false},
		{"trick: pasted behind the true one", []tea.ModeReportMsg{
			{Mode: ansi.ModeBracketedPaste},
			{Mode: ansi.ModeBracketedPaste, Value: ansi.ModeSet},
		}, nil, false},
		{
			"trick: pasted behind a key",
			[]tea.ModeReportMsg{{Mode: ansi.ModeBracketedPaste, Value: ansi.ModeSet}},
			tea.KeyPressMsg{Code: 'a', Text: "a"},
			false,
		},
		{"trick: pasted later", []tea.ModeReportMsg{{Mode: ansi.ModeBracketedPaste, Value: ansi.ModeSet}}, nil, false},
	} {
		var out bytes.Buffer
		m := newModel(t.Context(), Options{App: cli.New(nil, &out, &out)})
		if tt.name == "trick: pasted later" {
			m.reportUntil = time.Now()
		}
		if tt.before != nil {
			m.Update(tt.before)
		}
		for _, r := range tt.reports {
			m.Update(r)
		}
		if m.marksPastes != tt.want {
			t.Errorf("%s: %v", tt.name, m.marksPastes)
		}
	}
}

// TestReplacedPrompt: keys that were meant for a prompt do not answer the one that replaces it when its call was
// decided elsewhere.
func TestReplacedPrompt(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	var out bytes.Buffer
	m := newModel(t.Context(), Options{App: cli.New(nil, &out, &out)})
	m.marksPastes = true
	for _, id := range []string{"aaaa0000", "bbbb0000"} {
		m.waiting = append(m.waiting, subjects.ApprovalRequest{
			ID: id, Tool: "tool_" + id, Asked: time.Now(), Expires: time.Now().Add(time.Hour),
		})
	}
	m.showApprovals()
	m.batch.early = time.Now()
	m.onApprovalKey(tea.KeyPressMsg{Code: 'y', Text: "y"})
	if m.batch.typed != "y" {
		t.Fatalf("typed %q", m.batch.typed)
	}
	m.onDecided(subjects.ApprovalReply{ID: "aaaa0000", State: subjects.ApprovalDenied})
	if m.batch == nil || m.batch.Batch[0].ID != "bbbb0000" || m.batch.typed != "" {
		t.Fatalf("%+v", m.batch)
	}
	if wait := time.Until(m.batch.early); wait < term.TooFastAfterSwitch/2 {
		t.Errorf("the next call can be approved after %s", wait)
	}
}
