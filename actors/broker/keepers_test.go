package broker

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/pkg/undo"
	"conclave/subjects"
)

// fakeKeeper keeps changes and does what it is told; only what it is asked matters.
type fakeKeeper struct {
	changes []subjects.Change
	refuses bool
	down    bool
	unclear bool // an id means several changes
	actions []string
}

func (f *fakeKeeper) as(zone string) keeper {
	return keeper{zone, func(_ context.Context, o subjects.ChangeOrder) (string, error) {
		if f.down {
			return "", subjects.Faultf(subjects.CodeUnavailable, "down")
		}
		if f.unclear {
			return "", subjects.Faultf(subjects.CodeMalformed, "it means several changes")
		}
		var reply any
		q := o.Undo
		if q == nil {
			var list subjects.ChangeList
			for _, c := range f.changes {
				s := o.List.ChangeSelection
				if s == (subjects.ChangeSelection{}) || s.Last || c.Query == s.Query && s.Query != "" ||
					s.ID != "" && (c.ID == s.ID || c.Call == s.ID) {
					list.Changes = append(list.Changes, c)
				}
				if s.Last && len(list.Changes) == 1 {
					break
				}
			}
			if len(list.Changes) == 0 {
				return "", subjects.Faultf(subjects.CodeNoChange, "there is nothing to undo")
			}
			reply = list
		} else {
			f.actions = append(f.actions, q.Action+" "+q.ID+q.Query+" "+q.Plan+strings.Join(q.Only, ","))
			r := subjects.UndoReply{Plan: zone + "plan", Done: q.Action != subjects.UndoPlan && !f.refuses}
			if f.refuses {
				r.Refusals = []subjects.UndoRefusal{{Reason: undo.ReasonChanged}}
			}
			reply = r
		}
		data, err := json.Marshal(reply)
		return string(data), err
	}}
}

// TestUndoOfTwoKeepers: a question that changed files and memory is one list and one undo: all of it or nothing.
func TestUndoOfTwoKeepers(t *testing.T) {
	t.Parallel()
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	file := func(p string) []subjects.ChangeFile { return []subjects.ChangeFile{{Path: p}} }
	for name, tt := range map[string]struct {
		change       func(memory, tools *fakeKeeper)
		q            subjects.UndoRequest
		memory, tool []string
		fault        bool
	}{
		"a question": {
			q:      subjects.UndoRequest{Action: "apply", ChangeSelection: subjects.ChangeSelection{Query: "q1"}},
			memory: []string{"plan q1 ", "apply q1 memoryplan"}, tool: []string{"plan q1 ", "apply q1 toolsplan"},
		},
		"with the plan that was shown": {
			q: subjects.UndoRequest{
				Action: "apply", Plan: "a.b", ChangeSelection: subjects.ChangeSelection{Query: "q1"},
			},
			memory: []string{"plan q1 a", "apply q1 a"}, tool: []string{"plan q1 b", "apply q1 b"},
		},
		"trick: a part, with a plan that nobody saw": {
			change: func(memory, _ *fakeKeeper) { memory.refuses = true },
			q: subjects.UndoRequest{
				Action: "apply", Plan: "a.b", Partial: true, ChangeSelection: subjects.ChangeSelection{Query: "q1"},
			},
			memory: []string{"plan q1 a", "apply q1 a"}, tool: []string{"plan q1 b", "apply q1 b"},
		},
		"trick: a call with the id of another change": {
			change: func(memory, _ *fakeKeeper) { memory.changes[0].Call = "t1" },
			q:      subjects.UndoRequest{Action: "apply", ChangeSelection: subjects.ChangeSelection{ID: "t1"}},
			tool:   []string{"apply t1 "},
		},
		"trick: an id that one keeper finds unclear": {
			change: func(_, tools *fakeKeeper) { tools.unclear = true },
			q:      subjects.UndoRequest{Action: "purge", ChangeSelection: subjects.ChangeSelection{ID: "m1"}},
			fault:  true,
		},
		"one refuses": {
			change: func(_, tools *fakeKeeper) { tools.refuses = true },
			q:      subjects.UndoRequest{Action: "apply", ChangeSelection: subjects.ChangeSelection{Query: "q1"}},
			memory: []string{"plan q1 "}, tool: []string{"plan q1 "},
		},
		"the last one": {
			q:      subjects.UndoRequest{Action: "apply", ChangeSelection: subjects.ChangeSelection{Last: true}},
			memory: []string{"apply m2 "},
		},
		"a file of it": {
			q: subjects.UndoRequest{
				Action: "apply", Only: []string{"/a"}, ChangeSelection: subjects.ChangeSelection{Query: "q1"},
			},
			tool: []string{"apply q1 /a"},
		},
		"one does not answer": {
			change: func(memory, _ *fakeKeeper) { memory.down = true },
			q:      subjects.UndoRequest{Action: "apply", ChangeSelection: subjects.ChangeSelection{Query: "q1"}},
			fault:  true,
		},
		"one does not answer, and the other has the change": {
			change: func(memory, _ *fakeKeeper) { memory.down = true },
			q:      subjects.UndoRequest{Action: "apply", ChangeSelection: subjects.ChangeSelection{ID: "t1"}},
			tool:   []string{"apply t1 "},
		},
		"no change": {
			q:     subjects.UndoRequest{Action: "apply", ChangeSelection: subjects.ChangeSelection{ID: "other"}},
			fault: true,
		},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			memory := &fakeKeeper{changes: []subjects.Change{
				{ID: "m2", Call: "m2", Query: "q2", Time: at(3), Files: file("memory:b")},
				{ID: "m1", Call: "m1", Query: "q1", Time: at(1), Files: file("memory:a")},
			}}
			tools := &fakeKeeper{changes: []subjects.Change{
				{ID: "t1", Call: "t1", Query: "q1", Time: at(2), Files: file("/a")},
			}}
			if tt.change != nil {
				tt.change(memory, tools)
			}
			keepers := []keeper{memory.as("memory"), tools.as("tools")}
			r, err := undoChanges(t.Context(), keepers, subjects.Change{ID: "u"}, tt.q)
			if (err != nil) != tt.fault || r.Done != (err == nil && !tools.refuses) {
				t.Errorf("%+v, %v", r, err)
			}
			if !slices.Equal(memory.actions, tt.memory) || !slices.Equal(tools.actions, tt.tool) {
				t.Errorf("asked %q and %q, want %q and %q", memory.actions, tools.actions, tt.memory, tt.tool)
			}
			tools.unclear = false
			_, list, err := findChanges(t.Context(), keepers, subjects.ChangeQuery{Limit: 2})
			var ids []string
			for _, c := range list.Changes {
				ids = append(ids, c.ID)
			}
			if want := []string{"m2", "t1"}; !memory.down && !slices.Equal(ids, want) || err != nil ||
				memory.down != slices.Equal(list.Missing, []string{"memory"}) || !memory.down && !list.More {
				t.Errorf("listed %q, %+v, %v", ids, list, err)
			}
		})
	}
}
