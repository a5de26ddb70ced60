package chat

import (
	"bytes"
	"testing"

	tea "charm.land/bubbletea/v2"

	"conclave/cmd/conclave/internal/cli"
)

// TestIdleDrawsNothing: a frame does not cause the next one, so that an idle conversation writes nothing to the terminal.
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
