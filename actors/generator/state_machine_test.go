package generator

import (
	"fmt"
	"maps"
	"slices"
	"testing"
)

func TestTransitions(t *testing.T) {
	t.Parallel()
	want := map[string]state{
		"IDLE RECEIVE_QUERY":             receiving,
		"RECEIVING START_RECALL":         recalling,
		"RECEIVING START_GENERATION":     generating,
		"RECEIVING FINISH":               publishing,
		"RECEIVING FAIL":                 idle,
		"RECALLING START_GENERATION":     generating,
		"RECALLING FINISH":               publishing,
		"RECALLING FAIL":                 idle,
		"GENERATING START_GENERATION":    generating,
		"GENERATING DISPATCH_TOOL":       dispatching,
		"GENERATING FINISH":              publishing,
		"GENERATING FAIL":                idle,
		"DISPATCHING_TOOL DISPATCH_TOOL": waiting,
		"DISPATCHING_TOOL FINISH":        publishing,
		"DISPATCHING_TOOL FAIL":          idle,
		"WAITING_FOR_TOOL TOOL_RESULT":   generating,
		"WAITING_FOR_TOOL TOOL_TIMEOUT":  generating,
		"WAITING_FOR_TOOL FINISH":        publishing,
		"WAITING_FOR_TOOL FAIL":          idle,
		"PUBLISHING FINISH":              idle,
		"PUBLISHING FAIL":                idle,
	}
	if len(states) != 7 || len(events) != 8 {
		t.Fatalf("%d states and %d events", len(states), len(events))
	}
	for _, s := range states {
		for _, e := range events {
			told := ""
			m := &stateMachine{current: s, report: func(from, to state, e event, step int) {
				told = fmt.Sprintf("%s %s %s %d", from, e, to, step)
			}}
			err := m.fire(e, 2)
			to, ok := want[string(s)+" "+string(e)]
			switch {
			case ok && (err != nil || m.current != to || told != fmt.Sprintf("%s %s %s 2", s, e, to)):
				t.Errorf("%s by %s: at %s, %v, told %q; want %s", s, e, m.current, err, told, to)
			case !ok && (err == nil || m.current != s || told != ""):
				t.Errorf("%s by %s: at %s, told %q; must be refused", s, e, m.current, told)
			}
		}
	}
}

func TestAdvance(t *testing.T) {
	t.Parallel()
	for _, s := range states {
		for _, e := range events {
			m := newStateMachine(func(state, state, event, int) {})
			m.current = s
			err := m.advance(e, 1)
			can := slices.Contains(slices.Collect(maps.Keys(transitions[s])), e)
			if can && err != nil {
				t.Errorf("%s by %s: %v", s, e, err)
			}
			if s == idle && e != receiveQuery && err == nil {
				t.Errorf("%s left idle without a question", e)
			}
		}
	}
}
