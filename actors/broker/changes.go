package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"time"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/pkg/text"
	"conclave/subjects"
)

// A call of a tool that keeps changes has the state before it stored before it is decided ([Broker.captureCall]). The
// process of the tool has the truth about changes; the broker only asks it, for the user alone.

const (
	// captureTimeout bounds the wait for a tool that keeps the state before a call.
	captureTimeout = 20 * time.Second
	// undoTimeout bounds a list of changes and an undo.
	undoTimeout = 100 * time.Second
	// maxSources bounds the sources of untrusted content that a change names.
	maxSources = 8
)

// captureCall has the tool keep the state of what the call would change, and returns what it confirmed: nil for a tool
// that keeps nothing, and when the state cannot be kept. Then the call cannot be undone.
func (b *Broker) captureCall(ctx context.Context, out actor.Out, j *stage.Judged, k Known) *policy.Kept {
	if own, ok := b.ownKeeper(k); !ok || denyRespondentB(j.Facts()) != nil {
		return nil
	} else if own.Records { // it keeps the state in the transaction of the change
		kept := &policy.Kept{ChangeRef: subjects.ChangeRef{ID: j.Received().Record.ID}}
		kept.Sources = newChangeOrder(j, &kept.ChangeRef, out.Now()).Sources
		return kept
	}
	order := b.newAccessOrder(j)
	order.Change = newChangeOrder(j, &subjects.ChangeRef{ID: j.Received().Record.ID}, out.Now())
	res, err := j.Capture(ctx, out, b.gate, k.Zone, captureTimeout, order)
	switch {
	case err != nil:
		out.LogError(fmt.Errorf("keeping the state before a call of %s: %w", k.Name, err))
		return nil
	case res.Error != nil, res.Change == nil, res.Change.ID != order.Change.ID:
		return nil
	}
	files := filterArtifacts(res.Change.Files, order.Folders)
	if len(files) == 0 || len(files) != len(res.Change.Files) {
		return nil
	}
	return &policy.Kept{
		ChangeRef: subjects.ChangeRef{
			ID: order.Change.ID, Files: files, Runs: res.Change.Runs, Sources: order.Change.Sources,
		},
		MayPass: !j.Rules().Manifest.AskReversible,
		Work:    onlyFolder(order.Folders, b.workFolder(j.Received())),
		Own:     ownFolder(order.Folders, b.workFolder(j.Received())),
	}
}

// onlyFolder returns the working folder of a call when its tool gets no other one, "" otherwise. work is the path of
// that folder: when it is a link, it leads to a folder of another name.
func onlyFolder(f *subjects.FolderRules, work string) string {
	if own := ownFolder(f, work); own != "" && slices.Equal(f.Allowed, []string{own}) {
		return own
	}
	return ""
}

// ownFolder is [onlyFolder] for a call whose tool gets other folders too.
func ownFolder(f *subjects.FolderRules, work string) string {
	if f != nil && f.Work != "" && path.Base(f.Work) == path.Base(work) {
		return f.Work
	}
	return ""
}

// confirmChange returns the change that a tool says it made, with the files that are in the folders of the call; nil
// when none is left.
func (b *Broker) confirmChange(j *stage.Judged, made subjects.ChangeRef) *subjects.ChangeRef {
	ref := j.Facts().Kept.ChangeRef
	if ref.Files = made.Files; !j.Facts().Tool.Records {
		ref.Files = filterArtifacts(made.Files, b.folderRules(j))
	}
	if len(ref.Files) == 0 {
		return nil
	}
	return &ref
}

// ownKeeper returns the facts of a tool; false unless it is one of the build, on this machine, that keeps changes.
func (b *Broker) ownKeeper(k Known) (own Known, ok bool) {
	own, ours := b.table.build[k.Name]
	return own, ours && k.Known && (own.Keeps || own.Records) && k.Zone == own.Zone && !b.table.isPrincipal(k.Zone)
}

// newChangeOrder describes the change that a call is, for the journal of its keeper.
func newChangeOrder(j *stage.Judged, kept *subjects.ChangeRef, now time.Time) *subjects.ChangeOrder {
	r := j.Received()
	o := &subjects.ChangeOrder{Change: subjects.Change{
		ID: kept.ID, Tool: r.Tool, Agent: r.Caller.ID(), Type: r.Record.AgentType, Call: r.ID, Session: r.Session,
		Query: r.Query, Time: now.UTC(),
	}}
	for _, f := range kept.Files {
		o.Files = append(o.Files, subjects.ChangeFile{Path: f})
	}
	if !j.Facts().FromUser {
		o.Sources = describeSources(j.Facts().Flow)
	}
	return o
}

// describeSources names the sources of the untrusted content in a flow, the last ones first.
func describeSources(f *policy.Flow) (out []string) {
	for _, s := range slices.Backward(f.Sources()) {
		name := s.From
		if name == "" {
			name = "a result of " + s.Tool
		}
		if name = text.OneLine(name, 200); !slices.Contains(out, name) && len(out) < maxSources {
			out = append(out, name)
		}
	}
	return out
}

// onChangeList lists changes for the user, on the record.
func (b *Broker) onChangeList(ctx context.Context, in actor.Msg[subjects.ChangeQuery],
	out actor.Out,
) (list subjects.ChangeList, err error) {
	ctx, cancel := context.WithTimeout(ctx, undoTimeout)
	defer cancel()
	rec, fault := b.newChangeRecord(out, in.From, subjects.ActionChangeShow, in.Body)
	if fault != nil {
		b.gate.Refuse(ctx, out, rec, subjects.StatusRefused, fault.Code)
		return list, fault
	}
	return stage.AskKeepers(ctx, out, b.gate, rec, func(ctx context.Context, ask stage.KeeperFunc) (subjects.ChangeList,
		error,
	) {
		found, list, err := findChanges(ctx, b.findKeepers(ctx, out, ask), in.Body)
		if err == nil && len(found) == 0 && len(list.Missing) > 0 {
			err = subjects.Faultf(subjects.CodeUnavailable, "%s does not answer; see conclave doctor", list.Missing[0])
		}
		return list, err
	})
}

// newChangeRecord returns the record of a request about changes, and a fault for any account but the user's.
func (b *Broker) newChangeRecord(out actor.Out, from, action string, request any) (subjects.AuditRecord,
	*subjects.Fault,
) {
	rec := subjects.AuditRecord{ID: out.NewID(), AgentID: from, Action: action}
	if data, err := json.Marshal(request); err == nil {
		rec.ParamsHash = b.hash.Hash(data)
	}
	if !slices.Contains(subjects.UserAccounts, from) {
		return rec, subjects.Faultf(subjects.CodeDenied, "only the user may list changes or take them back")
	}
	return rec, nil
}

// onChangeUndo takes changes back for the user, or removes what is kept of them, on the record. The record names the
// undo, which is a change of its own. A plan changes nothing.
func (b *Broker) onChangeUndo(ctx context.Context, in actor.Msg[subjects.UndoRequest],
	out actor.Out,
) (reply subjects.UndoReply, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	q := in.Body
	action := map[string]string{
		subjects.UndoPlan: subjects.ActionChangeShow, subjects.UndoApply: subjects.ActionChangeUndo,
		subjects.UndoPurge: subjects.ActionChangePurge,
	}[q.Action]
	rec, fault := b.newChangeRecord(out, in.From, cmp.Or(action, subjects.ActionChangeUndo), q)
	if fault == nil && action == "" {
		fault = subjects.Faultf(subjects.CodeMalformed, "unknown action; choose plan, apply or purge")
	}
	if fault != nil {
		b.gate.Refuse(ctx, out, rec, subjects.StatusRefused, fault.Code)
		return reply, fault
	}
	rec.Session, rec.Query, rec.Change = q.Session, q.Query, rec.ID
	change := subjects.Change{
		ID: rec.ID, Time: out.Now().UTC(), Tool: "undo", Agent: in.From, Type: "user", Session: q.Session,
		Query: q.Query, Call: rec.ID,
	}
	return stage.AskKeepers(ctx, out, b.gate, rec, func(ctx context.Context, ask stage.KeeperFunc) (subjects.UndoReply,
		error,
	) {
		return undoChanges(ctx, b.findKeepers(ctx, out, ask), change, q)
	})
}
