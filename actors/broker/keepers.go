package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/pkg/text"
	"conclave/pkg/undo"
	"conclave/subjects"
)

// keeper is a process that keeps changes, by a tool that it serves: the tools of this machine share one for files,
// memory keeps entries.
type keeper struct {
	zone string
	ask  func(ctx context.Context, order subjects.ChangeOrder) (result string, err error)
}

// findKeepers returns the keepers of this machine, by zone.
func (b *Broker) findKeepers(ctx context.Context, out actor.Out, ask stage.KeeperFunc) (all []keeper) {
	find := func() (tools []Known) {
		for _, k := range b.table.all() {
			_, isKeeper := b.ownKeeper(k)
			if isKeeper && !slices.ContainsFunc(tools, func(t Known) bool { return t.Zone == k.Zone }) {
				tools = append(tools, k)
			}
		}
		return tools
	}
	tools := find()
	if len(tools) == 0 {
		select {
		case <-b.table.discovered:
		case <-ctx.Done():
		}
		b.discoverMissing(ctx, out)
		tools = find()
	}
	for _, k := range tools {
		all = append(all, keeper{k.Zone, func(ctx context.Context, order subjects.ChangeOrder) (string, error) {
			res, err := ask(ctx, k.Zone, k.Name, subjects.ToolOrder{
				Change: &order, Folders: b.rules.Load().Chain.UndoFolders(),
			})
			var fault *subjects.Fault
			if err != nil && !errors.As(err, &fault) {
				out.LogError(fmt.Errorf("asking %s for changes: %w", k.Name, err))
				err = subjects.Faultf(subjects.CodeUnavailable, "the kept changes cannot be read; see conclave doctor")
			}
			return res.Result, err
		}})
	}
	slices.SortFunc(all, func(a, b keeper) int { return cmp.Compare(a.zone, b.zone) })
	return all
}

// askKeeper has a keeper do what order says, and decodes its reply.
func askKeeper[T any](ctx context.Context, k keeper, order subjects.ChangeOrder) (reply T, _ error) {
	result, err := k.ask(ctx, order)
	if err == nil {
		err = json.Unmarshal([]byte(result), &reply)
	}
	return reply, err
}

// keptPart is what one keeper has of a selection.
type keptPart struct {
	keeper
	changes []subjects.Change
	request subjects.UndoRequest
}

// findChanges returns what the keepers have of what q selects, and all of it as one list, newest first. A keeper that
// does not answer is named in the list. It fails when none has anything, and when an id means several changes.
func findChanges(ctx context.Context, keepers []keeper, q subjects.ChangeQuery) (parts []keptPart,
	list subjects.ChangeList, err error,
) {
	list.Changes = []subjects.Change{}
	if len(keepers) == 0 {
		return nil, list, subjects.Faultf(subjects.CodeUnavailable, "no tool that keeps changes is running; see "+
			"conclave doctor")
	}
	for _, k := range keepers {
		got, failed := askKeeper[subjects.ChangeList](ctx, k, subjects.ChangeOrder{List: &q})
		var fault *subjects.Fault
		switch {
		case failed == nil:
			parts = append(parts, keptPart{keeper: k, changes: got.Changes})
			list.Changes, list.More = mergeChanges(list.Changes, got.Changes), list.More || got.More
		case errors.As(failed, &fault) && fault.Code == subjects.CodeNoChange:
			err = subjects.Faultf(subjects.CodeMalformed, "%s", fault.Text)
		case errors.As(failed, &fault) && fault.Code == subjects.CodeMalformed: // what is meant is not clear
			return nil, list, failed
		default:
			list.Missing = append(list.Missing, k.zone)
		}
	}
	if len(parts) > 0 {
		err = nil
	}
	slices.SortStableFunc(list.Changes, func(a, b subjects.Change) int { return b.Time.Compare(a.Time) })
	isOther := func(c subjects.Change) bool { return c.Call != list.Changes[0].Call }
	isUnnamed := func(c subjects.Change) bool { return c.ID != q.ID }
	if slices.ContainsFunc(list.Changes, func(c subjects.Change) bool { return !isUnnamed(c) }) {
		list.Changes = slices.DeleteFunc(list.Changes, isUnnamed) // a whole id is never ambiguous
		parts = slices.DeleteFunc(parts, func(p keptPart) bool { return slices.ContainsFunc(p.changes, isUnnamed) })
	}
	if q.ID != "" && slices.ContainsFunc(list.Changes, isOther) {
		return nil, list, subjects.Faultf(subjects.CodeMalformed, "%s means several changes; write more of the id",
			text.OneLine(q.ID, 40))
	}
	most := len(list.Changes)
	if q.Last {
		most = min(most, 1)
	} else if q.Limit > 0 {
		most = min(most, q.Limit)
	}
	list.More = list.More || !q.Last && most < len(list.Changes)
	list.Changes = list.Changes[:most]
	return parts, list, err
}

// mergeChanges adds changes to all; what two keepers have of one change, which an undo may be, becomes one.
func mergeChanges(all, more []subjects.Change) []subjects.Change {
	for _, c := range more {
		at := slices.IndexFunc(all, func(a subjects.Change) bool { return a.ID == c.ID })
		if at < 0 {
			all = append(all, c)
			continue
		}
		all[at].Files, all[at].Undoes = append(all[at].Files, c.Files...), append(all[at].Undoes, c.Undoes...)
	}
	return all
}

// splitUndo sets in each part what q asks of its keeper, and leaves out those that it does not concern: the last change
// is that of one, and a file is asked of the keeper that has it. A file that none has is left to the first to reject.
func splitUndo(parts []keptPart, list subjects.ChangeList, q subjects.UndoRequest) (of []keptPart) {
	if q.Last {
		q.ID = list.Changes[0].ID
	}
	for _, p := range parts {
		isMine := !q.Last || slices.ContainsFunc(p.changes, func(c subjects.Change) bool { return c.ID == q.ID })
		p.request = q
		p.request.Last = false
		p.request.Only = slices.DeleteFunc(slices.Clone(q.Only), func(path string) bool {
			return !slices.ContainsFunc(p.changes, func(c subjects.Change) bool {
				return slices.ContainsFunc(c.Files, func(f subjects.ChangeFile) bool { return f.Path == path })
			})
		})
		if isMine && (len(q.Only) == 0 || len(p.request.Only) > 0) {
			of = append(of, p)
		}
	}
	if len(of) == 0 {
		parts[0].request = q
		of = parts[:1]
	}
	return of
}

// planSeparator is between the plans of several keepers.
const planSeparator = "."

// undoChanges does for the user what q says, as the change given: with several keepers all of it or nothing, as far as
// their plans say.
func undoChanges(ctx context.Context, keepers []keeper, change subjects.Change,
	q subjects.UndoRequest,
) (reply subjects.UndoReply, err error) {
	if q.Action == subjects.UndoPurge && q.All {
		var all []keptPart
		for _, k := range keepers {
			all = append(all, keptPart{keeper: k, request: q})
		}
		return askUndo(ctx, all, change)
	}
	parts, list, err := findChanges(ctx, keepers, subjects.ChangeQuery{ChangeSelection: q.ChangeSelection})
	// an undo may be of several keepers, a call is of one
	isWhole := q.ID != "" && len(list.Changes) > 0 && len(list.Changes[0].Undoes) == 0
	if len(list.Missing) > 0 && !isWhole {
		err = subjects.Faultf(subjects.CodeUnavailable, "%s does not answer, so nothing was done; name a change by "+
			"its id, or see conclave doctor", list.Missing[0])
	}
	if err != nil {
		return reply, err
	}
	of := splitUndo(parts, list, q)
	plans := strings.Split(q.Plan, planSeparator)
	for i := range of {
		if q.Plan != "" && len(plans) == len(of) {
			of[i].request.Plan = plans[i]
		}
	}
	if len(of) == 1 || q.Action != subjects.UndoApply {
		return askUndo(ctx, of, change)
	}
	planned := slices.Clone(of)
	for i := range planned {
		planned[i].request.Action = subjects.UndoPlan
	}
	if reply, err = askUndo(ctx, planned, change); err != nil || len(reply.Refusals) > 0 && !q.Partial {
		return reply, err
	}
	if q.Plan == "" { // otherwise only what the user saw is done
		for i, plan := range strings.Split(reply.Plan, planSeparator) {
			of[i].request.Plan = plan
		}
	}
	return askUndo(ctx, of, change)
}

// askUndo asks each keeper for its part, and returns their replies as one. When one fails after another has done its
// part, that is a refusal.
func askUndo(ctx context.Context, of []keptPart, change subjects.Change) (reply subjects.UndoReply, err error) {
	var plans []string
	for _, p := range of {
		got, err := askKeeper[subjects.UndoReply](ctx, p.keeper, subjects.ChangeOrder{Change: change, Undo: &p.request})
		if err != nil && reply.Done {
			reply.Refusals = append(reply.Refusals, subjects.UndoRefusal{
				Reason: undo.ReasonNotDone, Text: fmt.Sprintf("what %s keeps may not be done: %v", p.zone, err),
			})
			continue
		}
		if err != nil {
			return reply, err
		}
		plans = append(plans, got.Plan)
		reply.Done, reply.ID = reply.Done || got.Done, cmp.Or(reply.ID, got.ID)
		reply.Changes, reply.Files = append(reply.Changes, got.Changes...), append(reply.Files, got.Files...)
		reply.Refusals, reply.Purged = append(reply.Refusals, got.Refusals...), reply.Purged+got.Purged
	}
	reply.Plan = strings.Join(plans, planSeparator)
	return reply, nil
}
