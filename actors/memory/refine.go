package memory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"conclave/actors/memory/digest"
	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/pkg/text"
	"conclave/subjects"
)

// refineSize is the number of entries that a model describes before vectors that are missing meanwhile are made.
const refineSize = 8

// maxRefineDelay is the longest time between two attempts to have a model describe entries while they fail.
const maxRefineDelay = 15 * time.Minute

// refineBackoff is when a model is asked again to describe entries. Each attempt leaves audit records, so that attempts
// become rare while they fail. The backfill owns it.
type refineBackoff struct {
	delay time.Duration // 0 = the last attempt did not fail
	until time.Time
}

// refinePending has a model describe the entries whose digest is pending, and wakes the backfill again when some may be
// left. A failure is logged, except that no model is available: the entries wait, and the next attempt is made after a
// delay that doubles with each failure, up to maxRefineDelay.
func (m *Memory) refinePending(ctx context.Context, out actor.Out) {
	if out.Now().Before(m.refineBackoff.until) {
		return
	}
	n, err := m.refineBatch(ctx, out)
	if ctx.Err() != nil {
		return
	}
	if err == nil {
		m.refineBackoff = refineBackoff{}
		if n == refineSize {
			m.wakeBackfill()
		}
		return
	}
	if !isModelUnavailable(err) {
		out.LogError(fmt.Errorf("describing new entries: %w", err))
	}
	m.refineBackoff.delay = min(max(2*m.refineBackoff.delay, backfillRetry), maxRefineDelay)
	m.refineBackoff.until = out.Now().Add(m.refineBackoff.delay)
}

// refineBatch has a model describe up to refineSize pending entries, one call each, and returns how many were looked
// at. It ends with an error when the model is unavailable or the database fails. Without a model nothing is done.
func (m *Memory) refineBatch(ctx context.Context, out actor.Out) (n int, err error) {
	if !m.cfg.Model {
		return 0, nil
	}
	waiting, err := m.unaudited.ListUndigested(ctx, refineSize)
	if err != nil {
		return 0, err
	}
	for _, id := range waiting {
		a := act{caller: name, action: subjects.ActionMemoryWrite, target: "digest", params: []byte(id)}
		_, err := audited(ctx, m, out, a, func(ctx context.Context, db *access) (none struct{}, err error) {
			return none, m.refineEntry(ctx, out, db, id)
		})
		if err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// refineEntry reads a pending entry, has a model describe it and stores name, description, entities and relations. When
// the reply is not usable, the entry keeps what plain rules made and is not tried again; one that was described, edited
// or forgotten meanwhile is not changed. It fails when the model is unavailable: the entry stays pending then.
func (m *Memory) refineEntry(ctx context.Context, out actor.Out, db *access, id string) error {
	entries, err := db.Get(ctx, id)
	if err != nil {
		return fmt.Errorf("reading an entry without a digest of a model: %w", err)
	}
	if len(entries) == 0 || entries[0].Provenance.Digest != subjects.DigestPending {
		return nil
	}
	e := entries[0]
	d, err := m.newDigester(out, true).Refine(ctx, e.Speaker, e.Corpus, e.Provenance.Trust != subjects.Trusted,
		e.Kind == subjects.KindEngram && e.Speaker == "")
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case isModelUnavailable(err):
		return err
	case err != nil:
		d = digest.Digest{By: subjects.DigestPlain}
	}
	e.Provenance.Digest = d.By
	if d.By == subjects.DigestModel {
		e.Name, e.Description = text.OneLine(d.Name, maxName), text.Clip(d.Description, maxDescription)
		e.Intent, e.Sentiment, e.Entities = d.Intent, d.Sentiment, nil
		e = redactEntry(fillFromDigest(e, digest.Digest{Entities: d.Entities}))
	}
	return m.storeDigest(ctx, out, db, e, d)
}

// storeDigest stores e with its new digest d, its vectors and relations, supersedes the entries that its relations
// contradict, indexes and publishes the change. An entry that was edited or forgotten since it was read is left as it
// is. Failures of the relations and of superseding are only logged.
func (m *Memory) storeDigest(ctx context.Context, out actor.Out, db *access, e subjects.MemoryEntry,
	d digest.Digest,
) error {
	changed := d.By == subjects.DigestModel
	var vectors *store.Vectors
	if changed {
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
	if err != nil || !changed {
		return err
	}
	ev := subjects.MemoryEvent{
		SessionID: e.Provenance.SessionID, QueryID: e.Provenance.QueryID, Action: "edited", IDs: []string{e.ID},
		Why: "a model described it", By: name,
	}
	olds, why, err := supersedeContradicted(ctx, db, e, d.Relations)
	if err != nil {
		out.LogError(err)
	} else if len(olds) > 0 {
		ev.Action, ev.IDs, ev.Why = "superseded", append(ev.IDs, olds...), why
	}
	if err := storeRelations(ctx, db, e, d.Relations); err != nil {
		out.LogError(err)
	}
	if vectors == nil {
		m.wakeBackfill()
	}
	if err := m.refreshIndex(ctx, ev.IDs...); err != nil {
		return err
	}
	return m.emitStored(ctx, out, ev)
}
