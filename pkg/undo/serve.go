package undo

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"conclave/pkg/text"
	"conclave/subjects"
)

// Keeper keeps the states of objects before calls changed them, and restores them: a [Store] files, memory its entries.
// Each object has a path, which is unique among all keepers.
type Keeper interface {
	// Changes returns the changes that are done, in the order of their time.
	Changes() ([]Change, error)
	// ExplainMissing returns why Changes has none with this id.
	ExplainMissing(id string) *Refusal
	// Read returns the content and the state of an object now, the zero state when there is none.
	Read(path string, f *subjects.FolderRules) ([]byte, State, error)
	// Content returns a kept content; one that is gone is a [Refusal].
	Content(path string, at State) ([]byte, error)
	// Merge applies the difference from base to ours to theirs, when that leaves no doubt.
	Merge(base, ours, theirs []byte) (merged []byte, ok bool)
	// Undo does what p plans as the change c, and returns the refusals of objects that changed since the plan was made.
	Undo(c Change, p Plan, f *subjects.FolderRules) ([]*Refusal, error)
	// Purge removes what is kept of changes, of all without ids, and returns how many there were.
	Purge(ids []string) (int, error)
}

// NewChange returns the change that an order describes, as the journal has it.
func NewChange(o subjects.Change) Change {
	return Change{
		ID: o.ID, Time: o.Time, Tool: o.Tool, Agent: o.Agent, Type: o.Type, Call: o.Call, Session: o.Session,
		Query: o.Query, Sources: o.Sources, Undoes: o.Undoes,
	}
}

// Serve lists the changes of a keeper, or takes some back, as the broker ordered. The result is a [subjects.ChangeList]
// or a [subjects.UndoReply] in JSON.
func Serve(k Keeper, o *subjects.ChangeOrder, f *subjects.FolderRules, now time.Time) (string, error) {
	if o == nil || o.Undo == nil && o.List == nil {
		return "", subjects.Faultf(subjects.CodeMalformed, "the order asks for nothing")
	}
	all, err := k.Changes()
	if err != nil {
		return "", err
	}
	var reply any
	switch q := o.Undo; {
	case q == nil:
		reply, err = listChanges(k, all, *o.List)
	case q.Action == subjects.UndoPurge && q.All:
		reply, err = purgeChanges(k, nil)
	default:
		var found []Change
		if found, err = selectChanges(all, q.ChangeSelection); err != nil {
			break
		}
		if q.Action == subjects.UndoPurge {
			reply, err = purgeChanges(k, changeIDs(found))
		} else {
			reply, err = undoChanges(k, *o, found, f, now)
		}
	}
	if err != nil {
		return "", err
	}
	data, err := json.Marshal(reply)
	return string(data), err
}

func purgeChanges(k Keeper, ids []string) (subjects.UndoReply, error) {
	n, err := k.Purge(ids)
	return subjects.UndoReply{Done: true, Changes: ids, Purged: n}, err
}

func changeIDs(changes []Change) []string {
	ids := make([]string, len(changes))
	for i, c := range changes {
		ids[i] = c.ID
	}
	return ids
}

// minChangeID is how much of an id the user must type.
const minChangeID = 4

// selectChanges returns the changes that s selects, newest first; none is a fault of [subjects.CodeNoChange].
// Those of a question or a session are the ones of its agents that are not undone, without the undos of the user.
func selectChanges(all []Change, s subjects.ChangeSelection) (found []Change, _ error) {
	for _, c := range slices.Backward(all) {
		isOpen := len(c.Undoes) == 0 && slices.Contains(c.Undone(all), "")
		var selected bool
		switch {
		case s.ID != "":
			selected = len(s.ID) >= minChangeID && (strings.HasPrefix(c.ID, s.ID) || c.Call == s.ID)
		case s.Query != "":
			selected = c.Query == s.Query && isOpen
		case s.Session != "":
			selected = c.Session == s.Session && isOpen
		case s.Last:
			selected = isOpen && len(found) == 0
		case s.All:
			selected = isOpen
		}
		if s.ID != "" && c.ID == s.ID { // a whole id is never ambiguous
			return []Change{c}, nil
		}
		if selected {
			found = append(found, c)
		}
	}
	switch {
	case len(found) == 0 && s.ID != "":
		return nil, subjects.Faultf(subjects.CodeNoChange, "there is no change %s that can be undone; conclave "+
			"changes lists them", text.OneLine(s.ID, 40))
	case len(found) == 0 && s.Query+s.Session != "":
		return nil, subjects.Faultf(subjects.CodeNoChange, "%s has changed nothing that can be undone",
			text.OneLine(cmp.Or(s.Query, s.Session), 40))
	case len(found) == 0:
		return nil, subjects.Faultf(subjects.CodeNoChange, "there is nothing to undo")
	case s.ID != "" && slices.ContainsFunc(found, func(c Change) bool { return c.Call != found[0].Call }):
		return nil, subjects.Faultf(subjects.CodeMalformed, "%s means several changes; write more of the id",
			text.OneLine(s.ID, 40))
	}
	return found, nil
}

// Bounds of a reply, so that it fits into a message.
const (
	maxChangeList  = 512 << 10
	maxChangeDiffs = 256 << 10
)

// listChanges returns the changes that q selects, newest first, as many as fit into a message; those of an id and the
// last one with the differences that they made.
func listChanges(k Keeper, all []Change, q subjects.ChangeQuery) (list subjects.ChangeList, err error) {
	list.Changes = []subjects.Change{}
	found := slices.Clone(all)
	slices.Reverse(found)
	if q.ChangeSelection != (subjects.ChangeSelection{}) {
		if found, err = selectChanges(all, q.ChangeSelection); err != nil {
			return list, err
		}
	}
	size, diffs := 0, 0
	for _, c := range found {
		shown := subjects.Change{
			ID: c.ID, Time: c.Time, Tool: c.Tool, Agent: c.Agent, Type: c.Type, Call: c.Call, Session: c.Session,
			Query: c.Query, Sources: c.Sources, Undoes: c.Undoes,
		}
		undone := c.Undone(all)
		for i, o := range c.Objects {
			f := subjects.ChangeFile{
				Path: o.Path, Name: o.Name, Kind: o.Kind(), Bytes: o.After.Size, Undone: undone[i],
			}
			if (q.ID != "" || q.Last) && diffs < maxChangeDiffs {
				if f.Diff, err = show(k, o); err != nil {
					f.Diff = err.Error()
				}
				diffs += len(f.Diff)
			}
			shown.Files = append(shown.Files, f)
		}
		data, err := json.Marshal(shown)
		if err != nil {
			return list, err
		}
		n := len(list.Changes)
		if size += len(data); size > maxChangeList && n > 0 || q.Limit > 0 && n == q.Limit {
			list.More = true
			break
		}
		list.Changes = append(list.Changes, shown)
	}
	return list, nil
}

func touches(c Change, path string) bool {
	return slices.ContainsFunc(c.Objects, func(o Object) bool { return o.Path == path })
}

// undoChanges plans an undo, and does it when that is what was ordered and nothing speaks against it.
func undoChanges(k Keeper, o subjects.ChangeOrder, changes []Change, f *subjects.FolderRules,
	now time.Time,
) (reply subjects.UndoReply, err error) {
	q, ids := o.Undo, changeIDs(changes)
	if q.Action != subjects.UndoPlan && q.Action != subjects.UndoApply {
		return reply, subjects.Faultf(subjects.CodeMalformed, "unknown action; choose plan, apply or purge")
	}
	for _, path := range q.Only {
		if !slices.ContainsFunc(changes, func(c Change) bool { return touches(c, path) }) {
			return reply, subjects.Faultf(subjects.CodeMalformed, "the change has no such file: %s",
				text.OneLine(path, 200))
		}
	}
	p, err := PlanUndo(k, Selection{IDs: ids, Only: q.Only, Overwrite: q.Overwrite}, f)
	if err != nil {
		return reply, err
	}
	reply = subjects.UndoReply{Plan: p.Sum(), Changes: ids, Files: []subjects.UndoFile{}}
	diffs := 0
	for _, s := range p.Steps {
		file := subjects.UndoFile{Path: s.Path, Merged: s.Merged, Same: s.From == s.To}
		if diffs < maxChangeDiffs {
			file.Diff = s.Diff()
			diffs += len(file.Diff)
		}
		reply.Files = append(reply.Files, file)
	}
	refusals := p.Refusals
	isChanged := q.Plan != "" && q.Plan != reply.Plan
	if q.Action == subjects.UndoApply && !isChanged && (len(refusals) == 0 || q.Partial) {
		c := NewChange(o.Change)
		c.Time, c.Undoes = now, ids
		later, err := k.Undo(c, p, f)
		if err != nil {
			return reply, err
		}
		refusals = append(refusals, later...)
		reply.Done, reply.ID = true, c.ID
	}
	for _, r := range refusals {
		reply.Refusals = append(reply.Refusals, subjects.UndoRefusal{Path: r.Path, Reason: r.Reason, Text: r.Text})
	}
	if isChanged {
		reply.Refusals = append(reply.Refusals, subjects.UndoRefusal{
			Reason: ReasonChanged, Text: "the files have changed since you saw what would happen; look again",
		})
	}
	return reply, nil
}
