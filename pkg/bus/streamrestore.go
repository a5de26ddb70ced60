package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"conclave/pkg/file"
	"conclave/subjects"
)

// ErrDamagedCopy means that a copy of a stream in a backup is damaged too, missing, or of another stream.
var ErrDamagedCopy = errors.New("the copy of the stream cannot be used")

// Restore takes back the messages that the damaged stream lacks and its copy in other, a data folder that is deleted
// then, has: those of damaged and missing files, and all of a missing stream. It returns their number. A message that
// the stream has is kept as it is, and one whose subject has a newer message in a stream that keeps the last only is
// not added. Messages that were deleted from a damaged file since the copy was made come back. The server must be
// stopped; it must not have run since the damage was found, because it reuses sequences.
func (d StreamDamage) Restore(home, other Home) (n int, err error) {
	copied := other.streamFolder(d.Account, d.Stream)
	from, err := OpenAuditFiles(copied)
	switch {
	case errors.Is(err, ErrNoAudit):
		return 0, fmt.Errorf("%w: it has none", ErrDamagedCopy)
	case err == nil && len(from.damage) > 0:
		return 0, fmt.Errorf("%w: it is damaged too", ErrDamagedCopy)
	case err != nil:
		return 0, err
	}
	dir := home.streamFolder(d.Account, d.Stream)
	f, err := OpenAuditFiles(dir)
	missing := errors.Is(err, ErrNoAudit)
	if err != nil && !missing {
		return 0, err
	}
	x := blockRestore{damage: d, own: f, from: from, has: map[uint64]int64{}, newest: map[string]uint64{}}
	if missing {
		x.own = &AuditFiles{stream: d.Stream}
	}
	if err := x.index(); err != nil {
		return 0, err
	}
	switch {
	case missing:
		err = os.MkdirAll(filepath.Dir(dir), 0o700)
		if err == nil {
			err = os.Rename(copied, dir)
		}
		return x.added, errors.Join(err, file.Sync(filepath.Dir(dir)))
	case len(f.blocks) == 0:
		err = os.RemoveAll(filepath.Join(dir, "msgs"))
		if err == nil {
			err = os.Rename(filepath.Join(copied, "msgs"), filepath.Join(dir, "msgs"))
		}
		return x.added, errors.Join(err, file.Sync(dir))
	}
	return x.added, x.writeBlocks(filepath.Join(dir, "msgs"))
}

// blockRestore adds the records of damaged and missing blocks that a copy has.
type blockRestore struct {
	damage    StreamDamage
	own, from *AuditFiles
	has       map[uint64]int64  // time of each message of own, by sequence; also of erased ones
	newest    map[string]uint64 // of own and from, by subject; only of a stream that keeps the last
	keepsLast bool
	maxAge    time.Duration // 0 = unlimited
	added     int
}

// index reads which messages there are, and counts those that are to be added. It fails with [ErrDamagedCopy] when the
// copy is of another stream: one that began anew has other messages under the same sequences.
func (x *blockRestore) index() error {
	for _, st := range subjects.Table().Streams {
		if st.Name == x.damage.Stream {
			x.keepsLast, x.maxAge = st.KeepLast || st.Bucket != "", st.MaxAge
		}
	}
	for _, b := range x.own.blocks {
		records, err := x.own.readRecords(b)
		if err != nil {
			return err
		}
		for _, r := range records {
			x.has[r.seq&^blockErased] = r.time.UnixNano()
			x.note(r, x.own)
		}
	}
	for _, b := range x.from.blocks {
		records, err := x.from.readRecords(b)
		if err != nil {
			return err
		}
		for _, r := range records {
			if at, known := x.has[r.seq]; known && r.isMessage() && at != r.time.UnixNano() {
				return fmt.Errorf("%w: it is of another stream", ErrDamagedCopy)
			}
			x.note(r, x.from)
		}
	}
	for _, b := range x.from.blocks {
		records, err := x.lacking(b)
		if err != nil {
			return err
		}
		for _, r := range records {
			if r.isMessage() {
				x.added++
			}
		}
	}
	return nil
}

// note keeps the newest message of a subject.
func (x *blockRestore) note(r blockRecord, f *AuditFiles) {
	if x.keepsLast && r.isMessage() && !f.deleted[r.seq] {
		x.newest[r.subject] = max(x.newest[r.subject], r.seq)
	}
}

// lacking returns the records of a block of the copy that are to be added.
func (x *blockRestore) lacking(b blockFile) (out []blockRecord, err error) {
	last := 0
	if n := len(x.own.blocks); n > 0 {
		last = x.own.blocks[n-1].index
	}
	if b.index <= last && x.damage.blocks != nil && !slices.Contains(x.damage.blocks, b.index) {
		return nil, nil
	}
	records, err := x.from.readRecords(b)
	for _, r := range records {
		_, known := x.has[r.seq]
		deletes := r.seq&blockTombstone != 0 // another message
		switch {
		case known, r.seq&blockErased != 0:
		case deletes:
			out = append(out, r)
		case x.own.deleted[r.seq], x.from.deleted[r.seq], x.keepsLast && x.newest[r.subject] > r.seq,
			x.maxAge > 0 && time.Since(r.time) > x.maxAge:
		default:
			out = append(out, r)
		}
	}
	return out, err
}

// writeBlocks adds the lacking records to the blocks in folder.
func (x *blockRestore) writeBlocks(folder string) error {
	for _, b := range x.from.blocks {
		records, err := x.lacking(b)
		if err != nil {
			return err
		}
		if len(records) == 0 {
			continue
		}
		if i := slices.IndexFunc(x.own.blocks, func(o blockFile) bool { return o.index == b.index }); i >= 0 {
			own, err := x.own.readRecords(x.own.blocks[i])
			if err != nil {
				return err
			}
			records = append(records, own...)
		}
		// What deletes messages has the highest bits, and its place is of no importance to the server.
		slices.SortFunc(records, func(a, b blockRecord) int { return cmp.Compare(a.seq, b.seq) })
		var data []byte
		for _, r := range records {
			data = append(data, r.raw...)
		}
		if err := file.Replace(filepath.Join(folder, fmt.Sprintf("%d.blk", b.index)), data); err != nil {
			return err
		}
	}
	// The server's index describes the blocks as they were.
	if err := os.Remove(filepath.Join(folder, "index.db")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// EachStored calls f with every readable message of a stream of CORE, in its order; none without the stream. The server
// must be stopped.
func (h Home) EachStored(ctx context.Context, stream string, f func(subject string, at time.Time, data []byte)) error {
	files, err := OpenAuditFiles(h.streamFolder(subjects.Core, stream))
	if errors.Is(err, ErrNoAudit) {
		return nil
	}
	if err != nil {
		return err
	}
	src, err := files.ReadAfter(ctx, 0)
	if err != nil {
		return err
	}
	for m, err := range src.Messages {
		if err != nil {
			return err
		}
		f(m.Subject, m.Time, m.Data)
	}
	return nil
}
