package recall

import (
	"context"
	"errors"
	"fmt"

	"conclave/pkg/vector"
)

// Load adds many rows quickly when the system starts; fill calls put for each, one at a time, and Load returns its error. Other
// writers wait until Load returns, searches continue. The rows are found by words once [Recall.Warm] has indexed them. put
// returns an error for the rows that checkRow rejects.
//
// bad are the keys of rows whose vectors are zero or not finite. They are found by words only and need new vectors.
func (r *Recall) Load(fill func(put func(row Row, name, description []float32) error) error) (bad []uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, vector.ErrClosed
	}
	err = fill(func(row Row, name, description []float32) error {
		if err := r.checkRow(row, name, description); err != nil {
			return err
		}
		again := r.table.row(row.Key) != nil
		turn, err := r.storeRow(row, name, description)
		if errors.Is(err, vector.ErrNotFinite) || errors.Is(err, vector.ErrZero) {
			bad = append(bad, row.Key)
		} else if err != nil {
			return err
		}
		if again { // it is not to be found by what it was
			r.words.remove(uint32(row.Key))
		}
		r.queue = append(r.queue, pendingRow{row.Key, turn, row.Words})
		return nil
	})
	r.pending.Store(int64(len(r.queue)))
	return bad, err
}

// storeRow stores a row with its vectors but without its words, and returns its version. When the vectors are rejected, the row
// is stored without and the error returned; nil vectors remove former ones. The caller must hold mu and have called checkRow.
func (r *Recall) storeRow(row Row, name, description []float32) (turn uint32, err error) {
	rec := newRecord(row)
	rec.labels = r.internLabels(labels{row.Kind, row.State, row.Trust, row.Source})
	r.version++
	rec.version = r.version
	if name != nil {
		key := [1]uint64{row.Key}
		if err = r.names.Add(key[:], name); err == nil {
			err = r.descriptions.Add(key[:], description)
		}
		if err == nil {
			rec.sketch = sketchOf(description, r.signs)
			r.table.set(row.Key, rec)
			return rec.version, nil
		}
		err = fmt.Errorf("indexing the vectors of %s: %w", row.ID, err)
	}
	r.table.set(row.Key, rec)
	r.names.Remove(row.Key)
	r.descriptions.Remove(row.Key)
	return rec.version, err
}

// warmRows is how many rows are indexed while writers wait.
const warmRows = 64

// Warm indexes the words of loaded rows until all are or ctx ends, and returns ctx's error then. A writer waits for at most
// warmRows rows.
func (r *Recall) Warm(ctx context.Context) error {
	for ctx.Err() == nil {
		if !r.indexBatch() {
			return nil
		}
	}
	return ctx.Err()
}

// indexBatch indexes the words of at most warmRows rows; rows that were written or removed since they were loaded are skipped. It
// reports whether there are more.
func (r *Recall) indexBatch() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	some := min(warmRows, len(r.queue))
	for _, u := range r.queue[:some] {
		if rec := r.table.row(u.key); rec != nil && rec.version == u.version {
			r.words.add(uint32(u.key), rowText{rec.name(), rec.description(), rec.tags(), u.words})
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
