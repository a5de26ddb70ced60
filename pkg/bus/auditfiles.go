package bus

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/minio/highwayhash"

	"conclave/pkg/audit"
	"conclave/pkg/file"
	"conclave/subjects"
)

// AuditFiles is one stream, of the audit log or another, in the block files of a stopped server. A server repairs a
// damaged block when it starts, by cutting off the rest of it, or does not notice it before the message is read;
// AuditFiles opens the files for reading only, skips what is damaged and reads on behind it.
//
// A block file is a sequence of records: length (4 bytes, the highest bit set if there are headers), sequence (8), time
// (8), length of the subject (2), subject, headers with their length (4) before them, payload, and a checksum (8) whose
// key is derived from the names of stream and block. All numbers are little-endian. The server compresses a full block
// of streams outside the audit log: see decompressBlock.
type AuditFiles struct {
	stream      string
	first, last uint64
	blocks      []blockFile
	deleted     map[uint64]bool // sequences that a deletion marker names: the server does not show them either
	damage      []audit.Damage  // in the order of the files
}

type blockFile struct {
	path   string
	index  int
	size   int64
	ranges [][2]int // readable parts, as offsets
}

const (
	blockHeaderSize = 22
	blockSumSize    = 8
	blockHasHeaders = 1 << 31
	blockErased     = 1 << 63  // bit of the sequence: the message was deleted
	blockTombstone  = 1 << 62  // bit of the sequence: this record deletes the message with the rest of the sequence
	maxBlockFile    = 64 << 20 // bytes; a server writes blocks of 8 MiB
)

// OpenAuditLog reads the audit streams of a stopped server and finds their damage, that of the broker first. Only that
// one must exist: the error wraps [ErrNoAudit] when it does not.
func OpenAuditLog(home Home) (out []*AuditFiles, err error) {
	for i, stream := range auditStreams() {
		f, err := OpenAuditFiles(filepath.Join(home.AuditStreams(), stream))
		if i > 0 && errors.Is(err, ErrNoAudit) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, nil
}

// ReadFiles returns the readers of files.
func ReadFiles(files []*AuditFiles) (out AuditReaders) {
	for _, f := range files {
		out = append(out, f)
	}
	return out
}

// OpenAuditFiles reads the audit stream in dir, the folder of the stream, and finds its damage. The server must be
// stopped. It fails when a file cannot be read; the error wraps [ErrNoAudit] when dir does not exist.
func OpenAuditFiles(dir string) (*AuditFiles, error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading the audit log: %w: %s does not exist", ErrNoAudit, dir)
	}
	names, err := filepath.Glob(filepath.Join(dir, "msgs", "*.blk"))
	if err != nil {
		return nil, fmt.Errorf("reading the audit log: %w", err)
	}
	f := &AuditFiles{stream: filepath.Base(dir), deleted: map[uint64]bool{}}
	for _, path := range names {
		index, err := strconv.Atoi(strings.TrimSuffix(filepath.Base(path), ".blk"))
		if err != nil {
			return nil, fmt.Errorf("reading the audit log: %s is not a block file", path)
		}
		f.blocks = append(f.blocks, blockFile{path: path, index: index})
	}
	slices.SortFunc(f.blocks, func(a, b blockFile) int { return cmp.Compare(a.index, b.index) })
	for i := range f.blocks {
		if err := f.scanBlock(&f.blocks[i]); err != nil {
			return nil, fmt.Errorf("reading the audit log: %w", err)
		}
	}
	for i := range f.damage {
		f.damage[i].Tail = f.damage[i].After == f.last
	}
	return f, nil
}

// scanBlock finds the readable parts of a block, its damage and its deletion markers. A symbolic link, a device and a
// file of more than maxBlockFile bytes, which no server writes, are damaged as a whole.
func (f *AuditFiles) scanBlock(b *blockFile) error {
	info, err := os.Lstat(b.path)
	if err != nil {
		return err
	}
	b.size = info.Size()
	if !info.Mode().IsRegular() || info.Size() > maxBlockFile {
		f.damage = append(f.damage, audit.Damage{File: f.nameOf(*b), Bytes: info.Size(), After: f.last})
		return nil
	}
	data, missing, err := readBlock(b.path)
	if err != nil {
		return err
	}
	sum, err := f.newBlockHash(b.index)
	if err != nil {
		return err
	}
	defer func() {
		if missing > 0 {
			f.damage = append(f.damage, audit.Damage{
				File: f.nameOf(*b), Offset: int64(len(data)), Bytes: missing, After: f.last,
			})
		}
	}()
	for at := 0; at < len(data); {
		rec, ok := parseBlockRecord(data[at:], sum)
		if !ok {
			next := findBlockRecord(data, at+1, sum)
			f.damage = append(f.damage, audit.Damage{
				File: f.nameOf(*b), Offset: int64(at), Bytes: int64(next - at),
				After: f.last, Zeros: bytes.HasSuffix(data[at:next], make([]byte, min(blockSumSize, next-at))),
			})
			at = next
			continue
		}
		if n := len(b.ranges); n > 0 && b.ranges[n-1][1] == at {
			b.ranges[n-1][1] = at + len(rec.raw)
		} else {
			b.ranges = append(b.ranges, [2]int{at, at + len(rec.raw)})
		}
		at += len(rec.raw)
		switch {
		case rec.seq&blockTombstone != 0:
			f.deleted[rec.seq&^blockTombstone] = true
			continue
		case rec.seq&blockErased != 0:
			continue
		case f.first == 0:
			f.first = rec.seq
		}
		f.last = max(f.last, rec.seq)
	}
	return nil
}

// Stream is the name of the stream.
func (f *AuditFiles) Stream() string { return f.stream }

// nameOf is the name of a block in the description of damage: its base name, for the stream of the broker, and with the
// name of the stream before it for any other.
func (f *AuditFiles) nameOf(b blockFile) string {
	if f.stream == subjects.Audit {
		return filepath.Base(b.path)
	}
	return filepath.Join(f.stream, filepath.Base(b.path))
}

// Damage lists the damaged parts, in the order of the files.
func (f *AuditFiles) Damage() []audit.Damage { return f.damage }

// Owner implements [AuditReader].
func (f *AuditFiles) Owner() string { return streamOwner(f.stream) }

// ReadAfter implements [AuditReader]. Damaged parts and deleted messages are left out, so that the verifier finds a
// gap.
func (f *AuditFiles) ReadAfter(ctx context.Context, seq uint64) (audit.Source, error) {
	first := f.first
	if seq > 0 {
		first = max(seq+1, first)
	}
	return audit.Source{
		StreamRange: audit.StreamRange{Stream: f.Owner(), First: first, Last: f.last}, Damage: f.damage,
		Messages: func(yield func(audit.Stored, error) bool) {
			for _, b := range f.blocks {
				if !f.eachMessage(ctx, b, seq, yield) {
					return
				}
			}
		},
	}, nil
}

// eachMessage yields the messages of one block after the sequence seq, and reports whether to go on.
func (f *AuditFiles) eachMessage(ctx context.Context, b blockFile, seq uint64,
	yield func(audit.Stored, error) bool,
) bool {
	records, err := f.readRecords(b)
	if err = errors.Join(err, ctx.Err()); err != nil {
		yield(audit.Stored{}, fmt.Errorf("reading the audit log: %w", err))
		return false
	}
	for _, rec := range records {
		if rec.isMessage() && rec.seq > seq && !f.deleted[rec.seq] && !yield(audit.Stored{
			Stream: f.Owner(), Seq: rec.seq, Subject: rec.subject, Data: rec.payload, Time: rec.time,
		}, nil) {
			return false
		}
	}
	return true
}

// readRecords returns the readable records of a block.
func (f *AuditFiles) readRecords(b blockFile) (out []blockRecord, err error) {
	if len(b.ranges) == 0 {
		return nil, nil
	}
	data, _, err := readBlock(b.path)
	sum, herr := f.newBlockHash(b.index)
	if err = errors.Join(err, herr); err != nil {
		return nil, err
	}
	for _, r := range b.ranges {
		for at := r[0]; at < r[1]; at += len(out[len(out)-1].raw) {
			rec, ok := parseBlockRecord(data[min(at, len(data)):], sum)
			if !ok {
				return nil, fmt.Errorf("%s changed meanwhile", b.path)
			}
			out = append(out, rec)
		}
	}
	return out, nil
}

// newBlockHash returns the checksum of the records in the block with this index.
func (f *AuditFiles) newBlockHash(index int) (hash.Hash64, error) {
	key := sha256.Sum256(fmt.Appendf(nil, "%s-%d", f.stream, index))
	return highwayhash.New64(key[:])
}

// blockRecord is a record of a block file.
type blockRecord struct {
	raw     []byte
	seq     uint64 // with the bits blockErased and blockTombstone
	time    time.Time
	subject string
	payload []byte
}

// isMessage reports whether the record is neither the rest of a message that was deleted nor what deletes another one.
func (r blockRecord) isMessage() bool { return r.seq&(blockTombstone|blockErased) == 0 }

// parseBlockRecord parses the first record of b and reports false unless it is complete and its checksum fits.
func parseBlockRecord(b []byte, sum hash.Hash64) (blockRecord, bool) {
	if len(b) < blockHeaderSize+blockSumSize {
		return blockRecord{}, false
	}
	length := binary.LittleEndian.Uint32(b)
	size, subject := int(length&^blockHasHeaders), int(binary.LittleEndian.Uint16(b[20:]))
	from := blockHeaderSize + subject // of the payload, behind the headers
	end := size - blockSumSize
	if size > len(b) || from > end {
		return blockRecord{}, false
	}
	sum.Reset()
	sum.Write(b[4:20])
	sum.Write(b[blockHeaderSize:from])
	if length&blockHasHeaders != 0 {
		if from+4 > end {
			return blockRecord{}, false
		}
		headers := int(binary.LittleEndian.Uint32(b[from:]))
		if from += 4; headers > end-from {
			return blockRecord{}, false
		}
		sum.Write(b[from : from+headers])
		from += headers
	}
	sum.Write(b[from:end])
	if !bytes.Equal(sum.Sum(nil), b[end:size]) {
		return blockRecord{}, false
	}
	return blockRecord{
		raw: b[:size], seq: binary.LittleEndian.Uint64(b[4:]),
		time:    time.Unix(0, int64(binary.LittleEndian.Uint64(b[12:]))).UTC(),
		subject: string(b[blockHeaderSize : blockHeaderSize+subject]), payload: b[from:end],
	}, true
}

// findBlockRecord returns the offset of the first valid record of data at or after from, len(data) when there is none.
// To hash few offsets that begin no record, it expects sequences below 2^40.
func findBlockRecord(data []byte, from int, sum hash.Hash64) int {
	for at := from; at+blockHeaderSize+blockSumSize <= len(data); at++ {
		seq := binary.LittleEndian.Uint64(data[at+4:]) &^ (blockErased | blockTombstone)
		if seq == 0 || seq >= 1<<40 {
			continue
		}
		if _, ok := parseBlockRecord(data[at:], sum); ok {
			return at
		}
	}
	return len(data)
}

// readBlock reads the records of a block file. missing is the number of bytes, at least one, that a damaged file should
// hold behind those that are returned.
func readBlock(path string) (data []byte, missing int64, err error) {
	if data, err = os.ReadFile(path); err != nil {
		return nil, 0, err
	}
	data, missing = decompressBlock(data)
	return data, missing, nil
}

// decompressBlock returns the records of a compressed block, and any other block as it is. A compressed one begins with
// "cmp" and a 1 for S2, has the size of its records as a varint and all but the last 8 bytes of them as an S2 stream,
// then these.
func decompressBlock(b []byte) (data []byte, missing int64) {
	if !bytes.HasPrefix(b, []byte("cmp\x01")) {
		return b, 0
	}
	size, n := binary.Uvarint(b[4:])
	if n <= 0 || 4+n+blockSumSize > len(b) || size > maxBlockFile {
		return nil, int64(len(b))
	}
	end := len(b) - blockSumSize
	// Most blocks are small, and a start reads those of every stream: by default the reader takes a megabyte, and a
	// buffer that grows is copied again and again. Without damage the size is that of the records, at most 8 MiB.
	r := s2.NewReader(bytes.NewReader(b[4+n:end]), s2.ReaderAllocBlock(min(max(len(b), 1<<10), 1<<20)))
	records := bytes.NewBuffer(make([]byte, 0, min(int(size), 8<<20)+bytes.MinRead))
	if _, err := records.ReadFrom(io.LimitReader(r, maxBlockFile)); err != nil {
		return records.Bytes(), max(int64(size)-int64(records.Len()), 1)
	}
	return append(records.Bytes(), b[end:]...), 0
}

// SetDamageAside moves each damaged block into folder and puts a block with its readable records in its place. The
// server's index goes there too: it describes the damaged blocks. Without damage it does nothing. It fails, before it
// changes anything, when folder exists or the disk of the data has too little space. The server must be stopped.
func (f *AuditFiles) SetDamageAside(folder string) error {
	var damaged []blockFile
	need := int64(minFreeBytes)
	for _, b := range f.blocks {
		if !slices.ContainsFunc(f.damage, func(d audit.Damage) bool { return d.File == f.nameOf(b) }) {
			continue
		}
		damaged = append(damaged, b)
		for _, r := range b.ranges {
			need += int64(r[1] - r[0])
		}
	}
	if len(damaged) == 0 {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(folder), 0o700); err != nil {
		return fmt.Errorf("setting damaged files aside: %w", err)
	}
	switch free, err := FreeBytes(filepath.Dir(damaged[0].path)); {
	case err != nil:
		return fmt.Errorf("setting damaged files aside: %w", err)
	case free < need:
		return fmt.Errorf("setting damaged files aside: it needs %d MiB of disk space, %d MiB are free",
			need>>20, free>>20)
	}
	err := os.Mkdir(folder, 0o700)
	for _, b := range damaged {
		if err == nil {
			err = b.replace(folder)
		}
	}
	if err == nil {
		index := filepath.Join(filepath.Dir(damaged[0].path), "index.db")
		if err = os.Rename(index, filepath.Join(folder, "index.db")); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("setting damaged files aside: %w", err)
	}
	return nil
}

// replace moves the block into folder and leaves one with the readable records in its place, with nothing in between
// that a crash could lose: the block gets its second name before the other one replaces it.
func (b blockFile) replace(folder string) error {
	var readable []byte
	if len(b.ranges) > 0 {
		data, _, err := readBlock(b.path)
		if err != nil {
			return err
		}
		for _, r := range b.ranges {
			readable = append(readable, data[r[0]:min(r[1], len(data))]...)
		}
	}
	if err := os.Link(b.path, filepath.Join(folder, filepath.Base(b.path))); err != nil {
		return err
	}
	if err := file.Sync(folder); err != nil {
		return err
	}
	return file.Replace(b.path, readable)
}
