package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"conclave/pkg/strict"
	"conclave/subjects"
)

const (
	// MaxMessage is the limit of a message in bytes, for writing and reading. It is below the default limit of NATS, 1
	// MiB.
	MaxMessage = 1_000_000

	maxRecord       = 16 << 10  // bytes of one caller's record
	maxBatchRecords = 128       // callers' records in one message
	maxBatchBytes   = 128 << 10 // callers' bytes in one message: with links and framing below the limit of the streams
)

// Decoded is one record of a message and the SHA-256 of its encoding.
type Decoded struct {
	Record subjects.AuditRecord
	Hash   [sha256.Size]byte
}

// Hash returns the hex SHA-256 of an encoded record, which is the Prev of the next record.
func Hash(raw []byte) string {
	return hexHash(sha256.Sum256(raw))
}

func hexHash(sum [sha256.Size]byte) string {
	var text [2 * sha256.Size]byte
	return string(hex.AppendEncode(text[:0], sum[:]))
}

// EncodeBatch encodes records into one message: a msgpack array of byte strings, one per record. It sets no field:
// chain, sequence, predecessor and time are the caller's. It rejects an empty batch, more than 65535 records, and a
// message of more than [MaxMessage] bytes.
func EncodeBatch(records ...subjects.AuditRecord) ([]byte, error) {
	b := newBatchEncoder()
	for i := range records {
		if _, err := b.addRecord(&records[i]); err != nil {
			return nil, err
		}
	}
	return b.message()
}

// EncodeGenesis returns the first message of an audit log, for [GenesisSubject], and its head. The caller must anchor
// the head with [WriteHead], because no record in the stream confirms the genesis. It rejects a genesis with so many
// old heads that the message exceeds [MaxMessage].
func EncodeGenesis(now time.Time, g subjects.AuditGenesis) ([]byte, subjects.AuditHead, error) {
	rec := subjects.AuditRecord{
		Chain:   GenesisChain,
		Seq:     1,
		Time:    now.UTC(),
		Phase:   subjects.AuditOpen,
		ID:      GenesisChain,
		Action:  subjects.ActionGenesis,
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

// DecodeBatch decodes a message into at least one record. The encoding is canonical: bytes that [EncodeBatch] would not
// have written, more than [MaxMessage] bytes included, are rejected, so that no two readers see different records in
// the same message. Chain, sequence and hashes are not verified.
func DecodeBatch(data []byte) ([]Decoded, error) {
	if len(data) > MaxMessage {
		return nil, fmt.Errorf("decode audit batch: %d bytes, at most %d", len(data), MaxMessage)
	}
	if err := strict.CheckMsgpack(data); err != nil {
		return nil, fmt.Errorf("decode audit batch: %w", err)
	}
	dec := msgpack.NewDecoder(bytes.NewReader(data))
	n, err := dec.DecodeArrayLen()
	if err != nil {
		return nil, fmt.Errorf("decode audit batch: %w", err)
	}
	if n < 1 {
		return nil, errors.New("decode audit batch: no records")
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
		return nil, errors.New("decode audit batch: encoding is not canonical")
	}
	return out, nil
}

// decodeRecord decodes one record. It rejects what [strict.DecodeMsgpack] rejects, and times outside the years 1 to
// 9999, which JSON cannot represent. Other deviations from the canonical encoding are for the caller to find.
func decodeRecord(raw []byte) (subjects.AuditRecord, error) {
	var rec subjects.AuditRecord
	if err := strict.DecodeMsgpack(raw, &rec); err != nil {
		return rec, err
	}
	rec.Time = rec.Time.UTC()
	if y := rec.Time.Year(); y < 1 || y > 9999 {
		return rec, fmt.Errorf("year %d is out of range", y)
	}
	return rec, nil
}

// batchEncoder encodes records one by one and frames them as a message. A reused one does not allocate.
type batchEncoder struct {
	enc     *msgpack.Encoder
	raw     bytes.Buffer // one record
	msg     []byte       // headerSize bytes for the array header, then the framed records
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

// addRecord appends rec unchanged and returns the hash of its encoding, in hex. It rejects a record of more than
// MaxMessage bytes; the size of the batch is checked by message.
func (b *batchEncoder) addRecord(rec *subjects.AuditRecord) (string, error) {
	b.raw.Reset()
	if err := b.enc.Encode(*rec); err != nil { // by value: by a pointer the encoder copies each field that may be empty
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

// message returns the framed batch, valid until the next reset. It rejects an empty batch, more than 65535 records, and
// more than MaxMessage bytes. It must be called once per batch, after the last addRecord.
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

// checkRecord rejects a record that a caller with account may not append: a phase other than before and after, no id,
// no action or one that belongs to another account, links or a genesis, or more than maxRecord bytes. It returns an
// upper bound of the encoded size in bytes.
func checkRecord(account string, rec *subjects.AuditRecord) (int, error) {
	switch {
	case rec.Phase != subjects.AuditBefore && rec.Phase != subjects.AuditAfter:
		return 0, fmt.Errorf("phase %q is neither before nor after", rec.Phase)
	case rec.ID == "":
		return 0, errors.New("record has no id")
	case rec.Action == "":
		return 0, errors.New("record has no action")
	case subjects.AuditActions[account] != nil && !slices.Contains(subjects.AuditActions[account], rec.Action):
		return 0, fmt.Errorf("account %s may not record the action %q", account, rec.Action)
	case rec.Genesis != nil || len(rec.Links) > 0:
		return 0, errors.New("links and genesis are reserved for the audit writer")
	}
	size := 640 // field names, lengths, and the fields that the writer sets
	for _, s := range []string{
		rec.ID, rec.AgentID, rec.AgentType, rec.Action, rec.Tool, rec.ParamsHash, rec.Status,
		rec.Reason, rec.Session, rec.Query,
	} {
		size += len(s)
	}
	for _, s := range rec.Lineage {
		size += 5 + len(s)
	}
	if size > maxRecord {
		return 0, fmt.Errorf("record of about %d bytes exceeds %d", size, maxRecord)
	}
	return size, nil
}
