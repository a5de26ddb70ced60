// Package audit writes, verifies and exports the audit log.
//
// A [Writer] can only append. It writes one chain of records: each record holds the hash of its predecessor, and the
// head of the chain (its last acknowledged record) is anchored in a file outside the stream. A new chain links the
// heads of earlier chains. [Verify] therefore detects an altered, lost or reordered record in the stream, and a
// truncated chain by its anchor.
//
// The package has no transport: a writer needs a [Log], a verifier a [Source].
//
// Verify cannot detect two things: records appended after the last anchor of a chain, which were never acknowledged, by
// an attacker who can write the store; and two messages of different chains that were swapped in a renumbered stream.
package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"conclave/subjects"
)

// The first message of an audit log, the genesis, has its own subject, in an account that no writer has.
const (
	GenesisAccount = "AUDIT"
	GenesisChain   = "genesis"
	GenesisSubject = "audit." + GenesisAccount + "." + GenesisChain
)

var (
	// ErrFull is wrapped by the error of a [Log] whose store is full. The message was not stored.
	ErrFull = errors.New("audit store full")
	// ErrRefused is wrapped by the error of a [Log] whose store is not full and did not store the message.
	ErrRefused = errors.New("audit store rejected the message")
	// ErrUncertain means that the record may or may not be stored. A retry under the same record id could store it
	// twice.
	ErrUncertain = errors.New("audit record may not be stored")
	// ErrDuplicate means that the stream reported a fresh message id as duplicate: another client has used it.
	ErrDuplicate = errors.New("audit message id already used by another client")
	// ErrClosed means that the writer was never opened, or was closed.
	ErrClosed = errors.New("audit writer closed")
	// ErrGenesisNotAnchored means that no anchor confirms the first record of an audit log.
	ErrGenesisNotAnchored = errors.New("genesis of the audit log not anchored")
	// ErrExport means that an export is truncated or altered.
	ErrExport = errors.New("audit export damaged")
)

// Log appends to the stream on behalf of one account.
type Log interface {
	// Append stores data on the subject of chain under the message id and returns when the stream has acknowledged it.
	// A nil error means stored; duplicate means that the stream already had a message with this id and kept that one.
	// An error that wraps [ErrFull] or [ErrRefused] means not stored; after any other error the message may be stored.
	// Append must not retain data.
	Append(ctx context.Context, chain, id string, data []byte) (duplicate bool, err error)
}

// MainStream names the stream that begins with the genesis, by the account that writes it; see [Stored].
const MainStream = "broker"

// Stored is one message as its stream holds it.
type Stored struct {
	Stream  string // the account that the stream belongs to; "" = [MainStream]
	Seq     uint64 // the stream's sequence
	Subject string
	Data    []byte
	Time    time.Time // when the server stored it; zero in an export
}

// Name names the message for the user: see [MessageName].
func (st Stored) Name() string { return MessageName(st.Stream, st.Seq) }

// MessageName returns <account>/<sequence>, which names a message of the audit log everywhere: the account that the
// stream belongs to, "" = [MainStream], and the message's sequence in it.
func MessageName(stream string, seq uint64) string {
	return cmp.Or(stream, MainStream) + "/" + strconv.FormatUint(seq, 10)
}

// ParseMessageName is the inverse of [MessageName]. It rejects every other text.
func ParseMessageName(s string) (stream string, seq uint64, err error) {
	stream, digits, _ := strings.Cut(s, "/")
	if seq, err = strconv.ParseUint(digits, 10, 63); err != nil || !isToken(stream) || MessageName(stream, seq) != s {
		return "", 0, fmt.Errorf("%q is not the name of an audit message, such as broker/17", s)
	}
	if stream == MainStream {
		stream = ""
	}
	return stream, seq, nil
}

// StreamRange is what a stream reports about itself: the sequences of its first and last message, 0 = none.
type StreamRange struct {
	Stream string `json:"stream,omitempty"` // as in [Stored]
	First  uint64 `json:"first"`
	Last   uint64 `json:"last"`
}

// Source is the audit log, or one stream of it, as a reader sees it. Messages yields every message of each stream, in
// the order of the stream, and stops at the first error; the stream with the genesis comes first. A caller that
// verifies must read the anchors before the ranges: then every anchored record must be in its stream.
type Source struct {
	StreamRange               // the first stream
	Others      []StreamRange // the streams of the other writers
	Messages    iter.Seq2[Stored, error]
	Damage      []Damage // unreadable parts of the store; empty when only the server has access to the files
}

// Size returns the number of messages that the streams report.
func (s Source) Size() (n uint64) {
	for _, r := range append([]StreamRange{s.StreamRange}, s.Others...) {
		if r.First > 0 && r.First <= r.Last {
			n += r.Last - r.First + 1
		}
	}
	return n
}

// Damage is a part of a file of the stream that holds no readable record.
type Damage struct {
	File   string `json:"file"` // base name
	Offset int64  `json:"offset"`
	Bytes  int64  `json:"bytes"`
	After  uint64 `json:"after"` // sequence in its stream of the last readable message before it; 0 = none
	// Tail means that no readable record follows in the stream. A crash during a write leaves such an end; the anchors
	// show whether acknowledged records were in it.
	Tail bool `json:"tail,omitempty"`
	// Zeros means that it ends in zeros, where a record has its checksum. With Tail it is a write that a power failure
	// cut off before it was acknowledged.
	Zeros bool `json:"zeros,omitempty"`
}

// String describes the damage in one line.
func (d Damage) String() string {
	return fmt.Sprintf("%s holds %d damaged bytes at offset %d, after message %d", d.File, d.Bytes, d.Offset, d.After)
}

// isToken reports whether s is valid as an account or a chain: one subject token that is also safe in a file name.
func isToken(s string) bool { return subjects.CheckToken(s) == nil }

// splitSubject parses audit.<account>.<chain> and rejects every other subject.
func splitSubject(subject string) (account, chain string, err error) {
	parts := strings.Split(subject, ".")
	if len(parts) != 3 || parts[0] != "audit" || !isToken(parts[1]) || !isToken(parts[2]) {
		return "", "", fmt.Errorf("subject %q is not audit.<account>.<chain>", subject)
	}
	return parts[1], parts[2], nil
}
