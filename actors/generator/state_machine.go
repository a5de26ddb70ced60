package generator

import (
	"fmt"
	"slices"
)

// state is where a running query is.
type state string

// States of a query.
const (
	idle        state = "IDLE"             // not begun, or over
	receiving   state = "RECEIVING"        // history and checkpoint are being read
	generating  state = "GENERATING"       // a model call is under way
	dispatching state = "DISPATCHING_TOOL" // calls are being sent to the broker
	waiting     state = "WAITING_FOR_TOOL" // all are sent, some are not answered
	publishing  state = "PUBLISHING"       // the answer is there and is being stored
)

// event is what moves a query from state to state.
type event string

// Events of a query.
const (
	receiveQuery    event = "RECEIVE_QUERY"
	startGeneration event = "START_GENERATION"
	dispatchTool    event = "DISPATCH_TOOL" // the first call of a reply is sent; again when all are
	toolResult      event = "TOOL_RESULT"   // all calls of a reply are answered
	toolTimeout     event = "TOOL_TIMEOUT"  // all are answered or given up, and one at least was given up
	finish          event = "FINISH"        // there is an answer, be it words about what went wrong; again when it is stored
	fail            event = "FAIL"          // it ended here without an answer: it goes on elsewhere, or later
)

var (
	states = []state{idle, receiving, generating, dispatching, waiting, publishing}
	events = []event{receiveQuery, startGeneration, dispatchTool, toolResult, toolTimeout, finish, fail}
)

// transitions is the whole machine. What is not here is refused.
var transitions = map[state]map[event]state{
	idle: {receiveQuery: receiving},
	receiving: {
		startGeneration: generating,
		finish:          publishing, // stopped before it began, or its answer was there before a crash
		fail:            idle,
	},
	generating: {
		startGeneration: generating, // the next model call: after results, a nudge or a reply that could not be read
		dispatchTool:    dispatching,
		finish:          publishing,
		fail:            idle,
	},
	dispatching: {
		dispatchTool: waiting,
		finish:       publishing, // stopped: what is there is the answer
		fail:         idle,
	},
	waiting: {
		toolResult:  generating,
		toolTimeout: generating,
		finish:      publishing, // stopped
		fail:        idle,
	},
	publishing: {finish: idle, fail: idle},
}

// stateMachine is the state of one running query. Every transition is told.
type stateMachine struct {
	current state
	report  func(from, to state, e event, step int)
}

func newStateMachine(tell func(from, to state, e event, step int)) *stateMachine {
	return &stateMachine{current: idle, report: tell}
}

// fire takes the transition of e, or refuses and stays.
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

// advance takes the shortest way to a state from which e can be taken, and takes it. The loop tells of what happens in its
// own words: a resumed turn begins with its calls, a refused call is never sent.
func (m *stateMachine) advance(e event, step int) error {
	for range states {
		if _, ok := transitions[m.current][e]; ok {
			return m.fire(e, step)
		}
		switch m.current {
		case receiving:
			_ = m.fire(startGeneration, step)
		case dispatching:
			_ = m.fire(dispatchTool, step)
		case waiting:
			_ = m.fire(toolResult, step)
		default:
			return m.fire(e, step) // refused
		}
	}
	return fmt.Errorf("no way from %s to %s", m.current, e)
}

// isIn reports whether the query is in one of some states.
func (m *stateMachine) isIn(s ...state) bool { return slices.Contains(s, m.current) }
