package recall

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"conclave/pkg/vector"
)

// Load adds many rows quickly when the system starts; fill calls put for each, one at a time, and Load returns its
// error. Other writers wait until Load returns, searches continue. The rows are found by words once [Recall.Warm] has
// indexed them. put returns an error for the rows that checkRow rejects.
//
// bad are the keys of rows whose vectors are zero or not finite. They are found by words only and need new vectors.
func (r *Recall) Load(fill func(put func(row Row, v Vectors) error) error) (bad []uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, vector.ErrClosed
	}
	err = fill(func(row Row, v Vectors) error {
		if err := r.checkRow(row, v); err != nil {
			return err
		}
		again := r.table.row(row.Key) != nil
		version, err := r.storeRow(row, v)
		if errors.Is(err, vector.ErrNotFinite) || errors.Is(err, vector.ErrZero) {
			bad = append(bad, row.Key)
		} else if err != nil {
			return err
		}
		if again { // it is not to be found by what it was
			r.words.remove(uint32(row.Key))
		}
		r.queue = append(r.queue, pendingRow{row.Key, version, indexedText(row)})
		return nil
	})
	r.pending.Store(int64(len(r.queue)))
	return bad, err
}

// storeRow stores a row with its vectors but without its words, and returns its version. When the vectors are rejected,
// the row is stored without and the error returned; missing vectors remove former ones. The caller
// must hold mu and have called checkRow.
func (r *Recall) storeRow(row Row, v Vectors) (version uint32, err error) {
	rec := newRecord(row)
	rec.labels = r.internLabels(labels{row.Kind, row.State, row.Trust, row.Source})
	r.version++
	rec.version = r.version
	r.placeRow(rec, row)
	if err = r.storeVectors(row.Key, v); err != nil {
		v = Vectors{}
		err = fmt.Errorf("indexing the vectors of %s: %w", row.ID, err)
	}
	if v.Corpus != nil {
		rec.sketch, rec.vectors = makeSketch(v.Corpus, r.signs), true
	}
	r.table.set(row.Key, rec)
	return rec.version, err
}

// placeRow sets the conversation and the speaker of a new record, and takes the record that it replaces out of its own.
// The caller must hold mu.
func (r *Recall) placeRow(rec *record, row Row) {
	rec.speaker = r.speakers.add(row.Speaker)
	rec.conversation = r.conversations.add(conversationKey{row.Conversation, rec.isTrusted()}, rec.turn(row.Key))
	if rec.conversation != nil {
		rec.conversed = rec.conversation.id
	} else {
		rec.conversed = strings.Clone(row.Conversation)
	}
	old := r.table.row(row.Key)
	if old == nil {
		return
	}
	r.speakers.remove(old.speaker)
	if old.conversation != rec.conversation || old.position != rec.position {
		r.conversations.remove(old.conversation, old.turn(row.Key))
	}
}

// storeVectors sets the vectors of a row in the indexes; those that are nil, and after an error all, are removed.
func (r *Recall) storeVectors(key uint64, v Vectors) error {
	for of, v := range v.list() {
		if v == nil {
			r.vectors[of].Remove(key)
			continue
		}
		if err := r.vectors[of].Add(key, v); err != nil {
			for _, x := range r.vectors {
				x.Remove(key)
			}
			return err
		}
	}
	return nil
}

// indexedText returns the text of a row that is indexed.
func indexedText(row Row) rowText { return rowText{row.Name, row.Description, row.Tags, row.Words} }

// warmRows is how many rows are indexed while writers wait.
const warmRows = 64

// Warm indexes the words of loaded rows until all are or ctx ends, and returns ctx's error then. A writer waits for at
// most warmRows rows.
func (r *Recall) Warm(ctx context.Context) error {
	for ctx.Err() == nil {
		if !r.indexBatch() {
			return nil
		}
	}
	return ctx.Err()
}

// indexBatch indexes the words of at most warmRows rows; rows that were written or removed since they were loaded are
// skipped. It reports whether there are more.
func (r *Recall) indexBatch() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	some := min(warmRows, len(r.queue))
	for _, u := range r.queue[:some] {
		if rec := r.table.row(u.key); rec != nil && rec.version == u.version {
			r.words.add(uint32(u.key), u.text)
		}
	}
	clear(r.queue[:some]) // the texts are not needed any more
	r.queue = r.queue[some:]
	if len(r.queue) == 0 {
		r.queue = nil
	}
	r.pending.Store(int64(len(r.queue)))
	return r.queue != nil
}
