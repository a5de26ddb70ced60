package memory

import (
	"context"
	"errors"
	"fmt"

	"conclave/actors/memory/digest"
	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/pkg/text"
	"conclave/subjects"
)

// refineSize is the number of entries that a model describes before vectors that are missing meanwhile are made.
const refineSize = 8

// refinePending has a model describe the entries whose digest is pending, and wakes the backfill again when some may be left. A
// failure is logged, except that no model is available: the entries wait.
func (m *Memory) refinePending(ctx context.Context, out actor.Out) {
	n, err := m.refineBatch(ctx, out)
	if err != nil && ctx.Err() == nil && !isModelUnavailable(err) {
		out.LogError(fmt.Errorf("describing new entries: %w", err))
	}
	if n == refineSize && err == nil {
		m.wakeBackfill()
	}
}

// refineBatch has a model describe up to refineSize pending entries, one call each, and returns how many were looked at. It ends
// with an error when the model is unavailable or the database fails. Without a model nothing is done.
func (m *Memory) refineBatch(ctx context.Context, out actor.Out) (n int, err error) {
	if !m.cfg.Model {
		return 0, nil
	}
	waiting, err := m.unaudited.Undigested(ctx, refineSize)
	if err != nil {
		return 0, err
	}
	for _, e := range waiting {
		if err := m.refineEntry(ctx, out, e); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// refineEntry has a model describe an entry and stores name, description, entities and relations as an audited edit. When the reply
// is not usable, the entry keeps what plain rules made and is not tried again; when it was edited or forgotten meanwhile, nothing
// is changed. It fails when the model is unavailable: the entry stays pending then.
func (m *Memory) refineEntry(ctx context.Context, out actor.Out, e subjects.MemoryEntry) error {
	d, err := m.newDigester(out, true).Refine(ctx, e.Speaker, e.Corpus, e.Provenance.Trust != subjects.Trusted, e.Kind == subjects.KindEngram && e.Speaker == "")
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case isModelUnavailable(err):
		return err
	case err != nil:
		d = digest.Digest{By: digest.ByPlain}
	}
	next := e
	next.Provenance.Digest = d.By
	if d.By == digest.ByModel {
		next.Name, next.Description = text.OneLine(d.Name, maxName), text.Clip(d.Description, maxDescription)
		next.Intent, next.Sentiment, next.Entities = d.Intent, d.Sentiment, nil
		next = redactEntry(fillFromDigest(next, digest.Digest{Entities: d.Entities}))
	}
	a := act{caller: name, action: subjects.ActionMemoryWrite, target: "digest", params: []byte(e.ID), session: e.Provenance.SessionID, query: e.Provenance.QueryID}
	_, err = audited(ctx, m, out, a, func(ctx context.Context, db *access) (none struct{}, err error) {
		return none, m.storeDigest(ctx, out, db, next, d.Relations)
	})
	return err
}

// storeDigest stores a new digest of an entry with its vectors and relations, indexes it and publishes the change. An entry that was
// edited or forgotten since it was read is left as it is.
func (m *Memory) storeDigest(ctx context.Context, out actor.Out, db *access, e subjects.MemoryEntry, relations []digest.Relation) error {
	var vectors *store.Vectors
	if e.Provenance.Digest == digest.ByModel {
		vectors = m.tryEmbedEntry(ctx, out, e)
	}
	ctx, cancel := detach(ctx)
	defer cancel()
	m.editMu.Lock()
	defer m.editMu.Unlock()
	err := db.SetDigest(ctx, e, vectors, out.Now().UTC())
	if errors.Is(err, store.ErrChanged) || errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil || e.Provenance.Digest != digest.ByModel {
		return err
	}
	if err := storeRelations(ctx, db, e, relations); err != nil {
		out.LogError(err)
	}
	if vectors == nil {
		m.wakeBackfill()
	}
	if err := m.refreshIndex(ctx, e.ID); err != nil {
		return err
	}
	return m.emitStored(ctx, out, subjects.MemoryEvent{
		SessionID: e.Provenance.SessionID, QueryID: e.Provenance.QueryID, Action: "edited", IDs: []string{e.ID}, Why: "a model described it", By: name,
	})
}
