// Package audit writes and checks the audit log of everything the system did.
//
// A writer can only append. It keeps one chain of records: each record holds the hash of the one before, and where the
// chain ended is anchored in a file outside the stream. A new chain links the ends of the chains before it. So a change,
// a loss or a reordering inside the stream shows when [Verify] walks it, and a cut tail shows against the anchors.
//
// The package knows no transport. [Log] is what a writer needs of the stream, [Source] what a verifier needs.
//
// What the audit log cannot show: whether records after the last anchor of a chain, which were never acknowledged to anybody,
// are its writer's or were added by someone who can write the store; and the order of two messages of different chains when whoever swapped them renumbered the stream as well.
package audit

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"conclave/subjects"
)

// The first message of an audit log stands on its own subject, in an account that no writer has.
const (
	GenesisAccount = "AUDIT"
	GenesisChain   = "genesis"
	GenesisSubject = "audit." + GenesisAccount + "." + GenesisChain
)

var (
	// ErrFull is wrapped by a [Log] whose store is full: the message was not stored.
	ErrFull = errors.New("the audit store is full")
	// ErrRefused is wrapped by a [Log] that knows the message was not stored, for a reason other than a full store.
	ErrRefused = errors.New("the audit store refused the message")
	// ErrUncertain says that the record may or may not be stored. Repeating it under the same id could write it twice.
	ErrUncertain = errors.New("the audit record may not be stored")
	// ErrDuplicate says that the stream had already seen an id that was never used: somebody else used it first.
	ErrDuplicate = errors.New("the audit message id was used by somebody else")
	// ErrClosed says that the writer was never opened, or was closed.
	ErrClosed = errors.New("the audit writer is not open")
	// ErrGenesisNotAnchored says that nobody vouches for the first record of an audit log.
	ErrGenesisNotAnchored = errors.New("nobody vouches for the first record of the audit")
	// ErrExport says that an export is cut short or was altered.
	ErrExport = errors.New("the audit export is damaged")
)

// Log appends to the stream on behalf of one account.
type Log interface {
	// Append stores data on the subject of chain under the message id and returns when the stream has acknowledged it.
	// A nil error means stored; duplicate says that the stream already had a message with this id and kept that one.
	// An error that wraps [ErrFull] or [ErrRefused] means not stored; any other means that nobody knows.
	// Append must not keep data.
	Append(ctx context.Context, chain, id string, data []byte) (duplicate bool, err error)
}

// Stored is one message as the stream holds it.
type Stored struct {
	Seq     uint64 // the stream's sequence
	Subject string
	Data    []byte
}

// Source is the stream as a reader sees it. First and Last are what the stream says of itself; Messages gives every
// message from First to Last in the stream's order and stops at the first error. Read the anchors before taking Last:
// then whatever was anchored must be there.
type Source struct {
	First, Last uint64
	Messages    iter.Seq2[Stored, error]
}

// isToken reports whether s may be an account or a chain: one subject token that is also safe in a file name.
func isToken(s string) bool { return subjects.CheckToken(s) == nil }

// splitSubject takes audit.<account>.<chain> apart.
func splitSubject(subject string) (account, chain string, err error) {
	parts := strings.Split(subject, ".")
	if len(parts) != 3 || parts[0] != "audit" || !isToken(parts[1]) || !isToken(parts[2]) {
		return "", "", fmt.Errorf("subject %q is not audit.<account>.<chain>", subject)
	}
	return parts[1], parts[2], nil
}
