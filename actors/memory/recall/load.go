package recall

import (
	"context"
	"errors"
	"fmt"

	"conclave/pkg/vector"
)

// Load puts in many rows, quickly: what is read from the database when the system starts. fill calls put for each. Other
// writers wait until Load returns, so a row that is written meanwhile is newer than what fill has read; finding goes on. The
// rows are found by their words when [Recall.Warm] has come to them.
//
// bad are the keys of rows whose vectors cannot be used, because a number is none or all are zero. They are found by words
// only, and need new vectors.
func (r *Recall) Load(fill func(put func(row Row, name, description []float32) error) error) (bad []uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shut {
		return nil, vector.ErrClosed
	}
	err = fill(func(row Row, name, description []float32) error {
		if err := r.check(row, name, description); err != nil {
			return err
		}
		again := r.table.row(row.Key) != nil
		turn, err := r.set(row, name, description)
		if errors.Is(err, vector.ErrNotFinite) || errors.Is(err, vector.ErrZero) {
			bad = append(bad, row.Key)
		} else if err != nil {
			return err
		}
		if again { // it is not to be found by what it was
			r.words.remove(uint32(row.Key))
		}
		r.queue = append(r.queue, unread{row.Key, turn, row.Words})
		return nil
	})
	r.waiting.Store(int64(len(r.queue)))
	return bad, err
}

// set puts a row in its place with its vectors, but not with its words. When the vectors cannot be taken, the row is there
// without any. Who calls holds mu.
func (r *Recall) set(row Row, name, description []float32) (turn uint32, err error) {
	rec := pack(row)
	rec.is = r.label(labels{row.Kind, row.State, row.Trust, row.Source})
	r.turn++
	rec.turn = r.turn
	if name != nil {
		key := [1]uint64{row.Key}
		if err = r.names.Add(key[:], name); err == nil {
			err = r.descriptions.Add(key[:], description)
		}
		if err == nil {
			rec.sketch = sketchOf(description, r.signs)
			r.table.set(row.Key, rec)
			return rec.turn, nil
		}
		err = fmt.Errorf("indexing the vectors of %s: %w", row.ID, err)
	}
	r.table.set(row.Key, rec)
	r.names.Remove(row.Key)
	r.descriptions.Remove(row.Key)
	return rec.turn, err
}

// warmRows is how many rows are indexed while writers wait.
const warmRows = 64

// Warm indexes the words of what [Recall.Load] brought, until all are or ctx ends. Whoever writes in between waits for no
// more than some rows.
func (r *Recall) Warm(ctx context.Context) error {
	for ctx.Err() == nil {
		if !r.warm() {
			return nil
		}
	}
	return ctx.Err()
}

// warm indexes the words of some rows. It reports whether there are more.
func (r *Recall) warm() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	some := min(warmRows, len(r.queue))
	for _, u := range r.queue[:some] {
		if rec := r.table.row(u.key); rec != nil && rec.turn == u.turn {
			r.words.put(uint32(u.key), wording{rec.name(), rec.description(), rec.tags(), u.words})
		}
	}
	clear(r.queue[:some]) // the texts are not needed any more
	r.queue = r.queue[some:]
	if len(r.queue) == 0 {
		r.queue = nil
	}
	r.waiting.Store(int64(len(r.queue)))
	return r.queue != nil
}
