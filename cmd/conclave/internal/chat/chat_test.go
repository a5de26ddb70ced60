package chat

import (
	"bytes"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"conclave/cmd/conclave/internal/cli"
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
