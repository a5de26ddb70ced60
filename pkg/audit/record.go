package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"conclave/subjects"
)

const (
	// MaxMessage is the size of the largest message that is written or read, below the bus's usual megabyte.
	MaxMessage = 1_000_000

	maxRecord       = 16 << 10  // one caller's record
	maxBatchRecords = 128       // callers' records in one message
	maxBatchBytes   = 256 << 10 // callers' bytes in one message
	maxDepth        = 8         // of nested msgpack values; a record needs four
)

// Decoded is one record of a message and the hash of its exact bytes.
type Decoded struct {
	Record subjects.AuditRecord
	Hash   [sha256.Size]byte
}

// Hash returns what the next record's Prev must be: hex SHA-256 over the encoded record.
func Hash(raw []byte) string {
	return hexHash(sha256.Sum256(raw))
}

func hexHash(sum [sha256.Size]byte) string { return hex.EncodeToString(sum[:]) }

// EncodeBatch encodes records as they are into one message: a msgpack array of byte strings, one per record.
func EncodeBatch(records ...subjects.AuditRecord) ([]byte, error) {
	b := newBatchEncoder()
	for i := range records {
		if _, err := b.addRecord(&records[i]); err != nil {
			return nil, err
		}
	}
	return b.message()
}

// EncodeGenesis returns the first message of an audit log, for [GenesisSubject], and its head. Keep the head with
// [WriteHead]: nothing in the stream vouches for the genesis.
func EncodeGenesis(now time.Time, g subjects.AuditGenesis) ([]byte, subjects.AuditHead, error) {
	rec := subjects.AuditRecord{
		Chain:   GenesisChain,
		Seq:     1,
		Time:    now.UTC(),
		Phase:   subjects.AuditOpen,
		ID:      GenesisChain,
		Action:  "audit.genesis",
		Genesis: &g,
	}
	b := newBatchEncoder()
	hash, err := b.addRecord(&rec)
	if err != nil {
		return nil, subjects.AuditHead{}, err
	}
	data, err := b.message()
	if err != nil {
		return nil, subjects.AuditHead{}, fmt.Errorf("encode genesis with %d heads: %w", len(g.OldHeads), err)
	}
	return data, subjects.AuditHead{Account: GenesisAccount, Chain: GenesisChain, Seq: 1, Hash: hash}, nil
}

// DecodeBatch reads a message strictly. There is exactly one encoding of a batch: whatever [EncodeBatch] would not
// have written is refused, so that no two readers can see different records in the same bytes.
func DecodeBatch(data []byte) ([]Decoded, error) {
	if len(data) > MaxMessage {
		return nil, fmt.Errorf("decode audit batch: %d bytes, at most %d", len(data), MaxMessage)
	}
	if err := checkMsgpack(data); err != nil {
		return nil, fmt.Errorf("decode audit batch: %w", err)
	}
	dec := msgpack.NewDecoder(bytes.NewReader(data))
	n, err := dec.DecodeArrayLen()
	if err != nil {
		return nil, fmt.Errorf("decode audit batch: %w", err)
	}
	if n < 1 {
		return nil, errors.New("decode audit batch: it holds no records")
	}
	encoder := newBatchEncoder()
	var out []Decoded
	for i := range n {
		raw, err := dec.DecodeBytes()
		if err != nil {
			return nil, fmt.Errorf("decode audit record %d of %d: %w", i+1, n, err)
		}
		rec, err := decodeRecord(raw)
		if err != nil {
			return nil, fmt.Errorf("decode audit record %d of %d: %w", i+1, n, err)
		}
		if _, err := encoder.addRecord(&rec); err != nil {
			return nil, err
		}
		out = append(out, Decoded{Record: rec, Hash: sha256.Sum256(raw)})
	}
	if canonical, err := encoder.message(); err != nil || !bytes.Equal(canonical, data) {
		return nil, errors.New("decode audit batch: the encoding is not the one a writer makes")
	}
	return out, nil
}

func decodeRecord(raw []byte) (subjects.AuditRecord, error) {
	var rec subjects.AuditRecord
	if err := checkMsgpack(raw); err != nil {
		return rec, err
	}
	dec := msgpack.NewDecoder(bytes.NewReader(raw))
	dec.SetCustomStructTag("json")
	dec.DisallowUnknownFields(true)
	if err := dec.Decode(&rec); err != nil {
		return rec, err
	}
	rec.Time = rec.Time.UTC()
	if y := rec.Time.Year(); y < 1 || y > 9999 {
		return rec, fmt.Errorf("the year %d cannot be written as JSON", y)
	}
	return rec, nil
}

// batchEncoder encodes records one by one and frames them as a message. Reusing it saves the allocations.
type batchEncoder struct {
	enc     *msgpack.Encoder
	raw     bytes.Buffer // one record
	msg     []byte       // room for the array header, then the framed records
	records int
}

const headerSize = 3

func newBatchEncoder() *batchEncoder {
	b := &batchEncoder{}
	b.enc = msgpack.NewEncoder(&b.raw)
	b.enc.SetCustomStructTag("json")
	b.enc.UseCompactInts(true)
	b.reset()
	return b
}

func (b *batchEncoder) reset() {
	b.msg = append(b.msg[:0], make([]byte, headerSize)...)
	b.records = 0
}

// addRecord appends rec and returns its hash.
func (b *batchEncoder) addRecord(rec *subjects.AuditRecord) (string, error) {
	b.raw.Reset()
	if err := b.enc.Encode(rec); err != nil {
		return "", fmt.Errorf("encode audit record: %w", err)
	}
	raw := b.raw.Bytes()
	switch n := len(raw); {
	case n > MaxMessage:
		return "", fmt.Errorf("encode audit record: %d bytes, at most %d", n, MaxMessage)
	case n < 1<<8:
		b.msg = append(b.msg, 0xc4, byte(n))
	case n < 1<<16:
		b.msg = binary.BigEndian.AppendUint16(append(b.msg, 0xc5), uint16(n))
	default:
		b.msg = binary.BigEndian.AppendUint32(append(b.msg, 0xc6), uint32(n))
	}
	b.msg = append(b.msg, raw...)
	b.records++
	return Hash(raw), nil
}

// message returns the framed batch. It is good until the next reset.
func (b *batchEncoder) message() ([]byte, error) {
	from := 0
	switch {
	case b.records == 0 || b.records >= 1<<16:
		return nil, fmt.Errorf("encode audit batch: %d records", b.records)
	case b.records < 1<<4:
		from = headerSize - 1
		b.msg[from] = 0x90 | byte(b.records)
	default:
		b.msg[0] = 0xdc
		binary.BigEndian.PutUint16(b.msg[1:], uint16(b.records))
	}
	msg := b.msg[from:]
	if len(msg) > MaxMessage {
		return nil, fmt.Errorf("encode audit batch: %d bytes, at most %d", len(msg), MaxMessage)
	}
	return msg, nil
}

var errMalformed = errors.New("not a whole msgpack value")

// checkMsgpack reports whether b is exactly one msgpack value whose lengths are all true. The decoder allocates what an
// array claims to hold before it has read any of it; a claim of four billion heads must not get that far.
func checkMsgpack(b []byte) error {
	rest, err := skipValue(b, maxDepth)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return fmt.Errorf("%d bytes after the end", len(rest))
	}
	return nil
}

// skipValue returns what follows the first value of b.
func skipValue(b []byte, depth int) ([]byte, error) {
	if len(b) == 0 || depth == 0 {
		return nil, errMalformed
	}
	c := b[0]
	b = b[1:]
	var (
		size  int // bytes of the value itself
		items int // values inside it
		width int // bytes of a length field
	)
	switch {
	case c <= 0x7f, c >= 0xe0: // small integers
	case c <= 0x8f:
		items = 2 * int(c&0x0f)
	case c <= 0x9f:
		items = int(c & 0x0f)
	case c <= 0xbf:
		size = int(c & 0x1f)
	case c == 0xc0, c == 0xc2, c == 0xc3: // nil, false, true
	case c == 0xcc, c == 0xd0: // numbers
		size = 1
	case c == 0xcd, c == 0xd1:
		size = 2
	case c == 0xca, c == 0xce, c == 0xd2:
		size = 4
	case c == 0xcb, c == 0xcf, c == 0xd3:
		size = 8
	case c >= 0xd4 && c <= 0xd8: // extensions of 1, 2, 4, 8, 16 bytes
		size = 1 + 1<<(c-0xd4)
	case c == 0xc4, c == 0xc7, c == 0xd9:
		width = 1
	case c == 0xc5, c == 0xc8, c == 0xda, c == 0xdc, c == 0xde:
		width = 2
	case c == 0xc6, c == 0xc9, c == 0xdb, c == 0xdd, c == 0xdf:
		width = 4
	default:
		return nil, errMalformed
	}
	if width > 0 {
		if len(b) < width {
			return nil, errMalformed
		}
		claim := uint64(0)
		for _, x := range b[:width] {
			claim = claim<<8 | uint64(x)
		}
		b = b[width:]
		if claim > uint64(len(b)) {
			return nil, errMalformed
		}
		n := int(claim)
		switch c {
		case 0xdc, 0xdd:
			items = n
		case 0xde, 0xdf:
			items = 2 * n
		case 0xc7, 0xc8, 0xc9:
			size = n + 1
		default:
			size = n
		}
	}
	if size > len(b) || items > len(b) {
		return nil, errMalformed
	}
	b = b[size:]
	for range items {
		var err error
		if b, err = skipValue(b, depth-1); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// checkRecord refuses what a caller may not append, and returns an upper bound of the encoded size.
func checkRecord(rec *subjects.AuditRecord) (int, error) {
	switch {
	case rec.Phase != subjects.AuditBefore && rec.Phase != subjects.AuditAfter:
		return 0, fmt.Errorf("phase %q is neither before nor after", rec.Phase)
	case rec.ID == "":
		return 0, errors.New("the record has no id")
	case rec.Action == "":
		return 0, errors.New("the record has no action")
	case rec.Genesis != nil || len(rec.Links) > 0:
		return 0, errors.New("only the audit log itself writes links and a genesis")
	}
	size := 640 // the names, the lengths, the time, and what the writer fills in
	for _, s := range []string{rec.ID, rec.AgentID, rec.AgentType, rec.Action, rec.Tool, rec.ParamsHash, rec.Status, rec.Reason, rec.Session, rec.Query} {
		size += len(s)
	}
	for _, s := range rec.Lineage {
		size += 5 + len(s)
	}
	if size > maxRecord {
		return 0, fmt.Errorf("the record has about %d bytes, at most %d", size, maxRecord)
	}
	return size, nil
}
