package memory

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/pkg/undo"
	"conclave/subjects"
)

// What save_memory changes can be undone: the database keeps the entries before and after a call, in the transaction in
// which they change. The kernel of undo is that of files ([undo.Serve]); an entry has the path [entryPath].

// entryPath is the path of an entry among all that can be undone.
func entryPath(id string) string { return "memory:" + id }

// asChange runs a call of an agent as the change that the broker ordered, and names it in the result when entries are
// kept. A call without one keeps nothing.
func asChange(ctx context.Context, o *subjects.ChangeOrder, run func(context.Context) (subjects.ToolResult, error)) (
	subjects.ToolResult, error,
) {
	if o == nil {
		return run(ctx)
	}
	c, err := newStoreChange(undo.NewChange(o.Change))
	if err != nil {
		return subjects.ToolResult{}, err
	}
	res, err := run(store.WithChange(ctx, c))
	if err == nil && len(c.Kept) > 0 {
		res.Change = &subjects.ChangeRef{ID: c.ID}
		for _, id := range c.Kept {
			res.Change.Files = append(res.Change.Files, entryPath(id))
		}
	}
	return res, err
}

// newStoreChange returns a change as the database keeps it.
func newStoreChange(c undo.Change) (*store.Change, error) {
	about, err := json.Marshal(c)
	return &store.Change{ID: c.ID, Made: c.Time, About: string(about)}, err
}

// serveChanges lists changes of entries for the user, or takes some back, as the broker ordered.
func (m *Memory) serveChanges(ctx context.Context, in actor.Msg[subjects.ToolOrder],
	out actor.Out,
) (subjects.ToolResult, error) {
	o := in.Body.Change
	params, err := json.Marshal(o)
	if err != nil {
		return subjects.ToolResult{}, err
	}
	a := act{caller: in.From, action: subjects.ActionMemoryAdmin, target: subjects.ModeUndo, params: params}
	return audited(ctx, m, out, a, func(ctx context.Context, db *access) (res subjects.ToolResult, err error) {
		m.editMu.Lock() // what is planned stays as it is until it is done
		defer m.editMu.Unlock()
		k, err := m.newKeeper(ctx, out, db)
		if err == nil {
			res.Result, err = undo.Serve(k, o, nil, out.Now())
		}
		return res, err
	})
}

// keeper implements [undo.Keeper] for one request. It has what the database keeps, and the entries as they are now.
type keeper struct {
	all     []undo.Change
	kept    map[string][]byte // contents by their SHA-256
	now     map[string][]byte // of the entries in all, by path; a missing one does not exist
	restore func(c undo.Change, all []store.Restoration) error
	purge   func(ids []string) (int, error)
}

// newKeeper reads what can be undone. The caller holds editMu while it uses the keeper.
func (m *Memory) newKeeper(ctx context.Context, out actor.Out, db *access) (*keeper, error) {
	rows, err := db.Changes(ctx)
	if err != nil {
		return nil, err
	}
	k := &keeper{kept: map[string][]byte{}, now: map[string][]byte{}}
	var ids []string
	for _, r := range rows {
		if n := len(k.all); n == 0 || k.all[n-1].ID != r.Change {
			var c undo.Change
			if err := json.Unmarshal([]byte(r.About), &c); err != nil {
				return nil, fmt.Errorf("reading the change %s: %w", r.Change, err)
			}
			c.Phase = undo.Done
			k.all = append(k.all, c)
		}
		c := &k.all[len(k.all)-1]
		var named struct{ Name string }
		last := r.After
		if last == nil {
			last = r.Before
		}
		if err := json.Unmarshal(last, &named); err != nil {
			return nil, fmt.Errorf("reading the change %s: %w", r.Change, err)
		}
		c.Objects = append(c.Objects, undo.Object{
			Path: entryPath(r.Entry), Name: named.Name, Before: k.keep(r.Before), After: k.keep(r.After),
		})
		ids = append(ids, r.Entry)
	}
	entries, err := db.Get(ctx, ids...)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if k.now[entryPath(e.ID)], err = store.EncodeEntry(e); err != nil {
			return nil, err
		}
	}
	k.restore = func(c undo.Change, all []store.Restoration) error { return m.restoreKept(ctx, out, db, c, all) }
	k.purge = func(ids []string) (int, error) { return db.PurgeChanges(ctx, ids...) }
	return k, nil
}

// stateOf returns the state of an entry with this content, nil = there is none.
func stateOf(data []byte) (at undo.State) {
	if data != nil {
		sum := sha256.Sum256(data)
		at = undo.State{Sum: hex.EncodeToString(sum[:]), Size: int64(len(data))}
	}
	return at
}

// keep adds a kept content, and returns its state.
func (k *keeper) keep(data []byte) undo.State {
	at := stateOf(data)
	k.kept[at.Sum] = data
	return at
}

// Changes implements [undo.Keeper].
func (k *keeper) Changes() ([]undo.Change, error) { return k.all, nil }

// ExplainMissing implements [undo.Keeper].
func (k *keeper) ExplainMissing(id string) *undo.Refusal { return undo.NoChange(id) }

// Read implements [undo.Keeper].
func (k *keeper) Read(path string, _ *subjects.FolderRules) ([]byte, undo.State, error) {
	return k.now[path], stateOf(k.now[path]), nil
}

// Content implements [undo.Keeper].
func (k *keeper) Content(_ string, at undo.State) ([]byte, error) { return k.kept[at.Sum], nil }

// Merge implements [undo.Keeper]: entries are not merged.
func (k *keeper) Merge(_, _, _ []byte) ([]byte, bool) { return nil, false }

// Purge implements [undo.Keeper].
func (k *keeper) Purge(ids []string) (int, error) { return k.purge(ids) }

// Undo implements [undo.Keeper]: it restores all entries of the plan or none.
func (k *keeper) Undo(c undo.Change, p undo.Plan, _ *subjects.FolderRules) ([]*undo.Refusal, error) {
	var all []store.Restoration
	for _, s := range p.Steps {
		if s.From == s.To {
			continue
		}
		r := store.Restoration{ID: strings.TrimPrefix(s.Path, entryPath("")), From: k.now[s.Path]}
		if s.To.Exists() {
			r.To = s.Content
		}
		all = append(all, r)
	}
	err := k.restore(c, all)
	reason := ""
	switch {
	case err == nil:
		return nil, nil
	case errors.Is(err, store.ErrFull):
		reason = undo.ReasonFull
	case errors.Is(err, store.ErrChanged), errors.Is(err, store.ErrExists):
		reason = undo.ReasonChanged
	default:
		return nil, err
	}
	var refusals []*undo.Refusal
	for _, r := range all {
		refusals = append(refusals, &undo.Refusal{
			Path: entryPath(r.ID), Reason: reason, Text: fmt.Sprintf("%s is not restored: %v", entryPath(r.ID), err),
		})
	}
	return refusals, nil
}

// restoreKept writes entries as they were, as the change c, also when the caller has gone, and publishes it.
func (m *Memory) restoreKept(ctx context.Context, out actor.Out, db *access, c undo.Change,
	all []store.Restoration,
) error {
	if len(all) == 0 {
		return nil
	}
	kept, err := newStoreChange(c)
	if err != nil {
		return err
	}
	kept.Required = true
	ctx, cancel := detach(store.WithChange(ctx, kept))
	defer cancel()
	gone, err := db.RestoreEntries(ctx, all...)
	if err != nil {
		return err
	}
	m.removeFromIndex(gone)
	ids := make([]string, len(all))
	for i, r := range all {
		ids[i] = r.ID
	}
	if err := m.refreshIndex(ctx, ids...); err != nil {
		return err
	}
	m.wakeBackfill() // a restored entry has no vectors
	return m.emitStored(ctx, out, subjects.MemoryEvent{
		Action: "undone", IDs: ids, Why: "the user took a change back", By: c.Agent,
	})
}
