package broker

import (
	"errors"
	"testing"

	"conclave/subjects"
)

// TestUndoRefusesAgents: an account that is not the user's neither lists nor takes back, also when a message reaches
// the broker.
func TestUndoRefusesAgents(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t)
	var list subjects.ChangeList
	err := h.deliver(t, "ctl.generator.change.list", "", "", subjects.ChangeQuery{}, &list)
	var fault *subjects.Fault
	if !errors.As(err, &fault) || fault.Code != subjects.CodeDenied {
		t.Errorf("a list for an agent: %v", err)
	}
	var reply subjects.UndoReply
	err = h.deliver(t, "ctl.generator.change.undo", "", "", subjects.UndoRequest{Action: subjects.UndoApply}, &reply)
	if !errors.As(err, &fault) || fault.Code != subjects.CodeDenied {
		t.Errorf("an undo by an agent: %v", err)
	}
}

// AskOnBus is askOnBus for the tests outside of the package.
var AskOnBus = askOnBus
