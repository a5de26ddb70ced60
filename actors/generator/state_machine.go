package generator

import (
	"fmt"
	"slices"
)

// state is the state of a running query.
type state string

// States of a query.
const (
	idle        state = "IDLE"             // not begun, or finished
	receiving   state = "RECEIVING"        // conversation and checkpoint are loaded
	recalling   state = "RECALLING"        // the user's statements are recalled before the first model call
	generating  state = "GENERATING"       // a model call is running
	dispatching state = "DISPATCHING_TOOL" // calls are being sent to the broker
	waiting     state = "WAITING_FOR_TOOL" // all calls are sent, some have no result
	publishing  state = "PUBLISHING"       // the answer is being stored and published
)

// event moves a query from state to state.
type event string

// Events of a query.
const (
	receiveQuery    event = "RECEIVE_QUERY"
	startRecall     event = "START_RECALL"
	startGeneration event = "START_GENERATION"
	dispatchTool    event = "DISPATCH_TOOL" // the first call of a reply is sent; again when all are
	toolResult      event = "TOOL_RESULT"   // all calls of a reply have results
	toolTimeout     event = "TOOL_TIMEOUT"  // the same, and at least one timed out
	finish          event = "FINISH"        // there is an answer, or an error as the answer; again when it is published
	// this attempt ended without an answer; the turn is retried or runs elsewhere
	fail event = "FAIL"
)

var (
	states = []state{idle, receiving, recalling, generating, dispatching, waiting, publishing}
	events = []event{receiveQuery, startRecall, startGeneration, dispatchTool, toolResult, toolTimeout, finish, fail}
)

// transitions is the whole machine. Every other transition is invalid.
var transitions = map[state]map[event]state{
	idle: {receiveQuery: receiving},
	receiving: {
		startRecall:     recalling,
		startGeneration: generating,
		finish:          publishing, // canceled before it began, or the answer was stored before a crash
		fail:            idle,
	},
	recalling: {
		startGeneration: generating,
		finish:          publishing, // canceled
		fail:            idle,
	},
	generating: {
		startGeneration: generating, // the next model call: after a nudge or an unreadable reply
		dispatchTool:    dispatching,
		finish:          publishing,
		fail:            idle,
	},
	dispatching: {
		dispatchTool: waiting,
		finish:       publishing, // canceled: the text so far is the answer
		fail:         idle,
	},
	waiting: {
		toolResult:  generating,
		toolTimeout: generating,
		finish:      publishing, // canceled
		fail:        idle,
	},
	publishing: {finish: idle, fail: idle},
}

// stateMachine is the state of one running query. It reports every transition.
type stateMachine struct {
	current state
	report  func(from, to state, e event, step int)
}

func newStateMachine(tell func(from, to state, e event, step int)) *stateMachine {
	return &stateMachine{current: idle, report: tell}
}

// fire makes the transition of e. It fails and stays in its state when there is none.
func (m *stateMachine) fire(e event, step int) error {
	to, ok := transitions[m.current][e]
	if !ok {
		return fmt.Errorf("no transition from %s by %s", m.current, e)
	}
	from := m.current
	m.current = to
	m.report(from, to, e, step)
	return nil
}

// advance makes the transition of e, after intermediate ones where needed: a resumed turn starts with its calls, and a
// refused call is never sent. It fails when e cannot be reached from the current state; intermediate transitions made
// until then stay.
func (m *stateMachine) advance(e event, step int) error {
	for range states {
		if _, ok := transitions[m.current][e]; ok {
			return m.fire(e, step)
		}
		switch m.current {
		case receiving, recalling:
			_ = m.fire(startGeneration, step)
		case dispatching:
			_ = m.fire(dispatchTool, step)
		case waiting:
			_ = m.fire(toolResult, step)
		default:
			return m.fire(e, step) // refused
		}
	}
	return fmt.Errorf("no transitions from %s to %s", m.current, e)
}

// isIn reports whether the query is in one of some states.
func (m *stateMachine) isIn(s ...state) bool { return slices.Contains(s, m.current) }
